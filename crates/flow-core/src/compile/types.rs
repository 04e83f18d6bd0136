//! Node types as the compiler needs them. Describing each once, and compiling its schema once, is the registry's.

use std::{collections::HashMap, sync::Arc};

use inspan_protocol::NodeId;
use jsonschema::Validator;
use serde_json::Value;

use super::input;
use crate::{
    catalog::{Described, NodeCatalog},
    diagnostic::{Code, Problem, Sink, did_you_mean},
    node::{DescribeNode, NodeTypeInfo},
    spec::{NodeSpec, Text},
};

/// The node types that a flow uses.
pub(super) struct Types<'a> {
    registry: &'a NodeCatalog,
    packs: Option<&'a [Text<'a>]>,
    known: HashMap<String, Arc<Known>>,
    schemas: HashMap<String, Schema>,
}

/// A node type.
pub(super) struct Known {
    described: Arc<Described>,
    pub(super) node_type: Arc<dyn DescribeNode>,
    is_marked: bool,
}

impl Known {
    pub(super) fn info(&self) -> &NodeTypeInfo {
        &self.described.info
    }

    /// The keys of its output, if its schema names them.
    pub(super) fn outputs(&self) -> Option<Arc<[String]>> {
        self.described.outputs.clone()
    }
}

/// A schema of an input.
#[derive(Clone)]
pub(super) enum Schema {
    /// The type's.
    Registered(Arc<Known>),
    /// One that depends on the input.
    Own(Arc<Own>),
}

pub(super) struct Own {
    json: Value,
    validator: Option<Validator>,
    is_marked: bool,
}

impl Schema {
    pub(super) fn json(&self) -> &Value {
        match self {
            Self::Registered(known) => &known.info().input,
            Self::Own(own) => &own.json,
        }
    }

    /// The schema, if it marks a value that is not read as others are. Most do not, and then no value need be looked
    /// up in it.
    pub(super) fn marked(&self) -> Option<&Value> {
        match self {
            Self::Registered(known) => known.is_marked,
            Self::Own(own) => own.is_marked,
        }
        .then_some(self.json())
    }

    /// None if the schema itself is broken, which is its maker's fault and not the author's.
    pub(super) fn validator(&self) -> Option<&Validator> {
        match self {
            Self::Registered(known) => known.described.input(),
            Self::Own(own) => own.validator.as_ref(),
        }
    }
}

impl<'a> Types<'a> {
    pub(super) fn new(registry: &'a NodeCatalog, packs: Option<&'a [Text<'a>]>) -> Self {
        Self { registry, packs, known: HashMap::new(), schemas: HashMap::new() }
    }

    /// The type that a node names, or a problem.
    pub(super) fn find(&mut self, node: &NodeSpec<'_>, sink: &mut Sink) -> Option<Arc<Known>> {
        let (name, span) = node.node_type()?;
        let key = || format!("nodes[{}].type", node.at);
        let Some(known) = self.get(name) else {
            let help = self
                .advice(name)
                .or_else(|| did_you_mean(name, self.registry.names()))
                .or_else(|| {
                    let agent = format!("{name}.agent");
                    self.registry.get(&agent).map(|_| format!("did you mean `{agent}`?"))
                })
                .or_else(|| Some("`inspan nodes` lists the node types".to_owned()));
            let message = format!("unknown node type `{name}`");
            let problem = Problem::error(Code::UnknownNodeType, span, message).help(help);
            sink.push(problem.node(node.id.as_ref()).key(key()));
            return None;
        };
        if let Some(packs) = self.packs
            && !packs.iter().any(|(pack, _)| *pack == known.info().pack)
        {
            let message =
                format!("`{name}` is in the pack `{}`, which `nodePacks` does not list", known.info().pack);
            let help = format!("add `{}` to `nodePacks`", known.info().pack);
            let problem = Problem::error(Code::PackNotListed, span, message).help(help);
            sink.push(problem.node(node.id.as_ref()).key(key()));
        }
        Some(known)
    }

    /// What a node type of other languages is here.
    fn advice(&self, name: &str) -> Option<String> {
        let name = name.to_lowercase();
        let (to, how) = match name.as_str() {
            "shell" | "bash" | "sh" | "command" | "cmd" | "run" | "script" | "program" | "process" => {
                ("exec", "`exec` runs a program: `input: { argv: [cargo, test] }`")
            }
            "agent" | "llm" | "ai" | "prompt" | "model" => {
                ("agent.run", "`agent.run` runs an agent, and so does `NAME.agent`, such as `claude.agent`")
            }
            "human" | "approval" | "approve" | "ask" | "input" | "confirm" | "gate" => {
                ("human.input", "`human.input` asks a person")
            }
            "http" | "http.request" | "fetch" | "curl" | "webhook" => {
                ("exec", "use `exec` to run a program such as `curl`")
            }
            "foreach" | "control.foreach" | "for" | "map" | "loop" | "control.loop" | "while" | "repeat"
            | "matrix" => (
                "control.merge",
                "to repeat nodes, add an edge that leads back, with `when` and `maxIterations`",
            ),
            "flow" | "flow.run" | "subflow" | "control.subflow" | "workflow" | "call" => {
                ("exec", "use `exec` to run another flow: `argv: [inspan, run, other.yaml, --json]`")
            }
            "if" | "condition" | "branch" => ("control.if", "`control.if`, or `when` on an edge, decides"),
            "switch" | "router" | "route" => ("control.switch", "did you mean `control.switch`?"),
            "wait" | "sleep" | "delay" => ("control.wait", "did you mean `control.wait`?"),
            "fail" | "error" | "throw" => ("control.fail", "did you mean `control.fail`?"),
            "merge" | "join" | "parallel" => (
                "control.merge",
                "`control.merge` joins branches; nodes without a path between them run in parallel",
            ),
            _ => return None,
        };
        self.registry.get(to).map(|_| how.to_owned())
    }

    /// The type of this name.
    pub(super) fn get(&mut self, name: &str) -> Option<Arc<Known>> {
        if let Some(known) = self.known.get(name) {
            return Some(known.clone());
        }
        let (node_type, described) = self.registry.find(name)?;
        let (node_type, described) = (node_type.clone(), described.clone());
        let is_marked = input::is_marked(&described.info.input);
        let known = Arc::new(Known { described, node_type, is_marked });
        self.known.insert(name.to_owned(), known.clone());
        Some(known)
    }

    /// The schema of a node's input, which may depend on the input.
    pub(super) fn schema(&mut self, known: &Arc<Known>, input: &Value) -> Schema {
        let Some(json) = known.node_type.input_schema_for(input) else {
            return Schema::Registered(known.clone());
        };
        let own = |json| {
            let (validator, is_marked) = (jsonschema::validator_for(&json).ok(), input::is_marked(&json));
            Schema::Own(Arc::new(Own { json, validator, is_marked }))
        };
        self.schemas.entry(json.to_string()).or_insert_with(|| own(json)).clone()
    }

    /// The kind of the node of this id, if its type is known.
    pub(super) fn kind_of(&mut self, node: &NodeSpec<'_>) -> Option<crate::NodeKind> {
        Some(self.get(node.node_type()?.0)?.info().kind)
    }
}

/// "node `review`", for a message.
pub(super) fn named(id: Option<&NodeId>) -> String {
    id.map_or_else(|| "the node".to_owned(), |id| format!("node `{id}`"))
}
