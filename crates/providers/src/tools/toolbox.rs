//! The toolbox of one turn: its tools and their names, and many calls at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use inspan_protocol::{
    AgentError, ErrorCode, ErrorKind, ExecutionContext, PermissionBroker, StreamEvent, ToolSpec,
};
use inspan_transport::{Broken, Close, Connection, Http, McpContext};

use super::ToolSettings;
use super::call::{self, Source, StopSignal, Tool, ToolCall, ToolUpdate};
use super::rules::{Rules, Ruling};
use crate::environment::for_others;

/// Calls of one message that run at once.
const AT_ONCE: usize = 8;
/// The longest name that every vendor takes.
const NAME_LIMIT: usize = 64;
/// Tools that one turn may have.
const TOOLS: usize = 1024;

/// The tools of one turn.
pub(crate) struct Toolbox {
    /// What is offered to the model.
    specs: Vec<ToolSpec>,
    tools: BTreeMap<String, Tool>,
    servers: Vec<Arc<Connection>>,
    permissions: Option<Arc<dyn PermissionBroker>>,
}

impl Toolbox {
    /// Checks the settings and connects the servers; all of them must be there. Warnings come with it.
    pub(crate) async fn open(
        settings: ToolSettings<'_>,
        context: &ExecutionContext,
        http: &Http,
        until: &StopSignal,
    ) -> Result<(Self, Vec<StreamEvent>), Broken> {
        let rules = Rules::new(settings.allowed, settings.disallowed)?;
        let servers = settings.servers(&context.host.env)?;
        let host = host(context)?;
        let around = McpContext {
            program_env: for_others(&context.host.env).into_iter().collect(),
            host: context.host.clone(),
        };
        let mut limits = Vec::new();
        let mut connecting = Vec::new();
        for server in servers {
            limits.push(server.call_limit.unwrap_or_else(|| settings.call()));
            connecting.push(Connection::open_within(settings.connect(), server, &around, http));
        }
        let connected = tokio::select! {
            biased;
            why = until.over() => {
                return Err(match until.cancel.is_cancelled() {
                    true => Broken::Cancelled,
                    false => Broken::Failed(AgentError::new(ErrorCode::Timeout, why).with_kind(ErrorKind::Deadline)),
                });
            }
            connected = join_all(connecting) => connected,
        };
        let connected = connected.into_iter().collect::<Result<Vec<_>, AgentError>>()?;

        let mut toolbox = Self {
            specs: Vec::new(),
            tools: BTreeMap::new(),
            servers: Vec::new(),
            permissions: context.permissions.clone(),
        };
        let mut warnings = Vec::new();
        for (spec, source) in host {
            let tool = Tool { source, ruling: rules.of(&spec.name), limit: settings.call() };
            toolbox.put(spec, tool).map_err(|why| AgentError::new(ErrorCode::ConfigInvalid, why))?;
        }
        let mut flat = BTreeMap::new();
        for (connection, ..) in &connected {
            let name = connection.name();
            if let Some(other) = flat.insert(plain(name), name.to_owned()) {
                let message =
                    format!("the tools of the MCP servers `{other}` and `{name}` would have the same names");
                let error = AgentError::new(ErrorCode::ConfigInvalid, message);
                return Err(error.with_kind(ErrorKind::McpServer).into());
            }
        }
        for ((connection, specs, skipped), limit) in connected.into_iter().zip(limits) {
            let connection = Arc::new(connection);
            warnings.extend(skipped.into_iter().map(|why| warning("mcpToolSkipped", why)));
            for mut spec in specs {
                let name = std::mem::take(&mut spec.name);
                spec.name = format!("mcp__{}__{}", plain(connection.name()), plain(&name));
                let source = Source::Server { server: Arc::clone(&connection), name };
                let tool = Tool { source, ruling: rules.of(&spec.name), limit };
                if let Err(why) = toolbox.put(spec, tool) {
                    warnings.push(warning("mcpToolSkipped", why));
                }
            }
            toolbox.servers.push(connection);
        }
        let names: Vec<String> = toolbox.tools.keys().cloned().collect();
        for (option, rule) in rules.idle(&names) {
            let message = format!("`{option}` names `{rule}`, and there is no such tool");
            warnings.push(warning("unknownTool", message));
        }
        Ok((toolbox, warnings))
    }

    fn put(&mut self, spec: ToolSpec, tool: Tool) -> Result<(), String> {
        let name = &spec.name;
        let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        if name.is_empty() || name.len() > NAME_LIMIT || !letters {
            let name: String = name.chars().take(2 * NAME_LIMIT).collect();
            return Err(format!(
                "a tool cannot be called `{name}`: vendors take 1 to {NAME_LIMIT} letters, digits, `_` and `-`"
            ));
        }
        if self.tools.contains_key(name) {
            return Err(format!("there are two tools `{name}`"));
        }
        if self.tools.len() >= TOOLS {
            return Err(format!("the tool `{name}` is one more than {TOOLS}"));
        }
        if !spec.input_schema.is_object() {
            return Err(format!("the schema of the tool `{name}` is not an object"));
        }
        let ruling = tool.ruling;
        self.tools.insert(name.clone(), tool);
        if ruling != Ruling::Denied {
            self.specs.push(spec);
        }
        Ok(())
    }

    /// The tools that are offered to the model, always in the same order, so that the vendor finds them in its cache.
    /// Names have 1 to 64 letters, digits, `_` and `-`.
    pub(crate) fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    /// Runs all calls of one message, some at once. Each begins with its event and ends with its answer. Nothing runs
    /// before the stream is polled beyond the first events; dropping it stops what runs.
    pub(crate) fn run(&self, calls: Vec<ToolCall>, until: StopSignal) -> BoxStream<'static, ToolUpdate> {
        let begins: Vec<ToolUpdate> = calls.iter().map(|call| ToolUpdate::Event(call.begins())).collect();
        let work: Vec<_> = calls
            .into_iter()
            .map(|call| {
                let tool = self.tools.get(&call.name).cloned();
                call::run_call(call, tool, self.permissions.clone(), until.clone())
            })
            .collect();
        let ran = stream::iter(work).buffer_unordered(AT_ONCE).flat_map(stream::iter);
        stream::iter(begins).chain(ran).boxed()
    }

    /// Warnings about servers that ended early, each once.
    pub(crate) fn lost(&self) -> Vec<StreamEvent> {
        self.servers
            .iter()
            .flat_map(|server| server.noticed())
            .map(|(code, why)| warning(code, why))
            .collect()
    }

    /// Ends the servers and waits until they are gone.
    pub(crate) async fn close(&self, how: Close) {
        join_all(self.servers.iter().map(|server| server.close(how))).await;
    }
}

/// The tools of the program. If describing one panics, the error blames the program.
fn host(context: &ExecutionContext) -> Result<Vec<(ToolSpec, Source)>, AgentError> {
    let spec = |tool: &Arc<dyn inspan_protocol::DynHostTool>| {
        let tool = Arc::clone(tool);
        let spec = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tool.spec()));
        let spec =
            spec.map_err(|_| AgentError::new(ErrorCode::ConfigInvalid, "a tool of the program panicked"))?;
        if spec.name.starts_with("mcp__") {
            let message =
                format!("a tool of the program is called `{}`, which names one of a server", spec.name);
            return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
        }
        Ok((spec, Source::Host(tool)))
    };
    context.host.tools.iter().map(spec).collect()
}

/// A name as tools may have it.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' }).collect()
}

fn warning(code: &str, message: String) -> StreamEvent {
    StreamEvent::warning(code, message)
}
