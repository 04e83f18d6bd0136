//! A session in the background: this program called once more, in its own process session, without a
//! terminal.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{PipeReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::mpsc,
    time::Duration,
};

use inspan_engine::{
    IdSource, RandomIds, SESSION_VARIABLE, append_private, create_private_dir_all, make_dir_private,
};
use inspan_protocol::SessionId;
use inspan_sessions::SessionErrorCode;
use serde_json::{Value, json};

use crate::{
    args::{InputValue, RunModeArgs},
    artifacts,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    store, terminal,
};

/// How long the process in the background may take to begin.
const BEGINS: Duration = Duration::from_secs(20);
/// The most links that a path to a file leads through, as for Linux.
const MOST_LINKS: usize = 40;
/// What it says once it drives the session.
const BEGUN: &[u8; 6] = b"begun\n";

/// Refuses a background process that cannot be, before the command does anything. `files` are the options with a file that
/// it reads, `values` may have files too.
pub(in crate::commands) fn check(
    mode: &RunModeArgs,
    files: &[(&str, Option<&Path>)],
    values: &[InputValue],
    invocation: &Invocation,
) -> Result<(), Failure> {
    if !mode.detach || invocation.engine.is_some() {
        return Ok(());
    }
    let files = files.iter().filter_map(|(option, file)| Some((format!("{option} "), (*file)?)));
    let values =
        values.iter().filter_map(|given| Some((format!("-i {}=@", given.key), given.file.as_deref()?)));
    if let Some((option, file)) = files.chain(values).find(|(_, file)| belongs_to_this_process(file)) {
        let file = file.display();
        let what =
            format!("`{option}{file}` reads stdin or a pipe, which a background process does not have");
        return Err(Failure::usage(what).with_hint(format!("name a file: `{option}FILE`")));
    }
    if mode.events.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage(
            "`--events -` writes to stdout, which a background process does not have",
        )
        .with_hint("name a file: `--events FILE`"));
    }
    // Nothing that a node starts outlives it, so the new process would be killed at once.
    if let Some(around) = invocation.env.get(SESSION_VARIABLE) {
        let what = format!(
            "`--detach` is not possible within session `{around}`: what a node starts ends with the node"
        );
        return Err(
            Failure::usage(what).with_hint("leave `--detach` out: the node waits for the session then")
        );
    }
    Ok(())
}

/// Whether a path names stdin or a pipe, which another process does not have or cannot read again.
fn belongs_to_this_process(file: &Path) -> bool {
    let is_special =
        |file| fs::metadata(file).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
    file == Path::new("-") || is_special(file) || is_open_here(file)
}

/// Whether a path leads through the files that a process has open: `/dev/stdin` is a link to one of them, and also a regular
/// file is another one, or none, in another process.
fn is_open_here(file: &Path) -> bool {
    let mut file = file.to_owned();
    for _ in 0..MOST_LINKS {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Ok(folder) = folder.canonicalize() else { return false };
        if ["/dev/fd", "/proc"].iter().any(|place| folder.starts_with(place)) {
            return true;
        }
        let Ok(link) = fs::read_link(&file) else { return false };
        file = folder.join(link);
    }
    false
}

/// Begins a new session in the background, with this call's own arguments; prints its id.
pub(in crate::commands) fn run(id: Option<SessionId>, invocation: &Invocation) -> Result<Exit, Failure> {
    let id = id.unwrap_or_else(|| RandomIds::new().session_id());
    let named = ["--session-id".to_owned(), id.to_string()];
    let given = invocation.arguments.iter().any(|argument| {
        argument.to_str().is_some_and(|argument| argument.split('=').next() == Some("--session-id"))
    });
    begin(&id, if given { &[] } else { &named }, invocation)
}

/// Continues a session in the background, with this call's own arguments.
pub(in crate::commands) fn resume(id: &SessionId, invocation: &Invocation) -> Result<Exit, Failure> {
    begin(id, &[], invocation)
}

fn begin(id: &SessionId, more: &[String], invocation: &Invocation) -> Result<Exit, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("failed to {what} the background process: {error}"))
    };
    let log = log_file(id, invocation)?;
    let out = append_private(&log).map_err(|error| failed("write the log of", &error))?;
    // Another process may use this id, also one that runs the session: nothing that it wrote is lost or read.
    let from = out.metadata().map_err(|error| failed("read the log of", &error))?.len();
    let errors = out.try_clone().map_err(|error| failed("write the log of", &error))?;
    let arguments = invocation.arguments.iter().map(|argument| match argument.to_str() {
        Some("--detach") => OsStr::new("--detached"),
        _ => argument.as_os_str(),
    });
    let (reader, writer) = std::io::pipe().map_err(|error| failed("make a pipe to", &error))?;
    let program = std::env::current_exe().map_err(|error| failed("find the program of", &error))?;
    let mut child = Command::new(program)
        .args(arguments)
        .args(more)
        .stdin(writer)
        .stdout(out)
        .stderr(errors)
        .spawn()
        .map_err(|error| failed("start", &error))?;
    let pid = child.id();
    wait_until_begun(reader, &mut child, &log, from).map_err(|failure| match failure.hint {
        None => failure.with_hint(format!("its log is {}", log.display())),
        Some(_) => failure,
    })?;
    match invocation.form {
        OutputForm::Json => invocation.json(&json!({ "sessionId": id, "pid": pid, "log": log })),
        OutputForm::Text => {
            terminal::data_line(id.as_str());
            let text = format!(
                "running in the background as process {pid}; watch it with `inspan logs {id} -f`, see its questions with `inspan inbox`\n"
            );
            terminal::progress(&invocation.commands().complete(&text));
        }
    }
    Ok(Exit::Success)
}

/// Waits until the process in the background says that it drives the session; its own error and exit code if it does
/// not.
fn wait_until_begun(mut reader: PipeReader, child: &mut Child, log: &Path, from: u64) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    // It ends with the process, which holds the other end.
    std::thread::spawn(move || {
        let mut word = [0; BEGUN.len()];
        let begun = reader.read_exact(&mut word).is_ok_and(|()| word == *BEGUN);
        // The receiver may be gone.
        let _ = sender.send(begun);
    });
    match receiver.recv_timeout(BEGINS) {
        Ok(true) => Ok(()),
        Ok(false) => match child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                let exit = Exit::ALL.iter().find(|(_, number, ..)| Some(*number) == code);
                Err(said(log, from, exit.map_or(Exit::Failed, |(exit, ..)| *exit)))
            }
            Err(error) => {
                Err(Failure::new(Exit::Failed, format!("failed to watch the background process: {error}")))
            }
        },
        Err(_) => {
            // Nobody waits for what it may still do.
            let ended = child.kill().and_then(|()| child.wait());
            let ended =
                ended.map_or_else(|error| format!("cannot be ended: {error}"), |_| "was ended".into());
            let message = format!(
                "the background process did not start within {BEGINS:?}; process {} {ended}",
                child.id()
            );
            Err(Failure::new(Exit::Failed, message))
        }
    }
}

/// In the process in the background: says to the one that started it that it drives the session. Its standard input is
/// the pipe to there.
pub(super) fn tell_begun() {
    if let Ok(pipe) = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned() {
        // The listener may be gone.
        let _ = File::from(pipe).write_all(BEGUN);
    }
}

fn log_file(id: &SessionId, invocation: &Invocation) -> Result<PathBuf, Failure> {
    let store = store::path(invocation)?;
    let folder = artifacts::background(&store);
    create_private_dir_all(&folder).and_then(|()| make_dir_private(&folder)).map_err(|error| {
        Failure::new(Exit::Configuration, format!("folder {} cannot be made: {error}", folder.display()))
    })?;
    Ok(artifacts::background_log(&store, id))
}

/// What the process wrote before it ended, after so many bytes of its log, as a failure with the exit code that it had.
fn said(log: &Path, from: u64, exit: Exit) -> Failure {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(text.get(from as usize..).unwrap_or_default());
    let text = text.trim();
    // Warnings of the flow may come first. With `--json` an object is among the text for people; another process that has
    // begun the same session may have written its own there.
    let object = text.match_indices('{').find_map(|(at, _)| {
        if at > 0 && !text[..at].ends_with('\n') {
            return None;
        }
        let value = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>().next()?.ok()?;
        (value["exitCode"] == exit.code() && value["error"]["message"].is_string()).then_some(value)
    });
    if let Some(value) = object
        && let Some(message) = value["error"]["message"].as_str()
    {
        let code = value["error"]["code"].as_str().and_then(SessionErrorCode::of_word);
        let failure = Failure::new(exit, message);
        let option = serde_json::from_value(value["error"]["option"].clone()).ok();
        let failure = Failure { code: code.unwrap_or(failure.code), option, ..failure };
        return match value["error"]["hint"].as_str() {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        };
    }
    let start = text.rfind("\nerror: ").map_or(0, |at| at + 1);
    let text = text[start..].strip_prefix("error: ").unwrap_or(text);
    match text.split_once("\n  help: ") {
        _ if text.is_empty() => Failure::new(exit, "the background process exited immediately"),
        Some((message, hint)) => Failure::new(exit, message).with_hint(hint),
        None => Failure::new(exit, text),
    }
}

/// Leaves the terminal and the group of the one who started us, so that their end is not ours.
pub(crate) fn leave_terminal() {
    // It fails only for the leader of a group, which then has left already.
    let _ = rustix::process::setsid();
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsRawFd, unix::fs::symlink};

    use super::*;

    #[test]
    fn a_file_that_is_reached_through_the_open_files_of_this_process_is_no_file_of_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| folder.path().join(name);
        fs::write(named("file"), "{}").unwrap();
        let file = File::open(named("file")).unwrap();
        let open = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
        symlink("file", named("link")).unwrap();
        symlink(&open, named("open")).unwrap();
        symlink("open", named("far")).unwrap();
        symlink("/dev", named("devices")).unwrap();
        let through = named("devices").join(format!("fd/{}", file.as_raw_fd()));
        for (path, expected) in [
            (named("file"), false),
            (named("link"), false),
            (named("missing"), false),
            (open, true),
            (named("open"), true),
            (named("far"), true),
            (through, true),
            (named("devices/null"), true),
            (PathBuf::from("-"), true),
        ] {
            assert_eq!(belongs_to_this_process(&path), expected, "{}", path.display());
        }
        // A regular file in a folder of devices is one like any other.
        if let Ok(shared) = tempfile::NamedTempFile::new_in("/dev/shm") {
            assert!(!belongs_to_this_process(shared.path()));
        }
    }

    #[test]
    fn the_failure_of_a_process_is_found_among_what_another_one_of_the_same_session_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("s.log");
        let refused = Failure::usage("there is one").with_code(SessionErrorCode::SessionExists);
        let ended =
            json!({ "sessionId": "s", "outcome": "failed", "exitCode": 1, "error": { "message": "no" } });
        fs::write(&log, format!("{ended:#}\n{}\n", refused.json())).unwrap();
        let found = said(&log, 0, Exit::Invalid);
        assert_eq!((found.code, found.message), (SessionErrorCode::SessionExists, "there is one".to_owned()));
    }
}
