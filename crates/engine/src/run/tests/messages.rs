//! Messages, turns and what a run waits for.

use super::*;

#[tokio::test(start_paused = true)]
async fn messages_of_a_turn_become_the_next_and_sums_are_made() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
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
        turn_id: None,
        stop_reason: StopReason::Complete,
        usage,
        cost_usd: Some(0.75),
        num_turns: 5,
    };
    assert_eq!(end, RunEnd { run_id: "run-1".into(), output: expected, facts, turns: 2, denials: vec![] });
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
            "agent:turn",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_one_turn_does_not_tell_is_unknown() {
    let hub = hub();
    let output_value = json!({ "text": "a", "sessionId": "s-1", "stopReason": "complete", "costUsd": 1.0, "numTurns": 1,
        "usage": Usage::default() });
    let without_output = vec![Do::Say(session("s-1")), Do::Sleep(Duration::from_secs(1)), output("b")];
    let script = Script::new([without_output, vec![Do::Output(output_value.clone())]]);
    let running = tokio::spawn(run(&hub, &script, json!({})).execute());
    settle().await;
    message(&hub, "more", FollowUp).unwrap();
    let end = running.await.unwrap().unwrap();
    let mut expected = output_value;
    expected.as_object_mut().unwrap().remove("costUsd");
    expected["numTurns"] = json!(2);
    assert_eq!((end.output, end.facts.cost_usd), (expected, None));
}

#[tokio::test(start_paused = true)]
async fn a_multi_turn_run_waits_for_messages_until_it_idles() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
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
            "agent:turn",
            "agent:text two",
            "session:message and again",
            "agent:turn",
            "agent:text three",
            "agent:complete Complete",
        ]
    );
    assert_eq!(hub.send("too late"), Err(Rejection::NoListener));
}

#[tokio::test(start_paused = true)]
async fn a_run_in_place_of_one_that_had_answered_waits_again_without_a_turn() {
    let spent = |text: &str, tokens: u64, cost: f64, turns: u32| {
        json!({
            "text": text, "sessionId": "s-1", "stopReason": "complete", "costUsd": cost, "numTurns": turns,
            "usage": Usage { output_tokens: tokens, ..Usage::default() },
        })
    };
    let turn = |output: Value| vec![Do::Say(session("s-1")), Do::Output(output)];
    let options = json!({ "multiTurn": true, "maxTurns": 9 });
    let (cancel, first) = (CancellationToken::new(), hub());
    let mut watch = EventCollector::new(&first);
    let script = Script::new([turn(spent("one", 1, 0.25, 2)), turn(spent("two", 10, 0.5, 3))]);
    let running = tokio::spawn(run(&first, &script, options.clone()).cancel(cancel.clone()).execute());
    settle().await;
    first.send("more").unwrap();
    settle().await;
    cancel.cancel();
    assert_eq!(running.await.unwrap().unwrap().facts.stop_reason, StopReason::Aborted);
    let answers = |watch: &mut EventCollector| {
        let events = watch.envelopes().into_iter().map(|envelope| envelope.event);
        let noted = |event| if let Event::AgentListen { output, .. } = event { Some(output) } else { None };
        events.filter_map(noted).collect::<Vec<_>>()
    };
    let noted = answers(&mut watch);
    let two = spent("two", 11, 0.75, 5);
    assert_eq!(noted, [spent("one", 1, 0.25, 2), two.clone()]);

    let nothing = Script::new([]);
    let again = |hub: &Hub, script: &Script| {
        run(hub, script, options.clone()).answered(two.clone(), "s-1".into()).first_turn(2)
    };
    let idle = hub();
    let mut watch = EventCollector::new(&idle);
    let end = again(&idle, &nothing).execute().await.unwrap();
    assert_eq!((end.output, end.turns, end.facts.stop_reason), (two.clone(), 0, StopReason::Complete));
    assert_eq!(brief(&watch.envelopes()), ["agent:start", "agent:complete Complete"]);

    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    let script = Script::new([turn(spent("three", 100, 1.0, 4))]);
    let running = tokio::spawn(again(&hub, &script).execute());
    settle().await;
    hub.send("and more").unwrap();
    let end = running.await.unwrap().unwrap();
    let three = spent("three", 111, 1.75, 9);
    assert_eq!((end.output, end.facts.stop_reason), (three.clone(), StopReason::MaxTurns));
    assert_eq!(script.inputs(), [follow_with("and more", options)]);
    let events = watch.envelopes();
    let turns = events.iter().filter_map(|envelope| match envelope.event {
        Event::AgentStart { turn, listens, .. } => Some((turn, listens)),
        Event::AgentTurn { turn, .. } => Some((turn, false)),
        _ => None,
    });
    assert_eq!(turns.collect::<Vec<_>>(), [(2, true), (3, false)]);
    let mut spent = UnpricedTurns::default();
    let unpriced =
        events.iter().filter_map(|envelope| spent.take(&envelope.event)).any(|(_, spent)| spent.unpriced);
    assert!(!unpriced, "no turn was cut short");
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
    let mut watch = EventCollector::new(&hub);
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
            "agent:turn",
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
    let mut watch = EventCollector::new(&hub);
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
            "agent:turn",
            "session:message left",
            "agent:warning maxTurns",
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
    let mut watch = EventCollector::new(&hub);
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
            "agent:steer Interrupt stop that",
            "agent:tool:complete t",
            "agent:turn",
            "agent:text other",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_steering_message_waits_until_the_conversation_has_a_name() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
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
            "agent:steer Interrupt stop that",
            "agent:turn",
            "agent:text other",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_joins_the_turn_of_an_agent_that_can_take_it() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
    // The second message is given to the turn, which ends before it has taken it; the third comes too late for it.
    let script = Script::new([
        vec![Do::Say(session("s-1")), Do::Steer, Do::Say(StreamEvent::Steered), Do::Steer, output("one")],
        vec![Do::Sleep(Duration::from_secs(1)), output("two")],
    ]);
    let running = tokio::spawn(run(&hub, &script.clone().steerable(), json!({})).execute());
    settle().await;
    message(&hub, "not yet", FollowUp).unwrap();
    message(&hub, "first", Steer).unwrap();
    settle().await;
    message(&hub, "second", Steer).unwrap();
    let end = running.await.unwrap().unwrap();
    assert_eq!((end.facts.text.as_str(), end.turns), ("two", 2));
    assert_eq!(script.inputs()[1..], [follow("not yet\n\nsecond")]);
    assert_eq!(
        brief(&watch.envelopes()),
        [
            "agent:start",
            "agent:session s-1",
            "session:message not yet",
            "session:message first",
            "agent:text first",
            "agent:steer Native first",
            "session:message second",
            "agent:text second",
            "agent:turn",
            "agent:complete Complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_conversation_a_message_cannot_be_delivered_and_is_reported() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
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

/// A message that is sent at any moment around the end of a run is delivered or refused, never neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_at_the_end_of_a_run() {
    // Checking a long output takes its time just where the run decides whether to end.
    let long: Vec<u32> = (0..2000).collect();
    let answer = json!({ "text": "x", "sessionId": "s-1", "structuredOutput": long });
    let schema = json!({ "outputSchema": { "type": "array", "items": { "type": "integer" } } });
    for round in 0..8_u32 {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let script = Script::new(vec![vec![Do::Output(answer.clone())]; 101]);
        let sender = {
            let hub = hub.clone();
            // About as fast as the turns, and until the run has ended, so that some message comes in each
            // gap.
            tokio::task::spawn_blocking(move || {
                let mut sent = Vec::new();
                let mut refused = 0;
                for n in 0..100_u32 {
                    for _ in 0..(n * 7919 + round * 104_729) % 65_536 {
                        std::hint::spin_loop();
                    }
                    match message(&hub, &format!("m{n};"), FollowUp) {
                        Ok(()) => sent.push(n),
                        Err(_) => refused += 1,
                    }
                    if refused > 0 && !sent.is_empty() {
                        break;
                    }
                }
                (sent, refused)
            })
        };
        let running = tokio::spawn(run(&hub, &script, schema.clone()).execute());
        let (sent, refused) = sender.await.unwrap();
        running.await.unwrap().unwrap();
        let inputs: String = script.inputs().iter().map(|input| input["prompt"].as_str().unwrap()).collect();
        let delivered: Vec<u32> = (0..100).filter(|n| inputs.contains(&format!("m{n};"))).collect();
        assert_eq!(sent, delivered);
        let names = watch.names();
        let count = |name: &str| names.iter().filter(|seen| *seen == name).count();
        assert_eq!((count("session:message"), count("session:rejected")), (sent.len(), refused));
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
