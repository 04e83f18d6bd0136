//! The commands that others posted to the store: which are carried out now, and which must wait.

use std::collections::BTreeSet;

use inspan_engine::Hub;
use inspan_protocol::{Command, SessionStatus};

use super::Driver;
use inspan_flow_core::Run;
use inspan_store::PostedCommand;

use crate::error::RunError;

/// Commands that are open and cannot be carried out yet.
#[derive(Default)]
pub(super) struct Waiting {
    commands: Vec<PostedCommand>,
    /// Those that were posted before this process resumed the session.
    stored: BTreeSet<u64>,
}

impl Driver {
    /// Carries out the open commands that `wanted` names and whose time has come. Gives whether there were any.
    pub(super) async fn obey(&mut self, wanted: impl Fn(&Command) -> bool) -> Result<bool, RunError> {
        let Some(keeper) = &mut self.keeper else { return Ok(false) };
        if let Some(open) = keeper.commands().await? {
            self.waiting.commands = open;
        }
        if self.waiting.commands.is_empty() {
            return Ok(false);
        }
        let mut any = false;
        for posted in std::mem::take(&mut self.waiting.commands) {
            if wanted(&posted.command)
                && !is_early(self.pilot.run(), &self.root, &posted, &self.waiting.stored)
            {
                keeper.carry_out(posted.number, posted.command, &self.root);
                any = true;
            } else {
                self.waiting.commands.push(posted);
            }
        }
        if any {
            keeper.settle().await?;
            self.learn()?;
        }
        Ok(any)
    }

    /// Takes note of what was posted while nobody drove the session. A pause that nobody saw before the session came
    /// to rest has its effect already.
    pub(super) async fn take_stored(&mut self) -> Result<(), RunError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        for posted in keeper.commands().await?.unwrap_or_default() {
            if matches!(posted.command, Command::Pause { .. }) {
                keeper.accept(posted.number);
            } else {
                self.waiting.stored.insert(posted.number);
                self.waiting.commands.push(posted);
            }
        }
        keeper.settle().await
    }

    /// Answers what is open when the session ends or comes to rest, as far as it can be answered, and stores the end.
    pub(in crate::runtime) async fn store_end(&mut self) -> Result<(), RunError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        keeper.in_flight = false;
        keeper.look_again();
        // A store that cannot be read has no end to be stored either.
        let open = keeper.commands().await.unwrap_or_default().unwrap_or_default();
        let status = self.pilot.run().state().status();
        for PostedCommand { number, command, .. } in open {
            if status.has_ended() {
                keeper.carry_out(number, command, &self.root);
            } else if matches!(command, Command::Pause { .. }) && status == SessionStatus::Paused {
                keeper.accept(number);
            }
        }
        keeper.flush().await
    }
}

/// Whether a command is for something that is about to be there: a question that will be asked again, an agent
/// that is about to begin. A message that was stored while nobody drove the session waits for the first run that
/// takes it.
fn is_early(run: &Run, hub: &Hub, posted: &PostedCommand, stored: &BTreeSet<u64>) -> bool {
    let waits = |talks: bool| talks || stored.contains(&posted.number);
    match &posted.command {
        Command::Reply { prompt, .. } => {
            let known = run.state().prompts().iter().any(|open| open.prompt_id == *prompt);
            known && !hub.open_prompts().iter().any(|open| open.prompt_id == *prompt)
        }
        Command::SendTo { node, .. } => {
            !hub.has_taker(&posted.command) && waits(run.is_about_to_talk(node.as_str()))
        }
        Command::Send { .. } => !hub.has_taker(&posted.command) && waits(run.any_is_about_to_talk()),
        _ => false,
    }
}
