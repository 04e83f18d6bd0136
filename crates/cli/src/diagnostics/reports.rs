//! What `inspan check` found, for other programs: SARIF 2.1.0 for code scanning, and workflow commands of GitHub Actions.

use std::path::PathBuf;

use inspan_flow::{Code, Diagnostic, Diagnostics, Severity};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use inspan_view::safe::harmless;

/// The result of one file.
pub(crate) struct Checked {
    /// The file as it was named.
    pub(crate) name: String,
    /// The flow file itself: that of a folder, if a folder was named.
    pub(crate) file: PathBuf,
    /// Its problems, or why it could not be read.
    pub(crate) found: Result<Diagnostics, Failure>,
}

impl Checked {
    fn problems(&self) -> &[Diagnostic] {
        match &self.found {
            Ok(problems) => problems,
            Err(_) => &[],
        }
    }

    /// The path of the file that a problem is in.
    pub(crate) fn path(&self, problem: &Diagnostic) -> String {
        super::path(&self.file, problem)
    }
}

/// A SARIF log with one run.
pub(crate) fn sarif(files: &[Checked]) -> Value {
    let rules = Code::ALL
        .iter()
        .map(|code| json!({ "id": code.as_str(), "shortDescription": { "text": code.meaning() } }));
    let results = files.iter().flat_map(|file| file.problems().iter().map(|problem| result(file, problem)));
    let unread = files.iter().filter_map(|file| {
        let failure = file.found.as_ref().err()?;
        Some(
            json!({ "level": "error", "message": { "text": format!("{}: {}", file.name, failure.message) } }),
        )
    });
    let unread: Vec<Value> = unread.collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {
                "driver": {
                    "name": "inspan",
                    "version": env!("CARGO_PKG_VERSION"),
                    "rules": rules.collect::<Vec<_>>(),
                },
            },
            "columnKind": "unicodeCodePoints",
            "invocations": [{ "executionSuccessful": unread.is_empty(), "toolExecutionNotifications": unread }],
            "results": results.collect::<Vec<_>>(),
        }],
    })
}

fn result(file: &Checked, problem: &Diagnostic) -> Value {
    let mut region = Map::new();
    region.insert("startLine".to_owned(), problem.start.line.into());
    region.insert("startColumn".to_owned(), problem.start.column.into());
    if let Some(end) = problem.end {
        region.insert("endLine".to_owned(), end.line.into());
        region.insert("endColumn".to_owned(), end.column.into());
    }
    let mut location = json!({
        "physicalLocation": { "artifactLocation": { "uri": uri(&file.path(problem)) }, "region": region },
    });
    if let Some(key) = &problem.key {
        location["logicalLocations"] = json!([{ "fullyQualifiedName": key, "kind": "member" }]);
    }
    json!({
        "ruleId": problem.code.as_str(),
        "ruleIndex": Code::ALL.iter().position(|code| *code == problem.code),
        "level": problem.severity.to_string(),
        "message": { "text": text(problem) },
        "locations": [location],
    })
}

fn text(problem: &Diagnostic) -> String {
    match &problem.help {
        Some(help) => format!("{}\nhelp: {help}", problem.message),
        None => problem.message.clone(),
    }
}

/// A path as a reference within a URI.
fn uri(path: &str) -> String {
    let mut uri = String::with_capacity(path.len());
    // A colon in the first part would look like a scheme.
    if !path.starts_with(['/', '.']) && path.split('/').next().is_some_and(|first| first.contains(':')) {
        uri.push_str("./");
    }
    for byte in path.replace('\\', "/").bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' | b':' => {
                uri.push(byte.into())
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

/// One workflow command a problem: GitHub shows it at its line.
pub(crate) fn github(files: &[Checked]) -> String {
    let mut out = String::new();
    for file in files {
        match &file.found {
            Ok(problems) => problems.iter().for_each(|problem| out.push_str(&annotation(file, problem))),
            Err(failure) => {
                let (name, message) = (property(&file.name), data(&failure.message));
                out.push_str(&format!("::error file={name},title=inspan check::{message}\n"));
            }
        }
    }
    out
}

fn annotation(file: &Checked, problem: &Diagnostic) -> String {
    let level = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let (path, line, column) = (property(&file.path(problem)), problem.start.line, problem.start.column);
    let end = problem.end.filter(|end| end.line == line && end.column > column);
    let end = end.map_or_else(String::new, |end| format!(",endLine={line},endColumn={}", end.column - 1));
    let (title, message) = (property(problem.code.as_str()), data(&text(problem)));
    format!("::{level} file={path},line={line},col={column}{end},title={title}::{message}\n")
}

/// The text of a command: what would end the line is escaped.
fn data(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(harmless).collect();
    lines.join("\n").replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_references_and_commands_stay_on_their_line() {
        assert_eq!(
            [uri("a b/ü.yaml"), uri("c:x.yaml"), uri("/tmp/#1.yaml")],
            ["a%20b/%C3%BC.yaml", "./c:x.yaml", "/tmp/%231.yaml"].map(str::to_owned)
        );
        assert_eq!(
            [property("a,b: 5%\n"), data("one\ntwo, 5%")],
            ["a%2Cb%3A 5%25", "one%0Atwo, 5%25"].map(str::to_owned)
        );
    }
}
