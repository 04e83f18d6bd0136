//! The node types that come with Inspan: their names, schemas, and what the pure ones compute. A file is a pack.

mod agent;
mod control;
mod core;
mod data;
mod exec;
mod http;
mod human;
mod mcp;
mod typed;
mod wait;

use std::sync::Arc;

use inspan_protocol::DynProvider;

pub use agent::{AnyAgent, ProviderAgent};
pub use exec::{Exec, ExecInput, ExecOutput, ExecParse};
pub use http::{HttpInput, HttpMethod, HttpOutput, HttpRequest, QueryValue};
pub use human::{HumanAnswer, HumanInput, HumanQuestion};
pub use mcp::{McpCall, McpEntry, McpInput, McpOutput};
pub(crate) use mcp::{SERVER_KEYS, SERVER_TYPES, SERVER_TYPES_OF_AGENTS};
pub use typed::{Allowed, AnyWord, pointer_part, read_input, write_output};
pub use wait::{ControlWait, WaitFor, WaitInput, WaitOutput};

use crate::catalog::NodeCatalog;

/// All node types that come with Inspan, with one agent type per provider.
pub fn builtin_catalog(providers: impl IntoIterator<Item = Arc<dyn DynProvider>>) -> NodeCatalog {
    let mut catalog = NodeCatalog::new();
    core::register(&mut catalog);
    control::register(&mut catalog);
    data::register(&mut catalog);
    catalog.register(ControlWait).register(HumanInput);
    catalog.register(Exec).register(HttpRequest).register(McpCall);
    let providers: Vec<_> = providers.into_iter().collect();
    for provider in &providers {
        catalog.register(ProviderAgent(provider.clone()));
    }
    catalog.register(AnyAgent::new(providers));
    catalog
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_registered_under_the_name_that_its_description_has() {
        let catalog = builtin_catalog([]);
        let described: Vec<_> = catalog.describe().into_iter().map(|info| info.name).collect();
        assert_eq!(
            catalog.names().collect::<Vec<_>>(),
            described.iter().map(|name| &**name).collect::<Vec<_>>()
        );
    }
}
