//! Problems of a flow as people see them: the place, the code, the lines concerned, and what to do. The
//! compiler finds them.

mod reports;

use std::path::Path;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use inspan_flow::{Change, Diagnostic, Diagnostics, Loaded, Position, Severity};
use inspan_view::{Colour, safe::harmless};

pub(crate) use reports::{Checked, github, sarif};

/// Problems of one file that are shown; the rest is counted.
const SHOWN: usize = 40;
/// Columns of a line that are shown; the rest would only fill the terminal.
const COLUMNS: usize = 400;

/// All problems of a flow.
pub(crate) fn render(problems: &Diagnostics, loaded: &Loaded, colour: Colour) -> String {
    let mut out = String::new();
    for problem in problems.iter().take(SHOWN) {
        out.push_str(&match set(problem, loaded) {
            Some(set) => one(problem, &set, None, colour),
            None => {
                let Position { line, column } = problem.start;
                let path = path(Path::new(loaded.name()), problem);
                one(
                    problem,
                    &format!("{path}:{line}:{column}"),
                    Excerpt::of(source(problem, loaded), problem),
                    colour,
                )
            }
        });
        out.push_str("\n\n");
    }
    if problems.len() > SHOWN {
        out.push_str(&format!("… and {} more problems\n", problems.len() - SHOWN));
    }
    out
}

/// The option `--set` that gave what a problem is about. The line of the node does not show it.
fn set(problem: &Diagnostic, loaded: &Loaded) -> Option<String> {
    let (node, key) = (problem.node.as_ref()?, problem.key.as_deref()?);
    let of_problem = |change: &&Change| match change {
        Change::Input { node: of, keys, .. } => {
            let set = format!(".input.{}", keys.join("."));
            let rest = key.rsplit_once(&set).map(|(_, rest)| rest);
            of.as_str().rsplit('/').next() == Some(node.as_str())
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        }
        _ => false,
    };
    let Change::Input { node, keys, .. } = loaded.changes().iter().rev().find(of_problem)? else {
        return None;
    };
    Some(format!("--set {node}.{}", keys.join(".")))
}

fn source<'a>(problem: &Diagnostic, loaded: &'a Loaded) -> &'a str {
    loaded.file(&problem.path).unwrap_or_else(|| loaded.text())
}

/// The path of the file that a problem of a flow is in. Files that a flow includes are named from the flow's own folder.
fn path(flow: &Path, problem: &Diagnostic) -> String {
    let file = flow.display().to_string();
    if *problem.path == *file {
        return file;
    }
    let folder = flow.parent().unwrap_or(Path::new(""));
    folder.join(&*problem.path).display().to_string()
}

/// A problem at a place: of a file with the lines concerned.
fn one(problem: &Diagnostic, place: &str, excerpt: Option<Excerpt>, colour: Colour) -> String {
    let renderer = match colour {
        Colour::On => Renderer::styled(),
        Colour::Off => Renderer::plain(),
    };
    let level = match problem.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let name = format!("{}: {}", harmless(place), problem.severity);
    let message = harmless(&problem.message);
    let title = level.clone().with_name(name).primary_title(message).id(problem.code.as_str());
    let mut group = match &excerpt {
        Some(excerpt) => title.element(
            Snippet::source(excerpt.text.as_str())
                .line_start(excerpt.first)
                .annotation(AnnotationKind::Primary.span(excerpt.span.clone())),
        ),
        None => Group::with_title(title),
    };
    if let Some(help) = &problem.help {
        group = group.element(Level::HELP.message(harmless(help)));
    }
    renderer.render(&[group])
}

/// The lines that a problem concerns.
struct Excerpt {
    text: String,
    /// The number of the first of them.
    first: usize,
    /// The place within them, in bytes.
    span: std::ops::Range<usize>,
}

impl Excerpt {
    fn of(source: &str, problem: &Diagnostic) -> Option<Self> {
        let first = (problem.start.line as usize).saturating_sub(1);
        // A byte order mark is in no column.
        let line = source.strip_prefix('\u{feff}').unwrap_or(source).lines().nth(first)?;
        // Of a long line what is around the place.
        let start = (problem.start.column as usize).saturating_sub(1);
        let skipped = if start < COLUMNS { 0 } else { start - COLUMNS / 2 };
        let shown: String = line.chars().skip(skipped).take(COLUMNS).map(blank).collect();
        let from = offset(&shown, start - skipped);
        let until = match problem.end {
            Some(end) if end.line == problem.start.line => {
                offset(&shown, (end.column as usize).saturating_sub(1 + skipped))
            }
            Some(_) => shown.trim_end().len(),
            None => from + shown[from..].chars().next().map_or(0, char::len_utf8),
        };
        let until = until.max(from);
        Some(Self { text: shown, first: first + 1, span: from..until })
    }
}

fn blank(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

/// The byte after so many letters.
fn offset(line: &str, letters: usize) -> usize {
    line.char_indices().nth(letters).map_or(line.len(), |(at, _)| at)
}
