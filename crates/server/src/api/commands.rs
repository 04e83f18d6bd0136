//! Commands to a session.

use axum::{Json, extract::State};
use inspan_sessions::{Receipt, SessionCommand};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    App,
    api::ExistingSession,
    problem::Problem,
    route::{Body, Route},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
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
