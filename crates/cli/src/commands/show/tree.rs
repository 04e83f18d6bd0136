//! The nodes of a session as a tree: below a node the frames that it runs, and the nodes in them.

use std::collections::BTreeMap;

use inspan_protocol::NodeStatus;

use super::View;
use inspan_view::{DisplayStatus, FrameRow, Line, NodeRow, Tone, format, inside, look, shown, shown_frame};

/// Warnings that are shown of a node.
const WARNINGS: usize = 5;

/// Denied tool calls that are shown of a node.
const DENIED: usize = 10;

/// Frames of a node up to which each is shown.
const FRAMES: usize = 10;

fn frame_label(index: u32, frame: &FrameRow) -> String {
    format!("[{index}] {}", frame.name.as_deref().unwrap_or_default()).trim_end().to_owned()
}

/// The beginning of the line of a node or a frame: its sign, its label and its status, in columns.
fn begin(status: NodeStatus, indent: usize, (label_tone, label): (Tone, &str), width: usize) -> Line {
    let (tone, sign) = look::sign(status);
    let mut line = Line::new();
    line.pad_to(indent).push(tone, sign).push(Tone::Plain, " ");
    line.push(label_tone, label).pad_to(width + 4);
    line.push(tone, look::word(status)).push(Tone::Plain, " ").pad_to(width + 4 + 11);
    line
}

/// A line of the tree.
struct TreeEntry<'a> {
    indent: usize,
    what: What<'a>,
}

enum What<'a> {
    Node(&'a NodeRow),
    Frame(u32, &'a FrameRow),
    Warning(&'a str),
    /// Frames that are not shown one by one.
    Rest(String),
}

/// The rows of ended frames of a node, whose nodes are not shown.
fn hidden(row: &NodeRow) -> impl Iterator<Item = &NodeRow> {
    let frames = row.frames.values().filter(|frame| frame.name.is_some());
    frames.filter(|frame| frame.status != NodeStatus::Running).flat_map(|frame| &frame.rows)
}

/// The warnings of a node, each once, with those of frames whose nodes are not shown.
fn add_warnings<'a>(row: &'a NodeRow, found: &mut Vec<&'a str>) {
    for warning in &row.warnings {
        if found.len() < WARNINGS && !found.contains(&warning.as_str()) {
            found.push(warning);
        }
    }
    hidden(row).for_each(|row| add_warnings(row, found));
}

/// The tool calls that the agents of a node were denied, with those in frames whose nodes are not shown.
fn add_denied<'a>(row: &'a NodeRow, found: &mut Vec<&'a str>) {
    found.extend(row.denied.iter().map(String::as_str));
    hidden(row).for_each(|row| add_denied(row, found));
}

impl View {
    /// Nodes, each with its frames below it: those that are open and those that failed one by one, the others as a count.
    pub(super) fn tree(&self, rows: &[NodeRow], prefix: &str) -> Vec<Line> {
        let mut entries = Vec::new();
        self.add_entries(rows, prefix, 0, &mut entries);
        let width = |entry: &TreeEntry<'_>| match entry.what {
            What::Node(row) => entry.indent + row.label.len(),
            What::Frame(index, frame) => entry.indent + frame_label(index, frame).chars().count(),
            What::Warning(_) | What::Rest(_) => 0,
        };
        let width = entries.iter().map(width).max().unwrap_or(0);
        let line = |entry: TreeEntry<'_>| match entry.what {
            What::Node(row) => self.node(row, entry.indent, width),
            What::Frame(index, frame) => self.frame_line(index, frame, entry.indent, width),
            What::Warning(text) => {
                let mut line = Line::new();
                line.pad_to(entry.indent).push(Tone::Warning, "! ").push(Tone::Plain, text);
                line
            }
            What::Rest(text) => {
                let mut line = Line::new();
                line.pad_to(entry.indent).push(Tone::Faint, &text);
                line
            }
        };
        entries.into_iter().map(line).collect()
    }

    fn add_entries<'a>(
        &self,
        rows: &'a [NodeRow],
        prefix: &str,
        indent: usize,
        entries: &mut Vec<TreeEntry<'a>>,
    ) {
        for row in rows {
            entries.push(TreeEntry { indent, what: What::Node(row) });
            let mut warnings = Vec::new();
            add_warnings(row, &mut warnings);
            entries.extend(
                warnings.into_iter().map(|text| TreeEntry { indent: indent + 2, what: What::Warning(text) }),
            );
            let path = format!("{prefix}{}", row.label);
            let newest = row.frames.keys().next_back().map_or(0, |(pass, _)| *pass);
            let frames: Vec<_> = row.frames.iter().filter(|((pass, _), _)| *pass == newest).collect();
            let is_small = frames.len() <= FRAMES;
            let (mut failed, mut open, mut rest) = (0, 0, BTreeMap::new());
            for (key, frame) in &frames {
                let count = if frame.status == NodeStatus::Failed { &mut failed } else { &mut open };
                *count += usize::from(matches!(frame.status, NodeStatus::Failed | NodeStatus::Running));
                let is_shown = match frame.status {
                    NodeStatus::Failed | NodeStatus::Running => *count <= FRAMES / 2 || is_small,
                    _ => is_small,
                };
                let inside = || inside(&path, **key, frame);
                match &frame.name {
                    None => self.add_entries(&frame.rows, &inside(), indent + 2, entries),
                    Some(_) if !is_shown => *rest.entry(look::word(frame.status)).or_insert(0) += 1,
                    Some(_) => {
                        entries.push(TreeEntry { indent: indent + 2, what: What::Frame(key.1, frame) });
                        if frame.status == NodeStatus::Running {
                            self.add_entries(&frame.rows, &inside(), indent + 4, entries);
                        }
                    }
                }
            }
            let failed = frames.iter().find(|(_, frame)| frame.status == NodeStatus::Failed);
            let one = failed.or(frames.first().filter(|_| !rest.is_empty()));
            if let Some((key, frame)) = one.filter(|(_, frame)| frame.name.is_some()) {
                let mut text: Vec<String> = Vec::new();
                let counts: Vec<String> =
                    rest.iter().map(|(word, count)| format!("{count} {word}")).collect();
                text.extend((!counts.is_empty()).then(|| format!("… {}", counts.join(", "))));
                let one = inside(&path, **key, frame);
                let one = format!("'{}'", one.trim_end_matches('/'));
                let show = self.commands.command("show", &self.entry.session, &one);
                text.push(format!("`{show}` shows one"));
                entries.push(TreeEntry { indent: indent + 2, what: What::Rest(text.join("; ")) });
            }
        }
    }

    fn frame_line(&self, index: u32, frame: &FrameRow, indent: usize, width: usize) -> Line {
        let status = shown_frame(frame, DisplayStatus::of(&self.entry));
        let mut line = begin(status, indent, (Tone::Plain, &frame_label(index, frame)), width);
        let mut parts = Vec::new();
        if frame.open.is_some() {
            parts.push(format!("{} of {} nodes done", frame.done(), frame.rows.len()));
        }
        parts.extend(frame.duration_ms.map(format::millis));
        parts.extend(frame.spent().text());
        line.push(Tone::Faint, &parts.join(" · "));
        if let Some(error) = &frame.error {
            line.push(Tone::Plain, "  ");
            look::error(&mut line, error);
        }
        line
    }

    fn node(&self, row: &NodeRow, indent: usize, width: usize) -> Line {
        let session = DisplayStatus::of(&self.entry);
        let status = shown(row, session);
        let mut line = begin(status, indent, (Tone::Strong, &row.label), width);
        let mut parts = Vec::new();
        if row.pass > 1 {
            parts.push(format!("pass {}", row.pass));
        }
        match row.failed_passes.len() {
            0 => {}
            1 => parts.push("1 earlier pass failed".to_owned()),
            failed => parts.push(format!("{failed} earlier passes failed")),
        }
        parts.extend(row.by.as_ref().map(|agent| format!("by {agent}")));
        parts.extend(row.progress.map(format::frames));
        if row.attempts > 1 {
            parts.push(format!("{} attempts", row.attempts));
        }
        if row.interrupted > 0 {
            parts.push(format!("{} interrupted", row.interrupted));
        }
        parts.extend(row.worked_ms().filter(|_| status != NodeStatus::Skipped).map(format::millis));
        parts.extend(row.spent.text());
        line.push(Tone::Faint, &parts.join(" · "));
        if let Some(until) = row.listens_until().filter(|_| status == NodeStatus::Running) {
            let send = self.commands.command("send", &self.entry.session, "TEXT");
            line.push(Tone::Accent, &format!("  listening until {}; `{send}`", format::clock(until)));
        }
        let mut denied = Vec::new();
        add_denied(row, &mut denied);
        if !denied.is_empty() {
            let more = denied.len().saturating_sub(DENIED);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            denied.truncate(DENIED);
            line.push(Tone::Warning, &format!("  ⚠ denied: {}{more}", denied.join("; ")));
        }
        // In a session that has ended nothing runs again.
        let due = row.retry.filter(|_| !session.has_ended()).map(|(due, _)| due);
        if let Some(error) = &row.error {
            line.push(Tone::Plain, if parts.is_empty() { "" } else { "  " });
            look::error(&mut line, error);
            if let Some(due) = due.filter(|_| status == NodeStatus::Pending) {
                line.push(Tone::Faint, &format!(", again at {}", format::moment(due)));
            }
        } else if let Some(reason) = row.skipped.filter(|_| status == NodeStatus::Skipped) {
            line.push(Tone::Plain, if parts.is_empty() { "" } else { "  " });
            line.push(Tone::Faint, look::skipped(reason));
        } else if let Some(due) = due {
            line.push(Tone::Faint, &format!("  until {}", format::moment(due)));
        }
        line
    }
}
