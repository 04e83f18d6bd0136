//! Why a session or one of its nodes has its status, derived from the log alone: each statement names the event that it
//! is based on, and nothing is stated without an event.

mod frame;
mod node;
mod reason;
mod session;
mod standing;
mod walk;

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{Envelope, NodeId, NodePath, SessionId, Timestamp};
use serde::Serialize;
use serde_json::Value;

use crate::{graph::Graph, record::SessionRecord, schedule::Reusable};
use walk::Walk;

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The status of the session, or how it ended.
    Session,
    /// What happened to one node, by its path; the pass at its end does not count. A path such as `each[3]` is about a frame.
    Node(NodePath),
}

/// The status of something, and what led to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The session.
    pub session_id: SessionId,
    /// The node, unless it is about the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Its status.
    pub standing: Statement,
    /// What led there, in the order of the events.
    pub because: Vec<Statement>,
}

/// One sentence, and the event behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Statement {
    /// The event that it is based on; for what has not happened, the event up to which that holds. 0 before the first.
    pub seq: u64,
    /// When the event happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// The place in the run that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<NodePath>,
    /// What sort of thing it says, for programs.
    pub kind: StatementKind,
    /// What it says.
    pub text: String,
    /// The values of the paths of a condition when it was evaluated; null where there was no value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Value>,
}

/// What sort of thing a statement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum StatementKind {
    /// Its status.
    Standing,
    /// An edge into the node fired.
    EdgeFired,
    /// An edge into the node did not fire.
    EdgeSkipped,
    /// An edge into the node is not resolved.
    EdgePending,
    /// The node's own condition was evaluated.
    Condition,
    /// An attempt began.
    Started,
    /// An attempt completed.
    Completed,
    /// An attempt failed.
    Failed,
    /// The node was skipped.
    Skipped,
    /// The output was taken from earlier work.
    Reused,
    /// An attempt was cancelled.
    Cancelled,
    /// An agent was chosen for the node.
    Agent,
    /// The process of an attempt is gone, and the attempt with it.
    Lost,
    /// A usage limit ended an attempt.
    Limited,
    /// A person was asked.
    Asked,
    /// A person answered.
    Answered,
    /// The session was paused, or is to be.
    Paused,
    /// The session was resumed.
    Resumed,
    /// A loop went round.
    LoopWent,
    /// A loop ended.
    LoopEnded,
    /// Somebody stopped the session.
    Stopped,
    /// A budget was used up.
    Budget,
    /// The session waits.
    Waits,
    /// The flow ended.
    Ended,
}

/// Explains from a session's log, which may hold only the facts. `graph` is what the session's own flow compiles to.
/// `is_lost` says that the process that ran the session is gone: the log does not.
pub fn explain(
    graph: &Arc<Graph>,
    record: &SessionRecord,
    log: &[Arc<Envelope>],
    about: About,
    is_lost: bool,
) -> Explanation {
    explain_taking_over(graph, record, None, log, about, is_lost)
}

/// As [`explain`], for a session that could take over work of another one when it began: says why a node does it again.
pub fn explain_taking_over(
    graph: &Arc<Graph>,
    record: &SessionRecord,
    origin: Option<Arc<Reusable>>,
    log: &[Arc<Envelope>],
    about: About,
    is_lost: bool,
) -> Explanation {
    let session_id = record.session.clone();
    match about {
        About::Session => {
            let (standing, because) = session::explain(graph, record, log, is_lost);
            Explanation { session_id, node: None, standing, because }
        }
        About::Node(path) => {
            let node = NodeId::new(path.node()).ok();
            if let Some((standing, because)) = frame::explain(log, &path) {
                return Explanation { session_id, node, standing, because };
            }
            let mut walk = Walk::of(record.run(graph).reusing(origin), log, Some(&path), is_lost);
            let standing = match (walk.find(&path), walk.standing.take()) {
                (Some(task), _) => walk.node_standing(task),
                (None, Some((standing, statements))) => {
                    walk.statements = statements;
                    standing
                }
                (None, None) => {
                    let text = format!("`{path}` did not run: its frame never began");
                    walk.statement(walk.now(), Some(path.clone()), StatementKind::Standing, text)
                }
            };
            Explanation { session_id, node, standing, because: walk.statements }
        }
    }
}
