//! A route: what it answers, and what the OpenAPI document says of it. The router and the document are made of the same
//! rows.

use axum::{
    Json,
    extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, rejection::JsonRejection},
    handler::Handler,
    http::{Method, request::Parts},
    middleware::{Next, from_fn},
    response::Response,
    routing::{MethodFilter, MethodRouter, on},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{App, problem::Problem};

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// One row of the table.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    /// The name of the operation.
    pub(crate) name: &'static str,
    /// What it does, in one sentence.
    pub(crate) about: &'static str,
    pub(crate) query: Option<MakeSchema>,
    pub(crate) body: Option<MakeSchema>,
    pub(crate) answer: RouteAnswer,
    handler: MethodRouter<App>,
}

/// What a route answers when all is well.
#[derive(Clone, Copy)]
pub(crate) struct RouteAnswer {
    pub(crate) status: u16,
    /// The media types, the first by default.
    pub(crate) media: &'static [&'static str],
    pub(crate) schema: Option<MakeSchema>,
}

impl Route {
    /// A route that reads. It answers JSON unless another answer is set.
    pub(crate) fn get<H: Handler<T, App>, T: 'static>(
        path: &'static str,
        name: &'static str,
        about: &'static str,
        handler: H,
    ) -> Self {
        Self::new(Method::GET, MethodFilter::GET, path, name, about, handler)
    }

    /// A route that changes something.
    pub(crate) fn post<H: Handler<T, App>, T: 'static>(
        path: &'static str,
        name: &'static str,
        about: &'static str,
        handler: H,
    ) -> Self {
        Self::new(Method::POST, MethodFilter::POST, path, name, about, handler)
    }

    fn new<H: Handler<T, App>, T: 'static>(
        method: Method,
        filter: MethodFilter,
        path: &'static str,
        name: &'static str,
        about: &'static str,
        handler: H,
    ) -> Self {
        let answer = RouteAnswer { status: 200, media: &["application/json"], schema: None };
        Self { method, path, name, about, query: None, body: None, answer, handler: on(filter, handler) }
    }

    /// With the type of its query.
    pub(crate) fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(|generator| generator.subschema_for::<T>());
        self
    }

    /// With the type of its body.
    pub(crate) fn body<T: JsonSchema>(mut self) -> Self {
        self.body = Some(|generator| generator.subschema_for::<T>());
        self
    }

    /// With at most so many bytes of a body.
    pub(crate) fn at_most(mut self, bytes: usize) -> Self {
        self.handler = self.handler.layer(DefaultBodyLimit::max(bytes));
        self
    }

    /// With the type of its answer.
    pub(crate) fn answers<T: JsonSchema>(mut self, status: u16) -> Self {
        self.answer.status = status;
        self.answer.schema = Some(|generator| generator.subschema_for::<T>());
        self
    }

    /// What answers it. A part of the API that takes no parameters refuses them all.
    pub(crate) fn handler(self) -> MethodRouter<App> {
        match self.query {
            None if self.path.starts_with("/api/") => self.handler.layer(from_fn(without_query)),
            _ => self.handler,
        }
    }

    /// With another answer than JSON.
    pub(crate) fn media(mut self, status: u16, media: &'static [&'static str]) -> Self {
        self.answer = RouteAnswer { status, media, schema: None };
        self
    }
}

/// The query of a part that takes no parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

async fn without_query(_: Query<NoParameters>, request: Request, next: Next) -> Response {
    next.run(request).await
}

/// The body of a request as JSON; what does not fit is a problem document that names the key.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        match Json::from_request(request, app).await {
            Ok(Json(body @ Value::Object(_))) => serde_json::from_value(body)
                .map(Self)
                .map_err(|error| Problem::invalid(inspan_protocol::plain_words(&error.to_string()))),
            // A list would be read as the fields in their order.
            Ok(Json(_)) => Err(Problem::invalid("the body must be a JSON object")),
            Err(JsonRejection::BytesRejection(rejection)) if rejection.status() == 413 => {
                Err(Problem::new("tooLarge", rejection.body_text()))
            }
            Err(rejection) => Err(Problem::invalid(inspan_protocol::plain_words(&rejection.body_text()))),
        }
    }
}

/// The query of a request; what does not fit is a problem document that names the key.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(Problem::invalid(inspan_protocol::plain_words(&rejection.body_text()))),
        }
    }
}
