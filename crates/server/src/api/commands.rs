//! Starting, forking and commanding sessions. A key of the caller gives a new session its id, so that a request which is
//! sent twice starts one session, also if the server was started again in between.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use inspan_protocol::SessionId;
use inspan_sessions::{ForkPoint, Receipt, SessionCommand, StartOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    App,
    api::ExistingSession,
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
        Route::post(
            "/api/v1/sessions/{id}/commands",
            "command",
            "Answers, steers, pauses, resumes or stops a session. Answers once the command took effect.",
            command,
        )
        .body::<Posted>()
        .answers::<Receipt>(200),
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
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Fork {
    /// The event after which, or the node from which on work is not reused; all finished work is reused if absent.
    at: Option<ForkPoint>,
    /// Values of the flow's input that change.
    input: Map<String, Value>,
    /// A text of the caller. Requests with the same key start one session.
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
    let Start { flow, input, options, key } = start;
    Ok(started(app.sessions.start(&flow, &input, options, key.as_deref()).await?))
}

async fn fork(
    State(app): State<App>,
    ExistingSession(session): ExistingSession,
    Body(fork): Body<Fork>,
) -> Result<Response, Problem> {
    let Fork { at, input, key } = fork;
    Ok(started(app.sessions.fork(&session, at.as_ref(), &input, key.as_deref()).await?))
}

/// A command and the caller's key.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Posted {
    command: SessionCommand,
    /// A text of the caller. Requests with the same key are one command.
    #[serde(default)]
    key: Option<String>,
}

async fn command(
    State(app): State<App>,
    ExistingSession(session): ExistingSession,
    Body(posted): Body<Posted>,
) -> Result<Json<Receipt>, Problem> {
    Ok(Json(app.sessions.apply(&session, &posted.command, posted.key.as_deref()).await?))
}
