//! The decoder of one agent's session: messages in, their meaning out; it knows one session, turn after turn.
//!
//! # What becomes an event
//!
//! - Text and thinking as they stream, while a turn of ours is in progress and of our session alone. A history that
//!   is sent again when a session is loaded comes before any turn, and is skipped.
//! - Every tool once its arguments are whole: when it begins to run, when it asks for permission, or with the first
//!   update that brings arguments. A tool that never ends is closed when the turn ends, so that tools always pair up.
//! - Usage at the end of the turn, if the agent reports it. The agent counts cost since the session began; the output
//!   is this turn's share, and absent if it is unknown.
//! - Plans, modes, commands and titles are for editors, and are ignored.
//! - The words of an error that were also sent as an answer are retracted.

use inspan_protocol::{AgentError, Chunk, ErrorCode, ProviderSessionId, StreamEvent, Timestamp, Usage};
use serde_json::Value;

use super::wire;
use crate::decode::{Warned, head};
use crate::instructed::Wanted;
use crate::json_rpc::{Incoming, LOST, LocalId, RemoteId};
use crate::moment::lifted_at;
use crate::output::context_use;
use crate::program::TurnDecoder;

mod ask;
mod asked;
mod end;
mod spent;
mod text;
mod tools;

pub(super) use ask::{AcpQuestion, WantedAction};
pub(super) use end::AcpTurnEnd;
use spent::SessionCost;
use text::TurnText;
use tools::{Step, Tools};

/// One thing that the agent reported.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AcpDecoded {
    /// Something happened in the turn.
    Event(StreamEvent),
    /// The agent asks whether it may use a tool.
    PermissionRequested { id: RemoteId, question: Box<AcpQuestion> },
    /// The agent wants something done.
    Wanted { id: RemoteId, wanted: WantedAction },
    /// The agent wants what is not offered, or cannot be read.
    Refused { id: RemoteId, code: i64, message: String },
    /// The agent ended the turn at these denials, and its model has said nothing since then.
    Untold(Vec<String>),
    /// The turn ended.
    TurnEnd(Box<AcpTurnEnd>),
    /// The agent broke its protocol; nothing after it can be relied on.
    Fault(AgentError),
}

/// The updates that are part of a conversation.
const HISTORY: [&str; 4] = ["user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call"];

/// The decoder of one session.
#[derive(Debug, Default)]
pub(super) struct AcpDecoder {
    session: Option<ProviderSessionId>,
    model: Option<String>,
    /// The request whose answer ends the turn in progress.
    prompt: Option<LocalId>,
    /// What its text is to contain, by instruction.
    wanted: Option<Wanted>,
    spent: SessionCost,
    /// When the usage limit is lifted that the account has reached. The agent says it once, and not in each turn.
    resets_at: Option<Timestamp>,
    turn: AcpTurnState,
    /// Whether anything of the conversation came outside a turn: an agent that loads one sends it again.
    has_history: bool,
}

/// What is known of the turn in progress.
#[derive(Debug, Default)]
struct AcpTurnState {
    text: TurnText,
    tools: Tools,
    warned: Warned,
    /// Tokens of its requests to the model, where the agent counts those.
    used: Option<Usage>,
    /// Tokens of the prompts of this turn before the last one.
    before: Usage,
    /// Why tools were denied of which the model has said nothing yet.
    untold: Vec<String>,
    /// How often the model was told of denials by a prompt.
    told: u32,
    /// Whether the agent was asked to cancel it.
    cancelled: bool,
}

impl AcpDecoder {
    /// A decoder for a session that has just begun, and has cost nothing.
    pub(super) fn of_new(session: ProviderSessionId) -> Self {
        Self { session: Some(session), spent: SessionCost::from_nothing(), ..Self::default() }
    }

    /// A decoder for an earlier session. What it cost until now is not known.
    pub(super) fn of_resumed(session: ProviderSessionId) -> Self {
        Self { session: Some(session), ..Self::default() }
    }

    /// The model that answers, as far as the agent reports it.
    pub(super) fn set_model(&mut self, model: Option<String>) {
        self.model = model;
    }

    /// A prompt was sent in this request: its turn begins.
    pub(super) fn begin(&mut self, prompt: LocalId, wanted: Option<Wanted>) {
        self.wanted = wanted;
        self.turn = AcpTurnState::default();
        self.spent.begin_turn();
        self.prompt = Some(prompt);
    }

    /// A question for permission was answered with no.
    pub(super) fn denied(&mut self, why: String) {
        self.turn.untold.push(why);
    }

    /// The turn that ended at a denial goes on with this prompt.
    pub(super) fn go_on(&mut self, prompt: LocalId) {
        self.turn.told += 1;
        self.turn.text.boundary();
        self.prompt = Some(prompt);
    }

    /// The agent was asked to cancel the turn in progress.
    pub(super) fn cancel(&mut self) {
        self.turn.cancelled = true;
    }

    /// Whether a turn has begun and not ended.
    pub(super) fn in_turn(&self) -> bool {
        self.prompt.is_some()
    }

    /// Whether the agent sent anything of the conversation before the first turn.
    pub(super) fn has_history(&self) -> bool {
        self.has_history
    }

    /// Takes one message.
    pub(super) fn take(&mut self, message: Incoming) -> Vec<AcpDecoded> {
        let mut out = Vec::with_capacity(1);
        match message {
            Incoming::Notification { method, params } if method == "session/update" => {
                match serde_json::from_str::<wire::Notice>(params.get()) {
                    Ok(notice) => self.update(notice, &mut out),
                    Err(_) => {
                        self.warn_once("brokenUpdate", "", "ignored an update that cannot be read", &mut out)
                    }
                }
            }
            // Extensions report more than the protocol defines.
            Incoming::Notification { .. } => {}
            Incoming::Request { id, method, params } => self.request(id, &method, &params, &mut out),
            Incoming::Answer { id, result } if Some(id) == self.prompt => self.end(result, &mut out),
            // An answer that is no longer awaited.
            Incoming::Answer { .. } => {}
            Incoming::Invalid(LOST) => {
                let message = "the agent sent a message longer than 16 MiB, which is lost";
                out.push(AcpDecoded::Fault(AgentError::new(ErrorCode::Protocol, message)));
            }
            Incoming::Invalid(what) => self.odd(what, &mut out),
        }
        out
    }

    fn update(&mut self, notice: wire::Notice, out: &mut Vec<AcpDecoded>) {
        if let (Some(ours), Some(theirs)) = (&self.session, &notice.session_id)
            && ours.as_str() != theirs
        {
            return self.warn_once("otherSession", "", "ignored an update of another session", out);
        }
        let update = notice.update;
        if update.session_update == "usage_update" {
            out.extend(self.spent.total(update.cost.as_ref()).map(AcpDecoded::Event));
            let context = update.used.and_then(|used| context_use(used, update.size));
            out.extend(context.filter(|_| self.in_turn()).map(AcpDecoded::Event));
            if let Some(limit) = update.tool.meta.as_ref().and_then(wire::RateLimit::of) {
                let moment = limit.resets_at.and_then(lifted_at);
                self.resets_at = moment.filter(|_| limit.status == "rejected");
            }
            return;
        }
        if let Some(model) = update.config_options.as_deref().and_then(chosen_model) {
            self.model = Some(model);
        }
        if !self.in_turn() {
            self.has_history |= HISTORY.contains(&update.session_update.as_str());
            return;
        }
        match update.session_update.as_str() {
            "agent_message_chunk" => {
                if let Some(used) = update.tool.meta.as_ref().and_then(spent::of_request) {
                    *self.turn.used.get_or_insert_default() += used;
                }
                self.chunk(&update, ChunkKind::Answer, out);
            }
            "agent_thought_chunk" => self.chunk(&update, ChunkKind::Thought, out),
            "tool_call" => {
                self.turn.text.boundary();
                self.tool(update.tool, Step::Called, out);
            }
            "tool_call_update" => self.tool(update.tool, Step::Continued, out),
            "user_message_chunk"
            | "plan"
            | "plan_update"
            | "plan_removed"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update" => {}
            other => self.warn_once("unknownUpdate", other, "ignored an update of the unknown kind", out),
        }
    }

    fn chunk(&mut self, update: &wire::Update, chunk_kind: ChunkKind, out: &mut Vec<AcpDecoded>) {
        let block = update.tool.content.as_ref();
        let kind = block.and_then(|block| block["type"].as_str()).unwrap_or("nothing");
        let text = block.and_then(|block| block["text"].as_str());
        let content = match (kind, text) {
            ("text", Some("")) => return,
            ("text", Some(text)) => text,
            _ => {
                return self.warn_once("passedOver", kind, "ignored a part of an answer of the kind", out);
            }
        };
        self.turn.untold.clear();
        match chunk_kind {
            ChunkKind::Answer => {
                let content = self.turn.text.push(content, update.message_id.as_deref());
                out.push(AcpDecoded::Event(StreamEvent::Text { content, chunk: Chunk::Delta }));
            }
            ChunkKind::Thought => {
                self.turn.text.add_thought(content);
                let content = content.to_owned();
                out.push(AcpDecoded::Event(StreamEvent::Thinking { content, chunk: Chunk::Delta }));
            }
        }
    }

    fn tool(&mut self, call: wire::AcpToolCall, step: Step, out: &mut Vec<AcpDecoded>) {
        if call.tool_call_id.is_none() {
            return self.warn_once("brokenUpdate", "", "ignored an update that cannot be read", out);
        }
        let events = self.turn.tools.update(call, step);
        self.tell(events, out);
    }

    /// The start of something that is done for the agent, with its id, unless an open tool of its own says one of these texts.
    pub(super) fn begin_own(
        &mut self,
        tool_name: &str,
        input: Value,
        texts: &[&str],
    ) -> Option<(String, AcpDecoded)> {
        let id = self.turn.tools.begin_own(tool_name, texts)?;
        let tool_name = tool_name.to_owned();
        let start = StreamEvent::ToolStart { tool_name, tool_use_id: id.clone(), input };
        Some((id, self.own(start)))
    }

    /// Its end.
    pub(super) fn end_own(&mut self, id: String, result: Value, is_error: bool) -> AcpDecoded {
        self.turn.tools.end_own(&id);
        self.own(StreamEvent::ToolComplete { tool_use_id: id, result, is_error })
    }

    fn own(&mut self, event: StreamEvent) -> AcpDecoded {
        self.turn.text.stop();
        AcpDecoded::Event(event)
    }

    /// Passes on what happened to tools; a retraction ends there.
    fn tell(&mut self, events: Vec<StreamEvent>, out: &mut Vec<AcpDecoded>) {
        if !events.is_empty() {
            self.turn.text.stop();
        }
        out.extend(events.into_iter().map(AcpDecoded::Event));
    }

    /// Some agents write more to their output than the protocol; each kind of it is reported once.
    fn odd(&mut self, what: &str, out: &mut Vec<AcpDecoded>) {
        let message = format!("in the agent's output, {what}");
        out.extend(self.turn.warned.message_once("oddLine", what, message).map(AcpDecoded::Event));
    }

    /// Warns of something that is not understood, once in a turn for each kind.
    fn warn_once(&mut self, code: &str, kind: &str, what: &str, out: &mut Vec<AcpDecoded>) {
        out.extend(self.turn.warned.once(code, kind, what).map(AcpDecoded::Event));
    }
}

impl TurnDecoder for AcpDecoder {
    type Decoded = AcpDecoded;
    type End = AcpTurnEnd;

    fn in_tool(&self) -> bool {
        self.turn.tools.any_open()
    }

    fn abandon(&mut self) -> (Vec<AcpDecoded>, AcpTurnEnd) {
        let mut out = Vec::new();
        self.close_tools(&mut out);
        let usage = self.taken(self.turn.used.unwrap_or_default());
        let cost_usd = self.spend(usage, None, &mut out);
        (out, self.turn_end(usage, cost_usd))
    }
}

/// Whose words a chunk holds.
#[derive(Clone, Copy, Debug)]
enum ChunkKind {
    Answer,
    Thought,
}

/// The value of the option that chooses the model.
pub(super) fn chosen_model(options: &[wire::ConfigOption]) -> Option<String> {
    let option =
        options.iter().find(|option| option.category.as_deref() == Some("model") || option.id == "model")?;
    option.current_value.as_str().map(str::to_owned)
}

/// The text of a value, if it is one; else the value as JSON.
fn text_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
