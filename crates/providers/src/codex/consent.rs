//! The questions that the program asks in a turn, each answered in the form that it wants.

use inspan_protocol::PermissionRequest;
use serde_json::{Value, json};

use super::decode::QuestionForm;
use crate::json_rpc::RemoteId;
use crate::program::requests::Consent;

/// A question for permission.
#[derive(Debug)]
pub(super) struct CodexQuestion {
    pub(super) id: RemoteId,
    pub(super) request: PermissionRequest,
    pub(super) form: QuestionForm,
}

impl CodexQuestion {
    /// The response to the program. It runs what it asked about, or nothing.
    pub(super) fn response(&self, consent: Consent) -> Value {
        match (&self.form, consent) {
            (QuestionForm::Decision, Consent::Given) => json!({ "decision": "accept" }),
            (QuestionForm::Decision, _) => json!({ "decision": "decline" }),
            (QuestionForm::Permissions(wanted), Consent::Given) => {
                json!({ "permissions": granted(wanted), "scope": "turn" })
            }
            (QuestionForm::Permissions(_), _) => json!({ "permissions": {}, "scope": "turn" }),
            (QuestionForm::Elicitation, Consent::Given) => elicitation("accept"),
            (QuestionForm::Elicitation, _) => elicitation("decline"),
        }
    }
}

/// The requested permissions; the program takes no null among them.
fn granted(wanted: &Value) -> Value {
    let given = wanted.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    Value::Object(given.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The answer to an MCP server.
pub(super) fn elicitation(action: &str) -> Value {
    json!({ "action": action, "content": null, "_meta": null })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_has_its_answer_and_only_a_plain_allowance_is_one() {
        let wanted = json!({ "network": { "enabled": true }, "fileSystem": null });
        let rows = [
            (QuestionForm::Decision, json!({ "decision": "accept" }), json!({ "decision": "decline" })),
            (
                QuestionForm::Permissions(wanted),
                json!({ "permissions": { "network": { "enabled": true } }, "scope": "turn" }),
                json!({ "permissions": {}, "scope": "turn" }),
            ),
            (QuestionForm::Elicitation, elicitation("accept"), elicitation("decline")),
        ];
        for (form, yes, no) in rows {
            let request = PermissionRequest::new("t", json!({ "command": "ls" }));
            let question = CodexQuestion { id: serde_json::from_value(json!(1)).unwrap(), request, form };
            let responses = [Consent::Given, Consent::Changed, Consent::Denied].map(|c| question.response(c));
            assert_eq!(responses, [yes, no.clone(), no]);
        }
    }
}
