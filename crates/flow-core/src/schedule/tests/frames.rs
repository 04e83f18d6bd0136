//! Bodies that run in frames: what golden flows do not show of their failures, conditions, times and attempts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use inspan_protocol::{AgentError, Envelope, ErrorCode, Event, Outcome, Timestamp};
use serde_json::{Value, json};

use super::{
    reuse::{reusable, talk},
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    AttemptEnd, Graph, NodeIx, TaskRef,
    schedule::{Run, StartNode},
    testing::{graph, graph_with_subflow},
};

/// Runs a flow whose nodes give their input's `value` back, or fail by the name that they carry.
fn drive(text: &str) -> Sim {
    let sim = Sim::new(&graph(text), &[]).driven(acts);
    sim.check();
    sim
}

fn acts(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let input = start.input.clone().unwrap_or_default();
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
        let sim = Sim::new(&graph, &[]).shuffled(seed).driven(acts);
        let message = sim.run.state().failure().map(|error| error.message.clone()).unwrap_or_default();
        let named = ["0", "1", "2"].map(|item| format!("item {item} of `each`: `a`: {item}"));
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
    let whole = { Sim::new(&graph, &[]).driven(world) };
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

#[test]
fn a_frame_that_has_waited_takes_its_place_back() {
    let text = "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2, 3, 4], maxConcurrency: MOST }
    body:
      nodes:
        - { id: pause, type: control.wait, input: { ms: 100 } }
        - { id: a, type: control.noop, dependsOn: [pause], input: { value: '{{ item }}' } }
        - { id: b, type: control.noop, dependsOn: [a], input: { value: '{{ item }}' } }
";
    for most in ["1", "2.0", "'{{ 2e0 }}'"] {
        let graph = graph(&text.replace("MOST", most));
        for seed in 0..20 {
            let mut sim = Sim::new(&graph, &[]).shuffled(seed);
            let mut waits = 0;
            // All waits begin at once, since one who waits takes no place, and end at once.
            while !sim.step(&acts) {
                waits = waits.max(sim.run.state().running() - sim.run.state().slots());
            }
            sim.check();
            assert_eq!((waits, output(&sim, "each")["succeeded"].clone()), (4, json!(4)));
        }
    }
}

#[test]
fn a_body_limits_how_many_nodes_of_each_frame_work() {
    let text = "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    input: { items: [1, 2] }
    body:
      policy: { maxConcurrency: 1 }
      nodes:
        - { id: a, type: control.noop, input: { value: '{{ item }}' } }
        - id: inner
          type: control.foreach
          input: { items: [1, 2, 3], as: part }
          body: { nodes: [{ id: c, type: control.noop, input: { value: '{{ item }}' } }] }
        - { id: pause, type: control.wait, input: { ms: 100 } }
        - { id: b, type: control.noop, dependsOn: [pause], input: { value: '{{ item }}' } }
";
    for seed in 0..20 {
        let mut sim = Sim::new(&graph(text), &[]).shuffled(seed);
        let mut most = 0;
        while !sim.step(&acts) {
            most = most.max(sim.run.state().slots());
        }
        sim.check();
        assert_eq!((most, output(&sim, "each")["succeeded"].clone()), (2, json!(2)));
    }
    // In a plan nothing waits for a place.
    let plan = |text: &str| format!("{:?}", Sim::new(&graph(text), &[]).run.plan(Timestamp::default()).nodes);
    assert_eq!(plan(text), plan(&text.replace("policy: { maxConcurrency: 1 }", "policy: {}")));
}

#[test]
fn another_attempt_takes_nothing_over_that_the_first_has_taken_over() {
    let retry = "policy: { retry: { maxAttempts: 2, on: any } }";
    let work = "nodes: [{ id: gen, type: talk.agent, input: { prompt: go } }, { id: test, type: talk.agent, input: { prompt: go }, dependsOn: [gen] }]";
    let each = "type: control.foreach, input: { items: [x], as: part, onItemError: fail }";
    let inner = format!(
        "nodes: [{{ id: l, type: control.loop, input: {{ maxIterations: 1, onExhausted: continue }}, {retry}, body: {{ {work} }} }}]"
    );
    for (body, expected) in [(work, (1, 1)), (&inner, (1, 3))] {
        let graph = graph(&format!(
            "flow: {{ name: f }}\nnodes:\n  - {{ id: each, {each}, {retry}, body: {{ {body} }} }}\n"
        ));
        let fails = |start: &StartNode, run: &Run| {
            if start.path.as_str().ends_with("gen") {
                return talk(start, run);
            }
            let error = AgentError::new(ErrorCode::NodeFailed, "no");
            vec![AttemptStep::Begin, AttemptStep::End(AttemptEnd::Error(error))]
        };
        let first = Sim::new(&graph, &[]).driven(fails);
        let second = Sim::reusing(&graph, reusable(&first, usize::MAX)).driven(fails);
        let count = |name: &str| {
            let of_gen =
                |at: &&Envelope| at.context.task.as_ref().is_some_and(|path| path.as_str().ends_with("gen"));
            second.log.iter().filter(of_gen).filter(|at| at.event.name() == name).count()
        };
        assert_eq!((count("task:reused"), count("task:start")), expected, "{body}\n{}", story(&second.log));
    }
}

#[test]
fn a_body_sees_the_pass_of_the_node_that_runs_it() {
    let inner = |value: &str| {
        format!(
            "{{ outputs: {{ v: '{{{{ a.value }}}}' }}, nodes: [{{ id: a, type: control.noop, input: {{ value: '{value}' }} }}] }}"
        )
    };
    let outer = format!(
        "{{ outputs: {{ v: '{{{{ inner.values[0].v }}}}' }}, nodes: [{{ id: inner, type: control.foreach, input: {{ items: [1], as: other }}, body: {} }}] }}",
        inner("{{ frame.parent.pass }} {{ frame.parent.parent.pass }}")
    );
    for (body, expected) in [(inner("{{ frame.parent.pass }}"), json!(3)), (outer, json!("1 3"))] {
        let sim = drive(&format!(
            "
flow: {{ name: f }}
nodes:
  - {{ id: each, type: control.foreach, input: {{ items: [1] }}, body: {body} }}
  - {{ id: again, type: control.noop, dependsOn: [each] }}
edges: [{{ from: again, to: each, when: 'frame.pass < 3', maxIterations: 5 }}]
"
        ));
        assert_eq!(output(&sim, "each")["values"], json!([{ "v": expected }]), "{}", story(&sim.log));
    }
}

#[test]
fn a_flow_that_another_runs_has_its_own_state() {
    let node = "{ id: a, type: control.noop, input: { value: '{{ state }}' } }";
    let each = format!(
        "{{ id: each, type: control.foreach, input: {{ items: [1] }}, body: {{ nodes: [{node}] }} }}"
    );
    for (state, expected) in [("state: { s: mine }", json!({ "s": "mine" })), ("", json!({}))] {
        let sub = format!(
            "name: sub\n{state}\noutputs: {{ own: '{{{{ a.value }}}}', within: '{{{{ each.values[0].a.value }}}}' }}\nnodes: [{node}, {each}]\n"
        );
        let calls = "{ id: sub, type: control.subflow, input: { file: sub.yaml } }";
        let text = format!("name: f\nstate: {{ p: parent }}\nnodes: [{calls}, {node}]\n");
        let sim = Sim::new(&graph_with_subflow(&text, &sub), &[]).driven(acts);
        sim.check();
        assert_eq!(output(&sim, "sub")["outputs"], json!({ "own": expected, "within": expected }));
        assert_eq!(output(&sim, "a")["value"], json!({ "p": "parent" }));
    }
}

/// A flow with a loop of two passes that a foreach follows, and its log up to the end of that.
fn two_passes() -> (Arc<Graph>, Vec<Envelope>) {
    let graph = graph(
        "
flow: { name: f }
nodes:
  - id: turns
    type: control.loop
    input: { maxIterations: 2, onExhausted: continue }
    body: { nodes: [{ id: a, type: control.noop }] }
  - id: each
    type: control.foreach
    dependsOn: [turns]
    input: { items: [1, 2], maxConcurrency: 1 }
    body: { nodes: [{ id: a, type: control.noop }] }
  - { id: after, type: control.noop, dependsOn: [each] }
",
    );
    let ends = |envelope: &Envelope| matches!(&envelope.event, Event::TaskComplete { task_id, .. } if task_id.as_str() == "each");
    let log = Sim::new(&graph, &[]).driven(world).log;
    let end = log.iter().position(ends).unwrap();
    (graph, log[..=end].to_vec())
}

#[test]
fn a_log_that_lacks_a_fact_of_a_frame_leads_to_an_end() {
    let (graph, log) = two_passes();
    let of_frames = ["frame:start", "frame:complete", "task:start", "task:complete"];
    let is_within = |envelope: &Envelope| {
        let is_of_node = envelope.context.task.as_ref().is_some_and(|path| !path.is_in_frame());
        !is_of_node || envelope.event.name().starts_with("frame:")
    };
    let mut missing = 0;
    for at in (0..log.len()).filter(|at| of_frames.contains(&log[*at].event.name()) && is_within(&log[*at])) {
        let mut cut = log.clone();
        cut.remove(at);
        (1..).zip(&mut cut).for_each(|(seq, envelope)| envelope.seq = seq);
        let sim = Sim::resumed(&graph, &cut, None).driven(world);
        let started: Vec<_> = sim.started.iter().map(|start| start.path.as_str()).collect();
        assert_eq!(started, ["after"], "{at}\n{}", story(&sim.log));
        missing += 1;
    }
    assert_eq!(missing, 16);
}

#[test]
fn a_log_with_a_frame_that_cannot_be_leads_to_an_end() {
    let (graph, log) = two_passes();
    let starts = |envelope: &Envelope| matches!(envelope.event, Event::FrameStart { .. });
    for at in (0..log.len()).filter(|at| starts(&log[*at])) {
        let mut wrong = log.clone();
        for envelope in &mut wrong[at..] {
            if let Event::FrameStart { index, .. } | Event::FrameComplete { index, .. } = &mut envelope.event
            {
                *index = u32::MAX;
            }
        }
        let sim = Sim::resumed(&graph, &wrong, None).driven(world);
        assert_eq!(sim.started.len(), 1, "{}", story(&sim.log));
    }
}

#[test]
fn a_foreach_whose_time_is_up_ends_after_what_cleans_up_in_its_items() {
    let sim = Sim::new(
        &graph(
            "
flow: { name: f }
nodes:
  - id: each
    type: control.foreach
    policy: { timeout: 3s }
    input: { items: [5, 10, 0], maxConcurrency: 2, onItemError: continue }
    body:
      nodes:
        - { id: take, type: control.noop }
        - { id: back, type: control.noop, dependsOn: [{ node: take, on: any }] }
",
        ),
        &[],
    )
    .driven(|start, run| {
        let seconds = match start.path.as_str() {
            "each[0]/back" => 5,
            "each[1]/back" => 10,
            _ => return world(start, run),
        };
        let at = run.state().last_at + Duration::from_secs(seconds);
        [AttemptStep::Until(at)].into_iter().chain(world(start, run).pop()).collect()
    });
    sim.check();
    let course = story(&sim.log);
    assert_eq!(course.matches("task:complete each[").count(), 4, "{course}");
    assert_eq!(sim.run.state().outcome(), Some(Outcome::Failed), "{course}");
}
