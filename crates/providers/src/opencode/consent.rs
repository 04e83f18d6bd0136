//! The questions that the program asks in a turn, each answered in the form that it wants.

use inspan_protocol::{PermissionDecision, PermissionRequest};
use serde_json::{Value, json};

use super::decode::RequestKind;
use crate::program::requests::Consent;

/// The answer to an allowance for other arguments than the program asked about.
pub(super) const CHANGED: &str =
    "the tool was allowed with another input, which this agent cannot take; it was denied";

/// A question of the program.
#[derive(Debug)]
pub(super) struct OpenCodeQuestion {
    pub(super) id: String,
    pub(super) kind: RequestKind,
    pub(super) request: PermissionRequest,
}

impl OpenCodeQuestion {
    /// What a decision means for it.
    pub(super) fn consent(&self, decision: &PermissionDecision) -> Consent {
        match (self.kind, decision) {
            (RequestKind::Permission, decision) => Consent::of(decision, &self.request.input),
            (RequestKind::Question, PermissionDecision::Allow { updated_input: Some(input) })
                if input["answers"].is_array() =>
            {
                Consent::Given
            }
            (RequestKind::Question, _) => Consent::Denied,
        }
    }

    /// The address and the body of the answer.
    pub(super) fn response(&self, consent: Consent, decision: &PermissionDecision) -> (String, Value) {
        let id = &self.id;
        match (self.kind, consent, decision) {
            (RequestKind::Permission, Consent::Given, _) => {
                (format!("permission/{id}/reply"), json!({ "reply": "once" }))
            }
            (RequestKind::Permission, ..) => {
                // A denial without words would end the turn.
                let message = match decision {
                    PermissionDecision::Deny { message } if !message.trim().is_empty() => message,
                    PermissionDecision::Deny { .. } => "it was denied",
                    PermissionDecision::Allow { .. } => CHANGED,
                };
                (format!("permission/{id}/reply"), json!({ "reply": "reject", "message": message }))
            }
            (
                RequestKind::Question,
                Consent::Given,
                PermissionDecision::Allow { updated_input: Some(input) },
            ) => (format!("question/{id}/reply"), json!({ "answers": input["answers"] })),
            (RequestKind::Question, ..) => (format!("question/{id}/reject"), json!({})),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_allowance_is_one_and_every_answer_has_its_form() {
        let input = json!({ "command": "ls" });
        let answers = json!({ "answers": [["a"]] });
        let decisions = [
            PermissionDecision::Allow { updated_input: None },
            PermissionDecision::Allow { updated_input: Some(input.clone()) },
            PermissionDecision::Allow { updated_input: Some(answers.clone()) },
            PermissionDecision::Deny { message: "no".to_owned() },
            PermissionDecision::Deny { message: " ".to_owned() },
        ];
        let responses = |kind: RequestKind| {
            decisions.clone().map(|decision| {
                let request = PermissionRequest::new("t", input.clone());
                let question = OpenCodeQuestion { id: "1".to_owned(), kind, request };
                let consent = question.consent(&decision);
                (consent, question.response(consent, &decision))
            })
        };
        let permission = |consent, body| (consent, ("permission/1/reply".to_owned(), body));
        let once = || permission(Consent::Given, json!({ "reply": "once" }));
        let reject =
            |consent, message: &str| permission(consent, json!({ "reply": "reject", "message": message }));
        assert_eq!(
            responses(RequestKind::Permission),
            [
                once(),
                once(),
                reject(Consent::Changed, CHANGED),
                reject(Consent::Denied, "no"),
                reject(Consent::Denied, "it was denied"),
            ]
        );
        let rejected = || (Consent::Denied, ("question/1/reject".to_owned(), json!({})));
        let answered = (Consent::Given, ("question/1/reply".to_owned(), answers.clone()));
        assert_eq!(
            responses(RequestKind::Question),
            [rejected(), rejected(), answered, rejected(), rejected()]
        );
    }
}
