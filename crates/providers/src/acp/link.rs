//! The process of a session and the decoder of what it says: started, greeted, its session opened, and ended.
//! What is chosen in the session is left to `link/choices.rs`, turns to `turn.rs`.

use std::time::Duration;

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderSessionId, Redactor, StreamEvent, Supervisor,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::decode::{Decoded, Decoder};
use super::error::{died, loaded_empty, log_in, not_resumed, unanswered};
use super::files::FAILED;
use super::launch::{Launch, Transport, invalid};
use super::terminals::{Around, Terminals};
use super::wire;
use crate::transport::json_rpc::{CallError, METHOD_NOT_FOUND, Peer, refuse, respond};
use crate::transport::process::{Exit, Start, Stdin};

mod choices;

/// How long the agent may take from its start to its first prompt. Some need twelve seconds for their greeting alone.
const GREETING: Duration = Duration::from_secs(90);
/// Some agents answer before they have told all of an earlier conversation again. It is over when they are silent for
/// so long, or when they talk beyond the limit.
const HISTORY_ENDS: Duration = Duration::from_millis(300);
const HISTORY_LIMIT: Duration = Duration::from_secs(10);

/// How long a beginning may take in a call.
fn limit(context: &ExecutionContext) -> Duration {
    context.deadline.map_or(GREETING, |deadline| deadline.min(GREETING))
}

/// A process that holds one conversation.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) decoder: Decoder,
    pub(super) session: ProviderSessionId,
    pub(super) state: State,
    pub(super) redactor: Redactor,
    pub(super) terminals: Terminals,
    pub(super) launch: Launch,
    supervisor: Option<Supervisor>,
    abilities: wire::AgentCapabilities,
    /// Told when the next turn begins.
    pub(super) warnings: Vec<StreamEvent>,
}

/// Whether a turn is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    InTurn,
    /// The process was ended.
    Gone,
}

impl Link {
    /// Starts the agent and opens the session: a new one, or an earlier one.
    pub(super) async fn open(
        launch: &Launch,
        resume: Option<&ProviderSessionId>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let mut link = Self::start(launch, resume, context)?;
        let limit = limit(context);
        let greeted = timeout(limit, link.greet(resume, limit)).await;
        link.judged(greeted, limit).await?;
        Ok(link)
    }

    /// Starts the agent, exchanges greetings and ends it: no session is opened.
    pub(super) async fn meet(launch: &Launch, context: &ExecutionContext) -> Result<(), AgentError> {
        let mut link = Self::start(launch, None, context)?;
        let limit = limit(context);
        let met = timeout(limit, link.initialize(limit)).await;
        let met = link.judged(met.map(|met| met.map(drop)), limit).await;
        link.break_off().await;
        met
    }

    fn start(
        launch: &Launch,
        resume: Option<&ProviderSessionId>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let redactor = launch.redactor();
        let peer = Peer::start(Start {
            program: launch.program.clone(),
            arguments: launch.arguments.clone(),
            environment: launch.environment.clone(),
            cwd: Some(launch.root.clone()),
            supervisor: context.supervisor.clone(),
            redactor: redactor.clone(),
        })?;
        Ok(Self {
            peer,
            decoder: Decoder::default(),
            session: resume.cloned().unwrap_or_else(|| ProviderSessionId::from("")),
            state: State::Idle,
            redactor,
            terminals: Terminals::default(),
            launch: launch.clone(),
            supervisor: context.supervisor.clone(),
            abilities: wire::AgentCapabilities::default(),
            warnings: Vec::new(),
        })
    }

    /// What came of a beginning; the agent is ended if it is none.
    async fn judged(
        &mut self,
        begun: Result<Result<(), AgentError>, Elapsed>,
        limit: Duration,
    ) -> Result<(), AgentError> {
        match begun {
            Ok(Ok(())) => Ok(()),
            Ok(Err(mut error)) => {
                self.break_off().await;
                error.message = self.redactor.text(&error.message);
                Err(error)
            }
            Err(_) => {
                self.break_off().await;
                let message = format!("the agent did not begin within {} ms of its start", limit.as_millis());
                Err(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Start))
            }
        }
    }

    /// Exchanges greetings; the ways to log in.
    async fn initialize(&mut self, limit: Duration) -> Result<Vec<wire::AuthMethod>, AgentError> {
        let greeted: wire::Initialized = self.call("initialize", wire::initialize(), limit).await?;
        if greeted.protocol_version != wire::VERSION {
            let message = format!(
                "the agent speaks version {} of the Agent Client Protocol; version {} is spoken here",
                greeted.protocol_version,
                wire::VERSION
            );
            return Err(AgentError::new(ErrorCode::Protocol, message));
        }
        self.abilities = greeted.agent_capabilities.unwrap_or_default();
        Ok(greeted.auth_methods.unwrap_or_default())
    }

    async fn greet(&mut self, resume: Option<&ProviderSessionId>, limit: Duration) -> Result<(), AgentError> {
        let methods = self.initialize(limit).await?;
        let advised = |error, launch: &Launch| log_in(error, &methods, launch.log_in);
        if let Some(method) = self.launch.auth_method.clone() {
            let asked =
                self.call::<Option<Value>>("authenticate", json!({ "methodId": method }), limit).await;
            asked.map_err(|error| advised(error, &self.launch))?;
        }
        self.check_servers()?;
        let opened = match resume {
            Some(session) => self.resume(session, limit).await,
            None => self.begin(limit).await,
        };
        let opened = opened.map_err(|error| advised(error, &self.launch))?;
        self.choose(opened, limit).await
    }

    async fn begin(&mut self, limit: Duration) -> Result<wire::Opened, AgentError> {
        let opened: wire::Opened = self.call("session/new", self.place(), limit).await?;
        let Some(id) = opened.session_id.as_deref().filter(|id| !id.is_empty()) else {
            return Err(AgentError::new(ErrorCode::Protocol, "the agent opened a session without a name"));
        };
        self.session = ProviderSessionId::from(id);
        self.decoder = Decoder::of_new(self.session.clone());
        Ok(opened)
    }

    /// Resumes an earlier session: without its history if the agent can, else the history comes again and is ignored.
    async fn resume(
        &mut self,
        session: &ProviderSessionId,
        limit: Duration,
    ) -> Result<wire::Opened, AgentError> {
        self.decoder = Decoder::of_resumed(session.clone());
        let resumes = self.abilities.session_capabilities.as_ref().is_some_and(|can| can.resume.is_some());
        let loads = self.abilities.load_session;
        if !(resumes || loads) {
            let message = "the agent cannot resume earlier conversations";
            return Err(invalid(message.to_owned()).with_kind(ErrorKind::NotOffered));
        }
        let mut place = self.place();
        place["sessionId"] = json!(session);
        if resumes {
            match self.ask::<Option<wire::Opened>>("session/resume", place.clone(), limit).await? {
                Ok(opened) => return Ok(opened.unwrap_or_default()),
                // Qwen Code offers it, and does not know it.
                Err(CallError::Refused(error)) if error.code == METHOD_NOT_FOUND && loads => {}
                Err(CallError::Refused(error)) => return Err(not_resumed(session, &error)),
                Err(error) => return Err(self.failed("session/resume", error).await),
            }
        }
        match self.ask::<Option<wire::Opened>>("session/load", place, limit).await? {
            Ok(opened) => {
                self.hear_history_out().await?;
                // Qwen Code loads a conversation that it does not know as an empty one.
                if !self.decoder.has_history() {
                    return Err(loaded_empty(session));
                }
                Ok(opened.unwrap_or_default())
            }
            Err(CallError::Refused(error)) => Err(not_resumed(session, &error)),
            Err(error) => Err(self.failed("session/load", error).await),
        }
    }

    /// Where a session takes place, and with which servers.
    fn place(&self) -> Value {
        let servers: Vec<&Value> = self.launch.servers.iter().map(|server| &server.value).collect();
        json!({ "cwd": self.launch.root, "mcpServers": servers })
    }

    fn check_servers(&self) -> Result<(), AgentError> {
        let can = self.abilities.mcp_capabilities.unwrap_or_default();
        for server in &self.launch.servers {
            let (kind, offered) = match server.transport {
                Transport::Stdio => continue,
                Transport::Http => ("http", can.http),
                Transport::Sse => ("sse", can.sse),
            };
            if !offered {
                let message =
                    format!("the agent takes no MCP servers of the type `{kind}`, as `{}` is", server.name);
                return Err(invalid(message));
            }
        }
        Ok(())
    }

    async fn hear_history_out(&mut self) -> Result<(), AgentError> {
        let until = Instant::now() + HISTORY_LIMIT;
        while let Ok(Some(message)) =
            timeout_at(until.min(Instant::now() + HISTORY_ENDS), self.peer.next()).await
        {
            let stdin = self.peer.stdin();
            for decoded in self.decoder.take(message) {
                self.warnings.extend(before_a_turn(&stdin, decoded)?);
            }
        }
        Ok(())
    }

    /// What a prompt may hold beside text.
    pub(super) fn takes(&self) -> wire::PromptCapabilities {
        self.abilities.prompt_capabilities.unwrap_or_default()
    }

    /// What surrounds the commands that the agent runs through us.
    pub(super) fn create_terminal(
        &mut self,
        wanted: &wire::CreateTerminal,
    ) -> Result<Value, super::files::Refusal> {
        let around = Around {
            root: &self.launch.root,
            environment: &self.launch.environment,
            supervisor: self.supervisor.clone(),
            redactor: &self.redactor,
        };
        self.terminals.create(wanted, &around)
    }

    /// Makes a request before the first turn, and waits for its answer.
    async fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
        limit: Duration,
    ) -> Result<T, AgentError> {
        match self.ask(method, params, limit).await? {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(method, error).await),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
        limit: Duration,
    ) -> Result<Result<T, CallError>, AgentError> {
        let (decoder, warnings) = (&mut self.decoder, &mut self.warnings);
        let mut broken = None;
        let answer = self
            .peer
            .call(method, params, limit, |stdin, message| {
                for decoded in decoder.take(message) {
                    match before_a_turn(stdin, decoded) {
                        Ok(warning) => warnings.extend(warning),
                        Err(error) => broken = Some(error),
                    }
                }
                None
            })
            .await;
        broken.map_or(Ok(answer), Err)
    }

    async fn failed(&mut self, method: &str, error: CallError) -> AgentError {
        match unanswered(method, error) {
            Some(error) => error,
            None => {
                let exit = self.break_off().await;
                let process = self.peer.process();
                process.refused(exit).unwrap_or_else(|| died(exit, &process.stderr()))
            }
        }
    }

    /// Reads what was said since the last turn, so that the next one begins at its own beginning.
    pub(super) fn catch_up(&mut self) -> Result<(), AgentError> {
        let stdin = self.peer.stdin();
        while let Some(message) = self.peer.try_next() {
            for decoded in self.decoder.take(message) {
                self.warnings.extend(before_a_turn(&stdin, decoded)?);
            }
        }
        match self.peer.process().exit() {
            Some(exit) => Err(died(exit, &self.peer.process().stderr())),
            None => Ok(()),
        }
    }

    /// Whether another turn can begin: the process lives, and has not begun one by itself.
    pub(super) fn is_ready(&mut self) -> bool {
        self.state == State::Idle && self.catch_up().is_ok()
    }

    /// Asks the agent to end its turn.
    pub(super) fn cancel(&self) -> Result<(), AgentError> {
        self.peer.notify("session/cancel", json!({ "sessionId": self.session }))
    }

    /// Ends the process, whatever it does, and what it runs through us.
    pub(super) async fn break_off(&mut self) -> Exit {
        self.state = State::Gone;
        let (exit, ()) = tokio::join!(self.peer.end(), self.terminals.end());
        exit
    }

    /// As [`Self::break_off`], without asking.
    pub(super) async fn kill(&mut self) {
        self.state = State::Gone;
        let _ended = tokio::join!(self.peer.process().kill(), self.terminals.end());
    }
}

/// Outside of a turn nobody can be asked and nothing is done for the agent.
fn before_a_turn(stdin: &Stdin, decoded: Decoded) -> Result<Option<StreamEvent>, AgentError> {
    match decoded {
        Decoded::Event(event @ StreamEvent::Warning { .. }) => return Ok(Some(event)),
        Decoded::Event(_) | Decoded::TurnEnd(_) => {}
        Decoded::Asked { id, .. } => respond(stdin, &id, wire::permission(None))?,
        Decoded::Wanted { id, .. } => refuse(stdin, &id, FAILED, "no turn is in progress")?,
        Decoded::Refused { id, code, message } => refuse(stdin, &id, code, &message)?,
        Decoded::Fault(error) => return Err(error),
    }
    Ok(None)
}
