//! The running scripted model server: starts it on loopback, returns what it has recorded, stops it when
//! dropped.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::serve::ListenerExt;
use tokio::sync::oneshot;

use crate::record::RecordedRequest;
use crate::scenario::{Scenario, ScenarioError};
use crate::script::ServerState;

mod handle;
mod send;
mod shared;

use self::shared::Shared;

/// A scripted model on `127.0.0.1`, on a port that the system chose.
///
/// It runs on its own thread, in real time: a test may block, use no runtime at all, or pause its own
/// clock, and the server still answers. Dropping it closes every connection and ends the thread.
#[derive(Debug)]
pub struct ModelServer {
    shared: Arc<Shared>,
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Where a server listens, and who is notified of each request.
#[derive(Debug, Default)]
pub struct Listening {
    /// The port; 0, as by default, means that the system chooses.
    pub port: u16,
    /// Gets each request when its exchange has ended, in that order. While the channel is full the server waits, so
    /// the receiver has to read until it closes. None by default.
    pub ended: Option<SyncSender<RecordedRequest>>,
}

/// Why the server cannot run, or did not see what was waited for.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The scenario contradicts itself.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// No loopback port, thread or runtime is available.
    #[error("the scripted model server cannot start")]
    Start(#[from] std::io::Error),
    /// The requests never came to look like that.
    #[error("the scripted model server did not see what was waited for within {within:?}; it saw {seen}")]
    TimedOut {
        /// How long it waited.
        within: Duration,
        /// Each request with its ending.
        seen: String,
    },
}

impl ModelServer {
    /// Starts a server that answers by this scenario. When it returns, the port takes connections.
    ///
    /// # Errors
    /// The scenario contradicts itself, or the system refuses a port or a thread.
    pub fn start(scenario: Scenario) -> Result<Self, ServerError> {
        Self::start_as(scenario, Listening::default())
    }

    /// As [`ModelServer::start`], on a port of the caller's choice and with a receiver of each request.
    ///
    /// # Errors
    /// The scenario contradicts itself, or the port is taken, or the system refuses a thread.
    pub fn start_as(scenario: Scenario, listening: Listening) -> Result<Self, ServerError> {
        scenario.check()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, listening.port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let shared = Arc::new(Shared::new(scenario, listening.ended));
        let app = handle::app(Arc::clone(&shared));
        let (stop, stopped) = oneshot::channel();
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            // Without this, small events would wait for each other's acknowledgement.
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            tokio::select! {
                served = async { axum::serve(listener, app).await } => served,
                _ = stopped => Ok(()),
            }
        };
        let thread = std::thread::Builder::new().name("scripted-model".to_owned()).spawn(move || {
            // An error here leaves a closed port, which every client sees as a refused connection. Dropping
            // the runtime drops every connection, in whatever state it is.
            drop(runtime.block_on(serve));
        })?;
        Ok(Self { shared, port, stop: Some(stop), thread: Some(thread) })
    }

    /// `http://127.0.0.1:PORT`, without a slash at its end.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// How clients of each vendor are led here.
    #[must_use]
    pub fn endpoints(&self) -> Endpoints {
        Endpoints::at(self.base_url())
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The latest requests, oldest first, at most [`HISTORY_LIMIT`](crate::HISTORY_LIMIT).
    #[must_use]
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.requests()
    }

    /// How far the script has come.
    #[must_use]
    pub fn state(&self) -> ServerState {
        self.shared.state()
    }

    /// Starts another scenario from its first turn; requests under way get their old answer.
    ///
    /// # Errors
    /// The scenario contradicts itself; the old one stays then.
    pub fn replace(&self, scenario: Scenario) -> Result<(), ServerError> {
        scenario.check()?;
        self.shared.replace(scenario);
        Ok(())
    }

    /// Blocks this thread until the requests fit, and returns them.
    ///
    /// # Errors
    /// They did not within that time.
    #[expect(
        clippy::disallowed_methods,
        reason = "the server runs in real time whatever the test does to its own"
    )]
    pub fn wait_until(
        &self,
        within: Duration,
        mut fits: impl FnMut(&[RecordedRequest]) -> bool,
    ) -> Result<Vec<RecordedRequest>, ServerError> {
        let deadline = Instant::now() + within;
        loop {
            let requests = self.requests();
            if fits(&requests) {
                return Ok(requests);
            }
            if Instant::now() >= deadline {
                return Err(timed_out(within, &requests));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the requests fit, and returns them. The time runs on the caller's tokio clock.
    ///
    /// # Errors
    /// They did not within that time.
    pub async fn until(
        &self,
        within: Duration,
        fits: impl FnMut(&[RecordedRequest]) -> bool,
    ) -> Result<Vec<RecordedRequest>, ServerError> {
        match tokio::time::timeout(within, self.shared.until(fits)).await {
            Ok(requests) => Ok(requests),
            Err(_) => Err(timed_out(within, &self.requests())),
        }
    }

    /// Stops the server and returns what it saw; exchanges still open end as `ServerStopped`.
    #[must_use]
    pub fn stop(mut self) -> Vec<RecordedRequest> {
        self.shut_down();
        self.requests()
    }

    fn shut_down(&mut self) {
        self.shared.mark_stopping();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic on that thread has been printed there; the tests that met it fail by what they saw.
            drop(thread.join());
        }
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn timed_out(within: Duration, seen: &[RecordedRequest]) -> ServerError {
    let seen: Vec<String> = seen
        .iter()
        .map(|request| format!("{} {} ({:?})", request.method, request.path, request.ending))
        .collect();
    let seen = if seen.is_empty() { "no request".to_owned() } else { seen.join(", ") };
    ServerError::TimedOut { within, seen }
}

/// The addresses of one model server.
///
/// ```
/// # use inspan_model_server::Endpoints;
/// let endpoints = Endpoints::at("http://127.0.0.1:4321");
/// assert_eq!(endpoints.variables()[1], ("OPENAI_BASE_URL", "http://127.0.0.1:4321/v1".to_owned()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    base: String,
}

impl Endpoints {
    /// Those of a server at this address, which has no slash at its end.
    #[must_use]
    pub fn at(base: impl Into<String>) -> Self {
        Self { base: base.into() }
    }

    /// For clients of the Anthropic format.
    #[must_use]
    pub fn anthropic(&self) -> String {
        self.base.clone()
    }

    /// For clients of both OpenAI formats.
    #[must_use]
    pub fn openai(&self) -> String {
        format!("{}/v1", self.base)
    }

    /// The variables in which clients look for an address, Claude Code among them. The keys are up to the caller: any
    /// will do.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("ANTHROPIC_BASE_URL", self.anthropic()),
            ("OPENAI_BASE_URL", self.openai()),
            ("GOOGLE_GEMINI_BASE_URL", self.base.clone()),
        ]
    }
}

#[cfg(test)]
mod tests;
