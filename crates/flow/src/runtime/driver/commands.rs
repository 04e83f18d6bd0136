//! The commands that other processes posted to the store: which are executed now, and which must wait.

use std::collections::BTreeSet;

use inspan_engine::Hub;
use inspan_protocol::{Command, Event, Rejection, SessionStatus};

use super::Driver;
use inspan_flow_core::{Pilot, Run};
use inspan_store::{PostedCommand, Verdict};

use crate::error::RunError;

/// Open commands that cannot be executed yet.
#[derive(Default)]
pub(super) struct OpenCommands {
    commands: Vec<PostedCommand>,
    /// Those that were posted before this process resumed the session.
    stored: BTreeSet<u64>,
}

impl Driver {
    /// Executes the open commands that `wanted` selects and that are not early. Returns whether there were any.
    pub(super) async fn poll_commands(
        &mut self,
        wanted: impl Fn(&Command) -> bool,
    ) -> Result<bool, RunError> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        if let Some(open) = writer.commands().await? {
            self.waiting.commands = open;
        }
        if self.waiting.commands.is_empty() {
            return Ok(false);
        }
        // What the commands are about, such as a question, has happened before they were posted.
        self.apply_new_events()?;
        let Some(writer) = &mut self.writer else { return Ok(false) };
        let mut any = false;
        for posted in std::mem::take(&mut self.waiting.commands) {
            if wanted(&posted.command)
                && !is_early(self.pilot.run(), &self.root, &posted, &self.waiting.stored)
            {
                let verdict = execute(&self.pilot, &self.root, &posted);
                writer.answer(posted.number, verdict);
                any = true;
            } else {
                self.waiting.commands.push(posted);
            }
        }
        if any {
            writer.settle().await?;
            self.apply_new_events()?;
        }
        Ok(any)
    }

    /// Reads what was posted while no process ran the session. A pause that arrived after the session had stopped has
    /// already taken effect; one that came since this process took the session is for this process.
    pub(super) async fn take_stored(&mut self) -> Result<(), RunError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        for posted in writer.commands().await?.unwrap_or_default() {
            let is_before = posted.number <= writer.held.posted_before;
            if is_before && matches!(posted.command, Command::Pause { .. }) {
                writer.answer(posted.number, Verdict::Accepted);
            } else {
                self.waiting.stored.insert(posted.number);
                self.waiting.commands.push(posted);
            }
        }
        writer.settle().await
    }

    /// Answers the open commands that can be answered when the session ends or pauses, and stores the end.
    pub(in crate::runtime) async fn store_end(&mut self) -> Result<(), RunError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.in_flight = false;
        writer.recheck_commands();
        // If the store cannot be read, the end cannot be stored either.
        let open = writer.commands().await.unwrap_or_default().unwrap_or_default();
        let status = self.pilot.run().state().status();
        for posted in open {
            if status.has_ended() {
                writer.answer(posted.number, execute(&self.pilot, &self.root, &posted));
            } else if matches!(posted.command, Command::Pause { .. }) && status == SessionStatus::Paused {
                writer.answer(posted.number, Verdict::Accepted);
            }
        }
        writer.flush().await
    }
}

/// Executes a command, if the log says that it can have an effect, and if it is no answer that was too late.
fn execute(pilot: &Pilot, hub: &Hub, posted: &PostedCommand) -> Verdict {
    let command = posted.command.clone();
    let in_time = pilot.check_time(&command, posted.at, hub.clock().now());
    let checked = match in_time.and_then(|()| pilot.check(&command)) {
        // A run that is not a node's is known to the hub alone.
        Err(Rejection::UnknownRun(run)) if hub.active_runs().contains(&run) => Ok(()),
        checked => checked,
    };
    let done = match checked {
        Ok(()) => carry_out(pilot, hub, command),
        Err(rejection) => {
            hub.emit(Event::SessionRejected { command: command.kind(), reason: rejection.to_string() });
            Err(rejection)
        }
    };
    match done {
        Ok(()) => Verdict::Accepted,
        Err(rejection) => Verdict::Refused(hub.redacted(rejection.to_string())),
    }
}

fn carry_out(pilot: &Pilot, hub: &Hub, command: Command) -> Result<(), Rejection> {
    match command {
        Command::Reply { prompt, content, choice } => match pilot.run().asked_before(&prompt) {
            Some(asked) => hub.reply_to(asked, content, choice),
            None => hub.reply(prompt, content, choice),
        },
        command => hub.command(command),
    }
}

/// Whether a command is for something that will exist soon: a question that will be asked again, an agent that is
/// about to begin. A message that was stored while no process ran the session waits for the first run that takes it, and
/// an answer that was stored too late waits for what becomes of its question without it.
fn is_early(run: &Run, hub: &Hub, posted: &PostedCommand, stored: &BTreeSet<u64>) -> bool {
    let waits = |talks: bool| talks || stored.contains(&posted.number);
    match &posted.command {
        Command::Reply { prompt, .. } => {
            let Some(open) = run.state().prompts().iter().find(|open| open.prompt_id == *prompt) else {
                return false;
            };
            let is_late = stored.contains(&posted.number) && open.is_over(posted.at);
            let is_asked = || hub.open_prompts().iter().any(|open| open.prompt_id == *prompt);
            is_late || !(is_asked() || run.asked_before(prompt).is_some())
        }
        Command::SendTo { node, .. } => {
            !hub.has_taker(&posted.command) && waits(run.is_about_to_talk(node.as_str()))
        }
        Command::Send { .. } => !hub.has_taker(&posted.command) && waits(run.any_is_about_to_talk()),
        _ => false,
    }
}
