//! The record of each request, without its secrets, and how the exchange ended.

use std::collections::{BTreeMap, VecDeque};

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Replaces a secret header or query value.
pub const SECRET_PRESENT: &str = "<present>";

/// The number of records; older ones are dropped so that a long-lived server does not grow.
pub const HISTORY_LIMIT: usize = 4096;

/// One HTTP request as the server saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RecordedRequest {
    /// Counted from 1 over the server's life.
    pub number: u64,
    /// What the request was for.
    pub kind: RequestKind,
    /// `POST` and so on.
    pub method: String,
    /// Path and query; secret query values replaced by [`SECRET_PRESENT`].
    pub path: String,
    /// Lower-case names; secret values replaced by [`SECRET_PRESENT`], repeated ones joined by `, `.
    pub headers: BTreeMap<String, String>,
    /// The parsed body; null if there was none or it was not JSON.
    pub body: Value,
    /// Which turn answered, for model requests.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub turn: Option<TurnRef>,
    /// Events of the stream passed to the connection, pings of a stall included.
    pub events_sent: usize,
    /// How the exchange ended.
    pub ending: ExchangeState,
}

/// What a request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RequestKind {
    /// A model request of the main line.
    Main,
    /// A model request without tools.
    Aux,
    /// Everything else: the liveness probe, model list, token count, a wrong path, a broken body.
    Other,
}

/// Which turn of the scenario answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum TurnRef {
    /// By index in `turns`, counted from 0.
    Turn(usize),
    /// The turn for auxiliary requests.
    Aux,
    /// None was left, and the scenario requests an error then.
    Exhausted,
}

/// How an exchange ended, or its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum ExchangeState {
    /// Still being answered.
    Open,
    /// Held without an answer by `hang` or `stallAfter`; stays so if the hold limit ended it.
    Stalled,
    /// Answered to the end, an HTTP error included.
    Complete,
    /// Cut by the scenario.
    Truncated,
    /// The client closed the connection first.
    ClientGone,
    /// The server was stopped first.
    ServerStopped,
}

/// The latest requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RequestHistory {
    stored: VecDeque<RecordedRequest>,
    seen: u64,
}

impl RequestHistory {
    /// Keeps a request and gives it its number.
    pub(crate) fn push(&mut self, mut request: RecordedRequest) -> u64 {
        self.seen += 1;
        request.number = self.seen;
        if self.stored.len() == HISTORY_LIMIT {
            self.stored.pop_front();
        }
        self.stored.push_back(request);
        self.seen
    }

    /// The request of that number, unless it is forgotten.
    pub(crate) fn entry(&mut self, number: u64) -> Option<&mut RecordedRequest> {
        let oldest = self.stored.front()?.number;
        self.stored.get_mut(usize::try_from(number.checked_sub(oldest)?).ok()?)
    }

    pub(crate) fn all(&self) -> Vec<RecordedRequest> {
        self.stored.iter().cloned().collect()
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }
}

/// The headers without secrets.
pub(crate) fn safe_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut stored: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let value = match is_secret(name.as_str()) {
            true => SECRET_PRESENT.to_owned(),
            false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        };
        stored
            .entry(name.as_str().to_owned())
            .and_modify(|known| {
                known.push_str(", ");
                known.push_str(&value);
            })
            .or_insert(value);
    }
    stored
}

/// Path and query without secrets.
pub(crate) fn safe_path(path: &str, query: Option<&str>) -> String {
    let Some(query) = query else { return path.to_owned() };
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}={SECRET_PRESENT}"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Judged by name, and rather too strictly: a hidden value costs a test little, a leaked one a lot.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "key", "token", "secret", "cookie", "password", "credential"]
        .iter()
        .any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str) -> RecordedRequest {
        RecordedRequest {
            number: 0,
            kind: RequestKind::Other,
            method: "GET".to_owned(),
            path: path.to_owned(),
            headers: BTreeMap::new(),
            body: Value::Null,
            turn: None,
            events_sent: 0,
            ending: ExchangeState::Open,
        }
    }

    #[test]
    fn secrets_leave_a_marker_only() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-api-key", "planted"),
            ("x-goog-api-key", "planted"),
            ("authorization", "Bearer planted"),
            ("cookie", "planted"),
            ("x-team-token", "planted"),
            ("accept", "a"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        headers.append("accept", "b".parse().unwrap());
        let expected = [
            ("accept", "a, b"),
            ("authorization", SECRET_PRESENT),
            ("cookie", SECRET_PRESENT),
            ("x-api-key", SECRET_PRESENT),
            ("x-goog-api-key", SECRET_PRESENT),
            ("x-team-token", SECRET_PRESENT),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(safe_headers(&headers), BTreeMap::from(expected));
        assert_eq!(safe_path("/v1", Some("beta=true&key=planted&x")), "/v1?beta=true&key=<present>&x");
        assert_eq!(safe_path("/v1", None), "/v1");
    }

    #[test]
    fn history_forgets_the_oldest_and_keeps_its_numbers() {
        let mut history = RequestHistory::default();
        let extra = 2;
        for index in 0..HISTORY_LIMIT + extra {
            history.push(request(&format!("/{index}")));
        }
        let all = history.all();
        assert_eq!((all.len(), all[0].number, history.seen()), (HISTORY_LIMIT, 3, 4098));
        assert_eq!(history.entry(2).map(|entry| entry.path.clone()), None);
        assert_eq!(history.entry(4098).map(|entry| entry.path.clone()), Some("/4097".to_owned()));
    }
}
