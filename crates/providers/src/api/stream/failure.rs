//! What the errors of all servers share: texts for people, pages instead of messages, redirects, and how long to wait.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, Timestamp};
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

/// How long the server asks to wait in its own headers.
pub(crate) fn retry_after<'a>(text: &impl Fn(&str) -> Option<&'a str>) -> Option<Duration> {
    let number = |name: &str| text(name)?.parse::<f64>().ok().filter(|number| *number >= 0.0);
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The one form of a date that servers send: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let parts: Vec<&str> = text.split(' ').collect();
    let [_, day, month, year, time, "GMT"] = parts[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    format!("{year}-{month:02}-{day}T{time}Z").parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_dates_are_none() {
        let moment = "2026-11-02T02:00:00Z".parse().ok();
        let rows = [
            ("Mon, 02 Nov 2026 02:00:00 GMT", moment),
            ("Monday, 02-Nov-26 02:00:00 GMT", None),
            ("Mon, 02 Non 2026 02:00:00 GMT", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(http_date(text), expected, "{text}");
        }
    }
}
