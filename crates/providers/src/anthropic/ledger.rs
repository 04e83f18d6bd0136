//! What a turn has come to, in the form of the Messages API: the messages with their blocks, and the answers to calls.
//! Pure: asking the model and running tools are left to the exchange.

use inspan_protocol::{ContentBlock, ProviderSessionId, StopReason, StreamEvent};
use serde_json::{Value, json};

use super::decode::Said;
use super::outcome::{PAUSE, Wanted};
use super::request::media_block;
use crate::exchange::{self, Answered, Books};
use crate::output::TurnOutput;
use crate::tools::{Answer, Call};

/// The ledger of one turn.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) books: Books,
    wanted: Wanted,
    /// The text of the answer before a pause, which the next one goes on with.
    paused: String,
}

impl Ledger {
    /// The ledger of a turn that says this in a conversation.
    pub(super) fn begin(
        session: ProviderSessionId,
        messages: Vec<Value>,
        said: Vec<Value>,
        wanted: Wanted,
    ) -> Self {
        let books = Books::begin(session, messages, answer_open, said);
        Self { books, wanted, paused: String::new() }
    }

    fn output(&mut self, text: String, stop_reason: StopReason) -> TurnOutput {
        let wanted = self.wanted;
        self.books.output(text, stop_reason, |text| wanted.answer(text))
    }

    fn count(&mut self, said: &Said) {
        let answered = said.model.is_some() || !said.text.is_empty();
        let answered = if answered { Answered::Yes } else { Answered::No };
        self.books.count(said.usage, said.model.as_ref(), answered);
    }

    fn say(&mut self, content: Vec<Value>) {
        if !content.is_empty() {
            self.books.messages.push(json!({ "role": "assistant", "content": content }));
        }
    }
}

impl exchange::Ledger for Ledger {
    type Said = Said;

    fn books(&mut self) -> &mut Books {
        &mut self.books
    }

    fn goes_on(&mut self, said: Said) -> Vec<Call> {
        self.count(&said);
        self.say(said.content);
        self.paused.push_str(&said.text);
        if said.stop_reason.as_deref() == Some(PAUSE) {
            return Vec::new();
        }
        self.books.texts.push(std::mem::take(&mut self.paused));
        said.calls
    }

    fn answers<'a>(&mut self, answers: impl Iterator<Item = &'a Answer>) {
        let blocks: Vec<Value> = answers.map(result_block).collect();
        let messages = &mut self.books.messages;
        if messages.last().is_some_and(|last| last["role"] == "user") {
            messages.pop();
        }
        if !blocks.is_empty() {
            messages.push(json!({ "role": "user", "content": blocks }));
        }
    }

    fn end(&mut self, mut said: Said, stop_reason: StopReason) -> TurnOutput {
        // A call that nobody answers must not stand in the conversation.
        said.content.retain(|block| block["type"] != "tool_use");
        self.count(&said);
        self.say(said.content);
        let text = std::mem::take(&mut self.paused) + &said.text;
        self.output(text, stop_reason)
    }

    fn stop(&mut self, stop_reason: StopReason) -> TurnOutput {
        let text = std::mem::take(&mut self.paused);
        self.output(text, stop_reason)
    }

    /// All calls that stand in a conversation of ours are answered.
    fn left_open(&self) -> Option<StreamEvent> {
        None
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
