//! From the faults of the `rmcp` crate to typed errors, by their kinds and a server's status rather than their words.

use inspan_protocol::{AgentError, ErrorCode, beginning};
use rmcp::model::ErrorData;
use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::message::UNREADABLE;

/// How `rmcp` begins to say that an answer which is not streamed cannot be read. The reason follows, and then the answer.
const UNPARSED: &str = "could not parse JSON response as ServerJsonRpcMessage: ";

type Http = StreamableHttpError<reqwest::Error>;

/// A fault while the connection is made; the words follow the server's name.
pub(super) fn begin(error: &ClientInitializeError) -> AgentError {
    match error {
        ClientInitializeError::TransportError { error, .. } => transport(error),
        ClientInitializeError::ConnectionClosed(_) => closed(),
        ClientInitializeError::JsonRpcError(error) => unreadable(error).unwrap_or_else(|| {
            AgentError::new(ErrorCode::Protocol, format!("refuses to begin: {}", head(&error.message)))
        }),
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            AgentError::new(ErrorCode::Protocol, "speaks no version of the protocol that is known here")
        }
        _ => AgentError::new(ErrorCode::Protocol, "does not begin as the protocol asks"),
    }
}

/// A fault of a request.
pub(super) fn request(error: &ServiceError) -> AgentError {
    match error {
        ServiceError::McpError(error) => unreadable(error).unwrap_or_else(|| {
            AgentError::new(ErrorCode::Protocol, format!("answers with an error: {}", head(&error.message)))
        }),
        ServiceError::TransportSend(error) => transport(error),
        ServiceError::TransportClosed => closed(),
        ServiceError::UnexpectedResponse => {
            AgentError::new(ErrorCode::Protocol, "answers with something else than was asked")
        }
        _ => AgentError::new(ErrorCode::Protocol, "did not answer"),
    }
}

fn unreadable(error: &ErrorData) -> Option<AgentError> {
    (error.code == UNREADABLE).then(|| unread(&error.message))
}

fn unread(why: &str) -> AgentError {
    AgentError::new(ErrorCode::Protocol, format!("gave an answer that cannot be read: {why}"))
}

fn closed() -> AgentError {
    AgentError::new(ErrorCode::Network, "closed the connection")
}

fn transport(error: &DynamicTransportError) -> AgentError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.error.as_ref());
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<Http>() {
            return http(error);
        }
        if let Some(error) = error.downcast_ref::<AgentError>() {
            return error.clone();
        }
        cause = error.source();
    }
    closed()
}

fn http(error: &Http) -> AgentError {
    let network = |what: &str| AgentError::new(ErrorCode::Network, what);
    let protocol = |what: &str| AgentError::new(ErrorCode::Protocol, what);
    match error {
        StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_) => {
            AgentError::new(ErrorCode::Auth, "does not accept us; it needs other `headers`")
        }
        StreamableHttpError::HttpStatus(answer) => {
            network(&format!("answers with the status {}", answer.status)).with("status", answer.status)
        }
        StreamableHttpError::Client(error) => {
            match (error.status(), error.is_timeout(), error.is_connect()) {
                (Some(status), ..) => protocol(&format!("answers with the status {}", status.as_u16())),
                (None, true, _) => AgentError::new(ErrorCode::Timeout, "gave no connection in time"),
                (None, false, true) => network("cannot be reached"),
                (None, false, false) => network("broke the connection"),
            }
        }
        // Only the status is shown: the rest is a page or a text of the server.
        StreamableHttpError::UnexpectedServerResponse(words) => {
            let status = words.strip_prefix("HTTP ").and_then(|rest| rest.get(..3)?.parse::<u16>().ok());
            match status {
                Some(401 | 403) => {
                    AgentError::new(ErrorCode::Auth, "does not accept us; it needs other `headers`")
                }
                Some(status) => protocol(&format!("answers with the status {status}")).with("status", status),
                None => match words.strip_prefix(UNPARSED).and_then(|rest| rest.split(": ").next()) {
                    Some(why) => unread(why),
                    None => protocol("answers with something other than MCP"),
                },
            }
        }
        StreamableHttpError::SessionExpired => network("has forgotten the session"),
        StreamableHttpError::UnexpectedEndOfStream | StreamableHttpError::Sse(_) => {
            network("broke off its answer")
        }
        StreamableHttpError::ResponseBodyTooLarge { .. } => protocol("answers with too much"),
        StreamableHttpError::TransportChannelClosed => closed(),
        _ => protocol("answers with something other than MCP"),
    }
}

fn head(words: &str) -> String {
    beginning(words.lines().next().unwrap_or_default(), 300).to_owned()
}
