//! Writes a turn as the events of a Responses stream, in their order, and as the response they add up to.

use super::super::CREATED;
use super::message::{
    Incomplete, Item, ResponseBody, ResponseFailure, ResponsesContent, ResponsesEvent, ResponsesInputDetails,
    ResponsesOutputDetails, ResponsesUsage,
};
use crate::scenario::{Turn, Usage};
use crate::speech::{Spoken, pieces, spoken};
use crate::wire::RequestView;
use crate::wire::sorted;

/// One piece of the answer.
pub(super) enum AnswerPart<'a> {
    Event(ResponsesEvent<'a>),
    Pause { ms: u64 },
}

/// Sends the answer to `tell` piece by piece, and returns it whole.
pub(super) fn answer(
    turn: &Turn,
    request: &RequestView,
    stem: &str,
    tell: impl FnMut(AnswerPart<'_>),
) -> ResponseBody {
    let end = AnswerEnd::of(turn);
    let mut response = ResponseBody {
        id: turn.message_id.clone().unwrap_or_else(|| format!("resp_{stem}")),
        object: "response",
        created_at: CREATED,
        status: "in_progress",
        error: None,
        incomplete_details: None,
        model: request.model.clone(),
        output: Vec::new(),
        parallel_tool_calls: true,
        previous_response_id: None,
        store: false,
        usage: None,
    };
    let mut teller = Teller { stem, reported: 0, tell };
    teller.event(ResponsesEvent {
        kind: "response.created",
        response: Some(&response),
        ..ResponsesEvent::default()
    });
    teller.event(ResponsesEvent {
        kind: "response.in_progress",
        response: Some(&response),
        ..ResponsesEvent::default()
    });
    let mut refused = false;
    for block in spoken(turn, request) {
        let index = response.output.len();
        response.output.push(match block {
            Spoken::Pause { ms } => {
                (teller.tell)(AnswerPart::Pause { ms });
                continue;
            }
            Spoken::Text { text, chunks } if end.refuses() => {
                refused = true;
                teller.refusal(index, &text, chunks)
            }
            Spoken::Text { text, chunks } => teller.text(index, &text, chunks, end.item_status()),
            Spoken::Thinking { text, signature, chunks } => teller.thought(index, text, signature, chunks),
            Spoken::ToolUse { name, input, id, chunks } => {
                let call_id = id.unwrap_or_else(|| format!("call_{stem}_{index}"));
                match request.freeform_tools.contains(&name) {
                    true => {
                        let input = input["input"].as_str().unwrap_or_default();
                        teller.text_call(index, call_id, name, input, chunks)
                    }
                    false => {
                        let name = grouped(name, &request.tool_groups);
                        teller.function_call(index, call_id, name, &sorted(&input).to_string(), chunks)
                    }
                }
            }
        });
    }
    if end.refuses() && !refused {
        let item = teller.refusal(response.output.len(), "Scripted refusal.", 1);
        response.output.push(item);
    }
    let kind = match end {
        AnswerEnd::Completed | AnswerEnd::Refused => {
            response.status = "completed";
            "response.completed"
        }
        AnswerEnd::Incomplete(reason) => {
            response.status = "incomplete";
            response.incomplete_details = Some(Incomplete { reason: reason.to_owned() });
            "response.incomplete"
        }
        AnswerEnd::Failed(failure) => {
            response.status = "failed";
            response.error = Some(failure);
            "response.failed"
        }
    };
    response.usage = Some(usage(&turn.usage));
    teller.event(ResponsesEvent { kind, response: Some(&response), ..ResponsesEvent::default() });
    response
}

/// How a response ends.
enum AnswerEnd {
    Completed,
    /// Completed too, but every text is a refusal.
    Refused,
    Incomplete(&'static str),
    Failed(ResponseFailure),
}

impl AnswerEnd {
    fn of(turn: &Turn) -> Self {
        match turn.stop_reason.as_deref() {
            Some("max_tokens" | "max_output_tokens" | "length") => Self::Incomplete("max_output_tokens"),
            Some("content_filter") => Self::Incomplete("content_filter"),
            Some("refusal") => Self::Refused,
            Some("model_context_window_exceeded") => Self::Failed(ResponseFailure {
                code: "context_length_exceeded".to_owned(),
                message: "Your input exceeds the context window of this model.".to_owned(),
            }),
            Some("failed") => {
                let detail = |key: &str| Some(turn.stop_details.as_ref()?[key].as_str()?.to_owned());
                Self::Failed(ResponseFailure {
                    code: detail("code").unwrap_or_else(|| "server_error".to_owned()),
                    message: detail("message").unwrap_or_else(|| "scripted error".to_owned()),
                })
            }
            _ => Self::Completed,
        }
    }

    fn refuses(&self) -> bool {
        matches!(self, Self::Refused)
    }

    fn item_status(&self) -> &'static str {
        if matches!(self, Self::Incomplete(_)) { "incomplete" } else { "completed" }
    }
}

/// Numbers the events, and knows the order of those that belong to one item.
struct Teller<'a, T> {
    stem: &'a str,
    reported: usize,
    tell: T,
}

impl<T: FnMut(AnswerPart<'_>)> Teller<'_, T> {
    fn event(&mut self, event: ResponsesEvent<'_>) {
        (self.tell)(AnswerPart::Event(ResponsesEvent { sequence_number: self.reported, ..event }));
        self.reported += 1;
    }

    fn item(&mut self, kind: &'static str, index: usize, item: &Item) {
        self.event(ResponsesEvent {
            kind,
            output_index: Some(index),
            item: Some(item),
            ..ResponsesEvent::default()
        });
    }

    fn id(&self, kind: &str, index: usize) -> String {
        format!("{kind}_{}_{index}", self.stem)
    }

    fn text(&mut self, index: usize, text: &str, chunks: usize, status: &'static str) -> Item {
        let part =
            |text: &str| ResponsesContent::OutputText { text: text.to_owned(), annotations: Vec::new() };
        let id = self.id("msg", index);
        self.message_begins(index, &id, &part(""));
        for piece in pieces(text, chunks) {
            self.content(
                "response.output_text.delta",
                index,
                &id,
                ResponsesEvent { delta: Some(&piece), ..ResponsesEvent::default() },
            );
        }
        let done = ResponsesEvent { text: Some(text), ..ResponsesEvent::default() };
        self.content("response.output_text.done", index, &id, done);
        self.message_ends(index, id, part(text), status)
    }

    fn refusal(&mut self, index: usize, text: &str, chunks: usize) -> Item {
        let part = |text: &str| ResponsesContent::Refusal { refusal: text.to_owned() };
        let id = self.id("msg", index);
        self.message_begins(index, &id, &part(""));
        for piece in pieces(text, chunks) {
            let delta = ResponsesEvent { delta: Some(&piece), ..ResponsesEvent::default() };
            self.content("response.refusal.delta", index, &id, delta);
        }
        let done = ResponsesEvent { refusal: Some(text), ..ResponsesEvent::default() };
        self.content("response.refusal.done", index, &id, done);
        self.message_ends(index, id, part(text), "completed")
    }

    fn message_begins(&mut self, index: usize, id: &str, part: &ResponsesContent) {
        let item = message(id.to_owned(), "in_progress", Vec::new());
        self.item("response.output_item.added", index, &item);
        let added = ResponsesEvent { part: Some(part), ..ResponsesEvent::default() };
        self.content("response.content_part.added", index, id, added);
    }

    fn message_ends(
        &mut self,
        index: usize,
        id: String,
        part: ResponsesContent,
        status: &'static str,
    ) -> Item {
        let done = ResponsesEvent { part: Some(&part), ..ResponsesEvent::default() };
        self.content("response.content_part.done", index, &id, done);
        let item = message(id, status, vec![part]);
        self.item("response.output_item.done", index, &item);
        item
    }

    /// Each message has one part.
    fn content(&mut self, kind: &'static str, index: usize, id: &str, event: ResponsesEvent<'_>) {
        let (item_id, output_index, content_index) = (Some(id), Some(index), Some(0));
        self.event(ResponsesEvent { kind, item_id, output_index, content_index, ..event });
    }

    fn thought(&mut self, index: usize, text: String, signature: String, chunks: usize) -> Item {
        let id = self.id("rs", index);
        let empty = Item::Reasoning { id: id.clone(), summary: Vec::new(), encrypted_content: None };
        self.item("response.output_item.added", index, &empty);
        let part = ResponsesContent::SummaryText { text: String::new() };
        let added = ResponsesEvent { part: Some(&part), ..ResponsesEvent::default() };
        self.summary("response.reasoning_summary_part.added", index, &id, added);
        for piece in pieces(&text, chunks) {
            let delta = ResponsesEvent { delta: Some(&piece), ..ResponsesEvent::default() };
            self.summary("response.reasoning_summary_text.delta", index, &id, delta);
        }
        let done = ResponsesEvent { text: Some(&text), ..ResponsesEvent::default() };
        self.summary("response.reasoning_summary_text.done", index, &id, done);
        let part = ResponsesContent::SummaryText { text };
        let done = ResponsesEvent { part: Some(&part), ..ResponsesEvent::default() };
        self.summary("response.reasoning_summary_part.done", index, &id, done);
        let item = Item::Reasoning { id, summary: vec![part], encrypted_content: Some(signature) };
        self.item("response.output_item.done", index, &item);
        item
    }

    fn summary(&mut self, kind: &'static str, index: usize, id: &str, event: ResponsesEvent<'_>) {
        let (item_id, output_index, summary_index) = (Some(id), Some(index), Some(0));
        self.event(ResponsesEvent { kind, item_id, output_index, summary_index, ..event });
    }

    fn function_call(
        &mut self,
        index: usize,
        call_id: String,
        (namespace, name): (Option<String>, String),
        input: &str,
        chunks: usize,
    ) -> Item {
        let id = self.id("fc", index);
        let call = |status, arguments: &str| Item::FunctionCall {
            id: id.clone(),
            status,
            call_id: call_id.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            arguments: arguments.to_owned(),
        };
        self.item("response.output_item.added", index, &call("in_progress", ""));
        for piece in pieces(input, chunks) {
            let delta = ResponsesEvent { delta: Some(&piece), ..ResponsesEvent::default() };
            self.call("response.function_call_arguments.delta", index, &id, delta);
        }
        let done = ResponsesEvent { arguments: Some(input), ..ResponsesEvent::default() };
        self.call("response.function_call_arguments.done", index, &id, done);
        let item = call("completed", input);
        self.item("response.output_item.done", index, &item);
        item
    }

    fn text_call(&mut self, index: usize, call_id: String, name: String, input: &str, chunks: usize) -> Item {
        let id = self.id("ctc", index);
        let call = |status, input: &str| Item::CustomToolCall {
            id: id.clone(),
            status,
            call_id: call_id.clone(),
            name: name.clone(),
            input: input.to_owned(),
        };
        self.item("response.output_item.added", index, &call("in_progress", ""));
        for piece in pieces(input, chunks) {
            let delta = ResponsesEvent { delta: Some(&piece), ..ResponsesEvent::default() };
            self.call("response.custom_tool_call_input.delta", index, &id, delta);
        }
        let done = ResponsesEvent { input: Some(input), ..ResponsesEvent::default() };
        self.call("response.custom_tool_call_input.done", index, &id, done);
        let item = call("completed", input);
        self.item("response.output_item.done", index, &item);
        item
    }

    fn call(&mut self, kind: &'static str, index: usize, id: &str, event: ResponsesEvent<'_>) {
        self.event(ResponsesEvent { kind, item_id: Some(id), output_index: Some(index), ..event });
    }
}

fn message(id: String, status: &'static str, content: Vec<ResponsesContent>) -> Item {
    Item::Message { id, status, role: "assistant", content }
}

fn usage(usage: &Usage) -> ResponsesUsage {
    let input_tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens;
    ResponsesUsage {
        input_tokens,
        input_tokens_details: ResponsesInputDetails {
            cached_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_creation_tokens,
        },
        output_tokens: usage.output_tokens,
        output_tokens_details: ResponsesOutputDetails { reasoning_tokens: usage.reasoning_tokens },
        total_tokens: input_tokens + usage.output_tokens,
    }
}

/// The group and the name of a tool that a scenario calls `GROUP__TOOL`.
fn grouped(name: String, groups: &[String]) -> (Option<String>, String) {
    let split =
        |group: &String| Some((group.clone(), name.strip_prefix(group)?.strip_prefix("__")?.to_owned()));
    // One group's name may begin with another's.
    match groups.iter().filter_map(split).max_by_key(|(group, _)| group.len()) {
        Some((group, tool)) => (Some(group), tool),
        None => (None, name),
    }
}
