//! The secrets that the options of an agent give to programs and servers.

use serde_json::{Map, Value};

use super::Redactor;
use crate::Environment;

/// What has variables of a program, in the words of flows and of OpenCode.
const VARIABLES: [&str; 2] = ["env", "environment"];
/// What has headers, in the words of flows and of Codex.
const HEADERS: [&str; 2] = ["headers", "http_headers"];

impl Redactor {
    /// As [`Redactor::new`], with the secrets in the options of an agent's input: of what stands under `env` and `headers` there, as
    /// in each of `mcpServers`, the values whose names say so. `${NAME}` in such a value is a variable of the environment.
    pub fn of_call(env: &Environment, input: &Value) -> Self {
        let mut given = Vec::new();
        if let Some(options) = input.get("options") {
            collect(options, env, &mut given);
        }
        Self::new(env).with_variables(given.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }
}

fn collect(options: &Value, env: &Environment, given: &mut Vec<(String, String)>) {
    match options {
        Value::Array(items) => items.iter().for_each(|item| collect(item, env, given)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::Object(pairs) if VARIABLES.contains(&&**key) => {
                        for (name, value) in texts(pairs) {
                            given.extend(forms(value, env).map(|form| (name.clone(), form)));
                        }
                    }
                    Value::Object(pairs) if HEADERS.contains(&&**key) => {
                        for (name, value) in texts(pairs) {
                            // `Bearer` and the like are not secret, the word after it is.
                            let word = value.split_once(' ').map(|(_, word)| word.trim());
                            for secret in word.into_iter().chain([value]) {
                                given.extend(forms(secret, env).map(|form| (name.clone(), form)));
                            }
                        }
                    }
                    value => collect(value, env, given),
                }
            }
        }
        _ => {}
    }
}

/// The texts among the values.
fn texts(pairs: &Map<String, Value>) -> impl Iterator<Item = (&String, &str)> {
    pairs.iter().filter_map(|(name, value)| Some((name, value.as_str()?)))
}

/// A value with its variables filled in, if they are set, and as it is written: some programs are given it like that.
fn forms(value: &str, env: &Environment) -> impl Iterator<Item = String> {
    // OpenCode writes `{env:NAME}` for `${NAME}`.
    let text = value.replace("{env:", "${");
    let written = (!only_names(&text)).then(|| value.to_owned());
    env.fill(&text).ok().into_iter().chain(written)
}

/// Whether a text only names variables, such as `${TOKEN}` or `Bearer ${TOKEN}`. Such words are no secret.
fn only_names(text: &str) -> bool {
    let names = text.strip_prefix("Bearer ").or_else(|| text.strip_prefix("Basic ")).unwrap_or(text);
    let name = |part: &str| {
        part.strip_suffix('}').is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
    };
    let mut parts = names.split("${");
    parts.next() == Some("") && parts.all(name)
}
