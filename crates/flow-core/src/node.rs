//! What the compiler and the scheduler know about a node type. The trait `NodeType` of `inspan-flow` runs
//! an attempt.

use std::sync::Arc;

use inspan_protocol::{AgentError, InputProblem, ProviderCapabilities};
use serde_json::{Value, json};

use crate::graph::Effects;

/// What a node type is: its name, its schemas, and the output if that takes no waiting.
pub trait DescribeNode: Send + Sync + 'static {
    /// Its name, schemas and nature.
    fn describe(&self) -> NodeTypeInfo;

    /// Its name alone, for types whose description takes work.
    fn name(&self) -> Arc<str> {
        self.describe().name
    }

    /// The JSON Schema of the input where it depends on the input itself, as written by the author.
    fn input_schema_for(&self, _input: &Value) -> Option<Value> {
        None
    }

    /// The JSON Schema of the output where it depends on the input, as written by the author: a text in it may be a
    /// template. Only the compiler asks for it.
    fn output_schema_for(&self, _input: &Value) -> Option<Value> {
        None
    }

    /// What the agent behind this input can do, for a node of the kind [`NodeKind::Agent`].
    fn capabilities_for(&self, _input: &Value) -> Option<ProviderCapabilities> {
        None
    }

    /// The program that the agent behind this input is, where each node names one and the input says which.
    fn program_for(&self, _input: &Value) -> Option<String> {
        None
    }

    /// What is wrong with an input that its schema cannot express, as its author wrote it: a text in it may be a
    /// template.
    fn check_input(&self, _input: &Value) -> Vec<InputProblem> {
        Vec::new()
    }

    /// The effects of the node with this input, as its author wrote it, unless the node sets its effects itself.
    fn effects_for(&self, _input: &Value) -> Effects {
        Effects::default()
    }

    /// The names that the input's `provider` may take, for a type that has such an option.
    fn providers(&self) -> Option<Vec<String>> {
        None
    }

    /// Computes the output at once, if the node never waits; else gives the input back, to be run.
    fn compute(&self, input: Value) -> Computed {
        Computed::Runs(input)
    }
}

/// What [`DescribeNode::compute`] gives.
#[derive(Debug)]
pub enum Computed {
    /// The node never waits, and this is its end.
    Done(Result<Value, AgentError>),
    /// The node must be run with this input.
    Runs(Value),
}

/// What is known of a node type.
#[derive(Clone, Debug)]
pub struct NodeTypeInfo {
    /// The name in a flow's `type:`.
    pub name: Arc<str>,
    /// The pack it belongs to: `core`, `control`, `human`, `agents`, `io`, …, or one that a flow names.
    pub pack: Arc<str>,
    /// One line for people.
    pub help: String,
    /// The JSON Schema of its input. Three keywords of Inspan steer the compiler: a value under `"x-when": true`
    /// is a condition and resolves to true or false; one under `"x-raw": true` stays as it is written, and
    /// what looks like a template stays text; a text under `"x-time": true` is a time such as `30s`.
    pub input: Value,
    /// The JSON Schema of its output. A field under `"x-same": "/value"` is the same as that part of the
    /// input; one under `"x-needs": "`parse`"` is there only if that is set.
    pub output: Value,
    /// What sort of work it is.
    pub kind: NodeKind,
    /// Whether an attempt counts against `maxConcurrency`.
    pub occupies: Occupies,
}

impl NodeTypeInfo {
    /// A type that takes and gives any object, works, and says nothing of itself to people.
    pub fn with_open_schemas(name: &str, pack: &str, kind: NodeKind) -> Self {
        let any = json!({ "type": "object" });
        Self {
            name: name.into(),
            pack: pack.into(),
            help: String::new(),
            input: any.clone(),
            output: any,
            kind,
            occupies: Occupies::Slot,
        }
    }
}

/// What sort of work a node does, as far as the compiler must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeKind {
    /// Anything that is nothing else.
    Plain,
    /// Joins branches by its input's `mode`.
    Merge,
    /// Runs an agent: `session:` is allowed, retries are for retryable failures by default.
    Agent,
    /// Runs its `body` in frames; the scheduler runs it.
    Frames,
    /// Ends its frame, or the flow, with success.
    End,
}

impl NodeKind {
    /// Whether a node of this kind works on a machine: it neither steers the flow nor only waits.
    pub fn needs_machine(self, occupies: Occupies) -> bool {
        matches!(self, Self::Plain | Self::Agent) && occupies == Occupies::Slot
    }

    /// Whether it may cost money: it is an agent, or runs nodes that may be agents.
    pub(crate) fn may_cost(self) -> bool {
        matches!(self, Self::Agent | Self::Frames)
    }
}

/// Whether a node's attempt takes one of the flow's places for work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occupies {
    /// It works.
    #[default]
    Slot,
    /// It only waits for a person or a time.
    Nothing,
}
