//! The entries of `mcpServers`, in the form that Claude Code has for them.

use std::collections::BTreeMap;
use std::time::Duration;

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, Redactor};
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;

/// How many servers one list may have.
const SERVERS: usize = 32;
/// Shorter steps of an address are names and versions.
const SHORTEST_KEY: usize = 12;
/// Headers that the transport sets itself.
const OWN_HEADERS: [&str; 4] = ["accept", "mcp-session-id", "mcp-protocol-version", "last-event-id"];

/// One MCP server, its variables filled in. It may hold secrets.
pub struct McpServer {
    /// Its name.
    pub name: String,
    pub(super) transport: Transport,
    /// How long one call may take, if the entry of the server says it.
    pub call_limit: Option<Duration>,
    /// Removes its secrets from texts.
    pub(super) redactor: Redactor,
}

/// How a server is reached.
pub(super) enum Transport {
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
struct ServerEntry {
    #[serde(rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    url: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    timeout: Option<u64>,
}

/// Reads one entry of `mcpServers`.
struct EntryReader<'a> {
    name: &'a str,
    environment: &'a Environment,
}

impl McpServer {
    /// The servers in the order of their names.
    ///
    /// # Errors
    /// An entry does not have the form, or names a variable that is not set.
    pub fn read_all(
        servers: &BTreeMap<String, Value>,
        environment: &Environment,
    ) -> Result<Vec<Self>, AgentError> {
        if servers.len() > SERVERS {
            let message = format!("`mcpServers` has more than {SERVERS} servers");
            return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
        }
        servers.iter().map(|(name, written)| Self::read(name, written, environment)).collect()
    }

    /// One server of this name.
    ///
    /// # Errors
    /// As [`McpServer::read_all`].
    pub fn read(name: &str, value: &Value, environment: &Environment) -> Result<Self, AgentError> {
        let reader = EntryReader { name, environment };
        let entry = reader.entry(value)?;
        let kind = match (entry.kind.as_deref(), &entry.url) {
            (Some(kind), _) => kind,
            (None, Some(_)) => "http",
            (None, None) => "stdio",
        };
        let (transport, redactor) = match kind {
            "stdio" => reader.stdio(&entry)?,
            "http" | "streamable-http" => reader.http(&entry)?,
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(
                    reader.invalid(&format!("is of type `{other}`; there are `stdio` and `http` only"))
                );
            }
        };
        let call_limit = entry.timeout.map(Duration::from_millis);
        Ok(Self { name: name.to_owned(), transport, call_limit, redactor })
    }
}

/// The entry of an MCP server with the variables of all its texts filled in: `${NAME}`, and `${NAME:-otherwise}`.
///
/// # Errors
/// A variable is not set.
pub fn filled(name: &str, entry: &Value, environment: &Environment) -> Result<Value, AgentError> {
    Ok(match entry {
        Value::String(text) => Value::from(fill(name, text, environment)?),
        Value::Array(items) => {
            items.iter().map(|item| filled(name, item, environment)).collect::<Result<_, _>>()?
        }
        Value::Object(fields) => {
            let filled = |(key, value): (&String, &Value)| {
                filled(name, value, environment).map(|value| (key.clone(), value))
            };
            Value::Object(fields.iter().map(filled).collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}

fn fill(name: &str, text: &str, environment: &Environment) -> Result<String, AgentError> {
    environment.fill(text).map_err(|variable| {
        let message = format!("the MCP server `{name}` needs the variable {variable}, which is not set");
        error(name, ErrorCode::ConfigMissing, message)
    })
}

fn error(name: &str, code: ErrorCode, message: String) -> AgentError {
    AgentError::new(code, message).with_kind(ErrorKind::McpServer).with("server", name)
}

impl EntryReader<'_> {
    fn error(&self, code: ErrorCode, message: String) -> AgentError {
        error(self.name, code, message)
    }

    fn invalid(&self, what: &str) -> AgentError {
        self.error(ErrorCode::ConfigInvalid, format!("the MCP server `{}` {what}", self.name))
    }

    /// A text with its variables filled in.
    fn fill(&self, text: &str) -> Result<String, AgentError> {
        fill(self.name, text, self.environment)
    }

    fn entry(&self, value: &Value) -> Result<ServerEntry, AgentError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-. ".contains(c);
        let name = self.name;
        // The name of a tool is `mcp__SERVER__TOOL`, with `_` for other characters: a rule for one server is for no other.
        let flat = name.replace(['.', ' '], "_");
        let is_clear = !flat.contains("__") && !flat.starts_with('_') && !flat.ends_with('_');
        if name.trim().is_empty() || name.len() > 64 || !is_clear || !name.chars().all(plain) {
            let what = "needs a name of letters, digits, `.`, `_` and `-`, without `__` and without `_` or `.` at its ends";
            return Err(self.invalid(what));
        }
        // The parser's message may quote a value, which may be a secret.
        let unknown = value.as_object().and_then(|entries| {
            const KNOWN: [&str; 7] = ["type", "command", "args", "env", "url", "headers", "timeout"];
            entries.keys().find(|key| !KNOWN.contains(&key.as_str()))
        });
        if let Some(key) = unknown {
            return Err(self.invalid(&format!("has the key `{key}`, which is not known")));
        }
        serde_json::from_value(value.clone()).map_err(|_| {
            self.invalid("does not have the form `{ command, args, env }` or `{ type: http, url, headers }`")
        })
    }

    fn stdio(&self, entry: &ServerEntry) -> Result<(Transport, Redactor), AgentError> {
        if entry.url.is_some() || entry.headers.is_some() {
            return Err(self.invalid("is a program and has `url` or `headers`"));
        }
        let command = entry.command.as_deref().map(str::trim).filter(|command| !command.is_empty());
        let command = self.fill(command.ok_or_else(|| self.invalid("has no `command`"))?)?;
        let arguments = entry.args.iter().flatten().map(|text| self.fill(text)).collect::<Result<_, _>>()?;
        let mut variables = BTreeMap::new();
        for (variable, value) in entry.env.iter().flatten() {
            variables.insert(variable.clone(), self.fill(value)?);
        }
        let redactor = Redactor::new(&variables.clone().into_iter().collect());
        Ok((Transport::Stdio { command, arguments, environment: variables }, redactor))
    }

    fn http(&self, entry: &ServerEntry) -> Result<(Transport, Redactor), AgentError> {
        if entry.command.is_some() || entry.args.is_some() || entry.env.is_some() {
            return Err(self.invalid("is reached over HTTP and has `command`, `args` or `env`"));
        }
        let url = self.fill(entry.url.as_deref().ok_or_else(|| self.invalid("has no `url`"))?)?;
        let url = Url::parse(url.trim())
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| self.invalid("has a `url` that begins with neither http:// nor https://"))?;
        let mut secrets: Vec<String> = url.query_pairs().map(|(_, value)| value.into_owned()).collect();
        secrets.extend(url.password().map(str::to_owned));
        // A step of the path is a name, or a key as some services have it there.
        let is_key = |step: &&str| {
            let is_random = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase();
            step.len() >= SHORTEST_KEY && step.contains(is_random)
        };
        let steps = url.path_segments().into_iter().flatten().chain([url.username()]);
        secrets.extend(steps.filter(is_key).map(str::to_owned));
        let mut headers = Vec::new();
        for (header, value) in entry.headers.iter().flatten() {
            let value = self.fill(value)?;
            headers.push(self.header(header, &value)?);
            // `Bearer` and the like are not secret, the word after it is.
            secrets.extend(value.split_whitespace().last().map(str::to_owned));
            secrets.push(value);
        }
        let redactor = Redactor::new(&Environment::default()).with_values(secrets);
        Ok((Transport::Http { url, headers }, redactor))
    }

    fn header(&self, header: &str, value: &str) -> Result<(HeaderName, HeaderValue), AgentError> {
        let name = HeaderName::try_from(header)
            .ok()
            .filter(|name| !OWN_HEADERS.contains(&name.as_str()))
            .ok_or_else(|| self.invalid(&format!("has the header `{header}`, which cannot be set")))?;
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| self.invalid(&format!("has a value for `{header}` that no header can have")))?;
        value.set_sensitive(true);
        Ok((name, value))
    }
}

#[cfg(test)]
mod tests;
