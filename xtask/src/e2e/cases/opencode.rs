//! Cases of the real OpenCode by its server: what is proved of an agent with Claude Code, for this one.
//! The program alone is left to `programs.rs`.

use std::time::Duration;

use anyhow::ensure;
use inspan_protocol::{Envelope, Event};
use inspan_testkit::RecordedRequest;
use serde_json::{Value, json};

use super::{count, ended, failure, flow, main_requests, output, same, says, serve, session_of, spoken};
use crate::e2e::library::{self, Step};
use crate::e2e::processes::marked;
use crate::e2e::time::{Stopwatch, pause};
use crate::e2e::world::World;

const GONE: Duration = Duration::from_secs(10);

fn agent(prompt: &str, options: &Value) -> Value {
    flow(&[json!({ "id": "a", "type": "opencode.agent", "input": { "prompt": prompt, "options": options } })])
}

/// Asks nothing before a command.
fn free() -> Value {
    json!({ "allowedTools": ["bash"] })
}

/// Asks before each command, as it does unless told otherwise.
fn asking() -> Value {
    json!({})
}

fn shell(command: &str) -> Value {
    json!({ "blocks": [{ "type": "tool_use", "name": "bash", "input": {
        "command": command, "description": "work",
    } }] })
}

/// What user and assistant said.
fn conversation(request: &RecordedRequest) -> Vec<String> {
    let messages = request.body["messages"].as_array().into_iter().flatten();
    let spoken = messages.filter(|message| matches!(message["role"].as_str(), Some("user" | "assistant")));
    let texts = spoken.filter_map(|message| {
        let parts = message["content"].as_array().into_iter().flatten();
        let joined: String = parts.filter_map(|part| part["text"].as_str()).collect();
        let text = message["content"].as_str().unwrap_or(&joined);
        Some(format!("{}: {text}", message["role"].as_str()?))
    });
    texts.collect()
}

/// Each tool that ended: whether it failed.
fn tool_ends(events: &[Envelope]) -> Vec<bool> {
    let ends = events.iter().filter_map(|envelope| match &envelope.event {
        Event::AgentToolComplete { is_error, .. } => Some(*is_error),
        _ => None,
    });
    ends.collect()
}

pub(super) fn one_turn(world: &mut World) -> anyhow::Result<()> {
    let turn = json!({ "blocks": [
        { "type": "thinking", "text": "A greeting will do." },
        { "type": "text", "text": "Hello from the scripted model.", "chunks": 5 }
    ], "usage": { "inputTokens": 120, "outputTokens": 30, "cacheReadTokens": 50 } });
    let server = serve(world, &[turn])?;
    let run = world.run(&agent("role=one. Say hello.", &json!({})), &[])?;
    let summary = ended(&run, 0, "success")?;
    let session = session_of(&run.events)?;
    let output = output(&summary);
    let facts = json!([output["text"], output["sessionId"], output["stopReason"], output["costUsd"]]);
    let text = "Hello from the scripted model.";
    same("the output", &facts, &json!([text, session, "complete", output["costUsd"]]))?;
    ensure!(output["costUsd"].as_f64().is_some_and(|cost| cost > 0.0), "no cost is told: {run}");
    let usage = ["inputTokens", "cacheReadTokens", "outputTokens"].map(|name| output["usage"][name].clone());
    same("the tokens", &usage, &[json!(120), json!(50), json!(30)])?;
    same("what was streamed", &spoken(&run.events), &text.to_owned())?;
    let said = vec!["user: role=one. Say hello.".to_owned()];
    same("the conversation", &conversation(&main_requests(&server)[0]), &said)?;
    ensure!(count(&run.events, "agent:thinking") > 0, "no thinking was shown: {run}");
    Ok(())
}

pub(super) fn resume_in_a_new_process(world: &mut World) -> anyhow::Result<()> {
    let server = serve(world, &[says("The word is yoke."), says("It was yoke.")])?;
    let first = world.run(&agent("role=first. Remember a word.", &json!({})), &[])?;
    let session = output(&ended(&first, 0, "success")?)["sessionId"].clone();
    let again = agent("role=second. What was it?", &json!({ "resume": session }));
    let second = world.run(&again, &[])?;
    let summary = ended(&second, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("It was yoke."))?;
    same("the conversation of both", &output(&summary)["sessionId"], &session)?;
    let expected = [
        "user: role=first. Remember a word.",
        "assistant: The word is yoke.",
        "user: role=second. What was it?",
    ];
    let said = conversation(&main_requests(&server)[1]);
    same("the second request", &said, &expected.map(str::to_owned).to_vec())
}

pub(super) fn structured_output(world: &mut World) -> anyhow::Result<()> {
    let answer = json!({ "name": "Bright", "age": 7 });
    let server = serve(world, &[json!({ "structured": answer })])?;
    let schema = json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
    });
    let run = world.run(&agent("role=json. An ox.", &json!({ "outputSchema": schema })), &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the structured output", &output(&summary)["structuredOutput"], &answer)?;
    same("the requests", &main_requests(&server).len(), &1)
}

pub(super) fn tool_allowed(world: &mut World) -> anyhow::Result<()> {
    let server = serve(world, &[shell("echo yoke > made.txt && echo written"), says("Done.")])?;
    let run = world.run(&agent("role=maker. Make it.", &free()), &[])?;
    same("the answer", &output(&ended(&run, 0, "success")?)["text"], &json!("Done."))?;
    same("the tools", &tool_ends(&run.events), &vec![false])?;
    same("the requests", &main_requests(&server).len(), &2)?;
    ensure!(world.work().join("made.txt").exists(), "the tool did not run: {run}");
    Ok(())
}

pub(super) fn tool_denied_without_anyone(world: &mut World) -> anyhow::Result<()> {
    let _server = serve(world, &[shell("echo yoke > made.txt"), says("Done.")])?;
    let run = world.run(&agent("role=maker. Make it.", &asking()), &["--no-input"])?;
    let summary = ended(&run, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Done."))?;
    same("the tools", &tool_ends(&run.events), &vec![true])?;
    same("the denials", &output(&summary)["permissionDenials"].as_array().map(Vec::len), &Some(1))?;
    ensure!(!world.work().join("made.txt").exists(), "the tool ran: {run}");
    Ok(())
}

pub(super) fn tool_allowed_by_a_person(world: &mut World) -> anyhow::Result<()> {
    let _server = serve(world, &[shell("echo yoke > made.txt"), says("Done.")])?;
    let reply = Step::after("session:prompt", 1, move |hub: &inspan_engine::Hub| {
        let prompt = hub.open_prompts().pop().ok_or("no question is open")?;
        hub.reply(prompt.prompt_id, "", Some("allow".to_owned())).map_err(|error| error.to_string())
    });
    let result = library::run(world, &agent("role=maker. Make it.", &asking()), [reply])?;
    let events: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    same("the tools", &tool_ends(&events), &vec![false])?;
    ensure!(world.work().join("made.txt").exists(), "the tool did not run");
    Ok(())
}

pub(super) fn interrupt_mid_text(world: &mut World) -> anyhow::Result<()> {
    let text = "One word after another, for as long as it may take to be interrupted.";
    let slow = json!({ "blocks": [{ "type": "text", "text": text, "chunks": 60 }], "chunkMs": 500 });
    let server = serve(world, &[slow, says("I go on.")])?;
    let running = world.start(&agent("role=slow. Talk.", &json!({})), &["--no-store"])?;
    let is_under_way = |requests: &[RecordedRequest]| requests.iter().any(|request| request.events_sent >= 7);
    server.wait_until(world.deadline.left(), is_under_way)?;
    // The text has to come all the way to the log before it is cut off.
    pause(Duration::from_millis(300));
    let cut = Stopwatch::start();
    running.interrupt()?;
    let run = running.finish()?;
    ended(&run, 130, "stopped")?;
    ensure!(cut.elapsed() < GONE, "it took {:?} to stop", cut.elapsed());
    ensure!(!spoken(&run.events).is_empty(), "what was said is lost: {run}");
    let resume = json!({ "resume": session_of(&run.events)? });
    let second = world.run(&agent("role=again. Go on.", &resume), &[])?;
    same("the answer", &output(&ended(&second, 0, "success")?)["text"], &json!("I go on."))
}

/// Starts a run whose tool sleeps, and waits until it does.
fn asleep(
    world: &mut World,
    line: &str,
) -> anyhow::Result<(inspan_testkit::ModelServer, crate::e2e::world::Running)> {
    let server = serve(world, &[shell(line), says("Never.")])?;
    let running = world.start(&agent("role=tool. Wait.", &free()), &["--no-store"])?;
    while !marked(&world.mark).values().any(|found| found == line) {
        ensure!(!world.deadline.is_over(), "the tool never began");
        pause(Duration::from_millis(20));
    }
    Ok((server, running))
}

pub(super) fn interrupt_mid_tool(world: &mut World) -> anyhow::Result<()> {
    let (_server, running) = asleep(world, "sleep 615")?;
    let cut = Stopwatch::start();
    running.interrupt()?;
    ended(&running.finish()?, 130, "stopped")?;
    ensure!(cut.elapsed() < GONE, "it took {:?} to stop", cut.elapsed());
    Ok(())
}

pub(super) fn runtime_killed_mid_tool(world: &mut World) -> anyhow::Result<()> {
    let (_server, running) = asleep(world, "sleep 616")?;
    let cut = Stopwatch::start();
    running.kill()?;
    while !marked(&world.mark).is_empty() && cut.elapsed() < GONE {
        pause(Duration::from_millis(5));
    }
    same("what is left", &marked(&world.mark).into_values().collect(), &Vec::<String>::new())
}

/// A run that fails with this exit code and error, having asked the model so often.
fn refused(world: &mut World, status: u16, code: i32, error: &str, retryable: bool) -> anyhow::Result<()> {
    // Of what it would try again the program tells the words alone, so they are such as vendors use.
    let message = if status == 429 { "Rate limit reached for requests" } else { "refused" };
    let server = serve(world, &[json!({ "httpError": { "status": status, "message": message } })])?;
    let run = world.run(&agent("role=refused. Answer.", &json!({})), &[])?;
    run.expect_code(code)?;
    let failure = failure(&run)?;
    let told = json!([failure["code"], failure["retryable"], failure["provider"]]);
    same("the error", &told, &json!([error, retryable, "opencode"]))?;
    // The program's own retries are off: attempts are the flow's, and this flow has one.
    same("the requests", &main_requests(&server).len(), &1)
}

pub(super) fn error_401(world: &mut World) -> anyhow::Result<()> {
    refused(world, 401, 4, "AUTH", false)
}

pub(super) fn error_429(world: &mut World) -> anyhow::Result<()> {
    refused(world, 429, 1, "RATE_LIMITED", true)
}

pub(super) fn stall(world: &mut World) -> anyhow::Result<()> {
    let turn = json!({ "blocks": [{ "type": "text", "text": "so far and no further" }], "stallAfter": 6 });
    let _server = serve(world, &[turn])?;
    let run = world.run(&agent("role=stall. Talk.", &json!({ "stallTimeoutMs": 6000 })), &[])?;
    run.expect_code(124).or_else(|_| run.expect_code(1))?;
    let failure = failure(&run)?;
    let told = json!([failure["code"], failure["detail"]["kind"]]);
    same("the error", &told, &json!(["TIMEOUT", "stall"]))
}

pub(super) fn unknown_session(world: &mut World) -> anyhow::Result<()> {
    let server = serve(world, &[says("Never.")])?;
    let resume = json!({ "resume": "ses_00000000000000000000000000" });
    let run = world.run(&agent("role=unknown. Go on.", &resume), &[])?;
    run.expect_code(1)?;
    let failure = failure(&run)?;
    let told = json!([failure["code"], failure["detail"]["kind"]]);
    same("the error", &told, &json!(["INVALID_REQUEST", "sessionNotFound"]))?;
    same("the requests", &main_requests(&server).len(), &0)
}

pub(super) fn missing_program(world: &mut World) -> anyhow::Result<()> {
    let empty = world.work().join("empty");
    std::fs::create_dir(&empty)?;
    world.set("PATH", &empty.display().to_string());
    let run = world.run(&agent("role=missing. Answer.", &json!({})), &[])?;
    run.expect_code(4)?;
    // Found before anything is started, so there is no session, and no event of one.
    same("the events", &run.events.len(), &0)?;
    let told = run.json()?["error"].to_string();
    let tells = |word: &&str| told.contains(word);
    ensure!(
        ["`a`", "`opencode`", "npm install", "CONFIG_MISSING"].iter().all(tells),
        "it does not say what to do: {told}"
    );
    Ok(())
}
