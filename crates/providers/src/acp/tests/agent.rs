//! Small agents in place of real ones, written for the shell.

use inspan_protocol::{Environment, ErrorCode, ExecutionContext, Handshake, Host, Provider};
use serde_json::{Value, json};

use super::super::{AcpInput, AcpOptions, AcpProvider};
use crate::output::TurnOutput;
use crate::program::tests::fake;
pub(super) use crate::program::tests::fake::{Fake, run, wait_until, warnings};
pub(super) use crate::tests::{FinishedTurn, Person};

/// Answers the greeting with these abilities, then opens a session; our next request has the id 3.
pub(super) fn greet(abilities: &str, opened: &str) -> String {
    format!(
        r#"
say() {{ printf '%s\n' "$1"; }}
hear() {{ read -r line && printf '%s\n' "$line" >> received; }}
hear; say '{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":1,"agentCapabilities":{abilities},"authMethods":[]}}}}'
hear; say '{{"jsonrpc":"2.0","id":2,"result":{opened}}}'
"#
    )
}

/// The greeting of a plain agent.
pub(super) fn plain() -> String {
    greet("{}", r#"{"sessionId":"s-1"}"#)
}

/// A text of the answer.
pub(super) const TEXT: &str = r#"'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s-1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"so far"}}}}'"#;
/// The end of the first turn.
pub(super) const END: &str = r#"'{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}'"#;

/// A folder with a program named `agent`.
pub(super) fn agent(script: &str) -> Fake {
    Fake::new("agent", script)
}

/// The methods of what the agent received; an answer has none and shows its id.
pub(super) fn methods(fake: &Fake) -> Vec<String> {
    let name = |line: &Value| line["method"].as_str().map_or_else(|| line["id"].to_string(), str::to_owned);
    fake.received().iter().map(name).collect()
}

/// Options that name the agent.
pub(super) fn options() -> AcpOptions {
    AcpOptions { command: Some("agent".to_owned()), ..AcpOptions::default() }
}

pub(super) fn input(options: AcpOptions) -> AcpInput {
    AcpInput { prompt: Some("go".to_owned()), options: Some(options), ..AcpInput::default() }
}

/// One turn of an agent, whose provider is shut down after it.
pub(super) async fn once(options: AcpOptions, context: ExecutionContext) -> FinishedTurn<TurnOutput> {
    fake::once::<AcpProvider>(options, context).await
}

/// The code, the message and the kind of the error that a script comes to.
pub(super) async fn fault(script: &str, options: AcpOptions) -> (ErrorCode, String, Value) {
    let fake = agent(script);
    fake::parts(once(options, fake.context()).await.1.unwrap_err())
}

#[tokio::test]
async fn servers_that_the_agent_does_not_trust_the_folder_for_are_warned_of() {
    let says = "echo 'Skipping project agents due to untrusted folder.' >&2";
    let servers: AcpOptions =
        serde_json::from_value(json!({ "command": "agent", "mcpServers": { "t": { "command": "t" } } }))
            .unwrap();
    for (script, options, expected) in
        [(says, servers.clone(), &["untrustedFolder"][..]), (says, options(), &[]), ("", servers, &[])]
    {
        let fake = agent(&format!("{script}\n{} hear; say {TEXT}; say {END}; cat", plain()));
        let (events, result) = once(options, fake.context()).await;
        result.unwrap();
        assert_eq!(warnings(&events), expected, "{script}");
    }
}

async fn met(provider: &AcpProvider, pairs: &[(&str, &str)]) -> Result<Handshake, ErrorCode> {
    let env: Environment =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let context = ExecutionContext::new(Host { env, ..Host::default() });
    provider.handshake(context).await.map_err(|error| error.code)
}

#[tokio::test]
async fn an_agent_is_greeted_and_no_session_opened() {
    let folder = tempfile::tempdir().unwrap();
    let met_with = async |script: &str| {
        let program = folder.path().join("agent");
        inspan_testkit::write_program(&program, &format!("#!/bin/sh\n{script}\n")).unwrap();
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
