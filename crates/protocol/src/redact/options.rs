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

/// The texts among the values: as they are written, which is what some programs are given, and filled in. One that names a
/// variable which is not set cannot be filled in.
fn filled(pairs: &serde_json::Map<String, Value>, env: &Environment) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for (name, value) in pairs.iter().filter_map(|(name, value)| Some((name, value.as_str()?))) {
        // OpenCode writes `{env:NAME}` for `${NAME}`.
        let written = value.replace("{env:", "${");
        if has_own_word(&written) {
            texts.push((name.clone(), value.to_owned()));
        }
        texts.extend(
            env.fill(&written).ok().filter(|filled| filled != value).map(|text| (name.clone(), text)),
        );
    }
    texts
}

/// Whether the last word of a text is more than names of variables, which are no secrets.
fn has_own_word(written: &str) -> bool {
    let mut rest = written.rsplit(' ').next().unwrap_or_default().to_owned();
    while let Some(start) = rest.find("${")
        && let Some(end) = rest[start..].find('}')
    {
        rest.replace_range(start..=start + end, "");
    }
    !rest.is_empty()
}
