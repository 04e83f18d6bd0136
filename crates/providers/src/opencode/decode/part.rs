//! The parts of messages: text and thinking as they stream, tools with what they answered, and the steps with what
//! they used.

use std::collections::HashMap;

use inspan_protocol::{AgentError, Chunk, ErrorCode, StreamEvent, Usage};
use serde_json::Value;

use super::super::rules::STRUCTURED;
use super::super::wire;
use super::{Follows, OpenCodeDecoded, OpenCodeDecoder, OpenCodeMessage, Speaker};
use crate::decode::CallIds;
use crate::output::context_use;
use crate::output::plausible;

/// A text or thinking of an answer, as far as it is known.
#[derive(Debug)]
pub(super) struct PartText {
    pub(super) message: String,
    pub(super) kind: Kind,
    pub(super) text: String,
    state: CallState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thinking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    Streaming,
    Done,
}

/// A tool that was called.
#[derive(Debug)]
pub(super) struct OpenCodeCall {
    pub(super) name: String,
    pub(super) input: Option<Value>,
    /// When it began, among the other calls.
    pub(super) order: usize,
    answered: bool,
}

impl OpenCodeCall {
    /// Whether it began and has not answered.
    pub(super) fn is_open(&self) -> bool {
        self.input.is_some() && !self.answered
    }
}

/// The ids of calls, by the message and the model's own id.
#[derive(Debug, Default)]
pub(super) struct MessageCallIds {
    known: HashMap<(String, String), String>,
    ids: CallIds,
}

impl MessageCallIds {
    pub(super) fn of(&mut self, message: &str, call: &str) -> String {
        let key = (message.to_owned(), call.to_owned());
        let ids = &mut self.ids;
        self.known.entry(key).or_insert_with(|| ids.fresh(call)).clone()
    }
}

impl OpenCodeDecoder {
    pub(super) fn part(
        &mut self,
        updated: wire::PartUpdated<'_>,
        speaker: Speaker,
        out: &mut Vec<OpenCodeDecoded>,
    ) {
        let part = updated.part;
        match &*part.kind {
            "tool" => self.tool(part, out),
            "step-finish" => self.step(&part, speaker, out),
            "text" => self.text(part, Kind::Text, out),
            "reasoning" => self.text(part, Kind::Thinking, out),
            "step-start" if self.under_way.len() < super::PARTS_LIMIT => {
                self.under_way.insert(part.message.into_owned());
            }
            "step-start" | "snapshot" | "patch" | "agent" | "file" | "subtask" | "compaction" | "retry" => {}
            other => self.warn_once("unknownPart", other, "ignored a part of the unknown type", out),
        }
    }

    fn text(&mut self, part: wire::Part<'_>, kind: Kind, out: &mut Vec<OpenCodeDecoded>) {
        if self.messages.get(&*part.message) != Some(&OpenCodeMessage::Answer) {
            return;
        }
        let text = part.text.unwrap_or_default();
        let done = part.time.is_some_and(|time| time.end.is_some());
        let Some(index) = self.parts.get(&*part.id).copied() else {
            if !self.has_room(out) {
                return;
            }
            let chunk = if done { Chunk::Whole } else { Chunk::Delta };
            say(kind, &text, chunk, out);
            self.parts.insert(part.id.into_owned(), self.texts.len());
            self.texts.push(PartText {
                message: part.message.into_owned(),
                kind,
                text: text.into_owned(),
                state: if done { CallState::Done } else { CallState::Streaming },
            });
            return;
        };
        let known = &mut self.texts[index];
        if known.state == CallState::Done {
            return;
        }
        // What the stream left out is sent now; the program trims the text at its end, which retracts nothing.
        if let Some(rest) = text.strip_prefix(known.text.as_str()) {
            let chunk = if known.text.is_empty() && done { Chunk::Whole } else { Chunk::Delta };
            say(kind, rest, chunk, out);
            known.text = text.into_owned();
        } else if done {
            known.text = text.into_owned();
        }
        if done {
            known.state = CallState::Done;
        }
    }

    pub(super) fn delta(&mut self, delta: &wire::PartDelta<'_>, out: &mut Vec<OpenCodeDecoded>) {
        let Some(index) = self.parts.get(&*delta.part).filter(|_| delta.field == "text") else { return };
        let known = &mut self.texts[*index];
        if known.state == CallState::Streaming {
            known.text.push_str(&delta.delta);
            say(known.kind, &delta.delta, Chunk::Delta, out);
        }
    }

    fn tool(&mut self, part: wire::Part<'_>, out: &mut Vec<OpenCodeDecoded>) {
        let (Some(id), Some(state)) = (part.call, part.state) else { return };
        let id = self.call_ids.of(&part.message, &id);
        if !self.calls.contains_key(&id) {
            if !self.has_room(out) {
                return;
            }
            let order = self.calls.len();
            self.calls.insert(
                id.clone(),
                OpenCodeCall { name: String::new(), input: None, order, answered: false },
            );
        }
        let Some(call) = self.calls.get_mut(&id) else { return };
        // A call that the program cannot make sense of is renamed, and its input holds its own name.
        let unknown = part.tool.as_deref() == Some("invalid");
        if let Some(tool) = part.tool.filter(|_| call.input.is_none()) {
            let meant = state.input["tool"].as_str().filter(|_| unknown);
            call.name = meant.map_or_else(|| tool.clone().into_owned(), str::to_owned);
        }
        if state.status == "pending" || call.answered {
            return;
        }
        if call.input.is_none() {
            call.input = Some(state.input.clone());
            out.push(OpenCodeDecoded::Event(StreamEvent::ToolStart {
                tool_name: call.name.clone(),
                tool_use_id: id.clone(),
                input: state.input,
            }));
        }
        let (result, failed) = match &*state.status {
            "completed" => (state.output, unknown),
            "error" => (state.error, true),
            _ => return,
        };
        call.answered = true;
        out.push(OpenCodeDecoded::Event(StreamEvent::ToolComplete {
            tool_use_id: id,
            result: Value::String(result.unwrap_or_default().into_owned()),
            // The program calls a command done that it ended because the turn was aborted.
            is_error: failed || self.error.as_ref().is_some_and(|error| error.name == "MessageAbortedError"),
        }));
    }

    fn step(&mut self, part: &wire::Part<'_>, speaker: Speaker, out: &mut Vec<OpenCodeDecoded>) {
        if self.steps.len() >= super::PARTS_LIMIT || !self.steps.insert(part.id.to_string()) {
            return;
        }
        let usage = part.tokens.map_or(Usage::default(), Usage::from);
        let is_unknown = part.reason.as_deref() == Some("unknown");
        self.unknown_steps = if is_unknown { self.unknown_steps + 1 } else { 0 };
        if self.unknown_steps == super::UNKNOWN_LIMIT {
            let message = format!(
                "{} answers of the model in a row were cut off, or did not say how they ended",
                super::UNKNOWN_LIMIT
            );
            out.push(OpenCodeDecoded::Hopeless(AgentError::new(ErrorCode::Network, message)));
        }
        // What was cut off tells no tokens.
        if !(is_unknown && usage == Usage::default()) {
            self.under_way.remove(&*part.message);
        }
        self.usage += usage;
        self.cost_usd += part.cost.map_or(Ok(f64::NAN), plausible).unwrap_or_else(|warning| {
            out.push(OpenCodeDecoded::Event(warning));
            // The sum stays unknown, whatever is added to it.
            f64::NAN
        });
        let answer =
            speaker == Speaker::Agent && self.messages.get(&*part.message) == Some(&OpenCodeMessage::Answer);
        if answer {
            self.num_turns += 1;
            self.overflows = 0;
        }
        if self.usage != Usage::default() {
            let cost_usd = self.cost();
            out.push(OpenCodeDecoded::Event(StreamEvent::Usage { usage: self.usage, cost_usd }));
        }
        if answer {
            out.extend(context_use(usage.total(), None).map(OpenCodeDecoded::Event));
        }
        if answer {
            // The call by which structured output is given is the last one.
            let given = self.calls.values().any(|call| call.name == STRUCTURED && call.answered);
            let another = (is_unknown || part.reason.as_deref() == Some("tool-calls")) && !given;
            out.push(OpenCodeDecoded::Step {
                follows: if another { Follows::Another } else { Follows::Nothing },
            });
        }
    }

    /// The program says zero for a model whose price it does not know.
    pub(super) fn cost(&self) -> Option<f64> {
        // Beyond a millionth of a cent a sum is noise.
        let cost = (self.cost_usd * 1e8).round() / 1e8;
        (cost > 0.0).then_some(cost)
    }
}

fn say(kind: Kind, text: &str, chunk: Chunk, out: &mut Vec<OpenCodeDecoded>) {
    if text.is_empty() {
        return;
    }
    let content = text.to_owned();
    out.push(OpenCodeDecoded::Event(match kind {
        Kind::Text => StreamEvent::Text { content, chunk },
        Kind::Thinking => StreamEvent::Thinking { content, chunk },
    }));
}
