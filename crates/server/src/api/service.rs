//! Routes about the server itself: whether it runs, its counts, its version, its description, the table of statuses.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use inspan_protocol::NodeStatus;
use inspan_sessions::questions;
use inspan_view::{DisplayStatus, look};
use serde_json::{Value, json};

use crate::{
    App,
    guard::HEALTH,
    metrics::OPENMETRICS,
    openapi,
    problem::{Problem, problem_codes},
    route::Route,
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
    let text = app.metrics.text(app.version, &states, questions(&entries).len());
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
