//! An agent with a tool of the program: `cargo run -p inspan --example tools`. A scripted model replaces the
//! vendor's, so that it needs no key; with a key, only the environment differs.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::time::Duration;

use inspan::{
    AgentOptions, Environment, FnTool, PermissionPolicy, ToolError, ToolOutput, providers::AnthropicProvider,
    run_agent,
};
use inspan_model_server::{ModelServer, Scenario, Turn};
use serde_json::{Value, json};

/// How many animals of a kind there are. The model chose the arguments, so they are checked.
async fn count(input: Value) -> Result<ToolOutput, ToolError> {
    match input["kind"].as_str() {
        Some("oxen") => Ok(json!({ "oxen": 16 }).into()),
        Some(kind) => Err(format!("there are no {kind} here").into()),
        None => Err("say which `kind` is to be counted".into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let call = |kind: &str| Turn::tool("count_animals", json!({ "kind": kind }));
    let model =
        ModelServer::start(Scenario::of([call("zebras"), call("oxen"), Turn::text("Sixteen oxen.")]))?;
    let folder = tempfile::tempdir()?;
    let env: Environment = [
        ("ANTHROPIC_API_KEY", "none".to_owned()),
        ("ANTHROPIC_BASE_URL", model.base_url()),
        ("INSPAN_HOME", folder.path().display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect();

    let schema = json!({
        "type": "object",
        "required": ["kind"],
        "properties": { "kind": { "type": "string", "description": "Such as `oxen`." } },
    });
    let tool =
        FnTool::new("count_animals", "Counts animals of a kind.", schema, |input, _cancel| count(input));
    let options = AgentOptions::new()
        .host_tool(tool)
        .allowed_tools(["count_animals"])
        .max_turns(10)
        .permissions(PermissionPolicy::Ask { deadline: Duration::from_secs(60) })
        .env(env);
    let agent = AnthropicProvider::new();
    let result = run_agent(agent, options.prompt("How many animals are there?")).await?;
    for call in &result.tool_calls {
        println!("{} {} -> {}", call.name, call.input, call.result.clone().unwrap_or_default());
    }
    println!("{}", result.text);
    Ok(())
}
