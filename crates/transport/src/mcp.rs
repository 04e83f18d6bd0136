//! One MCP server for the length of a turn: connected, its tools listed, called, ended. The crate `rmcp`
//! implements the protocol; the processes, the bounds and the names of faults are ours.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use inspan_protocol::{
    AgentError, ContentBlock, Environment, ErrorCode, ErrorKind, Host, Redactor, ToolError, ToolOutput,
    ToolSpec,
};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig,
    Implementation, PaginatedRequestParams, ProtocolVersion, ResourceContents,
};
use rmcp::service::{Peer, RoleClient, RunningService, ServiceError, serve_client};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::NeverRetry;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::Http;

mod fault;
mod message;
mod pipe;
mod server;

use message::{Remote, UNREADABLE};
use pipe::{Pipe, PipeStatus};
use server::Transport;
pub use server::{McpServer, filled};

/// Pages of tools that one server may list.
const PAGES: usize = 64;
/// How long a server may take to end when it is asked to.
const ENDING: Duration = Duration::from_millis(2500);
/// How long a killed one may take to vanish.
const VANISHING: Duration = Duration::from_secs(5);

/// How servers are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// They are asked to, and killed after some seconds.
    Gently,
    /// They are killed.
    AtOnce,
}

/// What surrounds a server.
#[derive(Clone, Debug, Default)]
pub struct McpContext {
    /// What a server that is a program sees, beside what its entry sets.
    pub program_env: Environment,
    /// The program that calls the server.
    pub host: Arc<Host>,
}

/// What a call of a tool gave, in the server's own words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct McpResult {
    /// The blocks of its content, as the Model Context Protocol has them.
    pub content: Vec<Value>,
    /// The same as JSON.
    pub structured: Option<Value>,
    /// Whether the tool says that it failed.
    pub is_error: bool,
}

/// A connected server. Dropping it kills it.
pub struct Connection {
    name: String,
    peer: Peer<RoleClient>,
    service: Mutex<Option<RunningService<RoleClient, ClientConfig>>>,
    /// What is known of its process, for one that is a program.
    watch: Option<Arc<PipeStatus>>,
    redactor: Redactor,
}

impl Connection {
    /// Connects a server and asks it for its tools: those, in the order of their names, and what was skipped.
    ///
    /// # Errors
    /// If it cannot be reached or started, speaks no MCP, or has not listed its tools within `limit`.
    pub async fn open_within(
        limit: Duration,
        server: McpServer,
        context: &McpContext,
        http: &Http,
    ) -> Result<(Self, Vec<ToolSpec>, Vec<String>), AgentError> {
        let name = server.name.clone();
        timeout(limit, Self::open(server, context, http)).await.unwrap_or_else(|_| {
            let message = format!("the MCP server `{name}` listed no tools within {} ms", limit.as_millis());
            let error = AgentError::new(ErrorCode::Timeout, message);
            Err(error.with_kind(ErrorKind::McpServer).with("server", name))
        })
    }

    async fn open(
        server: McpServer,
        context: &McpContext,
        http: &Http,
    ) -> Result<(Self, Vec<ToolSpec>, Vec<String>), AgentError> {
        let McpServer { name, transport, redactor, .. } = server;
        let named = |error: AgentError| {
            let message = format!("the MCP server `{name}` {}", error.message);
            AgentError { message: redactor.text(&message), ..error }
                .with_kind(ErrorKind::McpServer)
                .with("server", name.as_str())
        };
        let us = ClientConfig::new(
            ClientCapabilities::default(),
            Implementation::new("inspan", env!("CARGO_PKG_VERSION")),
        )
        .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE);
        let (service, watch) = match transport {
            Transport::Stdio { command, arguments, environment } => {
                let pipe =
                    Pipe::start(&command, arguments, environment, context, &redactor).await.map_err(named)?;
                let watch = pipe.watch();
                let served = serve_client(us, pipe).await;
                (served.map_err(|error| watch.fault().unwrap_or_else(|| fault::begin(&error))), Some(watch))
            }
            Transport::Http { url, headers } => {
                let client = http.client(&context.host.env).map_err(named)?;
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    .custom_headers(headers.into_iter().collect::<HashMap<_, _>>())
                    // What was posted may have been done, and a call is never made twice.
                    .reinit_on_expired_session(false);
                config.retry_config = Arc::new(NeverRetry::default());
                let served =
                    serve_client(us, StreamableHttpClientTransport::with_client(Remote(client), config))
                        .await;
                (served.map_err(|error| fault::begin(&error)), None)
            }
        };
        let service = service.map_err(named)?;
        let connection = Self {
            peer: service.peer().clone(),
            service: Mutex::new(Some(service)),
            watch,
            redactor: redactor.clone(),
            name: name.clone(),
        };
        let listed = connection.tools().await;
        let fault = |error: ServiceError| connection.fault().unwrap_or_else(|| fault::request(&error));
        match listed {
            Ok((specs, skipped)) => Ok((connection, specs, skipped)),
            Err(error) => Err(named(fault(error))),
        }
    }

    /// The server's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes the server's secrets from texts.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    async fn tools(&self) -> Result<(Vec<ToolSpec>, Vec<String>), ServiceError> {
        let offers = self.peer.peer_info().is_some_and(|info| info.capabilities.tools.is_some());
        if !offers {
            let why = format!("the MCP server `{}` says that it has no tools", self.name);
            return Ok((Vec::new(), vec![why]));
        }
        let mut specs = Vec::new();
        let mut cursor = None;
        for _ in 0..PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let page = self.peer.list_tools(Some(page)).await?;
            specs.extend(page.tools.into_iter().map(|tool| ToolSpec {
                description:
                    tool.description.or_else(|| tool.title.map(Into::into)).unwrap_or_default().into_owned(),
                name: tool.name.into_owned(),
                input_schema: Value::Object((*tool.input_schema).clone()),
            }));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        let mut skipped = Vec::new();
        if cursor.is_some() {
            skipped.push(format!("the MCP server `{}` lists more than {PAGES} pages of tools", self.name));
        }
        specs.sort_by(|one, other| one.name.cmp(&other.name));
        Ok((specs, skipped))
    }

    /// Calls a tool by the server's own name for it. Dropping the future makes the server stop.
    pub async fn call(&self, tool: &str, input: Value) -> Result<ToolOutput, ToolError> {
        let Value::Object(arguments) = input else {
            return Err("the arguments are not a JSON object".into());
        };
        match self.ask(tool, arguments).await {
            Ok(result) => output(result),
            Err(error) => Err(error.message.into()),
        }
    }

    /// As [`Connection::call`]; returns the raw result of the server, without its secrets.
    ///
    /// # Errors
    /// The server refuses the call, is gone, or answers with something else.
    pub async fn call_tool(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
    ) -> Result<McpResult, AgentError> {
        let result = self.ask(tool, arguments).await.map_err(|error| {
            error.with_kind(ErrorKind::McpServer).with("server", self.name.as_str()).with("tool", tool)
        })?;
        let blocks = result.content.iter().map(|block| serde_json::to_value(block).unwrap_or_default());
        Ok(McpResult {
            content: blocks.map(|block| self.redactor.value(block)).collect(),
            structured: result.structured_content.map(|value| self.redactor.value(value)),
            is_error: result.is_error == Some(true),
        })
    }

    async fn ask(&self, tool: &str, arguments: Map<String, Value>) -> Result<CallToolResult, AgentError> {
        let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match self.peer.call_tool_once(request).await {
            Ok(CallToolResponse::Complete(result)) => Ok(result),
            Ok(_) => {
                let message = "the tool requests what is not offered here: input, or time beyond the turn";
                Err(AgentError::new(ErrorCode::Protocol, message))
            }
            Err(ServiceError::McpError(error)) if error.code != UNREADABLE => {
                Err(AgentError::new(ErrorCode::InvalidRequest, self.redactor.text(&error.message)))
            }
            Err(error) => {
                let error = self.fault().unwrap_or_else(|| fault::request(&error));
                let message = format!(
                    "the MCP server `{}` {}. Whether the call was carried out is not known",
                    self.name, error.message
                );
                Err(AgentError { message: self.redactor.text(&message), ..error })
            }
        }
    }

    fn fault(&self) -> Option<AgentError> {
        self.watch.as_ref()?.fault()
    }

    /// What is to be warned of since the last time: a code and what happened.
    pub fn noticed(&self) -> Vec<(&'static str, String)> {
        let noticed = self.watch.as_ref().map(|watch| watch.noticed()).unwrap_or_default();
        let tell = |what: String| self.redactor.text(&format!("the MCP server `{}` {what}", self.name));
        noticed.into_iter().map(|(code, what)| (code, tell(what))).collect()
    }

    /// Ends it, and waits until it is gone.
    pub async fn close(&self, how: Close) {
        let Some(mut service) = self.service.lock().await.take() else { return };
        let hurry = self.watch.as_ref().map(|watch| watch.hurry());
        if how == Close::Gently && matches!(service.close_with_timeout(ENDING).await, Ok(Some(_))) {
            return;
        }
        if let Some(hurry) = hurry {
            hurry.cancel();
        }
        // Where it was asked to end before, its end is waited for by its watch alone.
        let _ended = service.close_with_timeout(VANISHING).await;
        if let Some(watch) = &self.watch {
            let _gone = timeout(VANISHING, watch.gone()).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.hurry().cancel();
        }
    }
}

/// What a server gives, in our words.
fn output(result: CallToolResult) -> Result<ToolOutput, ToolError> {
    let content: Vec<ContentBlock> = result.content.into_iter().map(block).collect();
    if result.is_error == Some(true) {
        let message = inspan_protocol::Content::Blocks(content).text();
        let structured = result.structured_content.map(|value| value.to_string());
        let reason = Some(message).filter(|message| !message.trim().is_empty()).or(structured);
        return Err(reason.unwrap_or_else(|| "the tool failed and does not say why".to_owned()).into());
    }
    Ok(ToolOutput { content, structured: result.structured_content })
}

fn block(block: rmcp::model::ContentBlock) -> ContentBlock {
    use rmcp::model::ContentBlock as Theirs;
    let text = |text: String| ContentBlock::Text { text };
    match block {
        Theirs::Text(block) => text(block.text),
        Theirs::Image(image) => ContentBlock::Image { media_type: image.mime_type, data: image.data },
        Theirs::Audio(audio) => {
            // No model here takes audio; it is left out with a note when the result is cut to size.
            ContentBlock::Document { media_type: audio.mime_type, data: audio.data, title: None }
        }
        Theirs::ResourceLink(link) => text(format!("[resource {}: {}]", link.name, link.uri)),
        Theirs::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { uri, text: contents, .. } => {
                text(format!("[resource {uri}]\n{contents}"))
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let media_type = mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
                match media_type.split('/').next() {
                    Some("image") => ContentBlock::Image { media_type, data: blob },
                    _ => ContentBlock::Document { media_type, data: blob, title: Some(uri) },
                }
            }
            _ => text("[a resource of an unknown kind]".to_owned()),
        },
        _ => text("[a block of an unknown kind]".to_owned()),
    }
}
