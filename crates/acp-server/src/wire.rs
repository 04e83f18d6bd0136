//! The messages of the Agent Client Protocol, version 1, as far as they are read and written here. What a client may leave
//! out is optional, and fields that are not read are skipped.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::rpc::RpcError;

/// The version that is supported here.
pub(crate) const VERSION: u64 = 1;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Initialize {
    /// The newest version that the client supports.
    #[expect(dead_code, reason = "a client must send it, and the answer is version 1 in any case")]
    pub(crate) protocol_version: u64,
    #[serde(default)]
    pub(crate) client_capabilities: ClientCapabilities,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClientCapabilities {
    pub(crate) elicitation: Option<Elicitation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Elicitation {
    pub(crate) form: Option<Value>,
}

impl ClientCapabilities {
    /// Whether the client shows forms.
    pub(crate) fn shows_forms(&self) -> bool {
        self.elicitation.as_ref().is_some_and(|can| can.form.is_some())
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct NewSession {
    pub(crate) cwd: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OldSession {
    pub(crate) session_id: String,
    pub(crate) cwd: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OfSession {
    pub(crate) session_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListSessions {
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Prompted {
    pub(crate) session_id: String,
    pub(crate) prompt: Vec<PromptBlock>,
}

/// A part of a prompt.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum PromptBlock {
    Text {
        text: String,
    },
    ResourceLink {
        uri: String,
    },
    Resource {
        resource: Embedded,
    },
    #[serde(other)]
    Other,
}

/// A file that a prompt holds.
#[derive(Debug, Deserialize)]
pub(crate) struct Embedded {
    pub(crate) uri: String,
    pub(crate) text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CancelRequest {
    pub(crate) request_id: Value,
}

/// The answer to `session/request_permission`.
#[derive(Debug, Deserialize)]
pub(crate) struct Permission {
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Outcome {
    #[serde(rename_all = "camelCase")]
    Selected { option_id: String },
    /// Cancelled, or a word that a later version has: never consent.
    #[serde(other)]
    Cancelled,
}

/// The answer to `elicitation/create`.
#[derive(Debug, Deserialize)]
pub(crate) struct Elicited {
    pub(crate) action: String,
    pub(crate) content: Option<Value>,
}

/// Why a turn is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    EndTurn,
    Cancelled,
}

/// The parameters of a request.
pub(crate) fn params<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params)
        .map_err(|error| RpcError::params(format!("the parameters are wrong: {error}")))
}

/// What the client gets to know about us.
pub(crate) fn initialized() -> Value {
    json!({
        "protocolVersion": VERSION,
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": { "image": false, "audio": false, "embeddedContext": true },
            "mcpCapabilities": { "http": false, "sse": false },
            "sessionCapabilities": { "list": {}, "resume": {}, "close": {} },
        },
        "agentInfo": { "name": "inspan", "title": "Inspan", "version": env!("CARGO_PKG_VERSION") },
        "authMethods": [],
    })
}

/// A piece of text of a conversation.
pub(crate) fn chunk(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

/// What the agent says.
pub(crate) fn says(text: &str) -> Value {
    chunk("agent_message_chunk", text)
}
