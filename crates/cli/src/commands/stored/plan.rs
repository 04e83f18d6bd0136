//! The plan of what a session takes over: shown, and in words where it needs consent.

use inspan_flow::{Graph, Plan, Planned, ReuseDecision, ReuseReason};
use serde_json::json;

use super::StoredSession;
use crate::{
    failure::Failure,
    invocation::{Invocation, OutputForm},
    terminal,
};

/// How many nodes a refusal names.
const NAMED: usize = 5;

/// What would be done again of the work of a session whose flow was `before`, in words; nothing if all of it is reused. What
/// is done again in `asked` too, the plan with that flow, was asked for, unless the edit alone is why.
pub(in super::super) fn done_again(plan: &Plan, asked: Option<&Plan>, before: &Graph) -> Option<String> {
    let is_asked = |node: &&Planned| {
        use ReuseReason::{Input, New, Session, Type};
        let same = |other: &Planned| other.is_done_again() && other.before == node.before;
        let is_for_edit = matches!(node.decision, ReuseDecision::Runs(New | Type | Input | Session));
        node.before.is_some() && !is_for_edit && asked.is_some_and(|plan| plan.nodes.iter().any(same))
    };
    let again = plan.nodes.iter().filter(|node| node.is_done_again() && !is_asked(node));
    let (finished, cut): (Vec<_>, Vec<_>) = again.partition(|node| node.was_finished);
    let replaced = plan.replaced(before);
    let mut found = Vec::new();
    if !finished.is_empty() {
        found.push(format!("finished nodes would run again: {}", named(&finished)));
    }
    if !cut.is_empty() {
        found.push(format!("interrupted agents would start over: {}", named(&cut)));
    }
    if !replaced.is_empty() {
        found.push(format!("new nodes would run, while the work of others is dropped: {}", named(&replaced)));
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// Refuses to continue a session of `run --only` for which a node would have to run that was not asked for.
pub(super) fn check_only(plan: &Plan, now: &Graph, kept: &StoredSession) -> Result<(), Failure> {
    let missing = plan.missing_for_only(now);
    let why = missing.as_ref().and_then(|missing| missing.why(&kept.record.session));
    let (Some(why), Some((cause, _))) = (why, missing.and_then(|missing| missing.cause)) else {
        return Ok(());
    };
    let message = format!("{why}; the session is one of `run --only`, and does not run it");
    let hint = format!("`inspan run FILE --from {cause}` runs `{cause}` and all after it");
    Err(Failure::usage(message).with_hint(hint))
}

/// Nodes with their cost.
fn named(nodes: &[&Planned]) -> String {
    let name = |node: &&Planned| {
        let cost = node.cost_usd.map(|cost| format!(" (cost {cost:.4} USD)"));
        format!("`{}`{}", node.path, cost.unwrap_or_default())
    };
    let mut names: Vec<String> = nodes.iter().take(NAMED).map(name).collect();
    if nodes.len() > NAMED {
        names.push("…".to_owned());
    }
    names.join(", ")
}

/// Shows the plan for what takes over from a session.
pub(in super::super) fn show(plan: &Plan, kept: &StoredSession, invocation: &Invocation) {
    let session = &kept.record.session;
    if invocation.form == OutputForm::Json {
        let nodes = plan.nodes.iter().map(|node| {
            let (decision, why) = words_of(node, kept);
            json!({ "path": node.path, "fate": decision, "why": why, "costUsd": node.cost_usd })
        });
        invocation.json(&json!({ "sessionId": session, "nodes": nodes.collect::<Vec<_>>() }));
        return;
    }
    for line in lines(plan, kept) {
        terminal::painted_line(&line);
    }
}

/// The plan for what takes over from a session, a line for each node.
pub(in super::super) fn lines(plan: &Plan, kept: &StoredSession) -> Vec<String> {
    let wide = plan.nodes.iter().map(|node| node.path.as_str().len()).max().unwrap_or_default();
    let line = |node: &Planned| {
        let (decision, why) = words_of(node, kept);
        let cost = node.cost_usd.map(|cost| match node.decision {
            ReuseDecision::Reused => format!(", saves {cost:.4} USD"),
            _ => format!(", cost {cost:.4} USD before"),
        });
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        format!("{:wide$}  {decision}{why}{}", node.path.as_str(), cost.unwrap_or_default())
    };
    plan.nodes.iter().map(line).collect()
}

/// What becomes of a node, and why.
fn words_of(node: &Planned, kept: &StoredSession) -> (&'static str, Option<String>) {
    let (decision, why) = words_with_budget(node, kept);
    let Some(error) = &node.error else { return (decision, why.map(str::to_owned)) };
    let decision = if node.waits_for_budget { "waits" } else { "fails" };
    let why = why.filter(|_| matches!(node.decision, ReuseDecision::Runs(_)));
    (decision, Some(why.into_iter().chain([error.as_str()]).collect::<Vec<_>>().join("; ")))
}

/// The same if no budget is used up.
fn words_with_budget(node: &Planned, kept: &StoredSession) -> (&'static str, Option<&'static str>) {
    match node.decision {
        ReuseDecision::Cancelled if node.was_finished => {
            ("cancelled", Some("the session only ends; what it has done is left to the next one"))
        }
        // What is at work there has not been cut short.
        ReuseDecision::Runs(ReuseReason::Unfinished) if kept.owner.is_some() => {
            ("runs", Some("it still runs in that session"))
        }
        ReuseDecision::Asks if kept.owner.is_some() => {
            ("asks", Some("it still runs in that session, and may take effect there"))
        }
        ReuseDecision::Dropped if !node.was_finished => {
            ("dropped", Some("it was interrupted, and the edited flow does not have it"))
        }
        // Once that is known it is skipped: it has nothing that could be reused.
        ReuseDecision::Undecided if !node.was_finished && !kept.graph.is_selected(&node.path.place()) => {
            words(ReuseDecision::Omitted(ReuseReason::New))
        }
        decision => words(decision),
    }
}

fn words(decision: ReuseDecision) -> (&'static str, Option<&'static str>) {
    match decision {
        ReuseDecision::Finished => ("finished", None),
        ReuseDecision::Reused => ("reused", None),
        ReuseDecision::Answered => ("answered", Some("its stored answer is taken")),
        ReuseDecision::Resumes => ("resumes", Some("in its own conversation")),
        ReuseDecision::Skipped => ("skipped", None),
        ReuseDecision::Undecided => ("undecided", Some("it depends on nodes that run first")),
        ReuseDecision::Fails => ("fails", None),
        ReuseDecision::Cancelled => ("cancelled", Some("the session only ends")),
        ReuseDecision::Omitted(_) => ("omitted", Some("not selected by `--only`")),
        ReuseDecision::Asks => ("asks", Some("it was interrupted and may have taken effect")),
        ReuseDecision::Dropped => ("dropped", Some("it had finished, and the edited flow does not have it")),
        ReuseDecision::Runs(why) => ("runs", Some(why.words())),
    }
}
