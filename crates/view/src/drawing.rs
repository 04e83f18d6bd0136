//! A flow, or a session of it, as boxes and arrows: what is drawn, whatever the format. Nodes that run others in frames
//! are boxes around them.

use inspan_flow_core::{
    Agents, Body, BodyIx, Edge as FlowEdge, EdgeOn, FramesKind, Graph, Node as FlowNode, OnItemError,
    StaticValue,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{row::EdgeCounts, safe::clean};

mod dot;
mod layout;
mod mermaid;
mod place;
mod results;
mod svg;
mod text;

pub use dot::dot;
pub use mermaid::mermaid;
pub use place::{Point, Rect, Size};
pub use results::{Results, SessionResults, Spending};
pub use svg::svg;
pub use text::text;

/// What is drawn of a flow or a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drawing {
    /// The flow's name.
    pub flow: String,
    /// The session, if it is a picture of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionResults>,
    /// How large it is, if it is placed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The nodes and edges of the flow.
    #[serde(flatten)]
    pub body: Group,
}

/// Nodes that run together, in the author's order, and the edges between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Which body of the flow it is.
    #[serde(skip)]
    pub body: BodyIx,
    /// The nodes, in the author's order.
    pub nodes: Vec<DrawnNode>,
    /// The edges between them.
    pub edges: Vec<Edge>,
}

/// A node.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrawnNode {
    /// The node's id.
    pub id: String,
    /// The ids of the nodes around it and its own, joined by `/`.
    pub path: String,
    /// The node's type.
    #[serde(rename = "type")]
    pub node_type: String,
    /// How it is drawn.
    pub shape: NodeShape,
    /// The condition without which it is skipped.
    pub when: Option<String>,
    /// The agents that may work on it first, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// The agents that take over from the one before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<Fallback>,
    /// What it runs in frames, if it does.
    pub frames: Option<DrawnFrames>,
    /// What a session made of it.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub results: Option<Results>,
    /// Where its box is, if the drawing is placed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub place: Option<Rect>,
}

/// An agent that takes over after a failure, or when its condition holds.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "DrawnFallback")]
pub struct Fallback {
    /// The agent's name.
    pub agent: String,
    /// The condition of the fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
}

/// What a node runs in frames.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrawnFrames {
    /// What one frame is, and several: `item`, `items`.
    #[serde(skip)]
    pub words: (&'static str, &'static str),
    /// How often the body runs, in words.
    pub how: String,
    /// Absent where a flow calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Group>,
}

/// What sort of work a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NodeShape {
    /// An agent works.
    Agent,
    /// It decides what runs.
    Control,
    /// A person answers.
    Person,
    /// A program, a request or data.
    Work,
}

/// An edge.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DrawnEdge")]
pub struct Edge {
    /// The id of the node where it begins.
    pub from: String,
    /// The id of the node where it ends.
    pub to: String,
    /// The places of the two nodes in their group.
    #[serde(skip)]
    pub ends: (usize, usize),
    /// After which end of the node it fires.
    pub on: EdgeOn,
    /// Its condition.
    pub when: Option<String>,
    /// How often it may fire, if it closes a cycle.
    pub max_iterations: Option<u32>,
    /// How often it did.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub counts: Option<EdgeCounts>,
    /// The points that it passes, if the drawing is placed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<[f64; 2]>,
    /// The text beside it, if the drawing is placed.
    #[serde(rename = "label")]
    pub label_text: Option<String>,
    /// The left end of the label's middle line.
    pub label_at: Option<Point>,
}

impl NodeShape {
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
        let body = Group::of(graph, BodyIx::default(), "", &mut vec![BodyIx::default()]);
        Self { flow: clean(&graph.name), session: None, size: None, body }
    }
}

impl Group {
    /// `around` are the bodies that are being drawn: one of them is not drawn in itself again.
    fn of(graph: &Graph, ix: BodyIx, prefix: &str, around: &mut Vec<BodyIx>) -> Self {
        let body = graph.body(ix);
        let nodes = body.nodes.iter().map(|node| DrawnNode::of(graph, node, prefix, around)).collect();
        Self { body: ix, nodes, edges: body.edges.iter().map(|edge| Edge::of(body, edge)).collect() }
    }
}

impl DrawnNode {
    fn of(graph: &Graph, node: &FlowNode, prefix: &str, around: &mut Vec<BodyIx>) -> Self {
        let path = format!("{prefix}{}", node.id);
        let frames = node.frames.as_deref().map(|frames| {
            let body = (!around.contains(&frames.body)).then(|| {
                around.push(frames.body);
                let body = Group::of(graph, frames.body, &format!("{path}/"), around);
                around.pop();
                body
            });
            DrawnFrames { words: words(&frames.kind), how: how(graph, node, frames.body, &frames.kind), body }
        });
        let agents = node.agents.as_deref();
        let fallback = agents.into_iter().flat_map(|agents| {
            agents.fallback.iter().map(|next| Fallback {
                agent: clean(agents.name(next.agent)),
                when: next.when.as_ref().map(|when| clean(&when.to_string())),
            })
        });
        let chosen = agents.map(Agents::chosen).unwrap_or_default();
        Self {
            id: node.id.to_string(),
            agents: chosen.iter().filter(|_| chosen.len() > 1).map(|name| clean(name)).collect(),
            fallback: fallback.collect(),
            path,
            node_type: clean(&node.node_type),
            shape: NodeShape::of(&node.node_type),
            when: node.when.as_ref().map(|when| clean(&when.to_string())),
            frames,
            results: None,
            place: None,
        }
    }

    /// The nodes that it runs.
    pub fn body(&self) -> Option<&Group> {
        self.frames.as_ref()?.body.as_ref()
    }

    /// The agents that it chooses among, and those that take over, one line each.
    fn agents_text(&self) -> impl Iterator<Item = String> {
        let chosen = (!self.agents.is_empty()).then(|| format!("one of {}", self.agents.join(", ")));
        let fallback = self.fallback.iter().map(|next| match &next.when {
            Some(when) => format!("else {} if {when}", next.agent),
            None => format!("else {}", next.agent),
        });
        chosen.into_iter().chain(fallback)
    }

    /// What is in its box below its id, whatever a session does, line by line.
    fn about(&self) -> Vec<String> {
        let mut lines = vec![self.node_type.clone()];
        lines.extend(self.agents_text());
        lines.extend(self.frames.as_ref().map(|frames| frames.how.clone()));
        lines.extend(self.when.as_ref().map(|when| format!("if {when}")));
        lines
    }

    /// What is in its box below its id, line by line.
    fn details(&self) -> Vec<String> {
        let mut lines = self.about();
        lines.extend(self.results.as_ref().map(|results| results.text(self.frames.as_ref())));
        lines
    }
}

impl Edge {
    fn of(body: &Body, edge: &FlowEdge) -> Self {
        Self {
            from: body.node(edge.from).id.to_string(),
            to: body.node(edge.to).id.to_string(),
            ends: (edge.from.0 as usize, edge.to.0 as usize),
            on: edge.on,
            when: edge.when.as_ref().map(|when| clean(&when.to_string())),
            max_iterations: edge.cycle.as_ref().map(|cycle| cycle.max_iterations),
            counts: None,
            points: Vec::new(),
            label_text: None,
            label_at: None,
        }
    }

    /// Its label.
    fn label(&self) -> Option<String> {
        let on = match self.on {
            EdgeOn::Success => None,
            EdgeOn::Failure => Some("on failure".to_owned()),
            EdgeOn::Skipped => Some("on skipped".to_owned()),
            EdgeOn::Any => Some("on any end".to_owned()),
        };
        let when = self.when.as_ref().map(|when| format!("if {when}"));
        let most = self.max_iterations.map(|most| format!("≤ {most}×"));
        let parts: Vec<String> = [on, most, self.fired_text(), when].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(" · "))
    }

    /// How often it fired, where that is not seen from how it is drawn.
    fn fired_text(&self) -> Option<String> {
        let EdgeCounts { fired, skipped } = self.counts.filter(|counts| counts.fired > 0)?;
        match (self.max_iterations, skipped) {
            (Some(_), _) => Some(format!("fired {fired}×")),
            (None, 0) => None,
            (None, _) => Some(format!("fired {fired} of {}×", fired + skipped)),
        }
    }

    /// Whether the session took another path.
    fn is_unused(&self) -> bool {
        self.counts.is_some_and(|counts| counts.fired == 0)
    }
}

/// What the frames of a node are called, one and several.
fn words(kind: &FramesKind) -> (&'static str, &'static str) {
    match kind {
        FramesKind::Foreach { .. } => ("item", "items"),
        FramesKind::Loop { .. } => ("pass", "passes"),
        FramesKind::Subflow { .. } | FramesKind::Pack => ("run", "runs"),
    }
}

/// How often a node runs its body.
fn how(graph: &Graph, node: &FlowNode, body: BodyIx, kind: &FramesKind) -> String {
    let name = || graph.body(body).subflow.as_ref().map(|flow| clean(&flow.name)).unwrap_or_default();
    match kind {
        FramesKind::Foreach { item, on_item_error, .. } => {
            let most = match node.input.part(&["maxConcurrency"]) {
                StaticValue::Known(most) => format!(", {most} at once"),
                _ => String::new(),
            };
            let error = match on_item_error {
                OnItemError::Fail => "",
                OnItemError::Stop => ", stops at a failure",
                OnItemError::Continue => ", continues after a failure",
            };
            format!("for each {item}{most}{error}")
        }
        FramesKind::Loop { while_holds, until, max_iterations, .. } => {
            let condition = match (while_holds, until) {
                (Some(holds), _) => format!("while {}", clean(&holds.to_string())),
                (None, Some(until)) => format!("until {}", clean(&until.to_string())),
                (None, None) => "loop".to_owned(),
            };
            format!("{condition}, ≤ {max_iterations} passes")
        }
        FramesKind::Pack => format!("flow {}", name()),
        FramesKind::Subflow { max_depth } => {
            let depth = max_depth.map(|most| format!(", ≤ {most} deep")).unwrap_or_default();
            format!("flow {}{depth}", name())
        }
    }
}

#[cfg(test)]
mod tests;
