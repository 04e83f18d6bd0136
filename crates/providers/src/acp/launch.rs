//! From options to a process and a session: the program, its arguments, its environment, and what is chosen in it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, ErrorCode, ExecutionContext, ThinkingLevel};
use serde_json::{Map, Value, json};

use super::options::AcpOptions;
use super::preset::{Defaults, Preset};
use crate::environment::{CLAUDE_CODE_FIXED, CLAUDE_CODE_SETTINGS, ProgramEnvironment, fits, for_program};
use crate::error::mcp_without_transport;
use crate::input::check_output_schema;
use inspan_transport::{ProgramQuery, directory, filled, find, not_a_directory};

/// Everything with which a session starts, except its conversation. Two turns with the same launch can share
/// a process.
#[derive(Clone, PartialEq)]
pub(super) struct AcpLaunch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: ProgramEnvironment,
    /// The directory that the agent works in, without links: only files within are served to it.
    pub(super) root: PathBuf,
    pub(super) servers: Vec<AcpMcpServer>,
    pub(super) auth_method: Option<String>,
    pub(super) choices: Choices,
    /// What to do about a missing login, beside what the agent says.
    pub(super) log_in: &'static str,
    pub(super) reads_through_us: bool,
    pub(super) takes_answers: bool,
    /// Settings beneath the user's own, and the variable that names their file.
    pub(super) defaults: Option<(&'static str, String)>,
}

/// What is chosen in a session before its first prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choices {
    pub(super) model: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) thinking: Option<ThinkingLevel>,
}

/// An MCP server in the protocol's form. It may hold secrets.
#[derive(Clone, PartialEq)]
pub(super) struct AcpMcpServer {
    pub(super) name: String,
    pub(super) transport: Transport,
    pub(super) value: Value,
}

/// How an MCP server is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Transport {
    Stdio,
    Http,
    Sse,
}

impl AcpLaunch {
    /// Checks the options and makes the command line.
    pub(super) fn new(
        preset: &Preset,
        options: &AcpOptions,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let root = root(options.cwd.as_deref(), context.host.cwd.as_deref())?;
        check_output_schema(options.output_schema.as_ref())?;
        let own = || preset.arguments.iter().map(|&argument| argument.to_owned()).collect();
        let arguments = options.args.clone().unwrap_or_else(own);
        let environment = environment(preset, options, &context.host.env);
        Ok(Self {
            program: program(preset, options.command.as_deref(), &context.host.env, Some(&root))?,
            arguments,
            defaults: defaults(preset, &environment, &root),
            environment,
            root,
            servers: servers(options, &context.host.env)?,
            auth_method: options.auth_method.clone(),
            choices: Choices {
                model: options.model.clone(),
                mode: options.mode.clone(),
                thinking: options.thinking,
            },
            log_in: preset
                .program
                .and_then(|program| program.log_in)
                .unwrap_or("log the agent in by itself, or let it see its key by the option `passEnv`"),
            reads_through_us: preset.reads_through_us,
            takes_answers: preset.takes_answers,
        })
    }
}

/// The program to run.
fn program(
    preset: &Preset,
    command: Option<&str>,
    environment: &Environment,
    cwd: Option<&Path>,
) -> Result<PathBuf, AgentError> {
    if let Some(program) = preset.program {
        return program.find(command, environment, cwd);
    }
    if command.is_none() {
        let message =
            "no agent is named; name its program by the option `command`, and its arguments by `args`";
        return Err(AgentError::new(ErrorCode::ConfigMissing, message));
    }
    let hint = "install it, or name the program of your agent by the option `command`";
    // The option names the program, so that neither the variable nor the name is used.
    find(&ProgramQuery { option: command, variable: "", name: "", hint }, environment, cwd)
}

/// The protocol wants an absolute path, and one without links can be compared with others.
fn root(option: Option<&str>, cwd: Option<&Path>) -> Result<PathBuf, AgentError> {
    let folder = directory(option, cwd)?.unwrap_or_else(|| PathBuf::from("."));
    folder.canonicalize().map_err(|_| not_a_directory(&folder))
}

/// What Claude Code does in the background goes on after its turn, within later nodes, and the protocol says nothing of it.
const NO_BACKGROUND: (&str, &str) = ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1");

fn environment(preset: &Preset, options: &AcpOptions, environment: &Environment) -> ProgramEnvironment {
    let mut all = for_program(environment, &preset.variables());
    let passed = options.pass_env.iter().flatten();
    for (name, value) in environment.iter() {
        if passed.clone().any(|pattern| fits(pattern, name)) && all.iter().all(|(known, _)| known != name) {
            all.push((name.to_owned(), value.to_owned()));
        }
    }
    // Unless the call says otherwise. An agent that runs Claude Code reads them; the others have no such variables.
    let fixed = CLAUDE_CODE_FIXED.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let named = options.env.iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
    for (name, value) in fixed.chain(named) {
        all.retain(|(known, _)| *known != name);
        all.push((name, value));
    }
    for &(name, value) in preset.fixed.iter().chain([&NO_BACKGROUND]) {
        if all.iter().all(|(known, _)| known != name) {
            all.push((name.to_owned(), value.to_owned()));
        }
    }
    all
}

/// The settings of the machine with ours beneath them. A file of the machine that cannot be read is left as it is.
fn defaults(
    preset: &Preset,
    environment: &ProgramEnvironment,
    root: &Path,
) -> Option<(&'static str, String)> {
    let Defaults { variable, usual, content } = preset.defaults.as_ref()?;
    let environment: Environment = environment.iter().cloned().collect();
    let file = environment.get(variable).map_or_else(|| usual(&environment), PathBuf::from);
    let mut all = content();
    match std::fs::read(root.join(file)) {
        Ok(machine) => lay_over(&mut all, serde_json::from_slice(&machine).ok().filter(Value::is_object)?),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(_) => return None,
    }
    Some((variable, all.to_string()))
}

/// Lays one value over another: fields of objects one by one.
fn lay_over(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (name, value) in above {
                lay_over(below.entry(name).or_insert(Value::Null), value);
            }
        }
        (below, above) => *below = above,
    }
}

/// What the Claude agent calls itself.
pub(super) const CLAUDE_AGENT: &str = "@agentclientprotocol/claude-agent-acp";

/// What the Claude agent is told beside the parameters of a session, in its own form: the options of the Claude Code that it
/// runs. It would ask the model for a title of each session and after each turn for the next prompt, which nobody here sees
/// and which stand in no usage.
pub(super) fn claude_agent_meta(environment: &ProgramEnvironment) -> Value {
    let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let mut settings = object(CLAUDE_CODE_SETTINGS);
    // An older one ignores this variable where it is given settings.
    let models = environment.iter().find(|(name, _)| name == "CLAUDE_MODEL_CONFIG");
    let models = models.map(|(_, text)| object(text)).into_iter().flatten();
    settings.extend(models.filter(|(key, _)| ["modelOverrides", "availableModels"].contains(&key.as_str())));
    let options = json!({ "title": "Inspan", "promptSuggestions": false, "settings": settings });
    json!({ "claudeCode": { "options": options } })
}

/// Agents fill in nothing that comes over the protocol.
fn servers(options: &AcpOptions, environment: &Environment) -> Result<Vec<AcpMcpServer>, AgentError> {
    let servers = options.mcp_servers.iter().flatten();
    servers.map(|(name, server)| self::server(name, &filled(name, server, environment)?)).collect()
}

/// From the form that most programs share, with objects, to the protocol's, with lists.
fn server(name: &str, server: &Value) -> Result<AcpMcpServer, AgentError> {
    let pairs = |key: &str| -> Vec<Value> {
        let map = server[key].as_object().into_iter().flatten();
        map.map(|(name, value)| json!({ "name": name, "value": value })).collect()
    };
    let (transport, value) =
        match (server["type"].as_str(), server["command"].as_str(), server["url"].as_str()) {
            (None | Some("stdio"), Some(command), _) => {
                let args = server["args"].as_array().cloned().unwrap_or_default();
                (
                    Transport::Stdio,
                    json!({ "name": name, "command": command, "args": args, "env": pairs("env") }),
                )
            }
            (Some(kind @ ("http" | "sse")), _, Some(url)) => {
                let transport = if kind == "http" { Transport::Http } else { Transport::Sse };
                (transport, json!({ "type": kind, "name": name, "url": url, "headers": pairs("headers") }))
            }
            _ => return Err(mcp_without_transport(name)),
        };
    Ok(AcpMcpServer { name: name.to_owned(), transport, value })
}

#[cfg(test)]
mod tests;
