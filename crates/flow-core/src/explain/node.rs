//! What is said about one node, event by event: how it became ready, each attempt and how it ended, the loops that it
//! is in.

use inspan_protocol::{
    AgentError, AgentReason, Envelope, Event, NodeStatus, Prompt, SessionStatus, SkipReason,
};
use serde_json::Value;

use super::{
    StatementKind,
    reason::{how_lost, in_short, length, question},
    walk::Walk,
};
use crate::{
    graph::{EdgeIx, FramesKind, Join, OnExhausted, OnLimit, RetryOn, TaskRef},
    schedule::{NotReused, ReuseReason},
    state::CONTINUE,
};

/// How many failed items of a foreach are named.
pub(super) const NAMED_ITEMS: u32 = 5;

impl Walk<'_> {
    /// What the state just before an event shows of it.
    pub(super) fn before_node(&mut self, envelope: &Envelope, task: TaskRef, denied: &str) {
        match &envelope.event {
            Event::EdgeFired { from, to } | Event::EdgeSkipped { from, to } => {
                if let Some(edge) = self.open_edge_of(envelope, from, to) {
                    self.edge_resolved(envelope, task, edge);
                }
                return;
            }
            Event::LoopIterate { from, to, iteration, .. } => {
                if let Some(edge) = self.edge_of(envelope, from, to) {
                    self.loop_went(envelope, task, edge, *iteration);
                }
                return;
            }
            Event::SessionReply { prompt_id, content, choice, is_default } => {
                let answer = choice.as_deref().unwrap_or(content);
                let text = match is_default {
                    true => format!("nobody answered, and the default was taken: {answer}"),
                    false => format!("answered: {answer}"),
                };
                self.answered(envelope, task, prompt_id.as_str(), text);
                return;
            }
            Event::FlowResumed { .. } => return self.cut_short(envelope, task),
            _ => {}
        }
        if self.node_of(envelope) != Some(task) {
            return;
        }
        match &envelope.event {
            Event::TaskStart { attempt, .. } => self.started(envelope, task, *attempt),
            Event::TaskSkipped { reason, failures, .. } => self.skipped(envelope, task, *reason, failures),
            Event::TaskCancelled { session_id, reason, cause, .. } => {
                let (seq, why) = self.cancelled_by(task, envelope.seq, *reason, *cause);
                self.reason = format!("{why} [{seq}]");
                let attempt = self.node(task).attempt;
                let resumable = if session_id.is_some() { "; its conversation can be resumed" } else { "" };
                let text = format!("attempt {attempt} was cancelled: {}{resumable}{denied}", self.reason);
                self.say_of(task, envelope.seq, StatementKind::Cancelled, text);
            }
            Event::TaskInterrupted { attempt, never_began, stopped, .. } => {
                let why = how_lost(*never_began, *stopped);
                let text = format!("attempt {attempt} {why}; it restarts, and uses no attempt");
                self.say_of(task, envelope.seq, StatementKind::Lost, text);
            }
            Event::SessionPrompt(Prompt { prompt, kind, detail, .. }) => {
                let text = format!("a person is asked: {}", question(prompt, *kind, detail.as_ref()));
                self.say_of(task, envelope.seq, StatementKind::Asked, text);
            }
            Event::TaskReused { from, error, .. } => {
                let own =
                    from.strip_prefix(self.run.session().as_str()).is_some_and(|rest| rest.starts_with('/'));
                let unchanged = "its type, its input and its dependencies are unchanged";
                let text = match error {
                    _ if own => "a person marked it as done; it does not run again".to_owned(),
                    Some(error) => format!(
                        "its failure in {from} was handled and is reused: {}; {unchanged}",
                        in_short(error)
                    ),
                    None => format!("its output is reused from {from}: {unchanged}"),
                };
                self.say_of(task, envelope.seq, StatementKind::Reused, text);
            }
            _ => {}
        }
    }

    /// What the state just after an event shows of it.
    pub(super) fn after_node(&mut self, envelope: &Envelope, task: TaskRef, denied: &str) {
        if let Event::FlowPaused { reason, .. } = &envelope.event
            && self.node(task).status == NodeStatus::Paused
        {
            let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let text = format!("the session is paused{why}; the node resumes with it");
            self.say_of(task, envelope.seq, StatementKind::Paused, text);
            return;
        }
        if let Some((_, text)) = self.left_unhandled(envelope).filter(|(failed, _)| *failed == task) {
            self.say_of(task, envelope.seq, StatementKind::Failed, text);
        }
        if self.node_of(envelope) != Some(task) {
            return;
        }
        let seq = envelope.seq;
        let attempt = self.node(task).attempt;
        match &envelope.event {
            Event::TaskComplete { duration_ms, result, .. } => {
                let took = length(std::time::Duration::from_millis(*duration_ms));
                let failed = self.failed_items(task, result).unwrap_or_default();
                let text = format!("attempt {attempt} completed in {took}{denied}{failed}");
                self.say_of(task, seq, StatementKind::Completed, text);
            }
            Event::TaskFailed { error, will_retry, .. } => {
                let next = if *will_retry {
                    self.tried_again(envelope, task, error)
                } else {
                    format!("{}; {}", self.not_tried_again(task, error), self.consequence(task, seq))
                };
                let text = format!("attempt {attempt} failed: {}{denied}; {next}", in_short(error));
                self.say_of(task, seq, StatementKind::Failed, text);
            }
            Event::FrameFailed { index, error, .. } => {
                let frames = self.node(task).frames.as_ref();
                if frames.is_some_and(|frames| frames.total().is_some() && frames.failed <= NAMED_ITEMS) {
                    let text = format!("item {index} failed: {}", in_short(error));
                    self.say_of(task, seq, StatementKind::Failed, text);
                }
            }
            Event::TaskAgent { agent, reason, after, error, .. } => {
                let text = self.agent_chosen(agent, *reason, after.as_deref(), error.as_ref(), attempt);
                self.say_of(task, seq, StatementKind::Agent, text + denied);
            }
            Event::LimitWait { provider, until, .. } => {
                let text = format!(
                    "attempt {attempt} hit a usage limit of {provider}; it resumes when the limit resets, \
                     at {until}; this uses no attempt{denied}"
                );
                self.say_of(task, seq, StatementKind::Limited, text);
            }
            _ => {}
        }
    }

    /// How many items of a foreach failed, by its output, if any did.
    fn failed_items(&self, task: TaskRef, output: &Value) -> Option<String> {
        let graph = self.graph();
        let frames = self.spec_of(&graph, task).frames.as_ref()?;
        let (failed, results) = (output.get("failed")?.as_u64()?, output.get("results")?.as_array()?);
        let failed = matches!(frames.kind, FramesKind::Foreach { .. })
            .then_some(failed)
            .filter(|failed| *failed > 0)?;
        Some(format!("; {failed} of {} items failed", results.len()))
    }

    /// Why an agent works on a node.
    fn agent_chosen(
        &self,
        agent: &str,
        reason: AgentReason,
        after: Option<&str>,
        error: Option<&AgentError>,
        attempt: u32,
    ) -> String {
        let after = after.unwrap_or_default();
        let error = error.map(in_short).unwrap_or_default();
        match reason {
            AgentReason::Failed => {
                format!("attempt {attempt} of the agent `{after}` failed: {error}; `{agent}` takes over")
            }
            AgentReason::Limit => {
                format!("the agent `{after}` hit a usage limit: {error}; `{agent}` takes over")
            }
            AgentReason::Condition => {
                format!(
                    "attempt {attempt} of the agent `{after}` completed, and the condition of the fallback holds: `{agent}` takes over"
                )
            }
            _ => format!("its expression names the agent `{agent}`"),
        }
    }

    fn edge_resolved(&mut self, envelope: &Envelope, task: TaskRef, edge: EdgeIx) {
        let graph = self.graph();
        let spec = self.body(&graph).edge(edge);
        let fired = matches!(envelope.event, Event::EdgeFired { .. });
        let name =
            format!("`{} -> {}`", self.body(&graph).node(spec.from).id, self.body(&graph).node(spec.to).id);
        let (kind, reason, text) = match &spec.cycle {
            Some(cycle) if !fired && cycle.body.contains(&task.node) => {
                let reason = self.not_fired(edge);
                let rounds = self.edge_state(edge).iterations;
                let used_up = rounds >= cycle.max_iterations
                    && cycle.on_exhausted == OnExhausted::Continue
                    && spec.when.as_ref().is_none_or(|when| {
                        self.run.scoped(self.frame, &self.run.locals(self.task(spec.from)), |scope| {
                            when.holds(scope)
                        }) == Ok(true)
                    });
                let why = if used_up {
                    "`maxIterations` is reached (`onExhausted: continue`)"
                } else {
                    &reason.text
                };
                let text = format!(
                    "the loop {name} ended after {rounds} of {} iterations: {why}",
                    cycle.max_iterations
                );
                (StatementKind::LoopEnded, reason, text)
            }
            None if spec.to == task.node && fired => {
                let reason = self.fired(edge);
                let text = format!("edge {name} fired: {}", reason.text);
                (StatementKind::EdgeFired, reason, text)
            }
            None if spec.to == task.node => {
                let reason = self.not_fired(edge);
                let text = format!("edge {name} did not fire: {}", reason.text);
                (StatementKind::EdgeSkipped, reason, text)
            }
            _ => return,
        };
        self.say_of(task, envelope.seq, kind, text);
        self.values(reason.values);
    }

    fn loop_went(&mut self, envelope: &Envelope, task: TaskRef, edge: EdgeIx, iteration: u32) {
        let graph = self.graph();
        let spec = self.body(&graph).edge(edge);
        let Some(cycle) = spec.cycle.as_ref().filter(|cycle| cycle.body.contains(&task.node)) else { return };
        let reason = self.fired(edge);
        let text = format!(
            "pass {} started: the loop `{} -> {}` fired, iteration {iteration} of {}: {}",
            self.node(task).pass + 1,
            self.body(&graph).node(spec.from).id,
            self.body(&graph).node(spec.to).id,
            cycle.max_iterations,
            reason.text
        );
        let path = self.path(task).with_pass(self.node(task).pass + 1);
        self.say(envelope.seq, Some(path), StatementKind::LoopWent, text);
        self.values(reason.values);
    }

    fn started(&mut self, envelope: &Envelope, task: TaskRef, attempt: u32) {
        let graph = self.graph();
        let (spec, node) = (self.spec_of(&graph, task), self.node(task));
        let took_over = node.choice.as_ref().is_some_and(|choice| !choice.tried.is_empty());
        let begins_anew = !node.interrupted && node.failures == 0;
        let is_first = begins_anew && !took_over && node.status != NodeStatus::Waiting;
        let tries = || {
            let retry = &spec.policy.retry;
            format!("try {} of {}", node.counted_failures(retry) + 1, retry.max_attempts)
        };
        let why = if node.status == NodeStatus::Waiting {
            "the usage limit has reset".to_owned()
        } else if node.interrupted && node.error.is_some() {
            format!("{}, in the conversation of the failed attempt", tries())
        } else if node.interrupted {
            match node.more.as_ref().is_some_and(|more| more.resume.is_some()) {
                true => "it resumes the conversation of the interrupted attempt".to_owned(),
                false => "it replaces the interrupted attempt".to_owned(),
            }
        } else if node.failures > 0 {
            tries()
        } else if took_over {
            "it takes over from the agent before".to_owned()
        } else if spec.incoming.is_empty() && node.pass <= 1 {
            "it has no incoming edges".to_owned()
        } else if node.sent_back {
            "a loop leads back to it".to_owned()
        } else {
            match spec.join {
                _ if spec.incoming.len() == 1 => "the edge into it fired".to_owned(),
                join if !node.has_its_edges(join) => format!(
                    "{} of {} edges into it fired, and as the flow ends it waits for no others",
                    node.fired,
                    spec.incoming.len()
                ),
                Join::All => format!("all {} edges into it fired", spec.incoming.len()),
                Join::Any => "the first edge into it fired".to_owned(),
                Join::Resolved => {
                    format!("all edges into it are resolved, {} of {} fired", node.fired, spec.incoming.len())
                }
            }
        };
        let when = self.body(&graph).node(task.node).when.as_ref();
        if let Some(when) = when.filter(|_| begins_anew && !took_over) {
            let reason = self.condition(when, task);
            self.say_of(task, envelope.seq, StatementKind::Condition, format!("its `when` {}", reason.text));
            self.values(reason.values);
        }
        let agent = self
            .state()
            .agent_of(&graph, task)
            .filter(|_| self.body(&graph).node(task.node).agents.is_some());
        let by = agent.map(|agent| format!(" with the agent `{agent}`")).unwrap_or_default();
        let not_reused = is_first.then(|| self.run.not_reused(task)).flatten();
        let again = not_reused.map(|left| self.again(envelope, &left)).unwrap_or_default();
        let text = format!("attempt {attempt} started{by}: {why}{again}");
        self.say_of(task, envelope.seq, StatementKind::Started, text);
    }

    /// What is done with the work that an earlier session has left of a node that begins.
    fn again(&self, begins: &Envelope, left: &NotReused) -> String {
        let of_task = self.log.iter().filter(|event| event.context.task == begins.context.task);
        let first =
            of_task.skip_while(|event| event.seq <= begins.seq).find_map(|event| match &event.event {
                Event::AgentSession { session_id, .. } => Some(session_id),
                _ => None,
            });
        let from = &left.from;
        match left.why {
            ReuseReason::Unfinished | ReuseReason::Failed
                if first.is_some() && first == left.conversation.as_ref() =>
            {
                format!("; it continues the conversation of {from}")
            }
            ReuseReason::Asked => format!("; {from} is not reused: it was to run again"),
            why => format!("; {from} is not reused: {}", why.words()),
        }
    }

    fn skipped(&mut self, envelope: &Envelope, task: TaskRef, reason: SkipReason, failures: &[u64]) {
        let graph = self.graph();
        let spec = self.spec_of(&graph, task);
        let mut values = Default::default();
        let text = match reason {
            SkipReason::When => {
                let reason = spec.when.as_ref().map(|when| self.condition(when, task));
                let text = reason
                    .as_ref()
                    .map_or("its `when` is false".to_owned(), |reason| format!("its `when` {}", reason.text));
                values = reason.map(|reason| reason.values).unwrap_or_default();
                text
            }
            SkipReason::NotSelected => {
                "it was not selected by `--only`, and its output could not be reused".to_owned()
            }
            SkipReason::Edge => match spec.join {
                Join::All => "not all edges into it fired".to_owned(),
                _ => "no edge into it fired".to_owned(),
            },
            _ => self.blame(task, failures),
        };
        self.say_of(task, envelope.seq, StatementKind::Skipped, format!("it was skipped: {text}"));
        self.values(values);
        self.reason = text;
    }

    fn answered(&mut self, envelope: &Envelope, task: TaskRef, prompt: &str, text: String) {
        let graph = self.graph();
        let open = self.state().prompts().iter().find(|open| open.prompt_id == *prompt);
        let of = open.and_then(|open| self.state().find(&graph, open.task.as_ref()));
        if of == Some(task) {
            self.say_of(task, envelope.seq, StatementKind::Answered, text);
        }
    }

    /// The session is resumed: what ran when its process died, or it was paused, is pending again.
    fn cut_short(&mut self, envelope: &Envelope, task: TaskRef) {
        let Event::FlowResumed { node_ids, message, messages, .. } = &envelope.event else { return };
        let node = self.node(task);
        let path = self.path(task);
        let how = match node.status {
            NodeStatus::Running if self.state().status() == SessionStatus::Waiting => {
                "the waiting process has exited; the session was resumed".to_owned()
            }
            NodeStatus::Running => format!(
                "the process ended unexpectedly during attempt {}; the session was resumed",
                node.attempt
            ),
            NodeStatus::Paused => "the session was resumed".to_owned(),
            NodeStatus::Cancelled if self.state().ending.is_none() => "the session was resumed".to_owned(),
            _ => return,
        };
        let message = messages.get(&path).unwrap_or(message);
        let ends = self.state().must_end(task);
        let then = if ends {
            ", and the node was not started again: the flow was ending".to_owned()
        } else if message == CONTINUE && node.run().is_some_and(|run| run.between_turns) {
            ", and the agent waits for messages again".to_owned()
        } else if node_ids.contains(&path) {
            format!(", with this message to the agent: {message}")
        } else if self.spec_of(self.run.graph(), task).effects == crate::graph::Effects::External {
            ", and a person must say whether the attempt took effect".to_owned()
        } else {
            ", and the node runs again".to_owned()
        };
        self.say(envelope.seq, Some(path), StatementKind::Resumed, format!("{how}{then}"));
    }

    fn tried_again(&self, envelope: &Envelope, task: TaskRef, error: &AgentError) -> String {
        let graph = self.graph();
        let (policy, node) = (&self.spec_of(&graph, task).policy.retry, self.node(task));
        let wait = node.retry_at.map(|due| due.since(envelope.timestamp)).unwrap_or_default();
        let asked = error.retry_after.filter(|asked| *asked <= policy.longest_wish());
        let wait = match (wait.is_zero(), asked) {
            (true, _) => "immediately".to_owned(),
            (false, Some(_)) => format!("in {}, as the vendor requested", length(wait)),
            (false, None) => format!("in {}", length(wait)),
        };
        format!("retry {wait}, {} of {} attempts used", node.counted_failures(policy), policy.max_attempts)
    }

    fn not_tried_again(&self, task: TaskRef, error: &AgentError) -> String {
        let graph = self.graph();
        let (policy, node) = (&self.spec_of(&graph, task).policy, self.node(task));
        let retry = &policy.retry;
        match retry.max_attempts {
            0 | 1 => "it has no retries".to_owned(),
            _ if retry.is_automatic && retry.on == RetryOn::Passing && node.failures <= 1 => {
                "it has no retries".to_owned()
            }
            max if node.counted_failures(retry) >= max => format!("all {max} attempts are used"),
            _ if retry.on == RetryOn::Retryable && !error.is_retryable() => {
                format!("{} is not retryable", error.code)
            }
            _ if policy.on_limit == OnLimit::Fail
                && (error.resets_at.is_some() || error.retry_after.is_some()) =>
            {
                "the usage limit has not reset, and `onLimit` is `fail`".to_owned()
            }
            _ => "it is not retried".to_owned(),
        }
    }

    /// Gives the newest statement the values that it is based on.
    pub(super) fn values(&mut self, values: std::collections::BTreeMap<String, serde_json::Value>) {
        if let Some(last) = self.statements.last_mut() {
            last.values = values;
        }
    }
}
