//! The replay of recorded answers of the Responses API. How they are replayed is left to the exchange's tests.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::api::Responses;
use super::super::history::History;
use super::super::request::Thread;
use super::super::schema::Form;
use crate::api::tests::replay::{Recorded, replay};

/// What surrounded a recorded answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Input {
    /// Where the bytes come from; a note for readers.
    #[serde(rename = "source")]
    _source: String,
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The schema that the answer was to be JSON of.
    #[serde(default)]
    schema: Option<Value>,
}

impl Recorded for Input {
    type Api = Responses;
    const SHORT: usize = 2048;

    fn status(&self) -> u16 {
        self.status
    }

    fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    fn history(&self) -> History {
        History::new(Thread::Own("s".into()), vec![], vec![], self.schema.as_ref().map(Form::of))
    }

    fn kept(messages: &[Value]) -> Value {
        json!(messages)
    }
}

#[test]
fn transcripts_replay_to_their_golden_events() {
    replay::<Input>();
}
