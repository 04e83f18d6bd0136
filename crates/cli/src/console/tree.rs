//! The picture of a session: a head line and one branch per node, cut to the room there is.

use inspan_flow::FramesProgress;
use inspan_protocol::{NodeStatus, Outcome, Timestamp};

use super::{
    agent::{AgentView, Doing},
    format,
    line::{Line, Tone, tail},
    look,
    state::{COLUMN, ConsoleState, Course, Row},
};
use crate::safe::clean;

/// The room for the picture, and the moment it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Canvas {
    pub(crate) columns: usize,
    /// Lines at most; no limit if absent.
    pub(crate) lines: Option<usize>,
    pub(crate) now: Timestamp,
    /// Counts the drawings, to turn the spinner.
    pub(crate) frame: usize,
}

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The whole picture.
pub(crate) fn tree(state: &ConsoleState, canvas: Canvas) -> Vec<Line> {
    let mut lines = vec![head(state, canvas)];
    lines.extend(branches(state, canvas));
    lines.into_iter().map(|line| line.clip(canvas.columns)).collect()
}

fn head(state: &ConsoleState, canvas: Canvas) -> Line {
    let mut line = Line::new();
    let elapsed = match (&state.ended, state.run().state().started_at()) {
        (Some(ended), _) => {
            let (tone, sign, word) = look::outcome(ended);
            line.push(tone, sign).push(Tone::Plain, " ").push(Tone::Strong, &clean(&state.flow));
            line.push(Tone::Plain, " ").push(tone, word);
            let preposition = if ended.outcome == Outcome::Success { "in" } else { "after" };
            Some(format!(" {preposition} {}", format::millis(ended.duration_ms)))
        }
        (None, started) => {
            line.push(Tone::Accent, SPINNER[canvas.frame % SPINNER.len()]);
            line.push(Tone::Plain, " ").push(Tone::Strong, &clean(&state.flow));
            if state.course == Course::Stopping {
                line.push(Tone::Warning, " stopping; press Ctrl-C again to kill it");
            } else if state.ending.is_some() {
                line.push(Tone::Warning, " ending");
            }
            started.map(|started| format!(" {}", format::duration(canvas.now.since(started))))
        }
    };
    line.push(Tone::Plain, &elapsed.unwrap_or_default());
    if let Some(spent) = state.spent().text() {
        line.push(Tone::Faint, &format!(" · {spent}"));
    }
    if state.missed > 0 {
        line.push(Tone::Warning, &format!(" · {} events not shown", state.missed));
    }
    line
}

/// The nodes; where there is no room for all, those where something happens, and a count of the others.
fn branches(state: &ConsoleState, canvas: Canvas) -> Vec<Line> {
    let room = canvas.lines.map_or(usize::MAX, |lines| lines.saturating_sub(1));
    let below = |row: &Row| usize::from(doing(state, row, canvas).is_some());
    let wanted: usize = state.rows.iter().map(|row| 1 + below(row)).sum();
    let mut shown: Vec<&Row> = state.rows.iter().collect();
    if wanted > room {
        shown.retain(|row| is_lively(row));
        let mut left = room.saturating_sub(1);
        shown.retain(|row| {
            let height = 1 + below(row);
            let fits = height <= left;
            left = left.saturating_sub(height);
            fits
        });
    }
    let hidden = state.rows.len() - shown.len();
    let kinds = shown.iter().map(|row| kind(row).chars().count()).max().unwrap_or(0).min(KIND);
    let mut lines = Vec::with_capacity(shown.len() + 1);
    for (at, row) in shown.iter().enumerate() {
        let last = hidden == 0 && at + 1 == shown.len();
        lines.push(branch(state, row, kinds, if last { "╰─ " } else { "├─ " }, canvas));
        if let Some((tone, doing)) = doing(state, row, canvas) {
            let mut line = Line::new();
            line.push(Tone::Faint, if last { "      " } else { "│     " });
            line.push(tone, &doing);
            lines.push(line);
        }
    }
    if hidden > 0 && canvas.lines != Some(1) {
        lines.push(rest(state, hidden));
    }
    lines
}

fn is_lively(row: &Row) -> bool {
    matches!(row.status, NodeStatus::Running | NodeStatus::Waiting | NodeStatus::Failed | NodeStatus::Paused)
}

fn rest(state: &ConsoleState, hidden: usize) -> Line {
    let count = |status| state.rows.iter().filter(|row| row.status == status).count();
    let mut line = Line::new();
    line.push(Tone::Faint, "╰─ ").push(
        Tone::Faint,
        &format!(
            "{hidden} more · {}/{} done · {} pending",
            count(NodeStatus::Complete) + count(NodeStatus::Reused) + count(NodeStatus::Skipped),
            state.rows.len(),
            count(NodeStatus::Pending),
        ),
    );
    line
}

fn branch(state: &ConsoleState, row: &Row, kinds: usize, guide: &str, canvas: Canvas) -> Line {
    let mut line = Line::new();
    line.push(Tone::Faint, guide);
    let (tone, sign) = look::sign(row.status);
    let sign = if row.status == NodeStatus::Running { SPINNER[canvas.frame % SPINNER.len()] } else { sign };
    line.push(tone, sign).push(Tone::Plain, " ");
    let name = if row.status == NodeStatus::Pending { Tone::Faint } else { Tone::Plain };
    line.push(name, &middle(&row.label, COLUMN)).pad_to(5 + state.label_width);
    line.push(Tone::Faint, &format!("  {}", middle(&kind(row), KIND)));
    line.pad_to(5 + state.label_width + 2 + kinds);
    for part in facts(row, canvas.now) {
        line.push(Tone::Plain, "  ").push(Tone::Plain, &part);
    }
    if let Some(spent) = row.spent.text() {
        line.push(Tone::Faint, &format!("  {spent}"));
    }
    match row.status {
        NodeStatus::Skipped => {
            let why = row.skipped.map(look::skipped).unwrap_or_default();
            line.push(Tone::Faint, &format!("  {why}"));
        }
        NodeStatus::Failed => {
            if let Some(error) = &row.error {
                line.push(Tone::Plain, "  ");
                look::error(&mut line, error);
            }
        }
        _ => {}
    }
    if !row.denied.is_empty() {
        line.push(Tone::Warning, &format!("  ⚠ {} denied", row.denied.len()));
    }
    line
}

/// The node's type, and for an agent its model.
fn kind(row: &Row) -> String {
    match row.agent.as_ref().and_then(|agent| agent.model.as_deref()) {
        Some(model) => format!("{} {}", clean(&row.node_type), clean(model)),
        None => clean(&row.node_type),
    }
}

fn facts(row: &Row, now: Timestamp) -> Vec<String> {
    let mut facts = Vec::new();
    if row.pass > 1 {
        facts.push(format!("pass {}", row.pass));
    }
    match row.failed_passes.len() {
        0 => {}
        1 => facts.push("1 pass failed".to_owned()),
        many => facts.push(format!("{many} passes failed")),
    }
    if row.attempt > 1 {
        facts.push(format!("attempt {}", row.attempt));
    }
    facts.extend(row.frames.map(bar));
    match (row.status, row.duration_ms, row.started) {
        (NodeStatus::Running | NodeStatus::Waiting, _, Some(started)) => {
            facts.push(format::duration(now.since(started)));
        }
        (NodeStatus::Complete | NodeStatus::Failed, Some(ms), _) => facts.push(format::millis(ms)),
        _ => {}
    }
    match row.agent.as_ref().map_or(0, |agent| agent.tool_calls) {
        0 => {}
        1 => facts.push("1 tool call".to_owned()),
        calls => facts.push(format!("{calls} tool calls")),
    }
    facts
}

/// How far a node is with its frames: a bar if their number is known, and the counts.
fn bar(frames: FramesProgress) -> String {
    let counts = format::frames(frames);
    match frames.total {
        Some(total) if total > 0 => {
            let done = u64::from(frames.succeeded + frames.failed) * BAR as u64 / u64::from(total);
            let done = usize::try_from(done).unwrap_or(BAR).min(BAR);
            format!("{}{} {counts}", "█".repeat(done), "░".repeat(BAR - done))
        }
        _ => counts,
    }
}

/// The width of a bar.
const BAR: usize = 12;

/// What a node is doing or waits for, if it is.
fn doing(state: &ConsoleState, row: &Row, canvas: Canvas) -> Option<(Tone, String)> {
    let agent: Option<&AgentView> = row.agent.as_deref();
    // The end of what is written is what is new.
    let room = canvas.columns.saturating_sub(INDENT);
    let faint = |text: String| Some((Tone::Faint, text));
    match (row.status, agent.map(|agent| &agent.doing)) {
        (NodeStatus::Pending, _) => {
            let error = row.error.as_ref()?;
            let when = match row.retry {
                Some((due, of)) if due > canvas.now => {
                    let left = due.since(canvas.now).as_secs() + 1;
                    format!("attempt {}/{of} in {left} s", row.failures + 1)
                }
                Some((_, of)) => format!("attempt {}/{of} now", row.failures + 1),
                None => "trying again".to_owned(),
            };
            let mut line = Line::new();
            look::error(&mut line, error);
            Some((Tone::Warning, format!("{when}; failed: {}", line.text())))
        }
        (NodeStatus::Running, Some(Doing::Asking)) => faint("waiting for the model…".to_owned()),
        (NodeStatus::Running, Some(Doing::Thinking)) => faint("thinking…".to_owned()),
        (NodeStatus::Running, Some(Doing::Writing(text))) => faint(tail(text, room)),
        (NodeStatus::Running | NodeStatus::Waiting, Some(Doing::Using(call))) => faint(format!("⚙ {call}")),
        (NodeStatus::Running, Some(Doing::Listening(_))) => {
            let until = state.listens_until(row).map(|until| format!(" until {}", format::clock(until)));
            let id = state.session.as_ref().map_or("ID", |id| id.as_str());
            let text = format!("listening{}; `inspan send {id} TEXT`", until.unwrap_or_default());
            Some((Tone::Accent, text))
        }
        (NodeStatus::Running, None) if !row.output.is_empty() => faint(tail(&clean(&row.output), room)),
        _ => None,
    }
}

/// The widest column for types and models.
const KIND: usize = 40;
/// Columns before what a node is doing.
const INDENT: usize = 6;

/// A text of at most so many columns, cut in the middle: ids and models differ at both ends.
fn middle(text: &str, columns: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= columns {
        return text.to_owned();
    }
    let (before, after) = (columns / 2, columns - columns / 2 - 1);
    let end = &letters[letters.len() - after..];
    letters[..before].iter().chain(&['…']).chain(end).collect()
}
