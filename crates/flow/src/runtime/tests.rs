//! Flows through the whole runtime in virtual time. Decisions alone are tested in `schedule`.

mod attempts;
mod commands;
mod effects;
mod handle;
mod rest;
mod stage;

use inspan_engine::{CountingIds, ProviderRegistry, VirtualClock, check_order};
use inspan_protocol::{Event, NodeStatus, Outcome, Timestamp};
use serde_json::json;

use super::*;
use crate::{MemoryStore, builtin_nodes, testing::graph};

/// Runs a flow without agents in virtual time.
async fn run(text: &str) -> FlowRunResult {
    let nodes = builtin_nodes(&ProviderRegistry::new());
    let runner = FlowRunner::builder(graph(text, &nodes), nodes)
        .clock(Arc::new(VirtualClock::starting_at(Timestamp::from_millis(0))))
        .ids(Arc::new(CountingIds::new()))
        .store(Arc::new(MemoryStore::new()))
        .with_events()
        .build();
    let result = runner.run(Map::new()).await.unwrap();
    let log: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    check_order(&log).unwrap();
    result
}

#[tokio::test(start_paused = true)]
async fn a_chain_hands_its_values_on() {
    let result = run(r#"
flow: { name: chain, input: { who: oxen } }
nodes:
  - { id: a, type: echo, input: { text: "Hello {{ flow.input.who }}" } }
  - { id: b, type: echo, dependsOn: [a], input: { text: "{{ a.text }}!" } }
"#)
    .await;
    assert_eq!(result.outcome, Outcome::Success);
    let outputs = serde_json::to_value(&result.outputs).unwrap();
    assert_eq!(outputs, json!({ "a": { "text": "Hello oxen" }, "b": { "text": "Hello oxen!" } }));
    let names: Vec<_> = result.events.iter().map(|envelope| envelope.event.name().to_owned()).collect();
    assert_eq!(
        names,
        [
            "harness:start",
            "phase:start",
            "task:start",
            "task:complete",
            "edge:fired",
            "task:start",
            "task:complete",
            "phase:complete",
            "harness:complete",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_attempt_is_cut_off_and_tried_again() {
    let result = run(r#"
flow: { name: late }
nodes:
  - id: wait
    type: control.wait
    input: { ms: 600000 }
    policy: { timeout: 10s, retry: { maxAttempts: 2, backoff: 5s } }
"#)
    .await;
    assert_eq!(result.outcome, Outcome::Failed);
    assert_eq!(result.duration_ms, 25_000);
    let failures: Vec<_> = result
        .events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::TaskFailed { error, will_retry, .. } => Some((error.code.as_str(), *will_retry)),
            _ => None,
        })
        .collect();
    assert_eq!(failures, [("TIMEOUT", true), ("TIMEOUT", false)]);
    let nodes: Vec<_> = result.nodes.iter().map(|(_, node)| (node.status, node.attempts)).collect();
    assert_eq!(nodes, [(NodeStatus::Failed, 2)]);
}
