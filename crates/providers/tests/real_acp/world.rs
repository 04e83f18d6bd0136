//! What a test of real agents needs around it: a model server, a home of its own, and a look at what runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, Environment, ExecutionContext, PermissionBroker, PermissionDecision, PermissionRequest,
    Provider, ProviderItem, StreamEvent,
};
use inspan_providers::{AcpInput, AcpOptions, AcpProvider, TurnOutput};
use inspan_testkit::{ModelServer, RequestKind, Scenario};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

/// One server and one home.
pub(crate) struct World {
    server: ModelServer,
    home: TempDir,
}

/// A person who says yes.
pub(crate) struct Willing;

impl PermissionBroker for Willing {
    fn request(&self, _: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        Box::pin(std::future::ready(PermissionDecision::Allow { updated_input: None }))
    }
}

/// An agent under test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Agent {
    Claude,
    OpenCode,
}

pub(crate) const AGENTS: [Agent; 2] = [Agent::Claude, Agent::OpenCode];

#[expect(clippy::disallowed_methods, reason = "the programs to test are named from outside")]
fn named(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} names a program to test"))
}

impl World {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("proj")).unwrap();
        Self { server: ModelServer::start(scenario).unwrap(), home }
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn context(&self) -> ExecutionContext {
        let home = self.home.path().display().to_string();
        let env: Environment = [
            ("PATH", named("PATH")),
            ("HOME", home.clone()),
            ("TMPDIR", home.clone()),
            ("XDG_DATA_HOME", format!("{home}/xdg")),
            ("CLAUDE_CONFIG_DIR", format!("{home}/config")),
            ("CLAUDE_CODE_EXECUTABLE", named("INSPAN_E2E_CLAUDE")),
            ("ANTHROPIC_BASE_URL", self.server.base_url()),
            ("ANTHROPIC_API_KEY", "planted-secret-key".to_owned()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("OPENAI_API_KEY", "planted-secret-key".to_owned()),
            ("ACP_TEST_MARK", home),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let permissions: Option<Arc<dyn PermissionBroker>> = Some(Arc::new(Willing));
        ExecutionContext { env, cwd: Some(self.folder("proj")), permissions, ..ExecutionContext::default() }
    }

    /// The options by which an agent is run.
    pub(crate) fn options(&self, agent: Agent) -> AcpOptions {
        let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
        match agent {
            Agent::Claude => AcpOptions {
                command: Some(named("INSPAN_E2E_CLAUDE_ACP")),
                pass_env: words(&["ANTHROPIC_*", "CLAUDE_*"]),
                ..AcpOptions::default()
            },
            Agent::OpenCode => {
                let quiet =
                    ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "CLAUDE_CODE"];
                let mut env: BTreeMap<String, String> =
                    quiet.map(|what| (format!("OPENCODE_DISABLE_{what}"), "1".to_owned())).into();
                env.insert("OPENCODE_CONFIG_CONTENT".to_owned(), self.opencode().to_string());
                AcpOptions {
                    command: Some(named("INSPAN_E2E_OPENCODE")),
                    args: words(&["acp"]),
                    pass_env: words(&["OPENAI_API_KEY"]),
                    env: Some(env),
                    ..AcpOptions::default()
                }
            }
        }
    }

    fn opencode(&self) -> Value {
        let model = json!({
            "name": "Scripted",
            "limit": { "context": 200_000, "output": 8192 },
            "cost": { "input": 3, "output": 15 },
            "tool_call": true,
            "reasoning": true,
        });
        json!({
            "model": "scripted/one", "small_model": "scripted/one", "autoupdate": false, "share": "disabled",
            "snapshot": false, "compaction": { "auto": false }, "enabled_providers": ["scripted"],
            "permission": { "bash": "ask", "edit": "ask" },
            "provider": { "scripted": {
                "npm": "@ai-sdk/openai-compatible", "name": "scripted",
                "options": { "baseURL": format!("{}/v1", self.server.base_url()), "apiKey": "{env:OPENAI_API_KEY}" },
                "models": { "one": model.clone(), "two": model },
            } },
        })
    }

    /// The bodies of the model's requests so far.
    pub(crate) fn main_requests(&self) -> Vec<Value> {
        let requests = self.server.requests().into_iter();
        requests.filter(|request| request.kind == RequestKind::Main).map(|request| request.body).collect()
    }

    /// The processes of this world, those that a shell of the agent runs included.
    pub(crate) fn running(&self) -> Vec<(u32, String)> {
        let mark = format!("ACP_TEST_MARK={}", self.home.path().display());
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter_map(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            environment.split(|byte| *byte == 0).find(|variable| *variable == mark.as_bytes())?;
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some((pid, String::from_utf8_lossy(&command).replace('\0', " ")))
        })
        .collect()
    }

    /// Waits until a command with this in it runs.
    pub(crate) async fn wait_for(&self, part: &str) {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.running().iter().any(|(_, command)| command.contains(part)) {
            assert!(Instant::now() < until, "no `{part}` came to run: {:?}", self.running());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the provider, and sees that nothing is left.
    pub(crate) async fn end(&self, provider: &AcpProvider) {
        provider.shutdown().await;
        let until = Instant::now() + Duration::from_secs(5);
        while !self.running().is_empty() {
            assert!(Instant::now() < until, "still there: {:?}", self.running());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) type Turn = (Vec<StreamEvent>, Result<TurnOutput, AgentError>);

pub(crate) async fn run(
    provider: &AcpProvider,
    prompt: &str,
    options: AcpOptions,
    context: ExecutionContext,
) -> Turn {
    let input = AcpInput { prompt: Some(prompt.to_owned()), options: Some(options), ..AcpInput::default() };
    let mut events = Vec::new();
    let mut stream = provider.execute(input, context);
    while let Some(item) = stream.next().await {
        match item {
            Ok(ProviderItem::Event(event)) => events.push(event),
            Ok(ProviderItem::Output(output)) => return (events, Ok(output)),
            Err(error) => return (events, Err(error)),
        }
    }
    panic!("the stream ended without an output or an error");
}

/// The names of the tools that were used, with whether they failed.
pub(crate) fn tools(events: &[StreamEvent]) -> Vec<(String, bool)> {
    let mut seen = Vec::new();
    for event in events {
        let StreamEvent::ToolStart { tool_name, tool_use_id, .. } = event else { continue };
        let failed: Vec<bool> = events
            .iter()
            .filter_map(|event| match event {
                StreamEvent::ToolComplete { tool_use_id: id, is_error, .. } if id == tool_use_id => {
                    Some(*is_error)
                }
                _ => None,
            })
            .collect();
        assert_eq!(failed.len(), 1, "the ends of {tool_name}");
        seen.push((tool_name.clone(), failed[0]));
    }
    seen
}

/// A turn in which the model runs a command by whichever tool the agent has for it.
pub(crate) fn shell(command: &str) -> inspan_testkit::Turn {
    serde_json::from_value(json!({ "blocks": [{ "type": "shell", "command": command }] })).unwrap()
}
