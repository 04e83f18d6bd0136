//! What a client is answered about a session: words for the model, the same as data, and a link to what is too large.

use inspan_protocol::Prompt;
use inspan_sessions::{SessionError, SessionOutput, question_text};
use inspan_view::{DisplayStatus, entry::without_nulls};
use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde_json::{Value, json};

use crate::server::SessionLife;
use crate::tools::{REPLY, WAIT};

/// Outputs up to this many bytes of JSON are in the answer itself.
const INLINE: usize = 32 * 1024;
/// What holds of each session that a server within a node has started.
pub(crate) const ENDS_WITH_CALLER: &str = " A session that was started here and has not ended is interrupted when the node or agent that runs this server ends.";
/// How many characters of larger outputs are in the answer.
const BEGINNING: usize = 2000;

/// The address of a session's outputs.
pub(crate) fn output_uri(session: &str) -> String {
    format!("inspan://session/{session}/output")
}

/// The answer about a session. A session that runs or waits is no error; one that failed is.
pub(crate) fn result(output: &SessionOutput, life: SessionLife) -> CallToolResult {
    let id = output.session.as_str();
    let message = message(output, life);
    let questions: Vec<_> = output.questions.iter().map(question).collect();
    let mut data = without_nulls(json!({
        "sessionId": id,
        "flow": output.flow,
        "status": output.status.word(),
        "message": (!output.is_success()).then_some(&message),
        "error": output.error.as_ref().map(|error| &error.message),
        "costUsd": output.cost_usd.filter(|cost| *cost > 0.0),
        "continuedBy": output.continued_by,
        "questions": Some(questions).filter(|questions| !questions.is_empty()),
    }));
    let mut content = vec![];
    let has_ended = matches!(output.status, DisplayStatus::Ended(_));
    let text = words(&output.outputs);
    if !output.is_success() {
        content.push(ContentBlock::text(message));
    }
    if has_ended && output.outputs.to_string().len() <= INLINE {
        data["outputs"] = output.outputs.clone();
        if output.is_success() {
            content.push(ContentBlock::text(text));
        }
    } else if has_ended {
        let size = text.len();
        let beginning: String = text.chars().take(BEGINNING).collect();
        let (uri, note) =
            (output_uri(id), format!("The outputs have {size} bytes; they begin so:\n\n{beginning}"));
        content.push(ContentBlock::text(note));
        let link = Resource::new(uri.clone(), format!("outputs of session {id}"));
        content.push(ContentBlock::resource_link(link.with_mime_type("application/json")));
        data["outputsBegin"] = json!(beginning);
        data["outputsUri"] = json!(uri);
    }
    let failed = has_ended && !output.is_success();
    let mut result = if failed { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = Some(data);
    result
}

/// The same answer, which first says why answers of the client were not taken.
pub(crate) fn with_refused(mut result: CallToolResult, refused: &[SessionError]) -> CallToolResult {
    if refused.is_empty() {
        return result;
    }
    let words: Vec<String> =
        refused.iter().map(|error| format!("The answer was not taken: {}", with_hint(error))).collect();
    result.content.insert(0, ContentBlock::text(words.join("\n")));
    if let Some(data) = &mut result.structured_content {
        data["refusedAnswers"] = json!(words);
    }
    result
}

/// A refusal, as words for the model.
pub(crate) fn refusal(error: &SessionError) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(with_hint(error))])
}

fn with_hint(error: &SessionError) -> String {
    let hint = error.hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}{hint}", error.message)
}

/// A question as data.
pub(crate) fn question(prompt: &Prompt) -> Value {
    without_nulls(json!({
        "id": prompt.prompt_id,
        "node": prompt.task,
        "kind": prompt.kind,
        "question": question_text(prompt),
        "choices": prompt.choices,
        "form": prompt.schema,
        "deadline": prompt.deadline,
    }))
}

/// The state of a session and what can be done, in words. Its commands mean the sessions of this store.
pub(crate) fn message(output: &SessionOutput, life: SessionLife) -> String {
    output.commands.complete(&state(output, life))
}

fn state(output: &SessionOutput, life: SessionLife) -> String {
    let (id, flow) = (&output.session, &output.flow);
    let session = format!("session `{id}` of flow `{flow}`");
    let why = output.error.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
    let asked: Vec<String> = output
        .questions
        .iter()
        .map(|prompt| format!("\n- question `{}`: {}", prompt.prompt_id, question_text(prompt)))
        .collect();
    let waits = format!(
        " waits for a person:{}\nAsk the user and answer with `{REPLY}`; in a shell `inspan inbox` shows how to answer.",
        asked.concat()
    );
    match output.status {
        DisplayStatus::Ended(_) if output.is_success() => format!("{session} has ended well"),
        DisplayStatus::Ended(outcome) => {
            let next = output.commands.after_failure(id, outcome);
            let next = next.map(|next| format!(" {next} To call the flow again repeats its work."));
            format!(
                "{session} ended as `{}`{why}\n`inspan why {id}` explains it.{}",
                output.status.word(),
                next.unwrap_or_default()
            )
        }
        DisplayStatus::Running | DisplayStatus::Waiting if !asked.is_empty() => format!("{session}{waits}"),
        DisplayStatus::Waiting if output.is_idle() && output.is_about_to_continue => format!(
            "{session} is waiting, and a stored answer or command is not applied yet. Call `{WAIT}` to wait for its \
             result; if no process begins, `inspan resume {id}` continues it"
        ),
        DisplayStatus::Waiting if output.is_idle() => match &output.holdup {
            Some(holdup) => format!("{session} {holdup}"),
            None => {
                format!("{session} is waiting, and no process runs it: `inspan resume {id}` continues it")
            }
        },
        DisplayStatus::Running | DisplayStatus::Waiting => {
            let word = output.status.word();
            let (alone, until, note) = match life {
                SessionLife::OutlivesServer => (" and continues by itself", "to wait for its result", ""),
                SessionLife::EndsWithCaller => ("", "until it has ended", ENDS_WITH_CALLER),
            };
            let how = output.holdup.clone().unwrap_or_else(|| format!("is {word}{alone}"));
            format!("{session} {how}. Call `{WAIT}` {until}; in a shell `inspan show {id}` shows it.{note}")
        }
        DisplayStatus::Paused => match &output.holdup {
            Some(holdup) => format!("{session} {holdup}"),
            None => format!("{session} is paused{why}; `inspan resume {id}` continues it"),
        },
        DisplayStatus::Interrupted => {
            format!("{session} was interrupted: its process is gone; `inspan resume {id}` continues it")
        }
        DisplayStatus::Continued => match &output.continued_by {
            Some(by) => format!("{session} is continued by session `{by}`"),
            None => format!("{session} is continued by another session"),
        },
        DisplayStatus::Damaged => format!("{session} is damaged; `inspan show {id}` says how"),
    }
}

/// Outputs as text: a text as it is, anything else as JSON.
pub(crate) fn words(outputs: &Value) -> String {
    match outputs {
        Value::String(text) => text.clone(),
        value => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}
