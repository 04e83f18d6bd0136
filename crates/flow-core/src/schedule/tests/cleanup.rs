//! What follows a failure: what cleans up, and already runs when its frame or the flow ends early, is left to end. And
//! who handles it.

use std::time::Duration;

use inspan_protocol::{Event, NodePath, NodeStatus, Outcome};
use serde_json::json;

use super::{
    explained,
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    About, AttemptEnd, TaskRef,
    schedule::{Run, StartNode},
    testing::graph,
};

/// Takes something, and gives it back while other work goes on.
const TAKES: &str = "
nodes:
  - { id: take, type: control.noop }
  - { id: wait_back, type: control.noop, dependsOn: [{ node: take, on: any }] }
  - { id: wait_work, type: control.noop, dependsOn: [take] }
";

/// A node that fails while the others are at work.
const FAILS: &str = "  - { id: bad, type: control.noop, dependsOn: [take] }\n";

pub(super) fn status(sim: &Sim, node: &str) -> NodeStatus {
    let ix = sim.run.graph().flow().find(node).unwrap();
    sim.run.state().node(TaskRef::of_flow(ix)).status
}

/// A flow of those nodes, and more.
fn takes(more: &str) -> String {
    format!("flow: {{ name: f }}{TAKES}{more}")
}

/// What works is cancelled, and what cleans up and the flow have ended so.
fn assert_ends(sim: &Sim, back: NodeStatus, flow: Outcome) {
    sim.check();
    let ends = (status(sim, "wait_back"), status(sim, "wait_work"), sim.run.state().outcome());
    assert_eq!(ends, (back, NodeStatus::Cancelled, Some(flow)), "{}", story(&sim.log));
}

pub(super) fn starts_of(sim: &Sim, node: &str) -> usize {
    let is_start = |event: &Event| matches!(event, Event::TaskStart { path, .. } if path.node() == node);
    sim.log.iter().filter(|envelope| is_start(&envelope.event)).count()
}

#[test]
fn it_ends_although_the_flow_fails() {
    for seed in 0..20 {
        let sim = Sim::new(&graph(&takes(FAILS)), &[]).shuffled(seed).driven(world);
        assert_ends(&sim, NodeStatus::Complete, Outcome::Failed);
        assert_eq!(starts_of(&sim, "wait_back"), 1);
    }
}

#[test]
fn it_ends_although_the_flows_time_is_up() {
    let sim = Sim::new(&graph(&format!("flow: {{ name: f, policy: {{ timeout: 3s }} }}{TAKES}")), &[])
        .driven(world);
    assert_ends(&sim, NodeStatus::Complete, Outcome::TimedOut);
}

/// A flow that is stopped while `wait_back` runs.
fn stopped(text: &str) -> Sim {
    let mut sim = Sim::new(&graph(text), &[]);
    while status(&sim, "wait_back") != NodeStatus::Running || status(&sim, "wait_work") != NodeStatus::Running
    {
        assert!(!sim.step(&world));
    }
    sim.emit(None, Event::SessionAbort { reason: None });
    sim
}

#[test]
fn it_ends_although_the_session_is_stopped() {
    let sim = stopped(&takes("")).driven(world);
    assert_ends(&sim, NodeStatus::Complete, Outcome::Stopped);
}

#[test]
fn its_own_time_is_its_limit() {
    let back = "id: wait_back, policy: { timeout: 2s }";
    let sim = stopped(&takes("").replace("id: wait_back", back)).driven(world);
    assert_ends(&sim, NodeStatus::Failed, Outcome::Stopped);
}

#[test]
fn it_ends_although_another_item_fails() {
    let text = "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2] }
    body:
      nodes:
        - { id: take, type: control.noop }
        - { id: wait_back, type: control.noop, dependsOn: [{ node: take, on: any }] }
        - { id: wait_work, type: control.noop, dependsOn: [take] }
        - { id: bad, type: control.noop, when: item == 1, dependsOn: [take] }
";
    for seed in 0..20 {
        let mut sim = Sim::new(&graph(text), &[]).shuffled(seed);
        // The first item fails while both give back, and has ended while the second still does.
        sim.drive(|start, run| {
            let seconds = match start.path.as_str() {
                "each[0]/bad" => 1,
                "each[0]/wait_back" => 2,
                _ => return world(start, run),
            };
            let at = run.state().last_at + Duration::from_secs(seconds);
            let end = world(start, run).pop();
            [AttemptStep::Until(at)].into_iter().chain(end).collect()
        });
        sim.check();
        let ended = sim.log.iter().filter_map(|envelope| {
            let path = envelope.context.task.as_ref()?.as_str();
            (path.contains("/wait")).then(|| format!("{} {path}", envelope.event.name()))
        });
        let mut ended: Vec<_> = ended.filter(|line| !line.starts_with("task:start")).collect();
        ended.sort_unstable();
        let expected = [
            "task:cancelled each[0]/wait_work",
            "task:cancelled each[1]/wait_work",
            "task:complete each[0]/wait_back",
            "task:complete each[1]/wait_back",
        ];
        assert_eq!(ended, expected, "{}", story(&sim.log));
        assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed));
    }
}

#[test]
fn it_ends_although_a_node_ends_the_flow_well() {
    let end = "  - { id: done, type: control.end, dependsOn: [take] }\n";
    let sim = Sim::new(&graph(&takes(end)), &[]).driven(|start, run| match start.path.node() {
        "done" => vec![AttemptStep::End(AttemptEnd::Output(json!({})))],
        _ => world(start, run),
    });
    assert_ends(&sim, NodeStatus::Complete, Outcome::Success);
}

#[test]
fn one_that_failed_before_is_tried_again() {
    let back = "id: twice_back, policy: { retry: { maxAttempts: 2, backoff: 4s } }";
    let text = takes("").replace("id: wait_back", back);
    let mut sim = Sim::new(&graph(&text), &[]).driven_to("task:failed", world);
    sim.emit(None, Event::SessionAbort { reason: None });
    sim.drive(world);
    sim.check();
    assert_eq!(status(&sim, "twice_back"), NodeStatus::Complete, "{}", story(&sim.log));
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Stopped));
}

#[test]
fn one_that_waits_for_a_usage_limit_does_not_hold_up_the_end() {
    let text = takes("").replace(
        "id: wait_back, type: control.noop",
        "id: limited_back, type: talk.agent, input: { prompt: go }",
    );
    let mut sim = Sim::new(&graph(&text), &[]).driven_to("limit:wait", world);
    sim.emit(None, Event::SessionAbort { reason: None });
    sim.drive(world);
    sim.check();
    assert_eq!(starts_of(&sim, "limited_back"), 1, "{}", story(&sim.log));
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Stopped));
}

#[test]
fn what_costs_money_or_waits_for_a_person_or_a_time_does_not_hold_up_the_end() {
    for node in [
        "type: talk.agent, input: { prompt: go }",
        "type: human.input, input: { prompt: go }",
        "type: control.wait, input: { ms: 5000 }",
    ] {
        let text = takes("").replace("id: wait_back, type: control.noop", &format!("id: wait_back, {node}"));
        let sim = stopped(&text).driven(world);
        sim.check();
        assert_eq!(status(&sim, "wait_back"), NodeStatus::Cancelled, "{}", story(&sim.log));
    }
}

#[test]
fn one_that_dies_with_its_process_is_run_again() {
    let whole = stopped(&takes("")).driven_to("task:cancelled", world);
    let sim = Sim::resumed(whole.run.graph(), &whole.log, None).driven(world);
    assert_ends(&sim, NodeStatus::Complete, Outcome::Stopped);
    assert_eq!(starts_of(&sim, "wait_back"), 2);
}

#[test]
fn the_log_of_an_older_version_means_what_it_meant() {
    let mut sim = stopped(&takes("")).driven_to("task:cancelled", world);
    for envelope in &mut sim.log {
        if let Event::TaskStart { cleans_up, .. } = &mut envelope.event {
            *cleans_up = false;
        }
    }
    let mut resumed = Sim::resumed(sim.run.graph(), &sim.log, None);
    assert_eq!(status(&resumed, "wait_back"), NodeStatus::Cancelled);
    resumed.drive(world);
    resumed.check();
    assert_eq!(starts_of(&resumed, "wait_back"), 1, "{}", story(&resumed.log));
}

#[test]
fn what_ends_the_flow_is_its_failure_and_not_what_fails_while_it_ends() {
    let text = "
flow: { name: f, policy: { timeout: 3s } }
nodes:
  - { id: wait_work, type: control.noop }
  - { id: bad_back, type: control.noop, dependsOn: [{ node: wait_work, on: any }] }
";
    let sim = Sim::new(&graph(text), &[]).driven(world);
    sim.check();
    assert_eq!(status(&sim, "bad_back"), NodeStatus::Failed, "{}", story(&sim.log));
    let failure = sim.run.state().failure().map(|error| error.code);
    assert_eq!(failure, Some(inspan_protocol::ErrorCode::Timeout), "{}", story(&sim.log));
}

/// Asks a person after a failure.
const ASKS: &str = "
flow: { name: f }
nodes:
  - { id: bad, type: control.noop }
  - { id: human, type: control.noop, dependsOn: [{ node: bad, on: any }] }
";

/// The person thinks for an hour.
fn thinks(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let mut steps = world(start, run);
    if start.path.node() == "human" {
        steps.insert(1, AttemptStep::Until(run.state().last_at + Duration::from_secs(3_600)));
    }
    steps
}

#[test]
fn a_session_waits_for_a_person_whom_it_asks_as_it_fails() {
    let sim = Sim::new(&graph(ASKS), &[]).driven_to("flow:waiting", thinks).driven(thinks);
    sim.check();
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed), "{}", story(&sim.log));
    assert_eq!(status(&sim, "human"), NodeStatus::Complete);
}

#[test]
fn a_session_that_asks_a_person_as_it_fails_can_be_paused() {
    let graph = graph(ASKS);
    let mut sim = Sim::new(&graph, &[]).driven_to("flow:waiting", thinks);
    sim.emit(None, Event::SessionPause { reason: None, cause: None });
    sim.drive(thinks);
    assert_eq!((status(&sim, "human"), sim.run.state().outcome()), (NodeStatus::Paused, None));
    let sim = Sim::resumed(&graph, &sim.log, None).driven(world);
    sim.check();
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed), "{}", story(&sim.log));
    assert_eq!((status(&sim, "human"), starts_of(&sim, "human")), (NodeStatus::Complete, 2));
}

#[test]
fn a_session_that_asks_a_person_as_it_fails_can_be_stopped() {
    let graph = graph(ASKS);
    for before in ["nothing", "a pause", "a request to pause"] {
        let mut sim = Sim::new(&graph, &[]).driven_to("flow:waiting", thinks);
        if before != "nothing" {
            sim.emit(None, Event::SessionPause { reason: None, cause: None });
        }
        if before == "a pause" {
            sim.drive(thinks);
            sim = Sim::resumed(&graph, &sim.log, None);
        }
        sim.emit(None, Event::SessionAbort { reason: None });
        sim.drive(thinks);
        sim.check();
        let ends = (status(&sim, "human"), sim.run.state().outcome());
        let expected = (NodeStatus::Cancelled, Some(Outcome::Stopped));
        assert_eq!(ends, expected, "{before}: {}", story(&sim.log));
    }
}

#[test]
fn what_cleans_up_and_was_cut_short_for_a_pause_ends_although_a_stop_follows() {
    let text = "
flow: { name: f }
nodes:
  - { id: take, type: control.noop }
  - { id: wait_clean, type: control.noop, dependsOn: [{ node: take, on: any }] }
  - { id: wait_work, type: control.noop, dependsOn: [take] }
";
    for cancelled in 0..3 {
        let mut sim = Sim::new(&graph(text), &[]);
        (0..3).for_each(|_| sim.until_event("task:start", world));
        sim.emit(None, Event::SessionPause { reason: None, cause: None });
        (0..cancelled).for_each(|_| sim.until_event("task:cancelled", world));
        sim.emit(None, Event::SessionAbort { reason: None });
        sim.drive(world);
        sim.check();
        let ends = (status(&sim, "wait_clean"), sim.run.state().outcome());
        assert_eq!(ends, (NodeStatus::Complete, Some(Outcome::Stopped)), "{cancelled}: {}", story(&sim.log));
    }
}

#[test]
fn what_cleans_up_after_something_else_that_cleans_up_waits_for_it() {
    let text = "
flow: { name: f }
nodes:
  - { id: bad, type: control.noop }
  - { id: human, type: control.noop, dependsOn: [{ node: bad, on: any }] }
  - { id: delete, type: control.noop, dependsOn: [{ node: human, on: any }] }
  - { id: never, type: control.noop, dependsOn: [bad] }
  - { id: wait_never, type: control.noop, dependsOn: [{ node: never, on: any }] }
  - { id: last, type: control.noop, dependsOn: [{ node: wait_never, on: any }] }
  - { id: wait_bad, type: control.noop, dependsOn: [{ node: bad, on: any }] }
  - { id: both, type: control.noop, dependsOn: [{ node: wait_bad, on: any }, { node: bad, on: any }, { node: delete, on: any }] }
  - { id: quick, type: control.noop }
  - { id: slow, type: control.noop, dependsOn: [{ node: quick, on: any }] }
  - { id: after, type: control.noop, dependsOn: [{ node: quick, on: any }, { node: slow, on: any }] }
  - { id: stop, type: control.noop, dependsOn: [{ node: quick, on: any }, { node: never, on: any }] }
  - { id: either, type: control.merge, input: { mode: any }, dependsOn: [{ node: bad, on: any }, { node: delete, on: any }] }
";
    for seed in 0..20 {
        let sim = Sim::new(&graph(text), &[]).shuffled(seed).driven(thinks);
        sim.check();
        let ended = |event: &Event| matches!(event, Event::TaskStart { .. } | Event::TaskComplete { .. });
        let order = sim.log.iter().filter(|envelope| ended(&envelope.event)).map(|envelope| {
            let name = envelope.event.name().trim_start_matches("task:");
            format!("{name} {}", envelope.context.task.as_ref().unwrap())
        });
        let order: Vec<_> = order.collect();
        for (first, then) in
            [("human", "delete"), ("wait_never", "last"), ("wait_bad", "both"), ("delete", "both")]
        {
            let at = |line: String| order.iter().position(|known| *known == line).unwrap();
            assert!(at(format!("complete {first}")) < at(format!("start {then}")), "{order:#?}");
        }
        // One that had ended before the failure is no reason to begin.
        let at = |line: &str| order.iter().position(|known| known == line).unwrap();
        assert!(at("complete slow") < at("start after"), "{order:#?}");
        // One that begins no more is no reason to wait: what still cleans up may need this.
        assert!(at("start stop") < at("complete delete"), "{order:#?}");
        let said = explained(&sim, None, About::Node(NodePath::new("stop"))).because;
        let why = "1 of 2 edges into it fired, and as the flow ends it waits for no others";
        assert!(said.iter().any(|one| one.text.contains(why)), "{said:#?}");
        let either = order.iter().position(|line| line == "start either");
        assert!(either < order.iter().position(|line| line == "start delete"), "{order:#?}");
        assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed));
    }
}

/// What cleans up in frames, once `bad` has failed.
const IN_FRAMES: &str = "
flow: { name: f }
nodes:
  - { id: bad, type: control.noop }
  - { id: wait_work, type: control.noop }
  - id: each
    type: control.foreach
    dependsOn: [{ node: bad, on: any }]
    input: { items: [1, 2, 3], maxConcurrency: 2, onItemError: continue }
    body:
      nodes:
        - { id: wait_one, type: control.noop }
        - { id: bad_two, type: control.noop, when: item == 2, dependsOn: [wait_one] }
        - { id: wait_any, type: control.noop, dependsOn: [{ node: bad_two, on: any }] }
  - id: lp
    type: control.loop
    dependsOn: [{ node: each, on: any }]
    input: { maxIterations: 2, onExhausted: continue }
    body:
      nodes:
        - { id: a, type: control.noop }
        - { id: wait_b, type: control.noop }
      edges:
        - { from: a, to: wait_b }
        - { from: wait_b, to: a, when: frame.pass < 2, maxIterations: 2 }
";

/// How often the nodes of the frames have completed.
fn completed(sim: &Sim) -> Vec<(&'static str, usize)> {
    let times = |node: &str| {
        let ends =
            |event: &Event| matches!(event, Event::TaskComplete { task_id, .. } if task_id.as_str() == node);
        sim.log.iter().filter(|envelope| ends(&envelope.event)).count()
    };
    ["wait_one", "wait_any", "each", "a", "wait_b", "lp"].map(|node| (node, times(node))).to_vec()
}

#[test]
fn what_cleans_up_in_frames_ends_as_it_would_elsewhere() {
    let graph = graph(IN_FRAMES);
    let all = vec![("wait_one", 3), ("wait_any", 3), ("each", 1), ("a", 4), ("wait_b", 4), ("lp", 1)];
    for seed in 0..20 {
        let sim = Sim::new(&graph, &[]).shuffled(seed).driven(world);
        sim.check();
        assert_eq!(completed(&sim), all, "{}", story(&sim.log));
        let ends = (status(&sim, "wait_work"), sim.run.state().outcome());
        assert_eq!(ends, (NodeStatus::Cancelled, Some(Outcome::Failed)));
    }
    // Also where the process dies at any time.
    let whole = Sim::new(&graph, &[]).driven(world);
    for cut in 1..whole.log.len() - 2 {
        let sim = Sim::resumed(&graph, &whole.log[..cut], None).driven(world);
        sim.check();
        assert_eq!(completed(&sim), all, "{cut}: {}", story(&sim.log));
    }
}

#[test]
fn a_stop_ends_what_asks_a_person_in_frames_as_the_flow_fails() {
    let text = "
flow: { name: f }
nodes:
  - { id: bad, type: control.noop }
  - id: each
    type: control.foreach
    dependsOn: [{ node: bad, on: any }]
    input: { items: [1] }
    body:
      nodes:
        - { id: human, type: control.noop }
        - { id: after, type: control.noop, dependsOn: [human] }
";
    let graph = graph(text);
    let mut sim = Sim::new(&graph, &[]).driven_to("flow:waiting", thinks);
    let answered = Sim::resumed(&graph, &sim.log, None).driven(world);
    answered.check();
    assert_eq!((starts_of(&answered, "after"), answered.run.state().outcome()), (1, Some(Outcome::Failed)));
    sim.emit(None, Event::SessionAbort { reason: None });
    sim.drive(thinks);
    sim.check();
    let ends = (status(&sim, "each"), sim.run.state().outcome());
    assert_eq!(ends, (NodeStatus::Cancelled, Some(Outcome::Stopped)), "{}", story(&sim.log));
}

#[test]
fn an_agent_without_a_budget_fails_as_the_flow_ends() {
    for policy in ["onExceeded: fail", "onExceeded: pause"] {
        for budget in [[policy, ""], ["", policy]] {
            let [flow, node] = budget.map(|more| match more {
                "" => String::new(),
                more => format!("policy: {{ budget: {{ tokens: 10, {more} }} }}"),
            });
            let text = format!(
                "flow: {{ name: f, {flow} }}
nodes:
  - {{ id: talk, type: talk.agent, input: {{ prompt: go }} }}
  - {{ id: bad, type: control.noop, dependsOn: [talk] }}
  - id: each
    type: control.foreach
    {node}
    dependsOn: [{{ node: bad, on: any }}]
    input: {{ items: [1, 2], maxConcurrency: 1, onItemError: continue }}
    body: {{ nodes: [{{ id: talk_in, type: talk.agent, input: {{ prompt: go }} }}, {{ id: free, type: control.noop }}] }}
"
            );
            let talks = |start: &StartNode, run: &Run| match start.path.node() {
                "talk" | "talk_in" => super::budgets::turns(1, Some(0.1))(start, run),
                _ => world(start, run),
            };
            let sim = Sim::new(&graph(&text), &[]).driven(talks);
            sim.check();
            // Of the budget of the node the first item may spend.
            let talked = if node.is_empty() { 0 } else { 1 };
            // A frame in which an agent would spend more of it ends.
            let free = if node.contains("fail") { 1 } else { 2 };
            let starts = (starts_of(&sim, "free"), sim.run.state().outcome());
            assert_eq!(starts, (free, Some(Outcome::Failed)), "{text}{}", story(&sim.log));
            let worked = sim.log.iter().filter(|envelope| envelope.event.name() == "agent:start");
            assert_eq!(worked.count(), 1 + talked, "{}", story(&sim.log));
        }
    }
}

/// How a flow ends in which `bad` fails, with these nodes beside it.
fn outcome_with(nodes: &str, policy: &str) -> Option<Outcome> {
    let text = format!("flow: {{ name: f{policy} }}\nnodes:\n  - {{ id: bad, type: control.noop }}\n{nodes}");
    let mut outcomes: Vec<_> = (0..10)
        .map(|seed| {
            let sim = Sim::new(&graph(&text), &[]).shuffled(seed).driven(world);
            sim.check();
            sim.run.state().outcome()
        })
        .collect();
    outcomes.dedup();
    assert_eq!(outcomes.len(), 1, "{nodes}");
    outcomes[0]
}

/// A node for the failure of `bad`, with more keys.
fn handler(id: &str, more: &str) -> String {
    format!("  - {{ id: {id}, type: control.noop, dependsOn: [{{ node: bad, on: failure }}]{more} }}\n")
}

#[test]
fn a_failure_is_handled_by_a_node_that_runs() {
    let skipped = handler("maybe", ", when: \"flow.name == 'other'\"");
    let after =
        "  - { id: after, type: control.noop, dependsOn: [bad, ok] }\n  - { id: ok, type: control.noop }\n";
    assert_eq!(outcome_with(&handler("fix", ""), ""), Some(Outcome::Success));
    assert_eq!(outcome_with(&skipped, ""), Some(Outcome::Failed));
    assert_eq!(
        outcome_with(&(skipped.clone() + after), ", policy: { failFast: false }"),
        Some(Outcome::Partial)
    );
    assert_eq!(outcome_with(&(skipped.clone() + &handler("fix", "")), ""), Some(Outcome::Success));
    assert_eq!(
        outcome_with(&(skipped.clone() + &skipped.replace("maybe", "other")), ""),
        Some(Outcome::Failed)
    );
}

#[test]
fn a_handler_of_two_failures_that_waits_for_both_handles_none_alone() {
    let both = "  - { id: ok, type: control.noop }\n  - { id: fix, type: control.merge, dependsOn: [{ node: bad, on: failure }, { node: ok, on: failure }], input: { mode: all } }\n";
    assert_eq!(outcome_with(both, ""), Some(Outcome::Failed));
}

/// `publish` needs what `build`, which fails, was to give, and `tell` comes before or after it in the file.
fn published(tell: &str, policy: &str) -> Vec<Sim> {
    let order = |first: &str, last: &str| {
        format!(
            "flow: {{ name: f, policy: {{ {policy} }} }}\nnodes:\n  - {{ id: bad, type: control.noop }}\n  \
             - {{ id: ok, type: control.noop }}\n  - {{ id: wait, type: control.wait, input: {{ ms: 5000 }} }}\n{first}  \
             - {{ id: sign, type: control.noop, dependsOn: [bad] }}\n  \
             - {{ id: publish, type: control.noop, effects: external, dependsOn: [sign, ok] }}\n{last}"
        )
    };
    let texts = [order(tell, ""), order("", tell)];
    let sims = texts.into_iter().map(|text| Sim::new(&graph(&text), &[]).driven(world));
    sims.inspect(Sim::check).collect()
}

#[test]
fn nothing_that_depends_on_a_failure_starts_before_it_is_known_whether_that_is_handled() {
    let never = ", when: \"flow.name == 'other'\"";
    let later = |more: &str| handler("tell", more).replace("on: failure }", "on: failure }, wait");
    for policy in ["failFast: true", "failFast: false", "failFast: true, maxConcurrency: 1"] {
        for tell in [handler("tell", never), later(never)] {
            for sim in published(&tell, policy) {
                assert_eq!(starts_of(&sim, "publish"), 0, "{policy}\n{tell}\n{}", story(&sim.log));
                assert_ne!(sim.run.state().outcome(), Some(Outcome::Success));
                // Nor what would only come first in the file.
                let is_first = policy.contains("max") && !tell.contains("wait") && starts_of(&sim, "ok") > 0;
                assert!(!is_first, "{tell}\n{}", story(&sim.log));
            }
        }
        for tell in [handler("tell", ""), later("")] {
            for sim in published(&tell, policy) {
                assert_eq!(starts_of(&sim, "publish"), 1, "{policy}\n{tell}\n{}", story(&sim.log));
                assert_eq!(sim.run.state().outcome(), Some(Outcome::Success));
            }
        }
    }
    let said = |sim: &Sim| explained(sim, None, About::Node(NodePath::new("sign"))).standing.text;
    let waits = published(&later(""), "failFast: true");
    let graph = waits[0].run.graph();
    let mut sim = Sim::new(graph, &[]);
    while starts_of(&sim, "ok") == 0 || status(&sim, "ok") != NodeStatus::Complete {
        sim.step(&world);
    }
    sim.until_event("edge:fired", world);
    assert_eq!(said(&sim), "`sign` waits: whether the failure of `bad` is handled depends on `tell`");
}

#[test]
fn one_node_handles_the_failures_of_a_chain() {
    let text = "
flow: { name: f, policy: { failFast: false } }
nodes:
  - { id: bad, type: control.noop }
  - { id: ok, type: control.noop }
  - { id: b, type: control.noop, dependsOn: [bad] }
  - { id: c, type: control.noop, dependsOn: [b, ok] }
  - { id: report, type: control.noop, when: WHEN, dependsOn: [{ node: bad, on: failure }, { node: b, on: failure }] }
";
    // What depends on a node that was skipped depends on the failure before it.
    for (when, starts, outcome) in [("'1 == 1'", 1, Outcome::Success), ("'1 == 2'", 0, Outcome::Partial)] {
        let sim = Sim::new(&graph(&text.replace("WHEN", when)), &[]).driven(world);
        sim.check();
        let ends = (starts_of(&sim, "report"), starts_of(&sim, "c"), sim.run.state().outcome());
        assert_eq!(ends, (starts, starts, Some(outcome)), "{}", story(&sim.log));
    }
}

#[test]
fn a_failure_whose_handler_ran_stays_handled() {
    let text = "
flow: { name: f }
nodes:
  - { id: bad, type: control.noop }
  - { id: fix, type: control.noop, dependsOn: [{ node: bad, on: failure }], when: frame.pass == 1 }
  - { id: check, type: control.noop, dependsOn: [{ node: fix, on: any }] }
edges: [{ from: check, to: fix, when: frame.pass < 2, maxIterations: 3 }]
";
    let graph = graph(text);
    let whole = Sim::new(&graph, &[]).driven(world);
    whole.check();
    assert_eq!(starts_of(&whole, "check"), 2);
    assert_eq!(whole.run.state().outcome(), Some(Outcome::Success), "{}", story(&whole.log));
    for cut in 1..whole.log.len() {
        let saved = Sim::new(&graph, &whole.log[..cut]).run.snapshot(&graph.input);
        let saved = serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
        let sim = Sim::restored(&graph, &saved, whole.now).driven(world);
        assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{cut}: {}", story(&sim.log));
    }
}

/// What is said of the session, and of a node of it.
fn said(sim: &Sim, node: &str) -> [String; 2] {
    [About::Session, About::Node(NodePath::new(node))].map(|about| {
        let said = explained(sim, None, about).because;
        said.into_iter().map(|one| one.text + "\n").collect()
    })
}

#[test]
fn why_says_that_nothing_handles_a_failure() {
    let skipped = "was skipped, and nothing else handles the failure before it";
    let tell = "dependsOn: [{ node: bad, on: failure }, wait], when: '1 == 2'";
    let text = format!(
        "flow: {{ name: f, policy: {{ POLICY }} }}\nnodes:\n  - {{ id: bad, type: control.noop }}\n  \
         - {{ id: wait, type: control.wait, input: {{ ms: 5000 }} }}\n  \
         - {{ id: wait_work, type: control.noop }}\n  - {{ id: tell, type: control.noop, {tell} }}\n"
    );
    let sim = Sim::new(&graph(&text.replace("POLICY", "")), &[]).driven(world);
    let [session, bad] = said(&sim, "bad");
    for text in [&session, &bad] {
        assert!(text.contains(&format!("`tell` {skipped}; that ends the flow\n")), "{text}");
    }
    assert!(session.contains(&format!("`wait_work` was cancelled: `tell` {skipped} [")), "{session}");
    let sim = Sim::new(&graph(&text.replace("POLICY", "failFast: false")), &[]).driven(world);
    let goes_on = format!("`tell` {skipped}; nodes that do not depend on it continue (`failFast: false`)\n");
    said(&sim, "bad").iter().for_each(|text| assert!(text.contains(&goes_on), "{text}"));
    let text = format!(
        "flow: {{ name: f }}\nnodes:\n  - id: each\n    type: control.foreach\n    \
         input: {{ items: [1, 2], onItemError: continue }}\n    body:\n      nodes:\n        \
         - {{ id: bad, type: control.noop }}\n        - {{ id: wait, type: control.noop }}\n        \
         - {{ id: tell, type: control.noop, {tell} }}\n"
    );
    let sim = Sim::new(&graph(&text), &[]).driven(world);
    let [session, bad] = said(&sim, "each[0]/bad");
    for text in [&session, &bad] {
        assert_eq!(
            text.matches(&format!("`each[0]/tell` {skipped}; that ends its frame\n")).count(),
            1,
            "{text}"
        );
    }
    assert!(!bad.contains("each[1]"), "{bad}");
}

#[test]
fn a_session_of_an_older_version_that_succeeded_has_succeeded() {
    let graph = graph(&format!(
        "flow: {{ name: f }}\nnodes:\n  - {{ id: bad, type: control.noop }}\n{}",
        handler("maybe", ", when: '1 == 2'")
    ));
    let mut sim = Sim::new(&graph, &[]).driven(world);
    for envelope in &mut sim.log {
        match &mut envelope.event {
            Event::PhaseFailed { name, .. } => {
                envelope.event = Event::PhaseComplete { name: name.clone() };
            }
            Event::HarnessComplete { success, outcome, .. } => {
                (*success, *outcome) = (true, Outcome::Success)
            }
            _ => {}
        }
    }
    let old = Sim::new(&graph, &sim.log);
    let state = old.run.state();
    assert_eq!((state.outcome(), state.failure()), (Some(Outcome::Success), None));
    assert_eq!(state.handled_failures(&graph), [NodePath::new("bad")]);
    said(&old, "bad").iter().for_each(|text| assert!(!text.contains("nothing else"), "{text}"));
}

#[test]
fn why_names_the_condition_of_an_edge_for_another_end() {
    let text = "
flow: { name: f, policy: { failFast: false } }
nodes:
  - { id: bad, type: control.noop }
  - { id: never, type: control.noop, when: '1 == 2' }
  - { id: a, type: control.noop }
  - { id: b, type: control.noop }
  - { id: c, type: control.noop }
edges:
  - { from: bad, to: a, on: failure, when: \"bad.error.code == 'AUTH'\" }
  - { from: bad, to: b, on: any, when: not bad.failed }
  - { from: never, to: c, on: any, when: never.value is defined }
";
    let sim = Sim::new(&graph(text), &[]).driven(world);
    let rows = [
        (
            "a",
            "`bad -> a` did not fire: `bad.error.code == 'AUTH'` is false (bad.error.code = \"NODE_FAILED\")",
        ),
        ("b", "`bad -> b` did not fire: `not bad.failed` is false (bad.failed = true)"),
        ("c", "`never -> c` did not fire: `never.value is defined` is false"),
    ];
    for (node, why) in rows {
        let [_, said] = said(&sim, node);
        assert!(said.contains(why), "{said}");
    }
}
