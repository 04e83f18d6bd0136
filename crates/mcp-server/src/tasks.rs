//! MCP tasks: a task is a session, and its id is the session's. So a task outlives the server that made it.

use inspan_protocol::{Outcome, SessionId};
use inspan_sessions::{SessionCommand, SessionError, Sessions};
use inspan_view::DisplayStatus;
use rmcp::model::{DetailedTask, InputResponses, JsonObject, Task, TaskPayload, TaskStatus};
use serde_json::{Value, json};

use crate::questions::{commands_of, input_requests};
use crate::result::{message, result, with_refused};
use crate::server::SessionLife;

/// How often a client should look, in milliseconds.
const POLL_MS: u64 = 2000;

/// The task of a session that has just begun.
pub(crate) async fn begun(sessions: &Sessions, session: &SessionId) -> Result<Task, SessionError> {
    task(sessions, session, TaskStatus::Working, None).await
}

/// The state of a task. `shows_forms` says whether the client can be asked.
pub(crate) async fn get(
    sessions: &Sessions,
    id: &str,
    shows_forms: bool,
    life: SessionLife,
    refused: &[SessionError],
) -> Result<DetailedTask, SessionError> {
    let session = sessions.entry(&SessionId::from(id)).await?.session;
    let output = sessions.output(&session).await?;
    let requests = if shows_forms { input_requests(&output.questions) } else { Default::default() };
    let completed =
        || TaskPayload::Completed { result: object(&json!(with_refused(result(&output, life), refused))) };
    let payload = match output.status {
        DisplayStatus::Ended(Outcome::Stopped) => TaskPayload::Cancelled,
        DisplayStatus::Ended(_) | DisplayStatus::Continued => completed(),
        DisplayStatus::Damaged => TaskPayload::Failed {
            error: object(&json!({ "code": -32603, "message": message(&output, life) })),
        },
        // As for a call that is not a task; a client would look for ever. A stored answer may be applied in a moment.
        _ if output.is_idle() && !output.is_about_to_continue => completed(),
        _ if !requests.is_empty() => TaskPayload::InputRequired { input_requests: requests },
        // The client cannot be asked: the result has the question, as that of a call.
        _ if !output.questions.is_empty() => completed(),
        _ => TaskPayload::Working,
    };
    let words = (!output.is_success()).then(|| message(&output, life));
    Ok(DetailedTask::new(task(sessions, &session, payload.status(), words).await?, payload))
}

/// Applies answers to the questions of a task, and says why some were not taken. What does not fit is ignored, and the
/// question stays open.
pub(crate) async fn update(
    sessions: &Sessions,
    id: &str,
    answers: &InputResponses,
) -> Result<(SessionId, Vec<SessionError>), SessionError> {
    let session = sessions.entry(&SessionId::from(id)).await?.session;
    let mut refused = Vec::new();
    for (_, command) in commands_of(&sessions.asked(&session).await?, answers) {
        if let Some(command) = command {
            refused.extend(sessions.answer_once(&session, &command).await.err());
        }
    }
    Ok((session, refused))
}

/// Stops the session of a task for good: that is what a client asks for by name.
pub(crate) async fn cancel(sessions: &Sessions, id: &str) -> Result<(), SessionError> {
    let entry = sessions.entry(&SessionId::from(id)).await?;
    if DisplayStatus::of(&entry).has_ended() {
        return Ok(());
    }
    let reason = Some("an MCP client cancelled its task".to_owned());
    sessions.apply(&entry.session, &SessionCommand::Stop { reason }, None).await.map(drop)
}

async fn task(
    sessions: &Sessions,
    session: &SessionId,
    status: TaskStatus,
    words: Option<String>,
) -> Result<Task, SessionError> {
    let entry = sessions.entry(session).await?;
    let updated = entry.digest.updated_at.unwrap_or(entry.created_at);
    let time = |time: Value| time.as_str().unwrap_or_default().to_owned();
    let task = Task::new(session.as_str(), status, time(json!(entry.created_at)), time(json!(updated)));
    let task = task.with_poll_interval_ms(POLL_MS);
    Ok(match words {
        Some(words) => task.with_status_message(words),
        None => task,
    })
}

fn object(value: &Value) -> JsonObject {
    value.as_object().cloned().unwrap_or_default()
}
