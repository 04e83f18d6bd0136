//! Resources: the outputs of a session and its state, for clients that fetch what is too large for an answer.

use inspan_protocol::SessionId;
use inspan_sessions::{SessionError, SessionErrorCode, Sessions};
use inspan_view::{DisplayStatus, SessionView, entry};
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use serde_json::{Value, json};

use crate::result::{message, output_uri, question};
use crate::server::SessionLife;

/// What addresses begin with.
const SESSION: &str = "inspan://session/";
/// The most sessions that are listed.
const LISTED: usize = 20;
/// The largest resource that is served, in bytes.
const LARGEST: usize = 8 * 1024 * 1024;
/// Events that are read at once.
const PAGE: usize = 500;

/// The outputs of the newest sessions that have ended.
pub(crate) async fn listed(sessions: &Sessions) -> Result<Vec<Resource>, SessionError> {
    let entries = sessions.list(LISTED).await?;
    let ended = entries.iter().filter(|entry| entry.digest.outcome.is_some());
    Ok(ended
        .map(|entry| {
            let id = entry.session.as_str();
            let about = format!("{}: {}", entry.flow, DisplayStatus::of(entry).word());
            Resource::new(output_uri(id), format!("outputs of session {id}"))
                .with_description(about)
                .with_mime_type("application/json")
        })
        .collect())
}

/// The forms of addresses.
pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let template = |rest: &str, name: &str, about: &str| {
        ResourceTemplate::new(format!("{SESSION}{{id}}{rest}"), name)
            .with_description(about)
            .with_mime_type("application/json")
    };
    vec![
        template("", "session", "where a session stands: its nodes, questions and cost"),
        template("/output", "session-output", "what a session gave"),
    ]
}

/// What is at an address; `None` if nothing can be there.
pub(crate) async fn read(
    sessions: &Sessions,
    uri: &str,
    life: SessionLife,
) -> Option<Result<ResourceContents, SessionError>> {
    let name = uri.strip_prefix(SESSION)?;
    let (id, is_output) = match name.strip_suffix("/output") {
        Some(id) => (id, true),
        None => (name, false),
    };
    if id.is_empty() || id.contains('/') {
        return None;
    }
    Some(contents(sessions, uri, id, is_output, life).await)
}

async fn contents(
    sessions: &Sessions,
    uri: &str,
    id: &str,
    is_output: bool,
    life: SessionLife,
) -> Result<ResourceContents, SessionError> {
    let session = sessions.find(id).await?.session;
    let value = if is_output {
        let output = sessions.output(&session).await?;
        if !matches!(output.status, DisplayStatus::Ended(_)) {
            let message = format!("session `{session}` has no outputs yet: it is {}", output.status.word());
            return Err(SessionError::new(SessionErrorCode::InvalidRequest, message));
        }
        output.outputs
    } else {
        status(sessions, &session, life).await?
    };
    let text = serde_json::to_string_pretty(&value).unwrap_or_default();
    if text.len() > LARGEST {
        let message = format!(
            "the outputs of session `{session}` have {} bytes, and at most {LARGEST} are served",
            text.len()
        );
        let hint = format!("`inspan show {session} NODE` prints the output of one node");
        return Err(SessionError::new(SessionErrorCode::InvalidRequest, message).with_hint(hint));
    }
    Ok(ResourceContents::text(text, uri).with_mime_type("application/json"))
}

/// The state of a session: its nodes, questions, cost.
pub(crate) async fn status(
    sessions: &Sessions,
    session: &SessionId,
    life: SessionLife,
) -> Result<Value, SessionError> {
    let open = sessions.open(session).await?;
    let mut view = SessionView::of(open.record.run(&open.graph));
    let mut next = 1;
    loop {
        let events = sessions.events(session, next, PAGE).await?;
        let Some(last) = events.last() else { break };
        next = last.seq + 1;
        for envelope in &events {
            view.apply(envelope);
        }
    }
    let nodes: Vec<Value> = view
        .rows
        .iter()
        .map(|row| {
            entry::without_nulls(json!({
                "id": row.label, "type": row.node_type, "status": row.status, "attempts": row.attempts,
                "durationMs": row.duration_ms, "error": row.error.as_ref().map(|error| &error.message),
            }))
        })
        .collect();
    let output = sessions.output(session).await?;
    let questions: Vec<Value> = output.questions.iter().map(question).collect();
    let mut status = json!({
        "sessionId": session, "flow": output.flow, "status": output.status.word(), "nodes": nodes,
        "questions": questions, "costUsd": output.cost_usd, "continuedBy": output.continued_by,
        "createdAt": open.entry.created_at, "message": (!output.is_success()).then(|| message(&output, life)),
        "error": output.error.as_ref().map(|error| &error.message),
    });
    let mut listed = entry::json(&open.entry);
    for key in ["pausedBy", "limitToRaise", "waits"] {
        status[key] = listed[key].take();
    }
    Ok(entry::without_nulls(status))
}
