//! A flow in Mermaid's words. What is drawn is decided by `drawing`.

use super::{Drawing, Shape};

/// The picture as a Mermaid flow chart.
pub(crate) fn mermaid(drawing: &Drawing) -> String {
    let mut out = format!("---\ntitle: {}\n---\nflowchart TD\n", serde_json::json!(drawing.flow));
    for (at, node) in drawing.nodes.iter().enumerate() {
        let (open, close) = match node.shape {
            Shape::Agent => ("([", "])"),
            Shape::Control => ("{{", "}}"),
            Shape::Person => ("[/", "/]"),
            Shape::Work => ("[", "]"),
        };
        let (id, node_type) = (&node.id, node.node_type.replace('"', "#quot;"));
        // Names of its own, since some words of an author, such as `end`, mean something to Mermaid.
        out.push_str(&format!("  n{at}{open}\"{id}<br/><small>{node_type}</small>\"{close}\n"));
    }
    for edge in &drawing.edges {
        let arrow = if edge.max_iterations.is_some() { "-.->" } else { "-->" };
        let label = edge.label().map(|label| format!("|\"{label}\"|")).unwrap_or_default();
        out.push_str(&format!("  n{} {arrow}{label} n{}\n", edge.from, edge.to));
    }
    out
}
