//! Node types as the compiler needs them: described once, each schema compiled once.

use std::sync::Arc;

use inspan_protocol::NodeId;
use jsonschema::Validator;
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::{
    diagnostic::{Code, Problem, Sink, did_you_mean},
    node::{NodeType, NodeTypeInfo},
    registry::NodeRegistry,
    spec::{NodeSpec, Text},
};

/// The node types that a flow uses.
pub(super) struct Types<'a> {
    registry: &'a NodeRegistry,
    packs: Option<&'a [Text<'a>]>,
    known: FxHashMap<String, Arc<Known>>,
    schemas: FxHashMap<String, Arc<Schema>>,
}

/// A node type.
pub(super) struct Known {
    pub(super) info: NodeTypeInfo,
    pub(super) node_type: Arc<dyn NodeType>,
    /// The keys of its output, if its schema names them.
    pub(super) outputs: Option<Arc<[String]>>,
    schema: Arc<Schema>,
}

/// A schema of an input.
pub(super) struct Schema {
    pub(super) json: Value,
    /// None if the schema itself is broken, which is its maker's fault and not the author's.
    pub(super) validator: Option<Validator>,
}

impl Schema {
    fn new(json: Value) -> Arc<Self> {
        let validator = jsonschema::validator_for(&json).ok();
        Arc::new(Self { json, validator })
    }
}

impl<'a> Types<'a> {
    pub(super) fn new(registry: &'a NodeRegistry, packs: Option<&'a [Text<'a>]>) -> Self {
        Self { registry, packs, known: FxHashMap::default(), schemas: FxHashMap::default() }
    }

    /// The type that a node names, or a problem.
    pub(super) fn find(&mut self, node: &NodeSpec<'_>, sink: &mut Sink) -> Option<Arc<Known>> {
        let (name, span) = node.node_type?;
        let key = format!("nodes[{}].type", node.at);
        let Some(known) = self.get(name) else {
            let help = did_you_mean(name, self.registry.names())
                .or_else(|| {
                    let agent = format!("{name}.agent");
                    self.registry.get(&agent).map(|_| format!("did you mean `{agent}`?"))
                })
                .or_else(|| Some("`inspan nodes` lists the node types".to_owned()));
            let message = format!("there is no node type `{name}`");
            let problem = Problem::error(Code::UnknownNodeType, span, message).help(help);
            sink.push(problem.node(node.id.as_ref()).key(key));
            return None;
        };
        if let Some(packs) = self.packs
            && !packs.iter().any(|(pack, _)| *pack == known.info.pack)
        {
            let message =
                format!("`{name}` belongs to the pack `{}`, which `nodePacks` leaves out", known.info.pack);
            let help = format!("add `{}` to `nodePacks`", known.info.pack);
            let problem = Problem::error(Code::PackNotListed, span, message).help(help);
            sink.push(problem.node(node.id.as_ref()).key(key));
        }
        Some(known)
    }

    /// The type of this name.
    pub(super) fn get(&mut self, name: &str) -> Option<Arc<Known>> {
        if let Some(known) = self.known.get(name) {
            return Some(known.clone());
        }
        let node_type = self.registry.get(name)?.clone();
        let info = node_type.describe();
        let schema = Schema::new(info.input.clone());
        let outputs = output_keys(&info.output);
        let known = Arc::new(Known { info, node_type, outputs, schema });
        self.known.insert(name.to_owned(), known.clone());
        Some(known)
    }

    /// The schema of a node's input, which may depend on the input.
    pub(super) fn schema(&mut self, known: &Known, input: &Value) -> Arc<Schema> {
        let Some(json) = known.node_type.input_schema_for(input) else { return known.schema.clone() };
        let text = json.to_string();
        self.schemas.entry(text).or_insert_with(|| Schema::new(json)).clone()
    }

    /// The kind of the node of this id, if its type is known.
    pub(super) fn kind_of(&mut self, node: &NodeSpec<'_>) -> Option<crate::NodeKind> {
        Some(self.get(node.node_type?.0)?.info.kind)
    }
}

fn output_keys(schema: &Value) -> Option<Arc<[String]>> {
    let open = schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
    let properties = schema.get("properties")?.as_object()?;
    // Any node may give the marker of an error that was handled.
    let keys = properties.keys().map(String::as_str).chain(["failed", "error"]);
    (!open && !properties.is_empty()).then(|| keys.map(str::to_owned).collect())
}

/// "node `review`", for a message.
pub(super) fn named(id: Option<&NodeId>) -> String {
    id.map_or_else(|| "the node".to_owned(), |id| format!("node `{id}`"))
}
