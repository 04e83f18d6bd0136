//! Starting and forking sessions. A key of the caller gives the new session its id, so that a request which is sent
//! twice starts one session, also if the server was started again in between.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use inspan_flow::{SessionRecord, check_input};
use inspan_protocol::SessionId;
use inspan_sessions::{ForkOptions, ForkPoint, SessionErrorCode, StartOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    App,
    api::Found,
    problem::Problem,
    route::{Body, Route},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/sessions", "start", "Starts a session of a registered flow.", start)
            .body::<Start>()
            .answers::<Started>(201),
        Route::post(
            "/api/v1/sessions/{id}/fork",
            "fork",
            "Starts a session from a point of this one; finished work is reused.",
            fork,
        )
        .body::<Fork>()
        .answers::<Started>(201),
    ]
}

/// The session to start.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Start {
    /// The id of a flow in `/flows`, or the path of its file.
    flow: String,
    /// The flow's input.
    #[serde(default)]
    input: Map<String, Value>,
    /// How it is run.
    #[serde(default)]
    options: StartOptions,
    /// A text of the caller. Requests with the same key start one session.
    #[serde(default)]
    key: Option<String>,
}

/// The session to fork.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fork {
    /// The event after which, or the node from which on work is not reused; all finished work is reused if absent.
    #[serde(default)]
    at: Option<ForkPoint>,
    /// Values of the flow's input that change.
    #[serde(default)]
    input: Map<String, Value>,
    /// A text of the caller. Requests with the same key start one session.
    #[serde(default)]
    key: Option<String>,
}

/// The new session.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Started {
    session_id: SessionId,
    /// Where it is in this API.
    url: String,
}

fn started(session_id: SessionId) -> Response {
    let url = format!("/api/v1/sessions/{session_id}");
    (StatusCode::CREATED, [(LOCATION, url.clone())], Json(Started { session_id, url })).into_response()
}

async fn start(State(app): State<App>, Body(start): Body<Start>) -> Result<Response, Problem> {
    let Start { flow, input, mut options, key } = start;
    let id = match (&options.session_id, key) {
        (Some(_), Some(_)) => return Err(Problem::invalid("give `key` or `options.sessionId`, not both")),
        (None, Some(key)) => Some(inspan_sessions::session_of_key(&key)?),
        (_, None) => None,
    };
    if let Some(id) = id {
        // The record says whether this is the same request once more.
        let is_same = |record: &SessionRecord| {
            let graph = app.sessions.graph(record).ok();
            // The record has the defaults of the flow too.
            let whole = graph.and_then(|graph| check_input(&graph, input.clone()).ok());
            whole.is_some_and(|whole| whole == record.input)
        };
        if let Some(answer) = repeated(&app, &id, is_same).await? {
            return answer;
        }
        options.session_id = Some(id);
    }
    Ok(started(app.sessions.launcher().start(&flow, &input, &options).await?))
}

async fn fork(
    State(app): State<App>,
    Found(session): Found,
    Body(fork): Body<Fork>,
) -> Result<Response, Problem> {
    let id = fork.key.as_deref().map(inspan_sessions::session_of_key).transpose()?;
    if let Some(id) = &id {
        let is_same =
            |record: &SessionRecord| record.parent.as_ref().is_some_and(|parent| parent.session == session);
        if let Some(answer) = repeated(&app, id, is_same).await? {
            return answer;
        }
    }
    let options = ForkOptions { session_id: id };
    let launcher = app.sessions.launcher();
    Ok(started(launcher.fork(&session, fork.at.as_ref(), &fork.input, &options).await?))
}

/// The answer to a request whose key was used before: the session that it started, if it was the same request.
async fn repeated(
    app: &App,
    id: &SessionId,
    is_same: impl FnOnce(&SessionRecord) -> bool,
) -> Result<Option<Result<Response, Problem>>, Problem> {
    match app.sessions.record(id).await {
        Ok(record) if is_same(&record) => Ok(Some(Ok(started(id.clone())))),
        Ok(_) => Ok(Some(Err(Problem::new("keyReused", "the key was used for another request before")))),
        Err(error) if error.code == SessionErrorCode::UnknownSession => Ok(None),
        Err(error) => Err(error.into()),
    }
}
