//! Why a session is as it is, and how two sessions differ.

use axum::{Json, extract::State};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    App,
    api::{ExistingSession, session},
    problem::Problem,
    route::{Query, Route},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/api/v1/sessions/{id}/why",
            "why",
            "Why the session or one of its nodes is as it is, as `inspan why --json` says it.",
            why,
        )
        .query::<About>(),
        Route::get(
            "/api/v1/compare",
            "compare",
            "How two sessions differ, as `inspan compare --json` says it.",
            compare,
        )
        .query::<Two>(),
    ]
}

/// What is explained.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct About {
    /// The path of a node; the session if absent.
    #[serde(default)]
    node: Option<String>,
    /// The newest event that counts; all that there are if absent.
    #[serde(default)]
    at: Option<u64>,
}

async fn why(
    State(app): State<App>,
    ExistingSession(session): ExistingSession,
    Query(about): Query<About>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(json!(app.sessions.why(&session, about.node.as_deref(), about.at).await?)))
}

/// Two sessions.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Two {
    /// One session.
    a: String,
    /// The other one.
    b: String,
}

async fn compare(State(app): State<App>, Query(two): Query<Two>) -> Result<Json<Value>, Problem> {
    let (one, other) = (session(&app, &two.a).await?, session(&app, &two.b).await?);
    Ok(Json(json!(app.sessions.compare(&one, &other).await?)))
}
