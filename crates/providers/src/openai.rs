//! The provider `openai`: the Responses API over HTTP, with the tools of the program and of MCP servers.
//! Retries, validation of structured output and the turns of a run are left to those who call it.
//!
//! Unless a call names a conversation of the vendor's, the vendor is asked to keep nothing and the adapter keeps it: a
//! turn takes its conversation from the store, adds the user's message and writes it before the request goes out. A
//! turn that fails takes the message back, so that it can be tried again; one that is cancelled keeps it and what was
//! said until then; after a crash the message stands. Once a tool has run, its call and its answer stay, whatever
//! follows: what was done once must not look undone.

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
use crate::prompt::{self, Assistant};
use crate::transport::http::Http;

mod account;
mod decode;
mod error;
mod exchange;
mod ledger;
mod options;
mod outcome;
mod output;
mod request;
mod schema;
#[cfg(test)]
mod tests;
mod wire;

pub use account::probe_openai;
pub use options::{OpenAiInput, OpenAiOptions, ThinkingSummary};
pub use output::OpenAiOutput;

use exchange::Responses;

/// The provider's type.
const TYPE: &str = "openai";

/// Asks the Responses API. One call is one turn of one conversation.
pub struct OpenAiProvider {
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
}

impl std::fmt::Debug for OpenAiProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAiProvider").finish_non_exhaustive()
    }
}

impl OpenAiProvider {
    /// A provider that keeps its conversations as files.
    pub fn new() -> Self {
        Self::with_store(Arc::new(FolderStore::default()))
    }

    /// A provider that keeps its conversations elsewhere.
    pub fn with_store(store: Arc<dyn ConversationStore>) -> Self {
        Self { http: Arc::new(Http::default()), store }
    }
}

impl Default for OpenAiProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for OpenAiProvider {
    type Input = OpenAiInput;
    type Output = OpenAiOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: TYPE.to_owned(),
            display_name: "OpenAI API".to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: true,
                tools: true,
                thinking: true,
                images: true,
                cost: false,
                native_steer: false,
                host_tools: true,
            },
        }
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        prompt::check(input, Assistant::Earlier)
    }

    fn execute(&self, input: OpenAiInput, context: ExecutionContext) -> ProviderStream<OpenAiOutput> {
        exchange::<Responses>(Arc::clone(&self.http), Arc::clone(&self.store), input, context)
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
