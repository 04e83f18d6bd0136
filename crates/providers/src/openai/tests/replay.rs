//! The replay of recorded answers: the server's bytes through the real decoder and the real end of a turn, compared
//! with the whole golden file, whatever the reads looked like.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases with that in their name.

use std::collections::BTreeMap;
use std::path::Path;

use inspan_protocol::ProviderSessionId;
use inspan_testkit::{
    case_folders, check_golden, cut_in_two, fixture_dir, read_json, sorted, split_everywhere,
};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::decode::{Decoded, Decoder};
use super::super::error::answered;
use super::super::ledger::Ledger;
use super::super::outcome::{Verdict, judge};
use super::super::request::Thread;
use super::super::schema::Form;
use crate::streamed::Decode as _;
use crate::tools::Call;

/// Transcripts up to this many bytes are also cut in two at every byte.
const SHORT: usize = 2048;

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

/// Everything that comes of one answer, one JSON value a line.
fn replay<'a>(input: &Input, chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let status = StatusCode::from_u16(input.status).unwrap();
    let lines = if status.is_success() {
        let mut decoder = Decoder::default();
        let mut decoded: Vec<Decoded> = chunks.into_iter().flat_map(|chunk| decoder.push(chunk)).collect();
        decoded.extend(decoder.finish());
        decoded.into_iter().flat_map(|decoded| lines(decoded, input)).collect()
    } else {
        let mut headers = HeaderMap::new();
        for (name, value) in &input.headers {
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        }
        let body: Vec<u8> = chunks.into_iter().flatten().copied().collect();
        vec![json!({ "error": answered(status, &headers, &body) })]
    };
    lines.into_iter().map(|value| format!("{}\n", sorted(&value))).collect()
}

fn lines(decoded: Decoded, input: &Input) -> Vec<Value> {
    match decoded {
        Decoded::Event(event) => vec![json!({ "event": event })],
        Decoded::Failed(error) => vec![json!({ "error": error })],
        Decoded::End(said) => match judge(&said) {
            Verdict::Error(error) => vec![json!({ "error": error })],
            Verdict::Calls => {
                let calls: Vec<Value> = said.calls.iter().map(call).collect();
                vec![json!({ "kept": said.items }), json!({ "calls": calls })]
            }
            Verdict::Output(reason, warning) => {
                let warning = warning.map(|event| json!({ "event": event }));
                let form = input.schema.as_ref().map(Form::of);
                let thread = Thread::Own(ProviderSessionId::from("s"));
                let mut ledger = Ledger::begin(thread, vec![], vec![]);
                let output = ledger.end(*said, reason, form.as_ref());
                let kept = ledger.items;
                warning.into_iter().chain([json!({ "kept": kept }), json!({ "output": output })]).collect()
            }
        },
    }
}

fn call(call: &Call) -> Value {
    match &call.input {
        Ok(input) => json!({ "id": call.id, "name": call.name, "input": input }),
        Err(words) => json!({ "id": call.id, "name": call.name, "broken": words }),
    }
}

fn check(case: &Path) -> Result<(), String> {
    let input: Input = read_json(case.join("input.json")).map_err(|error| error.to_string())?;
    let bytes = std::fs::read(case.join("transcript.sse")).map_err(|error| error.to_string())?;
    let whole = replay(&input, [bytes.as_slice()]);
    for split in split_everywhere(&bytes, 0..4) {
        if replay(&input, split.chunks.iter().copied()) != whole {
            return Err(format!("{}: other events when cut as `{}`", case.display(), split.name));
        }
    }
    for (left, right) in cut_in_two(&bytes).take(if bytes.len() <= SHORT { SHORT } else { 0 }) {
        if replay(&input, [left, right]) != whole {
            return Err(format!("{}: other events when cut at byte {}", case.display(), left.len()));
        }
    }
    check_golden(case.join("events.jsonl"), &whole).map_err(|error| error.to_string())
}

#[test]
fn transcripts_replay_to_their_golden_events() {
    #[expect(clippy::disallowed_methods, reason = "whoever replays chooses the cases")]
    let filter = std::env::var("INSPAN_FILTER").unwrap_or_default();
    let cases = case_folders(fixture_dir().join("providers/openai")).unwrap();
    let chosen: Vec<_> = cases.iter().filter(|case| case.to_string_lossy().contains(&filter)).collect();
    assert!(!chosen.is_empty() || !filter.is_empty(), "there are no cases");
    let failures: Vec<String> = chosen.into_iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
