//! What a turn has come to: the conversation with all that was said and answered, the sums, and where it can be left.
//! Pure: asking the model and running tools are left to `exchange.rs`.

use inspan_protocol::{ContentBlock, StopReason, Usage};
use serde_json::{Value, json};

use super::decode::Said;
use super::outcome::{self, Wanted};
use super::request::media_block;
use crate::output::{PermissionDenial, TurnOutput};
use crate::tools::Answer;

/// The books of one turn.
#[derive(Debug)]
pub(super) struct Ledger {
    /// What was said, in the vendor's form.
    pub(super) messages: Vec<Value>,
    /// How many messages stay when the turn fails. Those before it are as if it had never been; once a tool has run,
    /// what was done stays too.
    safe: usize,
    settled: bool,
    /// The texts of the messages that are whole.
    texts: Vec<String>,
    /// The text of the answer before a pause, which the next one goes on with.
    paused: String,
    usage: Usage,
    model: Option<String>,
    answered: u32,
    denials: Vec<PermissionDenial>,
}

impl Ledger {
    /// The books of a turn that says this in a conversation.
    pub(super) fn begin(mut messages: Vec<Value>, said: Vec<Value>) -> Self {
        let safe = messages.len();
        answer_open(&mut messages);
        messages.extend(said);
        Self {
            messages,
            safe,
            settled: false,
            texts: Vec::new(),
            paused: String::new(),
            usage: Usage::default(),
            model: None,
            answered: 0,
            denials: Vec::new(),
        }
    }

    /// Tokens of the turn, with those of the answer in progress.
    pub(super) fn with(&self, usage: Usage) -> Usage {
        let mut all = self.usage;
        all += usage;
        all
    }

    /// The model's message, whole, with its calls. What answers them follows.
    pub(super) fn calls(&mut self, said: Said) {
        self.count(&said);
        self.say(said.content);
        self.texts.push(std::mem::take(&mut self.paused) + &said.text);
    }

    /// The answers until now, in the order of the calls; they replace those of the last time.
    pub(super) fn answers<'a>(&mut self, answers: impl Iterator<Item = &'a Answer>) {
        let blocks: Vec<Value> = answers.map(result_block).collect();
        if self.messages.last().is_some_and(|last| last["role"] == "user") {
            self.messages.pop();
        }
        if !blocks.is_empty() {
            self.messages.push(json!({ "role": "user", "content": blocks }));
        }
    }

    /// All calls are answered: from here on a failure takes back nothing that was done.
    pub(super) fn settled(&mut self) {
        self.safe = self.messages.len();
        self.settled = true;
    }

    /// A call was not allowed.
    pub(super) fn denied(&mut self, denial: PermissionDenial) {
        self.denials.push(denial);
    }

    /// The vendor paused within its answer, which goes on from what it has said.
    pub(super) fn paused(&mut self, said: Said) {
        self.count(&said);
        self.paused.push_str(&said.text);
        self.say(said.content);
    }

    /// The turn ended with this message, which may be a part of one.
    pub(super) fn end(&mut self, mut said: Said, stop_reason: StopReason, wanted: Wanted) -> TurnOutput {
        // A call that nobody answers must not stand in the conversation.
        said.content.retain(|block| block["type"] != "tool_use");
        self.count(&said);
        self.say(std::mem::take(&mut said.content));
        said.text.insert_str(0, &std::mem::take(&mut self.paused));
        self.output(said, stop_reason, wanted)
    }

    /// The turn ended after a message that is in the books.
    pub(super) fn stop(&mut self, stop_reason: StopReason, wanted: Wanted) -> TurnOutput {
        let said = Said { text: std::mem::take(&mut self.paused), ..Said::default() };
        self.output(said, stop_reason, wanted)
    }

    /// Whether a tool has run, so that a failure takes nothing back.
    pub(super) fn has_settled(&self) -> bool {
        self.settled
    }

    /// What is left of a turn that failed: what can be gone on with.
    pub(super) fn failed(mut self) -> Vec<Value> {
        self.messages.truncate(self.safe);
        self.messages
    }

    fn output(&mut self, mut said: Said, stop_reason: StopReason, wanted: Wanted) -> TurnOutput {
        if stop_reason != StopReason::Complete {
            self.texts.push(std::mem::take(&mut said.text));
            let texts: Vec<String> = std::mem::take(&mut self.texts);
            let texts: Vec<&str> =
                texts.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
            said.text = texts.join("\n\n");
        }
        TurnOutput {
            usage: self.usage,
            model: self.model.take(),
            num_turns: self.answered,
            permission_denials: std::mem::take(&mut self.denials),
            ..outcome::output(said, stop_reason, wanted)
        }
    }

    fn count(&mut self, said: &Said) {
        self.usage += said.usage;
        self.answered += u32::from(said.model.is_some() || !said.text.is_empty());
        self.model = said.model.clone().or(self.model.take());
    }

    fn say(&mut self, content: Vec<Value>) {
        if !content.is_empty() {
            self.messages.push(json!({ "role": "assistant", "content": content }));
        }
    }
}

/// Answers the calls of a conversation that was left in the middle of a tool: by a crash, or by a process that was
/// killed. Nothing is run a second time; the model is told and decides.
fn answer_open(messages: &mut Vec<Value>) {
    let Some(at) = messages.iter().rposition(|message| message["role"] == "assistant") else { return };
    let blocks = |message: &Value| message["content"].as_array().cloned().unwrap_or_default();
    let called: Vec<String> = blocks(&messages[at])
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .filter_map(|block| block["id"].as_str().map(str::to_owned))
        .collect();
    if called.is_empty() {
        return;
    }
    let mut next = messages.get(at + 1).map(blocks).unwrap_or_default();
    let is_answered = |id: &str, blocks: &[Value]| blocks.iter().any(|block| block["tool_use_id"] == id);
    let open: Vec<Value> = called
        .iter()
        .filter(|id| !is_answered(id, &next))
        .map(|id| result_block(&Answer::interrupted(id.as_str())))
        .collect();
    if open.is_empty() {
        return;
    }
    // Answers come before everything else in a message.
    let answers = next.iter().take_while(|block| block["type"] == "tool_result").count();
    next.splice(answers..answers, open);
    let message = json!({ "role": "user", "content": next });
    match messages.get_mut(at + 1) {
        Some(known) => *known = message,
        None => messages.push(message),
    }
}

fn result_block(answer: &Answer) -> Value {
    let content: Vec<Value> = answer.content.iter().filter_map(block).collect();
    let mut block = json!({ "type": "tool_result", "tool_use_id": answer.id });
    if !content.is_empty() {
        block["content"] = json!(content);
    }
    if answer.is_error {
        block["is_error"] = json!(true);
    }
    block
}

fn block(block: &ContentBlock) -> Option<Value> {
    match block {
        ContentBlock::Text { text } => super::request::text_block(text),
        other => media_block(other),
    }
}

#[cfg(test)]
mod tests;
