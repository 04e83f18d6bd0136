//! A turn's conversation in the form of the Responses API: the items, how many of them the vendor has, and the results of
//! calls.

use inspan_protocol::{ContentBlock, ProviderSessionId, StopReason, StreamEvent};
use serde_json::{Value, json};

use super::decode::PartialResponse;
use super::outcome;
use super::request::{Thread, block};
use super::schema::VendorSchema;
use crate::api::{self, Answered, TurnState};
use crate::output::TurnOutput;
use crate::tools::{ToolCall, ToolResult};

/// The warning about calls that the vendor's conversation leaves open.
const UNANSWERED: &str = "the conversation that the vendor stores has calls of tools without answers; it may not be \
                          gone on with";

/// The conversation of one turn.
#[derive(Debug)]
pub(super) struct ResponsesHistory {
    /// Its messages are the items. If the vendor stores the conversation, its session is the last id under which no call
    /// waits for a result.
    state: TurnState,
    /// Who stores the conversation, and its id for the next request.
    pub(super) thread: Thread,
    /// The requested structured output.
    pub(super) form: Option<VendorSchema>,
    /// How many of the items the vendor has.
    sent: usize,
    /// Where the results of the last calls begin.
    results: usize,
}

impl ResponsesHistory {
    /// A conversation to which a turn adds items.
    pub(super) fn new(
        thread: Thread,
        items: Vec<Value>,
        added: Vec<Value>,
        form: Option<VendorSchema>,
    ) -> Self {
        let state = TurnState::new(thread.session().clone(), items, add_missing_results, added);
        Self { thread, form, sent: 0, results: state.messages.len(), state }
    }

    /// The items of the next request.
    pub(super) fn next(&self) -> &[Value] {
        match self.thread {
            Thread::Own(_) => &self.state.messages,
            _ => &self.state.messages[self.sent..],
        }
    }

    /// The vendor identifies one kind of conversation by its last response.
    fn set_last_response(&mut self, response: Option<String>) {
        if let (Thread::Response(session), Some(response)) = (&mut self.thread, response) {
            *session = ProviderSessionId::from(response);
        }
    }

    fn count(&mut self, response: &PartialResponse) {
        let answered = response.id.is_some() || response.model.is_some() || !response.messages.is_empty();
        let answered = if answered { Answered::Yes } else { Answered::No };
        self.state.count(response.usage, response.model.as_ref(), answered);
    }
}

impl api::History for ResponsesHistory {
    type Response = PartialResponse;

    fn state(&self) -> &TurnState {
        &self.state
    }

    fn state_mut(&mut self) -> &mut TurnState {
        &mut self.state
    }

    fn add_response(&mut self, response: PartialResponse) -> Vec<ToolCall> {
        self.count(&response);
        self.state.texts.push(outcome::text(&response, StopReason::MaxTurns));
        self.set_last_response(response.id);
        self.state.messages.extend(response.items);
        self.sent = self.state.messages.len();
        self.results = self.sent;
        response.calls
    }

    fn set_results<'a>(&mut self, results: impl Iterator<Item = &'a ToolResult>) {
        self.state.messages.truncate(self.results);
        self.state.messages.extend(results.map(output_item));
    }

    fn finish(&mut self, mut response: PartialResponse, stop_reason: StopReason) -> TurnOutput {
        // The vendor refuses a conversation with a call that has no result.
        response.items.retain(|item| item["type"] != "function_call");
        while response.items.last().is_some_and(|item| item["type"] == "reasoning") {
            response.items.pop();
        }
        self.count(&response);
        if stop_reason != StopReason::Aborted && response.calls.is_empty() {
            self.set_last_response(response.id.take());
            self.state.session = self.thread.session().clone();
        }
        self.state.messages.append(&mut response.items);
        let form = self.form.as_ref();
        self.state.output(outcome::text(&response, stop_reason), stop_reason, |text| form?.structured(text))
    }

    fn stop(&mut self, stop_reason: StopReason) -> TurnOutput {
        self.state.output(String::new(), stop_reason, |_| None)
    }

    fn unanswered_calls(&self) -> Option<StreamEvent> {
        let open = matches!(self.thread, Thread::Conversation(_)) && self.sent > 0;
        open.then(|| StreamEvent::warning("callsUnanswered", UNANSWERED))
    }
}

/// Adds results to calls that have none because a crash or a kill interrupted them. No call runs a
/// second time; the result reports the interruption to the model, which decides.
fn add_missing_results(items: &mut Vec<Value>) {
    let id = |item: &Value| item["call_id"].as_str().unwrap_or_default().to_owned();
    let of = |kind: &str| -> Vec<(usize, String)> {
        let items = items.iter().enumerate().filter(|(_, item)| item["type"] == kind);
        items.map(|(at, item)| (at, id(item))).collect()
    };
    let results = of("function_call_output");
    let calls = of("function_call");
    let Some((last, _)) = calls.last() else { return };
    // Results follow the calls of their message directly.
    let behind = items[last + 1..].iter().take_while(|item| item["type"] == "function_call_output").count();
    let place = last + 1 + behind;
    let open: Vec<Value> = calls
        .iter()
        .filter(|(_, id)| !results.iter().any(|(_, known)| known == id))
        .map(|(_, id)| output_item(&ToolResult::interrupted(id.as_str())))
        .collect();
    items.splice(place..place, open);
}

/// A result in the vendor's form: a text, or a list of parts. The vendor has no field for a failure; the text says it.
fn output_item(result: &ToolResult) -> Value {
    let output = match result.content.as_slice() {
        [] => json!(""),
        [ContentBlock::Text { text }] => json!(text),
        blocks => Value::Array(blocks.iter().filter_map(|one| block(one).ok().flatten()).collect()),
    };
    json!({ "type": "function_call_output", "call_id": result.id, "output": output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Value {
        json!({ "type": "function_call", "call_id": id, "name": "n", "arguments": "{}" })
    }

    fn user(text: &str) -> Value {
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] })
    }

    fn begun(items: Vec<Value>) -> Vec<Value> {
        ResponsesHistory::new(Thread::of(ProviderSessionId::from("s")), items, vec![user("on")], None)
            .state
            .messages
    }

    #[test]
    fn calls_that_were_unanswered_calls_are_answered_behind_the_others() {
        let answer = |id: &str, text: &str| output_item(&ToolResult::error(id, text));
        let open = |id: &str| output_item(&ToolResult::interrupted(id));
        let rows = [
            (vec![], vec![user("on")]),
            (vec![user("a"), call("1")], vec![user("a"), call("1"), open("1"), user("on")]),
            (
                vec![call("1"), call("2"), answer("1", "x")],
                vec![call("1"), call("2"), answer("1", "x"), open("2"), user("on")],
            ),
            // A message that came after the crash stays behind the answers.
            (vec![call("1"), user("b")], vec![call("1"), open("1"), user("b"), user("on")]),
            (
                vec![call("1"), answer("1", "x"), user("b")],
                vec![call("1"), answer("1", "x"), user("b"), user("on")],
            ),
        ];
        for (items, expected) in rows {
            assert_eq!(begun(items.clone()), expected, "{items:?}");
        }
    }

    #[test]
    fn answers_take_the_vendors_form() {
        let text = |text: &str| ContentBlock::Text { text: text.to_owned() };
        let image = ContentBlock::Image { media_type: "image/png".to_owned(), data: "aGk=".to_owned() };
        let rows = [
            (vec![], json!("")),
            (vec![text("a")], json!("a")),
            (
                vec![text("a"), image],
                json!([
                    { "type": "input_text", "text": "a" },
                    { "type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto" },
                ]),
            ),
        ];
        for (content, expected) in rows {
            let item = output_item(&ToolResult { id: "1".to_owned(), content, is_error: false });
            assert_eq!(item, json!({ "type": "function_call_output", "call_id": "1", "output": expected }));
        }
    }
}
