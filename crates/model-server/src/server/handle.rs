//! Routes a request to what answers it: a wire format, a fixed answer, or a look at the server itself.
//!
//! Besides the model's paths it serves `GET /__state`, `GET /__requests` and `PUT /__scenario`, for programs
//! that drive the server from outside; those three are not recorded.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use super::send::{respond, send};
use super::shared::{Exchange, Shared};
use crate::anthropic::Anthropic;
use crate::gemini::{self, Method as Asked};
use crate::openai::{self, ChatCompletions, Responses};
use crate::plan::{Headers, Plan, Reply, plan};
use crate::record::{ExchangeState, RecordedRequest, RequestKind, safe_headers, safe_path};
use crate::scenario::Scenario;
use crate::wire::Wire;

/// Above this a request is answered with 413, as the vendor does.
const BODY_LIMIT: usize = 32 * 1024 * 1024;

/// The one model on the list; a request may name any.
const MODEL: &str = "scripted-model";

/// What a path means.
enum Endpoint {
    Model(Box<dyn Wire>),
    /// The answer from the number of tokens that the scenario says.
    CountTokens(fn(u64) -> Value),
    Models,
    OneModel(String),
    Alive,
    Unknown,
}

pub(super) fn app(shared: Arc<Shared>) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Infallible> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_LIMIT).await;
    if parts.uri.path().starts_with("/__") {
        return Ok(inspect(&shared, &parts, &body.unwrap_or_default()));
    }
    let parsed =
        body.as_ref().ok().and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or(Value::Null);
    let (plan, exchange) = match route(&parts.method, parts.uri.path()) {
        Endpoint::Model(wire) if body.is_ok() => ask(&shared, &parts, parsed, &*wire),
        Endpoint::Model(wire) => {
            let message = "Request exceeds the maximum size";
            fixed(&shared, &parts, Value::Null, 413, wire.error_body(413, None, message, "other"))
        }
        Endpoint::CountTokens(answer) => {
            let tokens = shared.change(|inner| inner.script.scenario().count_tokens);
            fixed(&shared, &parts, parsed, 200, answer(tokens).to_string())
        }
        Endpoint::Models => {
            let list = match speaks_openai(&parts.headers) {
                true => openai::models(&[MODEL]),
                false => {
                    json!({ "data": [model(MODEL)], "first_id": MODEL, "last_id": MODEL, "has_more": false })
                }
            };
            fixed(&shared, &parts, parsed, 200, list.to_string())
        }
        Endpoint::OneModel(id) => {
            let model = if speaks_openai(&parts.headers) { openai::model(&id) } else { model(&id) };
            fixed(&shared, &parts, parsed, 200, model.to_string())
        }
        Endpoint::Alive => fixed(&shared, &parts, parsed, 200, String::new()),
        Endpoint::Unknown => {
            let message = format!("no {} {}", parts.method, parts.uri.path());
            let kind = Some("not_found_error");
            let error = match speaks_openai(&parts.headers) {
                true => openai::error_body(404, kind, &message),
                false => Anthropic.error_body(404, kind, &message, "other"),
            };
            fixed(&shared, &parts, parsed, 404, error)
        }
    };
    Ok(send(plan, exchange).await)
}

fn route(method: &Method, path: &str) -> Endpoint {
    match (method.as_str(), path) {
        ("POST", "/v1/messages") => Endpoint::Model(Box::new(Anthropic)),
        ("POST", "/v1/messages/count_tokens") => {
            Endpoint::CountTokens(|tokens| json!({ "input_tokens": tokens }))
        }
        ("POST", "/v1/responses" | "/responses") => Endpoint::Model(Box::new(Responses)),
        ("POST", "/v1/chat/completions" | "/chat/completions") => Endpoint::Model(Box::new(ChatCompletions)),
        ("GET", "/v1/models" | "/models") => Endpoint::Models,
        ("HEAD" | "GET", "/") => Endpoint::Alive,
        ("POST", path) => match gemini::method(path) {
            Some(Asked::Generate(wire)) => Endpoint::Model(Box::new(wire)),
            Some(Asked::CountTokens) => Endpoint::CountTokens(gemini::counted),
            None => Endpoint::Unknown,
        },
        ("GET", path) => match path.strip_prefix("/v1/models/") {
            Some(id) if !id.is_empty() => Endpoint::OneModel(id.to_owned()),
            _ => Endpoint::Unknown,
        },
        _ => Endpoint::Unknown,
    }
}

/// Lets the script answer. Choosing and recording are one step, so that their orders agree.
fn ask(shared: &Arc<Shared>, parts: &Parts, body: Value, wire: &dyn Wire) -> (Plan, Exchange) {
    let view = match wire.view(&body) {
        Ok(view) => view,
        Err(problem) => {
            let error = wire.error_body(400, problem.kind, &problem.message, "other");
            return fixed(shared, parts, body, 400, error);
        }
    };
    let (plan, number) = shared.change(|inner| {
        let choice = inner.script.choose(&view);
        let plan = plan(wire, inner.script.scenario(), &choice.turn, &view, &choice.stem);
        let record = RecordedRequest { kind: choice.kind, turn: Some(choice.place), ..record(parts, body) };
        (plan, inner.history.push(record))
    });
    (plan, Exchange::new(Arc::clone(shared), number))
}

/// Answers with a body that no scenario decides.
fn fixed(shared: &Arc<Shared>, parts: &Parts, body: Value, status: u16, answer: String) -> (Plan, Exchange) {
    let number = shared.change(|inner| inner.history.push(record(parts, body)));
    (
        Plan::at_once(Reply::Whole { status, headers: json_type(), body: answer }),
        Exchange::new(Arc::clone(shared), number),
    )
}

fn record(parts: &Parts, body: Value) -> RecordedRequest {
    RecordedRequest {
        number: 0,
        kind: RequestKind::Other,
        method: parts.method.to_string(),
        path: safe_path(parts.uri.path(), parts.uri.query()),
        headers: safe_headers(&parts.headers),
        body,
        turn: None,
        events_sent: 0,
        ending: ExchangeState::Open,
    }
}

/// On paths that several vendors have: OpenAI's clients send a bearer token and nothing of Anthropic's.
fn speaks_openai(headers: &HeaderMap) -> bool {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    bearer.is_some_and(|value| value.starts_with("Bearer ")) && !headers.contains_key("anthropic-version")
}

fn model(id: &str) -> Value {
    json!({ "type": "model", "id": id, "display_name": "Scripted model", "created_at": "2025-01-01T00:00:00Z" })
}

fn inspect(shared: &Shared, parts: &Parts, body: &Bytes) -> Response {
    match (parts.method.as_str(), parts.uri.path()) {
        ("GET", "/__state") => show(200, &shared.state()),
        ("GET", "/__requests") => show(200, &shared.requests()),
        ("PUT", "/__scenario") => match Scenario::from_json(&String::from_utf8_lossy(body)) {
            Ok(scenario) => {
                shared.replace(scenario);
                show(200, &shared.state())
            }
            Err(error) => show(400, &json!({ "error": error.to_string() })),
        },
        _ => show(404, &json!({ "error": "no such path" })),
    }
}

fn show(status: u16, value: &impl Serialize) -> Response {
    let body = serde_json::to_string(value).unwrap_or_default();
    respond(status, json_type(), Body::from(body))
}

fn json_type() -> Headers {
    [(header::CONTENT_TYPE.to_string(), "application/json".to_owned())].into()
}
