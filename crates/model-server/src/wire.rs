//! The seam between the scenario and a vendor's wire format: one trait, one file per format.
//! Faults, delays and choosing a turn stay on this side; only the bytes depend on the format.

use std::time::Duration;

use serde_json::Value;

use crate::scenario::{ErrorEvent, Turn};

/// What a format turns a turn into, before faults and delays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Beat {
    /// One whole event, its line ends included.
    Event(String),
    /// A wait that the scenario requests.
    Pause(Duration),
}

/// What a vendor finds wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// The word for it; the usual one of the status if absent.
    pub(crate) kind: Option<&'static str>,
    pub(crate) message: String,
}

impl From<&str> for Complaint {
    fn from(message: &str) -> Self {
        Self { kind: None, message: message.to_owned() }
    }
}

/// One vendor's way of putting requests and answers into bytes.
pub(crate) trait Wire: Send + Sync {
    /// Reads a request, or says in the vendor's words what is wrong with it.
    fn view(&self, body: &Value) -> Result<RequestView, Complaint>;

    /// The turn as a stream of events. `stem` is what its ids are made of.
    fn beats(&self, turn: &Turn, request: &RequestView, stem: &str) -> Vec<Beat>;

    /// The turn as one JSON body.
    fn whole(&self, turn: &Turn, request: &RequestView, stem: &str) -> String;

    /// The body of an HTTP error; without a kind the usual one of that status. A kind that another vendor
    /// uses is put into the words of this one.
    fn error_body(&self, status: u16, kind: Option<&str>, message: &str, stem: &str) -> String;

    /// The status under which the vendor reports errors of that kind.
    fn error_status(&self, kind: &str) -> u16;

    /// An error within a stream, after so many events.
    fn error_event(&self, error: &ErrorEvent, sent: usize) -> String;

    /// An event that says nothing.
    fn ping(&self) -> String;

    /// An event whose payload is not JSON.
    fn garbage(&self) -> String;

    /// Headers that every answer carries.
    fn headers(&self, stem: &str) -> Vec<(&'static str, String)>;
}

/// The same value with sorted keys, so that the bytes do not depend on which map a build of `serde_json` uses.
pub fn sorted(value: &Value) -> Value {
    let mut value = value.clone();
    value.sort_all_objects();
    value
}

/// Whether the client wants events as they come or one whole body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Delivery {
    Stream,
    #[default]
    Whole,
}

/// What every wire format can say about a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RequestView {
    pub(crate) model: String,
    pub(crate) delivery: Delivery,
    /// Names of the tools offered.
    pub(crate) tools: Vec<String>,
    /// Those of them that take a text instead of a JSON object.
    pub(crate) freeform_tools: Vec<String>,
    /// The groups of tools; a tool in one is called `GROUP__TOOL` in a scenario.
    pub(crate) tool_groups: Vec<String>,
    pub(crate) system: String,
    /// Whether a stream shall end with the token counts, in formats that leave the choice.
    pub(crate) counts_tokens: bool,
    /// The text of each user message, tool results included, oldest first. Where a format has tool results
    /// apart from messages, adjacent results are one message.
    pub(crate) user_messages: Vec<String>,
}

impl RequestView {
    pub(crate) fn offers(&self, tool: &str) -> bool {
        self.tools.iter().any(|name| name == tool)
    }
}

#[cfg(test)]
mod tests;
