//! Handshakes of services and of a small agent in the place of a real one.

use std::os::unix::fs::PermissionsExt;

use inspan_protocol::{Environment, Provider};
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::{AcpProvider, AnthropicProvider, OpenAiProvider};

const KEY: &str = "sk-planted-4711";

fn context(pairs: &[(&str, &str)]) -> ExecutionContext {
    let env: Environment =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ExecutionContext { env, ..ExecutionContext::default() }
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
        let said = serde_json::json!({ "error": { "type": "x", "message": format!("not {KEY}") } });
        let answer = || ResponseTemplate::new(status).set_body_json(&said);
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

#[tokio::test]
async fn an_agent_is_greeted_and_no_session_opened() {
    let folder = tempfile::tempdir().unwrap();
    let met_with = async |script: &str| {
        let program = folder.path().join("agent");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let home = folder.path().display().to_string();
        let program = program.display().to_string();
        let environment = [("INSPAN_GEMINI", program.as_str()), ("HOME", &home), ("PATH", "/usr/bin:/bin")];
        met(&AcpProvider::gemini(), &environment).await
    };
    let says = |version: u32| {
        format!(r#"read hello; echo '{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":{version}}}}}'"#)
    };
    // Whatever else it is asked ends it with a failure.
    assert_eq!(met_with(&format!("{}; read more && exit 3", says(1))).await, Ok(Handshake::Vendor));
    assert_eq!(met_with(&says(7)).await, Err(ErrorCode::Protocol));
    assert_eq!(met_with("exit 9").await, Err(ErrorCode::Process));
    assert_eq!(met(&AcpProvider::new(), &[]).await, Ok(Handshake::Nobody));
}
