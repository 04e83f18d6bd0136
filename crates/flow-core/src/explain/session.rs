//! The explanation of a session: its status or its end, and what led to it — the first failure with each of its tries,
//! who stopped or paused it, which budget or limit, and what could not run because of it.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{
    AgentError, BudgetLimits, BudgetRaise, Envelope, Event, NodePath, NodeStatus, Outcome, Prompt,
    SessionStatus, SkipReason, Spending, Timestamp, WaitingOn,
};

use super::{
    Statement, StatementKind,
    node::NAMED_ITEMS,
    reason::{how_lost, in_short, question},
    walk::Walk,
};
use crate::{
    diagnostic::quoted,
    graph::{FrameIx, FramesKind, Graph, OnFailure, OnItemError, TaskRef},
    record::SessionRecord,
};

/// The status of the session, and what led to it.
pub(super) fn explain(
    graph: &Arc<Graph>,
    record: &SessionRecord,
    log: &[Arc<Envelope>],
    is_lost: bool,
) -> (Statement, Vec<Statement>) {
    let mut walk = Walk::of(record.run(graph), log, None, is_lost);
    let standing = walk.session_standing();
    walk.say_running();
    let mut because = std::mem::take(&mut walk.statements);
    // Earlier attempts of the failure that ended the flow are explained too.
    let ended_by = walk.state().ended_by.and_then(|seq| walk.event(seq));
    if let Some(Event::TaskFailed { .. }) = ended_by.map(|envelope| &envelope.event)
        && let Some(path) = ended_by.and_then(|envelope| envelope.context.task.as_ref())
    {
        let mut node = Walk::of(record.run(graph), log, Some(path), is_lost).statements;
        for said in &mut node {
            use StatementKind::{EdgeFired, EdgeSkipped};
            // Among statements about others, each must say whose it is.
            if let Some(task) = said.task.as_ref().filter(|_| !matches!(said.kind, EdgeFired | EdgeSkipped)) {
                said.text = format!("`{task}`: {}", said.text);
            }
        }
        because.retain(|one| !node.iter().any(|known| known.seq == one.seq && known.task == one.task));
        because.append(&mut node);
        because.sort_by_key(|statement| statement.seq);
    }
    (standing, because)
}

impl Walk<'_> {
    /// What the state just before an event shows of it.
    pub(super) fn before_session(&mut self, envelope: &Envelope) {
        if let Event::PhaseFailed { error, .. } | Event::FlowEnding { error: Some(error), .. } =
            &envelope.event
        {
            // What ended the flow was reported when it happened.
            let state = self.state();
            let is_known = state.ended_by.is_some() || state.failure() == Some(error);
            if !is_known && self.budget_exceeded(None).is_none() {
                self.say(envelope.seq, envelope.context.task.clone(), StatementKind::Ended, in_short(error));
            }
        }
        let Some(task) = self.node_of(envelope) else { return };
        let path = self.path(task);
        match &envelope.event {
            Event::TaskCancelled { reason, cause, .. } => {
                let (seq, why) = self.cancelled_by(task, envelope.seq, *reason, *cause);
                let text = format!("`{path}` was cancelled: {why} [{seq}]");
                self.say(envelope.seq, Some(path), StatementKind::Cancelled, text);
            }
            Event::TaskSkipped { reason: SkipReason::Failure, failures, .. } => {
                let text = format!("`{path}` was skipped: {}", self.blame(task, failures));
                self.say(envelope.seq, Some(path), StatementKind::Skipped, text);
            }
            Event::FrameFailed { index, error, .. }
                if self.fails_by_itself(task, *index, error, envelope.timestamp) =>
            {
                let path = NodePath::new(&format!("{path}[{index}]"));
                let text = format!("`{path}` failed: {}", in_short(error));
                self.say(envelope.seq, Some(path), StatementKind::Failed, text);
            }
            _ => {}
        }
    }

    /// Whether an item of a foreach that succeeds fails for a reason of its own, such as its time or its outputs, and not
    /// for one of its nodes or for the time of the foreach, which are reported. Of many items the first are named.
    fn fails_by_itself(&self, owner: TaskRef, index: u32, error: &AgentError, now: Timestamp) -> bool {
        let kind = self.spec_of(self.run.graph(), owner).frames.as_deref().map(|frames| &frames.kind);
        let Some(FramesKind::Foreach { on_item_error: OnItemError::Continue | OnItemError::Stop, .. }) = kind
        else {
            return false;
        };
        let Some(frames) = self.node(owner).frames.as_deref() else { return false };
        let frame = frames.open.get(&index).map(|frame| &self.state().frames[*frame]);
        let of_node = frame.and_then(|frame| frame.failure.as_ref());
        let is_late = self.node(owner).time_is_up_at().is_some_and(|deadline| deadline <= now);
        let is_named = frames.failed < NAMED_ITEMS && !is_late;
        is_named && of_node.is_none_or(|failure| !error.message.ends_with(&failure.message))
    }

    /// What the state just after an event shows of it.
    pub(super) fn after_session(&mut self, envelope: &Envelope) {
        let seq = envelope.seq;
        let task = envelope.context.task.clone();
        let (kind, text) = match &envelope.event {
            Event::TaskFailed { error, will_retry: false, .. } => {
                let Some(task) = self.node_of(envelope) else { return };
                let what = self.consequence(task, seq);
                (StatementKind::Failed, format!("`{}` failed: {}; {what}", self.path(task), in_short(error)))
            }
            Event::TaskSkipped { .. } | Event::EdgeSkipped { .. } => {
                let Some((_, text)) = self.left_unhandled(envelope) else { return };
                (StatementKind::Failed, text)
            }
            Event::LimitWait { provider, until, .. } => {
                let place = task.as_ref().map_or("an agent", |task| task.as_str());
                (
                    StatementKind::Limited,
                    format!("`{place}` hit a usage limit of {provider}, which resets at {until}"),
                )
            }
            Event::TaskInterrupted { attempt, never_began, stopped, .. } => {
                let place = task.as_ref().map_or("a node", |task| task.as_str());
                let why = how_lost(*never_began, *stopped);
                let text = format!("attempt {attempt} of `{place}` {why}, and is started again");
                (StatementKind::Lost, text)
            }
            Event::SessionAbort { .. } => (StatementKind::Stopped, self.cause_at(seq)),
            Event::SessionPause { .. } => (StatementKind::Paused, self.cause_at(seq)),
            Event::FlowPaused { node_ids, .. } => {
                let cut = match node_ids.is_empty() {
                    true => "nothing ran".to_owned(),
                    false => format!("{} ran", quoted(node_ids)),
                };
                (StatementKind::Paused, format!("{}; {cut}", self.cause_at(seq)))
            }
            Event::FlowResumed { budget, .. } => {
                (StatementKind::Resumed, format!("the session was resumed{}", raised(budget)))
            }
            Event::BudgetExceeded { .. } => (StatementKind::Budget, self.cause_at(seq)),
            Event::BudgetCarried { from, spent, raised: raise, .. } => {
                let text = format!(
                    "session `{from}`, which this one continues, spent {}; this counts against the budgets{}",
                    spent_words(*spent),
                    raised(raise)
                );
                (StatementKind::Budget, text)
            }
            _ => return,
        };
        self.say(seq, task, kind, text);
    }

    /// The event that ended the session.
    pub(super) fn ended(&self) -> Option<u64> {
        self.newest(|envelope| matches!(envelope.event, Event::HarnessComplete { .. }))
    }

    /// The event that paused the session.
    pub(super) fn paused(&self) -> Option<u64> {
        self.newest(|envelope| matches!(envelope.event, Event::FlowPaused { .. }))
    }

    fn session_standing(&self) -> Statement {
        let name = self.run.graph().name.clone();
        let state = self.state();
        let over = self.ended().unwrap_or(self.now());
        let (seq, text) = match (state.outcome(), state.status()) {
            (Some(outcome), _) => (over, format!("`{name}` {}: {}", ended(outcome), self.counts())),
            (None, SessionStatus::Idle) => (self.now(), format!("`{name}` has not started")),
            (None, SessionStatus::Paused) => {
                let seq = self.paused().unwrap_or(self.now());
                (seq, format!("`{name}` is paused: {}", self.counts()))
            }
            (None, SessionStatus::Waiting) => {
                let seq = self
                    .newest(|envelope| matches!(envelope.event, Event::FlowWaiting { .. }))
                    .unwrap_or(self.now());
                let what = match self.event(seq).map(|envelope| &envelope.event) {
                    Some(Event::FlowWaiting { on: WaitingOn::Limit, until: Some(until) }) => {
                        format!("for a usage limit, until {until}")
                    }
                    Some(Event::FlowWaiting { on: WaitingOn::Limit, .. }) => "for a usage limit".to_owned(),
                    Some(Event::FlowWaiting { on: WaitingOn::Input, until: Some(until) }) => {
                        format!("for a person, until {until}")
                    }
                    _ => "for a person".to_owned(),
                };
                (seq, format!("`{name}` waits {what}: {}", self.counts()))
            }
            (None, _) if self.is_lost => {
                let stopped = self.newest(|envelope| matches!(envelope.event, Event::SessionAbort { .. }));
                let (seq, what) = match stopped {
                    Some(seq) => (seq, "was stopped, and its process was gone before it ended"),
                    None => (self.now(), "was interrupted, its process is gone"),
                };
                (seq, format!("`{name}` {what}: {}", self.counts()))
            }
            (None, _) if let Some(pause) = &state.pausing => {
                (pause.seq, format!("`{name}` is pausing: {}", self.counts()))
            }
            (None, _) => (self.now(), format!("`{name}` runs: {}", self.counts())),
        };
        self.statement(seq, None, StatementKind::Standing, text)
    }

    /// How many nodes have each status.
    fn counts(&self) -> String {
        let graph = self.run.graph();
        let mut counts = BTreeMap::<(u8, &str), u32>::new();
        for (task, node) in self.state().frames[FrameIx::FLOW].tasks() {
            let handled = self.spec_of(graph, task).policy.on_failure == OnFailure::Continue
                || (node.status == NodeStatus::Failed && !node.tainted);
            let word = match node.status {
                NodeStatus::Complete => (0, "completed"),
                NodeStatus::Reused => (1, "reused"),
                NodeStatus::Failed if handled => (3, "failed and handled"),
                NodeStatus::Failed => (2, "failed"),
                NodeStatus::Running | NodeStatus::Pending if self.open_question(task).is_some() => {
                    (5, "waiting for an answer")
                }
                NodeStatus::Running if self.is_paused() => (7, "paused"),
                NodeStatus::Running if self.is_lost => (8, "interrupted"),
                NodeStatus::Running => (4, "running"),
                NodeStatus::Waiting => (6, "waiting for a limit"),
                NodeStatus::Paused => (7, "paused"),
                NodeStatus::Cancelled => (9, "cancelled"),
                NodeStatus::Skipped => (10, "skipped"),
                NodeStatus::Pending if node.retry_at.is_some() => (6, "waiting for a retry"),
                _ if node.is_interrupted() => (8, "interrupted"),
                _ => (11, "not run"),
            };
            *counts.entry(word).or_default() += 1;
        }
        let mut parts: Vec<String> =
            counts.into_iter().map(|((_, word), count)| format!("{count} {word}")).collect();
        match self.state().tasks().map(|(_, node)| node.failed_passes).sum::<u32>() {
            0 => {}
            1 => parts.push("1 earlier pass failed".to_owned()),
            failed => parts.push(format!("{failed} earlier passes failed")),
        }
        if parts.is_empty() { "it has no nodes".to_owned() } else { parts.join(", ") }
    }

    /// What is under way in a session that has not ended.
    fn say_running(&mut self) {
        if self.has_ended() {
            return;
        }
        let tasks: Vec<TaskRef> = self.state().tasks().map(|(task, _)| task).collect();
        for task in tasks {
            self.frame = task.frame;
            let (node, path) = (self.node(task), self.path(task));
            let (seq, kind, text) = match (node.status, self.open_question(task)) {
                (NodeStatus::Running | NodeStatus::Pending, Some(seq)) => {
                    let asked = self.event(seq).map(|envelope| &envelope.event);
                    let question = match asked {
                        Some(Event::SessionPrompt(Prompt { prompt, kind, detail, .. })) => {
                            format!(": {}", question(prompt, *kind, detail.as_ref()))
                        }
                        _ => String::new(),
                    };
                    (seq, StatementKind::Waits, format!("`{path}` asks{question}"))
                }
                (NodeStatus::Running, None) => {
                    let text = format!("`{path}` {}", self.runs(node.attempt));
                    (self.changed(task), StatementKind::Started, text)
                }
                (NodeStatus::Pending, None) if let Some(due) = node.retry_at => {
                    (node.failed_seq, StatementKind::Waits, format!("`{path}` is retried at {due}"))
                }
                (NodeStatus::Pending, None) if self.is_ready(task) && !self.is_paused() => {
                    let Some(budget) = self.state().waits_for_budget(self.run.graph(), task) else {
                        continue;
                    };
                    (self.now(), StatementKind::Waits, format!("`{path}` is ready and waits: {budget}"))
                }
                _ => continue,
            };
            self.say(seq, Some(path), kind, text);
        }
        self.statements.sort_by_key(|statement| statement.seq);
    }
}

fn ended(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "succeeded",
        Outcome::Partial => "succeeded in part",
        Outcome::Stopped => "was stopped",
        Outcome::BudgetExceeded => "used up its budget",
        Outcome::TimedOut => "ran out of time",
        _ => "failed",
    }
}

/// The budgets that were raised, in words.
fn raised(raise: &BudgetRaise) -> String {
    let flow = raise.flow.iter().map(|limits| format!("the budget is now {}", limits_words(*limits)));
    let nodes = raise.nodes.iter().map(|(node, limits)| (format!("`{node}`"), limits));
    let bodies = raise.bodies.iter().map(|(node, limits)| (format!("each frame of `{node}`"), limits));
    let others = nodes
        .chain(bodies)
        .map(|(whose, limits)| format!("the budget of {whose} is now {}", limits_words(*limits)));
    flow.chain(others).map(|text| format!("; {text}")).collect()
}

fn limits_words(limits: BudgetLimits) -> String {
    let usd = limits.usd.map(|usd| format!("{usd} USD"));
    let tokens = limits.tokens.map(|tokens| format!("{tokens} tokens"));
    usd.into_iter().chain(tokens).collect::<Vec<_>>().join(" and ")
}

fn spent_words(spent: Spending) -> String {
    let Spending { cost_usd, tokens, unpriced, .. } = spent;
    let unknown = if unpriced { " and turns of an unknown price" } else { "" };
    format!("{cost_usd:.4} USD ({tokens} tokens){unknown}")
}
