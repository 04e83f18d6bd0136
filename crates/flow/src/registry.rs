//! The node types that a flow may use, by name. Filled once by whoever embeds Inspan, then only read.

use std::{collections::BTreeMap, sync::Arc};

use crate::node::{NodeType, NodeTypeInfo};

/// Node types by name.
#[derive(Clone, Default)]
pub struct NodeRegistry {
    types: BTreeMap<Arc<str>, Arc<dyn NodeType>>,
}

impl NodeRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a type under its own name; one of the same name gives way to it.
    pub fn register(&mut self, node_type: impl NodeType) -> &mut Self {
        let name = node_type.name();
        self.types.insert(name, Arc::new(node_type));
        self
    }

    /// The type of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn NodeType>> {
        self.types.get(name)
    }

    /// All names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(|name| &**name)
    }

    /// What is known of every type, in alphabetical order.
    pub fn describe(&self) -> Vec<NodeTypeInfo> {
        self.types.values().map(|node_type| node_type.describe()).collect()
    }
}
