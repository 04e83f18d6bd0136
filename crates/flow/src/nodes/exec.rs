//! `exec`: runs a program from an argument list, never through a shell. The whole process group ends with
//! the node, however the node ends.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::{AgentError, ErrorCode};
use rustix::process::{Pid, Signal, kill_process_group};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
};

use super::typed;
use crate::{
    node::{NodeType, NodeTypeInfo},
    runtime::NodeContext,
};

/// What a program may print on each of its two streams, in bytes.
const OUTPUT_LIMIT: u64 = 16 << 20;
/// How long a program has to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(2);

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
            let printed = call.run(&context).await?;
            typed::write(&printed)
        }
        .boxed()
    }
}

/// The process group of a running program; whatever is left of it is killed when this goes.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // A group that is already gone is what we want.
            let _gone = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

impl Call {
    async fn run(self, context: &NodeContext) -> Result<Printed, AgentError> {
        let program = self.argv.first().cloned().unwrap_or_default();
        let mut child = self.spawn(&program, context)?;
        let group = Group(child.id().and_then(|id| Pid::from_raw(id as i32)));
        let stdin = match &self.stdin {
            Some(Value::String(text)) => text.clone().into_bytes(),
            Some(value) => value.to_string().into_bytes(),
            None => Vec::new(),
        };
        let mut pipe = child.stdin.take();
        let feed = async move {
            if let Some(pipe) = &mut pipe {
                // A program that does not read its input is free not to.
                let _unread = pipe.write_all(&stdin).await;
            }
            drop(pipe);
        };
        let stdout = read_all(child.stdout.take(), &program, "output");
        let stderr = read_all(child.stderr.take(), &program, "error output");
        let work = async { tokio::join!(feed, stdout, stderr, child.wait()) };
        let ended = tokio::select! {
            biased;
            () = context.cancel.cancelled() => None,
            ended = work => Some(ended),
        };
        let Some(((), stdout, stderr, status)) = ended else {
            group.signal(Signal::TERM);
            let _late = tokio::time::timeout(GRACE, child.wait()).await;
            group.signal(Signal::KILL);
            let _reaped = tokio::time::timeout(GRACE, child.wait()).await;
            return Err(context.aborted());
        };
        let (stdout, stderr) = (stdout?, stderr?);
        let status = status.map_err(|error| {
            AgentError::new(ErrorCode::Process, format!("`{program}` cannot be waited for: {error}"))
        })?;
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

    fn spawn(&self, program: &str, context: &NodeContext) -> Result<Child, AgentError> {
        let folder = context.folder(self.cwd.as_deref());
        let mut command = Command::new(program);
        command
            .args(&self.argv[1..])
            .current_dir(&folder)
            .env_clear()
            .envs(context.env.iter())
            .envs(&self.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound if folder.is_dir() => AgentError::new(
                ErrorCode::ConfigMissing,
                format!("there is no program `{program}` on the PATH"),
            ),
            std::io::ErrorKind::NotFound => AgentError::new(
                ErrorCode::ConfigInvalid,
                format!("there is no folder `{}`", folder.display()),
            ),
            _ => AgentError::new(ErrorCode::Process, format!("`{program}` cannot be started: {error}")),
        })
    }
}

async fn read_all(
    pipe: Option<impl AsyncRead + Unpin>,
    program: &str,
    what: &str,
) -> Result<String, AgentError> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(OUTPUT_LIMIT + 1).read_to_end(&mut bytes).await.map_err(|error| {
            AgentError::new(ErrorCode::Process, format!("the {what} of `{program}` cannot be read: {error}"))
        })?;
    }
    if bytes.len() as u64 > OUTPUT_LIMIT {
        let message = format!("the {what} of `{program}` is over {} MiB", OUTPUT_LIMIT >> 20);
        return Err(AgentError::new(ErrorCode::Process, message));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
