//! Usage limits: how long they are waited for, and what their time counts for.

use std::time::Duration;

use inspan_protocol::{AgentError, DeniedCalls, ErrorCode, Event, Outcome, Timestamp};
use serde_json::json;

use super::sim::{AttemptStep, Sim, story};
use crate::{
    schedule::{AttemptEnd, Run, StartNode},
    testing::graph,
};

const HOUR: i64 = 3_600_000;

/// An agent that is refused this often, with a limit that is lifted so long after the refusal.
fn refused(times: u32, ahead: i64) -> impl Fn(&StartNode, &Run) -> Vec<AttemptStep> {
    move |start, run| {
        let id = start.path.node();
        if !id.starts_with("talk") || start.attempt > times {
            return vec![AttemptStep::End(AttemptEnd::Output(json!({ "text": "done" })))];
        }
        let now = run.state().node(start.node).started_at.unwrap();
        let mut error = AgentError::new(ErrorCode::RateLimited, "come back later").from_provider("talk");
        error.resets_at = Some(Timestamp::from_millis(now.as_millis() + ahead));
        let name = AttemptStep::Name(format!("c-{}", start.path));
        vec![AttemptStep::Begin, name, AttemptStep::Complete, AttemptStep::End(AttemptEnd::Error(error))]
    }
}

fn waits(sim: &Sim) -> Vec<i64> {
    let waits = sim.log.iter().filter_map(|envelope| match envelope.event {
        Event::LimitWait { until, .. } => Some(until.since(envelope.timestamp).as_secs() as i64),
        _ => None,
    });
    waits.collect()
}

#[test]
fn a_limit_that_is_met_after_its_moment_is_waited_for_but_not_for_ever() {
    let with = |policy: &str| {
        graph(&format!(
            "name: one\nnodes:\n  - {{ id: talk, type: talk.agent, input: {{ prompt: go }}, policy: {{ {policy} }} }}\n"
        ))
    };
    let once = "retry: { maxAttempts: 1 }";
    let rows = [
        // How often it is refused, how far its moment is ahead, the waits in seconds.
        ("", 2, 0, vec![15, 30]),
        ("", 1, -3_600_000, vec![15]),
        ("", 3, 1_000, vec![1, 30, 60]),
        ("", 2, 5 * HOUR, vec![18_000, 18_000]),
        // It was another moment.
        (once, 1, -3_601_000, vec![]),
        ("onLimit: fail, retry: { maxAttempts: 1 }", 1, 0, vec![]),
    ];
    for (policy, times, ahead, expected) in rows {
        let sim = Sim::new(&with(policy), &[]).driven(refused(times, ahead));
        sim.check();
        let outcome = if expected.is_empty() { Outcome::Failed } else { Outcome::Success };
        assert_eq!((waits(&sim), sim.run.state().outcome()), (expected, Some(outcome)), "{times} {ahead}");
    }
    // It was lifted, so a retry may help although limits are not waited for.
    let sim = Sim::new(&with("onLimit: fail, retry: { maxAttempts: 2, backoff: 7s }"), &[]);
    let sim = sim.driven(refused(1, 0));
    assert_eq!((sim.now.as_millis(), sim.run.state().outcome()), (7_000, Some(Outcome::Success)));
    for ahead in [0, 1_000] {
        let sim = Sim::new(&with(once), &[]).driven(refused(u32::MAX, ahead));
        let took = sim.now.as_millis() as f64 / HOUR as f64;
        assert_eq!((waits(&sim).len(), sim.run.state().outcome()), (40, Some(Outcome::Failed)));
        assert!((2.9..3.1).contains(&took), "{took}");
    }
    // A process that begins in the midst of it counts on.
    let mut sim = Sim::new(&with(""), &[]);
    while waits(&sim).len() < 30 {
        sim.step(&refused(u32::MAX, 0));
    }
    let resumed = Sim::resumed(sim.run.graph(), &sim.log, None).driven(refused(u32::MAX, 0));
    assert_eq!((waits(&resumed).len(), resumed.run.state().outcome()), (40, Some(Outcome::Failed)));
}

#[test]
fn what_was_denied_before_a_limit_is_told_once_and_is_in_the_output() {
    let graph = graph("name: one\nnodes:\n  - { id: talk, type: talk.agent, input: { prompt: go } }\n");
    // The third attempt counts the ids of its calls anew.
    let denied = |id: u32| {
        let call = format!("t{}", id.min(2));
        json!({ "toolName": "Bash", "toolUseId": call, "toolInput": { "number": id } })
    };
    let world = |start: &StartNode, run: &Run| match start.attempt {
        3 => vec![AttemptStep::End(AttemptEnd::Output(json!({ "permissionDenials": [denied(3)] })))],
        attempt => {
            let mut steps = refused(2, 1_000)(start, run);
            if let Some(AttemptStep::End(AttemptEnd::Error(error))) = steps.last_mut() {
                *error = error.clone().with_denials(&[denied(attempt)]);
            }
            steps
        }
    };
    let mut sim = Sim::new(&graph, &[]);
    while waits(&sim).len() < 2 {
        sim.step(&world);
    }
    let restored = Sim::restored(&graph, &sim.run.snapshot(&graph.input), sim.now);
    for sim in [Sim::resumed(&graph, &sim.log, None), restored, sim] {
        let log = sim.log.clone();
        let sim = sim.driven(world);
        let output = sim.run.state().output(crate::TaskRef::of_flow(crate::NodeIx(0))).unwrap();
        assert_eq!(output["permissionDenials"], json!([denied(1), denied(2), denied(3)]));
        // A restored session has no log of what was before.
        if !log.is_empty() {
            let mut calls = DeniedCalls::default();
            let told: Vec<_> = sim.log.iter().flat_map(|envelope| calls.take(envelope).to_vec()).collect();
            assert_eq!(told, [denied(1), denied(2), denied(3)]);
        }
    }
}

#[test]
fn the_time_of_a_limit_counts_for_no_timeout_around_it() {
    let text = |flow: &str, node: &str, body: &str, inner: &str| {
        format!(
            "
flow: {{ name: f{flow} }}
nodes:
  - id: each
    type: control.foreach
    input: {{ items: [1, 2] }}{node}
    body:
      {body}
      nodes:
        - {{ id: talk, type: talk.agent, input: {{ prompt: go }} }}
        {inner}
"
        )
    };
    let policy = "policy: { timeout: 10m }";
    let after = "- { id: after, type: talk.agent, dependsOn: [talk], input: { prompt: go } }";
    let beside = "- { id: beside, type: talk.agent, input: { prompt: go } }";
    let rows = [
        // What has the timeout, what runs after the limit and for how many minutes, and whether that is in time.
        (text(&format!(", {policy}"), "", "", after), 9, true),
        (text(&format!(", {policy}"), "", "", after), 11, false),
        (text("", &format!("\n    {policy}"), "", after), 9, true),
        (text("", &format!("\n    {policy}"), "", after), 11, false),
        (text("", "", policy, after), 9, true),
        (text("", "", policy, after), 11, false),
        // While something works, the time counts.
        (text("", "", policy, beside), 9, true),
        (text("", "", policy, beside), 11, false),
    ];
    for (text, minutes, in_time) in rows {
        let limit = refused(1, HOUR);
        let world = |start: &StartNode, run: &Run| {
            if start.path.node() == "talk" {
                return limit(start, run);
            }
            let began = run.state().node(start.node).started_at.unwrap();
            let done = AttemptStep::End(AttemptEnd::Output(json!({ "text": "done" })));
            vec![AttemptStep::Until(began + Duration::from_secs(minutes * 60)), done]
        };
        let graph = graph(&text);
        let sim = Sim::new(&graph, &[]).driven(world);
        sim.check();
        let outcome = sim.run.state().outcome();
        assert_eq!(outcome == Some(Outcome::Success), in_time, "{text}\n{}", story(&sim.log));
        // So it is if the process ends in the midst of it, and another goes on much later.
        let mut cut = Sim::new(&graph, &[]);
        while waits(&cut).len() < 2 {
            cut.step(&world);
        }
        let mut next = Sim::new(&graph, &cut.log);
        next.now = next.now + Duration::from_secs(2 * 3_600);
        next.resume(None, &std::collections::BTreeMap::new());
        next.drive(world);
        next.check();
        assert_eq!(next.run.state().outcome(), outcome, "{text}\n{}", story(&next.log));
    }
}
