//! Every flow fixture, explained whole; and every beginning of its log, in which no statement
//! may rest on an event that is not there.

use std::{fmt::Write as _, fs, path::PathBuf};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use inspan_engine::ProviderRegistry;
use inspan_protocol::AgentError;
use serde_json::{Map, json};

use super::*;
use crate::{
    NodeContext, NodeKind, NodeRegistry, NodeType, NodeTypeInfo, Occupies, builtin_nodes, compile, load,
};

/// The fixtures' folder.
fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/flows")
}

/// The fixtures that say something about the fate of nodes.
const CASES: &[&str] = &[
    "failing",
    "fan_out_merge",
    "human_input",
    "loop_exhausted",
    "partial",
    "retry",
    "review_loop",
    "routes",
    "stopped",
    "timed_out",
];

/// Stands for the vendors' agents, which only have to have been there.
struct Agent;

impl NodeType for Agent {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo {
            name: "claude.agent".into(),
            pack: "agents",
            help: String::new(),
            input: json!({}),
            output: json!({}),
            kind: NodeKind::Agent,
            occupies: Occupies::Slot,
        }
    }

    fn run(&self, _: NodeContext, input: Value) -> BoxFuture<'static, Result<Value, AgentError>> {
        ready(Ok(input)).boxed()
    }
}

fn nodes() -> NodeRegistry {
    let mut nodes = builtin_nodes(&ProviderRegistry::new());
    nodes.register(Agent);
    nodes
}

fn case(name: &str) -> (Arc<Graph>, SessionRecord, Vec<Arc<Envelope>>) {
    let folder = fixtures().join(name);
    let loaded = load(&folder.join("flow.yaml")).unwrap();
    let compiled = compile(&loaded, &nodes());
    let graph = Arc::new(compiled.unwrap_or_else(|found| panic!("{name}\n{found}")).graph);
    let text = fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let log: Vec<Arc<Envelope>> =
        text.lines().map(|line| Arc::new(serde_json::from_str(line).unwrap())).collect();
    let record = record(&graph, log[0].context.session_id.clone());
    (graph, record, log)
}

fn record(graph: &Graph, session: SessionId) -> SessionRecord {
    SessionRecord {
        session,
        flow: (*graph.source).clone(),
        input: graph.input.clone(),
        created_at: Timestamp::default(),
        parent: None,
        base: None,
        settings: Map::new(),
    }
}

/// The session, then each node.
fn all(graph: &Graph) -> Vec<About> {
    let nodes = (0..graph.nodes.len()).map(|at| About::Node(NodeIx(at as u32)));
    std::iter::once(About::Session).chain(nodes).collect()
}

fn told(explanation: &Explanation) -> String {
    let mut text = format!("{}  [{}]\n", explanation.standing.text, explanation.standing.seq);
    for said in &explanation.because {
        let place = said.task.as_ref().map_or("", NodePath::as_str);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:>3} {place}: {}", said.seq, said.text);
    }
    text
}

#[test]
fn what_became_of_every_node_of_every_fixture() {
    let mut text = String::new();
    for name in CASES {
        let (graph, record, log) = case(name);
        text.push_str(&format!("── {name}\n"));
        for about in all(&graph) {
            text.push_str(&told(&explain(&graph, &record, &log, about)));
        }
        text.push('\n');
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("fixtures", text);
    });
}

#[test]
fn no_statement_rests_on_an_event_that_is_not_there() {
    for name in CASES {
        let (graph, record, log) = case(name);
        for end in 0..=log.len() {
            for about in all(&graph) {
                let explanation = explain(&graph, &record, &log[..end], about);
                let said = explanation.because.iter().chain([&explanation.standing]);
                for said in said {
                    assert!(said.seq <= end as u64, "{name}, {end} events, {about:?}: {said:?}");
                    assert_eq!(said.at.is_some(), said.seq > 0, "{name}, {end} events, {about:?}: {said:?}");
                }
            }
        }
    }
}
