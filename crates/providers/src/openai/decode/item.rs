//! One item of an answer: a message, a thought, a call of a function, or what is not known; and its form in the next
//! request.

use serde_json::{Map, Value, json};

use crate::tools::ToolCall;

/// Items that are understood.
pub(super) const KNOWN: [&str; 4] = ["message", "reasoning", "function_call", "compaction"];

/// A message of the answer.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct MessageText {
    pub(in super::super) text: String,
    pub(in super::super) phase: MessagePhase,
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum MessagePhase {
    /// The model says what it is about to do.
    Commentary,
    /// The answer, or the vendor does not say.
    Answer,
}

impl MessagePhase {
    fn of(word: Option<&str>) -> Self {
        if word == Some("commentary") { Self::Commentary } else { Self::Answer }
    }
}

/// One item, by what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DecodedItem {
    /// It has begun.
    Open { kind: String, phase: Option<String>, text: String, refusal: String, thought: Thought },
    /// It is whole.
    Done(Value),
}

/// Whether thoughts of an item were streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thought {
    Yes,
    No,
}

impl DecodedItem {
    /// The type that an item says it has.
    pub(super) fn kind_of(value: &Value) -> Option<&str> {
        value["type"].as_str().filter(|kind| !kind.is_empty())
    }

    /// One that has begun.
    pub(super) fn begun(value: &Value) -> Option<Self> {
        Some(Self::Open {
            kind: Self::kind_of(value)?.to_owned(),
            phase: word(value, "phase"),
            text: String::new(),
            refusal: String::new(),
            thought: Thought::No,
        })
    }

    /// Adds to the text of a message that has begun.
    pub(super) fn add_text(&mut self, piece: &str) -> Option<()> {
        match self {
            Self::Open { kind, text, .. } if kind == "message" => text.push_str(piece),
            _ => return None,
        }
        Some(())
    }

    /// Adds to the refusal of a message that has begun.
    pub(super) fn refuse(&mut self, piece: &str) -> Option<()> {
        match self {
            Self::Open { kind, refusal, .. } if kind == "message" => refusal.push_str(piece),
            _ => return None,
        }
        Some(())
    }

    /// Notes that its thoughts were streamed.
    pub(super) fn think(&mut self) -> Option<()> {
        match self {
            Self::Open { kind, thought, .. } if kind == "reasoning" => *thought = Thought::Yes,
            _ => return None,
        }
        Some(())
    }

    /// The message that it is.
    pub(super) fn words(&self) -> Option<MessageText> {
        match self {
            Self::Open { kind, phase, text, .. } if kind == "message" => {
                Some(MessageText { text: text.clone(), phase: MessagePhase::of(phase.as_deref()) })
            }
            Self::Done(value) if value["type"] == "message" => {
                let text = parts(value, "content", "output_text", "text").concat();
                Some(MessageText { text, phase: MessagePhase::of(value["phase"].as_str()) })
            }
            _ => None,
        }
    }

    /// The refusal that it holds.
    pub(super) fn refusal(&self) -> Option<String> {
        let refusal = match self {
            Self::Open { refusal, .. } if !refusal.is_empty() => Some(refusal.clone()),
            Self::Done(value) if value["type"] == "message" => {
                parts(value, "content", "refusal", "refusal").into_iter().next()
            }
            _ => None,
        };
        refusal.map(|refusal| refusal.trim().to_owned())
    }

    /// The thoughts that it reports.
    pub(super) fn thoughts(&self) -> Vec<String> {
        match self {
            Self::Done(value) if value["type"] == "reasoning" => {
                let summary = parts(value, "summary", "summary_text", "text");
                if summary.is_empty() { parts(value, "content", "reasoning_text", "text") } else { summary }
            }
            _ => Vec::new(),
        }
    }

    /// The call that it is, if it came to its end.
    pub(super) fn call(&self) -> Option<ToolCall> {
        let Self::Done(value) = self else { return None };
        let text = |key: &str| word(value, key).unwrap_or_default();
        (value["type"] == "function_call" && value["status"] != "incomplete")
            .then(|| ToolCall::new(text("call_id"), text("name"), &text("arguments")))
    }

    /// The item as the next request has to hold it, if it may. The vendor's ids name what it stores, and here it stores
    /// nothing, so they go; thoughts are taken back only as the vendor has sealed them.
    fn stored(&self) -> Option<Value> {
        if let Some(words) = self.words() {
            let phase = match self {
                Self::Done(value) => word(value, "phase"),
                Self::Open { phase, .. } => phase.clone(),
            };
            return message(&words.text, phase);
        }
        let Self::Done(Value::Object(fields)) = self else { return None };
        let mut fields: Map<String, Value> = fields.clone();
        if fields.get("status").is_some_and(|status| status == "incomplete") {
            return None;
        }
        if fields["type"] == "reasoning" {
            fields.get("encrypted_content").and_then(Value::as_str)?;
            fields.remove("content");
        }
        fields.retain(|key, _| !matches!(key.as_str(), "id" | "status" | "created_by"));
        Some(Value::Object(fields))
    }
}

/// The items of an answer as the next request has to hold them. The vendor refuses a thought that nothing follows.
pub(super) fn stored(items: &[DecodedItem]) -> Vec<Value> {
    let mut stored: Vec<Value> = items.iter().filter_map(DecodedItem::stored).collect();
    while stored.last().is_some_and(|item| item["type"] == "reasoning") {
        stored.pop();
    }
    stored
}

/// A message of the assistant, unless it says nothing.
pub(in super::super) fn message(text: &str, phase: Option<String>) -> Option<Value> {
    let mut message = json!({
        "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": text }],
    });
    if let Some(phase) = phase {
        message["phase"] = json!(phase);
    }
    (!text.trim().is_empty()).then_some(message)
}

fn word(value: &Value, key: &str) -> Option<String> {
    value[key].as_str().map(str::to_owned)
}

/// The texts of the parts of one kind.
fn parts(value: &Value, list: &str, kind: &str, field: &str) -> Vec<String> {
    let parts = value[list].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = parts.iter().filter(|part| part["type"] == kind).filter_map(|part| part[field].as_str());
    texts.map(str::to_owned).collect()
}
