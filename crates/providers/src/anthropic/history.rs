//! A turn's conversation in the form of the Messages API: messages with their blocks, and the results of calls.

use inspan_protocol::{ContentBlock, ProviderSessionId, StopReason};
use serde_json::{Value, json};

use super::decode::PartialResponse;
use super::outcome::{OutputKind, PAUSE};
use super::request::media_block;
use crate::api::{self, Answered, TurnState};
use crate::output::TurnOutput;
use crate::tools::{ToolCall, ToolResult};

/// The conversation of one turn.
#[derive(Debug)]
pub(super) struct MessagesHistory {
    state: TurnState,
    wanted: OutputKind,
    /// The text of the response before a pause, which the next response continues.
    paused: String,
}

impl MessagesHistory {
    /// A conversation to which a turn adds messages.
    pub(super) fn new(
        session: ProviderSessionId,
        messages: Vec<Value>,
        added: Vec<Value>,
        wanted: OutputKind,
    ) -> Self {
        let state = TurnState::new(session, messages, add_missing_results, added);
        Self { state, wanted, paused: String::new() }
    }

    fn output(&mut self, text: String, stop_reason: StopReason) -> TurnOutput {
        let wanted = self.wanted;
        self.state.output(text, stop_reason, |text| wanted.structured(text))
    }

    fn count(&mut self, response: &PartialResponse) {
        let answered = response.model.is_some() || !response.text.is_empty();
        let answered = if answered { Answered::Yes } else { Answered::No };
        self.state.count(response.usage, response.model.as_ref(), answered);
    }

    fn add_message(&mut self, content: Vec<Value>) {
        if !content.is_empty() {
            self.state.messages.push(json!({ "role": "assistant", "content": content }));
        }
    }
}

impl api::History for MessagesHistory {
    type Response = PartialResponse;

    fn state(&self) -> &TurnState {
        &self.state
    }

    fn state_mut(&mut self) -> &mut TurnState {
        &mut self.state
    }

    fn add_response(&mut self, response: PartialResponse) -> Vec<ToolCall> {
        self.count(&response);
        self.add_message(response.content);
        self.paused.push_str(&response.text);
        if response.stop_reason.as_deref() == Some(PAUSE) {
            return Vec::new();
        }
        self.state.texts.push(std::mem::take(&mut self.paused));
        response.calls
    }

    fn set_results<'a>(&mut self, results: impl Iterator<Item = &'a ToolResult>) {
        let blocks: Vec<Value> = results.map(result_block).collect();
        let messages = &mut self.state.messages;
        if messages.last().is_some_and(|last| last["role"] == "user") {
            messages.pop();
        }
        if !blocks.is_empty() {
            messages.push(json!({ "role": "user", "content": blocks }));
        }
    }

    fn finish(&mut self, mut response: PartialResponse, stop_reason: StopReason) -> TurnOutput {
        // The vendor refuses a conversation with a call that has no result.
        response.content.retain(|block| block["type"] != "tool_use");
        self.count(&response);
        self.add_message(response.content);
        let text = std::mem::take(&mut self.paused) + &response.text;
        self.output(text, stop_reason)
    }

    fn stop(&mut self, stop_reason: StopReason) -> TurnOutput {
        let text = std::mem::take(&mut self.paused);
        self.output(text, stop_reason)
    }
}

/// Adds results to calls that have none because a crash or a kill interrupted them. No call runs a
/// second time; the result reports the interruption to the model, which decides.
fn add_missing_results(messages: &mut Vec<Value>) {
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
    let has_result = |id: &str, blocks: &[Value]| blocks.iter().any(|block| block["tool_use_id"] == id);
    let open: Vec<Value> = called
        .iter()
        .filter(|id| !has_result(id, &next))
        .map(|id| result_block(&ToolResult::interrupted(id.as_str())))
        .collect();
    if open.is_empty() {
        return;
    }
    // The vendor wants results before everything else in a message.
    let results = next.iter().take_while(|block| block["type"] == "tool_result").count();
    next.splice(results..results, open);
    let message = json!({ "role": "user", "content": next });
    match messages.get_mut(at + 1) {
        Some(known) => *known = message,
        None => messages.push(message),
    }
}

fn result_block(result: &ToolResult) -> Value {
    let content: Vec<Value> = result.content.iter().filter_map(block).collect();
    let mut block = json!({ "type": "tool_result", "tool_use_id": result.id });
    if !content.is_empty() {
        block["content"] = json!(content);
    }
    if result.is_error {
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
