//! The provider `openai`: the Responses API over HTTP, with the tools of the program and of MCP servers.
//!
//! Unless a call names a conversation of the vendor, the vendor is asked to store nothing and the adapter stores the
//! conversation: a turn takes it from the store, adds the user's message and writes it before the request is sent. A turn
//! that fails removes the message, so that it can be tried again; a cancelled turn leaves it and the text until then; after
//! a crash the message stays. Once a tool has run, its call and its result stay, whatever follows: otherwise it
//! would look as if the tool had not run.

use inspan_protocol::ProviderCapabilities;

use crate::api::api_provider;
use crate::output::vendor_output;

mod api;
mod decode;
mod error;
mod history;
mod options;
mod outcome;
mod request;
mod schema;
mod wire;

pub use options::{OpenAiInput, OpenAiOptions, ThinkingSummary};

use api::Responses;

vendor_output! {
    /// The end of one turn, with the names that users of this vendor know beside those that all providers have.
    OpenAiOutput {
        /// The answer: the same as `text`.
        content,
        /// The conversation, to continue it: the same as `sessionId`.
        thread_id
    }
}

api_provider! {
    /// Calls the Responses API. One call is one turn of one conversation, with as many requests as its tools need.
    OpenAiProvider for Responses, OpenAiInput => OpenAiOutput, "OpenAI API", ProviderCapabilities {
        streaming: true,
        structured_output: true,
        permissions: true,
        tools: true,
        thinking: true,
        images: true,
        cost: false,
        fork: true,
        forgets_cut_turns: false,
        native_steer: false,
        host_tools: true,
    }
}

#[cfg(test)]
mod tests {
    mod conversations;
    mod server;
    mod threads;
    mod tools;

    crate::api::tests::vendor_tests!(server::TestApi);
}
