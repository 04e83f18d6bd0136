//! Agents that were interrupted: what they continue, and which message they get. Usage limits that are waited for.

use std::{collections::BTreeMap, time::Duration};

use inspan_protocol::{
    AgentError, ErrorCode, Event, NodePath, Outcome, SessionStatus, SteerStrength, Timestamp,
};
use serde_json::json;

use super::{
    explained,
    reuse::reusable,
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    About, StatementKind,
    schedule::{AttemptEnd, Reusable, Run, StartNode},
    testing::graph,
};

const ONE: &str = "name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go } }\n";

fn done() -> AttemptStep {
    AttemptStep::End(AttemptEnd::Output(json!({ "text": "done" })))
}

/// An agent of two turns that names its conversation.
fn talk(start: &StartNode, _: &Run) -> Vec<AttemptStep> {
    let name = format!("c-{}", start.path);
    let turn = |more: AttemptStep| vec![AttemptStep::Usage(Some(0.1), 10), more];
    [
        vec![AttemptStep::Begin, AttemptStep::Name(name)],
        turn(AttemptStep::Turn),
        turn(AttemptStep::Complete),
        vec![done()],
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn message(sim: &mut Sim, content: &str) {
    let run = sim.run.state().nodes()[0].run().unwrap().run_id.clone();
    let (agent_name, mode) = (Some("a".to_owned()), None);
    sim.emit(
        None,
        Event::SessionMessage {
            content: content.to_owned(),
            run_id: Some(run),
            agent_name,
            mode,
            receivers: None,
        },
    );
}

fn resumed(sim: &Sim, message: Option<&str>) -> Sim {
    Sim::resumed(sim.run.graph(), &sim.log, message)
}

#[test]
fn a_retry_goes_on_in_the_conversation_unless_that_is_the_fault_or_nothing_was_done() {
    let text = "name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go }, policy: { retry: { maxAttempts: 4, on: any } } }\n";
    // What each attempt spends before it fails; the last succeeds.
    let rows = [
        (ErrorCode::Overloaded, [0, 10, 0], [None, None, Some("continue"), Some("continue")]),
        (ErrorCode::RateLimited, [10, 0, 10], [None, Some("continue"), Some("continue"), Some("continue")]),
        (ErrorCode::Network, [10, 10, 10], [None, Some("continue"), Some("continue"), Some("continue")]),
        (ErrorCode::Process, [0, 0, 10], [None, None, None, Some("continue")]),
        (ErrorCode::Auth, [10, 0, 0], [None, Some("continue"), Some("continue"), Some("continue")]),
        (ErrorCode::Protocol, [10, 0, 10], [None, Some("continue"), Some("continue"), Some("continue")]),
        (ErrorCode::Timeout, [10, 10, 10], [None; 4]),
        (ErrorCode::OutputInvalid, [10, 10, 10], [None; 4]),
    ];
    for (code, spent, expected) in rows {
        let sim = Sim::new(&graph(text), &[]).driven(move |start: &StartNode, _: &Run| {
            let mut steps = vec![AttemptStep::Begin, AttemptStep::Name("c".to_owned())];
            let Some(tokens) = spent.get(start.attempt as usize - 1) else {
                steps.extend([AttemptStep::Usage(Some(0.1), 10), AttemptStep::Complete, done()]);
                return steps;
            };
            if *tokens > 0 {
                steps.extend([
                    AttemptStep::Tool,
                    AttemptStep::Spent(Some(0.1), *tokens),
                    AttemptStep::ToolDone,
                ]);
            }
            let error = AttemptEnd::Error(AgentError::new(code, "it failed"));
            steps.extend([AttemptStep::Complete, AttemptStep::End(error)]);
            steps
        });
        sim.check();
        let messages: Vec<_> = sim
            .started
            .iter()
            .map(|start| start.interrupted.as_ref().and_then(|cut| cut.message.as_deref()))
            .collect();
        assert_eq!(messages, expected, "{code:?}\n{}", story(&sim.log));
    }
}

#[test]
fn messages_that_no_turn_has_answered_go_to_the_agent_in_the_next_session() {
    let graph = graph(ONE);
    let begins = |left: &Reusable| Sim::reusing(&graph, left.clone()).driven_to("agent:session", talk);
    let mut sim = Sim::new(&graph, &[]).driven_to("agent:session", talk);
    message(&mut sim, "first");
    message(&mut sim, "second");
    let left = reusable(&sim, usize::MAX);
    let next = begins(&left);
    assert_eq!(next.starts("a"), ["1 c-a: first\n\nsecond"]);
    // It is cut short again before it has answered: in this session, or in the next one.
    let mut again = Sim::reusing_log(&graph, left.clone(), &next.log);
    again.resume(None, &Default::default());
    again.until_event("agent:session", talk);
    assert_eq!(again.starts("a"), ["2 c-a: first\n\nsecond"]);
    assert_eq!(begins(&reusable(&again, usize::MAX)).starts("a"), ["1 c-a: first\n\nsecond"]);
    again.until_event("agent:usage", talk);
    assert_eq!(begins(&reusable(&again, usize::MAX)).starts("a"), ["1 c-a: continue"]);
    // A fork has an agent of its own.
    let mut fork = left;
    fork.branch_off();
    assert_eq!(begins(&fork).starts("a"), ["1 -: -"]);
    // They follow the first turn where there is no conversation yet.
    let mut unnamed = Sim::new(&graph, &[]).driven_to("agent:start", talk);
    message(&mut unnamed, "first");
    assert_eq!(begins(&reusable(&unnamed, usize::MAX)).starts("a"), ["1 -: - +first"]);
}

/// A session is cut after these events, the next one too. Gives how that one is resumed, and how a third one begins.
fn cut_twice(text: &str, edited: &str, cuts: [&str; 2]) -> [String; 2] {
    let mut first = Sim::new(&graph(text), &[]).driven_to(cuts[0], talk);
    message(&mut first, "first");
    let edited = graph(edited);
    let mut second = Sim::reusing(&edited, reusable(&first, usize::MAX));
    // The second turn begins after the end of the first.
    cuts[1].split(' ').for_each(|event| second.until_event(event, talk));
    let third = Sim::reusing(&edited, reusable(&second, usize::MAX)).driven_to("agent:start", talk);
    let left = second.run.reusable.as_deref().unwrap().clone();
    let mut resumed = Sim::reusing_log(&edited, left, &second.log);
    resumed.resume(None, &BTreeMap::new());
    [resumed.driven_to("agent:start", talk), third].map(|sim| sim.starts("a").remove(0))
}

#[test]
fn a_message_of_an_earlier_session_is_not_lost_if_the_next_one_is_cut_too() {
    let rows = [
        // There is no conversation in the first session.
        ("agent:start", "agent:start", "2 -: - +first", "1 -: - +first"),
        ("agent:start", "agent:session", "2 c-a: first", "1 c-a: first"),
        ("agent:start", "agent:usage", "2 c-a: first", "1 c-a: first"),
        ("agent:start", "agent:turn", "2 c-a: first", "1 c-a: first"),
        ("agent:start", "agent:turn agent:usage", "2 c-a: continue", "1 c-a: continue"),
        // There is one, and the message is in the first turn of the next session.
        ("agent:session", "agent:start", "2 c-a: first", "1 c-a: first"),
        ("agent:session", "agent:session", "2 c-a: first", "1 c-a: first"),
        ("agent:session", "agent:usage", "2 c-a: continue", "1 c-a: continue"),
    ];
    for (first, second, resumed, third) in rows {
        assert_eq!(cut_twice(ONE, ONE, [first, second]), [resumed, third], "{first}, {second}");
    }
    // An agent that begins anew, since its input is another one, gets it too.
    let edited = ONE.replace("prompt: go", "prompt: come");
    assert_ne!(edited, ONE);
    assert_eq!(cut_twice(ONE, &edited, ["agent:session", "agent:start"]), ["2 -: - +first", "1 -: - +first"]);
    assert_eq!(
        cut_twice(ONE, &edited, ["agent:session", "agent:turn agent:usage"]),
        ["2 c-a: continue", "1 c-a: continue"]
    );
}

#[test]
fn a_message_that_was_answered_in_a_conversation_of_an_earlier_session_is_not_sent_again() {
    let graph = graph(ONE);
    let mut first = Sim::new(&graph, &[]).driven_to("agent:session", talk);
    message(&mut first, "first");
    let left = reusable(&first, usize::MAX);
    // Cut before its conversation was named again, with another message by then.
    let mut second = Sim::reusing(&graph, left.clone()).driven_to("agent:start", talk);
    message(&mut second, "second");
    let mut resumed = Sim::reusing_log(&graph, left.clone(), &second.log);
    resumed.resume(None, &BTreeMap::new());
    resumed.until_event("agent:usage", talk);
    assert_eq!(resumed.starts("a"), ["2 c-a: first\n\nsecond"]);
    let mut again = Sim::reusing_log(&graph, left, &resumed.log);
    again.resume(None, &BTreeMap::new());
    assert_eq!(again.driven(talk).starts("a"), ["3 c-a: continue"]);
}

#[test]
fn an_agent_resumes_its_conversation_with_the_message() {
    let graph = graph(
        "name: three\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go } }\n  - { id: b, type: talk.agent, input: { prompt: go } }\n  - { id: c, type: talk.agent, input: { prompt: go } }\n",
    );
    let mut sim = Sim::new(&graph, &[]);
    // The third has not named its conversation when the process dies.
    let at_work = |start: &StartNode, _: &Run| match start.path.as_str() {
        "c" => vec![AttemptStep::Begin, AttemptStep::Text, AttemptStep::Until(Timestamp::from_millis(99))],
        path => vec![
            AttemptStep::Begin,
            AttemptStep::Name(format!("c-{path}")),
            AttemptStep::Until(Timestamp::from_millis(99)),
        ],
    };
    sim.until_event("agent:text", at_work);
    let mut resumed = Sim::new(&graph, &sim.log);
    let own = BTreeMap::from([("b".to_owned(), "mend it".to_owned())]);
    resumed.resume(Some("go on"), &own);
    resumed.drive(talk);
    resumed.check();
    let starts = ["a", "b", "c"].map(|node| resumed.starts(node).join(", "));
    assert_eq!(starts, ["2 c-a: go on", "2 c-b: mend it", "2 -: go on"], "{}", story(&sim.log));
}

#[test]
fn an_agent_that_starts_over_has_each_message_in_the_order_they_were_sent() {
    let sim = Sim::new(&graph(ONE), &[]).driven_to("agent:start", talk);
    let first = resumed(&sim, Some("push")).driven_to("agent:start", talk);
    assert_eq!(first.starts("a"), ["2 -: push"]);
    let second = resumed(&first, Some("do not push")).driven_to("agent:start", talk);
    assert_eq!(second.starts("a"), ["3 -: push\n\ndo not push"]);
    let third = resumed(&second, None).driven_to("agent:usage", talk);
    assert_eq!(third.starts("a"), ["4 -: - +push +do not push"]);
}

#[test]
fn a_message_that_no_agent_gets_is_a_warning() {
    let graph = graph("name: one\nnodes:\n  - { id: a, type: control.wait, input: { ms: 9 } }\n");
    let sim = Sim::new(&graph, &[]).driven_to("task:start", world);
    for (message, warnings) in [(Some("stop"), 1), (None, 0)] {
        let resumed = resumed(&sim, message);
        let warned = resumed.log.iter().filter(|envelope| {
            matches!(&envelope.event, Event::Log { message, .. } if message.ends_with("none gets the message"))
        });
        assert_eq!(warned.count(), warnings, "{}", story(&resumed.log));
    }
}

#[test]
fn what_was_said_and_not_answered_is_said_again() {
    let graph = graph(ONE);
    let mut sim = Sim::new(&graph, &[]).driven_to("agent:session", talk);
    message(&mut sim, "one");
    let crashed = resumed(&sim, None);
    let started = |mut sim: Sim| {
        sim.drive(talk);
        sim.check();
        sim.starts("a")
    };
    assert_eq!(started(crashed), ["2 c-a: one"]);
    assert_eq!(started(resumed(&sim, Some("mend it"))), ["2 c-a: one\n\nmend it"]);
    // The turn that takes it has begun, and has not ended.
    sim.until_event("agent:turn", talk);
    message(&mut sim, "two");
    assert_eq!(started(resumed(&sim, None)), ["2 c-a: one\n\ntwo"]);
    // That turn has ended, and the next has not begun.
    sim.until_event("agent:usage", talk);
    assert_eq!(started(resumed(&sim, None)), ["2 c-a: two"]);
}

#[test]
fn what_came_as_a_turn_began_without_it_is_said_again() {
    let graph = graph(ONE);
    let mut sim = Sim::new(&graph, &[]).driven_to("agent:session", talk);
    message(&mut sim, "one");
    message(&mut sim, "two");
    let run_id = sim.run.state().nodes()[0].run().unwrap().run_id.clone();
    let at = || Some(NodePath::root(&graph.flow().nodes[0].id));
    sim.emit(at(), Event::AgentTurn { run_id, turn: 2, messages: Some(1) });
    let crashed = resumed(&sim, None).driven(talk);
    assert_eq!(crashed.starts("a"), ["2 c-a: one\n\ntwo"]);
    sim.until_event("agent:usage", talk);
    let after = resumed(&sim, None).driven(talk);
    assert_eq!(after.starts("a"), ["2 c-a: two"]);
}

#[test]
fn what_joined_a_turn_is_said_again_only_while_that_turn_has_not_ended() {
    let graph = graph(ONE);
    let mut sim = Sim::new(&graph, &[]).driven_to("agent:session", talk);
    message(&mut sim, "one");
    message(&mut sim, "two");
    let run_id = sim.run.state().nodes()[0].run().unwrap().run_id.clone();
    let event = Event::AgentSteer { run_id, content: "two".to_owned(), strength: SteerStrength::Native };
    sim.emit(Some(NodePath::root(&graph.flow().nodes[0].id)), event);
    let crashed = resumed(&sim, None).driven(talk);
    assert_eq!(crashed.starts("a"), ["2 c-a: two\n\none"]);
    sim.until_event("agent:usage", talk);
    let after = resumed(&sim, None).driven(talk);
    assert_eq!(after.starts("a"), ["2 c-a: one"]);
}

#[test]
fn what_was_said_before_the_conversation_had_a_name_follows_the_first_turn() {
    let mut sim = Sim::new(&graph(ONE), &[]).driven_to("agent:start", talk);
    message(&mut sim, "one");
    let mut crashed = resumed(&sim, None).driven_to("agent:usage", talk);
    assert_eq!(crashed.starts("a"), ["2 -: - +one"]);
    // The first turn has not answered it; the second has.
    let again = resumed(&crashed, None).driven_to("agent:session", talk);
    assert_eq!(again.starts("a"), ["3 c-a: one"]);
    crashed.until_event("agent:turn", talk);
    crashed.until_event("agent:usage", talk);
    let after = resumed(&crashed, None).driven(talk);
    assert_eq!(after.starts("a"), ["3 c-a: continue"]);
}

#[test]
fn the_message_to_an_agent_survives_the_next_crash() {
    let sim = Sim::new(&graph(ONE), &[]).driven_to("agent:session", talk);
    // It dies right after `flow:resumed`, and once more within the turn.
    let messaged = resumed(&sim, Some("mend it"));
    let again = resumed(&messaged, None).driven_to("agent:session", talk);
    assert_eq!(again.starts("a"), ["2 c-a: mend it"]);
    let third = resumed(&again, None).driven(talk);
    third.check();
    assert_eq!(third.starts("a"), ["3 c-a: mend it"]);
    let both = resumed(&messaged, Some("and hurry")).driven(talk);
    assert_eq!(both.starts("a"), ["2 c-a: mend it\n\nand hurry"]);
}

#[test]
fn an_agent_of_a_later_pass_never_continues_the_conversation_of_the_one_before() {
    let graph = graph(
        r#"
name: loop
nodes:
  - { id: a, type: talk.agent, input: { prompt: go } }
edges:
  - { from: a, to: a, when: "a.text == 'done'", maxIterations: 1, onExhausted: continue }
"#,
    );
    let sim = Sim::new(&graph, &[]).driven_to("loop:iterate", talk).driven_to("agent:start", talk);
    let crashed = resumed(&sim, None).driven(talk);
    crashed.check();
    assert_eq!(crashed.starts("a"), ["2 -: -"]);
    assert_eq!(crashed.started[0].path.as_str(), "a#2");
}

#[test]
fn an_attempt_after_a_failure_begins_anew() {
    let mut sim = Sim::new(
        &graph(
            "name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go }, policy: { retry: { maxAttempts: 2, on: any } } }\n",
        ),
        &[],
    );
    let fails = |start: &StartNode, run: &Run| match start.attempt {
        1 => {
            let error = AgentError::new(ErrorCode::Network, "gone");
            let named = AttemptStep::Name("c-1".to_owned());
            vec![AttemptStep::Begin, named, AttemptStep::Complete, AttemptStep::End(AttemptEnd::Error(error))]
        }
        _ => talk(start, run),
    };
    sim.until_event("task:failed", fails);
    sim.until_event("agent:start", fails);
    let crashed = resumed(&sim, None).driven(talk);
    assert_eq!(crashed.starts("a"), ["3 -: -"]);
}

fn limited(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    if start.attempt > 1 {
        return talk(start, run);
    }
    let mut error = AgentError::new(ErrorCode::RateLimited, "come back later").from_provider("talk");
    error.resets_at = Some(run.state().last_at + Duration::from_secs(3_600));
    let named = AttemptStep::Name("c-a".to_owned());
    vec![AttemptStep::Begin, named, AttemptStep::Complete, AttemptStep::End(AttemptEnd::Error(error))]
}

#[test]
fn a_limit_is_waited_out_and_burns_no_attempt() {
    let mut sim = Sim::new(&graph(ONE), &[]).driven_to("flow:waiting", limited);
    let last = sim.log.len();
    let wait = |at: usize| serde_json::to_value(&sim.log[at].event).unwrap();
    let until = "1970-01-01T01:00:00.000Z";
    assert_eq!(wait(last - 2), json!({ "type": "limit:wait", "provider": "talk", "until": until }));
    assert_eq!(wait(last - 1), json!({ "type": "flow:waiting", "on": "limit", "until": until }));
    assert_eq!(sim.run.wake_at().unwrap().as_millis(), 3_600_000);
    // Resumed elsewhere, it still waits, and gets the caller's message.
    let elsewhere = resumed(&sim, Some("go on")).driven_to("flow:waiting", limited).driven(limited);
    elsewhere.check();
    assert_eq!(elsewhere.starts("a"), ["2 c-a: go on"]);
    sim.drive(limited);
    sim.check();
    assert_eq!(sim.starts("a"), ["1 -: -", "2 c-a: continue"]);
    let node = &sim.run.state().nodes()[0];
    assert_eq!(
        (node.failures, sim.now.as_millis(), sim.run.state().outcome()),
        (0, 3_600_000, Some(Outcome::Success))
    );
}

#[test]
fn a_wait_for_a_limit_can_be_paused_and_stopped() {
    let mut sim = Sim::new(&graph(ONE), &[]).driven_to("flow:waiting", limited);
    let mut stopped = Sim::new(sim.run.graph(), &sim.log);
    stopped.emit(None, Event::SessionAbort { reason: None });
    stopped.drive(limited);
    stopped.check();
    assert_eq!((stopped.run.state().outcome(), stopped.now.as_millis()), (Some(Outcome::Stopped), 0));
    sim.emit(None, Event::SessionPause { reason: None, cause: None });
    sim.drive(limited);
    sim.check();
    assert_eq!((sim.run.state().status(), sim.now.as_millis()), (SessionStatus::Paused, 0));
    let resumed = resumed(&sim, None).driven(limited);
    resumed.check();
    assert_eq!(
        (resumed.starts("a").join(""), resumed.now.as_millis()),
        ("2 c-a: continue".to_owned(), 3_600_000)
    );
}

#[test]
fn a_limit_fails_the_node_where_the_author_wants_it() {
    // Another attempt before the limit is lifted would meet it again.
    for retry in ["", ", retry: { maxAttempts: 3, backoff: 2s }", ", retry: { maxAttempts: 3, on: any }"] {
        let text = ONE.replace("go } }", &format!("go }}, policy: {{ onLimit: fail{retry} }} }}"));
        let asks = asks_to_wait(ErrorCode::Overloaded, Duration::from_secs(3_600));
        for world in [&limited as &dyn Fn(&StartNode, &Run) -> Vec<AttemptStep>, &asks] {
            let sim = Sim::new(&graph(&text), &[]).driven(world);
            sim.check();
            assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed), "{retry}");
            assert_eq!(sim.starts("a").len(), 1, "{retry}");
            assert!(!story(&sim.log).contains("limit:wait"));
        }
        // A wait that is no usage limit is one between two attempts.
        let sim =
            Sim::new(&graph(&text), &[]).driven(asks_to_wait(ErrorCode::Overloaded, Duration::from_secs(7)));
        assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{retry}");
    }
}

#[test]
fn an_agent_whose_author_says_nothing_is_tried_again_after_what_passes() {
    let graph = |more: &str| graph(&ONE.replace("go } }", &format!("go }}{more} }}")));
    let fails = |code| {
        move |_: &StartNode, _: &Run| vec![AttemptStep::End(AttemptEnd::Error(AgentError::new(code, "busy")))]
    };
    let passing = [ErrorCode::RateLimited, ErrorCode::Overloaded, ErrorCode::Network];
    let own = [ErrorCode::Aborted, ErrorCode::BudgetExceeded];
    for &code in ErrorCode::ALL.iter().filter(|code| !own.contains(code)) {
        let sim = Sim::new(&graph(""), &[]).driven(fails(code));
        sim.check();
        let (attempts, seconds) = if passing.contains(&code) { (6, 2 + 6 + 18 + 54 + 120) } else { (1, 0) };
        assert_eq!((sim.starts("a").len(), sim.now.as_millis() / 1_000), (attempts, seconds), "{code:?}");
        assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed), "{code:?}");
    }
    // One that works on between them has each time all attempts, but not for ever.
    let works = |code| {
        move |start: &StartNode, run: &Run| {
            let steps = talk(start, run).into_iter().take(3);
            steps
                .chain([AttemptStep::Turn, AttemptStep::Complete, fails(code)(start, run).remove(0)])
                .collect()
        }
    };
    for code in [ErrorCode::Overloaded, ErrorCode::Protocol] {
        let sim = Sim::new(&graph(""), &[]).driven(works(code));
        sim.check();
        let waits = 2 + 6 + 18 + 54 + 95 * 120;
        assert_eq!((sim.starts("a").len(), sim.now.as_millis() / 1_000), (100, waits), "{code:?}");
    }
    // What the author says without a number changes the attempts, and leaves their number.
    let rows = [
        ("backoff: 30s", ErrorCode::Overloaded, 6, 30 + 90 + 3 * 120),
        ("backoff: 5m", ErrorCode::Overloaded, 6, 5 * 300),
        ("maxBackoff: 10m", ErrorCode::Overloaded, 6, 2 + 6 + 18 + 54 + 162),
        ("factor: 1", ErrorCode::Overloaded, 6, 5 * 2),
        ("on: retryable", ErrorCode::Overloaded, 6, 2 + 6 + 18 + 54 + 120),
        ("on: any", ErrorCode::InvalidRequest, 6, 2 + 6 + 18 + 54 + 120),
        ("backoff: 30s", ErrorCode::InvalidRequest, 1, 0),
    ];
    for (retry, code, attempts, seconds) in rows {
        let graph = graph(&format!(", policy: {{ retry: {{ {retry} }} }}"));
        let sim = Sim::new(&graph, &[]).driven(fails(code));
        sim.check();
        let took = (sim.starts("a").len(), sim.now.as_millis() / 1_000);
        assert_eq!(took, (attempts, seconds), "{retry} {code:?}");
    }
    // What starts over each time is paid each time.
    for retry in ["on: any", "on: any, backoff: 1ms"] {
        let graph = graph(&format!(", policy: {{ retry: {{ {retry} }} }}"));
        let sim = Sim::new(&graph, &[]).driven(works(ErrorCode::OutputInvalid));
        sim.check();
        assert_eq!(sim.starts("a").len(), 6, "{retry}");
    }
    // What the author says holds, and what may have taken effect is not done again without a question.
    let external = ", effects: external, policy: { retry: { on: any } }";
    for more in [", policy: { retry: { maxAttempts: 1 } }", ", effects: external", external] {
        let sim = Sim::new(&graph(more), &[]).driven(fails(ErrorCode::Overloaded));
        assert_eq!(sim.starts("a").len(), 1, "{more}");
    }
}

/// An agent whose server fails once and says how long to wait.
fn asks_to_wait(code: ErrorCode, wait: Duration) -> impl Fn(&StartNode, &Run) -> Vec<AttemptStep> {
    move |start, run| {
        if start.attempt > 1 {
            return talk(start, run);
        }
        let error = AgentError::new(code, "come back later").from_provider("talk");
        let end = AttemptEnd::Error(error.with_retry_after(Some(wait)));
        vec![AttemptStep::Begin, AttemptStep::Complete, AttemptStep::End(end)]
    }
}

#[test]
fn a_server_is_waited_for_as_long_as_it_can_mean() {
    let second = Duration::from_secs(1);
    let hour = 3_600 * second;
    let day = 24 * hour;
    let retry = "retry: { maxAttempts: 2, backoff: 2s }";
    let rows = [
        // What an ordinary retry waits for.
        (retry, ErrorCode::RateLimited, 7 * second, "failed", 7 * second),
        (
            "retry: { maxAttempts: 2, maxBackoff: 1s }",
            ErrorCode::RateLimited,
            7 * second,
            "failed",
            7 * second,
        ),
        ("retry: { maxAttempts: 2, maxBackoff: 2h }", ErrorCode::RateLimited, hour, "failed", hour),
        // What is a usage limit, with or without retries.
        (retry, ErrorCode::RateLimited, hour, "limit:wait", hour),
        ("retry: { maxAttempts: 1 }", ErrorCode::Overloaded, hour, "limit:wait", hour),
        (
            "retry: { maxAttempts: 2, maxBackoff: 1s }",
            ErrorCode::RateLimited,
            31 * day,
            "limit:wait",
            31 * day,
        ),
        // What nobody can mean.
        (retry, ErrorCode::RateLimited, 32 * day, "failed", 2 * second),
        (retry, ErrorCode::RateLimited, Duration::from_secs(1_000_000_000_000), "failed", 2 * second),
        (retry, ErrorCode::RateLimited, Duration::MAX, "failed", 2 * second),
    ];
    for (policy, code, asked, how, waited) in rows {
        let text = ONE.replace("go } }", &format!("go }}, policy: {{ {policy} }} }}"));
        let sim = Sim::new(&graph(&text), &[]).driven(asks_to_wait(code, asked));
        sim.check();
        let events = ["limit:wait", "task:failed a"].map(|event| story(&sim.log).contains(event));
        let outcome = (sim.now.as_millis(), sim.run.state().outcome());
        let expected = (waited.as_millis() as i64, Some(Outcome::Success));
        assert_eq!(
            (events, outcome),
            ([how == "limit:wait", how == "failed"], expected),
            "{policy} {asked:?}"
        );
    }
}

#[test]
fn a_reset_that_nobody_can_mean_is_no_limit() {
    let text = ONE.replace("go } }", "go }, policy: { retry: { maxAttempts: 2, backoff: 2s } } }");
    let sim = Sim::new(&graph(&text), &[]).driven(|start, run| {
        if start.attempt > 1 {
            return talk(start, run);
        }
        let mut error = AgentError::new(ErrorCode::RateLimited, "come back later");
        error.resets_at = Some(Timestamp::MAX);
        vec![AttemptStep::Begin, AttemptStep::Complete, AttemptStep::End(AttemptEnd::Error(error))]
    });
    sim.check();
    assert_eq!((sim.now.as_millis(), sim.run.state().outcome()), (2_000, Some(Outcome::Success)));
}

#[test]
fn a_log_with_an_impossible_limit_continues_at_once() {
    let mut sim = Sim::new(&graph(ONE), &[]).driven_to("flow:waiting", limited);
    for envelope in &mut sim.log {
        if let Event::LimitWait { until, .. } | Event::FlowWaiting { until: Some(until), .. } =
            &mut envelope.event
        {
            *until = Timestamp::MAX;
        }
    }
    let resumed = resumed(&sim, None).driven(limited);
    resumed.check();
    assert_eq!((resumed.now.as_millis(), resumed.run.state().outcome()), (0, Some(Outcome::Success)));
}

#[test]
fn an_output_that_could_not_be_read_again_fails_its_node() {
    for (levels, outcome) in [(100, Outcome::Success), (101, Outcome::Failed)] {
        let mut sim = Sim::new(&graph(ONE), &[]);
        let output = (0..levels).fold(json!(1), |value, _| json!([value]));
        sim.drive(|_, _| {
            vec![
                AttemptStep::Begin,
                AttemptStep::Complete,
                AttemptStep::End(AttemptEnd::Output(output.clone())),
            ]
        });
        sim.check();
        assert_eq!(sim.run.state().outcome(), Some(outcome), "{levels} levels");
        for envelope in &sim.log {
            let text = serde_json::to_string(envelope).unwrap();
            assert!(serde_json::from_str::<inspan_protocol::Envelope>(&text).is_ok(), "{levels} levels");
        }
    }
}

#[test]
fn a_lost_attempt_is_reported_and_started_again() {
    let graph = graph("flow: { name: f }\nnodes: [{ id: talk, type: talk.agent, input: { prompt: x } }]\n");
    let mut sim = Sim::new(&graph, &[]).driven_to("agent:session", world);
    sim.lose_one();
    sim.drive(world);
    let explained = |about| {
        let lost =
            explained(&sim, None, about).because.into_iter().filter(|one| one.kind == StatementKind::Lost);
        lost.map(|one| one.text).collect::<Vec<_>>()
    };
    let node = "attempt 1 was lost with the process that ran it; it restarts, and uses no attempt";
    let session = "attempt 1 of `talk` was lost with the process that ran it, and is started again";
    assert_eq!(
        (explained(About::Node(NodePath::new("talk"))), explained(About::Session)),
        (vec![node.to_owned()], vec![session.to_owned()])
    );
    assert_eq!(sim.starts("talk").len(), 2);
}

#[test]
fn a_cancellation_that_was_lost_does_not_stand_for_one_of_a_later_pass() {
    let graph = graph(
        r#"
name: late
nodes:
  - { id: code, type: talk.agent, input: { prompt: x }, policy: { timeout: 20m } }
  - { id: test, type: control.noop }
edges:
  - { from: code, to: test }
  - { from: test, to: code, when: "frame.pass < 2", maxIterations: 3 }
"#,
    );
    let hour = Timestamp::default() + Duration::from_secs(3_600);
    // The first attempt of each pass takes too long.
    let acts = |start: &StartNode, run: &Run| match (start.path.node(), start.attempt) {
        ("code", 1) => vec![AttemptStep::Until(hour), done()],
        ("code", _) => vec![done()],
        _ => world(start, run),
    };
    let mut sim = Sim::new(&graph, &[]);
    while sim.run.cancelled.is_empty() {
        assert!(!sim.step(&acts), "{}", story(&sim.log));
    }
    sim.lose_one();
    sim.drive(acts);
    assert_eq!(sim.starts("code").len(), 3, "{}", story(&sim.log));
    assert!(story(&sim.log).contains("task:failed code#2"), "{}", story(&sim.log));
}

#[test]
fn an_agent_of_a_frame_that_ends_gets_no_message() {
    let graph = graph(
        "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2] }
    body:
      nodes:
        - { id: work, type: talk.agent, input: { prompt: x } }
        - { id: ok, type: control.noop, dependsOn: [work] }
",
    );
    let hour = Timestamp::default() + Duration::from_secs(3_600);
    let acts = |start: &StartNode, _: &Run| match start.path.as_str() {
        "each[1]/work" => {
            vec![AttemptStep::Begin, AttemptStep::Name("c".to_owned()), AttemptStep::Until(hour), done()]
        }
        "each[0]/ok" => {
            let late = Timestamp::default() + Duration::from_secs(5);
            let error = AgentError::new(ErrorCode::NodeFailed, "it fails");
            vec![AttemptStep::Until(late), AttemptStep::End(AttemptEnd::Error(error))]
        }
        _ => vec![done()],
    };
    let mut sim = Sim::new(&graph, &[]);
    while !sim.log.iter().any(|envelope| matches!(envelope.event, Event::AgentSession { .. })) {
        sim.step(&acts);
    }
    assert_eq!(sim.run.interrupted_agents(), [NodePath::new("each[1]/work")]);
    sim.until_event("frame:ending", acts);
    assert!(sim.run.interrupted_agents().is_empty());
}
