//! The frames of one node, page by page.

use std::collections::BTreeMap;

use inspan_protocol::{AgentError, NodePath, NodeStatus, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use super::{PageFold, PageNode, PageSession, shown_frame};
use crate::{entry::DisplayStatus, inside, label};

/// Some frames of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct FramePage {
    /// The newest event that they are made of.
    pub seq: u64,
    /// How many there are that fit what was asked for.
    pub total: usize,
    /// Those that were asked for, in their order.
    pub frames: Vec<ShownFrame>,
}

/// One frame.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShownFrame {
    /// Its path, `each[3]`.
    pub path: String,
    /// The item in short, or the pass of a loop.
    pub name: Option<String>,
    /// Running, waiting for a person, interrupted, paused, complete, failed or cancelled.
    pub status: NodeStatus,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// Why it failed.
    pub error: Option<AgentError>,
    /// How many of its nodes have ended.
    pub done: usize,
    /// How many nodes it has.
    pub of: usize,
    /// Tokens of its nodes.
    pub tokens: u64,
    /// What they cost in US dollars, unless the price of some turn is unknown.
    pub cost_usd: Option<f64>,
    /// Its nodes by their paths.
    pub nodes: BTreeMap<String, PageNode>,
}

/// Which frames to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameSelect {
    /// Only those with this status.
    pub status: Option<NodeStatus>,
    /// Leaves out so many.
    pub from: usize,
    /// At most so many.
    pub limit: usize,
}

impl PageFold {
    /// Some frames of a node; nothing if there is no such node. A path with a pass means the frames of that pass, one
    /// without those of all passes.
    pub fn frames(&self, session: &PageSession, node: &NodePath, select: FrameSelect) -> Option<FramePage> {
        let row = self.view.row(node)?;
        let session_status = DisplayStatus::of(&self.entry(session));
        let owner = label(node);
        let pass = Some(node.pass()).filter(|_| node.as_str() != owner);
        let wanted: Vec<_> = row
            .frames
            .iter()
            .filter(|((of, _), _)| pass.is_none_or(|pass| *of == pass))
            .filter(|(_, frame)| {
                select.status.is_none_or(|status| shown_frame(frame, session_status) == status)
            })
            .collect();
        let shown = wanted.iter().skip(select.from).take(select.limit).map(|(key, frame)| {
            let prefix = inside(owner, **key, frame);
            let mut nodes = BTreeMap::new();
            self.add_nodes(&frame.rows, &prefix, session_status, &mut nodes);
            let spent = frame.spent();
            ShownFrame {
                path: prefix.trim_end_matches('/').to_owned(),
                name: frame.name.clone(),
                status: shown_frame(frame, session_status),
                started_at: frame.started,
                duration_ms: frame.duration_ms,
                error: frame.error.as_deref().cloned(),
                done: frame.done(),
                of: frame.rows.len(),
                tokens: spent.tokens,
                cost_usd: spent.known_usd(),
                nodes,
            }
        });
        Some(FramePage { seq: self.seq(), total: wanted.len(), frames: shown.collect() })
    }
}
