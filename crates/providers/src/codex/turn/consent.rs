//! The questions that the program asks in a turn: put to whoever answers them, taken back, and answered in the form
//! that each wants. When they are asked and what becomes of the turn meanwhile is left to `turn.rs`.

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use inspan_protocol::{PermissionBroker, PermissionDecision, PermissionRequest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::decode::Form;
use crate::transport::json_rpc::TheirId;

/// The questions that wait for an answer.
#[derive(Default)]
pub(super) struct Questions {
    pending: FuturesUnordered<BoxFuture<'static, Option<Answer>>>,
    open: Vec<(TheirId, CancellationToken)>,
}

/// The answer to a question.
pub(super) struct Answer {
    pub(super) id: TheirId,
    pub(super) request: PermissionRequest,
    form: Form,
    decision: PermissionDecision,
}

/// What an answer comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consent {
    Given,
    Refused,
    /// Given to other arguments than were asked about. The program would run its own, which nobody allowed.
    Changed,
}

impl Questions {
    /// Puts a question to the broker; without one the answer is no.
    pub(super) fn ask(
        &mut self,
        broker: Option<&dyn PermissionBroker>,
        id: TheirId,
        request: PermissionRequest,
        form: Form,
    ) {
        let decision: BoxFuture<'static, PermissionDecision> = match broker {
            Some(broker) => broker.request(request.clone()),
            None => {
                let message = format!("nobody is there who could allow {}", request.tool_name);
                Box::pin(std::future::ready(PermissionDecision::Deny { message }))
            }
        };
        let withdrawn = CancellationToken::new();
        self.open.push((id.clone(), withdrawn.clone()));
        self.pending.push(Box::pin(async move {
            let decision = withdrawn.run_until_cancelled(decision).await?;
            Some(Answer { id, request, form, decision })
        }));
    }

    /// The program no longer wants an answer. It says so of those that were answered too.
    pub(super) fn withdraw(&mut self, id: &TheirId) {
        if let Some(open) = self.open.iter().position(|(open, _)| open == id) {
            self.open.remove(open).1.cancel();
        }
    }

    /// Whether somebody is being asked.
    pub(super) fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether there is anything to wait for.
    pub(super) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next answer, unless its question was taken back meanwhile.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        let answer = self.pending.next().await??;
        let open = self.open.iter().position(|(open, _)| *open == answer.id)?;
        self.open.remove(open);
        Some(answer)
    }
}

impl Answer {
    /// What it comes to.
    pub(super) fn consent(&self) -> Consent {
        match &self.decision {
            PermissionDecision::Allow { updated_input: Some(other) } if *other != self.request.input => {
                Consent::Changed
            }
            PermissionDecision::Allow { .. } => Consent::Given,
            PermissionDecision::Deny { .. } => Consent::Refused,
        }
    }

    /// What the program is told.
    pub(super) fn reply(&self) -> Value {
        match (&self.form, self.consent()) {
            (Form::Decision, Consent::Given) => json!({ "decision": "accept" }),
            (Form::Decision, _) => json!({ "decision": "decline" }),
            (Form::Permissions(wanted), Consent::Given) => {
                json!({ "permissions": granted(wanted), "scope": "turn" })
            }
            (Form::Permissions(_), _) => json!({ "permissions": {}, "scope": "turn" }),
            (Form::Elicitation, Consent::Given) => elicitation("accept"),
            (Form::Elicitation, _) => elicitation("decline"),
        }
    }
}

/// The permissions that were asked for; the program takes no null among them.
fn granted(wanted: &Value) -> Value {
    let there = wanted.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    Value::Object(there.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The answer to a server of tools.
pub(super) fn elicitation(action: &str) -> Value {
    json!({ "action": action, "content": null, "_meta": null })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_has_its_answer_and_only_a_plain_allowance_is_one() {
        let input = json!({ "command": "ls" });
        let wanted = json!({ "network": { "enabled": true }, "fileSystem": null });
        let decisions = [
            PermissionDecision::Allow { updated_input: None },
            PermissionDecision::Allow { updated_input: Some(input.clone()) },
            PermissionDecision::Allow { updated_input: Some(json!({})) },
            PermissionDecision::Deny { message: "no".to_owned() },
        ];
        let rows = [
            (Form::Decision, json!({ "decision": "accept" }), json!({ "decision": "decline" })),
            (
                Form::Permissions(wanted),
                json!({ "permissions": { "network": { "enabled": true } }, "scope": "turn" }),
                json!({ "permissions": {}, "scope": "turn" }),
            ),
            (Form::Elicitation, elicitation("accept"), elicitation("decline")),
        ];
        for (form, yes, no) in rows {
            let replies = decisions.clone().map(|decision| {
                let request = PermissionRequest {
                    tool_name: "t".to_owned(),
                    tool_use_id: None,
                    input: input.clone(),
                    description: None,
                };
                let id = serde_json::from_value(json!(1)).unwrap();
                Answer { id, request, form: form.clone(), decision }.reply()
            });
            assert_eq!(replies, [yes.clone(), yes, no.clone(), no]);
        }
    }
}
