//! The books of one turn, as far as they are the same for all vendors: the conversation and where it can be left, the
//! sums, and what the turn ends with. What stands in a message is left to the adapters.

use inspan_protocol::{ProviderSessionId, StopReason, Usage};
use serde_json::Value;

use crate::output::{PermissionDenial, TurnOutput};

/// The books of one turn.
#[derive(Debug)]
pub(crate) struct Books {
    /// What was said, in the vendor's form; of a conversation of the vendor's, what was said in this turn.
    pub(crate) messages: Vec<Value>,
    /// The name to go on with.
    pub(crate) session: ProviderSessionId,
    /// The texts of the answers that are whole.
    pub(crate) texts: Vec<String>,
    /// How many messages stay when the turn fails. Those before it are as if it had never been; once a tool has run,
    /// what was done stays too.
    safe: usize,
    settled: bool,
    usage: Usage,
    model: Option<String>,
    answered: u32,
    denials: Vec<PermissionDenial>,
}

/// Whether an answer said anything that counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    No,
    Yes,
}

impl Books {
    /// The books of a turn that says this in a conversation. What an earlier turn left open in it is mended first, and
    /// again by the next turn if this one fails.
    pub(crate) fn begin(
        session: ProviderSessionId,
        mut messages: Vec<Value>,
        mend: fn(&mut Vec<Value>),
        said: Vec<Value>,
    ) -> Self {
        let safe = messages.len();
        mend(&mut messages);
        messages.extend(said);
        Self {
            messages,
            session,
            texts: Vec::new(),
            safe,
            settled: false,
            usage: Usage::default(),
            model: None,
            answered: 0,
            denials: Vec::new(),
        }
    }

    /// Tokens of the turn, with those of the answer in progress.
    pub(crate) fn with(&self, usage: Usage) -> Usage {
        let mut all = self.usage;
        all += usage;
        all
    }

    /// An answer, or a part of one.
    pub(crate) fn count(&mut self, usage: Usage, model: Option<&String>, answered: Answered) {
        self.usage += usage;
        self.answered += u32::from(answered == Answered::Yes);
        self.model = model.cloned().or(self.model.take());
    }

    /// A call was not allowed.
    pub(crate) fn denied(&mut self, denial: PermissionDenial) {
        self.denials.push(denial);
    }

    /// All calls are answered: from here on a failure takes back nothing that was done.
    pub(crate) fn settled(&mut self) {
        self.safe = self.messages.len();
        self.settled = true;
    }

    /// Whether a tool has run, so that a failure takes nothing back.
    pub(crate) fn has_settled(&self) -> bool {
        self.settled
    }

    /// The turn failed: what stays of it is what can be gone on with.
    pub(crate) fn failed(&mut self) {
        self.messages.truncate(self.safe);
    }

    /// The output of a turn whose last answer has this text; the session and the time are the caller's to add.
    /// `structured` reads a whole answer as what was asked for. One that is no JSON is none: the engine asks for
    /// another.
    pub(crate) fn output(
        &mut self,
        mut text: String,
        stop_reason: StopReason,
        structured: impl FnOnce(&str) -> Option<Value>,
    ) -> TurnOutput {
        let mut structured_output = None;
        if stop_reason == StopReason::Complete {
            structured_output = structured(&text);
        } else {
            self.texts.push(text);
            let texts: Vec<&str> =
                self.texts.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
            text = texts.join("\n\n");
        }
        TurnOutput {
            text,
            structured_output,
            usage: self.usage,
            model: self.model.take(),
            num_turns: self.answered,
            permission_denials: std::mem::take(&mut self.denials),
            ..TurnOutput::new(stop_reason)
        }
    }
}
