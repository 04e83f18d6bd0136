//! Cases in which an agent wants to use a tool, and is allowed to or not.

use anyhow::{Context as _, ensure};
use inspan_engine::Hub;
use inspan_model_server::ModelServer;
use inspan_protocol::{Event, Outcome, PromptKind};
use inspan_testkit::Sandbox;
use serde_json::{Value, json};

use super::checks::{agent, count, ended, main_requests, output, same, says, serve, tool_ends};
use super::person::{self, PersonStep};

/// A model that makes the file `made.txt`, then says so.
fn makes_a_file(sandbox: &mut Sandbox) -> anyhow::Result<ModelServer> {
    let input = json!({ "command": "echo yoke > made.txt && echo written", "description": "make a file" });
    let call =
        json!({ "blocks": [{ "type": "tool_use", "name": "Bash", "id": "toolu_make", "input": input }] });
    serve(sandbox, &[call, says("Done.")])
}

fn is_made(sandbox: &Sandbox) -> bool {
    sandbox.work().join("made.txt").exists()
}

/// What the model got as the result of its tool call.
fn tool_result(server: &ModelServer) -> anyhow::Result<Value> {
    let requests = main_requests(server);
    let messages =
        requests.last().context("no request came")?.body["messages"].as_array().cloned().unwrap_or_default();
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let mut results = blocks.filter(|block| block["type"] == "tool_result");
    let result = results.next_back().context("the model was told nothing of its tool")?;
    Ok(json!([result["tool_use_id"], result["is_error"].as_bool().unwrap_or(false)]))
}

pub(super) fn allowed_by_the_flow(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = makes_a_file(sandbox)?;
    let run = sandbox.run_flow(&agent("role=maker. Make it.", &json!({ "allowedTools": ["Bash"] })), &[])?;
    let summary = ended(&run, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Done."))?;
    same("the tools", &tool_ends(&run.events), &vec![false])?;
    same("what the model was told", &tool_result(&server)?, &json!(["toolu_make", false]))?;
    ensure!(is_made(sandbox), "the tool did not run: {run}");
    Ok(())
}

pub(super) fn denied_without_anyone(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let server = makes_a_file(sandbox)?;
    let run = sandbox.run_flow(&agent("role=maker. Make it.", &json!({})), &["--no-input"])?;
    let summary = ended(&run, 0, "success")?;
    same("the answer", &output(&summary)["text"], &json!("Done."))?;
    same("the tools", &tool_ends(&run.events), &vec![true])?;
    same("what the model was told", &tool_result(&server)?, &json!(["toolu_make", true]))?;
    ensure!(!is_made(sandbox), "the tool ran: {run}");
    Ok(())
}

/// An agent that reads its environment gets its own key. Still, the key is in no event, no store, no output and
/// no recording: the search of all artefacts at the end of the case would find it.
pub(super) fn key_left_out_of_everything(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    let input = json!({ "command": "printenv ANTHROPIC_API_KEY; echo looked", "description": "look" });
    let call = json!({ "blocks": [{ "type": "tool_use", "name": "Bash", "input": input }] });
    let _server = serve(sandbox, &[call, says("I have looked.")])?;
    let tapes = sandbox.artefacts().join("tapes");
    let folder = tapes.to_str().context("the folder has no name")?;
    let flow = agent("role=looker. Look.", &json!({ "allowedTools": ["Bash"] }));
    let run = sandbox.run_flow(&flow, &["--record", folder])?;
    ended(&run, 0, "success")?;
    let mut recorded = String::new();
    for tape in std::fs::read_dir(&tapes)? {
        recorded.push_str(&std::fs::read_to_string(tape?.path())?);
    }
    ensure!(
        recorded.contains("[redacted ANTHROPIC_API_KEY]\\nlooked"),
        "the tool was not recorded: {recorded}"
    );
    let is_shown = run.events.iter().any(|envelope| match &envelope.event {
        Event::AgentToolComplete { result, .. } => {
            result.to_string().contains("[redacted ANTHROPIC_API_KEY]")
        }
        _ => false,
    });
    ensure!(is_shown, "the tool's answer does not show what was taken out: {run}");
    Ok(())
}

pub(super) fn allowed_by_a_person(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    asked(sandbox, "allow", false)?;
    ensure!(is_made(sandbox), "the tool did not run");
    Ok(())
}

pub(super) fn denied_by_a_person(sandbox: &mut Sandbox) -> anyhow::Result<()> {
    asked(sandbox, "deny", true)?;
    ensure!(!is_made(sandbox), "the tool ran");
    Ok(())
}

/// A person is asked once and chooses this.
fn asked(sandbox: &mut Sandbox, choice: &'static str, is_error: bool) -> anyhow::Result<()> {
    let server = makes_a_file(sandbox)?;
    let reply = PersonStep::after("session:prompt", 1, move |hub: &Hub| {
        let prompt = hub.open_prompts().pop().ok_or("no question is open")?;
        if prompt.kind != PromptKind::Permission {
            return Err(format!("it is no question for permission: {prompt:?}"));
        }
        hub.reply(prompt.prompt_id, "", Some(choice.to_owned())).map_err(|error| error.to_string())
    });
    let result = person::run(sandbox, &agent("role=maker. Make it.", &json!({})), [reply])?;
    same("the outcome", &result.outcome, &Outcome::Success)?;
    let events: Vec<_> = result.events.iter().map(|envelope| (**envelope).clone()).collect();
    same("the tools", &tool_ends(&events), &vec![is_error])?;
    let counts = ["session:prompt", "session:reply", "session:rejected"].map(|name| count(&events, name));
    same("questions, answers, refusals", &counts, &[1, 1, 0])?;
    same("what the model was told", &tool_result(&server)?, &json!(["toolu_make", is_error]))
}
