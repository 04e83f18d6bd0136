//! What the program asks: whether a tool may be used, and questions of the agent to a person.

use inspan_protocol::PermissionRequest;
use serde_json::{Map, Value, json};

use super::super::wire;
use super::{OpenCodeDecoded, OpenCodeDecoder, QuestionAnswer, read};

/// What kind of question it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RequestKind {
    /// Whether a tool may be used.
    Permission,
    /// What a person chooses.
    Question,
}

impl OpenCodeDecoder {
    /// A question often overtakes the news of the call that it is about; it is held until the next event, so that
    /// the permission broker sees the whole call.
    pub(super) fn permission(&mut self, asked: wire::PermissionAsked<'_>, out: &mut Vec<OpenCodeDecoded>) {
        self.release(out);
        let mut metadata = match asked.metadata {
            Value::Object(metadata) => metadata,
            _ => Map::new(),
        };
        if metadata.is_empty() {
            metadata.insert("patterns".to_owned(), json!(asked.patterns));
        }
        let call = asked.tool.map(|tool| self.call_ids.of(&tool.message, &tool.call));
        let request = PermissionRequest {
            tool_use_id: call,
            ..PermissionRequest::new(asked.permission, Value::Object(metadata))
        };
        self.held.push((asked.id.into_owned(), request));
        if self.held.iter().all(|(_, request)| self.call_of(request).is_some()) {
            self.release(out);
        }
    }

    /// Asks what was held.
    pub(super) fn release(&mut self, out: &mut Vec<OpenCodeDecoded>) {
        for (request_id, mut request) in std::mem::take(&mut self.held) {
            if let Some((name, input)) = self.call_of(&request) {
                // Another right than the tool itself is asked for under its own name: what is always allowed of the one is
                // not of the other.
                if request.tool_name == "external_directory" || request.tool_name == "doom_loop" {
                    request.input["call"] = json!({ "tool": name, "input": input });
                } else {
                    request.tool_name = name;
                    request.input = input;
                }
            }
            out.push(OpenCodeDecoded::Requested { request_id, kind: RequestKind::Permission, request });
        }
    }

    /// The name and the input of the call that a question is about, once both are known.
    fn call_of(&self, request: &PermissionRequest) -> Option<(String, Value)> {
        let call = self.calls.get(request.tool_use_id.as_deref()?)?;
        Some((call.name.clone(), call.input.clone()?))
    }

    pub(super) fn question(&mut self, asked: wire::QuestionAsked<'_>, out: &mut Vec<OpenCodeDecoded>) {
        out.push(OpenCodeDecoded::Requested {
            request_id: asked.id.into_owned(),
            kind: RequestKind::Question,
            request: PermissionRequest {
                tool_use_id: asked.tool.map(|tool| self.call_ids.of(&tool.message, &tool.call)),
                questions: serde_json::from_value(asked.questions.clone()).unwrap_or_default(),
                ..PermissionRequest::new("question", json!({ "questions": asked.questions }))
            },
        });
    }

    pub(super) fn replied(
        properties: &str,
        kind: &str,
        out: &mut Vec<OpenCodeDecoded>,
    ) -> Result<(), serde_json::Error> {
        let replied: wire::Replied<'_> = read(properties)?;
        let refused = kind == "question.rejected" || replied.reply.as_deref() == Some("reject");
        out.push(OpenCodeDecoded::Answered {
            request_id: replied.request.into_owned(),
            answer: if refused { QuestionAnswer::Denied } else { QuestionAnswer::Given },
        });
        Ok(())
    }
}
