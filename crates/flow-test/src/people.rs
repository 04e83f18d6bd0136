//! Who answers questions and sends messages in a case: the replies and messages of the file, in their order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use inspan_engine::Hub;
use inspan_protocol::{
    Command, Envelope, Event, MessageMode, MultiTurn, NodePath, Prompt, PromptId, PromptKind, Rejection,
    RunId,
};

use crate::{
    cases::Case,
    expect::FailedExpectation,
    file::Replies,
    pattern::{Pattern, best, in_pass, without_pass},
    script::{count, unused},
};

/// The people of one session.
pub(crate) struct People {
    replies: Vec<(Pattern, Replies)>,
    /// How many of them are the case's own.
    own: usize,
    messages: Vec<(Pattern, Vec<String>)>,
    state: Mutex<PeopleState>,
}

#[derive(Default)]
struct PeopleState {
    /// How many questions each place has asked, with its pass and without.
    asked: BTreeMap<String, usize>,
    /// The number of each question, of both counts.
    numbers: BTreeMap<PromptId, (usize, usize)>,
    replied: BTreeSet<PromptId>,
    /// The replies that some question asked for, and how many of a list.
    used: BTreeMap<usize, usize>,
    /// How many of them are on their way, or come after the end of their question.
    late: BTreeMap<usize, usize>,
    /// How many replies are on their way.
    coming: usize,
    runs: BTreeMap<RunId, (NodePath, MultiTurn)>,
    /// How many messages each place was sent.
    sent: BTreeMap<String, usize>,
    failures: Vec<FailedExpectation>,
}

impl People {
    pub(crate) fn new(case: &Case) -> Self {
        Self {
            replies: case.replies.clone(),
            own: case.own_replies,
            messages: case.messages.clone(),
            state: Mutex::default(),
        }
    }

    /// What is said of the case's own replies that no question has taken.
    pub(crate) fn unused(&self) -> Vec<String> {
        let state = self.state();
        let own = self.replies.iter().take(self.own).enumerate();
        let said = own.filter_map(|(at, (key, replies))| {
            let used = state.used.get(&at).copied().unwrap_or_default();
            let late = state.late.get(&at).is_some_and(|late| *late > 0);
            unused(&format!("replies.{key}"), used, replies.all().len()).or_else(|| {
                late.then(|| format!("`replies.{key}`: a reply comes after the end of its question"))
            })
        });
        said.collect()
    }

    /// Whether a reply is on its way.
    pub(crate) fn are_to_reply(&self) -> bool {
        self.state().coming > 0
    }

    /// Replies and messages that the session refused.
    pub(crate) fn failures(&self) -> Vec<FailedExpectation> {
        self.state().failures.clone()
    }

    fn state(&self) -> MutexGuard<'_, PeopleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what has happened before the session is resumed.
    pub(crate) fn learn(&self, envelope: &Envelope) {
        let mut state = self.state();
        let path = envelope.context.task.as_ref();
        match &envelope.event {
            Event::SessionPrompt(prompt) => drop(path.map(|path| state.number(path, prompt))),
            Event::SessionReply { prompt_id, .. } => drop(state.replied.insert(prompt_id.clone())),
            Event::AgentStart { run_id, multi_turn, .. } => {
                state.runs.extend(path.map(|path| (run_id.clone(), (path.clone(), *multi_turn))));
            }
            Event::SessionMessage { run_id: Some(run), .. } => {
                if let Some((path, _)) = state.runs.get(run).cloned() {
                    *state.sent.entry(path.to_string()).or_default() += 1;
                }
            }
            _ => {}
        }
    }

    /// Acts on an event, right after it.
    pub(crate) fn act(self: &Arc<Self>, envelope: &Envelope, hub: &Hub) {
        self.learn(envelope);
        match (&envelope.event, &envelope.context.task) {
            (Event::SessionPrompt(prompt), Some(path)) => self.answer(path, prompt, hub),
            (Event::AgentStart { run_id, .. } | Event::AgentTurn { run_id, .. }, _) => self.send(run_id, hub),
            _ => {}
        }
    }

    fn answer(self: &Arc<Self>, path: &NodePath, prompt: &Prompt, hub: &Hub) {
        let (in_pass, in_all) = self.state().number(path, prompt);
        let reply = best(&self.replies, path).and_then(|(at, (key, replies))| {
            let number = if key.has_pass() { in_pass } else { in_all };
            count(&mut self.state().used, at, number);
            Some((at, key, replies.get(number)?))
        });
        let id = prompt.prompt_id.clone();
        let reply_with =
            |content: &str| Command::Reply { prompt: id.clone(), content: content.to_owned(), choice: None };
        match reply {
            None if prompt.kind != PromptKind::Input => {
                // An agent that asks is denied, or gets no answer.
                let _answered = hub.command(reply_with(prompt.default.as_deref().unwrap_or("deny")));
            }
            None => {}
            Some((_, key, reply)) if reply.after().0.is_zero() => {
                self.check(format!("replies.{key}"), hub.command(reply_with(reply.text())));
            }
            Some((at, key, reply)) => {
                *self.state().late.entry(at).or_default() += 1;
                self.state().coming += 1;
                let (this, hub, command) = (self.clone(), hub.clone(), reply_with(reply.text()));
                let (key, after) = (format!("replies.{key}"), reply.after().0);
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    this.state().coming -= 1;
                    match hub.command(command) {
                        // Its default was taken meanwhile, as the case may want it.
                        Err(
                            Rejection::AlreadyAnswered(_)
                            | Rejection::NotActive
                            | Rejection::UnknownPrompt(_),
                        ) => {}
                        answered => {
                            *this.state().late.entry(at).or_default() -= 1;
                            this.check(key, answered);
                        }
                    }
                });
            }
        }
    }

    fn send(&self, run: &RunId, hub: &Hub) {
        let Some((path, multi_turn)) = self.state().runs.get(run).cloned() else { return };
        let Some((_, (key, messages))) = best(&self.messages, &path) else { return };
        let number = self.state().sent.get(path.as_str()).copied().unwrap_or_default();
        let sent = match messages.get(number) {
            Some(content) => hub.command(Command::SendToRun {
                run: run.clone(),
                content: content.clone(),
                mode: MessageMode::FollowUp,
            }),
            // There are no more messages, so it need not wait.
            None if !multi_turn.is_off() => hub.command(Command::Close { run: run.clone() }),
            None => Ok(()),
        };
        self.check(format!("messages.{key}"), sent);
    }

    fn check(&self, key: String, done: Result<(), Rejection>) {
        if let Err(refused) = done {
            self.state().failures.push(FailedExpectation::new(key, refused.to_string()));
        }
    }
}

impl PeopleState {
    /// Which question of its place this is, in this pass and in all, counting from 0.
    fn number(&mut self, path: &NodePath, prompt: &Prompt) -> (usize, usize) {
        if let Some(known) = self.numbers.get(&prompt.prompt_id) {
            return *known;
        }
        let mut next = |place: String| {
            let count = self.asked.entry(place).or_default();
            *count += 1;
            *count - 1
        };
        let number = (next(in_pass(path)), next(without_pass(path).to_owned()));
        self.numbers.insert(prompt.prompt_id.clone(), number);
        number
    }
}
