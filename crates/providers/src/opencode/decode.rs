//! The decoder of one turn: the bytes of the server's event stream in, their meaning out.
//!
//! # What becomes an event
//!
//! - Text and thinking of the conversation's own answers as they stream; a part that did not stream comes whole.
//! - Every tool once its input is whole, sub-agents' tools included, and its answer. A tool that never answered is
//!   closed when the turn ends, so that tools always pair up.
//! - Text of a sub-agent is not text of the run: it comes back as the answer of the tool that started it. Nor is the
//!   summary by which the program shortens a conversation.
//! - Usage after each step, as the sum of the turn's steps, those of sub-agents included.
//!
//! # When the turn ends
//!
//! | state | event | becomes |
//! |---|---|---|
//! | before the user's message | `session.error` | the end: the message was not taken |
//! | before the user's message | anything else | nothing: it belongs to an earlier turn |
//! | within | `session.idle`, and an answer or an error was seen | the end, once each message of the turn is closed |
//! | within | `session.idle` before that | the turn is about to end; the caller limits how long that may take |
//! | within | `session.status` `retry` | the vendor failed; the caller decides whether to try again |

use std::collections::{BTreeMap, BTreeSet, HashMap};

use inspan_protocol::{AgentError, ErrorCode, PermissionRequest, StreamEvent, Usage};
use serde::Deserialize;
use serde_json::Value;

use super::wire;
use crate::decode::{Warned, head};
use crate::program::TurnDecoder;
use crate::sse::SseReader;

mod ask;
mod end;
mod message;
mod part;

pub(super) use ask::RequestKind;
pub(super) use end::OpenCodeTurnEnd;

use part::{MessageCallIds, OpenCodeCall, PartText};

/// Messages and parts that one turn may have.
const PARTS_LIMIT: usize = 200_000;
/// How often in a row a conversation may be too long for the model. The program shortens it and tries
/// again, forever if that does not help.
const OVERFLOW_LIMIT: u32 = 2;

/// How many steps in a row may not say how they ended. The program takes each for a whole one, such as an answer that was cut
/// off, and asks the model again, without end.
const UNKNOWN_LIMIT: u32 = 3;

/// One thing that the server reported.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OpenCodeDecoded {
    /// The stream begins; what happens from here on is on it.
    Connected,
    /// Something happened in the turn.
    Event(StreamEvent),
    /// The program asks something.
    Requested {
        /// The id to answer to.
        request_id: String,
        /// What kind of question it is.
        kind: RequestKind,
        /// What is asked.
        request: PermissionRequest,
    },
    /// The program no longer waits for an answer.
    Answered {
        /// The id of the question.
        request_id: String,
        /// Whether the answer was no.
        answer: QuestionAnswer,
    },
    /// The model wrote a message.
    Step {
        /// Whether another one follows.
        follows: Follows,
    },
    /// The vendor failed, and the program is about to try again.
    Retry {
        /// Which attempt that would be.
        attempt: u32,
        /// What the program says about it.
        message: String,
        /// The program's word for a limit of an account.
        reason: Option<String>,
        /// When it would be, in milliseconds since 1970.
        next: Option<i64>,
    },
    /// The program continues what cannot succeed.
    Hopeless(AgentError),
    /// The program is done and closes what is open.
    Closing,
    /// The turn ended.
    TurnEnd(Box<OpenCodeTurnEnd>),
    /// The server broke its protocol; nothing after it can be relied on.
    Fault(AgentError),
}

/// Whether the model will be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Another,
    Nothing,
}

/// How a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionAnswer {
    Given,
    Denied,
}

/// The decoder of one turn of one conversation.
#[derive(Debug, Default)]
pub(super) struct OpenCodeDecoder {
    reader: SseReader,
    count: u64,
    events_of_turn: u64,
    session: String,
    /// The last message of the user that an earlier turn had.
    before: Option<String>,
    /// This turn's.
    prompt: Option<String>,
    messages: HashMap<String, OpenCodeMessage>,
    open: BTreeSet<String>,
    last: Option<String>,
    /// When that was created, in milliseconds since 1970.
    created: Option<u64>,
    texts: Vec<PartText>,
    parts: HashMap<String, usize>,
    calls: BTreeMap<String, OpenCodeCall>,
    call_ids: MessageCallIds,
    steps: BTreeSet<String>,
    /// The messages of which a part is under way, those of sub-agents too: what that took is unknown.
    under_way: BTreeSet<String>,
    /// How many steps in a row do not say how they ended.
    unknown_steps: u32,
    num_turns: u32,
    usage: Usage,
    cost_usd: f64,
    overflows: u32,
    error: Option<wire::OpenCodeFailure>,
    finish: Option<String>,
    structured: Option<Value>,
    model: Option<String>,
    held: Vec<(String, PermissionRequest)>,
    warned: Warned,
}

/// A message that a part may belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenCodeMessage {
    /// The model's, in this conversation.
    Answer,
    /// The user's, a sub-agent's, or a summary.
    Other,
}

/// Speaker event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    Agent,
    SubAgent,
}

impl OpenCodeDecoder {
    /// A decoder for the next turn of a conversation whose last message of the user is known, if it had one here.
    pub(super) fn new(session: &str, before: Option<String>) -> Self {
        Self { session: session.to_owned(), before, ..Self::default() }
    }

    /// Takes the bytes of one read, wherever it ended.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<OpenCodeDecoded> {
        let mut out = Vec::new();
        let mut reader = std::mem::take(&mut self.reader);
        let done = reader.push(bytes, |event| self.take(event.data, &mut out));
        self.reader = reader;
        if let Err(fault) = done {
            out.push(OpenCodeDecoded::Fault(AgentError::new(ErrorCode::Protocol, fault.to_string())));
        }
        out
    }

    /// How many events of the conversation and its sub-agents there were: a server that only sends heartbeats counts
    /// as silent.
    pub(super) fn events_of_turn(&self) -> u64 {
        self.events_of_turn
    }

    /// The message of the user that this turn began with.
    pub(super) fn prompt(&self) -> Option<&str> {
        self.prompt.as_deref().or(self.before.as_deref())
    }

    fn take(&mut self, data: &str, out: &mut Vec<OpenCodeDecoded>) {
        self.count += 1;
        let envelope: wire::Envelope<'_> = match serde_json::from_str(data) {
            Ok(envelope) => envelope,
            Err(error) => return self.fault("event", data.len(), &error, out),
        };
        if let Err(error) = self.decode(&envelope, out) {
            self.fault(&envelope.kind, data.len(), &error, out);
        }
    }

    fn decode(
        &mut self,
        envelope: &wire::Envelope<'_>,
        out: &mut Vec<OpenCodeDecoded>,
    ) -> Result<(), serde_json::Error> {
        let properties = envelope.properties.get();
        let kind = &*envelope.kind;
        if kind == "server.connected" {
            out.push(OpenCodeDecoded::Connected);
            return Ok(());
        }
        let about: wire::EventOrigin<'_> = read(properties)?;
        let Some(session) = about.session else {
            self.release(out);
            return Ok(());
        };
        let speaker = if session == self.session { Speaker::Agent } else { Speaker::SubAgent };
        if self.prompt.is_none() {
            match (kind, speaker) {
                ("message.updated", Speaker::Agent) => {}
                ("session.error", Speaker::Agent) => {
                    self.refused(read(properties)?, out);
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
        self.events_of_turn += 1;
        self.decode_in_turn(kind, speaker, properties, out)?;
        if kind != "permission.asked" {
            self.release(out);
        }
        Ok(())
    }

    /// An event of the turn in progress.
    fn decode_in_turn(
        &mut self,
        kind: &str,
        speaker: Speaker,
        properties: &str,
        out: &mut Vec<OpenCodeDecoded>,
    ) -> Result<(), serde_json::Error> {
        match kind {
            "message.updated" => self.message(read(properties)?, speaker, out),
            "message.part.updated" => self.part(read(properties)?, speaker, out),
            "message.part.delta" => self.delta(&read(properties)?, out),
            "permission.asked" => self.permission(read(properties)?, out),
            "question.asked" => self.question(read(properties)?, out),
            "permission.replied" | "question.replied" | "question.rejected" => {
                Self::replied(properties, kind, out)?;
            }
            "session.status" => Self::status(read(properties)?, out),
            "session.error" => self.failed(read(properties)?, speaker, out),
            "session.idle" if speaker == Speaker::Agent => self.idle(out),
            "session.compacted" if speaker == Speaker::Agent => {
                out.push(warning("compacted", "the program shortened the conversation to make room"));
            }
            "session.compacted"
            | "session.created"
            | "session.updated"
            | "session.deleted"
            | "session.diff"
            | "session.idle"
            | "todo.updated"
            | "message.removed"
            | "message.part.removed"
            | "command.executed" => {}
            // A second form of the same events, which some versions send beside the first.
            other if other.starts_with("session.next.") => {}
            other => self.warn_once("unknownEvent", other, "ignored an event of the unknown type", out),
        }
        Ok(())
    }

    fn fault(&self, kind: &str, length: usize, error: &serde_json::Error, out: &mut Vec<OpenCodeDecoded>) {
        // The words of the parser may quote the event, so only the place is reported.
        let what = match error.classify() {
            serde_json::error::Category::Data => "does not have the shape that is known",
            _ => "is broken JSON",
        };
        let message = format!(
            "event {} of the server (type `{}`, {length} bytes) {what} at column {}",
            self.count,
            head(kind),
            error.column()
        );
        out.push(OpenCodeDecoded::Fault(AgentError::new(ErrorCode::Protocol, message)));
    }

    /// Whether there is room for one more message or part.
    fn has_room(&self, out: &mut Vec<OpenCodeDecoded>) -> bool {
        let full = self.messages.len() + self.parts.len() + self.calls.len() >= PARTS_LIMIT;
        if full {
            let message = format!("the turn has more than {PARTS_LIMIT} messages and parts");
            out.push(OpenCodeDecoded::Fault(AgentError::new(ErrorCode::Protocol, message)));
        }
        !full
    }

    /// Warns of something that is not understood, once in a turn for each kind.
    fn warn_once(&mut self, code: &str, kind: &str, what: &str, out: &mut Vec<OpenCodeDecoded>) {
        out.extend(self.warned.once(code, kind, what).map(OpenCodeDecoded::Event));
    }
}

impl TurnDecoder for OpenCodeDecoder {
    type Decoded = OpenCodeDecoded;
    type End = OpenCodeTurnEnd;

    fn in_tool(&self) -> bool {
        self.calls.values().any(OpenCodeCall::is_open)
    }

    fn abandon(&mut self) -> (Vec<OpenCodeDecoded>, OpenCodeTurnEnd) {
        let mut out = Vec::new();
        let end = self.end(&mut out);
        (out, end)
    }
}

fn warning(code: &str, message: &str) -> OpenCodeDecoded {
    OpenCodeDecoded::Event(StreamEvent::warning(code, message))
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text)
}

#[cfg(test)]
mod tests;
