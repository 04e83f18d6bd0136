//! Questions of a session as requests to the editor: for permission, or as a form. What a flow asks is never a request for
//! permission: clients that allow or deny all tools by their settings would answer it.

use inspan_protocol::{Prompt, PromptKind};
use inspan_sessions::{SessionCommand, answer_command, question_schema, question_text, read_answer};
use inspan_view::safe::clean;
use serde_json::{Value, json};

use crate::rpc::Client;
use crate::wire::{Elicited, Outcome, Permission};

/// The tool call that represents a question.
pub(crate) fn call_id(prompt: &Prompt) -> String {
    format!("question:{}", prompt.prompt_id)
}

/// Whether the editor can be asked; else the person answers by the next prompt.
pub(crate) fn can_be_shown(prompt: &Prompt, shows_forms: bool) -> bool {
    shows_forms || asks_for_permission(prompt)
}

fn asks_for_permission(prompt: &Prompt) -> bool {
    prompt.kind == PromptKind::Permission
        && prompt.choices.as_ref().is_some_and(|choices| !choices.is_empty())
}

/// A question with what can be chosen, each with its number.
pub(crate) fn in_words(prompt: &Prompt) -> String {
    let numbered = (1..).zip(prompt.choices.iter().flatten());
    numbered.fold(question_text(prompt), |text, (number, choice)| format!("{text}\n    {number}. {choice}"))
}

/// What the answer of a person asks for; if it is none, so that the question stays open, why it does not fit, or nothing if the
/// person cancelled or declined.
pub(crate) type FormAnswer = Result<SessionCommand, Option<String>>;

/// Asks the editor.
pub(crate) async fn ask(client: &Client, session: &str, prompt: &Prompt) -> FormAnswer {
    if asks_for_permission(prompt) {
        let answer = client.call("session/request_permission", permission(session, prompt)).await;
        return answer.ok().and_then(|answer| chosen(prompt, answer)).ok_or(None);
    }
    let form = json!({
        "sessionId": session,
        "toolCallId": call_id(prompt),
        "mode": "form",
        "message": question_text(prompt),
        "requestedSchema": question_schema(prompt),
    });
    let answer = client.call("elicitation/create", form).await.map_err(|_| None)?;
    filled(prompt, answer)
}

fn permission(session: &str, prompt: &Prompt) -> Value {
    let tool = prompt.detail.as_ref().and_then(|detail| detail["toolName"].as_str());
    let tool = tool.map_or_else(|| "this tool".to_owned(), |tool| format!("`{}`", clean(tool)));
    let option = |choice: &String| {
        let (kind, name) = match choice.as_str() {
            "allow" => ("allow_once", "Allow".to_owned()),
            "always" => ("allow_always", format!("Allow each use of {tool} for the rest of the agent's run")),
            "deny" => ("reject_once", "Deny".to_owned()),
            other => ("reject_once", other.to_owned()),
        };
        json!({ "optionId": choice, "name": name, "kind": kind })
    };
    let options: Vec<Value> = prompt.choices.iter().flatten().map(option).collect();
    let input = prompt.detail.as_ref().map_or(Value::Null, |detail| detail["input"].clone());
    let mut call = json!({
        "toolCallId": call_id(prompt), "title": question_text(prompt), "kind": "other", "status": "pending",
    });
    if !input.is_null() {
        call["rawInput"] = input;
    }
    json!({ "sessionId": session, "toolCall": call, "options": options })
}

/// What the chosen option asks for. An option that was not offered is no answer.
fn chosen(prompt: &Prompt, answer: Value) -> Option<SessionCommand> {
    let Ok(Permission { outcome: Outcome::Selected { option_id } }) = serde_json::from_value(answer) else {
        return None;
    };
    let is_offered = prompt.choices.iter().flatten().any(|choice| *choice == option_id);
    is_offered.then(|| answer_command(prompt, &json!({ "decision": option_id })).ok()).flatten()
}

fn filled(prompt: &Prompt, answer: Value) -> FormAnswer {
    match serde_json::from_value(answer) {
        Ok(Elicited { action, content: Some(content) }) if action == "accept" => {
            answer_command(prompt, &content).map_err(Some)
        }
        _ => Err(None),
    }
}

/// What a prompt that the person typed means as the answer to a question.
pub(crate) fn typed(prompt: &Prompt, text: &str) -> Result<SessionCommand, String> {
    if let Some(form) = prompt.form() {
        if let Ok(fields @ Value::Object(_)) = serde_json::from_str(text) {
            return answer_command(prompt, &fields);
        }
        return match form.fields() {
            [one] => answer_command(prompt, &json!({ (one.name.as_str()): text })),
            fields => {
                let names: Vec<_> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
                Err(format!("the question is a form: answer with a JSON object with {}", names.join(", ")))
            }
        };
    }
    let Ok(answer) = read_answer(prompt, text) else {
        let choices: Vec<_> = prompt.choices.iter().flatten().map(|choice| format!("`{choice}`")).collect();
        return Err(format!("`{text}` answers none of: {}", choices.join(", ")));
    };
    let filled = match (prompt.kind, answer.choice) {
        (PromptKind::Permission, Some(choice)) if choice != answer.content => {
            json!({ "decision": choice, "reason": answer.content })
        }
        (PromptKind::Permission, _) => json!({ "decision": answer.content }),
        (_, Some(_)) => json!({ "choice": answer.content }),
        (_, None) => json!({ "answer": answer.content }),
    };
    answer_command(prompt, &filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(kind: PromptKind, choices: &[&str]) -> Prompt {
        let choices = choices.iter().map(|choice| (*choice).to_owned()).collect();
        Prompt { choices: Some(choices), ..Prompt::new("q", kind, "Go on?") }
    }

    #[test]
    fn only_an_option_that_was_offered_and_selected_is_an_answer() {
        let asked = prompt(PromptKind::Permission, &["allow", "always", "deny"]);
        let selected = |option: &str| json!({ "outcome": { "outcome": "selected", "optionId": option } });
        let id = || Some("q".to_owned());
        let approve = SessionCommand::Approve { prompt: id(), always: false };
        assert_eq!(chosen(&asked, selected("allow")), Some(approve));
        assert_eq!(
            chosen(&asked, selected("deny")),
            Some(SessionCommand::Reject { prompt: id(), reason: None })
        );
        let none = [
            selected("yes"),
            json!({ "outcome": { "outcome": "cancelled" } }),
            json!({ "outcome": { "outcome": "later" } }),
            json!({ "outcome": "selected" }),
            json!({}),
            Value::Null,
        ];
        for answer in none {
            assert_eq!(chosen(&asked, answer.clone()), None, "{answer}");
        }
    }

    #[test]
    fn what_is_allowed_for_the_rest_of_a_run_is_named() {
        let mut asked = prompt(PromptKind::Permission, &["allow", "always", "deny"]);
        let always = |asked: &Prompt| permission("s", asked)["options"][1]["name"].clone();
        assert_eq!(always(&asked), "Allow each use of this tool for the rest of the agent's run");
        asked.detail = Some(json!({ "toolName": "Bash", "input": { "command": "touch made" } }));
        assert_eq!(always(&asked), "Allow each use of `Bash` for the rest of the agent's run");
    }

    #[test]
    fn what_a_flow_asks_is_no_request_for_permission() {
        let input = prompt(PromptKind::Input, &["deploy", "do not deploy"]);
        assert_eq!([can_be_shown(&input, false), can_be_shown(&input, true)], [false, true]);
        assert_eq!(in_words(&input), "Go on?\n    1. deploy\n    2. do not deploy");
        let form = json!({ "action": "accept", "content": { "choice": "do not deploy" } });
        let choice = Some("do not deploy".to_owned());
        let reply =
            SessionCommand::Reply { prompt: Some("q".to_owned()), content: Some(String::new()), choice };
        assert_eq!(filled(&input, form), Ok(reply));
        assert!(can_be_shown(&prompt(PromptKind::Permission, &["allow", "deny"]), false));
    }

    #[test]
    fn only_an_accepted_form_is_an_answer() {
        let mut form = Prompt::new("q", PromptKind::Input, "Fill in.");
        form.schema = Some(json!({ "properties": { "n": { "type": "integer", "minimum": 1 } } }));
        let wrong = json!({ "action": "accept", "content": { "n": 0 } });
        assert_eq!(filled(&form, wrong), Err(Some("`n` must be at least 1".to_owned())));
        let asked = Prompt::new("q", PromptKind::Input, "Why?");
        let answer = |action: &str| json!({ "action": action, "content": { "answer": "so" } });
        let reply = SessionCommand::Reply {
            prompt: Some("q".to_owned()),
            content: Some("so".to_owned()),
            choice: None,
        };
        assert_eq!(filled(&asked, answer("accept")), Ok(reply));
        assert_eq!(
            [filled(&asked, answer("decline")), filled(&asked, answer("cancel"))],
            [Err(None), Err(None)]
        );
        assert_eq!(
            [filled(&asked, json!({ "action": "accept" })), filled(&asked, Value::Null)],
            [Err(None), Err(None)]
        );
    }

    #[test]
    fn a_typed_answer_is_a_choice_a_text_or_a_form() {
        let reply = |content: &str, choice: Option<&str>| {
            let choice = choice.map(str::to_owned);
            Ok(SessionCommand::Reply {
                prompt: Some("q".to_owned()),
                content: Some(content.to_owned()),
                choice,
            })
        };
        assert_eq!(typed(&prompt(PromptKind::Input, &["yes"]), "yes"), reply("", Some("yes")));
        let refused = typed(&prompt(PromptKind::Input, &["yes"]), "maybe");
        assert_eq!(refused, Err("`maybe` answers none of: `yes`".to_owned()));
        let asked = prompt(PromptKind::Permission, &["allow", "always", "deny"]);
        let id = || Some("q".to_owned());
        let allowed = |always| Ok(SessionCommand::Approve { prompt: id(), always });
        assert_eq!(["allow", "Yes", "1"].map(|text| typed(&asked, text)), [(); 3].map(|()| allowed(false)));
        assert_eq!(["always", "2"].map(|text| typed(&asked, text)), [(); 2].map(|()| allowed(true)));
        let denied = || Ok(SessionCommand::Reject { prompt: id(), reason: None });
        assert_eq!(["deny", "no", "3"].map(|text| typed(&asked, text)), [(); 3].map(|()| denied()));
        let refused = || Err("`yes please` answers none of: `allow`, `always`, `deny`".to_owned());
        assert_eq!(typed(&asked, "yes please"), refused());
        let mut form = Prompt::new("q", PromptKind::Input, "Fill in.");
        let text = json!({ "type": "string" });
        form.schema = Some(json!({ "properties": { "title": text } }));
        assert_eq!(typed(&form, "ox"), reply(r#"{"title":"ox"}"#, None));
        form.schema = Some(json!({ "properties": { "title": text, "more": text } }));
        let why = "the question is a form: answer with a JSON object with `more`, `title`";
        assert_eq!(typed(&form, "ox"), Err(why.to_owned()));
        assert_eq!(typed(&form, r#"{"title":"ox"}"#), reply(r#"{"title":"ox"}"#, None));
    }
}
