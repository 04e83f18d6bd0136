//! An agent with options, hooks, a time limit and retries: `cargo run -p inspan --example options`. The agent is
//! scripted, so that it needs no key; a real one takes the same options.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::time::Duration;

use inspan::{
    AgentError, AgentHooks, AgentOptions, HookResult, RetryOptions, ToolCall, providers::ScriptedProvider,
    run_agent,
};
use serde_json::json;

struct NoSecrets;

impl AgentHooks for NoSecrets {
    async fn before_tool(&self, call: &ToolCall) -> HookResult {
        let harmless = !call.input.to_string().contains(".env");
        if harmless { Ok(None) } else { Err("it wants to read the keys".into()) }
    }
}

/// Reads a file, then answers in the schema.
fn script(file: &str) -> serde_json::Value {
    json!([[
        { "tool": { "name": "Read", "input": { "file": file }, "result": "an ox" } },
        { "structured": { "animals": 1 } },
        { "text": "One animal." },
    ]])
}

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    for file in ["herd.txt", ".env"] {
        let agent = ScriptedProvider;
        let options = AgentOptions::new()
            .model("some-model")
            .output_schema(json!({ "type": "object", "required": ["animals"] }))
            .timeout(Duration::from_secs(60))
            .retry(RetryOptions::times(3))
            .hooks(NoSecrets)
            .sink(|envelope| println!("  {}", envelope.event.name()))
            .option("turns", script(file));
        match run_agent(agent, options.prompt("How many animals are there?")).await {
            Ok(result) => println!("{} {}", result.text, result.structured_output.unwrap_or_default()),
            Err(failed) => println!("{} {}", failed.error.code, failed.error.message),
        }
    }
    Ok(())
}
