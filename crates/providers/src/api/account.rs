//! The account that a service is called with: its address and its key. The list of models is the free request by which a
//! service says whether it accepts the key.

use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ErrorCode, ExecutionContext, Handshake, Redactor};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use tokio::time::Instant;

use super::Api;
use super::stream::ResponseDecoder;
use inspan_transport::{Broken, Clocks, Http, Request};

/// How long the service may send nothing during the handshake.
const STALL: Duration = Duration::from_secs(10);

/// Where and as whom a request is sent.
pub(crate) struct Account {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
}

impl Account {
    /// The account of an environment.
    pub(crate) fn of<A: Api>(environment: &Environment) -> Result<Self, AgentError> {
        let mut headers = A::headers(environment)?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        Ok(Self { url: A::ADDRESS.url(environment, A::ADDRESS.path)?, headers })
    }
}

/// Where a service is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The variable that names another base address.
    pub(crate) variable: &'static str,
    /// The base address without it.
    pub(crate) default: &'static str,
    /// Where responses are requested.
    pub(crate) path: &'static str,
    /// The list of models.
    pub(crate) models: &'static str,
}

impl Address {
    /// The address of one of its paths.
    pub(crate) fn url(&self, environment: &Environment, path: &str) -> Result<Url, AgentError> {
        let base = environment.get(self.variable).unwrap_or(self.default).trim().trim_end_matches('/');
        let url =
            Url::parse(&format!("{base}/{path}")).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        url.ok_or_else(|| {
            let message = format!("{} is not an address that begins with http:// or https://", self.variable);
            AgentError::new(ErrorCode::ConfigInvalid, message)
        })
    }
}

/// The error for an environment without a key.
pub(crate) fn no_key(variable: &str) -> AgentError {
    AgentError::new(ErrorCode::ConfigMissing, format!("no API key; set {variable} in the environment"))
}

/// Requests the list of models. Errors hold no secret.
pub(super) async fn handshake<A: Api>(
    http: &Http,
    context: &ExecutionContext,
) -> Result<Handshake, AgentError> {
    let redactor = Redactor::new(&context.host.env);
    let greeted = request_models::<A>(http, context).await;
    greeted.map(|()| Handshake::Vendor).map_err(|broken| match broken {
        Broken::Cancelled => AgentError::new(ErrorCode::Aborted, "the service did not answer in time"),
        Broken::Failed(error) => AgentError { message: redactor.text(&error.message), ..error },
    })
}

async fn request_models<A: Api>(http: &Http, context: &ExecutionContext) -> Result<(), Broken> {
    let mut headers = A::headers(&context.host.env)?;
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let url = A::ADDRESS.url(&context.host.env, A::ADDRESS.models)?;
    let clocks = Clocks {
        cancel: context.cancel.clone(),
        began: Instant::now(),
        deadline: context.deadline,
        stall: STALL,
    };
    let request = Request { method: Method::GET, url, headers, body: Vec::new() };
    let response = http.send(request, &context.host.env, clocks).await?;
    let (status, headers) = (response.status(), response.headers().clone());
    // A gateway need not have the list, and has checked the key before it says so.
    if status.is_success() || matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
        return Ok(());
    }
    let body = response.error_body().await?;
    Err(A::Decoder::response_error(status, &headers, &body).into())
}

#[cfg(test)]
mod tests {
    use inspan_protocol::{Environment, Host, Provider};
    use wiremock::matchers::{header, method, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::{AnthropicProvider, OpenAiProvider};

    const KEY: &str = "sk-planted-4711";

    fn context(pairs: &[(&str, &str)]) -> ExecutionContext {
        let env: Environment =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ExecutionContext::new(Host { env, ..Host::default() })
    }

    async fn met(provider: &impl Provider, pairs: &[(&str, &str)]) -> Result<Handshake, ErrorCode> {
        provider.handshake(context(pairs)).await.map_err(|error| {
            assert!(!error.message.contains(KEY), "{error}");
            error.code
        })
    }

    #[tokio::test]
    async fn a_service_is_asked_for_its_models_with_the_key() {
        let rows = [
            (200, Ok(Handshake::Vendor)),
            (404, Ok(Handshake::Vendor)),
            (401, Err(ErrorCode::Auth)),
            (429, Err(ErrorCode::RateLimited)),
        ];
        for (status, expected) in rows {
            let server = MockServer::start().await;
            let returned = serde_json::json!({ "error": { "type": "x", "message": format!("not {KEY}") } });
            let answer = || ResponseTemplate::new(status).set_body_json(&returned);
            let asked = |header: wiremock::matchers::HeaderExactMatcher| {
                Mock::given(method("GET"))
                    .and(path("/v1/models"))
                    .and(header)
                    .respond_with(answer())
                    .expect(1)
            };
            server.register(asked(header("x-api-key", KEY))).await;
            let environment = [("ANTHROPIC_API_KEY", KEY), ("ANTHROPIC_BASE_URL", &server.uri())];
            assert_eq!(met(&AnthropicProvider::new(), &environment).await, expected, "anthropic {status}");
            server.reset().await;
            server.register(asked(header("authorization", format!("Bearer {KEY}").as_str()))).await;
            let address = format!("{}/v1", server.uri());
            let environment = [("OPENAI_API_KEY", KEY), ("OPENAI_BASE_URL", &address)];
            assert_eq!(met(&OpenAiProvider::new(), &environment).await, expected, "openai {status}");
        }
        assert_eq!(met(&OpenAiProvider::new(), &[]).await, Err(ErrorCode::ConfigMissing));
        let nobody = [("OPENAI_API_KEY", KEY), ("OPENAI_BASE_URL", "http://127.0.0.1:1")];
        assert_eq!(met(&OpenAiProvider::new(), &nobody).await, Err(ErrorCode::Network));
    }
}
