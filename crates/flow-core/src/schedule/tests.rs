//! The scheduler driven by hand: attempts advance in an order that the test chooses, and time only passes when
//! nothing can be done.

mod agents;
mod budgets;
mod cleanup;
mod cleanup_cut;
mod conversations;
mod fallback;
mod frame_budgets;
mod frames;
mod limits;
mod loops;
mod people;
mod plain;
mod random;
mod reuse;
mod reuse_order;
mod runs_again;
mod shape;
mod sim;
mod turns;

use std::{sync::Arc, time::Duration};

use inspan_protocol::{AgentError, ErrorCode, Event, NodeStatus, Timestamp, WaitingOn};
use serde_json::{Map, Value};

use super::{AttemptEnd, Reusable, Run, StartNode};
use crate::{About, Explanation, NodeIx, SessionRecord, explain_taking_over, testing::graph};
use sim::{AttemptStep, Sim, story, world};

/// What is said of a session that could take over this work.
fn explained(sim: &Sim, origin: Option<Reusable>, about: About) -> Explanation {
    let graph = sim.run.graph();
    let session = sim.run.session().clone();
    let record = SessionRecord::new(session, (*graph.source).clone(), Map::new(), Timestamp::default());
    let log: Vec<_> = sim.log.iter().cloned().map(Arc::new).collect();
    explain_taking_over(graph, &record, origin.map(Arc::new), &log, about, false)
}

#[test]
fn backoff_grows_to_its_limit_and_the_vendors_wish_wins() {
    let graph = graph(
        r#"
name: backoff
nodes:
  - id: bad
    type: control.noop
    policy: { retry: { maxAttempts: 5, backoff: 10s, factor: 3, maxBackoff: 60s } }
"#,
    );
    let sim = Sim::new(&graph, &[]).driven(|start, _| {
        let wish = (start.attempt == 2).then_some(Duration::from_secs(7));
        let error = AgentError::new(ErrorCode::RateLimited, "slow down").with_retry_after(wish);
        vec![AttemptStep::End(AttemptEnd::Error(error))]
    });
    let starts: Vec<_> = sim
        .log
        .iter()
        .filter(|envelope| matches!(envelope.event, Event::TaskStart { .. }))
        .map(|envelope| envelope.timestamp.as_millis() / 1_000)
        .collect();
    assert_eq!(starts, [0, 10, 17, 77, 137]);
}

#[test]
fn a_long_backoff_is_waited_and_grows_no_further_than_a_day() {
    let wait = |backoff: u64, factor, failures| {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        let retry = crate::graph::Retry { backoff: hours(backoff), factor, ..Default::default() };
        let error = AgentError::new(ErrorCode::NodeFailed, "no");
        retry.wait(failures, &error).as_secs() / 3_600
    };
    assert_eq!([wait(48, 2.0, 3), wait(10, 2.0, 2), wait(10, 2.0, 3)], [48, 20, 24]);
}

#[test]
fn what_waits_when_the_session_ends_is_cancelled() {
    let graph = graph(
        "
name: waits
nodes:
  - { id: bad, type: control.noop, policy: { retry: { maxAttempts: 3, backoff: 50s } } }
  - { id: limited, type: talk.agent, input: { prompt: go } }
  - { id: wait, type: control.wait, input: { ms: 5000 } }
  - { id: end, type: control.end, dependsOn: [wait] }
",
    );
    let sim = Sim::new(&graph, &[]).driven(world);
    sim.check();
    let nodes = sim.run.state().nodes();
    let standing: Vec<_> = nodes.iter().map(|node| (node.status, node.retry_at)).collect();
    let [cancelled, complete] = [NodeStatus::Cancelled, NodeStatus::Complete].map(|status| (status, None));
    assert_eq!(standing, [cancelled, cancelled, complete, complete], "{}", story(&sim.log));
}

#[test]
fn what_an_older_attempt_reports_is_ignored() {
    let graph = graph(
        "name: old\nnodes:\n  - { id: twice, type: control.noop, policy: { retry: { maxAttempts: 2 } } }\n",
    );
    let mut sim = Sim::new(&graph, &[]).driven(world);
    assert!(
        sim.run
            .conclude(crate::TaskRef::of_flow(NodeIx(0)), 1, AttemptEnd::Output(Value::Null), sim.now)
            .is_none()
    );
    assert!(
        sim.run
            .conclude(crate::TaskRef::of_flow(NodeIx(0)), 2, AttemptEnd::Output(Value::Null), sim.now)
            .is_none()
    );
}

#[test]
fn a_loop_waits_for_the_branches_that_a_merge_did_not_wait_for() {
    let graph = graph(
        r#"
name: stragglers
nodes:
  - { id: wait_long, type: control.wait, input: { ms: 5000 } }
  - { id: ok, type: control.noop }
  - { id: any, type: control.merge, input: { mode: any } }
  - { id: begin, type: control.noop }
edges:
  - { from: begin, to: wait_long }
  - { from: begin, to: ok }
  - { from: wait_long, to: any }
  - { from: ok, to: any }
  - { from: any, to: begin, when: "any.value == 'any'", maxIterations: 1 }
"#,
    );
    let sim = Sim::new(&graph, &[]).driven(world);
    sim.check();
    assert_eq!(
        story(&sim.log)
            .lines()
            .filter(|line| line.starts_with("task:complete") || line.contains("=>"))
            .collect::<Vec<_>>(),
        [
            "task:complete begin",
            "task:complete ok",
            "task:complete any",
            "task:complete wait_long",
            "any => begin (1)",
            "task:complete begin#2",
            "task:complete ok#2",
            "task:complete any#2",
            "task:complete wait_long#2",
        ]
    );
}

#[test]
fn the_flows_time_does_not_count_rests() {
    let graph = graph("name: late\npolicy: { timeout: 60s }\nnodes:\n  - { id: slow, type: control.noop }\n");
    let minute = Duration::from_secs(60);
    let slow = |_: &StartNode, run: &Run| {
        let now = run.state().last_at;
        vec![
            AttemptStep::Until(now + minute / 2),
            AttemptStep::End(AttemptEnd::Error(AgentError::new(ErrorCode::NodeFailed, "no"))),
        ]
    };
    // Half of the time is used, and then nothing runs for an hour, because of a pause or a crash.
    for paused in [true, false] {
        let mut sim = Sim::new(&graph, &[]);
        (0..3).for_each(|_| assert!(!sim.step(&slow)));
        sim.now = sim.now + minute / 2;
        sim.emit(
            None,
            if paused {
                Event::SessionPause { reason: None, cause: None }
            } else {
                Event::FlowWaiting { on: WaitingOn::Limit, until: None }
            },
        );
        if paused {
            sim.drive(slow);
        }
        let mut resumed = Sim::new(&graph, &sim.log);
        resumed.now = sim.now + minute * 60;
        resumed.resume(None, &Default::default());
        resumed.step(&|_, _| vec![AttemptStep::Until(Timestamp::from_millis(i64::MAX / 2))]);
        let due = resumed.run.wake_at().unwrap();
        assert_eq!(due.since(resumed.now), minute / 2, "paused: {paused}\n{}", story(&resumed.log));
        let saved = resumed.run.snapshot(&graph.input);
        let restored = Sim::restored(&graph, &saved, resumed.now + minute * 60);
        assert_eq!(restored.run.wake_at().unwrap().since(restored.now), minute / 2);
    }
}

#[test]
fn a_session_whose_phase_has_ended_only_ends() {
    let graph = graph("name: late\npolicy: { timeout: 60s }\nnodes:\n  - { id: ok, type: control.noop }\n");
    let sim = Sim::new(&graph, &[]).driven(world);
    let mut resumed = Sim::resumed(&graph, &sim.log[..sim.log.len() - 1], None);
    // It takes its time, and is not too late.
    resumed.now = resumed.now + Duration::from_secs(90);
    resumed.drive(world);
    resumed.check();
    assert_eq!(resumed.end(), sim.end());
}

#[test]
fn a_node_whose_failure_is_handled_has_failed_or_has_not() {
    let graph = graph(
        r#"
name: failed
nodes:
  - { id: ok, type: control.noop, policy: { continueOnError: true } }
  - { id: handled, type: control.noop, policy: { continueOnError: true } }
  - { id: skipped, type: control.noop, when: "1 == 2", policy: { continueOnError: true } }
  - { id: a, type: control.noop, dependsOn: [ok], when: "not ok.failed" }
  - { id: b, type: control.noop, dependsOn: [handled], when: "handled.failed" }
  - { id: c, type: control.noop, dependsOn: [ok, skipped], when: "not skipped.failed" }
  - { id: d, type: control.noop, dependsOn: [ok], when: { equals: { var: ok.failed, value: false } } }
"#,
    );
    let sim = Sim::new(&graph, &[]).driven(world);
    let mut started: Vec<_> = sim.started.iter().map(|start| start.path.as_str()).collect();
    started.sort_unstable();
    assert_eq!(started, ["a", "b", "c", "d", "handled", "ok"], "{}", story(&sim.log));
    assert_eq!(sim.run.state().outcome(), Some(inspan_protocol::Outcome::Success), "{}", story(&sim.log));
}
