//! The reasons behind single events: what a condition saw, why an edge did not fire, whose failure it was, who
//! cancelled. Each is evaluated in the state just before its event.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use inspan_protocol::{AgentError, CancelReason, EdgeStatus, Envelope, Event, NodeStatus, PromptKind};
use serde_json::Value;

use super::walk::Walk;
use crate::{
    expr::Condition,
    graph::{EdgeIx, EdgeOn, FrameIx, NodeIx, OnFailure, TaskRef},
};

/// The longest value that is written out in a sentence, in characters; the values have the whole of it.
const LONGEST: usize = 80;

/// A reason in words, and the values that a condition saw.
pub(super) struct Reason {
    pub(super) text: String,
    pub(super) values: BTreeMap<String, Value>,
}

impl Reason {
    fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: BTreeMap::new() }
    }
}

impl Walk<'_> {
    /// What a condition says now, in words: "`x.ok` holds (x.ok = true)".
    pub(super) fn condition(&self, when: &Condition, task: TaskRef) -> Reason {
        let (held, values) = self
            .run
            .scoped(task.frame, &self.run.locals(task), |scope| (when.holds(scope), when.values(scope)));
        let verdict = match held {
            Ok(true) => "is true".to_owned(),
            Ok(false) => "is false".to_owned(),
            Err(error) => format!("cannot be evaluated: {}", error.reason),
        };
        let seen: Vec<String> =
            values.iter().map(|(path, value)| format!("{path} = {}", short(value))).collect();
        let seen = if seen.is_empty() { String::new() } else { format!(" ({})", seen.join(", ")) };
        Reason { text: format!("`{}` {verdict}{seen}", when), values }
    }

    /// Why an edge fired.
    pub(super) fn fired(&self, edge: EdgeIx) -> Reason {
        let graph = self.graph();
        let edge = self.body(&graph).edge(edge);
        let from = &self.body(&graph).node(edge.from).id;
        match &edge.when {
            Some(when) => self.condition(when, self.task(edge.from)),
            None => {
                let source = self.node(self.task(edge.from));
                let reason = match source.status {
                    NodeStatus::Reused => format!("`{from}` was reused"),
                    NodeStatus::Failed if edge.on == EdgeOn::Success => {
                        format!("`{from}` failed, and its failure is handled")
                    }
                    NodeStatus::Failed => format!("`{from}` failed"),
                    NodeStatus::Skipped => format!("`{from}` was skipped"),
                    NodeStatus::Cancelled => format!("`{from}` was cancelled"),
                    NodeStatus::Complete => format!("`{from}` completed"),
                    _ => format!("`{from}` no longer runs"),
                };
                let on = match edge.on {
                    EdgeOn::Any => " (`on: any`)",
                    EdgeOn::Skipped => " (`on: skipped`)",
                    EdgeOn::Failure => " (`on: failure`)",
                    EdgeOn::Success => "",
                };
                Reason::plain(format!("{reason}{on}"))
            }
        }
    }

    /// Why an edge did not fire.
    pub(super) fn not_fired(&self, edge: EdgeIx) -> Reason {
        let graph = self.graph();
        let spec = self.body(&graph).edge(edge);
        let from = &self.body(&graph).node(spec.from).id;
        let source = self.node(self.task(spec.from));
        match (source.status, &spec.when) {
            (NodeStatus::Skipped, _) if !matches!(spec.on, EdgeOn::Skipped | EdgeOn::Any) => {
                Reason::plain(format!("`{from}` was skipped"))
            }
            (NodeStatus::Failed, _) if source.tainted && spec.on == EdgeOn::Success => {
                Reason::plain(format!("`{from}` failed"))
            }
            (NodeStatus::Complete | NodeStatus::Reused, _) if spec.on == EdgeOn::Failure => {
                Reason::plain(format!("`{from}` did not fail"))
            }
            (NodeStatus::Complete | NodeStatus::Reused | NodeStatus::Failed, _)
                if spec.on == EdgeOn::Skipped =>
            {
                Reason::plain(format!("`{from}` was not skipped"))
            }
            (NodeStatus::Failed, None) => Reason::plain(format!("`{from}` failed")),
            (_, Some(when)) => self.condition(when, self.task(spec.from)),
            (_, None) => Reason::plain("the loop has reached its `maxIterations`"),
        }
    }

    /// The failures that keep a node from running. Logs of older versions do not name them.
    pub(super) fn blame(&self, task: TaskRef, failures: &[u64]) -> String {
        let frame = || &self.state().frames[task.frame];
        let body = self.run.graph().body(frame().body);
        let derived = failures.is_empty().then(|| frame().failures_before(body, task.node));
        let failures = derived.as_deref().unwrap_or(failures);
        let node = |seq: &u64| {
            let task = self.event(*seq)?.context.task.as_ref()?;
            Some(format!("`{}` [{seq}]", task.node()))
        };
        match failures.iter().filter_map(node).collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => "a node before it failed".to_owned(),
            names => format!("it depends on failed nodes: {names}"),
        }
    }

    /// Why an attempt of a task was cancelled: the event that is the cause, and what it says. Logs of older versions do not
    /// name it; a timeout is no event before the session has ended because of it.
    pub(super) fn cancelled_by(
        &self,
        task: TaskRef,
        seq: u64,
        reason: Option<CancelReason>,
        cause: Option<u64>,
    ) -> (u64, String) {
        let derived = || match reason {
            // Its frame may have failed before.
            Some(CancelReason::Budget) => self.budget_exceeded(Some(task)),
            _ => self.state().why_cancelled(self.frame).1.or_else(|| self.budget_exceeded(Some(task))),
        };
        let later = || {
            let mut after = self.log.iter().skip_while(|envelope| envelope.seq <= seq);
            after
                .find(|envelope| {
                    matches!(
                        envelope.event,
                        Event::PhaseFailed { .. } | Event::FlowPaused { .. } | Event::FlowResumed { .. }
                    )
                })
                .map(|envelope| envelope.seq)
        };
        match cause.or_else(derived).or_else(later) {
            Some(cause) => (cause, self.cause_at(cause)),
            None => (seq, "the reason is not in the log".to_owned()),
        }
    }

    /// The newest event that a budget is used up, since the session was last resumed: the flow's, or one that counts for a task,
    /// which may be its own, or that of a frame or a node around it.
    pub(super) fn budget_exceeded(&self, of: Option<TaskRef>) -> Option<u64> {
        let resumed = self.newest(|envelope| matches!(envelope.event, Event::FlowResumed { .. }));
        let exceeded = self.newest(|envelope| {
            let Event::BudgetExceeded { frame, .. } = envelope.event else { return false };
            if envelope.context.task.is_none() {
                return true;
            }
            let (Some(of), Some(owner)) = (of, self.node_of(envelope)) else { return false };
            let mut around = self.state().around(of.frame).filter(|around| around.owner == Some(owner));
            (frame.is_none() && owner == of)
                || around.any(|around| frame.is_none_or(|index| index == around.index))
        });
        exceeded.filter(|seq| Some(*seq) > resumed)
    }

    /// What an event that ends or pauses a session says about the reason.
    pub(super) fn cause_at(&self, seq: u64) -> String {
        let because =
            |reason: &Option<String>| reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let Some(envelope) = self.event(seq) else {
            return "it was already so at the start of the log".to_owned();
        };
        let task = envelope.context.task.as_ref().map_or("the flow", |task| task.as_str());
        match &envelope.event {
            Event::TaskFailed { error, .. } => format!("`{task}` failed: {}", in_short(error)),
            Event::TaskReused { error: Some(error), .. } => {
                format!("`{task}` had failed in the earlier session: {}", in_short(error))
            }
            Event::TaskComplete { .. } | Event::TaskReused { .. } if task.contains('/') => {
                format!("`{task}` ended its frame")
            }
            Event::TaskComplete { .. } | Event::TaskReused { .. } => format!("`{task}` ended the flow"),
            Event::TaskSkipped { .. } | Event::EdgeSkipped { .. } => unhandled(envelope),
            Event::FrameEnding { error, .. } => in_short(error),
            Event::SessionAbort { reason } => format!("the session was stopped{}", because(reason)),
            Event::SessionPause { reason, .. } => format!("a pause was requested{}", because(reason)),
            Event::FlowPaused { reason, .. } => format!("the session was paused{}", because(reason)),
            Event::FlowResumed { .. } => "the process that ran the session ended".to_owned(),
            Event::BudgetExceeded { limit, frame: Some(index), .. } => {
                let graph = self.run.graph();
                let owner = self.state().find(graph, envelope.context.task.as_ref());
                let frame = owner.map_or_else(
                    || format!("`{task}[{index}]`"),
                    |owner| self.state().frame_name_of(graph, owner, *index),
                );
                format!("the budget of {frame} is used up: {limit}")
            }
            Event::BudgetExceeded { limit, .. } if envelope.context.task.is_some() => {
                format!("the budget of `{task}` is used up: {limit}")
            }
            Event::BudgetExceeded { limit, .. } => format!("the budget of the flow is used up: {limit}"),
            Event::PhaseFailed { error, .. } | Event::FlowEnding { error: Some(error), .. } => {
                in_short(error)
            }
            other => other.name().to_owned(),
        }
    }

    /// What follows if a node is skipped, or an edge does not fire, and nothing else handles the failure of a node before it;
    /// the event was applied just before.
    pub(super) fn left_unhandled(&self, envelope: &Envelope) -> Option<(TaskRef, String)> {
        let graph = self.graph();
        let (body, frame) = (self.body(&graph), &self.state().frames[self.frame]);
        let by = self.node_of(envelope).filter(|by| by.frame == self.frame)?.node;
        let mut edges: Vec<EdgeIx> = match &envelope.event {
            Event::EdgeSkipped { to, .. } => {
                let to = body.find(to.as_str());
                body.edges_on(by, EdgeOn::Failure).filter(|edge| Some(body.edge(*edge).to) == to).collect()
            }
            Event::TaskSkipped { .. } => body.node(by).incoming.clone(),
            _ => return None,
        };
        let is_skip = matches!(envelope.event, Event::TaskSkipped { .. });
        edges.retain(|edge| {
            let has_fired = frame.edges[*edge].status == EdgeStatus::Fired;
            body.edge(*edge).on == EdgeOn::Failure && has_fired == is_skip
        });
        let is_unhandled = |ix: &NodeIx| {
            let mut edges = body.edges_on(*ix, EdgeOn::Failure).map(|edge| frame.edges[edge]);
            let node = &frame.nodes[*ix];
            node.status == NodeStatus::Failed
                && node.tainted
                && edges.all(|edge| edge.status != EdgeStatus::Pending)
        };
        let task = self.task(edges.into_iter().map(|edge| body.edge(edge).from).find(is_unhandled)?);
        // Of edges between the same nodes the one for failures is resolved first.
        let same = |other: &Envelope| {
            other.seq < envelope.seq
                && other.context.task == envelope.context.task
                && other.event == envelope.event
        };
        if self.newest(same).is_some() {
            return None;
        }
        // An older version took the failure as handled.
        let succeeds = |envelope: &Arc<Envelope>| matches!(envelope.event, Event::PhaseComplete { .. });
        if task.frame == FrameIx::FLOW && self.log.iter().any(succeeds) {
            return None;
        }
        let what = self.consequence_unhandled(task, envelope.seq);
        Some((task, format!("{}; {what}", unhandled(envelope))))
    }

    /// What happens to the flow after a failure that is not tried again; the failure was applied just before.
    pub(super) fn consequence(&self, task: TaskRef, seq: u64) -> &'static str {
        if self.spec_of(self.run.graph(), task).policy.on_failure == OnFailure::Continue {
            return "it is handled (`continueOnError`), and the edges are evaluated";
        }
        match self.body(self.run.graph()).handles_failure(task.node) {
            true => "its edges for failures are evaluated",
            false => self.consequence_unhandled(task, seq),
        }
    }

    /// The same after a failure that nothing handles.
    fn consequence_unhandled(&self, task: TaskRef, seq: u64) -> &'static str {
        let frame = &self.state().frames[task.frame];
        if frame.owner.is_some() {
            return match frame.ending {
                Some(_) => "that ends its frame",
                None => "nodes of its frame that do not depend on it continue",
            };
        }
        match self.state().ended_by {
            Some(ending) if ending == seq => "that ends the flow",
            Some(_) => "the flow was ending already",
            None => "nodes that do not depend on it continue (`failFast: false`)",
        }
    }
}

/// What an event says after which nothing handles a failure.
fn unhandled(envelope: &Envelope) -> String {
    let what = match (&envelope.event, &envelope.context.task) {
        (Event::EdgeSkipped { from, to }, _) => format!("the edge `{from} -> {to}` did not fire"),
        (_, Some(task)) => format!("`{task}` was skipped"),
        (_, None) => "a node was skipped".to_owned(),
    };
    format!("{what}, and nothing else handles the failure before it")
}

/// A question; one for permission names the tool and its whole arguments first, then what the agent says about it.
pub(super) fn question(prompt: &str, kind: PromptKind, detail: Option<&Value>) -> String {
    let detail = detail.filter(|_| kind == PromptKind::Permission);
    let Some(tool) = detail.and_then(|detail| detail.get("toolName")?.as_str()) else {
        return prompt.to_owned();
    };
    let part = |key: &str| detail.and_then(|detail| detail.get(key));
    let input = part("input").map(|input| format!(" with {input}")).unwrap_or_default();
    let says = part("description").and_then(Value::as_str);
    let says = says.map(|says| format!("; agent says: {says}")).unwrap_or_default();
    format!("allow {tool}{input}?{says}")
}

/// Which calls were denied to the agent whose attempt an event ends, after what else is said of that.
pub(super) fn denied(denials: &[Value]) -> String {
    let calls: Vec<String> = denials
        .iter()
        .filter_map(|denial| {
            let input = denial.get("toolInput").map(|input| format!(" {}", short(input)));
            Some(format!("{}{}", denial.get("toolName")?.as_str()?, input.unwrap_or_default()))
        })
        .collect();
    match calls.len() {
        0 => String::new(),
        1 => format!("; 1 tool call was denied: {}", calls[0]),
        many => format!("; {many} tool calls were denied: {}", calls.join("; ")),
    }
}

/// An error in one line.
pub(super) fn in_short(error: &AgentError) -> String {
    let mut lines = error.message.lines();
    let first = lines.next().unwrap_or_default();
    let more = if lines.next().is_some() { "…" } else { "" };
    format!("{first}{more} [{}]", error.code)
}

/// How an attempt came to be lost.
pub(super) fn how_lost(never_began: bool, stopped: bool) -> &'static str {
    match (never_began, stopped) {
        (true, _) => "did not begin: the machine that took it could not run it",
        (false, true) => "was ended by the process that ran it, which was stopped or cut off",
        (false, false) => "was lost with the process that ran it",
    }
}

/// A length of time as people read it, to the second where it is longer than that.
pub(super) fn length(time: Duration) -> String {
    let rounded = if time.as_secs() >= 10 { Duration::from_secs(time.as_secs()) } else { time };
    humantime::format_duration(rounded).to_string()
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
