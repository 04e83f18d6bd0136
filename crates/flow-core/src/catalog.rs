//! The node types that a flow may use, by name, as far as the compiler must know them.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use inspan_protocol::BoundedValidator;
use serde_json::Value;

use crate::node::{DescribeNode, NodeTypeInfo};

/// Descriptions of node types by name.
#[derive(Clone, Default)]
pub struct NodeCatalog {
    types: BTreeMap<Arc<str>, Arc<Registered>>,
}

/// A registered type. Describing one and compiling its schemas takes longer than running a small flow, so each is
/// done once, for all flows, when it is first asked for.
struct Registered {
    node_type: Arc<dyn DescribeNode>,
    described: OnceLock<Arc<Described>>,
}

/// What is known of a node type, and its schemas ready for use.
pub struct Described {
    /// What is known of it.
    pub info: NodeTypeInfo,
    pub(crate) input: Arc<CompiledSchema>,
    output: CompiledSchema,
}

impl Described {
    /// The compiled schema of the input; none if the schema is broken.
    pub fn input(&self) -> Option<&BoundedValidator> {
        self.input.validator()
    }

    /// The compiled schema of the output; none if the schema is broken.
    pub fn output(&self) -> Option<&BoundedValidator> {
        self.output.validator()
    }
}

/// A schema, and what checks values against it, which is made when it is first needed.
pub(crate) struct CompiledSchema {
    pub(crate) json: Value,
    validator: OnceLock<Option<BoundedValidator>>,
}

impl CompiledSchema {
    pub(crate) fn of(json: Value) -> Self {
        Self { json, validator: OnceLock::new() }
    }

    /// None if the schema itself is broken, which is the fault of its maker and not of the author.
    pub(crate) fn validator(&self) -> Option<&BoundedValidator> {
        self.validator.get_or_init(|| BoundedValidator::new(&self.json).ok()).as_ref()
    }
}

impl NodeCatalog {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a type under its own name; it replaces one of the same name.
    pub fn register(&mut self, node_type: impl DescribeNode) -> &mut Self {
        self.register_shared(Arc::new(node_type))
    }

    /// As [`register`](Self::register), for a type that is shared with what runs it.
    pub fn register_shared(&mut self, node_type: Arc<dyn DescribeNode>) -> &mut Self {
        let name = node_type.name();
        self.types.insert(name, Arc::new(Registered { node_type, described: OnceLock::new() }));
        self
    }

    /// The type of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn DescribeNode>> {
        self.types.get(name).map(|registered| &registered.node_type)
    }

    /// All names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(|name| &**name)
    }

    /// What is known of every type, in alphabetical order.
    pub fn describe(&self) -> Vec<NodeTypeInfo> {
        self.types.values().map(|registered| registered.described().info.clone()).collect()
    }

    /// The type of this name and what is known of it.
    pub fn find(&self, name: &str) -> Option<(&Arc<dyn DescribeNode>, &Arc<Described>)> {
        self.types.get(name).map(|registered| (&registered.node_type, registered.described()))
    }

    /// What is known of the type of this name.
    pub fn described(&self, name: &str) -> Option<&Arc<Described>> {
        self.types.get(name).map(|registered| registered.described())
    }
}

impl Registered {
    fn described(&self) -> &Arc<Described> {
        self.described.get_or_init(|| {
            let info = self.node_type.describe();
            let input = Arc::new(CompiledSchema::of(info.input.clone()));
            let output = CompiledSchema::of(info.output.clone());
            Arc::new(Described { info, input, output })
        })
    }
}

/// Marks a value of an input schema as a condition: it resolves to true or false.
pub(crate) const CONDITION: &str = "x-when";
/// Marks a value that is used as it is written: what looks like a template stays text.
pub(crate) const RAW: &str = "x-raw";
/// Marks a string that is a duration such as `30s`.
pub(crate) const DURATION: &str = "x-time";

/// Marks a field of an output schema that is the same as a part of the input, named by its JSON pointer.
pub(crate) const SAME: &str = "x-same";

/// Adds to a field of an output schema what must be set to get it.
pub(crate) const NEEDS: &str = "x-needs";
