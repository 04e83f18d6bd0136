//! The service of another protocol in place of the API and the page: at one path, behind the same guard and within the same
//! bounds.

use std::{convert::Infallible, io};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{FromRequest, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::{App, ServerOptions, api, guard, limits, listen, problem::Problem};

/// Serves a service at a path until `end` is cancelled. The service reads bodies that are whole, and decides itself how
/// long an answer takes, within two hours. Beside it there is only `/healthz`.
///
/// # Errors
/// The listener failed for good.
pub async fn serve_at<S>(
    path: &'static str,
    service: S,
    listener: TcpListener,
    options: ServerOptions,
    end: CancellationToken,
) -> io::Result<()>
where
    S: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send,
{
    let app = App::new(options, end.clone());
    let routes = router(&app, path, service);
    listen::accept(listener, app, routes, listen::Bounds::default(), end).await
}

/// The service and the health check, behind the guard.
pub(crate) fn router<S>(app: &App, path: &'static str, service: S) -> Router
where
    S: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send,
{
    let mut routes = Router::new().route_service(path, service).layer(middleware::from_fn(read_body));
    for route in api::routes().into_iter().filter(|route| route.path == guard::HEALTH) {
        routes = routes.route(route.path, route.handler());
    }
    let nothing = async |request: Request| {
        Problem::new("notFound", format!("there is nothing at `{}`", request.uri().path()))
    };
    guard::before(app.clone(), routes.fallback(nothing).with_state(app.clone()), limits::LONG_ANSWER)
}

/// Reads the body before the service sees the request: a client that sends it slowly is not waited for.
async fn read_body(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let whole = Bytes::from_request(Request::from_parts(head.clone(), body), &());
    let problem = match tokio::time::timeout(limits::ANSWER, whole).await {
        Ok(Ok(body)) => return next.run(Request::from_parts(head, Body::from(body))).await,
        Ok(Err(rejection)) if rejection.status() == 413 => Problem::new("tooLarge", rejection.body_text()),
        Ok(Err(rejection)) => Problem::invalid(rejection.body_text()),
        Err(_) => Problem::new("timeout", "the body of the request took too long"),
    };
    problem.into_response()
}
