//! What identifies a request: the provider's type and a normal form of its input.
//!
//! The normal form is made by an allow-list. Of an input it has `prompt`, `messages`, `model`, `threadId`
//! and `sessionToken`, and of its `options` those of [`OPTIONS`]. Any other field is there under its name, and a
//! marker with eight hexadecimal digits of its value's hash replaces the value, so that two requests that
//! differ in it are distinguished and nothing unforeseen is written down. `cwd` and `env` are left out
//! altogether, as are null values and empty options: they differ between machines, or say nothing.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use inspan_protocol::{Environment, NodePath, Redactor};

const FIELDS: &[&str] = &["prompt", "messages", "model", "threadId", "sessionToken"];
const OPTIONS: &[&str] = &[
    "disallowedTools",
    "idleTimeoutMs",
    "maxTokens",
    "maxTurns",
    "model",
    "multiTurn",
    "outputSchema",
    "permissionMode",
    "resume",
    "systemPrompt",
    "temperature",
    "thinking",
    "tools",
];
const LEFT_OUT: &[&str] = &["cwd", "env"];

/// A provider call in the form that is recorded and looked up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyedRequest {
    pub(super) provider: String,
    pub(super) input: Value,
    /// The hexadecimal hash of the two.
    pub(super) key: String,
    /// Where in its session it is made.
    pub(super) place: Option<NodePath>,
    /// The id of its session, if it has one.
    pub(super) session: Option<String>,
    /// The session's folder for what its nodes leave.
    pub(super) artifacts: Option<String>,
    /// The input before parts of it were hashed and redacted: of a hash nobody could take the id of its session.
    whole: Option<Value>,
}

impl KeyedRequest {
    /// A call of a provider.
    pub(super) fn new(provider: &str, input: &Value, env: &Environment, redactor: &Redactor) -> Self {
        // First the paths: of a hash nobody could take one.
        let artifacts = env.get(ARTIFACTS);
        let whole = portable(input.clone(), artifacts);
        let request = Self::of(provider, &normal_form(&whole), redactor)
            .of_session(env.get(SESSION_VARIABLE))
            .with_artifacts(artifacts);
        Self { whole: Some(whole), ..request }
    }

    /// A call with all of its input.
    pub(super) fn of(provider: &str, input: &Value, redactor: &Redactor) -> Self {
        let input = redactor.value(sorted(input));
        let key = hash(&format!("{provider}\n{input}"));
        Self::recorded(provider.to_owned(), input, key)
    }

    /// A call as it is recorded.
    pub(super) fn recorded(provider: String, input: Value, key: String) -> Self {
        Self { provider, input, key, place: None, session: None, artifacts: None, whole: None }
    }

    pub(super) fn at(self, place: Option<NodePath>) -> Self {
        Self { place, ..self }
    }

    pub(super) fn of_session(self, session: Option<&str>) -> Self {
        Self { session: session.map(str::to_owned), ..self }
    }

    pub(super) fn with_artifacts(self, artifacts: Option<&str>) -> Self {
        Self { artifacts: artifacts.map(str::to_owned), ..self }
    }

    /// The keys that the same call can have in another session, if its input has the session's id: with that id in what is
    /// recorded as it is, and in what is hashed too.
    pub(super) fn keys_in(&self, session: &str, redactor: &Redactor) -> impl Iterator<Item = String> {
        let other = |input: &Value| {
            let other = with_id(input.clone(), self.session.as_deref()?, session);
            (other != *input).then_some(other)
        };
        let key = |input: &Value, redactor: &Redactor| Self::of(&self.provider, input, redactor).key;
        let plain = other(&self.input).map(|input| key(&input, &Redactor::default()));
        let whole = self.whole.as_ref().and_then(other).map(|whole| key(&normal_form(&whole), redactor));
        plain.into_iter().chain(whole)
    }
}

/// The environment variable of a node's programs with the id of the session.
pub const SESSION_VARIABLE: &str = "INSPAN_SESSION";

/// The environment variable with the path of the session's folder for what its nodes leave.
const ARTIFACTS: &str = "INSPAN_ARTIFACTS";
/// What replaces that path in a recording.
const NAME: &str = "${INSPAN_ARTIFACTS}";

/// The value with a name instead of the path of that folder, which differs from one session to the next.
pub(super) fn portable<T: Serialize + DeserializeOwned>(value: T, artifacts: Option<&str>) -> T {
    replaced(value, artifacts.map(|folder| (folder, NAME)))
}

/// The value with the path of the folder instead of its name.
pub(super) fn local<T: Serialize + DeserializeOwned>(value: T, artifacts: Option<&str>) -> T {
    replaced(value, artifacts.map(|folder| (NAME, folder)))
}

/// The value with the second of these in each of its texts instead of the first.
fn replaced<T: Serialize + DeserializeOwned>(value: T, parts: Option<(&str, &str)>) -> T {
    let Some((part, other)) = parts else { return value };
    let changed = serde_json::to_value(&value).map(|value| texts(value, &|text| text.replace(part, other)));
    changed.and_then(serde_json::from_value).unwrap_or(value)
}

/// The value with another id in place of this one. An id may be a short word, so a part of a longer word is none.
fn with_id(value: Value, id: &str, other: &str) -> Value {
    texts(value, &|text| {
        let mut parts = text.split(id).peekable();
        let mut changed = String::new();
        while let Some(part) = parts.next() {
            changed.push_str(part);
            let Some(next) = parts.peek() else { break };
            let is_whole = !part.ends_with(char::is_alphanumeric) && !next.starts_with(char::is_alphanumeric);
            changed.push_str(if is_whole { other } else { id });
        }
        changed
    })
}

/// The value with each of its texts changed.
fn texts(value: Value, change: &impl Fn(String) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => items.into_iter().map(|item| texts(item, change)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, texts(value, change))).collect()
        }
        other => other,
    }
}

fn normal_form(input: &Value) -> Value {
    let Value::Object(fields) = input else { return marker(input) };
    let mut normal = keep(fields, FIELDS);
    if let Some(options) = fields.get("options") {
        match options {
            Value::Object(options) => {
                let options = keep(options, OPTIONS);
                if options.is_empty() {
                    normal.remove("options");
                } else {
                    normal.insert("options".to_owned(), Value::Object(options));
                }
            }
            // The form is wrong; the provider will report it.
            other => drop(normal.insert("options".to_owned(), marker(other))),
        }
    }
    Value::Object(normal)
}

fn keep(fields: &Map<String, Value>, allowed: &[&str]) -> Map<String, Value> {
    let kept: BTreeMap<_, _> = fields
        .iter()
        .filter(|(name, value)| !value.is_null() && !LEFT_OUT.contains(&name.as_str()))
        .map(|(name, value)| {
            let value = if allowed.contains(&name.as_str()) { sorted(value) } else { marker(value) };
            (name.clone(), value)
        })
        .collect();
    kept.into_iter().collect()
}

/// The same value with its fields in the order of the alphabet, whatever order the build has.
fn sorted(value: &Value) -> Value {
    let mut value = value.clone();
    value.sort_all_objects();
    value
}

fn marker(value: &Value) -> Value {
    let hash = hash(&sorted(value).to_string());
    Value::from(format!("sha256:{}", &hash[..8]))
}

fn hash(text: &str) -> String {
    let digits =
        |byte: u8| [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]));
    Sha256::digest(text).into_iter().flat_map(digits).collect()
}
