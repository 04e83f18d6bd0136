//! What a test of the real program needs around it: a model server, a home of its own, and a look at what runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, Chunk, Environment, ExecutionContext, PermissionBroker, PermissionDecision,
    PermissionRequest, Provider, ProviderItem, ProviderStream, StreamEvent,
};
use inspan_providers::{OpenCodeInput, OpenCodeOptions, OpenCodeProvider, TurnOutput};
use inspan_testkit::{ModelServer, RequestKind, Scenario};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

/// One server and one home.
pub(crate) struct World {
    server: ModelServer,
    home: TempDir,
    program: String,
}

/// The formats in which the scripted server speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    Messages,
    Responses,
    Chat,
}

/// What the person who is asked says.
#[derive(Clone, Copy)]
pub(crate) enum Answers {
    Allow,
    Deny(&'static str),
    /// The answer to the agent's one question.
    Choose(&'static str),
}

impl PermissionBroker for Answers {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        let decision = match self {
            Self::Allow => PermissionDecision::Allow { updated_input: None },
            Self::Choose(choice) => {
                assert!(request.input["questions"].is_array(), "{request:?}");
                PermissionDecision::Allow { updated_input: Some(json!({ "answers": [[choice]] })) }
            }
            Self::Deny(message) => PermissionDecision::Deny { message: (*message).to_owned() },
        };
        Box::pin(std::future::ready(decision))
    }
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "the program to test is named from outside")]
    pub(crate) fn new(scenario: Scenario) -> Self {
        let program =
            std::env::var("INSPAN_E2E_OPENCODE").expect("INSPAN_E2E_OPENCODE names the program to test");
        let home = tempfile::tempdir().unwrap();
        for folder in ["proj", "tmp", ".config/opencode"] {
            std::fs::create_dir_all(home.path().join(folder)).unwrap();
        }
        let world = Self { server: ModelServer::start(scenario).unwrap(), home, program };
        world.settings(Format::Messages);
        world
    }

    /// Writes the user's settings file: one provider, which is the scripted server in one of its formats.
    pub(crate) fn settings(&self, format: Format) {
        self.settings_at(format, &self.server.base_url());
    }

    /// As [`Self::settings`], with the server elsewhere.
    pub(crate) fn settings_at(&self, format: Format, address: &str) {
        let npm = match format {
            Format::Messages => "@ai-sdk/anthropic",
            Format::Responses => "@ai-sdk/openai",
            Format::Chat => "@ai-sdk/openai-compatible",
        };
        let model = json!({
            "name": "Scripted", "limit": { "context": 200_000, "output": 8192 },
            "cost": { "input": 3, "output": 15 }, "tool_call": true, "reasoning": true, "attachment": true,
            "modalities": { "input": ["text", "image"], "output": ["text"] },
        });
        let settings = json!({
            "model": "loop/scripted-model", "small_model": "loop/scripted-model", "enabled_providers": ["loop"],
            // What a settings file allows is asked about all the same.
            "permission": { "*": "allow", "bash": "allow" },
            "provider": { "loop": {
                "npm": npm, "name": "loop", "models": { "scripted-model": model },
                "options": { "baseURL": format!("{address}/v1"), "apiKey": "{env:PLANTED_API_KEY}" },
            } },
        });
        std::fs::write(self.folder(".config/opencode/opencode.json"), settings.to_string()).unwrap();
    }

    /// Starts another script.
    pub(crate) fn script(&self, scenario: Scenario) {
        self.server.replace(scenario).unwrap();
    }

    /// Kills the running servers as the system would.
    pub(crate) fn kill(&self) {
        for pid in self.processes() {
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.unwrap().success());
        }
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the program's own tools are found on the path of the test"
    )]
    pub(crate) fn context(&self) -> ExecutionContext {
        let env: Environment = [
            ("PATH", std::env::var("PATH").unwrap()),
            ("HOME", self.home.path().display().to_string()),
            ("TMPDIR", self.folder("tmp").display().to_string()),
            ("INSPAN_OPENCODE", self.program.clone()),
            ("PLANTED_API_KEY", "planted-secret-key".to_owned()),
            // The list of models and the language servers would come from the net.
            ("OPENCODE_DISABLE_MODELS_FETCH", "1".to_owned()),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1".to_owned()),
            ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1".to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        ExecutionContext { env, cwd: Some(self.folder("proj")), ..ExecutionContext::default() }
    }

    pub(crate) fn context_asking(&self, answers: Answers) -> ExecutionContext {
        ExecutionContext { permissions: Some(Arc::new(answers)), ..self.context() }
    }

    /// The bodies of the model's requests so far.
    pub(crate) fn main_requests(&self) -> Vec<Value> {
        let requests = self.server.requests();
        requests
            .into_iter()
            .filter(|request| request.kind == RequestKind::Main)
            .map(|request| request.body)
            .collect()
    }

    /// The processes of this world by number, those that a shell of the program runs included.
    pub(crate) fn running(&self) -> Vec<(u32, String)> {
        let mark = format!("HOME={}", self.home.path().display());
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

    /// The numbers of the running programs, without what they run themselves.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let running = self.running().into_iter();
        running.filter(|(_, command)| command.contains(" serve ")).map(|(pid, _)| pid).collect()
    }

    pub(crate) fn commands(&self) -> Vec<String> {
        self.running().into_iter().map(|(_, command)| command).collect()
    }

    /// Waits until a command with this name runs.
    pub(crate) async fn wait_for(&self, name: &str) {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.commands().iter().any(|command| command.starts_with(name)) {
            assert!(Instant::now() < until, "no `{name}` came to run: {:?}", self.commands());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until no command has this in it.
    pub(crate) async fn wait_until_gone(&self, part: &str, limit: Duration) {
        let until = Instant::now() + limit;
        while self.commands().iter().any(|command| command.contains(part)) {
            assert!(Instant::now() < until, "still there: {:?}", self.running());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn wait_until_nothing_runs(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.running().is_empty() {
            assert!(Instant::now() < until, "still there: {:?}", self.running());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn assert_nothing_runs(&self) {
        assert_eq!(self.running(), []);
    }
}

/// The result of a turn.
pub(crate) type Ended = Result<TurnOutput, AgentError>;

pub(crate) fn prompt(text: &str, options: OpenCodeOptions) -> OpenCodeInput {
    OpenCodeInput { prompt: Some(text.to_owned()), options: Some(options), ..OpenCodeInput::default() }
}

pub(crate) async fn run(
    provider: &OpenCodeProvider,
    input: OpenCodeInput,
    context: ExecutionContext,
) -> (Vec<StreamEvent>, Ended) {
    run_watching(provider, input, context, |_| {}).await
}

pub(crate) async fn run_watching(
    provider: &OpenCodeProvider,
    input: OpenCodeInput,
    context: ExecutionContext,
    mut watch: impl FnMut(&StreamEvent),
) -> (Vec<StreamEvent>, Ended) {
    let mut events = Vec::new();
    let mut stream = provider.execute(input, context);
    while let Some(item) = stream.next().await {
        match item {
            Ok(ProviderItem::Event(event)) => {
                watch(&event);
                events.push(event);
            }
            Ok(ProviderItem::Output(output)) => return (events, Ok(output)),
            Err(error) => return (events, Err(error)),
        }
    }
    panic!("the stream ended without an output or an error");
}

pub(crate) async fn drain(mut stream: ProviderStream<TurnOutput>) {
    while stream.next().await.is_some() {}
}

/// The streamed text.
pub(crate) fn deltas(events: &[StreamEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        StreamEvent::Text { content, chunk: Chunk::Delta } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Each tool with its input, its answer, and whether it failed.
pub(crate) fn tools(events: &[StreamEvent]) -> Vec<(String, Value, Value, bool)> {
    let mut seen = Vec::new();
    for event in events {
        let StreamEvent::ToolStart { tool_name, tool_use_id, input } = event else { continue };
        let answers = events.iter().filter_map(|event| match event {
            StreamEvent::ToolComplete { tool_use_id: id, result, is_error } if id == tool_use_id => {
                Some((result.clone(), *is_error))
            }
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        assert_eq!(answers.len(), 1, "the answers of {tool_name}");
        seen.push((tool_name.clone(), input.clone(), answers[0].0.clone(), answers[0].1));
    }
    seen
}

pub(crate) fn kind(error: &AgentError) -> Value {
    error.detail.as_ref().map_or(json!(null), |detail| detail["kind"].clone())
}
