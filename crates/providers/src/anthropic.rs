//! The provider `anthropic`: the Messages API over HTTP, with the tools of the program and of MCP servers.
//! Retries, validation of structured output and the turns of a run are left to those who call it.
//!
//! The vendor keeps no conversation, so the adapter does: a turn takes its conversation from the store, adds the
//! user's message and writes it before the request goes out. A turn that fails takes the message back, so that it can
//! be tried again; one that is cancelled keeps it and what was said until then; after a crash the message stands. Once a
//! tool has run, its call and its answer stay, whatever follows: what was done once must not look undone.

use std::sync::Arc;

use futures::future::BoxFuture;
use inspan_protocol::{
    AgentError, ExecutionContext, Handshake, InputProblem, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderStream,
};
use serde_json::Value;

use crate::conversation::{ConversationStore, FolderStore};
use crate::exchange::exchange;
use crate::greeting::greet;
use crate::output::TurnOutput;
use crate::prompt::{self, Assistant};
use crate::transport::http::Http;

mod account;
mod decode;
mod error;
mod exchange;
mod ledger;
mod options;
mod outcome;
mod request;
mod schema;
#[cfg(test)]
mod tests;
mod wire;

pub use account::probe_anthropic;
pub use options::{AnthropicInput, AnthropicOptions, PromptCache};

use exchange::Messages;

/// The provider's type.
const TYPE: &str = "anthropic";

/// Asks the Messages API. One call is one turn of one conversation, with as many requests as its tools need.
pub struct AnthropicProvider {
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
}

impl std::fmt::Debug for AnthropicProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnthropicProvider").finish_non_exhaustive()
    }
}

impl AnthropicProvider {
    /// A provider that keeps its conversations as files.
    pub fn new() -> Self {
        Self::with_store(Arc::new(FolderStore::default()))
    }

    /// A provider that keeps its conversations elsewhere.
    pub fn with_store(store: Arc<dyn ConversationStore>) -> Self {
        Self { http: Arc::new(Http::default()), store }
    }
}

impl Default for AnthropicProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for AnthropicProvider {
    type Input = AnthropicInput;
    type Output = TurnOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: TYPE.to_owned(),
            display_name: "Claude API".to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: true,
                tools: true,
                host_tools: true,
                thinking: true,
                images: true,
                cost: false,
                native_steer: false,
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        prompt::check(input, Assistant::Earlier)
    }

    fn execute(&self, input: AnthropicInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        exchange::<Messages>(Arc::clone(&self.http), Arc::clone(&self.store), input, context)
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'static, Result<Handshake, AgentError>> {
        let http = Arc::clone(&self.http);
        Box::pin(async move {
            let account = account::of(&context.env)?;
            let url = account::models(&context.env)?;
            greet(&http, url, account.headers, &context, error::answered).await
        })
    }
}
