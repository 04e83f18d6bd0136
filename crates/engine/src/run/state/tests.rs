//! The documented tables, walked, and whole runs.

use inspan_protocol::Spending;
use serde_json::json;

use super::*;
use crate::testing::{say, session, tool_complete, tool_start};

fn identity() -> Identity {
    Identity {
        run_id: "run-1".into(),
        agent_name: "coder".to_owned(),
        provider: "script".to_owned(),
        model: Some("m".to_owned()),
        multi_turn: Default::default(),
        listens: false,
    }
}

fn usage(input: u64, output: u64) -> Usage {
    Usage { input_tokens: input, output_tokens: output, ..Usage::default() }
}

fn facts(session: Option<&str>, usage: Usage, cost_usd: Option<f64>) -> OutputFacts {
    OutputFacts {
        text: "done".to_owned(),
        structured_output: None,
        session: session.map(ProviderSessionId::from),
        turn_id: None,
        stop_reason: StopReason::Complete,
        usage,
        cost_usd,
        num_turns: 1,
    }
}

const END: RunInput<'static> = RunInput::End { stop_reason: StopReason::Complete, duration_ms: 7 };

fn spent(input: u64, output: u64) -> RunInput<'static> {
    RunInput::Stream(StreamEvent::Usage { usage: usage(input, output), cost_usd: Some(0.5) })
}

fn full(used_tokens: u64) -> ContextUse {
    ContextUse { used_tokens, window_tokens: Some(100) }
}

/// A run that has been through these inputs.
fn after(inputs: &[RunInput<'static>]) -> RunEvents {
    let mut state = RunEvents::new(identity(), None);
    for input in inputs {
        state.apply(input.clone());
    }
    state
}

fn in_turn() -> Vec<RunInput<'static>> {
    vec![RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }, spent(1, 2)]
}

/// What the documented tables say about an input, in their words.
fn cell(events: &[Event], before: &str, after: &str) -> String {
    let words: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::AgentWarning { code, .. } => format!("warning `{code}`"),
            other => other.name().to_owned(),
        })
        .collect();
    match (words.is_empty(), before == after) {
        (true, true) => "-".to_owned(),
        (true, false) => format!("→ {after}"),
        (false, true) => words.join(", "),
        (false, false) => format!("{} → {after}", words.join(", ")),
    }
}

/// The tables of the module's documentation.
fn documented() -> Vec<String> {
    include_str!("../state.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_documented_tables_are_what_happens() {
    let stage = |state: &RunEvents| format!("{:?}", state.stage).to_lowercase();
    let mut table = vec!["Stage | begin | turn begins | text | turn ends | end |".to_owned()];
    let stages =
        [vec![], vec![RunInput::Begin { turn: 1 }], in_turn(), vec![RunInput::Begin { turn: 1 }, END]];
    let inputs = [
        RunInput::Begin { turn: 2 },
        RunInput::TurnBegins { messages: 0 },
        RunInput::Stream(say("x")),
        RunInput::TurnEnds(None),
        END,
    ];
    for history in &stages {
        let before = stage(&after(history));
        let cells = inputs.each_ref().map(|input| {
            let mut state = after(history);
            let events = state.apply(input.clone());
            cell(&events, &before, &stage(&state))
        });
        table.push(format!("{before} | {} |", cells.join(" | ")));
    }

    let call = |state: &RunEvents| match state.calls.get("t") {
        None => "unseen",
        Some(CallState::Open { .. }) => "open",
        Some(CallState::Closed) => "closed",
    };
    table.push("Call | tool start | tool complete | turn ends |".to_owned());
    let begun = vec![RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }];
    let calls = [vec![], vec![tool_start("t")], vec![tool_start("t"), tool_complete("t")]];
    let inputs =
        [RunInput::Stream(tool_start("t")), RunInput::Stream(tool_complete("t")), RunInput::TurnEnds(None)];
    for history in calls {
        let history = [begun.clone(), history.into_iter().map(RunInput::Stream).collect()].concat();
        let before = call(&after(&history));
        let cells = inputs.each_ref().map(|input| {
            let mut state = after(&history);
            let events = state.apply(input.clone());
            cell(&events, before, call(&state))
        });
        table.push(format!("{before} | {} |", cells.join(" | ")));
    }
    assert_eq!(table, documented());
}

#[test]
fn an_aborted_turn_that_nothing_is_known_of_has_not_ended() {
    let names = |stream: Vec<StreamEvent>, end: OutputFacts| {
        let mut state = after(&[RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }]);
        stream.into_iter().for_each(|event| drop(state.apply(RunInput::Stream(event))));
        let mut events = state.apply(RunInput::TurnEnds(Some(&end)));
        events.extend(state.apply(RunInput::End { stop_reason: end.stop_reason, duration_ms: 1 }));
        let unpriced = matches!(events.last(), Some(Event::AgentComplete { unpriced: true, .. }));
        (events.iter().map(|event| event.name().to_owned()).collect::<Vec<_>>(), unpriced)
    };
    let aborted = |tokens, cost| OutputFacts {
        stop_reason: StopReason::Aborted,
        ..facts(Some("s"), usage(tokens, 0), cost)
    };
    let open = (vec!["agent:session".to_owned(), "agent:complete".to_owned()], true);
    assert_eq!(names(vec![], aborted(0, None)), open);
    assert_eq!(names(vec![], aborted(0, Some(0.0))), open);
    let ended = ["agent:session", "agent:usage", "agent:complete"].map(str::to_owned).to_vec();
    assert_eq!(names(vec![], aborted(1, None)), (ended.clone(), false));
    assert_eq!(names(vec![], aborted(0, Some(0.5))), (ended.clone(), false));
    assert_eq!(names(vec![say("x")], aborted(0, None)), (ended.clone(), false));
    assert_eq!(names(vec![StreamEvent::Uncounted], aborted(0, None)), (ended.clone(), false));
    assert_eq!(names(vec![], facts(Some("s"), usage(0, 0), None)), (ended, false));
}

#[test]
fn the_events_of_two_turns_are_complete() {
    let run_id = RunId::from("run-1");
    let mut state = RunEvents::new(identity(), None);
    let mut events = Vec::new();
    let first = facts(Some("s-2"), usage(10, 5), Some(0.25));
    let second = facts(Some("s-2"), usage(1, 1), None);
    for input in [
        RunInput::Begin { turn: 3 },
        RunInput::TurnBegins { messages: 0 },
        RunInput::Stream(session("s-1")),
        RunInput::Stream(session("s-1")),
        RunInput::Stream(StreamEvent::Thinking { content: "hm".to_owned(), chunk: Chunk::Delta }),
        RunInput::Stream(StreamEvent::Text { content: "hi".to_owned(), chunk: Chunk::Whole }),
        RunInput::Stream(StreamEvent::Retract),
        RunInput::Stream(StreamEvent::warning("odd", "odd")),
        RunInput::Stream(tool_start("b")),
        RunInput::Stream(tool_start("a")),
        RunInput::Stream(tool_start("c")),
        RunInput::Stream(tool_complete("a")),
        spent(99, 99),
        RunInput::Stream(StreamEvent::Context { context: full(50) }),
        RunInput::Stream(StreamEvent::Context { context: full(70) }),
        RunInput::TurnEnds(Some(&first)),
        RunInput::TurnBegins { messages: 0 },
        RunInput::Stream(tool_start("a")),
        RunInput::Stream(tool_complete("a")),
        RunInput::TurnEnds(Some(&second)),
        RunInput::End { stop_reason: StopReason::Complete, duration_ms: 12 },
    ] {
        events.extend(state.apply(input));
    }
    let start = |id: &str| Event::AgentToolStart {
        tool_name: "Bash".to_owned(),
        tool_use_id: id.to_owned(),
        input: json!({}),
        run_id: run_id.clone(),
    };
    let complete = |id: &str| Event::AgentToolComplete {
        tool_name: "Bash".to_owned(),
        tool_use_id: id.to_owned(),
        result: json!("ok"),
        is_error: false,
        run_id: run_id.clone(),
    };
    let cut = |id: &str| Event::AgentToolComplete {
        tool_name: "Bash".to_owned(),
        tool_use_id: id.to_owned(),
        result: json!("the turn ended before the tool answered"),
        is_error: true,
        run_id: run_id.clone(),
    };
    let expected = [
        Event::AgentStart {
            agent_name: "coder".to_owned(),
            run_id: run_id.clone(),
            provider: "script".to_owned(),
            model: Some("m".to_owned()),
            turn: 3,
            multi_turn: Default::default(),
            listens: false,
        },
        Event::AgentSession { run_id: run_id.clone(), session_id: "s-1".into() },
        Event::AgentThinking { content: "hm".to_owned(), delta: true, run_id: run_id.clone() },
        Event::AgentText { content: "hi".to_owned(), delta: false, run_id: run_id.clone() },
        Event::AgentRetract { run_id: run_id.clone() },
        state.warning("odd", "odd"),
        start("b"),
        start("a"),
        start("c"),
        complete("a"),
        Event::AgentSpent { usage: usage(99, 99), cost_usd: Some(0.5), run_id: run_id.clone() },
        cut("b"),
        cut("c"),
        Event::AgentSession { run_id: run_id.clone(), session_id: "s-2".into() },
        Event::AgentUsage {
            usage: usage(10, 5),
            cost_usd: Some(0.25),
            context: Some(full(70)),
            turn_id: None,
            reported: Some(TurnSpending { usage: usage(99, 99), cost_usd: Some(0.5) }),
            uncounted: false,
            run_id: run_id.clone(),
        },
        Event::AgentTurn { run_id: run_id.clone(), turn: 4, messages: Some(0) },
        start("a"),
        complete("a"),
        Event::AgentUsage {
            usage: usage(1, 1),
            cost_usd: None,
            context: None,
            turn_id: None,
            reported: None,
            uncounted: false,
            run_id: run_id.clone(),
        },
        Event::AgentComplete {
            agent_name: "coder".to_owned(),
            success: true,
            run_id: run_id.clone(),
            stop_reason: StopReason::Complete,
            usage: usage(11, 6),
            duration_ms: 12,
            unpriced: false,
        },
    ];
    assert_eq!(events, expected);
    assert_eq!(state.session(), Some(&"s-2".into()));
}

#[test]
fn an_answer_that_is_given_again_counts_once() {
    let counts = |counted: Option<&str>, stream: Option<RunInput<'static>>| {
        let mut state = RunEvents::new(identity(), None).after(counted.map(TurnId::from));
        state.apply(RunInput::Begin { turn: 1 });
        state.apply(RunInput::TurnBegins { messages: 0 });
        stream.into_iter().for_each(|input| drop(state.apply(input)));
        let facts = OutputFacts { turn_id: Some("t1".into()), ..facts(None, usage(10, 20), Some(0.5)) };
        let events = state.apply(RunInput::TurnEnds(Some(&facts)));
        (
            events.iter().any(|event| matches!(event, Event::AgentUsage { .. })),
            state.usage() != Usage::default(),
        )
    };
    assert_eq!(counts(Some("t1"), None), (false, false));
    for (counted, stream) in [(None, None), (Some("t0"), None), (Some("t1"), Some(spent(10, 20)))] {
        assert_eq!(counts(counted, stream), (true, true), "{counted:?}");
    }
}

#[test]
fn usage_of_a_turn_is_the_output_s_unless_only_the_stream_has_it() {
    let none = facts(None, Usage::default(), None);
    let reported = facts(None, usage(5, 5), None);
    let aborted = OutputFacts { stop_reason: StopReason::Aborted, ..none.clone() };
    let cut = || RunInput::Stream(StreamEvent::Usage { usage: usage(3, 4), cost_usd: None });
    // What the stream named counts also where there is more.
    let named = Some(TurnSpending { usage: usage(3, 4), cost_usd: Some(0.5) });
    let rows = [
        (vec![], Some(&none), None, Some((Usage::default(), None))),
        (vec![], Some(&reported), None, Some((usage(5, 5), None))),
        (vec![spent(3, 2), spent(3, 4)], Some(&none), None, Some((usage(3, 4), Some(0.5)))),
        (vec![spent(3, 2), spent(3, 4)], Some(&reported), named, Some((usage(5, 5), None))),
        (vec![spent(3, 2), spent(3, 4)], Some(&aborted), named, Some((usage(3, 4), None))),
        (vec![spent(3, 2), spent(3, 4)], None, None, Some((usage(3, 4), Some(0.5)))),
        (vec![spent(3, 2), spent(3, 4), cut()], None, named, Some((usage(3, 4), None))),
        (vec![], None, None, None),
    ];
    for (stream, facts, reported, whole) in rows {
        let mut state = after(&[RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }]);
        let mut events: Vec<_> = stream.iter().flat_map(|input| state.apply(input.clone())).collect();
        let run_id = || RunId::from("run-1");
        let before = reported.map(|TurnSpending { usage, cost_usd }| Event::AgentSpent {
            usage,
            cost_usd,
            run_id: run_id(),
        });
        let whole = whole.map(|(usage, cost_usd)| Event::AgentUsage {
            usage,
            cost_usd,
            context: None,
            turn_id: None,
            reported,
            uncounted: false,
            run_id: run_id(),
        });
        let expected: Vec<_> = before.into_iter().chain(whole).collect();
        events.extend(state.apply(RunInput::TurnEnds(facts)));
        assert_eq!(events, expected, "{stream:?}");
    }
}

#[test]
fn the_price_of_a_prompt_that_was_sent_and_not_answered_is_unknown() {
    let unknown = || RunInput::Stream(StreamEvent::Usage { usage: Usage::default(), cost_usd: None });
    let rows = [
        // No turn has ended: what it was sent is sent again.
        (vec![unknown()], 0, true),
        (vec![], 0, false),
        // The model was at work, and its turn counts.
        (vec![RunInput::Stream(say("hm")), unknown()], 1, false),
        (vec![unknown(), RunInput::Stream(StreamEvent::Uncounted)], 1, false),
    ];
    for (stream, turns, expected) in rows {
        let mut state = after(
            &[vec![RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }], stream.clone()]
                .concat(),
        );
        let mut events = state.apply(RunInput::TurnEnds(None));
        events.extend(state.apply(RunInput::End { stop_reason: StopReason::Error, duration_ms: 1 }));
        let Some(Event::AgentComplete { unpriced, .. }) = events.last() else { panic!("{events:?}") };
        let ended = events.iter().filter(|event| matches!(event, Event::AgentUsage { .. })).count();
        assert_eq!((ended, *unpriced), (turns, expected), "{stream:?}");
    }
}

#[test]
fn what_a_turn_takes_is_reported_once_it_is_certain_to_go_on() {
    let priced = |input, output, cost_usd| {
        RunInput::Stream(StreamEvent::Usage { usage: usage(input, output), cost_usd })
    };
    let mut state = after(&[RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }]);
    let output = facts(None, usage(20, 9), Some(0.75));
    let inputs = [
        // The message that calls a tool is counted before the call, or after it.
        priced(1, 2, None),
        RunInput::Stream(tool_start("a")),
        priced(5, 5, Some(0.25)),
        RunInput::Stream(tool_complete("a")),
        // It may be the last one.
        priced(9, 9, Some(0.5)),
        RunInput::Stream(say("done?")),
        RunInput::Stream(tool_start("b")),
        RunInput::Stream(tool_complete("b")),
        priced(20, 9, Some(0.75)),
        RunInput::TurnEnds(Some(&output)),
        RunInput::TurnBegins { messages: 0 },
        RunInput::TurnEnds(Some(&output)),
    ];
    let events: Vec<_> = inputs.into_iter().flat_map(|input| state.apply(input)).collect();
    let reports: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::AgentSpent { usage, cost_usd, .. } => Some((*usage, *cost_usd, None)),
            Event::AgentUsage { usage, cost_usd, reported, .. } => Some((*usage, *cost_usd, Some(*reported))),
            _ => None,
        })
        .collect();
    let part = TurnSpending { usage: usage(9, 9), cost_usd: Some(0.5) };
    let expected = [
        (usage(1, 2), None, None),
        (usage(4, 3), Some(0.25), None),
        (usage(4, 4), Some(0.25), None),
        (usage(20, 9), Some(0.75), Some(Some(part))),
        (usage(20, 9), Some(0.75), Some(None)),
    ];
    assert_eq!(reports, expected);
    let sum = events.iter().filter_map(Event::spent).fold(Spending::default(), |mut sum, (_, spent)| {
        sum += spent;
        sum
    });
    assert_eq!(sum, Spending { cost_usd: 1.5, tokens: 58, ..Spending::default() });
}

#[test]
fn the_usage_of_a_request_that_called_a_tool_may_come_after_the_tool_has_answered() {
    let mut state = after(&[RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }]);
    let inputs = [
        RunInput::Stream(tool_start("a")),
        RunInput::Stream(tool_complete("a")),
        spent(1, 2),
        RunInput::Stream(tool_start("b")),
        RunInput::Stream(tool_complete("b")),
        spent(3, 4),
        // This one may end the turn.
        RunInput::Stream(say("done")),
        spent(9, 9),
        // Sub-agents work on: it is certain to go on with the second request.
        spent(9, 12),
        spent(20, 13),
    ];
    let seen: Vec<_> = inputs
        .into_iter()
        .map(|input| {
            let events = state.apply(input);
            events.iter().filter(|event| matches!(event, Event::AgentSpent { .. })).count()
        })
        .collect();
    assert_eq!(seen, [0, 0, 1, 0, 0, 1, 0, 0, 0, 1]);
}

#[test]
fn the_tokens_of_a_request_that_was_cut_short_are_more_than_was_said() {
    let aborted = OutputFacts { stop_reason: StopReason::Aborted, ..facts(None, usage(100, 1), None) };
    let so_far = || RunInput::Stream(StreamEvent::Usage { usage: usage(100, 1), cost_usd: None });
    for (facts, cut) in [(Some(&aborted), true), (None, true), (Some(&aborted), false)] {
        let mut state = after(&[RunInput::Begin { turn: 1 }, RunInput::TurnBegins { messages: 0 }, so_far()]);
        if cut {
            assert_eq!(state.apply(RunInput::Stream(StreamEvent::Uncounted)), []);
        }
        let spent = |events: Vec<Event>| {
            events.iter().filter_map(Event::spent).map(|(_, spent)| spent).collect::<Vec<_>>()
        };
        let expected = Spending { tokens: 101, unpriced: true, uncounted: cut, ..Spending::default() };
        assert_eq!(spent(state.apply(RunInput::TurnEnds(facts))), [expected]);
        // The next turn is another matter.
        state.apply(RunInput::TurnBegins { messages: 0 });
        state.apply(so_far());
        let expected = Spending { uncounted: false, ..expected };
        assert_eq!(spent(state.apply(RunInput::TurnEnds(None))), [expected]);
    }
}

#[test]
fn only_an_end_without_fault_or_abort_is_a_success() {
    use StopReason::*;
    let reasons = [Complete, MaxTokens, MaxTurns, Refusal, Aborted, Error];
    let seen = reasons.map(|stop_reason| {
        let mut state = after(&[RunInput::Begin { turn: 1 }]);
        match &state.apply(RunInput::End { stop_reason, duration_ms: 1 })[..] {
            [Event::AgentComplete { success, stop_reason, .. }] => (*success, *stop_reason),
            other => panic!("{other:?}"),
        }
    });
    let expected = [true, true, true, true, false, false];
    assert_eq!(seen.map(|(success, _)| success), expected);
    assert_eq!(seen.map(|(_, reason)| reason), reasons);
}
