//! One item of a node's stream.

use inspan_protocol::{AgentError, ContextUse, OutputStream, Prompt, RunId, Timestamp, Usage};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{FileEdit, LONGEST_TEXT, bounded, file_edits, millis};

/// One item of a node's stream.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StreamItem {
    /// Its place among the items of the node; it never changes.
    pub index: usize,
    /// The event that began it.
    pub seq: u64,
    /// The newest event that is part of it.
    pub until: u64,
    /// When it began.
    pub at: Timestamp,
    /// Which attempt, counting from 1; 0 before the first.
    pub attempt: u32,
    /// Which pass of its loop, counting from 1.
    pub pass: u32,
    /// The agent run.
    pub run_id: Option<RunId>,
    /// The turn of the run.
    pub turn: Option<u32>,
    /// What it is.
    #[serde(flatten)]
    pub body: ItemBody,
}

/// What an item is.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ItemBody {
    /// An attempt began.
    Prompt {
        /// The prompt to an agent.
        text: Option<String>,
        /// The whole input of the node, if it is known.
        input: Option<Value>,
        /// How many bytes the input has, if only its beginning is shown.
        cut: Option<usize>,
    },
    /// Text of an agent.
    Text {
        /// The text.
        text: String,
        /// Whether it is void, because the vendor's stream broke and started again.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        retracted: bool,
    },
    /// Thinking of an agent.
    Thinking {
        /// The text.
        text: String,
        /// Whether it is void, because the vendor's stream broke and started again.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        retracted: bool,
    },
    /// A tool call.
    Tool {
        /// The vendor's id of the call.
        call_id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
        /// What it answered.
        output: Option<Value>,
        /// Whether it succeeded, once that is known.
        ok: Option<bool>,
        /// How long it took.
        duration_ms: Option<u64>,
        /// The files that its arguments edit.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        edits: Vec<FileEdit>,
        /// How many bytes arguments or answer have, if only the beginning is shown.
        cut: Option<usize>,
    },
    /// Output of a program.
    Exec {
        /// Which of its two streams.
        stream: OutputStream,
        /// The text.
        text: String,
        /// Whether no more of it was recorded.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        truncated: bool,
    },
    /// A message to the agent.
    Message {
        /// The message.
        text: String,
        /// Whether it was to reach the turn in progress.
        steers: bool,
    },
    /// A question to a person.
    Question {
        /// The question.
        prompt: Box<Prompt>,
        /// The answer, once there is one.
        answer: Option<Answer>,
    },
    /// Tokens and cost of a turn.
    Usage {
        /// Tokens.
        usage: Usage,
        /// In US dollars; absent means unknown.
        cost_usd: Option<f64>,
        /// How much of its context the conversation fills; absent means unknown.
        context: Option<ContextUse>,
    },
    /// Something was tolerated.
    Warning {
        /// A short fixed word.
        code: String,
        /// What happened.
        message: String,
    },
    /// The attempt failed.
    Error {
        /// Why.
        error: AgentError,
        /// Whether another attempt follows.
        will_retry: bool,
    },
    /// The node has its output.
    Output {
        /// The output.
        output: Value,
        /// How many bytes it has, if only its beginning is shown.
        cut: Option<usize>,
        /// How long the attempt took.
        duration_ms: u64,
    },
    /// Text and thinking before this item are void as far as they are marked.
    Retract {},
    /// Something else, in a sentence.
    Note {
        /// The sentence.
        text: String,
    },
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The answer.
    pub content: String,
    /// Which of the choices it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// Whether nobody answered, and it is the default of the question.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
    /// When it came.
    pub at: Timestamp,
}

impl StreamItem {
    pub(super) fn answer(&mut self, given: Answer) {
        if let ItemBody::Question { answer, .. } = &mut self.body {
            *answer = Some(given);
        }
    }

    pub(super) fn complete_call(&mut self, result: &Value, is_error: bool, at: Timestamp) {
        if let ItemBody::Tool { output, ok, duration_ms, cut, .. } = &mut self.body {
            let (value, bytes) = bounded(result);
            *cut = bytes.or(*cut);
            (*output, *ok, *duration_ms) = (Some(value), Some(!is_error), Some(millis(self.at, at)));
        }
    }
}

impl ItemBody {
    pub(super) fn note(text: impl Into<String>) -> Self {
        Self::Note { text: text.into() }
    }

    pub(super) fn prompt(input: Option<Value>) -> Self {
        let text = input.as_ref().and_then(|input| input.get("prompt")?.as_str()).map(str::to_owned);
        let bounded = input.as_ref().map(bounded);
        let cut = bounded.as_ref().and_then(|(_, cut)| *cut);
        Self::Prompt { text, input: bounded.map(|(input, _)| input), cut }
    }

    pub(super) fn call(id: &str, tool: &str, arguments: &Value) -> Self {
        let (input, cut) = bounded(arguments);
        Self::Tool {
            call_id: id.to_owned(),
            name: tool.to_owned(),
            input,
            output: None,
            ok: None,
            duration_ms: None,
            edits: file_edits(arguments),
            cut,
        }
    }

    /// Appends a piece of the same kind, as far as there is room. Whether it was taken.
    pub(super) fn append(&mut self, piece: &Self) -> bool {
        let (text, more) = match (self, piece) {
            (Self::Text { text, .. }, Self::Text { text: more, .. })
            | (Self::Thinking { text, .. }, Self::Thinking { text: more, .. }) => (text, more),
            (
                Self::Exec { stream, text, truncated },
                Self::Exec { stream: other, text: more, truncated: ends },
            ) if stream == other => {
                *truncated |= *ends;
                (text, more)
            }
            _ => return false,
        };
        let has_room = text.len() + more.len() <= LONGEST_TEXT;
        if has_room {
            text.push_str(more);
        }
        has_room
    }

    /// Marks text or thinking as void. Whether it is either.
    pub(super) fn retract(&mut self) -> bool {
        match self {
            Self::Text { retracted, .. } | Self::Thinking { retracted, .. } => {
                *retracted = true;
                true
            }
            _ => false,
        }
    }
}
