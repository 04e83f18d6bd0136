//! How the node types that come with Inspan are run, where that takes more than a computation.

mod agent;
mod control;
mod exec;
mod http;
mod human;
mod mcp;

use inspan_engine::ProviderRegistry;
use inspan_flow_core::{AnyAgent, ControlWait, Exec, HumanInput, ProviderAgent, builtin_catalog};

use crate::node::NodeRegistry;

/// All node types that come with Inspan, with one agent type per registered provider.
pub fn builtin_nodes(providers: &ProviderRegistry) -> NodeRegistry {
    let providers: Vec<_> = providers.iter().map(|(_, provider)| provider.clone()).collect();
    let mut registry = NodeRegistry::from(builtin_catalog(providers.clone()));
    registry.register(ControlWait).register(HumanInput).register(Exec);
    registry.register(http::HttpNode::default()).register(mcp::McpNode::default());
    for provider in &providers {
        registry.register(ProviderAgent(provider.clone()));
    }
    registry.register(AnyAgent::new(providers));
    registry
}
