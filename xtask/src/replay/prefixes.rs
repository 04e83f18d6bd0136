//! Cuts a log everywhere and looks what a fresh fold of each beginning wants to do next: only what came.
//! Carrying it out is left to the runtime.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use inspan_flow::{Action, Graph, Run};
use inspan_protocol::{Envelope, Event, NodePath, Timestamp};
use serde_json::{Map, Value};

/// Checks every beginning of the log, the empty and the whole one too.
pub(crate) fn check(graph: &Arc<Graph>, input: &Map<String, Value>, log: &[Envelope]) -> anyhow::Result<()> {
    let session = &log.first().context("the log is empty")?.context.session_id;
    let input = inspan_flow::check_input(graph, input.clone())?;
    for cut in 0..=log.len() {
        let (before, rest) = log.split_at(cut);
        let mut run = Run::new(Arc::clone(graph), session, input.clone(), None);
        for envelope in before {
            run.apply(envelope);
        }
        let now = before.last().map_or_else(Timestamp::default, |envelope| envelope.timestamp);
        let mut actions = Vec::new();
        run.next(now, &mut actions);
        judge(before, rest, &actions)
            .with_context(|| format!("the log cut after event {cut} goes on wrongly"))?;
    }
    Ok(())
}

fn judge(before: &[Envelope], rest: &[Envelope], actions: &[Action]) -> anyhow::Result<()> {
    let finished = finished(before);
    for action in actions {
        match action {
            Action::Start(start) => {
                ensure!(
                    !finished.contains(&start.path),
                    "`{}` has finished and would start again",
                    start.path
                );
            }
            Action::Emit { task, event } => {
                let came = rest.iter().any(|envelope| is_same(task.as_ref(), event, envelope));
                ensure!(came, "it would emit what did not come: {task:?} {event:?}");
            }
            Action::Finish => {
                let last = rest.iter().find(|envelope| envelope.event.name() == "harness:complete");
                ensure!(last.is_some(), "it would end a session that goes on");
            }
            Action::Cancel { .. } | Action::Ask { .. } => {}
        }
    }
    let over = before.iter().any(|envelope| matches!(envelope.event, Event::HarnessComplete { .. }));
    ensure!(!over || actions.is_empty(), "the session is over and would do {actions:?}");
    Ok(())
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

/// Whether the event is the one in the envelope, but for how long it took until the cut.
fn is_same(task: Option<&NodePath>, event: &Event, envelope: &Envelope) -> bool {
    match (event, &envelope.event) {
        (Event::HarnessComplete { outcome, .. }, Event::HarnessComplete { outcome: came, .. }) => {
            outcome == came
        }
        // A cut can fall between a question and its answer, which in the session came at the same moment.
        (Event::FlowWaiting { .. }, _) => true,
        (event, came) => task == envelope.context.task.as_ref() && event == came,
    }
}
