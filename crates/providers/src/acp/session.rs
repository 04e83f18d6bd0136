//! From a started agent to an open session: the greeting, the login, and a new session or an earlier one.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, ProviderSessionId, StreamEvent};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::agent::AcpAgent;
use super::decode::{AcpDecoded, AcpDecoder};
use super::error::{loaded_empty, log_in, not_resumed, refused};
use super::files::FAILED;
use super::launch::{AcpLaunch, CLAUDE_AGENT, Transport, claude_agent_meta};
use super::wire;
use crate::error::invalid;
use crate::json_rpc::{CallError, METHOD_NOT_FOUND, refuse, respond};
use crate::program::{Agent, ProcessConversation};
use inspan_process::Stdin;

/// Some agents answer before they have sent all of an earlier conversation again. It is over when they are silent for
/// this long, or when they talk beyond the limit.
const HISTORY_ENDS: Duration = Duration::from_millis(300);
const HISTORY_LIMIT: Duration = Duration::from_secs(10);

impl AcpAgent {
    /// Exchanges greetings.
    pub(super) async fn initialize(&mut self) -> Result<(), AgentError> {
        let offer = wire::initialize(self.launch.reads_through_us);
        let greeted: wire::Initialized = self.call("initialize", offer).await?;
        if greeted.protocol_version != wire::VERSION {
            let message = format!(
                "the agent speaks version {} of the Agent Client Protocol; version {} is spoken here",
                greeted.protocol_version,
                wire::VERSION
            );
            return Err(AgentError::new(ErrorCode::Protocol, message));
        }
        self.abilities = greeted.agent_capabilities.unwrap_or_default();
        self.auth_methods = greeted.auth_methods.unwrap_or_default();
        let is_claude = greeted.agent_info["name"] == CLAUDE_AGENT;
        self.session_meta = is_claude.then(|| claude_agent_meta(&self.launch.environment));
        Ok(())
    }

    /// Logs in, opens the session, and makes the choices of the launch.
    pub(super) async fn open_session(
        &mut self,
        conversation: &ProcessConversation,
    ) -> Result<(), AgentError> {
        let methods = std::mem::take(&mut self.auth_methods);
        let advised = |error, launch: &AcpLaunch| log_in(error, &methods, launch.log_in);
        if let Some(method) = self.launch.auth_method.clone() {
            let asked = self.call::<Option<Value>>("authenticate", json!({ "methodId": method })).await;
            asked.map_err(|error| advised(error, &self.launch))?;
        }
        self.check_servers()?;
        let opened = match conversation {
            ProcessConversation::Resumed(session) => self.resume_session(session).await,
            ProcessConversation::Forked { from, .. } => self.fork_session(from).await,
            ProcessConversation::New(_) => self.new_session().await,
        };
        let opened = opened.map_err(|error| advised(error, &self.launch))?;
        self.choose(opened).await
    }

    async fn new_session(&mut self) -> Result<wire::Opened, AgentError> {
        let opened: wire::Opened = self.call("session/new", self.session_params()).await?;
        self.hold(opened)
    }

    /// Holds the session that was opened.
    fn hold(&mut self, opened: wire::Opened) -> Result<wire::Opened, AgentError> {
        let Some(id) = opened.session_id.as_deref().filter(|id| !id.is_empty()) else {
            return Err(AgentError::new(ErrorCode::Protocol, "the agent opened a session without a name"));
        };
        self.session = ProviderSessionId::from(id);
        self.decoder = AcpDecoder::of_new(self.session.clone());
        Ok(opened)
    }

    /// Resumes an earlier session: without its history if the agent can, else the history comes again and is ignored.
    async fn resume_session(&mut self, session: &ProviderSessionId) -> Result<wire::Opened, AgentError> {
        self.decoder = AcpDecoder::of_resumed(session.clone());
        let resumes = self.abilities.session_capabilities.as_ref().is_some_and(|can| can.resume.is_some());
        let loads = self.abilities.load_session;
        if !(resumes || loads) {
            let message = "the agent cannot resume earlier conversations";
            return Err(invalid(message.to_owned()).with_kind(ErrorKind::NotOffered));
        }
        let mut params = self.session_params();
        params["sessionId"] = json!(session);
        if resumes {
            match self.ask::<Option<wire::Opened>>("session/resume", params.clone()).await? {
                Ok(opened) => return Ok(opened.unwrap_or_default()),
                // Qwen Code offers it, and does not know it.
                Err(CallError::Refused(error)) if error.code == METHOD_NOT_FOUND && loads => {}
                Err(CallError::Refused(error)) => {
                    return Err(not_resumed(session, &self.launch.root, &error));
                }
                Err(error) => return Err(self.failed("session/resume", error).await),
            }
        }
        match self.ask::<Option<wire::Opened>>("session/load", params).await? {
            Ok(opened) => {
                self.skip_history().await?;
                // Qwen Code loads a conversation that it does not know as an empty one.
                if !self.decoder.has_history() {
                    return Err(loaded_empty(session, &self.launch.root));
                }
                Ok(opened.unwrap_or_default())
            }
            Err(CallError::Refused(error)) => Err(not_resumed(session, &self.launch.root, &error)),
            Err(error) => Err(self.failed("session/load", error).await),
        }
    }

    /// Branches an earlier session, if the agent offers this unstable method.
    async fn fork_session(&mut self, from: &ProviderSessionId) -> Result<wire::Opened, AgentError> {
        if self.abilities.session_capabilities.as_ref().is_none_or(|can| can.fork.is_none()) {
            let message = "the agent cannot branch conversations: it does not offer `session/fork`";
            return Err(invalid(message.to_owned()).with_kind(ErrorKind::NotOffered));
        }
        let mut params = self.session_params();
        params["sessionId"] = json!(from);
        let opened: wire::Opened = match self.ask("session/fork", params).await? {
            Ok(opened) => opened,
            Err(CallError::Refused(error)) => return Err(not_resumed(from, &self.launch.root, &error)),
            Err(error) => return Err(self.failed("session/fork", error).await),
        };
        let opened = self.hold(opened)?;
        // Agents that copy the messages of the earlier session count what those cost.
        self.decoder = AcpDecoder::of_resumed(self.session.clone());
        Ok(opened)
    }

    /// Where a session takes place, and with which servers.
    fn session_params(&self) -> Value {
        let servers: Vec<&Value> = self.launch.servers.iter().map(|server| &server.value).collect();
        let mut params = json!({ "cwd": self.launch.root, "mcpServers": servers });
        if let Some(meta) = &self.session_meta {
            params["_meta"] = meta.clone();
        }
        params
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

    async fn skip_history(&mut self) -> Result<(), AgentError> {
        let until = Instant::now() + HISTORY_LIMIT;
        while let Ok(Some(message)) =
            timeout_at(until.min(Instant::now() + HISTORY_ENDS), self.peer.next()).await
        {
            let stdin = self.peer.stdin();
            for decoded in self.decoder.take(message) {
                self.warnings.extend(outside_a_turn(&stdin, decoded)?);
            }
        }
        Ok(())
    }

    /// Makes a request before the first turn, and waits for its answer.
    pub(super) async fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<T, AgentError> {
        match self.ask(method, params).await? {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(method, error).await),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<Result<T, CallError>, AgentError> {
        let (decoder, warnings) = (&mut self.decoder, &mut self.warnings);
        let mut broken = None;
        let answer = self
            .peer
            .call(method, params, Self::OPENING, |stdin, message| {
                for decoded in decoder.take(message) {
                    match outside_a_turn(stdin, decoded) {
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
        match error.into_error(method, refused) {
            Some(error) => error,
            None => self.died().await,
        }
    }
}

/// Outside of a turn no permission can be given and nothing is done for the agent.
pub(super) fn outside_a_turn(stdin: &Stdin, decoded: AcpDecoded) -> Result<Option<StreamEvent>, AgentError> {
    match decoded {
        AcpDecoded::Event(event @ StreamEvent::Warning { .. }) => return Ok(Some(event)),
        AcpDecoded::Event(_) | AcpDecoded::Untold(_) | AcpDecoded::TurnEnd(_) => {}
        AcpDecoded::PermissionRequested { id, .. } => respond(stdin, &id, wire::permission(None))?,
        AcpDecoded::Wanted { id, .. } => refuse(stdin, &id, FAILED, "no turn is in progress")?,
        AcpDecoded::Refused { id, code, message } => refuse(stdin, &id, code, &message)?,
        AcpDecoded::Fault(error) => return Err(error),
    }
    Ok(None)
}
