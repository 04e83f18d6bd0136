//! The picture of a session: a head line and one branch per node, cut to the room there is. Drawing it on a
//! terminal is left to `live`.

use inspan_protocol::{NodeStatus, Outcome, Timestamp};

use super::{
    agent::{AgentView, Doing},
    format,
    line::{Line, Tone, clean},
    look,
    state::{COLUMN, ConsoleState, Course, Row, indent},
};

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
    let elapsed = match (&state.ended, state.started) {
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
                line.push(Tone::Warning, " stopping; Ctrl-C does not wait");
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
    let below = |row: &Row| usize::from(!doing(row).is_empty());
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
    let kinds = shown.iter().map(|row| kind(row).chars().count()).max().unwrap_or(0).min(COLUMN);
    let mut lines = Vec::with_capacity(shown.len() + 1);
    for (at, row) in shown.iter().enumerate() {
        let last = hidden == 0 && at + 1 == shown.len();
        lines.push(branch(state, row, kinds, if last { "╰─ " } else { "├─ " }, canvas));
        let doing = doing(row);
        if !doing.is_empty() {
            let mut line = Line::new();
            line.push(Tone::Faint, if last { "      " } else { "│     " });
            line.push(Tone::Faint, &doing);
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
            "{hidden} more; of all {}: {} done, {} skipped, {} to come",
            state.rows.len(),
            count(NodeStatus::Complete) + count(NodeStatus::Reused),
            count(NodeStatus::Skipped),
            count(NodeStatus::Pending),
        ),
    );
    line
}

fn branch(state: &ConsoleState, row: &Row, kinds: usize, guide: &str, canvas: Canvas) -> Line {
    let mut line = Line::new();
    line.push(Tone::Faint, guide).push(Tone::Plain, &" ".repeat(indent(&row.label)));
    let (tone, sign) = look::sign(row.status);
    let sign = if row.status == NodeStatus::Running { SPINNER[canvas.frame % SPINNER.len()] } else { sign };
    line.push(tone, sign).push(Tone::Plain, " ");
    let name = if row.status == NodeStatus::Pending { Tone::Faint } else { Tone::Plain };
    line.push(name, &row.label).pad_to(5 + state.label_width);
    line.push(Tone::Faint, &format!("  {}", kind(row))).pad_to(5 + state.label_width + 2 + kinds);
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
        NodeStatus::Failed | NodeStatus::Pending => {
            if let Some(error) = &row.error {
                let again = row.status == NodeStatus::Pending;
                line.push(Tone::Plain, if again { "  tries again after: " } else { "  " });
                look::error(&mut line, error);
            }
        }
        _ => {}
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
    if row.attempt > 1 {
        facts.push(format!("attempt {}", row.attempt));
    }
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

/// What the node's agent is doing, if it is.
fn doing(row: &Row) -> String {
    let agent: Option<&AgentView> = row.agent.as_deref();
    match (row.status, agent.map(|agent| &agent.doing)) {
        (NodeStatus::Running, Some(Doing::Starting)) => "starting…".to_owned(),
        (NodeStatus::Running, Some(Doing::Thinking)) => "thinking…".to_owned(),
        (NodeStatus::Running, Some(Doing::Writing(text))) => text.clone(),
        (NodeStatus::Running | NodeStatus::Waiting, Some(Doing::Using(call))) => format!("⚙ {call}"),
        _ => String::new(),
    }
}
