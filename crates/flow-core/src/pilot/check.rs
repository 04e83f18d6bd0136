//! Which commands a session takes, as far as its log says: checked before a command is accepted, by every driver.

use std::collections::{BTreeMap, VecDeque};

use inspan_protocol::{Command, Envelope, Event, NodePath, Prompt, PromptId, Rejection, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use super::Pilot;

/// How many answered questions and ended runs are known by name; of older ones it is only known that they are not open.
const MOST_KNOWN: usize = 1_000;

/// What the log says about runs and questions beyond the state of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Addressed {
    /// The active runs, each with its place.
    runs: BTreeMap<RunId, Option<NodePath>>,
    ended: VecDeque<RunId>,
    answered: VecDeque<PromptId>,
}

impl Addressed {
    pub(super) fn apply(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::AgentStart { run_id, .. } => {
                self.runs.insert(run_id.clone(), envelope.context.task.clone());
            }
            Event::AgentComplete { run_id, .. } => {
                self.runs.remove(run_id);
                push(&mut self.ended, run_id.clone());
            }
            Event::SessionPrompt(prompt) => self.answered.retain(|known| *known != prompt.prompt_id),
            Event::SessionReply { prompt_id, .. } => push(&mut self.answered, prompt_id.clone()),
            _ => {}
        }
    }
}

fn push<T>(known: &mut VecDeque<T>, one: T) {
    if known.len() == MOST_KNOWN {
        known.pop_front();
    }
    known.push_back(one);
}

impl Pilot {
    /// Refuses an answer that was given too late: the time of its question was up by then (`at`), and is now. Who gave it may
    /// have a clock that is ahead, and perhaps nobody has noticed yet that the time is up.
    pub fn check_time(&self, command: &Command, at: Timestamp, now: Timestamp) -> Result<(), Rejection> {
        let Command::Reply { prompt, .. } = command else { return Ok(()) };
        let open = self.run.state().prompts().iter().find(|open| open.prompt_id == *prompt);
        match open.is_some_and(|open| open.is_over(at.min(now))) {
            true => Err(Rejection::TimeIsUp(prompt.clone())),
            false => Ok(()),
        }
    }

    /// Refuses a command that could have no effect: an answer that fits no open question, a message to a run or a node
    /// that takes none, anything once the session has ended. Whether anything listens to a message for all is known only
    /// where the attempts run.
    pub fn check(&self, command: &Command) -> Result<(), Rejection> {
        if self.run.state().status().has_ended() {
            return Err(Rejection::NotActive);
        }
        command.check_text()?;
        match command {
            Command::Reply { prompt, content, choice } => {
                self.check_reply(prompt, |open| open.check(content.clone(), choice.clone()).map(drop))
            }
            Command::TakeDefault { prompt } => self.check_reply(prompt, |open| match open.default {
                Some(_) => Ok(()),
                None => Err(Rejection::NoDefault(prompt.clone())),
            }),
            Command::SendTo { node, .. } => {
                let is_open = |place: &Option<NodePath>| {
                    place.as_ref().is_some_and(|place| place.node() == node.as_str())
                };
                match self.addressed.runs.values().any(is_open) || self.run.is_about_to_talk(node.as_str()) {
                    true => Ok(()),
                    false => Err(Rejection::NoRunOfNode(node.clone())),
                }
            }
            Command::SendToRun { run, .. } | Command::Close { run } => {
                let Addressed { runs, ended, .. } = &self.addressed;
                match (runs.contains_key(run), ended.contains(run)) {
                    (true, _) => Ok(()),
                    (false, true) => Err(Rejection::RunEnded(run.clone())),
                    (false, false) => Err(Rejection::UnknownRun(run.clone())),
                }
            }
            Command::Send { .. } | Command::Pause { .. } | Command::Abort { .. } => Ok(()),
        }
    }

    /// The places of the agents that may get a message, or are to read none after it: those at work, and those about to be.
    pub fn receivers(&self, command: &Command) -> Vec<NodePath> {
        match command {
            Command::Send { .. } => self.run.talkers(|_, _| true),
            Command::SendTo { node, .. } => self.run.talkers(|id, _| id == node),
            Command::SendToRun { run, .. } | Command::Close { run } => {
                let place = self.addressed.runs.get(run).cloned().flatten();
                self.run.talkers(|_, path| place.as_ref() == Some(path))
            }
            _ => Vec::new(),
        }
    }

    fn check_reply(
        &self,
        prompt: &PromptId,
        fits: impl FnOnce(&Prompt) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        let open = self.run.state().prompts().iter().find(|open| open.prompt_id == *prompt);
        match open {
            Some(open) => fits(open),
            None if self.addressed.answered.contains(prompt) => {
                Err(Rejection::AlreadyAnswered(prompt.clone()))
            }
            None => Err(Rejection::UnknownPrompt(prompt.clone())),
        }
    }
}
