//! The console: a live session's events as lines or as a picture that is redrawn, and questions that are
//! answered on the terminal. It only watches the session. Programs that run flows themselves have it as a channel.

mod asker;
mod editor;
mod form;
mod painter;
mod plain;
mod question;
mod screen;
mod summary;
mod tree;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use inspan_engine::{Channel, Hub};
use inspan_flow::Graph;
use inspan_protocol::{BoxError, Command, Envelope, Prompt};

use crate::invocation;
use inspan_view::SessionView;

pub(crate) use asker::AnswerSinks;
pub(crate) use form::fields;
pub(crate) use painter::{Painter, Setting};
pub(crate) use plain::{ArgumentsDisplay, Detail, PlainLog, head};
pub(crate) use question::block as question;
pub(crate) use screen::restore;

/// Shows a session on standard error as `inspan run` does: a live picture on a terminal, lines elsewhere. A question is
/// asked at the terminal if a person is there; else its default is taken, or it waits for an answer from elsewhere.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use inspan_flow::{FlowRunner, Graph, NodeRegistry};
/// # async fn run(graph: Arc<Graph>, nodes: NodeRegistry) -> Result<(), inspan_flow::RunError> {
/// let console = Arc::new(inspan_cli::ConsoleChannel::new(&graph));
/// let runner = FlowRunner::builder(graph, nodes).channel(console).build();
/// runner.run(serde_json::Map::new()).await?;
/// # Ok(())
/// # }
/// ```
pub struct ConsoleChannel {
    painter: Arc<Painter>,
    answers: Arc<Replies>,
    is_over: Mutex<bool>,
}

/// Takes a person's answers to the session.
#[derive(Default)]
struct Replies(OnceLock<Hub>);

impl ConsoleChannel {
    /// The console for a session of this flow.
    pub fn new(graph: &Arc<Graph>) -> Self {
        let setting = Setting::of_process(invocation::terminal_of_process());
        Self {
            painter: Arc::new(Painter::new(SessionView::new(graph), setting)),
            answers: Arc::default(),
            is_over: Mutex::default(),
        }
    }

    /// Stops drawing and shows how the session went, once.
    fn finish(&self) {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *is_over, true) {
            let state = self.painter.stop();
            self.painter.summarise(&state, &[]);
        }
    }
}

impl Channel for ConsoleChannel {
    fn name(&self) -> &str {
        "console"
    }

    async fn on_start(&self, hub: Hub) -> Result<(), BoxError> {
        // A session starts its channels once.
        let _ = self.answers.0.set(hub);
        let answers: Arc<dyn AnswerSinks> = Arc::<Replies>::clone(&self.answers);
        let started =
            self.painter.start(answers).map_err(|error| format!("failed to start the console: {error}"));
        Ok(started?)
    }

    async fn on_event(&self, envelope: &Arc<Envelope>) -> Result<(), BoxError> {
        self.painter.event(envelope);
        Ok(())
    }

    async fn on_complete(&self) -> Result<(), BoxError> {
        self.finish();
        Ok(())
    }
}

impl Drop for ConsoleChannel {
    fn drop(&mut self) {
        self.finish();
    }
}

impl AnswerSinks for Replies {
    fn send(&self, command: Command) -> Result<(), String> {
        let hub = self.0.get().ok_or("the session has not started")?;
        hub.command(command).map_err(|error| error.to_string())
    }

    fn nobody(&self, question: &Prompt) {
        if question.default.is_some() {
            // A refusal is in the log; another answer was faster.
            let _ = self.send(Command::TakeDefault { prompt: question.prompt_id.clone() });
        }
    }
}
