//! Questions of a session as elicitations: the form that a client shows, and what its answer means.

use inspan_protocol::{Prompt, PromptId};
use inspan_sessions::{
    SessionCommand, SessionError, SessionErrorCode, answer_command, question_schema, question_text,
};
use rmcp::model::{
    ClientCapabilities, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest,
    InputRequests, InputResponses,
};
use serde_json::Value;

/// Whether a client shows forms. One that names no kind of elicitation has that of the first version: forms.
pub(crate) fn shows_forms(client: Option<&ClientCapabilities>) -> bool {
    let elicitation = client.and_then(|client| client.elicitation.as_ref());
    elicitation.is_some_and(|can| can.form.is_some() || can.url.is_none())
}

/// The question as a client is asked it; none if it cannot be put as a form.
pub(crate) fn elicitation(prompt: &Prompt) -> Option<ElicitRequestParams> {
    let requested_schema = serde_json::from_value(question_schema(prompt)).ok()?;
    let message = question_text(prompt);
    Some(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
}

/// The questions as requests for input, by their ids.
pub(crate) fn input_requests<'a>(prompts: impl IntoIterator<Item = &'a Prompt>) -> InputRequests {
    let request = |prompt: &Prompt| {
        let request = InputRequest::Elicitation(ElicitRequest::new(elicitation(prompt)?));
        Some((prompt.prompt_id.to_string(), request))
    };
    prompts.into_iter().filter_map(request).collect()
}

/// What a client's answer to a question asks for: nothing if the person declined, closed the form, or gave an answer that
/// does not fit. Then the question stays open.
pub(crate) fn command_of(prompt: &Prompt, result: &ElicitResult) -> Option<SessionCommand> {
    match (&result.action, &result.content) {
        (ElicitationAction::Accept, Some(content)) => answer_command(prompt, content).ok(),
        _ => None,
    }
}

/// What the answers to these questions ask for, each with its question. Answers to other questions are ignored.
pub(crate) fn commands_of(
    asked: &[Prompt],
    answers: &InputResponses,
) -> Vec<(PromptId, Option<SessionCommand>)> {
    let command = |(id, answer): (&String, &Value)| {
        let prompt = asked.iter().rfind(|prompt| prompt.prompt_id.as_str() == id)?;
        let answer: Option<ElicitResult> = serde_json::from_value(answer.clone()).ok();
        Some((prompt.prompt_id.clone(), answer.and_then(|answer| command_of(prompt, &answer))))
    };
    answers.iter().filter_map(command).collect()
}

/// Whether an answer was not taken because another one counts, and the session goes on with that.
pub(crate) fn came_second(error: &SessionError) -> bool {
    matches!(
        error.code,
        SessionErrorCode::AlreadyAnswered
            | SessionErrorCode::CommandRefused
            | SessionErrorCode::UnknownPrompt
    )
}

/// Notes why answers were not taken, each once: a client may repeat them.
pub(crate) fn note(noted: &mut Vec<SessionError>, refused: impl IntoIterator<Item = SessionError>) {
    for error in refused {
        if !noted.contains(&error) {
            noted.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use inspan_protocol::PromptKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_accepted_answer_that_fits_is_an_answer() {
        let choices = Some(["allow", "always", "deny"].map(str::to_owned).to_vec());
        let prompt = Prompt { choices, ..Prompt::new("q", PromptKind::Permission, "Allow `Bash`?") };
        let answered =
            |action, content| command_of(&prompt, &ElicitResult::new(action).with_content(content));
        let allow = || json!({ "decision": "allow" });
        let approve = SessionCommand::Approve { prompt: Some("q".to_owned()), always: false };
        assert_eq!(answered(ElicitationAction::Accept, allow()), Some(approve.clone()));
        assert_eq!(answered(ElicitationAction::Accept, json!({ "decision": true })), None);
        assert_eq!(answered(ElicitationAction::Accept, json!({})), None);
        assert_eq!(answered(ElicitationAction::Decline, allow()), None);
        assert_eq!(answered(ElicitationAction::Cancel, allow()), None);
        assert_eq!(command_of(&prompt, &ElicitResult::new(ElicitationAction::Accept)), None);

        let answer = |action: &str| json!({ "action": action, "content": allow() });
        let answers = |action| [("q".to_owned(), answer(action)), ("x".to_owned(), answer("accept"))].into();
        assert_eq!(
            commands_of(std::slice::from_ref(&prompt), &answers("accept")),
            [(PromptId::from("q"), Some(approve))]
        );
        assert_eq!(commands_of(&[prompt], &answers("decline")), [(PromptId::from("q"), None)]);
    }

    #[test]
    fn a_client_shows_forms_unless_it_shows_other_things_only() {
        let client = |capabilities| serde_json::from_value(capabilities).ok();
        let rows = [
            (json!({}), false),
            (json!({ "elicitation": {} }), true),
            (json!({ "elicitation": { "form": {} } }), true),
            (json!({ "elicitation": { "url": {} } }), false),
            (json!({ "elicitation": { "form": {}, "url": {} } }), true),
        ];
        for (capabilities, shows) in rows {
            assert_eq!(shows_forms(client(capabilities.clone()).as_ref()), shows, "{capabilities}");
        }
    }
}
