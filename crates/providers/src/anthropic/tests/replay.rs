//! The replay of recorded answers of the Messages API. How they are replayed is left to the exchange's tests.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::api::Messages;
use super::super::history::History;
use super::super::outcome::Wanted;
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
    /// Whether the answer was to be JSON of a schema.
    #[serde(default)]
    structured: bool,
}

impl Recorded for Input {
    type Api = Messages;
    const SHORT: usize = 4096;

    fn status(&self) -> u16 {
        self.status
    }

    fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    fn history(&self) -> History {
        let wanted = if self.structured { Wanted::Structured } else { Wanted::Text };
        History::new("s".into(), vec![], vec![], wanted)
    }

    fn kept(messages: &[Value]) -> Value {
        messages.first().map_or(json!([]), |message| message["content"].clone())
    }
}

#[test]
fn transcripts_replay_to_their_golden_events() {
    replay::<Input>();
}
