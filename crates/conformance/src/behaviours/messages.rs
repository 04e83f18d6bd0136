//! Messages that reach an agent during a turn, through the engine.

use std::pin::pin;

use futures::future::{Either, select};
use inspan_engine::{Filter, Hub};
use inspan_model_server::{Block, Turn};
use inspan_protocol::{Event, MessageMode, SteerStrength, StopReason};

use super::cancels::AFTER;
use super::sessions::{ANSWERS, FIRST, SECOND};
use crate::finding::{CheckResult, Deviation, Difference, check_requests, check_stop_reason, holds, same};
use crate::target::ConformanceTarget;
use crate::test_case::{RunLog, TestCase, TurnRequest, mentions};

/// An answer that takes its time, and then another.
pub(super) fn slow(_: &ConformanceTarget) -> Vec<Turn> {
    let begun = Block::Text { text: "one two three four".to_owned(), chunks: 8 };
    let blocks = vec![begun, Block::Pause { ms: 2_000 }, Block::text(" five")];
    vec![Turn { blocks, ..Turn::default() }, Turn::text("Nine.")]
}

pub(super) async fn follows(case: &TestCase) -> CheckResult {
    let named = |event: &Event| matches!(event, Event::AgentSession { .. });
    let run_log = run_with_message(case, named, SECOND, MessageMode::FollowUp).await?;
    ended(case, &run_log, SECOND, ANSWERS[1], 2)?;
    let requests = case.requests();
    check_requests(requests.len(), 2)?;
    holds(mentions(&requests[1], ANSWERS[0]), || "the model does not receive its own answer".to_owned())
}

pub(super) async fn steers(case: &TestCase) -> CheckResult {
    let writes = |event: &Event| matches!(event, Event::AgentText { .. });
    let run_log = run_with_message(case, writes, AFTER, MessageMode::Steer).await?;
    let joins = case.worker().provider().descriptor().capabilities.native_steer;
    let (strength, turns) = if joins { (SteerStrength::Native, 1) } else { (SteerStrength::Interrupt, 2) };
    ended(case, &run_log, AFTER, "Nine.", turns)?;
    let steered = run_log.log.iter().filter_map(|envelope| match &envelope.event {
        Event::AgentSteer { strength, .. } => Some(*strength),
        _ => None,
    });
    same("how the message reached the turn", &steered.collect(), &vec![strength])
}

/// A run in which a message comes at the first event of a kind.
async fn run_with_message(
    case: &TestCase,
    at: fn(&Event) -> bool,
    message: &str,
    mode: MessageMode,
) -> CheckResult<RunLog> {
    let hub = case.hub();
    let run = pin!(case.run(&hub, TurnRequest::new(FIRST), case.worker().provider()));
    let sending = pin!(send(&hub, at, message, mode));
    match select(run, sending).await {
        Either::Left((run_log, _)) => run_log,
        Either::Right((Ok(()), run)) => run.await,
        Either::Right((Err(finding), _)) => Err(finding),
    }
}

async fn send(hub: &Hub, at: fn(&Event) -> bool, message: &str, mode: MessageMode) -> CheckResult {
    let mut seen = hub.subscribe(Filter::all());
    while let Some(envelope) = seen.next().await {
        if !at(&envelope.event) {
            continue;
        }
        let Some(run) = envelope.context.agent.clone() else { continue };
        return hub
            .send_to_run(run, message, mode)
            .map_err(|why| Difference::from("the message is refused").with(why.to_string()));
    }
    Err("the hub ends before the run".into())
}

/// The run took so many turns, and the last answered the message in the same conversation.
fn ended(case: &TestCase, run_log: &RunLog, message: &str, answer: &str, turns: u32) -> CheckResult {
    let end = run_log.end.as_ref().map_err(|error| {
        Difference::from(format!("the run fails with {}", error.code)).with(error.message.clone())
    })?;
    same("the turns of the run", &end.turns, &turns)?;
    check_stop_reason(end.facts.stop_reason, StopReason::Complete)?;
    same("the text", &end.facts.text.trim(), &answer)?;
    let starts = run_log.log.iter().filter(|envelope| matches!(envelope.event, Event::AgentStart { .. }));
    same("the runs in the log", &starts.count(), &1)?;
    let requests = case.requests();
    let last = requests.last().ok_or_else(|| Difference::from("the model is not asked"))?;
    for part in [FIRST, message] {
        holds(mentions(last, part), || format!("the model does not receive `{part}`"))
            .map_err(|finding| finding.deviation(Deviation::History))?;
    }
    Ok(())
}
