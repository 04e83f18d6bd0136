//! Which nodes, edges and failure routes of a flow its cases take.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use inspan_flow::{Body, EdgeOn, FramesKind, Graph, Node, OnFailure, OnItemError};
use inspan_protocol::NodeStatus;
use serde::Serialize;

use crate::{cases::each_body, pattern::place_in_file, trace::Trace};

/// What the cases of a flow cover.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Coverage {
    /// The flow file.
    pub flow: PathBuf,
    /// Nodes that started.
    pub nodes: Covered,
    /// Edges that fired.
    pub edges: Covered,
    /// Ways to deal with a failure that were taken: retries and failures that the flow survives.
    pub failure_routes: Covered,
}

/// How many of some parts are covered.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Covered {
    /// How many are covered.
    pub covered: usize,
    /// How many there are.
    pub total: usize,
    /// Those that are not covered.
    pub missing: Vec<String>,
}

impl Covered {
    fn of(all: &BTreeMap<String, String>, seen: &BTreeSet<String>) -> Self {
        let missing: Vec<String> =
            all.iter().filter(|(key, _)| !seen.contains(*key)).map(|(_, name)| name.clone()).collect();
        Self { covered: all.len() - missing.len(), total: all.len(), missing }
    }
}

impl Coverage {
    /// The part that is covered of all three together, in percent.
    pub fn percent(&self) -> f64 {
        let parts = [&self.nodes, &self.edges, &self.failure_routes];
        let total: usize = parts.iter().map(|part| part.total).sum();
        let covered: usize = parts.iter().map(|part| part.covered).sum();
        if total == 0 { 100.0 } else { covered as f64 * 100.0 / total as f64 }
    }
}

/// What has been seen of a flow.
#[derive(Default)]
pub(crate) struct SeenFlow {
    nodes: BTreeSet<String>,
    edges: BTreeSet<String>,
    routes: BTreeSet<String>,
}

impl SeenFlow {
    pub(crate) fn add(&mut self, trace: &Trace) {
        for (path, node) in &trace.nodes {
            let place = place_in_file(path.as_str());
            for (_, again) in &node.failures {
                self.routes.insert(if *again { retry(&place) } else { survive(&place) });
            }
            let failed = node.output.as_ref().filter(|_| &*node.node_type == "control.foreach");
            if failed.is_some_and(|output| output["failed"].as_u64() > Some(0)) {
                self.routes.insert(item(&place));
            }
            self.routes.extend(node.took_over.iter().map(|agent| fallback(&place, agent)));
            if node.attempts > 0 || node.status == NodeStatus::Reused {
                self.nodes.insert(place);
            }
        }
        self.edges.extend(trace.fired.iter().map(|(from, to)| edge(from, to)));
    }

    pub(crate) fn coverage(&self, flow: &Path, graph: &Graph) -> Coverage {
        let parts = FlowParts::of(graph);
        Coverage {
            flow: flow.to_owned(),
            nodes: Covered::of(&parts.nodes, &self.nodes),
            edges: Covered::of(&parts.edges, &self.edges),
            failure_routes: Covered::of(&parts.routes, &self.routes),
        }
    }
}

/// The parts of a flow, each with its name for people.
#[derive(Default)]
struct FlowParts {
    nodes: BTreeMap<String, String>,
    edges: BTreeMap<String, String>,
    routes: BTreeMap<String, String>,
}

impl FlowParts {
    fn of(graph: &Graph) -> Self {
        let mut parts = Self::default();
        each_body(graph, &mut |prefix, body| parts.add(prefix, body));
        parts
    }

    fn add(&mut self, prefix: &str, body: &Body) {
        let place = |node: &Node| format!("{prefix}{}", node.id);
        for node in &body.nodes {
            let place = place(node);
            if node.policy.retry.max_attempts > 1 && !node.policy.retry.is_automatic {
                self.routes.insert(retry(&place), format!("a retry of `{place}`"));
            }
            if let Some(agents) = &node.agents {
                for entry in &agents.fallback {
                    let agent = &agents.names[entry.agent as usize];
                    self.routes.insert(fallback(&place, agent), format!("`{agent}` takes over `{place}`"));
                }
            }
            if node.policy.on_failure == OnFailure::Continue {
                self.routes.insert(survive(&place), format!("a failure of `{place}`"));
            }
            if let Some(FramesKind::Foreach {
                on_item_error: OnItemError::Stop | OnItemError::Continue,
                ..
            }) = node.frames.as_ref().map(|frames| &frames.kind)
            {
                self.routes.insert(item(&place), format!("a failed item of `{place}`"));
            }
            self.nodes.insert(place.clone(), place);
        }
        for each in &body.edges {
            let (from, to) = (place(body.node(each.from)), place(body.node(each.to)));
            if matches!(each.on, EdgeOn::Failure | EdgeOn::Any) {
                self.routes.insert(survive(&from), format!("a failure of `{from}`"));
            }
            self.edges.insert(edge(&from, &to), edge(&from, &to));
        }
    }
}

fn edge(from: &str, to: &str) -> String {
    format!("{from} -> {to}")
}

fn retry(place: &str) -> String {
    format!("retry {place}")
}

fn fallback(place: &str, agent: &str) -> String {
    format!("fallback {place} {agent}")
}

fn item(place: &str) -> String {
    format!("item {place}")
}

fn survive(place: &str) -> String {
    format!("failure {place}")
}
