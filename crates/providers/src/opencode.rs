//! The provider `opencode`: the real OpenCode program, driven as a server on loopback with its stream of events.

use std::path::{Path, PathBuf};

use inspan_protocol::{
    AgentError, Environment, ExecutionContext, ModelServerAddress, ModelSettings, ProgramVariables,
    ProviderCapabilities,
};
use serde_json::json;

use crate::input;
use crate::input::stall;
use crate::output::TurnOutput;
use crate::program::info::{ProgramInfo, key_in, login_in};
use crate::program::{Call, program_provider};

mod agent;
mod consent;
mod decode;
mod error;
mod launch;
mod options;
mod request;
mod rules;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use options::{OpenCodeInput, OpenCodeOptions};

use agent::{OpenCodeAgent, OpenCodePrompt};
use launch::OpenCodeLaunch;

/// The program.
const PROGRAM: ProgramInfo = ProgramInfo {
    provider: "opencode",
    name: "OpenCode",
    command: "opencode",
    variable: "INSPAN_OPENCODE",
    option: "executable",
    install: "npm install -g opencode-ai",
    tested_version: "1.18.33",
    variables: ProgramVariables {
        // It calls the models of many vendors, and so may see their keys.
        own: &[
            "OPENCODE_*",
            "ANTHROPIC_*",
            "OPENAI_*",
            "AZURE_OPENAI_*",
            "GEMINI_*",
            "GOOGLE_API_KEY",
            "GOOGLE_GENERATIVE_AI_API_KEY",
            "OPENROUTER_API_KEY",
            "MISTRAL_API_KEY",
            "GROQ_API_KEY",
            "XAI_API_KEY",
            "DEEPSEEK_API_KEY",
            "COHERE_API_KEY",
            "TOGETHER_API_KEY",
            "FIREWORKS_API_KEY",
            "PERPLEXITY_API_KEY",
            "HF_TOKEN",
        ],
        // They are about another server, or would loosen the rules that this one is given.
        hidden: &["OPENCODE_SERVER_*", "OPENCODE_PERMISSION", "OPENCODE_PID"],
    },
    keys: &[],
    version_word: 0,
    login,
    // It has models that need no key, and its settings may name others.
    log_in: None,
    vendor: None,
    model_settings: Some(model_settings),
};

/// One provider with one model, asked in the Chat Completions format. Its key comes from `OPENAI_API_KEY`. Nothing is
/// shared, updated, or compacted by another request to the model.
fn model_settings(server: &ModelServerAddress<'_>) -> ModelSettings {
    let model = json!({
        "name": "Scripted",
        "limit": { "context": 200_000, "output": 8192 },
        "cost": { "input": 3, "output": 15 },
        "tool_call": true,
        "reasoning": true
    });
    let content = json!({
        "model": "scripted/scripted-model",
        "small_model": "scripted/scripted-model",
        "autoupdate": false,
        "share": "disabled",
        "snapshot": false,
        "compaction": { "auto": false },
        "enabled_providers": ["scripted"],
        "provider": {
            "scripted": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "scripted",
                "options": { "baseURL": format!("{}/v1", server.base), "apiKey": "{env:OPENAI_API_KEY}" },
                "models": { "scripted-model": model }
            }
        }
    });
    ModelSettings {
        folder: "XDG_CONFIG_HOME",
        file: "opencode/opencode.json",
        content,
        variable: Some("OPENCODE_CONFIG_CONTENT"),
        is_needed: true,
    }
}

/// Where a login or key is found.
fn login(environment: &Environment) -> Option<String> {
    let home = || Some(Path::new(environment.get("HOME")?).join(".local/share"));
    let data = || environment.get("XDG_DATA_HOME").map(PathBuf::from).or_else(home);
    let keys =
        ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "GEMINI_API_KEY", "OPENCODE_API_KEY"];
    key_in(environment, &["OPENCODE_AUTH_CONTENT"])
        .or_else(|| login_in(&data()?.join("opencode/auth.json")))
        .or_else(|| key_in(environment, &keys))
}

program_provider! {
    /// Drives OpenCode. One call is one turn of one conversation; the server of a conversation stays warm for half a
    /// minute between its turns, two at once at most.
    OpenCodeProvider for OpenCodeAgent, OpenCodeInput => TurnOutput, PROGRAM, ProviderCapabilities {
        streaming: true,
        structured_output: true,
        permissions: true,
        tools: true,
        host_tools: false,
        thinking: false,
        images: true,
        cost: true,
        fork: true,
        forgets_cut_turns: false,
        native_steer: false,
    }, call
}

fn call(input: OpenCodeInput, context: &ExecutionContext) -> Result<Call<OpenCodeAgent>, AgentError> {
    let options = input.options.unwrap_or_default();
    let blocks = input::blocks(input.prompt.as_deref(), input.messages.as_deref())?;
    Ok(Call {
        prompt: OpenCodePrompt {
            message: request::prompt(&blocks, &options)?,
            title: request::title(&blocks),
            max_turns: options.max_turns,
        },
        launch: OpenCodeLaunch::new(&options, context)?,
        stall: stall(options.stall_timeout_ms),
        resume: options.resume,
        fork: options.fork == Some(true),
        fork_at: options.fork_at,
    })
}
