//! What each agent CLI has to prove through the whole program. How it behaves within a turn is proved by the conformance
//! suite on the same real program.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_testkit::{Sandbox, Stopwatch, pause};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::branches;
use super::checks::{
    GONE, ended, failure, flow, main_requests, names_the_missing, output, output_of, same, says, serve,
    session_of, without_programs,
};
use super::resume;

/// An agent of these cases.
pub(super) trait AgentCli {
    /// The provider, and what the program is called.
    const NAME: &'static str;
    /// What its output calls the conversation.
    const SESSION: &'static str;

    /// Options under which it asks nothing before a command.
    fn free() -> Value;

    /// A turn of the model that runs a command.
    fn shell(command: &str) -> Value;
}

/// A flow of one node `a`, run by the agent.
pub(super) fn agent<K: AgentCli>(prompt: &str, options: &Value) -> Value {
    let node_type = format!("{}.agent", K::NAME);
    flow(&[json!({ "id": "a", "type": node_type, "input": { "prompt": prompt, "options": options } })])
}

pub(super) fn two_branches<K: AgentCli>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    branches::proved(
        sandbox,
        &format!("{}.agent", K::NAME),
        &json!({}),
        K::SESSION,
        branches::Begins::AfterTheTurn,
    )
}

/// Waits until a tool runs this command.
pub(super) fn until_it_runs(sandbox: &Sandbox, line: &str) -> anyhow::Result<()> {
    while !sandbox.processes().values().any(|found| found == line) {
        ensure!(!sandbox.deadline().is_over(), "`{line}` never began");
        pause(Duration::from_millis(20));
    }
    Ok(())
}

pub(super) fn runtime_killed_mid_tool<K: AgentCli>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    // Claude Code refuses a command that begins with a long `sleep`.
    let _server = serve(sandbox, &[K::shell("true && sleep 616"), says("Never.")])?;
    let mut running = sandbox.start_flow(&agent::<K>("role=tool. Wait.", &K::free()), &["--no-store"])?;
    until_it_runs(sandbox, "sleep 616")?;
    let cut = Stopwatch::start();
    running.kill()?;
    while !sandbox.processes().is_empty() && cut.elapsed() < GONE {
        pause(Duration::from_millis(5));
    }
    same("what is left", &sandbox.processes().into_values().collect(), &Vec::<String>::new())
}

/// The program is killed while its tool runs: nothing is left, and the conversation goes on in a new program.
pub(super) fn program_killed_mid_tool<K: AgentCli>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let _server = serve(sandbox, &[K::shell("true && sleep 619"), says("Continued.")])?;
    let running = sandbox.start_flow(&agent::<K>("role=tool. Wait.", &K::free()), &[])?;
    until_it_runs(sandbox, "sleep 619")?;
    // Claude Code writes the conversation to its file a moment after it has started the tool.
    pause(Duration::from_millis(500));
    let is_program = |line: &str| line.split(' ').next().is_some_and(|path| path.ends_with(K::NAME));
    let programs = sandbox.processes().into_iter().filter(|(_, line)| is_program(line));
    for pid in programs.filter_map(|(pid, _)| Pid::from_raw(pid)) {
        kill_process(pid, Signal::KILL)?;
    }
    let run = running.finish()?;
    let failure = failure(&run)?;
    let error = json!([failure["code"], failure["detail"]["kind"]]);
    same("the error", &error, &json!(["PROCESS", "processDied"]))?;
    sandbox.none_left()?;
    let mut options = K::free();
    options["resume"] = json!(session_of(&run.events)?);
    let summary = ended(&sandbox.run_flow(&agent::<K>("role=tool. Go on.", &options), &[])?, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Continued."))
}

/// The conversation of a process that is gone goes on in another folder.
pub(super) fn resumed_elsewhere<K: AgentCli>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = serve(sandbox, &[says("The word is yoke."), says("It was yoke.")])?;
    let first = sandbox.run_flow(&agent::<K>("role=first. Remember a word.", &json!({})), &[])?;
    let session = output(&ended(&first, 0, "success")?)["sessionId"].clone();
    std::fs::create_dir(sandbox.work().join("sub"))?;
    let options = json!({ "resume": session, "cwd": "sub" });
    let second = sandbox.run_flow(&agent::<K>("role=second. What was it?", &options), &[])?;
    let summary = ended(&second, 0, "success")?;
    let facts = json!([output(&summary)["text"], output(&summary)["sessionId"]]);
    same("the answer", &facts, &json!(["It was yoke.", session]))?;
    let last = main_requests(&server).pop().context("no second request came")?.body.to_string();
    let said = ["role=first. Remember a word.", "The word is yoke.", "role=second. What was it?"];
    ensure!(said.iter().all(|part| last.contains(part)), "it forgot: {last}");
    Ok(())
}

pub(super) fn budget_within_a_turn<K: AgentCli>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    resume::budget_within_a_turn(sandbox, agent::<K>("role=tools. Work.", &K::free()), K::shell)
}

pub(super) fn failed_within_a_turn<K: AgentCli>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    resume::failed_within_a_turn(sandbox, agent::<K>("role=tools. Work.", &K::free()), K::shell)
}

/// The agent asks two questions by its own tool, and people answer them from another shell.
pub(super) fn question_answered<K: AgentCli>(
    sandbox: &mut Sandbox,
    tool: &str,
    several: &str,
) -> anyhow::Result<()> {
    let options = |labels: [&str; 2]| labels.map(|label| json!({ "label": label, "description": "it is" }));
    let input = json!({ "questions": [
        { "question": "Which colour?", "header": "Colour", "options": options(["red", "blue"]) },
        { "question": "Which parts?", "header": "Parts", "options": options(["lid", "lock"]), several: true },
    ] });
    let call = json!({ "blocks": [{ "type": "tool_use", "name": tool, "input": input }] });
    let server = serve(sandbox, &[call, says("I know.")])?;
    let flow = agent::<K>("role=asker. Ask.", &json!({}));
    let file = sandbox.flow(&flow)?.display().to_string();
    let (code, _, stderr) = output_of(sandbox, &["run", &file, "--detach", "--session-id", resume::SESSION])?;
    ensure!(code == 0, "the session did not begin: {stderr}");
    resume::until_it_works(sandbox, &["reply", resume::SESSION, "--choice", "red"])?;
    resume::until_it_works(sandbox, &["reply", resume::SESSION, "lid, 2"])?;
    resume::until_it_ended(sandbox)?;
    let requests = main_requests(&server);
    let told = requests.last().context("no request came")?.body["messages"].to_string();
    let lacks =
        |question: &str, answer: &str| !told.contains(&format!("\\\"{question}\\\"=\\\"{answer}\\\""));
    ensure!(!lacks("Which colour?", "red") && !lacks("Which parts?", "lid, lock"), "the model read {told}");
    Ok(())
}

pub(super) fn missing_program<K: AgentCli>(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    without_programs(sandbox)?;
    let run = sandbox.run_flow(&agent::<K>("role=missing. Answer.", &json!({})), &[])?;
    names_the_missing(&run, K::NAME)
}

pub(super) struct Claude;

impl AgentCli for Claude {
    const NAME: &'static str = "claude";
    const SESSION: &'static str = "sessionId";

    fn free() -> Value {
        json!({ "allowedTools": ["Bash"] })
    }

    fn shell(command: &str) -> Value {
        json!({ "blocks": [{ "type": "tool_use", "name": "Bash", "input": {
            "command": command, "description": "work",
        } }] })
    }
}

pub(super) struct Codex;

impl AgentCli for Codex {
    const NAME: &'static str = "codex";
    const SESSION: &'static str = "sessionToken";

    fn free() -> Value {
        json!({ "approvalPolicy": "never", "sandbox": "danger-full-access" })
    }

    fn shell(command: &str) -> Value {
        json!({ "blocks": [{ "type": "shell", "command": command }] })
    }
}

pub(super) struct OpenCode;

impl AgentCli for OpenCode {
    const NAME: &'static str = "opencode";
    const SESSION: &'static str = "sessionId";

    fn free() -> Value {
        json!({ "allowedTools": ["bash"] })
    }

    fn shell(command: &str) -> Value {
        json!({ "blocks": [{ "type": "tool_use", "name": "bash", "input": {
            "command": command, "description": "work",
        } }] })
    }
}
