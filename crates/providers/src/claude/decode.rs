//! The decoder of Claude Code's output: bytes in, their meaning out; it knows one process, turn after turn.
//!
//! # What becomes an event
//!
//! - Text and thinking of the main thread as they stream; a block that did not stream comes whole.
//! - Every tool at its finished block, with its whole input, sub-agents' tools included; its answer when it
//!   comes. A tool that never answered is closed when the turn ends, so that tools always pair up.
//! - Text of a sub-agent is not text of the run: it comes back as the answer of the tool that started it.
//! - A broken stream that the program starts again is retracted. [`StreamEvent::Retract`] voids what was sent since
//!   the last tool event, whole text or retraction; the part that was not broken is sent again, whole.
//! - Usage after each message, sub-agents' included, and at the end of the turn, with the cost. The program counts both
//!   since its own start, or since that of a conversation that it resumed; the output is this turn's share.
//!
//! # When a turn ends
//!
//! - The program begins turns by itself, to tell the model that something in the background has ended. The result of one
//!   names that origin, and does not end the caller's turn unless the prompt was answered there, which the program
//!   repeats then.
//! - A turn goes on while sub-agents run, to the result that tells theirs.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::{
    AgentError, ErrorCode, PermissionRequest, ProviderSessionId, StreamEvent, Timestamp, TurnId, Usage,
};
use serde::{Deserialize, de::IgnoredAny};

use super::wire;
use crate::decode::{OpenTools, TurnText, Warned, head};
use crate::output::{TurnOutput, context_use};
use crate::program::TurnDecoder;
use crate::root::Root;
use inspan_transport::{Line, LineSplitter};

mod end;
mod message;
mod system;
mod tasks;

use end::{EndedTurn, Totals};
use message::{Streamed, SubMessage};
use tasks::BackgroundTasks;

/// One thing that the program reported.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClaudeDecoded {
    /// Something happened in the turn.
    Event(StreamEvent),
    /// The program asks whether it may use a tool.
    PermissionRequested {
        /// The id to answer to.
        request_id: String,
        /// What is asked.
        request: PermissionRequest,
    },
    /// The program requests something that is not offered to it.
    Unsupported {
        /// The id to answer to.
        request_id: String,
        /// What is requested.
        subtype: String,
    },
    /// The program no longer wants an answer.
    Withdrawn {
        /// The id of the request.
        request_id: String,
    },
    /// The program answers a request of ours.
    Answered {
        /// The id of the request.
        request_id: String,
        /// Why it could not be done, if so.
        error: Option<String>,
    },
    /// The turn ended.
    TurnEnd(Box<ClaudeTurnEnd>),
    /// The program broke its protocol; nothing after it can be relied on.
    Fault(AgentError),
}

/// How a turn ended, in the program's own words, and what it came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaudeTurnEnd {
    /// `success`, `error_max_turns` and so on. It does not distinguish success from failure.
    pub subtype: String,
    /// Whether the turn failed.
    pub is_error: bool,
    /// Whether the last message broke off, although the program calls the turn a success.
    pub broke_off: bool,
    /// The program's word for a failed request, such as `rate_limit`.
    pub error: Option<String>,
    /// The HTTP status of a failed request.
    pub status: Option<u16>,
    /// The program's word for how its loop ended.
    pub terminal_reason: Option<String>,
    /// The stop reason of the turn, or of its last message if the turn says none.
    pub stop_reason: Option<String>,
    /// What the turn came to; its text is the answer, or the words of the failure. A cost that is absent is unknown.
    pub output: TurnOutput,
    /// All text of the turn.
    pub full_text: String,
    /// When a usage limit is lifted.
    pub resets_at: Option<Timestamp>,
}

/// The decoder of one process.
#[derive(Debug, Default)]
pub struct ClaudeDecoder {
    lines: LineSplitter,
    line: u64,
    totals: Totals,
    /// Whether the program has said what of its counters is of the conversation before it.
    knows_before: bool,
    session: Option<ProviderSessionId>,
    /// The MCP servers that the process was given, but for those of which was said that they do not run.
    mcp_servers: BTreeSet<String>,
    tasks: BackgroundTasks,
    /// The requested form of the structured output.
    root: Root,
    /// Whether the model was told not to think.
    forbids_thinking: bool,
    /// Whether the model may believe that a sub-agent still works which was stopped.
    misses_end: bool,
    /// Whether the program says that it works. Not every version says so.
    runs: bool,
    turn: ClaudeTurnState,
}

/// What is known of the turn in progress.
#[derive(Debug, Default)]
struct ClaudeTurnState {
    begun: bool,
    /// Whether the program repeated the prompt, which it does when it begins to answer.
    has_prompt: bool,
    text: TurnText,
    streamed: Option<Streamed>,
    last_message: Option<String>,
    /// The program's own id of the last message, of the model or with the answers of its tools.
    uuid: Option<TurnId>,
    messages: u32,
    model: Option<String>,
    error: Option<String>,
    stop_reason: Option<String>,
    usage: Usage,
    message_usage: Usage,
    /// The cost that the program has named, of a turn that goes on.
    cost_usd: Option<f64>,
    /// How often the program has begun to ask the model: more than once for what ends in the background.
    begins: u32,
    /// Messages that the model had written when it was asked last.
    written_before: u32,
    /// Tokens of the last finished message with all that the model read for it.
    context_tokens: u64,
    open_tools: OpenTools,
    /// The messages of sub-agents.
    sub_messages: BTreeMap<String, SubMessage>,
    /// Tokens that the last result counts and that were not seen: of messages whose end is not read yet, or of others.
    unseen: Usage,
    /// Whether a request of a sub-agent was cut or came after the last result, so that the program's cost does not include it.
    is_cut: bool,
    /// What messages took that broke off before another one. The program counts nothing of them.
    broken: Usage,
    /// The end of the turn, if only sub-agents are in progress.
    ended: Option<EndedTurn>,
    warned: Warned,
    resets_at: Option<Timestamp>,
}

impl ClaudeDecoder {
    /// A decoder for a new process.
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder for a process whose conversation is known, and was reported, before its first output.
    pub fn with_session(session: ProviderSessionId) -> Self {
        Self { session: Some(session), ..Self::default() }
    }

    /// Warns if one of these MCP servers does not run.
    pub(super) fn watch_mcp_servers(&mut self, names: impl IntoIterator<Item = String>) {
        self.mcp_servers.extend(names);
    }

    /// Structured output was requested in this form.
    pub(super) fn request_output(&mut self, root: Root) {
        self.root = root;
    }

    /// Warns if the model thinks all the same.
    pub(super) fn watch_thinking(&mut self, is_forbidden: bool) {
        self.forbids_thinking = is_forbidden;
    }

    /// Takes the bytes of one read, wherever it ended.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Vec<ClaudeDecoded> {
        // Few lines are shorter than this, and most become one thing.
        let mut out = Vec::with_capacity(bytes.len() / 256);
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(bytes, |line| self.take(line, &mut out));
        self.lines = lines;
        out
    }

    /// Takes one line.
    pub fn push_line(&mut self, line: &str) -> Vec<ClaudeDecoded> {
        let mut out = Vec::with_capacity(1);
        if !line.trim_start().is_empty() {
            self.take(Line::Text(line), &mut out);
        }
        out
    }

    /// The output ended. A last line without its end is read if it is whole, else the user is warned of it.
    pub fn finish(&mut self) -> Vec<ClaudeDecoded> {
        let mut out = Vec::new();
        let mut lines = std::mem::take(&mut self.lines);
        lines.finish(|line| {
            let whole = matches!(&line, Line::Text(text) if serde_json::from_str::<IgnoredAny>(text).is_ok());
            if whole {
                self.take(line, &mut out);
            } else {
                out.push(warning("cutLine", "the program's last line was cut off"));
            }
        });
        out
    }

    /// Whether a turn has begun and not ended.
    pub(super) fn in_turn(&self) -> bool {
        self.turn.begun
    }

    /// Whether nothing is in progress, and nothing in the background would begin a turn when it ends.
    pub fn is_idle(&self) -> bool {
        !self.turn.begun && !self.runs && self.tasks.is_empty()
    }

    /// Whether a sub-agent was stopped of whose end the model is not told. Only a new process tells it.
    pub(super) fn misses_end(&self) -> bool {
        self.misses_end
    }

    /// Whether the model is being asked: in a turn, or by sub-agents.
    pub fn asks_model(&self) -> bool {
        self.turn.begun || self.tasks.has_sub_agent()
    }

    /// Whether the model was asked as often as it may be in the whole turn, and is asked again. The program counts only since
    /// it began to ask.
    pub(super) fn exhausted(&self, max_turns: u32) -> bool {
        self.turn.begins > 1 && self.turn.written_before >= max_turns
    }

    /// The model is asked. The answer of a tool is not a sign of it: after a structured output the program asks no more.
    fn begin_request(&mut self) {
        self.turn.written_before = self.turn.messages;
    }

    /// The conversation.
    pub(super) fn session(&self) -> Option<&ProviderSessionId> {
        self.session.as_ref()
    }

    /// The program's ids of the sub-agents that work.
    pub(super) fn sub_agents(&self) -> impl Iterator<Item = &str> {
        self.tasks.sub_agents()
    }

    /// The program's ids of the commands in the background.
    pub fn background_commands(&self) -> impl Iterator<Item = &str> {
        self.tasks.commands()
    }

    fn take(&mut self, line: Line<'_>, out: &mut Vec<ClaudeDecoded>) {
        self.line += 1;
        match line {
            Line::Text(text) => self.decode(text, out),
            Line::Repaired(text) => {
                let message = format!(
                    "line {} of the program's output is not valid Unicode and was repaired",
                    self.line
                );
                out.push(warning("invalidUtf8", &message));
                self.decode(&text, out);
            }
            Line::TooLong => out.push(self.fault("is longer than 16 MiB")),
        }
    }

    fn decode(&mut self, line: &str, out: &mut Vec<ClaudeDecoded>) {
        let Some(kind) = wire::line_type(line) else {
            let what = if line.starts_with('{') {
                "is not a JSON object with a type"
            } else {
                "is not a JSON object"
            };
            out.push(self.fault(&format!("({} bytes) {what}", line.len())));
            return;
        };
        let done = match &*kind {
            "stream_event" => serde_json::from_str(line).map(|line| self.stream_event(line, out)),
            "assistant" => serde_json::from_str(line).map(|line| self.assistant(line, out)),
            "user" => serde_json::from_str(line).map(|line| self.user(line, out)),
            "system" => serde_json::from_str(line).map(|line| self.system(&line, out)),
            "result" => serde_json::from_str(line).map(|line| self.result(line, out)),
            "rate_limit_event" => serde_json::from_str(line).map(|line| self.rate_limit(&line, out)),
            "control_request" => serde_json::from_str(line).map(|line| self.control_request(line, out)),
            "control_cancel_request" => {
                serde_json::from_str(line).map(|line| Self::control_cancel(&line, out))
            }
            "control_response" => serde_json::from_str(line).map(|line| Self::control_response(&line, out)),
            "keep_alive" | "tool_progress" | "tool_use_summary" | "auth_status" | "prompt_suggestion" => {
                Ok(())
            }
            other => {
                self.warn_once("unknownMessage", other, "ignored a message of the unknown type", out);
                // Nothing reads it, but a broken line is still an error.
                serde_json::from_str::<IgnoredAny>(line).map(drop)
            }
        };
        if let Err(error) = done {
            // The words of the parser may quote the line, so only the place is reported.
            let what = match error.classify() {
                serde_json::error::Category::Data => "does not have the shape that is known",
                _ => "is broken JSON",
            };
            let place =
                format!("(type `{}`, {} bytes) {what} at column {}", head(&kind), line.len(), error.column());
            out.push(self.fault(&place));
        }
    }

    fn fault(&self, what: &str) -> ClaudeDecoded {
        let message = format!("line {} of the program's output {what}", self.line);
        ClaudeDecoded::Fault(AgentError::new(ErrorCode::Protocol, message))
    }

    fn close_tools(&mut self, out: &mut Vec<ClaudeDecoded>) {
        for event in self.turn.open_tools.close() {
            self.turn.text.boundary();
            out.push(ClaudeDecoded::Event(event));
        }
    }

    /// Warns of something that is not understood, once in a turn for each kind.
    fn warn_once(&mut self, code: &str, kind: &str, what: &str, out: &mut Vec<ClaudeDecoded>) {
        out.extend(self.turn.warned.once(code, kind, what).map(ClaudeDecoded::Event));
    }
}

impl TurnDecoder for ClaudeDecoder {
    type Decoded = ClaudeDecoded;
    type End = ClaudeTurnEnd;

    fn in_tool(&self) -> bool {
        !self.turn.open_tools.is_empty() || self.tasks.has_sub_agent()
    }

    fn abandon(&mut self) -> (Vec<ClaudeDecoded>, ClaudeTurnEnd) {
        let mut out = Vec::new();
        self.close_tools(&mut out);
        if self.turn.message_usage != Usage::default() {
            self.count_streamed();
        }
        let turn = std::mem::take(&mut self.turn);
        let mut usage = turn.usage;
        usage += turn.message_usage;
        if usage != Usage::default() {
            out.push(ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd: None }));
        }
        out.extend(context_use(turn.context_tokens, None).map(ClaudeDecoded::Event));
        let end = ClaudeTurnEnd {
            error: turn.error,
            stop_reason: turn.stop_reason,
            output: TurnOutput {
                session_id: self.session.clone(),
                turn_id: turn.uuid,
                model: turn.model,
                num_turns: turn.messages,
                usage,
                ..TurnOutput::default()
            },
            full_text: turn.text.into_text(),
            resets_at: turn.resets_at,
            ..ClaudeTurnEnd::default()
        };
        (out, end)
    }
}

fn warning(code: &str, message: &str) -> ClaudeDecoded {
    ClaudeDecoded::Event(StreamEvent::warning(code, message))
}

/// The control messages: what the program asks, takes back and answers.
impl ClaudeDecoder {
    fn control_request(&mut self, line: wire::ControlRequestLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        let request_id = line.request_id.to_string();
        let request = line.request;
        match (&*request.subtype, request.tool_name) {
            ("can_use_tool", Some(tool_name)) => {
                let input = request.input.unwrap_or_default();
                let questions = match &*tool_name {
                    "AskUserQuestion" => Vec::deserialize(&input["questions"]).unwrap_or_default(),
                    _ => Vec::new(),
                };
                out.push(ClaudeDecoded::PermissionRequested {
                    request_id,
                    request: PermissionRequest {
                        tool_use_id: request.tool_use_id.map(|id| id.to_string()),
                        description: request.description.map(|text| text.to_string()),
                        questions,
                        ..PermissionRequest::new(tool_name.to_string(), input)
                    },
                });
            }
            (subtype, _) => {
                let subtype = head(subtype);
                self.warn_once("unsupportedRequest", &subtype, "refused the program's request", out);
                out.push(ClaudeDecoded::Unsupported { request_id, subtype });
            }
        }
    }

    fn control_cancel(line: &wire::ControlCancelLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        out.push(ClaudeDecoded::Withdrawn { request_id: line.request_id.to_string() });
    }

    fn control_response(line: &wire::ControlResponseLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        let response = &line.response;
        let error = (&*response.subtype != "success")
            .then(|| response.error.as_deref().unwrap_or("it gave no reason").to_owned());
        out.push(ClaudeDecoded::Answered { request_id: response.request_id.to_string(), error });
    }
}

#[cfg(test)]
mod tests;
