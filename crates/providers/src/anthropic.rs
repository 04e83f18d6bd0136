//! The provider `anthropic`: the Messages API over HTTP, with the tools of the program and of MCP servers.
//!
//! The vendor stores no conversation, so the adapter does: a turn takes its conversation from the store, adds the user's
//! message and writes it before the request is sent. A turn that fails removes the message, so that it can be tried again;
//! a cancelled turn leaves it and the text until then; after a crash the message stays. Once a tool has run, its call and
//! its result stay, whatever follows: otherwise it would look as if the tool had not run.

use inspan_protocol::ProviderCapabilities;

use crate::api::api_provider;
use crate::output::TurnOutput;

mod api;
mod decode;
mod error;
mod history;
mod options;
mod outcome;
mod request;
mod schema;
mod wire;

pub use options::{AnthropicInput, AnthropicOptions, PromptCache};

use api::Messages;

api_provider! {
    /// Calls the Messages API. One call is one turn of one conversation, with as many requests as its tools need.
    AnthropicProvider for Messages, AnthropicInput => TurnOutput, "Claude API", ProviderCapabilities {
        streaming: true,
        structured_output: true,
        permissions: true,
        tools: true,
        host_tools: true,
        thinking: true,
        images: true,
        cost: false,
        fork: true,
        forgets_cut_turns: false,
        native_steer: false,
    }
}

#[cfg(test)]
mod tests {
    mod conversations;
    mod server;
    mod tools;

    crate::api::tests::vendor_tests!(server::TestApi);
}
