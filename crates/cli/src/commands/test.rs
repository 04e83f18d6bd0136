//! `inspan test [FILE…]`: the cases of test files, run without agents, programs or a network; and `--from`, which makes a
//! case of a session.

use std::{fs, path::PathBuf, sync::Arc};

use inspan_flow::{Graph, Select, builtin_nodes};
use inspan_flow_test::{
    AddError, CaseReport, Coverage, Covered, FileProblem, MadeCase, Options, Report, SnapshotMode, Suite,
    add_case, find,
};
use inspan_protocol::{Envelope, Event, NodePath, Redactor};
use serde_json::{Value, json};

use super::{all_nodes, all_providers, flow, notify::marked, secrets};
use crate::{
    args::{TestArgs, TestFormat},
    exit::Exit,
    failure::{Failure, with_end},
    invocation::{Invocation, OutputForm},
    settings::Settings,
    store, terminal,
};
use inspan_view::{Line, Tone, look};

/// Names of what is not covered that are shown.
const SHOWN: usize = 8;

pub(super) fn run(args: &TestArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    if let Some(session) = &args.from {
        return make(session, args, invocation);
    }
    let paths = if args.files.is_empty() { vec![PathBuf::from(".")] } else { args.files.clone() };
    let files = find(&paths).map_err(|problem| refused(&problem))?;
    let options = Options {
        filter: args.filter.clone(),
        only: None,
        snapshots: if args.update { SnapshotMode::Update } else { SnapshotMode::Compare },
        threads: args.jobs,
    };
    let format = invocation.format(args.format, TestFormat::Json)?.unwrap_or(TestFormat::Human);
    let suite = suite(invocation);
    let report = match format {
        TestFormat::Human => suite.run_and_notify(&files, &options, &|case| {
            invocation.print(case_lines(case));
        }),
        _ => suite.run(&files, &options),
    };
    let covered = report.coverage_percent();
    let covers_little = args.min_coverage.filter(|least| covered < *least);
    let covers_little =
        covers_little.map(|least| format!("{covered:.1} % is covered, and --min-coverage wants {least} %"));
    let failure = failure(&report, covers_little.as_deref());
    if report.cases().next().is_none() && report.problems.is_empty() {
        return Err(Failure::usage("no case matches the filter"));
    }
    match format {
        TestFormat::Human => drop(invocation.print(summary(&report, covers_little.as_deref()))),
        TestFormat::Json => invocation.json(&as_json(&report, failure.as_ref())),
        TestFormat::Junit => drop(terminal::data(&report.junit())),
        TestFormat::Tap => drop(terminal::data(&report.tap())),
    }
    Ok(exit(failure.as_ref()))
}

/// A suite in which the settings of projects hold. Those of the user do not: a test says the same on every machine.
fn suite(invocation: &Invocation) -> Suite {
    let invocation = invocation.clone();
    Suite::new(&all_providers(), builtin_nodes).with_settings(move |file, loaded| {
        let settings = Settings::of_project(file.parent(), &invocation);
        settings.map(|settings| flow::with_settings(loaded, &settings)).map_err(|failure| failure.message)
    })
}

/// Why the cases, or the files, are not as they should be.
fn failure(report: &Report, covers_little: Option<&str>) -> Option<Failure> {
    if let Some(problem) = report.problems.first() {
        return Some(Failure::usage(problem.to_string()));
    }
    let (passed, failed) = report.counts();
    let of_cases = || format!("{failed} of {} failed", flow::of(passed + failed, "case"));
    let why = (!report.passed()).then(of_cases).or(covers_little.map(str::to_owned));
    why.map(|why| Failure::new(Exit::Failed, why))
}

fn exit(failure: Option<&Failure>) -> Exit {
    failure.map_or(Exit::Success, |failure| failure.exit)
}

fn refused(problem: &FileProblem) -> Failure {
    Failure::usage(problem.to_string()).with_hint(
        "write `NAME.test.yaml` beside `NAME.yaml`, or create a case from a session: `inspan test --from @last`",
    )
}

fn as_json(report: &Report, failure: Option<&Failure>) -> Value {
    let (passed, failed) = report.counts();
    let mut value = with_end(json!(report), failure);
    value["passed"] = json!(passed);
    value["failed"] = json!(failed);
    value["coveragePercent"] = json!((report.coverage_percent() * 10.0).round() / 10.0);
    value
}

fn case_lines(case: &CaseReport) -> Vec<Line> {
    let (tone, word) = if case.passed { (Tone::Good, "PASS") } else { (Tone::Bad, "FAIL") };
    let mut lines = vec![
        Line::new()
            .with(tone, &format!("{word:>8}"))
            .with(Tone::Faint, &format!(" [{:>8.3}s] ", case.duration.as_secs_f64()))
            .with(Tone::Accent, &case.file.display().to_string())
            .with(Tone::Plain, "  ")
            .with(Tone::Plain, &case.name),
    ];
    for failure in &case.failures {
        let mut line = Line::new();
        line.push(Tone::Plain, "           ").push(Tone::Strong, &failure.key).push(Tone::Plain, ": ");
        let mut text = failure.message.lines();
        line.push(Tone::Plain, text.next().unwrap_or_default());
        lines.push(line);
        lines.extend(
            text.map(|text| {
                Line::new().with(Tone::Plain, "             ").with(look::difference(text), text)
            }),
        );
    }
    if !case.passed {
        let place = format!("{}:{}", case.file.display(), case.line);
        lines.push(Line::new().with(Tone::Faint, "           at ").with(Tone::Faint, &place));
    }
    lines.extend(case.warnings.iter().map(|warning| noted("warning: ", warning)));
    lines
}

fn noted(word: &str, text: &str) -> Line {
    Line::new().with(Tone::Plain, "           ").with(Tone::Warning, word).with(Tone::Plain, text)
}

fn summary(report: &Report, covers_little: Option<&str>) -> Vec<Line> {
    let (passed, failed) = report.counts();
    let mut lines = Vec::new();
    for file in &report.files {
        lines.extend(
            file.warnings
                .iter()
                .map(|warning| noted("warning: ", &format!("{}: {warning}", file.file.display()))),
        );
    }
    for problem in &report.problems {
        let text = problem.to_string();
        for (at, text) in text.lines().enumerate() {
            lines.push(
                Line::new()
                    .with(Tone::Bad, if at == 0 { "   ERROR " } else { "         " })
                    .with(Tone::Plain, text),
            );
        }
    }
    lines.extend(report.written.iter().map(|path| {
        Line::new().with(Tone::Good, "   WROTE ").with(Tone::Plain, &path.display().to_string())
    }));
    lines.push(Line::new().with(Tone::Faint, "------------"));
    let mut line = Line::new();
    let tone = if report.passed() { Tone::Good } else { Tone::Bad };
    line.push(tone, " Summary").push(Tone::Faint, &format!(" [{:>8.3}s] ", report.duration.as_secs_f64()));
    line.push(Tone::Strong, &flow::of(passed + failed, "case"))
        .push(Tone::Plain, &format!(": {passed} passed"));
    if failed > 0 {
        line.push(Tone::Plain, ", ").push(Tone::Bad, &format!("{failed} failed"));
    }
    if !report.problems.is_empty() {
        line.push(Tone::Plain, ", ").push(Tone::Bad, &flow::of(report.problems.len(), "file problem"));
    }
    lines.push(line);
    report.coverage.iter().for_each(|coverage| lines.extend(coverage_lines(coverage)));
    lines.extend(covers_little.map(|text| Line::new().with(Tone::Bad, "   ERROR ").with(Tone::Plain, text)));
    lines
}

fn coverage_lines(coverage: &Coverage) -> Vec<Line> {
    let parts = [
        ("nodes", &coverage.nodes),
        ("edges", &coverage.edges),
        ("failure routes", &coverage.failure_routes),
    ];
    let counts: Vec<String> = parts
        .iter()
        .filter(|(_, part)| part.total > 0)
        .map(|(name, part)| format!("{name} {}/{}", part.covered, part.total))
        .collect();
    let mut lines = vec![
        Line::new()
            .with(Tone::Faint, "Coverage ")
            .with(Tone::Accent, &coverage.flow.display().to_string())
            .with(Tone::Plain, &format!("  {} ({:.0} %)", counts.join(", "), coverage.percent().floor())),
    ];
    let missing: Vec<&String> = parts.iter().flat_map(|(_, part): &(_, &Covered)| &part.missing).collect();
    if !missing.is_empty() {
        let mut names: Vec<&str> = missing.iter().take(SHOWN).map(|name| name.as_str()).collect();
        let more = format!("{} more", missing.len().saturating_sub(SHOWN));
        if missing.len() > SHOWN {
            names.push(&more);
        }
        lines.push(
            Line::new().with(Tone::Faint, "         not covered: ").with(Tone::Plain, &names.join(", ")),
        );
    }
    lines
}

/// A node that runs frames and was reused without them, and where from.
fn reused_whole<'e>(graph: &Graph, events: &'e [Arc<Envelope>]) -> Option<(&'e NodePath, &'e str)> {
    events.iter().find_map(|envelope| match (&envelope.event, &envelope.context.task) {
        (Event::TaskReused { from, .. }, Some(path)) => {
            let node = graph.find_place(&path.place()).ok()?;
            node.frames.is_some().then_some((path, from.as_str()))
        }
        _ => None,
    })
}

/// Makes a case of a session, adds it to its test file, and runs it once.
fn make(session: &str, args: &TestArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let nodes = all_nodes();
    let (id, case) = store::read(invocation, async |store| {
        let entry = store::find(store.as_ref(), session).await?;
        let record = store.record(&entry.session).await?;
        let events = store.read(&entry.session, record.first_seq(), Select::All).await?;
        let graph = store::graph_of(&record)?;
        // A secret that is not set here would not be found in what the case repeats.
        secrets::check(&graph, invocation)?;
        if let Some((path, from)) = reused_whole(&graph, &events) {
            let what = format!(
                "session `{}` reused `{path}` whole, and does not hold what ran in it",
                entry.session
            );
            let hint = match store::ran_in(store.as_ref(), from).await {
                Some((origin, _)) => {
                    format!("`inspan test --from {origin}` makes a case of the session in which it ran")
                }
                None => "the session in which it ran is not in the store".to_owned(),
            };
            return Err(Failure::usage(what).with_hint(hint));
        }
        let settings = Settings::of(Some(&graph.source.folder), invocation)?;
        let env = marked(invocation.env.clone(), &settings).mark(&graph.secrets);
        let name = args.name.clone().unwrap_or_else(|| format!("as in session {}", entry.session));
        let case = MadeCase::of(&record, (&graph, &nodes), &events, &name, &Redactor::new(&env));
        Ok((entry.session, case))
    })?;
    let file = match args.files.as_slice() {
        [] => test_file(&case)?,
        [file] => file.clone(),
        _ => return Err(Failure::usage("`--from` adds the case to one file, and several are given")),
    };
    let before = fs::read_to_string(&file).ok().filter(|text| !text.trim().is_empty());
    let name = add_case(&file, &case).map_err(|error| {
        let exit = if matches!(error, AddError::Io { .. }) { Exit::Failed } else { Exit::Invalid };
        let hint = match error {
            AddError::TooLarge { .. } => {
                "keep long outputs in a file: `inspan run --record DIR`, and name DIR under `recordings` in the case"
            }
            _ => "name another file: `inspan test --from ID FILE`",
        };
        Failure::new(exit, error.to_string()).with_hint(hint)
    })?;
    let report = suite(invocation)
        .run(std::slice::from_ref(&file), &Options { only: Some(name.clone()), ..Options::default() });
    // With it, no other case of the file would run.
    if let (Some(before), Some(problem)) = (before, report.problems.first()) {
        let written = |error| Failure::new(Exit::Failed, format!("{}: {error}", file.display()));
        fs::write(&file, before).map_err(written)?;
        let message = format!("the case is not added, as it does not fit the flow of the file: {problem}");
        let hint = format!("the session ran {}: name a test file of that flow", case.flow.display());
        return Err(Failure::new(Exit::Invalid, message).with_hint(hint));
    }
    let failure = failure(&report, None);
    let exit = exit(failure.as_ref());
    if invocation.form == OutputForm::Json {
        let mut value = as_json(&report, failure.as_ref());
        value["written"] = json!([file]);
        value["case"] = json!(name);
        value["sessionId"] = json!(id);
        invocation.json(&value);
    } else {
        let mut line = Line::new();
        let text = format!("the case `{name}` of session {id} to {}", file.display());
        line.push(Tone::Good, "added ").push(Tone::Plain, &text);
        let mut lines = vec![line];
        report.cases().for_each(|case| lines.extend(case_lines(case)));
        lines.extend(report.problems.iter().map(|problem| noted("error: ", &problem.to_string())));
        invocation.print(lines);
        if exit == Exit::Failed {
            terminal::progress(
                "the case does not pass as it stands: edit it, or the flow has changed since\n",
            );
        }
    }
    Ok(exit)
}

/// The test file of the flow; where there is none, `NAME.test.yaml` beside it.
fn test_file(case: &MadeCase) -> Result<PathBuf, Failure> {
    let stem = case.flow.file_stem().and_then(|stem| stem.to_str()).unwrap_or("flow");
    let beside = case.flow.with_file_name(format!("{stem}.test.yaml"));
    let found = find(std::slice::from_ref(&case.flow)).unwrap_or_default();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        several if several.is_empty() || several.contains(&beside) => Ok(beside),
        several => {
            let names: Vec<_> = several.iter().map(|file| file.display().to_string()).collect();
            Err(Failure::usage(format!("the flow has several test files: {}", names.join(", ")))
                .with_hint("name one of them: `inspan test --from ID FILE`"))
        }
    }
}
