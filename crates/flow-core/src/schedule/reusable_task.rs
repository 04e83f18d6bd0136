//! What a session has left of one task.

use std::{borrow::Cow, fmt::Write, sync::Arc};

use inspan_protocol::{
    AgentError, Envelope, ErrorCode, Event, NodeId, NodePath, Prompt, ProviderSessionId, Reply, SessionId,
    Timestamp, TurnId,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Run;
use crate::{
    HumanInput,
    graph::{BodyIx, Frames, TaskRef},
    state::{Conversation, is_work},
};

/// One task of the earlier session, by its newest attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ReusableTask {
    pub(super) node_type: Arc<str>,
    pub(super) input: Option<Value>,
    pub(super) output: Option<Arc<Value>>,
    pub(super) conversation: Option<ProviderSessionId>,
    /// The end of its last turn in that.
    pub(super) turn_id: Option<TurnId>,
    /// Whether a request of its agent was answered.
    pub(super) worked: bool,
    /// Its last failure, if no other attempt followed.
    pub(super) error: Option<AgentError>,
    /// Whether it was to be tried again after that.
    pub(super) will_retry: bool,
    /// The policy that it failed under.
    pub(super) policy: String,
    /// What its frames are given and run, if it runs frames and has a timeout of its own.
    pub(super) frames: Option<String>,
    /// Whether its frame went on after that failure: a policy, an edge or the node around it handled it.
    pub(super) is_handled: bool,
    /// Whether it is tried again all the same.
    pub(super) is_tried_again: bool,
    pub(super) cost_usd: Option<f64>,
    /// What its agents depend on, if several may work on it.
    pub(super) agents: Option<Value>,
    /// The conversation that it continued or branched, as its author names it.
    pub(super) session: Option<String>,
    /// How each agent took over from the one before: events `task:agent`.
    pub(super) fallbacks: Vec<Event>,
    /// Of a node that begins after any of its predecessors: those whose edges had fired when it did.
    pub(super) came_after: Vec<NodeId>,
    /// What a person has said is to be done about it, since it was cut short and may have taken effect.
    pub(super) rerun: Option<String>,
    /// Whether it was cancelled or lost before any machine had begun it.
    pub(super) never_began: bool,
    /// When the first of the attempts began that interruptions alone part, if the newest did not fail.
    pub(super) since: Option<Timestamp>,
    /// Whether its newest attempt asked a person.
    pub(super) asked: bool,
    /// Its question, if it is answered and nobody has taken the answer.
    pub(super) answered: Option<(Prompt, Reply)>,
    /// Where its agent worked before, if it went on in the conversation of an earlier session; the oldest first.
    pub(super) older: Vec<(SessionId, NodePath)>,
    /// How many runs its newest attempt has begun.
    pub(super) runs: u32,
    /// Whether a person has answered its newest question, and not the default.
    pub(super) answered_by_person: bool,
    /// Messages to its agent that no finished turn has answered.
    pub(super) mail: Vec<String>,
    /// Whether its session did not reach it, and one with another flow or input did it.
    pub(super) is_of_other_flow: bool,
}

/// A turn of an agent, in the order of the turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnInConversation {
    pub(super) path: NodePath,
    pub(super) conversation: ProviderSessionId,
    /// Its end.
    pub(super) turn_id: Option<TurnId>,
    /// Whether the session took it over from another one.
    pub(super) is_older: bool,
}

impl Run {
    /// What the frames of a node are given and run, to compare; only for those that have a timeout.
    pub(super) fn frames_words(&self, at: TaskRef) -> Option<String> {
        let spec = self.facts.spec(&self.graph, at);
        let frames = spec.frames.as_deref().filter(|_| spec.policy.timeout.is_some())?;
        let mut words = String::new();
        let given = (self.in_any_session(at, &spec.input), &self.flow["input"]);
        let _ = write!(words, "{:?}", (given, &self.vars));
        for frame in self.facts.around(at.frame) {
            let state = self.graph.body(frame.body).subflow.as_ref().map(|subflow| &subflow.state);
            let _ = write!(words, "{:?}", (&frame.locals, &frame.input, state));
        }
        self.add_frames_words(frames, &mut Vec::new(), &mut words);
        Some(Sha256::digest(words).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn add_frames_words(&self, frames: &Frames, around: &mut Vec<BodyIx>, words: &mut String) {
        let body = self.graph.body(frames.body);
        let _ =
            write!(words, "{:?}", (&frames.kind, &body.policy, &body.outputs, &body.subflow, &body.edges));
        if around.contains(&frames.body) {
            return;
        }
        around.push(frames.body);
        for node in &body.nodes {
            let work = (&node.node_type, &node.program, &node.input, &node.agents, &node.session);
            let _ = write!(words, "{:?}", (&node.id, work, &node.when, &node.policy, &node.effects));
            node.frames.iter().for_each(|frames| self.add_frames_words(frames, around, words));
        }
        around.pop();
    }
}

impl TurnInConversation {
    /// A conversation up to the end of this turn of it. It may go on in a branch since.
    pub(super) fn until_here(&self, known: &Conversation) -> Conversation {
        let (session_id, turn_id) = (self.conversation.clone(), self.turn_id.clone());
        Conversation { session_id, turn_id, ..known.clone() }
    }
}

impl ReusableTask {
    /// A task as it begins.
    pub(super) fn of(run: &Run, at: TaskRef) -> Self {
        Self {
            node_type: run.facts.spec(&run.graph, at).node_type.clone(),
            input: run.any_input(at),
            agents: run.alternatives(at),
            frames: run.frames_words(at),
            session: run.session_words(at),
            came_after: run.came_after(at),
            ..Self::default()
        }
    }

    /// A task as an attempt of it begins, in the conversation of the session before if that is named. An attempt that replaces
    /// an interrupted one continues what that one had.
    pub(super) fn begun(
        run: &Run,
        at: TaskRef,
        before: Option<Self>,
        known: Option<&ProviderSessionId>,
        since: Option<Timestamp>,
        start: &Envelope,
    ) -> Self {
        let mut task = Self::of(run, at);
        let cut = run.facts.node(at).interrupted;
        if let Some(before) = before {
            task.cost_usd = before.cost_usd;
            task.conversation = before.conversation.filter(|_| cut);
            task.worked = before.worked && cut;
            task.answered_by_person = before.answered_by_person && cut;
            task.fallbacks = before.fallbacks;
            task.older = if cut { before.older } else { Vec::new() };
        }
        if let Some((known, (earlier, path))) = known.zip(run.before(at)) {
            // It may fail before it has said anything itself, and must not begin anew then.
            let left = earlier.task(&path);
            task.worked |= left.is_some_and(|left| left.worked);
            task.turn_id = left.and_then(|left| left.turn_id.clone());
            task.older = run.worked_in(at, known);
            task.conversation.get_or_insert_with(|| known.clone());
        }
        let earlier = run.facts.node(at).since.filter(|_| cut);
        task.since = earlier.or(since).or(Some(start.timestamp));
        task
    }

    pub(super) fn take(&mut self, event: &Event) {
        self.worked |= is_work(event);
        if let Event::AgentSpent { cost_usd: Some(_), .. } | Event::AgentUsage { cost_usd: Some(_), .. } =
            event
        {
            let cost_usd = event.spent().map_or(0.0, |(_, spent)| spent.cost_usd);
            self.cost_usd = Some(self.cost_usd.unwrap_or_default() + cost_usd);
        }
        match event {
            Event::TaskComplete { result, .. } => self.output = Some(result.clone()),
            Event::TaskFailed { error, will_retry, .. } => {
                (self.error, self.will_retry) = (Some(error.clone()), *will_retry);
                self.since = None;
            }
            Event::SessionPrompt(_) => self.asked = true,
            Event::TaskCancelled { never_began, .. } | Event::TaskInterrupted { never_began, .. } => {
                self.never_began = *never_began;
            }
            Event::TaskAgent { .. } => {
                self.conversation = None;
                self.older.clear();
                self.fallbacks.push(event.clone());
            }
            Event::AgentStart { .. } => {
                self.runs += 1;
                if self.runs > 1 {
                    // It began anew, since the conversation in which it was to go on was not found.
                    self.older.clear();
                    self.worked = false;
                }
            }
            Event::AgentSession { session_id, .. } => {
                if self.conversation.as_ref() != Some(session_id) {
                    self.turn_id = None;
                }
                self.conversation = Some(session_id.clone());
            }
            Event::AgentUsage { turn_id, .. } => self.turn_id = turn_id.clone(),
            _ => {}
        }
    }

    /// An input of it as it is compared. What counts only until a person has answered is left out then.
    pub(super) fn compared<'a>(&self, input: &'a Value) -> Cow<'a, Value> {
        let Some(question) = input.as_object().filter(|_| self.answered_by_person) else {
            return Cow::Borrowed(input);
        };
        let asked = question.iter().filter(|(key, _)| !HumanInput::UNTIL_ANSWERED.contains(&key.as_str()));
        Cow::Owned(asked.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// Whether it began and did not end.
    pub(super) fn was_cut(&self) -> bool {
        self.output.is_none() && self.error.is_none() && !self.never_began
    }

    /// Whether it began, and nothing says whether its work is done: it did not end, or it has external effects and its time was
    /// over or its money spent.
    pub(super) fn was_broken_off(&self, is_external: bool) -> bool {
        let is_cut = |error: &AgentError| match error.code {
            ErrorCode::Timeout => true,
            ErrorCode::BudgetExceeded => self.has_worked(),
            _ => false,
        };
        self.was_cut() || (is_external && self.final_error().is_some_and(is_cut))
    }

    /// Whether an agent did something for it.
    pub(super) fn has_worked(&self) -> bool {
        self.worked || self.cost_usd.is_some_and(|cost| cost > 0.0)
    }

    /// Drops the conversation of an interrupted attempt, and the messages to its agent.
    pub(super) fn forget_unfinished(&mut self) {
        if self.output.is_some() {
            return;
        }
        self.worked = false;
        self.mail.clear();
        // A failure that was handled is taken over with its conversation.
        self.conversation.take_if(|_| self.error.is_none());
    }

    /// Its last failure, unless it was to be tried again.
    pub(super) fn final_error(&self) -> Option<&AgentError> {
        self.error.as_ref().filter(|_| !self.will_retry)
    }

    /// The turn that ends with this event.
    pub(super) fn turn_of(&self, path: &NodePath, event: &Event) -> Option<TurnInConversation> {
        let (Event::AgentUsage { turn_id, .. }, Some(conversation)) = (event, &self.conversation) else {
            return None;
        };
        let (conversation, turn_id) = (conversation.clone(), turn_id.clone());
        Some(TurnInConversation { path: path.clone(), conversation, turn_id, is_older: false })
    }
}

/// Whether a path is at the place that runs again, in that pass or a later one, or within its frames.
pub(super) fn runs_again(path: &NodePath, again: &NodePath) -> bool {
    let mut parts = path.parts();
    let mut is_later = false;
    for from in again.parts() {
        let Some(part) = parts.next().filter(|part| part.node == from.node) else { return false };
        let is_other = from.index.is_some_and(|index| part.index != Some(index));
        if !is_later && (part.pass < from.pass || (part.pass == from.pass && is_other)) {
            return false;
        }
        is_later |= part.pass > from.pass;
    }
    true
}
