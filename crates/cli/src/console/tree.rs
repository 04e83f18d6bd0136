//! The picture of a session: a head line, one branch per node and below it its frames, cut to the room there is.

use std::collections::HashMap;

use inspan_flow::FramesProgress;
use inspan_protocol::{NodeStatus, Outcome, Timestamp};
use inspan_view::{
    AgentActivity, AgentView, COLUMN, Course, DisplayStatus, FrameRow, Line, NodeRow, SessionView, Tone,
    format, look, safe::clean, tail,
};

/// The room for the picture, and the moment it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Canvas {
    pub(crate) columns: usize,
    /// Lines at most; no limit if absent.
    pub(crate) lines: Option<usize>,
    pub(crate) now: Timestamp,
    /// Counts the drawings, to turn the spinner. Without it nothing runs any more.
    pub(crate) frame: Option<usize>,
}

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

fn spinner(canvas: Canvas) -> Option<&'static str> {
    canvas.frame.map(|frame| SPINNER[frame % SPINNER.len()])
}

/// The whole picture.
pub(crate) fn tree(state: &SessionView, canvas: Canvas) -> Vec<Line> {
    let mut lines = vec![head(state, canvas)];
    lines.extend(branches(state, canvas));
    lines.into_iter().map(|line| line.clip(canvas.columns)).collect()
}

fn head(state: &SessionView, canvas: Canvas) -> Line {
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
            line.push(Tone::Accent, spinner(canvas).unwrap_or("‖"));
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

/// A line of the tree, with what a node does right now below it.
struct BranchEntry<'a> {
    what: What<'a>,
    /// The entry that it is a branch of.
    parent: Option<usize>,
    rank: Rank,
}

#[derive(Clone, Copy)]
enum What<'a> {
    Node(&'a NodeRow),
    Frame(u32, &'a FrameRow),
}

/// What is shown first where there is no room for all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A node of the flow with which something happens.
    Lively,
    /// Another node of the flow, where there are frames and room for both.
    Flow,
    /// Frames in which a person is asked.
    Asks,
    /// The first frames that failed.
    FirstFailed,
    Running,
    Failed,
    /// Nodes with which nothing happens right now.
    Still,
}

impl<'a> BranchEntry<'a> {
    fn height(&self, state: &SessionView, canvas: Canvas) -> usize {
        match self.what {
            What::Node(row) => 1 + usize::from(doing(state, row, canvas).is_some()),
            What::Frame(..) => 1,
        }
    }
}

/// The nodes, and below them their frames with the nodes in which something happens.
fn entries(state: &SessionView, room: usize) -> Vec<BranchEntry<'_>> {
    let mut entries = Vec::new();
    let mut failed = room / 4;
    let has_frames = state.rows.iter().any(|row| !row.frames.is_empty());
    let others = if has_frames && state.rows.len() <= room / 2 { Rank::Flow } else { Rank::Still };
    for row in &state.rows {
        let rank = if row.is_lively() { Rank::Lively } else { others };
        entries.push(BranchEntry { what: What::Node(row), parent: None, rank });
        add_frames(&mut entries, row, &mut failed);
    }
    entries
}

fn add_frames<'a>(entries: &mut Vec<BranchEntry<'a>>, row: &'a NodeRow, failed: &mut usize) {
    let owner = entries.len() - 1;
    let newest = row.frames.keys().next_back().map_or(0, |(pass, _)| *pass);
    // One that ended well stays for what failed within it, which the report tells.
    let is_shown = |frame: &FrameRow| matches!(frame.status, NodeStatus::Failed | NodeStatus::Running);
    let frames = row.frames.iter().filter(|((pass, _), frame)| *pass == newest && is_shown(frame));
    for ((_, index), frame) in frames {
        let rank = match frame.status {
            NodeStatus::Failed if *failed > 0 => {
                *failed -= 1;
                Rank::FirstFailed
            }
            NodeStatus::Failed => Rank::Failed,
            _ if frame.asks(DisplayStatus::Running) => Rank::Asks,
            NodeStatus::Running => Rank::Running,
            _ => Rank::Still,
        }
        .max(entries[owner].rank);
        let mut parent = owner;
        // A subflow has one frame, which is shown as the node itself.
        if frame.name.is_some() {
            parent = entries.len();
            entries.push(BranchEntry { what: What::Frame(*index, frame), parent: Some(owner), rank });
        }
        // The error of a frame names the node that failed.
        if frame.status != NodeStatus::Running {
            continue;
        }
        // Of a foreach many frames are open at once: only what happens in them is shown.
        let is_alone = row.progress.is_none_or(|progress| progress.total.is_none());
        for inner in frame.rows.iter().filter(|inner| is_alone || inner.is_lively()) {
            let rank = if inner.is_lively() { rank } else { Rank::Still };
            entries.push(BranchEntry { what: What::Node(inner), parent: Some(parent), rank });
            add_frames(entries, inner, failed);
        }
    }
}

/// Which entries are shown in so many lines, one of them for what is not.
fn fitting(state: &SessionView, entries: &[BranchEntry<'_>], canvas: Canvas, room: usize) -> Vec<bool> {
    let mut wanted = 0;
    let fits = entries.iter().all(|entry| {
        wanted += entry.height(state, canvas);
        wanted <= room
    });
    let mut shown = vec![fits; entries.len()];
    if fits {
        return shown;
    }
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|at| entries[*at].rank);
    let mut left = room.saturating_sub(1);
    for at in order {
        let entry = &entries[at];
        let is_hidden = entry.parent.is_some_and(|parent| !shown[parent]);
        if left == 0 || is_hidden || (entry.parent.is_none() && entry.rank == Rank::Still) {
            continue;
        }
        let height = entry.height(state, canvas);
        shown[at] = height <= left;
        left = left.saturating_sub(height);
    }
    shown
}

/// The nodes and frames; where there is no room for all, those where something happens, and a count of the others.
fn branches(state: &SessionView, canvas: Canvas) -> Vec<Line> {
    let room = canvas.lines.map_or(usize::MAX, |lines| lines.saturating_sub(1));
    let entries = entries(state, room);
    let shown = fitting(state, &entries, canvas, room);
    let shown: Vec<usize> = (0..entries.len()).filter(|at| shown[*at]).collect();
    let hidden = state.rows.len() - shown.iter().filter(|at| entries[**at].parent.is_none()).count();
    let kinds = shown.iter().map(|at| match entries[*at].what {
        What::Node(row) => kind(row).chars().count(),
        What::Frame(..) => 0,
    });
    let columns = Columns {
        names: state.tree_width.min(canvas.columns / 2),
        kinds: Some(kinds.max().unwrap_or(0).min(KIND)).filter(|_| canvas.columns >= NARROW),
    };
    // The last branch of each entry, and of the flow itself.
    let mut last: HashMap<Option<usize>, usize> = HashMap::new();
    last.extend(shown.iter().map(|at| (entries[*at].parent, *at)));
    if hidden > 0 {
        last.remove(&None);
    }
    let mut guides: HashMap<usize, String> = HashMap::new();
    let mut lines = Vec::with_capacity(shown.len() + 1);
    for at in shown {
        let BranchEntry { what, parent, .. } = entries[at];
        let before = parent.and_then(|parent| guides.get(&parent)).cloned().unwrap_or_default();
        let is_last = last.get(&parent) == Some(&at);
        let guide = format!("{before}{}", if is_last { "╰─ " } else { "├─ " });
        let below = format!("{before}{}", if is_last { "   " } else { "│  " });
        match what {
            What::Node(row) => {
                lines.push(branch(row, columns, &guide, canvas));
                if let Some((tone, doing)) = doing(state, row, canvas) {
                    lines.push(Line::new().with(Tone::Faint, &format!("{below}   ")).with(tone, &doing));
                }
            }
            What::Frame(index, frame) => lines.push(frame_line(index, frame, columns, &guide, canvas)),
        }
        guides.insert(at, below);
    }
    if hidden > 0 && canvas.lines != Some(1) {
        lines.push(rest(state, hidden));
    }
    lines
}

/// How wide the columns are.
#[derive(Clone, Copy)]
struct Columns {
    names: usize,
    /// Absent where there is no room for types.
    kinds: Option<usize>,
}

/// A terminal of fewer columns has room for what happens, and none for the types of nodes.
const NARROW: usize = 40;

/// One frame: its index, its item, how long it runs or ran, and how it ended.
fn frame_line(index: u32, frame: &FrameRow, columns: Columns, guide: &str, canvas: Canvas) -> Line {
    let mut line = Line::new();
    let (tone, sign) = look::sign(frame.status);
    let is_running = frame.status == NodeStatus::Running;
    let (tone, sign) = match is_running {
        true if frame.asks(DisplayStatus::Running) => look::sign(NodeStatus::Waiting),
        true => spinner(canvas).map_or_else(|| look::sign(NodeStatus::Paused), |sign| (tone, sign)),
        false => (tone, sign),
    };
    line.push(Tone::Faint, guide).push(tone, sign);
    line.push(Tone::Plain, &format!(" [{index}] "));
    line.push(Tone::Faint, frame.name.as_deref().unwrap_or_default()).pad_to(5 + columns.names);
    let running = frame.started.filter(|_| is_running).map(|began| format::duration(canvas.now.since(began)));
    if let Some(time) = running.or(frame.duration_ms.map(format::millis)) {
        line.push(Tone::Plain, &format!("  {time}"));
    }
    if is_running {
        line.push(Tone::Faint, &format!("  {} of {} nodes done", frame.done(), frame.rows.len()));
    }
    if let Some(spent) = frame.spent().text() {
        line.push(Tone::Faint, &format!("  {spent}"));
    }
    if let Some(error) = &frame.error {
        line.push(Tone::Plain, "  ");
        look::error(&mut line, error);
    }
    line
}

fn rest(state: &SessionView, hidden: usize) -> Line {
    let count = |status| state.rows.iter().filter(|row| row.status == status).count();
    Line::new().with(Tone::Faint, "╰─ ").with(
        Tone::Faint,
        &format!(
            "{hidden} more · {}/{} done · {} pending",
            count(NodeStatus::Complete) + count(NodeStatus::Reused) + count(NodeStatus::Skipped),
            state.rows.len(),
            count(NodeStatus::Pending),
        ),
    )
}

fn branch(row: &NodeRow, columns: Columns, guide: &str, canvas: Canvas) -> Line {
    let mut line = Line::new();
    line.push(Tone::Faint, guide);
    let (tone, sign) = match (row.status, spinner(canvas)) {
        (NodeStatus::Running, Some(sign)) => (look::sign(NodeStatus::Running).0, sign),
        (NodeStatus::Running, None) => look::sign(NodeStatus::Paused),
        (status, _) => look::sign(status),
    };
    line.push(tone, sign).push(Tone::Plain, " ");
    let name = if row.status == NodeStatus::Pending { Tone::Faint } else { Tone::Plain };
    line.push(name, &middle(&row.label, COLUMN)).pad_to(5 + columns.names);
    if let Some(kinds) = columns.kinds {
        line.push(Tone::Faint, &format!("  {}", middle(&kind(row), KIND)));
        line.pad_to(5 + columns.names + 2 + kinds);
    }
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
fn kind(row: &NodeRow) -> String {
    match row.agent.as_ref().and_then(|agent| agent.model.as_deref()) {
        Some(model) => format!("{} {}", clean(&row.node_type), clean(model)),
        None => clean(&row.node_type),
    }
}

fn facts(row: &NodeRow, now: Timestamp) -> Vec<String> {
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
    facts.extend(row.by.as_ref().map(|agent| format!("by {agent}")));
    facts.extend(row.progress.map(|progress| bar(row.status, progress)));
    match (row.status, row.worked_ms(), row.started) {
        (NodeStatus::Running | NodeStatus::Waiting, _, Some(started)) => {
            facts.push(format::duration(now.since(started)));
        }
        (NodeStatus::Complete | NodeStatus::Failed, Some(ms), _) => facts.push(format::millis(ms)),
        _ => {}
    }
    match row.tool_calls() {
        0 => {}
        1 => facts.push("1 tool call".to_owned()),
        calls => facts.push(format!("{calls} tool calls")),
    }
    facts
}

/// How far a node is with its frames: a bar while it runs them if their number is known, and the counts.
fn bar(status: NodeStatus, frames: FramesProgress) -> String {
    let counts = format::frames(frames);
    match frames.total {
        Some(total) if total > 0 && matches!(status, NodeStatus::Running | NodeStatus::Waiting) => {
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
fn doing(state: &SessionView, row: &NodeRow, canvas: Canvas) -> Option<(Tone, String)> {
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
        (NodeStatus::Running, Some(AgentActivity::Asking)) => faint("waiting for the model…".to_owned()),
        (NodeStatus::Running, Some(AgentActivity::Thinking)) => faint("thinking…".to_owned()),
        (NodeStatus::Running, Some(AgentActivity::Writing { text })) => faint(tail(text, room)),
        (NodeStatus::Running | NodeStatus::Waiting, Some(AgentActivity::Using { text: call })) => {
            faint(format!("⚙ {call}"))
        }
        (NodeStatus::Running, Some(AgentActivity::Listening { .. })) => {
            let until = row.listens_until().map(|until| format!(" until {}", format::clock(until)));
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
