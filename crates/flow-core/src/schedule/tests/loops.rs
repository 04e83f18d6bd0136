//! Loops of every shape: that the plain interpreter agrees, also on what golden flows do not show.

use std::{fs, path::Path, sync::Arc};

use inspan_protocol::{AgentError, EdgeStatus, Envelope, ErrorCode, Event, NodeStatus, Outcome};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    plain::{NodeEnd, Plain, PlainFlow, flow, name},
    sim::{AttemptStep, Sim, story, world},
};
use crate::{
    Graph, compile,
    diagnostic::Code,
    graph::OnFailure,
    nodes::builtin_catalog,
    schedule::{AttemptEnd, Run, StartNode},
    testing::{graph, loaded},
};

/// What started, was skipped, and which loops fired, in order.
fn course(log: &[Envelope]) -> Vec<String> {
    let line = |envelope: &Envelope| match (&envelope.event, &envelope.context.task) {
        (Event::TaskStart { .. }, Some(task)) => Some(task.to_string()),
        (Event::TaskSkipped { .. }, Some(task)) => Some(format!("-{task}")),
        (Event::LoopIterate { from, to, iteration, .. }, _) => Some(format!("{from} => {to} ({iteration})")),
        _ => None,
    };
    log.iter().filter_map(line).collect()
}

/// Runs a flow of nodes that give their own places.
fn run(text: &str) -> Sim {
    let sim = Sim::new(&graph(text), &[]).driven(world);
    sim.check();
    sim
}

#[test]
fn a_merge_of_any_that_ran_does_not_hand_on_a_failure() {
    let graph = graph(
        r#"
name: merged
policy: { failFast: false }
nodes:
  - { id: ok, type: control.noop }
  - { id: bad, type: control.noop }
  - { id: either, type: control.merge, input: { mode: any } }
  - { id: after, type: control.noop }
  - { id: waits, type: control.noop, dependsOn: [bad] }
edges:
  - { from: ok, to: either }
  - { from: bad, to: either }
  - { from: ok, to: after }
  - { from: either, to: after, when: "1 == 2" }
"#,
    );
    let sim = Sim::new(&graph, &[]).driven(acts);
    sim.check();
    let status = |id: &str| sim.run.state().nodes()[graph.flow().find(id).unwrap().0 as usize].status;
    let statuses = ["bad", "either", "after", "waits"].map(status);
    use NodeStatus::{Complete, Failed, Skipped};
    assert_eq!(statuses, [Failed, Complete, Complete, Skipped]);
}

#[test]
fn two_ways_back_to_one_node_are_one_loop() {
    let sim = run(r#"
name: two-reviewers
policy: { maxConcurrency: 1 }
nodes:
  - { id: write, type: control.noop }
  - { id: style, type: control.noop }
  - { id: logic, type: control.noop }
  - { id: done, type: control.noop }
edges:
  - { from: write, to: style }
  - { from: write, to: logic }
  - { from: style, to: write, when: "frame.pass == 1", maxIterations: 3 }
  - { from: logic, to: write, when: "frame.pass < 3", maxIterations: 3 }
  - { from: style, to: done }
  - { from: logic, to: done }
"#);
    // Both reviewers answer before another pass begins, and it begins once.
    assert_eq!(
        course(&sim.log),
        [
            "write",
            "style",
            "logic",
            "style => write (1)",
            "write#2",
            "style#2",
            "logic#2",
            "logic => write (1)",
            "write#3",
            "style#3",
            "logic#3",
            "done"
        ]
    );
}

#[test]
fn what_was_skipped_too_early_by_an_older_version_runs_when_the_session_resumes() {
    let graph = graph(
        r#"
name: old
nodes:
  - { id: review, type: control.noop }
  - { id: fix, type: control.noop }
  - { id: done, type: control.noop }
  - { id: after, type: control.noop, dependsOn: [done] }
edges:
  - { from: review, to: fix, when: "frame.pass == 1" }
  - { from: fix, to: review, maxIterations: 5 }
  - { from: review, to: done, when: "frame.pass > 1" }
"#,
    );
    let new = Sim::new(&graph, &[]).driven_to("loop:iterate", world);
    let skipped_before = new.log.len();
    // An older version resolved the edge to `done` in the first pass, skipped all behind it, and did not name the
    // nodes that go back.
    let mut old = Sim::new(&graph, &new.log[..skipped_before - 3]);
    let node = |id: &str| inspan_protocol::NodeId::new(id).unwrap();
    let path = |id: &str| inspan_protocol::NodePath::root(&node(id));
    let skip = |id: &str| Event::TaskSkipped {
        task_id: node(id),
        reason: inspan_protocol::SkipReason::Edge,
        failures: vec![],
    };
    let lost = |from: &str, to: &str| Event::EdgeSkipped { from: node(from), to: node(to) };
    old.emit(Some(path("review")), lost("review", "done"));
    old.emit(Some(path("done")), skip("done"));
    old.emit(Some(path("done")), lost("done", "after"));
    old.emit(Some(path("after")), skip("after"));
    old.until_event("task:complete", world);
    let nodes = Vec::new();
    old.emit(
        Some(path("fix")),
        Event::LoopIterate { from: node("fix"), to: node("review"), iteration: 1, nodes },
    );
    let resumed = Sim::resumed(&graph, &old.log, None).driven(world);
    resumed.check();
    assert_eq!(
        course(&resumed.log),
        ["review", "-done", "-after", "fix", "fix => review (1)", "review#2", "-fix#2", "done#2", "after#2"]
    );
    assert_eq!(resumed.run.state().session.outcome, Some(Outcome::Success));
}

#[test]
fn what_follows_the_handler_of_a_failure_in_a_loop_runs() {
    let sim = run(r#"
name: rescued
nodes:
  - { id: bad, type: control.noop }
  - { id: review, type: control.noop }
  - { id: seen, type: control.noop }
  - { id: rescue, type: control.noop }
  - { id: report, type: control.noop }
edges:
  - { from: bad, to: review }
  - { from: review, to: bad, when: "frame.pass < 2", maxIterations: 3 }
  - { from: review, to: seen }
  - { from: seen, to: report }
  - { from: bad, to: rescue, on: failure }
  - { from: rescue, to: report }
"#);
    assert_eq!(course(&sim.log), ["bad", "-review", "rescue", "-seen", "report"]);
    assert_eq!(sim.run.state().session.outcome, Some(Outcome::Success));
}

/// The graph of a flow, unless its loops overlap beyond sense; every other problem is a fault of the test.
fn compiled(text: &str) -> Option<Arc<Graph>> {
    let loaded = loaded(text);
    match compile(&loaded, &builtin_catalog([])) {
        Ok(compiled) => Some(Arc::new(compiled.graph)),
        Err(found) => {
            let overlaps = found.iter().filter(|problem| problem.severity == crate::Severity::Error);
            assert!(
                overlaps.clone().all(|problem| problem.code == Code::OverlappingLoops),
                "{found}\n{text}"
            );
            None
        }
    }
}

/// As the plain interpreter has it: what each node does.
fn acts(start: &StartNode, run: &Run) -> Vec<AttemptStep> {
    let id = run.state().spec(run.graph(), start.node).id.as_str();
    let fails = id.starts_with("bad")
        || id.starts_with("handled")
        || (id.starts_with("odd") && start.path.pass() == 1);
    if fails {
        let error = AgentError::new(ErrorCode::NodeFailed, format!("{id} fails"));
        return vec![AttemptStep::End(AttemptEnd::Error(error))];
    }
    let first =
        |value: &Value| value.as_str().map(|text| text.split(' ').next().unwrap_or_default().to_owned());
    let saw = start.input.as_ref().ok().and_then(|input| input.get("value")).and_then(Value::as_array);
    let saw: Vec<String> = saw.into_iter().flatten().filter_map(first).collect();
    vec![AttemptStep::End(AttemptEnd::Output(
        json!({ "value": format!("{} {}", start.path, saw.join(",")) }),
    ))]
}

fn ends(sim: &Sim) -> (&'static str, Vec<NodeEnd>) {
    let state = sim.run.state();
    let outcome = match state.session.outcome {
        Some(Outcome::Success) => "Success",
        Some(Outcome::Partial) => "Partial",
        Some(Outcome::Failed) => return ("Failed", Vec::new()),
        _ => "another",
    };
    let graph = sim.run.graph();
    let end = |at: usize| {
        let node = &state.nodes()[at];
        let status = match node.status {
            NodeStatus::Complete => "complete",
            NodeStatus::Failed if graph.flow().nodes[at].policy.on_failure == OnFailure::Continue => {
                "handled"
            }
            NodeStatus::Failed => "failed",
            NodeStatus::Skipped => "skipped",
            _ => "pending",
        };
        let output = state
            .output(crate::TaskRef::of_flow(crate::NodeIx(at as u32)))
            .map(|output| output.get("value").and_then(Value::as_str).unwrap_or("f").to_owned());
        (status, node.pass, node.attempts, output)
    };
    (outcome, (0..graph.flow().nodes.len()).map(end).collect())
}

/// An edge out of a loop is resolved once, in the last pass: the loop fires no more, unless an outer one begins
/// another pass.
fn exits_are_final(flow: &PlainFlow, sim: &Sim) -> Result<(), TestCaseError> {
    let graph = sim.run.graph();
    let mut resolved = vec![EdgeStatus::Pending; graph.flow().edges.len()];
    let find = |from: &str, to: &str| {
        let ends = (graph.flow().find(from), graph.flow().find(to));
        graph.flow().edges.iter().position(|edge| (Some(edge.from), Some(edge.to)) == ends)
    };
    for envelope in &sim.log {
        match &envelope.event {
            Event::EdgeFired { from, to } | Event::EdgeSkipped { from, to } => {
                let at = find(from.as_str(), to.as_str()).unwrap();
                prop_assert!(resolved[at] == EdgeStatus::Pending, "twice\n{}", story(&sim.log));
                resolved[at] = EdgeStatus::Fired;
            }
            Event::LoopIterate { nodes, .. } => {
                for (at, edge) in graph.flow().edges.iter().enumerate() {
                    let inside = |ix: crate::graph::NodeIx| nodes.contains(&graph.flow().node(ix).id);
                    if edge.cycle.is_some() && inside(edge.from) || inside(edge.from) && inside(edge.to) {
                        resolved[at] = EdgeStatus::Pending;
                    }
                    let left = inside(edge.from) && !inside(edge.to) && resolved[at] != EdgeStatus::Pending;
                    prop_assert!(
                        !left || edge.cycle.is_some(),
                        "left too early: {}\n{}\n{}",
                        at,
                        story(&sim.log),
                        flow.text()
                    );
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn agrees(flow: &PlainFlow, seed: u64) -> Result<(), TestCaseError> {
    let text = flow.text();
    let Some(graph) = compiled(&text) else { return Ok(()) };
    let expected = Plain::new(flow).run();
    let whole = Sim::new(&graph, &[]).shuffled(seed).driven(acts);
    whole.check();
    prop_assert_eq!(&ends(&whole), &expected, "{}\n{}", story(&whole.log), text);
    exits_are_final(flow, &whole)?;
    // Wherever it dies, it has the same result, and nothing that is finished runs again. Only what was interrupted has
    // one attempt more.
    let apart = |(outcome, ends): (&'static str, Vec<NodeEnd>)| {
        let ends = ends.into_iter().map(|(status, pass, _, output)| (status, pass, output));
        (outcome, ends.collect::<Vec<_>>())
    };
    let expected = apart(expected);
    let step = whole.log.len() / 6 + 1;
    for cut in (seed as usize % step..whole.log.len()).step_by(step) {
        let sim = Sim::resumed(&graph, &whole.log[..cut], None).shuffled(seed ^ cut as u64).driven(acts);
        sim.check();
        prop_assert_eq!(&apart(ends(&sim)), &expected, "cut after {}\n{}\n{}", cut, story(&sim.log), text);
        prop_assert!(sim.again(cut).is_empty(), "cut after {}\n{}\n{}", cut, story(&sim.log), text);
    }
    let half = Sim::new(&graph, &whole.log[..whole.log.len() / 2 + 1]);
    let restored =
        Sim::restored(&graph, &half.run.snapshot(&graph.input), half.now).shuffled(seed).driven(acts);
    prop_assert_eq!(&apart(ends(&restored)), &expected, "restored\n{}\n{}", story(&restored.log), text);
    Ok(())
}

proptest! {
    // As many as `PROPTEST_CASES` says.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_scheduler_and_the_plain_interpreter_agree_on_loops(flow in flow(), seed in any::<u64>()) {
        agrees(&flow, seed)?;
    }
}

#[test]
fn random_flows_have_loops_of_every_kind() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let (mut nested, mut overlapping, mut long, mut refused) = (0, 0, 0, 0);
    for _ in 0..300 {
        let flow = flow().new_tree(&mut runner).unwrap().current();
        let Some(graph) = compiled(&flow.text()) else {
            refused += 1;
            continue;
        };
        let cycles: Vec<_> = graph.flow().edges.iter().filter_map(|edge| edge.cycle.as_ref()).collect();
        nested += u32::from(cycles.iter().any(|cycle| !cycle.inner.is_empty()));
        overlapping += u32::from(cycles.iter().any(|cycle| cycle.quiet.len() > cycle.body.len()));
        long += u32::from(cycles.iter().any(|cycle| cycle.body.len() > cycle.direct.len()));
        assert_eq!(graph.flow().node(crate::graph::NodeIx(0)).id.as_str(), name(&flow, 0));
    }
    assert!(
        nested > 50 && overlapping > 3 && long > 15 && refused < 120,
        "{nested} {overlapping} {long} {refused}"
    );
}

/// A log of an older version is read as it was meant, and every beginning of it can be resumed.
#[test]
fn a_log_of_an_older_version_is_the_state_that_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/logs/loop_exhausted");
    let graph = graph(&fs::read_to_string(folder.join("flow.yaml")).unwrap());
    let log = fs::read_to_string(folder.join("events.jsonl")).unwrap().replace("\"flow-1\"", "\"s\"");
    let log: Vec<Envelope> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let nodes = |sim: &Sim| -> Vec<_> {
        sim.run.state().nodes().iter().map(|node| (node.status, node.pass)).collect()
    };
    let sim = Sim::new(&graph, &log);
    use NodeStatus::{Complete, Pending};
    let expected = [(Complete, 3), (Complete, 3), (Complete, 2), (Complete, 2), (Pending, 1)];
    assert_eq!((nodes(&sim), sim.run.state().outcome()), (expected.to_vec(), Some(Outcome::Failed)));
    for cut in 1..log.len() {
        let mut resumed = Sim::resumed(&graph, &log[..cut], None);
        // Each node gives its input.
        resumed.drive(|start, _| {
            let input = start.input.clone().unwrap_or(Value::Null);
            vec![AttemptStep::End(AttemptEnd::Output(if input.is_object() { input } else { json!({}) }))]
        });
        resumed.check();
        assert_eq!(nodes(&resumed), nodes(&sim), "cut after {cut}\n{}", story(&resumed.log));
        assert!(resumed.again(cut).is_empty(), "cut after {cut}");
    }
}
