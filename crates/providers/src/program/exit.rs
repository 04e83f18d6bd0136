//! The error for a program that ended too early, and the parts of its output that an error may quote.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, beginning, ending};
use serde_json::json;

pub(crate) use inspan_process::Exit;
use inspan_process::Process;

/// How long a program whose connection broke, or whose output ended, may take to exit.
pub(crate) const EXIT_AFTER_BREAK: Duration = Duration::from_secs(1);

/// The error for a program that ended before its turn did, whatever its exit code. `explain` knows the vendor's own
/// words.
pub(crate) fn died(
    process: &Process,
    exit: Exit,
    explain: impl FnOnce(Exit, &str) -> Option<AgentError>,
) -> AgentError {
    process.refused().or_else(|| process.lost()).unwrap_or_else(|| exited(exit, &process.stderr(), explain))
}

/// The error for a program whose output ended before its turn did. `own` is how it ended by itself within
/// [`EXIT_AFTER_BREAK`], and `exit` how it ended at last.
pub(crate) fn broken_off(
    process: &Process,
    own: Option<Exit>,
    exit: Exit,
    explain: impl FnOnce(Exit, &str) -> Option<AgentError>,
) -> AgentError {
    match own {
        Some(_) => died(process, exit, explain),
        // It was made to end.
        None => explain(exit, &process.stderr()).unwrap_or_else(|| silenced(process)),
    }
}

fn silenced(process: &Process) -> AgentError {
    let message = format!("the program closed its output before its turn ended; {}", said(&process.stderr()));
    AgentError::new(ErrorCode::Process, message).with_kind(ErrorKind::ProcessDied)
}

/// As [`died`], of a program with this output on stderr.
pub(crate) fn exited(
    exit: Exit,
    stderr: &str,
    explain: impl FnOnce(Exit, &str) -> Option<AgentError>,
) -> AgentError {
    if let Some(error) = explain(exit, stderr) {
        return error;
    }
    let message = format!("the program ended ({exit}) before its turn did; {}", said(stderr));
    let detail = json!({ "exitCode": exit.code, "signal": exit.signal, "stderr": tail(stderr) });
    AgentError::new(ErrorCode::Process, message).with_detail(detail).with_kind(ErrorKind::ProcessDied)
}

fn said(stderr: &str) -> String {
    let last = last_line(stderr);
    if last.is_empty() { "it wrote nothing to stderr".to_owned() } else { format!("it said: {last}") }
}

/// The last line that says something.
pub(crate) fn last_line(text: &str) -> String {
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    beginning(last, 300).to_owned()
}

/// As much of stderr as an event should carry.
fn tail(stderr: &str) -> &str {
    ending(stderr, 8 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_stderr_keeps_its_end() {
        let stderr = format!("{}the end", "ä".repeat(10_000));
        let stored = tail(&stderr);
        assert_eq!((stored.ends_with("the end"), stored.len() <= 8 * 1024), (true, true));
    }

    #[test]
    fn the_error_says_what_the_program_said_last() {
        let exit = Exit { code: Some(3), signal: None };
        let message = |stderr: &str| exited(exit, stderr, |_, _| None).message;
        assert_eq!(
            [message(" \n"), message("a panic\n  at line 3  \n\n")],
            [
                "the program ended (exit code 3) before its turn did; it wrote nothing to stderr",
                "the program ended (exit code 3) before its turn did; it said: at line 3",
            ]
        );
    }

    #[test]
    fn what_the_vendor_explains_comes_first() {
        let exit = Exit { code: None, signal: Some(9) };
        let explained = exited(exit, "killed", |exit, stderr| {
            Some(AgentError::new(ErrorCode::Auth, format!("{stderr} by {:?}", exit.signal)))
        });
        assert_eq!(explained, AgentError::new(ErrorCode::Auth, "killed by Some(9)"));
    }
}
