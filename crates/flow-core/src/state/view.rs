//! The read model: what may be shown of a run's state, and the reasons that are written onto events.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentError, CancelReason, ErrorCode, NodePath, NodeStatus, Outcome, PauseCause, Prompt, SessionStatus,
    Timestamp, Usage,
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{EdgeState, Facts, NodeState, budget::UsedUp, frame::FrameState};
use crate::graph::{BodyIx, FrameIx, FramesKind, Graph, OnFailure, Retry, RetryOn, TaskRef};

impl Facts {
    /// The status of the session.
    pub fn status(&self) -> SessionStatus {
        self.session.status
    }

    /// How it ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.session.outcome
    }

    /// How long no process ran it, between two that did.
    pub fn idle_time(&self) -> Duration {
        self.rested
    }

    /// When it began.
    pub fn started_at(&self) -> Option<Timestamp> {
        self.session.started_at.or(self.continued_at)
    }

    /// The time of its newest event.
    pub fn last_at(&self) -> Timestamp {
        self.last_at
    }

    /// The newest output of a task of an open frame.
    pub fn output(&self, task: TaskRef) -> Option<&Value> {
        self.frames[task.frame].outputs[task.node].as_deref()
    }

    /// How far a node is with its frames, while it runs them.
    pub fn progress_of(&self, task: TaskRef) -> Option<FramesProgress> {
        let set = self.node(task).frames.as_deref()?;
        Some(FramesProgress {
            total: set.total(),
            open: set.open.len() as u32,
            succeeded: set.succeeded,
            failed: set.failed,
        })
    }

    /// The frames of a task that are open, by their indices.
    pub fn open_frames(&self, task: TaskRef) -> impl Iterator<Item = (u32, FrameIx)> {
        let set = self.node(task).frames.as_deref();
        set.into_iter().flat_map(|set| set.open.iter().map(|(index, frame)| (*index, *frame)))
    }

    /// The item of one frame of a foreach, once the items are known.
    pub fn item(&self, task: TaskRef, index: u32) -> Option<&Value> {
        self.node(task).frames.as_deref()?.item(index)
    }

    /// The body that an open frame runs.
    pub fn body_of(&self, frame: FrameIx) -> BodyIx {
        self.frames[frame].body
    }

    /// The status of each node of an open frame, in the order of its body.
    pub fn nodes_of(&self, frame: FrameIx) -> &[NodeState] {
        &self.frames[frame].nodes
    }

    /// The status of each edge of an open frame, in the order of its body.
    pub fn edges_of(&self, frame: FrameIx) -> &[EdgeState] {
        &self.frames[frame].edges
    }

    /// What the flow gives, if a `control.end` said so.
    pub(crate) fn outputs_at_end(&self) -> Option<&Arc<Value>> {
        self.frames[FrameIx::FLOW].outputs_at_end.as_ref()
    }

    /// How long it took, in milliseconds, once it has ended.
    pub fn duration_ms(&self) -> u64 {
        self.session.duration_ms.unwrap_or_default()
    }

    /// What the flow gave when it ended well, if it says what.
    pub fn outputs(&self) -> Option<&Value> {
        self.outputs.as_deref()
    }

    /// The status of each of the flow's own nodes, in the order of the flow.
    pub fn nodes(&self) -> &[NodeState] {
        self.nodes_of(FrameIx::FLOW)
    }

    /// The status of each of the flow's own edges, in the order of the flow.
    pub fn edges(&self) -> &[EdgeState] {
        self.edges_of(FrameIx::FLOW)
    }

    /// The state of each node in every open frame.
    pub fn all_nodes(&self) -> impl Iterator<Item = &NodeState> {
        self.tasks().map(|(_, node)| node)
    }

    /// Whether a node, in whatever frame, is run again at a time: its usage limit is lifted, or its retry is due.
    pub fn runs_again_by_itself(&self) -> bool {
        self.all_nodes().any(|node| node.retry_at.is_some())
    }

    /// The questions that are open.
    pub fn prompts(&self) -> &[Prompt] {
        &self.session.prompts
    }

    /// The question that a node waits for.
    pub fn asked_by(&self, graph: &Graph, task: TaskRef) -> Option<&Prompt> {
        self.session.prompts.iter().find(|open| self.find(graph, open.task.as_ref()) == Some(task))
    }

    /// The first failure that nothing handled.
    pub fn failure(&self) -> Option<&AgentError> {
        self.frames[FrameIx::FLOW].failure.as_ref()
    }

    /// The nodes of the flow that failed, and the items of its lists, after which it went on: they count as finished work.
    pub fn handled_failures(&self, graph: &Graph) -> Vec<NodePath> {
        let mut found = Vec::new();
        for (task, node) in self.frames[FrameIx::FLOW].tasks() {
            let (path, policy) = (self.path(graph, task), &self.spec(graph, task).policy);
            if node.status == NodeStatus::Failed
                && (!node.tainted || policy.on_failure == OnFailure::Continue)
            {
                found.push(path);
            } else if matches!(node.status, NodeStatus::Complete | NodeStatus::Reused) {
                let frames = self.spec(graph, task).frames.as_deref();
                let foreach = frames.filter(|frames| matches!(frames.kind, FramesKind::Foreach { .. }));
                let output = self.output(task).filter(|_| foreach.is_some());
                found.extend(output.map(|output| failed_items(&path, output)).unwrap_or_default());
            }
        }
        found
    }

    /// The budgets that are used up: whose each is, and its size and what was spent, in words; the flow's first.
    pub fn used_up_budgets(&self, graph: &Graph) -> Vec<(String, String)> {
        let frames = self.frames.iter().filter_map(|frame| self.frame_used_up(graph, frame));
        let tasks = self.tasks().filter_map(|(task, _)| self.node_used_up(graph, task));
        let words = |used_up: UsedUp| (self.budget_owner(graph, used_up.owner), used_up.limit);
        frames.chain(tasks).map(words).collect()
    }

    /// Why the session is paused, unless a person or a program paused it.
    pub fn paused_by(&self) -> Option<PauseCause> {
        self.session.paused_by
    }

    /// The limits to raise, as `--budget` names them, with commas, if a budget paused or ended the session.
    pub fn limit_to_raise(&self) -> Option<&str> {
        self.session.limit_to_raise.as_deref()
    }

    /// Why running attempts are being cancelled, and the event that is the cause, if it is an event.
    pub(crate) fn why_cancelled(&self, frame: FrameIx) -> (CancelReason, Option<u64>) {
        let in_cleanup = |frame: &FrameState| frame.owner.is_some_and(|owner| self.node(owner).cleans_up);
        if (self.ending.is_none() || self.around(frame).any(in_cleanup))
            && let Some((ending, cause)) =
                self.around(frame).find_map(|frame| Some((frame.ending.as_ref()?, frame.ended_by)))
        {
            let reason = match &ending.error {
                None => CancelReason::End,
                Some(error) if error.code == ErrorCode::Timeout => CancelReason::Timeout,
                Some(error) if error.code == ErrorCode::BudgetExceeded => CancelReason::Budget,
                Some(_) => CancelReason::Failure,
            };
            return (reason, cause);
        }
        match (&self.ending, &self.pausing) {
            (Some(ending), _) => {
                let reason = match ending.outcome {
                    Outcome::Stopped => CancelReason::Stop,
                    Outcome::BudgetExceeded => CancelReason::Budget,
                    Outcome::TimedOut => CancelReason::Timeout,
                    Outcome::Success => CancelReason::End,
                    _ => CancelReason::Failure,
                };
                (reason, self.ended_by)
            }
            (None, Some(pause)) => (CancelReason::Pause, Some(pause.seq)),
            (None, None) => (CancelReason::Budget, None),
        }
    }

    /// The same for an attempt that was cancelled, maybe for a pause: what cleans up is paused while the flow or its frame ends.
    pub(crate) fn why_cut(&self, frame: FrameIx, for_pause: bool) -> (CancelReason, Option<u64>) {
        match &self.pausing {
            _ if !for_pause || self.is_stopping() => self.why_cancelled(frame),
            Some(pause) => (CancelReason::Pause, Some(pause.seq)),
            None => (CancelReason::Budget, None),
        }
    }

    /// Tokens of all agents.
    pub fn usage(&self) -> Usage {
        self.session.usage
    }

    /// What they cost in US dollars; nothing if any price is unknown.
    pub fn cost_usd(&self) -> Option<f64> {
        self.session.known_cost()
    }

    /// What is known of a cost that is not known as a whole.
    pub fn known_usd(&self) -> Option<f64> {
        self.session.known_part()
    }
}

/// The items of a foreach that failed, by its path and its output.
pub(crate) fn failed_items(foreach: &NodePath, output: &Value) -> Vec<NodePath> {
    let results = output["results"].as_array().into_iter().flatten();
    let failed = results.filter(|result| result.get("error").is_some());
    failed.map(|result| NodePath::new(&format!("{foreach}[{}]", result["index"]))).collect()
}

/// How far a node is with its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FramesProgress {
    /// How many frames there are, for a foreach whose items are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u32>,
    /// Frames that are open.
    pub open: u32,
    /// Frames that ended well.
    pub succeeded: u32,
    /// Frames that failed.
    pub failed: u32,
}

impl NodeState {
    /// The attempts of this pass that failed, as far as they count against its retries. An agent whose author says nothing may
    /// work for hours: a vendor that was busy an hour ago does not count. What is tried again for any other reason starts over,
    /// and each attempt of it counts.
    pub fn counted_failures(&self, retry: &Retry) -> u32 {
        let counts_in_a_row = retry.is_automatic && retry.on == RetryOn::Passing;
        if counts_in_a_row { self.failures_in_a_row } else { self.failures }
    }

    /// Whether an attempt was interrupted by a pause, a limit or a crash, and none has begun since.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Whether a person has to say what happened to an interrupted attempt.
    pub fn is_in_doubt(&self) -> bool {
        self.needs_confirmation
    }
}
