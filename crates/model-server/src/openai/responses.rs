//! The OpenAI Responses format: reads its requests, writes its events, bodies and errors.

use std::time::Duration;

use serde_json::Value;

mod answer;
mod request;

use self::answer::answer;
use super::{error_body, error_of, error_status, headers, ping};
use crate::scenario::{ErrorEvent, Turn};
use crate::speech::{text_of, typed_event};
use crate::wire::RequestView;
use crate::wire::{Beat, Complaint, Wire};

/// The format itself; it holds nothing.
pub(crate) struct Responses;

impl Wire for Responses {
    fn view(&self, body: &Value) -> Result<RequestView, Complaint> {
        request::view(body)
    }

    fn beats(&self, turn: &Turn, request: &RequestView, stem: &str) -> Vec<Beat> {
        let mut beats = Vec::new();
        answer(turn, request, stem, |part| {
            beats.push(match part {
                answer::AnswerPart::Event(event) => Beat::Event(typed_event(&event)),
                answer::AnswerPart::Pause { ms } => Beat::Pause(Duration::from_millis(ms)),
            });
        });
        beats
    }

    fn whole(&self, turn: &Turn, request: &RequestView, stem: &str) -> String {
        text_of(&answer(turn, request, stem, |_| ()))
    }

    fn error_body(&self, status: u16, kind: Option<&str>, message: &str, _stem: &str) -> String {
        error_body(status, kind, message)
    }

    fn error_status(&self, kind: &str) -> u16 {
        error_status(kind)
    }

    fn error_event(&self, error: &ErrorEvent, sent: usize) -> String {
        let mut event = error_of(0, Some(&error.kind), &error.message);
        if event["code"].is_null() {
            event["code"] = event["type"].take();
        }
        event["type"] = "error".into();
        event["sequence_number"] = sent.into();
        typed_event(&event)
    }

    fn ping(&self) -> String {
        ping()
    }

    fn garbage(&self) -> String {
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_te\n\n".to_owned()
    }

    fn headers(&self, stem: &str) -> Vec<(&'static str, String)> {
        headers(stem)
    }
}

#[cfg(test)]
mod tests;
