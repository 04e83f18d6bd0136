//! From options to a server: the program, its configuration and its environment.

use std::fmt;
use std::path::PathBuf;

use inspan_protocol::{AgentError, ExecutionContext, Redactor};
use serde_json::{Map, Value, json};

use super::PROGRAM;
use super::options::OpenCodeOptions;
use super::rules::{Rule, rules, settings};
use crate::error::invalid;
use crate::input::{check_max_turns, check_output_schema};
use crate::transport::environment::for_program;
use inspan_transport::directory;

/// The settings that the program takes from its environment, over those of its files.
const SETTINGS: &str = "OPENCODE_CONFIG_CONTENT";
/// The agent that answers unless another one is named.
const AGENT: &str = "build";

/// All that a server is started with but its password. Two turns with the same launch can share one.
#[derive(Clone, PartialEq)]
pub(super) struct OpenCodeLaunch {
    pub(super) program: PathBuf,
    pub(super) environment: Vec<(String, String)>,
    pub(super) cwd: Option<PathBuf>,
    /// What the conversation itself is ruled by, over all that settings files say.
    pub(super) rules: Vec<Rule>,
}

impl fmt::Debug for OpenCodeLaunch {
    /// Without the environment, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
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
        let configuration = configuration(options, &rules, context.host.env.get(SETTINGS))?;
        environment.push((SETTINGS.to_owned(), configuration.to_string()));
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
    given: Option<&str>,
) -> Result<Value, AgentError> {
    let mut settings = json!({
        "autoupdate": false,
        "share": "disabled",
        // It copies the folder before each step so that a person could go back; a flow has its own ways.
        "snapshot": false,
        "permission": settings(rules),
        // The agent learns that a tool was denied, and continues.
        "experimental": { "continue_loop_on_deny": true },
    });
    if let Some(prompt) = &options.system_prompt {
        let agent = options.agent.as_deref().unwrap_or(AGENT);
        settings["agent"] = json!({ agent: { "prompt": prompt } });
    }
    if let Some(servers) = options.mcp_servers.as_ref().filter(|servers| !servers.is_empty()) {
        if let Some((name, _)) = servers.iter().find(|(_, server)| !server.is_object()) {
            return Err(invalid(format!("the MCP server `{name}` is not an object")));
        }
        settings["mcp"] = json!(servers);
    }
    let mut all = match given.map(serde_json::from_str::<Map<String, Value>>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_stand_over_what_the_environment_gives() {
        let options = OpenCodeOptions {
            system_prompt: Some("be brief".to_owned()),
            mcp_servers: Some([("a".to_owned(), json!({ "type": "local" }))].into()),
            ..OpenCodeOptions::default()
        };
        let given = r#"{"model":"a/b","share":"auto","permission":{"bash":"allow"},"mcp":{"b":{}},"agent":{"build":{"steps":3}}}"#;
        let seen = configuration(&options, &rules(&options).unwrap(), Some(given)).unwrap();
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
    fn what_cannot_be_is_refused_before_anything_starts() {
        let no_server = OpenCodeOptions {
            mcp_servers: Some([("a".to_owned(), json!("x"))].into()),
            ..OpenCodeOptions::default()
        };
        let seen = [
            configuration(&OpenCodeOptions::default(), &[], Some("// words")),
            configuration(&no_server, &[], None),
        ]
        .map(|result| result.unwrap_err().to_string());
        let expected = [
            "OPENCODE_CONFIG_CONTENT in the environment is not a JSON object (CONFIG_INVALID)",
            "the MCP server `a` is not an object (CONFIG_INVALID)",
        ];
        assert_eq!(seen, expected);
    }
}
