//! What a test of a real program needs around it: a model server, a separate home, and a look at what runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use inspan_model_server::{ModelServer, RecordedRequest, RequestKind, Scenario};
use inspan_protocol::{
    Environment, ExecutionContext, Host, PermissionBroker, PermissionDecision, PermissionRequest, Provider,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

/// Planted as the key; nothing that a provider says may hold it.
pub(crate) const PLANTED: &str = "sk-planted-0f6b1c9e4d7a42d8-not-a-key";

/// A picture of one pixel.
pub(crate) const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A text and a mention that look like commands, and a picture.
pub(crate) fn every_message() -> Value {
    json!([
        { "role": "user", "content": [
            { "type": "text", "text": "/look" },
            { "type": "image", "media_type": "image/png", "data": PIXEL },
        ] },
        { "role": "user", "content": "@here" },
    ])
}

/// Nothing here may take longer than this, even where the program has to be killed.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// One server and one home.
pub(crate) struct Home {
    pub(crate) server: ModelServer,
    folder: TempDir,
    /// The variable and the folder by which its processes are known.
    mark: (&'static str, &'static str),
}

/// The answer of the simulated person.
#[derive(Clone, Copy)]
pub(crate) enum Answers {
    Allow,
    /// Allows a command that was not asked about.
    Other,
    /// The answer to the agent's one question.
    Choose(&'static str),
    Deny(&'static str),
}

impl PermissionBroker for Answers {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        let decision = match self {
            Self::Allow => PermissionDecision::Allow { updated_input: None },
            Self::Other => PermissionDecision::Allow { updated_input: Some(json!({ "command": "true" })) },
            Self::Choose(choice) => {
                assert!(request.input["questions"].is_array(), "{request:?}");
                PermissionDecision::Allow { updated_input: Some(json!({ "answers": [[choice]] })) }
            }
            Self::Deny(message) => PermissionDecision::Deny { message: (*message).to_owned() },
        };
        Box::pin(std::future::ready(decision))
    }
}

/// What a variable of the test's own environment says.
#[expect(clippy::disallowed_methods, reason = "the programs to test and their path are named from outside")]
pub(crate) fn named(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is to name what is tested"))
}

impl Home {
    /// A home with these folders in it.
    pub(crate) fn new(scenario: Scenario, folders: &[&str], mark: (&'static str, &'static str)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in folders {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        Self { server: ModelServer::start(scenario).unwrap(), folder, mark }
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The place of a folder as text; without a name, that of the home.
    pub(crate) fn text(&self, name: &str) -> String {
        let place = if name.is_empty() { self.folder.path().to_path_buf() } else { self.folder(name) };
        place.display().to_string()
    }

    /// The context of a call in `proj`, with these variables beside the path and the home.
    pub(crate) fn context<const N: usize>(&self, variables: [(&str, String); N]) -> ExecutionContext {
        let usual = [("PATH", named("PATH")), ("HOME", self.text(""))];
        let mark = (self.mark.0, self.text(self.mark.1));
        let all = usual.into_iter().chain([mark]).chain(variables);
        let env: Environment = all.map(|(name, value)| (name.to_owned(), value)).collect();
        ExecutionContext::new(Host { env, cwd: Some(self.folder("proj")), ..Host::default() })
    }

    /// The requests of the model so far.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        let requests = self.server.requests().into_iter();
        requests.filter(|request| request.kind == RequestKind::Main).collect()
    }

    /// Their bodies.
    pub(crate) fn main_requests(&self) -> Vec<Value> {
        self.requests().into_iter().map(|request| request.body).collect()
    }

    /// The processes of this world by number, those that a shell of the program runs included.
    pub(crate) fn running(&self) -> Vec<(u32, String)> {
        let mark = format!("{}={}", self.mark.0, self.text(self.mark.1));
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

    /// The numbers of those that have this in their command line.
    pub(crate) fn running_with(&self, part: &str) -> Vec<u32> {
        let running = self.running().into_iter();
        running.filter(|(_, command)| command.contains(part)).map(|(pid, _)| pid).collect()
    }

    pub(crate) fn commands(&self) -> Vec<String> {
        self.running().into_iter().map(|(_, command)| command).collect()
    }

    /// Waits until a command with this name runs.
    pub(crate) async fn wait_for(&self, name: &str) {
        let until = Instant::now() + BOUND;
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

    /// Ends the provider, after which nothing may run.
    pub(crate) async fn assert_ends(&self, provider: &impl Provider) {
        provider.shutdown().await;
        self.assert_nothing_runs();
    }

    /// Fails if the key is in a file of the program, where it would outlive the call.
    pub(crate) fn assert_key_is_nowhere(&self, key: &str) {
        let found =
            std::process::Command::new("grep").args(["-rlF", key]).arg(self.folder.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }
}

/// The roles in a request of the Messages API.
pub(crate) fn roles(request: &Value) -> Vec<&str> {
    let messages = request["messages"].as_array().into_iter().flatten();
    messages.filter_map(|message| message["role"].as_str()).filter(|role| *role != "system").collect()
}

/// The context, with a simulated person who answers.
pub(crate) fn asking(context: ExecutionContext, answers: Answers) -> ExecutionContext {
    ExecutionContext { permissions: Some(Arc::new(answers)), ..context }
}
