//! What the errors of all servers share: texts for people, pages instead of messages, redirects, and how long to wait.

use inspan_protocol::{AgentError, ErrorCode, ErrorKind};
use reqwest::StatusCode;

/// The error for a redirect.
pub(crate) fn redirected(status: StatusCode, variable: &str) -> AgentError {
    let message = format!(
        "the server sends the request elsewhere (status {}), where the key must not go; check {variable}",
        status.as_u16()
    );
    AgentError::new(ErrorCode::Protocol, message)
        .with_kind(ErrorKind::Redirect)
        .with("status", status.as_u16())
}

/// The message of a response whose error is not in the vendor's form.
pub(crate) fn page(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() {
        "the server gives no reason".to_owned()
    } else if text.starts_with('<') {
        "the server answers with a page".to_owned()
    } else {
        text.lines().next().unwrap_or_default().to_owned()
    }
}

/// Our text for a code, and the vendor's message after it.
pub(crate) fn sentence(code: ErrorCode, vendor: &str) -> String {
    let lead = match code {
        ErrorCode::Auth => "the key is not accepted",
        ErrorCode::Refused => "the vendor refused to answer",
        code => crate::error::lead(code),
    };
    crate::error::sentence(lead, vendor)
}
