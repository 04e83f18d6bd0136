//! What the end of an attempt leads to: success, a retry, failure, a wait for a limit, cancellation.

use std::{sync::Arc, time::Duration};

use inspan_protocol::{
    AgentError, DEEPEST, ErrorCode, Event, NodePath, NodeStatus, Timestamp, denials, is_too_deep, set_denials,
};
use serde_json::Value;

use super::{AttemptEnd, CancelCause, Run, fallback::kept_output};
use crate::{
    graph::{Effects, OnLimit, RetryOn, TaskRef},
    node::NodeKind,
};

/// How long after its reset time a usage limit may still be in force: clocks differ.
const SKEW: Duration = Duration::from_secs(3600);
/// The first and the longest wait for a vendor that refuses although its moment has come.
const FIRST_WAIT: Duration = Duration::from_secs(15);
const LONGEST_SHORT_WAIT: Duration = Duration::from_secs(300);
/// How long a limit lasts in a replay.
const REPLAYED_WAIT: Duration = Duration::from_secs(1);
/// How many attempts may have ended without a failure before such waits end: after about three hours.
const MOST_WAITS: u32 = 40;
/// The most retries of an agent without `policy.retry`, however much it has done between them.
const MOST_PASSING: u32 = 99;

impl Run {
    /// The event that an attempt's end is; nothing if a newer attempt has taken its place.
    pub fn conclude(
        &mut self,
        node: TaskRef,
        attempt: u32,
        end: AttemptEnd,
        now: Timestamp,
    ) -> Option<(NodePath, Event)> {
        let state = &self.facts.node(node);
        if state.status != NodeStatus::Running || state.attempt != attempt {
            return None;
        }
        let task_id = self.facts.spec(&self.graph, node).id.clone();
        let path = self.facts.path(&self.graph, node);
        let reason = self.take_cancelled(node, attempt);
        let never_began = matches!(end, AttemptEnd::NeverBegan);
        let end = match end {
            AttemptEnd::Output(output) if is_too_deep(&output) => Err(AgentError::new(
                ErrorCode::OutputInvalid,
                format!("the output of node `{task_id}` is nested more than {DEEPEST} levels deep"),
            )),
            AttemptEnd::Output(output) => Ok(output),
            AttemptEnd::Error(error) => Err(error),
            AttemptEnd::NeverBegan => {
                let why = format!("node `{task_id}` was cancelled before it began");
                Err(AgentError::new(ErrorCode::Aborted, why))
            }
        };
        // What an agent has done is paid for: it is kept, however late it comes.
        let is_agent = self.facts.spec(&self.graph, node).kind == NodeKind::Agent;
        let end = end.and_then(|output| match reason {
            Some(CancelCause::TimedOut) if !is_agent => Err(self.timed_out(node)),
            _ => Ok(output),
        });
        let denied = self.new_denials(node, &end);
        let event = match (end, reason) {
            // What finished although it was to be cancelled is finished work anyway.
            (Ok(output), _) => match self.after_output(node, self.with_denials(node, output, denied)) {
                Err(event) => *event,
                Ok(output) => {
                    let started = self.facts.node(node).started_at;
                    let duration_ms = started.map_or(0, |started| now.since(started).as_millis() as u64);
                    Event::TaskComplete { task_id, result: Arc::new(output), duration_ms }
                }
            },
            // So is a failure that came first; only what ended because it had to is cancelled.
            (Err(error), Some(why @ (CancelCause::Ending | CancelCause::Pausing)))
                if error.code == ErrorCode::Aborted =>
            {
                let (reason, cause) = self.facts.why_cut(node.frame, why == CancelCause::Pausing);
                Event::TaskCancelled {
                    task_id,
                    session_id: self
                        .facts
                        .node(node)
                        .conversation
                        .as_ref()
                        .map(|known| known.session_id.clone()),
                    reason: Some(reason),
                    cause,
                    never_began,
                    permission_denials: denied,
                }
            }
            (Err(error), reason) => {
                let error = match reason {
                    Some(CancelCause::TimedOut) => self.timed_out(node),
                    Some(CancelCause::OverBudget) => self.cut_by_budget(node),
                    _ => error,
                };
                let all = [self.facts.node(node).denied(), &denied].concat();
                let error = error.believable(now).with_denials(&all);
                match self.lifted_at(node, &error, now) {
                    Some(until) => self.after_limit(node, &error).unwrap_or_else(|| Event::LimitWait {
                        provider: error.provider.unwrap_or_default(),
                        until,
                        permission_denials: denied,
                    }),
                    None if self.will_retry(node, &error, now) => {
                        Event::TaskFailed { will_retry: true, task_id, error }
                    }
                    None => self.after_failure(node, &error).unwrap_or(Event::TaskFailed {
                        will_retry: false,
                        task_id,
                        error,
                    }),
                }
            }
        };
        Some((path, event))
    }

    /// The tool calls that were denied in an attempt, without those of the interrupted ones that it continues: an agent that
    /// waits for messages again, with its answer, names them as well.
    fn new_denials(&self, node: TaskRef, end: &Result<Value, AgentError>) -> Vec<Value> {
        let known = self.facts.node(node).denied();
        let is_new = |denial: &&Value| {
            let id = denial["toolUseId"].as_str().unwrap_or_default();
            id.is_empty() || !known.iter().any(|known| is_same_call(known, denial))
        };
        let all = end.as_ref().map_or_else(AgentError::denials, denials);
        all.iter().filter(is_new).cloned().collect()
    }

    /// An output with the tool calls that were denied in interrupted attempts, before these.
    fn with_denials(&self, node: TaskRef, mut output: Value, new: Vec<Value>) -> Value {
        let known = self.facts.node(node).denied();
        if !known.is_empty() {
            set_denials(&mut output, [known, &new].concat());
        }
        output
    }

    pub(super) fn timed_out(&self, node: TaskRef) -> AgentError {
        let node = self.facts.spec(&self.graph, node);
        let limit = node.policy.timeout.map_or_else(String::new, |limit| format!(" of {limit:?}"));
        AgentError::new(
            ErrorCode::Timeout,
            format!("node `{}` did not end within its timeout{limit}", node.id),
        )
    }

    /// When to try again after a usage limit. A vendor may still refuse at its reset time, since its clock differs or it rounds
    /// to seconds: then the waits grow, up to a bound.
    fn lifted_at(&self, task: TaskRef, error: &AgentError, now: Timestamp) -> Option<Timestamp> {
        let waits = self.facts.spec(&self.graph, task).policy.on_limit != OnLimit::Fail;
        if !waits || self.facts.ending.is_some() {
            return None;
        }
        let node = self.facts.node(task);
        // Limits and interruptions alone end an attempt so.
        let waited = node.attempt.saturating_sub(node.failures + 1);
        let is_new = |moment: &Timestamp| waited > 0 || now.since(*moment) <= SKEW;
        let backoff = FIRST_WAIT.saturating_mul(1 << waited.min(8)).min(LONGEST_SHORT_WAIT);
        let until = match self.limited_until(task, error, now) {
            Some(until) if waited == 0 => until,
            ahead => ahead.or(self.reset_of(task, error).filter(is_new))?.max(now + backoff),
        };
        let is_waited_for = waited < MOST_WAITS || until > now + LONGEST_SHORT_WAIT;
        is_waited_for.then_some(if self.is_replay { now + REPLAYED_WAIT } else { until })
    }

    /// When the usage limit is lifted that an agent has met, by its vendor.
    fn reset_of(&self, task: TaskRef, error: &AgentError) -> Option<Timestamp> {
        let is_agent = self.facts.spec(&self.graph, task).kind == NodeKind::Agent;
        let limited = matches!(error.code, ErrorCode::RateLimited | ErrorCode::Billing);
        error.resets_at.filter(|_| is_agent && limited)
    }

    /// The same if that is ahead. A server that asks for a longer wait than the node's retries may take is a usage limit too.
    fn limited_until(&self, task: TaskRef, error: &AgentError, now: Timestamp) -> Option<Timestamp> {
        let spec = self.facts.spec(&self.graph, task);
        let reset = self.reset_of(task, error).filter(|until| *until > now);
        let longest = spec.policy.retry.longest_wish();
        let may_ask = spec.kind == NodeKind::Agent && error.is_retryable();
        let asked = error.retry_after.filter(|wait| may_ask && *wait > longest);
        reset.or_else(|| asked.map(|wait| now + wait))
    }

    /// Whether the node is tried again. Before a usage limit is lifted that could not help.
    fn will_retry(&self, node: TaskRef, error: &AgentError, now: Timestamp) -> bool {
        let spec = self.facts.spec(&self.graph, node);
        let retry = &spec.policy.retry;
        let tried = self.facts.node(node).counted_failures(retry) + 1;
        let again = match retry.on {
            RetryOn::Passing => {
                let passes =
                    matches!(error.code, ErrorCode::RateLimited | ErrorCode::Overloaded | ErrorCode::Network);
                // At first it may be a wrong address; what has answered before speaks the protocol.
                let breaks = error.code == ErrorCode::Protocol && self.facts.node(node).has_worked();
                passes || breaks
            }
            RetryOn::Any => !matches!(error.code, ErrorCode::Aborted | ErrorCode::BudgetExceeded),
            RetryOn::Retryable => error.is_retryable(),
        };
        let may_by_itself = || {
            self.facts.node(node).failures < MOST_PASSING
                && spec.effects != Effects::External
                && self.next_agent(node).is_none()
        };
        again
            && (!retry.is_automatic || may_by_itself())
            && kept_output(error).is_none()
            && tried < retry.max_attempts
            && self.facts.ending.is_none()
            && self.limited_until(node, error, now).is_none()
            && !self.lacks_agent(node)
            && self.died_too_often(node).is_none()
    }

    pub(super) fn take_cancelled(&mut self, node: TaskRef, attempt: u32) -> Option<CancelCause> {
        let place = self.cancelled.iter().position(|&(task, n, _)| task == node && n == attempt)?;
        Some(self.cancelled.swap_remove(place).2)
    }
}

/// Whether two denied tool calls are one. A program may count the ids of its calls anew once it was started again, and the
/// arguments of a failed attempt's calls may be left out.
fn is_same_call(one: &Value, other: &Value) -> bool {
    let may_be = |key| one.get(key).is_none() || other.get(key).is_none() || one[key] == other[key];
    one["toolUseId"] == other["toolUseId"] && may_be("toolName") && may_be("toolInput")
}
