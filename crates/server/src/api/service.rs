//! Routes about the server itself: whether it runs, its counts, its version, its description, the table of statuses; and
//! the exchange of its token for a cookie that scripts of a page cannot read.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, SET_COOKIE},
    },
    response::{IntoResponse, Response},
};
use inspan_protocol::NodeStatus;
use inspan_sessions::questions;
use inspan_view::{DisplayStatus, look};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    App,
    guard::{HEALTH, LOGIN},
    limits,
    metrics::OPENMETRICS,
    openapi,
    problem::{Problem, problem_codes},
    route::{Body, Route},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(HEALTH, "health", "Whether the server runs.", health).media(200, &["text/plain"]),
        Route::get("/metrics", "metrics", "Counts of the server and its sessions.", metrics)
            .media(200, &["application/openmetrics-text"]),
        Route::get(
            "/api/v1/meta",
            "meta",
            "The version of the program, and the tables that pages need.",
            meta,
        ),
        Route::get("/api/v1/openapi.json", "openapi", "This document.", document),
        Route::post(LOGIN, "login", "Exchanges the token for a cookie.", login)
            .body::<Login>()
            .at_most(limits::LOGIN)
            .media(204, &[]),
        Route::post("/api/v1/logout", "logout", "Takes the cookie away.", logout).media(204, &[]),
    ]
}

async fn health() -> &'static str {
    "ok\n"
}

async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let entries = app.sessions.list(usize::MAX).await?;
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in &entries {
        *states.entry(DisplayStatus::of(entry).word()).or_default() += 1;
    }
    let states: Vec<_> = states.into_iter().collect();
    let text = app.metrics.text(app.version, &states, questions(&entries, app.sessions.clock().now()).len());
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text).into_response())
}

async fn meta(State(app): State<App>) -> Json<Value> {
    let codes = problem_codes()
        .into_iter()
        .map(|(code, status, meaning)| json!({ "code": code, "status": status, "meaning": meaning }));
    Json(json!({
        "version": app.version,
        "statuses": node_statuses(),
        "sessionStatuses": session_statuses(),
        "address": app.address,
        "problems": codes.collect::<Vec<_>>(),
    }))
}

/// The table of statuses: how each looks, the same in the console and on the page.
pub(crate) fn node_statuses() -> Value {
    let all = [
        NodeStatus::Pending,
        NodeStatus::Running,
        NodeStatus::Complete,
        NodeStatus::Failed,
        NodeStatus::Skipped,
        NodeStatus::Reused,
        NodeStatus::Cancelled,
        NodeStatus::Paused,
        NodeStatus::Interrupted,
        NodeStatus::Waiting,
    ];
    let rows = all.map(|status| {
        let ((tone, glyph), word) = (look::sign(status), look::word(status));
        (word.to_owned(), json!({ "glyph": glyph, "tone": tone.word(), "label": word }))
    });
    Value::Object(rows.into_iter().collect())
}

pub(crate) fn session_statuses() -> Value {
    let rows = DisplayStatus::ALL.map(|status| {
        let (glyph, tone) = (status.sign(), status.tone().word());
        (status.word().to_owned(), json!({ "glyph": glyph, "tone": tone, "label": status.label() }))
    });
    Value::Object(rows.into_iter().collect())
}

async fn document() -> Json<Value> {
    Json(openapi::document())
}

/// The token of the address that `inspan serve` prints.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Login {
    token: String,
}

async fn login(
    State(app): State<App>,
    headers: HeaderMap,
    Body(given): Body<Login>,
) -> Result<Response, Problem> {
    if !app.guard.lets_in(&given.token) {
        return Err(Problem::new("tokenMissing", "this is not the token of this server")
            .with_hint("open the address that `inspan serve` prints"));
    }
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, app.guard.set_cookie(&headers))]).into_response())
}

async fn logout(State(app): State<App>) -> Response {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, app.guard.forget_cookie())]).into_response()
}
