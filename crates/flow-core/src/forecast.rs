//! What a run would do, before it does it: how often each node runs, with every fan-out multiplied out, and what that
//! costs and takes, as far as earlier sessions of the flow show.

mod agents;
mod estimate;
mod history;

use std::{collections::BTreeSet, sync::Arc};

use inspan_protocol::NodePath;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use estimate::Estimate;
pub use history::History;

use crate::{
    expr::StaticValue,
    graph::{Body, BodyIx, EdgeOn, Frames, FramesKind, Graph, Join, Node, NodeIx, OnFailure},
    ids::in_order,
    node::NodeKind,
    schedule::{Selected, product},
};
use history::{NodeRun, Runs};

/// What a run would do.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// The flow.
    pub flow: String,
    /// How many earlier sessions it is based on.
    pub sessions: u32,
    /// Each node in the order of the flow, the nodes of a body after the node that runs it.
    pub nodes: Vec<NodeForecast>,
    /// What all nodes cost in US dollars.
    pub cost_usd: Estimate,
    /// How long the whole takes, in milliseconds: nodes that do not wait for each other run at once.
    pub duration_ms: Estimate,
    /// What is not known, in words.
    pub unknown: Vec<String>,
}

/// What one node would do.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeForecast {
    /// Its place in the file: `scan/review`.
    pub path: String,
    /// Its type.
    #[serde(rename = "type")]
    pub node_type: Arc<str>,
    /// Whether it runs.
    pub action: Expected,
    /// How often it runs in all.
    pub times: Estimate,
    /// How many frames it runs each time, if it runs frames.
    pub frames: Option<FrameCount>,
    /// What cost and time are based on.
    pub based_on: Basis,
    /// How many earlier runs that are.
    pub runs: u32,
    /// What one run costs in US dollars; absent for a node that is not an agent.
    pub cost_usd_each: Option<Estimate>,
    /// How long one run takes, in milliseconds; absent for a node that runs frames.
    pub duration_ms_each: Option<Estimate>,
    /// What all of its runs cost in US dollars, those in its frames included.
    pub cost_usd: Estimate,
}

/// What is expected of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Expected {
    /// It runs.
    #[default]
    Runs,
    /// Whether it runs depends on a condition.
    MayRun,
    /// Its output is reused.
    Reused,
    /// It is not among the nodes that were asked for.
    NotRun,
}

/// What cost and time of a node are based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Basis {
    /// Earlier runs of this node.
    Node,
    /// Earlier runs of nodes of the same type, with the same provider and model, in this flow.
    Flow,
    /// Its type: it takes no time worth counting, or says itself how long it takes.
    Type,
    /// Nothing: no completed run is known.
    Unknown,
}

/// How many frames a node runs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrameCount {
    /// What a frame is: an item, a pass, or the run of a subflow.
    pub of: FrameWord,
    /// Where the number comes from.
    pub from: CountSource,
    /// How many.
    pub count: Estimate,
}

/// What a frame of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FrameWord {
    /// An item of a foreach.
    Item,
    /// A pass of a loop.
    Pass,
    /// The run of a subflow.
    Subflow,
}

/// Where the number of frames comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CountSource {
    /// The flow and its input.
    Flow,
    /// Earlier sessions.
    History,
    /// `maxIterations` as the most, and nothing else.
    Limit,
    /// Nowhere: it is unknown.
    Unknown,
}

/// What of a flow is not run, by places in the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotRun {
    /// Nodes whose outputs are reused.
    pub reused: BTreeSet<String>,
    /// Nodes that are not among those that were asked for.
    pub omitted: BTreeSet<String>,
}

/// Computes what a run of a flow would do with this input.
pub fn forecast(graph: &Graph, input: &Map<String, Value>, history: &History, not_run: &NotRun) -> Forecast {
    let flow = json!({ "name": graph.name, "input": input });
    let state = graph.state.clone().into();
    let mut work =
        Work { graph, flow: &flow, state: &state, history, not_run, nodes: Vec::new(), unknown: Vec::new() };
    let limit = graph.flow().policy.max_concurrency;
    let whole = work.body(BodyIx::default(), "", Estimate::ONE, &mut Vec::new());
    let duration_ms = whole.longest.with(whole.work, |longest, work| match limit {
        Some(limit) => longest.max(work / f64::from(limit)),
        None => longest,
    });
    Forecast {
        flow: graph.name.clone(),
        sessions: history.sessions,
        nodes: work.nodes,
        cost_usd: whole.cost,
        duration_ms,
        unknown: work.unknown,
    }
}

/// What one frame of a body amounts to.
#[derive(Clone, Copy, Debug)]
struct Amount {
    cost: Estimate,
    /// The time of all its nodes, one after the other.
    work: Estimate,
    /// The time of the longest chain of nodes that wait for each other.
    longest: Estimate,
}

impl Amount {
    const NOTHING: Self = Self { cost: Estimate::ZERO, work: Estimate::ZERO, longest: Estimate::ZERO };
}

struct Work<'a> {
    graph: &'a Graph,
    flow: &'a Value,
    state: &'a Value,
    history: &'a History,
    not_run: &'a NotRun,
    nodes: Vec<NodeForecast>,
    unknown: Vec<String>,
}

impl Work<'_> {
    /// Adds the nodes of a body whose frames are run so often; gives the amount of one of them.
    fn body(&mut self, ix: BodyIx, prefix: &str, frames: Estimate, around: &mut Vec<BodyIx>) -> Amount {
        let graph = self.graph;
        let body = graph.body(ix);
        let order = order(body);
        let certain = certain(body, &order);
        around.push(ix);
        let mut amounts = Vec::with_capacity(body.nodes.len());
        for (at, node) in body.nodes.iter().enumerate() {
            let place = format!("{prefix}{}", node.id);
            let is_asked_for = self.graph.only.contains(&NodePath::new(&place));
            let action = self.action(&place, certain[at] || is_asked_for);
            let within = self.within(body, NodeIx(at as u32), &place, action);
            let times = within * frames;
            let one = match &node.frames {
                Some(own) => self.frames(node, own, &place, action, times, around),
                None => self.leaf(node, &place, action, times, around),
            };
            amounts.push(Amount {
                cost: one.cost * within,
                work: one.work * within,
                longest: one.longest * within,
            });
        }
        around.pop();
        Amount {
            cost: amounts.iter().map(|amount| amount.cost).sum(),
            work: amounts.iter().map(|amount| amount.work).sum(),
            longest: longest(body, &order, &amounts),
        }
    }

    fn action(&self, place: &str, is_certain: bool) -> Expected {
        // What is reused or left out is so with all that runs in it.
        let within = |places: &BTreeSet<String>| {
            let mut ends = place.match_indices('/').map(|(at, _)| at).chain([place.len()]);
            ends.any(|end| places.contains(&place[..end]))
        };
        match (within(&self.not_run.omitted), within(&self.not_run.reused)) {
            (true, _) => Expected::NotRun,
            (_, true) => Expected::Reused,
            _ if is_certain => Expected::Runs,
            _ => Expected::MayRun,
        }
    }

    /// How often a node runs within one frame of its body.
    fn within(&self, body: &Body, node: NodeIx, place: &str, action: Expected) -> Estimate {
        if matches!(action, Expected::Reused | Expected::NotRun) {
            return Estimate::ZERO;
        }
        let (only, path) = (&self.graph.only, NodePath::new(place));
        // No edge leads back to it.
        if only.contains(&path) {
            return Estimate::ONE;
        }
        let cycles = body.edges.iter().filter_map(|edge| edge.cycle.as_ref());
        let cycles = cycles.filter(|cycle| cycle.body.contains(&node));
        let most: f64 = cycles.map(|cycle| f64::from(cycle.max_iterations) + 1.0).product();
        let low = if action == Expected::Runs { 1.0 } else { 0.0 };
        // That it often did not run is no reason to expect less where something in it was asked for.
        let least = if only.iter().any(|asked| asked.is_within(&path)) { 1.0 } else { low };
        let expected = match self.history.within(place) {
            Some((_, mean, _)) => Some(mean.clamp(least, most)),
            None => (most <= 1.0).then_some(1.0),
        };
        Estimate { low, expected, high: Some(most) }
    }

    /// A node that runs no frames: the amount of one run.
    fn leaf(
        &mut self,
        node: &Node,
        place: &str,
        action: Expected,
        times: Estimate,
        around: &[BodyIx],
    ) -> Amount {
        let spends = node.kind == NodeKind::Agent;
        let agents = self.agents(node, around);
        let (based_on, runs) = self.samples(node, place, &agents.all());
        let priced = runs.iter().all(|run| !run.unpriced);
        let cost = if spends { self.cost(node, place, &agents) } else { Estimate::ZERO };
        let time = Estimate::of(runs.iter().map(|run| run.time.as_millis() as f64));
        let (based_on, time) = match (time, own_time(node)) {
            (Some(time), _) => (based_on, time),
            (None, Some(time)) => (Basis::Type, time),
            (None, None) => (Basis::Unknown, Estimate::UNKNOWN),
        };
        let runs = runs.len() as u32;
        if !times.is_zero() {
            let why = match (runs, priced) {
                (0, _) => "no completed run is known",
                (_, false) => "its provider reports none",
                (_, true) => "not all of its agents have worked on it yet",
            };
            if spends && cost.expected.is_none() {
                self.unknown.push(format!("what `{place}` costs: {why}"));
            }
            if time.expected.is_none() {
                self.unknown.push(format!("how long `{place}` takes: no completed run is known"));
            }
            if times.expected.is_none() && node.frames.is_none() && spends {
                self.unknown.push(format!("how often `{place}` runs"));
            }
        }
        self.nodes.push(NodeForecast {
            path: place.to_owned(),
            node_type: node.node_type.clone(),
            action,
            times,
            frames: None,
            based_on,
            runs,
            cost_usd_each: spends.then_some(cost),
            duration_ms_each: Some(time),
            cost_usd: cost * times,
        });
        Amount { cost, work: time, longest: time }
    }

    /// Earlier runs that show what a run of a node costs and takes, if any of these agents ended the work: its own, else those of
    /// nodes like it.
    fn samples(&self, node: &Node, place: &str, agents: &[u32]) -> (Basis, Vec<&NodeRun>) {
        let fits = |run: &&NodeRun| {
            agents
                .iter()
                .map(|agent| node.with_agent(*agent))
                .any(|node| run.node_type == node.node_type && fits_agent(node, run))
        };
        let own = self.history.nodes.get(place);
        let own: Vec<_> = own.into_iter().flat_map(|runs| &runs.all).filter(fits).collect();
        if !own.is_empty() {
            return (Basis::Node, own);
        }
        if own_time(node).is_some() {
            return (Basis::Type, Vec::new());
        }
        let all: Vec<_> = self.history.nodes.values().flat_map(|runs| &runs.all).filter(fits).collect();
        (if all.is_empty() { Basis::Unknown } else { Basis::Flow }, all)
    }

    /// A node that runs frames, and what runs in them: the amount of one run of it.
    fn frames(
        &mut self,
        node: &Node,
        frames: &Frames,
        place: &str,
        action: Expected,
        times: Estimate,
        around: &mut Vec<BodyIx>,
    ) -> Amount {
        let count = self.frame_count(node, frames, place, around);
        if count.from == CountSource::Unknown && !times.is_zero() {
            self.unknown.push(format!("how many items `{place}` has"));
        }
        let calls_itself = around.contains(&frames.body);
        if calls_itself {
            self.unknown.push(format!("what `{place}` adds: it runs a flow that it is in"));
        }
        let at = self.nodes.len();
        self.nodes.push(NodeForecast {
            path: place.to_owned(),
            node_type: node.node_type.clone(),
            action,
            times,
            frames: Some(count.clone()),
            based_on: if count.from == CountSource::History { Basis::Node } else { Basis::Type },
            runs: self.history.nodes.get(place).map_or(0, |runs| runs.frames.len() as u32),
            cost_usd_each: None,
            duration_ms_each: None,
            cost_usd: Estimate::ZERO,
        });
        let count = count.count;
        let one = match calls_itself {
            true if action == Expected::Reused || action == Expected::NotRun => Amount::NOTHING,
            true => Amount { cost: Estimate::UNKNOWN, work: Estimate::UNKNOWN, longest: Estimate::UNKNOWN },
            false => self.body(frames.body, &format!("{place}/"), times * count, around),
        };
        let at_once = match (&frames.kind, node.input.part(&["maxConcurrency"])) {
            (FramesKind::Foreach { .. }, StaticValue::Known(most)) => most.as_f64(),
            // It is a template, and is not known before the node runs.
            (FramesKind::Foreach { .. }, StaticValue::Bound) => Some(1.0),
            (FramesKind::Foreach { .. }, StaticValue::Absent) => None,
            _ => Some(1.0),
        };
        let rounds = count.each(|count| match at_once {
            Some(at_once) => (count / at_once.max(1.0)).ceil(),
            None => count.min(1.0),
        });
        let cost = one.cost * count;
        self.nodes[at].cost_usd = cost * times;
        Amount { cost, work: one.work * count, longest: one.longest * rounds }
    }

    fn frame_count(&self, node: &Node, frames: &Frames, place: &str, around: &[BodyIx]) -> FrameCount {
        let known = self.history.nodes.get(place).map_or(&[][..], |runs: &Runs| &runs.frames);
        let known = Estimate::of(known.iter().map(|count| f64::from(*count)));
        let (of, from, count) = match &frames.kind {
            FramesKind::Subflow { .. } | FramesKind::Pack => {
                (FrameWord::Subflow, CountSource::Flow, Estimate::ONE)
            }
            FramesKind::Foreach { .. } => {
                let (from, count) = match (self.item_count(node, around), known) {
                    (Some(count), _) => (CountSource::Flow, Estimate::exactly(count as f64)),
                    (None, Some(known)) => (CountSource::History, known),
                    (None, None) => (CountSource::Unknown, Estimate::UNKNOWN),
                };
                (FrameWord::Item, from, count)
            }
            FramesKind::Loop { while_holds, max_iterations, .. } => {
                let low = if while_holds.is_some() { 0.0 } else { 1.0 };
                // Of a loop that is entered for a node in it there is one pass.
                let is_partial = Selected::of(&self.graph.only, &NodePath::new(place)).is_partial();
                let most = if is_partial { 1.0 } else { f64::from(*max_iterations) };
                let (from, expected) = match known.and_then(|known| known.expected) {
                    _ if is_partial => (CountSource::Flow, Some(1.0)),
                    Some(expected) => (CountSource::History, Some(expected.clamp(low, most))),
                    None => (CountSource::Limit, (most <= low).then_some(most)),
                };
                (FrameWord::Pass, from, Estimate { low, expected, high: Some(most) })
            }
        };
        FrameCount { of, from, count }
    }

    /// Whether what is in these bodies has an input that only the caller of a subflow gives.
    fn is_in_subflow(&self, around: &[BodyIx]) -> bool {
        around.iter().any(|body| self.graph.body(*body).subflow.is_some())
    }

    /// How many items a foreach has, if the flow and its input determine it.
    fn item_count(&self, node: &Node, around: &[BodyIx]) -> Option<usize> {
        let known = |key| match self.is_in_subflow(around) {
            true => match node.input.part(&[key]) {
                StaticValue::Known(value) => Some(value.clone()),
                _ => None,
            },
            false => node.input.known(key, self.flow, self.state),
        };
        match known("items") {
            Some(Value::Array(items)) => Some(items.len()),
            Some(Value::Object(entries)) => Some(entries.len()),
            _ => {
                let exclude = match node.input.part(&["exclude"]) {
                    StaticValue::Absent => None,
                    _ => Some(known("exclude")?),
                };
                product(&known("matrix")?, exclude.as_ref()).ok().map(|items| items.len())
            }
        }
    }
}

/// Whether an earlier run was that of the agent that a node names, as far as that is known.
fn fits_agent(node: &Node, run: &NodeRun) -> bool {
    let Some((provider, model)) = &run.agent else { return node.kind != NodeKind::Agent };
    let same = |part: StaticValue<'_>, was: &str| match part {
        StaticValue::Known(is) => is.as_str() == Some(was),
        StaticValue::Absent | StaticValue::Bound => true,
    };
    let model_fits = match (model, node.input.part(&["options", "model"])) {
        (Some(was), now) => same(now, was),
        (None, StaticValue::Known(_)) => false,
        (None, _) => true,
    };
    same(node.input.part(&["provider"]), provider) && model_fits
}

/// How long a node takes by its type, if that is known.
fn own_time(node: &Node) -> Option<Estimate> {
    match &*node.node_type {
        "control.wait" => match node.input.part(&["ms"]) {
            StaticValue::Known(ms) => ms.as_f64().map(Estimate::exactly),
            _ => None,
        },
        "echo" | "constant" | "condition.equals" | "data.parse" | "data.validate" => Some(Estimate::ZERO),
        other => other.starts_with("control.").then_some(Estimate::ZERO),
    }
}

/// The nodes, each after those whose edges lead to it; loop edges aside.
fn order(body: &Body) -> Vec<NodeIx> {
    let waits = body.nodes.iter().map(|node| node.incoming.len()).collect();
    in_order(waits, |ix| body.node(ix).outgoing.iter().map(|edge| body.edge(*edge).to))
}

/// The time of the longest chain of nodes, in an order in which each comes after those that it waits for.
fn longest(body: &Body, order: &[NodeIx], amounts: &[Amount]) -> Estimate {
    let mut ends = vec![Estimate::ZERO; body.nodes.len()];
    for ix in order {
        let before = body.node(*ix).incoming.iter().map(|edge| ends[body.edge(*edge).from.0 as usize]);
        let begins = before.fold(Estimate::ZERO, |one, other| one.with(other, f64::max));
        ends[ix.0 as usize] = begins + amounts[ix.0 as usize].longest;
    }
    ends.into_iter().fold(Estimate::ZERO, |one, other| one.with(other, f64::max))
}

/// Which nodes run in every frame that ends well: no condition prevents them from running.
fn certain(body: &Body, order: &[NodeIx]) -> Vec<bool> {
    let mut certain = vec![false; body.nodes.len()];
    for ix in order {
        let node = body.node(*ix);
        let fires = |edge: &crate::graph::EdgeIx| {
            let edge = body.edge(*edge);
            // The flow goes on without it if the failure of its source is handled.
            let may_fail = edge.on == EdgeOn::Success
                && body.handles_failure(edge.from)
                && body.node(edge.from).policy.on_failure != OnFailure::Continue;
            let is_free =
                edge.when.is_none() && !may_fail && matches!(edge.on, EdgeOn::Success | EdgeOn::Any);
            is_free && (certain[edge.from.0 as usize] || edge.on == EdgeOn::Any)
        };
        let mut edges = node.incoming.iter();
        let is_reached = match node.join {
            _ if node.incoming.is_empty() => true,
            Join::All => edges.all(fires),
            Join::Resolved | Join::Any => edges.any(fires),
        };
        certain[ix.0 as usize] = node.when.is_none() && is_reached;
    }
    certain
}

#[cfg(test)]
mod tests;
