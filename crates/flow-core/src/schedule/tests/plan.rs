//! What a resume would do, told before it does.

use inspan_protocol::Timestamp;

use super::sim::{Sim, world};
use crate::testing::graph;

/// What the plan to resume says once this event has happened, and the process died.
fn plan_after(event: &str, nodes: &str) -> Vec<String> {
    let graph = graph(&format!("flow: {{ name: f }}\nnodes:\n{nodes}"));
    let mut sim = Sim::new(&graph, &[]);
    sim.until_event(event, world);
    let plan = Sim::new(&graph, &sim.log).run.plan_to_resume(Timestamp::default());
    plan.nodes.iter().map(|node| format!("{} {:?}", node.path, node.decision)).collect()
}

#[test]
fn what_waits_for_its_time_depends_on_no_other_node() {
    let retried = "
  - { id: twice, type: control.noop, policy: { retry: { maxAttempts: 3, backoff: 1h } } }
  - { id: after, type: control.noop, dependsOn: [twice] }
";
    assert_eq!(plan_after("task:failed", retried), ["twice Runs(Retried)", "after Undecided"]);
    let limited = "
  - { id: limited, type: talk.agent, input: { prompt: x } }
  - { id: after, type: control.noop, dependsOn: [limited] }
";
    assert_eq!(plan_after("limit:wait", limited), ["limited Resumes", "after Undecided"]);
}
