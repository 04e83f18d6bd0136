//! What people said to a session that died, said again where it is not on record: an answer when its question is asked
//! again, a message when an agent listens and has answered those before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use inspan_engine::{Filter, Hub, Observer};
use inspan_protocol::{Command, Envelope, Event, Prompt};

use super::case::Commanded;

/// What comes of a command, refused or not.
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

struct Left {
    commands: VecDeque<Commanded>,
    /// Whether messages wait that no turn has taken.
    undelivered: bool,
}

impl Commands {
    pub(crate) fn start(hub: &Hub, before: &[Arc<Envelope>], commands: &[Commanded]) -> Self {
        let given = before.iter().filter(|envelope| EFFECTS.contains(&envelope.event.name())).count();
        let commands = commands.iter().skip(given).cloned().collect();
        let left = Arc::new(Mutex::new(Left { commands, undelivered: false }));
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
fn next(left: &Mutex<Left>, hub: &Hub, event: &Event) -> Option<Command> {
    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
    if let Event::AgentTurn { .. } = event {
        left.undelivered = false;
    }
    let front = left.commands.front()?;
    let same = front.after.event == event.name();
    let newest = || hub.active_runs().pop();
    let listens = matches!(event, Event::AgentUsage { .. }) && !left.undelivered;
    let command = match &front.command {
        Command::Reply { .. } | Command::Abort { .. } | Command::Pause { .. } => {
            same.then(|| front.command.clone())
        }
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
    let asked = match (&command, event) {
        // Not before its question.
        (Command::Reply { prompt, .. }, Event::SessionPrompt(Prompt { prompt_id, .. })) => {
            prompt.as_str() <= prompt_id.as_str()
        }
        _ => true,
    };
    if !asked {
        return None;
    }
    left.undelivered |=
        matches!(command, Command::SendToRun { .. } | Command::SendTo { .. } | Command::Send { .. });
    left.commands.pop_front();
    Some(command)
}
