//! What flows may use: the providers that come with Inspan, and the node types over them.

use inspan_engine::ProviderRegistry;
use inspan_flow::{NodeRegistry, builtin_nodes};

/// Every provider.
pub(crate) fn providers() -> ProviderRegistry {
    inspan_providers::builtin().into_iter().collect()
}

/// Every node type over these providers.
pub(crate) fn nodes(providers: &ProviderRegistry) -> NodeRegistry {
    builtin_nodes(providers)
}
