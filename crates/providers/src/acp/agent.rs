//! A running agent: one process that has one session, driven over the Agent Client Protocol.

use std::time::Duration;

use inspan_protocol::{
    AgentError, ContentBlock, ExecutionContext, ProviderSessionId, StreamEvent, Supervisor,
};
use serde_json::{Value, json};

use super::decode::{AcpDecoded, AcpDecoder, AcpTurnEnd};
use super::files::Refusal;
use super::launch::AcpLaunch;
use super::options::AcpOptions;
use super::permission::{Granted, Policy};
use super::prompt::{CommandPolicy, blocks, unread};
use super::service::{LoggedRun, PendingRequest, RequestOutcome};
use super::session::outside_a_turn;
use super::terminals::{CommandContext, Terminals};
use super::wire;
use crate::environment::{PrivateFile, temporary};
use crate::instructed::{self, Wanted};
use crate::json_rpc::{Incoming, Peer, refuse};
use crate::moment::reset_in_words;
use crate::program::session::NotReady;
use crate::program::turn::{GRACE, Handled, ProgramTurn, Received};
use crate::program::{Agent, Call, Ending, ProcessConversation};
use inspan_process::{Exit, Process, Start};

/// How many messages are read at most before a turn is cancelled: an agent may write without end.
const MOST_ARRIVED: usize = 10_000;

/// How long the end of a cancelled turn is waited for where the conversation would end with the process, and with it the
/// message that interrupts. The engine gives up after ten seconds, and the process may take four to exit.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// The process and its decoder.
pub(super) struct AcpAgent {
    pub(super) peer: Peer,
    pub(super) decoder: AcpDecoder,
    /// The agent's own name of its session.
    pub(super) session: ProviderSessionId,
    pub(super) terminals: Terminals,
    pub(super) launch: AcpLaunch,
    pub(super) abilities: wire::AgentCapabilities,
    pub(super) auth_methods: Vec<wire::AuthMethod>,
    /// What a session is opened with that only this agent understands.
    pub(super) session_meta: Option<Value>,
    /// Shown when the next turn begins.
    pub(super) warnings: Vec<StreamEvent>,
    /// What the call of the turn in progress allows.
    pub(super) policy: Policy,
    /// What was allowed in the turn in progress.
    pub(super) granted: Granted,
    /// The commands of the turn in progress that are in the log as calls of their own, and have not ended there.
    pub(super) runs: Vec<LoggedRun>,
    supervisor: Option<Supervisor>,
    /// Settings that the process reads again whenever a session is opened; deleted with it.
    _defaults: Option<PrivateFile>,
}

/// What one turn sends.
#[derive(Debug)]
pub(super) struct AcpPrompt {
    blocks: Vec<ContentBlock>,
    commands: CommandPolicy,
    /// What the text is to contain, by instruction.
    wanted: Option<Wanted>,
    /// Asks for JSON of a schema.
    instruction: Option<String>,
    policy: Policy,
}

impl AcpPrompt {
    /// A message with the options of its call.
    pub(super) fn new(blocks: Vec<ContentBlock>, options: &AcpOptions) -> Self {
        Self {
            blocks,
            commands: if options.expand_prompt == Some(true) {
                CommandPolicy::Wanted
            } else {
                CommandPolicy::No
            },
            wanted: options.output_schema.as_ref().map(Wanted::of),
            instruction: options.output_schema.as_ref().map(instructed::instruction),
            policy: Policy::new(options),
        }
    }
}

impl AcpAgent {
    /// Starts a command for the agent.
    pub(super) fn create_terminal(&mut self, wanted: &wire::CreateTerminal) -> Result<Value, Refusal> {
        let surroundings = CommandContext {
            root: &self.launch.root,
            environment: &self.launch.environment,
            supervisor: self.supervisor.clone(),
            redactor: self.peer.process().redactor(),
        };
        self.terminals.create(wanted, &surroundings)
    }
}

impl AcpAgent {
    /// The agent names the terminals of a tool that has ended, whose output we have.
    fn with_output(&self, mut event: StreamEvent) -> StreamEvent {
        if let StreamEvent::ToolComplete { result, .. } = &mut event {
            let blocks = result.get_mut("content").and_then(Value::as_array_mut);
            for block in blocks.into_iter().flatten().filter(|block| block["type"] == "terminal") {
                let printed = block["terminalId"].as_str().and_then(|id| self.terminals.printed(id));
                if let Some(printed) = printed {
                    block["output"] = json!(printed);
                }
            }
        }
        event
    }

    /// Some agents end their turn when a tool is denied. Another prompt tells the model, and the turn goes on.
    fn tell(&mut self, denials: &[String], turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        self.withdraw(turn)?;
        let text = format!(
            "A tool was denied: {}. Continue without it. If that is not possible, say what you could not do.",
            denials.join("; ")
        );
        let prompt = json!([{ "type": "text", "text": text }]);
        let params = json!({ "sessionId": self.session, "prompt": prompt });
        self.decoder.go_on(self.peer.request("session/prompt", params)?);
        let message =
            "the agent ended its turn because a tool was denied; its model was told to continue without it";
        turn.warn("endedAtDenial", message.to_owned());
        Ok(())
    }

    /// The agent ended the turn.
    async fn ended(
        &mut self,
        mut end: AcpTurnEnd,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<Handled<Self>, AgentError> {
        // Before its first answer the agent names it in words alone.
        if let (None, Some(error)) = (end.resets_at, &end.error) {
            end.resets_at = reset_in_words(&error.message);
        }
        // The next turn would take the answers for its own.
        if self.withdraw(turn).is_err() {
            self.end(Ending::Kill).await;
        }
        Ok(Handled::End(Box::new(end)))
    }

    /// Gemini CLI starts no servers in a folder that it does not trust, and says so on stderr alone.
    fn untrusted(&self) -> Option<StreamEvent> {
        let is_said = || self.peer.process().stderr().contains("untrusted folder");
        (!self.launch.servers.is_empty() && is_said()).then(|| {
            StreamEvent::warning(
                "untrustedFolder",
                "the agent does not trust this folder, and may start none of the `mcpServers` in it",
            )
        })
    }
}

impl Agent for AcpAgent {
    type Launch = AcpLaunch;
    type Prompt = AcpPrompt;
    type Frame = Incoming;
    type Decoder = AcpDecoder;
    type Request = PendingRequest;
    type Answer = RequestOutcome;

    /// Some agents need twelve seconds for their greeting alone.
    const OPENING: Duration = Duration::from_secs(90);

    async fn start(
        launch: &AcpLaunch,
        conversation: &ProcessConversation,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let mut environment = launch.environment.to_vec();
        let mut defaults = None;
        if let Some((variable, content)) = &launch.defaults {
            let file = PrivateFile::new(content.as_bytes(), "json", &temporary(context))?;
            environment.retain(|(name, _)| name != variable);
            environment.push(((*variable).to_owned(), file.0.display().to_string()));
            defaults = Some(file);
        }
        let peer = Peer::start(
            Start {
                program: launch.program.clone(),
                arguments: launch.arguments.clone(),
                environment,
                cwd: Some(launch.root.clone()),
                supervisor: context.host.supervisor.clone(),
            },
            launch.environment.redactor(),
        )
        .await?;
        Ok(Self {
            peer,
            decoder: AcpDecoder::default(),
            session: conversation.id().clone(),
            terminals: Terminals::default(),
            launch: launch.clone(),
            abilities: wire::AgentCapabilities::default(),
            auth_methods: Vec::new(),
            session_meta: None,
            warnings: Vec::new(),
            policy: Policy::default(),
            granted: Granted::default(),
            runs: Vec::new(),
            supervisor: context.host.supervisor.clone(),
            _defaults: defaults,
        })
    }

    async fn greet(&mut self, _: &AcpLaunch) -> Result<(), AgentError> {
        self.initialize().await
    }

    async fn open(
        &mut self,
        _: &Call<Self>,
        conversation: &ProcessConversation,
    ) -> Result<ProviderSessionId, AgentError> {
        self.open_session(conversation).await?;
        self.warnings.extend(self.untrusted());
        // Agents that keep no sessions count them, so that another process has one of the same name.
        let is_kept = self.abilities.keeps_sessions();
        Ok(if is_kept { self.session.clone() } else { conversation.id().clone() })
    }

    fn grace(&self) -> Duration {
        if self.abilities.keeps_sessions() { GRACE } else { LAST_GRACE }
    }

    fn catch_up(&mut self) -> Result<(), AgentError> {
        let stdin = self.peer.stdin();
        while let Some(message) = self.peer.try_next() {
            for decoded in self.decoder.take(message) {
                self.warnings.extend(outside_a_turn(&stdin, decoded)?);
            }
        }
        Ok(())
    }

    async fn begin(&mut self, prompt: AcpPrompt, turn: &mut ProgramTurn<Self>) -> Result<(), NotReady> {
        let takes = self.abilities.prompt_capabilities.unwrap_or_default();
        let mut blocks = blocks(&prompt.blocks, prompt.commands, takes)?;
        self.warnings.extend(prompt.blocks.iter().find_map(unread));
        blocks.extend(prompt.instruction.map(|text| json!({ "type": "text", "text": text })));
        let params = json!({ "sessionId": self.session, "prompt": blocks });
        self.decoder.begin(self.peer.request("session/prompt", params)?, prompt.wanted);
        self.policy = prompt.policy;
        self.granted = Granted::default();
        self.runs.clear();
        turn.extend(self.warnings.drain(..).map(AcpDecoded::Event));
        Ok(())
    }

    async fn next(&mut self) -> Received<Incoming> {
        self.peer.next().await.map_or(Received::Ended(None), Received::Frame)
    }

    fn try_next(&mut self) -> Option<Incoming> {
        self.peer.try_next()
    }

    fn receive(&mut self, message: Incoming, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        // Noise is no sign of life.
        if !matches!(message, Incoming::Invalid(_)) {
            turn.received();
        }
        turn.extend(self.decoder.take(message));
        Ok(())
    }

    async fn handle(
        &mut self,
        decoded: AcpDecoded,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<Handled<Self>, AgentError> {
        match decoded {
            AcpDecoded::Event(event) => return Ok(Handled::Event(self.with_output(event))),
            AcpDecoded::PermissionRequested { id, question } => self.asked(id, *question, turn)?,
            AcpDecoded::Wanted { id, wanted } => self.wanted(id, wanted, turn)?,
            AcpDecoded::Refused { id, code, message } => refuse(&self.peer.stdin(), &id, code, &message)?,
            AcpDecoded::Untold(denials) if turn.is_running() && !turn.context.cancel.is_cancelled() => {
                self.tell(&denials, turn)?;
            }
            AcpDecoded::Untold(_) => {
                let end = self.decoder.end_untold();
                return self.ended(end, turn).await;
            }
            AcpDecoded::TurnEnd(end) => return self.ended(*end, turn).await,
            AcpDecoded::Fault(error) => return Ok(Handled::Fault(error)),
        }
        Ok(Handled::Nothing)
    }

    async fn answer(
        &mut self,
        open: PendingRequest,
        outcome: RequestOutcome,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<(), AgentError> {
        self.reply(&open, outcome, turn)
    }

    fn waits_for_person(open: &PendingRequest) -> bool {
        open.waits_for_person()
    }

    async fn interrupt(&mut self, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        // What has arrived already was sent before the agent could know, and may be the end of the turn.
        let mut arrived = 0;
        while self.decoder.in_turn()
            && arrived < MOST_ARRIVED
            && let Some(message) = self.peer.try_next()
        {
            self.receive(message, turn)?;
            arrived += 1;
        }
        if self.decoder.in_turn() {
            self.peer.notify("session/cancel", json!({ "sessionId": self.session }))?;
            self.decoder.cancel();
        }
        self.withdraw(turn)
    }

    /// Its commands would go on without their turn.
    async fn clean_up(&mut self) {
        self.terminals.end().await;
    }

    fn decoder(&mut self) -> Option<&mut AcpDecoder> {
        Some(&mut self.decoder)
    }

    fn process(&self) -> &Process {
        self.peer.process()
    }

    /// Ends what it runs through us, too.
    async fn end(&mut self, how: Ending) -> Exit {
        let (exit, ()) = tokio::join!(how.apply(self.peer.process()), self.terminals.end());
        exit
    }
}
