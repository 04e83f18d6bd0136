//! `exec`: runs a program from an argument list, never through a shell; reports what it prints, and gives the same from
//! a recording.

use std::{io, path::Path};

use inspan_engine::NodeCall;
use inspan_flow_core::{Exec, ExecInput, ExecOutput, ExecParse, read_input, write_output};
use inspan_protocol::{AgentError, ErrorCode, OutputStream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::node::{CallSource, NodeContext, NodeType};
use process::{Ended, Process};
use report::Report;

mod process;
mod report;

/// How much of each stream stands in the error of a program that failed, in bytes.
const TAIL: usize = 8 * 1024;

/// How a program ended, and what it printed: the form in which it is recorded.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Finished {
    stdout: String,
    stderr: String,
    /// Its exit code; none if a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// What ended it, without an exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
}

impl NodeType for Exec {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let call: ExecInput = read_input(input)?;
        let variables = call.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let context = NodeContext { redactor: context.redactor.clone().with_variables(variables), ..context };
        let finished = finished(&call, &context).await?;
        write_output(&output(&call, finished)?).map(|output| context.redactor.value(output))
    }
}

/// Runs the program, or takes what came of it from a recording.
async fn finished(call: &ExecInput, context: &NodeContext) -> Result<Finished, AgentError> {
    let mut input = json!({ "argv": call.argv });
    if let Some(stdin) = &call.stdin {
        input["stdin"] = stdin.clone();
    }
    let asked = NodeCall { kind: "exec", node: context.node.as_str(), input };
    let mut report = Report::new(context.hub.clone(), &context.redactor);
    let ended = context.call(asked, run(call, context, &mut report)).await;
    if let Ok((ended, CallSource::Recording)) = &ended {
        report.push(OutputStream::Stdout, ended.stdout.as_bytes());
        report.push(OutputStream::Stderr, ended.stderr.as_bytes());
    }
    report.finish();
    ended.map(|(finished, _)| finished)
}

async fn run(call: &ExecInput, context: &NodeContext, report: &mut Report) -> Result<Finished, AgentError> {
    let program = call.argv.first().cloned().unwrap_or_default();
    let folder = context.folder(call.cwd.as_deref());
    let attempt = context.attempt.to_string();
    let path = context.path.to_string();
    // What makes an effect idempotent: the same over all attempts of a node, or different with each.
    let own = [
        ("INSPAN_SESSION", context.hub.session_id().as_str()),
        ("INSPAN_NODE", &path),
        ("INSPAN_ATTEMPT", &attempt),
    ];
    let added = call.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let env = context.program_env.iter().chain(own).chain(added);
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut process = Process::start(&call.argv, &folder, env, context.host.supervisor.clone())
        .map_err(|error| not_started(&program, &folder, &error))?;
    let stdin = match &call.stdin {
        Some(Value::String(text)) => text.clone().into_bytes(),
        Some(value) => value.to_string().into_bytes(),
        None => Vec::new(),
    };
    let ended = tokio::select! {
        biased;
        () = context.cancel.cancelled() => None,
        ended = process.run(stdin, report) => Some(ended?),
    };
    let Some(ended) = ended else {
        process.end().await;
        return Err(context.aborted());
    };
    if let Some(error) = process.refused(&ended) {
        return Err(not_started(&program, &folder, &error));
    }
    let Ended { status, stdout, stderr } = ended;
    let signal = status.code().is_none().then(|| status.to_string());
    Ok(Finished { stdout, stderr, exit_code: status.code(), signal })
}

/// What the node gives, or why it has failed.
fn output(call: &ExecInput, finished: Finished) -> Result<ExecOutput, AgentError> {
    let program = call.argv.first().cloned().unwrap_or_default();
    let Finished { stdout, stderr, exit_code, signal } = finished;
    match exit_code {
        Some(code) if code == 0 || call.allow_exit.contains(&code) => {
            let value = call.parse.map(|parse| parsed(parse, &stdout, &program)).transpose()?;
            Ok(ExecOutput { stdout, stderr, exit_code: code, value })
        }
        code => {
            let how = match (code, signal) {
                (Some(code), _) => format!("exited with code {code}"),
                (None, signal) => format!("was ended by a {}", signal.as_deref().unwrap_or("signal")),
            };
            let said = last_line(&stderr).or_else(|| last_line(&stdout));
            let said = said.map(|line| format!(": {line}")).unwrap_or_default();
            Err(AgentError::new(ErrorCode::Process, format!("`{program}` {how}{said}")).with_detail(json!({
                "exitCode": code,
                "stdout": tail(&stdout, TAIL),
                "stderr": tail(&stderr, TAIL),
            })))
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

fn parsed(parse: ExecParse, stdout: &str, program: &str) -> Result<Value, AgentError> {
    match parse {
        ExecParse::Text => Ok(Value::String(stdout.trim_end().to_owned())),
        ExecParse::Lines => Ok(stdout.lines().map(Value::from).collect()),
        ExecParse::Json => serde_json::from_str(stdout).map_err(|error| {
            AgentError::new(
                ErrorCode::OutputInvalid,
                format!("the output of `{program}` is not JSON: {error}"),
            )
        }),
    }
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().find(|line| !line.trim().is_empty())
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
