//! From options to a command line and the parameters of a thread: the program, its arguments, its environment and the
//! key it is given.

use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, ExecutionContext, ThinkingLevel};
use serde_json::{Map, Value, json};

use super::options::CodexOptions;
use super::{PROGRAM, config};
use crate::environment::{ProgramEnvironment, for_program};
use crate::input::{check_max_turns, check_output_schema};
use inspan_transport::directory;

/// Set for every process unless the caller's `config` says otherwise. Retries are the caller's, so that attempts are
/// counted once, and without this one the program waits for a lost network forever; and a program that offers its
/// update at the start is not the one tested.
const FIXED: &[&str] = &["features.unbounded_connection_retries=false", "check_for_update_on_startup=false"];

/// Set for every process, whatever the caller's `config` says: for a goal the program starts turns by itself, between
/// those that are seen and counted here.
const FORCED: &str = "features.goals=false";

/// The key that is meant for Codex; of its commands only `codex exec` reads it.
const FIRST_KEY: &str = "CODEX_API_KEY";
/// The key that is meant for the vendor's service.
const ELSE_KEY: &str = "OPENAI_API_KEY";

/// Keeps a login in the program's memory, where it is gone with the process, and not in a file of the user's.
const IN_MEMORY: &str = "cli_auth_credentials_store=\"ephemeral\"";

/// All that a process is started with but its conversation. Two turns with the same launch can share a process.
#[derive(Clone, PartialEq)]
pub(super) struct CodexLaunch {
    pub(super) program: PathBuf,
    overrides: Vec<String>,
    pub(super) environment: ProgramEnvironment,
    pub(super) cwd: Option<PathBuf>,
    /// The parameters of the thread, new or resumed. MCP servers are here, because they may hold secrets.
    pub(super) thread: Map<String, Value>,
    pub(super) key: EnvironmentKey,
    pub(super) retries: Retries,
}

/// The key in the environment that the program does not look for by itself.
#[derive(Clone, PartialEq)]
pub(super) enum EnvironmentKey {
    /// There is none.
    None,
    /// Meant for Codex: it goes before a login.
    First(String),
    /// Meant for the vendor's service: it is used where there is no login.
    Else(String),
}

/// Where the program stores its login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// Where the user has it.
    Own,
    /// In its memory only.
    Memory,
}

/// Who says how often the program retries by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retries {
    /// Nobody: it shall not.
    Off,
    /// The caller.
    Chosen,
}

impl CodexLaunch {
    /// Checks the options and makes the command line.
    pub(super) fn new(options: &CodexOptions, context: &ExecutionContext) -> Result<Self, AgentError> {
        check_max_turns(options.max_turns)?;
        check_output_schema(options.output_schema.as_ref())?;
        let cwd = directory(options.cwd.as_deref(), context.host.cwd.as_deref())?;
        let program = PROGRAM.find(options.executable.as_deref(), &context.host.env, cwd.as_deref())?;
        let chosen = options.config.as_ref().map(config::overrides).transpose()?.unwrap_or_default();
        let named =
            |part: &str| chosen.iter().any(|one| one.split('=').next().unwrap_or_default().contains(part));
        let retries = if named("_max_retries") { Retries::Chosen } else { Retries::Off };
        let own = FIXED.iter().map(|one| (*one).to_owned());
        Ok(Self {
            program,
            // Of two that set the same, the later one holds.
            overrides: own.chain(chosen).chain([FORCED.to_owned()]).collect(),
            environment: for_program(&context.host.env, &PROGRAM.variables),
            thread: thread(options, cwd.as_deref(), &context.host.env)?,
            cwd,
            key: key(&context.host.env),
            retries,
        })
    }

    /// The arguments of the program.
    pub(super) fn arguments(&self, store: Store) -> Vec<String> {
        let memory = (store == Store::Memory).then(|| IN_MEMORY.to_owned());
        let overrides = self.overrides.iter().cloned().chain(memory);
        let overrides = overrides.flat_map(|one| ["-c".to_owned(), one]);
        std::iter::once("app-server".to_owned()).chain(overrides).collect()
    }

    /// The environment of the program. A key that it gets in another way is not in there: the program writes
    /// its environment to a file, for its shells.
    pub(super) fn environment(&self, store: Store) -> Vec<(String, String)> {
        let given = match (&self.key, store) {
            (EnvironmentKey::First(_), Store::Memory) => Some(FIRST_KEY),
            (EnvironmentKey::Else(_), Store::Memory) => Some(ELSE_KEY),
            _ => None,
        };
        let seen = self.environment.iter().filter(|(name, _)| Some(name.as_str()) != given);
        seen.cloned().collect()
    }
}

/// The key that the environment has for it, and how it is meant.
fn key(environment: &Environment) -> EnvironmentKey {
    let get = |name: &str| environment.get(name).map(str::to_owned);
    match (get(FIRST_KEY), get(ELSE_KEY)) {
        (Some(key), _) => EnvironmentKey::First(key),
        (None, Some(key)) => EnvironmentKey::Else(key),
        (None, None) => EnvironmentKey::None,
    }
}

fn thread(
    options: &CodexOptions,
    cwd: Option<&Path>,
    environment: &Environment,
) -> Result<Map<String, Value>, AgentError> {
    let mut params = Map::new();
    let mut put = |name: &str, value: Option<Value>| value.map(|value| params.insert(name.to_owned(), value));
    put("cwd", cwd.map(|cwd| json!(cwd)));
    put("model", options.model.clone().map(Value::from));
    put("approvalPolicy", options.approval_policy.map(|policy| json!(policy)));
    put("sandbox", options.sandbox.map(|sandbox| json!(sandbox)));
    put("baseInstructions", options.system_prompt.clone().map(Value::from));
    put("developerInstructions", options.append_system_prompt.clone().map(Value::from));
    let mut config = Map::new();
    let servers = options.mcp_servers.as_ref();
    if let Some(servers) = servers.map(|all| config::mcp_servers(all, environment)).transpose()?.flatten() {
        config.insert("mcp_servers".to_owned(), servers);
    }
    if let Some(thinking) = options.thinking {
        config.insert("model_reasoning_effort".to_owned(), json!(effort(thinking)));
    }
    put("config", (!config.is_empty()).then_some(Value::Object(config)));
    Ok(params)
}

/// The program's word for an amount of thinking.
fn effort(thinking: ThinkingLevel) -> &'static str {
    match thinking {
        ThinkingLevel::Off => "none",
        ThinkingLevel::Minimal => "minimal",
        ThinkingLevel::Low => "low",
        ThinkingLevel::High => "high",
        ThinkingLevel::Xhigh => "xhigh",
        _ => "medium",
    }
}

#[cfg(test)]
mod tests;
