//! Agent runs against a scripted provider: what all of these tests share, and one run whole.

use std::{future::Future, task::Poll};

use futures::{FutureExt, StreamExt};
use inspan_protocol::{
    DynProvider, Envelope, ErrorCode, Event, ExecutionContext, MessageMode, NodeId, NodePath, ProviderItem,
    ProviderStream, ProviderWrapper, Rejection, StopReason, StreamEvent, UnpricedTurns, Usage,
};
use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::{
    check_order,
    testing::{Do, EventCollector, Script, hub, say, session, tool_complete, tool_start},
};

fn run(hub: &Hub, script: &Script, options: Value) -> AgentRun {
    let task = NodePath::root(&NodeId::new("code").unwrap());
    let input = json!({ "prompt": "begin", "options": options });
    AgentRun::new(hub.with_task(task), "coder", script.provider(), input)
}

fn output(text: &str) -> Do {
    Do::Output(json!({ "text": text, "sessionId": "s-1" }))
}

fn aborted(text: &str) -> Do {
    Do::Output(json!({ "text": text, "sessionId": "s-1", "stopReason": "aborted" }))
}

fn turn(text: &str) -> Vec<Do> {
    vec![Do::Say(session("s-1")), Do::Say(say(text)), output(text)]
}

fn follow(prompt: &str) -> Value {
    follow_with(prompt, json!({}))
}

/// The input of a later turn.
fn follow_with(prompt: &str, mut options: Value) -> Value {
    options["resume"] = json!("s-1");
    json!({ "prompt": prompt, "options": options })
}

/// The events in a short form: the name, and what distinguishes it from others of the name.
fn brief(envelopes: &[Envelope]) -> Vec<String> {
    check_order(envelopes).unwrap();
    let words = |event: &Event| match event {
        Event::AgentText { content, .. } | Event::SessionMessage { content, .. } => content.clone(),
        Event::AgentSession { session_id, .. } => session_id.to_string(),
        Event::AgentToolStart { tool_use_id, .. } | Event::AgentToolComplete { tool_use_id, .. } => {
            tool_use_id.clone()
        }
        Event::AgentSteer { strength, content, .. } => format!("{strength:?} {content}"),
        Event::AgentWarning { code, .. } => code.clone(),
        Event::AgentComplete { stop_reason, .. } => format!("{stop_reason:?}"),
        Event::SessionRejected { reason, .. } => reason.clone(),
        _ => String::new(),
    };
    envelopes
        .iter()
        .filter(|envelope| !matches!(envelope.event, Event::AgentUsage { .. } | Event::AgentListen { .. }))
        .map(|envelope| format!("{} {}", envelope.event.name(), words(&envelope.event)).trim().to_owned())
        .collect()
}

/// Runs every task as far as it can without time passing.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn message(hub: &Hub, content: &str, mode: MessageMode) -> Result<(), Rejection> {
    hub.send_to(NodeId::new("code").unwrap(), content, mode)
}

use MessageMode::{FollowUp, Steer};

mod ends;
mod messages;
mod outputs;

#[tokio::test(start_paused = true)]
async fn the_events_of_one_turn_are_complete() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let usage = Usage { input_tokens: 3, output_tokens: 4, ..Usage::default() };
    let answer = json!({
        "text": "done", "sessionId": "s-1", "stopReason": "complete", "usage": usage, "costUsd": 0.5,
        "numTurns": 2,
    });
    let script = Script::new([vec![
        Do::Say(session("s-1")),
        Do::Sleep(Duration::from_millis(40)),
        Do::Say(tool_start("t")),
        Do::Say(tool_complete("t")),
        Do::Say(say("done")),
        Do::Output(answer.clone()),
    ]]);
    let end = run(&hub, &script, json!({ "model": "m" })).execute().await.unwrap();

    let run_id = RunId::from("run-1");
    let facts = OutputFacts {
        text: "done".to_owned(),
        structured_output: None,
        session: Some("s-1".into()),
        turn_id: None,
        stop_reason: StopReason::Complete,
        usage,
        cost_usd: Some(0.5),
        num_turns: 2,
    };
    assert_eq!(end, RunEnd { run_id: run_id.clone(), output: answer, facts, turns: 1, denials: vec![] });
    let envelopes = watch.envelopes();
    check_order(&envelopes).unwrap();
    let task = NodePath::root(&NodeId::new("code").unwrap());
    let context = crate::testing::session_context().with_task(task).with_agent(run_id.clone());
    assert!(envelopes.iter().all(|envelope| *envelope.context == context));
    let events: Vec<_> = envelopes.into_iter().map(|envelope| envelope.event).collect();
    assert_eq!(
        events,
        [
            Event::AgentStart {
                agent_name: "coder".to_owned(),
                run_id: run_id.clone(),
                provider: "script".to_owned(),
                model: Some("m".to_owned()),
                turn: 1,
                multi_turn: Default::default(),
                listens: false,
            },
            Event::AgentSession { run_id: run_id.clone(), session_id: "s-1".into() },
            Event::AgentToolStart {
                tool_name: "Bash".to_owned(),
                tool_use_id: "t".to_owned(),
                input: json!({}),
                run_id: run_id.clone(),
            },
            Event::AgentToolComplete {
                tool_name: "Bash".to_owned(),
                tool_use_id: "t".to_owned(),
                result: json!("ok"),
                is_error: false,
                run_id: run_id.clone(),
            },
            Event::AgentText { content: "done".to_owned(), delta: true, run_id: run_id.clone() },
            Event::AgentUsage {
                usage,
                cost_usd: Some(0.5),
                context: None,
                turn_id: None,
                reported: None,
                uncounted: false,
                run_id: run_id.clone()
            },
            Event::AgentComplete {
                agent_name: "coder".to_owned(),
                success: true,
                run_id,
                stop_reason: StopReason::Complete,
                usage,
                duration_ms: 40,
                unpriced: false,
            },
        ]
    );
}

#[test]
fn the_future_of_a_run_can_be_sent() {
    fn sendable<F: Future + Send>(_: &F) {}
    let hub = hub_outside_of_a_runtime();
    sendable(&run(&hub, &Script::new([]), json!({})).execute().boxed());
}

fn hub_outside_of_a_runtime() -> Hub {
    let ids = Arc::new(crate::CountingIds::new());
    Hub::new("flow-1".into(), Arc::new(crate::SystemClock), ids)
}
