//! What the tests of the toolbox share: a folder with an MCP server, a context, and one message's calls run to their
//! end.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use inspan_protocol::{
    AgentError, Environment, ExecutionContext, Host, HostTools, PermissionDecision, StreamEvent,
};
use inspan_testkit::{MCP_SERVER, running_servers};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::{StopSignal, ToolCall, ToolResult, ToolSettings, ToolUpdate, Toolbox};
use crate::output::PermissionDenial;
use crate::program::tests::fake::wait_until;
use crate::tests::Person;
use inspan_transport::Close;
use inspan_transport::{Broken, Http};

/// May only be in the environment of its server.
pub(super) const PLANTED: &str = "planted-secret-0123456789";

/// A folder in which servers work.
pub(super) struct ToolHarness {
    pub(super) folder: TempDir,
    pub(super) context: ExecutionContext,
}

/// The results of the calls of one message.
#[derive(Debug, Default)]
pub(super) struct CallResults {
    pub(super) events: Vec<StreamEvent>,
    pub(super) answers: Vec<ToolResult>,
    pub(super) denials: Vec<PermissionDenial>,
}

impl ToolHarness {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("herd.sh"), MCP_SERVER).unwrap();
        let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("ANTHROPIC_API_KEY", "sk-ant-planted-key-1")];
        let env: Environment =
            env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        let context =
            ExecutionContext::new(Host { env, cwd: Some(folder.path().to_owned()), ..Host::default() });
        Self { folder, context }
    }

    pub(super) fn with(tools: HostTools) -> Self {
        let mut harness = Self::new();
        harness.context.host_mut().tools = tools;
        harness
    }

    /// Answers every question for permission so, and notes it.
    pub(super) fn answering(mut self, decision: PermissionDecision) -> (Self, Person) {
        let person = Person::says(decision);
        self.context.permissions = Some(Arc::new(person.clone()));
        (self, person)
    }

    pub(super) async fn open(&self, options: Value) -> Result<(Toolbox, Vec<StreamEvent>), AgentError> {
        let list = |key: &str| serde_json::from_value::<Option<Vec<String>>>(options[key].clone()).unwrap();
        let (allowed, disallowed) = (list("allowedTools"), list("disallowedTools"));
        let servers: Option<BTreeMap<String, Value>> =
            serde_json::from_value(options["mcpServers"].clone()).unwrap();
        let settings = ToolSettings {
            allowed: allowed.as_deref(),
            disallowed: disallowed.as_deref(),
            mcp_servers: servers.as_ref(),
            mcp_timeout_ms: options["mcpTimeoutMs"].as_u64(),
            tool_timeout_ms: options["toolTimeoutMs"].as_u64(),
        };
        let until = StopSignal { cancel: self.context.cancel.clone(), deadline: None };
        match Toolbox::open(settings, &self.context, &Http::default(), &until).await {
            Ok(open) => Ok(open),
            Err(Broken::Failed(error)) => Err(error),
            Err(Broken::Cancelled) => panic!("cancelled"),
        }
    }

    /// Opens a toolbox, makes these calls at once, and closes it.
    pub(super) async fn run(&self, options: Value, calls: &[(&str, Value)]) -> CallResults {
        let (toolbox, _) = self.open(options).await.unwrap();
        let outcome = self.call(&toolbox, calls).await;
        toolbox.close(Close::Gently).await;
        outcome
    }

    /// Makes these calls at once; their ids are their names.
    pub(super) async fn call(&self, toolbox: &Toolbox, calls: &[(&str, Value)]) -> CallResults {
        let call = |(name, input): &(&str, Value)| ToolCall::new(*name, *name, &input.to_string());
        let until = StopSignal { cancel: self.context.cancel.clone(), deadline: None };
        let mut stream = toolbox.run(calls.iter().map(call).collect(), until);
        let mut outcome = CallResults::default();
        while let Some(ran) = stream.next().await {
            match ran {
                ToolUpdate::Event(event) => outcome.events.push(event),
                ToolUpdate::Denied(denial) => outcome.denials.push(denial),
                ToolUpdate::Result(answer) => outcome.answers.push(answer),
            }
        }
        outcome.events.extend(toolbox.lost());
        outcome
    }

    /// A file of the folder.
    pub(super) fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Waits until no process of a server is left; there was one at least.
    pub(super) async fn nobody_left(&self) {
        wait_until(|| running_servers(self.folder.path()).is_empty()).await;
    }
}

/// One server, as options; the script's behaviour is by its mode.
pub(super) fn herd(mode: &str) -> Value {
    json!({ "herd": {
        "command": "sh", "args": ["herd.sh"], "env": { "HERD_TOKEN": PLANTED, "HERD_MODE": mode },
    } })
}

impl CallResults {
    /// What was answered to a call: the event's result, and whether it is an error.
    pub(super) fn reported(&self, id: &str) -> (String, bool) {
        let answer = self.answers.iter().find(|answer| answer.id == id).unwrap();
        let reported = answer.shown();
        (reported.as_str().map_or_else(|| reported.to_string(), str::to_owned), answer.is_error)
    }

    /// The codes and words of the warnings.
    pub(super) fn warnings(&self) -> Vec<String> {
        warnings(&self.events)
    }
}

pub(super) fn warnings(events: &[StreamEvent]) -> Vec<String> {
    let warning = |event: &StreamEvent| match event {
        StreamEvent::Warning { code, message } => Some(format!("{code}: {message}")),
        _ => None,
    };
    events.iter().filter_map(warning).collect()
}
