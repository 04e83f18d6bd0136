//! The replay of recorded responses: the server's bytes through the real decoder and the real end of a turn, compared
//! with the whole golden file, for every way in which the bytes can be cut into reads.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases whose names contain that part.

use std::collections::BTreeMap;
use std::path::Path;

use inspan_model_server::sorted;
use inspan_testkit::{
    case_folders, check_golden, cut_in_two, fixture_dir, fuzz, read_json, read_jsonl, split_everywhere,
};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::world::Vendor;
use crate::api::stream::{Decoded, ResponseDecoder};
use crate::api::{Api, History as _, Verdict};
use crate::tools::ToolCall;

/// What is known of a recorded stream beside its bytes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Where the bytes come from; a note for readers.
    #[serde(rename = "source")]
    _source: String,
    /// Whether the turn asked for structured output.
    #[serde(default)]
    pub(crate) structured: bool,
    /// The schema that the turn asked for.
    #[serde(default)]
    pub(crate) schema: Option<Value>,
}

/// A response that fits on one line of a table.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    case: String,
    source: String,
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
    /// What the adapter makes of it.
    events: Vec<Value>,
}

/// Replays all cases of a vendor.
pub(crate) async fn recorded_responses_give_their_golden_events<V: Vendor>() {
    #[expect(clippy::disallowed_methods, reason = "the person who replays chooses the cases")]
    let filter = std::env::var("INSPAN_FILTER").unwrap_or_default();
    let folder = fixture_dir().join("providers").join(V::Api::PROVIDER);
    let mut failures = Vec::new();

    let mut cases: BTreeMap<String, Case> = read_json(folder.join("cases.json")).unwrap();
    for path in case_folders(&folder).unwrap() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let case = cases.remove(name).unwrap_or_else(|| panic!("{name} is not in cases.json"));
        if name.contains(&filter) {
            failures.extend(replay_stream::<V>(&path, &case).err());
        }
    }
    assert_eq!(cases.keys().collect::<Vec<_>>(), Vec::<&String>::new(), "cases without a folder");

    let table = folder.join("responses.jsonl");
    let rows: Vec<Row> = read_jsonl(&table).unwrap();
    let replayed = rows.into_iter().map(|row| {
        let row = if row.case.contains(&filter) { replay_row::<V>(row) } else { row };
        format!("{}\n", sorted(&json!(row)))
    });
    failures.extend(check_golden(table, &replayed.collect::<String>()).err().map(|error| error.to_string()));
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn replay_stream<V: Vendor>(path: &Path, case: &Case) -> Result<(), String> {
    let bytes = std::fs::read(path.join("transcript.sse")).map_err(|error| error.to_string())?;
    let whole = whatever_the_cuts::<V>(case, &bytes, &path.display().to_string())?;
    let lines: String = whole.iter().map(|value| format!("{}\n", sorted(value))).collect();
    check_golden(path.join("events.jsonl"), &lines).map_err(|error| error.to_string())
}

fn replay_row<V: Vendor>(row: Row) -> Row {
    let status = StatusCode::from_u16(row.status).unwrap();
    let events = if status.is_success() {
        let case = Case { _source: String::new(), structured: false, schema: None };
        whatever_the_cuts::<V>(&case, row.body.as_bytes(), &row.case).unwrap()
    } else {
        let header = |(name, value): (&String, &String)| {
            (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
        };
        let headers: HeaderMap = row.headers.iter().map(header).collect();
        let error = <V::Api as Api>::Decoder::response_error(status, &headers, row.body.as_bytes());
        vec![json!({ "error": error })]
    };
    Row { events, ..row }
}

/// Everything that comes of a stream, one JSON value a line; the same for every cut into reads.
fn whatever_the_cuts<V: Vendor>(case: &Case, bytes: &[u8], name: &str) -> Result<Vec<Value>, String> {
    let whole = events::<V>(case, [bytes]);
    for split in split_everywhere(bytes, 0..4) {
        if events::<V>(case, split.chunks.iter().copied()) != whole {
            return Err(format!("{name}: other events when cut as `{}`", split.name));
        }
    }
    for (left, right) in cut_in_two(bytes).take(if bytes.len() <= V::SHORT { V::SHORT } else { 0 }) {
        if events::<V>(case, [left, right]) != whole {
            return Err(format!("{name}: other events when cut at byte {}", left.len()));
        }
    }
    fuzz(bytes, |bytes| drop(events::<V>(case, [bytes])));
    Ok(whole)
}

fn events<'a, V: Vendor>(case: &Case, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Value> {
    let mut decoder = <V::Api as Api>::Decoder::default();
    let mut decoded: Vec<_> = chunks.into_iter().flat_map(|chunk| decoder.push(chunk)).collect();
    decoded.extend(decoder.finish());
    decoded.into_iter().flat_map(|decoded| lines::<V>(decoded, case)).collect()
}

fn lines<V: Vendor>(decoded: Decoded<<V::Api as Api>::Response>, case: &Case) -> Vec<Value> {
    let response = match decoded {
        Decoded::Event(event) => return vec![json!({ "event": event })],
        Decoded::Failed(error) => return vec![json!({ "error": error })],
        Decoded::End(response) => *response,
    };
    let mut history = V::history(case);
    match V::Api::judge(&response) {
        Verdict::Error(error) => vec![json!({ "error": error })],
        Verdict::Paused => {
            history.add_response(response);
            vec![json!({ "paused": V::stored(&history.state().messages) })]
        }
        Verdict::Calls => {
            let calls: Vec<Value> = history.add_response(response).iter().map(call).collect();
            vec![json!({ "kept": V::stored(&history.state().messages) }), json!({ "calls": calls })]
        }
        Verdict::Output(reason, warning) => {
            let warning = warning.map(|event| json!({ "event": event }));
            let output = history.finish(response, reason);
            let stored = V::stored(&history.state().messages);
            warning.into_iter().chain([json!({ "kept": stored }), json!({ "output": output })]).collect()
        }
    }
}

fn call(call: &ToolCall) -> Value {
    match &call.input {
        Ok(input) => json!({ "id": call.id, "name": call.name, "input": input }),
        Err(words) => json!({ "id": call.id, "name": call.name, "broken": words }),
    }
}
