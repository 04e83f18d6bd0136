//! Messages that were accepted, and that no agent has got yet. If the worker of an agent is lost, they go to the agent's next
//! attempt.

use std::collections::BTreeSet;

use inspan_protocol::{Command, CommandKind, Event, NodePath, Redactor};

/// The messages that no agent has got, in their order.
#[derive(Default)]
pub(super) struct Outbox(Vec<PendingMail>);

struct PendingMail {
    command: Command,
    /// The places of the agents that are to get it and have not.
    to: BTreeSet<NodePath>,
    /// Whether some other has got it.
    is_received: bool,
}

impl Outbox {
    /// Takes a message for the agents at these places; others may have received it already.
    pub(super) fn put(&mut self, command: Command, to: Vec<NodePath>, is_received: bool) {
        let to: BTreeSet<_> = to.into_iter().collect();
        if !to.is_empty() {
            self.0.push(PendingMail { command, to, is_received });
        }
    }

    /// Takes an event of the attempt at a place: the oldest message that it tells of has come there.
    pub(super) fn note(&mut self, place: &NodePath, event: &Event, redactor: &Redactor) {
        let told = |message: &&mut PendingMail| {
            message.to.contains(place) && tells_of(&message.command, event, redactor)
        };
        if let Some(message) = self.0.iter_mut().find(told) {
            message.is_received = true;
            message.to.remove(place);
        }
        self.0.retain(|message| !message.to.is_empty());
    }

    /// What the next attempt at a place is to get.
    pub(super) fn of(&self, place: &NodePath) -> Vec<Command> {
        let messages = self.0.iter().filter(|message| message.to.contains(place));
        messages.map(|message| message.command.clone()).collect()
    }

    /// No attempt follows at a place. Gives the messages that now nobody gets.
    pub(super) fn close(&mut self, place: &NodePath) -> Vec<CommandKind> {
        let mut lost = Vec::new();
        self.0.retain_mut(|message| {
            let was_last = message.to.remove(place) && message.to.is_empty();
            // A run that has ended is closed.
            if was_last && !message.is_received && !matches!(message.command, Command::Close { .. }) {
                lost.push(message.command.kind());
            }
            !message.to.is_empty()
        });
        lost
    }
}

/// Whether an attempt says by an event that a command was carried out. The event has no secrets.
pub(super) fn tells_of(command: &Command, event: &Event, redactor: &Redactor) -> bool {
    let is_said = |content: &String, said: &String| content == said || redactor.text(content) == *said;
    match (command, event) {
        (Command::Send { content }, Event::SessionMessage { content: said, run_id: None, .. })
        | (
            Command::SendTo { content, .. } | Command::SendToRun { content, .. },
            Event::SessionMessage { content: said, run_id: Some(_), .. },
        ) => is_said(content, said),
        (Command::Close { .. }, Event::SessionClose { .. }) => true,
        _ => false,
    }
}

/// Whether no attempt follows this event of a node.
pub(super) fn ends_node(event: &Event) -> bool {
    matches!(event, Event::TaskComplete { .. } | Event::TaskFailed { will_retry: false, .. })
}
