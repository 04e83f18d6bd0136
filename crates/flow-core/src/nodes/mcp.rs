//! `mcp.call`: calls one tool of an MCP server.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::InputProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::typed;
use crate::{
    diagnostic::closest,
    graph::Effects,
    node::{DescribeNode, NodeTypeInfo},
};

/// The input of `mcp.call`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct McpInput {
    /// The server: a name among the `mcpServers` of the flow.
    pub server: McpEntry,
    /// The tool, by the server's own name for it.
    pub tool: String,
    /// What the tool is given.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// One entry of `mcpServers` with its name, which the compiler puts in the place of the name.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("type" = ["string", "object"]))]
pub struct McpEntry(pub BTreeMap<String, Value>);

/// The output of `mcp.call`.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpOutput {
    /// What the tool gave, as the blocks of the Model Context Protocol: `{type: text, text}`, `{type: image, data,
    /// mimeType}`, ….
    pub content: Vec<Value>,
    /// The texts among them, one in each line.
    pub text: String,
    /// The same as a value, if the tool gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Value>,
    /// Whether the tool says that it failed.
    pub is_error: bool,
}

/// `mcp.call`.
pub struct McpCall;

/// The keys of an entry of `mcpServers`.
pub(crate) const SERVER_KEYS: [&str; 7] = ["type", "command", "args", "env", "url", "headers", "timeout"];

/// The types of servers.
pub(crate) const SERVER_TYPES: [&str; 3] = ["stdio", "http", "streamable-http"];

/// Those that only the programs of some agents know.
pub(crate) const SERVER_TYPES_OF_AGENTS: [&str; 4] = ["sse", "ws", "local", "remote"];

impl DescribeNode for McpCall {
    fn describe(&self) -> NodeTypeInfo {
        let help = "Calls a tool of an MCP server.";
        typed::describe::<McpInput, McpOutput>("mcp.call", "io", help)
    }

    fn name(&self) -> Arc<str> {
        "mcp.call".into()
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        // A name that the compiler did not find was reported by it.
        let entry = input.get("server").and_then(Value::as_object).and_then(|servers| servers.iter().next());
        entry.and_then(|(name, entry)| entry_problem(name, entry)).into_iter().collect()
    }

    fn effects_for(&self, _: &Value) -> Effects {
        // What a tool does is not known, so a call that may have been made is not made again without asking.
        Effects::External
    }
}

/// A problem that an entry of `mcpServers` has for this node alone. Those for every user are reported where it is declared.
fn entry_problem(name: &str, entry: &Value) -> Option<InputProblem> {
    let problem =
        |what: String| Some(InputProblem::new("/server", format!("the MCP server `{name}` {what}")));
    let entry = entry.as_object()?;
    let is_of_agents =
        |key: &&String| !SERVER_KEYS.contains(&key.as_str()) && closest(key, SERVER_KEYS).is_none();
    if let Some(key) = entry.keys().find(is_of_agents) {
        return problem(format!("has the unknown key `{key}`"));
    }
    let kind = entry.get("type").and_then(Value::as_str);
    match kind {
        Some(kind) if SERVER_TYPES_OF_AGENTS.contains(&kind) => {
            problem(format!("has the type `{kind}`; available: stdio, http"))
        }
        _ if ["command", "url"].iter().all(|key| entry.contains_key(*key)) => {
            problem("has both `command` and `url`; keep one".to_owned())
        }
        _ => None,
    }
}
