//! What the errors of all adapters share: texts for people, and the errors that any of them can have.

use std::fmt::Display;

use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ProviderSessionId, StreamEvent, TurnId, Usage, beginning,
};

use crate::decode::head;

/// Our text for a failed turn.
pub(crate) fn lead(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Auth => "no key or login is accepted",
        ErrorCode::Billing => "the account cannot pay",
        ErrorCode::RateLimited => "too many requests or a usage limit",
        ErrorCode::Overloaded => "the vendor's server failed",
        ErrorCode::ModelNotFound => "no such model",
        ErrorCode::ContextLength => "the conversation is too long for the model",
        ErrorCode::Network => "the connection to the vendor failed",
        ErrorCode::Timeout => "the vendor did not answer in time",
        ErrorCode::InvalidRequest => "the vendor refused the request",
        ErrorCode::Refused => "the request was refused",
        _ => "the turn failed",
    }
}

/// Our text, and the vendor's after it if there is one.
pub(crate) fn sentence(lead: &str, vendor: &str) -> String {
    let vendor = first_line(vendor);
    if vendor.is_empty() { lead.to_owned() } else { format!("{lead}: {vendor}") }
}

/// The vendor's sentence, without the page that may follow it.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    beginning(line, 500).to_owned()
}

/// The error for an input that does not fit.
pub(crate) fn invalid(message: impl Into<String>) -> AgentError {
    AgentError::new(ErrorCode::ConfigInvalid, message)
}

/// The error for an unknown conversation.
pub(crate) fn not_found(session: impl Display) -> AgentError {
    let message = format!("no such conversation: {session}");
    AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::SessionNotFound)
}

/// The error for the end of a turn that a conversation has not.
pub(crate) fn no_turn(turn: &TurnId) -> AgentError {
    not_found(format!("there is no turn in it that ends at `{}`", head(turn.as_str())))
}

/// The error for an id that this provider gives to no conversation.
pub(crate) fn not_our_id(session: &ProviderSessionId) -> AgentError {
    not_found(format!("`{session}` is not an id of this provider"))
}

/// The error for a conversation that another turn of ours uses.
pub(crate) fn busy(session: &ProviderSessionId) -> AgentError {
    let message = format!("the conversation {session} is busy with another turn");
    AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::SessionBusy)
}

/// The error for a conversation that another process uses, as the vendor says.
pub(crate) fn in_use(vendor: &str) -> AgentError {
    let message = format!("the conversation is in use by another process: {vendor}");
    AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::SessionBusy)
}

/// The error for an MCP server that is not an object.
pub(crate) fn mcp_not_an_object(name: &str) -> AgentError {
    invalid(format!("the MCP server `{name}` is not an object"))
}

/// The error for an MCP server that names no transport.
pub(crate) fn mcp_without_transport(name: &str) -> AgentError {
    let message = "has neither a `command`, nor a `url` with the type `http` or `sse`";
    invalid(format!("the MCP server `{name}` {message}"))
}

/// What programs say of a connection that they never got, in lower case.
const UNSENT: [&str; 7] = [
    "connection refused",
    "econnrefused",
    "enotfound",
    "eai_again",
    "unable to connect",
    "connection failed",
    "certificate",
];

/// Whether a program that failed so had sent a request whose answer it lost: the vendor may have worked for it.
pub(crate) fn is_lost(error: &AgentError) -> bool {
    let said = error.message.to_lowercase();
    matches!(error.code, ErrorCode::Network | ErrorCode::Timeout)
        && !UNSENT.iter().any(|word| said.contains(word))
}

/// What a turn has said that it took.
#[derive(Debug, Default)]
pub(crate) struct TurnCount(Usage);

impl TurnCount {
    /// Notes an event of the turn.
    pub(crate) fn note(&mut self, event: &StreamEvent) {
        if let StreamEvent::Usage { usage, .. } = event {
            self.0 = *usage;
        }
    }

    /// What a turn says before its error if it was cut short after its prompt was sent: the price of the request that was
    /// under way is unknown.
    pub(crate) fn cut(&self) -> StreamEvent {
        StreamEvent::Usage { usage: self.0, cost_usd: None }
    }
}
