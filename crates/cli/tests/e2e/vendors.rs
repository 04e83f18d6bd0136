//! What one vendor's program alone has: its options, its limits and its errors. The options of a flow have to mean in the
//! real program what the documents say.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use futures::{StreamExt as _, future::BoxFuture};
use inspan_protocol::{
    ContentBlock, Envelope, Event, ExecutionContext, Host, PermissionBroker, PermissionDecision,
    PermissionRequest, Provider, ProviderItem, StreamEvent,
};
use inspan_providers::{ClaudeOptions, ClaudeSession, CodexProvider};
use inspan_testkit::{Agent, Finished, Sandbox, read_jsonl};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::agents::{self, AgentCli as _, Codex, OpenCode};
use super::checks::{
    agent, agent_node, count, ended, failure, flow, interrupted, main_requests, output, same, says, scenario,
    serve, session_of, spoken, tool_ends,
};

/// A picture of one pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A text and a mention that look like commands, and a picture.
fn every_message() -> Value {
    json!([
        { "role": "user", "content": [
            { "type": "text", "text": "/look" },
            { "type": "image", "media_type": "image/png", "data": PIXEL },
        ] },
        { "role": "user", "content": "@here" },
    ])
}

/// Runs one node `a` with every message and these options, and returns its output and the model's first request.
fn with_options(sandbox: &mut Sandbox, node_type: &str, options: &Value) -> anyhow::Result<(Value, Value)> {
    let server = serve(sandbox, &[says("ok")])?;
    fs::create_dir_all(sandbox.work().join("sub"))?;
    let input = json!({ "messages": every_message(), "options": options });
    let run = sandbox.run_flow(&flow(&[json!({ "id": "a", "type": node_type, "input": input })]), &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("ok"))?;
    let request = main_requests(&server).into_iter().next().context("no request came")?;
    Ok((output(&summary).clone(), request.body))
}

fn contains_all(what: &str, text: &str, parts: &[&str]) -> anyhow::Result<()> {
    let missing: Vec<_> = parts.iter().filter(|part| !text.contains(**part)).collect();
    ensure!(missing.is_empty(), "{what} lacks {missing:?}: {text}");
    Ok(())
}

/// The names of the tools that the model was offered.
fn offered(request: &Value) -> Vec<&str> {
    let tools = request["tools"].as_array().into_iter().flatten();
    let mut names: Vec<_> =
        tools.filter_map(|tool| tool["name"].as_str().or(tool["function"]["name"].as_str())).collect();
    names.sort_unstable();
    names
}

fn warnings(events: &[Envelope]) -> Vec<&str> {
    let codes = events.iter().filter_map(|envelope| match &envelope.event {
        Event::AgentWarning { code, .. } => Some(code.as_str()),
        _ => None,
    });
    codes.collect()
}

/// A run fails with this error.
fn fails(run: &Finished, code: &str, kind: &str) -> anyhow::Result<()> {
    let failure = failure(run)?;
    same("the error", &json!([failure["code"], failure["detail"]["kind"]]), &json!([code, kind]))
}

pub(super) fn claude_options(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let options = json!({
        "model": "claude-haiku-4-5", "maxTurns": 4, "tools": ["Read", "Bash"],
        "allowedTools": ["Bash(git *)", "Read"], "disallowedTools": ["Write"], "permissionMode": "acceptEdits",
        "systemPrompt": "You are a planted prompt.", "appendSystemPrompt": "And an appended one.",
        "thinking": "low", "maxThinkingTokens": 2048, "maxTokens": 4000, "maxBudgetUsd": 5, "addDirs": ["sub", "/"],
        "settingSources": ["user", "project"], "mcpServers": { "none": { "command": "/bin/false", "args": [] } },
    });
    let (output, request) = with_options(sandbox, "claude.agent", &options)?;
    same(
        "the model",
        &json!([output["model"], request["model"]]),
        &json!(["claude-haiku-4-5", "claude-haiku-4-5"]),
    )?;
    same("the limit of tokens", &request["max_tokens"], &json!(4000))?;
    same("the tools", &offered(&request), &vec!["Bash", "Read"])?;
    let system = request["system"].to_string();
    contains_all("the system prompt", &system, &["You are a planted prompt.", "And an appended one."])?;
    let content = request["messages"][0]["content"].as_array().context("no content")?;
    // The program's own words come before and after ours.
    let image = content.iter().position(|block| block["type"] == "image").context("no image")?;
    let ours = content.get(image - 1..=image + 1).context("too little around the image")?;
    let seen = json!([ours[0]["text"], ours[1]["type"], ours[2]["text"]]);
    same("the messages", &seen, &json!(["/look", "image", "@here"]))
}

pub(super) fn claude_limits(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let read = |path: &str| json!({ "blocks": [{ "type": "tool_use", "name": "Read", "input": { "file_path": path } }] });
    let _server = serve(sandbox, &[read("/etc/hostname"), read("/etc/hosts"), says("Never.")])?;
    let limited = |name: &str, value: Value| {
        agent("role=read. Read.", &json!({ name: value, "allowedTools": ["Read"] }))
    };
    let summary = ended(&sandbox.run_flow(&limited("maxTurns", json!(1)), &[])?, 0, "success")?;
    let facts = json!([output(&summary)["stopReason"], output(&summary)["numTurns"]]);
    same("the end", &facts, &json!(["maxTurns", 1]))?;
    fails(&sandbox.run_flow(&limited("maxBudgetUsd", json!(0.000_000_1)), &[])?, "BILLING", "maxBudget")
}

/// A turn waits for its sub-agents, and ends what else it leaves in the background. The next one gets its own answer.
pub(super) fn claude_background(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let shell = |command: &str, background: bool| {
        let input = json!({ "command": command, "description": "x", "run_in_background": background });
        json!({ "type": "tool_use", "name": "Bash", "input": input })
    };
    let sub_agent = |prompt: &str| {
        let job = json!({ "description": "sub", "prompt": prompt, "subagent_type": "general-purpose",
                          "run_in_background": true });
        json!({ "type": "tool_use", "name": "Agent", "input": job })
    };
    let turn =
        |part: &str, blocks: Value| json!({ "when": { "lastMessageContains": part }, "blocks": blocks });
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let turns = json!([
        turn("role=boss", json!([shell("sleep 300", true), sub_agent("role=sub. Work.")])),
        turn("Async agent launched", text("started")),
        turn("role=sub", json!([shell("sleep 1; echo made > made", false)])),
        turn("task-notification", text("all done")),
        turn("role=next", text("the next answer")),
        // This sub-agent ends within the turn.
        turn("role=early", json!([sub_agent("role=quick."), shell("sleep 2; echo slept", false)])),
        { "blocks": text("sub done") },
    ]);
    let _server = scenario(sandbox, json!({ "turns": turns }))?;
    let options = json!({ "allowedTools": ["Agent", "Bash"] });
    let mut next = agent_node("next", "role=next. Go.", &options);
    next["dependsOn"] = json!(["first"]);
    next["session"] = json!("first");
    let early = agent_node("early", "role=early. Go.", &options);
    let flow = flow(&[agent_node("first", "role=boss. Go.", &options), next, early]);
    let run = sandbox.run_flow(&flow, &["--no-input"])?;
    let summary = ended(&run, 0, "success")?;
    let texts = ["first", "next", "early"].map(|node| summary["outputs"][node]["text"].clone());
    same("the answers", &texts, &[json!("all done"), json!("the next answer"), json!("started")])?;
    same("the warnings", &warnings(&run.events), &vec!["backgroundEnded"])?;
    ensure!(sandbox.work().join("made").exists(), "the sub-agent did not work: {run}");
    Ok(())
}

pub(super) fn codex_options(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let options = json!({
        "model": "another-model", "maxTurns": 4, "approvalPolicy": "on-request", "sandbox": "workspace-write",
        "systemPrompt": "You are a planted prompt.", "appendSystemPrompt": "And an appended one.",
        "thinking": "low", "cwd": "sub", "mcpServers": { "none": { "command": "/bin/false", "args": [] } },
        "config": { "web_search": "disabled", "features.goals": true },
    });
    let (output, request) = with_options(sandbox, "codex.agent", &options)?;
    ensure!(!offered(&request).contains(&"create_goal"), "it can set itself a goal");
    same(
        "the model",
        &json!([output["model"], request["model"]]),
        &json!(["another-model", "another-model"]),
    )?;
    let picture = format!("data:image/png;base64,{PIXEL}");
    let parts =
        ["You are a planted prompt.", "And an appended one.", "/work/sub", "/look", "@here", &picture];
    contains_all("the input", &request["input"].to_string(), &parts)
}

pub(super) fn codex_limit_of_turns(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let touch = |name: &str| Codex::shell(&format!("touch {name}"));
    let _server = serve(sandbox, &[touch("one"), touch("two"), touch("three"), says("Never.")])?;
    let mut options = Codex::free();
    options["maxTurns"] = json!(2);
    let run = sandbox.run_flow(&agents::agent::<Codex>("role=maker. Make them.", &options), &[])?;
    let summary = ended(&run, 0, "success")?;
    let facts = json!([output(&summary)["stopReason"], output(&summary)["numTurns"]]);
    same("the end", &facts, &json!(["maxTurns", 2]))?;
    let made = ["one", "two", "three"].map(|name| sandbox.work().join(name).exists());
    same("what is made", &made, &[true, true, false])
}

/// A patch of files is asked about, as a command is.
pub(super) fn codex_patches(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\nEOF";
    let denied = PermissionDecision::Deny { message: "no".to_owned() };
    let allowed = PermissionDecision::Allow { updated_input: None };
    for (decision, is_made) in [(denied, false), (allowed, true)] {
        let _server = serve(sandbox, &[Codex::shell(patch), says("ok")])?;
        let options = json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" });
        let input = json!({ "prompt": "role=patcher. Patch it.", "options": options });
        let (events, _) = turn(sandbox, &CodexProvider::new(), input, decision)?;
        let ends = events.iter().filter_map(|event| match event {
            StreamEvent::ToolComplete { is_error, .. } => Some(*is_error),
            _ => None,
        });
        same("the tools", &ends.collect::<Vec<_>>(), &vec![!is_made])?;
        same("whether the file is there", &sandbox.work().join("new.txt").exists(), &is_made)?;
    }
    Ok(())
}

/// The script that npm puts on the path starts the native program; nothing of both is left.
pub(super) fn codex_by_npm(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let program = Agent::Codex.installed()?;
    let modules = program.ancestors().find(|folder| folder.ends_with("node_modules")).context("no npm")?;
    let _server = serve(sandbox, &[Codex::shell("sleep 617"), says("Never.")])?;
    let mut options = Codex::free();
    options["executable"] = json!(modules.join("@openai/codex/bin/codex.js"));
    let running =
        sandbox.start_flow(&agents::agent::<Codex>("role=tool. Wait.", &options), &["--no-store"])?;
    agents::until_it_runs(sandbox, "sleep 617")?;
    interrupted(running).map(drop)
}

/// What the program tries again by itself is warned of, and what it had said is taken back.
pub(super) fn codex_retries(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let mut broken = says("one two three four five");
    broken["truncateAfter"] = json!(8);
    let _server = serve(sandbox, &[broken, says("anew")])?;
    let options = json!({ "config": { "model_providers": { "scripted": { "stream_max_retries": 2 } } } });
    let run = sandbox.run_flow(&agents::agent::<Codex>("role=again. Talk.", &options), &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("anew"))?;
    same("what was taken back", &count(&run.events, "agent:retract"), &1)?;
    ensure!(warnings(&run.events).contains(&"apiRetry"), "no warning: {run}");
    Ok(())
}

pub(super) fn codex_option_refused(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[says("Never.")])?;
    let options = json!({ "config": { "model_providers.openai.name": "mine" } });
    let run = sandbox.run_flow(&agents::agent::<Codex>("role=refused. Talk.", &options), &[])?;
    fails(&run, "CONFIG_INVALID", "optionRefused")
}

/// A key of the environment reaches the vendor's own server, and no file of the program.
pub(super) fn codex_key_in_memory(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("Never.")])?;
    let home = PathBuf::from(sandbox.env().get("CODEX_HOME").context("no home of Codex")?);
    fs::remove_file(home.join("config.toml"))?;
    let key = sandbox.env()["OPENAI_API_KEY"].clone();
    let options = json!({ "config": { "openai_base_url": format!("{}/v1", server.base_url()) } });
    let flow = agents::agent::<Codex>("role=key. Talk.", &options);
    sandbox.set("OPENAI_API_KEY", "");
    fails(&sandbox.run_flow(&flow, &[])?, "AUTH", "noLogin")?;
    for name in ["CODEX_API_KEY", "OPENAI_API_KEY"] {
        sandbox.set(name, &key);
        let before = server.requests().len();
        let running = sandbox.start_flow(&flow, &["--no-store"])?;
        server.wait_until(sandbox.deadline().left(), |all| {
            all[before..].iter().any(|request| {
                request
                    .headers
                    .get("authorization")
                    .is_some_and(|value| value == inspan_model_server::SECRET_PRESENT)
            })
        })?;
        interrupted(running)?;
        sandbox.set(name, "");
        let found = std::process::Command::new("grep").args(["-rlF", &key]).arg(&home).output()?;
        same("the files with the key", &String::from_utf8_lossy(&found.stdout).into_owned(), &String::new())?;
    }
    Ok(())
}

/// A conversation that a living program has is refused to a second one.
pub(super) fn codex_busy(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[says("First."), says("Second.")])?;
    let mut holds = agents::agent::<Codex>("role=first. Talk.", &json!({}));
    let waits =
        json!({ "id": "b", "type": "exec", "dependsOn": ["a"], "input": { "argv": ["sleep", "618"] } });
    holds["nodes"].as_array_mut().context("nodes")?.push(waits);
    let running = sandbox.start_flow(&holds, &["--no-store"])?;
    agents::until_it_runs(sandbox, "sleep 618")?;
    let conversation = session_of(&read_jsonl(&running.events)?)?;
    let again = agents::agent::<Codex>("role=second. Talk.", &json!({ "resume": conversation }));
    fails(&sandbox.run_flow(&again, &[])?, "INVALID_REQUEST", "sessionBusy")?;
    interrupted(running)?;
    let summary = ended(&sandbox.run_flow(&again, &[])?, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Second."))
}

/// A sub-agent ends with its turn: with one that did not wait for it, and with one that is cut.
pub(super) fn codex_sub_agents(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let spawn = json!({ "message": "role=helper. Work.", "agent_type": "default" });
    let spawn = json!({ "type": "tool_use", "name": "multi_agent_v1__spawn_agent", "input": spawn });
    let mut works = Codex::shell("echo work >> work");
    works["when"] = json!({ "anyMessageContains": "role=helper." });
    works["times"] = json!(50);
    works["firstMs"] = json!(300);
    // As the command begins, the turn before it has ended.
    let watch = "wc -l < work; sleep 2; wc -l < work";
    for (answers_after, is_cut) in [(1_500, false), (60_000, true)] {
        let mut ends = says("Done.");
        ends["firstMs"] = json!(answers_after);
        let begins = json!({ "when": { "lastMessageContains": "role=boss." }, "blocks": [spawn] });
        let _server = serve(sandbox, &[begins, works.clone(), ends])?;
        let mut flow = agents::agent::<Codex>("role=boss. Delegate.", &Codex::free());
        flow["nodes"][0]["policy"] = json!({ "timeout": "4s", "continueOnError": true });
        let watches = json!({ "id": "b", "type": "exec", "dependsOn": ["a"], "input": { "argv": ["sh", "-c", watch] } });
        flow["nodes"].as_array_mut().context("nodes")?.push(watches);
        let run = sandbox.run_flow(&flow, &[])?;
        let summary = ended(&run, 0, "success")?;
        same("whether it was cut", &failure(&run).is_ok(), &is_cut)?;
        same("the warning", &warnings(&run.events).contains(&"backgroundEnded"), &!is_cut)?;
        let lines = summary["outputs"]["b"]["stdout"].as_str().context("no output")?;
        let lines: Vec<_> = lines.split_whitespace().collect();
        ensure!(lines.len() == 2 && lines[0] == lines[1] && lines[0] != "0", "it worked on: {lines:?}");
        fs::remove_file(sandbox.work().join("work"))?;
    }
    Ok(())
}

pub(super) fn opencode_options(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let sees =
        json!({ "attachment": true, "modalities": { "input": ["text", "image"], "output": ["text"] } });
    opencode_settings(sandbox, &json!({ "models": { "scripted-model": sees } }));
    let options = json!({
        "model": "scripted/scripted-model", "variant": "high", "agent": "plan", "maxTurns": 4,
        "tools": ["read", "bash"], "allowedTools": ["bash(git *)", "read"], "disallowedTools": ["write"],
        "systemPrompt": "You are a planted prompt. {env:HOME} {file:/etc/passwd}", "appendSystemPrompt": "And an appended one.",
        "mcpServers": { "none": { "type": "local", "command": ["/bin/false"], "enabled": false } },
    });
    let (output, request) = with_options(sandbox, "opencode.agent", &options)?;
    same("the model", &output["model"], &json!("scripted/scripted-model"))?;
    same("the tools", &offered(&request), &vec!["bash", "read"])?;
    let parts = [
        "You are a planted prompt. {env:HOME} {file:/etc/passwd}",
        "And an appended one.",
        "/look",
        "@here",
        PIXEL,
    ];
    contains_all("the request", &request["messages"].to_string(), &parts)
}

/// Changes the program's settings of the scripted vendor.
fn opencode_settings(sandbox: &mut Sandbox, scripted: &Value) {
    let settings = json!({ "provider": { "scripted": scripted } });
    sandbox.set("OPENCODE_CONFIG_CONTENT", &settings.to_string());
}

/// The program speaks to its vendors in three formats. The cases of the suite use the third.
pub(super) fn opencode_formats(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    for npm in ["@ai-sdk/anthropic", "@ai-sdk/openai"] {
        opencode_settings(sandbox, &json!({ "npm": npm }));
        let turn = json!({ "blocks": [
            { "type": "thinking", "text": "let me think" }, { "type": "text", "text": "Hello there." }
        ], "usage": { "inputTokens": 100, "outputTokens": 20 } });
        let server = serve(sandbox, &[turn])?;
        let run = sandbox.run_flow(&agents::agent::<OpenCode>("/hi @there", &json!({})), &[])?;
        let summary = ended(&run, 0, "success").context(npm)?;
        let output = output(&summary);
        let tokens = ["inputTokens", "outputTokens"].map(|name| output["usage"][name].clone());
        let facts = json!([output["text"], spoken(&run.events), tokens, output["costUsd"]]);
        same(npm, &facts, &json!(["Hello there.", "Hello there.", [100, 20], 0.0006]))?;
        ensure!(count(&run.events, "agent:thinking") > 0, "{npm}: no thinking was shown: {run}");
        // One request: no title was asked for, and the prompt came as it was written.
        let requests = main_requests(&server);
        same("the requests", &requests.len(), &1)?;
        contains_all("the request", &requests[0].body.to_string(), &["/hi @there"])?;
    }
    Ok(())
}

fn bash(command: &str) -> Value {
    json!({ "type": "tool_use", "name": "bash", "input": { "command": command, "description": "work" } })
}

/// What the options allow and forbid is so without a question, and the rest is denied where nobody is to ask.
pub(super) fn opencode_rules(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let fetch = json!({ "type": "tool_use", "name": "webfetch", "input": { "url": "http://127.0.0.1:1/", "format": "text" } });
    let calls = json!({ "blocks": [bash("echo yes"), bash("touch made"), fetch] });
    let server = serve(sandbox, &[calls, says("ok")])?;
    let options = json!({ "allowedTools": ["bash(echo *)"], "disallowedTools": ["webfetch"] });
    let run = sandbox.run_flow(&agents::agent::<OpenCode>("role=tools. Go.", &options), &["--no-input"])?;
    ended(&run, 0, "success")?;
    let failed = tool_ends(&run.events).into_iter().filter(|failed| *failed).count();
    same("the tools that failed", &failed, &2)?;
    ensure!(!sandbox.work().join("made").exists(), "the tool ran: {run}");
    let requests = main_requests(&server);
    let offered = offered(&requests[0].body);
    ensure!(offered.contains(&"bash") && !offered.contains(&"webfetch"), "offered: {offered:?}");
    Ok(())
}

/// What a sub-agent uses counts; its words are not those of the agent.
pub(super) fn opencode_sub_agent(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let input = json!({ "description": "sub", "prompt": "do it", "subagent_type": "general" });
    let task = json!({ "type": "tool_use", "name": "task", "input": input });
    let turns = [
        json!({ "blocks": [task] }),
        json!({ "blocks": [bash("echo within")] }),
        says("within"),
        says("after"),
    ];
    let turns = turns.map(|mut turn| {
        turn["usage"] = json!({ "inputTokens": 100, "outputTokens": 20 });
        turn
    });
    let _server = serve(sandbox, &turns)?;
    let options = json!({ "allowedTools": ["task", "bash"] });
    let run = sandbox.run_flow(&agents::agent::<OpenCode>("role=tools. Go.", &options), &["--no-input"])?;
    let summary = ended(&run, 0, "success")?;
    let output = output(&summary);
    let facts =
        json!([output["text"], spoken(&run.events), output["numTurns"], output["usage"]["inputTokens"]]);
    same("the output", &facts, &json!(["after", "after", 2, 400]))?;
    same("the tools", &tool_ends(&run.events).iter().filter(|failed| **failed).count(), &0)
}

pub(super) fn opencode_names(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[says("Never.")])?;
    for (name, value, code) in
        [("model", "scripted/other-model", "MODEL_NOT_FOUND"), ("agent", "nobody", "CONFIG_INVALID")]
    {
        let run =
            sandbox.run_flow(&agents::agent::<OpenCode>("role=lost. Go.", &json!({ name: value })), &[])?;
        same(name, &failure(&run)?["code"], &json!(code))?;
    }
    Ok(())
}

pub(super) fn opencode_limits(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let mut long = json!({ "httpError": { "status": 400,
        "message": "prompt is too long: 210000 tokens > 200000 maximum" } });
    long["when"] = json!({ "lastMessageContains": "role=long" });
    let server = serve(sandbox, &[long, OpenCode::shell("echo one"), OpenCode::shell("echo two")])?;
    let run = sandbox.run_flow(&agents::agent::<OpenCode>("role=long. Go.", &json!({})), &[])?;
    same("the error", &failure(&run)?["code"], &json!("CONTEXT_LENGTH"))?;
    ensure!(main_requests(&server).len() <= 3, "it was asked again and again: {run}");
    let options = json!({ "maxTurns": 1, "allowedTools": ["bash"] });
    let run = sandbox.run_flow(&agents::agent::<OpenCode>("role=tools. Go.", &options), &[])?;
    let summary = ended(&run, 0, "success")?;
    let facts = json!([output(&summary)["stopReason"], output(&summary)["numTurns"]]);
    same("the end", &facts, &json!(["maxTurns", 1]))
}

/// Model, mode and effort can be chosen among what an agent of the ACP offers.
pub(super) fn acp_choices(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    opencode_settings(
        sandbox,
        &json!({ "models": { "two": { "name": "Two", "tool_call": true, "reasoning": true,
        "limit": { "context": 200_000, "output": 8192 } } } }),
    );
    let opencode = json!({ "command": "opencode", "args": ["acp"], "passEnv": ["OPENAI_*", "OPENCODE_*"] });
    let claude = json!({ "command": "claude-agent-acp", "passEnv": ["ANTHROPIC_*", "CLAUDE_*"] });
    let run = |sandbox: &mut Sandbox, agent: &Value, model: &str, more: Value| -> anyhow::Result<_> {
        let server = serve(sandbox, &[says("ok")])?;
        let mut options = agent.clone();
        options["model"] = json!(model);
        options.as_object_mut().context("options")?.extend(more.as_object().cloned().unwrap_or_default());
        let input = json!({ "prompt": "role=chosen. Go.", "options": options });
        let run =
            sandbox.run_flow(&flow(&[json!({ "id": "a", "type": "acp.agent", "input": input })]), &[])?;
        let request = main_requests(&server).pop().map(|request| request.body).unwrap_or_default();
        Ok((run, request))
    };
    let (ran, request) =
        run(sandbox, &opencode, "scripted/two", json!({ "mode": "plan", "thinking": "high" }))?;
    let summary = ended(&ran, 0, "success")?;
    let facts = json!([output(&summary)["model"], request["model"], request["reasoning_effort"]]);
    same("what OpenCode chose", &facts, &json!(["scripted/two", "two", "high"]))?;
    contains_all("the request", &request.to_string().to_lowercase(), &["plan mode"])?;
    let (ran, _) = run(sandbox, &opencode, "scripted/three", json!({}))?;
    same("the error", &failure(&ran)?["code"], &json!("MODEL_NOT_FOUND"))?;

    let (ran, request) = run(sandbox, &claude, "sonnet", json!({ "mode": "plan" }))?;
    let summary = ended(&ran, 0, "success")?;
    same("what Claude chose", &output(&summary)["model"], &json!("sonnet"))?;
    contains_all("the model", request["model"].as_str().unwrap_or_default(), &["sonnet"])
}

/// Runs one turn of a provider as a Rust program does, with someone who decides so about each request.
fn turn<P: Provider>(
    sandbox: &Sandbox,
    provider: &P,
    input: Value,
    decision: PermissionDecision,
) -> anyhow::Result<(Vec<StreamEvent>, Value)> {
    let input: P::Input = serde_json::from_value(input)?;
    let permissions: Option<Arc<dyn PermissionBroker>> = Some(Arc::new(Decides(decision)));
    let mut stream = provider.execute(input, ExecutionContext { permissions, ..context(sandbox) });
    runtime()?.block_on(async {
        let mut events = Vec::new();
        while let Some(item) = stream.next().await {
            match item? {
                ProviderItem::Event(event) => events.push(event),
                ProviderItem::Output(output) => {
                    provider.shutdown().await;
                    return Ok((events, serde_json::to_value(output)?));
                }
            }
        }
        bail!("the turn has no output")
    })
}

fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

fn context(sandbox: &Sandbox) -> ExecutionContext {
    let env = sandbox.env().clone().into_iter().collect();
    ExecutionContext::new(Host { env, cwd: Some(sandbox.work()), ..Host::default() })
}

struct Decides(PermissionDecision);

impl PermissionBroker for Decides {
    fn request(&self, _: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        Box::pin(std::future::ready(self.0.clone()))
    }
}

/// Someone who changes the command that is asked about does not allow it: the program can only run it as it is.
pub(super) fn codex_input_changed(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[Codex::shell("touch made"), says("Then not.")])?;
    let options = json!({ "approvalPolicy": "untrusted", "sandbox": "workspace-write" });
    let changed = PermissionDecision::Allow { updated_input: Some(json!({ "command": "true" })) };
    let input = json!({ "prompt": "role=maker. Make it.", "options": options });
    let (events, output) = turn(sandbox, &CodexProvider::new(), input, changed)?;
    same("the answer", &output["code"], &json!("Then not."))?;
    same("the denied tool", &output["permissionDenials"][0]["toolName"], &json!("commandExecution"))?;
    let is_warned = events
        .iter()
        .any(|event| matches!(event, StreamEvent::Warning { code, .. } if code == "inputNotChanged"));
    ensure!(is_warned && !sandbox.work().join("made").exists(), "{events:?}");
    Ok(())
}

/// A Rust program that holds a conversation by hand, without a provider.
pub(super) fn claude_by_hand(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[says("first"), says("second")])?;
    runtime()?.block_on(async {
        let session = ClaudeSession::create(&ClaudeOptions::default(), &context(sandbox)).await?;
        for (say, expected) in [("one", "first"), ("two", "second")] {
            session.send(&[ContentBlock::Text { text: say.to_owned() }]).await?;
            let answer = session.receive(context(sandbox));
            let items: Vec<_> = answer.collect().await;
            let Some(Ok(ProviderItem::Output(output))) = items.last() else { bail!("no output: {items:?}") };
            same("the answer", &output.text.as_str(), &expected)?;
        }
        session.close().await;
        Ok(())
    })
}
