//! A drawing for the terminal: each node with the edges that leave it, what runs in frames indented below its node.

use super::{Drawing, DrawnNode, Edge, Group};
use crate::{
    line::{Line, Tone},
    look,
};

/// Columns by which a body is indented.
const STEP: usize = 4;

/// The drawing as lines.
pub fn text(drawing: &Drawing) -> Vec<Line> {
    let mut head = Line::new();
    head.push(Tone::Strong, &drawing.flow);
    if let Some(session) = &drawing.session {
        head.push(Tone::Faint, &format!("  {}", session.text()));
    }
    let mut lines = vec![head, Line::new()];
    let width = width(&drawing.body, 0);
    add(&mut lines, &drawing.body, "", width);
    lines
}

/// Columns that names take, with their indentation.
fn width(group: &Group, indent: usize) -> usize {
    let node = |node: &DrawnNode| {
        let inner = node.body().map_or(0, |body| width(body, indent + STEP));
        inner.max(indent + node.id.chars().count())
    };
    group.nodes.iter().map(node).max().unwrap_or(0)
}

fn add(lines: &mut Vec<Line>, group: &Group, guide: &str, width: usize) {
    for (at, node) in group.nodes.iter().enumerate() {
        lines.push(head(node, guide, width));
        let edges: Vec<&Edge> = group.edges.iter().filter(|edge| edge.ends.0 == at).collect();
        if let Some(frames) = &node.frames {
            let inner = format!("{guide}  {} ", if edges.is_empty() { " " } else { "│" });
            lines.push(Line::new().with(Tone::Faint, &inner).with(Tone::Accent, &frames.how));
            if let Some(body) = &frames.body {
                add(lines, body, &inner, width);
            }
        }
        for (at, edge) in edges.iter().enumerate() {
            lines.push(arrow(edge, guide, at + 1 == edges.len()));
        }
    }
}

fn head(node: &DrawnNode, guide: &str, width: usize) -> Line {
    let (tone, sign) =
        node.results.as_ref().map_or((Tone::Accent, "•"), |results| look::sign(results.status));
    let mut line = Line::new();
    line.push(Tone::Faint, guide).push(tone, sign);
    line.push(Tone::Plain, " ").push(Tone::Strong, &node.id).pad_to(width + 2);
    line.push(Tone::Faint, &format!("  {}", node.node_type));
    if let Some(results) = &node.results {
        line.push(tone, &format!("  {}", results.text(node.frames.as_ref())));
        if let Some(error) = &results.error {
            line.push(Tone::Plain, &format!("  {error}"));
        }
    }
    if let Some(when) = &node.when {
        line.push(Tone::Plain, &format!("  if {when}"));
    }
    for agents in node.agents_text() {
        line.push(Tone::Accent, &format!("  {agents}"));
    }
    line
}

fn arrow(edge: &Edge, guide: &str, is_last: bool) -> Line {
    let mut line = Line::new();
    let is_loop = edge.max_iterations.is_some();
    let head = match (is_loop, edge.is_unused()) {
        (true, _) => "↺ ",
        (false, true) => "⇢ ",
        (false, false) => "→ ",
    };
    line.push(Tone::Faint, &format!("{guide}  {}", if is_last { "╰" } else { "├" }));
    let tone = if edge.is_unused() { Tone::Faint } else { Tone::Plain };
    line.push(tone, head).push(tone, &edge.to);
    if let Some(label) = edge.label() {
        line.push(Tone::Faint, &format!("  {label}"));
    }
    if edge.counts.is_some_and(|counts| counts.fired == 0 && counts.skipped > 0) {
        line.push(Tone::Faint, "  did not fire");
    }
    line
}
