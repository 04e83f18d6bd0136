//! The state of one turn, in the parts that are the same for all vendors: the conversation and how far it is
//! committed, the tokens, and the output. The form of a message is the vendor's.

use inspan_protocol::{ProviderSessionId, StopReason, Usage};
use serde_json::Value;

use crate::output::{PermissionDenial, TurnOutput};

/// The state of one turn.
#[derive(Debug)]
pub(crate) struct TurnState {
    /// The conversation in the vendor's form; if the vendor stores it, only the messages of this turn.
    pub(crate) messages: Vec<Value>,
    /// The id to continue with.
    pub(crate) session: ProviderSessionId,
    /// The texts of the complete responses.
    pub(crate) texts: Vec<String>,
    /// How many messages stay when the turn fails: those from before the turn, and once a tool has run, all until then.
    committed: usize,
    /// How many there were when the model was asked first.
    asked: usize,
    /// Whether a tool has run.
    has_run_tools: bool,
    usage: Usage,
    /// Tokens of the last response.
    last: Usage,
    model: Option<String>,
    answered: u32,
    denials: Vec<PermissionDenial>,
}

/// Whether a response counts as a message of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    No,
    Yes,
}

impl TurnState {
    /// The state of a turn that adds messages to a conversation. `repair` completes what an earlier turn left open; if
    /// this turn fails, the next one repairs it again.
    pub(crate) fn new(
        session: ProviderSessionId,
        mut messages: Vec<Value>,
        repair: fn(&mut Vec<Value>),
        added: Vec<Value>,
    ) -> Self {
        // A turn that failed left the message that it now gets again.
        if messages.ends_with(&added) {
            messages.truncate(messages.len() - added.len());
        }
        let committed = messages.len();
        repair(&mut messages);
        messages.extend(added);
        let asked = messages.len();
        Self {
            messages,
            session,
            texts: Vec::new(),
            committed,
            asked,
            has_run_tools: false,
            usage: Usage::default(),
            last: Usage::default(),
            model: None,
            answered: 0,
            denials: Vec::new(),
        }
    }

    /// Tokens of the turn, with those of the response in progress.
    pub(crate) fn total_usage(&self, usage: Usage) -> Usage {
        let mut all = self.usage;
        all += usage;
        all
    }

    /// Counts a response, which may be incomplete.
    pub(crate) fn count(&mut self, usage: Usage, model: Option<&String>, answered: Answered) {
        self.usage += usage;
        self.last = usage;
        self.answered += u32::from(answered == Answered::Yes);
        self.model = model.cloned().or(self.model.take());
    }

    /// Tokens of the last response.
    pub(crate) fn last_usage(&self) -> Usage {
        self.last
    }

    /// Adds a call that was denied.
    pub(crate) fn add_denial(&mut self, denial: PermissionDenial) {
        self.denials.push(denial);
    }

    /// The calls that were denied.
    pub(crate) fn denials(&self) -> &[PermissionDenial] {
        &self.denials
    }

    /// All calls have results: from here on a failure removes none of these messages.
    pub(crate) fn commit(&mut self) {
        self.committed = self.messages.len();
        self.has_run_tools = true;
    }

    /// Whether a tool has run, so that the turn leaves messages even if it fails.
    pub(crate) fn is_committed(&self) -> bool {
        self.has_run_tools
    }

    /// Removes what is not committed, since the turn failed. The user's message stays if the conversation goes on with it.
    pub(crate) fn roll_back(&mut self, goes_on: bool) {
        let kept = if goes_on { self.committed.max(self.asked) } else { self.committed };
        self.messages.truncate(kept);
    }

    /// The output of a turn whose last response has this text, without its session and duration. `structured` parses
    /// the text of a complete response as structured output; `None` makes the engine ask again.
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
