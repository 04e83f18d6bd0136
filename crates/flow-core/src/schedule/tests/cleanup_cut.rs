//! What ends or interrupts work that cleans up: a stop while the run is ending, a pause, and a budget that is used up.

use inspan_protocol::{
    AgentError, BudgetLimits, BudgetRaise, ErrorCode, Event, NodeId, NodePath, NodeStatus, Outcome,
    RunSnapshot,
};

use super::{
    budgets::{names, turns},
    cleanup::{starts_of, status},
    reuse::reusable,
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    schedule::{Run, StartNode},
    testing::graph,
};

/// A node after `bad` or `prepare`, with agents in its frames.
const EACH: &str = "
  - id: each
    type: control.foreach
    dependsOn: [{ node: FIRST, on: any }]
    input: { items: [1, 2, 3], maxConcurrency: 1, onItemError: continue }
    body: { nodes: [{ id: talk, type: talk.agent, input: { prompt: go } }] }
";

/// One that is an agent.
const TALK: &str = "
  - { id: talk, type: talk.agent, dependsOn: [{ node: FIRST, on: any }], input: { prompt: go } }
";

/// A flow that goes on, and cleans up in a frame that fails.
const IN_FRAME: &str = "
flow: { name: f }
nodes:
  - id: outer
    type: control.foreach
    input: { items: [1], onItemError: continue }
    body:
      nodes:
        - { id: bad, type: control.noop }
        - { id: talk, type: talk.agent, dependsOn: [{ node: bad, on: any }], input: { prompt: go } }
        - { id: after, type: control.noop, dependsOn: [{ node: talk, on: any }] }
";

/// The same flow with agents in frames of the node that cleans up, which has this input.
fn each_in_frame(input: &str) -> String {
    let (head, _) = IN_FRAME.split_once("\n        - { id: talk").unwrap();
    let each = "
        - id: each
          type: control.foreach
          dependsOn: [{ node: bad, on: any }]
          input: { as: it, INPUT }
          body: { nodes: [{ id: talk, type: talk.agent, input: { prompt: go } }] }
";
    format!("{head}{}", each.replace("INPUT", input))
}

/// A flow that fails, and cleans up with these nodes.
fn fails(nodes: &str) -> String {
    let bad = "flow: { name: f }\nnodes:\n  - { id: bad, type: control.noop }";
    format!("{bad}{}", nodes.replace("FIRST", "bad"))
}

/// One that is stopped before it cleans up.
fn prepares(nodes: &str) -> String {
    let prepare = "flow: { name: f }\nnodes:\n  - { id: wait_prepare, type: control.noop }";
    format!("{prepare}{}", nodes.replace("FIRST", "wait_prepare"))
}

fn abort() -> Event {
    Event::SessionAbort { reason: None }
}

fn pause() -> Event {
    Event::SessionPause { reason: None, cause: None }
}

/// That flow when an agent is at work that cleans up.
fn at_work(text: &str) -> Sim {
    let mut sim = Sim::new(&graph(text), &[]);
    if text.contains("wait_prepare") {
        sim.until_event("task:start", world);
        sim.emit(None, abort());
    }
    sim.driven_to("agent:start", world)
}

/// How often a node has completed.
fn completed(sim: &Sim, node: &str) -> usize {
    let ends =
        |event: &Event| matches!(event, Event::TaskComplete { task_id, .. } if task_id.as_str() == node);
    sim.log.iter().filter(|envelope| ends(&envelope.event)).count()
}

#[test]
fn a_stop_while_the_run_is_ending_ends_what_costs_money() {
    for (nodes, node) in [(EACH, "each"), (TALK, "talk")] {
        for text in [fails(nodes), prepares(nodes)] {
            let mut sim = at_work(&text);
            sim.emit(None, abort());
            let wish = sim.log.len();
            sim.drive(world);
            sim.check();
            let ends = (status(&sim, node), sim.run.state().outcome());
            let expected = (NodeStatus::Cancelled, Some(Outcome::Stopped));
            assert_eq!(ends, expected, "{text}{}", story(&sim.log));
            assert_eq!(starts_of(&sim, "talk"), 1, "{text}{}", story(&sim.log));
            // Also where the process dies then.
            for cut in wish..sim.log.len() {
                let sim = Sim::resumed(sim.run.graph(), &sim.log[..cut], None).driven(world);
                sim.check();
                let ends = (starts_of(&sim, "talk"), sim.run.state().outcome());
                assert_eq!(ends, (1, Some(Outcome::Stopped)), "{cut}: {text}{}", story(&sim.log));
            }
        }
    }
}

#[test]
fn after_a_stop_while_the_run_is_ending_nothing_begins_that_costs_money_or_asks() {
    let asks = "
  - { id: talk, type: human.input, dependsOn: [{ node: FIRST, on: any }], input: { prompt: 'Remove it?' } }
";
    for nodes in [EACH, TALK, asks] {
        let back = "\n  - { id: wait_back, type: control.noop, dependsOn: [{ node: bad, on: any }] }";
        let text = fails(&format!("{back}{}", nodes.replace("FIRST", "wait_back")));
        let mut sim = Sim::new(&graph(&text), &[]);
        while status(&sim, "wait_back") != NodeStatus::Running {
            sim.step(&world);
        }
        sim.emit(None, abort());
        sim.drive(world);
        sim.check();
        let ends = (status(&sim, "wait_back"), starts_of(&sim, "talk"), sim.run.state().outcome());
        let expected = (NodeStatus::Complete, 0, Some(Outcome::Stopped));
        assert_eq!(ends, expected, "{text}{}", story(&sim.log));
    }
}

#[test]
fn a_pause_while_the_run_is_ending_cuts_agents_and_the_clean_up_goes_on_later() {
    let back = "\n  - { id: wait_back, type: control.noop, dependsOn: [{ node: FIRST, on: any }] }";
    for (nodes, times) in [(EACH, 3), (TALK, 1)] {
        let text = fails(&format!("{back}{nodes}"));
        let mut sim = at_work(&text);
        let graph = sim.run.graph().clone();
        sim.until_event("agent:session", world);
        sim.emit(None, pause());
        let wish = sim.log.len();
        sim.drive(world);
        let rests = (sim.run.state().outcome(), starts_of(&sim, "talk"), status(&sim, "wait_back"));
        assert_eq!(rests, (None, 1, NodeStatus::Complete), "{text}{}", story(&sim.log));
        let cancelled = sim.log.iter().find_map(|envelope| match &envelope.event {
            Event::TaskCancelled { cause, .. } => *cause,
            _ => None,
        });
        assert_eq!(cancelled, Some(wish as u64), "{text}{}", story(&sim.log));
        for cut in wish..=sim.log.len() {
            let sim = Sim::resumed(&graph, &sim.log[..cut], None).driven(world);
            sim.check();
            let ends = (completed(&sim, "talk"), completed(&sim, "wait_back"), sim.run.state().outcome());
            assert_eq!(ends, (times, 1, Some(Outcome::Failed)), "{cut}: {text}{}", story(&sim.log));
            assert!(sim.starts("talk")[0].ends_with(": continue"), "{cut}: {:?}", sim.starts("talk"));
        }
        let saved = serde_json::to_string(&sim.run.snapshot(&graph.input)).unwrap();
        let saved: RunSnapshot = serde_json::from_str(&saved).unwrap();
        let restored = Sim::restored(&graph, &saved, sim.now).driven(world);
        let ends = (completed(&restored, "talk"), restored.run.state().outcome());
        assert_eq!(ends, (times, Some(Outcome::Failed)), "{text}{}", story(&restored.log));
        // A stop instead ends it.
        let mut sim = Sim::resumed(&graph, &sim.log, None);
        sim.emit(None, abort());
        sim.drive(world);
        sim.check();
        let ends = (starts_of(&sim, "talk"), sim.run.state().outcome());
        assert_eq!(ends, (1, Some(Outcome::Stopped)), "{text}{}", story(&sim.log));
    }
}

#[test]
fn what_comes_after_a_paused_clean_up_waits_for_it() {
    let more = "
  - { id: wait_back, type: control.noop, dependsOn: [{ node: FIRST, on: any }] }
  - { id: after, type: control.noop, dependsOn: [{ node: talk, on: any }] }
";
    for (text, outcome) in
        [(fails(&format!("{TALK}{more}")), Outcome::Failed), (IN_FRAME.to_owned(), Outcome::Success)]
    {
        let mut sim = at_work(&text);
        sim.until_event("agent:session", world);
        sim.emit(None, pause());
        let wish = sim.log.len();
        sim.drive(world);
        let rests = (sim.run.state().outcome(), starts_of(&sim, "talk"), starts_of(&sim, "after"));
        assert_eq!(rests, (None, 1, 0), "{text}{}", story(&sim.log));
        for cut in wish..=sim.log.len() {
            let sim = Sim::resumed(sim.run.graph(), &sim.log[..cut], None).driven(world);
            sim.check();
            let ends = (completed(&sim, "talk"), completed(&sim, "after"), sim.run.state().outcome());
            assert_eq!(ends, (1, 1, Some(outcome)), "{cut}: {text}{}", story(&sim.log));
        }
    }
}

#[test]
fn after_a_pause_while_the_run_is_ending_no_agent_starts() {
    let back = "\n  - { id: wait_back, type: control.noop, dependsOn: [{ node: bad, on: any }] }";
    let text = fails(&format!("{back}{}", TALK.replace("FIRST", "wait_back")));
    let mut sim = Sim::new(&graph(&text), &[]);
    while status(&sim, "wait_back") != NodeStatus::Running {
        sim.step(&world);
    }
    sim.emit(None, pause());
    sim.drive(world);
    let rests = (status(&sim, "wait_back"), starts_of(&sim, "talk"), sim.run.state().outcome());
    assert_eq!(rests, (NodeStatus::Complete, 0, None), "{}", story(&sim.log));
    let sim = Sim::resumed(sim.run.graph(), &sim.log, None).driven(world);
    sim.check();
    let ends = (starts_of(&sim, "talk"), sim.run.state().outcome());
    assert_eq!(ends, (1, Some(Outcome::Failed)), "{}", story(&sim.log));
}

/// Agents of four turns.
fn talks(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    if start.path.node() == "talk" { turns(4, Some(0.1))(start, run) } else { world(start, run) }
}

#[test]
fn a_budget_holds_while_the_run_is_ending() {
    let each = "
  - id: each
    type: control.foreach
    NODE
    dependsOn: [{ node: bad, on: any }]
    input: { items: [1], onItemError: continue }
    body: { BODY, nodes: [{ id: talk, type: talk.agent, AGENT, input: { prompt: go } }] }
";
    let plain = TALK.replace("FIRST", "bad").replace("input:", "AGENT, input:");
    let back = "  - { id: wait_back, type: control.noop, dependsOn: [{ node: bad, on: any }] }";
    for exceeded in ["fail", "pause"] {
        let policy = format!("policy: {{ budget: {{ tokens: 15, onExceeded: {exceeded} }} }}");
        for (nodes, place) in [
            (each, "FLOW"),
            (each, "NODE"),
            (each, "BODY"),
            (each, "AGENT"),
            (plain.as_str(), "FLOW"),
            (plain.as_str(), "AGENT"),
        ] {
            let text = format!(
                "flow: {{ name: f, FLOW }}\nnodes:\n  - {{ id: bad, type: control.noop }}{nodes}{back}"
            );
            let text = text.replace(place, &policy);
            let text = text.replace(", FLOW", "").replace("    NODE\n", "").replace("BODY, ", "");
            let text = text.replace(" AGENT,", "");
            let sim = Sim::new(&graph(&text), &[]).driven(talks);
            sim.check();
            let ends = (names(&sim, "agent:usage"), names(&sim, "budget:exceeded"));
            assert_eq!(ends, (2, 1), "{text}\n{}", story(&sim.log));
            assert_eq!(completed(&sim, "talk"), 0, "{text}\n{}", story(&sim.log));
            let ends = (status(&sim, "wait_back"), sim.run.state().outcome());
            assert_eq!(ends, (NodeStatus::Complete, Some(Outcome::Failed)), "{text}\n{}", story(&sim.log));
        }
    }
}

#[test]
fn a_budget_holds_for_what_a_clean_up_runs_in_a_frame_that_is_ending() {
    let flow = each_in_frame("items: [1], onItemError: continue");
    for place in ["    input:", "      nodes:"] {
        let indent = place.len() - place.trim_start().len();
        let policy =
            format!("{}policy: {{ budget: {{ tokens: 15, onExceeded: fail }} }}", " ".repeat(indent));
        let text = flow.replacen(place, &format!("{policy}\n{place}"), 1);
        let sim = Sim::new(&graph(&text), &[]).driven(talks);
        sim.check();
        let ends = (names(&sim, "agent:usage"), completed(&sim, "talk"), sim.run.state().outcome());
        assert_eq!(ends, (2, 0, Some(Outcome::Success)), "{text}\n{}", story(&sim.log));
    }
}

#[test]
fn what_comes_after_an_agent_waits_for_its_usage_limit_unless_that_is_not_waited_for() {
    let limited = IN_FRAME.replace("id: talk", "id: limited").replace("node: talk", "node: limited");
    let end = "  - { id: wait_slow, type: control.noop }\n  - { id: bad_end, type: control.noop, dependsOn: [wait_slow] }\n";
    let ends = format!("{limited}{end}");
    // It does not clean up, and ends with its frame.
    let begun = limited.replace("dependsOn: [{ node: bad, on: any }], ", "");
    let late = "{ id: wait_first, type: control.noop }\n        - { id: bad, dependsOn: [wait_first],";
    let begun = begun.replace("{ id: bad,", late);
    for (text, starts, outcome) in
        [(limited, 2, Outcome::Success), (ends, 1, Outcome::Failed), (begun, 1, Outcome::Success)]
    {
        let sim = Sim::new(&graph(&text), &[]).driven(world);
        sim.check();
        let started = sim.started.iter().map(|start| start.path.node());
        let order: Vec<&str> = started.filter(|node| ["limited", "after"].contains(node)).collect();
        let expected = [vec!["limited"; starts], vec!["after"]].concat();
        assert_eq!(order, expected, "{text}{}", story(&sim.log));
        assert_eq!(sim.run.state().outcome(), Some(outcome), "{text}{}", story(&sim.log));
    }
}

#[test]
fn a_budget_that_pauses_holds_what_comes_after_its_agent() {
    let text = IN_FRAME.replace("name: f }", "name: f, policy: { budget: { tokens: 15 } } }");
    let mut sim = Sim::new(&graph(&text), &[]);
    sim.drive(talks);
    sim.check();
    let rests = (sim.run.state().outcome(), names(&sim, "flow:paused"), starts_of(&sim, "after"));
    assert_eq!(rests, (None, 1, 0), "{}", story(&sim.log));
}

/// A node that fails after another one.
const BAD_END: &str = "  - { id: bad_end, type: control.noop, dependsOn: [wait_slow] }";

/// The flow with a budget that its agents use up, and later ends by this node.
fn ends_later(text: &str, last: &str) -> String {
    let text = text.replace("name: f }", "name: f, policy: { budget: { tokens: 15 } } }");
    format!("{text}  - {{ id: wait_slow, type: control.noop }}\n{last}\n")
}

#[test]
fn a_budget_that_pauses_holds_nothing_back_once_the_run_ends() {
    // Something else cleans up meanwhile.
    let rest = "
        - { id: wait_one, type: control.noop, dependsOn: [{ node: bad, on: any }] }
        - { id: wait_two, type: control.noop, dependsOn: [{ node: wait_one, on: any }] }
        - { id: after, type: control.noop, dependsOn: [{ node: each, on: any }] }
";
    let each = format!("{}{rest}", each_in_frame("items: [1, 2], maxConcurrency: 1, onItemError: continue"));
    let external = IN_FRAME.replace("type: talk.agent,", "type: talk.agent, effects: external,");
    let well = "  - { id: well_end, type: control.end, dependsOn: [wait_slow], input: { reason: done } }";
    for (last, outcome) in [(BAD_END, Outcome::Failed), (well, Outcome::Success)] {
        for text in [IN_FRAME, &each, &external] {
            let text = ends_later(text, last);
            let whole = Sim::new(&graph(&text), &[]).driven(talks);
            let of_last = |path: &NodePath| path.node().ends_with("_end");
            let ends =
                whole.log.iter().rposition(|envelope| envelope.context.task.as_ref().is_some_and(of_last));
            let cut = whole.log.iter().find(|envelope| envelope.event.name() == "task:cancelled").unwrap();
            // It fails by the budget, and begins no more for that.
            let of_cut = whole.log.iter().filter(|envelope| envelope.context.task == cut.context.task);
            let events: Vec<_> = of_cut.map(|envelope| envelope.event.name()).collect();
            let starts = events.iter().filter(|name| **name == "task:start").count();
            assert!(starts == 1 && events.contains(&"task:failed"), "{text}{}", story(&whole.log));
            // Also where the process dies as the run ends.
            let again = |at| Sim::resumed(whole.run.graph(), &whole.log[..at], None).driven(talks);
            let mut sims: Vec<Sim> = (ends.unwrap() + 1..whole.log.len()).map(again).collect();
            sims.push(whole);
            for sim in sims {
                sim.check();
                let ends = (sim.run.state().outcome(), names(&sim, "agent:start"), completed(&sim, "after"));
                assert_eq!(ends, (Some(outcome), 1, 1), "{text}{}", story(&sim.log));
                assert_eq!(names(&sim, "session:prompt"), 0, "{text}{}", story(&sim.log));
            }
        }
    }
}

#[test]
fn what_a_budget_has_cut_goes_on_in_its_conversation_in_the_next_session() {
    let whole = Sim::new(&graph(&ends_later(IN_FRAME, BAD_END)), &[]).driven(talks);
    let mut left = reusable(&whole, usize::MAX);
    let more = BudgetLimits { tokens: Some(1000), usd: None };
    left.raise(&BudgetRaise { flow: Some(more), ..BudgetRaise::default() });
    let next = Sim::reusing(whole.run.graph(), left).driven(talks);
    next.check();
    assert_eq!(next.starts("talk"), ["1 c: continue"], "{}", story(&next.log));
}

#[test]
fn in_a_log_of_an_earlier_version_what_a_budget_has_cut_begins_once_more_to_fail() {
    let mut sim = Sim::new(&graph(&ends_later(IN_FRAME, BAD_END)), &[]).driven_to("task:cancelled", talks);
    let path = NodePath::new("outer[0]/talk");
    let first = sim
        .log
        .iter()
        .find(|envelope| matches!(&envelope.event, Event::TaskStart { path: of, .. } if *of == path));
    let mut again = first.unwrap().event.clone();
    if let Event::TaskStart { attempt, .. } = &mut again {
        *attempt = 2;
    }
    while starts_of(&sim, "bad_end") == 0 {
        sim.step(&talks);
    }
    sim.until_event("task:failed", talks);
    sim.emit(Some(path.clone()), again);
    let error = AgentError::new(ErrorCode::BudgetExceeded, "used up");
    sim.emit(
        Some(path.clone()),
        Event::TaskFailed { task_id: NodeId::new("talk").unwrap(), error, will_retry: false },
    );
    let talk = sim.run.state().node(sim.run.state().find(sim.run.graph(), Some(&path)).unwrap());
    assert_eq!((talk.attempt, talk.status), (2, NodeStatus::Failed), "{}", story(&sim.log));
    sim.drive(talks);
    sim.check();
    let ends = (sim.run.state().outcome(), completed(&sim, "after"));
    assert_eq!(ends, (Some(Outcome::Failed), 1), "{}", story(&sim.log));
}

#[test]
fn a_stop_ends_agents_that_clean_up_in_a_frame() {
    for (text, after) in [(IN_FRAME.to_owned(), 1), (each_in_frame("items: [1, 2, 3], maxConcurrency: 1"), 0)]
    {
        let mut sim = at_work(&text);
        sim.emit(None, abort());
        sim.drive(world);
        sim.check();
        let ends = (starts_of(&sim, "talk"), completed(&sim, "talk"), starts_of(&sim, "after"));
        assert_eq!(ends, (1, 0, after), "{}", story(&sim.log));
        assert_eq!(sim.run.state().outcome(), Some(Outcome::Stopped), "{}", story(&sim.log));
    }
}

#[test]
fn a_stop_leaves_no_frame_open_and_asks_nobody() {
    let each = "
  - id: each
    type: control.foreach
    dependsOn: [{ node: FIRST, on: any }]
    input: { items: [1, 2], maxConcurrency: 1 }
    body: { nodes: [{ id: wait_in, type: control.noop, effects: external }] }
";
    let plain = "
  - { id: wait_in, type: control.noop, effects: external, dependsOn: [{ node: FIRST, on: any }] }
";
    for (nodes, end) in [(each, Some(NodeStatus::Cancelled)), (plain, None)] {
        for text in [fails(nodes), prepares(nodes)] {
            let is_stopped = text.contains("wait_prepare");
            let mut sim = Sim::new(&graph(&text), &[]);
            sim.until_event("task:start", world);
            if is_stopped {
                sim.emit(None, abort());
            }
            while starts_of(&sim, "wait_in") == 0 {
                sim.step(&world);
            }
            let mut sim = Sim::resumed(sim.run.graph(), &sim.log, None);
            // The first stop counts, and one that comes now.
            if !is_stopped {
                sim.emit(None, abort());
            }
            sim.drive(world);
            sim.check();
            let asked = names(&sim, "session:prompt");
            let ends = (sim.run.state().outcome(), asked, starts_of(&sim, "wait_in"));
            assert_eq!(ends, (Some(Outcome::Stopped), 0, 1), "{text}{}", story(&sim.log));
            end.into_iter().for_each(|end| assert_eq!(status(&sim, "each"), end, "{}", story(&sim.log)));
        }
    }
}
