//! Tests of the whole adapter: recorded streams, and servers and programs that misbehave.

use inspan_protocol::Timestamp;
use serde_json::{Value, json};

use super::decode::{Asked, Decoded, Decoder, Follows, QuestionAnswer};
use super::error::retrying;
use crate::program::tests::{Case, abandoned};
use crate::replay::check;

mod faults;

fn replay(case: &Case, chunks: &[&[u8]]) -> Vec<Value> {
    let mut decoder = Decoder::new(case.session.as_ref().unwrap().as_str(), case.before.clone());
    let mut out = Vec::new();
    let mut over = false;
    for decoded in chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect::<Vec<_>>() {
        if !over {
            over = matches!(decoded, Decoded::TurnEnd(_) | Decoded::Fault(_));
            out.push(line(decoded, case));
        }
    }
    if !over {
        out.extend(abandoned(&mut decoder, |decoded| Some(line(decoded, case))));
    }
    out
}

fn line(decoded: Decoded, case: &Case) -> Value {
    match decoded {
        Decoded::Connected => json!({ "connected": true }),
        Decoded::Event(event) => json!({ "event": event }),
        Decoded::Asked { request_id, asked, request } => {
            let word = if asked == Asked::Permission { "permissionAsked" } else { "questionAsked" };
            json!({ word: { "requestId": request_id, "request": request } })
        }
        Decoded::Answered { request_id, answer } => {
            json!({ "answered": { "requestId": request_id, "refused": answer == QuestionAnswer::Denied } })
        }
        Decoded::Step { follows } => json!({ "step": { "follows": follows == Follows::Another } }),
        Decoded::Retry { attempt, message, reason, next } => {
            // Two seconds before the next attempt, unless the case says when.
            let now = Timestamp::from_millis(case.now.unwrap_or(next.unwrap_or_default() - 2000));
            let error = retrying(&message, reason.as_deref(), next, now);
            json!({ "retry": { "attempt": attempt, "error": error } })
        }
        Decoded::Hopeless(error) => json!({ "hopeless": error }),
        Decoded::Closing => json!({ "closing": true }),
        Decoded::TurnEnd(end) => case.end(*end),
        Decoded::Fault(error) => json!({ "fault": error }),
    }
}

#[test]
fn recorded_transcripts_give_their_golden_events() {
    check("opencode", replay);
}
