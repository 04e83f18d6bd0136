use std::{future::Future, task::Poll};

use futures::FutureExt;
use inspan_protocol::{
    Envelope, ErrorCode, Event, MessageMode, NodeId, NodePath, Rejection, StopReason, StreamEvent, Usage,
};
use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::{
    check_order,
    testing::{Do, Script, Watch, hub, say, session, tool_complete, tool_start},
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

/// The events in a short form: the name, and what tells it from others of the name.
fn brief(envelopes: &[Envelope]) -> Vec<String> {
    check_order(envelopes).unwrap();
    let words = |event: &Event| match event {
        Event::AgentText { content, .. } | Event::SessionMessage { content, .. } => content.clone(),
        Event::AgentSession { session_id, .. } => session_id.to_string(),
        Event::AgentToolStart { tool_use_id, .. } | Event::AgentToolComplete { tool_use_id, .. } => {
            tool_use_id.clone()
        }
        Event::AgentWarning { code, .. } => code.clone(),
        Event::AgentComplete { stop_reason, .. } => format!("{stop_reason:?}"),
        Event::SessionRejected { reason, .. } => reason.clone(),
        _ => String::new(),
    };
    envelopes
        .iter()
        .filter(|envelope| !matches!(envelope.event, Event::AgentUsage { .. }))
        .map(|envelope| format!("{} {}", envelope.event.name(), words(&envelope.event)).trim().to_owned())
        .collect()
}

/// Lets every task go on as far as it can without time passing.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn message(hub: &Hub, content: &str, mode: MessageMode) -> Result<(), Rejection> {
    hub.send_to(NodeId::new("code").unwrap(), content, mode)
}

use MessageMode::{FollowUp, Steer};

#[tokio::test(start_paused = true)]
async fn one_turn_is_told_whole() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
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
        stop_reason: StopReason::Complete,
        usage,
        cost_usd: Some(0.5),
        num_turns: 2,
    };
    assert_eq!(end, RunEnd { run_id: run_id.clone(), output: answer, facts, turns: 1 });
    let envelopes = watch.envelopes();
    check_order(&envelopes).unwrap();
    let task = NodePath::root(&NodeId::new("code").unwrap());
    let context = crate::testing::session_context().with_task(task).with_agent(run_id.clone());
    assert!(envelopes.iter().all(|envelope| *envelope.context == context));
    let told: Vec<_> = envelopes.into_iter().map(|envelope| envelope.event).collect();
    assert_eq!(
        told,
        [
            Event::AgentStart {
                agent_name: "coder".to_owned(),
                run_id: run_id.clone(),
                provider: "script".to_owned(),
                model: Some("m".to_owned()),
                turn: 1,
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
            Event::AgentUsage { usage, cost_usd: Some(0.5), run_id: run_id.clone() },
            Event::AgentComplete {
                agent_name: "coder".to_owned(),
                success: true,
                run_id,
                stop_reason: StopReason::Complete,
                usage,
                duration_ms: 40,
            },
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_turn_become_the_next_and_sums_are_made() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let spent = |text: &str, tokens: u64, cost: f64, turns: u32| {
        Do::Output(json!({
            "text": text, "sessionId": "s-1", "stopReason": "complete", "costUsd": cost, "numTurns": turns,
            "usage": Usage { output_tokens: tokens, ..Usage::default() },
        }))
    };
    let script = Script::new([
        vec![Do::Say(session("s-1")), Do::Sleep(Duration::from_secs(1)), spent("one", 1, 0.25, 2)],
        vec![Do::Say(session("s-1")), spent("two", 10, 0.5, 3)],
    ]);
    let running = tokio::spawn(run(&hub, &script, json!({ "model": "m" })).execute());
    settle().await;
    message(&hub, "first", FollowUp).unwrap();
    message(&hub, "second", FollowUp).unwrap();
    let end = running.await.unwrap().unwrap();

    let usage = Usage { output_tokens: 11, ..Usage::default() };
    let expected = json!({
        "text": "two", "sessionId": "s-1", "stopReason": "complete", "costUsd": 0.75, "numTurns": 5,
        "usage": usage,
    });
    let facts = OutputFacts {
        text: "two".to_owned(),
        structured_output: None,
        session: Some("s-1".into()),
        stop_reason: StopReason::Complete,
        usage,
        cost_usd: Some(0.75),
        num_turns: 5,
    };
    assert_eq!(end, RunEnd { run_id: "run-1".into(), output: expected, facts, turns: 2 });
    assert_eq!(
        script.inputs(),
        [
            json!({ "prompt": "begin", "options": { "model": "m" } }),
            follow_with("first\n\nsecond", json!({ "model": "m" })),
        ]
    );
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "session:message first",
            "session:message second",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_one_turn_does_not_tell_is_unknown() {
    let hub = hub();
    let told = json!({ "text": "a", "sessionId": "s-1", "stopReason": "complete", "costUsd": 1.0, "numTurns": 1,
        "usage": Usage::default() });
    let untold = vec![Do::Say(session("s-1")), Do::Sleep(Duration::from_secs(1)), output("b")];
    let script = Script::new([untold, vec![Do::Output(told.clone())]]);
    let running = tokio::spawn(run(&hub, &script, json!({})).execute());
    settle().await;
    message(&hub, "more", FollowUp).unwrap();
    let end = running.await.unwrap().unwrap();
    let mut expected = told;
    expected.as_object_mut().unwrap().remove("costUsd");
    expected["numTurns"] = json!(2);
    assert_eq!((end.output, end.facts.cost_usd), (expected, None));
}

#[tokio::test(start_paused = true)]
async fn a_multi_turn_run_waits_for_messages_until_it_idles() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([turn("one"), turn("two"), turn("three")]);
    let options = json!({ "multiTurn": true });
    let running = tokio::spawn(run(&hub, &script, options.clone()).execute());
    let began = Instant::now();
    settle().await;
    advance(Duration::from_secs(59)).await;
    hub.send("again").unwrap();
    settle().await;
    message(&hub, "and again", Steer).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.turns, began.elapsed().as_secs()), (3, 59 + 60));
    assert_eq!(
        script.inputs()[1..],
        [follow_with("again", options.clone()), follow_with("and again", options)]
    );
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "agent:text one",
            "session:message again",
            "agent:text two",
            "session:message and again",
            "agent:text three",
            "agent:complete Complete",
        ]
    );
    assert_eq!(hub.send("too late"), Err(Rejection::NoListener));
}

#[tokio::test(start_paused = true)]
async fn the_idle_timeout_is_the_input_s_or_the_run_s() {
    let rows =
        [(json!({ "multiTurn": true, "idleTimeoutMs": 1500 }), 1500), (json!({ "multiTurn": true }), 700)];
    for (options, millis) in rows {
        let hub = hub();
        let script = Script::new([turn("one")]);
        let began = Instant::now();
        let run = run(&hub, &script, options).idle_timeout_default(Duration::from_millis(700));
        run.execute().await.unwrap();
        assert_eq!(began.elapsed().as_millis(), millis);
    }
}

#[tokio::test(start_paused = true)]
async fn closing_a_run_ends_it_after_what_already_waits() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let busy = vec![Do::Say(session("s-1")), Do::Sleep(Duration::from_secs(1)), output("one")];
    let script = Script::new([busy, turn("two")]);
    let running = tokio::spawn(run(&hub, &script, json!({ "multiTurn": true })).execute());
    settle().await;
    message(&hub, "last", FollowUp).unwrap();
    hub.close("run-1".into()).unwrap();
    assert_eq!(message(&hub, "no", FollowUp), Err(Rejection::NoRunOfNode(NodeId::new("code").unwrap())));
    let began = Instant::now();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.turns, began.elapsed().as_secs()), (2, 1));
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "session:message last",
            "session:close",
            "session:rejected node `code` has no active run",
            "agent:text two",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn closing_an_idle_run_ends_it_at_once() {
    let hub = hub();
    let script = Script::new([turn("one")]);
    let running = tokio::spawn(run(&hub, &script, json!({ "multiTurn": true })).execute());
    let began = Instant::now();
    settle().await;
    hub.close("run-1".into()).unwrap();
    assert_eq!(running.await.unwrap().unwrap().facts.stop_reason, StopReason::Complete);
    assert_eq!(began.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_of_turns_the_run_ends_and_tells_what_it_leaves() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let first = Do::Output(json!({ "text": "one", "sessionId": "s-1", "numTurns": 2 }));
    let script = Script::new([
        vec![Do::Say(session("s-1")), Do::Sleep(Duration::from_secs(1)), first],
        vec![Do::Sleep(Duration::from_secs(1)), output("two")],
    ]);
    let running = tokio::spawn(run(&hub, &script, json!({ "maxTurns": 3 })).execute());
    settle().await;
    message(&hub, "taken", FollowUp).unwrap();
    settle().await;
    advance(Duration::from_secs(1)).await;
    settle().await;
    message(&hub, "left", FollowUp).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.facts.stop_reason, end.facts.num_turns, end.turns), (StopReason::MaxTurns, 3, 2));
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "session:message taken",
            "session:message left",
            "agent:warning undelivered",
            "agent:complete MaxTurns",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_cuts_nothing_off_is_no_reason() {
    let rows = [
        (json!({ "maxTurns": 1 }), StopReason::Complete),
        (json!({ "maxTurns": 1, "multiTurn": true }), StopReason::MaxTurns),
    ];
    for (options, reason) in rows {
        let hub = hub();
        let end = run(&hub, &Script::new([turn("one")]), options).execute().await.unwrap();
        assert_eq!(end.facts.stop_reason, reason);
    }
}

#[tokio::test(start_paused = true)]
async fn a_steering_message_interrupts_the_turn() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([
        vec![Do::Say(session("s-1")), Do::Say(tool_start("t")), Do::AwaitCancel, aborted("half")],
        turn("other"),
    ]);
    let running = tokio::spawn(run(&hub, &script, json!({})).execute());
    settle().await;
    message(&hub, "by the way", FollowUp).unwrap();
    message(&hub, "stop that", Steer).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!(
        (end.facts.text.as_str(), end.facts.stop_reason, end.turns),
        ("other", StopReason::Complete, 2)
    );
    assert_eq!(script.inputs()[1..], [follow("by the way\n\nstop that")]);
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "agent:tool:start t",
            "session:message by the way",
            "session:message stop that",
            "agent:warning steer",
            "agent:tool:complete t",
            "agent:text other",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_steering_message_waits_until_the_conversation_has_a_name() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([
        vec![
            Do::Sleep(Duration::from_secs(1)),
            Do::Say(session("s-1")),
            Do::AwaitCancel,
            Do::Fail(AgentError::new(ErrorCode::Aborted, "cancelled")),
        ],
        turn("other"),
    ]);
    let running = tokio::spawn(run(&hub, &script, json!({})).execute());
    settle().await;
    message(&hub, "stop that", Steer).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.facts.text.as_str(), end.turns, end.facts.num_turns), ("other", 2, 2));
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "session:message stop that",
            "agent:session s-1",
            "agent:warning steer",
            "agent:text other",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_conversation_a_message_cannot_be_delivered_and_is_told() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([vec![Do::Sleep(Duration::from_secs(1)), Do::Output(json!({ "text": "one" }))]]);
    let running = tokio::spawn(run(&hub, &script, json!({})).execute());
    settle().await;
    message(&hub, "more", Steer).unwrap();
    assert_eq!(running.await.unwrap().unwrap().facts.stop_reason, StopReason::Complete);
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "session:message more",
            "agent:warning noSession",
            "agent:warning undelivered",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_is_an_outcome_with_what_was_done() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([vec![Do::Say(session("s-1")), Do::AwaitCancel, aborted("half")]]);
    let cancel = CancellationToken::new();
    let running = tokio::spawn(run(&hub, &script, json!({})).cancel(cancel.clone()).execute());
    settle().await;
    message(&hub, "unread", FollowUp).unwrap();
    cancel.cancel();
    let end = running.await.unwrap().unwrap();
    let facts = OutputFacts {
        text: "half".to_owned(),
        structured_output: None,
        session: Some("s-1".into()),
        stop_reason: StopReason::Aborted,
        usage: Usage::default(),
        cost_usd: None,
        num_turns: 1,
    };
    let output = json!({ "text": "half", "sessionId": "s-1", "stopReason": "aborted", "usage": Usage::default(),
        "numTurns": 1 });
    assert_eq!(end, RunEnd { run_id: "run-1".into(), output, facts, turns: 1 });
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "session:message unread",
            "agent:warning undelivered",
            "agent:complete Aborted",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_provider_that_does_not_end_well_cannot_hold_the_run() {
    let other = AgentError::new(ErrorCode::Process, "killed");
    let rows = [
        (vec![Do::Hang], 10, vec!["agent:warning unresponsive"]),
        (vec![Do::AwaitCancel], 0, vec![]),
        (vec![Do::AwaitCancel, Do::Fail(AgentError::new(ErrorCode::Aborted, "cancelled"))], 0, vec![]),
        (vec![Do::AwaitCancel, Do::Fail(other)], 0, vec!["agent:warning cancelFailed"]),
        (vec![Do::AwaitCancel, Do::Panic], 0, vec!["agent:warning cancelFailed"]),
    ];
    for (steps, seconds, warnings) in rows {
        let hub = hub();
        let mut watch = Watch::new(&hub);
        let script = Script::new([[vec![Do::Say(session("s-1"))], steps].concat()]);
        let cancel = CancellationToken::new();
        let running = tokio::spawn(run(&hub, &script, json!({})).cancel(cancel.clone()).execute());
        settle().await;
        let began = Instant::now();
        cancel.cancel();
        let end = running.await.unwrap().unwrap();
        assert_eq!(began.elapsed().as_secs(), seconds);
        assert_eq!((end.output, end.facts.session), (Value::Null, Some("s-1".into())));
        let expected =
            [vec!["agent:start", "agent:session s-1"], warnings, vec!["agent:complete Aborted"]].concat();
        assert_eq!(brief(&watch.envelopes()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_before_it_begins_calls_nobody() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([]);
    let cancel = CancellationToken::new();
    cancel.cancel();
    let end = run(&hub, &script, json!({})).cancel(cancel).execute().await.unwrap();
    assert_eq!((end.turns, end.facts.stop_reason, script.inputs()), (0, StopReason::Aborted, vec![]));
    assert_eq!(brief(&watch.envelopes()), ["agent:start", "agent:complete Aborted"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_ends_the_run() {
    let hub = hub();
    let cancel = CancellationToken::new();
    let script = Script::new([turn("one")]);
    let running =
        tokio::spawn(run(&hub, &script, json!({ "multiTurn": true })).cancel(cancel.clone()).execute());
    settle().await;
    cancel.cancel();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.facts.text.as_str(), end.facts.stop_reason), ("one", StopReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_fails_the_run() {
    let busy = vec![Do::Say(session("s-1")), Do::AwaitCancel, aborted("half")];
    let rows = [
        (vec![busy], json!({}), vec!["agent:session s-1"]),
        (vec![turn("one")], json!({ "multiTurn": true }), vec!["agent:session s-1", "agent:text one"]),
    ];
    for (calls, options, told) in rows {
        let hub = hub();
        let mut watch = Watch::new(&hub);
        let began = Instant::now();
        let script = Script::new(calls);
        let run = run(&hub, &script, options).deadline(Duration::from_secs(30));
        let error = AgentError::new(ErrorCode::Timeout, "the run did not end by its deadline");
        assert_eq!(run.execute().await, Err(error.from_provider("script")));
        assert_eq!(began.elapsed().as_secs(), 30);
        let expected = [vec!["agent:start"], told, vec!["agent:complete Error"]].concat();
        assert_eq!(brief(&watch.envelopes()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_provider_fails_the_run() {
    let failed = AgentError::new(ErrorCode::RateLimited, "slow down");
    let protocol = |message: &str| AgentError::new(ErrorCode::Protocol, message).from_provider("script");
    let rows = [
        (vec![Do::Fail(failed.clone())], failed.from_provider("script")),
        (vec![], protocol("the provider ended without an output")),
        (vec![Do::Panic], protocol("the provider panicked")),
    ];
    for (steps, expected) in rows {
        let hub = hub();
        let mut watch = Watch::new(&hub);
        let spent =
            StreamEvent::Usage { usage: Usage { input_tokens: 9, ..Usage::default() }, cost_usd: None };
        let script = Script::new([[vec![Do::Say(tool_start("t")), Do::Say(spent)], steps].concat()]);
        assert_eq!(run(&hub, &script, json!({})).execute().await, Err(expected));
        let mut envelopes = watch.envelopes();
        assert_eq!(
            brief(&envelopes),
            ["agent:start", "agent:tool:start t", "agent:tool:complete t", "agent:complete Error"]
        );
        let complete = Event::AgentComplete {
            agent_name: "coder".to_owned(),
            success: false,
            run_id: "run-1".into(),
            stop_reason: StopReason::Error,
            usage: Usage { input_tokens: 9, ..Usage::default() },
            duration_ms: 0,
        };
        assert_eq!(envelopes.pop().unwrap().event, complete);
    }
}

#[tokio::test(start_paused = true)]
async fn what_follows_the_output_is_ignored_and_told() {
    let late = AgentError::new(ErrorCode::Network, "late");
    let rows = [
        (vec![Do::Say(say("late"))], vec!["agent:warning afterOutput"]),
        (vec![output("second")], vec!["agent:warning afterOutput"]),
        (vec![Do::Fail(late)], vec!["agent:warning afterOutput"]),
        (vec![Do::Panic], vec!["agent:warning afterOutput"]),
        (vec![Do::Hang], vec!["agent:warning lingering"]),
        (vec![Do::Sleep(Duration::from_secs(1))], vec![]),
    ];
    for (after, warnings) in rows {
        let hub = hub();
        let mut watch = Watch::new(&hub);
        let script = Script::new([[vec![output("one")], after].concat()]);
        assert_eq!(run(&hub, &script, json!({})).execute().await.unwrap().facts.text, "one");
        let expected =
            [vec!["agent:start", "agent:session s-1"], warnings, vec!["agent:complete Complete"]].concat();
        assert_eq!(brief(&watch.envelopes()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_input_that_does_not_fit_begins_nothing() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let rows = [json!({ "nonsense": 1 }), json!({ "outputSchema": { "type": 7 } })];
    for options in rows {
        let error = run(&hub, &Script::new([]), options).execute().await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ConfigInvalid);
    }
    assert_eq!(watch.names(), [""; 0]);
}

fn structured(value: Value) -> Vec<Do> {
    vec![Do::Output(json!({ "text": "x", "sessionId": "s-1", "structuredOutput": value }))]
}

fn schema() -> Value {
    json!({ "outputSchema": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } } })
}

#[tokio::test(start_paused = true)]
async fn an_output_that_does_not_fit_gets_one_repair() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([structured(json!({ "n": "one" })), structured(json!({ "n": 1 }))]);
    let end = run(&hub, &script, schema()).execute().await.unwrap();
    assert_eq!((end.facts.structured_output, end.turns), (Some(json!({ "n": 1 })), 2));
    let repair = "Your structured output does not fit the JSON Schema it must fit:\n\
        - /n: \"one\" is not of type \"integer\"\nGive the whole structured output again so that it fits.";
    assert_eq!(script.inputs()[1..], [follow_with(repair, schema())]);
    assert_eq!(
        brief(&watch.envelopes()),
        ["agent:start", "agent:session s-1", "agent:warning repair", "agent:complete Complete"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_output_that_still_does_not_fit_fails() {
    let missing = vec![Do::Output(json!({ "text": "x", "sessionId": "s-1" }))];
    let without_session = vec![Do::Output(json!({ "text": "x" }))];
    let refused = vec![Do::Output(json!({ "text": "no", "sessionId": "s-1", "stopReason": "refusal" }))];
    let rows = [
        (vec![missing.clone(), structured(json!({}))], "/: \"n\" is a required property", 2),
        (vec![structured(json!({ "n": "a" })), missing], "there is no structured output", 2),
        (vec![without_session], "there is no structured output", 1),
        (vec![refused], "there is no structured output", 1),
    ];
    for (calls, fault, turns) in rows {
        let hub = hub();
        let script = Script::new(calls);
        let message = format!("the structured output does not fit its schema: {fault}");
        let expected = AgentError::new(ErrorCode::OutputInvalid, message).from_provider("script");
        assert_eq!(run(&hub, &script, schema()).execute().await, Err(expected));
        assert_eq!(script.inputs().len(), turns);
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_last_answer_must_fit_and_each_has_its_own_repair() {
    let hub = hub();
    let busy = |value: Value| [vec![Do::Sleep(Duration::from_secs(1))], structured(value)].concat();
    let script = Script::new([
        busy(json!({ "n": "unfit, but a message follows" })),
        busy(json!({})),
        busy(json!({ "n": "unfit, but a message follows the repair" })),
        busy(json!({})),
        busy(json!({ "n": 5 })),
    ]);
    let running = tokio::spawn(run(&hub, &script, schema()).execute());
    settle().await;
    message(&hub, "a", FollowUp).unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    message(&hub, "b", FollowUp).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.facts.structured_output, end.turns), (Some(json!({ "n": 5 })), 5));
}

#[tokio::test(start_paused = true)]
async fn permission_is_asked_of_a_person_or_denied() {
    let ask = PermissionPolicy::Ask { deadline: Duration::from_secs(60) };
    type Answer = Option<(&'static str, Option<&'static str>)>;
    let rows: [(PermissionPolicy, Answer, &str, u64); 5] = [
        (PermissionPolicy::Deny, None, "no broker", 0),
        (ask, Some(("allow", None)), "Allow { updated_input: None }", 0),
        (ask, Some(("", Some("deny"))), "Deny { message: \"permission was denied\" }", 0),
        (ask, Some(("not today", Some("deny"))), "Deny { message: \"not today\" }", 0),
        (ask, None, "Deny { message: \"permission was denied\" }", 60),
    ];
    for (policy, answer, expected, seconds) in rows {
        let hub = hub();
        let mut watch = Watch::new(&hub);
        let script = Script::new([vec![Do::Ask("Bash"), output("x")]]);
        let began = Instant::now();
        let running = tokio::spawn(run(&hub, &script, json!({})).permissions(policy).execute());
        settle().await;
        if let Some((content, choice)) = answer {
            hub.reply("prompt-1".into(), content, choice.map(str::to_owned)).unwrap();
        }
        running.await.unwrap().unwrap();
        assert_eq!(began.elapsed().as_secs(), seconds);
        let events = watch.events();
        let prompts: Vec<_> =
            events.iter().filter(|event| matches!(event, Event::SessionPrompt { .. })).cloned().collect();
        let prompt = Event::SessionPrompt {
            prompt_id: "prompt-1".into(),
            prompt: "Allow `Bash`?".to_owned(),
            choices: Some(vec!["allow".to_owned(), "deny".to_owned()]),
            allow_text: None,
            kind: inspan_protocol::PromptKind::Permission,
            detail: Some(json!({ "toolName": "Bash", "input": { "command": "ls" }, "toolUseId": "t1" })),
            deadline: Some(crate::testing::NOON + Duration::from_secs(60)),
            default: Some("deny".to_owned()),
        };
        assert_eq!(prompts, if policy == PermissionPolicy::Deny { vec![] } else { vec![prompt] });
        let said = Event::AgentText { content: expected.to_owned(), delta: true, run_id: "run-1".into() };
        assert_eq!(events.iter().filter(|event| **event == said).count(), 1, "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_is_completed_and_its_turn_cancelled() {
    let hub = hub();
    let mut watch = Watch::new(&hub);
    let script = Script::new([vec![Do::Say(session("s-1")), Do::Say(tool_start("t")), Do::Hang]]);
    let mut running = Box::pin(run(&hub, &script, json!({})).execute());
    assert!(matches!(futures::poll!(&mut running), Poll::Pending));
    message(&hub, "unread", FollowUp).unwrap();
    drop(running);
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "agent:tool:start t",
            "session:message unread",
            "agent:warning undelivered",
            "agent:tool:complete t",
            "agent:complete Aborted",
        ]
    );
    assert_eq!(hub.send_to_run("run-1".into(), "m", FollowUp), Err(Rejection::RunEnded("run-1".into())));
}

/// A message that is sent at any moment around the end of a run is delivered, or refused, or told to be
/// undelivered: exactly one of the three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_at_the_end_of_a_run() {
    for round in 0..300_u32 {
        let hub = hub();
        let mut watch = Watch::new(&hub);
        let calls = std::iter::repeat_with(|| turn("x")).take(64);
        let script = Script::new(calls);
        let sender = {
            let hub = hub.clone();
            tokio::task::spawn_blocking(move || {
                for _ in 0..round % 100 {
                    std::hint::spin_loop();
                }
                (0..20).filter(|n| message(&hub, &format!("m{n};"), FollowUp).is_ok()).collect::<Vec<u32>>()
            })
        };
        let running = tokio::spawn(run(&hub, &script, json!({})).execute());
        let sent = sender.await.unwrap();
        running.await.unwrap().unwrap();
        let inputs: String = script.inputs().iter().map(|input| input["prompt"].as_str().unwrap()).collect();
        let delivered: Vec<u32> = (0..20).filter(|n| inputs.contains(&format!("m{n};"))).collect();
        assert_eq!(sent, delivered);
        let names = watch.names();
        let count = |name: &str| names.iter().filter(|seen| *seen == name).count();
        assert_eq!((count("session:message"), count("session:rejected")), (sent.len(), 20 - sent.len()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_steer_that_meets_the_end_of_its_turn_is_the_next_turn() {
    let hub = hub();
    let slow = vec![Do::Say(session("s-1")), Do::AwaitCancel, output("done anyway")];
    let script = Script::new([slow, turn("next")]);
    let running = tokio::spawn(run(&hub, &script, json!({})).execute());
    settle().await;
    message(&hub, "go", Steer).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.turns, end.facts.text.as_str()), (2, "next"));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_done_when_it_was_cancelled_counts_as_done() {
    let hub = hub();
    let script = Script::new([vec![Do::AwaitCancel, output("done anyway")]]);
    let cancel = CancellationToken::new();
    let running = tokio::spawn(run(&hub, &script, json!({})).cancel(cancel.clone()).execute());
    settle().await;
    cancel.cancel();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.facts.text.as_str(), end.facts.stop_reason), ("done anyway", StopReason::Complete));
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
