//! The replay of recorded responses, as the adapters read them.

use std::collections::BTreeMap;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::harness::Vendor;
use crate::api::stream::{Decoded, ResponseDecoder};
use crate::api::{Api, History as _, Verdict};
use crate::tools::ToolCall;

/// What is known of a recorded response beside its body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RecordedResponse {
    status: u16,
    headers: BTreeMap<String, String>,
    /// Whether the turn requested structured output.
    pub(crate) structured: bool,
    /// The schema that the turn requested.
    pub(crate) schema: Option<Value>,
}

impl Default for RecordedResponse {
    fn default() -> Self {
        Self { status: 200, headers: BTreeMap::new(), structured: false, schema: None }
    }
}

/// Replays all cases of a vendor.
pub(crate) async fn recorded_responses_give_their_golden_events<V: Vendor>() {
    crate::replay::check(V::Api::PROVIDER, replay::<V>);
}

fn replay<V: Vendor>(case: &RecordedResponse, chunks: &[&[u8]]) -> Vec<Value> {
    let status = StatusCode::from_u16(case.status).unwrap();
    if !status.is_success() {
        let header = |(name, value): (&String, &String)| {
            (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
        };
        let headers: HeaderMap = case.headers.iter().map(header).collect();
        let error = <V::Api as Api>::Decoder::response_error(status, &headers, &chunks.concat());
        return vec![json!({ "error": error })];
    }
    let mut decoder = <V::Api as Api>::Decoder::default();
    let mut decoded: Vec<_> = chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect();
    decoded.extend(decoder.finish());
    decoded.into_iter().flat_map(|decoded| lines::<V>(decoded, case)).collect()
}

fn lines<V: Vendor>(decoded: Decoded<<V::Api as Api>::Response>, case: &RecordedResponse) -> Vec<Value> {
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
