//! The report of a session that has ended: its outcome, its nodes, what failed, why, and what to do about
//! it.

use std::collections::HashSet;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, NodeStatus, Outcome};

use super::tree::{Canvas, tree};
use inspan_view::{Line, NodeRow, SessionView, Tone, inside, label, look, safe::harmless};

/// Lines of the picture at the end; of a flow with more nodes only those that failed are shown.
const LONGEST: usize = 200;

/// How many lines of each stream of a failed program are shown.
const LAST_LINES: usize = 10;

/// The whole report; `hints` are the caller's own, such as how to go on.
pub(crate) fn summary(state: &SessionView, canvas: Canvas, hints: &[String]) -> Vec<Line> {
    let mut lines = tree(state, Canvas { lines: Some(LONGEST), ..canvas });
    lines.extend(failures(state));
    lines.extend(warnings(state));
    for hint in hints {
        lines.push(help(hint));
    }
    lines.into_iter().flat_map(|line| line.wrap(canvas.columns, 4)).collect()
}

fn failures(state: &SessionView) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut hints: Vec<&str> = Vec::new();
    let outcome = state.ended.map(|ended| ended.outcome);
    // A failure that the flow has handled is no error of the flow, nor is one after which a session can go on.
    let goes_on = matches!(outcome, Some(Outcome::Success | Outcome::Partial)) || is_idle(state);
    let mut say =
        |place: &str, row: Option<&NodeRow>, pass: Option<u32>, error: &AgentError, is_handled: bool| {
            let mut line = Line::new();
            match is_handled {
                true => line.push(Tone::Warning, "warning"),
                false => line.push(Tone::Bad, "error"),
            };
            line.push(Tone::Strong, ": ");
            if !place.is_empty() {
                line.push(Tone::Strong, place);
                let pass =
                    pass.map(|pass| format!(" failed in pass {pass}: ")).unwrap_or(" failed: ".to_owned());
                line.push(Tone::Plain, &pass);
            }
            look::error(&mut line, error);
            lines.push(line);
            for said in error.message.lines().skip(1) {
                lines.push(Line::new().with(Tone::Plain, "  ").with(Tone::Faint, harmless(said).trim_end()));
            }
            lines.extend(printed(error));
            if let Some(hint) = hint(error, row)
                && !is_handled
                && !hints.contains(&hint)
            {
                hints.push(hint);
                lines.push(help(hint));
            }
        };
    let handled = state.run().state().handled_failures(state.run().graph());
    let handled: HashSet<&str> = handled.iter().map(label).collect();
    let (mut is_finished, mut in_frames) = (false, 0);
    each_row(&state.rows, "", &mut |place, row| {
        let error = row.error.as_ref().filter(|_| row.status == NodeStatus::Failed);
        let is_inside = place.contains('/');
        if !is_inside {
            is_finished = matches!(row.status, NodeStatus::Complete | NodeStatus::Reused);
            for (pass, error) in &row.failed_passes {
                say(&place, Some(row), Some(*pass), error, true);
            }
        }
        let mut say_inside = |place: &str, row: Option<&NodeRow>, error: &AgentError| {
            in_frames += 1;
            if in_frames <= FAILURES {
                say(place, row, None, error, goes_on || is_finished);
            }
        };
        match error {
            // The failure of a node that runs frames is that of one of them.
            Some(error) if is_inside => say_inside(&place, Some(row), error),
            Some(error) => {
                say(&place, Some(row), None, error, goes_on || handled.contains(&*place));
            }
            None => {
                for (key, frame) in &row.frames {
                    // It failed by its time or its outputs, and not by one of its nodes.
                    let of_node = frame.rows.iter().any(|row| row.status == NodeStatus::Failed);
                    if let Some(error) = frame.error.as_ref().filter(|_| !of_node) {
                        say_inside(inside(&place, *key, frame).trim_end_matches('/'), None, error);
                    }
                }
            }
        }
        error.is_none()
    });
    let bad = outcome.is_some_and(|outcome| {
        !matches!(outcome, Outcome::Success | Outcome::Stopped | Outcome::Paused | Outcome::Waiting)
    });
    if let Some(error) = state.error.as_ref().filter(|error| bad && !state.is_of_node(error)) {
        say("", None, None, error, goes_on);
    }
    if in_frames > FAILURES {
        lines.push(
            Line::new()
                .with(Tone::Warning, "… more nodes failed in frames")
                .with(Tone::Plain, "; `inspan show` shows them"),
        );
    }
    lines
}

/// Whether the process has left the session, which has not ended.
fn is_idle(state: &SessionView) -> bool {
    state.ended.is_some() && state.run().state().outcome().is_none()
}

/// What did not make the flow fail and is still shown: budgets that were exceeded, and what agents were not allowed
/// to do.
fn warnings(state: &SessionView) -> Vec<Line> {
    let warning = |text: &str| {
        Line::new().with(Tone::Warning, "warning").with(Tone::Strong, ": ").with(Tone::Plain, text)
    };
    let ended = state.ended.map(|ended| ended.outcome);
    // The error of a session that a budget has ended names it.
    let budgets = state.budgets.iter().filter(|_| ended != Some(Outcome::BudgetExceeded) || is_idle(state));
    let mut lines: Vec<Line> = budgets.map(|budget| warning(&budget.text())).collect();
    let mut denials = false;
    each_row(&state.rows, "", &mut |place, row| {
        if row.denied.is_empty() {
            return true;
        }
        denials = true;
        let calls = match row.denied.len() {
            1 => "1 tool call".to_owned(),
            many => format!("{many} tool calls"),
        };
        let first = row.denied.iter().take(DENIED).cloned().collect::<Vec<_>>().join("; ");
        let more = if row.denied.len() > DENIED { "; …" } else { "" };
        lines.push(warning(&format!("{place}: {calls} denied: {first}{more}")));
        true
    });
    if denials {
        lines.push(help(
            "allow the tools in the node's `options`, or when asked: at a terminal or by `inspan approve`",
        ));
    }
    lines
}

/// Failures within frames that are reported one by one.
const FAILURES: usize = 10;

/// Calls `see` with each row and its path, the pass at the end left out; it says whether to look into the row's frames.
fn each_row<'a>(rows: &'a [NodeRow], prefix: &str, see: &mut dyn FnMut(String, &'a NodeRow) -> bool) {
    for row in rows {
        let place = format!("{prefix}{}", row.label);
        if see(place.clone(), row) {
            for (key, frame) in &row.frames {
                each_row(&frame.rows, &inside(&place, *key, frame), see);
            }
        }
    }
}

/// The last lines that a failed program printed, unless the message says it all.
fn printed(error: &AgentError) -> Vec<Line> {
    let mut lines = Vec::new();
    for stream in ["stdout", "stderr"] {
        let detail = error.detail.as_ref().and_then(|detail| detail[stream].as_str());
        let all: Vec<&str> = detail.unwrap_or_default().lines().collect();
        if matches!(all.as_slice(), [only] if error.message.ends_with(only)) {
            continue;
        }
        for said in &all[all.len().saturating_sub(LAST_LINES)..] {
            lines.push(
                Line::new()
                    .with(Tone::Plain, "  ")
                    .with(Tone::Faint, stream)
                    .with(Tone::Faint, " │ ")
                    .with(Tone::Plain, harmless(said).trim_end()),
            );
        }
    }
    lines
}

/// Denied calls that are named of one node.
const DENIED: usize = 3;

fn help(text: &str) -> Line {
    Line::new().with(Tone::Accent, "  help").with(Tone::Plain, ": ").with(Tone::Plain, text)
}

/// What to do about an error, where there is something to do; `row` is the node that failed so.
fn hint(error: &AgentError, row: Option<&NodeRow>) -> Option<&'static str> {
    let (node_type, failures) = row.map_or(("", 0), |row| (&*row.node_type, row.failures));
    let hint = match error.code {
        // Only the programs of agents are known to `doctor`.
        ErrorCode::ConfigMissing
            if node_type == "exec" && error.message.starts_with("there is no program") =>
        {
            "install it, or name its path in the node's `input`"
        }
        ErrorCode::ConfigMissing => "run `inspan doctor` to see what is missing and how to install it",
        ErrorCode::ConfigInvalid if error.message.contains("recording") => {
            "if the flow changed since it was recorded, record it again, in another folder: `inspan run FILE --record DIR`"
        }
        ErrorCode::Process if error.is(ErrorKind::SessionNotStored) => {
            "make space on the disk of that folder, then resume the session"
        }
        ErrorCode::ConfigInvalid
            if error.is(ErrorKind::ArtifactsFolder) || error.is(ErrorKind::SessionNotStored) =>
        {
            "let the program write there, or name another folder: `INSPAN_HOME=FOLDER`, or `--store FILE`"
        }
        ErrorCode::ConfigInvalid if error.is(ErrorKind::WorkingFolder) => {
            "create the folder before the node runs, or name another one in the node's `cwd`"
        }
        // The message says what to do.
        ErrorCode::ConfigInvalid if error.is(ErrorKind::Start) => return None,
        ErrorCode::ConfigInvalid => "`inspan check FILE` and `inspan nodes TYPE` show what the node accepts",
        // The agent sees no variable of a vendor that its node does not name.
        ErrorCode::Auth if node_type == "acp.agent" => {
            "log in with the agent's program, or name the variable of its key in the node's `passEnv`, such as `ANTHROPIC_*`"
        }
        ErrorCode::Auth => "log in with the vendor's program or set its key; `inspan doctor` shows which",
        ErrorCode::Billing if error.is(ErrorKind::MaxBudget) => {
            "raise `maxBudgetUsd` in the node's `options`, which ended it"
        }
        ErrorCode::Billing => "add credit to the vendor's account",
        ErrorCode::RateLimited | ErrorCode::Overloaded | ErrorCode::Network if failures > 1 => {
            "it was retried: resume the session later, or raise `maxAttempts` or `backoff` in the node's `policy.retry`"
        }
        ErrorCode::RateLimited | ErrorCode::Overloaded | ErrorCode::Network => {
            "retry the node: `policy: { retry: { maxAttempts: 3, backoff: 10s } }`"
        }
        ErrorCode::ModelNotFound => "set another model in the node's `options.model`",
        // Unless it was the time of the node as a whole.
        ErrorCode::Timeout
            if matches!(node_type, "human.input" | "control.wait")
                && !error.message.contains("within its timeout") =>
        {
            "allow more time in the node's `input.timeout`"
        }
        // The limit of a start is fixed.
        ErrorCode::Timeout if error.is(ErrorKind::Start) => {
            "start the program by hand once, so that it can download, update and ask what it needs to"
        }
        ErrorCode::Timeout if error.is(ErrorKind::Stall) => {
            "allow more time without a sign of life: `stallTimeoutMs` in the node's `options`"
        }
        ErrorCode::Timeout => "allow more time: `policy: { timeout: 30m }`",
        ErrorCode::ContextLength => "give the agent less to read, or start a new conversation",
        ErrorCode::LoopExhausted if error.is(ErrorKind::PassesUsedUp) => {
            "raise `maxIterations` in the loop's `input`, or set its `onExhausted: continue`"
        }
        ErrorCode::LoopExhausted if error.is(ErrorKind::SubflowTooDeep) => {
            "end the calls by a condition, or raise `maxDepth` in the `input` of the `control.subflow`"
        }
        ErrorCode::LoopExhausted => "raise the edge's `maxIterations`, or set `onExhausted: continue`",
        _ if error.is(ErrorKind::SessionNotFound) => {
            "its conversation is gone: start it again with `inspan fork SESSION --at NODE`, NODE where it began"
        }
        ErrorCode::ToolDenied => {
            "allow the tool in the node's `options`, or when asked: at a terminal or by `inspan approve`"
        }
        ErrorCode::Process if error.provider.is_some() => {
            "run `inspan doctor` to see whether the program works"
        }
        _ => return None,
    };
    Some(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_node_is_no_matter_of_the_vendor() {
        let spent = || AgentError::new(ErrorCode::Billing, "spent");
        let advice = |error: AgentError| hint(&error, None).unwrap_or_default();
        assert!(advice(spent()).contains("the vendor's account"));
        assert!(advice(spent().with_kind(ErrorKind::MaxBudget)).starts_with("raise `maxBudgetUsd`"));
    }

    #[test]
    fn a_folder_that_is_missing_is_no_matter_of_what_the_node_accepts() {
        let error = AgentError::new(ErrorCode::ConfigInvalid, "there is no folder `/nowhere`")
            .with_kind(ErrorKind::WorkingFolder);
        assert!(hint(&error, None).unwrap_or_default().starts_with("create the folder"));
    }

    #[test]
    fn no_timeout_is_advised_for_a_start_that_it_does_not_bound() {
        let row = NodeRow { node_type: "acp.agent".into(), ..NodeRow::default() };
        let advice = |error: AgentError| hint(&error, Some(&row)).unwrap_or_default();
        let late = || AgentError::new(ErrorCode::Timeout, "late");
        assert!(advice(late().with_kind(ErrorKind::Start)).starts_with("start the program by hand once"));
        assert!(advice(late().with_kind(ErrorKind::Stall)).contains("`stallTimeoutMs`"));
        assert!(advice(late()).contains("policy: { timeout"));
    }

    #[test]
    fn no_retry_is_advised_for_a_node_that_was_retried() {
        let advice = |failures| {
            let row = NodeRow { failures, ..NodeRow::default() };
            hint(&AgentError::new(ErrorCode::Overloaded, "busy"), Some(&row)).unwrap_or_default()
        };
        assert!(advice(1).starts_with("retry the node"));
        assert!(advice(3).starts_with("it was retried"), "{}", advice(3));
    }
}
