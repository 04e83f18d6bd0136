//! From a vendor's status, code or words to an [`ErrorCode`]. Status and code come first; the words are the
//! last resort.

use crate::ErrorCode;

/// The code for an HTTP status, sharpened by the vendor's own error code where one is given.
/// `None` for a status below 400.
pub fn classify_status(status: u16, vendor_code: Option<&str>, message: &str) -> Option<ErrorCode> {
    if status < 400 {
        return None;
    }
    if let Some(code) = vendor_code.and_then(classify_vendor_code) {
        return Some(code);
    }
    Some(match status {
        401 | 403 => ErrorCode::Auth,
        402 => ErrorCode::Billing,
        404 => ErrorCode::ModelNotFound,
        413 => ErrorCode::ContextLength,
        429 => ErrorCode::RateLimited,
        400 | 422 => match classify_request_text(message) {
            Some(code) => code,
            None => ErrorCode::InvalidRequest,
        },
        // A gateway gives up on its vendor: with a longer time of ours it would, too.
        408 | 500.. => ErrorCode::Overloaded,
        _ => ErrorCode::InvalidRequest,
    })
}

/// The codes that the vendors' documents name.
fn classify_vendor_code(code: &str) -> Option<ErrorCode> {
    Some(match code {
        "authentication_error" | "authentication_failed" | "permission_error" | "invalid_api_key" => {
            ErrorCode::Auth
        }
        "billing_error" | "insufficient_quota" => ErrorCode::Billing,
        "rate_limit_error" | "rate_limit_exceeded" => ErrorCode::RateLimited,
        "overloaded_error" | "api_error" | "server_error" | "server_is_overloaded" | "timeout_error" => {
            ErrorCode::Overloaded
        }
        "not_found_error" | "model_not_found" => ErrorCode::ModelNotFound,
        "context_length_exceeded" | "request_too_large" => ErrorCode::ContextLength,
        _ => return None,
    })
}

/// A bad request is sometimes another thing that the vendor has no status for.
fn classify_request_text(message: &str) -> Option<ErrorCode> {
    let text = message.to_lowercase();
    if text.contains("credit balance") {
        Some(ErrorCode::Billing)
    } else if has_any(&text, CONTEXT_LENGTH) {
        Some(ErrorCode::ContextLength)
    } else {
        None
    }
}

const TIMEOUT: &[&str] = &["timeout", "timed out", "deadline exceeded"];
const AUTH: &[&str] = &["invalid api key", "unauthorized", "access denied", "permission", "401"];
const RATE_LIMIT: &[&str] = &["rate limit", "too many requests", "exceeded your current quota", "429"];
const OVERLOAD: &[&str] = &["overloaded", "at capacity", "service unavailable", "bad gateway", "503", "502"];
const CONTEXT_LENGTH: &[&str] = &[
    "context length",
    "context limit",
    "too many tokens",
    "maximum context",
    "token limit",
    "prompt is too long",
];
/// Words that show that "permission" or "access denied" refers to a file and not to an account.
const FILE_FAULT: &[&str] =
    &["os error", "eacces", "eperm", "permission denied", "file", "directory", "path"];

/// The code for a text alone, first match wins. A text that says nothing is `NETWORK`.
pub fn classify_text(message: &str) -> ErrorCode {
    let text = message.to_lowercase();
    if text.contains("aborted") {
        return ErrorCode::Aborted;
    }
    let table = [
        (TIMEOUT, ErrorCode::Timeout),
        (AUTH, ErrorCode::Auth),
        (RATE_LIMIT, ErrorCode::RateLimited),
        (OVERLOAD, ErrorCode::Overloaded),
        (CONTEXT_LENGTH, ErrorCode::ContextLength),
    ];
    let found = table.into_iter().find(|(patterns, _)| has_any(&text, patterns));
    found.map_or(ErrorCode::Network, |(_, code)| code)
}

fn has_any(text: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| match *pattern {
        "permission" | "access denied" => {
            text.contains(pattern) && !FILE_FAULT.iter().any(|word| text.contains(word))
        }
        status if status.bytes().all(|b| b.is_ascii_digit()) => has_status(text, status),
        _ => text.contains(pattern),
    })
}

/// A number counts as a status only where the text calls it one: as "429 too many…", "status 429", "(429)",
/// "error 429", "429:", "responded with 429" or alone. A 429 in a sum, an id, a line number or a price does not, nor does
/// one that counts something ("returned 429 rows").
fn has_status(text: &str, status: &str) -> bool {
    text.match_indices(status).any(|(start, _)| {
        let before = &text[..start];
        let after = &text[start + status.len()..];
        let joined = |c: char| c.is_alphanumeric() || matches!(c, '.' | ',' | '-' | '_' | '#' | '$' | '/');
        if before.chars().next_back().is_some_and(joined)
            || after.chars().next().is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '/' | '%'))
            || after.starts_with('.') && after[1..].starts_with(|c: char| c.is_ascii_digit())
        {
            return false;
        }
        let lead = before.trim_end_matches([' ', ':', '(', '[', '=', '"', '\'']);
        let lead = lead.strip_suffix(" a").unwrap_or(lead);
        let lead_words = ["status", "code", "http", "http/1.1", "http/2", "error", "failed", "rejected"];
        lead.is_empty()
            || lead_words.iter().any(|word| lead.ends_with(word))
            || ANSWERED.iter().any(|word| ends_with_word(lead, word)) && !counts_something(after)
    })
}

/// Words of a client about what it got. What follows may also be a count.
const ANSWERED: &[&str] = &[
    "returned",
    "received",
    "responded",
    "responded with",
    "answered",
    "answered with",
    "replied with",
    "got",
];
/// Words that may follow a status; any other word names what is counted.
const AFTER_STATUS: &[&str] = &[
    "from",
    "for",
    "by",
    "and",
    "on",
    "at",
    "after",
    "in",
    "when",
    "while",
    "with",
    "status",
    "error",
    "response",
    "unauthorized",
    "forbidden",
    "too",
    "service",
    "bad",
    "unavailable",
    "gateway",
    "again",
    "but",
];

fn ends_with_word(text: &str, word: &str) -> bool {
    text.strip_suffix(word).is_some_and(|rest| !rest.ends_with(char::is_alphanumeric))
}

/// Whether the first word after a number says that it is a count.
fn counts_something(after: &str) -> bool {
    let Some(rest) = after.strip_prefix(' ') else { return false };
    let word: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
    !word.is_empty() && !AFTER_STATUS.contains(&word.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorCode::*;

    #[test]
    fn statuses_and_vendor_codes_come_first() {
        let rows = [
            (200, None, "", None),
            (400, None, "messages: required", Some(InvalidRequest)),
            (400, None, "prompt is too long: 210000 tokens > 200000 maximum", Some(ContextLength)),
            (
                400,
                None,
                "input length and `max_tokens` exceed context limit: 190000 + 32000",
                Some(ContextLength),
            ),
            (400, None, "Your credit balance is too low", Some(Billing)),
            (400, Some("context_length_exceeded"), "", Some(ContextLength)),
            (401, None, "", Some(Auth)),
            (402, None, "", Some(Billing)),
            (403, None, "", Some(Auth)),
            (404, None, "", Some(ModelNotFound)),
            (408, None, "", Some(Overloaded)),
            (409, None, "", Some(InvalidRequest)),
            (413, None, "", Some(ContextLength)),
            (422, None, "", Some(InvalidRequest)),
            (429, None, "", Some(RateLimited)),
            (429, Some("insufficient_quota"), "", Some(Billing)),
            (500, None, "", Some(Overloaded)),
            (503, None, "", Some(Overloaded)),
            (504, None, "", Some(Overloaded)),
            (504, Some("timeout_error"), "", Some(Overloaded)),
            (529, Some("overloaded_error"), "", Some(Overloaded)),
        ];
        let seen = rows.map(|(status, code, text, _)| classify_status(status, code, text));
        assert_eq!(seen, rows.map(|row| row.3));
    }

    #[test]
    fn every_text_pattern_finds_its_code() {
        for (patterns, code) in [
            (TIMEOUT, Timeout),
            (AUTH, Auth),
            (RATE_LIMIT, RateLimited),
            (OVERLOAD, Overloaded),
            (CONTEXT_LENGTH, ContextLength),
        ] {
            for pattern in patterns {
                assert_eq!(classify_text(&pattern.to_uppercase()), code, "{pattern}");
            }
        }
    }

    #[test]
    fn ambiguous_texts() {
        let rows = [
            ("The operation was aborted due to timeout", Aborted),
            ("request timed out (401)", Timeout),
            ("net/http: TLS handshake timeout", Timeout),
            ("read ETIMEDOUT", Network),
            ("permission to use this model is missing", Auth),
            ("open notes.txt: permission denied (os error 13)", Network),
            ("EACCES: permission denied, open '/etc/shadow'", Network),
            ("API Error: Request rejected (429) · slow down", RateLimited),
            ("status 429", RateLimited),
            ("HTTP 503", Overloaded),
            ("server responded with 401", Auth),
            ("server responded with a 401", Auth),
            ("received 429 from api", RateLimited),
            ("got 429", RateLimited),
            ("got 429 Too Many Requests", RateLimited),
            ("upstream returned 503", Overloaded),
            ("upstream returned 502, retrying", Overloaded),
            ("the query returned 503 rows", Network),
            ("received 429 bytes", Network),
            ("forgot 401", Network),
            ("wrote 429 lines, then the stream ended", Network),
            ("order 14290 could not be read", Network),
            ("costs $4.29 or 0.429", Network),
            ("main.rs:401: unexpected token", Network),
            ("maximum context is 200000 tokens", ContextLength),
            ("connect ECONNREFUSED 127.0.0.1:4010", Network),
            ("something odd", Network),
            ("", Network),
        ];
        let seen: Vec<_> = rows.iter().map(|(text, _)| (*text, classify_text(text))).collect();
        assert_eq!(seen, rows);
    }
}
