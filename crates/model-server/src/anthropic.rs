//! The Anthropic Messages format: reads its requests, writes its events, bodies and errors.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

mod message;
mod request;

use self::message::{
    AnthropicContent, AnthropicMessage, AnthropicUsage, Delta, MessageEnd, MessagesEvent, StartedContent,
    WireError,
};
use crate::scenario::{ErrorEvent, Turn};
use crate::speech::{Spoken, calls_a_tool, pieces, spoken, text_of};
use crate::wire::RequestView;
use crate::wire::{Beat, Complaint, Wire, sorted};

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
            beat(&MessagesEvent::MessageStart { message: empty_message(turn, request, stem) }),
            beat(&MessagesEvent::Ping {}),
        ];
        let returned = spoken(turn, request);
        let stop_reason = stop_reason(turn, &returned);
        let mut index = 0;
        for block in returned {
            let (started, deltas) = match block {
                Spoken::Pause { ms } => {
                    beats.push(Beat::Pause(Duration::from_millis(ms)));
                    continue;
                }
                Spoken::Text { text, chunks } => {
                    let deltas = pieces(&text, chunks).map(|text| Delta::Text { text }).collect();
                    (StartedContent::Text { text: "" }, deltas)
                }
                Spoken::Thinking { text, signature, chunks } => {
                    let thoughts = pieces(&text, chunks).map(|thinking| Delta::Thinking { thinking });
                    let deltas: Vec<Delta> = thoughts.chain([Delta::Signature { signature }]).collect();
                    (StartedContent::Thinking { thinking: "", signature: "" }, deltas)
                }
                Spoken::ToolUse { name, input, id, chunks } => {
                    let id = id.unwrap_or_else(|| tool_id(stem, index));
                    let deltas = pieces(&sorted(&input).to_string(), chunks)
                        .map(|partial_json| Delta::InputJson { partial_json })
                        .collect();
                    (StartedContent::ToolUse { id, name, input: NoInput {} }, deltas)
                }
            };
            beats.push(beat(&MessagesEvent::ContentBlockStart { index, content_block: started }));
            beats.extend(
                deltas.into_iter().map(|delta| beat(&MessagesEvent::ContentBlockDelta { index, delta })),
            );
            beats.push(beat(&MessagesEvent::ContentBlockStop { index }));
            index += 1;
        }
        beats.push(beat(&MessagesEvent::MessageDelta {
            delta: MessageEnd {
                stop_reason,
                stop_sequence: None,
                stop_details: turn.stop_details.as_ref().map(sorted),
            },
            usage: message::OutputUsage { output_tokens: turn.usage.output_tokens },
        }));
        beats.push(beat(&MessagesEvent::MessageStop {}));
        beats
    }

    fn whole(&self, turn: &Turn, request: &RequestView, stem: &str) -> String {
        let mut message = empty_message(turn, request, stem);
        message.usage.output_tokens = turn.usage.output_tokens;
        let returned = spoken(turn, request);
        message.stop_reason = Some(stop_reason(turn, &returned));
        message.stop_details = turn.stop_details.as_ref().map(sorted);
        for block in returned {
            let index = message.content.len();
            message.content.push(match block {
                Spoken::Pause { .. } => continue,
                Spoken::Text { text, .. } => AnthropicContent::Text { text },
                Spoken::Thinking { text, signature, .. } => {
                    AnthropicContent::Thinking { thinking: text, signature }
                }
                Spoken::ToolUse { name, input, id, .. } => AnthropicContent::ToolUse {
                    id: id.unwrap_or_else(|| tool_id(stem, index)),
                    name,
                    input: sorted(&input),
                },
            });
        }
        text_of(&message)
    }

    fn error_body(&self, status: u16, kind: Option<&str>, message: &str, stem: &str) -> String {
        let usual = ERROR_KINDS.iter().find(|(known, _)| *known == status).map(|(_, kind)| *kind);
        let kind = kind.map(adopted).or(usual).unwrap_or(if status < 500 {
            "invalid_request_error"
        } else {
            "api_error"
        });
        text_of(&MessagesEvent::Error {
            error: WireError { kind: kind.to_owned(), message: message.to_owned() },
            request_id: Some(request_id(stem)),
        })
    }

    fn error_status(&self, kind: &str) -> u16 {
        ERROR_KINDS.iter().find(|(_, known)| *known == adopted(kind)).map_or(500, |(status, _)| *status)
    }

    fn error_event(&self, error: &ErrorEvent, _sent: usize) -> String {
        let error = WireError { kind: adopted(&error.kind).to_owned(), message: error.message.clone() };
        frame(&MessagesEvent::Error { error, request_id: None })
    }

    fn ping(&self) -> String {
        frame(&MessagesEvent::Ping {})
    }

    fn garbage(&self) -> String {
        "event: content_block_delta\ndata: {\"type\":\"content_bl\n\n".to_owned()
    }

    fn headers(&self, stem: &str) -> Vec<(&'static str, String)> {
        vec![("request-id", request_id(stem))]
    }
}

/// An object without keys, whatever the build makes of maps.
#[derive(Debug, Serialize)]
struct NoInput {}

fn empty_message(turn: &Turn, request: &RequestView, stem: &str) -> AnthropicMessage {
    AnthropicMessage {
        id: turn.message_id.clone().unwrap_or_else(|| format!("msg_{stem}")),
        kind: "message",
        role: "assistant",
        model: request.model.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        stop_details: None,
        usage: AnthropicUsage {
            input_tokens: turn.usage.input_tokens,
            cache_creation_input_tokens: turn.usage.cache_creation_tokens,
            cache_read_input_tokens: turn.usage.cache_read_tokens,
            output_tokens: 1,
        },
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

fn beat(event: &MessagesEvent) -> Beat {
    Beat::Event(frame(event))
}

fn frame(event: &MessagesEvent) -> String {
    format!("event: {}\ndata: {}\n\n", event.name(), text_of(event))
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
            r#"{"type":"error","error":{"type":"odd_error","message":"m"},"request_id":"req_main_1"}"#
        );
        assert_eq!(["overloaded_error", "odd_error"].map(|kind| Anthropic.error_status(kind)), [529, 500]);
        let adopted = Anthropic.error_body(400, Some("context_length_exceeded"), "m", "main_1");
        assert_eq!(
            adopted,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"m"},"request_id":"req_main_1"}"#
        );
    }
}
