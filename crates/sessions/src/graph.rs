//! The flow of a session as it was when the session began, and the places in it.

use std::sync::Arc;

use inspan_flow::{
    Compiled, DescribeNode, Diagnostics, FramesKind, Graph, Loaded, NodeCatalog, NodeKind, NodeRegistry,
    NodeTypeInfo, Occupies, SessionRecord, compile,
};
use inspan_protocol::NodePath;
use serde_json::json;

use crate::{SessionError, SessionErrorCode, meant};

/// The flow that a session runs, as it was when the session began, to be read. Node types that only the program has that started the
/// session take any input and give any output.
pub fn graph(record: &SessionRecord, nodes: &NodeRegistry) -> Result<Arc<Graph>, SessionError> {
    let broken = |why: String| {
        let message = format!("the flow of session `{}` no longer compiles: {why}", record.session);
        SessionError::new(SessionErrorCode::FlowOfOtherVersion, message)
            .with_hint("the session was started by another version of inspan; use that version")
    };
    let loaded = Loaded::from_source(&record.flow).map_err(|error| broken(error.to_string()))?;
    let problems = match compile(&loaded, nodes) {
        Ok(Compiled { graph, .. }) => return Ok(Arc::new(graph)),
        Err(problems) => problems,
    };
    match compile(&loaded, &with_foreign(nodes, &problems)) {
        Ok(Compiled { graph, .. }) => Ok(Arc::new(graph)),
        Err(_) => Err(foreign_types(&problems).unwrap_or_else(|| broken(problems.to_string()))),
    }
}

/// The path of a node as it was typed, if all nodes and frames that it names can be in the flow. The pass at its end may be
/// left out.
pub fn node_path(graph: &Graph, node: &str) -> Result<NodePath, SessionError> {
    let path = NodePath::new(node);
    let mut body = Some(graph.flow());
    for part in path.parts() {
        let Some(around) = body else { break };
        let Some(ix) = around.find(part.node) else {
            let known: Vec<&str> = around.nodes.iter().map(|node| node.id.as_str()).collect();
            let message = format!("unknown node `{node}` in flow `{}`", graph.name);
            return Err(
                SessionError::new(SessionErrorCode::UnknownNode, message).with_hint(meant(part.node, &known))
            );
        };
        let frames = around.node(ix).frames.as_ref();
        let why = match (part.index, frames.map(|frames| &frames.kind)) {
            (Some(_), None) => Some(format!("`{}` runs no body and has no frames", part.node)),
            (Some(index), Some(FramesKind::Loop { max_iterations, .. })) if index >= *max_iterations => {
                Some(format!(
                    "there is no frame `{node}`: `{}` has at most {max_iterations}, from 0 on",
                    part.node
                ))
            }
            _ => None,
        };
        if let Some(why) = why {
            return Err(SessionError::new(SessionErrorCode::UnknownNode, why));
        }
        body = frames.map(|frames| graph.body(frames.body));
    }
    Ok(path)
}

/// Refuses a node of several frames that does not say which of them is meant.
pub(crate) fn check_names_frames(graph: &Graph, path: &NodePath) -> Result<(), SessionError> {
    let mut body = Some(graph.flow());
    let count = path.parts().count();
    for (at, part) in path.parts().enumerate() {
        let frames = body.and_then(|around| around.node(around.find(part.node)?).frames.as_ref());
        let is_one_of_many = frames.is_some_and(|frames| {
            matches!(frames.kind, FramesKind::Foreach { .. } | FramesKind::Loop { .. })
        });
        if part.index.is_none() && is_one_of_many && at + 1 < count {
            let owner = part.node;
            let message =
                format!("`{path}` runs in each frame of `{owner}`: say in which, as in `{owner}[0]`");
            return Err(SessionError::new(SessionErrorCode::UnknownNode, message));
        }
        body = frames.map(|frames| graph.body(frames.body));
    }
    Ok(())
}

/// Why a flow cannot run here, if it is because it uses node types of another program.
pub fn foreign_types(problems: &Diagnostics) -> Option<SessionError> {
    let names: Vec<String> = problems.unknown_node_types().iter().map(|name| format!("`{name}`")).collect();
    let message = match &names[..] {
        [] => return None,
        [name] => format!("the session's flow uses the node type {name}, which this program does not have"),
        names => format!(
            "the session's flow uses the node types {}, which this program does not have",
            names.join(", ")
        ),
    };
    let hint = "use the program that started the session";
    Some(SessionError::new(SessionErrorCode::FlowOfOtherVersion, message).with_hint(hint))
}

/// These node types, and those that a flow lacked, so that what a session did can be read.
fn with_foreign(nodes: &NodeCatalog, problems: &Diagnostics) -> NodeCatalog {
    let mut all = nodes.clone();
    for name in problems.unknown_node_types() {
        all.register(ForeignNode(name.into()));
    }
    all
}

/// A node type of another program, of which only the name is known.
struct ForeignNode(Arc<str>);

impl DescribeNode for ForeignNode {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo {
            name: Arc::clone(&self.0),
            pack: "foreign".into(),
            help: "A node type of another program.".to_owned(),
            input: json!({}),
            output: json!({}),
            // As providers name the nodes that run their agents.
            kind: if self.0.ends_with(".agent") { NodeKind::Agent } else { NodeKind::Plain },
            occupies: Occupies::Slot,
        }
    }
}
