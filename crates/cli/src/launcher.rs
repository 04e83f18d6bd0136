//! How the HTTP API, MCP and ACP start sessions: this program is called once more,
//! `inspan run … --detach --json`, so that a session outlives its caller. If the command line would
//! ask a person first, for example about a forecast above the limit, nothing is started.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use inspan_engine::{IdSource, RandomIds, SESSION_VARIABLE, create_private_dir_all, make_dir_private};
use inspan_flow::RunStore;
use inspan_protocol::{Redactor, SessionId};
use inspan_sessions::{
    ForkOptions, ForkPoint, Launcher, RegisteredFlow, ResumeOptions, ResumeTo, SessionError,
    SessionErrorCode, Sessions, StartOptions, async_trait,
};
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::artifacts;
use crate::commands::secrets;
use crate::exit::Exit;
use crate::failure::{Failure, RefusedOption};
use crate::invocation::Invocation;
use crate::store;

mod flows;

/// How long the program may take to start a session. It gives up by itself before that.
const STARTS: Duration = Duration::from_secs(60);

/// The ending of a file that passes a text on to the program.
const PASSED_ON: &str = "tmp";

/// The sessions of this call's store, and the flows of these folders.
///
/// # Errors
/// The store cannot be opened or made.
pub(crate) fn sessions(folders: Vec<PathBuf>, invocation: &Invocation) -> Result<Sessions, Failure> {
    let store = store::open_writer(invocation)?;
    let launcher = Arc::new(ProgramLauncher::new(folders, invocation)?);
    Ok(of_store(store, invocation)?.with_launcher(launcher))
}

/// These sessions, with what starts and resumes others: no folder of flows is registered.
pub(crate) fn with_launcher(sessions: Sessions, invocation: &Invocation) -> Result<Sessions, Failure> {
    Ok(sessions.with_launcher(Arc::new(ProgramLauncher::new(Vec::new(), invocation)?)))
}

/// The sessions of the store, to be read.
pub(crate) fn reader(invocation: &Invocation) -> Result<Sessions, Failure> {
    of_store(store::open_reader(invocation)?, invocation)
}

fn of_store(store: Arc<dyn RunStore>, invocation: &Invocation) -> Result<Sessions, Failure> {
    let artifacts = artifacts::all(&store::path(invocation)?);
    Ok(store::sessions(store).with_artifacts(artifacts).with_commands(invocation.commands_anywhere()))
}

/// Starts sessions by calling this program.
pub(crate) struct ProgramLauncher {
    program: PathBuf,
    store: PathBuf,
    folders: Vec<PathBuf>,
    invocation: Invocation,
}

impl ProgramLauncher {
    fn new(folders: Vec<PathBuf>, invocation: &Invocation) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::new(Exit::Failed, format!("failed to find this program: {error}")))?;
        let store = store::path(invocation)?;
        let store = std::path::absolute(&store).map_err(|error| {
            Failure::new(Exit::Failed, format!("failed to find {}: {error}", store.display()))
        })?;
        let launcher = Self { program, store, folders, invocation: invocation.clone() };
        launcher.remove_leftovers();
        Ok(launcher)
    }

    async fn registered(&self) -> Result<Vec<RegisteredFlow>, SessionError> {
        let (folders, invocation) = (self.folders.clone(), self.invocation.clone());
        tokio::task::spawn_blocking(move || flows::registered(&folders, &invocation))
            .await
            .map_err(|error| failed(format!("failed to read the flows: {error}")))
    }

    /// The file of a registered flow, by its id or its path.
    async fn file(&self, flow: &str) -> Result<PathBuf, SessionError> {
        let flows = self.registered().await?;
        let found = flows.iter().find(|known| known.id == flow).or_else(|| {
            let path = Path::new(flow).canonicalize().ok()?;
            flows.iter().find(|known| known.file.canonicalize().is_ok_and(|file| file == path))
        });
        match found {
            Some(flow) => Ok(flow.file.clone()),
            None => {
                let known: Vec<_> = flows.iter().map(|flow| format!("`{}`", flow.id)).collect();
                let message = format!("there is no flow `{flow}` in the registered folders");
                let hint = if known.is_empty() {
                    "they hold no flow".to_owned()
                } else {
                    format!("they hold {}", known.join(", "))
                };
                Err(SessionError::new(SessionErrorCode::UnknownFlow, message).with_hint(hint))
            }
        }
    }

    /// Removes the files that a process which was killed has left.
    fn remove_leftovers(&self) {
        let is_left = |path: &Path| {
            let modified = path.metadata().and_then(|found| found.modified());
            path.extension() == Some(OsStr::new(PASSED_ON))
                && modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > 2 * STARTS))
        };
        for entry in std::fs::read_dir(artifacts::background(&self.store)).into_iter().flatten().flatten() {
            if is_left(&entry.path()) {
                // What cannot be removed is the user's alone.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// A text as a file that only the user can read: arguments can be seen by others.
    async fn private_file(&self, text: String) -> Result<PrivateFile, SessionError> {
        let folder = artifacts::background(&self.store);
        // The name is nobody's choice, so that no other file is meant.
        let path = folder.join(format!("{}.{PASSED_ON}", fresh_id()));
        let created = create_private_dir_all(&folder)
            .and_then(|()| make_dir_private(&folder))
            .and_then(|()| inspan_engine::create_private(&path));
        let written = async {
            let mut created = tokio::fs::File::from_std(created?);
            let file = PrivateFile(path.clone());
            created.write_all(text.as_bytes()).await?;
            created.flush().await?;
            Ok(file)
        };
        written.await.map_err(|error: std::io::Error| {
            let code = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => SessionErrorCode::StoreUnavailable,
                _ => SessionErrorCode::Failed,
            };
            SessionError::new(code, format!("failed to write {}: {error}", path.display()))
        })
    }

    async fn input_file(&self, input: &Map<String, Value>) -> Result<PrivateFile, SessionError> {
        self.private_file(Value::Object(input.clone()).to_string()).await
    }

    /// Calls the program; the id of the session that it started.
    async fn call(&self, arguments: Arguments, cwd: Option<&Path>) -> Result<SessionId, SessionError> {
        let mut command = Command::new(&self.program);
        command.args(arguments.0).arg("--detach").arg("--json");
        // Within a node this program lives as long as that, and its sessions do too.
        command.env_remove(SESSION_VARIABLE);
        match &self.invocation.engine {
            Some(engine) => command.arg("--engine").arg(engine),
            None => command.arg("--store").arg(&self.store),
        };
        let cwd = cwd.or(self.invocation.cwd.as_deref());
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        // It is not killed when the caller stops waiting: the request is still carried out.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = tokio::time::timeout(STARTS, command.output()).await;
        let output = match ended {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                return Err(failed(match cwd.filter(|cwd| !cwd.is_dir()) {
                    Some(gone) => {
                        format!("the folder {} is gone, in which sessions are started", gone.display())
                    }
                    None => format!("failed to call {}: {error}", self.program.display()),
                }));
            }
            Err(_) => return Err(failed(format!("the session did not start within {STARTS:?}"))),
        };
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        match (output.status.success(), printed["sessionId"].as_str()) {
            (true, Some(id)) => Ok(SessionId::from(id)),
            _ => Err(refusal(&printed, output.status.code(), &String::from_utf8_lossy(&output.stderr))),
        }
    }
}

#[async_trait]
impl Launcher for ProgramLauncher {
    async fn start(
        &self,
        flow: &str,
        input: &Map<String, Value>,
        options: &StartOptions,
    ) -> Result<SessionId, SessionError> {
        let file = self.file(flow).await?;
        let input = self.input_file(input).await?;
        let arguments = Arguments::of("run", &file)
            .session(options.session_id.as_ref())
            .each("--request", &options.request)
            .file("--input-file", Some(&input))
            .budget(&options.budget)
            .each("--provider", &options.provider)
            .each("--model", &options.model)
            .each("--max-concurrency", options.max_concurrency)
            .flag("--yes", options.confirmed);
        self.call(arguments, options.cwd.as_deref()).await
    }

    async fn resume(&self, session: &SessionId, options: &ResumeOptions) -> Result<SessionId, SessionError> {
        let message = match &options.message {
            Some(text) => Some(self.private_file(text.clone()).await?),
            None => None,
        };
        let arguments = Arguments::of("resume", session.as_str())
            .flag("--as-started", true)
            .flag("--in-place", options.in_place)
            .session(options.session_id.as_ref())
            .each("--request", &options.request)
            .each("--from", &options.from)
            .file("--message-file", message.as_ref())
            .budget(&options.budget);
        self.call(arguments, None).await
    }

    async fn check_resume(&self, session: &SessionId, to: ResumeTo) -> Result<(), SessionError> {
        let (session, invocation) = (session.clone(), self.invocation.clone());
        let checked = tokio::task::spawn_blocking(move || {
            store::read(&invocation, async |store| match to {
                ResumeTo::Continue => secrets::check_stored(&*store, &session, &invocation).await,
                ResumeTo::Stop => secrets::check_stop(&*store, &session, &invocation).await,
            })
        });
        let checked =
            checked.await.map_err(|error| failed(format!("failed to read the session: {error}")))?;
        checked.map_err(|failure| {
            let error = SessionError::new(failure.code, failure.message);
            failure.hint.into_iter().fold(error, SessionError::with_hint)
        })
    }

    fn redacted(&self, text: &str) -> String {
        Redactor::new(&self.invocation.session_env()).text(text)
    }

    async fn fork(
        &self,
        session: &SessionId,
        at: Option<&ForkPoint>,
        input: &Map<String, Value>,
        options: &ForkOptions,
    ) -> Result<SessionId, SessionError> {
        let at = match at {
            None => None,
            Some(ForkPoint::Event(seq)) => Some(seq.to_string()),
            // The command line would read it as that of an event.
            Some(ForkPoint::Node(node)) if node.as_str().parse::<u64>().is_ok() => {
                let message =
                    format!("`{node}` is not a node of the flow; an event is named by a number, not a text");
                return Err(SessionError::new(SessionErrorCode::UnknownNode, message));
            }
            Some(ForkPoint::Node(node)) => Some(node.to_string()),
        };
        let input = self.input_file(input).await?;
        let arguments = Arguments::of("fork", session.as_str())
            .session(options.session_id.as_ref())
            .each("--request", &options.request)
            .each("--at", at)
            .file("--input-file", Some(&input));
        self.call(arguments, None).await
    }

    async fn flows(&self) -> Result<Vec<RegisteredFlow>, SessionError> {
        self.registered().await
    }
}

fn fresh_id() -> SessionId {
    RandomIds::new().session_id()
}

/// A file that is there for one call: the session has its content then. If it cannot be removed, it is the user's alone.
struct PrivateFile(PathBuf);

impl Drop for PrivateFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The arguments of one call of the program.
struct Arguments(Vec<OsString>);

impl Arguments {
    /// A command and what it is about.
    fn of(command: &str, about: impl AsRef<OsStr>) -> Self {
        Self(vec![command.into(), about.as_ref().to_owned()])
    }

    fn flag(mut self, name: &str, is_set: bool) -> Self {
        self.0.extend(is_set.then(|| name.into()));
        self
    }

    /// An option for each value. A value that begins with a dash is no option.
    fn each(mut self, name: &str, values: impl IntoIterator<Item = impl Display>) -> Self {
        self.0.extend(values.into_iter().map(|value| format!("{name}={value}").into()));
        self
    }

    fn session(self, id: Option<&SessionId>) -> Self {
        self.each("--session-id", id)
    }

    fn budget(self, limits: &BTreeMap<String, f64>) -> Self {
        self.each("--budget", limits.iter().map(|(name, limit)| format!("{name}={limit}")))
    }

    fn file(mut self, name: &str, file: Option<&PrivateFile>) -> Self {
        self.0.extend(file.into_iter().flat_map(|file| [name.into(), file.0.clone().into_os_string()]));
        self
    }
}

fn failed(message: String) -> SessionError {
    SessionError::new(SessionErrorCode::Failed, message)
}

/// An option by the name that it has in the API: `maxConcurrency` of `max-concurrency`.
fn name_in_api(option: &str) -> String {
    let mut words = option.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        name + &initial.to_uppercase() + rest
    })
}

/// Why the program started nothing, as it printed it.
fn refusal(printed: &Value, exit: Option<i32>, stderr: &str) -> SessionError {
    let named = printed["error"]["code"].as_str().and_then(SessionErrorCode::of_word);
    let code = named.unwrap_or(match exit {
        Some(2) => SessionErrorCode::InvalidInput,
        _ => SessionErrorCode::Failed,
    });
    let option: Option<RefusedOption> = serde_json::from_value(printed["error"]["option"].clone()).ok();
    let message = match (option, printed["error"]["message"].as_str()) {
        // Who calls the API knows no command line.
        (Some(option), _) => format!("{}: {}", name_in_api(&option.name), option.reason),
        (None, Some(message)) => message.to_owned(),
        (None, None) => stderr.lines().last().unwrap_or("the session did not start").to_owned(),
    };
    let mut error = SessionError::new(code, message);
    // How the command line takes input is of no use to who calls the API or a tool.
    let hint = printed["error"]["hint"].as_str().filter(|_| code != SessionErrorCode::InvalidInput);
    error.hint = hint.map(str::to_owned);
    error.diagnostics = printed["diagnostics"].as_array().cloned().unwrap_or_default();
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, meant};

    #[test]
    fn no_message_names_an_option_of_the_command_line() {
        let wrong = ["--budget=usd=0", "--max-concurrency=0", "--max-concurrency=much", "--session-id=../x"];
        let refused = wrong.map(|option| {
            let error = Cli::try_parse_from(["inspan", "run", "flow.yaml", option]).unwrap_err();
            refusal(&Failure::of_command_line(&meant(error)).json(), Some(2), "").message
        });
        assert_eq!(
            refused,
            [
                "budget: `0` is not an amount of US dollars above 0",
                "maxConcurrency: must be at least 1",
                "maxConcurrency: not a whole number",
                "sessionId: a session id is 1 to 128 letters, digits, `-`, `_` or `.`",
            ]
        );
        let refused = refusal(&Failure::of_option("budget", "unknown node `x`").json(), Some(2), "");
        assert_eq!(refused.message, "budget: unknown node `x`");
        let refused = refusal(&Failure::usage("the flow needs a value for `who`").json(), Some(2), "");
        assert_eq!(refused.message, "the flow needs a value for `who`");
    }
}
