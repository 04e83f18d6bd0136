//! The results of all cases, and their forms for other programs: JUnit and TAP. The JSON form is the report itself.

use std::{fmt::Write, path::PathBuf, time::Duration};

use serde::{Serialize, Serializer};

use crate::{coverage::Coverage, expect::FailedExpectation, file::FileProblem};

/// The results of all cases.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The test files, in order.
    pub files: Vec<FileReport>,
    /// What the cases cover of each flow.
    pub coverage: Vec<Coverage>,
    /// Test files and flows that cannot be used; their cases did not run.
    pub problems: Vec<FileProblem>,
    /// Snapshot files that were written.
    pub written: Vec<PathBuf>,
    /// How long all of it took.
    #[serde(rename = "durationMs", serialize_with = "millis")]
    pub duration: Duration,
}

/// The results of the cases of one file.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileReport {
    /// The test file.
    pub file: PathBuf,
    /// The flow that it tests.
    pub flow: PathBuf,
    /// Its cases that ran, in order.
    pub cases: Vec<CaseReport>,
    /// What its author may want to look at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The result of one case.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseReport {
    /// The test file.
    pub file: PathBuf,
    /// The name of the case.
    pub name: String,
    /// Its place in the file.
    pub line: u64,
    /// Whether everything is as expected.
    pub passed: bool,
    /// What is not as expected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailedExpectation>,
    /// What its author may want to look at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How long it took.
    #[serde(rename = "durationMs", serialize_with = "millis")]
    pub duration: Duration,
    /// How long its session took in the time of the test.
    #[serde(rename = "sessionMs", serialize_with = "millis")]
    pub session: Duration,
}

fn millis<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((duration.as_secs_f64() * 1e6).round() / 1e3)
}

impl Report {
    /// All cases that ran.
    pub fn cases(&self) -> impl Iterator<Item = &CaseReport> {
        self.files.iter().flat_map(|file| &file.cases)
    }

    /// How many cases passed, and how many failed.
    pub fn counts(&self) -> (usize, usize) {
        let passed = self.cases().filter(|case| case.passed).count();
        (passed, self.cases().count() - passed)
    }

    /// Whether every file could be used, and every case passed. Without a case, nothing has passed.
    pub fn passed(&self) -> bool {
        self.problems.is_empty() && matches!(self.counts(), (1.., 0))
    }

    /// The part of all flows that their cases cover, in percent.
    pub fn coverage_percent(&self) -> f64 {
        let count = self.coverage.len();
        if count == 0 {
            100.0
        } else {
            self.coverage.iter().map(Coverage::percent).sum::<f64>() / count as f64
        }
    }

    /// As JUnit XML, in the form that Jenkins and GitLab read.
    pub fn junit(&self) -> String {
        let (passed, failed) = self.counts();
        let problems = self.problems.len();
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"inspan test\" tests=\"{}\" failures=\"{failed}\" errors=\"{problems}\" time=\"{:.3}\">\n",
            passed + failed + problems,
            self.duration.as_secs_f64()
        );
        for file in &self.files {
            let failed = file.cases.iter().filter(|case| !case.passed).count();
            let time: f64 = file.cases.iter().map(|case| case.duration.as_secs_f64()).sum();
            let name = xml(&file.file.display().to_string());
            let _ = writeln!(
                out,
                "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{failed}\" errors=\"0\" time=\"{time:.3}\">",
                file.cases.len()
            );
            for case in &file.cases {
                let (case_name, time) = (xml(&case.name), case.duration.as_secs_f64());
                let head = format!(
                    "    <testcase classname=\"{name}\" name=\"{case_name}\" file=\"{name}\" line=\"{}\" time=\"{time:.3}\"",
                    case.line
                );
                if case.passed {
                    let _ = writeln!(out, "{head}/>");
                    continue;
                }
                let _ = writeln!(out, "{head}>");
                let first = case.failures.first().map(first_line).unwrap_or_default();
                let text: Vec<String> = case.failures.iter().map(whole).collect();
                let _ = writeln!(
                    out,
                    "      <failure message=\"{}\">{}</failure>",
                    xml(&first),
                    xml(&text.join("\n"))
                );
                out.push_str("    </testcase>\n");
            }
            out.push_str("  </testsuite>\n");
        }
        if problems > 0 {
            let _ = writeln!(
                out,
                "  <testsuite name=\"files\" tests=\"{problems}\" failures=\"0\" errors=\"{problems}\" time=\"0\">"
            );
            for problem in &self.problems {
                let name = xml(&problem.file.display().to_string());
                let text = xml(&problem.to_string());
                let _ = writeln!(
                    out,
                    "    <testcase classname=\"{name}\" name=\"{name}\"><error message=\"{text}\">{text}</error></testcase>"
                );
            }
            out.push_str("  </testsuite>\n");
        }
        out.push_str("</testsuites>\n");
        out
    }

    /// As TAP, version 14.
    pub fn tap(&self) -> String {
        let (passed, failed) = self.counts();
        let mut out = format!("TAP version 14\n1..{}\n", passed + failed + self.problems.len());
        if passed + failed + self.problems.len() == 0 {
            out.push_str("# no case has run\n");
        }
        for (at, case) in self.cases().enumerate() {
            let name = tap(&format!("{} - {}", case.file.display(), case.name));
            let word = if case.passed { "ok" } else { "not ok" };
            let _ = writeln!(out, "{word} {} - {name}", at + 1);
            if !case.passed {
                diagnostics(&mut out, &case.failures.iter().map(whole).collect::<Vec<_>>().join("\n"));
            }
        }
        for (at, problem) in self.problems.iter().enumerate() {
            let _ = writeln!(
                out,
                "not ok {} - {}",
                passed + failed + at + 1,
                tap(&problem.file.display().to_string())
            );
            diagnostics(&mut out, &problem.to_string());
        }
        out
    }
}

fn diagnostics(out: &mut String, text: &str) {
    out.push_str("  ---\n  message: |\n");
    for line in text.lines() {
        let _ = writeln!(out, "    {}", printable(line));
    }
    out.push_str("  ...\n");
}

fn first_line(failure: &FailedExpectation) -> String {
    format!("{}: {}", failure.key, failure.message.lines().next().unwrap_or_default())
}

/// A failure with all of its lines.
fn whole(failure: &FailedExpectation) -> String {
    format!("{}: {}", failure.key, failure.message.trim_end())
}

fn tap(name: &str) -> String {
    printable(name).replace('\\', "\\\\").replace('#', "\\#").replace('\n', " ")
}

/// The text without characters that XML and terminals do not take.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

fn xml(text: &str) -> String {
    printable(text)
        .replace(['\u{fffe}', '\u{ffff}'], "")
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let case = |name: &str, failures: Vec<FailedExpectation>| CaseReport {
            file: "a.test.yaml".into(),
            name: name.to_owned(),
            line: 3,
            passed: failures.is_empty(),
            failures,
            warnings: Vec::new(),
            duration: Duration::from_millis(4),
            session: Duration::ZERO,
        };
        let failure =
            FailedExpectation::new("expect.outputs.a.text", "another value:\n-a <b>\n+\u{1b}c \"&\"");
        let problem = FileProblem {
            file: "b.test.yaml".into(),
            line: Some(2),
            column: Some(1),
            key: None,
            message: "no cases".to_owned(),
        };
        Report {
            files: vec![FileReport {
                file: "a.test.yaml".into(),
                flow: "a.yaml".into(),
                cases: vec![case("good #1", Vec::new()), case("bad", vec![failure])],
                warnings: Vec::new(),
            }],
            problems: vec![problem],
            duration: Duration::from_millis(9),
            ..Report::default()
        }
    }

    #[test]
    fn junit_is_whole_and_escaped() {
        let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="inspan test" tests="3" failures="1" errors="1" time="0.009">
  <testsuite name="a.test.yaml" tests="2" failures="1" errors="0" time="0.008">
    <testcase classname="a.test.yaml" name="good #1" file="a.test.yaml" line="3" time="0.004"/>
    <testcase classname="a.test.yaml" name="bad" file="a.test.yaml" line="3" time="0.004">
      <failure message="expect.outputs.a.text: another value:">expect.outputs.a.text: another value:
-a &lt;b&gt;
+c &quot;&amp;&quot;</failure>
    </testcase>
  </testsuite>
  <testsuite name="files" tests="1" failures="0" errors="1" time="0">
    <testcase classname="b.test.yaml" name="b.test.yaml"><error message="b.test.yaml:2:1: no cases">b.test.yaml:2:1: no cases</error></testcase>
  </testsuite>
</testsuites>
"#;
        assert_eq!(report().junit(), expected);
    }

    #[test]
    fn tap_is_whole_and_escaped() {
        let expected = "TAP version 14\n1..3\nok 1 - a.test.yaml - good \\#1\nnot ok 2 - a.test.yaml - bad\n  ---\n  \
                        message: |\n    expect.outputs.a.text: another value:\n    -a <b>\n    +c \"&\"\n  ...\nnot ok \
                        3 - b.test.yaml\n  ---\n  message: |\n    b.test.yaml:2:1: no cases\n  ...\n";
        assert_eq!(report().tap(), expected);
    }
}
