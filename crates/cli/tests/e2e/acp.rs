//! Cases of agents over the Agent Client Protocol: the Claude agent and OpenCode through the provider `acp`, and Droid,
//! Gemini CLI and Qwen Code through their own. What differs between them is in one place each.

use inspan_testkit::{Sandbox, pause};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_model_server::ModelServer;
use serde_json::{Value, json};

use super::checks::{
    count, ended, failure, flow, interrupted, is_under_way, main_requests, no_such_session, output, same,
    says, serve, session_of, spoken, talks_slowly, tool_ends,
};
use super::{branches, resume};

/// An agent of these cases.
pub(super) trait AcpAgent {
    /// The options by which it is run.
    fn options() -> Value;

    /// The provider.
    const PROVIDER: &'static str = "acp";

    /// The output tokens that it reports for a turn with 20.
    const TOKENS: u64 = 20;

    /// The code for a key that its vendor refuses. OpenCode reports no status, so that the text decides.
    const REFUSED: &'static str;
}

pub(super) struct Claude;
pub(super) struct OpenCode;
pub(super) struct Droid;
pub(super) struct Gemini;
pub(super) struct Qwen;

impl AcpAgent for Droid {
    fn options() -> Value {
        json!({ "model": "custom:Scripted-0" })
    }

    const PROVIDER: &'static str = "droid";
    const TOKENS: u64 = 0;
    const REFUSED: &'static str = "invalid x-api-key";
}

impl AcpAgent for Gemini {
    fn options() -> Value {
        json!({})
    }

    const PROVIDER: &'static str = "gemini";
    const REFUSED: &'static str = "API key not valid";
}

impl AcpAgent for Qwen {
    fn options() -> Value {
        json!({})
    }

    const PROVIDER: &'static str = "qwen";
    const REFUSED: &'static str = "Incorrect API key";
}

impl AcpAgent for Claude {
    fn options() -> Value {
        json!({ "command": "claude-agent-acp", "passEnv": ["ANTHROPIC_*", "CLAUDE_*"] })
    }

    const REFUSED: &'static str = "invalid x-api-key";
}

impl AcpAgent for OpenCode {
    fn options() -> Value {
        let asks = json!({ "permission": { "bash": "ask", "edit": "ask" } });
        json!({
            "command": "opencode",
            "args": ["acp"],
            "passEnv": ["OPENAI_*", "OPENCODE_*"],
            "env": { "OPENCODE_CONFIG_CONTENT": asks.to_string() },
        })
    }

    const REFUSED: &'static str = "unauthorized";
}

/// A flow of one node `a`, run by the agent with these options beside its own.
fn agent<K: AcpAgent>(prompt: &str, more: &Value) -> Value {
    let mut options = K::options();
    if let (Some(options), Some(more)) = (options.as_object_mut(), more.as_object()) {
        options.extend(more.clone());
    }
    flow(&[
        json!({ "id": "a", "type": format!("{}.agent", K::PROVIDER), "input": { "prompt": prompt, "options": options } }),
    ])
}

/// What an output says, in which conversation, and the tokens of the answer.
fn facts(output: &Value) -> Value {
    json!([output["text"], output["sessionId"], output["usage"]["outputTokens"]])
}

/// A model that makes the file `made.txt`, then says so.
fn makes_a_file(sandbox: &mut Sandbox) -> anyhow::Result<ModelServer> {
    let call = json!({ "blocks": [{ "type": "shell", "command": "echo yoke > made.txt" }] });
    serve(sandbox, &[call, says("Done.")])
}

fn makes<K: AcpAgent>(sandbox: &mut Sandbox, options: &Value, is_error: bool) -> anyhow::Result<()> {
    let _server = makes_a_file(sandbox)?;
    let run = sandbox.run_flow(&agent::<K>("role=maker. Make it.", options), &["--no-input"])?;
    let summary = ended(&run, 0, "success")?;
    same("the tools", &tool_ends(&run.events), &vec![is_error])?;
    same("whether the file is there", &sandbox.work().join("made.txt").exists(), &!is_error)?;
    let denied = output(&summary)["permissionDenials"].as_array().map_or(0, Vec::len);
    same("the denials", &denied, &usize::from(is_error))?;
    same(
        "starts and ends",
        &[count(&run.events, "agent:start"), count(&run.events, "agent:complete")],
        &[1, 1],
    )
}

pub(super) fn tool_allowed<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    makes::<K>(sandbox, &json!({ "allowedTools": ["execute"] }), false)
}

pub(super) fn tool_denied<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    makes::<K>(sandbox, &json!({}), true)
}

pub(super) fn structured<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server =
        serve(sandbox, &[says("There are seven."), says("So be it:\n\n```json\n{\"oxen\": 7}\n```")])?;
    let schema = json!({
        "type": "object",
        "properties": { "oxen": { "type": "integer" } },
        "required": ["oxen"],
    });
    let run =
        sandbox.run_flow(&agent::<K>("role=counter. How many?", &json!({ "outputSchema": schema })), &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the output", &output(&summary)["structuredOutput"], &json!({ "oxen": 7 }))?;
    // The first answer held no JSON, and the engine asked once more.
    let said: Vec<String> = main_requests(&server).iter().map(|request| request.body.to_string()).collect();
    ensure!(said.iter().all(|body| body.contains("JSON Schema")), "the schema did not reach the model");
    same("the requests", &said.len(), &2)
}

pub(super) fn cancelled_and_resumed<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[talks_slowly(), says("I go on.")])?;
    let running = sandbox.start_flow(&agent::<K>("role=slow. Talk.", &json!({})), &["--no-store"])?;
    server.wait_until(sandbox.deadline().left(), |requests| is_under_way(requests, 6))?;
    // The text has to come all the way to the log before it is cut off.
    pause(Duration::from_millis(500));
    let run = interrupted(running)?;
    ensure!(!spoken(&run.events).is_empty(), "nothing was said before the cut: {run}");

    let session = session_of(&run.events)?;
    let second = sandbox.run_flow(&agent::<K>("role=again. Go on.", &json!({ "resume": session })), &[])?;
    let summary = ended(&second, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("I go on."))?;
    same("the session", &output(&summary)["sessionId"], &json!(session))?;
    let last = main_requests(&server).last().context("no second request came")?.body.to_string();
    ensure!(last.contains("role=slow. Talk.") && last.contains("role=again. Go on."), "it forgot: {last}");
    Ok(())
}

pub(super) fn resumed_in_a_new_process<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("First."), says("Second.")])?;
    let first = sandbox.run_flow(&agent::<K>("role=first. Begin.", &json!({})), &[])?;
    let summary = ended(&first, 0, "success")?;
    let session = session_of(&first.events)?;
    same("the first answer", &facts(output(&summary)), &json!(["First.", session, K::TOKENS]))?;
    let second = sandbox.run_flow(&agent::<K>("role=second. Go on.", &json!({ "resume": session })), &[])?;
    let summary = ended(&second, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Second."))?;
    same("the text that streamed", &spoken(&second.events).as_str(), &"Second.")?;
    let last = main_requests(&server).last().context("no second request came")?.body.to_string();
    ensure!(last.contains("role=first. Begin.") && last.contains("role=second. Go on."), "it forgot: {last}");
    Ok(())
}

/// Two nodes talk in one conversation, one after the other, and the program of the first serves the second.
pub(super) fn two_nodes<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("First."), says("Second.")])?;
    let mut nodes = agent::<K>("role=first. Begin.", &json!({}));
    let mut second = nodes["nodes"][0].clone();
    second["id"] = json!("b");
    second["dependsOn"] = json!(["a"]);
    second["session"] = json!("a");
    second["input"]["prompt"] = json!("role=second. Go on.");
    nodes["nodes"].as_array_mut().context("nodes")?.push(second);
    let run = sandbox.run_flow(&nodes, &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the text that streamed", &spoken(&run.events).as_str(), &"First.Second.")?;
    let (first, second) = (&summary["outputs"]["a"], &summary["outputs"]["b"]);
    let session = session_of(&run.events)?;
    let expected = ["First.", "Second."].map(|text| json!([text, session, K::TOKENS]));
    same("the answers", &[first, second].map(facts), &expected)?;
    // A program that resumes a conversation does not know what it cost before.
    same("whether a cost is told", &second["costUsd"].is_number(), &first["costUsd"].is_number())?;
    let last = main_requests(&server).last().context("no second request came")?.body.to_string();
    ensure!(last.contains("role=first. Begin.") && last.contains("role=second. Go on."), "it forgot: {last}");
    Ok(())
}

/// An agent whose vendor fails after it has used a tool is tried again where it was.
pub(super) fn failed_within_a_turn<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let options = json!({ "allowedTools": ["execute"] });
    let shell = |command: &str| json!({ "blocks": [{ "type": "shell", "command": command }] });
    resume::failed_within_a_turn(sandbox, agent::<K>("role=tools. Work.", &options), shell)
}

pub(super) fn two_branches<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    branches::proved(
        sandbox,
        &format!("{}.agent", K::PROVIDER),
        &K::options(),
        "sessionId",
        branches::Begins::Now,
    )
}

pub(super) fn key_refused<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let error = json!({ "status": 401, "type": "authentication_error", "message": K::REFUSED });
    let _server = serve(sandbox, &[json!({ "httpError": error })])?;
    let run = sandbox.run_flow(&agent::<K>("role=refused. Answer.", &json!({})), &[])?;
    run.expect_code(4)?;
    let failure = failure(&run)?;
    same("the error", &json!([failure["code"], failure["provider"]]), &json!(["AUTH", K::PROVIDER]))?;
    ensure!(!run.stderr.contains("panicked"), "it panicked: {run}");
    Ok(())
}

pub(super) fn unknown_session<K: AcpAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("Never.")])?;
    let run = sandbox.run_flow(&agent::<K>("role=lost. Go on.", &json!({ "resume": "ses_nope" })), &[])?;
    no_such_session(&run, &server)
}
