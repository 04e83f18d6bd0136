//! Where an event comes from. Handles of the hub carry one of these; there is no ambient context.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{NodePath, RunId, SessionId};

/// The place of an event: its session, and as far as known the phase, the task and the agent run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventContext {
    /// The session that the event belongs to.
    pub session_id: SessionId,
    /// The flow's phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Arc<str>>,
    /// The node's place in the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<NodePath>,
    /// The agent run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<RunId>,
}

impl EventContext {
    /// The context of a session and nothing more.
    pub fn session(session_id: SessionId) -> Self {
        Self { session_id, phase: None, task: None, agent: None }
    }

    /// The same place within a phase.
    #[must_use]
    pub fn with_phase(&self, phase: impl Into<Arc<str>>) -> Self {
        Self { phase: Some(phase.into()), ..self.clone() }
    }

    /// The same place within a task.
    #[must_use]
    pub fn with_task(&self, task: NodePath) -> Self {
        Self { task: Some(task), ..self.clone() }
    }

    /// The same place within an agent run.
    #[must_use]
    pub fn with_agent(&self, run: RunId) -> Self {
        Self { agent: Some(run), ..self.clone() }
    }
}
