//! The commands that others left in the store: which are carried out now, and which must wait.

use inspan_engine::Hub;
use inspan_protocol::Command;

use super::Driver;
use crate::{error::RunError, schedule::Run, store::PostedCommand};

impl Driver {
    /// Carries out the commands that others left in the store, but those that `wanted` leaves for later. Gives
    /// whether there were any.
    pub(super) async fn obey(&mut self, wanted: impl Fn(&Command) -> bool) -> Result<bool, RunError> {
        let Some(keeper) = &mut self.keeper else { return Ok(false) };
        let posted = keeper.commands().await?;
        if posted.is_empty() {
            return Ok(false);
        }
        let (mut later, mut any) = (false, false);
        for PostedCommand { number, command, .. } in posted {
            if wanted(&command) && !is_early(&self.run, &self.root, &command) {
                keeper.carry_out(number, command, &self.root);
                any = true;
            } else {
                later = true;
            }
        }
        keeper.settle().await?;
        if later {
            keeper.look_again();
        }
        self.learn()?;
        Ok(any)
    }

    /// A wish to pause that nobody heard before the session came to rest is granted already.
    pub(super) async fn grant_old_pauses(&mut self) -> Result<(), RunError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        for PostedCommand { number, command, .. } in keeper.commands().await? {
            if matches!(command, Command::Pause { .. }) {
                keeper.accept(number);
            }
        }
        keeper.look_again();
        keeper.settle().await
    }
}

/// Whether a command is for something that is about to be there: a question that will be asked again, an agent
/// that is about to go on.
fn is_early(run: &Run, hub: &Hub, command: &Command) -> bool {
    match command {
        Command::Reply { prompt, .. } => {
            let known = run.state().prompts.iter().any(|open| open.prompt_id == *prompt);
            known && !hub.open_prompts().iter().any(|open| open.prompt_id == *prompt)
        }
        Command::SendTo { node, .. } => run.is_about_to_talk(node.as_str()),
        _ => false,
    }
}
