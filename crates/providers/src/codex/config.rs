//! From values to the program's configuration: overrides as `-c` takes them, and MCP servers in its own form.

use std::collections::BTreeMap;

use inspan_protocol::{AgentError, Environment};
use inspan_transport::filled;
use serde_json::{Map, Value};

use crate::error::{invalid, mcp_not_an_object};

/// The overrides as `key=value`, each value in TOML. Nested objects become dotted keys as far as their keys can be
/// in one, because an object as a value would replace all that the user's own configuration has there.
///
/// # Errors
/// A value that TOML does not have, or an empty key.
pub(super) fn overrides(config: &BTreeMap<String, Value>) -> Result<Vec<String>, AgentError> {
    let mut out = Vec::new();
    for (key, value) in config {
        if key.trim().is_empty() || key.contains('=') {
            return Err(invalid(format!("`config` has the key `{key}`, which names nothing")));
        }
        flatten(key, value, &mut out)?;
    }
    Ok(out)
}

fn flatten(key: &str, value: &Value, out: &mut Vec<String>) -> Result<(), AgentError> {
    match value {
        Value::Object(map) if !map.is_empty() && map.keys().all(|key| is_bare(key)) => {
            map.iter().try_for_each(|(inner, value)| flatten(&format!("{key}.{inner}"), value, out))
        }
        value => {
            let toml = toml(value).ok_or_else(|| {
                invalid(format!("`config.{key}` holds null, which the program's configuration does not have"))
            })?;
            out.push(format!("{key}={toml}"));
            Ok(())
        }
    }
}

/// A value as TOML writes it; `None` for null.
fn toml(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(list) => {
            let list: Option<Vec<_>> = list.iter().map(toml).collect();
            format!("[{}]", list?.join(", "))
        }
        Value::Object(map) => {
            let pairs: Option<Vec<_>> =
                map.iter().map(|(key, value)| Some(format!("{} = {}", quoted(key), toml(value)?))).collect();
            format!("{{{}}}", pairs?.join(", "))
        }
    })
}

/// A text in quotes. TOML knows the same escapes as JSON, and forbids one character more.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn is_bare(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

/// MCP servers in the program's form. The form of Claude Code differs in three words: it names the type, and says
/// `headers`.
///
/// # Errors
/// A server is not an object, or of a type that the program does not have, or needs a variable that is not set.
pub(super) fn mcp_servers(
    servers: &BTreeMap<String, Value>,
    environment: &Environment,
) -> Result<Option<Value>, AgentError> {
    let mut out = Map::new();
    for (name, server) in servers {
        // The program fills in nothing.
        let Value::Object(mut server) = filled(name, server, environment)? else {
            return Err(mcp_not_an_object(name));
        };
        match server.remove("type").as_ref().and_then(Value::as_str) {
            None | Some("stdio" | "http") => {}
            Some(other) => {
                return Err(invalid(format!(
                    "the MCP server `{name}` is of type `{other}`, which Codex does not have"
                )));
            }
        }
        if let Some(headers) = server.remove("headers") {
            server.insert("http_headers".to_owned(), headers);
        }
        out.insert(name.clone(), Value::Object(server));
    }
    Ok((!out.is_empty()).then_some(Value::Object(out)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> BTreeMap<String, Value> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn overrides_are_dotted_as_far_as_they_can_be() {
        let config = map(json!({
            "a.b": 1, "model_providers": { "loop": { "name": "l\"o\no\u{7f}p", "n": 2.5, "on": true, "empty": {} } },
            "list": ["x", [1]], "odd": { "a.b": { "c": "d" } },
        }));
        let expected = [
            "a.b=1",
            "list=[\"x\", [1]]",
            "model_providers.loop.empty={}",
            "model_providers.loop.n=2.5",
            "model_providers.loop.name=\"l\\\"o\\no\\u007fp\"",
            "model_providers.loop.on=true",
            "odd={\"a.b\" = {\"c\" = \"d\"}}",
        ];
        assert_eq!(overrides(&config).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_said_is_refused_by_name() {
        let rows = [
            (json!({ "a": null }), "`config.a` holds null, which the program's configuration does not have"),
            (
                json!({ "a": { "b": [null] } }),
                "`config.a.b` holds null, which the program's configuration does not have",
            ),
            (json!({ " ": 1 }), "`config` has the key ` `, which names nothing"),
            (json!({ "a=b": 1 }), "`config` has the key `a=b`, which names nothing"),
        ];
        for (config, message) in rows {
            assert_eq!(overrides(&map(config)).unwrap_err().message, message);
        }
    }

    #[test]
    fn mcp_servers_of_claude_code_are_understood() {
        let servers = map(json!({
            "one": { "command": "run", "args": ["x", "${NONE:-y}"], "env": { "A": "b" } },
            "two": { "type": "http", "url": "http://127.0.0.1", "headers": { "X": "a ${KEY}" } },
        }));
        let environment: Environment = [("KEY".to_owned(), "secret".to_owned())].into_iter().collect();
        let mcp_servers = |servers: &BTreeMap<String, Value>| mcp_servers(servers, &environment);
        let expected = json!({
            "one": { "command": "run", "args": ["x", "y"], "env": { "A": "b" } },
            "two": { "url": "http://127.0.0.1", "http_headers": { "X": "a secret" } },
        });
        assert_eq!(mcp_servers(&servers).unwrap(), Some(expected));
        assert_eq!(mcp_servers(&BTreeMap::new()).unwrap(), None);
        let sse = mcp_servers(&map(json!({ "s": { "type": "sse", "url": "x" } }))).unwrap_err();
        assert_eq!(sse.message, "the MCP server `s` is of type `sse`, which Codex does not have");
        let unset = mcp_servers(&map(json!({ "s": { "command": "x", "args": ["${NONE}"] } }))).unwrap_err();
        assert_eq!(unset.message, "the MCP server `s` needs the variable NONE, which is not set");
    }
}
