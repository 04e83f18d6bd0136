//! Tests of the whole adapter: recorded transcripts, and programs that misbehave.

use serde_json::{Value, json};

use super::decode::{ClaudeDecoded, ClaudeDecoder};
use super::error::explain_exit;
use crate::program::tests::{ProcessCase, abandoned};
use crate::replay::check;

#[cfg(target_os = "linux")]
mod faults;

fn replay(case: &ProcessCase, chunks: &[&[u8]]) -> Vec<Value> {
    let mut decoder = case.session.clone().map_or_else(ClaudeDecoder::new, ClaudeDecoder::with_session);
    let mut decoded: Vec<ClaudeDecoded> = chunks.iter().flat_map(|chunk| decoder.push_bytes(chunk)).collect();
    decoded.extend(decoder.finish());
    let ended = decoded.iter().any(|decoded| matches!(decoded, ClaudeDecoded::TurnEnd(_)));
    let mut out: Vec<Value> = decoded.into_iter().map(|decoded| line(decoded, case)).collect();
    if decoder.in_turn() || !ended {
        out.extend(abandoned(&mut decoder, |decoded| Some(line(decoded, case))));
        out.push(case.exited(|_, stderr| explain_exit(stderr)));
    }
    out
}

fn line(decoded: ClaudeDecoded, case: &ProcessCase) -> Value {
    match decoded {
        ClaudeDecoded::Event(event) => json!({ "event": event }),
        ClaudeDecoded::PermissionRequested { request_id, request } => {
            json!({ "permissionAsked": { "requestId": request_id, "request": request } })
        }
        ClaudeDecoded::Unsupported { request_id, subtype } => {
            json!({ "unsupported": { "requestId": request_id, "subtype": subtype } })
        }
        ClaudeDecoded::Withdrawn { request_id } => json!({ "withdrawn": { "requestId": request_id } }),
        ClaudeDecoded::Answered { request_id, error } => {
            json!({ "answered": { "requestId": request_id, "error": error } })
        }
        ClaudeDecoded::TurnEnd(end) => case.end(*end),
        ClaudeDecoded::Fault(error) => json!({ "fault": error }),
    }
}

#[test]
fn recorded_transcripts_give_their_golden_events() {
    check("claude", replay);
}
