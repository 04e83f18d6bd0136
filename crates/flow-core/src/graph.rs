//! A compiled flow: immutable, every name resolved to an index, every template and condition parsed.
//! The compiler makes one; the scheduler runs it.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use inspan_protocol::{NodeId, NodePath};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

mod policy;

pub use policy::{NodePolicy, OnFailure, Retry, RetryOn};

pub use crate::ids::{BodyIx, EdgeIx, FrameIx, NodeIx, TaskRef};
pub(crate) use crate::node::Occupies;
use crate::{
    expr::{Condition, Template},
    node::NodeKind,
    source::FlowSource,
};

/// A compiled flow; the default is one without nodes.
#[derive(Debug)]
pub struct Graph {
    /// The flow's name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The author's version of it.
    pub version: Option<String>,
    /// SHA-256 over everything the author wrote: the flow's text, the files that it includes, the changes for a run.
    pub hash: String,
    /// All of that, to be stored with each session.
    pub source: Arc<FlowSource>,
    /// The folder of the flow's file: relative paths start here.
    pub folder: PathBuf,
    /// The name of the flow's phase.
    pub phase: String,
    /// Defaults of the flow's input.
    pub input: Map<String, Value>,
    /// The schema that the input must fit.
    pub input_schema: Option<Value>,
    /// The keys of the input that templates use for certain, each with what uses it.
    pub(crate) needs: BTreeMap<String, String>,
    /// The flow's state at the start.
    pub state: Map<String, Value>,
    /// The environment variables whose values are secrets, because the flow or another one that it runs names them.
    pub secrets: Vec<String>,
    /// The schema that the flow's outputs must fit.
    pub output_schema: Option<Value>,
    /// The places of the only nodes that are to run; empty if all are.
    pub only: Vec<NodePath>,
    /// The flow's own nodes and edges, then those of each node that runs a body.
    pub bodies: Vec<Body>,
}

impl Graph {
    /// The flow's own nodes and edges.
    pub fn flow(&self) -> &Body {
        &self.bodies[0]
    }

    /// Whether a stop of a session may start nodes of the flow: some edge fires however its source ends.
    pub fn cleans_up(&self) -> bool {
        self.bodies.iter().any(|body| body.edges_that_clean_up().next().is_some())
    }

    /// The JSON Schema of the flow's input: the one it states with its defaults, else one made of its defaults and of
    /// what its nodes use. What has a default is not required.
    pub fn described_input(&self) -> Value {
        if let Some(schema) = &self.input_schema {
            return with_defaults(schema.clone(), &self.input);
        }
        let mut properties = Map::new();
        for (key, default) in &self.input {
            let kind = match default {
                Value::Null => None,
                Value::Bool(_) => Some("boolean"),
                Value::Number(_) => Some("number"),
                Value::String(_) => Some("string"),
                Value::Array(_) => Some("array"),
                Value::Object(_) => Some("object"),
            };
            let mut property = json!({ "default": default });
            if let Some(kind) = kind {
                property["type"] = json!(kind);
            }
            properties.insert(key.clone(), property);
        }
        let required: Vec<&String> = self.needs.keys().filter(|key| !self.input.contains_key(*key)).collect();
        for key in &required {
            let description = format!("used by {}", self.needs[*key]);
            properties.insert((*key).clone(), json!({ "description": description }));
        }
        json!({ "type": "object", "properties": properties, "required": required })
    }

    /// The body at an index that came from this graph.
    pub fn body(&self, body: BodyIx) -> &Body {
        &self.bodies[body.0 as usize]
    }
}

fn with_defaults(mut schema: Value, defaults: &Map<String, Value>) -> Value {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (key, default) in defaults {
            if let Some(Value::Object(property)) = properties.get_mut(key) {
                property.insert("default".to_owned(), default.clone());
            }
        }
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|key| key.as_str().is_none_or(|key| !defaults.contains_key(key)));
    }
    schema
}

impl Default for Graph {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: None,
            version: None,
            hash: String::new(),
            source: Arc::default(),
            folder: PathBuf::new(),
            phase: String::new(),
            input: Map::new(),
            input_schema: None,
            needs: BTreeMap::new(),
            state: Map::new(),
            secrets: Vec::new(),
            output_schema: None,
            only: Vec::new(),
            bodies: vec![Body::default()],
        }
    }
}

/// Nodes and edges that run together in one frame: those of the flow, or those under the `body` of a node.
#[derive(Debug, Default)]
pub struct Body {
    /// The policy of each frame; of the flow's body, that of the flow.
    pub policy: FlowPolicy,
    /// What a frame gives; the output of every node by its id if absent.
    pub outputs: Option<Template>,
    /// The flow that it is, if it does not see what is around it.
    pub subflow: Option<Subflow>,
    /// The environment variables with keys that its programs may see: those that its own file names.
    pub secrets: Arc<[String]>,
    /// The nodes, in the author's order.
    pub nodes: Vec<Node>,
    /// The edges: those written first, then those from `dependsOn`.
    pub edges: Vec<Edge>,
    /// The edges that lead back.
    pub(crate) loops: Vec<EdgeIx>,
    pub(crate) index: HashMap<NodeId, NodeIx>,
}

impl Body {
    /// The node at an index that came from this body.
    pub fn node(&self, node: NodeIx) -> &Node {
        &self.nodes[node.0 as usize]
    }

    /// The edge at an index that came from this body.
    pub fn edge(&self, edge: EdgeIx) -> &Edge {
        &self.edges[edge.0 as usize]
    }

    /// The node with this id.
    pub fn find(&self, id: &str) -> Option<NodeIx> {
        self.index.get(id).copied()
    }
}

/// What a body has that is a flow by itself.
#[derive(Debug)]
pub struct Subflow {
    /// The flow's name.
    pub name: String,
    /// Its own `state`.
    pub state: Value,
    /// Defaults of its input.
    pub input: Map<String, Value>,
    /// The schema that its input must fit.
    pub input_schema: Option<Value>,
    /// The schema that its outputs must fit.
    pub output_schema: Option<Value>,
}

/// What a node runs in frames.
#[derive(Debug)]
pub struct Frames {
    /// What each frame runs.
    pub body: BodyIx,
    /// How many frames there are, and in which order.
    pub kind: FramesKind,
}

/// How often a node runs its body.
#[derive(Debug)]
pub enum FramesKind {
    /// `control.foreach`: once for each item.
    Foreach {
        /// The name of the item in the body.
        item: String,
        /// What a failed frame does to the others.
        on_item_error: OnItemError,
        /// What identifies an item when a session is resumed with another list; evaluated with the item's names.
        key: Option<Template>,
    },
    /// `control.loop`: again and again.
    Loop {
        /// Asked before a frame; sees `previous` and `passes`.
        while_holds: Option<Condition>,
        /// Asked after a frame; sees the outputs of its nodes.
        until: Option<Condition>,
        /// How many frames there may be.
        max_iterations: u32,
        /// What happens when one more would begin.
        on_exhausted: OnExhausted,
    },
    /// `control.subflow`: once.
    Subflow {
        /// How deep the flow may call itself.
        max_depth: Option<u32>,
    },
    /// A node of a pack: once. Its input is that of the flow, and what the flow gives is its output.
    Pack,
}

/// What a failed frame of a foreach does to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnItemError {
    /// What runs is cancelled, and the node fails.
    #[default]
    Fail,
    /// No other frame begins; the node succeeds with the results so far.
    Stop,
    /// All frames run; the node succeeds.
    Continue,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its type, as registered.
    pub node_type: Arc<str>,
    /// The program that its agent is, where each node of its type names one.
    pub program: Option<Arc<str>>,
    /// Its input, with prompt and schema files already included in.
    pub input: Template,
    /// Whether it runs at all.
    pub when: Option<Condition>,
    /// What is done about time and failure; nodes that say nothing of it share one.
    pub policy: Arc<NodePolicy>,
    /// Its effects.
    pub effects: Effects,
    /// The pool of machines that it runs on, where sessions run on several.
    pub pool: Option<Arc<str>>,
    /// The conversation that it continues or branches.
    pub session: Option<NodeSession>,
    /// What sort of work it is.
    pub kind: NodeKind,
    /// How its incoming edges make it ready.
    pub join: Join,
    /// Whether it counts against `maxConcurrency`.
    pub occupies: Occupies,
    /// Edges into it that close no cycle.
    pub incoming: Vec<EdgeIx>,
    /// Edges out of it that close no cycle.
    pub outgoing: Vec<EdgeIx>,
    /// Edges out of it that close a cycle: those of inner loops first, then in the author's order.
    pub loops: Vec<EdgeIx>,
    /// The nodes of the loops that lead back to it, in the order of the graph; empty if none does.
    pub loop_nodes: Arc<[NodeIx]>,
    /// What it runs in frames, for a node of the kind [`NodeKind::Frames`].
    pub frames: Option<Box<Frames>>,
    /// The agents that may work on it, if there are several.
    pub agents: Option<Box<Agents>>,
}

impl Node {
    /// Whether it ends although it cleans up, if a stop comes then: it may cost money, or waits for a person or a time.
    pub(crate) fn ends_at_stop(&self) -> bool {
        self.kind.may_cost() || self.occupies == Occupies::Nothing
    }

    /// What decides whose conversations its agent can continue.
    pub(crate) fn provider(&self) -> (&str, Option<&str>) {
        (&self.node_type, self.program.as_deref())
    }

    /// The node as it is with one of its agents, by the place in [`Agents::names`].
    pub(crate) fn with_agent(&self, agent: u32) -> &Self {
        let others = self.agents.as_ref().map(|agents| &agents.others);
        agent.checked_sub(1).and_then(|at| others?.get(at as usize)).unwrap_or(self)
    }
}

/// Whether an agent can continue a conversation of another. Each is a type with the program that its node names, if it is
/// known: `agent.run` may run any, and another program has other conversations.
pub(crate) fn can_continue(source: (&str, Option<&str>), node: (&str, Option<&str>)) -> bool {
    let is_same = source.0 == node.0 || [source.0, node.0].contains(&"agent.run");
    is_same && source.1.zip(node.1).is_none_or(|(source, own)| source == own)
}

/// The agents that may work on a node.
#[derive(Debug)]
pub struct Agents {
    /// Their names; the first is that of the node itself.
    pub names: Vec<String>,
    /// How many of them may work first; the rest only take over.
    pub chosen: usize,
    /// The node as it is with each of the others. Of these only what an agent says counts.
    pub others: Vec<Node>,
    /// Names the one that works first; the node's own if absent.
    pub choice: Option<Template>,
    /// Those that take over from the one before, in their order.
    pub fallback: Vec<Fallback>,
}

impl Agents {
    /// The names of those that may work first.
    pub fn chosen(&self) -> &[String] {
        self.names.get(..self.chosen).unwrap_or(&self.names)
    }

    /// The place of a name.
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.names.iter().position(|known| known == name).and_then(|at| u32::try_from(at).ok())
    }

    /// The name of the agent at a place.
    pub fn name(&self, agent: u32) -> &str {
        self.names.get(agent as usize).map_or("", String::as_str)
    }
}

/// An agent that takes over from the one before.
#[derive(Debug)]
pub struct Fallback {
    /// Its place in [`Agents::names`].
    pub agent: u32,
    /// Whether it takes over although the one before succeeded; after a failure it always does.
    pub when: Option<Condition>,
}

/// The conversation that an agent continues or branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSession {
    /// How many bodies further out the node is whose conversation it is.
    pub depth: u32,
    /// That node.
    pub node: NodeIx,
    /// What the agent does with it.
    pub mode: SessionMode,
    /// Whether the agent can branch conversations.
    pub can_branch: bool,
}

/// What an agent does with a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionMode {
    /// Continues it.
    #[default]
    Continue,
    /// Branches it: what it holds so far is known to the branch, and the conversation itself stays as it is.
    Fork,
}

/// How incoming edges make a node ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// All are resolved and at least one fired.
    #[default]
    Resolved,
    /// All fired; one that does not skips the node.
    All,
    /// The first that fires.
    Any,
}

/// What a node changes outside of Inspan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Effects {
    /// Nothing.
    None,
    /// Files of the workspace.
    #[default]
    Workspace,
    /// Something that cannot be taken back; never run again without asking.
    External,
}

/// One edge.
#[derive(Debug)]
pub struct Edge {
    /// The node it leaves.
    pub from: NodeIx,
    /// The node it enters.
    pub to: NodeIx,
    /// After which ends of its source it may fire.
    pub on: EdgeOn,
    /// Whether it fires when its source has ended so.
    pub when: Option<Condition>,
    /// Set if it closes a cycle.
    pub cycle: Option<Cycle>,
    /// The loop edges that must not fire in this pass before it is resolved: those of the bodies that it leaves.
    pub leaves: Vec<EdgeIx>,
}

/// After which ends of its source an edge may fire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EdgeOn {
    /// The source completed.
    #[default]
    Success,
    /// The source failed; the edge handles the failure.
    Failure,
    /// The source was skipped.
    Skipped,
    /// The source ended in any way; also while the flow is failing or is being stopped.
    Any,
}

/// What an edge that closes a cycle carries.
#[derive(Debug, Default)]
pub struct Cycle {
    /// How often it may fire.
    pub max_iterations: u32,
    /// What happens when it would fire once more.
    pub on_exhausted: OnExhausted,
    /// The nodes that run again: all on a path from its target to its source, paths over inner loops included.
    pub body: Arc<[NodeIx]>,
    /// Those of them on a path without any loop edge: what older versions sent back.
    pub(crate) direct: Vec<NodeIx>,
    /// The nodes that must have ended, or be unable to start, before it fires: its body, and the bodies of loops
    /// that overlap it.
    pub(crate) quiet: Vec<NodeIx>,
    /// The loop edges whose counts start again when it fires.
    pub(crate) inner: Vec<EdgeIx>,
    /// Of several loop edges that would fire, the one with the least rank does.
    pub(crate) rank: u32,
    /// The sources of the edges that wait for it.
    pub(crate) releases: Vec<NodeIx>,
}

/// What happens when a loop has used up its iterations and would go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnExhausted {
    /// The flow fails, naming the loop.
    #[default]
    Fail,
    /// The loop is left as if its condition did not hold.
    Continue,
}

/// The flow's policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowPolicy {
    /// What an unhandled failure does to the rest.
    pub fail_fast: FailFast,
    /// How many attempts may run at once; no limit if absent.
    pub max_concurrency: Option<u32>,
    /// How long the whole may take, pauses and the time between two processes aside.
    pub timeout: Option<Duration>,
    /// What the whole may cost.
    pub budget: Option<Budget>,
    /// The forecast in US dollars above which a person confirms a run first; of the flow alone, and not of a body.
    pub confirm_above: Option<f64>,
}

/// What may be spent: at least one of the two is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// In US dollars.
    pub usd: Option<f64>,
    /// Tokens of all kinds.
    pub tokens: Option<u64>,
    /// What is done about a turn whose price or tokens are unknown.
    pub on_unknown: OnUnknown,
    /// What is done once it is used up.
    pub on_exceeded: OnExceeded,
}

/// What is done when a budget is used up and an agent would spend more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnExceeded {
    /// What does not spend runs to its end, then the session pauses; it can be resumed with a larger budget.
    #[default]
    Pause,
    /// The flow ends, or the node fails.
    Fail,
}

/// What is done about a turn whose price, or whose tokens, are unknown, where there is a budget in that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnUnknown {
    /// It is reported in the log and does not count.
    #[default]
    Warn,
    /// The budget counts as used up.
    Stop,
}

/// What is done when a vendor's usage limit is hit whose end is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnLimit {
    /// It is waited out; no attempt is used up.
    #[default]
    Wait,
    /// The node fails.
    Fail,
    /// The next agent under `fallback` takes over; without one it is waited out.
    Fallback,
}

/// What an unhandled failure does to the rest of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailFast {
    /// What runs is cancelled and the flow fails.
    #[default]
    On,
    /// What does not depend on the failure continues, and the outcome is `partial`.
    Off,
}
