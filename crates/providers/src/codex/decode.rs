//! The decoder of Codex's app server: messages in, their meaning for the turn out; it knows one thread and what its
//! sub-agents say, turn after turn.
//!
//! # What becomes an event
//!
//! - Text and thinking of the thread as they stream; an item that did not stream comes whole.
//! - Every command, change of files, call of an MCP tool, search and so on as a tool: its start with its whole input,
//!   and its answer. One that never answered is closed when the turn ends, so that tools always pair up.
//! - A sub-agent's thread is a tool of this one; of that thread's messages only the tokens count, and whether it works.
//!   The turn ends once its sub-agents have ended too.
//! - A command that the turn leaves running is no failure: it is answered as one that is stopped with the turn.
//! - A message that the program starts again, because its stream broke or the user sent a message in between, is
//!   retracted.
//! - Usage after each request to the model: the sum over the requests of this turn. The program also reports totals of
//!   the thread over all its turns, by which a repeated update is recognised.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::{
    AgentError, ErrorCode, PermissionRequest, ProviderSessionId, StreamEvent, Timestamp, Usage,
};
use serde_json::Value;

use super::wire;
use crate::decode::{OpenTools, TurnText, Warned, head};
use crate::json_rpc::{Incoming, RemoteId};
use crate::output::TurnOutput;
use crate::program::TurnDecoder;

mod ask;
mod end;
mod item;
mod notice;

/// One thing that the program reported.
#[derive(Debug, PartialEq)]
pub(super) enum CodexDecoded {
    /// Something happened in the turn.
    Event(StreamEvent),
    /// The program requests a permission.
    PermissionRequested { id: RemoteId, request: PermissionRequest, form: QuestionForm },
    /// The program requests something that is not offered to it.
    Unsupported { id: RemoteId, method: String },
    /// An MCP server asks the user something, which cannot be answered here.
    Elicited { id: RemoteId },
    /// The program no longer wants an answer.
    Withdrawn { id: RemoteId },
    /// The requested turn has this id.
    TurnStarted { turn_id: String },
    /// The program refused the requested turn.
    NotBegun(AgentError),
    /// The program is done with the turn, and sub-agents still work or commands still run.
    BackgroundLeft,
    /// The turn ended.
    TurnEnd(Box<CodexTurnEnd>),
    /// The program broke its protocol; nothing after it can be relied on.
    Fault(AgentError),
}

/// In which form a question is answered.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum QuestionForm {
    /// By a decision.
    Decision,
    /// By the permissions that are granted; these were requested.
    Permissions(Value),
    /// By an action.
    Elicitation,
}

/// How a turn ended, in the program's own words, and what it came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CodexTurnEnd {
    pub(super) status: Status,
    /// Why it failed.
    pub(super) error: Option<wire::TurnError>,
    /// What the turn came to; its text is the last whole message.
    pub(super) output: TurnOutput,
    /// Whether the last message began and was never completed: the model refused.
    pub(super) unanswered: bool,
    /// All text of the turn.
    pub(super) full_text: String,
    /// The requested form of the answer.
    pub(super) answer: wire::AnswerForm,
    /// When a usage limit is lifted.
    pub(super) resets_at: Option<Timestamp>,
}

/// The program's word for how a turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Status {
    Completed,
    Interrupted,
    #[default]
    Failed,
}

/// The decoder of one process and its one thread.
#[derive(Debug, Default)]
pub(super) struct CodexDecoder {
    session: Option<ProviderSessionId>,
    model: Option<String>,
    resets_at: Option<Timestamp>,
    turn: CodexTurnState,
    /// What each thread, the sub-agents' too, has used in all.
    totals: BTreeMap<String, wire::Tokens>,
    /// The threads of sub-agents that work, each with its turn if that has begun.
    at_work: BTreeMap<String, Option<String>>,
    /// The commands that run, those of sub-agents too: the thread and the id of each.
    commands: BTreeSet<(String, String)>,
    /// The MCP servers that have begun to start.
    starting: BTreeSet<String>,
    /// Notices that were shown already; the program repeats them with every turn.
    noticed: BTreeSet<String>,
}

/// What is known of the turn in progress.
#[derive(Debug, Default)]
struct CodexTurnState {
    phase: CodexPhase,
    id: Option<String>,
    /// How the program ended it, while sub-agents still work.
    ended: Option<Ended>,
    text: TurnText,
    /// The message that streams, with what of it has come.
    open_message: Option<(String, Streamed)>,
    answer: String,
    /// Thoughts and messages that streamed.
    streamed: BTreeSet<String>,
    last_streamed: Option<(String, u64)>,
    open_tools: OpenTools,
    /// Tools that were called since the last request to the model was answered, and before.
    called: Called,
    /// How many ids were made up: for what the model typed into a command that runs, and for calls whose id was used before.
    made_up: usize,
    /// The newest call of each item's id. Some models count their calls from the beginning in each answer.
    newest: BTreeMap<String, String>,
    /// The arguments of each call, for questions about it.
    inputs: BTreeMap<String, (String, Value)>,
    /// The same of sub-agents' tools, by thread and item.
    others: BTreeMap<(String, String), Value>,
    form: wire::AnswerForm,
    requests: u32,
    usage: Usage,
    warned: Warned,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CodexPhase {
    /// None was requested.
    #[default]
    Idle,
    Begun,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Streamed {
    #[default]
    Nothing,
    Some,
}

/// How the program ended a turn.
#[derive(Debug, Default)]
struct Ended {
    status: Status,
    error: Option<wire::TurnError>,
    duration_ms: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Called {
    now: u32,
    by_last: u32,
}

/// Threads whose totals are remembered.
const THREAD_LIMIT: usize = 256;
/// Notices that are remembered.
const NOTICED_LIMIT: usize = 256;

impl CodexDecoder {
    /// The thread was opened.
    pub(super) fn open(&mut self, session: ProviderSessionId, model: Option<String>) {
        self.session = Some(session);
        self.model = model;
    }

    /// A turn was requested, with an answer in this form.
    pub(super) fn begin(&mut self, form: wire::AnswerForm) {
        self.turn = CodexTurnState { phase: CodexPhase::Begun, form, ..CodexTurnState::default() };
        self.resets_at = None;
        self.commands.clear();
    }

    /// The program named the turn.
    pub(super) fn named(&mut self, turn_id: &str) {
        self.turn.id.get_or_insert_with(|| turn_id.to_owned());
    }

    /// Whether a turn has begun and not ended.
    #[cfg(test)]
    pub(super) fn in_turn(&self) -> bool {
        self.turn.phase == CodexPhase::Begun
    }

    /// Whether the model was asked as often as it may be, and would be asked again.
    pub(super) fn exhausted(&self, max_turns: u32) -> bool {
        let turn = &self.turn;
        let again = turn.called.by_last + turn.called.now > 0 && turn.open_tools.is_empty();
        turn.ended.is_none() && (turn.requests > max_turns || (turn.requests == max_turns && again))
    }

    /// The threads of sub-agents that work, each with its turn if that has begun.
    pub(super) fn at_work(&self) -> &BTreeMap<String, Option<String>> {
        &self.at_work
    }

    /// The threads of the commands that run, each as often as it has one. What a sub-agent at work runs is a part of it.
    pub(super) fn command_threads(&self) -> impl Iterator<Item = &String> {
        self.commands.iter().map(|(thread, _)| thread).filter(|thread| !self.at_work.contains_key(*thread))
    }

    /// The threads that have asked a model, those of sub-agents too.
    pub(super) fn threads(&self) -> impl Iterator<Item = &String> {
        self.totals.keys()
    }

    /// Takes one message. Answers to requests are not for the decoder and mean nothing here.
    pub(super) fn push(&mut self, message: Incoming) -> Vec<CodexDecoded> {
        let mut out = Vec::with_capacity(1);
        match message {
            Incoming::Notification { method, params } => self.notification(&method, params.get(), &mut out),
            Incoming::Request { id, method, params } => self.request(id, &method, params.get(), &mut out),
            Incoming::Invalid(what) => out.push(warning("oddLine", what)),
            Incoming::Answer { .. } => {}
        }
        out
    }

    fn notification(&mut self, method: &str, params: &str, out: &mut Vec<CodexDecoded>) {
        let done = self.dispatch(method, params, out);
        if let Err(error) = done {
            out.push(fault(method, params, &error));
        }
    }

    fn dispatch(
        &mut self,
        method: &str,
        params: &str,
        out: &mut Vec<CodexDecoded>,
    ) -> Result<(), serde_json::Error> {
        match method {
            "item/agentMessage/delta"
            | "item/plan/delta"
            | "item/reasoning/summaryTextDelta"
            | "item/reasoning/textDelta"
            | "item/started"
            | "item/completed" => {
                let place: wire::NotificationPlace<'_> = read(params)?;
                self.command(method, &place);
                if self.is_ours(&place) {
                    self.item(method, params, out)?;
                } else if method == "item/started" {
                    self.started_elsewhere(&place, &read::<wire::ItemLine<'_>>(params)?.item);
                }
            }
            "item/commandExecution/terminalInteraction" => {
                if self.is_ours(&read(params)?) {
                    self.terminal_input(read(params)?, out);
                }
            }
            "thread/tokenUsage/updated" => self.token_usage(params, out)?,
            "turn/started" => self.turn_started(params, out)?,
            "turn/completed" => self.turn_completed(params, out)?,
            "error" => self.error(params, out)?,
            "serverRequest/resolved" => {
                let resolved: wire::ResolvedLine = read(params)?;
                out.push(CodexDecoded::Withdrawn { id: resolved.request_id });
            }
            other => self.notice(other, params, out)?,
        }
        Ok(())
    }

    /// What the turn in progress does, step by step.
    fn item(
        &mut self,
        method: &str,
        params: &str,
        out: &mut Vec<CodexDecoded>,
    ) -> Result<(), serde_json::Error> {
        match method {
            "item/started" => self.started(read::<wire::ItemLine<'_>>(params)?.item, out),
            "item/completed" => self.completed(read::<wire::ItemLine<'_>>(params)?.item, out),
            "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => {
                self.thought_delta(&read(params)?, out);
            }
            _ => self.message_delta(&read(params)?, out),
        }
        Ok(())
    }

    /// Keeps track of the commands that run, in whatever thread. One that is left in the background is completed when it exits.
    fn command(&mut self, method: &str, place: &wire::NotificationPlace<'_>) {
        let Some(item) = &place.item else { return };
        if item.kind != "commandExecution" || self.turn.phase == CodexPhase::Idle {
            return;
        }
        let thread = place.thread_id.as_deref().or(self.session.as_ref().map(ProviderSessionId::as_str));
        let command = (thread.unwrap_or_default().to_owned(), item.id.clone().into_owned());
        match method {
            "item/started" => self.commands.insert(command),
            _ => self.commands.remove(&command),
        };
    }

    /// Whether a notification belongs to the turn in progress of this thread.
    fn is_ours(&self, place: &wire::NotificationPlace<'_>) -> bool {
        self.turn.phase == CodexPhase::Begun && self.is_our_thread(place) && self.is_our_turn(place)
    }

    fn is_our_thread(&self, place: &wire::NotificationPlace<'_>) -> bool {
        match (&self.session, &place.thread_id) {
            (Some(ours), Some(theirs)) => *ours == **theirs,
            _ => true,
        }
    }

    fn is_our_turn(&self, place: &wire::NotificationPlace<'_>) -> bool {
        match (&self.turn.id, &place.turn_id) {
            (Some(ours), Some(theirs)) => *ours == **theirs,
            _ => true,
        }
    }

    fn close_tools(&mut self, out: &mut Vec<CodexDecoded>) {
        for event in self.turn.open_tools.close() {
            self.turn.text.boundary();
            out.push(CodexDecoded::Event(event));
        }
    }

    /// Answers the commands of the turn that still run as it ends.
    fn leave_commands(&mut self, out: &mut Vec<CodexDecoded>) {
        for (thread, id) in &self.commands {
            let is_ours = self.session.as_ref().is_none_or(|ours| ours.as_str() == thread);
            if is_ours && self.turn.open_tools.answer(id) {
                self.turn.text.boundary();
                let result = Value::from("it still ran when the turn ended, and was stopped with it");
                let tool_use_id = id.clone();
                out.push(CodexDecoded::Event(StreamEvent::ToolComplete {
                    tool_use_id,
                    result,
                    is_error: false,
                }));
            }
        }
    }

    /// The message in progress will not be finished, and another takes its place.
    fn retract(&mut self, out: &mut Vec<CodexDecoded>) {
        let Some((_, Streamed::Some)) = self.turn.open_message.take() else { return };
        out.extend(self.turn.text.retract().map(CodexDecoded::Event));
    }

    /// Warns of something that is not understood, once in a turn for each kind.
    fn warn_once(&mut self, code: &str, kind: &str, what: &str, out: &mut Vec<CodexDecoded>) {
        out.extend(self.turn.warned.once(code, kind, what).map(CodexDecoded::Event));
    }
}

impl TurnDecoder for CodexDecoder {
    type Decoded = CodexDecoded;
    type End = CodexTurnEnd;

    fn in_tool(&self) -> bool {
        !self.turn.open_tools.is_empty()
    }

    fn abandon(&mut self) -> (Vec<CodexDecoded>, CodexTurnEnd) {
        let mut out = Vec::new();
        self.close_tools(&mut out);
        let ended = self.turn.ended.take().unwrap_or_default();
        (out, self.end(ended))
    }
}

fn warning(code: &str, message: &str) -> CodexDecoded {
    CodexDecoded::Event(StreamEvent::warning(code, message))
}

/// The words of the parser may quote the message, so only the place is reported.
fn fault(method: &str, params: &str, error: &serde_json::Error) -> CodexDecoded {
    let place = format!("column {} of {} bytes", error.column(), params.len());
    let message =
        format!("the program's `{}` does not have the shape that is known at {place}", head(method));
    CodexDecoded::Fault(AgentError::new(ErrorCode::Protocol, message))
}

fn read<'a, T: serde::Deserialize<'a>>(params: &'a str) -> Result<T, serde_json::Error> {
    serde_json::from_str(params)
}

#[cfg(test)]
mod tests;
