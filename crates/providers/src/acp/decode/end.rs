//! The end of a turn: how it is reported, and the result of the turn.

use inspan_protocol::{AgentError, Chunk, ErrorCode, StreamEvent, Timestamp, Usage};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::wire;
use super::{AcpDecoded, AcpDecoder, spent};
use crate::instructed::Wanted;
use crate::json_rpc::RpcError;
use crate::output::TurnOutput;

/// Why a turn ends, in the protocol's words.
const STOP_REASONS: &[&str] = &["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"];

/// How often a turn goes on after denials at which its agent ended it.
const MOST_TOLD: u32 = 8;

/// How a turn ended, in the agent's own words, and what it came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct AcpTurnEnd {
    /// The agent's word for why it ended; absent if it did not end by itself.
    pub(in super::super) stop_reason: Option<String>,
    /// The error in its place.
    pub(in super::super) error: Option<RpcError>,
    /// Whether it came after the agent was asked to cancel the turn.
    pub(in super::super) cancelled: bool,
    /// Whether it ended at one denial after the other.
    pub(in super::super) only_denied: bool,
    /// What the turn came to; its text is the last message.
    pub(in super::super) output: TurnOutput,
    /// What its text is to contain, by instruction.
    pub(in super::super) wanted: Option<Wanted>,
    /// All text of the turn.
    pub(in super::super) full_text: String,
    /// When a usage limit is lifted.
    pub(in super::super) resets_at: Option<Timestamp>,
}

impl AcpDecoder {
    /// The answer to the prompt ends the turn.
    pub(super) fn end(&mut self, result: Result<Box<RawValue>, RpcError>, out: &mut Vec<AcpDecoded>) {
        let result = result.map(|result| serde_json::from_str::<wire::Prompted>(result.get()));
        self.close_tools(out);
        let (mut usage, mut stop_reason, mut failure) = (Usage::default(), None, None);
        match result {
            Ok(Ok(prompted)) => {
                let own = || prompted.meta.as_ref().and_then(spent::of_quota).or(self.turn.used);
                usage = prompted.usage.map(spent::usage).or_else(own).unwrap_or_default();
                let is_known = STOP_REASONS.contains(&prompted.stop_reason.as_str());
                if !is_known && !self.turn.cancelled {
                    let what = "took the turn for complete, which ended for the unknown reason";
                    self.warn_once("unknownStopReason", &prompted.stop_reason, what, out);
                }
                stop_reason = Some(prompted.stop_reason);
            }
            Ok(Err(_)) => {
                let message = "the agent's answer to the prompt does not say why its turn ended";
                return out.push(AcpDecoded::Fault(AgentError::new(ErrorCode::Protocol, message)));
            }
            Err(error) => {
                self.retract(&error, out);
                failure = Some(error);
            }
        }
        let whole = stop_reason.as_deref().filter(|_| !self.turn.cancelled);
        let usage = self.taken(usage);
        let cost_usd = self.spend(usage, whole, out);
        let is_untold = whole == Some("end_turn") && !self.turn.untold.is_empty();
        if is_untold && self.turn.told < MOST_TOLD {
            self.prompt = None;
            (self.turn.before, self.turn.used) = (usage, None);
            return out.push(AcpDecoded::Untold(std::mem::take(&mut self.turn.untold)));
        }
        let known = self.turn_end(usage, cost_usd);
        let end = AcpTurnEnd { stop_reason, error: failure, only_denied: is_untold, ..known };
        out.push(AcpDecoded::TurnEnd(Box::new(end)));
    }

    /// The end of a turn that ended at a denial and does not go on, because it was stopped meanwhile.
    pub(in super::super) fn end_untold(&mut self) -> AcpTurnEnd {
        let usage = self.turn.before;
        let cost_usd = self.spent.of_turn(usage, None);
        AcpTurnEnd { cancelled: true, ..self.turn_end(usage, cost_usd) }
    }

    /// Tokens of the turn, with those of its last prompt.
    pub(super) fn taken(&self, last: Usage) -> Usage {
        let mut usage = self.turn.before;
        usage += last;
        usage
    }

    /// Reports what the turn took, and returns its cost, as far as the agent named it.
    pub(super) fn spend(
        &mut self,
        usage: Usage,
        stop_reason: Option<&str>,
        out: &mut Vec<AcpDecoded>,
    ) -> Option<f64> {
        let cost_usd = self.spent.of_turn(usage, stop_reason);
        if usage != Usage::default() || cost_usd.is_some() {
            out.push(AcpDecoded::Event(StreamEvent::Usage { usage, cost_usd }));
        }
        cost_usd
    }

    /// Some agents send the words of an error as if the model had written them.
    fn retract(&mut self, error: &RpcError, out: &mut Vec<AcpDecoded>) {
        let last = self.turn.text.answer().trim().to_owned();
        let last = last.strip_prefix("Error: ").unwrap_or(&last);
        let text = error.data.as_ref().and_then(Value::as_str).unwrap_or_default();
        if last.is_empty() || !(error.message.contains(last) || text.contains(last)) {
            return;
        }
        let (thought, text) = self.turn.text.retract();
        out.push(AcpDecoded::Event(StreamEvent::Retract));
        if !thought.is_empty() {
            out.push(AcpDecoded::Event(StreamEvent::Thinking { content: thought, chunk: Chunk::Whole }));
        }
        if !text.is_empty() {
            out.push(AcpDecoded::Event(StreamEvent::Text { content: text, chunk: Chunk::Whole }));
        }
    }

    /// What the turn came to, and no turn after it.
    pub(super) fn turn_end(&mut self, usage: Usage, cost_usd: Option<f64>) -> AcpTurnEnd {
        self.prompt = None;
        let turn = std::mem::take(&mut self.turn);
        AcpTurnEnd {
            output: TurnOutput {
                text: turn.text.answer().to_owned(),
                num_turns: turn.text.messages(),
                model: self.model.clone(),
                usage,
                cost_usd,
                ..TurnOutput::default()
            },
            full_text: turn.text.into_text(),
            cancelled: turn.cancelled,
            wanted: self.wanted,
            resets_at: self.resets_at,
            ..AcpTurnEnd::default()
        }
    }

    pub(super) fn close_tools(&mut self, out: &mut Vec<AcpDecoded>) {
        let events = self.turn.tools.close();
        self.tell(events, out);
    }
}
