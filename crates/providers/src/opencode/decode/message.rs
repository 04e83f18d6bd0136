//! Messages, retries and failures: which agent a message belongs to, which is still open, and why the program gave
//! up on one.

use super::super::error::overflow;
use super::super::wire;
use super::{OVERFLOW_LIMIT, OpenCodeDecoded, OpenCodeDecoder, OpenCodeMessage, Speaker, warning};

impl OpenCodeDecoder {
    pub(super) fn message(
        &mut self,
        message: wire::MessageUpdated<'_>,
        speaker: Speaker,
        out: &mut Vec<OpenCodeDecoded>,
    ) {
        let info = message.info;
        if self.prompt.is_none() {
            // Late news of an earlier turn come first.
            if info.role == "user" && self.before.as_deref() != Some(&*info.id) {
                self.prompt = Some(info.id.into_owned());
            }
            return;
        }
        if !self.messages.contains_key(&*info.id) && !self.has_room(out) {
            return;
        }
        let summary = info.summary == true;
        let answer = speaker == Speaker::Agent && info.role == "assistant";
        let kind = if answer && !summary { OpenCodeMessage::Answer } else { OpenCodeMessage::Other };
        let news = self.messages.insert(info.id.to_string(), kind).is_none();
        if !answer {
            return;
        }
        if info.time.completed.is_some() {
            self.open.remove(&*info.id);
        } else {
            self.open.insert(info.id.to_string());
        }
        if summary {
            if let Some(error) = info.error {
                self.error = Some(error);
            }
            return;
        }
        if news {
            // It continues, so what failed before it did not end the turn.
            self.error = None;
            self.finish = None;
            self.last = Some(info.id.to_string());
            self.created = info.time.created.map(|created| created as u64);
        }
        if let (Some(provider), Some(model)) = (info.provider, info.model) {
            self.model = Some(format!("{provider}/{model}"));
        }
        if let Some(structured) = info.structured {
            self.structured = Some(structured);
        }
        if let Some(finish) = info.finish {
            self.finish = Some(finish.into_owned());
        }
        if let Some(error) = info.error {
            self.error = Some(error);
        }
    }

    /// The program took no message. What an abort ended, or is reported a second time with the places in the program where
    /// it happened, is of an earlier turn.
    pub(super) fn refused(&mut self, failed: wire::SessionError, out: &mut Vec<OpenCodeDecoded>) {
        let Some(error) = failed.error else { return };
        let words = error.data.message.as_deref().unwrap_or_default();
        if error.name == "MessageAbortedError" || words.contains("\n    at ") {
            return;
        }
        self.error = Some(error);
        self.idle(out);
    }

    /// Sub-agents' failures come back as the answer of the tool that started them.
    pub(super) fn failed(
        &mut self,
        failed: wire::SessionError,
        speaker: Speaker,
        out: &mut Vec<OpenCodeDecoded>,
    ) {
        let Some(error) = failed.error else { return };
        if speaker == Speaker::SubAgent {
            let message = format!("a sub-agent failed: {}", error.name);
            out.push(warning("subAgentFailed", &message));
            return;
        }
        if error.name == "ContextOverflowError" {
            self.overflows += 1;
            if self.overflows == OVERFLOW_LIMIT {
                out.push(OpenCodeDecoded::Hopeless(overflow(&error)));
            }
        }
        // The program repeats the same failure with fewer details.
        if self.error.is_none() {
            self.error = Some(error);
        }
    }

    pub(super) fn status(status: wire::SessionStatus<'_>, out: &mut Vec<OpenCodeDecoded>) {
        let status = status.status;
        if status.kind == "retry" {
            out.push(OpenCodeDecoded::Retry {
                attempt: status.attempt,
                message: status.message.unwrap_or_default().into_owned(),
                reason: status.action.and_then(|action| action.reason),
                next: status.next.map(|next| next as i64),
            });
        }
    }
}
