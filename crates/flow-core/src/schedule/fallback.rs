//! Which agent works on a node that several may work on: the one that its expression names, and then the next of its
//! `fallback`.

use std::sync::Arc;

use inspan_protocol::{AgentError, AgentReason, ErrorCode, Event, NodePath, is_too_deep};
use serde_json::{Value, json};

use super::{Run, reusable_task::ReusableTask};
use crate::{
    diagnostic::quoted,
    expr::Scope,
    graph::{Agents, Fallback, Node, OnLimit, TaskRef},
};

/// The field of the failure's detail with the output, which is kept because the `when` of the next agent could not be evaluated.
const KEPT_OUTPUT: &str = "output";

/// The output that a failure has kept.
pub(super) fn kept_output(error: &AgentError) -> Option<&Value> {
    let detail = error.detail.as_ref().filter(|_| error.code == ErrorCode::BindingFailed)?;
    detail.get(KEPT_OUTPUT)
}

impl ReusableTask {
    /// The output that is finished, and of which it is not decided whether the next agent takes over: the condition could
    /// not be evaluated.
    pub(super) fn undecided(&self) -> Option<&Value> {
        self.final_error().and_then(kept_output)
    }

    /// What the agents of a node depend on, but for conditions that nobody could evaluate yet for such an output.
    pub(super) fn but_open_conditions(&self, mut agents: Value) -> Value {
        if self.undecided().is_some() {
            let entries = agents.as_array_mut().into_iter().flatten();
            entries.skip(1 + self.fallbacks.len()).for_each(|entry| entry["when"] = Value::Null);
        }
        agents
    }
}

impl Run {
    /// Where the condition could not be evaluated again, the conversation is that of the earlier session, where the agent worked.
    pub(super) fn keep_conversation(&self, path: &NodePath, task: &mut ReusableTask) {
        if task.undecided().is_none() || task.conversation.is_some() {
            return;
        }
        let before = self.facts.find_any_pass(&self.graph, path).and_then(|at| self.before(at));
        if let Some(before) = before.and_then(|(reusable, path)| reusable.task(&path)) {
            (task.conversation, task.turn_id) = (before.conversation.clone(), before.turn_id.clone());
        }
    }

    /// The agents of a node, and the node as it is with the first.
    fn agents(&self, task: TaskRef) -> Option<(&Node, &Agents)> {
        let node = self.facts.body(&self.graph, task.frame).node(task.node);
        Some((node, node.agents.as_deref()?))
    }

    /// The event that says which agent works first on a node whose agent is an expression; nothing if that is known.
    pub(super) fn choose_agent(&self, task: TaskRef) -> Option<Result<Event, AgentError>> {
        let (node, agents) = self.agents(task)?;
        let choice = agents.choice.as_ref().filter(|_| self.facts.node(task).choice.is_none())?;
        let value = match self.scoped(task.frame, &self.locals(task), |scope| choice.resolve(scope)) {
            Ok(value) => value,
            Err(error) => return Some(Err(error.into())),
        };
        let known = value.as_str().and_then(|name| agents.chosen().iter().find(|known| *known == name));
        Some(match known {
            Some(agent) => Ok(Event::TaskAgent {
                task_id: node.id.clone(),
                agent: agent.clone(),
                reason: AgentReason::Named,
                after: None,
                result: None,
                error: None,
            }),
            None => {
                let known = quoted(agents.chosen());
                let message =
                    format!("the `agent` of node `{}` is {value}, and must be one of {known}", node.id);
                Err(AgentError::new(ErrorCode::ConfigInvalid, message))
            }
        })
    }

    /// The entry of `fallback` that is next, with its agent's name and that of the one at work.
    pub(super) fn next_agent(&self, task: TaskRef) -> Option<(&Fallback, &str, &str)> {
        let (_, agents) = self.agents(task)?;
        let (current, next) =
            self.facts.node(task).choice.as_ref().map_or((0, 0), |choice| (choice.agent, choice.next));
        let entry = agents.fallback.get(next as usize)?;
        Some((entry, agents.name(entry.agent), agents.name(current)))
    }

    /// What happens with an output: the next agent takes over if its condition holds for it, else it is the node's.
    /// A condition that cannot be evaluated is a failure of the node, which keeps the output.
    pub(super) fn after_output(&self, task: TaskRef, output: Value) -> Result<Value, Box<Event>> {
        let output = self.facts.with_agents(&self.graph, task, output);
        let when = self.next_agent(task).and_then(|(entry, ..)| entry.when.as_ref());
        let Some(when) = when.filter(|_| !self.facts.is_ending(task.frame)) else { return Ok(output) };
        let mut seen = output.clone();
        if let Some(fields) = seen.as_object_mut() {
            fields.entry("failed").or_insert(json!(false));
        }
        let holds = self.scoped(task.frame, &self.locals(task), |scope| {
            // The condition sees this output instead of that of an earlier pass; the node's input still sees the latter.
            let mut outputs = scope.outputs.to_vec();
            outputs[task.node.0 as usize] = Some(Arc::new(seen));
            when.holds(&Scope { outputs: &outputs, ..*scope })
        });
        match holds {
            Ok(false) => Ok(output),
            Ok(true) => {
                let event = self.passed_on(task, AgentReason::Condition, Some(&output), None);
                event.map_or(Ok(output), |event| Err(Box::new(event)))
            }
            Err(error) => {
                let task_id = self.facts.spec(&self.graph, task).id.clone();
                let detail = json!({ KEPT_OUTPUT: output });
                let error = AgentError::from(error);
                let error = if is_too_deep(&detail) { error } else { error.with_detail(detail) };
                Err(Box::new(Event::TaskFailed { task_id, error, will_retry: false }))
            }
        }
    }

    /// The next agent takes over after a failure that remains; nothing if there is none, or if it could do nothing about it.
    pub(super) fn after_failure(&self, task: TaskRef, error: &AgentError) -> Option<Event> {
        let helps =
            !matches!(error.code, ErrorCode::Aborted | ErrorCode::BudgetExceeded | ErrorCode::BindingFailed);
        let may = helps && !self.lacks_agent(task) && !self.facts.is_ending(task.frame);
        may.then(|| self.passed_on(task, AgentReason::Failed, None, Some(error))).flatten()
    }

    /// Whether the expression that names the agent of a node names none.
    pub(super) fn lacks_agent(&self, task: TaskRef) -> bool {
        let chooses = self.agents(task).is_some_and(|(_, agents)| agents.choice.is_some());
        chooses && self.facts.node(task).choice.is_none()
    }

    /// The next agent takes over at a usage limit, if the policy says so.
    pub(super) fn after_limit(&self, task: TaskRef, error: &AgentError) -> Option<Event> {
        let may = self.facts.spec(&self.graph, task).policy.on_limit == OnLimit::Fallback;
        may.then(|| self.passed_on(task, AgentReason::Limit, None, Some(error))).flatten()
    }

    fn passed_on(
        &self,
        task: TaskRef,
        reason: AgentReason,
        result: Option<&Value>,
        error: Option<&AgentError>,
    ) -> Option<Event> {
        let (_, agent, after) = self.next_agent(task)?;
        Some(Event::TaskAgent {
            task_id: self.facts.spec(&self.graph, task).id.clone(),
            agent: agent.to_owned(),
            reason,
            after: Some(after.to_owned()),
            result: result.cloned().map(Arc::new),
            error: error.cloned(),
        })
    }

    /// All that the agents of a node depend on: the first, those that may take over, and what each is given.
    pub(super) fn alternatives(&self, task: TaskRef) -> Option<Value> {
        let (node, agents) = self.agents(task)?;
        let choice = self.facts.node(task).choice.as_ref();
        let first = choice.map_or(0, |choice| choice.tried.first().copied().unwrap_or(choice.agent));
        let given = |agent: u32| {
            let node = node.with_agent(agent);
            let input = self.in_any_session(task, &node.input);
            json!({ "agent": agents.name(agent), "type": node.node_type, "input": input })
        };
        let entries = agents.fallback.iter().map(|entry| {
            let when = entry.when.as_ref().map(ToString::to_string);
            json!({ "of": given(entry.agent), "when": when })
        });
        Some([given(first)].into_iter().chain(entries).collect())
    }
}
