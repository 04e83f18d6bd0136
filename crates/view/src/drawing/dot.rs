//! A drawing as a Graphviz digraph.

use std::fmt::Write as _;

use inspan_protocol::NodeStatus;

use super::{Drawing, DrawnNode, Group, NodeShape};
use crate::format::cut;

/// The longest label, in characters.
const LABEL: usize = 80;

/// The drawing in the notation of Graphviz.
pub fn dot(drawing: &Drawing) -> String {
    let title = match &drawing.session {
        Some(session) => format!("{}\n{}", drawing.flow, session.text()),
        None => drawing.flow.clone(),
    };
    let mut out = format!("digraph {} {{\n", quoted(&drawing.flow));
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "  graph [label={}, labelloc=t, compound=true, fontname=\"Helvetica\"];",
        quoted(&title)
    );
    out.push_str(
        "  node [fontname=\"Helvetica\", shape=box];\n  edge [fontname=\"Helvetica\", fontsize=11];\n",
    );
    group(&mut out, &drawing.body, "n", 1);
    out.push_str("}\n");
    out
}

fn group(out: &mut String, group_: &Group, prefix: &str, depth: usize) {
    let indent = "  ".repeat(depth);
    for (at, node) in group_.nodes.iter().enumerate() {
        let name = format!("{prefix}{at}");
        let label = quoted(&label(node));
        match node.body().filter(|body| !body.nodes.is_empty()) {
            Some(body) => {
                let _ = writeln!(
                    out,
                    "{indent}subgraph cluster_{name} {{\n{indent}  label={label}; style=rounded; {}",
                    colour(node)
                );
                group(out, body, &format!("{name}_"), depth + 1);
                let _ = writeln!(out, "{indent}}}");
            }
            None => {
                let look = match node.shape {
                    NodeShape::Agent => "shape=box, style=rounded",
                    NodeShape::Control => "shape=hexagon",
                    NodeShape::Person => "shape=parallelogram",
                    NodeShape::Work => "shape=box",
                };
                let colour = colour(node);
                let colour = if colour.is_empty() { String::new() } else { format!(", {colour}") };
                let _ =
                    writeln!(out, "{indent}{name} [label={label}, {look}{}];", colour.trim_end_matches(';'));
            }
        }
    }
    for edge in &group_.edges {
        let (from, to) = edge.ends;
        let mut looks = Vec::new();
        looks.extend(edge.label().map(|label| format!("label={}", quoted(&cut(&label, LABEL)))));
        // An edge ends at a node: that of a box at its border, before the first node in it.
        let ends = [("ltail", from), ("lhead", to)].map(|(key, at)| {
            let (anchor, is_cluster) = anchor(&group_.nodes[at], format!("{prefix}{at}"));
            looks.extend((is_cluster && from != to).then(|| format!("{key}=cluster_{prefix}{at}")));
            anchor
        });
        if edge.max_iterations.is_some() {
            looks.push("style=dashed, constraint=false".to_owned());
        } else if edge.is_unused() {
            looks.push("style=dotted".to_owned());
        }
        if edge.is_unused() {
            looks.push("color=gray60, fontcolor=gray50".to_owned());
        }
        let looks = if looks.is_empty() { String::new() } else { format!(" [{}]", looks.join(", ")) };
        let _ = writeln!(out, "{indent}{} -> {}{looks};", ends[0], ends[1]);
    }
}

/// The node by which a box is reached, and whether it is in a box.
fn anchor(node: &DrawnNode, name: String) -> (String, bool) {
    match node.body().and_then(|body| body.nodes.first()) {
        Some(first) => (anchor(first, format!("{name}_0")).0, true),
        None => (name, false),
    }
}

fn label(node: &DrawnNode) -> String {
    let details = node.details().into_iter().map(|line| format!("\n{}", cut(&line, LABEL)));
    format!("{}{}", node.id, details.collect::<String>())
}

fn colour(node: &DrawnNode) -> String {
    let Some(results) = &node.results else { return String::new() };
    let colour = match results.status {
        NodeStatus::Complete | NodeStatus::Reused => "forestgreen",
        NodeStatus::Failed => "firebrick",
        NodeStatus::Running => "royalblue",
        NodeStatus::Waiting | NodeStatus::Paused | NodeStatus::Interrupted | NodeStatus::Cancelled => {
            "darkgoldenrod"
        }
        _ => "gray60",
    };
    format!("color={colour};")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
