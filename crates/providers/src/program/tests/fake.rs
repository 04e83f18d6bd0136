//! Programs in place of real agents, written for the shell, and what is needed around them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, Environment, ErrorCode, ExecutionContext, Host, PermissionBroker, PermissionDecision,
    PermissionRequest, Provider, StreamEvent,
};
use inspan_testkit::is_running;
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::tests::{self, FinishedTurn};

/// A folder with one program.
pub(crate) struct Fake {
    folder: TempDir,
}

impl Fake {
    /// A program of this name that runs this script.
    pub(crate) fn new(command: &str, script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A file that is open for writing anywhere cannot be run, and a process that another test starts meanwhile
        // would hold ours open for a moment. So a separate process writes it.
        let write = std::process::Command::new("/bin/sh")
            .args([
                "-c",
                "printf '#!/bin/sh\n%s\n' \"$2\" > \"$1\"; chmod 755 \"$1\"; mkdir work",
                "sh",
                command,
                script,
            ])
            .current_dir(folder.path())
            .status();
        assert!(write.unwrap().success());
        Self { folder }
    }

    /// The folder that the program is in.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder that the program works in, without links.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("work")
    }

    pub(crate) fn context(&self) -> ExecutionContext {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.folder.path().display());
        let env = [("PATH", path.as_str()), ("MY_TOKEN", "planted-secret")];
        let env: Environment =
            env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        ExecutionContext::new(Host { env, cwd: Some(self.work()), ..Host::default() })
    }

    /// A file that the program writes.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    /// The lines of a file that the program writes, as JSON.
    pub(crate) fn json_lines(&self, name: &str) -> Vec<Value> {
        self.read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What the program was sent, if it notes that.
    pub(crate) fn received(&self) -> Vec<Value> {
        self.json_lines("received")
    }

    /// A context in which a person is asked.
    pub(crate) fn asking(&self, broker: impl PermissionBroker + 'static) -> ExecutionContext {
        ExecutionContext { permissions: Some(Arc::new(broker)), ..self.context() }
    }

    /// The numbers of the processes that wrote theirs to `pids`.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.read("pids").lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Those of them that run.
    pub(crate) fn running(&self) -> Vec<u32> {
        self.pids().into_iter().filter(|pid| is_running(*pid)).collect()
    }
}

/// The input of a turn with these options.
pub(crate) fn input<P: Provider>(options: impl Serialize) -> P::Input {
    serde_json::from_value(json!({ "prompt": "go", "options": options })).unwrap()
}

/// Runs a turn with these options.
pub(crate) async fn run<P: Provider>(
    provider: &P,
    options: impl Serialize,
    context: ExecutionContext,
) -> FinishedTurn<P::Output> {
    watched(provider, options, context, |_| {}).await
}

/// Runs a turn of a provider that is shut down after it.
pub(crate) async fn once<P: Provider + Default>(
    options: impl Serialize,
    context: ExecutionContext,
) -> FinishedTurn<P::Output> {
    let provider = P::default();
    let turn = run(&provider, options, context).await;
    provider.shutdown().await;
    turn
}

/// Runs a turn, and cancels it at its first text.
pub(crate) async fn cancelled<P: Provider>(
    provider: &P,
    options: impl Serialize,
    context: ExecutionContext,
) -> FinishedTurn<P::Output> {
    let cancel = context.cancel.clone();
    let watch = |event: &StreamEvent| {
        if matches!(event, StreamEvent::Text { .. }) {
            cancel.cancel();
        }
    };
    watched(provider, options, context, watch).await
}

/// Runs a turn, and shows each event as it comes.
pub(crate) async fn watched<P: Provider>(
    provider: &P,
    options: impl Serialize,
    context: ExecutionContext,
    watch: impl FnMut(&StreamEvent),
) -> FinishedTurn<P::Output> {
    tests::watched(provider, input::<P>(options), context, watch).await
}

/// The codes of the warnings among events.
pub(crate) fn warnings(events: &[StreamEvent]) -> Vec<&str> {
    let codes = events.iter().filter_map(|event| match event {
        StreamEvent::Warning { code, .. } => Some(code.as_str()),
        _ => None,
    });
    codes.collect()
}

/// The code, the message and the kind of an error. It holds no secret.
pub(crate) fn parts(error: AgentError) -> (ErrorCode, String, Value) {
    assert!(!serde_json::to_string(&error).unwrap().contains("planted"), "{error:?}");
    let kind = error.detail.map_or(Value::Null, |detail| detail["kind"].clone());
    (error.code, error.message, kind)
}

/// Waits for something that happens soon.
pub(crate) async fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < until, "it did not happen in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Takes every question and answers none.
pub(crate) struct NeverAnswers;

impl PermissionBroker for NeverAnswers {
    fn request(&self, _: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        Box::pin(std::future::pending())
    }
}
