//! Bodies that run in frames: items, passes and subflows, their failures, limits, ends and outputs.

use std::{collections::BTreeMap, time::Duration};

use inspan_protocol::{AgentError, ErrorCode, Event, Outcome};
use serde_json::{Value, json};

use super::sim::{AttemptStep, Sim, story, world};
use crate::{
    AttemptEnd, NodeIx, NodeKind, TaskRef,
    schedule::{Run, StartNode},
    testing::graph,
};

/// Runs a flow whose nodes give their input's `value` back, or fail by the name that they carry.
fn drive(text: &str) -> Sim {
    let mut sim = Sim::new(&graph(text), &[]);
    sim.drive(acts);
    sim.check();
    sim
}

fn acts(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let input = start.input.clone().unwrap_or_default();
    if run.state().spec(run.graph(), start.node).kind == NodeKind::End {
        return vec![AttemptStep::End(AttemptEnd::Output(input))];
    }
    match input.get("value") {
        Some(value) if value.get("fails").is_some() => {
            vec![AttemptStep::End(AttemptEnd::Error(AgentError::new(
                ErrorCode::NodeFailed,
                value["fails"].to_string(),
            )))]
        }
        Some(value)
            if value.get("failsUntil").is_some_and(|most| Some(u64::from(start.attempt)) < most.as_u64()) =>
        {
            vec![AttemptStep::End(AttemptEnd::Error(AgentError::new(ErrorCode::NodeFailed, "not yet")))]
        }
        Some(value) => vec![AttemptStep::End(AttemptEnd::Output(json!({ "value": value })))],
        None => world(start, run),
    }
}

fn output(sim: &Sim, node: &str) -> Value {
    let ix = sim.run.graph().flow().find(node).unwrap_or(NodeIx(0));
    sim.run.state().output(TaskRef::of_flow(ix)).cloned().unwrap_or_default()
}

#[test]
fn a_foreach_runs_its_body_for_each_item() {
    let sim = drive(
        "
flow: { name: f, policy: { maxConcurrency: 1 } }
nodes:
  - { id: list, type: control.noop, input: { value: [3, 5] } }
  - id: each
    type: control.foreach
    dependsOn: [list]
    input: { items: '{{ list.value }}', as: n }
    body:
      outputs: { twice: '{{ double.value }}' }
      nodes:
        - { id: one, type: control.noop, input: { value: '{{ n }}' } }
        - { id: double, type: control.noop, dependsOn: [one], input: { value: '{{ one.value * 2 + frame.index }}' } }
  - { id: after, type: control.noop, dependsOn: [each], input: { value: '{{ each.values }}' } }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
    let expected = json!({
        "results": [
            { "index": 0, "item": 3, "outputs": { "twice": 6 } },
            { "index": 1, "item": 5, "outputs": { "twice": 11 } },
        ],
        "values": [{ "twice": 6 }, { "twice": 11 }],
        "succeeded": 2,
        "failed": 0,
    });
    assert_eq!(output(&sim, "each"), expected);
    assert_eq!(output(&sim, "after"), json!({ "value": [{ "twice": 6 }, { "twice": 11 }] }));
    assert_eq!(
        story(&sim.log),
        "harness:start\nphase:start\ntask:start list\ntask:complete list\nlist -> each\ntask:start each\n\
         frame:items each\nframe:start each\ntask:start each[0]/one\ntask:complete each[0]/one\none -> double\n\
         task:start each[0]/double\ntask:complete each[0]/double\nframe:complete each\nframe:start each\n\
         task:start each[1]/one\ntask:complete each[1]/one\none -> double\ntask:start each[1]/double\n\
         task:complete each[1]/double\nframe:complete each\ntask:complete each\neach -> after\ntask:start after\n\
         task:complete after\nphase:complete\nharness:complete"
    );
}

#[test]
fn what_a_failed_item_does_to_the_others_is_said() {
    let run = |on_error: &str, most: &str| {
        let text = format!(
            "
flow: {{ name: f }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: [1, {{ fails: x }}, 3, 4], onItemError: {on_error}{most} }}
    body: {{ nodes: [{{ id: a, type: control.noop, input: {{ value: '{{{{ item }}}}' }} }}] }}
"
        );
        let sim = drive(&text);
        let each = output(&sim, "each");
        let counts = (each["succeeded"].clone(), each["failed"].clone());
        let error = sim.run.state().failure().map(|error| error.message.clone());
        (sim.run.state().outcome().unwrap(), counts, error)
    };
    let message = || Some("item 1 of `each`: \"x\"".to_owned());
    let none = || (Value::Null, Value::Null);
    assert_eq!(run("fail", ""), (Outcome::Failed, none(), message()));
    assert_eq!(run("fail", ", maxConcurrency: 1"), (Outcome::Failed, none(), message()));
    assert_eq!(run("continue", ""), (Outcome::Success, (json!(3), json!(1)), None));
    assert_eq!(run("stop", ", maxConcurrency: 1"), (Outcome::Success, (json!(1), json!(1)), None));
}

#[test]
fn the_failure_of_a_foreach_names_the_item_that_failed_so() {
    let graph = graph(
        "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [{ fails: 0 }, { fails: 1 }, { fails: 2 }] }
    body: { nodes: [{ id: a, type: control.noop, input: { value: '{{ item }}' } }] }
",
    );
    for seed in 0..20 {
        let mut sim = Sim::new(&graph, &[]).shuffled(seed);
        sim.drive(acts);
        let message = sim.run.state().failure().map(|error| error.message.clone()).unwrap_or_default();
        let named = ["0", "1", "2"].map(|item| format!("item {item} of `each`: {item}"));
        assert!(named.contains(&message), "{message}");
    }
}

#[test]
fn conditions_and_keys_see_the_frames_around_them() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - id: outer
    type: control.foreach
    input: { items: [0, 2] }
    body:
      nodes:
        - id: turns
          type: control.loop
          input: { while: 'frame.index < frame.parent.index + 1', maxIterations: 9 }
          body: { nodes: [{ id: x, type: control.noop, input: { value: 1 } }] }
        - id: keyed
          type: control.foreach
          input: { items: [1, 2], as: n, key: '{{ frame.parent.index }}-{{ n }}' }
          body: { nodes: [{ id: y, type: control.noop, input: { value: 1 } }] }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
    let outer = output(&sim, "outer");
    let passes = ["0", "1"].map(|index| outer.pointer(&format!("/values/{index}/turns/passes")).cloned());
    assert_eq!(passes, [Some(json!(1)), Some(json!(2))]);
    let keys = sim.log.iter().filter_map(|envelope| match &envelope.event {
        Event::FrameItems { keys, .. } if !keys.is_empty() => Some(keys.join(" ")),
        _ => None,
    });
    let mut keys: Vec<_> = keys.collect();
    keys.sort();
    assert_eq!(keys, ["0-1 0-2", "1-1 1-2"]);
}

#[test]
fn the_time_between_two_processes_is_no_part_of_how_long_frames_took() {
    let graph = graph(
        "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1] }
    body: { nodes: [{ id: wait, type: control.wait, input: { ms: 1 } }] }
",
    );
    let whole = {
        let mut sim = Sim::new(&graph, &[]);
        sim.drive(world);
        sim
    };
    let durations = |sim: &Sim| -> Vec<u64> {
        let took = sim.log.iter().filter_map(|envelope| match &envelope.event {
            Event::TaskComplete { task_id, duration_ms, .. } if task_id.as_str() == "each" => {
                Some(*duration_ms)
            }
            Event::FrameComplete { duration_ms, .. } => Some(*duration_ms),
            _ => None,
        });
        took.collect()
    };
    let cut = whole.log.iter().position(|envelope| envelope.event.name() == "task:complete").unwrap();
    let mut sim = Sim::new(&graph, &whole.log[..cut]);
    sim.now = sim.now + Duration::from_secs(3_600);
    sim.resume(None, &BTreeMap::new());
    sim.drive(world);
    assert_eq!(durations(&sim).len(), 2, "{}", story(&sim.log));
    assert!(durations(&sim).iter().all(|took| *took < 60_000), "{:?}", durations(&sim));
    assert!(durations(&whole).iter().all(|took| *took > 0), "{:?}", durations(&whole));
}

#[test]
fn a_foreach_without_items_succeeds_and_an_object_gives_its_entries() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - { id: empty, type: control.foreach, input: { items: [] }, body: { nodes: [{ id: a, type: control.noop }] } }
  - id: entries
    type: control.foreach
    input: { items: { x: 1 } }
    body: { nodes: [{ id: b, type: control.noop, input: { value: '{{ item.key }}={{ item.value }}' } }] }
  - id: product
    type: control.foreach
    input: { matrix: { os: [l, m], v: [1, 2] }, exclude: [{ os: m, v: 1 }] }
    body: { outputs: { it: '{{ c.value }}' }, nodes: [{ id: c, type: control.noop, input: { value: '{{ item.os }}{{ item.v }}' } }] }
",
    );
    assert_eq!(output(&sim, "empty"), json!({ "results": [], "values": [], "succeeded": 0, "failed": 0 }));
    assert_eq!(output(&sim, "entries")["values"], json!([{ "b": { "value": "x=1" } }]));
    assert_eq!(output(&sim, "product")["values"], json!([{ "it": "l1" }, { "it": "l2" }, { "it": "m2" }]));
}

#[test]
fn a_loop_goes_on_until_its_condition_holds_and_sees_its_former_passes() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - id: refine
    type: control.loop
    input: { until: 'count.value >= 3', maxIterations: 9 }
    body:
      outputs: { n: '{{ count.value }}' }
      nodes:
        - { id: count, type: control.noop, input: { value: '{{ (previous.n | default(0)) + 1 }}' } }
  - id: never
    type: control.loop
    input: { while: 'false', maxIterations: 9 }
    body: { nodes: [{ id: x, type: control.noop }] }
  - id: twice
    type: control.loop
    input: { while: '(passes | default([])) | length < 2', maxIterations: 9 }
    body: { nodes: [{ id: y, type: control.noop, input: { value: '{{ frame.index }}' } }] }
  - id: gives_up
    type: control.loop
    input: { until: 'false', maxIterations: 2, onExhausted: continue }
    body: { nodes: [{ id: z, type: control.noop, input: { value: 1 } }] }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
    assert_eq!(output(&sim, "refine"), json!({ "passes": 3, "outputs": { "n": 3 } }));
    assert_eq!(output(&sim, "never"), json!({ "passes": 0, "outputs": {} }));
    assert_eq!(output(&sim, "twice"), json!({ "passes": 2, "outputs": { "y": { "value": 1 } } }));
    assert_eq!(output(&sim, "gives_up")["passes"], 2);
}

#[test]
fn a_loop_that_never_ends_fails_by_its_name() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - id: again
    type: control.loop
    input: { until: 'false', maxIterations: 2 }
    body: { nodes: [{ id: a, type: control.noop }] }
",
    );
    let error = sim.run.state().failure().map(|error| error.message.clone()).unwrap_or_default();
    assert_eq!(error, "loop `again` would begin another pass, and its `maxIterations` of 2 is used up");
}

#[test]
fn another_attempt_of_a_foreach_runs_only_what_failed() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    policy: { retry: { maxAttempts: 3 } }
    input: { items: [{ ok: 1 }, { failsUntil: 2 }, { ok: 3 }], maxConcurrency: 1 }
    body: { nodes: [{ id: a, type: control.noop, input: { value: '{{ item }}' } }] }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
    let starts = sim.log.iter().filter_map(|envelope| match &envelope.event {
        Event::TaskStart { attempt, path, .. } => Some(format!("{path} {attempt}")),
        _ => None,
    });
    assert_eq!(
        starts.collect::<Vec<_>>(),
        ["each 1", "each[0]/a 1", "each[1]/a 1", "each 2", "each[1]/a 2", "each[2]/a 1"]
    );
}

#[test]
fn frames_nest_and_see_what_is_around_them() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - { id: base, type: control.noop, input: { value: 10 } }
  - id: outer
    type: control.foreach
    dependsOn: [base]
    input: { items: [1, 2], as: a }
    body:
      outputs: { sums: '{{ inner.values }}' }
      nodes:
        - { id: here, type: control.noop, input: { value: '{{ a * base.value }}' } }
        - id: inner
          type: control.foreach
          dependsOn: [here]
          input: { items: [1, 2], as: b }
          body:
            outputs: { s: '{{ sum.value }}' }
            nodes:
              - { id: sum, type: control.noop, input: { value: '{{ here.value + b + frame.parent.index * 100 }}' } }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
    assert_eq!(
        output(&sim, "outer")["values"],
        json!([{ "sums": [{ "s": 11 }, { "s": 12 }] }, { "sums": [{ "s": 121 }, { "s": 122 }] }])
    );
}

#[test]
fn an_end_ends_its_frame_and_nothing_more() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2] }
    body:
      nodes:
        - { id: stop, type: control.end, when: 'item == 1', input: { outputs: { early: true } } }
        - { id: late, type: control.noop, dependsOn: [stop], input: { value: 1 } }
        - { id: other, type: control.noop, input: { value: '{{ item }}' } }
  - { id: done, type: control.end, dependsOn: [each], input: { outputs: { got: '{{ each.values }}' } } }
  - { id: never, type: control.noop, dependsOn: [done] }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
    let outputs = sim.log.iter().find_map(|envelope| match &envelope.event {
        Event::HarnessComplete { outputs, .. } => outputs.as_deref().cloned(),
        _ => None,
    });
    assert_eq!(outputs, Some(json!({ "got": [{ "early": true }, { "other": { "value": 2 } }] })));
}

#[test]
fn edges_follow_each_way_in_which_a_node_ends() {
    let sim = drive(
        "
flow: { name: f, policy: { failFast: false } }
nodes:
  - { id: bad, type: control.noop, input: { value: { fails: x } } }
  - { id: fix, type: control.noop, input: { value: '{{ bad.error.message }}' } }
  - { id: ship, type: control.noop }
  - { id: clean, type: control.noop, input: { value: 1 } }
  - { id: instead, type: control.noop, input: { value: 2 } }
edges:
  - { from: bad, to: fix, on: failure }
  - { from: bad, to: ship }
  - { from: ship, to: instead, on: skipped }
  - { from: ship, to: clean, on: any }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Success), "{}", story(&sim.log));
    assert_eq!(output(&sim, "fix"), json!({ "value": "\"x\"" }));
    assert_eq!(
        (output(&sim, "clean"), output(&sim, "instead")),
        (json!({ "value": 1 }), json!({ "value": 2 }))
    );
}

#[test]
fn what_cleans_up_runs_although_the_flow_fails() {
    let sim = drive(
        "
flow: { name: f }
nodes:
  - { id: set_up, type: control.noop, input: { value: 0 } }
  - { id: bad, type: control.noop, dependsOn: [set_up], input: { value: { fails: x } } }
  - { id: clean, type: control.noop, dependsOn: [{ node: bad, on: any }], input: { value: 1 } }
  - { id: never, type: control.noop, dependsOn: [clean] }
",
    );
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed), "{}", story(&sim.log));
    assert_eq!(output(&sim, "clean"), json!({ "value": 1 }));
    assert_eq!(output(&sim, "never"), Value::Null);
}
