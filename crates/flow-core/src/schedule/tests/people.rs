//! Questions to people across pauses: those that nodes ask, and those about work that may have taken effect.

use std::time::Duration;

use inspan_protocol::{Event, NodeId, NodePath, NodeStatus, Outcome, PromptKind, Timestamp};
use serde_json::json;

use super::{
    reuse::{reusable, reusable_after},
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    schedule::{AttemptEnd, Missing, Reusable, Run, StartNode},
    testing::graph,
};

const ASK: &str = "name: ask\nnodes:\n  - { id: human, type: human.input, input: { prompt: go } }\n";
const RISKY: &str = "name: risky\nnodes:\n  - { id: ok, type: control.noop, effects: external, policy: { retry: { maxAttempts: 3 } } }\n  - { id: ok2, type: control.noop, dependsOn: [ok] }\n";

#[test]
fn a_question_keeps_its_id_and_its_wait_and_its_answer_is_used() {
    let graph = graph(ASK);
    let sim = Sim::new(&graph, &[]).driven_to("session:prompt", world);
    let id = |sim: &Sim| sim.run.state().session.prompts[0].prompt_id.clone();
    let asked = id(&sim);
    let mut crashed = Sim::new(&graph, &sim.log);
    crashed.now = sim.now + Duration::from_secs(3_600);
    crashed.resume(None, &Default::default());
    crashed.until_event("session:prompt", world);
    assert_eq!(id(&crashed), asked);
    let cut = crashed.started[0].interrupted.as_ref().unwrap();
    assert_eq!((cut.since, cut.asked.as_ref().map(|asked| &asked.prompt_id)), (Some(sim.now), Some(&asked)));
    // The answer is in the log, and the process dies before it is used.
    crashed.until_event("session:reply", world);
    let answered = Sim::resumed(&graph, &crashed.log, None).driven(world);
    answered.check();
    let asked_again = story(&answered.log[crashed.log.len()..]).contains("session:prompt");
    let reply = answered.started[0].interrupted.as_ref().unwrap().reply.clone();
    let yes = inspan_protocol::Reply { content: "yes".to_owned(), choice: None };
    assert_eq!((asked_again, reply), (false, Some(yes)));
}

#[test]
fn the_time_of_a_question_passes_whether_a_process_waits_or_not() {
    let graph = graph(&ASK.replace("input:", "policy: { timeout: 1h }, input:"));
    let asks = |_: &StartNode, _: &Run| {
        let late = Timestamp::from_millis(36_000_000);
        vec![
            AttemptStep::Ask(None),
            AttemptStep::Until(late),
            AttemptStep::End(AttemptEnd::Output(json!({}))),
        ]
    };
    let asked = Sim::new(&graph, &[]).driven_to("flow:waiting", asks);
    let later = |log: &[_], minutes: u64| {
        let mut sim = Sim::new(&graph, log);
        sim.now = asked.now + Duration::from_secs(minutes * 60);
        sim
    };
    let resumed = |mut sim: Sim| {
        sim.resume(None, &Default::default());
        sim.driven_to("session:prompt", asks)
    };
    let sim = resumed(later(&asked.log, 40));
    let mut sim = resumed(later(&sim.log, 50));
    sim.drive(asks);
    sim.check();
    let (ended, outcome) = (sim.now.since(asked.now), sim.run.state().outcome());
    assert_eq!((ended.as_secs() / 60, outcome), (60, Some(Outcome::Failed)), "{}", story(&sim.log));
    // An answer that came in time counts, however late its node begins again.
    let mut sim = later(&asked.log, 30);
    let prompt_id = sim.run.state().session.prompts[0].prompt_id.clone();
    let reply = Event::SessionReply { prompt_id, content: "yes".to_owned(), choice: None, is_default: false };
    sim.emit(Some(NodePath::new("human")), reply);
    let mut sim = later(&sim.log, 90);
    sim.resume(None, &Default::default());
    sim.drive(world);
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
}

#[test]
fn an_answer_ends_its_node_before_the_session_rests_or_ends() {
    let text = format!(
        "{ASK}  - {{ id: human2, type: human.input, dependsOn: [human], input: {{ prompt: on }} }}\n"
    );
    let graph = graph(&text);
    let orders = [
        (Event::SessionPause { reason: None, cause: None }, None),
        (Event::SessionAbort { reason: None }, Some(Outcome::Stopped)),
    ];
    for ((order, outcome), is_resumed) in orders.iter().flat_map(|case| [(case, true), (case, false)]) {
        let mut sim = Sim::new(&graph, &[]);
        if is_resumed {
            // The process that asked is gone.
            sim.until_event("session:prompt", world);
            sim = Sim::resumed(&graph, &sim.log, None);
            let prompt_id = sim.run.state().session.prompts[0].prompt_id.clone();
            let reply =
                Event::SessionReply { prompt_id, content: "yes".to_owned(), choice: None, is_default: false };
            sim.emit(Some(NodePath::new("human")), reply);
        } else {
            sim.until_event("session:reply", world);
        }
        sim.emit(None, order.clone());
        sim.drive(world);
        sim.check();
        let state = sim.run.state();
        let statuses = state.tasks().map(|(_, node)| node.status).collect::<Vec<_>>();
        assert_eq!((statuses, state.outcome()), (vec![NodeStatus::Complete, NodeStatus::Pending], *outcome));
    }
}

#[test]
fn a_session_that_waits_for_a_person_says_so_once_and_again_after_a_rest() {
    let graph = graph(ASK);
    let asks = |_: &_, _: &_| {
        vec![
            AttemptStep::Ask(None),
            AttemptStep::Until(inspan_protocol::Timestamp::from_millis(60_000)),
            AttemptStep::End(AttemptEnd::Output(serde_json::json!({}))),
        ]
    };
    let sim = Sim::new(&graph, &[]).driven(asks);
    let waits = |sim: &Sim| story(&sim.log).matches("flow:waiting").count();
    assert_eq!(waits(&sim), 1);
    let sim = Sim::new(&graph, &[]).driven_to("flow:waiting", asks);
    let resumed = Sim::resumed(&graph, &sim.log, None).driven(asks);
    resumed.check();
    assert_eq!(waits(&resumed), 2);
    // A process that leaves while it waits must have asked before: the answer may be there already.
    let after = story(&resumed.log[sim.log.len()..]);
    assert!(after.find("session:prompt") < after.find("flow:waiting"), "{after}");
}

/// A run that died after `risky` had begun, resumed with a person who answers so.
fn doubtful(answer: Option<&'static str>) -> Sim {
    let graph = graph(RISKY);
    let sim = Sim::new(&graph, &[]).driven_to("task:start", world);
    let mut resumed = Sim::resumed(&graph, &sim.log, None);
    resumed.answer = answer;
    resumed
}

#[test]
fn what_may_have_taken_effect_is_done_again_only_if_a_person_says_so() {
    let asked = doubtful(None).driven_to("flow:waiting", world);
    assert_eq!((asked.started.len(), asked.run.doubts().count()), (0, 1));
    let ends = ["run it again", "it is done", "let it fail"].map(|answer| {
        let sim = doubtful(Some(answer)).driven(world);
        sim.check();
        let state = sim.run.state();
        // The failure that a person wants is not tried again.
        let started: Vec<_> =
            sim.started.iter().map(|start| format!("{}: {}", start.path, start.input.is_ok())).collect();
        (state.nodes()[0].status, started.join(", "), state.session.outcome.unwrap())
    });
    assert_eq!(
        ends,
        [
            (NodeStatus::Complete, "ok: true, ok2: true".to_owned(), Outcome::Success),
            (NodeStatus::Reused, "ok2: true".to_owned(), Outcome::Success),
            (NodeStatus::Failed, "ok: false".to_owned(), Outcome::Failed),
        ]
    );
}

#[test]
fn what_was_cancelled_before_it_began_has_had_no_effect() {
    let orders = [Event::SessionPause { reason: None, cause: None }, Event::SessionAbort { reason: None }];
    for order in orders {
        let graph = graph(RISKY);
        let mut sim = Sim::new(&graph, &[]).driven_to("task:start", world);
        sim.emit(None, order.clone());
        let (mut actions, task) = (Vec::new(), sim.started[0].node);
        sim.run.next(sim.now, &mut actions);
        let ended = sim.run.conclude(task, 1, AttemptEnd::NeverBegan, sim.now);
        let (path, event) = ended.expect("it runs");
        assert!(matches!(event, Event::TaskCancelled { never_began: true, .. }), "{event:?}");
        sim.emit(Some(path), event);
        sim.drive(world);
        let mut next = match order {
            Event::SessionPause { .. } => {
                assert_eq!(sim.run.state().session.status, inspan_protocol::SessionStatus::Paused);
                Sim::resumed(&graph, &sim.log, None)
            }
            _ => Sim::reusing(&graph, reusable(&sim, usize::MAX)),
        };
        next.answer = None;
        next.drive(world);
        next.check();
        assert!(!story(&next.log).contains("session:prompt"), "{}", story(&next.log));
        assert_eq!(next.run.state().session.outcome, Some(Outcome::Success));
    }
}

#[test]
fn the_doubt_and_its_answer_survive_the_next_crash() {
    for answer in ["run it again", "it is done", "let it fail"] {
        let whole = doubtful(Some(answer)).driven(world);
        let first = whole
            .log
            .iter()
            .position(|envelope| matches!(envelope.event, Event::SessionPrompt { .. }))
            .unwrap();
        let prompts = |sim: &Sim| {
            let ids = sim.log.iter().filter_map(|envelope| match &envelope.event {
                Event::SessionPrompt(prompt) => Some(prompt.prompt_id.clone()),
                _ => None,
            });
            ids.collect::<Vec<_>>()
        };
        for cut in first + 1..whole.log.len() {
            let mut sim = Sim::resumed(whole.run.graph(), &whole.log[..cut], None);
            sim.answer = Some(answer);
            sim.drive(world);
            sim.check();
            let ids = prompts(&sim);
            let begun = whole.log[first..cut].iter().any(|envelope| {
                matches!(envelope.event, Event::TaskStart { .. })
                    && envelope.context.task.as_ref().is_some_and(|path| path.node() == "ok")
            });
            let ended = whole.log[first..cut].iter().any(|envelope| envelope.event.name() == "task:complete");
            let answered =
                whole.log[first..cut].iter().any(|envelope| envelope.event.name() == "session:reply");
            // An open question is asked again under its id; an answered one is not; and a new attempt needs a
            // new question.
            let expected = match (answered, begun && !ended && answer == "run it again") {
                (false, _) => vec![ids[0].clone(), ids[0].clone()],
                (true, true) => vec![ids[0].clone(), ids[ids.len() - 1].clone()],
                (true, false) => vec![ids[0].clone()],
            };
            assert_eq!(
                (ids, sim.end()),
                (expected, whole.end()),
                "{answer}, cut after {cut}\n{}",
                story(&sim.log)
            );
        }
    }
}

#[test]
fn a_turn_that_a_message_interrupted_asks_for_nothing_any_more() {
    let text = "name: two\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go } }\n  - { id: human, type: human.input, input: { prompt: go } }\n";
    let mut sim =
        Sim::new(&graph(text), &[]).driven_to("session:prompt", |start, run| match start.path.node() {
            "a" => vec![AttemptStep::Begin, AttemptStep::Until(inspan_protocol::Timestamp::from_millis(99))],
            _ => world(start, run),
        });
    let a = || Some(NodePath::root(&NodeId::new("a").unwrap()));
    let open = |sim: &Sim| sim.run.state().prompts().iter().map(|open| open.kind).collect::<Vec<_>>();
    let asks =
        json!({ "type": "session:prompt", "promptId": "a.1", "prompt": "Allow Bash?", "kind": "permission" });
    sim.emit(a(), serde_json::from_value(asks).unwrap());
    assert_eq!(open(&sim), [PromptKind::Input, PromptKind::Permission]);
    sim.emit(a(), Event::AgentTurn { run_id: "a.1".into(), turn: 2, messages: None });
    assert_eq!(open(&sim), [PromptKind::Input]);
}

#[test]
fn what_a_person_said_of_it_counts_in_the_next_session_too() {
    let edited = graph(&RISKY.replace("name: risky", "name: edited"));
    let ends = |is_stopped| {
        ["run it again", "it is done", "let it fail"].map(|answer| {
            let mut answered = doubtful(Some(answer)).driven_to("session:reply", world);
            if is_stopped {
                answered.emit(None, Event::SessionAbort { reason: None });
                answered.drive(world);
            }
            let mut next = Sim::reusing(&edited, reusable(&answered, usize::MAX));
            next.answer = None;
            next.drive(world);
            next.check();
            assert!(!story(&next.log).contains("session:prompt"), "{answer}: {}", story(&next.log));
            let started =
                next.started.iter().filter(|start| start.input.is_ok()).map(|start| start.path.as_str());
            (started.collect::<Vec<_>>().join(" "), next.run.state().session.outcome.unwrap())
        })
    };
    let expected = [("ok ok2", Outcome::Success), ("ok2", Outcome::Success), ("", Outcome::Failed)];
    let expected = expected.map(|(started, outcome)| (started.to_owned(), outcome));
    assert_eq!([ends(false), ends(true)], [expected.clone(), expected]);
}

#[test]
fn a_wait_counts_from_its_start_in_the_sessions_that_continue_it() {
    const WAITS: &str = "
flow: { name: waits }
nodes:
  - { id: human, type: human.input, input: { prompt: go } }
  - { id: wait, type: control.wait, input: { ms: 90000000 } }
  - { id: work, type: control.noop }
";
    let hours = |hours: u64| Timestamp::default() + Duration::from_secs(hours * 3_600);
    let waits = |start: &StartNode, _: &Run| match start.path.node() {
        "work" => vec![AttemptStep::Until(hours(9))],
        "human" => vec![AttemptStep::Ask(None), AttemptStep::Until(hours(99))],
        _ => vec![AttemptStep::Until(hours(99))],
    };
    // Since when each waits, as its newest attempt is told.
    let since = |sim: &Sim| {
        ["human", "wait"].map(|node| {
            let start = sim.started.iter().rfind(|start| start.path.node() == node).unwrap();
            start.interrupted.as_ref().and_then(|cut| cut.since)
        })
    };
    let until_all_wait = |sim: &mut Sim, now| {
        sim.now = now;
        sim.until_event("session:prompt", waits);
        while sim.started.iter().filter(|start| start.path.node() == "wait").count() == 0 {
            sim.step(&waits);
        }
    };
    let edited = |index: u64| {
        graph(&WAITS.replace("control.noop }", &format!("control.noop, when: \"{index} == {index}\" }}")))
    };
    let mut first = Sim::new(&graph(WAITS), &[]);
    until_all_wait(&mut first, hours(1));
    assert_eq!(since(&first), [None; 2]);
    // Each session goes on with the one before it, was killed too, and was then resumed as it was.
    let mut left = reusable(&first, usize::MAX);
    for index in 2..5 {
        let mut next = Sim::reusing(&edited(index), left.clone());
        until_all_wait(&mut next, hours(index));
        assert_eq!(since(&next), [Some(hours(1)); 2], "session {index}\n{}", story(&next.log));
        let mut resumed = Sim::reusing_log(&edited(index), left, &next.log);
        resumed.resume(None, &Default::default());
        until_all_wait(&mut resumed, hours(index));
        assert_eq!(since(&resumed), [Some(hours(1)); 2], "session {index}, resumed\n{}", story(&resumed.log));
        left = reusable(&resumed, usize::MAX);
    }
    // A fork asks anew, and so does a question that another one has replaced.
    let mut branch = left.clone();
    branch.branch_off();
    let replaced = graph(&WAITS.replace("prompt: go", "prompt: really?"));
    let anew = [(edited(5), branch, [None; 2]), (replaced, left, [None, Some(hours(1))])];
    for (graph, left, expected) in anew {
        let mut sim = Sim::reusing(&graph, left);
        until_all_wait(&mut sim, hours(5));
        assert_eq!(since(&sim), expected, "{}", story(&sim.log));
    }
    // Nobody could answer since the session was stopped.
    first.emit(None, Event::SessionAbort { reason: None });
    first.drive(waits);
    let mut after = Sim::reusing(&edited(6), reusable(&first, usize::MAX));
    until_all_wait(&mut after, hours(6));
    assert_eq!(since(&after), [None, Some(hours(1))], "{}", story(&after.log));
}

/// What a session that takes over from another one would do, if its flow has these items.
fn plan_of_items(flow: &str, items: &str, left: &Reusable) -> Vec<String> {
    let edited = graph(&(flow.replace("[A, B]", items) + "# edited\n"));
    let plan = Sim::reusing(&edited, left.clone()).run.plan(Timestamp::default());
    plan.nodes.iter().map(|node| format!("{} {:?}", node.path, node.decision)).collect()
}

#[test]
fn what_a_person_said_of_an_item_is_not_said_of_the_one_that_replaces_it() {
    let flow = |node: &str| {
        format!(
            "
flow: {{ name: items }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: [A, B], maxConcurrency: 1 }}
    body: {{ nodes: [{{ {node} }}] }}
"
        )
    };
    // The question does not name the item.
    let asks = flow("id: human, type: human.input, input: { prompt: Deploy? }");
    let left = reusable(&Sim::new(&graph(&asks), &[]).driven(world), usize::MAX);
    let [first, second] = ["each[0]/human Runs(New)", "each[1]/human Reused"];
    assert_eq!(plan_of_items(&asks, "[C, B]", &left), [first, second]);
    assert_eq!(plan_of_items(&asks, "[B, A]", &left), ["each[0]/human Reused", second]);
    let keyed = asks.replace("maxConcurrency", "key: '{{ item }}', maxConcurrency");
    assert_eq!(plan_of_items(&keyed, "[C, B]", &left), [first, second]);
    // Nor by way of a session between the two, which has not come to the question.
    for event in ["frame:items", "frame:start"] {
        let edited = graph(&asks.replace("[A, B]", "[C, B]"));
        let between = Sim::reusing(&edited, left.clone()).driven_to(event, world);
        let left = reusable_after(&between, &left);
        assert_eq!(plan_of_items(&asks, "[C, B]", &left), [first, second], "{event}");
    }

    let pays = flow("id: pay, type: control.noop, effects: external");
    let mut paid = Sim::new(&graph(&pays), &[]);
    while paid.started.is_empty() {
        paid.step(&world);
    }
    let answered = Sim::resumed(paid.run.graph(), &paid.log, None).driven_to("session:reply", world);
    let left = reusable(&answered, usize::MAX);
    assert_eq!(plan_of_items(&pays, "[A, B]", &left)[0], "each[0]/pay Runs(Unfinished)");
    assert_eq!(plan_of_items(&pays, "[C, B]", &left)[0], "each[0]/pay Asks");
}

#[test]
fn an_answer_counts_until_the_flow_asks_something_else() {
    let plan = |flow: &str, left: &Reusable| {
        let plan = Sim::reusing(&graph(flow), left.clone()).run.plan(Timestamp::default());
        let node = &plan.nodes[0];
        (format!("{:?}", node.decision), node.is_done_again())
    };
    let edited = |more: &str| ASK.replace("prompt: go", more);
    let timed = edited("prompt: go, timeout: 2s, default: stop");
    let other = edited("prompt: come");
    let stored = Sim::new(&graph(ASK), &[]).driven_to("session:reply", world);
    let finished = Sim::new(&graph(ASK), &[]).driven(world);
    for (sim, counts) in [(&stored, "Answered"), (&finished, "Reused")] {
        let left = reusable(sim, usize::MAX);
        assert_eq!(plan(&timed, &left), (counts.to_owned(), false));
        // The answer is lost, and that needs consent.
        assert_eq!(plan(&other, &left), ("Runs(Input)".to_owned(), true));
        // It counts in a session after the next one, too.
        let next = Sim::reusing(&graph(&timed), left.clone()).driven(world);
        assert_eq!(plan(ASK, &reusable_after(&next, &left)), ("Reused".to_owned(), false));
    }
    // Where nobody has answered, the author may change what happens then.
    let mut default = Sim::new(&graph(&timed), &[]).driven_to("session:prompt", world);
    let prompt_id = default.run.state().session.prompts[0].prompt_id.clone();
    let reply = Event::SessionReply { prompt_id, content: "stop".to_owned(), choice: None, is_default: true };
    default.emit(None, reply);
    let left = reusable(&default, usize::MAX);
    assert_eq!(plan(&edited("prompt: go, timeout: 2s, default: wait"), &left).0, "Runs(Input)");
    assert_eq!(plan(&timed, &left).0, "Answered");
}

#[test]
fn a_stored_answer_decides_whether_a_part_of_a_flow_runs() {
    for (wanted, runs) in [("yes", true), ("no", false)] {
        let graph = graph(&format!(
            "
flow: {{ name: asks }}
nodes:
  - {{ id: human, type: human.input, input: {{ prompt: Deploy? }} }}
  - {{ id: wait, type: control.wait, input: {{ ms: 5000 }} }}
  - {{ id: deploy, type: control.noop, dependsOn: [human], when: \"human.content == '{wanted}'\" }}
"
        ));
        let asked = Sim::new(&graph, &[]).driven_to("session:reply", world);
        let mut left = reusable(&asked, usize::MAX);
        let deploy = NodePath::new("deploy");
        left.run_again(deploy.clone());
        let plan = Sim::reusing(&graph, left).run.plan(Timestamp::default());
        let missing = plan.missing_for_from(&graph, &deploy);
        let itself = Missing { node: deploy.clone(), needs: deploy, cause: None };
        assert_eq!(missing, (!runs).then_some(itself), "{plan:?}");
    }
}
