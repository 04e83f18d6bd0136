//! Commands of people to a session that died, sent again where they are not stored: an answer when its question is
//! asked again, a message when an agent listens and has answered those before.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use inspan_engine::{Filter, Hub, Observer};
use inspan_protocol::{Command, Envelope, Event, Prompt, PromptId};

use super::case::Commanded;

/// The result of a command, refused or not.
const EFFECTS: &[&str] = &[
    "session:reply",
    "session:message",
    "session:close",
    "session:pause",
    "session:abort",
    "session:rejected",
];

/// Commands that are still to be given.
pub(crate) struct Commands {
    _observer: Observer,
}

struct RemainingCommands {
    commands: VecDeque<Commanded>,
    /// Whether messages wait that no turn has taken.
    undelivered: bool,
    /// The places of the questions that were asked, those that were open at the end included.
    asked: BTreeSet<String>,
}

impl Commands {
    pub(crate) fn start(hub: &Hub, before: &[Arc<Envelope>], commands: &[Commanded]) -> Self {
        let given = before.iter().filter(|envelope| EFFECTS.contains(&envelope.event.name())).count();
        let commands = commands.iter().skip(given).cloned().collect();
        let left = RemainingCommands { commands, undelivered: false, asked: BTreeSet::new() };
        let left = Arc::new(Mutex::new(left));
        let of_hub = hub.clone();
        let observe = move |envelope: &Arc<Envelope>| {
            while let Some(command) = next(&left, &of_hub, &envelope.event) {
                // A refusal is part of the log.
                let _refused = of_hub.command(command);
            }
        };
        Self { _observer: hub.observe(Filter::all(), Arc::new(observe)) }
    }
}

/// The next command, if it is its turn.
fn next(left: &Mutex<RemainingCommands>, hub: &Hub, event: &Event) -> Option<Command> {
    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
    if let Event::AgentTurn { .. } = event {
        left.undelivered = false;
    }
    if let Event::SessionPrompt(Prompt { prompt_id, .. }) = event {
        left.asked.insert(place(prompt_id).to_owned());
    }
    let front = left.commands.front()?;
    let same = front.after.event == event.name();
    let newest = || hub.active_runs().pop();
    let listens = matches!(event, Event::AgentUsage { .. }) && !left.undelivered;
    let command = match &front.command {
        // Not before its question, which a later attempt asks under its own id.
        Command::Reply { prompt, content, choice } => {
            let asked = same && left.asked.contains(place(prompt));
            let prompt = match event {
                Event::SessionPrompt(Prompt { prompt_id, .. }) if place(prompt_id) == place(prompt) => {
                    prompt_id
                }
                _ => prompt,
            };
            let (prompt, content, choice) = (prompt.clone(), content.clone(), choice.clone());
            asked.then_some(Command::Reply { prompt, content, choice })
        }
        Command::Abort { .. } | Command::Pause { .. } => same.then(|| front.command.clone()),
        Command::SendToRun { content, mode, .. }
            if listens || (same && front.after.event == "agent:session") =>
        {
            let (content, mode) = (content.clone(), *mode);
            newest().map(|run| Command::SendToRun { run, content, mode })
        }
        Command::SendTo { .. } | Command::Send { .. } if listens => newest().map(|_| front.command.clone()),
        Command::Close { .. } if listens => newest().map(|run| Command::Close { run }),
        _ => None,
    }?;
    left.undelivered |=
        matches!(command, Command::SendToRun { .. } | Command::SendTo { .. } | Command::Send { .. });
    left.commands.pop_front();
    Some(command)
}

/// The place of the node that asks a question.
fn place(prompt: &PromptId) -> &str {
    prompt.as_str().rsplit_once('.').map_or(prompt.as_str(), |(place, _)| place)
}
