//! The end of a turn: when it is reached, and the turn's result.

use inspan_protocol::{StreamEvent, TurnId, Usage};

use super::super::wire;
use super::part::Kind;
use super::{OpenCodeDecoded, OpenCodeDecoder};
use crate::decode::unanswered;
use crate::output::TurnOutput;

/// How a turn ended, in the program's own words, and what it came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct OpenCodeTurnEnd {
    /// Why it failed, if it did.
    pub(in super::super) error: Option<wire::OpenCodeFailure>,
    /// The program's word for how the last message ended.
    pub(in super::super) finish: Option<String>,
    /// What the turn came to; its text is the last message, by whose creation the turn is named: a branch keeps that, and
    /// gives its messages new ids.
    pub(in super::super) output: TurnOutput,
    /// All text of the turn.
    pub(in super::super) full_text: String,
}

impl OpenCodeDecoder {
    pub(super) fn idle(&mut self, out: &mut Vec<OpenCodeDecoded>) {
        if self.last.is_none() && self.error.is_none() {
            // The last words of an earlier turn.
            return;
        }
        if self.open.is_empty() {
            let end = self.end(out);
            out.push(OpenCodeDecoded::TurnEnd(Box::new(end)));
        } else {
            out.push(OpenCodeDecoded::Closing);
        }
    }

    pub(super) fn end(&mut self, out: &mut Vec<OpenCodeDecoded>) -> OpenCodeTurnEnd {
        self.held.clear();
        self.close_tools(out);
        if !self.under_way.is_empty() && self.usage != Usage::default() {
            out.push(OpenCodeDecoded::Event(StreamEvent::Usage { usage: self.usage, cost_usd: None }));
        }
        let texts = |of: Option<&str>| {
            let texts = self
                .texts
                .iter()
                .filter(|text| text.kind == Kind::Text && of.is_none_or(|message| message == text.message));
            let texts: Vec<&str> =
                texts.map(|text| text.text.trim()).filter(|text| !text.is_empty()).collect();
            texts.join("\n\n")
        };
        OpenCodeTurnEnd {
            error: self.error.take(),
            finish: self.finish.take(),
            full_text: texts(None),
            output: TurnOutput {
                text: self.last.as_deref().map_or(String::new(), |last| texts(Some(last))),
                structured_output: self.structured.take(),
                turn_id: self.created.take().map(|created| TurnId::from(created.to_string())),
                model: self.model.take(),
                num_turns: self.num_turns,
                usage: self.usage,
                cost_usd: self.cost().filter(|_| self.under_way.is_empty()),
                ..TurnOutput::default()
            },
        }
    }

    fn close_tools(&mut self, out: &mut Vec<OpenCodeDecoded>) {
        let calls = std::mem::take(&mut self.calls);
        let mut open: Vec<_> = calls.into_iter().filter(|(_, call)| call.is_open()).collect();
        open.sort_by_key(|(_, call)| call.order);
        for (tool_use_id, _) in open {
            out.push(OpenCodeDecoded::Event(unanswered(tool_use_id)));
        }
    }
}
