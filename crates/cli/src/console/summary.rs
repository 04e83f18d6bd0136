//! What is said when a session has ended: how it went, each node's part in it, what failed, why, and what
//! to do about it.

use inspan_protocol::{AgentError, ErrorCode, NodeStatus, Outcome};

use super::{
    line::{Line, Tone, clean, harmless},
    look,
    state::ConsoleState,
    tree::{Canvas, tree},
};

/// Lines of the picture at the end; of a flow with more nodes only those that failed are shown.
const LONGEST: usize = 200;

/// The whole report; `hints` are the caller's own, such as how to go on.
pub(crate) fn summary(state: &ConsoleState, canvas: Canvas, hints: &[String]) -> Vec<Line> {
    let mut lines = tree(state, Canvas { lines: Some(LONGEST), ..canvas });
    lines.extend(failures(state));
    for hint in hints {
        lines.push(help(hint));
    }
    lines
}

fn failures(state: &ConsoleState) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut hints: Vec<&str> = Vec::new();
    let mut say = |place: &str, error: &AgentError| {
        let mut line = Line::new();
        line.push(Tone::Bad, "error").push(Tone::Strong, ": ");
        if !place.is_empty() {
            line.push(Tone::Strong, place).push(Tone::Plain, " failed: ");
        }
        look::error(&mut line, error);
        lines.push(line);
        for said in error.message.lines().skip(1) {
            let mut line = Line::new();
            line.push(Tone::Plain, "  ").push(Tone::Faint, harmless(said).trim_end());
            lines.push(line);
        }
        if let Some(hint) = hint(error)
            && !hints.contains(&hint)
        {
            hints.push(hint);
            lines.push(help(hint));
        }
    };
    let failed = state.rows.iter().filter(|row| row.status == NodeStatus::Failed);
    let mut named = false;
    for (row, error) in failed.filter_map(|row| row.error.as_ref().map(|error| (row, error))) {
        say(&clean(&row.label), error);
        named = true;
    }
    let bad = state.ended.is_some_and(|ended| {
        !matches!(ended.outcome, Outcome::Success | Outcome::Stopped | Outcome::Paused | Outcome::Waiting)
    });
    if let (true, false, Some(error)) = (bad, named, &state.error) {
        say("", error);
    }
    lines
}

fn help(text: &str) -> Line {
    let mut line = Line::new();
    line.push(Tone::Accent, "  help").push(Tone::Plain, ": ").push(Tone::Plain, text);
    line
}

/// What to do about an error, where there is something to do.
fn hint(error: &AgentError) -> Option<&'static str> {
    let hint = match error.code {
        ErrorCode::ConfigMissing => "`inspan doctor` says what is missing and how to get it",
        ErrorCode::ConfigInvalid if error.message.contains("recording") => {
            "the flow has changed since it was recorded: record it again with `inspan run FILE --record DIR`"
        }
        ErrorCode::ConfigInvalid => "`inspan check` and `inspan nodes TYPE` say what the node takes",
        ErrorCode::Auth => "log in with the vendor's program or set its key; `inspan doctor` says which",
        ErrorCode::Billing => "the vendor's account has to be topped up",
        ErrorCode::RateLimited | ErrorCode::Overloaded | ErrorCode::Network => {
            "let the node try again: `policy: { retry: { maxAttempts: 3, backoff: 10s } }`"
        }
        ErrorCode::ModelNotFound => "name another model in the node's `options.model`",
        ErrorCode::Timeout => "give it more time: `policy: { timeout: 30m }`",
        ErrorCode::ContextLength => "give the agent less to read, or let it begin a new conversation",
        ErrorCode::LoopExhausted => "raise the edge's `maxIterations`, or say `onExhausted: continue`",
        ErrorCode::ToolDenied => "allow the tool in the node's `options`, or run at a terminal and be asked",
        ErrorCode::Process if error.provider.is_some() => "`inspan doctor` says whether the program works",
        _ => return None,
    };
    Some(hint)
}
