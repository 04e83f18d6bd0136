//! How doors start sessions: this program called once more, `inspan run … --detach --json`, so that a session outlives the
//! door. What the command line asks about, such as a forecast above the limit, is asked about here too: it starts nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use inspan_engine::{IdSource, RandomIds, SystemClock, create_private_dir_all, make_dir_private};
use inspan_protocol::SessionId;
use inspan_sessions::{
    ForkOptions, ForkPoint, Launcher, RegisteredFlow, ResumeOptions, SessionError, SessionErrorCode,
    Sessions, StartOptions,
};
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::artifacts;
use crate::commands::registries;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::store;

mod flows;

/// How long the program may take to start a session. It gives up by itself before that.
const STARTS: Duration = Duration::from_secs(60);

/// The sessions of this call's store, and the flows of these folders.
///
/// # Errors
/// The store cannot be opened or made.
pub(crate) fn sessions(folders: Vec<PathBuf>, invocation: &Invocation) -> Result<Sessions, Failure> {
    let store = store::open_writer(invocation)?;
    let launcher = Arc::new(ProgramLauncher::new(folders, invocation)?);
    let nodes = registries::nodes(&registries::providers());
    let sessions = Sessions::new(store, nodes, Arc::new(SystemClock)).with_launcher(launcher);
    Ok(sessions.with_artifacts(artifacts::all(&store::path(invocation)?)))
}

/// The sessions of the store, to be read.
pub(crate) fn reader(invocation: &Invocation) -> Result<Sessions, Failure> {
    let store = store::open_reader(invocation)?;
    let nodes = registries::nodes(&registries::providers());
    let sessions = Sessions::new(store, nodes, Arc::new(SystemClock));
    Ok(sessions.with_artifacts(artifacts::all(&store::path(invocation)?)))
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
        Ok(Self { program, store, folders, invocation: invocation.clone() })
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

    /// The input as a file that only the user can read: arguments can be seen by others.
    async fn input_file(&self, id: &SessionId, input: &Map<String, Value>) -> Result<PathBuf, SessionError> {
        let folder = self.store.parent().unwrap_or(Path::new(".")).join("background");
        let file = folder.join(format!("{id}.input.json"));
        let written = async {
            create_private_dir_all(&folder)?;
            make_dir_private(&folder)?;
            let mut created = tokio::fs::File::from_std(inspan_engine::create_private(&file)?);
            created.write_all(Value::Object(input.clone()).to_string().as_bytes()).await?;
            created.flush().await
        };
        match written.await {
            Ok(()) => Ok(file),
            Err(error) => Err(failed(format!("failed to write the input to {}: {error}", file.display()))),
        }
    }

    /// Calls the program; the id of the session that it started.
    async fn call(&self, arguments: Vec<OsString>, cwd: Option<&Path>) -> Result<SessionId, SessionError> {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--detach").arg("--json").arg("--store").arg(&self.store);
        if let Some(cwd) = cwd.or(self.invocation.cwd.as_deref()) {
            command.current_dir(cwd);
        }
        // It is not killed when nobody waits any more: what was asked for is done.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = tokio::time::timeout(STARTS, command.output()).await;
        let output = match ended {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                return Err(failed(format!("failed to call {}: {error}", self.program.display())));
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

impl Launcher for ProgramLauncher {
    fn start<'a>(
        &'a self,
        flow: &'a str,
        input: &'a Map<String, Value>,
        options: &'a StartOptions,
    ) -> BoxFuture<'a, Result<SessionId, SessionError>> {
        async move {
            let file = self.file(flow).await?;
            let id = options.session_id.clone().unwrap_or_else(|| RandomIds::new().session_id());
            let input = self.input_file(&id, input).await?;
            let mut arguments = words(&["run"]);
            arguments.push(file.into());
            arguments.extend(words(&["--session-id", id.as_str(), "--input-file"]));
            arguments.push(input.clone().into());
            if let Some(usd) = options.budget_usd {
                arguments.extend(words(&["--budget", &format!("usd={usd}")]));
            }
            arguments.extend(options.provider.iter().flat_map(|provider| words(&["--provider", provider])));
            arguments.extend(options.model.iter().flat_map(|model| words(&["--model", model])));
            if options.confirmed {
                arguments.push("--yes".into());
            }
            if let Some(most) = options.max_concurrency {
                arguments.extend(words(&["--max-concurrency", &most.to_string()]));
            }
            let started = self.call(arguments, options.cwd.as_deref()).await;
            // The session has it now; if it cannot be removed, it is the user's alone.
            let _ = tokio::fs::remove_file(&input).await;
            started
        }
        .boxed()
    }

    fn resume<'a>(
        &'a self,
        session: &'a SessionId,
        options: &'a ResumeOptions,
    ) -> BoxFuture<'a, Result<SessionId, SessionError>> {
        async move {
            let mut arguments = words(&["resume", session.as_str(), "--as-started"]);
            if let Some(message) = &options.message {
                arguments.push(format!("--message={message}").into());
            }
            if let Some(usd) = options.budget_usd {
                arguments.extend(words(&["--budget", &format!("usd={usd}")]));
            }
            if let Some(id) = &options.session_id {
                arguments.extend(words(&["--session-id", id.as_str()]));
            }
            self.call(arguments, None).await
        }
        .boxed()
    }

    fn fork<'a>(
        &'a self,
        session: &'a SessionId,
        at: Option<&'a ForkPoint>,
        input: &'a Map<String, Value>,
        options: &'a ForkOptions,
    ) -> BoxFuture<'a, Result<SessionId, SessionError>> {
        async move {
            let mut arguments = words(&["fork", session.as_str()]);
            match at {
                Some(ForkPoint::Event(seq)) => arguments.extend(words(&["--at", &seq.to_string()])),
                Some(ForkPoint::Node(node)) => arguments.extend(words(&["--at", node.as_str()])),
                None => {}
            }
            for (key, value) in input {
                arguments.push("--input".into());
                arguments.push(format!("{key}={value}").into());
            }
            if let Some(id) = &options.session_id {
                arguments.extend(words(&["--session-id", id.as_str()]));
            }
            self.call(arguments, None).await
        }
        .boxed()
    }

    fn flows(&self) -> BoxFuture<'_, Result<Vec<RegisteredFlow>, SessionError>> {
        self.registered().boxed()
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn failed(message: String) -> SessionError {
    SessionError::new(SessionErrorCode::Failed, message)
}

/// Why the program started nothing, as it printed it.
fn refusal(printed: &Value, exit: Option<i32>, stderr: &str) -> SessionError {
    let code = match exit {
        Some(2) if printed.get("diagnostics").is_some() => SessionErrorCode::InvalidFlow,
        Some(2) => SessionErrorCode::InvalidInput,
        Some(4) => SessionErrorCode::Configuration,
        _ => SessionErrorCode::Failed,
    };
    let message = match printed["error"]["message"].as_str() {
        Some(message) => message.to_owned(),
        None => stderr.lines().last().unwrap_or("the session did not start").to_owned(),
    };
    let mut error = SessionError::new(code, message);
    error.hint = printed["error"]["hint"].as_str().map(str::to_owned);
    error.diagnostics = printed["diagnostics"].as_array().cloned().unwrap_or_default();
    error
}
