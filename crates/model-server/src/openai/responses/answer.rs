//! Writes a turn as the events of a Responses stream, in their order, and as the response they add up to.

use serde_json::{Value, json};

use super::super::CREATED;
use crate::scenario::{Turn, Usage};
use crate::speech::{Spoken, pieces, spoken, text_of};
use crate::wire::RequestView;

/// One piece of the answer.
pub(super) enum AnswerPart {
    Event(Value),
    Pause { ms: u64 },
}

/// Sends the answer to `tell` piece by piece, and returns it whole.
pub(super) fn answer(turn: &Turn, request: &RequestView, stem: &str, tell: impl FnMut(AnswerPart)) -> Value {
    let end = AnswerEnd::of(turn);
    let mut response = json!({
        "id": turn.message_id.clone().unwrap_or_else(|| format!("resp_{stem}")),
        "object": "response",
        "created_at": CREATED,
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": true,
        "previous_response_id": null,
        // Nothing is stored between requests.
        "store": false,
        "usage": null,
    });
    let mut output = Vec::new();
    let mut teller = Teller { stem, reported: 0, tell };
    teller.event(json!({ "type": "response.created", "response": response }));
    teller.event(json!({ "type": "response.in_progress", "response": response }));
    let mut refused = false;
    for block in spoken(turn, request) {
        let index = output.len();
        output.push(match block {
            Spoken::Pause { ms } => {
                (teller.tell)(AnswerPart::Pause { ms });
                continue;
            }
            Spoken::Text { text, chunks } if end.refuses() => {
                refused = true;
                teller.refusal(index, &text, chunks)
            }
            Spoken::Text { text, chunks } => teller.text(index, &text, chunks, end.item_status()),
            Spoken::Thinking { text, signature, chunks } => teller.thought(index, &text, &signature, chunks),
            Spoken::ToolUse { name, input, id, chunks } => {
                let call_id = id.unwrap_or_else(|| format!("call_{stem}_{index}"));
                let mut item = json!({ "call_id": call_id, "name": name });
                if request.freeform_tools.contains(&name) {
                    item["type"] = "custom_tool_call".into();
                    item["id"] = teller.id("ctc", index).into();
                    let text = input["input"].as_str().unwrap_or_default();
                    teller.call(index, item, "response.custom_tool_call_input", "input", text, chunks)
                } else {
                    item["type"] = "function_call".into();
                    item["id"] = teller.id("fc", index).into();
                    if let Some((group, tool)) = grouped(&name, &request.tool_groups) {
                        item["namespace"] = group.into();
                        item["name"] = tool.into();
                    }
                    let text = text_of(&input);
                    teller.call(index, item, "response.function_call_arguments", "arguments", &text, chunks)
                }
            }
        });
    }
    if end.refuses() && !refused {
        output.push(teller.refusal(output.len(), "Scripted refusal.", 1));
    }
    let status = match end {
        AnswerEnd::Completed | AnswerEnd::Refused => "completed",
        AnswerEnd::Incomplete(reason) => {
            response["incomplete_details"] = json!({ "reason": reason });
            "incomplete"
        }
        AnswerEnd::Failed { code, message } => {
            response["error"] = json!({ "code": code, "message": message });
            "failed"
        }
    };
    response["status"] = status.into();
    response["output"] = output.into();
    response["usage"] = usage(&turn.usage);
    teller.event(json!({ "type": format!("response.{status}"), "response": response }));
    response
}

/// How a response ends.
enum AnswerEnd {
    Completed,
    /// Completed too, but every text is a refusal.
    Refused,
    Incomplete(&'static str),
    Failed {
        code: String,
        message: String,
    },
}

impl AnswerEnd {
    fn of(turn: &Turn) -> Self {
        match turn.stop_reason.as_deref() {
            Some("max_tokens" | "max_output_tokens" | "length") => Self::Incomplete("max_output_tokens"),
            Some("content_filter") => Self::Incomplete("content_filter"),
            Some("refusal") => Self::Refused,
            Some("model_context_window_exceeded") => Self::Failed {
                code: "context_length_exceeded".to_owned(),
                message: "Your input exceeds the context window of this model.".to_owned(),
            },
            Some("failed") => {
                let detail = |key: &str| Some(turn.stop_details.as_ref()?[key].as_str()?.to_owned());
                Self::Failed {
                    code: detail("code").unwrap_or_else(|| "server_error".to_owned()),
                    message: detail("message").unwrap_or_else(|| "scripted error".to_owned()),
                }
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

impl<T: FnMut(AnswerPart)> Teller<'_, T> {
    fn event(&mut self, mut event: Value) {
        event["sequence_number"] = self.reported.into();
        (self.tell)(AnswerPart::Event(event));
        self.reported += 1;
    }

    fn item_added(&mut self, index: usize, item: &Value) {
        self.event(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
    }

    fn item_done(&mut self, index: usize, item: &Value) {
        self.event(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
    }

    fn id(&self, kind: &str, index: usize) -> String {
        format!("{kind}_{}_{index}", self.stem)
    }

    fn text(&mut self, index: usize, text: &str, chunks: usize, status: &str) -> Value {
        let part = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [] });
        let id = self.id("msg", index);
        self.message_begins(index, &id, &part(""));
        for piece in pieces(text, chunks) {
            self.content("response.output_text.delta", index, &id, "delta", &piece.into());
        }
        self.content("response.output_text.done", index, &id, "text", &text.into());
        self.message_ends(index, &id, &part(text), status)
    }

    fn refusal(&mut self, index: usize, text: &str, chunks: usize) -> Value {
        let part = |text: &str| json!({ "type": "refusal", "refusal": text });
        let id = self.id("msg", index);
        self.message_begins(index, &id, &part(""));
        for piece in pieces(text, chunks) {
            self.content("response.refusal.delta", index, &id, "delta", &piece.into());
        }
        self.content("response.refusal.done", index, &id, "refusal", &text.into());
        self.message_ends(index, &id, &part(text), "completed")
    }

    fn message_begins(&mut self, index: usize, id: &str, part: &Value) {
        self.item_added(index, &message(id, "in_progress", &json!([])));
        self.content("response.content_part.added", index, id, "part", part);
    }

    fn message_ends(&mut self, index: usize, id: &str, part: &Value, status: &str) -> Value {
        self.content("response.content_part.done", index, id, "part", part);
        let item = message(id, status, &json!([part]));
        self.item_done(index, &item);
        item
    }

    /// Each message has one part.
    fn content(&mut self, kind: &str, index: usize, id: &str, key: &str, value: &Value) {
        self.event(
            json!({ "type": kind, "item_id": id, "output_index": index, "content_index": 0, key: value }),
        );
    }

    fn thought(&mut self, index: usize, text: &str, signature: &str, chunks: usize) -> Value {
        let id = self.id("rs", index);
        let part = |text: &str| json!({ "type": "summary_text", "text": text });
        let mut item = json!({ "type": "reasoning", "id": id, "summary": [], "encrypted_content": null });
        self.item_added(index, &item);
        self.summary("response.reasoning_summary_part.added", index, &id, "part", &part(""));
        for piece in pieces(text, chunks) {
            self.summary("response.reasoning_summary_text.delta", index, &id, "delta", &piece.into());
        }
        self.summary("response.reasoning_summary_text.done", index, &id, "text", &text.into());
        self.summary("response.reasoning_summary_part.done", index, &id, "part", &part(text));
        item["summary"] = json!([part(text)]);
        item["encrypted_content"] = signature.into();
        self.item_done(index, &item);
        item
    }

    fn summary(&mut self, kind: &str, index: usize, id: &str, key: &str, value: &Value) {
        self.event(
            json!({ "type": kind, "item_id": id, "output_index": index, "summary_index": 0, key: value }),
        );
    }

    /// The text of a call is under `key`, and the names of its events begin with `events`.
    fn call(
        &mut self,
        index: usize,
        mut item: Value,
        events: &str,
        key: &str,
        text: &str,
        chunks: usize,
    ) -> Value {
        let id = item["id"].clone();
        item["status"] = "in_progress".into();
        item[key] = "".into();
        self.item_added(index, &item);
        for delta in pieces(text, chunks) {
            let kind = format!("{events}.delta");
            self.event(json!({ "type": kind, "item_id": id, "output_index": index, "delta": delta }));
        }
        let kind = format!("{events}.done");
        self.event(json!({ "type": kind, "item_id": id, "output_index": index, key: text }));
        item["status"] = "completed".into();
        item[key] = text.into();
        self.item_done(index, &item);
        item
    }
}

fn message(id: &str, status: &str, content: &Value) -> Value {
    json!({ "type": "message", "id": id, "status": status, "role": "assistant", "content": content })
}

/// The input includes the cached tokens, unlike in the scenario.
fn usage(usage: &Usage) -> Value {
    let input_tokens = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens;
    json!({
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_creation_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": input_tokens + usage.output_tokens,
    })
}

/// The group and the name of a tool that a scenario calls `GROUP__TOOL`.
fn grouped<'a>(name: &'a str, groups: &'a [String]) -> Option<(&'a str, &'a str)> {
    let split = |group: &'a String| Some((group.as_str(), name.strip_prefix(group)?.strip_prefix("__")?));
    // One group's name may begin with another's.
    groups.iter().filter_map(split).max_by_key(|(group, _)| group.len())
}
