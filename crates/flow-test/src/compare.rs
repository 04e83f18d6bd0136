//! Two sessions side by side: what ran, its final status, what it gave, cost and took.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use inspan_protocol::{NodePath, NodeStatus, Outcome};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    expect::word,
    matcher::{difference, lines},
    pattern::without_pass,
    trace::{NodeTrace, Trace},
};

/// Two sessions side by side.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Both sessions as a whole.
    pub sessions: [SessionSide; 2],
    /// Each node that one of them has, in the order of their starts.
    pub nodes: Vec<NodeComparison>,
    /// How the order in which the nodes started differs; empty if it is the same.
    pub path_difference: String,
    /// How what the flows give differs, as lines of a difference; empty if it is the same.
    pub outputs_difference: String,
    /// Whether outcome, path, statuses and outputs, those of the flow included, are the same.
    pub same: bool,
}

/// One of the sessions to compare.
#[derive(Clone, Copy, Debug)]
pub struct ComparedSession<'a> {
    /// Its id.
    pub id: &'a str,
    /// The name of its flow.
    pub flow: &'a str,
    /// Its state in one word: `running`, `success`.
    pub state: &'a str,
    /// Its folded log.
    pub trace: &'a Trace,
}

/// One session as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSide {
    /// Its id.
    pub session_id: String,
    /// Its flow.
    pub flow: String,
    /// Its state, in the word of `inspan ps`.
    pub state: String,
    /// How it ended; absent if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The places that started, in their order.
    pub path: Vec<String>,
    /// What it cost in US dollars; none if a price is unknown.
    pub cost_usd: Option<f64>,
    /// Tokens of its agents.
    pub tokens: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

/// One node in both sessions: all of its passes together.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeComparison {
    /// Its place, without the pass.
    pub path: String,
    /// Its result in each session; `None` where it does not appear.
    pub sides: [Option<NodeSide>; 2],
    /// How its newest outputs differ; empty if they are the same.
    pub output_difference: String,
}

/// The result of a node in one session.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSide {
    /// Its status.
    pub status: NodeStatus,
    /// How often it was tried.
    pub attempts: u32,
    /// What its agents cost in US dollars; none if a price is unknown, or it has no agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// How long its attempts took, in milliseconds.
    pub duration_ms: u64,
    /// Its newest output.
    #[serde(skip)]
    output: Option<Arc<Value>>,
}

impl Comparison {
    /// Compares two sessions.
    pub fn of(sides: [ComparedSession<'_>; 2]) -> Self {
        let sessions = sides.map(|ComparedSession { id, flow, state, trace }| SessionSide {
            session_id: id.to_owned(),
            flow: flow.to_owned(),
            state: state.to_owned(),
            outcome: trace.has_ended().then_some(trace.outcome),
            path: trace.started().map(|path| path.to_string()).collect(),
            cost_usd: trace.cost_usd(),
            tokens: trace.tokens(),
            duration_ms: millis(trace.duration()),
        });
        let differs = |[one, other]: [String; 2]| match one == other {
            true => String::new(),
            false => difference(&sessions[0].session_id, &one, &sessions[1].session_id, &other),
        };
        let shown =
            |output: Option<&Value>| output.map_or_else(String::new, |output| lines(&comparable(output)));
        // Its keys are names of the author.
        let given = |output: Option<&Value>| output.map_or_else(String::new, |output| lines(&within(output)));
        let mut nodes = Vec::new();
        let by_place = sides.map(|side| (side.trace, by_place(side.trace)));
        for place in places(sides.map(|side| side.trace)) {
            let pair = by_place
                .each_ref()
                .map(|(trace, passes)| passes.get(place.as_str()).and_then(|passes| side(trace, passes)));
            let output =
                |side: &Option<NodeSide>| shown(side.as_ref().and_then(|side| side.output.as_deref()));
            let output_difference = differs(pair.each_ref().map(output));
            nodes.push(NodeComparison { path: place, sides: pair, output_difference });
        }
        let path_difference = differs(sessions.each_ref().map(|session| session.path.join("\n") + "\n"));
        let outputs_difference = differs(sides.map(|side| given(side.trace.flow_outputs.as_deref())));
        let same_nodes = nodes.iter().all(|node| {
            let status = |side: &Option<NodeSide>| side.as_ref().map(|side| side.status);
            node.output_difference.is_empty() && status(&node.sides[0]) == status(&node.sides[1])
        });
        let same = same_nodes
            && path_difference.is_empty()
            && outputs_difference.is_empty()
            && sessions[0].state == sessions[1].state;
        Self { sessions, nodes, path_difference, outputs_difference, same }
    }
}

/// The places of both sessions: those that started in the order of the first, then of the second, then the others.
fn places(traces: [&Trace; 2]) -> Vec<String> {
    let started = traces.iter().flat_map(|trace| trace.started());
    let others = traces.iter().flat_map(|trace| trace.nodes.keys());
    let mut seen = BTreeSet::new();
    let all = started.chain(others).map(|path| without_pass(path).to_owned());
    all.filter(|place| seen.insert(place.clone())).collect()
}

type Passes<'a> = Vec<(&'a NodePath, &'a NodeTrace)>;

/// The passes of each place in their order.
fn by_place(trace: &Trace) -> BTreeMap<&str, Passes<'_>> {
    let mut all: BTreeMap<&str, Passes<'_>> = BTreeMap::new();
    for (path, node) in &trace.nodes {
        all.entry(without_pass(path)).or_default().push((path, node));
    }
    // As text, `review#10` comes before `review#9`.
    all.values_mut().for_each(|passes| passes.sort_by_key(|(path, _)| path.pass()));
    all
}

fn side(trace: &Trace, passes: &Passes<'_>) -> Option<NodeSide> {
    let (newest, last) = passes.last()?;
    let nodes = || passes.iter().map(|(_, node)| *node);
    let has_agent = nodes().any(|node: &NodeTrace| node.tokens > 0 || node.cost_usd > 0.0 || node.unpriced);
    let priced = has_agent && nodes().all(|node| !node.unpriced);
    Some(NodeSide {
        status: trace.status(newest, last),
        attempts: nodes().map(|node| node.attempts).sum(),
        cost_usd: priced.then(|| nodes().map(|node| node.cost_usd).sum()),
        duration_ms: millis(nodes().map(|node| trace.worked(node)).sum()),
        output: nodes().rev().find_map(|node| node.output.clone()),
    })
}

/// The fields of an output that differ from run to run.
pub(crate) const DIFFERS: [&str; 9] = [
    "usage",
    "costUsd",
    "numTurns",
    "durationMs",
    "waitedMs",
    "sessionId",
    "sessionToken",
    "threadId",
    "toolUseId",
];

/// An output without what it cost, how long it took and which conversation it was.
pub(crate) fn comparable(output: &Value) -> Value {
    let mut comparable = within(output);
    if let Some(fields) = comparable.as_object_mut() {
        fields.retain(|key, _| !DIFFERS.contains(&key.as_str()));
    }
    comparable
}

/// A value without the measures of whole outputs of agents and waits that are within it, such as those of the items of a
/// foreach.
fn within(value: &Value) -> Value {
    let part = |part: &Value| match part.as_object().is_some_and(is_measured) {
        true => comparable(part),
        false => within(part),
    };
    match value {
        Value::Array(items) => items.iter().map(part).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), part(value))).collect(),
        _ => value.clone(),
    }
}

/// Whether these are the fields of a whole output of an agent or a wait.
fn is_measured(fields: &Map<String, Value>) -> bool {
    let is_of_wait = || {
        fields.contains_key("waitedMs")
            && fields.keys().all(|key| ["waitedMs", "event"].contains(&key.as_str()))
    };
    ["numTurns", "stopReason", "usage"].iter().all(|key| fields.contains_key(*key)) || is_of_wait()
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

impl NodeSide {
    /// The word for its status.
    pub fn word(&self) -> String {
        word(&self.status)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inspan_protocol::{NodeId, NodePath};
    use serde_json::json;

    use super::*;

    fn side<'a>(id: &'a str, trace: &'a Trace) -> ComparedSession<'a> {
        ComparedSession { id, flow: "f", state: "success", trace }
    }

    #[test]
    fn each_item_is_compared_with_itself() {
        let mut trace = Trace::default();
        for item in 0..12 {
            let path = NodePath::new(&format!("each[{item}]/say"));
            trace.nodes.entry(path).or_default().output = Some(Arc::new(json!(item)));
        }
        let comparison = Comparison::of([side("one", &trace), side("two", &trace)]);
        assert_eq!((comparison.nodes.len(), comparison.same), (12, true));
    }

    #[test]
    fn outputs_of_a_flow_are_compared_by_whatever_name() {
        let traces = [1, 2].map(|took| {
            let mut trace = Trace::default();
            trace.flow_outputs.get_or_insert_with(|| Arc::new(json!({ "waitedMs": took })));
            trace
        });
        let comparison = Comparison::of([side("one", &traces[0]), side("two", &traces[1])]);
        assert!(!comparison.same && comparison.outputs_difference.contains("waitedMs"), "{comparison:?}");
    }

    #[test]
    fn a_node_that_waited_when_its_session_ended_was_cancelled_and_the_session_says_how_long_it_took() {
        let events = [
            (0, "", json!({ "type": "channel:registered", "name": "console" })),
            (1, "", json!({ "type": "harness:start", "name": "f" })),
            (
                1,
                "a",
                json!({ "type": "task:start", "taskId": "a", "nodeType": "exec", "attempt": 1, "path": "a" }),
            ),
            (
                2,
                "a",
                json!({ "type": "task:failed", "taskId": "a", "willRetry": true,
                "error": { "_tag": "RequestError", "code": "PROCESS", "message": "exit 1", "retryable": true } }),
            ),
            (
                5,
                "",
                json!({ "type": "harness:complete", "success": false, "outcome": "failed", "durationMs": 3_990 }),
            ),
            (6, "", json!({ "type": "channel:unregistered", "name": "console" })),
        ];
        let log = (1..).zip(events).map(|(seq, (second, task, event))| {
            let mut context = json!({ "sessionId": "s" });
            if !task.is_empty() {
                context["task"] = json!(task);
            }
            let envelope = json!({ "v": 1, "id": "00000000-0000-7000-8000-000000000000", "seq": seq, "context": context,
                "timestamp": format!("2026-01-07T12:00:0{second}.000Z"), "event": event });
            Arc::new(serde_json::from_value(envelope).unwrap())
        });
        let log: Vec<_> = log.collect();
        let of = |events: usize| {
            let trace = Trace::of(&log[..events]);
            let comparison = Comparison::of([side("s", &trace), side("s", &trace)]);
            let node = comparison.nodes[0].sides[0].as_ref().map(|side| side.status);
            (node, comparison.sessions[0].duration_ms)
        };
        assert_eq!(of(4), (Some(NodeStatus::Waiting), 1_000));
        assert_eq!(of(6), (Some(NodeStatus::Cancelled), 3_990));
    }

    #[test]
    fn what_the_flows_give_counts_without_the_measures_of_agents_and_waits_in_it() {
        let of = |text: &str, turns: u64| {
            let agent = json!({ "text": text, "numTurns": turns, "stopReason": "complete", "usage": {}, "costUsd": 0.1 * turns as f64 });
            let waits = json!([{ "waitedMs": turns }, { "waitedMs": turns, "event": { "text": text } }]);
            let outputs = json!({ "all": [agent], "mine": { "usage": text }, "waits": waits });
            let mut trace = Trace::default();
            trace.flow_outputs = Some(Arc::new(outputs));
            trace
        };
        let compare = |one: &Trace, two: &Trace| Comparison::of([side("one", one), side("two", two)]);
        assert!(compare(&of("a", 1), &of("a", 2)).same);
        let differs = compare(&of("a", 1), &of("b", 1));
        assert!(!differs.same);
        let changed: Vec<&str> =
            differs.outputs_difference.lines().filter(|line| line.starts_with(['-', '+'])).collect();
        assert_eq!(changed.len(), 8, "{changed:?}");
    }

    #[test]
    fn the_output_of_the_newest_pass_counts() {
        let node = NodePath::root(&NodeId::new("review").unwrap());
        let [one, other] = ["good", "bad"].map(|newest| {
            let mut trace = Trace::default();
            for (pass, output) in [(1, "first"), (9, "ninth"), (10, newest)] {
                trace.nodes.entry(node.with_pass(pass)).or_default().output = Some(Arc::new(json!(output)));
            }
            trace
        });
        let comparison = Comparison::of([side("one", &one), side("two", &other)]);
        let expected = "--- one\n+++ two\n@@ -1 +1 @@\n-good\n+bad\n";
        assert_eq!((comparison.nodes[0].output_difference.as_str(), comparison.same), (expected, false));
    }
}
