//! One node as the page and `show --json` have it.

use inspan_protocol::{AgentError, NodeStatus, SkipReason, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use super::shown;
use crate::{AgentActivity, AgentView, NodeRow, entry::DisplayStatus};

/// One node.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PageNode {
    /// Its path without the pass at the end.
    pub path: String,
    /// Its id.
    pub id: String,
    /// Its type.
    #[serde(rename = "type")]
    pub node_type: String,
    /// Its status as people see it.
    pub status: NodeStatus,
    /// Attempts over all passes.
    pub attempts: u32,
    /// The newest attempt of this pass, 0 before the first.
    pub attempt: u32,
    /// Which pass of its loop, counting from 1.
    pub pass: u32,
    /// Whether its output was taken from earlier work.
    pub reused: bool,
    /// Attempts whose process was lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub interrupted: u32,
    /// Earlier passes that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_passes: u32,
    /// When the newest attempt began.
    pub started_at: Option<Timestamp>,
    /// How long the newest attempt took.
    pub duration_ms: Option<u64>,
    /// The newest failure.
    pub error: Option<AgentError>,
    /// Why it was skipped.
    pub skipped: Option<SkipReason>,
    /// When the next attempt is due.
    pub retry_at: Option<Timestamp>,
    /// Tool calls that its agents were denied, each in one line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<String>,
    /// What went wrong in its work and was tolerated: the first 20 warnings, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Tokens over all attempts, passes and frames.
    pub tokens: u64,
    /// The cost in US dollars, unless the price of some turn is unknown.
    pub cost_usd: Option<f64>,
    /// The agent that works on it, where there are several.
    pub by: Option<String>,
    /// Its newest agent run.
    pub agent: Option<PageAgent>,
    /// The last line that its program wrote.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// How far it is with its frames.
    pub frames: Option<PageFrames>,
}

/// An agent run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PageAgent {
    /// The provider's type.
    pub provider: String,
    /// The model that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tools that were called in all.
    pub tool_calls: u32,
    /// What it does right now.
    pub doing: AgentActivity,
}

/// How far a node is with its frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PageFrames {
    /// What they are.
    pub kind: FrameKind,
    /// How many there are, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u32>,
    /// Those that are open.
    pub open: u32,
    /// Those that ended well.
    pub succeeded: u32,
    /// Those that failed.
    pub failed: u32,
    /// Those that there are to look at, of all passes.
    pub shown: usize,
}

/// What the frames of a node are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FrameKind {
    /// Items of a list.
    Foreach,
    /// Passes.
    Loop,
    /// The run of another flow.
    Subflow,
    /// The run of a node that is a flow by itself.
    Pack,
}

impl PageNode {
    /// A node of a session with this status.
    pub fn of(row: &NodeRow, path: String, session: DisplayStatus) -> Self {
        let agent = row.agent.as_deref().map(|agent| PageAgent {
            provider: agent.provider.clone(),
            model: agent.model.clone(),
            tool_calls: agent.tool_calls,
            doing: agent.doing.clone(),
        });
        let frames = row.progress.map(|progress| PageFrames {
            kind: match &*row.node_type {
                "control.foreach" => FrameKind::Foreach,
                "control.loop" => FrameKind::Loop,
                "control.subflow" => FrameKind::Subflow,
                _ => FrameKind::Pack,
            },
            total: progress.total,
            open: progress.open,
            succeeded: progress.succeeded,
            failed: progress.failed,
            shown: row.frames.len(),
        });
        Self {
            path,
            id: row.label.clone(),
            node_type: row.node_type.to_string(),
            status: shown(row, session),
            attempts: row.attempts,
            attempt: row.attempt,
            pass: row.pass,
            reused: row.status == NodeStatus::Reused,
            interrupted: row.interrupted,
            failed_passes: row.failed_passes.len().try_into().unwrap_or(u32::MAX),
            started_at: row.started,
            duration_ms: row.duration_ms,
            error: row.error.as_deref().cloned(),
            skipped: row.skipped,
            retry_at: row.retry.map(|(due, _)| due),
            denied: row.denied.clone(),
            warnings: row.warnings.clone(),
            tokens: row.spent.tokens,
            cost_usd: row.spent.known_usd().filter(|_| !is_cut(row, session)),
            by: row.by.clone(),
            agent,
            output: row.output.clone(),
            frames,
        }
    }
}

/// Whether the process of the session is gone while an agent was at work in this node: what its turn took is unknown.
fn is_cut(row: &NodeRow, session: DisplayStatus) -> bool {
    let of_frames = || row.frames.values().flat_map(|frame| &frame.rows).any(|row| is_cut(row, session));
    let has_turn =
        |agent: &AgentView| !matches!(agent.doing, AgentActivity::Listening { .. } | AgentActivity::Ended);
    session.has_lost_process()
        && row.idle_status == NodeStatus::Running
        && (row.agent.as_deref().is_some_and(has_turn) || of_frames())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
