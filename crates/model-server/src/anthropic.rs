//! The Anthropic Messages format: reads its requests, writes its events, bodies and errors.

use std::time::Duration;

use serde_json::{Value, json};

mod request;

use crate::scenario::{ErrorEvent, Turn};
use crate::speech::{Spoken, calls_a_tool, pieces, spoken, text_of, typed_event};
use crate::wire::RequestView;
use crate::wire::{Beat, Complaint, Wire};

/// What the vendor calls the errors of each status.
const ERROR_KINDS: [(u16, &str); 11] = [
    (400, "invalid_request_error"),
    (401, "authentication_error"),
    (402, "billing_error"),
    (403, "permission_error"),
    (404, "not_found_error"),
    (413, "request_too_large"),
    (429, "rate_limit_error"),
    (500, "api_error"),
    (503, "api_error"),
    (504, "timeout_error"),
    (529, "overloaded_error"),
];

/// Words of other vendors that a scenario may use, in the words of this one.
const ADOPTED_KINDS: [(&str, &str); 2] =
    [("context_length_exceeded", "invalid_request_error"), ("insufficient_quota", "billing_error")];

/// The format itself; it holds nothing.
pub(crate) struct Anthropic;

impl Wire for Anthropic {
    fn view(&self, body: &Value) -> Result<RequestView, Complaint> {
        request::view(body)
    }

    fn beats(&self, turn: &Turn, request: &RequestView, stem: &str) -> Vec<Beat> {
        let mut beats = vec![
            beat(&json!({ "type": "message_start", "message": empty_message(turn, request, stem) })),
            Beat::Event(self.ping()),
        ];
        let returned = spoken(turn, request);
        let mut end = json!({ "stop_sequence": null });
        set_stop(&mut end, turn, &returned);
        let mut index = 0;
        for block in returned {
            let (started, deltas): (Value, Vec<Value>) = match block {
                Spoken::Pause { ms } => {
                    beats.push(Beat::Pause(Duration::from_millis(ms)));
                    continue;
                }
                Spoken::Text { text, chunks } => {
                    let delta = |text| json!({ "type": "text_delta", "text": text });
                    (json!({ "type": "text", "text": "" }), pieces(&text, chunks).map(delta).collect())
                }
                Spoken::Thinking { text, signature, chunks } => {
                    let delta = |thinking| json!({ "type": "thinking_delta", "thinking": thinking });
                    let signed = json!({ "type": "signature_delta", "signature": signature });
                    (
                        json!({ "type": "thinking", "thinking": "", "signature": "" }),
                        pieces(&text, chunks).map(delta).chain([signed]).collect(),
                    )
                }
                Spoken::ToolUse { name, input, id, chunks } => {
                    let id = id.unwrap_or_else(|| tool_id(stem, index));
                    let delta = |json| json!({ "type": "input_json_delta", "partial_json": json });
                    (
                        json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
                        pieces(&text_of(&input), chunks).map(delta).collect(),
                    )
                }
            };
            beats.push(beat(
                &json!({ "type": "content_block_start", "index": index, "content_block": started }),
            ));
            beats.extend(deltas.into_iter().map(|delta| {
                beat(&json!({ "type": "content_block_delta", "index": index, "delta": delta }))
            }));
            beats.push(beat(&json!({ "type": "content_block_stop", "index": index })));
            index += 1;
        }
        let usage = json!({ "output_tokens": turn.usage.output_tokens });
        beats.push(beat(&json!({ "type": "message_delta", "delta": end, "usage": usage })));
        beats.push(beat(&json!({ "type": "message_stop" })));
        beats
    }

    fn whole(&self, turn: &Turn, request: &RequestView, stem: &str) -> String {
        let mut message = empty_message(turn, request, stem);
        message["usage"]["output_tokens"] = turn.usage.output_tokens.into();
        let returned = spoken(turn, request);
        set_stop(&mut message, turn, &returned);
        let mut content: Vec<Value> = Vec::new();
        for block in returned {
            content.push(match block {
                Spoken::Pause { .. } => continue,
                Spoken::Text { text, .. } => json!({ "type": "text", "text": text }),
                Spoken::Thinking { text, signature, .. } => {
                    json!({ "type": "thinking", "thinking": text, "signature": signature })
                }
                Spoken::ToolUse { name, input, id, .. } => {
                    let id = id.unwrap_or_else(|| tool_id(stem, content.len()));
                    json!({ "type": "tool_use", "id": id, "name": name, "input": input })
                }
            });
        }
        message["content"] = content.into();
        text_of(&message)
    }

    fn error_body(&self, status: u16, kind: Option<&str>, message: &str, stem: &str) -> String {
        let usual = ERROR_KINDS.iter().find(|(known, _)| *known == status).map(|(_, kind)| *kind);
        let kind = kind.map(adopted).or(usual).unwrap_or(if status < 500 {
            "invalid_request_error"
        } else {
            "api_error"
        });
        let mut body = error(kind, message);
        body["request_id"] = request_id(stem).into();
        text_of(&body)
    }

    fn error_status(&self, kind: &str) -> u16 {
        ERROR_KINDS.iter().find(|(_, known)| *known == adopted(kind)).map_or(500, |(status, _)| *status)
    }

    fn error_event(&self, event: &ErrorEvent, _sent: usize) -> String {
        typed_event(&error(adopted(&event.kind), &event.message))
    }

    fn ping(&self) -> String {
        typed_event(&json!({ "type": "ping" }))
    }

    fn garbage(&self) -> String {
        "event: content_block_delta\ndata: {\"type\":\"content_bl\n\n".to_owned()
    }

    fn headers(&self, stem: &str) -> Vec<(&'static str, String)> {
        vec![("request-id", request_id(stem))]
    }
}

fn empty_message(turn: &Turn, request: &RequestView, stem: &str) -> Value {
    json!({
        "id": turn.message_id.clone().unwrap_or_else(|| format!("msg_{stem}")),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": {
            "input_tokens": turn.usage.input_tokens,
            "cache_creation_input_tokens": turn.usage.cache_creation_tokens,
            "cache_read_input_tokens": turn.usage.cache_read_tokens,
            "output_tokens": 1,
        },
    })
}

/// Says why the model stops; the details are absent if there are none.
fn set_stop(message: &mut Value, turn: &Turn, returned: &[Spoken]) {
    message["stop_reason"] = stop_reason(turn, returned).into();
    if let Some(details) = &turn.stop_details {
        message["stop_details"] = details.clone();
    }
}

fn stop_reason(turn: &Turn, returned: &[Spoken]) -> String {
    let usual = if calls_a_tool(returned) { "tool_use" } else { "end_turn" };
    turn.stop_reason.clone().unwrap_or_else(|| usual.to_owned())
}

fn adopted(kind: &str) -> &str {
    ADOPTED_KINDS.iter().find(|(other, _)| *other == kind).map_or(kind, |(_, own)| own)
}

fn tool_id(stem: &str, index: usize) -> String {
    format!("toolu_{stem}_{index}")
}

fn request_id(stem: &str) -> String {
    format!("req_{stem}")
}

fn error(kind: &str, message: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

fn beat(event: &Value) -> Beat {
    Beat::Event(typed_event(event))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(tools: &[&str]) -> RequestView {
        RequestView { tools: tools.iter().map(|&tool| tool.to_owned()).collect(), ..RequestView::default() }
    }

    #[test]
    fn a_structured_answer_takes_the_form_the_request_offers() {
        let turn = Turn::structured(json!({"b": 1, "a": 2}));
        let spoken_with = |tools: &[&str]| {
            let returned = spoken(&turn, &request(tools));
            let reason = stop_reason(&turn, &returned);
            (returned, reason)
        };
        let input = json!({"a": 2, "b": 1});
        let name = "StructuredOutput".to_owned();
        let called = vec![Spoken::ToolUse { name, input, id: None, chunks: 4 }];
        let reported = vec![Spoken::Text { text: r#"{"a":2,"b":1}"#.to_owned(), chunks: 4 }];
        assert_eq!(spoken_with(&["StructuredOutput"]), (called, "tool_use".to_owned()));
        assert_eq!(spoken_with(&["Bash"]), (reported, "end_turn".to_owned()));
    }

    #[test]
    fn errors_carry_the_vendors_words() {
        let kinds: Vec<String> = [400, 401, 418, 429, 500, 529, 599]
            .map(|status| Anthropic.error_body(status, None, "m", "s"))
            .iter()
            .map(|body| {
                let body: Value = serde_json::from_str(body).unwrap();
                body["error"]["type"].as_str().unwrap().to_owned()
            })
            .collect();
        let expected = [
            "invalid_request_error",
            "authentication_error",
            "invalid_request_error",
            "rate_limit_error",
            "api_error",
            "overloaded_error",
            "api_error",
        ];
        assert_eq!(kinds, expected);
        let own = Anthropic.error_body(400, Some("odd_error"), "m", "main_1");
        assert_eq!(
            own,
            r#"{"error":{"message":"m","type":"odd_error"},"request_id":"req_main_1","type":"error"}"#
        );
        assert_eq!(["overloaded_error", "odd_error"].map(|kind| Anthropic.error_status(kind)), [529, 500]);
        let adopted = Anthropic.error_body(400, Some("context_length_exceeded"), "m", "main_1");
        assert_eq!(
            adopted,
            r#"{"error":{"message":"m","type":"invalid_request_error"},"request_id":"req_main_1","type":"error"}"#
        );
    }
}
