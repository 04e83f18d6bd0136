//! A running Codex: one process that has one thread, driven over JSON-RPC.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ExecutionContext, PermissionDecision, ProviderSessionId, StreamEvent, Supervisor,
};
use serde_json::{Value, json};

use super::consent::{CodexQuestion, elicitation};
use super::decode::{CodexDecoded, CodexDecoder};
use super::error::{explain_exit, refused};
use super::launch::{CodexLaunch, EnvironmentKey, Store};
use super::options::CodexOptions;
use super::wire;
use crate::decode::background_ended;
use crate::json_rpc::{Incoming, LocalId, METHOD_NOT_FOUND, Peer, refuse, respond};
use crate::moment::reset_in_words;
use crate::program::requests::Consent;
use crate::program::session::NotReady;
use crate::program::turn::{Handled, Interruption, ProgramTurn, Received};
use crate::program::{Agent, Call, Ending, ProcessConversation, TurnDecoder as _};
use inspan_process::{Exit, Process, Start};

/// How long the program may take to end the commands that a turn left running.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// The process and its decoder.
pub(super) struct CodexAgent {
    pub(super) peer: Peer,
    pub(super) decoder: CodexDecoder,
    pub(super) session: ProviderSessionId,
    pub(super) store: Store,
    supervisor: Option<Supervisor>,
    /// Warnings that came between turns and belong to the next one.
    early: Vec<StreamEvent>,
    turn: Current,
}

/// What one turn sends.
#[derive(Debug)]
pub(super) struct CodexPrompt {
    input: Vec<Value>,
    output_schema: Option<Value>,
    max_turns: Option<u32>,
}

impl CodexPrompt {
    /// A message with the options of its call.
    pub(super) fn new(input: Vec<Value>, options: &CodexOptions) -> Self {
        Self { input, output_schema: options.output_schema.clone(), max_turns: options.max_turns }
    }
}

/// What is known of the turn in progress.
#[derive(Default)]
struct Current {
    /// The request that started it.
    started: Option<LocalId>,
    /// The program's id of it, by which it can be interrupted.
    id: Option<String>,
    max_turns: Option<u32>,
    /// The user's next message, awaited over the whole turn.
    steering: Option<BoxFuture<'static, String>>,
    /// The request that sent such a message.
    steered: Option<LocalId>,
    /// The threads whose commands end with the turn: those that were interrupted, and those that left one running.
    ending: BTreeSet<String>,
}

/// What a turn reads.
pub(super) enum CodexFrame {
    Message(Incoming),
    /// The user says something that shall join the turn.
    UserMessage(String),
}

impl CodexAgent {
    async fn launched(
        launch: &CodexLaunch,
        store: Store,
        supervisor: Option<Supervisor>,
    ) -> Result<Self, AgentError> {
        let peer = Peer::start(
            Start {
                program: launch.program.clone(),
                arguments: launch.arguments(store),
                environment: launch.environment(store),
                cwd: launch.cwd.clone(),
                supervisor: supervisor.clone(),
            },
            launch.environment.redactor(),
        )
        .await?;
        Ok(Self {
            peer,
            decoder: CodexDecoder::default(),
            session: ProviderSessionId::from(""),
            store,
            supervisor,
            early: Vec::new(),
            turn: Current::default(),
        })
    }

    /// Ends the program and starts it with its login stored elsewhere.
    pub(super) async fn restart(&mut self, launch: &CodexLaunch, store: Store) -> Result<(), AgentError> {
        self.end(Ending::Close).await;
        *self = Self::launched(launch, store, self.supervisor.clone()).await?;
        Ok(())
    }

    fn answered(&mut self, message: Incoming, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        match message {
            Incoming::Answer { id, result } if Some(id) == self.turn.started => match result {
                Ok(answer) => {
                    if let Ok(line) = serde_json::from_str::<wire::TurnLine<'_>>(answer.get()) {
                        self.named(line.turn.id.into_owned(), turn)?;
                    }
                }
                Err(error) => turn.extend([CodexDecoded::NotBegun(refused("turn/start", &error))]),
            },
            Incoming::Answer { id, result } if Some(id) == self.turn.steered => {
                self.turn.steered = None;
                match result {
                    Ok(_) => {
                        self.turn.steering = turn.context.steering.as_ref().map(|steering| steering.next());
                        turn.emit(StreamEvent::Steered);
                    }
                    // It begins the next turn, and so does all that comes after it.
                    Err(error) => {
                        let message = format!("the message could not join the turn: {}", error.message);
                        turn.warn("notSteered", self.process().redactor().text(&message));
                    }
                }
            }
            message => turn.extend(self.decoder.push(message)),
        }
        Ok(())
    }

    /// The turn has an id, by which it can be interrupted.
    fn named(&mut self, turn_id: String, turn: &ProgramTurn<Self>) -> Result<(), AgentError> {
        if self.turn.id.is_some() {
            return Ok(());
        }
        self.decoder.named(&turn_id);
        self.turn.id = Some(turn_id);
        if turn.is_running() { Ok(()) } else { self.send_interrupt() }
    }

    /// Asks the program to end the turn, once it has an id, and what its sub-agents do.
    fn send_interrupt(&mut self) -> Result<(), AgentError> {
        if let Some(id) = &self.turn.id {
            let params = json!({ "threadId": self.session, "turnId": id });
            self.peer.request("turn/interrupt", params)?;
        }
        self.interrupt_sub_agents()
    }

    fn interrupt_sub_agents(&mut self) -> Result<(), AgentError> {
        for (thread, turn) in self.decoder.at_work() {
            // Without an id it holds for the turn that is about to begin.
            let params = json!({ "threadId": thread, "turnId": turn.as_deref().unwrap_or_default() });
            self.peer.request("turn/interrupt", params)?;
            self.turn.ending.insert(thread.clone());
        }
        Ok(())
    }

    /// The program is done with the turn, and sub-agents still work or commands still run: they would go on unseen, also
    /// beside another agent that takes over.
    fn end_background(&mut self, turn: &mut ProgramTurn<Self>) -> Result<Handled<Self>, AgentError> {
        let (sub_agents, commands) = (self.decoder.at_work().len(), self.decoder.command_threads().count());
        self.turn.ending.extend(self.decoder.command_threads().cloned());
        self.interrupt_sub_agents()?;
        if !turn.is_running() {
            return Ok(Handled::Nothing);
        }
        turn.close();
        let warning = |message: String| Handled::Event(StreamEvent::warning("backgroundEnded", message));
        Ok(background_ended(sub_agents, commands).map_or(Handled::Nothing, warning))
    }

    fn steer(&mut self, message: &str) -> Result<(), AgentError> {
        // A future that is done must not be polled again.
        self.turn.steering = None;
        let text = json!({ "type": "text", "text": message, "text_elements": [] });
        let params = json!({ "threadId": self.session, "expectedTurnId": self.turn.id, "input": [text] });
        self.turn.steered = Some(self.peer.request("turn/steer", params)?);
        Ok(())
    }
}

impl Agent for CodexAgent {
    type Launch = CodexLaunch;
    type Prompt = CodexPrompt;
    type Frame = CodexFrame;
    type Decoder = CodexDecoder;
    type Request = CodexQuestion;
    type Answer = PermissionDecision;

    const OPENING: Duration = Duration::from_secs(60);
    const REPEATED_WARNING: Option<&str> = Some("configWarning");

    async fn start(
        launch: &CodexLaunch,
        _: &ProcessConversation,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let store = if matches!(launch.key, EnvironmentKey::First(_)) { Store::Memory } else { Store::Own };
        Self::launched(launch, store, context.host.supervisor.clone()).await
    }

    async fn greet(&mut self, launch: &CodexLaunch) -> Result<(), AgentError> {
        self.log_in(launch).await
    }

    async fn open(
        &mut self,
        call: &Call<Self>,
        conversation: &ProcessConversation,
    ) -> Result<ProviderSessionId, AgentError> {
        self.open_thread(&call.launch, conversation).await
    }

    fn catch_up(&mut self) -> Result<(), AgentError> {
        while let Some(message) = self.peer.try_next() {
            for decoded in self.decoder.push(message) {
                match decoded {
                    CodexDecoded::Fault(error) => return Err(error),
                    CodexDecoded::PermissionRequested { id, .. }
                    | CodexDecoded::Unsupported { id, .. }
                    | CodexDecoded::Elicited { id } => {
                        let why = "no turn is in progress";
                        refuse(&self.peer.stdin(), &id, METHOD_NOT_FOUND, why)?;
                    }
                    CodexDecoded::Event(event @ StreamEvent::Warning { .. }) => self.early.push(event),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.decoder.at_work().is_empty()
    }

    async fn begin(&mut self, prompt: CodexPrompt, turn: &mut ProgramTurn<Self>) -> Result<(), NotReady> {
        let mut params = json!({ "threadId": self.session, "input": prompt.input });
        let answer = match prompt.output_schema {
            Some(schema) => {
                params["outputSchema"] = schema;
                wire::AnswerForm::Json
            }
            None => wire::AnswerForm::Text,
        };
        self.turn = Current {
            started: Some(self.peer.request("turn/start", params)?),
            max_turns: prompt.max_turns,
            steering: turn.context.steering.as_ref().map(|steering| steering.next()),
            ..Current::default()
        };
        self.decoder.begin(answer);
        turn.extend(self.early.drain(..).map(CodexDecoded::Event));
        Ok(())
    }

    async fn next(&mut self) -> Received<CodexFrame> {
        // One message at a time, and none before the turn has an id to send it to.
        let steerable = self.turn.id.is_some() && self.turn.steered.is_none();
        let steering = async {
            match &mut self.turn.steering {
                Some(next) if steerable => next.await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            message = steering => Received::Frame(CodexFrame::UserMessage(message)),
            message = self.peer.next() => match message {
                Some(message) => Received::Frame(CodexFrame::Message(message)),
                None => Received::Ended(None),
            },
        }
    }

    fn try_next(&mut self) -> Option<CodexFrame> {
        self.peer.try_next().map(CodexFrame::Message)
    }

    fn receive(&mut self, frame: CodexFrame, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        match frame {
            CodexFrame::UserMessage(message) => self.steer(&message),
            CodexFrame::Message(message) => {
                turn.received();
                self.answered(message, turn)?;
                if self.turn.max_turns.is_some_and(|max| self.decoder.exhausted(max)) {
                    turn.stop(Interruption::MaxTurns);
                }
                Ok(())
            }
        }
    }

    async fn handle(
        &mut self,
        decoded: CodexDecoded,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<Handled<Self>, AgentError> {
        match decoded {
            CodexDecoded::Event(StreamEvent::Warning { code, message }) => {
                let message = self.process().redactor().text(&message);
                return Ok(Handled::Event(StreamEvent::Warning { code, message }));
            }
            CodexDecoded::Event(event) => return Ok(Handled::Event(event)),
            CodexDecoded::PermissionRequested { id, request, form } => {
                let decision = turn.decision(request.clone());
                turn.requests.open(CodexQuestion { id, request, form }, decision);
            }
            CodexDecoded::Withdrawn { id } => {
                turn.requests.withdraw(|question| question.id == id);
            }
            CodexDecoded::Unsupported { id, method } => {
                let why = format!("`{method}` is not offered here");
                refuse(&self.peer.stdin(), &id, METHOD_NOT_FOUND, &why)?;
            }
            CodexDecoded::Elicited { id } => respond(&self.peer.stdin(), &id, elicitation("cancel"))?,
            CodexDecoded::TurnStarted { turn_id } => self.named(turn_id, turn)?,
            CodexDecoded::NotBegun(error) => {
                let _nothing_happened = self.decoder.abandon();
                return Ok(Handled::Refused(error));
            }
            CodexDecoded::BackgroundLeft => return self.end_background(turn),
            CodexDecoded::TurnEnd(mut end) => {
                // A vendor that does not report its limits may name the time in its words.
                if let (None, Some(error)) = (end.resets_at, &end.error) {
                    end.resets_at = reset_in_words(&error.message);
                }
                return Ok(Handled::End(end));
            }
            CodexDecoded::Fault(error) => return Ok(Handled::Fault(error)),
        }
        Ok(Handled::Nothing)
    }

    async fn answer(
        &mut self,
        question: CodexQuestion,
        decision: PermissionDecision,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<(), AgentError> {
        let consent = Consent::of(&decision, &question.request.input);
        if consent == Consent::Changed {
            let tool = &question.request.tool_name;
            let message =
                format!("{tool} was denied, because the program cannot run it with other arguments");
            turn.warn("inputNotChanged", message);
        }
        if consent != Consent::Given {
            turn.deny(&question.request);
        }
        respond(&self.peer.stdin(), &question.id, question.response(consent))
    }

    async fn interrupt(&mut self, _: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        self.turn.steering = None;
        self.turn.ending.extend(self.decoder.threads().cloned());
        self.turn.ending.insert(self.session.to_string());
        self.send_interrupt()
    }

    /// A command would continue without its turn.
    async fn clean_up(&mut self) {
        for thread in std::mem::take(&mut self.turn.ending) {
            let params = json!({ "threadId": thread });
            let store = |_: &_, message| Some(message);
            let cleaned: Result<Value, _> =
                self.peer.call("thread/backgroundTerminals/clean", params, CLEAN_UP, store).await;
            if cleaned.is_err() {
                self.end(Ending::Kill).await;
                return;
            }
        }
    }

    fn decoder(&mut self) -> Option<&mut CodexDecoder> {
        Some(&mut self.decoder)
    }

    fn process(&self) -> &Process {
        self.peer.process()
    }

    fn explain_exit(exit: Exit, stderr: &str) -> Option<AgentError> {
        explain_exit(exit, stderr)
    }
}
