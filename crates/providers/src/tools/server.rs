//! What the options say of tools, and the MCP servers among it, in the form that Claude Code has for them.
//! Connecting them is left to `mcp.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, Redactor};
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;

/// How long a server may take until it has told its tools, unless the options say otherwise.
const CONNECT: Duration = Duration::from_secs(30);
/// How long one call of a tool may take, unless the options say otherwise.
const CALL: Duration = Duration::from_secs(600);
/// How many servers one turn may have.
const SERVERS: usize = 32;
/// Headers that the transport sets itself.
const OWN_HEADERS: [&str; 4] = ["accept", "mcp-session-id", "mcp-protocol-version", "last-event-id"];

/// The options about tools, as every adapter has them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ToolSettings<'a> {
    /// `allowedTools`
    pub(crate) allowed: Option<&'a [String]>,
    /// `disallowedTools`
    pub(crate) disallowed: Option<&'a [String]>,
    /// `mcpServers`
    pub(crate) mcp_servers: Option<&'a BTreeMap<String, Value>>,
    /// `mcpTimeoutMs`
    pub(crate) mcp_timeout_ms: Option<u64>,
    /// `toolTimeoutMs`
    pub(crate) tool_timeout_ms: Option<u64>,
}

impl ToolSettings<'_> {
    /// How long a server may take until it has told its tools.
    pub(super) fn connect(&self) -> Duration {
        self.mcp_timeout_ms.map_or(CONNECT, Duration::from_millis)
    }

    /// How long one call may take.
    pub(super) fn call(&self) -> Duration {
        self.tool_timeout_ms.map_or(CALL, Duration::from_millis)
    }

    /// The servers in the order of their names.
    pub(super) fn servers(&self, environment: &Environment) -> Result<Vec<McpServer>, AgentError> {
        let Some(servers) = self.mcp_servers else { return Ok(Vec::new()) };
        if servers.len() > SERVERS {
            let message = format!("`mcpServers` has more than {SERVERS} servers");
            return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
        }
        servers.iter().map(|(name, written)| McpServer::read(name, written, environment)).collect()
    }
}

/// One MCP server, its variables filled in. It may hold secrets.
pub(super) struct McpServer {
    pub(super) name: String,
    pub(super) way: Way,
    /// How long one call may take, if the server's own entry says it.
    pub(super) call: Option<Duration>,
    /// Knows what of it must not be told.
    pub(super) redactor: Redactor,
}

/// How a server is reached.
pub(super) enum Way {
    /// As a program of ours.
    Stdio {
        command: String,
        arguments: Vec<String>,
        /// What it sees beside the caller's own environment.
        environment: BTreeMap<String, String>,
    },
    /// Over HTTP.
    Http { url: Url, headers: Vec<(HeaderName, HeaderValue)> },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    #[serde(rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    url: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    timeout: Option<u64>,
}

impl McpServer {
    fn read(name: &str, written: &Value, environment: &Environment) -> Result<Self, AgentError> {
        let invalid = |what: &str| {
            let message = format!("the MCP server `{name}` {what}");
            AgentError::new(ErrorCode::ConfigInvalid, message)
                .with_kind(ErrorKind::McpServer)
                .with("server", name)
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-. ".contains(c);
        if name.trim().is_empty() || name.len() > 64 || name.contains("__") || !name.chars().all(plain) {
            return Err(invalid("needs a name of letters, digits, `.`, `_` and `-`, without `__`"));
        }
        // The words of the parser may quote a value, which may be a secret.
        let unknown = written.as_object().and_then(|entries| {
            const KNOWN: [&str; 7] = ["type", "command", "args", "env", "url", "headers", "timeout"];
            entries.keys().find(|key| !KNOWN.contains(&key.as_str()))
        });
        if let Some(key) = unknown {
            return Err(invalid(&format!("has the key `{key}`, which is not known")));
        }
        let written: Written = serde_json::from_value(written.clone()).map_err(|_| {
            invalid("does not have the form `{ command, args, env }` or `{ type: http, url, headers }`")
        })?;
        let fill = |text: &str| {
            expand(text, environment).map_err(|variable| {
                let message =
                    format!("the MCP server `{name}` needs the variable {variable}, which is not set");
                AgentError::new(ErrorCode::ConfigMissing, message)
                    .with_kind(ErrorKind::McpServer)
                    .with("server", name)
            })
        };
        let kind = match (written.kind.as_deref(), &written.url) {
            (Some(kind), _) => kind,
            (None, Some(_)) => "http",
            (None, None) => "stdio",
        };
        let mut secrets = Vec::new();
        let mut named = Environment::default();
        let way = match kind {
            "stdio" => {
                if written.url.is_some() || written.headers.is_some() {
                    return Err(invalid("is a program and has `url` or `headers`"));
                }
                let command = written.command.as_deref().map(str::trim).filter(|command| !command.is_empty());
                let command = fill(command.ok_or_else(|| invalid("has no `command`"))?)?;
                let arguments =
                    written.args.iter().flatten().map(|text| fill(text)).collect::<Result<_, _>>()?;
                let mut set = BTreeMap::new();
                for (variable, value) in written.env.iter().flatten() {
                    let value = fill(value)?;
                    named = named.with(variable, &value);
                    set.insert(variable.clone(), value);
                }
                Way::Stdio { command, arguments, environment: set }
            }
            "http" | "streamable-http" => {
                if written.command.is_some() || written.args.is_some() || written.env.is_some() {
                    return Err(invalid("is reached over HTTP and has `command`, `args` or `env`"));
                }
                let url = fill(written.url.as_deref().ok_or_else(|| invalid("has no `url`"))?)?;
                let url = Url::parse(url.trim()).ok();
                let url = url
                    .filter(|url| matches!(url.scheme(), "http" | "https"))
                    .ok_or_else(|| invalid("has a `url` that begins with neither http:// nor https://"))?;
                secrets.extend(url.password().map(str::to_owned));
                secrets.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
                let mut headers = Vec::new();
                for (header, value) in written.headers.iter().flatten() {
                    let value = fill(value)?;
                    let known = HeaderName::try_from(header.as_str())
                        .ok()
                        .filter(|name| !OWN_HEADERS.contains(&name.as_str()))
                        .ok_or_else(|| invalid(&format!("has the header `{header}`, which cannot be set")))?;
                    let mut held = HeaderValue::from_str(&value).map_err(|_| {
                        invalid(&format!("has a value for `{header}` that no header can have"))
                    })?;
                    held.set_sensitive(true);
                    headers.push((known, held));
                    // `Bearer` and the like are no secret, the word after it is.
                    secrets.extend(value.split_whitespace().last().map(str::to_owned));
                    secrets.push(value);
                }
                Way::Http { url, headers }
            }
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(invalid(&format!("is of type `{other}`; there are `stdio` and `http` only")));
            }
        };
        let call = written.timeout.map(Duration::from_millis);
        Ok(Self { name: name.to_owned(), way, call, redactor: Redactor::new(&named).with_values(secrets) })
    }
}

/// Fills in `${NAME}` and `${NAME:-otherwise}`; the name of the first that is neither set nor has an otherwise.
fn expand(text: &str, environment: &Environment) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inside, behind)) = after.split_once('}') else { break };
        let (name, otherwise) = match inside.split_once(":-") {
            Some((name, otherwise)) => (name, Some(otherwise)),
            None => (inside, None),
        };
        out.push_str(before);
        out.push_str(environment.get(name).or(otherwise).ok_or_else(|| name.to_owned())?);
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests;
