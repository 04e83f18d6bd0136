//! A flow in Graphviz' words. What is drawn is decided by `drawing`.

use super::{Drawing, Shape};

/// The picture as a Graphviz digraph.
pub(crate) fn dot(drawing: &Drawing) -> String {
    let mut out = format!("digraph {} {{\n", quoted(&drawing.flow));
    out.push_str("  node [fontname=\"Helvetica\", shape=box];\n  edge [fontname=\"Helvetica\"];\n");
    for node in &drawing.nodes {
        let look = match node.shape {
            Shape::Agent => "shape=box, style=rounded",
            Shape::Control => "shape=hexagon",
            Shape::Person => "shape=parallelogram",
            Shape::Work => "shape=box",
        };
        let label = quoted(&format!("{}\n{}", node.id, node.node_type));
        out.push_str(&format!("  {} [label={label}, {look}];\n", quoted(&node.id)));
    }
    for edge in &drawing.edges {
        let mut looks = Vec::new();
        looks.extend(edge.label().map(|label| format!("label={}", quoted(&label))));
        if edge.max_iterations.is_some() {
            looks.push("style=dashed, constraint=false".to_owned());
        }
        let looks = if looks.is_empty() { String::new() } else { format!(" [{}]", looks.join(", ")) };
        let (from, to) = (&drawing.nodes[edge.from].id, &drawing.nodes[edge.to].id);
        out.push_str(&format!("  {} -> {}{looks};\n", quoted(from), quoted(to)));
    }
    out.push_str("}\n");
    out
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
