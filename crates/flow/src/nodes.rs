//! The node types that come with Inspan. Each file owns one pack; whoever embeds Inspan adds its own.

mod agent;
mod control;
mod core;
mod exec;
mod human;
mod typed;

use inspan_engine::ProviderRegistry;

use crate::registry::NodeRegistry;

/// All node types that come with Inspan, with one agent type per registered provider.
pub fn builtin_nodes(providers: &ProviderRegistry) -> NodeRegistry {
    let mut registry = NodeRegistry::new();
    core::register(&mut registry);
    control::register(&mut registry);
    registry.register(human::HumanInput);
    registry.register(exec::Exec);
    agent::register(&mut registry, providers);
    registry
}
