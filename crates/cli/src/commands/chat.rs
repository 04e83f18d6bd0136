//! `inspan chat`: a conversation with one agent, line by line, that can be saved in a file and continued.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use inspan_engine::{AgentSession, write_private};
use inspan_protocol::SessionState;

use super::{
    agent::{
        self,
        talk::{Between, ChatTurn, TerminalConversation, TerminalInput, is_interactive},
    },
    session,
};
use crate::{
    args::ChatArgs,
    commands::check_replaces,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    terminal,
};

/// The line that ends a conversation.
const QUIT: &str = "/quit";

pub(super) fn run(args: &ChatArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let state = args.resume.as_deref().map(read).transpose()?;
    let named = args.provider.as_deref().or(state.as_ref().map(|state| state.provider.as_str()));
    let (settings, invocation) = &agent::settings(invocation)?;
    let named = agent::named(named.or(settings.provider()))?;
    let provider = agent::provider(named, args.provider.as_deref())?;
    let options = agent::options(&args.how, named, settings, invocation);
    let session = match state {
        Some(state) => AgentSession::restore(Arc::clone(&provider), state, options),
        None => AgentSession::new(Arc::clone(&provider), options),
    }
    .map_err(|error| agent::refused(&error))?;
    // A file that cannot be written is reported before the conversation starts.
    if let Some(file) = &args.export {
        check_replaces(file, "a conversation", |file| read(file).is_ok())?;
    }
    export(&session, args.export.as_deref())?;
    let runtime = session::runtime()?;
    let ended = runtime.block_on(async {
        let ended = ChatCommand { session: &session, args, invocation }.lines().await;
        session.close();
        provider.shutdown().await;
        ended
    });
    runtime.shutdown_timeout(session::LEFTOVERS);
    ended
}

struct ChatCommand<'a> {
    session: &'a AgentSession,
    args: &'a ChatArgs,
    invocation: &'a Invocation,
}

impl ChatCommand<'_> {
    async fn lines(&self) -> Result<Exit, Failure> {
        let interactive = is_interactive(self.invocation);
        // What a program writes beforehand is one prompt a line, not what is typed meanwhile.
        let between = if interactive { Between::Message } else { Between::Nothing };
        let mut talk = TerminalConversation::new(self.session.clone(), self.invocation, between);
        if interactive {
            talk.note("/quit or Ctrl-D ends the chat, Ctrl-C interrupts the agent; while it works, a line is sent after its turn and !LINE steers it");
        }
        let mut warned = false;
        let exit = loop {
            if interactive {
                terminal::progress("› ");
            }
            let line = match talk.typed().await {
                TerminalInput::End => break Exit::Success,
                TerminalInput::Line(line) if interactive && line.trim() == QUIT => break Exit::Success,
                TerminalInput::Signal(Exit::Interrupted) if interactive && !warned => {
                    warned = true;
                    terminal::progress("\n");
                    talk.note("nothing is in progress; press Ctrl-C again, Ctrl-D or type /quit to end");
                    continue;
                }
                TerminalInput::Signal(exit) => break exit,
                TerminalInput::Line(line) if line.trim().is_empty() => continue,
                TerminalInput::Line(line) => line,
            };
            warned = false;
            let turned = talk.turn(line).await;
            export(self.session, self.args.export.as_deref())?;
            if let Some(exit) = self.report(&turned, &mut talk, interactive) {
                break exit;
            }
        };
        if interactive {
            terminal::progress("\n");
        }
        self.farewell(&mut talk)?;
        Ok(exit)
    }

    /// Reports an answer; the exit code if it ends the chat.
    fn report(
        &self,
        turned: &ChatTurn,
        talk: &mut TerminalConversation<'_>,
        interactive: bool,
    ) -> Option<Exit> {
        if self.invocation.form == OutputForm::Json {
            // One line for each answer, for a program that reads them as they come.
            terminal::json_line(&agent::report(&turned.end, turned.exit(), self.invocation).to_string());
        }
        if turned.by == Some(Exit::Terminated) {
            return Some(Exit::Terminated);
        }
        match &turned.end {
            Ok(_) => None,
            Err(_) if turned.by.is_some() && interactive => {
                talk.note("interrupted");
                None
            }
            Err(error) => {
                let failure = agent::failed(&error.error, turned.exit());
                terminal::progress(&failure.text(self.invocation.terminal.stderr));
                (!interactive).then(|| turned.exit())
            }
        }
    }

    /// Which conversation it was, and how to continue it.
    fn farewell(&self, talk: &mut TerminalConversation<'_>) -> Result<(), Failure> {
        let snapshot = self.session.snapshot().map_err(|error| agent::refused(&error))?;
        let id = snapshot.session_id.as_ref().map_or("no session", |id| id.as_str());
        let turns = if snapshot.turns == 1 { "turn" } else { "turns" };
        let kept = match &self.args.export {
            Some(file) => format!("continue with `inspan chat --resume {}`", file.display()),
            None => "not saved; `--export FILE` saves a conversation".to_owned(),
        };
        talk.note(&format!("{} {id}, {} {turns}; {kept}", snapshot.provider, snapshot.turns));
        Ok(())
    }
}

fn read(file: &Path) -> Result<SessionState, Failure> {
    let broken = |why: String| Failure::usage(format!("cannot continue {}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| broken(error.to_string()))?;
    AgentSession::read_state(&text).map_err(|error| broken(error.message))
}

/// Keeps the conversation: the file is the old one or the new one, whatever happens meanwhile.
fn export(session: &AgentSession, file: Option<&Path>) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    let state = session.export().map_err(|error| agent::refused(&error))?;
    let broken =
        |why: String| Failure::usage(format!("cannot save the conversation to {}: {why}", file.display()));
    let text = serde_json::to_string_pretty(&state).map_err(|error| broken(error.to_string()))?;
    let text = text + "\n";
    // A link stays: the file that it leads to is replaced.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let kind = fs::symlink_metadata(&target).ok().map(|found| found.file_type());
    let written = match kind {
        // It leads to a file that is not there yet.
        Some(kind) if kind.is_symlink() => write_private(file, text.as_bytes()),
        Some(kind) if !kind.is_file() => return Err(broken("it is not a file".to_owned())),
        _ => {
            let mut beside = target.as_os_str().to_owned();
            beside.push(format!(".{}.new", std::process::id()));
            let beside = PathBuf::from(beside);
            write_private(&beside, text.as_bytes()).and_then(|()| fs::rename(&beside, &target))
        }
    };
    written.map_err(|error| broken(error.to_string()))
}
