//! The replay of recorded answers: the server's bytes through the real decoder and the real end of a turn, compared
//! with the whole golden file, whatever the reads looked like. What is recorded is left to the adapters.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases with that in their name.

use std::collections::BTreeMap;
use std::path::Path;

use inspan_model_server::sorted;
use inspan_testkit::{case_folders, check_golden, cut_in_two, fixture_dir, read_json, split_everywhere};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::stream::{Decoded, ResponseDecoder};
use crate::api::{Api, History as _, Verdict};
use crate::tools::ToolCall;

/// What surrounded a recorded answer of one vendor.
pub(crate) trait Recorded: DeserializeOwned {
    type Api: Api;
    /// Transcripts up to this many bytes are also cut in two at every byte.
    const SHORT: usize;

    fn status(&self) -> u16;
    fn headers(&self) -> &BTreeMap<String, String>;
    /// The empty conversation that the response is added to.
    fn history(&self) -> <Self::Api as Api>::History;
    /// What a conversation of one answer keeps of it.
    fn kept(messages: &[Value]) -> Value;
}

/// Replays all cases of a provider, each in every cut.
pub(crate) fn replay<R: Recorded>() {
    #[expect(clippy::disallowed_methods, reason = "whoever replays chooses the cases")]
    let filter = std::env::var("INSPAN_FILTER").unwrap_or_default();
    let cases = case_folders(fixture_dir().join("providers").join(R::Api::PROVIDER)).unwrap();
    let chosen: Vec<_> = cases.iter().filter(|case| case.to_string_lossy().contains(&filter)).collect();
    assert!(!chosen.is_empty() || !filter.is_empty(), "there are no cases");
    let failures: Vec<String> = chosen.into_iter().filter_map(|case| check::<R>(case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn check<R: Recorded>(case: &Path) -> Result<(), String> {
    let input: R = read_json(case.join("input.json")).map_err(|error| error.to_string())?;
    let bytes = std::fs::read(case.join("transcript.sse")).map_err(|error| error.to_string())?;
    let whole = all(&input, [bytes.as_slice()]);
    for split in split_everywhere(&bytes, 0..4) {
        if all(&input, split.chunks.iter().copied()) != whole {
            return Err(format!("{}: other events when cut as `{}`", case.display(), split.name));
        }
    }
    for (left, right) in cut_in_two(&bytes).take(if bytes.len() <= R::SHORT { R::SHORT } else { 0 }) {
        if all(&input, [left, right]) != whole {
            return Err(format!("{}: other events when cut at byte {}", case.display(), left.len()));
        }
    }
    check_golden(case.join("events.jsonl"), &whole).map_err(|error| error.to_string())
}

/// Everything that comes of one answer, one JSON value a line.
fn all<'a, R: Recorded>(input: &R, chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let status = StatusCode::from_u16(input.status()).unwrap();
    let lines = if status.is_success() {
        let mut decoder = <R::Api as Api>::Decoder::default();
        let mut decoded: Vec<_> = chunks.into_iter().flat_map(|chunk| decoder.push(chunk)).collect();
        decoded.extend(decoder.finish());
        decoded.into_iter().flat_map(|decoded| lines(decoded, input)).collect()
    } else {
        let mut headers = HeaderMap::new();
        for (name, value) in input.headers() {
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        }
        let body: Vec<u8> = chunks.into_iter().flatten().copied().collect();
        vec![json!({ "error": <R::Api as Api>::Decoder::response_error(status, &headers, &body) })]
    };
    lines.into_iter().map(|value| format!("{}\n", sorted(&value))).collect()
}

fn lines<R: Recorded>(decoded: Decoded<<R::Api as Api>::Response>, input: &R) -> Vec<Value> {
    let response = match decoded {
        Decoded::Event(event) => return vec![json!({ "event": event })],
        Decoded::Failed(error) => return vec![json!({ "error": error })],
        Decoded::End(response) => *response,
    };
    let mut history = input.history();
    match R::Api::judge(&response) {
        Verdict::Error(error) => vec![json!({ "error": error })],
        Verdict::Paused => {
            history.add_response(response);
            vec![json!({ "paused": R::kept(&history.state().messages) })]
        }
        Verdict::Calls => {
            let calls: Vec<Value> = history.add_response(response).iter().map(call).collect();
            vec![json!({ "kept": R::kept(&history.state().messages) }), json!({ "calls": calls })]
        }
        Verdict::Output(reason, warning) => {
            let warning = warning.map(|event| json!({ "event": event }));
            let output = history.finish(response, reason);
            let kept = R::kept(&history.state().messages);
            warning.into_iter().chain([json!({ "kept": kept }), json!({ "output": output })]).collect()
        }
    }
}

fn call(call: &ToolCall) -> Value {
    match &call.input {
        Ok(input) => json!({ "id": call.id, "name": call.name, "input": input }),
        Err(words) => json!({ "id": call.id, "name": call.name, "broken": words }),
    }
}
