//! `mcp.call`: starts or reaches the server, calls the tool, and ends the server, or gives the same from a recording.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use inspan_flow_core::{McpInput, McpOutput, read_input, write_output};
use inspan_protocol::{AgentError, ErrorCode, ErrorKind, is_too_deep};
use inspan_transport::{Close, Connection, Http, McpContext, McpResult, McpServer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::node::{DynNodeType, NodeContext};

/// How long a server may take until it has listed its tools.
const CONNECT: Duration = Duration::from_secs(30);
/// How long a call may take, unless the entry of the server says otherwise.
const CALL: Duration = Duration::from_secs(600);
/// The largest result, in bytes.
const RESULT_LIMIT: usize = 8 << 20;

/// `mcp.call`, with the connections of all such nodes to servers that are reached over HTTP.
#[derive(Default)]
pub(super) struct McpNode(Http);

impl DynNodeType for McpNode {
    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'_, Result<Value, AgentError>> {
        async move {
            let McpInput { server, tool, arguments } = read_input(input)?;
            let (name, entry) = server.0.into_iter().next().ok_or_else(|| {
                AgentError::new(ErrorCode::ConfigInvalid, "`server` names none of the flow's `mcpServers`")
            })?;
            let recorded = json!({ "server": name, "tool": tool, "arguments": arguments });
            let call = context.node_call("mcp.call", recorded);
            let made = make(&self.0, &context, &name, &entry, &tool, arguments);
            let (Called { content, structured_content, is_error }, _) =
                context.call(call, made, write_output).await?;
            let texts: Vec<&str> = content.iter().filter_map(|block| block["text"].as_str()).collect();
            let text = texts.join("\n");
            write_output(&McpOutput { text, content, structured_content, is_error })
        }
        .boxed()
    }
}

/// What a tool gave: the form in which it is recorded.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Called {
    content: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    structured_content: Option<Value>,
    is_error: bool,
}

async fn make(
    http: &Http,
    context: &NodeContext,
    name: &str,
    entry: &Value,
    tool: &str,
    arguments: Map<String, Value>,
) -> Result<Called, AgentError> {
    let server = McpServer::read(name, entry, &context.host.env)?;
    let limit = server.call_limit.unwrap_or(CALL);
    let around = McpContext { program_env: context.program_env()?.clone(), host: context.host.clone() };
    let opened = tokio::select! {
        biased;
        () = context.cancel.cancelled() => return Err(context.aborted()),
        opened = Connection::open_within(CONNECT, server, &around, http) => opened,
    };
    let (connection, tools, _) = opened?;
    let known = tools.iter().any(|known| known.name == tool);
    let called = if known {
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => Err(context.aborted()),
            called = timeout(limit, connection.call_tool(tool, arguments)) => called.unwrap_or_else(|_| {
                let message = format!("the tool `{tool}` of the MCP server `{name}` took longer than {limit:?}");
                Err(AgentError::new(ErrorCode::Timeout, message))
            }),
        }
    } else {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).take(50).collect();
        let known =
            if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
        let message = format!("the MCP server `{name}` has no tool `{tool}`; {known}");
        Err(AgentError::new(ErrorCode::ConfigInvalid, message)
            .with_kind(ErrorKind::McpServer)
            .with("server", name))
    };
    let how = if called.is_ok() { Close::Gently } else { Close::AtOnce };
    connection.close(how).await;
    bounded(called?, name)
}

fn bounded(result: McpResult, name: &str) -> Result<Called, AgentError> {
    let McpResult { content, structured, is_error } = result;
    let called = Called { content, structured_content: structured, is_error };
    let whole = serde_json::to_value(&called).unwrap_or_default();
    let why = if whole.to_string().len() > RESULT_LIMIT {
        format!("is over {} MiB", RESULT_LIMIT >> 20)
    } else if is_too_deep(&whole) {
        "is nested too deep".to_owned()
    } else {
        return Ok(called);
    };
    Err(AgentError::new(ErrorCode::Protocol, format!("the result of the MCP server `{name}` {why}")))
}

#[cfg(test)]
mod tests;
