//! The cases of the real program, one row each, and the words that they share.
//! Conversations, tools, interruptions, errors, agents of the Agent Client Protocol and the bare programs are each left
//! to a file.

mod acp;
mod codex;
mod conformance;
mod conversations;
mod errors;
mod interruptions;
mod opencode;
mod programs;
mod rest;
mod tools;

use std::fmt::Debug;

use anyhow::{Context as _, ensure};
use inspan_engine::check_order;
use inspan_protocol::{Envelope, Event};
use inspan_testkit::{ModelServer, RecordedRequest, RequestKind};
use serde_json::{Value, json};

use super::Case;
use super::install::Agent;
use super::world::{Finished, World};

const CLAUDE: &[Agent] = &[Agent::Claude];
const CODEX: &[Agent] = &[Agent::Codex];
const OPENCODE: &[Agent] = &[Agent::OpenCode];
const PROGRAMS: &[Agent] = &[Agent::Claude, Agent::Codex, Agent::OpenCode];
const CLAUDE_ACP: &[Agent] = &[Agent::Claude, Agent::ClaudeAcp];

/// Every case, in the order in which they run.
pub(super) const CASES: &[Case] = &[
    Case { name: "codex_alone", needs: CODEX, bound: 20, prove: programs::codex },
    Case { name: "opencode_alone", needs: OPENCODE, bound: 40, prove: programs::opencode },
    Case { name: "claude_acp_alone", needs: CLAUDE_ACP, bound: 20, prove: programs::claude_acp },
    Case { name: "doctor_greets", needs: PROGRAMS, bound: 40, prove: programs::greeted },
    Case { name: "acp_claude_text", needs: CLAUDE_ACP, bound: 40, prove: acp::text::<acp::Claude> },
    Case { name: "acp_opencode_text", needs: OPENCODE, bound: 40, prove: acp::text::<acp::OpenCode> },
    Case {
        name: "acp_claude_tool_allowed",
        needs: CLAUDE_ACP,
        bound: 50,
        prove: acp::tool_allowed::<acp::Claude>,
    },
    Case {
        name: "acp_opencode_tool_allowed",
        needs: OPENCODE,
        bound: 50,
        prove: acp::tool_allowed::<acp::OpenCode>,
    },
    Case {
        name: "acp_claude_tool_denied",
        needs: CLAUDE_ACP,
        bound: 50,
        prove: acp::tool_denied::<acp::Claude>,
    },
    Case {
        name: "acp_opencode_tool_denied",
        needs: OPENCODE,
        bound: 50,
        prove: acp::tool_denied::<acp::OpenCode>,
    },
    Case {
        name: "acp_claude_structured",
        needs: CLAUDE_ACP,
        bound: 60,
        prove: acp::structured::<acp::Claude>,
    },
    Case {
        name: "acp_opencode_structured",
        needs: OPENCODE,
        bound: 60,
        prove: acp::structured::<acp::OpenCode>,
    },
    Case {
        name: "acp_claude_cancelled_and_resumed",
        needs: CLAUDE_ACP,
        bound: 80,
        prove: acp::cancelled_and_resumed::<acp::Claude>,
    },
    Case {
        name: "acp_opencode_cancelled_and_resumed",
        needs: OPENCODE,
        bound: 80,
        prove: acp::cancelled_and_resumed::<acp::OpenCode>,
    },
    Case {
        name: "acp_claude_resumed_in_a_new_process",
        needs: CLAUDE_ACP,
        bound: 70,
        prove: acp::resumed_in_a_new_process::<acp::Claude>,
    },
    Case {
        name: "acp_opencode_resumed_in_a_new_process",
        needs: OPENCODE,
        bound: 70,
        prove: acp::resumed_in_a_new_process::<acp::OpenCode>,
    },
    Case {
        name: "acp_claude_key_refused",
        needs: CLAUDE_ACP,
        bound: 50,
        prove: acp::key_refused::<acp::Claude>,
    },
    Case {
        name: "acp_opencode_key_refused",
        needs: OPENCODE,
        bound: 50,
        prove: acp::key_refused::<acp::OpenCode>,
    },
    Case {
        name: "acp_claude_unknown_session",
        needs: CLAUDE_ACP,
        bound: 40,
        prove: acp::unknown_session::<acp::Claude>,
    },
    Case {
        name: "acp_opencode_unknown_session",
        needs: OPENCODE,
        bound: 40,
        prove: acp::unknown_session::<acp::OpenCode>,
    },
    Case { name: "one_turn", needs: CLAUDE, bound: 30, prove: conversations::one_turn },
    Case {
        name: "two_turns_by_session",
        needs: CLAUDE,
        bound: 30,
        prove: conversations::two_turns_by_session,
    },
    Case {
        name: "two_turns_by_message",
        needs: CLAUDE,
        bound: 30,
        prove: conversations::two_turns_by_message,
    },
    Case {
        name: "resume_in_a_new_process",
        needs: CLAUDE,
        bound: 40,
        prove: conversations::resume_in_a_new_process,
    },
    Case {
        name: "recorded_then_replayed",
        needs: CLAUDE,
        bound: 40,
        prove: conversations::recorded_then_replayed,
    },
    Case { name: "prompt_as_written", needs: CLAUDE, bound: 30, prove: conversations::prompt_as_written },
    Case { name: "structured_output", needs: CLAUDE, bound: 30, prove: conversations::structured_output },
    Case {
        name: "structured_output_repaired",
        needs: CLAUDE,
        bound: 30,
        prove: conversations::structured_output_repaired,
    },
    Case { name: "tool_allowed_by_the_flow", needs: CLAUDE, bound: 30, prove: tools::allowed_by_the_flow },
    Case {
        name: "tool_denied_without_anyone",
        needs: CLAUDE,
        bound: 30,
        prove: tools::denied_without_anyone,
    },
    Case { name: "tool_allowed_by_a_person", needs: CLAUDE, bound: 30, prove: tools::allowed_by_a_person },
    Case { name: "tool_denied_by_a_person", needs: CLAUDE, bound: 30, prove: tools::denied_by_a_person },
    Case {
        name: "key_left_out_of_everything",
        needs: CLAUDE,
        bound: 30,
        prove: tools::key_left_out_of_everything,
    },
    Case { name: "interrupt_mid_text", needs: CLAUDE, bound: 50, prove: interruptions::mid_text },
    Case { name: "interrupt_mid_tool", needs: CLAUDE, bound: 40, prove: interruptions::mid_tool },
    Case {
        name: "runtime_killed_mid_tool",
        needs: CLAUDE,
        bound: 30,
        prove: interruptions::runtime_killed_mid_tool,
    },
    Case { name: "paused_and_resumed", needs: CLAUDE, bound: 40, prove: rest::paused_and_resumed },
    Case { name: "killed_and_resumed", needs: CLAUDE, bound: 40, prove: rest::killed_and_resumed },
    Case { name: "killed_between_turns", needs: CLAUDE, bound: 40, prove: rest::killed_between_turns },
    Case {
        name: "approved_from_another_shell",
        needs: CLAUDE,
        bound: 40,
        prove: rest::approved_from_another_shell,
    },
    Case { name: "told_from_another_shell", needs: CLAUDE, bound: 40, prove: rest::told_from_another_shell },
    Case { name: "usage_limit_waited_out", needs: CLAUDE, bound: 60, prove: rest::usage_limit_waited_out },
    Case { name: "budget_used_up", needs: CLAUDE, bound: 30, prove: rest::budget_used_up },
    Case { name: "edited_and_resumed", needs: CLAUDE, bound: 60, prove: rest::edited_and_resumed },
    Case { name: "node_timeout", needs: CLAUDE, bound: 40, prove: interruptions::node_timeout },
    Case { name: "stall", needs: CLAUDE, bound: 40, prove: interruptions::stall },
    Case { name: "error_401", needs: CLAUDE, bound: 30, prove: errors::status_401 },
    Case { name: "error_429", needs: CLAUDE, bound: 30, prove: errors::status_429 },
    Case { name: "error_529", needs: CLAUDE, bound: 30, prove: errors::status_529 },
    Case { name: "error_529_then_ok", needs: CLAUDE, bound: 40, prove: errors::status_529_then_ok },
    Case { name: "connection_refused", needs: CLAUDE, bound: 30, prove: errors::connection_refused },
    Case { name: "unknown_session", needs: CLAUDE, bound: 30, prove: errors::unknown_session },
    Case { name: "missing_program", needs: CLAUDE, bound: 15, prove: errors::missing_program },
    Case {
        name: "three_nodes_claude",
        needs: CLAUDE,
        bound: 60,
        prove: |world| conformance::three_nodes(world, "claude"),
    },
    Case {
        name: "conformance_claude",
        needs: CLAUDE,
        bound: 120,
        prove: |world| conformance::list(world, "claude"),
    },
    Case {
        name: "three_nodes_codex",
        needs: CODEX,
        bound: 60,
        prove: |world| conformance::three_nodes(world, "codex"),
    },
    Case {
        name: "conformance_codex",
        needs: CODEX,
        bound: 120,
        prove: |world| conformance::list(world, "codex"),
    },
    Case {
        name: "three_nodes_opencode",
        needs: OPENCODE,
        bound: 60,
        prove: |world| conformance::three_nodes(world, "opencode"),
    },
    Case {
        name: "conformance_opencode",
        needs: OPENCODE,
        bound: 400,
        prove: |world| conformance::list(world, "opencode"),
    },
    Case {
        name: "three_nodes_acp_opencode",
        needs: OPENCODE,
        bound: 60,
        prove: |world| conformance::three_nodes(world, "acp:opencode"),
    },
    // The list over `opencode acp` takes five minutes, most of them its own retries: `inspan doctor --conformance
    // acp:opencode` runs it.
    Case {
        name: "three_nodes_acp_claude",
        needs: CLAUDE_ACP,
        bound: 60,
        prove: |world| conformance::three_nodes(world, "acp:claude-agent-acp"),
    },
    Case {
        name: "conformance_acp_claude",
        needs: CLAUDE_ACP,
        bound: 200,
        prove: |world| conformance::list(world, "acp:claude-agent-acp"),
    },
    Case { name: "codex_one_turn", needs: CODEX, bound: 30, prove: codex::one_turn },
    Case {
        name: "codex_resume_in_a_new_process",
        needs: CODEX,
        bound: 40,
        prove: codex::resume_in_a_new_process,
    },
    Case { name: "codex_steered", needs: CODEX, bound: 30, prove: codex::steered },
    Case { name: "codex_structured_output", needs: CODEX, bound: 30, prove: codex::structured_output },
    Case { name: "codex_tool_allowed", needs: CODEX, bound: 30, prove: codex::tool_allowed },
    Case {
        name: "codex_tool_denied_without_anyone",
        needs: CODEX,
        bound: 30,
        prove: codex::tool_denied_without_anyone,
    },
    Case {
        name: "codex_tool_allowed_by_a_person",
        needs: CODEX,
        bound: 30,
        prove: codex::tool_allowed_by_a_person,
    },
    Case { name: "codex_interrupt_mid_text", needs: CODEX, bound: 50, prove: codex::interrupt_mid_text },
    Case { name: "codex_interrupt_mid_tool", needs: CODEX, bound: 40, prove: codex::interrupt_mid_tool },
    Case {
        name: "codex_runtime_killed_mid_tool",
        needs: CODEX,
        bound: 30,
        prove: codex::runtime_killed_mid_tool,
    },
    Case { name: "codex_error_401", needs: CODEX, bound: 30, prove: codex::error_401 },
    Case { name: "codex_error_429", needs: CODEX, bound: 30, prove: codex::error_429 },
    Case { name: "codex_stall", needs: CODEX, bound: 40, prove: codex::stall },
    Case { name: "codex_unknown_session", needs: CODEX, bound: 30, prove: codex::unknown_session },
    Case { name: "codex_missing_program", needs: CODEX, bound: 15, prove: codex::missing_program },
    Case { name: "opencode_one_turn", needs: OPENCODE, bound: 60, prove: opencode::one_turn },
    Case {
        name: "opencode_resume_in_a_new_process",
        needs: OPENCODE,
        bound: 90,
        prove: opencode::resume_in_a_new_process,
    },
    Case {
        name: "opencode_structured_output",
        needs: OPENCODE,
        bound: 60,
        prove: opencode::structured_output,
    },
    Case { name: "opencode_tool_allowed", needs: OPENCODE, bound: 60, prove: opencode::tool_allowed },
    Case {
        name: "opencode_tool_denied_without_anyone",
        needs: OPENCODE,
        bound: 60,
        prove: opencode::tool_denied_without_anyone,
    },
    Case {
        name: "opencode_tool_allowed_by_a_person",
        needs: OPENCODE,
        bound: 60,
        prove: opencode::tool_allowed_by_a_person,
    },
    Case {
        name: "opencode_interrupt_mid_text",
        needs: OPENCODE,
        bound: 90,
        prove: opencode::interrupt_mid_text,
    },
    Case {
        name: "opencode_interrupt_mid_tool",
        needs: OPENCODE,
        bound: 60,
        prove: opencode::interrupt_mid_tool,
    },
    Case {
        name: "opencode_runtime_killed_mid_tool",
        needs: OPENCODE,
        bound: 60,
        prove: opencode::runtime_killed_mid_tool,
    },
    Case { name: "opencode_error_401", needs: OPENCODE, bound: 60, prove: opencode::error_401 },
    Case { name: "opencode_error_429", needs: OPENCODE, bound: 60, prove: opencode::error_429 },
    Case { name: "opencode_stall", needs: OPENCODE, bound: 60, prove: opencode::stall },
    Case { name: "opencode_unknown_session", needs: OPENCODE, bound: 60, prove: opencode::unknown_session },
    Case { name: "opencode_missing_program", needs: OPENCODE, bound: 15, prove: opencode::missing_program },
];

/// A flow of one node `a`, a Claude agent.
fn agent(prompt: &str, options: &Value) -> Value {
    flow(&[agent_node("a", prompt, options)])
}

fn agent_node(id: &str, prompt: &str, options: &Value) -> Value {
    json!({ "id": id, "type": "claude.agent", "input": { "prompt": prompt, "options": options } })
}

fn flow(nodes: &[Value]) -> Value {
    json!({ "flow": { "name": "e2e" }, "nodes": nodes })
}

/// A turn of the scripted model that says this.
fn says(text: &str) -> Value {
    json!({ "blocks": [{ "type": "text", "text": text }] })
}

fn same<T: PartialEq + Debug>(what: &str, actual: &T, expected: &T) -> anyhow::Result<()> {
    let shown = |value: &T| format!("{value:?}").chars().take(SHOWN).collect::<String>();
    ensure!(actual == expected, "{what} is\n  {}\nand not\n  {}", shown(actual), shown(expected));
    Ok(())
}

/// How much of a value is shown when it is not what it should be: a whole request would bury everything.
const SHOWN: usize = 2_000;

/// The run ended with this code, its log is in order, and the word of its outcome is this.
fn ended(run: &Finished, code: i32, outcome: &str) -> anyhow::Result<Value> {
    run.expect_code(code)?;
    check_order(&run.events)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("the log is out of order: {run}"))?;
    let summary = run.json()?;
    same("the outcome", &summary["outcome"], &json!(outcome)).with_context(|| run.to_string())?;
    Ok(summary)
}

/// The error that the newest `task:failed` of the run tells.
fn failure(run: &Finished) -> anyhow::Result<Value> {
    let failed = run.events.iter().rev().find_map(|envelope| match &envelope.event {
        Event::TaskFailed { error, .. } => Some(error),
        _ => None,
    });
    Ok(serde_json::to_value(failed.with_context(|| format!("no node failed: {run}"))?)?)
}

/// How often an event of this name stands in the log.
fn count(events: &[Envelope], name: &str) -> usize {
    events.iter().filter(|envelope| envelope.event.name() == name).count()
}

/// The text of all `agent:text` events, joined.
fn spoken(events: &[Envelope]) -> String {
    let texts = events.iter().filter_map(|envelope| match &envelope.event {
        Event::AgentText { content, .. } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The vendor's conversation, as the log tells it.
fn session_of(events: &[Envelope]) -> anyhow::Result<String> {
    let session = events.iter().find_map(|envelope| match &envelope.event {
        Event::AgentSession { session_id, .. } => Some(session_id.to_string()),
        _ => None,
    });
    session.context("the log tells no conversation")
}

/// The requests of the main line.
fn main_requests(server: &ModelServer) -> Vec<RecordedRequest> {
    server.requests().into_iter().filter(|request| request.kind == RequestKind::Main).collect()
}

/// What user and assistant said, as `role: text` of each text block; what the program adds by itself is left out.
fn conversation(request: &RecordedRequest) -> Vec<String> {
    let messages = request.body["messages"].as_array().cloned().unwrap_or_default();
    let said = messages.iter().flat_map(|message| {
        let role = message["role"].as_str().unwrap_or_default().to_owned();
        let blocks = match &message["content"] {
            Value::String(text) => vec![text.clone()],
            content => content.as_array().into_iter().flatten().filter_map(text_of).collect(),
        };
        blocks.into_iter().map(move |text| (role.clone(), text))
    });
    said.filter(|(role, text)| role != "system" && !text.trim_start().starts_with("<system-reminder>"))
        .map(|(role, text)| format!("{role}: {}", text.trim()))
        .collect()
}

fn text_of(block: &Value) -> Option<String> {
    block["text"].as_str().map(str::to_owned)
}

/// The output of node `a`.
fn output(summary: &Value) -> &Value {
    &summary["outputs"]["a"]
}

/// A world with a server.
fn serve(world: &mut World, turns: &[Value]) -> anyhow::Result<ModelServer> {
    world.serve(json!({ "turns": turns }))
}
