//! Cases of agents that are driven as servers: Codex and OpenCode, with what differs between them, and the case that only
//! Codex has.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_model_server::{ModelServer, RecordedRequest};
use inspan_protocol::MessageMode;
use inspan_testkit::{RunningProcess, Sandbox, Stopwatch, pause};
use serde_json::{Value, json};

use super::branches;
use super::checks::{
    GONE, count, ended, failure, flow, interrupted, main_requests, names_the_missing, no_such_session,
    output, same, says, serve, session_of, spoken, talks_slowly, tool_ends, without_programs,
};
use super::person::{self, PersonStep};
use super::resume;

/// An agent of these cases.
pub(super) trait ServerAgent {
    /// The provider, and what the program is called.
    const NAME: &'static str;
    /// What its output calls the text, and the conversation.
    const TEXT: &'static str;
    const SESSION: &'static str;
    /// Whether its output has the cost.
    const TELLS_COST: bool;
    /// How long its model is silent until it has stalled, in milliseconds.
    const STALL_MS: u64;
    /// An unknown conversation of the right form.
    const UNKNOWN: &'static str;

    /// Options under which it asks nothing before a command.
    fn free() -> Value;

    /// Options under which it asks before each command.
    fn asking() -> Value;

    /// A turn of the model that runs a command.
    fn shell(command: &str) -> Value;

    /// A flow of one node `a` that continues a conversation of another process.
    fn going_on(prompt: &str, session: &Value) -> Value;

    /// The model's error of this status.
    fn refusal(status: u16) -> Value;

    /// What user and assistant said, without what the program says about its surroundings.
    fn conversation(request: &RecordedRequest) -> Vec<String>;

    /// The model was asked for an answer of this schema, in the way of this agent.
    fn asked_for(schema: &Value, requests: &[RecordedRequest]) -> anyhow::Result<()>;
}

/// A flow of one node `a`, run by the agent.
pub(super) fn agent<K: ServerAgent>(prompt: &str, options: &Value) -> Value {
    let node_type = format!("{}.agent", K::NAME);
    flow(&[json!({ "id": "a", "type": node_type, "input": { "prompt": prompt, "options": options } })])
}

pub(super) fn one_turn<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let turn = json!({ "blocks": [
        { "type": "thinking", "text": "A greeting will do." },
        { "type": "text", "text": "Hello from the scripted model.", "chunks": 5 }
    ], "usage": { "inputTokens": 120, "outputTokens": 30, "cacheReadTokens": 50 } });
    let server = serve(sandbox, &[turn])?;
    let run = sandbox.run_flow(&agent::<K>("role=one. Say hello.", &json!({})), &[])?;
    let summary = ended(&run, 0, "success")?;
    let session = session_of(&run.events)?;
    let output = output(&summary);
    let facts = [K::TEXT, "text", K::SESSION, "sessionId", "stopReason"].map(|name| output[name].as_str());
    let text = "Hello from the scripted model.";
    let expected = [text, text, &session, &session, "complete"].map(Some);
    same("the output", &facts, &expected)?;
    let cost = output["costUsd"].as_f64().is_some_and(|cost| cost > 0.0);
    same("whether a cost is told", &cost, &K::TELLS_COST)?;
    let usage = ["inputTokens", "cacheReadTokens", "outputTokens"].map(|name| output["usage"][name].clone());
    same("the tokens", &usage, &[json!(120), json!(50), json!(30)])?;
    same("what was streamed", &spoken(&run.events), &text.to_owned())?;
    let said = vec!["user: role=one. Say hello.".to_owned()];
    same("the conversation", &K::conversation(&main_requests(&server)[0]), &said)?;
    ensure!(count(&run.events, "agent:thinking") > 0, "no thinking was shown: {run}");
    Ok(())
}

pub(super) fn resume_in_a_new_process<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("The word is yoke."), says("It was yoke.")])?;
    let first = sandbox.run_flow(&agent::<K>("role=first. Remember a word.", &json!({})), &[])?;
    let session = output(&ended(&first, 0, "success")?)[K::SESSION].clone();
    let second = sandbox.run_flow(&K::going_on("role=second. What was it?", &session), &[])?;
    let summary = ended(&second, 0, "success")?;
    same("the answer", &output(&summary)[K::TEXT], &json!("It was yoke."))?;
    same("the conversation of both", &output(&summary)[K::SESSION], &session)?;
    let expected = [
        "user: role=first. Remember a word.",
        "assistant: The word is yoke.",
        "user: role=second. What was it?",
    ];
    let said = K::conversation(&main_requests(&server)[1]);
    same("the second request", &said, &expected.map(str::to_owned).to_vec())
}

pub(super) fn two_branches<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    branches::proved(
        sandbox,
        &format!("{}.agent", K::NAME),
        &json!({}),
        K::SESSION,
        branches::Begins::AfterTheTurn,
    )
}

pub(super) fn structured_output<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let answer = json!({ "name": "Bright", "age": 7 });
    let server = serve(sandbox, &[json!({ "structured": answer })])?;
    let schema = json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
    });
    let run = sandbox.run_flow(&agent::<K>("role=json. An ox.", &json!({ "outputSchema": schema })), &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the structured output", &output(&summary)["structuredOutput"], &answer)?;
    K::asked_for(&schema, &main_requests(&server))
}

pub(super) fn tool_allowed<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[K::shell("echo yoke > made.txt && echo written"), says("Done.")])?;
    let run = sandbox.run_flow(&agent::<K>("role=maker. Make it.", &K::free()), &[])?;
    same("the answer", &output(&ended(&run, 0, "success")?)[K::TEXT], &json!("Done."))?;
    same("the tools", &tool_ends(&run.events), &vec![false])?;
    same("the requests", &main_requests(&server).len(), &2)?;
    ensure!(sandbox.work().join("made.txt").exists(), "the tool did not run: {run}");
    Ok(())
}

pub(super) fn tool_denied_without_anyone<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[K::shell("echo yoke > made.txt"), says("Done.")])?;
    let run = sandbox.run_flow(&agent::<K>("role=maker. Make it.", &K::asking()), &["--no-input"])?;
    let summary = ended(&run, 0, "success")?;
    same("the answer", &output(&summary)[K::TEXT], &json!("Done."))?;
    same("the tools", &tool_ends(&run.events), &vec![true])?;
    same("the denials", &output(&summary)["permissionDenials"].as_array().map(Vec::len), &Some(1))?;
    ensure!(!sandbox.work().join("made.txt").exists(), "the tool ran: {run}");
    Ok(())
}

pub(super) fn tool_allowed_by_a_person<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[K::shell("echo yoke > made.txt"), says("Done.")])?;
    let reply = PersonStep::after("session:prompt", 1, move |hub: &inspan_engine::Hub| {
        let prompt = hub.open_prompts().pop().ok_or("no question is open")?;
        hub.reply(prompt.prompt_id, "", Some("allow".to_owned())).map_err(|error| error.to_string())
    });
    let result = person::run(sandbox, &agent::<K>("role=maker. Make it.", &K::asking()), [reply])?;
    let events: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    same("the tools", &tool_ends(&events), &vec![false])?;
    ensure!(sandbox.work().join("made.txt").exists(), "the tool did not run");
    Ok(())
}

pub(super) fn interrupt_mid_text<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[talks_slowly(), says("I go on.")])?;
    let running = sandbox.start_flow(&agent::<K>("role=slow. Talk.", &json!({})), &["--no-store"])?;
    let is_under_way = |requests: &[RecordedRequest]| requests.iter().any(|request| request.events_sent >= 7);
    server.wait_until(sandbox.deadline().left(), is_under_way)?;
    // The text has to come all the way to the log before it is cut off.
    pause(Duration::from_millis(300));
    let run = interrupted(running)?;
    ensure!(!spoken(&run.events).is_empty(), "what was said is lost: {run}");
    let resume = json!({ "resume": session_of(&run.events)? });
    let second = sandbox.run_flow(&agent::<K>("role=again. Go on.", &resume), &[])?;
    same("the answer", &output(&ended(&second, 0, "success")?)[K::TEXT], &json!("I go on."))
}

/// Starts a run whose tool sleeps, and waits until it does.
fn asleep<K: ServerAgent>(
    sandbox: &mut Sandbox,
    line: &str,
) -> anyhow::Result<(ModelServer, RunningProcess)> {
    let server = serve(sandbox, &[K::shell(line), says("Never.")])?;
    let running = sandbox.start_flow(&agent::<K>("role=tool. Wait.", &K::free()), &["--no-store"])?;
    while !sandbox.processes().values().any(|found| found == line) {
        ensure!(!sandbox.deadline().is_over(), "the tool never began");
        pause(Duration::from_millis(20));
    }
    Ok((server, running))
}

pub(super) fn interrupt_mid_tool<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (_server, running) = asleep::<K>(sandbox, "sleep 615")?;
    interrupted(running).map(drop)
}

pub(super) fn runtime_killed_mid_tool<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let (_server, mut running) = asleep::<K>(sandbox, "sleep 616")?;
    let cut = Stopwatch::start();
    running.kill()?;
    while !sandbox.processes().is_empty() && cut.elapsed() < GONE {
        pause(Duration::from_millis(5));
    }
    same("what is left", &sandbox.processes().into_values().collect(), &Vec::<String>::new())
}

pub(super) fn budget_within_a_turn<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    resume::budget_within_a_turn(sandbox, agent::<K>("role=tools. Work.", &K::free()), K::shell)
}

pub(super) fn failed_within_a_turn<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    resume::failed_within_a_turn(sandbox, agent::<K>("role=tools. Work.", &K::free()), K::shell)
}

/// A run that fails with this exit code and error, having asked the model once.
fn refused<K: ServerAgent>(
    sandbox: &mut Sandbox,
    status: u16,
    code: i32,
    error: &str,
    retryable: bool,
) -> anyhow::Result<()> {
    let server = serve(sandbox, &[json!({ "httpError": K::refusal(status) })])?;
    let run = sandbox.run_flow(&agent::<K>("role=refused. Answer.", &json!({})), &[])?;
    run.expect_code(code)?;
    let failure = failure(&run)?;
    let error_facts = json!([failure["code"], failure["retryable"], failure["provider"]]);
    same("the error", &error_facts, &json!([error, retryable, K::NAME]))?;
    // The program's own retries are off: attempts are the flow's, and this flow has one.
    same("the requests", &main_requests(&server).len(), &1)
}

pub(super) fn error_401<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    refused::<K>(sandbox, 401, 4, "AUTH", false)
}

pub(super) fn error_429<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    refused::<K>(sandbox, 429, 1, "RATE_LIMITED", true)
}

pub(super) fn stall<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let turn = json!({ "blocks": [{ "type": "text", "text": "so far and no further" }], "stallAfter": 6 });
    let _server = serve(sandbox, &[turn])?;
    let options = json!({ "stallTimeoutMs": K::STALL_MS });
    let run = sandbox.run_flow(&agent::<K>("role=stall. Talk.", &options), &[])?;
    run.expect_code(124).or_else(|_| run.expect_code(1))?;
    let failure = failure(&run)?;
    let error_facts = json!([failure["code"], failure["detail"]["kind"]]);
    same("the error", &error_facts, &json!(["TIMEOUT", "stall"]))
}

pub(super) fn unknown_session<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("Never.")])?;
    let run = sandbox.run_flow(&agent::<K>("role=unknown. Go on.", &json!({ "resume": K::UNKNOWN })), &[])?;
    no_such_session(&run, &server)
}

pub(super) fn missing_program<K: ServerAgent>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    without_programs(sandbox)?;
    let run = sandbox.run_flow(&agent::<K>("role=missing. Answer.", &json!({})), &[])?;
    names_the_missing(&run, K::NAME)
}

pub(super) struct Codex;

impl ServerAgent for Codex {
    const NAME: &'static str = "codex";
    const TEXT: &'static str = "code";
    const SESSION: &'static str = "sessionToken";
    const TELLS_COST: bool = false;
    const STALL_MS: u64 = 1500;
    const UNKNOWN: &'static str = "00000000-0000-4000-8000-00000000dead";

    fn free() -> Value {
        json!({ "approvalPolicy": "never", "sandbox": "danger-full-access" })
    }

    fn asking() -> Value {
        json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" })
    }

    fn shell(command: &str) -> Value {
        json!({ "blocks": [{ "type": "shell", "command": command }] })
    }

    fn going_on(prompt: &str, session: &Value) -> Value {
        let mut again = agent::<Self>(prompt, &json!({}));
        again["nodes"][0]["input"]["sessionToken"] = session.clone();
        again
    }

    fn refusal(status: u16) -> Value {
        json!({ "status": status })
    }

    fn conversation(request: &RecordedRequest) -> Vec<String> {
        let items = request.body["input"].as_array().into_iter().flatten();
        let spoken = items.filter(|item| matches!(item["role"].as_str(), Some("user" | "assistant")));
        let texts = spoken.flat_map(|item| {
            let role = item["role"].as_str().unwrap_or_default();
            let parts = item["content"].as_array().into_iter().flatten();
            parts.filter_map(move |part| Some(format!("{role}: {}", part["text"].as_str()?)))
        });
        texts.filter(|text| !text.starts_with("user: <") && !text.starts_with("user: # AGENTS.md")).collect()
    }

    fn asked_for(schema: &Value, requests: &[RecordedRequest]) -> anyhow::Result<()> {
        same("the schema", &requests[0].body["text"]["format"]["schema"], schema)
    }
}

pub(super) fn steered(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let text = "One word after another, for as long as it may take to be steered.";
    let slow = json!({ "blocks": [{ "type": "text", "text": text, "chunks": 60 }], "chunkMs": 200 });
    let server = serve(sandbox, &[slow, says("Briefly, then.")])?;
    let step = PersonStep::after("agent:text", 3, |hub| {
        let run = hub.active_runs().pop().ok_or("no run is active")?;
        hub.send_to_run(run, "Be brief.", MessageMode::Steer).map_err(|error| error.to_string())
    });
    let result = person::run(sandbox, &agent::<Codex>("role=slow. Talk.", &json!({})), [step])?;
    same("the outcome", &result.outcome, &inspan_protocol::Outcome::Success)?;
    let events: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    same("steered, runs", &["agent:steer", "agent:start"].map(|name| count(&events, name)), &[1, 1])?;
    let strength = events.iter().find(|envelope| envelope.event.name() == "agent:steer");
    let strength = serde_json::to_value(strength.context("nothing was steered")?)?;
    same(
        "how",
        &strength.pointer("/event/strength").or(strength.pointer("/event/payload/strength")).cloned(),
        &Some(json!("native")),
    )?;
    let said = Codex::conversation(main_requests(&server).last().context("no request came")?);
    same("the last words", &said.last().cloned(), &Some("user: Be brief.".to_owned()))
}

pub(super) struct OpenCode;

impl ServerAgent for OpenCode {
    const NAME: &'static str = "opencode";
    const TEXT: &'static str = "text";
    const SESSION: &'static str = "sessionId";
    const TELLS_COST: bool = true;
    const STALL_MS: u64 = 6000;
    const UNKNOWN: &'static str = "ses_00000000000000000000000000";

    fn free() -> Value {
        json!({ "allowedTools": ["bash"] })
    }

    /// As it does by default.
    fn asking() -> Value {
        json!({})
    }

    fn shell(command: &str) -> Value {
        json!({ "blocks": [{ "type": "tool_use", "name": "bash", "input": {
            "command": command, "description": "work",
        } }] })
    }

    fn going_on(prompt: &str, session: &Value) -> Value {
        agent::<Self>(prompt, &json!({ "resume": session }))
    }

    /// For an error that it would try again the program reports only the text, so the text is one
    /// that vendors use.
    fn refusal(status: u16) -> Value {
        let message = if status == 429 { "Rate limit reached for requests" } else { "refused" };
        json!({ "status": status, "message": message })
    }

    fn conversation(request: &RecordedRequest) -> Vec<String> {
        let messages = request.body["messages"].as_array().into_iter().flatten();
        let spoken =
            messages.filter(|message| matches!(message["role"].as_str(), Some("user" | "assistant")));
        let texts = spoken.filter_map(|message| {
            let parts = message["content"].as_array().into_iter().flatten();
            let joined: String = parts.filter_map(|part| part["text"].as_str()).collect();
            let text = message["content"].as_str().unwrap_or(&joined);
            Some(format!("{}: {text}", message["role"].as_str()?))
        });
        texts.collect()
    }

    fn asked_for(_: &Value, requests: &[RecordedRequest]) -> anyhow::Result<()> {
        same("the requests", &requests.len(), &1)
    }
}
