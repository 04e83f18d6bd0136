//! Node types that only the program has that started a session.

use std::sync::Arc;

use inspan_flow::{DescribeNode, Diagnostics, NodeCatalog, NodeKind, NodeTypeInfo, Occupies};
use serde_json::json;

use crate::{SessionError, SessionErrorCode};

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
pub(crate) fn with_foreign(nodes: &NodeCatalog, problems: &Diagnostics) -> NodeCatalog {
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
