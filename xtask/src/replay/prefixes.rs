//! Cuts a log everywhere: each beginning is put into a store as if the process had died there, opened and resumed.
//! It must have the same outputs and outcome, and start nothing that had finished.
//!
//! Compared are the outcome and the newest output of every node; of an agent's output its text, but not its cost
//! and duration, since an attempt in flight starts again and only the new one counts. Where the session failed or
//! was stopped, the outputs are those that the cut log has, and no others are needed.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use inspan_engine::{VirtualClock, check_order};
use inspan_flow::{
    Batch, FlowRunResult, FlowRunner, Graph, MemoryStore, Owner, Resume, RunError, RunStore, Select,
    SessionRecord, builtin_nodes,
};
use inspan_protocol::{Envelope, Event, NodePath, Outcome, PermissionPolicy};
use serde_json::{Map, Value};

use super::case::Commanded;
use super::commands::Commands;
use super::continued::Calls;

/// A session as it ran without interruption.
pub(crate) struct Whole<'a> {
    pub(crate) graph: Arc<Graph>,
    pub(crate) input: Map<String, Value>,
    pub(crate) result: &'a FlowRunResult,
    pub(crate) calls: Calls,
    pub(crate) commands: Vec<Commanded>,
}

/// Checks every beginning of the log, the empty and the whole one too.
pub(crate) async fn check(whole: &Whole<'_>) -> anyhow::Result<()> {
    let events = &whole.result.events;
    // The result of a resume after a pause is in another log.
    let is_pause = |envelope: &Arc<Envelope>| matches!(envelope.event, Event::SessionPause { .. });
    let last = match whole.result.outcome {
        Outcome::Paused => events.iter().position(is_pause).unwrap_or(events.len()),
        _ => events.len(),
    };
    for cut in 0..=last {
        let resumed = resume(whole, cut).await;
        resumed.with_context(|| format!("the log cut after event {cut} continues wrongly"))?;
    }
    Ok(())
}

async fn resume(whole: &Whole<'_>, cut: usize) -> anyhow::Result<()> {
    let before = &whole.result.events[..cut];
    let first = whole.result.events.first().context("the log is empty")?;
    let session = &first.context.session_id;
    let now = before.last().unwrap_or(first).timestamp;
    let store = Arc::new(MemoryStore::new());
    let input = inspan_flow::check_input(&whole.graph, whole.input.clone())?;
    let record = SessionRecord::new(session.clone(), (*whole.graph.source).clone(), input, now);
    let lease = store.create(&record, &Owner::of_process(), now).await?;
    store.append(&lease, Batch { events: before, answers: &[] }).await?;
    store.release(&lease).await?;

    let providers = whole.calls.after(cut as u64)?;
    let opened = FlowRunner::builder(Arc::clone(&whole.graph), builtin_nodes(&providers))
        .clock(Arc::new(VirtualClock::starting_at(now)))
        .permissions(PermissionPolicy::Deny)
        .node_calls(whole.calls.of_nodes()?)
        .store(store.clone())
        .open(session)
        .await;
    let over = before.iter().any(|envelope| matches!(envelope.event, Event::HarnessComplete { .. }));
    let runner = match opened {
        Ok(runner) => runner,
        Err(RunError::Ended { .. }) if over => return Ok(()),
        Err(error) => bail!(error),
    };
    ensure!(!over, "a session that has ended can be opened");
    let commands = Commands::start(runner.hub(), before, &whole.commands);
    let ended = tokio::time::timeout(super::case::BOUND, runner.resume(Resume::default())).await;
    let result = ended.context("it does not end")??;
    drop(commands);

    let log = store.read(session, 1, Select::All).await?;
    let log: Vec<Envelope> = log.iter().map(|envelope| (**envelope).clone()).collect();
    check_order(&log).map_err(anyhow::Error::msg).with_context(|| summary(&log[cut..]))?;
    let finished = finished(&log[..cut]);
    // In a frame that begins again, because another attempt of its node does, all of it is new.
    let frames = log.iter().filter_map(|envelope| match &envelope.event {
        Event::FrameStart { index, .. } => {
            let node = envelope.context.task.as_ref()?;
            // The only frame of a subflow has no number in its path.
            Some([format!("{node}[{index}]/"), format!("{node}/")])
        }
        _ => None,
    });
    let frames = frames.flatten();
    let mut begun = BTreeSet::new();
    let reopened: Vec<String> = frames.filter(|frame| !begun.insert(frame.clone())).collect();
    let is_new = |envelope: &Envelope| {
        let path = envelope.context.task.as_ref().map_or("", |path| path.as_str());
        reopened.iter().any(|frame| path.starts_with(frame))
    };
    let again = log[cut..]
        .iter()
        .find(|envelope| is_start(&envelope.event) && in_place(envelope, &finished) && !is_new(envelope));
    ensure!(again.is_none(), "what has finished starts again: {again:?}");
    compare(whole.result, &result).with_context(|| summary(&log[cut..]))
}

fn compare(whole: &FlowRunResult, cut: &FlowRunResult) -> anyhow::Result<()> {
    ensure!(whole.outcome == cut.outcome, "its outcome is {:?} and not {:?}", cut.outcome, whole.outcome);
    let finished = matches!(whole.outcome, Outcome::Success | Outcome::Partial);
    for (node, output) in whole.outputs.iter() {
        let (expected, seen) =
            (said(output.clone()), cut.outputs.get(node).map(|output| said(output.clone())));
        ensure!(
            seen.as_ref() == Some(&expected) || (!finished && seen.is_none()),
            "the output of `{node}` is {seen:?} and not {expected}"
        );
    }
    let more: Vec<_> =
        cut.outputs.iter().map(|(node, _)| node).filter(|node| whole.outputs.get(node).is_none()).collect();
    ensure!(more.is_empty() || !finished, "there are outputs of {more:?}");
    Ok(())
}

/// An output without what it cost and how long it took.
fn said(mut output: Value) -> Value {
    if let Some(fields) = output.as_object_mut() {
        for name in ["usage", "costUsd", "numTurns", "durationMs", "waitedMs"] {
            fields.remove(name);
        }
    }
    output
}

/// The places that will not be tried again in this pass.
fn finished(before: &[Envelope]) -> BTreeSet<NodePath> {
    let ended = before.iter().filter(|envelope| {
        matches!(
            envelope.event,
            Event::TaskComplete { .. }
                | Event::TaskFailed { will_retry: false, .. }
                | Event::TaskSkipped { .. }
                | Event::TaskReused { .. }
        )
    });
    ended.filter_map(|envelope| envelope.context.task.clone()).collect()
}

fn is_start(event: &Event) -> bool {
    matches!(event, Event::TaskStart { .. })
}

fn in_place(envelope: &Envelope, places: &BTreeSet<NodePath>) -> bool {
    envelope.context.task.as_ref().is_some_and(|task| places.contains(task))
}

/// The events after the cut, for people, with a count for repeated ones.
fn summary(log: &[Envelope]) -> String {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for envelope in log {
        let place = envelope.context.task.as_ref().map_or_else(String::new, |task| format!(" {task}"));
        let line = format!("{}{place}", envelope.event.name());
        match lines.last_mut() {
            Some((last, count)) if *last == line => *count += 1,
            _ => lines.push((line, 1)),
        }
    }
    let lines: Vec<_> = lines.into_iter().map(|(line, count)| format!("  {line} x{count}")).collect();
    format!("after the cut came\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_agent_said_counts_and_not_what_it_cost() {
        let full = json!({ "text": "hi", "usage": {}, "costUsd": 1, "numTurns": 2, "durationMs": 3 });
        let seen: BTreeMap<_, _> = [("agent", said(full)), ("text", said(json!("hi")))].into();
        assert_eq!(seen, [("agent", json!({ "text": "hi" })), ("text", json!("hi"))].into());
    }
}
