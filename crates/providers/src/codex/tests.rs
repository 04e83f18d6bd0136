//! Tests of the whole adapter: recorded transcripts, and programs that misbehave.

use inspan_protocol::ProviderSessionId;
use serde_json::{Value, json};

use super::CodexOutput;
use super::decode::{CodexDecoded, CodexDecoder, QuestionForm};
use super::error::{explain_exit, refused};
use super::wire::AnswerForm;
use crate::json_rpc::{Codec, Incoming};
use crate::program::tests::{ProcessCase, abandoned};
use crate::replay::check;

#[cfg(target_os = "linux")]
mod faults;

/// A process that is read again. Its responses show what it was asked.
struct Replay<'a> {
    case: &'a ProcessCase,
    decoder: CodexDecoder,
    turns: usize,
    out: Vec<Value>,
}

impl Replay<'_> {
    fn take(&mut self, message: Incoming) {
        if let Incoming::Answer { result, .. } = &message {
            return match result {
                Ok(result) => self.response(&serde_json::from_str(result.get()).unwrap()),
                Err(error) => self.out.push(json!({ "error": refused("the request", error) })),
            };
        }
        for decoded in self.decoder.push(message) {
            self.turns += usize::from(matches!(decoded, CodexDecoded::TurnEnd(_)));
            self.out.extend(line(decoded, self.case));
        }
    }

    /// The response that opens the thread, or the one that begins a turn.
    fn response(&mut self, result: &Value) {
        if let Some(id) = result["thread"]["id"].as_str() {
            let model = result["model"].as_str().map(str::to_owned);
            self.decoder.open(ProviderSessionId::from(id), model);
        }
        if let Some(turn_id) = result["turn"]["id"].as_str() {
            self.decoder.begin(if self.case.structured { AnswerForm::Json } else { AnswerForm::Text });
            self.decoder.named(turn_id);
        }
    }
}

fn line(decoded: CodexDecoded, case: &ProcessCase) -> Option<Value> {
    Some(match decoded {
        CodexDecoded::Event(event) => json!({ "event": event }),
        CodexDecoded::PermissionRequested { id, request, form } => {
            let form = match form {
                QuestionForm::Decision => json!("decision"),
                QuestionForm::Permissions(wanted) => json!({ "permissions": wanted }),
                QuestionForm::Elicitation => json!("elicitation"),
            };
            json!({ "permissionAsked": { "requestId": id, "request": request, "form": form } })
        }
        CodexDecoded::Unsupported { id, method } => {
            json!({ "unsupported": { "requestId": id, "method": method } })
        }
        CodexDecoded::Elicited { id } => json!({ "elicited": { "requestId": id } }),
        CodexDecoded::Withdrawn { id } => json!({ "withdrawn": { "requestId": id } }),
        // The response to the request has it already.
        CodexDecoded::TurnStarted { .. } => return None,
        CodexDecoded::BackgroundLeft => json!({ "backgroundLeft": true }),
        CodexDecoded::TurnEnd(end) => case.output(*end, |output| json!(CodexOutput::from(output))),
        CodexDecoded::NotBegun(error) => json!({ "error": error }),
        CodexDecoded::Fault(error) => json!({ "fault": error }),
    })
}

fn replay(case: &ProcessCase, chunks: &[&[u8]]) -> Vec<Value> {
    let mut codec = Codec::default();
    let mut replay = Replay { case, decoder: CodexDecoder::default(), turns: 0, out: Vec::new() };
    for chunk in chunks {
        codec.push(chunk, |message| replay.take(message));
    }
    codec.finish(|message| replay.take(message));
    if replay.decoder.in_turn() || replay.turns == 0 {
        replay.out.extend(abandoned(&mut replay.decoder, |decoded| line(decoded, case)));
        replay.out.push(case.exited(explain_exit));
    }
    replay.out
}

#[test]
fn recorded_transcripts_give_their_golden_events() {
    check("codex", replay);
}
