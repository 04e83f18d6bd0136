//! A message as Slack's blocks: plain text, so that nothing in it mentions people or formats itself; and a button for
//! each answer of a question that is shown whole.

use inspan_protocol::{PromptId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{message::Message, notice::Notice};
use inspan_view::format::cut;

/// Slack's limits: characters of a text, of the label and the value of a button, and elements of a row of buttons.
const TEXT: usize = 2_900;
const LABEL: usize = 75;
const VALUE: usize = 2_000;
const BUTTONS: usize = 24;

/// The action of a button that gives an answer, followed by its number.
pub(super) const CHOOSE: &str = "inspan-choose-";
/// The action of the button that asks for a text.
pub(super) const WRITE: &str = "inspan-write";
/// The dialog that asks for a text, and its field.
pub(super) const DIALOG: &str = "inspan-answer";
pub(super) const FIELD: &str = "text";

/// What a button or a dialog answers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerTarget {
    /// The session.
    pub(super) s: SessionId,
    /// The question.
    pub(super) p: PromptId,
    /// The choice; none where a text is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) c: Option<String>,
}

/// The blocks of a message.
pub(super) fn of(message: &Message, can_answer: bool) -> Vec<Value> {
    let mut blocks = vec![section(&message.title)];
    if let [only] = message.notices.as_slice() {
        blocks.push(section(&message.text()));
        blocks.extend(actions(message, only, can_answer));
    } else {
        for notice in &message.notices {
            blocks.push(section(&format!(
                "{}\n{}\n{}",
                notice.title,
                notice.text,
                notice.commands.join("\n")
            )));
            blocks.extend(actions(message, notice, can_answer));
        }
        if message.more > 0 {
            blocks.push(section(&format!("and {} more", message.more)));
        }
    }
    blocks.retain(|block| block["text"]["text"] != json!(""));
    blocks
}

fn section(text: &str) -> Value {
    json!({ "type": "section", "text": plain(&cut(text.trim(), TEXT)) })
}

fn plain(text: &str) -> Value {
    json!({ "type": "plain_text", "text": text, "emoji": false })
}

/// The row of buttons of a question. What is not shown whole cannot be consented to, and what needs a form is answered
/// elsewhere.
fn actions(message: &Message, notice: &Notice, can_answer: bool) -> Option<Value> {
    let question = notice.question.as_ref().filter(|_| can_answer && notice.is_whole())?;
    let session = message.session.as_ref().filter(|_| question.schema.is_none())?;
    let value = |choice: Option<&String>| {
        let target = AnswerTarget { s: session.clone(), p: question.prompt_id.clone(), c: choice.cloned() };
        serde_json::to_string(&target).ok().filter(|value| value.chars().count() <= VALUE)
    };
    let choices = question.choices.as_deref().unwrap_or_default();
    let button = |(at, choice): (usize, &String)| {
        let label = plain(&cut(&crate::message::line(choice, LABEL), LABEL));
        Some(
            json!({ "type": "button", "action_id": format!("{CHOOSE}{at}"), "text": label, "value": value(Some(choice))? }),
        )
    };
    let mut elements: Vec<Value> = choices.iter().take(BUTTONS).enumerate().filter_map(button).collect();
    if question.allows_text() {
        let write = value(None)?;
        elements
            .push(json!({ "type": "button", "action_id": WRITE, "text": plain("Answer…"), "value": write }));
    }
    (!elements.is_empty()).then(|| json!({ "type": "actions", "elements": elements }))
}

/// The dialog that asks for a text. `place` is where the question is shown.
pub(super) fn dialog(target: &AnswerTarget, place: &Value, question: &str) -> Value {
    json!({
        "type": "modal",
        "callback_id": DIALOG,
        "private_metadata": json!({ "target": target, "place": place }).to_string(),
        "title": plain("Answer"),
        "submit": plain("Send"),
        "close": plain("Cancel"),
        "blocks": [
            section(question),
            {
                "type": "input",
                "block_id": DIALOG,
                "label": plain("Your answer"),
                "element": { "type": "plain_text_input", "action_id": FIELD, "multiline": true },
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use inspan_protocol::Timestamp;

    use super::*;

    fn message(question: Value, text: &str) -> Message {
        serde_json::from_value(json!({
            "v": 1, "id": "ntf-1", "channel": "team", "session": "run-1", "flow": "oxen", "title": "oxen: asks",
            "notices": [{
                "kind": "question", "at": Timestamp::default(), "title": "asks", "text": text, "question": question,
            }],
        }))
        .unwrap()
    }

    #[test]
    fn only_a_question_that_is_shown_whole_has_buttons() {
        let asks = |more: Value| {
            let mut question = json!({ "promptId": "p", "prompt": "x", "kind": "input" });
            question.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            question
        };
        let choices = || asks(json!({ "choices": ["yes", "no"] }));
        let labels = |message: &Message, can_answer: bool| -> Vec<String> {
            let blocks = of(message, can_answer);
            let rows = blocks.iter().filter_map(|block| block["elements"].as_array());
            rows.flatten().map(|button| button["text"]["text"].as_str().unwrap().to_owned()).collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(labels(&message(choices(), "Ship it?"), true), ["yes", "no"]);
        assert_eq!(labels(&message(asks(json!({})), "Which?"), true), ["Answer…"]);
        assert_eq!(labels(&message(choices(), "Ship it?"), false), none);
        assert_eq!(labels(&message(choices(), "cut off…"), true), none);
        let form = asks(json!({ "schema": { "properties": { "a": { "type": "string" } } } }));
        assert_eq!(labels(&message(form, "Fill in"), true), none);
        let long = asks(json!({ "choices": ["x".repeat(3_000), "no"] }));
        assert_eq!(labels(&message(long, "Ship it?"), true), ["no"]);
    }
}
