//! A drawing as a Mermaid flow chart, for Markdown pages.

use std::fmt::Write as _;

use inspan_protocol::NodeStatus;

use super::{Drawing, DrawnNode, Group, NodeShape};
use crate::{format::cut, look};

/// The longest label, in characters.
const LABEL: usize = 80;

/// How boxes of each status look: borders alone, which are seen on light and dark pages.
const CLASSES: &[(NodeStatus, &str)] = &[
    (NodeStatus::Complete, "stroke:#2da44e,stroke-width:2px"),
    (NodeStatus::Reused, "stroke:#2da44e,stroke-width:1px"),
    (NodeStatus::Failed, "stroke:#cf222e,stroke-width:3px"),
    (NodeStatus::Cancelled, "stroke:#bf8700,stroke-width:2px"),
    (NodeStatus::Running, "stroke:#0969da,stroke-width:3px"),
    (NodeStatus::Waiting, "stroke:#bf8700,stroke-width:3px"),
    (NodeStatus::Paused, "stroke:#bf8700,stroke-width:2px"),
    (NodeStatus::Interrupted, "stroke:#bf8700,stroke-width:2px"),
    (NodeStatus::Skipped, "stroke:#8c959f,stroke-dasharray:4 3"),
    (NodeStatus::Pending, "stroke:#8c959f,stroke-dasharray:1 3"),
];

/// The drawing in Mermaid's notation.
pub fn mermaid(drawing: &Drawing) -> String {
    let title = match &drawing.session {
        Some(session) => format!("{} · {}", drawing.flow, session.text()),
        None => drawing.flow.clone(),
    };
    // `%%{` begins a directive in any place.
    let title = serde_json::json!(title).to_string().replace('%', "\\u0025");
    let mut out = format!("---\ntitle: {title}\n---\nflowchart TD\n");
    let mut links = Vec::new();
    // Names that are not the author's, since some words, such as `end`, mean something to Mermaid.
    group(&mut out, &drawing.body, "n", 1, &mut links);
    let unused: Vec<String> =
        links.iter().enumerate().filter(|(_, unused)| **unused).map(|(at, _)| at.to_string()).collect();
    if !unused.is_empty() {
        let _ = writeln!(out, "  linkStyle {} opacity:0.45", unused.join(","));
    }
    for (status, look) in CLASSES.iter().filter(|_| drawing.session.is_some()) {
        let mut names = Vec::new();
        with_status(&drawing.body, "n", *status, &mut names);
        if !names.is_empty() {
            let word = look::word(*status);
            // Writing to a string cannot fail.
            let _ = write!(out, "  classDef {word} {look}\n  class {} {word}\n", names.join(","));
        }
    }
    out
}

/// `links` are the edges in the order in which they are written, each with whether it did not fire.
fn group(out: &mut String, group_: &Group, prefix: &str, depth: usize, links: &mut Vec<bool>) {
    let indent = "  ".repeat(depth);
    for (at, node) in group_.nodes.iter().enumerate() {
        let (name, label) = (format!("{prefix}{at}"), label(node));
        match node.body() {
            Some(body) => {
                let _ = writeln!(out, "{indent}subgraph {name}[\"{label}\"]");
                group(out, body, &format!("{name}_"), depth + 1, links);
                let _ = writeln!(out, "{indent}end");
            }
            None => {
                let (open, close) = match node.shape {
                    NodeShape::Agent => ("([", "])"),
                    NodeShape::Control => ("{{", "}}"),
                    NodeShape::Person => ("[/", "/]"),
                    NodeShape::Work => ("[", "]"),
                };
                let _ = writeln!(out, "{indent}{name}{open}\"{label}\"{close}");
            }
        }
    }
    for edge in &group_.edges {
        let is_dotted = edge.max_iterations.is_some() || edge.is_unused();
        let arrow = if is_dotted { "-.->" } else { "-->" };
        let label =
            edge.label().map(|label| format!("|\"{}\"|", escaped(&cut(&label, LABEL)))).unwrap_or_default();
        let (from, to) = edge.ends;
        let _ = writeln!(out, "{indent}{prefix}{from} {arrow}{label} {prefix}{to}");
        links.push(edge.is_unused());
    }
}

fn label(node: &DrawnNode) -> String {
    let details =
        node.details().into_iter().map(|line| format!("<br/><small>{}</small>", escaped(&cut(&line, LABEL))));
    format!("{}{}", escaped(&node.id), details.collect::<String>())
}

fn with_status(group: &Group, prefix: &str, status: NodeStatus, names: &mut Vec<String>) {
    for (at, node) in group.nodes.iter().enumerate() {
        let name = format!("{prefix}{at}");
        if let Some(body) = node.body() {
            with_status(body, &format!("{name}_"), status, names);
        }
        if node.results.as_ref().is_some_and(|results| results.status == status) {
            names.push(name);
        }
    }
}

/// Whatever means something to Mermaid or to HTML, by its number.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '#' | '&' | '<' | '>' | '`' | '%' | ';' | '\\' | '*' | '$' => {
                let _ = write!(out, "#{};", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}
