//! The process of a session and the decoder of what it says: started, greeted, given its key and its thread, asked
//! for a turn and ended. What happens in a turn is left to `turn.rs`.

use std::time::Duration;

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderSessionId, Redactor, StreamEvent,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::decode::{Decoded, Decoder};
use super::super::error::{LOGIN_HINT, died, refused};
use super::super::launch::{Key, Launch, Retries, Store};
use crate::transport::json_rpc::{CallError, Incoming, METHOD_NOT_FOUND, OurId, Peer, refuse};
use crate::transport::process::{Exit, Start};

/// How long the program may take from its start to an open thread.
const GREETING: Duration = Duration::from_secs(60);
/// How long the program may take to end the commands that an interrupted turn left running.
const CLEANING: Duration = Duration::from_secs(2);
/// Providers of models that are built in. The program takes no configuration for them.
const BUILT_IN: &[&str] = &["openai", "amazon-bedrock", "ollama", "lmstudio"];

/// A process that holds one thread.
#[derive(Debug)]
pub(in super::super) struct Link {
    pub(in super::super) peer: Peer,
    pub(in super::super) decoder: Decoder,
    pub(in super::super) session: ProviderSessionId,
    pub(in super::super) state: State,
    pub(in super::super) redactor: Redactor,
    /// What was said between turns and belongs to the next one.
    early: Vec<Decoded>,
}

/// Whether a turn is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum State {
    Idle,
    InTurn,
    /// The process was ended, or nobody knows what it does.
    Gone,
}

/// What the program says about its login.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Account {
    #[serde(default)]
    account: Option<Value>,
    #[serde(default)]
    requires_openai_auth: bool,
}

#[derive(Deserialize)]
struct Opened {
    thread: Thread,
    #[serde(default)]
    model: Option<String>,
}

#[derive(Deserialize)]
struct Thread {
    id: ProviderSessionId,
}

impl Link {
    /// Starts the program and opens the thread. Whatever keeps it from that, a cancellation too, the program is gone
    /// when this returns.
    pub(super) async fn open(
        launch: &Launch,
        earlier: Option<&ProviderSessionId>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let limit = context.deadline.map_or(GREETING, |deadline| deadline.min(GREETING));
        let store = if matches!(launch.key, Key::First(_)) { Store::Memory } else { Store::Own };
        let mut link = Self::start(launch, store, context)?;
        let opening =
            context.cancel.run_until_cancelled(timeout(limit, link.ready(launch, store, earlier, context)));
        let error = match opening.await {
            Some(Ok(Ok(()))) => return Ok(link),
            Some(Ok(Err(error))) => error,
            Some(Err(_)) => {
                let message =
                    format!("the program was not ready within {} ms of its start", limit.as_millis());
                AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Start)
            }
            None => {
                AgentError::new(ErrorCode::Aborted, "the call was cancelled before the program was ready")
            }
        };
        link.peer.process().kill().await;
        Err(error)
    }

    fn start(launch: &Launch, store: Store, context: &ExecutionContext) -> Result<Self, AgentError> {
        let redactor = launch.redactor();
        let peer = Peer::start(Start {
            program: launch.program.clone(),
            arguments: launch.arguments(store),
            environment: launch.environment(store),
            cwd: launch.cwd.clone(),
            supervisor: context.supervisor.clone(),
            redactor: redactor.clone(),
        })?;
        Ok(Self {
            peer,
            decoder: Decoder::default(),
            session: ProviderSessionId::from(""),
            state: State::Idle,
            redactor,
            early: Vec::new(),
        })
    }

    /// All that comes before the first turn.
    async fn ready(
        &mut self,
        launch: &Launch,
        store: Store,
        earlier: Option<&ProviderSessionId>,
        context: &ExecutionContext,
    ) -> Result<(), AgentError> {
        self.greet().await?;
        if let LogIn::Elsewhere(store) = self.log_in(launch, store).await? {
            self.break_off().await;
            *self = Self::start(launch, store, context)?;
            self.greet().await?;
            self.log_in(launch, store).await?;
        }
        self.open_thread(launch, earlier).await
    }

    async fn greet(&mut self) -> Result<(), AgentError> {
        let us = json!({ "name": "inspan", "title": "Inspan", "version": env!("CARGO_PKG_VERSION") });
        // Ending the commands that an interrupt leaves behind is an experimental method.
        let params = json!({ "clientInfo": us, "capabilities": { "experimentalApi": true } });
        let _greeting: Value = self.call("initialize", params).await?;
        self.peer.notify("initialized", json!({}))
    }

    /// Sees to it that the program has a login or key, if the provider of its model wants one.
    async fn log_in(&mut self, launch: &Launch, store: Store) -> Result<LogIn, AgentError> {
        let account: Account = self.call("account/read", json!({})).await?;
        if !account.requires_openai_auth {
            // Another provider of models takes its key from the environment, which has to be whole then.
            return Ok(if store == Store::Memory { LogIn::Elsewhere(Store::Own) } else { LogIn::Done });
        }
        if account.account.is_some() {
            return Ok(LogIn::Done);
        }
        match (&launch.key, store) {
            (Key::First(key) | Key::Else(key), Store::Memory) => {
                let params = json!({ "type": "apiKey", "apiKey": key });
                let _done: Value = self.call("account/login/start", params).await?;
                Ok(LogIn::Done)
            }
            (Key::First(_) | Key::Else(_), Store::Own) => Ok(LogIn::Elsewhere(Store::Memory)),
            (Key::None, _) => {
                self.break_off().await;
                let message = format!("the program has no login and no key; {LOGIN_HINT}");
                Err(AgentError::new(ErrorCode::Auth, message).with_kind(ErrorKind::NoLogin))
            }
        }
    }

    async fn open_thread(
        &mut self,
        launch: &Launch,
        earlier: Option<&ProviderSessionId>,
    ) -> Result<(), AgentError> {
        let mut params = launch.thread.clone();
        for (key, value) in self.retries(launch).await? {
            let config = params.entry("config").or_insert_with(|| json!({}));
            config[key] = value;
        }
        let opened: Opened = if let Some(id) = earlier {
            params.insert("threadId".to_owned(), json!(id));
            params.insert("excludeTurns".to_owned(), json!(true));
            self.call("thread/resume", params).await?
        } else {
            self.call("thread/start", params).await?
        };
        self.session = opened.thread.id.clone();
        self.decoder.open(opened.thread.id, opened.model);
        Ok(())
    }

    /// The overrides that keep the program from retrying by itself. Their keys name the provider of the model, which
    /// only the program's own configuration tells.
    async fn retries(&mut self, launch: &Launch) -> Result<Vec<(String, Value)>, AgentError> {
        if launch.retries == Retries::Chosen {
            return Ok(Vec::new());
        }
        let mut answer: Value = self.call("config/read", json!({})).await?;
        let config = answer["config"].take();
        let Some(provider) = config["model_provider"].as_str().filter(|id| !BUILT_IN.contains(id)) else {
            return Ok(Vec::new());
        };
        let unset = |key: &&str| config["model_providers"][provider][*key].is_null();
        let keys = ["request_max_retries", "stream_max_retries"].into_iter().filter(unset);
        Ok(keys.map(|key| (format!("model_providers.{provider}.{key}"), json!(0))).collect())
    }

    /// Makes a request outside of a turn. If it fails, the program was ended.
    async fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: impl serde::Serialize,
    ) -> Result<T, AgentError> {
        let each = |stdin: &_, message| match message {
            Incoming::Request { id, .. } => {
                // The one who is not heard dies of it or not, and either is seen.
                let _sent = refuse(stdin, &id, METHOD_NOT_FOUND, "nothing is offered outside of a turn");
                None
            }
            message => Some(message),
        };
        let error = match self.peer.call(method, params, GREETING, each).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let exit = self.break_off().await;
        Err(match error {
            CallError::Refused(error) => self.redacted(refused(method, &error)),
            CallError::Ended => {
                let process = self.peer.process();
                process.refused(exit).unwrap_or_else(|| died(exit, &process.stderr()))
            }
            CallError::Late => {
                let message = format!("the program did not answer `{method}` in time");
                AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Start)
            }
            CallError::Failed(error) => self.redacted(error),
        })
    }

    /// Asks for a turn.
    pub(super) fn begin(&mut self, params: Value) -> Result<OurId, AgentError> {
        self.catch_up()?;
        let id = self.peer.request("turn/start", params)?;
        self.decoder.begin();
        self.state = State::InTurn;
        Ok(id)
    }

    /// What was said before the turn.
    pub(super) fn early(&mut self) -> Vec<Decoded> {
        std::mem::take(&mut self.early)
    }

    /// Asks the program to end its turn.
    pub(in super::super) fn interrupt(&mut self, turn_id: &str) -> Result<(), AgentError> {
        let params = json!({ "threadId": self.session, "turnId": turn_id });
        self.peer.request("turn/interrupt", params).map(drop)
    }

    /// Ends the commands that an interrupted turn left running; if the program does not, it is ended itself.
    pub(in super::super) async fn clean(&mut self) {
        let params = json!({ "threadId": self.session });
        let keep = |_: &_, message| Some(message);
        let cleaned: Result<Value, _> =
            self.peer.call("thread/backgroundTerminals/clean", params, CLEANING, keep).await;
        if cleaned.is_err() {
            self.break_off().await;
        }
    }

    /// Reads what was said since the last turn, so that the next one begins at its own beginning.
    fn catch_up(&mut self) -> Result<(), AgentError> {
        while let Some(message) = self.peer.try_next() {
            for decoded in self.decoder.push(message) {
                match decoded {
                    Decoded::Fault(error) => return Err(error),
                    Decoded::Asked { id, .. }
                    | Decoded::Unsupported { id, .. }
                    | Decoded::Elicited { id } => {
                        let why = "no turn is in progress";
                        refuse(&self.peer.stdin(), &id, METHOD_NOT_FOUND, why)?;
                    }
                    Decoded::Event(StreamEvent::Warning { .. }) => self.early.push(decoded),
                    _ => {}
                }
            }
        }
        let process = self.peer.process();
        match process.exit() {
            Some(exit) => Err(died(exit, &process.stderr())),
            None => Ok(()),
        }
    }

    /// Whether another turn can begin.
    pub(super) fn is_ready(&mut self) -> bool {
        self.state == State::Idle && self.catch_up().is_ok()
    }

    /// Ends the process, whatever it does.
    pub(in super::super) async fn break_off(&mut self) -> Exit {
        self.state = State::Gone;
        self.peer.end().await
    }

    fn redacted(&self, mut error: AgentError) -> AgentError {
        error.message = self.redactor.text(&error.message);
        error
    }
}

/// Whether the program has what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogIn {
    Done,
    /// It has to be started with its login kept there: it would write a key to where the user's login is, or lacks a
    /// key that it was not to see.
    Elsewhere(Store),
}
