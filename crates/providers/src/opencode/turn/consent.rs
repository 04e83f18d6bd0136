//! The questions that the program asks in a turn: put to whoever answers them, taken back, and answered in the form
//! that each wants. When they are asked and what becomes of the turn meanwhile is left to `turn.rs`.

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use inspan_protocol::{PermissionBroker, PermissionDecision, PermissionRequest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::decode::Asked;
use crate::output::PermissionDenial;

/// What the program is told of an allowance for other arguments than it asked about.
pub(super) const CHANGED: &str =
    "the tool was allowed with another input, which this agent cannot take; it was denied";

/// The questions that wait for an answer.
#[derive(Default)]
pub(super) struct Questions {
    pending: FuturesUnordered<BoxFuture<'static, Option<Decided>>>,
    open: Vec<(Question, CancellationToken)>,
}

/// A question of the program.
pub(super) struct Question {
    pub(super) id: String,
    pub(super) asked: Asked,
    pub(super) request: PermissionRequest,
}

struct Decided {
    id: String,
    decision: PermissionDecision,
}

/// The answer to a question.
pub(super) struct Answer {
    pub(super) question: Question,
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
    pub(super) fn ask(&mut self, broker: Option<&dyn PermissionBroker>, question: Question) {
        let decision: BoxFuture<'static, PermissionDecision> = match broker {
            Some(broker) => broker.request(question.request.clone()),
            None => {
                let message = match question.asked {
                    Asked::Permission => {
                        format!("nobody is there who could allow {}", question.request.tool_name)
                    }
                    Asked::Question => "nobody is there who could answer".to_owned(),
                };
                Box::pin(std::future::ready(PermissionDecision::Deny { message }))
            }
        };
        let (id, withdrawn) = (question.id.clone(), CancellationToken::new());
        self.open.push((question, withdrawn.clone()));
        self.pending.push(Box::pin(async move {
            let decision = withdrawn.run_until_cancelled(decision).await?;
            Some(Decided { id, decision })
        }));
    }

    /// The program wants no answer of ours any more: takes the question back, if it waits.
    pub(super) fn withdraw(&mut self, id: &str) -> Option<Question> {
        let open = self.open.iter().position(|(question, _)| question.id == id)?;
        let (question, withdrawn) = self.open.remove(open);
        withdrawn.cancel();
        Some(question)
    }

    /// Takes all of them back.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.pending.clear();
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
        let Decided { id, decision } = self.pending.next().await??;
        let open = self.open.iter().position(|(question, _)| question.id == id)?;
        let (question, _) = self.open.remove(open);
        Some(Answer { question, decision })
    }
}

impl Question {
    /// That it was denied, as an output tells it.
    pub(super) fn denial(&self) -> PermissionDenial {
        PermissionDenial {
            tool_name: self.request.tool_name.clone(),
            tool_use_id: self.request.tool_use_id.clone().unwrap_or_default(),
            tool_input: self.request.input.clone(),
        }
    }
}

impl Answer {
    /// What it comes to.
    pub(super) fn consent(&self) -> Consent {
        match (self.question.asked, &self.decision) {
            (Asked::Permission, PermissionDecision::Allow { updated_input: Some(other) })
                if *other != self.question.request.input =>
            {
                Consent::Changed
            }
            (Asked::Permission, PermissionDecision::Allow { .. }) => Consent::Given,
            (Asked::Question, PermissionDecision::Allow { updated_input: Some(input) })
                if input["answers"].is_array() =>
            {
                Consent::Given
            }
            _ => Consent::Refused,
        }
    }

    /// Where the program is told, and what.
    pub(super) fn reply(&self) -> (String, Value) {
        let id = &self.question.id;
        let (kind, consent) = (self.question.asked, self.consent());
        match (kind, consent, &self.decision) {
            (Asked::Permission, Consent::Given, _) => {
                (format!("permission/{id}/reply"), json!({ "reply": "once" }))
            }
            (Asked::Permission, ..) => {
                // A denial without words would end the turn.
                let message = match &self.decision {
                    PermissionDecision::Deny { message } if !message.trim().is_empty() => message,
                    PermissionDecision::Deny { .. } => "it was denied",
                    PermissionDecision::Allow { .. } => CHANGED,
                };
                (format!("permission/{id}/reply"), json!({ "reply": "reject", "message": message }))
            }
            (Asked::Question, Consent::Given, PermissionDecision::Allow { updated_input: Some(input) }) => {
                (format!("question/{id}/reply"), json!({ "answers": input["answers"] }))
            }
            (Asked::Question, ..) => (format!("question/{id}/reject"), json!({})),
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
        let told = |asked: Asked| {
            decisions.clone().map(|decision| {
                let request = PermissionRequest {
                    tool_name: "t".to_owned(),
                    tool_use_id: None,
                    input: input.clone(),
                    description: None,
                };
                let answer = Answer { question: Question { id: "1".to_owned(), asked, request }, decision };
                (answer.consent(), answer.reply())
            })
        };
        let permission = |consent, body| (consent, ("permission/1/reply".to_owned(), body));
        let once = || permission(Consent::Given, json!({ "reply": "once" }));
        let reject =
            |consent, message: &str| permission(consent, json!({ "reply": "reject", "message": message }));
        assert_eq!(
            told(Asked::Permission),
            [
                once(),
                once(),
                reject(Consent::Changed, CHANGED),
                reject(Consent::Refused, "no"),
                reject(Consent::Refused, "it was denied"),
            ]
        );
        let rejected = || (Consent::Refused, ("question/1/reject".to_owned(), json!({})));
        let answered = (Consent::Given, ("question/1/reply".to_owned(), answers.clone()));
        assert_eq!(told(Asked::Question), [rejected(), rejected(), answered, rejected(), rejected()]);
    }
}
