//! Tests of the whole adapter: recorded streams, and servers and programs that misbehave.

use inspan_protocol::Timestamp;
use serde_json::{Value, json};

use super::decode::{Follows, OpenCodeDecoded, OpenCodeDecoder, QuestionAnswer, RequestKind};
use super::error::retrying;
use crate::program::tests::{ProcessCase, abandoned};
use crate::replay::check;

#[cfg(target_os = "linux")]
mod faults;

fn replay(case: &ProcessCase, chunks: &[&[u8]]) -> Vec<Value> {
    let mut decoder = OpenCodeDecoder::new(case.session.as_ref().unwrap().as_str(), case.before.clone());
    let mut out = Vec::new();
    let mut over = false;
    for decoded in chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect::<Vec<_>>() {
        if !over {
            over = matches!(decoded, OpenCodeDecoded::TurnEnd(_) | OpenCodeDecoded::Fault(_));
            out.push(line(decoded, case));
        }
    }
    if !over {
        out.extend(abandoned(&mut decoder, |decoded| Some(line(decoded, case))));
    }
    out
}

fn line(decoded: OpenCodeDecoded, case: &ProcessCase) -> Value {
    match decoded {
        OpenCodeDecoded::Connected => json!({ "connected": true }),
        OpenCodeDecoded::Event(event) => json!({ "event": event }),
        OpenCodeDecoded::Requested { request_id, kind, request } => {
            let word = if kind == RequestKind::Permission { "permissionAsked" } else { "questionAsked" };
            json!({ word: { "requestId": request_id, "request": request } })
        }
        OpenCodeDecoded::Answered { request_id, answer } => {
            json!({ "answered": { "requestId": request_id, "refused": answer == QuestionAnswer::Denied } })
        }
        OpenCodeDecoded::Step { follows } => json!({ "step": { "follows": follows == Follows::Another } }),
        OpenCodeDecoded::Retry { attempt, message, reason, next } => {
            // Two seconds before the next attempt, unless the case says when.
            let now = Timestamp::from_millis(case.now.unwrap_or(next.unwrap_or_default() - 2000));
            let error = retrying(&message, reason.as_deref(), next, now);
            json!({ "retry": { "attempt": attempt, "error": error } })
        }
        OpenCodeDecoded::Hopeless(error) => json!({ "hopeless": error }),
        OpenCodeDecoded::Closing => json!({ "closing": true }),
        OpenCodeDecoded::TurnEnd(end) => case.end(*end),
        OpenCodeDecoded::Fault(error) => json!({ "fault": error }),
    }
}

#[test]
fn recorded_transcripts_give_their_golden_events() {
    check("opencode", replay);
}
