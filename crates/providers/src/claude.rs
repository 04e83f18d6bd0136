//! The provider `claude`: the real Claude Code program, driven over its stream of JSON lines.

use inspan_protocol::{
    AgentError, ContentBlock, Environment, ExecutionContext, InputProblem, ProgramVariables,
    ProviderCapabilities,
};
use serde_json::Value;

use crate::input;
use crate::input::stall;
use crate::output::TurnOutput;
use crate::program::info::{ProgramInfo, folder, key_in, login_in};
use crate::program::{Call, program_provider};

mod agent;
mod decode;
mod error;
mod launch;
mod options;
mod session;
#[cfg(test)]
mod tests;
mod transcripts;
mod wire;

pub use decode::{ClaudeDecoded, ClaudeDecoder, ClaudeTurnEnd};
pub use options::{ClaudeInput, ClaudeOptions, PermissionMode, SettingSource};
pub use session::ClaudeSession;

use agent::{ClaudeAgent, ClaudePrompt};
use launch::ClaudeLaunch;

/// The program.
const PROGRAM: ProgramInfo = ProgramInfo {
    provider: "claude",
    name: "Claude Code",
    command: "claude",
    variable: "INSPAN_CLAUDE",
    option: "executable",
    install: "npm install -g @anthropic-ai/claude-code",
    tested_version: "2.1.332",
    variables: ProgramVariables {
        own: &["ANTHROPIC_*", "CLAUDE_*"],
        // A program that sees these assumes that it runs inside another session.
        hidden: &["CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT"],
    },
    keys: &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
    version_word: 0,
    login,
    log_in: Some("log in by running `claude`, or set ANTHROPIC_API_KEY"),
    vendor: Some("anthropic"),
    model_settings: None,
};

/// Where a login or key is found.
fn login(environment: &Environment) -> Option<String> {
    let keys = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
    let clouds = ["CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"];
    let cloud = || clouds.into_iter().find(|name| environment.get(name).is_some());
    key_in(environment, &keys)
        .or_else(|| cloud().map(|name| format!("a cloud's own login, by {name}")))
        .or_else(|| login_in(&folder(environment, "CLAUDE_CONFIG_DIR", ".claude")?.join(".credentials.json")))
}

program_provider! {
    /// Drives Claude Code. One call is one turn of one conversation; the process of a conversation stays warm for a
    /// minute between its turns, four at once at most.
    ClaudeProvider for ClaudeAgent, ClaudeInput => TurnOutput, PROGRAM, ProviderCapabilities {
        streaming: true,
        structured_output: true,
        permissions: true,
        tools: true,
        host_tools: false,
        thinking: true,
        images: true,
        cost: true,
        fork: true,
        forgets_cut_turns: false,
        native_steer: false,
    }, call, check_rules
}

/// The entries of the lists of rules that the program would not read as one rule each.
fn check_rules(input: &Value) -> Vec<InputProblem> {
    let of_list = |list: &'static str| {
        let entries = input["options"][list].as_array().into_iter().flatten().enumerate();
        entries.filter_map(move |(at, entry)| {
            let problem = launch::not_one_rule(entry.as_str()?)?;
            Some(InputProblem::new(format!("/options/{list}/{at}"), problem))
        })
    };
    ["allowedTools", "disallowedTools"].into_iter().flat_map(of_list).collect()
}

fn call(input: ClaudeInput, context: &ExecutionContext) -> Result<Call<ClaudeAgent>, AgentError> {
    let blocks = input::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
    call_with(blocks, &input.options.unwrap_or_default(), context)
}

fn call_with(
    blocks: Vec<ContentBlock>,
    options: &ClaudeOptions,
    context: &ExecutionContext,
) -> Result<Call<ClaudeAgent>, AgentError> {
    Ok(Call {
        launch: ClaudeLaunch::new(options, context)?,
        resume: options.resume.clone(),
        fork: options.fork == Some(true),
        fork_at: options.fork_at.clone(),
        stall: stall(options.stall_timeout_ms),
        prompt: ClaudePrompt::new(blocks, options),
    })
}
