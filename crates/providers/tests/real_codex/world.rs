//! What a test of the real program needs around it: a model server, a home of its own, and a look at what runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, Chunk, Environment, ExecutionContext, PermissionBroker, PermissionDecision,
    PermissionRequest, Provider, ProviderItem, ProviderStream, StreamEvent,
};
use inspan_providers::{CodexInput, CodexOptions, CodexOutput, CodexProvider};
use inspan_testkit::{ModelServer, RecordedRequest, RequestKind, Scenario};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

/// Planted as the key; nothing that the provider says may hold it.
pub(crate) const PLANTED: &str = "sk-planted-0f6b1c9e4d7a42d8-not-a-key";

/// One server and one home.
pub(crate) struct World {
    pub(crate) server: ModelServer,
    home: TempDir,
    program: String,
}

/// What the person who is asked says.
#[derive(Clone, Copy)]
pub(crate) enum Answers {
    Allow,
    Deny,
    Other,
}

impl PermissionBroker for Answers {
    fn request(&self, _: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        let decision = match self {
            Self::Allow => PermissionDecision::Allow { updated_input: None },
            Self::Deny => PermissionDecision::Deny { message: "not today".to_owned() },
            Self::Other => PermissionDecision::Allow { updated_input: Some(json!({ "command": "true" })) },
        };
        Box::pin(std::future::ready(decision))
    }
}

impl World {
    /// A world in which the program's configuration names the scripted server.
    pub(crate) fn new(scenario: Scenario) -> Self {
        let world = Self::unconfigured(scenario);
        let config = format!(
            "model = \"scripted-model\"\nmodel_provider = \"loop\"\n[model_providers.loop]\nname = \"loop\"\n\
             base_url = \"{}/v1\"\nenv_key = \"LOOP_KEY\"\nwire_api = \"responses\"\n",
            world.server.base_url()
        );
        std::fs::write(world.folder("codex/config.toml"), config).unwrap();
        world
    }

    #[expect(clippy::disallowed_methods, reason = "the program to test is named from outside")]
    pub(crate) fn unconfigured(scenario: Scenario) -> Self {
        let program = std::env::var("INSPAN_E2E_CODEX").expect("INSPAN_E2E_CODEX names the program to test");
        let home = tempfile::tempdir().unwrap();
        for folder in ["proj", "codex", "tmp"] {
            std::fs::create_dir(home.path().join(folder)).unwrap();
        }
        Self { server: ModelServer::start(scenario).unwrap(), home, program }
    }

    /// The script that npm puts on the path, which starts the native program.
    pub(crate) fn wrapper(&self) -> PathBuf {
        let modules = Path::new(&self.program).ancestors().find(|folder| folder.ends_with("node_modules"));
        modules.expect("INSPAN_E2E_CODEX lies in a folder of npm").join("@openai/codex/bin/codex.js")
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the program's own tools are found on the path of the test"
    )]
    pub(crate) fn context(&self) -> ExecutionContext {
        let text = |name: &str| self.folder(name).display().to_string();
        let env: Environment = [
            ("PATH", std::env::var("PATH").unwrap()),
            ("HOME", self.home.path().display().to_string()),
            ("CODEX_HOME", text("codex")),
            ("TMPDIR", text("tmp")),
            ("INSPAN_CODEX", self.program.clone()),
            ("LOOP_KEY", PLANTED.to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        ExecutionContext { env, cwd: Some(self.folder("proj")), ..ExecutionContext::default() }
    }

    pub(crate) fn context_asking(&self, answers: Answers) -> ExecutionContext {
        ExecutionContext { permissions: Some(Arc::new(answers)), ..self.context() }
    }

    /// The requests of the model so far.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        let requests = self.server.requests().into_iter();
        requests.filter(|request| request.kind == RequestKind::Main).collect()
    }

    /// The processes of this world by number, those that a shell of the program runs included.
    pub(crate) fn running(&self) -> Vec<(u32, String)> {
        let mark = format!("CODEX_HOME={}", self.folder("codex").display());
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
        running.filter(|(_, command)| command.contains("app-server")).map(|(pid, _)| pid).collect()
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
        self.wait_until_gone("", limit).await;
    }

    pub(crate) fn assert_nothing_runs(&self) {
        assert_eq!(self.running(), []);
    }

    /// Fails if the key stands in a file of the program, where it would outlive the call.
    pub(crate) fn assert_key_is_nowhere(&self, key: &str) {
        let found =
            std::process::Command::new("grep").args(["-rlF", key]).arg(self.home.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }
}

/// The result of a turn.
pub(crate) type Ended = Result<CodexOutput, AgentError>;

pub(crate) fn prompt(text: &str, options: CodexOptions) -> CodexInput {
    CodexInput { prompt: Some(text.to_owned()), options: Some(options), ..CodexInput::default() }
}

pub(crate) fn options(value: Value) -> CodexOptions {
    serde_json::from_value(value).unwrap()
}

pub(crate) async fn run(
    provider: &CodexProvider,
    input: CodexInput,
    context: ExecutionContext,
) -> (Vec<StreamEvent>, Ended) {
    run_watching(provider, input, context, |_| {}).await
}

pub(crate) async fn run_watching(
    provider: &CodexProvider,
    input: CodexInput,
    context: ExecutionContext,
    mut watch: impl FnMut(&StreamEvent),
) -> (Vec<StreamEvent>, Ended) {
    let mut events = Vec::new();
    let mut stream = provider.execute(input, context);
    let ended = loop {
        match stream.next().await {
            Some(Ok(ProviderItem::Event(event))) => {
                watch(&event);
                events.push(event);
            }
            Some(Ok(ProviderItem::Output(output))) => break Ok(output),
            Some(Err(error)) => break Err(error),
            None => panic!("the stream ended without an output or an error"),
        }
    };
    let said = format!("{events:?} {ended:?}");
    assert!(!said.contains(PLANTED), "the planted key was said: {said}");
    (events, ended)
}

pub(crate) async fn drain(mut stream: ProviderStream<CodexOutput>) {
    while stream.next().await.is_some() {}
}

/// The streamed text; what was retracted of it is void.
pub(crate) fn deltas(events: &[StreamEvent]) -> String {
    let mut text = String::new();
    for event in events {
        match event {
            StreamEvent::Text { content, chunk: Chunk::Delta } => text.push_str(content),
            StreamEvent::Retract => text.clear(),
            _ => {}
        }
    }
    text
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

/// The codes of the warnings.
pub(crate) fn warnings(events: &[StreamEvent]) -> Vec<&str> {
    let codes = events.iter().filter_map(|event| match event {
        StreamEvent::Warning { code, .. } => Some(code.as_str()),
        _ => None,
    });
    codes.collect()
}

pub(crate) fn kind(error: &AgentError) -> Value {
    error.detail.as_ref().map_or(json!(null), |detail| detail["kind"].clone())
}
