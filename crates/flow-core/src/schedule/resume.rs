//! Resuming a session that was idle, or whose process died.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{
    AgentError, BudgetRaise, ErrorCode, Event, LogLevel, NodeId, NodePath, NodeStatus, Prompt, PromptId,
    ProviderSessionId, Reply, SessionId, SessionStatus, StopReason, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Action, Reusable, Run, StartNode, emit, items::ItemMatch, ready::named, reusable_task::ReusableTask,
};
use crate::{
    HumanAnswer, HumanInput,
    graph::{Effects, TaskRef},
    node::NodeKind,
    pilot::AttemptLoss,
    state::{CONTINUE, IT_IS_DONE, LET_IT_FAIL, NodeState, NotRaised, OpenRun, RUN_AGAIN},
};

/// What is left of an attempt that was interrupted by a pause, a limit or a crash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupted {
    /// When the first of the attempts began that interruptions alone part.
    pub since: Option<Timestamp>,
    /// The message to an agent that resumes its own conversation. One that had named none starts over, with this after its
    /// prompt.
    pub message: Option<String>,
    /// The question that it asked.
    pub asked: Option<Prompt>,
    /// The answer to the question: its content, and which of the choices it is. It came before this attempt began, which
    /// does not ask again.
    pub reply: Option<Reply>,
    /// Where the agent has worked, if that is in the log of another session whose work is reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<(SessionId, NodePath)>,
    /// Where it has worked in the sessions before that one, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<(SessionId, NodePath)>,
}

/// Why a message for agents that are to continue was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It has no text.
    #[error("the message is empty")]
    Empty,
    /// The agent of the node that it is for was not interrupted.
    #[error(
        "no agent of node `{node}` was interrupted, so none would get the message; interrupted were: {interrupted}"
    )]
    NotInterrupted {
        /// The node.
        node: String,
        /// The places of the agents that were interrupted, separated by commas, or `none`.
        interrupted: String,
    },
}

impl Run {
    /// The agents that were interrupted, and that get a message when the session is resumed.
    pub fn interrupted_agents(&self) -> Vec<NodePath> {
        self.facts.interrupted_agents(&self.graph).map(|(path, _)| path).collect()
    }

    /// Fails if [`Run::resume`] would give an agent an empty message, or lose one that is for a single node.
    pub fn check_messages(
        &self,
        message: Option<&str>,
        messages: &BTreeMap<String, String>,
    ) -> Result<(), MessageError> {
        if message.into_iter().chain(messages.values().map(String::as_str)).any(|text| text.trim().is_empty())
        {
            return Err(MessageError::Empty);
        }
        let agents = self.interrupted_agents();
        let is_there = |node: &str| agents.iter().any(|path| [path.as_str(), path.node()].contains(&node));
        let Some(node) = messages.keys().find(|node| !is_there(node)) else { return Ok(()) };
        let places: Vec<_> = agents.iter().map(|path| format!("`{path}`")).collect();
        let interrupted = if places.is_empty() { "none".to_owned() } else { places.join(", ") };
        Err(MessageError::NotInterrupted { node: node.clone(), interrupted })
    }

    /// Fails if a limit would not be raised: a new one is above the present one, and above what is spent if that one is used
    /// up. Where there was no limit, a new one may be any.
    pub fn check_raise(&self, budget: &BudgetRaise) -> Result<(), NotRaised> {
        self.facts.check_raise(&self.graph, budget)
    }

    /// What is emitted before the session continues, after its whole log was applied: the ends of agent runs
    /// that were not stored, `flow:resumed`, and a warning if no agent gets the message. `messages` are for single nodes, by
    /// their places or ids. `last_event` is the time of the newest event of the log, which need not be a fact: if the process is
    /// gone, the session was idle since.
    /// Nothing if the session has not begun, or has ended.
    pub fn resume(
        &self,
        message: Option<&str>,
        messages: &BTreeMap<String, String>,
        budget: &BudgetRaise,
        last_event: Option<Timestamp>,
    ) -> Vec<Action> {
        let state = &self.facts;
        if state.session.status == SessionStatus::Idle || state.session.outcome.is_some() {
            return Vec::new();
        }
        let ends = self.unseen_ends();
        let mut actions: Vec<_> =
            ends.map(|(path, event)| Action::Emit { task: Some(path), event }).collect();
        // One that starts over is sent its prompt anyway: it is named only if there is a message beside that.
        let has_message = |path: &NodePath| {
            message.is_some() || messages.contains_key(path.as_str()) || messages.contains_key(path.node())
        };
        let agents = state.interrupted_agents(&self.graph);
        let told = agents.filter(|(path, continues)| *continues || has_message(path));
        let node_ids: Vec<_> = told.map(|(path, _)| path).collect();
        let is_lost = message.is_some() && node_ids.is_empty();
        let own = |path: &NodePath| {
            let message = messages.get(path.as_str()).or_else(|| messages.get(path.node()));
            message.map(|message| (path.clone(), as_said(message)))
        };
        let messages = node_ids.iter().filter_map(own).collect();
        let message = message.map_or_else(|| CONTINUE.to_owned(), as_said);
        let budget = budget.clone();
        let idle_since = last_event.filter(|_| state.session.status == SessionStatus::Running);
        actions.push(emit(Event::FlowResumed { node_ids, message, messages, budget, idle_since }));
        if is_lost {
            // `flow:resumed` has its text, without secrets.
            let message = "no agent was interrupted, so none gets the message".to_owned();
            actions.push(emit(Event::Log { level: LogLevel::Warn, message, fields: Map::new() }));
        }
        actions
    }

    /// The ends of the agents' runs that the process of the session did not live to see.
    fn unseen_ends(&self) -> impl Iterator<Item = (NodePath, Event)> {
        let open = self.facts.tasks().filter_map(|(task, node)| Some((task, node.run()?)));
        open.map(|(task, run)| (self.facts.path(&self.graph, task), unseen_end(run)))
    }

    /// Ends these runs: what a turn took that is cut short is unknown, and not nothing.
    pub(super) fn end_unseen(&mut self) {
        let (next, at) = (self.facts.session.last_seq + 1, self.facts.last_at());
        for ((path, event), seq) in self.unseen_ends().collect::<Vec<_>>().into_iter().zip(next..) {
            self.take(seq, at, Some(&path), &event);
        }
    }

    /// What is published when the process of one attempt is gone: the end of its agent's run that was not stored, and
    /// the interruption. Nothing if a newer attempt has replaced it.
    pub(crate) fn lose(&mut self, node: TaskRef, attempt: u32, how: AttemptLoss) -> Vec<Action> {
        let state = self.facts.node(node);
        if state.status != NodeStatus::Running || state.attempt != attempt {
            return Vec::new();
        }
        let task = Some(self.facts.path(&self.graph, node));
        let task_id = self.facts.spec(&self.graph, node).id.clone();
        let (never_began, stopped) = (how == AttemptLoss::NeverBegan, how == AttemptLoss::Stopped);
        let interrupted = Event::TaskInterrupted { task_id, attempt, never_began, stopped };
        let events = state.run().map(unseen_end).into_iter().chain([interrupted]);
        let actions = events.map(|event| Action::Emit { task: task.clone(), event }).collect();
        // The number of the attempt is used again in the next pass.
        self.take_cancelled(node, attempt);
        actions
    }

    /// What is left of the interrupted attempt.
    pub(super) fn interrupted(&self, task: TaskRef) -> Interrupted {
        let node = &self.facts.node(task);
        let Some(more) = &node.more else {
            return Interrupted { since: node.since, ..Interrupted::default() };
        };
        let message = more.resume.as_ref().map(|_| joined(&self.unanswered_mail(task)));
        let (asked, reply) = (more.asked.clone(), more.reply.clone());
        let known = node.conversation.as_ref().map(|known| &known.session_id);
        let older = known.map(|known| self.worked_in(task, known)).unwrap_or_default();
        Interrupted { since: node.since, message, asked, reply, before: None, older }
    }

    /// Where an agent has worked in a conversation in the sessions before this one, the oldest first.
    pub(super) fn worked_in(&self, task: TaskRef, known: &ProviderSessionId) -> Vec<(SessionId, NodePath)> {
        let Some((reusable, path)) = self.before(task) else { return Vec::new() };
        let Some(left) = reusable.task(&path).filter(|left| left.conversation.as_ref() == Some(known)) else {
            return Vec::new();
        };
        left.older.iter().cloned().chain([(reusable.session.clone(), path)]).collect()
    }

    /// The messages to an agent that no finished turn has answered, the oldest first.
    pub(super) fn unanswered_mail(&self, task: TaskRef) -> Vec<String> {
        let more = self.facts.node(task).more.as_ref();
        let own = more.into_iter().flat_map(|more| more.undelivered()).map(str::to_owned);
        self.older_mail(task).iter().cloned().chain(own).collect()
    }

    /// The messages of the session before to an agent that has not begun in this one. `task:start` of its first attempt has
    /// them, so that they are in the log of this session then.
    pub(super) fn older_mail(&self, task: TaskRef) -> &[String] {
        let has_begun =
            self.facts.node(task).attempt > 0 || self.facts.frames[task.frame].attempts_before > 0;
        let is_agent = self.facts.spec(&self.graph, task).kind == NodeKind::Agent;
        if has_begun || !is_agent {
            return &[];
        }
        let left = self.before(task).and_then(|(reusable, path)| reusable.task(&path));
        left.map(|left| left.mail.as_slice()).unwrap_or_default()
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
        match self.rerun_answer(task).as_deref() {
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
                let message = format!("{} was interrupted, and a person let it fail", named(path));
                Some(AgentError::new(ErrorCode::Aborted, message))
            }
            _ => {
                actions.push(Action::Ask {
                    task: path.clone(),
                    id: more.and_then(|more| more.asked.as_ref()).map(|asked| asked.prompt_id.clone()),
                    prompt: format!(
                        "{} was interrupted and may have taken effect. What should happen now?",
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
    /// one continues, and may have had an external effect. A node whose time was over was cut short too.
    pub(super) fn needs_confirmation(&self, task: TaskRef) -> bool {
        let node = self.facts.node(task);
        node.needs_confirmation
            || (node.attempts == 0
                && self.facts.spec(&self.graph, task).effects == Effects::External
                && self.may_have_taken_effect(task)
                && self.rerun_answer(task).as_deref() != Some(RUN_AGAIN))
    }

    /// Whether the earlier session began with a task that has external effects, and nothing says whether its work is done.
    fn may_have_taken_effect(&self, task: TaskRef) -> bool {
        self.before(task).is_some_and(|(reusable, path)| {
            let Some(left) = reusable.task(&path).filter(|left| left.was_broken_off(true)) else {
                return false;
            };
            // What is not taken over runs again.
            self.differs(task, left, None).is_some()
                || self.failure_taken_over(task, reusable, &path).is_none()
        })
    }

    /// What a person has said is to be done about a node that was cut short and may have taken effect: in this session, or
    /// before it if it was cut short there.
    pub(super) fn rerun_answer(&self, task: TaskRef) -> Option<String> {
        let node = self.facts.node(task);
        let reply = node.more.as_ref().and_then(|more| more.reply.as_ref());
        let before = || {
            let (reusable, path) = self.before_as(task, ItemMatch::Same).filter(|_| node.attempts == 0)?;
            reusable.task(&path)?.rerun.clone()
        };
        reply.and_then(|reply| reply.choice.clone()).or_else(before)
    }

    /// The question that a task asked in the earlier session, with the answer that nobody has taken, unless it has asked again.
    pub(super) fn stored_answer(&self, attempt: &StartNode, task: &ReusableTask) -> Option<(Prompt, Reply)> {
        let asks_itself = attempt.interrupted.as_ref().is_some_and(|cut| cut.asked.is_some());
        let is_first = self.facts.node(attempt.node).failures == 0;
        let is_same_item = || self.before_as(attempt.node, ItemMatch::Same).is_some();
        task.answered.clone().filter(|_| !asks_itself && is_first && is_same_item())
    }

    /// The output of a node that only asks, if this is the answer.
    pub(super) fn output_of_answer(&self, at: TaskRef, (asked, reply): &(Prompt, Reply)) -> Option<Value> {
        let only_asks = &*self.facts.spec(&self.graph, at).node_type == HumanInput::NAME;
        HumanAnswer::of(asked.schema.is_some(), reply.clone()).ok().filter(|_| only_asks)
    }

    /// Whether a person has answered the question that a task was in the earlier session.
    pub(super) fn was_answered_before(&self, task: TaskRef) -> bool {
        let before = self.before(task);
        before
            .is_some_and(|(reusable, path)| reusable.task(&path).is_some_and(|task| task.answered_by_person))
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

    /// The places of the agents at work, and of those about to be, of which this is true by their nodes and places.
    pub(crate) fn talkers(&self, is_meant: impl Fn(&NodeId, &NodePath) -> bool) -> Vec<NodePath> {
        let talks = |(task, node): &(TaskRef, &NodeState)| {
            let works = node.status == NodeStatus::Running;
            let spec = self.facts.spec(&self.graph, *task);
            spec.kind == NodeKind::Agent && (works || self.begins_to_talk(*task))
        };
        let tasks = self.facts.tasks().filter(talks);
        let places = tasks.map(|(task, _)| (task, self.facts.path(&self.graph, task)));
        let meant = places.filter(|(task, path)| is_meant(&self.facts.spec(&self.graph, *task).id, path));
        meant.map(|(_, path)| path).collect()
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

impl Reusable {
    /// Notes the messages to agents that no finished turn has answered.
    pub(super) fn note_mail(&mut self, run: &Run) {
        for (task, _) in run.facts.tasks().filter(|(_, node)| node.attempt > 0) {
            let path = run.facts.path(&run.graph, task);
            let Some(noted) = self.tasks.get_mut(&path).filter(|noted| noted.output.is_none()) else {
                continue;
            };
            noted.mail = run.unanswered_mail(task);
        }
    }

    /// Takes the answer to an open question of a `human.input` that is stored and that the session has not taken.
    pub fn take_answer(&mut self, prompt: &Prompt, reply: &Reply) {
        let task = prompt.task.as_ref().and_then(|path| self.tasks.get_mut(path));
        if let Some(task) = task.filter(|task| &*task.node_type == HumanInput::NAME) {
            task.answered = Some((prompt.clone(), reply.clone()));
            task.answered_by_person = true;
        }
    }

    /// Notes whether a person answered a question, or nobody.
    pub(super) fn note_who_answered(&mut self, run: &Run, prompt: &PromptId, is_default: bool) {
        let asked = run.facts.session.prompt(prompt).and_then(|prompt| prompt.task.as_ref());
        let task = asked.and_then(|path| self.tasks.get_mut(path));
        if let Some(task) = task.filter(|task| &*task.node_type == HumanInput::NAME) {
            task.answered_by_person = !is_default;
        }
    }

    /// Notes what people have answered, and nobody has taken yet: to the questions of nodes, and to what is to be done about
    /// nodes that were cut short.
    pub(super) fn note_answers(&mut self, run: &Run) {
        for (task, node) in run.facts.tasks() {
            let is_external = run.facts.spec(&run.graph, task).effects == Effects::External;
            let more = node.more.as_ref().filter(|_| !is_external);
            let answered = more.and_then(|more| more.asked.clone().zip(more.reply.clone()));
            if let Some(noted) = self.tasks.get_mut(&run.facts.path(&run.graph, task))
                && answered.is_some()
            {
                noted.answered = answered;
            }
        }
        let waiting = run.facts.tasks().filter(|(_, node)| node.status == NodeStatus::Pending);
        for (task, node) in waiting {
            let is_external = run.facts.spec(&run.graph, task).effects == Effects::External;
            let runs_again = is_external && node.interrupted && !node.needs_confirmation;
            let answer = run.rerun_answer(task).or_else(|| runs_again.then(|| RUN_AGAIN.to_owned()));
            if let Some(noted) = self.tasks.get_mut(&run.facts.path(&run.graph, task)) {
                noted.rerun = answer;
            }
        }
    }
}

/// The message to an agent that continues, of those that no finished turn has answered.
pub(super) fn joined(mail: &[String]) -> String {
    if mail.is_empty() { CONTINUE.to_owned() } else { as_said(&mail.join("\n\n")) }
}

/// The message of a person, who may say the very word that stands for no message.
fn as_said(message: &str) -> String {
    if message == CONTINUE { "Continue".to_owned() } else { message.to_owned() }
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
