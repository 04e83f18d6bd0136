//! Small agents in place of real ones, written for the shell, and what is needed around them.
//! What they do wrong is left to the tests.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, Environment, ErrorCode, ExecutionContext, Handshake, PermissionBroker, PermissionDecision,
    PermissionRequest, Provider, ProviderItem, StreamEvent,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::{AcpInput, AcpOptions, AcpProvider};
use crate::output::TurnOutput;

/// Answers the greeting with these abilities, then opens a session; our next request has the id 3.
pub(super) fn greet(abilities: &str, opened: &str) -> String {
    format!(
        r#"
say() {{ printf '%s\n' "$1"; }}
hear() {{ read -r line && printf '%s\n' "$line" >> heard; }}
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
pub(super) struct Fake {
    folder: TempDir,
}

impl Fake {
    pub(super) fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A file that is open for writing anywhere cannot be run, and whatever another test starts meanwhile would
        // hold ours open for a moment. So a process of its own writes it.
        let write = std::process::Command::new("/bin/sh")
            .args([
                "-c",
                "printf '#!/bin/sh\n%s\n' \"$1\" > agent; chmod 755 agent; mkdir work",
                "sh",
                script,
            ])
            .current_dir(folder.path())
            .status();
        assert!(write.unwrap().success());
        Self { folder }
    }

    /// The folder that the agent works in.
    pub(super) fn work(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("work")
    }

    /// The folder around it.
    pub(super) fn outside(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    pub(super) fn context(&self) -> ExecutionContext {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.folder.path().display());
        let env = [("PATH", path.as_str()), ("MY_TOKEN", "planted-secret")];
        let env: Environment =
            env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        ExecutionContext { env, cwd: Some(self.work()), ..ExecutionContext::default() }
    }

    pub(super) fn asking(&self, broker: impl PermissionBroker + 'static) -> ExecutionContext {
        ExecutionContext { permissions: Some(Arc::new(broker)), ..self.context() }
    }

    /// The lines of a file that the agent writes in its folder.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.work().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// What the agent was told.
    pub(super) fn heard(&self) -> Vec<Value> {
        self.lines("heard").iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The methods of what the agent was told; an answer has none and shows its id.
    pub(super) fn methods(&self) -> Vec<String> {
        let name =
            |line: &Value| line["method"].as_str().map_or_else(|| line["id"].to_string(), str::to_owned);
        self.heard().iter().map(name).collect()
    }

    /// The numbers of the processes that wrote theirs to `pids`.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.lines("pids").iter().map(|line| line.parse().unwrap()).collect()
    }

    /// How many of them run.
    pub(super) fn running(&self) -> usize {
        self.pids().into_iter().filter(|pid| runs(*pid)).count()
    }
}

pub(super) fn runs(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// Options that name the agent.
pub(super) fn options() -> AcpOptions {
    AcpOptions { command: Some("agent".to_owned()), ..AcpOptions::default() }
}

pub(super) fn input(options: AcpOptions) -> AcpInput {
    AcpInput { prompt: Some("go".to_owned()), options: Some(options), ..AcpInput::default() }
}

type Turn = (Vec<StreamEvent>, Result<TurnOutput, AgentError>);

pub(super) async fn run(provider: &AcpProvider, options: AcpOptions, context: ExecutionContext) -> Turn {
    let mut stream = provider.execute(input(options), context);
    let mut events = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(ProviderItem::Event(event)) => events.push(event),
            Ok(ProviderItem::Output(output)) => return (events, Ok(output)),
            Err(error) => return (events, Err(error)),
        }
    }
    panic!("the stream ended without an output or an error");
}

/// One turn of an agent, whose provider is shut down after it.
pub(super) async fn once(options: AcpOptions, context: ExecutionContext) -> Turn {
    let provider = AcpProvider::new();
    let turn = run(&provider, options, context).await;
    provider.shutdown().await;
    turn
}

/// The code, the message and the kind of the error that a script comes to.
pub(super) async fn fault(script: &str, options: AcpOptions) -> (ErrorCode, String, Value) {
    let fake = Fake::new(script);
    let error = once(options, fake.context()).await.1.unwrap_err();
    assert!(!serde_json::to_string(&error).unwrap().contains("planted"), "{error:?}");
    let kind = error.detail.map_or(Value::Null, |detail| detail["kind"].clone());
    (error.code, error.message, kind)
}

/// The codes of the warnings among events.
pub(super) fn warnings(events: &[StreamEvent]) -> Vec<&str> {
    let codes = events.iter().filter_map(|event| match event {
        StreamEvent::Warning { code, .. } => Some(code.as_str()),
        _ => None,
    });
    codes.collect()
}

pub(super) async fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "it never came to that");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Answers every question so, and keeps it.
#[derive(Clone)]
pub(super) struct Person {
    pub(super) says: PermissionDecision,
    pub(super) asked: Arc<Mutex<Vec<PermissionRequest>>>,
}

impl Person {
    pub(super) fn says(says: PermissionDecision) -> Self {
        Self { says, asked: Arc::default() }
    }

    pub(super) fn allows() -> Self {
        Self::says(PermissionDecision::Allow { updated_input: None })
    }

    pub(super) fn asked(&self) -> Vec<PermissionRequest> {
        self.asked.lock().unwrap().clone()
    }
}

impl PermissionBroker for Person {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        self.asked.lock().unwrap().push(request);
        Box::pin(std::future::ready(self.says.clone()))
    }
}

/// Never answers.
pub(super) struct Never;

impl PermissionBroker for Never {
    fn request(&self, _: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        Box::pin(std::future::pending())
    }
}

async fn met(provider: &AcpProvider, pairs: &[(&str, &str)]) -> Result<Handshake, ErrorCode> {
    let env: Environment =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let context = ExecutionContext { env, ..ExecutionContext::default() };
    provider.handshake(context).await.map_err(|error| error.code)
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
