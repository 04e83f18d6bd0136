//! A flow as boxes and arrows: for Graphviz, for Mermaid, and as SVG.

use inspan_flow::Graph;
use serde::Serialize;

use crate::safe::clean;

mod svg;

pub(crate) use svg::svg;

/// What is drawn of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drawing {
    pub(crate) flow: String,
    /// In the author's order.
    pub(crate) nodes: Vec<Box>,
    pub(crate) edges: Vec<Arrow>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Box {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) node_type: String,
    pub(crate) shape: Shape,
}

/// What sort of work a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Shape {
    Agent,
    Control,
    Person,
    Work,
}

/// An edge, by the places of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Arrow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) nature: Nature,
    /// How often it may fire, if it closes a cycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_iterations: Option<u32>,
}

/// When an edge fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Nature {
    Always,
    Conditional,
}

impl Shape {
    fn of(node_type: &str) -> Self {
        match node_type.split_once('.') {
            Some((_, "agent")) | Some(("agent", _)) => Self::Agent,
            Some(("human", _)) | Some((_, "gate")) => Self::Person,
            Some(("control" | "condition", _)) => Self::Control,
            _ => Self::Work,
        }
    }
}

impl From<&Graph> for Drawing {
    fn from(graph: &Graph) -> Self {
        let boxes = graph.flow().nodes.iter().map(|node| Box {
            id: node.id.to_string(),
            node_type: node.node_type.to_string(),
            shape: Shape::of(&node.node_type),
        });
        let arrows = graph.flow().edges.iter().map(|edge| Arrow {
            from: edge.from.0 as usize,
            to: edge.to.0 as usize,
            nature: if edge.when.is_some() { Nature::Conditional } else { Nature::Always },
            max_iterations: edge.cycle.as_ref().map(|cycle| cycle.max_iterations),
        });
        Self { flow: clean(&graph.name), nodes: boxes.collect(), edges: arrows.collect() }
    }
}

impl Arrow {
    /// What stands beside it.
    fn label(&self) -> Option<String> {
        match (self.max_iterations, self.nature) {
            (Some(max), _) => Some(format!("≤ {max}×")),
            (None, Nature::Conditional) => Some("if".to_owned()),
            (None, Nature::Always) => None,
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn review() -> Drawing {
        let nodes = [
            ("plan", "claude.agent"),
            ("code", "claude.agent"),
            ("tests", "exec"),
            ("review", "agent.run"),
            ("ok", "human.input"),
            ("done", "control.merge"),
        ];
        let boxes = nodes.map(|(id, node_type)| Box {
            id: id.to_owned(),
            node_type: node_type.to_owned(),
            shape: Shape::of(node_type),
        });
        let arrow = |from, to, nature, max_iterations| Arrow { from, to, nature, max_iterations };
        let edges = vec![
            arrow(0, 1, Nature::Always, None),
            arrow(0, 5, Nature::Always, None),
            arrow(1, 2, Nature::Always, None),
            arrow(1, 3, Nature::Always, None),
            arrow(3, 1, Nature::Conditional, Some(3)),
            arrow(3, 4, Nature::Conditional, None),
            arrow(2, 5, Nature::Always, None),
            arrow(4, 5, Nature::Always, None),
        ];
        Drawing { flow: "a <b> & \"c\"".to_owned(), nodes: boxes.to_vec(), edges }
    }

    #[test]
    fn in_mermaid() {
        insta::assert_snapshot!(mermaid(&review()));
    }

    #[test]
    fn in_dot() {
        insta::assert_snapshot!(dot(&review()));
    }

    #[test]
    fn in_svg() {
        insta::assert_snapshot!(svg(&review()));
    }
}
