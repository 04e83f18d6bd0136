//! The table of routes, and what handlers share.

use axum::{
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use inspan_protocol::SessionId;
use inspan_sessions::SessionError;

use crate::{App, asset, page::preloads, problem::Problem, route::Route};

mod commands;
mod compare;
mod events;
mod flows;
mod lists;
pub(crate) mod service;
mod state;

/// Every route. The router and the OpenAPI document are made of these rows.
pub(crate) fn routes() -> Vec<Route> {
    [
        service::routes(),
        lists::routes(),
        commands::routes(),
        state::routes(),
        events::routes(),
        compare::routes(),
        flows::routes(),
        crate::ws::routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The id of the session in a path; the beginning of one is enough.
pub(crate) async fn session(app: &App, named: &str) -> Result<SessionId, SessionError> {
    Ok(app.sessions.find(named).await?.session)
}

/// What no route answers: a file of the page, or nothing.
pub(crate) async fn not_found(State(_): State<App>, request: Request) -> Response {
    let path = request.uri().path();
    let Some(file) = asset(path) else {
        return Problem::new("notFound", format!("there is nothing at `{path}`")).into_response();
    };
    if !matches!(request.method().as_str(), "GET" | "HEAD") {
        return crate::problem::method_not_allowed().await.into_response();
    }
    let known = request.headers().get(header::IF_NONE_MATCH).and_then(|tag| tag.to_str().ok());
    let is_known = known.is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == file.etag));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => file.bytes.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    // A newer program has newer files under the same names.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if path == "/"
        && let Ok(links) = HeaderValue::from_str(&preloads())
    {
        headers.insert(header::LINK, links);
    }
    if let Ok(tag) = HeaderValue::from_str(&file.etag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// The session of a path, found.
pub(crate) struct ExistingSession(pub(crate) SessionId);

impl axum::extract::FromRequestParts<App> for ExistingSession {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, app: &App) -> Result<Self, Problem> {
        let named = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        Ok(Self(session(app, &named).await?))
    }
}
