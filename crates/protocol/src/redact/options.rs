//! The secrets that the options of an agent give to programs and servers.

use serde_json::Value;

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
                    Value::Object(pairs) if VARIABLES.contains(&&**key) => given.extend(filled(pairs, env)),
                    Value::Object(pairs) if HEADERS.contains(&&**key) => {
                        for (name, value) in filled(pairs, env) {
                            // `Bearer` and the like are not secret, the word after it is.
                            let word =
                                value.split_once(' ').map(|(_, word)| (name.clone(), word.trim().to_owned()));
                            given.extend(word);
                            given.push((name, value));
                        }
                    }
                    value => collect(value, env, given),
                }
            }
        }
        _ => {}
    }
}

/// The texts among the values. One that names a variable which is not set is none.
fn filled(pairs: &serde_json::Map<String, Value>, env: &Environment) -> Vec<(String, String)> {
    // OpenCode writes `{env:NAME}` for `${NAME}`.
    let text = |value: &str| env.fill(&value.replace("{env:", "${")).ok();
    let pairs = pairs.iter().filter_map(|(name, value)| Some((name.clone(), text(value.as_str()?)?)));
    pairs.collect()
}
