//! Handshakes with services.

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
            Mock::given(method("GET")).and(path("/v1/models")).and(header).respond_with(answer()).expect(1)
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
