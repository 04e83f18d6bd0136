//! `exec`: runs a program from an argument list, never through a shell; reports what it prints, and gives the same from
//! a recording.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use inspan_engine::SESSION_VARIABLE;
use inspan_flow_core::{Exec, ExecInput, ExecOutput, ExecParse, read_input, write_output};
use inspan_process::missing_interpreter;
use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, OutputStream, Redactor};
use inspan_transport::{ProgramQuery, find};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::node::{CallSource, NodeContext, NodeType};
use process::{Ended, Process};
use report::OutputReporter;
use sink::FileSink;

mod process;
mod report;
mod sink;

/// How much of each stream is in the error of a program that failed, and in memory and in the output if a file has the
/// whole, in bytes.
const TAIL: usize = 8 * 1024;
/// The largest file that is recorded, in bytes.
const RECORDED_FILE: u64 = 16 << 20;

/// How a program ended, and what it printed: the form in which it is recorded.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Finished {
    stdout: String,
    stderr: String,
    /// The bytes of a stream that a file has taken and that is no UTF-8; its text is then empty. Only in recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// Its exit code; none if a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// What ended it, without an exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
}

impl Finished {
    /// The bytes of each stream that a recording has in base64.
    fn recorded_bytes(&mut self) -> Result<[Option<Vec<u8>>; 2], AgentError> {
        let decoded = |encoded: Option<String>| {
            encoded.map(|encoded| BASE64.decode(encoded)).transpose().map_err(|error| {
                let message = format!("the recording of a call is damaged: {error}");
                AgentError::new(ErrorCode::ConfigInvalid, message)
            })
        };
        Ok([decoded(self.stdout_base64.take())?, decoded(self.stderr_base64.take())?])
    }
}

impl NodeType for Exec {
    async fn run(&self, context: NodeContext, input: Value) -> Result<Value, AgentError> {
        let call: ExecInput = read_input(input)?;
        if let Some(problem) = call.problem() {
            return Err(AgentError::new(ErrorCode::ConfigInvalid, problem.message));
        }
        let variables = call.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let context = NodeContext { redactor: context.redactor.clone().with_variables(variables), ..context };
        let files = StreamFiles::of(&call, &context);
        let finished = finished(&call, &files, &context).await?;
        write_output(&output(&call, files, finished, &context.redactor)?)
            .map(|output| context.redactor.value(output))
    }
}

/// The files that take the streams of a program.
struct StreamFiles {
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
}

impl StreamFiles {
    fn of(call: &ExecInput, context: &NodeContext) -> Self {
        let folder = context.folder(call.cwd.as_deref());
        let path = |file: &Option<String>| file.as_ref().map(|file| folder.join(file));
        Self { stdout: path(&call.stdout_file), stderr: path(&call.stderr_file) }
    }

    fn create(&self, redactor: &Redactor) -> Result<[Option<FileSink>; 2], AgentError> {
        let sink =
            |path: &Option<PathBuf>| path.as_ref().map(|path| FileSink::create(path, redactor)).transpose();
        let sinks = [sink(&self.stdout)?, sink(&self.stderr)?];
        match (&sinks, &self.stderr) {
            ([Some(stdout), Some(stderr)], Some(path)) if stdout.is_same_file(stderr) => {
                let message =
                    format!("`stdoutFile` and `stderrFile` must be two files: both are `{}`", path.display());
                Err(AgentError::new(ErrorCode::ConfigInvalid, message))
            }
            _ => Ok(sinks),
        }
    }

    /// What is recorded: of a stream that a file has taken, all of it.
    fn recorded(&self, finished: &Finished, redactor: &Redactor) -> Result<Value, AgentError> {
        let mut whole = finished.clone();
        let Finished { stdout, stderr, stdout_base64, stderr_base64, .. } = &mut whole;
        for (file, text, base64) in
            [(&self.stdout, stdout, stdout_base64), (&self.stderr, stderr, stderr_base64)]
        {
            if let Some(file) = file {
                (*text, *base64) = Self::read(file, redactor)?;
            }
        }
        write_output(&whole)
    }

    /// The text of a file, or its bytes in base64 if it is no UTF-8.
    fn read(path: &Path, redactor: &Redactor) -> Result<(String, Option<String>), AgentError> {
        let wrong = |why: String| {
            let message = format!("`{}` cannot be recorded: {why}", path.display());
            AgentError::new(ErrorCode::ConfigInvalid, message)
        };
        let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
        if size > RECORDED_FILE {
            return Err(wrong(format!("it is over {} MiB", RECORDED_FILE >> 20)));
        }
        let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => return Ok((text, None)),
            Err(error) => error.into_bytes(),
        };
        let (text, encoded) = (String::from_utf8_lossy(&bytes), BASE64.encode(&bytes));
        // Without the secret it would be another file. In base64 short ones, and those of a known form, look like nothing.
        if redactor.text(&text) != text || redactor.text(&encoded) != encoded {
            return Err(wrong("it has a secret, and is no UTF-8 text".to_owned()));
        }
        Ok((String::new(), Some(encoded)))
    }
}

/// Runs the program, or takes its result from a recording.
async fn finished(
    call: &ExecInput,
    files: &StreamFiles,
    context: &NodeContext,
) -> Result<Finished, AgentError> {
    let mut input = json!({ "argv": call.argv });
    if let Some(stdin) = &call.stdin {
        input["stdin"] = stdin.clone();
    }
    let asked = context.node_call("exec", input);
    let mut report = OutputReporter::new(context.hub.as_redacted(), &context.redactor);
    let made = run(call, files, context, &mut report);
    let ended = context.call(asked, made, |ended| files.recorded(ended, &context.redactor)).await;
    let ended = ended.and_then(|(mut ended, source)| {
        let [stdout, stderr] = ended.recorded_bytes()?;
        if source != CallSource::Now {
            report.push(OutputStream::Stdout, stdout.as_deref().unwrap_or(ended.stdout.as_bytes()));
            report.push(OutputStream::Stderr, stderr.as_deref().unwrap_or(ended.stderr.as_bytes()));
        }
        Ok((ended, [stdout, stderr], source))
    });
    report.finish();
    let (mut finished, [stdout, stderr], source) = ended?;
    let [to_stdout, to_stderr] = match source {
        CallSource::Recording => files.create(&context.redactor)?,
        // What was run has written them, and a test writes nothing.
        CallSource::Now | CallSource::Test => [None, None],
    };
    let streams = [
        (to_stdout, &files.stdout, stdout, &mut finished.stdout),
        (to_stderr, &files.stderr, stderr, &mut finished.stderr),
    ];
    for (sink, file, bytes, text) in streams {
        if let Some(mut sink) = sink {
            sink.push(bytes.as_deref().unwrap_or(text.as_bytes()))?;
            sink.finish()?;
        }
        if let Some(bytes) = bytes {
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        // The output shows the end of a file; a recording has all of it.
        if file.is_some() {
            *text = tail(&context.redactor.text(text), TAIL).to_owned();
        }
    }
    Ok(finished)
}

async fn run(
    call: &ExecInput,
    files: &StreamFiles,
    context: &NodeContext,
    report: &mut OutputReporter,
) -> Result<Finished, AgentError> {
    let program = call.argv.first().cloned().unwrap_or_default();
    let folder = context.folder(call.cwd.as_deref());
    let attempt = context.attempt.to_string();
    let path = context.path.to_string();
    // What makes an effect idempotent: the same over all attempts of a node, or different with each.
    let own = [
        (SESSION_VARIABLE, context.hub.session_id().as_str()),
        ("INSPAN_NODE", &path),
        ("INSPAN_ATTEMPT", &attempt),
    ];
    let added = call.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let traced = context.trace_variables();
    let traced = traced.iter().flatten().map(|(name, value)| (*name, value.as_str()));
    let env = context.program_env()?.iter().chain(own).chain(traced).chain(added);
    let env: Vec<_> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let seen: Environment = env.iter().cloned().collect();
    let not_started = |error: &io::Error| not_started(&program, &folder, &seen, error);
    // Checked first: `files.create` makes the folders above a file, and would make one that is mistyped.
    if !folder.is_dir() {
        return Err(not_started(&io::ErrorKind::NotFound.into()));
    }
    let sinks = files.create(&context.redactor)?;
    let started = Process::start(&call.argv, &folder, env, context.host.supervisor.clone());
    let mut process = tokio::select! {
        biased;
        started = started => started.map_err(|error| not_started(&error))?,
        () = context.cancel.cancelled() => return Err(context.aborted()),
    };
    let stdin = match &call.stdin {
        Some(Value::String(text)) => text.clone().into_bytes(),
        Some(value) => value.to_string().into_bytes(),
        None => Vec::new(),
    };
    let ended = match process.run(stdin, sinks, report, &context.cancel).await {
        // One that ended by itself has done its work, also if it is cancelled in the same moment.
        Err(_) if context.cancel.is_cancelled() => return Err(context.aborted()),
        ended => ended?,
    };
    if let Some(error) = process.refused(&ended) {
        return Err(not_started(&error));
    }
    if let Some(error) = process.lost() {
        return Err(error);
    }
    let Ended { status, stdout, stderr, altered } = ended;
    for stream in altered {
        let (what, file) = match stream {
            OutputStream::Stdout => ("output", "stdoutFile"),
            OutputStream::Stderr => ("error output", "stderrFile"),
        };
        let what = format!("the {what} of `{program}`");
        context.warn_of_lost_bytes(&what, &format!("`{file}` writes it to a file as it is"));
    }
    let signal = status.code().is_none().then(|| status.to_string());
    Ok(Finished {
        stdout,
        stderr,
        stdout_base64: None,
        stderr_base64: None,
        exit_code: status.code(),
        signal,
    })
}

/// What the node gives, or why it has failed.
fn output(
    call: &ExecInput,
    files: StreamFiles,
    finished: Finished,
    redactor: &Redactor,
) -> Result<ExecOutput, AgentError> {
    let program = call.argv.first().cloned().unwrap_or_default();
    let Finished { stdout: raw, stderr, exit_code, signal, .. } = finished;
    // What is taken out of a text or cut off may be a part of a secret.
    let (stdout, stderr) = (redactor.text(&raw), redactor.text(&stderr));
    match exit_code {
        Some(code) if code == 0 || call.allow_exit.has(&code) => {
            let value = call
                .parse
                .map(|parse| parsed(parse, if parse == ExecParse::Json { &raw } else { &stdout }, &program))
                .transpose()?;
            let shown = |file: Option<PathBuf>| file.map(|file| file.to_string_lossy().into_owned());
            let (stdout_file, stderr_file) = (shown(files.stdout), shown(files.stderr));
            Ok(ExecOutput { stdout, stderr, exit_code: code, stdout_file, stderr_file, value })
        }
        code => {
            let how = match (code, signal) {
                (Some(code), _) => format!("exited with code {code}"),
                (None, signal) => format!("was killed by {}", signal.as_deref().unwrap_or("a signal")),
            };
            let said = cause(&stderr).or_else(|| cause(&stdout));
            let said = said.map(|line| format!(": {line}")).unwrap_or_default();
            Err(AgentError::new(ErrorCode::Process, format!("`{program}` {how}{said}")).with_detail(json!({
                "exitCode": code,
                "stdout": tail(&stdout, TAIL),
                "stderr": tail(&stderr, TAIL),
            })))
        }
    }
}

fn not_started(program: &str, folder: &Path, env: &Environment, error: &io::Error) -> AgentError {
    let cannot = |why: &dyn Display| format!("`{program}` cannot be started: {why}");
    let (code, message) = match error.kind() {
        io::ErrorKind::NotFound if folder.is_dir() => {
            let query = ProgramQuery { option: None, variable: "", name: program, hint: "" };
            let found = find(&query, env, Some(folder)).ok();
            if let Some(why) = found.and_then(|path| missing_interpreter(&path)) {
                return AgentError::new(ErrorCode::ConfigInvalid, cannot(&why)).with_kind(ErrorKind::Start);
            }
            let place = match program.contains('/') {
                false => "on the PATH".to_owned(),
                true => format!("in {}", folder.display()),
            };
            (ErrorCode::ConfigMissing, format!("there is no program `{program}` {place}"))
        }
        io::ErrorKind::NotFound => {
            let message = format!("there is no folder `{}`", folder.display());
            return AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::WorkingFolder);
        }
        // The system would refuse the same arguments again.
        io::ErrorKind::ArgumentListTooLong => {
            let why =
                "its arguments and variables are longer than the system allows: give a long text by `stdin`";
            (ErrorCode::ConfigInvalid, cannot(&why))
        }
        io::ErrorKind::InvalidInput => {
            let why = "an argument or a variable has a NUL character, which no program can be given";
            (ErrorCode::ConfigInvalid, cannot(&why))
        }
        _ => (ErrorCode::Process, cannot(error)),
    };
    AgentError::new(code, message)
}

fn parsed(parse: ExecParse, stdout: &str, program: &str) -> Result<Value, AgentError> {
    match parse {
        ExecParse::Text => Ok(Value::String(stdout.trim_end().to_owned())),
        ExecParse::Lines => Ok(stdout.lines().map(Value::from).collect()),
        ExecParse::Json => serde_json::from_str(stdout.trim_start_matches('\u{feff}')).map_err(|error| {
            AgentError::new(
                ErrorCode::OutputInvalid,
                format!("the output of `{program}` is not JSON: {error}"),
            )
        }),
    }
}

/// The line that says why a program failed: the last that calls itself an error, as those of git before its advice, else the
/// last of all.
fn cause(text: &str) -> Option<&str> {
    let lines = || text.lines().rev().filter(|line| !line.trim().is_empty() && !line.starts_with("hint:"));
    let of = |word: &str| lines().find(|line| line.starts_with(word));
    of("fatal:").or_else(|| of("error:")).or_else(|| lines().next())
}

fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

#[cfg(test)]
mod tests;
