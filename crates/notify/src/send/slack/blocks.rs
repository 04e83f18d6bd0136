//! A message as Slack's blocks: plain text, so that nothing in it mentions people or formats itself; and a button for
//! each answer of a question, if both are shown whole.

use inspan_protocol::{PromptId, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    message::{Message, line},
    notice::Notice,
};
use inspan_view::{format::cut, safe::spelled_out};

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
    /// The name of the channel that asked.
    pub(super) n: String,
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

/// The buttons of a question, below what distinguishes them. What is not shown whole cannot be consented to, what needs a
/// form is answered elsewhere, and once its time is up no answer counts.
fn actions(message: &Message, notice: &Notice, can_answer: bool) -> Vec<Value> {
    let question = notice.question.as_ref().filter(|_| can_answer && notice.is_whole() && !notice.is_expired);
    let question = question.filter(|question| question.schema.is_none());
    let (Some(question), Some(session)) = (question, &message.session) else { return Vec::new() };
    let value = |choice: Option<&String>| {
        let target = AnswerTarget {
            s: session.clone(),
            p: question.prompt_id.clone(),
            n: message.channel.clone(),
            c: choice.cloned(),
        };
        serde_json::to_string(&target).ok().filter(|value| value.chars().count() <= VALUE)
    };
    let choices = question.choices.as_deref().unwrap_or_default();
    let offered =
        choices.iter().zip(1..).filter_map(|(choice, number)| Some((number, choice, value(Some(choice))?)));
    let mut offered: Vec<(usize, &String, String)> = offered.take(BUTTONS).collect();
    let mut blocks = Vec::new();
    // A label that is not the whole choice may be that of another one, too.
    let is_clear = offered.iter().all(|(_, choice, _)| line(choice, LABEL) == **choice);
    if !is_clear {
        let mut list = String::new();
        offered.retain(|(number, choice, _)| {
            let entry = format!("{number}. {}\n", spelled_out(choice));
            let fits = list.chars().count() + entry.chars().count() <= TEXT;
            list.push_str(if fits { &entry } else { "" });
            fits
        });
        blocks.push(section(&list));
    }
    let left = choices.len() - offered.len();
    let mut elements: Vec<Value> = offered
        .into_iter()
        .map(|(number, choice, value)| {
            let label = if is_clear { choice.clone() } else { line(&format!("{number}. {choice}"), LABEL) };
            json!({ "type": "button", "action_id": format!("{CHOOSE}{number}"), "text": plain(&label), "value": value })
        })
        .collect();
    if let Some(write) = value(None).filter(|_| question.allows_text()) {
        elements
            .push(json!({ "type": "button", "action_id": WRITE, "text": plain("Answer…"), "value": write }));
    }
    if !elements.is_empty() {
        blocks.push(json!({ "type": "actions", "elements": elements }));
    }
    if left > 0 {
        let answers = if left == 1 { "answer has" } else { "answers have" };
        let text = format!("{left} more {answers} no button here; `inspan inbox` has the commands for all");
        blocks.push(section(&text));
    }
    blocks
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
        let mut expired = message(choices(), "Ship it?");
        expired.notices[0].is_expired = true;
        assert_eq!(labels(&expired, true), none);
        let form = asks(json!({ "schema": { "properties": { "a": { "type": "string" } } } }));
        assert_eq!(labels(&message(form, "Fill in"), true), none);
        let long = asks(json!({ "choices": ["x".repeat(3_000), "no"] }));
        assert_eq!(labels(&message(long, "Ship it?"), true), ["no"]);
    }

    /// The texts of the blocks of a question with these choices, and the labels of its buttons.
    fn shown(choices: &[String]) -> (Vec<String>, Vec<String>) {
        let question = json!({ "promptId": "p", "prompt": "x", "kind": "input", "choices": choices });
        let blocks = of(&message(question, "Which?"), true);
        let text = |value: &Value| value["text"]["text"].as_str().map(str::to_owned);
        let labels =
            blocks.iter().filter_map(|block| block["elements"].as_array()).flatten().filter_map(text);
        (blocks.iter().filter_map(text).skip(2).collect(), labels.collect())
    }

    #[test]
    fn buttons_that_would_look_the_same_are_numbered_and_their_answers_are_listed_whole() {
        let long = "Apply the migration 2026-11-26-add-index to the database of the environment called ";
        let choices = ["staging", "production"].map(|which| format!("{long}{which}"));
        let (texts, labels) = shown(&choices);
        assert_eq!(texts, [format!("1. {}\n2. {}", choices[0], choices[1])]);
        let label = |number: usize| cut(&format!("{number}. {long}"), LABEL);
        assert_eq!(labels, [label(1), label(2)]);
        let (texts, labels) = shown(&["a  b".to_owned(), "a b".to_owned()]);
        assert_eq!(
            (texts, labels),
            (vec!["1. a  b\n2. a b".to_owned()], vec!["1. a b".to_owned(), "2. a b".to_owned()])
        );
    }

    #[test]
    fn a_message_says_how_many_answers_have_no_button() {
        let many: Vec<String> = (0..30).map(|number| format!("choice {number}")).collect();
        let (texts, labels) = shown(&many);
        assert_eq!(
            (texts, labels.len()),
            (
                vec![
                    "6 more answers have no button here; `inspan inbox` has the commands for all".to_owned()
                ],
                24
            )
        );
        // What is not shown whole has no button.
        let large: Vec<String> = (0..3).map(|number| format!("{number}{}", "x".repeat(1_200))).collect();
        let (texts, labels) = shown(&large);
        assert_eq!(texts[0], format!("1. {}\n2. {}", large[0], large[1]));
        assert_eq!(
            (&*texts[1], labels.len()),
            ("1 more answer has no button here; `inspan inbox` has the commands for all", 2)
        );
    }
}
