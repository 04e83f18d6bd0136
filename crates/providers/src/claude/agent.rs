//! A running Claude Code: one process that has one conversation, driven by lines of JSON.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use inspan_protocol::{
    AgentError, ContentBlock, ErrorCode, ExecutionContext, PermissionDecision, PermissionRequest,
    ProviderSessionId,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::decode::{ClaudeDecoded, ClaudeDecoder};
use super::error::explain_exit;
use super::launch::ClaudeLaunch;
use super::options::ClaudeOptions;
use super::transcripts::Transcripts;
use super::wire;
use crate::environment::{PrivateFile, temporary};
use crate::error::not_our_id;
use crate::json_rpc::write;
use crate::program::pool::Reuse;
use crate::program::session::NotReady;
use crate::program::turn::{GRACE, Handled, Interruption, ProgramTurn, Received};
use crate::program::{Agent, Call, Cancelled, Ending, ProcessConversation, conclude};
use inspan_process::{Exit, Process, Start, Stdin};

/// How a piece of a text that streams begins.
const PIECE: &[u8] = br#"{"type":"stream_event""#;

/// The argument for no thinking.
const NO_THINKING: &str = "--thinking=disabled";

/// The process and its decoder.
#[derive(Debug)]
pub(super) struct ClaudeAgent {
    process: Process,
    decoder: ClaudeDecoder,
    /// The transcript that the process reads when it starts.
    beginning: Option<PrivateFile>,
    max_turns: Option<u32>,
    transcripts: Transcripts,
    /// What was read and not passed on, because the transcripts are read first.
    arrived: Option<Vec<u8>>,
}

/// One message of the user.
#[derive(Debug)]
pub(super) struct ClaudePrompt {
    blocks: Vec<ContentBlock>,
    rewriting: wire::Rewriting,
}

impl ClaudePrompt {
    /// A message with the options of its call.
    pub(super) fn new(blocks: Vec<ContentBlock>, options: &ClaudeOptions) -> Self {
        let wanted = options.expand_prompt == Some(true);
        let rewriting = if wanted { wire::Rewriting::Wanted } else { wire::Rewriting::Defeated };
        Self { blocks, rewriting }
    }
}

/// A question for permission.
#[derive(Debug)]
pub(super) struct ClaudeQuestion {
    request_id: String,
    request: PermissionRequest,
}

impl ClaudeQuestion {
    /// The input with which the tool runs. The answers to the agent's own questions are in it, by their questions.
    fn allowed_input(self, changed: Option<Value>) -> Value {
        let PermissionRequest { mut input, questions, .. } = self.request;
        let answers = changed.as_ref().and_then(|changed| changed["answers"].as_array());
        let Some(answers) = answers.filter(|_| !questions.is_empty()) else {
            return changed.unwrap_or(input);
        };
        let joined = |answer: &Value| {
            let parts = answer.as_array().into_iter().flatten().filter_map(Value::as_str);
            Value::from(parts.collect::<Vec<_>>().join(", "))
        };
        let answers = questions.into_iter().zip(answers);
        input["answers"] = answers.map(|(asked, answer)| (asked.question, joined(answer))).collect();
        input
    }
}

impl ClaudeAgent {
    /// A handle to write with while a turn is read.
    pub(super) fn stdin(&self) -> Stdin {
        self.process.stdin()
    }

    /// Writes one line.
    fn send(&self, line: &Value) -> Result<(), AgentError> {
        write(&self.process.stdin(), line)
    }

    /// The next bytes.
    async fn read(&mut self) -> Option<Vec<u8>> {
        match self.arrived.take() {
            Some(bytes) => Some(bytes),
            None => self.process.read().await,
        }
    }

    /// Ends what the turn left in the background: the program would begin turns by itself when it ends.
    async fn end_background(&mut self) {
        let ended = async {
            for task in self.decoder.background_commands() {
                let request = json!({ "subtype": "stop_task", "task_id": task });
                self.send(&wire::control_request(&format!("stop-{task}"), request))?;
            }
            let mut asked = false;
            while !self.decoder.is_idle() {
                // Also sub-agents end by it; of the end of one that is stopped by its id, the model is told. The program may
                // begin one turn after the other.
                let asks = self.decoder.asks_model();
                if asks && !asked {
                    interrupt(&self.process.stdin())?;
                }
                asked = asks;
                let Some(bytes) = self.read().await else { break };
                self.decoder.push_bytes(&bytes);
            }
            Ok::<_, AgentError>(())
        };
        // A program that did not end it is not idle, and serves no other turn.
        let _ended_in_time = timeout(GRACE, ended).await;
    }

    /// Sends a request before the first turn, and waits until it is answered.
    async fn request(&mut self, id: &str, request: Value, refused: &str) -> Result<(), AgentError> {
        self.send(&wire::control_request(id, request))?;
        loop {
            let Some(bytes) = self.process.read().await else { return Err(self.died().await) };
            for decoded in self.decoder.push_bytes(&bytes) {
                match decoded {
                    ClaudeDecoded::Answered { request_id, error } if request_id == id => {
                        return error.map_or(Ok(()), |error| {
                            let message = format!("the program {refused}: {error}");
                            Err(AgentError::new(ErrorCode::ConfigInvalid, message))
                        });
                    }
                    // An unknown conversation ends the program with a result before it is asked anything.
                    ClaudeDecoded::TurnEnd(end) => {
                        let message = "the program ended a turn before it began";
                        return Err(conclude(*end, Cancelled::No, self.process().redactor())
                            .err()
                            .unwrap_or_else(|| AgentError::new(ErrorCode::Protocol, message)));
                    }
                    ClaudeDecoded::Fault(error) => return Err(error),
                    ClaudeDecoded::Unsupported { request_id, subtype } => {
                        self.refuse(&request_id, &subtype)?
                    }
                    _ => {}
                }
            }
        }
    }

    fn refuse(&self, request_id: &str, subtype: &str) -> Result<(), AgentError> {
        self.send(&wire::control_error(request_id, &format!("`{subtype}` is not offered here")))
    }
}

impl Agent for ClaudeAgent {
    type Launch = ClaudeLaunch;
    type Prompt = ClaudePrompt;
    type Frame = Vec<u8>;
    type Decoder = ClaudeDecoder;
    type Request = ClaudeQuestion;
    type Answer = PermissionDecision;

    const OPENING: Duration = Duration::from_secs(60);

    fn reuse(launch: &ClaudeLaunch) -> Reuse {
        launch.reuse
    }

    /// The program would take another text for a title, or for an option.
    fn check_id(id: &ProviderSessionId) -> Result<(), AgentError> {
        uuid::Uuid::try_parse(id.as_str()).map(drop).map_err(|_| not_our_id(id))
    }

    async fn start(
        launch: &ClaudeLaunch,
        conversation: &ProcessConversation,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let mut arguments = launch.arguments.clone();
        let beginning = copy_beginning(launch, conversation, context).await?;
        let path = beginning.as_ref().map(|file| file.0.as_path());
        arguments.extend(launch.conversation_arguments(conversation, path));
        let process = Process::start(
            Start {
                program: launch.program.clone(),
                arguments,
                environment: launch.environment.to_vec(),
                cwd: launch.cwd.clone(),
                supervisor: context.host.supervisor.clone(),
            },
            launch.environment.redactor(),
        )
        .await?;
        let mut decoder = ClaudeDecoder::with_session(conversation.id().clone());
        decoder.watch_mcp_servers(launch.mcp_servers.keys().cloned());
        decoder.request_output(launch.root);
        decoder.watch_thinking(launch.arguments.iter().any(|argument| argument == NO_THINKING));
        let transcripts = Transcripts::new(launch.projects());
        Ok(Self { process, decoder, beginning, max_turns: launch.max_turns, transcripts, arrived: None })
    }

    async fn greet(&mut self, launch: &ClaudeLaunch) -> Result<(), AgentError> {
        self.request("initialize", launch.initialize.clone(), "refused its options").await?;
        // It has read it. What is deleted now does not outlive a crash.
        self.beginning = None;
        if !launch.mcp_servers.is_empty() {
            // The answer comes when they are connected or have failed, as the first message waits for those of a file.
            let request = json!({ "subtype": "mcp_set_servers", "servers": launch.mcp_servers });
            self.request("mcpServers", request, "refused the MCP servers").await?;
        }
        Ok(())
    }

    async fn open(
        &mut self,
        _: &Call<Self>,
        conversation: &ProcessConversation,
    ) -> Result<ProviderSessionId, AgentError> {
        Ok(conversation.id().clone())
    }

    fn catch_up(&mut self) -> Result<(), AgentError> {
        while let Some(bytes) = self.try_next() {
            for decoded in self.decoder.push_bytes(&bytes) {
                if let ClaudeDecoded::Fault(error) = decoded {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.decoder.is_idle() && !self.decoder.misses_end()
    }

    async fn begin(&mut self, prompt: ClaudePrompt, _: &mut ProgramTurn<Self>) -> Result<(), NotReady> {
        self.transcripts.begin_turn();
        Ok(self.send(&wire::user_message(&prompt.blocks, prompt.rewriting)?)?)
    }

    async fn next(&mut self) -> Received<Vec<u8>> {
        self.arrived = self.read().await;
        // Nothing of a sub-agent comes with the pieces of a text, as which most reads come.
        let is_piece = self.arrived.as_ref().is_some_and(|bytes| bytes.starts_with(PIECE));
        if !is_piece && let Some(session) = self.decoder.session() {
            self.transcripts.read(session, self.decoder.sub_agents()).await;
        }
        self.arrived.take().map_or(Received::Ended(None), Received::Frame)
    }

    fn try_next(&mut self) -> Option<Vec<u8>> {
        self.arrived.take().or_else(|| self.process.try_read())
    }

    fn receive(&mut self, bytes: Vec<u8>, turn: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        turn.received();
        turn.extend(self.transcripts.take_warning().map(ClaudeDecoded::Event));
        turn.extend(self.decoder.count_sub_messages(self.transcripts.take_counts()));
        turn.extend(self.decoder.push_bytes(&bytes));
        if self.max_turns.is_some_and(|max| self.decoder.exhausted(max)) {
            turn.stop(Interruption::MaxTurns);
        }
        Ok(())
    }

    fn finish(&mut self, turn: &mut ProgramTurn<Self>) {
        turn.extend(self.decoder.finish());
    }

    async fn handle(
        &mut self,
        decoded: ClaudeDecoded,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<Handled<Self>, AgentError> {
        match decoded {
            ClaudeDecoded::Event(event) => return Ok(Handled::Event(event)),
            ClaudeDecoded::PermissionRequested { request_id, request } => {
                let decision = turn.decision(request.clone());
                turn.requests.open(ClaudeQuestion { request_id, request }, decision);
            }
            ClaudeDecoded::Withdrawn { request_id } => {
                turn.requests.withdraw(|question| question.request_id == request_id);
            }
            ClaudeDecoded::Unsupported { request_id, subtype } => self.refuse(&request_id, &subtype)?,
            // The end of the turn says more than the answer to the interrupt that caused it.
            ClaudeDecoded::Answered { .. } => {}
            ClaudeDecoded::TurnEnd(end) => {
                self.end_background().await;
                return Ok(Handled::End(end));
            }
            ClaudeDecoded::Fault(error) => return Ok(Handled::Fault(error)),
        }
        Ok(Handled::Nothing)
    }

    async fn answer(
        &mut self,
        question: ClaudeQuestion,
        decision: PermissionDecision,
        turn: &mut ProgramTurn<Self>,
    ) -> Result<(), AgentError> {
        let request_id = question.request_id.clone();
        let response = match decision {
            PermissionDecision::Allow { updated_input } => {
                // The program takes an allowance without its input for a denial.
                json!({ "behavior": "allow", "updatedInput": question.allowed_input(updated_input) })
            }
            PermissionDecision::Deny { message } => {
                turn.deny(&question.request);
                json!({ "behavior": "deny", "message": message })
            }
        };
        self.send(&wire::control_success(&request_id, response))
    }

    async fn interrupt(&mut self, _: &mut ProgramTurn<Self>) -> Result<(), AgentError> {
        interrupt(&self.process.stdin())
    }

    fn decoder(&mut self) -> Option<&mut ClaudeDecoder> {
        Some(&mut self.decoder)
    }

    fn process(&self) -> &Process {
        &self.process
    }

    /// A turn between those that were asked for is one that the program began. Nobody sees what it does until it has ended.
    async fn end(&mut self, how: Ending) -> Exit {
        let how = if how == Ending::Close && self.decoder.in_turn() { Ending::Kill } else { how };
        how.apply(&self.process).await
    }

    fn explain_exit(_: Exit, stderr: &str) -> Option<AgentError> {
        explain_exit(stderr)
    }
}

/// Asks the program behind this pipe to end its turn.
pub(super) fn interrupt(stdin: &Stdin) -> Result<(), AgentError> {
    /// The program distinguishes answers by these ids, over all its life.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let id = format!("interrupt-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    write(stdin, &wire::control_request(&id, json!({ "subtype": "interrupt" })))
}

/// Copies the beginning of a conversation that is branched, off the threads that must not block.
async fn copy_beginning(
    launch: &ClaudeLaunch,
    conversation: &ProcessConversation,
    context: &ExecutionContext,
) -> Result<Option<PrivateFile>, AgentError> {
    let (launch, conversation, folder) = (launch.clone(), conversation.clone(), temporary(context));
    let copying = tokio::task::spawn_blocking(move || {
        let beginning = launch.beginning(&conversation);
        beginning.map(|transcript| PrivateFile::new(transcript, "jsonl", &folder)).transpose()
    });
    copying.await.map_err(|error| {
        let message = format!("the beginning of the conversation was not copied: {error}");
        AgentError::new(ErrorCode::Process, message)
    })?
}
