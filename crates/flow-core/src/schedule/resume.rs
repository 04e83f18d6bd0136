//! Resuming a session that was idle, or whose process died.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{
    AgentError, BudgetRaise, ErrorCode, Event, NodePath, NodeStatus, Prompt, PromptId, SessionStatus,
    StopReason,
};
use serde_json::json;

use super::{Action, Interrupted, Run, emit, ready::named};
use crate::{
    graph::{Effects, TaskRef},
    node::NodeKind,
    state::{CONTINUE, IT_IS_DONE, LET_IT_FAIL, OpenRun, RUN_AGAIN},
};

impl Run {
    /// What is emitted before the session continues, after its whole log was applied: the ends of agent runs
    /// that were not stored, and `flow:resumed`. `messages` are for single nodes, by their places or ids.
    /// Nothing if the session has not begun, or has ended.
    pub fn resume(
        &self,
        message: Option<&str>,
        messages: &BTreeMap<String, String>,
        budget: &BudgetRaise,
    ) -> Vec<Action> {
        let state = &self.facts;
        if state.session.status == SessionStatus::Idle || state.session.outcome.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        for (task, node) in state.tasks() {
            let Some(run) = node.run() else { continue };
            let event = unseen_end(run);
            actions.push(Action::Emit { task: Some(state.path(&self.graph, task)), event });
        }
        let node_ids = state.to_continue(&self.graph);
        let own = |path: &NodePath| {
            let message = messages.get(path.as_str()).or_else(|| messages.get(path.node()));
            message.map(|message| (path.clone(), message.clone()))
        };
        let messages = node_ids.iter().filter_map(own).collect();
        let message = message.unwrap_or(CONTINUE).to_owned();
        let budget = budget.clone();
        actions.push(emit(Event::FlowResumed { node_ids, message, messages, budget }));
        actions
    }

    /// What is published when the process of one attempt is gone: the end of its agent's run that was not stored, and
    /// the interruption. Nothing if a newer attempt has replaced it.
    pub(crate) fn lose(&self, node: TaskRef, attempt: u32) -> Vec<Action> {
        let state = self.facts.node(node);
        if state.status != NodeStatus::Running || state.attempt != attempt {
            return Vec::new();
        }
        let task = Some(self.facts.path(&self.graph, node));
        let task_id = self.facts.spec(&self.graph, node).id.clone();
        let interrupted = Event::TaskInterrupted { task_id, attempt };
        let events = state.run().map(unseen_end).into_iter().chain([interrupted]);
        events.map(|event| Action::Emit { task: task.clone(), event }).collect()
    }

    /// What is left of the interrupted attempt.
    pub(super) fn interrupted(&self, task: TaskRef) -> Interrupted {
        let node = &self.facts.node(task);
        let Some(more) = &node.more else {
            return Interrupted { since: node.since, message: None, asked: None, reply: None };
        };
        let mail: Vec<_> = more.undelivered().collect();
        // Messages that were acknowledged and that no finished turn has answered come with the word to go on.
        let message = more.resume.as_ref().map(|message| match (message.as_str(), mail.as_slice()) {
            (_, []) => message.clone(),
            (CONTINUE, mail) => mail.join("\n\n"),
            (message, mail) => format!("{message}\n\n{}", mail.join("\n\n")),
        });
        Interrupted { since: node.since, message, asked: more.asked.clone(), reply: more.reply.clone() }
    }

    /// If a node may have had an external effect before it was interrupted, a person is asked: returns the
    /// failure if that is the answer, and else puts into `actions` what is to be done first.
    pub(super) fn confirm_rerun(
        &mut self,
        task: TaskRef,
        path: &NodePath,
        actions: &mut Vec<Action>,
    ) -> Option<AgentError> {
        let node = &self.facts.node(task);
        let more = node.more.as_ref();
        let choice = more.and_then(|more| more.reply.as_ref()).and_then(|reply| reply.choice.as_deref());
        match choice {
            Some(IT_IS_DONE) => {
                let event = Event::TaskReused {
                    task_id: self.facts.spec(&self.graph, task).id.clone(),
                    from: format!("{}/{path}", self.session),
                    session_id: None,
                    turn_id: None,
                    result: Arc::new(json!({})),
                    error: None,
                };
                actions.push(Action::Emit { task: Some(path.clone()), event });
                None
            }
            Some(LET_IT_FAIL) => {
                let message = format!("{} was cut short, and a person let it fail", named(path));
                Some(AgentError::new(ErrorCode::Aborted, message))
            }
            _ => {
                actions.push(Action::Ask {
                    task: path.clone(),
                    id: more.and_then(|more| more.asked.as_ref()).map(|asked| asked.prompt_id.clone()),
                    prompt: format!(
                        "{} was cut short and may have taken effect. What is to be done?",
                        named(path)
                    ),
                    choices: [RUN_AGAIN, IT_IS_DONE, LET_IT_FAIL].map(str::to_owned).to_vec(),
                });
                self.asked.insert(task, node.attempts);
                None
            }
        }
    }

    /// Whether a person must say first what is done about a node: it was cut short in this session, or in the one that this
    /// one continues, and may have had an external effect.
    pub(super) fn needs_confirmation(&self, task: TaskRef) -> bool {
        let node = self.facts.node(task);
        let runs_again = || {
            let reply = node.more.as_ref().and_then(|more| more.reply.as_ref());
            reply.is_some_and(|reply| reply.choice.as_deref() == Some(RUN_AGAIN))
        };
        node.needs_confirmation
            || (node.attempts == 0
                && self.facts.spec(&self.graph, task).effects == Effects::External
                && self.was_cut_before(task)
                && !runs_again())
    }

    /// The open question of this id, if it is the last one of a node that is to begin again: the node takes an answer
    /// that is in the log by then, and does not ask again.
    pub fn asked_before(&self, prompt: &PromptId) -> Option<&Prompt> {
        let open = self.facts.session.prompt(prompt)?;
        let node = self.facts.node(self.facts.find(&self.graph, open.task.as_ref())?);
        let asked = node.more.as_ref()?.asked.as_ref()?;
        (node.status == NodeStatus::Pending && asked.prompt_id == *prompt).then_some(open)
    }

    /// Whether an agent of this node is about to begin a run: its attempt has begun or continues soon.
    pub fn is_about_to_talk(&self, node: &str) -> bool {
        let named = |task: TaskRef| {
            self.facts.spec(&self.graph, task).id.as_str() == node
                || self.facts.path(&self.graph, task).as_str() == node
        };
        self.facts.tasks().any(|(task, _)| self.begins_to_talk(task) && named(task))
    }

    fn begins_to_talk(&self, task: TaskRef) -> bool {
        let state = self.facts.node(task);
        let begins = match state.status {
            NodeStatus::Running => true,
            NodeStatus::Pending => state.interrupted && !state.needs_confirmation,
            _ => false,
        };
        self.facts.spec(&self.graph, task).kind == NodeKind::Agent && begins && state.run().is_none()
    }

    /// Whether an agent of any node is about to begin a run.
    pub fn any_is_about_to_talk(&self) -> bool {
        self.facts.tasks().any(|(task, _)| self.begins_to_talk(task))
    }

    /// The nodes whose interrupted attempt may have had an external effect, so that a person must decide.
    pub fn doubts(&self) -> impl Iterator<Item = NodePath> + '_ {
        let nodes = self.facts.tasks();
        let doubtful =
            nodes.filter(|(task, node)| node.status == NodeStatus::Pending && self.needs_confirmation(*task));
        doubtful.map(|(task, _)| self.facts.path(&self.graph, task))
    }
}

/// The end of an agent's run whose process is gone.
fn unseen_end(run: &OpenRun) -> Event {
    Event::AgentComplete {
        agent_name: run.agent_name.clone(),
        success: false,
        run_id: run.run_id.clone(),
        stop_reason: StopReason::Aborted,
        usage: Default::default(),
        duration_ms: 0,
        unpriced: false,
    }
}
