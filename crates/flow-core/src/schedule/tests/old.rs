//! Logs of older versions: they are read as they were meant, and every beginning of one can be resumed.

use std::{fs, path::Path, sync::Arc};

use inspan_protocol::{Envelope, NodeStatus, Outcome};
use serde_json::{Value, json};

use super::sim::{AttemptStep, Sim, story};
use crate::{
    Graph,
    schedule::{AttemptEnd, Run, StartNode},
    testing::graph,
};

/// The log and the flow of `fixtures/logs/<case>`.
fn case(name: &str) -> (Arc<Graph>, Vec<Envelope>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/logs").join(name);
    let flow = fs::read_to_string(folder.join("flow.yaml")).unwrap();
    let log = fs::read_to_string(folder.join("events.jsonl")).unwrap().replace("\"flow-1\"", "\"s\"");
    (graph(&flow), log.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// What the nodes of these flows give: their input, which is `value` or `text`.
fn acts(start: &StartNode, _: &Run) -> Vec<AttemptStep> {
    let input = start.input.clone().unwrap_or(Value::Null);
    vec![AttemptStep::End(AttemptEnd::Output(if input.is_object() { input } else { json!({}) }))]
}

fn ends(sim: &Sim) -> Vec<(NodeStatus, u32)> {
    sim.run.state().nodes().iter().map(|node| (node.status, node.pass)).collect()
}

#[test]
fn a_log_of_an_older_version_is_the_state_that_it_was() {
    let (graph, log) = case("loop_exhausted");
    let sim = Sim::new(&graph, &log);
    use NodeStatus::{Complete, Pending};
    assert_eq!(
        (ends(&sim), sim.run.state().outcome()),
        (
            vec![(Complete, 3), (Complete, 3), (Complete, 2), (Complete, 2), (Pending, 1)],
            Some(Outcome::Failed)
        )
    );
    for cut in 1..log.len() {
        let mut resumed = Sim::resumed(&graph, &log[..cut], None);
        resumed.drive(acts);
        resumed.check();
        assert_eq!(ends(&resumed), ends(&sim), "cut after {cut}\n{}", story(&resumed.log));
        assert!(resumed.again(cut).is_empty(), "cut after {cut}");
    }
}
