//! `exec`: runs a program from an argument list, never through a shell. Starting, reading and ending it is left to
//! `process`.

use std::{collections::BTreeMap, io, path::Path};

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::Redactor;
use inspan_protocol::{AgentError, ErrorCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::typed;
use crate::{
    node::{NodeType, NodeTypeInfo},
    runtime::NodeContext,
};
use process::{Ended, Process};

mod process;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Call {
    /// The program and its arguments.
    #[schemars(length(min = 1))]
    argv: Vec<String>,
    /// What it reads: a text as it is, anything else as JSON.
    #[serde(default)]
    stdin: Option<Value>,
    /// Where it runs, relative to the session's working folder.
    #[serde(default)]
    cwd: Option<String>,
    /// Variables added to its environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// What `value` is made of: the whole output as text or JSON, or its lines.
    #[serde(default)]
    parse: Option<Parse>,
    /// Exit codes beside 0 that are no failure.
    #[serde(default)]
    allow_exit: Vec<i32>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Parse {
    Text,
    Json,
    Lines,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Printed {
    /// What it printed.
    stdout: String,
    /// What it printed as errors.
    stderr: String,
    /// Its exit code.
    exit_code: i32,
    /// The output as `parse` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

/// `exec`.
pub(super) struct Exec;

impl NodeType for Exec {
    fn describe(&self) -> NodeTypeInfo {
        typed::describe::<Call, Printed>(
            "exec",
            "io",
            "Runs a program from an argument list, never through a shell.",
        )
    }

    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        async move {
            let call: Call = typed::read(input)?;
            // A program is given the environment, and may print what is in it.
            let redactor = Redactor::new(&context.env);
            let printed = call.run(&context).await.map_err(|error| redactor.error(error))?;
            typed::write(&printed).map(|printed| redactor.value(printed))
        }
        .boxed()
    }
}

impl Call {
    async fn run(self, context: &NodeContext) -> Result<Printed, AgentError> {
        let program = self.argv.first().cloned().unwrap_or_default();
        let folder = context.folder(self.cwd.as_deref());
        let added = self.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let env = context.env.iter().chain(added);
        let mut process = Process::start(&self.argv, &folder, env, context.supervisor.as_ref())
            .map_err(|error| not_started(&program, &folder, &error))?;
        let stdin = match &self.stdin {
            Some(Value::String(text)) => text.clone().into_bytes(),
            Some(value) => value.to_string().into_bytes(),
            None => Vec::new(),
        };
        let ended = tokio::select! {
            biased;
            () = context.cancel.cancelled() => None,
            ended = process.run(stdin) => Some(ended?),
        };
        let Some(ended) = ended else {
            process.end().await;
            return Err(context.aborted());
        };
        if let Some(error) = process.refused(&ended) {
            return Err(not_started(&program, &folder, &error));
        }
        let Ended { status, stdout, stderr } = ended;
        match status.code() {
            Some(code) if code == 0 || self.allow_exit.contains(&code) => {
                let value = self.parse.map(|parse| parse.apply(&stdout, &program)).transpose()?;
                Ok(Printed { stdout, stderr, exit_code: code, value })
            }
            code => {
                let how = code.map_or_else(|| status.to_string(), |code| format!("exit code {code}"));
                let message = format!("`{program}` ended with {how}{}", last_line(&stderr));
                Err(AgentError::new(ErrorCode::Process, message)
                    .with_detail(json!({ "exitCode": code, "stderr": tail(&stderr, 4_096) })))
            }
        }
    }
}

fn not_started(program: &str, folder: &Path, error: &io::Error) -> AgentError {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let (code, message) = match (is_missing, folder.is_dir()) {
        (true, true) => (ErrorCode::ConfigMissing, format!("there is no program `{program}` on the PATH")),
        (true, false) => (ErrorCode::ConfigInvalid, format!("there is no folder `{}`", folder.display())),
        (false, _) => (ErrorCode::Process, format!("`{program}` cannot be started: {error}")),
    };
    AgentError::new(code, message)
}

impl Parse {
    fn apply(self, stdout: &str, program: &str) -> Result<Value, AgentError> {
        match self {
            Self::Text => Ok(Value::String(stdout.trim_end().to_owned())),
            Self::Lines => Ok(stdout.lines().map(Value::from).collect()),
            Self::Json => serde_json::from_str(stdout).map_err(|error| {
                AgentError::new(
                    ErrorCode::OutputInvalid,
                    format!("the output of `{program}` is no JSON: {error}"),
                )
            }),
        }
    }
}

fn last_line(stderr: &str) -> String {
    stderr
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map_or_else(String::new, |line| format!(": {line}"))
}

fn tail(text: &str, bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests;
