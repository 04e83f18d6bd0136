//! The exchange of the token for a cookie that scripts of a page cannot read.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header::SET_COOKIE},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    App,
    guard::LOGIN,
    limits,
    problem::Problem,
    route::{Body, Route},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post(LOGIN, "login", "Exchanges the token for a cookie.", login)
            .body::<Login>()
            .at_most(limits::LOGIN)
            .media(204, &[]),
        Route::post("/api/v1/logout", "logout", "Takes the cookie away.", logout).media(204, &[]),
    ]
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
    if !app.guard.token().is(&given.token) {
        return Err(Problem::new("tokenMissing", "this is not the token of this server")
            .with_hint("open the address that `inspan serve` prints"));
    }
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, app.guard.set_cookie(&headers))]).into_response())
}

async fn logout(State(app): State<App>) -> Response {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, app.guard.forget_cookie())]).into_response()
}
