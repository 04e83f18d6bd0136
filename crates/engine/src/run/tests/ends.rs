//! Every way a run can end other than by itself.

use super::*;
use crate::run::active::BACKLOG;

#[tokio::test(start_paused = true)]
async fn a_provider_is_asked_for_no_more_until_the_name_of_its_conversation_is_kept() {
    for is_cancelled in [false, true] {
        let hub = hub();
        hub.expect_store();
        let mut watch = EventCollector::new(&hub);
        let script = Script::new([turn("said")]);
        let cancel = CancellationToken::new();
        let running = tokio::spawn(run(&hub, &script, json!({})).cancel(cancel.clone()).execute());
        settle().await;
        hub.mark_stored(1);
        settle().await;
        assert_eq!(watch.names(), ["agent:start", "agent:session"]);
        if is_cancelled {
            cancel.cancel();
        } else {
            hub.mark_stored(2);
        }
        assert_eq!(running.await.unwrap().unwrap().facts.text, "said");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_says_more_than_can_be_kept_has_to_wait() {
    for is_cancelled in [false, true] {
        let hub = hub();
        hub.expect_store();
        let words = vec![Do::Say(say("word")); 10_000];
        let script = Script::new([[words, turn("said")].concat()]);
        let cancel = CancellationToken::new();
        let running = tokio::spawn(run(&hub, &script, json!({})).cancel(cancel.clone()).execute());
        for _ in 0..4 {
            settle().await;
        }
        assert_eq!(hub.last_seq(), BACKLOG + 1);
        if is_cancelled {
            cancel.cancel();
        }
        hub.mark_stored(u64::MAX);
        assert_eq!(running.await.unwrap().unwrap().facts.text, "said");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_is_an_outcome_with_what_was_done() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
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
        turn_id: None,
        stop_reason: StopReason::Aborted,
        usage: Usage::default(),
        cost_usd: None,
        num_turns: 1,
    };
    let output = json!({ "text": "half", "sessionId": "s-1", "stopReason": "aborted", "usage": Usage::default(),
        "numTurns": 1 });
    assert_eq!(end, RunEnd { run_id: "run-1".into(), output, facts, turns: 1, denials: vec![] });
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
        let mut watch = EventCollector::new(&hub);
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
    let mut watch = EventCollector::new(&hub);
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
    for (calls, options, reported) in rows {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let began = Instant::now();
        let script = Script::new(calls);
        let run = run(&hub, &script, options).deadline(Duration::from_secs(30));
        let error = AgentError::new(ErrorCode::Timeout, "the run did not end by its deadline");
        assert_eq!(run.execute().await, Err(error.from_provider("script")));
        assert_eq!(began.elapsed().as_secs(), 30);
        let expected = [vec!["agent:start"], reported, vec!["agent:complete Error"]].concat();
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
        let mut watch = EventCollector::new(&hub);
        let spent =
            StreamEvent::Usage { usage: Usage { input_tokens: 9, ..Usage::default() }, cost_usd: None };
        let script = Script::new([[vec![Do::Say(tool_start("t")), Do::Say(spent)], steps].concat()]);
        assert_eq!(run(&hub, &script, json!({})).execute().await, Err(expected));
        let mut envelopes = watch.envelopes();
        assert_eq!(
            brief(&envelopes),
            [
                "agent:start",
                "agent:tool:start t",
                "agent:spent",
                "agent:tool:complete t",
                "agent:complete Error"
            ]
        );
        let complete = Event::AgentComplete {
            agent_name: "coder".to_owned(),
            success: false,
            run_id: "run-1".into(),
            stop_reason: StopReason::Error,
            usage: Usage { input_tokens: 9, ..Usage::default() },
            duration_ms: 0,
            unpriced: false,
        };
        assert_eq!(envelopes.pop().unwrap().event, complete);
    }
}

/// A provider whose outputs do not fit.
struct Spoiled(Arc<dyn DynProvider>);

impl ProviderWrapper for Spoiled {
    fn inner(&self) -> &dyn DynProvider {
        &*self.0
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let spoil = |item: ProviderItem<Value>| match item {
            ProviderItem::Output(mut output) => {
                output["text"] = json!(7);
                ProviderItem::Output(output)
            }
            event => event,
        };
        self.0.execute(input, context).map(move |item| item.map(spoil)).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_faulty_provider_took_is_unknown() {
    let refused = AgentError::new(ErrorCode::RateLimited, "slow down");
    let misfit = "the output of provider `script` does not fit: /text: 7 is not of type \"string\"";
    let rows = [
        (vec![], "the provider ended without an output", true),
        (vec![Do::Panic], "the provider panicked", true),
        (vec![output("spoiled")], misfit, true),
        // It may never have reached the vendor.
        (vec![Do::Fail(refused)], "slow down", false),
    ];
    for (steps, message, expected) in rows {
        let hub = hub();
        let mut watch = EventCollector::new(&hub);
        let provider = Arc::new(Spoiled(Script::new([steps]).provider()));
        let error =
            AgentRun::new(hub, "coder", provider, json!({ "prompt": "go" })).execute().await.unwrap_err();
        let code = if expected { ErrorCode::Protocol } else { ErrorCode::RateLimited };
        assert_eq!((error.code, error.message.as_str()), (code, message));
        let last = watch.envelopes().pop().unwrap().event;
        let Event::AgentComplete { unpriced, .. } = last else { panic!("{last:?}") };
        assert_eq!(unpriced, expected, "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_follows_the_output_is_ignored_and_reported() {
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
        let mut watch = EventCollector::new(&hub);
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
    let mut watch = EventCollector::new(&hub);
    let rows = [json!({ "nonsense": 1 }), json!({ "outputSchema": { "type": 7 } })];
    for options in rows {
        let error = run(&hub, &Script::new([]), options).execute().await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ConfigInvalid);
    }
    assert_eq!(watch.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_is_completed_and_its_turn_cancelled() {
    let hub = hub();
    let mut watch = EventCollector::new(&hub);
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
            "agent:spent",
            "agent:tool:complete t",
            "agent:complete Aborted",
        ]
    );
    assert_eq!(hub.send_to_run("run-1".into(), "m", FollowUp), Err(Rejection::RunEnded("run-1".into())));
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

/// A clock that was two hours behind when the session began, and was set right since.
struct WasBehind(crate::VirtualClock);

impl crate::Clock for WasBehind {
    fn now(&self) -> inspan_protocol::Timestamp {
        self.0.now()
    }

    fn wall(&self) -> inspan_protocol::Timestamp {
        self.0.now() + Duration::from_secs(7_200)
    }
}

#[tokio::test(start_paused = true)]
async fn the_moment_that_a_vendor_names_is_one_of_the_wall_clock() {
    let (noon, second) = (crate::testing::NOON, Duration::from_secs(1));
    let clock = Arc::new(WasBehind(crate::VirtualClock::starting_at(noon)));
    let hubs = [hub(), Hub::new("flow-1".into(), clock, Arc::new(crate::CountingIds::new()))];
    // What the vendor names, and when that is in each session.
    let in_days = noon + Duration::from_secs(31 * 86_400);
    let rows = [
        (noon + 7_220 * second, [Some(noon + 7_220 * second), Some(noon + 20 * second)]),
        (in_days + second, [None, Some(noon + Duration::from_secs(31 * 86_400 - 7_199))]),
    ];
    for (named, expected) in rows {
        let ends = hubs.each_ref().map(|hub| {
            let limit = AgentError::new(ErrorCode::RateLimited, "no");
            let limit = AgentError { resets_at: Some(named), ..limit };
            run(hub, &Script::new([vec![Do::Fail(limit)]]), json!({})).execute()
        });
        let [one, other] = ends;
        assert_eq!([one.await, other.await].map(|end| end.unwrap_err().resets_at), expected);
    }
}
