//! The console as a channel of the session: shows its events and asks a person its questions; without a
//! person, it answers them with their defaults or ends the session.

use std::{
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use inspan_engine::{Channel, Clock, Hub, SystemClock};
use inspan_flow::Graph;
use inspan_protocol::{BoxError, Command, Envelope, Event, EventContext, LogLevel, Prompt, SessionId};
use serde_json::Map;

use super::{CommandSink, report::SessionReport};
use crate::{
    console::{AnswerSinks, Painter, Setting},
    exit::Exit,
    invocation::Invocation,
};
use inspan_view::{Commands, SessionView};

/// The console of a session and what it needs of it.
pub(super) struct SessionConsole {
    painter: Painter,
    router: Arc<PromptRouter>,
    commands: Commands,
}

/// What happens to a question when no person is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unattended {
    /// It waits for an answer from another process.
    Wait,
    /// The process exits, and the session can be resumed.
    Leave,
    /// Its default is taken; without one the process exits, and the session can be resumed.
    DefaultOrLeave,
    /// Its default is taken; without one the session is stopped, since it is not stored.
    DefaultOrStop,
}

struct PromptRouter {
    commands: OnceLock<CommandSink>,
    unattended: Unattended,
    /// Questions that only a person could have answered.
    waiting: Mutex<Vec<Prompt>>,
}

impl SessionConsole {
    /// `history` is what happened in the session before.
    pub(super) fn new(
        graph: &Arc<Graph>,
        invocation: &Invocation,
        unattended: Unattended,
        history: &[Arc<Envelope>],
    ) -> Self {
        let setting = Setting::of_process(invocation.terminal);
        let mut state = SessionView::new(graph);
        history.iter().for_each(|envelope| state.apply(envelope));
        state.end_history();
        let router = PromptRouter { commands: OnceLock::new(), unattended, waiting: Mutex::default() };
        Self {
            painter: Painter::new(state, setting),
            router: Arc::new(router),
            commands: invocation.commands(),
        }
    }

    /// Shows a line that is not an event of the session.
    pub(super) fn notice(&self, line: &str) {
        let nowhere = EventContext::session(SessionId::from(""));
        let event = Event::Log { level: LogLevel::Warn, message: line.to_owned(), fields: Map::new() };
        self.painter.event(&Envelope::new(nowhere, 0, SystemClock.now(), event));
    }

    /// Sends what people say there. Before the session begins.
    pub(super) fn take_commands(&self, commands: CommandSink) {
        // A session has one place that takes its commands.
        let _ = self.router.commands.set(commands);
    }

    /// Starts to show events and to take answers.
    pub(super) fn begin(&self) -> io::Result<()> {
        let router: Arc<dyn AnswerSinks> = Arc::<PromptRouter>::clone(&self.router);
        self.painter.start(router)
    }

    /// Shows an event.
    pub(super) fn show(&self, envelope: &Envelope) {
        self.painter.event(envelope);
    }

    /// Stops showing events; the session as it was seen.
    pub(super) fn stop(&self) -> SessionView {
        self.painter.stop()
    }

    /// Reports how the session went. After [`SessionConsole::stop`].
    pub(super) fn summarise(&self, mut state: SessionView, report: &SessionReport<'_>) {
        state.set_final(report.nodes());
        match report.idle() {
            Some((outcome, duration_ms)) => state.set_paused(outcome, duration_ms),
            None if report.exit == Exit::Waiting => state.set_unattended(),
            None => {}
        }
        self.painter.summarise(&state, &report.hints(&self.commands));
    }

    /// The questions that ended the session.
    pub(super) fn waiting(&self) -> Vec<Prompt> {
        self.router.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Channel for SessionConsole {
    fn name(&self) -> &str {
        "console"
    }

    async fn on_start(&self, _: Hub) -> Result<(), BoxError> {
        if self.router.unattended == Unattended::Wait {
            super::detach::tell_begun();
        }
        Ok(self.begin().map_err(|error| format!("failed to start the console: {error}"))?)
    }

    async fn on_event(&self, envelope: &Arc<Envelope>) -> Result<(), BoxError> {
        self.show(envelope);
        Ok(())
    }
}

impl AnswerSinks for PromptRouter {
    fn send(&self, command: Command) -> Result<(), String> {
        let commands = self.commands.get().ok_or("the session has not started")?;
        commands(command)
    }

    fn nobody(&self, question: &Prompt) {
        if self.unattended == Unattended::Wait {
            return;
        }
        if self.unattended != Unattended::Leave && question.default.is_some() {
            // A refusal is in the log; another answer was faster.
            let _ = self.send(Command::TakeDefault { prompt: question.prompt_id.clone() });
            return;
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(question.clone());
        if self.unattended == Unattended::DefaultOrStop {
            let node = question.task.as_ref().map_or("the flow".to_owned(), |task| format!("node `{task}`"));
            let reason = Some(format!("{node} is waiting for a person, and no one can answer"));
            // A session that has ended meanwhile needs no stop.
            let _ = self.send(Command::Abort { reason });
        }
    }
}
