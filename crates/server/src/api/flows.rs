//! The flows of the registered folders.

use axum::{
    Json,
    extract::{Path, State},
};
use inspan_flow::Graph;
use inspan_sessions::{Counted, RegisteredFlow, SessionError, SessionErrorCode};
use inspan_view::{DisplayStatus, Drawing, entry};
use serde_json::{Value, json};

use crate::{App, problem::Problem, route::Route, watch::placed};

/// The newest sessions of a flow that its history shows.
const HISTORY: usize = 50;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/flows", "flows", "The flows of the registered folders.", flows)
            .answers::<Vec<Value>>(200),
        Route::get(
            "/api/v1/flows/{id}",
            "flow",
            "One flow: the JSON Schema of its input, and its newest sessions with their cost and time.",
            one,
        ),
        Route::get(
            "/api/v1/flows/{id}/graph",
            "flowGraph",
            "The nodes and edges of a flow, and the place of each in the drawing.",
            drawing,
        )
        .answers::<Drawing>(200),
    ]
}

async fn drawing(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Drawing>, Problem> {
    let flow = flow(&app, &id).await?;
    let Some(graph) = flow.graph else {
        let message = format!("the flow `{id}` has problems, and no graph");
        return Err(Problem::new("invalidFlow", message));
    };
    Ok(Json(Drawing::clone(&*placed(&graph).await)))
}

async fn flows(State(app): State<App>) -> Result<Json<Vec<Value>>, Problem> {
    Ok(Json(app.sessions.launcher().flows().await?.iter().map(summary).collect()))
}

/// The registered flow of this id.
pub(crate) async fn flow(app: &App, id: &str) -> Result<RegisteredFlow, SessionError> {
    let flows = app.sessions.launcher().flows().await?;
    flows.into_iter().find(|flow| flow.id == id).ok_or_else(|| {
        SessionError::new(SessionErrorCode::UnknownFlow, format!("no registered flow is called `{id}`"))
            .with_hint("`/api/v1/flows` lists them; `inspan serve --flows DIR` registers a folder")
    })
}

fn summary(flow: &RegisteredFlow) -> Value {
    entry::without_nulls(json!({
        "id": flow.id,
        "name": flow.name,
        "file": flow.file,
        "runs": flow.graph.is_some(),
        "description": flow.description,
        "problems": Some(&flow.diagnostics).filter(|problems| !problems.is_empty()),
    }))
}

async fn one(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let flow = flow(&app, &id).await?;
    let mut value = summary(&flow);
    value["input"] = flow.input.clone();
    value["history"] = match &flow.graph {
        Some(graph) => history(&app, graph).await?,
        None => json!([]),
    };
    Ok(Json(value))
}

async fn history(app: &App, graph: &Graph) -> Result<Value, Problem> {
    let mut rows = Vec::new();
    for (stored, _) in app.sessions.of_flow(graph, Counted::All, HISTORY).await? {
        rows.push(entry::without_nulls(json!({
            "sessionId": stored.session,
            "state": DisplayStatus::of(&stored).word(),
            "createdAt": stored.created_at,
            "costUsd": stored.known_cost(),
            "durationMs": stored.digest.took_ms(),
        })));
    }
    Ok(rows.into())
}
