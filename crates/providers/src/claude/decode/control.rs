//! The control messages: what the program asks, takes back and answers.

use inspan_protocol::PermissionRequest;

use super::super::wire;
use super::{ClaudeDecoded, ClaudeDecoder, head};

impl ClaudeDecoder {
    pub(super) fn control_request(
        &mut self,
        line: wire::ControlRequestLine<'_>,
        out: &mut Vec<ClaudeDecoded>,
    ) {
        let request_id = line.request_id.to_string();
        let request = line.request;
        match (&*request.subtype, request.tool_name) {
            ("can_use_tool", Some(tool_name)) => out.push(ClaudeDecoded::PermissionRequested {
                request_id,
                request: PermissionRequest {
                    tool_name: tool_name.to_string(),
                    tool_use_id: request.tool_use_id.map(|id| id.to_string()),
                    input: request.input.unwrap_or_default(),
                    description: request.description.map(|text| text.to_string()),
                },
            }),
            (subtype, _) => {
                let subtype = head(subtype);
                self.warn_once("unsupportedRequest", &subtype, "refused the program's request", out);
                out.push(ClaudeDecoded::Unsupported { request_id, subtype });
            }
        }
    }

    pub(super) fn control_cancel(line: &wire::ControlCancelLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        out.push(ClaudeDecoded::Withdrawn { request_id: line.request_id.to_string() });
    }

    pub(super) fn control_response(line: &wire::ControlResponseLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        let response = &line.response;
        let error = (&*response.subtype != "success")
            .then(|| response.error.as_deref().unwrap_or("it gave no reason").to_owned());
        out.push(ClaudeDecoded::Answered { request_id: response.request_id.to_string(), error });
    }
}
