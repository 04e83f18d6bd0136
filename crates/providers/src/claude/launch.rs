//! From options to a command line: the program, its arguments, its environment and its first request.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use inspan_protocol::{AgentError, Environment, ExecutionContext, ProviderSessionId, ThinkingLevel};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::PROGRAM;
use super::options::ClaudeOptions;
use crate::environment::{CLAUDE_CODE_FIXED, CLAUDE_CODE_SETTINGS, ProgramEnvironment, for_program};
use crate::error::{invalid, mcp_not_an_object};
use crate::input::{check_max_turns, check_output_schema};
use crate::program::ProcessConversation;
use crate::program::pool::Reuse;
use crate::root::Root;
use inspan_transport::{directory, filled};

/// Tools that would start agents beside ours, or turns that nobody asked for, here or in other sessions of the user.
const UNASKED: [&str; 5] = ["Workflow", "CronCreate", "ScheduleWakeup", "Monitor", "SendMessage"];

/// The longest beginning of a transcript that is copied, in bytes.
const BEGINNING_LIMIT: u64 = 512 * 1024 * 1024;

/// All that a process is started with but its conversation. Two turns with the same launch can share a process.
#[derive(Clone, PartialEq)]
pub(crate) struct ClaudeLaunch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: ProgramEnvironment,
    pub(super) cwd: Option<PathBuf>,
    /// The body of the `initialize` request.
    pub(super) initialize: Value,
    /// The form in which that requests structured output.
    pub(super) root: Root,
    /// The MCP servers by name, which may hold secrets and so are never in the arguments or in a file.
    pub(super) mcp_servers: Map<String, Value>,
    /// Whether the process may serve more than one turn.
    pub(super) reuse: Reuse,
    pub(super) max_turns: Option<u32>,
}

impl ClaudeLaunch {
    /// Checks the options and makes the command line.
    pub(super) fn new(options: &ClaudeOptions, context: &ExecutionContext) -> Result<Self, AgentError> {
        let cwd = directory(options.cwd.as_deref(), context.host.cwd.as_deref())?;
        let program = PROGRAM.find(options.executable.as_deref(), &context.host.env, cwd.as_deref())?;
        Ok(Self {
            program,
            arguments: arguments(options)?,
            environment: environment(options, &context.host.env),
            cwd,
            initialize: initialize(options)?,
            root: options.output_schema.as_ref().map(Root::of).unwrap_or_default(),
            mcp_servers: mcp_servers(options, &context.host.env)?,
            reuse: if options.max_budget_usd.is_some() { Reuse::Once } else { Reuse::Warm },
            max_turns: options.max_turns,
        })
    }

    /// The arguments that name the conversation.
    ///
    /// The program finds an earlier conversation by its id only in the directory where it was held, but takes the
    /// absolute path of its transcript anywhere. `beginning` is the path of [`Self::beginning`].
    pub(super) fn conversation_arguments(
        &self,
        conversation: &ProcessConversation,
        beginning: Option<&Path>,
    ) -> Vec<String> {
        let resume = |id: &ProviderSessionId| {
            let path = beginning.map(Path::to_path_buf).or_else(|| self.transcript(id));
            let path = path.map(|path| path.to_string_lossy().into_owned());
            format!("--resume={}", path.unwrap_or_else(|| id.to_string()))
        };
        match conversation {
            ProcessConversation::New(id) => vec![format!("--session-id={id}")],
            ProcessConversation::Resumed(id) => vec![resume(id)],
            ProcessConversation::Forked { from, at, id } => {
                let at = at.iter().map(|at| format!("--resume-session-at={at}"));
                let branch = [resume(from), "--fork-session".to_owned(), format!("--session-id={id}")];
                branch.into_iter().chain(at).collect()
            }
        }
    }

    /// The beginning of the transcript of a conversation, to where a branch of it begins. In the whole transcript the program
    /// does not find what it has replaced by a summary since, or replaces at this moment. Reads line by line, since transcripts
    /// can be large; nothing is returned beyond a limit.
    pub(super) fn beginning(&self, conversation: &ProcessConversation) -> Option<io::Take<File>> {
        let ProcessConversation::Forked { from, at: Some(at), .. } = conversation else { return None };
        let last = format!("\"uuid\":\"{at}\"");
        let mut lines = BufReader::new(File::open(self.transcript(from)?).ok()?.take(BEGINNING_LIMIT));
        let (mut line, mut end) = (String::new(), 0);
        while !line.contains(&last) {
            line.clear();
            end += lines.read_line(&mut line).ok()?;
            if !line.ends_with('\n') {
                return None;
            }
        }
        let mut transcript = lines.into_inner().into_inner();
        transcript.rewind().ok()?;
        Some(transcript.take(end as u64))
    }

    /// The folder in which the program stores its conversations, in a folder for each directory where they were held.
    pub(super) fn projects(&self) -> Option<PathBuf> {
        let variable =
            |name: &str| self.environment.iter().find(|(n, _)| n == name).map(|(_, v)| Path::new(v));
        let home = || variable("HOME").map(|home| home.join(".claude"));
        Some(variable("CLAUDE_CONFIG_DIR").map(Path::to_path_buf).or_else(home)?.join("projects"))
    }

    /// The transcript of a conversation, if there is one where the program stores them.
    fn transcript(&self, id: &ProviderSessionId) -> Option<PathBuf> {
        let file = format!("{id}.jsonl");
        let found = std::fs::read_dir(self.projects()?).ok()?.flatten().map(|entry| entry.path().join(&file));
        found
            .filter(|path| path.is_absolute() && path.is_file())
            .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
    }
}

fn arguments(options: &ClaudeOptions) -> Result<Vec<String>, AgentError> {
    let mut arguments: Vec<String> = [
        "--output-format=stream-json",
        "--verbose",
        "--input-format=stream-json",
        "--include-partial-messages",
        "--replay-user-messages",
        "--permission-prompt-tool=stdio",
    ]
    .map(str::to_owned)
    .to_vec();
    // A value after `=` may begin with a dash.
    let mut flag = |name: &str, value: Option<String>| {
        arguments.extend(value.map(|value| format!("--{name}={value}")));
    };
    flag("model", options.model.clone());
    flag("max-turns", options.max_turns.map(|turns| turns.to_string()));
    if let Some(budget) = options.max_budget_usd {
        if !budget.is_finite() || budget <= 0.0 {
            return Err(invalid("`maxBudgetUsd` must be greater than 0".to_owned()));
        }
        flag("max-budget-usd", Some(budget.to_string()));
    }
    check_max_turns(options.max_turns)?;
    let rules = [&options.allowed_tools, &options.disallowed_tools].into_iter().flatten().flatten();
    if let Some(problem) = rules.map(String::as_str).find_map(not_one_rule) {
        return Err(invalid(problem));
    }
    // Without it the settings of a repository decide, and may allow everything.
    flag("permission-mode", Some(options.permission_mode.map_or_else(|| "default".to_owned(), word)));
    flag("settings", Some(CLAUDE_CODE_SETTINGS.to_owned()));
    let (thinking, effort) = match options.thinking {
        None => (None, None),
        Some(ThinkingLevel::Off) => (Some("disabled"), None),
        Some(ThinkingLevel::Minimal | ThinkingLevel::Low) => (None, Some("low")),
        Some(ThinkingLevel::High) => (None, Some("high")),
        Some(ThinkingLevel::Xhigh) => (None, Some("xhigh")),
        Some(_) => (None, Some("medium")),
    };
    flag("thinking", thinking.map(str::to_owned));
    flag("effort", effort.map(str::to_owned));
    flag("max-thinking-tokens", options.max_thinking_tokens.map(|tokens| tokens.to_string()));
    flag("tools", options.tools.as_ref().map(|tools| tools.join(",")));
    let names =
        |list: &Option<Vec<String>>| list.as_ref().filter(|list| !list.is_empty()).map(|list| list.join(","));
    flag("allowed-tools", names(&options.allowed_tools));
    let mut denied = options.disallowed_tools.clone().unwrap_or_default();
    for tool in UNASKED {
        let named = [&options.tools, &options.allowed_tools].into_iter().flatten().flatten();
        if named.chain(&denied).all(|named| named != tool) {
            denied.push(tool.to_owned());
        }
    }
    flag("disallowed-tools", names(&Some(denied)));
    for directory in options.add_dirs.iter().flatten() {
        flag("add-dir", Some(directory.clone()));
    }
    let sources = options.setting_sources.as_ref();
    flag("setting-sources", sources.map(|list| list.iter().map(word).collect::<Vec<_>>().join(",")));
    Ok(arguments)
}

/// Why the program would not read an entry of a list of rules as one rule. It ends a rule at a comma or a space outside of
/// parentheses, and the first `)` closes these, however many are open.
pub(super) fn not_one_rule(entry: &str) -> Option<String> {
    let entry = entry.trim();
    let mut is_inside = false;
    let ends = entry.char_indices().find(|(_, c)| {
        is_inside = *c == '(' || is_inside && *c != ')';
        !is_inside && matches!(c, ',' | ' ')
    });
    match ends {
        Some((at, _)) => Some(format!(
            "`{entry}` is several rules for Claude Code, of which the first is `{}`: write each as an entry, and `*` for what \
             stands behind a `)` in the text of a rule",
            &entry[..at]
        )),
        None if is_inside => {
            Some(format!("`{entry}` has no `)` at its end: the next rule would be a part of it"))
        }
        None => None,
    }
}

/// The program's word for a choice, which is ours too.
fn word(choice: impl Serialize) -> String {
    json!(choice).as_str().unwrap_or_default().to_owned()
}

fn environment(options: &ClaudeOptions, environment: &Environment) -> ProgramEnvironment {
    let mut set: Vec<(String, String)> =
        CLAUDE_CODE_FIXED.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    // It then says when it has nothing left to do.
    set.push(("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS".to_owned(), "1".to_owned()));
    if let Some(tokens) = options.max_tokens.filter(|tokens| *tokens > 0) {
        set.push(("CLAUDE_CODE_MAX_OUTPUT_TOKENS".to_owned(), tokens.to_string()));
    }
    let mut all = for_program(environment, &PROGRAM.variables);
    all.retain(|(name, _)| set.iter().all(|(own, _)| own != name));
    all.extend(set);
    all
}

/// Long and private texts go by this request, because arguments are short and everybody can read them.
fn initialize(options: &ClaudeOptions) -> Result<Value, AgentError> {
    let mut request = Map::new();
    request.insert("subtype".to_owned(), json!("initialize"));
    request.insert("hooks".to_owned(), Value::Null);
    let mut put =
        |name: &str, value: Option<Value>| value.map(|value| request.insert(name.to_owned(), value));
    put("systemPrompt", options.system_prompt.clone().map(Value::from));
    put("appendSystemPrompt", options.append_system_prompt.clone().map(Value::from));
    check_output_schema(options.output_schema.as_ref())?;
    // The program makes a tool of it, whose arguments are an object.
    put("jsonSchema", options.output_schema.as_ref().map(|schema| Root::of(schema).place(schema)));
    Ok(Value::Object(request))
}

fn mcp_servers(options: &ClaudeOptions, environment: &Environment) -> Result<Map<String, Value>, AgentError> {
    let mut all = Map::new();
    for (name, server) in options.mcp_servers.iter().flatten() {
        if !server.is_object() {
            return Err(mcp_not_an_object(name));
        }
        if server["type"] == "sdk" {
            return Err(invalid(format!(
                "the MCP server `{name}` is of type `sdk`, which needs a program around it"
            )));
        }
        let mut server = filled(name, server, environment)?;
        // The program starts no server whose entry it is told without them.
        if server["command"].is_string() && server["args"].is_null() {
            server["args"] = json!([]);
        }
        all.insert(name.clone(), server);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
