//! A session in the background: this program called once more, in a session of its own, without a terminal.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use inspan_engine::{IdSource, RandomIds, create_private, create_private_dir_all, make_dir_private};
use inspan_flow::{RunStore, StoreError};
use inspan_protocol::SessionId;
use serde_json::json;

use crate::{
    exit::Exit,
    failure::Failure,
    invocation::{Form, Invocation},
    store, terminal,
};

/// How long the process in the background may take to begin.
const BEGINS: Duration = Duration::from_secs(20);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Begins a new session in the background, with this call's own arguments; prints its id.
pub(in crate::commands) fn run(id: Option<SessionId>, invocation: &Invocation) -> Result<Exit, Failure> {
    let id = id.unwrap_or_else(|| RandomIds::new().session_id());
    let named = ["--session-id".to_owned(), id.to_string()];
    let given = invocation.arguments.iter().any(|argument| {
        argument.to_str().is_some_and(|argument| argument.split('=').next() == Some("--session-id"))
    });
    begin(&id, if given { &[] } else { &named }, invocation)
}

/// Goes on with a session in the background, with this call's own arguments.
pub(in crate::commands) fn resume(id: &SessionId, invocation: &Invocation) -> Result<Exit, Failure> {
    begin(id, &[], invocation)
}

fn begin(id: &SessionId, more: &[String], invocation: &Invocation) -> Result<Exit, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("failed to {what} the background process: {error}"))
    };
    let log = log_file(id, invocation)?;
    let out = create_private(&log).map_err(|error| failed("write the log of", &error))?;
    let errors = out.try_clone().map_err(|error| failed("write the log of", &error))?;
    let arguments = invocation.arguments.iter().map(|argument| match argument.to_str() {
        Some("--detach") => OsStr::new("--detached"),
        _ => argument.as_os_str(),
    });
    let program = std::env::current_exe().map_err(|error| failed("find the program of", &error))?;
    let mut child = Command::new(program)
        .args(arguments)
        .args(more)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .spawn()
        .map_err(|error| failed("start", &error))?;
    let pid = child.id();
    let runtime = super::runtime()?;
    let begun = runtime.block_on(async {
        let mut store = None;
        for _ in 0..BEGINS.as_millis() / LOOK.as_millis() {
            tokio::time::sleep(LOOK).await;
            if store.is_none() {
                store = store::open_writer(invocation).ok();
            }
            if let Some(store) = &store
                && is_driven(&**store, id, pid).await
            {
                return Ok(());
            }
            // A short session may have ended by now, and that is as good as begun.
            match child.try_wait() {
                Ok(Some(status)) if status.success() || is_kept(store.as_deref(), id).await => return Ok(()),
                Ok(Some(_)) => return Err(Failure::new(Exit::Failed, said(&log))),
                Ok(None) => {}
                Err(error) => return Err(failed("watch", &error)),
            }
        }
        Err(Failure::new(
            Exit::Failed,
            format!("the background process {pid} did not begin within {BEGINS:?}"),
        ))
    });
    begun.map_err(|failure| failure.with_hint(format!("its log is {}", log.display())))?;
    match invocation.form {
        Form::Json => invocation.json(&json!({ "sessionId": id, "pid": pid, "log": log })),
        Form::Text => {
            terminal::data_line(id.as_str());
            terminal::progress(&format!(
                "process {pid} runs it; watch it with `inspan logs {id} -f`, see its questions with `inspan inbox`\n"
            ));
        }
    }
    Ok(Exit::Success)
}

/// Whether the process drives the session, or has driven it.
async fn is_driven(store: &dyn RunStore, id: &SessionId, pid: u32) -> bool {
    match store.entry(id).await {
        Ok(entry) => entry.owner.is_some_and(|owner| owner.pid == pid),
        Err(StoreError::UnknownSession(_)) => false,
        Err(_) => false,
    }
}

/// Whether the session is in the store: then it began, however it has ended or come to rest by now.
async fn is_kept(store: Option<&dyn RunStore>, id: &SessionId) -> bool {
    match store {
        Some(store) => store.entry(id).await.is_ok_and(|entry| entry.digest.started_at.is_some()),
        None => false,
    }
}

fn log_file(id: &SessionId, invocation: &Invocation) -> Result<PathBuf, Failure> {
    let store = store::path(invocation)?;
    let folder = store.parent().map_or_else(|| PathBuf::from("."), Path::to_owned).join("background");
    create_private_dir_all(&folder).and_then(|()| make_dir_private(&folder)).map_err(|error| {
        Failure::new(Exit::Configuration, format!("folder {} cannot be made: {error}", folder.display()))
    })?;
    Ok(folder.join(format!("{id}.log")))
}

/// What the process said before it ended.
fn said(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let text = text.trim();
    let said = text.strip_prefix("error: ").unwrap_or(text);
    if said.is_empty() { "the background process ended at once".to_owned() } else { said.to_owned() }
}

/// Leaves the terminal and the group of the one who started us, so that their end is not ours.
pub(crate) fn leave_terminal() {
    #[cfg(unix)]
    // It fails only for the leader of a group, which then has left already.
    let _ = rustix::process::setsid();
}
