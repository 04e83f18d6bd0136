//! The end of a turn: when it is reached, and the turn's result.

use inspan_protocol::{StreamEvent, TurnId, Usage};
use serde_json::Value;

use super::super::wire;
use super::part::Kind;
use super::{OpenCodeDecoded, OpenCodeDecoder};
use crate::decode::unanswered;

/// How a turn ended, in the program's own words, and what it came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct OpenCodeTurnEnd {
    /// Why it failed, if it did.
    pub(in super::super) error: Option<wire::OpenCodeFailure>,
    /// The program's word for how the last message ended.
    pub(in super::super) finish: Option<String>,
    /// The last message.
    pub(in super::super) text: String,
    /// All text of the turn.
    pub(in super::super) full_text: String,
    /// The structured output as it was given.
    pub(in super::super) structured: Option<Value>,
    /// The last message, by when it was created: a branch keeps that, and gives its messages new ids.
    pub(in super::super) created: Option<TurnId>,
    /// The model that spoke last, with its provider.
    pub(in super::super) model: Option<String>,
    /// Messages that the model wrote.
    pub(in super::super) num_turns: u32,
    /// Tokens of this turn.
    pub(in super::super) usage: Usage,
    /// Cost of this turn; absent means unknown.
    pub(in super::super) cost_usd: Option<f64>,
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
            text: self.last.as_deref().map_or(String::new(), |last| texts(Some(last))),
            full_text: texts(None),
            structured: self.structured.take(),
            created: self.created.take().map(|created| TurnId::from(created.to_string())),
            model: self.model.take(),
            num_turns: self.num_turns,
            usage: self.usage,
            cost_usd: self.cost().filter(|_| self.under_way.is_empty()),
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
