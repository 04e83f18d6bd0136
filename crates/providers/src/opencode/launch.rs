//! From options to a server: the program, its configuration and its environment.

use std::path::PathBuf;

use inspan_protocol::{AgentError, Environment, ExecutionContext, Redactor};
use serde_json::{Map, Value, json};

use super::PROGRAM;
use super::options::OpenCodeOptions;
use super::rules::{Rule, rules, settings};
use crate::environment::{ProgramEnvironment, for_program};
use crate::error::{invalid, mcp_not_an_object, mcp_without_transport};
use crate::input::{check_max_turns, check_output_schema};
use inspan_transport::{directory, filled};

/// The settings that the program takes from its environment, over those of its files.
const SETTINGS: &str = "OPENCODE_CONFIG_CONTENT";
/// Stands for the brace of `{env:NAME}` and `{file:PATH}` where the program is not to fill these in. No text has it: it is
/// no character.
const BRACE: &str = "\u{fdd0}";
/// The agent that answers unless another one is named.
const AGENT: &str = "build";

/// All that a server is started with but its password. Two turns with the same launch can share one.
#[derive(Clone, PartialEq)]
pub(super) struct OpenCodeLaunch {
    pub(super) program: PathBuf,
    pub(super) environment: ProgramEnvironment,
    pub(super) cwd: Option<PathBuf>,
    /// What the conversation itself is ruled by, over all that settings files say.
    pub(super) rules: Vec<Rule>,
}

impl OpenCodeLaunch {
    /// Checks the options and makes the server's configuration.
    pub(super) fn new(options: &OpenCodeOptions, context: &ExecutionContext) -> Result<Self, AgentError> {
        check_max_turns(options.max_turns)?;
        check_output_schema(options.output_schema.as_ref())?;
        let cwd = directory(options.cwd.as_deref(), context.host.cwd.as_deref())?;
        let program = PROGRAM.find(options.executable.as_deref(), &context.host.env, cwd.as_deref())?;
        let rules = rules(options)?;
        let mut environment = for_program(&context.host.env, &PROGRAM.variables);
        environment.retain(|(name, _)| name != SETTINGS && name != "OPENCODE_DISABLE_AUTOUPDATE");
        let env = &context.host.env;
        let configuration = configuration(options, &rules, env)?;
        environment.push((SETTINGS.to_owned(), text_of(&configuration)));
        // A program that updates itself is not the one tested.
        environment.push(("OPENCODE_DISABLE_AUTOUPDATE".to_owned(), "1".to_owned()));
        Ok(Self { program, environment, cwd, rules })
    }

    /// Takes the secrets of this server out of a text.
    pub(super) fn redactor(&self, password: &str) -> Redactor {
        let secret = ("OPENCODE_SERVER_PASSWORD".to_owned(), password.to_owned());
        Redactor::new(&self.environment.iter().cloned().chain([secret]).collect())
    }
}

/// The settings of the server: those that the caller's environment has, and ours over them.
fn configuration(
    options: &OpenCodeOptions,
    rules: &[Rule],
    environment: &Environment,
) -> Result<Value, AgentError> {
    let mut settings = json!({
        "autoupdate": false,
        "share": "disabled",
        // It copies the folder before each step so that a person could go back; a flow has its own ways.
        "snapshot": false,
        "permission": settings(rules),
        // The agent is informed that a tool was denied, and continues.
        "experimental": { "continue_loop_on_deny": true },
    });
    if let Some(prompt) = &options.system_prompt {
        let agent = options.agent.as_deref().unwrap_or(AGENT);
        settings["agent"] = json!({ agent: { "prompt": prompt } });
    }
    // What a flow says may come from an agent, which could name a secret or a file.
    settings = as_it_is(&settings)?;
    if let Some(servers) = options.mcp_servers.as_ref().filter(|servers| !servers.is_empty()) {
        let servers =
            servers.iter().map(|(name, given)| Ok((name.clone(), server(name, given, environment)?)));
        settings["mcp"] = Value::Object(servers.collect::<Result<_, AgentError>>()?);
    }
    let mut all = match environment.get(SETTINGS).map(serde_json::from_str::<Map<String, Value>>) {
        None => Map::new(),
        Some(Ok(given)) => given,
        Some(Err(_)) => return Err(invalid(format!("{SETTINGS} in the environment is not a JSON object"))),
    };
    // Rules given there would mix with ours.
    all.remove("permission");
    let mut all = Value::Object(all);
    merge(&mut all, settings);
    Ok(all)
}

/// A value in whose texts the program fills nothing in.
fn as_it_is(value: &Value) -> Result<Value, AgentError> {
    let text = value.to_string();
    let kept = ["env:", "file:"]
        .iter()
        .fold(text, |text, name| text.replace(&format!("{{{name}"), &format!("{BRACE}{name}")));
    serde_json::from_str(&kept).map_err(|error| invalid(error.to_string()))
}

/// The text of the settings. The program looks for what it fills in before it reads the JSON, so an escaped brace is none.
fn text_of(settings: &Value) -> String {
    settings.to_string().replace(BRACE, "\\u007b")
}

/// Puts `over` over `under`, objects by their keys.
fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                merge(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

/// An MCP server in the program's form, given in that form or in the one of Claude Code, in which flows have theirs: `command`
/// with `args` and `env`, or `url` of the type `http` or `sse`.
fn server(name: &str, given: &Value, environment: &Environment) -> Result<Value, AgentError> {
    let Some(given) = given.as_object() else {
        return Err(mcp_not_an_object(name));
    };
    let kind = given.get("type").and_then(Value::as_str);
    if matches!(kind, Some("local" | "remote")) {
        return Ok(Value::Object(given.clone()));
    }
    let given = filled(name, &Value::Object(given.clone()), environment)?;
    let mut server = match (kind, given["command"].as_str(), given["url"].as_str()) {
        (None | Some("stdio"), Some(command), _) => {
            let arguments = given["args"].as_array().cloned().unwrap_or_default();
            let command: Vec<Value> = [json!(command)].into_iter().chain(arguments).collect();
            json!({ "type": "local", "command": command, "environment": given["env"] })
        }
        (None | Some("http" | "sse"), None, Some(url)) => {
            json!({ "type": "remote", "url": url, "headers": given["headers"] })
        }
        _ => return Err(mcp_without_transport(name)),
    };
    server["timeout"] = given["timeout"].clone();
    if let Some(server) = server.as_object_mut() {
        server.retain(|_, value| !value.is_null());
    }
    as_it_is(&server)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<const N: usize>(variables: [(&str, &str); N]) -> Environment {
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect()
    }

    #[test]
    fn ours_stand_over_what_the_environment_gives() {
        let options = OpenCodeOptions {
            system_prompt: Some("be brief".to_owned()),
            mcp_servers: Some([("a".to_owned(), json!({ "type": "local" }))].into()),
            ..OpenCodeOptions::default()
        };
        let given = environment([(
            SETTINGS,
            r#"{"model":"a/b","share":"auto","permission":{"bash":"allow"},"mcp":{"b":{}},"agent":{"build":{"steps":3}}}"#,
        )]);
        let seen = configuration(&options, &rules(&options).unwrap(), &given).unwrap();
        assert_eq!(
            [&seen["model"], &seen["share"], &seen["permission"]["bash"], &seen["mcp"], &seen["agent"]],
            [
                &json!("a/b"),
                &json!("disabled"),
                &json!("ask"),
                &json!({ "a": { "type": "local" }, "b": {} }),
                &json!({ "build": { "steps": 3, "prompt": "be brief" } }),
            ]
        );
    }

    #[test]
    fn only_what_the_program_itself_is_told_is_filled_in_by_it() {
        let named = "{env:TOKEN} {file:/etc/passwd} {{env:A}}";
        let servers = json!({ "a": { "command": named, "env": { named: named } }, "b": { "type": "local", "x": "{env:B}" } });
        let options = OpenCodeOptions {
            system_prompt: Some(named.to_owned()),
            mcp_servers: serde_json::from_value(servers).unwrap(),
            ..OpenCodeOptions::default()
        };
        let given = environment([(SETTINGS, r#"{"model":"{env:MODEL}"}"#)]);
        let text = text_of(&configuration(&options, &[], &given).unwrap());
        let filled: Vec<_> =
            text.split("{env:").skip(1).chain(text.split("{file:").skip(1)).map(|rest| &rest[..2]).collect();
        assert_eq!(filled, ["B}", "MO"]);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["agent"]["build"]["prompt"], named);
        let server = json!({ "type": "local", "command": [named], "environment": { named: named } });
        assert_eq!(read["mcp"], json!({ "a": server, "b": { "type": "local", "x": "{env:B}" } }));
    }

    #[test]
    fn servers_are_given_in_the_form_of_flows_too() {
        let local = json!({
            "command": "node", "args": ["s.js", "${ROOT:-/srv}", "${A:-b}"], "env": { "TOKEN": "${TOKEN}" }, "timeout": 5000,
        });
        let remote = json!({ "type": "http", "url": "https://x/mcp", "headers": { "Authorization": "Bearer ${KEY}" } });
        let own = json!({ "type": "remote", "url": "https://{env:HOST}/" });
        let rows = [
            (
                local,
                json!({
                    "type": "local", "command": ["node", "s.js", "/srv", "a"], "timeout": 5000,
                    "environment": { "TOKEN": "t-1" },
                }),
            ),
            (
                remote,
                json!({ "type": "remote", "url": "https://x/mcp", "headers": { "Authorization": "Bearer k-1" } }),
            ),
            (own.clone(), own),
        ];
        let set = environment([("A", "a"), ("TOKEN", "t-1"), ("KEY", "k-1")]);
        for (given, expected) in rows {
            assert_eq!(server("s", &given, &set).unwrap(), expected);
        }
        let refused = [json!({ "type": "http" }), json!({ "command": "${NONE}" })]
            .map(|given| server("s", &given, &set).unwrap_err().message);
        let expected = [
            "the MCP server `s` has neither a `command`, nor a `url` with the type `http` or `sse`",
            "the MCP server `s` needs the variable NONE, which is not set",
        ];
        assert_eq!(refused, expected);
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_starts() {
        let no_server = OpenCodeOptions {
            mcp_servers: Some([("a".to_owned(), json!("x"))].into()),
            ..OpenCodeOptions::default()
        };
        let seen = [
            configuration(&OpenCodeOptions::default(), &[], &environment([(SETTINGS, "// words")])),
            configuration(&no_server, &[], &Environment::default()),
        ]
        .map(|result| result.unwrap_err().to_string());
        let expected = [
            "OPENCODE_CONFIG_CONTENT in the environment is not a JSON object (CONFIG_INVALID)",
            "the MCP server `a` is not an object (CONFIG_INVALID)",
        ];
        assert_eq!(seen, expected);
    }
}
