//! The cases of the real programs, one row each: which of them it needs, and how many seconds it may take.

mod acp;
mod codex;
mod conformance;
mod conversations;
mod errors;
mod interruptions;
mod lessons;
mod opencode;
mod programs;
mod rest;
mod servers;
mod tools;
mod words;

use super::install::Agent;
use super::world::World;
use super::{Case, Place};
use codex::Codex;
use opencode::OpenCode;

const CLAUDE: &[Agent] = &[Agent::Claude];
const CODEX: &[Agent] = &[Agent::Codex];
const OPENCODE: &[Agent] = &[Agent::OpenCode];
const PROGRAMS: &[Agent] = &[Agent::Claude, Agent::Codex, Agent::OpenCode];
const DROID: &[Agent] = &[Agent::Droid];
const GEMINI: &[Agent] = &[Agent::Gemini];
const QWEN: &[Agent] = &[Agent::Qwen];
const CLAUDE_ACP: &[Agent] = &[Agent::Claude, Agent::ClaudeAcp];

/// A row. OpenCode takes seconds of one processor to start, and a case of it waits for little else; so such cases run
/// beside each other.
const fn case(
    name: &'static str,
    needs: &'static [Agent],
    bound: u64,
    prove: fn(&mut World) -> anyhow::Result<()>,
) -> Case {
    let place = if matches!(needs, [Agent::OpenCode]) { Place::Beside } else { Place::Alone };
    Case { name, needs, bound, prove, place }
}

impl Case {
    /// The same with the machine to itself.
    const fn alone(self) -> Self {
        Self { place: Place::Alone, ..self }
    }
}

/// Every case, in the order in which they run; those beside each other come last.
pub(super) const CASES: &[Case] = &[
    case("codex_alone", CODEX, 20, programs::codex),
    case("opencode_alone", OPENCODE, 40, programs::opencode),
    case("claude_acp_alone", CLAUDE_ACP, 20, programs::claude_acp),
    case("doctor_greets", PROGRAMS, 40, programs::greeted),
    case("acp_claude_text", CLAUDE_ACP, 40, acp::text::<acp::Claude>),
    case("acp_opencode_text", OPENCODE, 40, acp::text::<acp::OpenCode>),
    case("acp_claude_tool_allowed", CLAUDE_ACP, 50, acp::tool_allowed::<acp::Claude>),
    case("acp_opencode_tool_allowed", OPENCODE, 50, acp::tool_allowed::<acp::OpenCode>),
    case("acp_claude_tool_denied", CLAUDE_ACP, 50, acp::tool_denied::<acp::Claude>),
    case("acp_opencode_tool_denied", OPENCODE, 50, acp::tool_denied::<acp::OpenCode>),
    case("acp_claude_structured", CLAUDE_ACP, 60, acp::structured::<acp::Claude>),
    case("acp_opencode_structured", OPENCODE, 60, acp::structured::<acp::OpenCode>),
    case("acp_claude_cancelled_and_resumed", CLAUDE_ACP, 80, acp::cancelled_and_resumed::<acp::Claude>),
    case("acp_opencode_cancelled_and_resumed", OPENCODE, 80, acp::cancelled_and_resumed::<acp::OpenCode>),
    case("acp_claude_resumed_in_a_new_process", CLAUDE_ACP, 70, acp::resumed_in_a_new_process::<acp::Claude>),
    case(
        "acp_opencode_resumed_in_a_new_process",
        OPENCODE,
        70,
        acp::resumed_in_a_new_process::<acp::OpenCode>,
    ),
    case("acp_claude_key_refused", CLAUDE_ACP, 50, acp::key_refused::<acp::Claude>),
    case("acp_opencode_key_refused", OPENCODE, 50, acp::key_refused::<acp::OpenCode>),
    case("acp_claude_unknown_session", CLAUDE_ACP, 40, acp::unknown_session::<acp::Claude>),
    case("acp_opencode_unknown_session", OPENCODE, 40, acp::unknown_session::<acp::OpenCode>),
    case("droid_text", DROID, 80, acp::text::<acp::Droid>),
    case("droid_tool_allowed", DROID, 80, acp::tool_allowed::<acp::Droid>),
    case("droid_tool_denied", DROID, 80, acp::tool_denied::<acp::Droid>),
    case("droid_structured", DROID, 80, acp::structured::<acp::Droid>),
    case("droid_resumed_in_a_new_process", DROID, 80, acp::resumed_in_a_new_process::<acp::Droid>),
    case("droid_key_refused", DROID, 80, acp::key_refused::<acp::Droid>),
    case("droid_unknown_session", DROID, 80, acp::unknown_session::<acp::Droid>),
    case("three_nodes_droid", DROID, 80, |world| conformance::three_nodes(world, "droid")),
    case("gemini_text", GEMINI, 80, acp::text::<acp::Gemini>),
    case("gemini_tool_allowed", GEMINI, 80, acp::tool_allowed::<acp::Gemini>),
    case("gemini_tool_denied", GEMINI, 80, acp::tool_denied::<acp::Gemini>),
    case("gemini_structured", GEMINI, 80, acp::structured::<acp::Gemini>),
    case("gemini_key_refused", GEMINI, 80, acp::key_refused::<acp::Gemini>),
    case("gemini_unknown_session", GEMINI, 80, acp::unknown_session::<acp::Gemini>),
    case("three_nodes_gemini", GEMINI, 80, |world| conformance::three_nodes(world, "gemini")),
    case("qwen_text", QWEN, 80, acp::text::<acp::Qwen>),
    case("qwen_tool_allowed", QWEN, 80, acp::tool_allowed::<acp::Qwen>),
    case("qwen_tool_denied", QWEN, 80, acp::tool_denied::<acp::Qwen>),
    case("qwen_structured", QWEN, 80, acp::structured::<acp::Qwen>),
    case("qwen_cancelled_and_resumed", QWEN, 80, acp::cancelled_and_resumed::<acp::Qwen>),
    case("qwen_resumed_in_a_new_process", QWEN, 80, acp::resumed_in_a_new_process::<acp::Qwen>),
    case("qwen_key_refused", QWEN, 80, acp::key_refused::<acp::Qwen>),
    case("qwen_unknown_session", QWEN, 80, acp::unknown_session::<acp::Qwen>),
    case("three_nodes_qwen", QWEN, 80, |world| conformance::three_nodes(world, "qwen")),
    case("one_turn", CLAUDE, 30, conversations::one_turn),
    case("two_turns_by_session", CLAUDE, 30, conversations::two_turns_by_session),
    case("two_turns_by_message", CLAUDE, 30, conversations::two_turns_by_message),
    case("resume_in_a_new_process", CLAUDE, 40, conversations::resume_in_a_new_process),
    case("recorded_then_replayed", CLAUDE, 40, conversations::recorded_then_replayed),
    case("lesson_06_prompt_files", CLAUDE, 40, lessons::prompt_files),
    case("lesson_09_multi_turn", CLAUDE, 40, lessons::multi_turn),
    case("prompt_as_written", CLAUDE, 30, conversations::prompt_as_written),
    case("structured_output", CLAUDE, 30, conversations::structured_output),
    case("structured_output_repaired", CLAUDE, 30, conversations::structured_output_repaired),
    case("tool_allowed_by_the_flow", CLAUDE, 30, tools::allowed_by_the_flow),
    case("tool_denied_without_anyone", CLAUDE, 30, tools::denied_without_anyone),
    case("tool_allowed_by_a_person", CLAUDE, 30, tools::allowed_by_a_person),
    case("tool_denied_by_a_person", CLAUDE, 30, tools::denied_by_a_person),
    case("key_left_out_of_everything", CLAUDE, 30, tools::key_left_out_of_everything),
    case("interrupt_mid_text", CLAUDE, 50, interruptions::mid_text),
    case("interrupt_mid_tool", CLAUDE, 40, interruptions::mid_tool),
    case("runtime_killed_mid_tool", CLAUDE, 30, interruptions::runtime_killed_mid_tool),
    case("paused_and_resumed", CLAUDE, 40, rest::paused_and_resumed),
    case("killed_and_resumed", CLAUDE, 40, rest::killed_and_resumed),
    case("killed_between_turns", CLAUDE, 40, rest::killed_between_turns),
    case("approved_from_another_shell", CLAUDE, 40, rest::approved_from_another_shell),
    case("told_from_another_shell", CLAUDE, 40, rest::told_from_another_shell),
    case("usage_limit_waited_out", CLAUDE, 60, rest::usage_limit_waited_out),
    case("budget_used_up", CLAUDE, 30, rest::budget_used_up),
    case("edited_and_resumed", CLAUDE, 60, rest::edited_and_resumed),
    case("node_timeout", CLAUDE, 40, interruptions::node_timeout),
    case("stall", CLAUDE, 40, interruptions::stall),
    case("error_401", CLAUDE, 30, errors::status_401),
    case("error_429", CLAUDE, 30, errors::status_429),
    case("error_529", CLAUDE, 30, errors::status_529),
    case("error_529_then_ok", CLAUDE, 40, errors::status_529_then_ok),
    case("connection_refused", CLAUDE, 30, errors::connection_refused),
    case("unknown_session", CLAUDE, 30, errors::unknown_session),
    case("missing_program", CLAUDE, 15, errors::missing_program),
    case("three_nodes_claude", CLAUDE, 60, |world| conformance::three_nodes(world, "claude")),
    case("conformance_claude", CLAUDE, 120, |world| conformance::list(world, "claude")),
    case("three_nodes_codex", CODEX, 60, |world| conformance::three_nodes(world, "codex")),
    case("conformance_codex", CODEX, 120, |world| conformance::list(world, "codex")),
    case("three_nodes_opencode", OPENCODE, 60, |world| conformance::three_nodes(world, "opencode")),
    // The list has lanes of its own.
    case("conformance_opencode", OPENCODE, 400, |world| conformance::list(world, "opencode")).alone(),
    case("three_nodes_acp_opencode", OPENCODE, 60, |world| conformance::three_nodes(world, "acp:opencode")),
    // The list over `opencode acp` takes five minutes, most of them its own retries: `inspan doctor --conformance
    // acp:opencode` runs it.
    case("three_nodes_acp_claude", CLAUDE_ACP, 60, |world| {
        conformance::three_nodes(world, "acp:claude-agent-acp")
    }),
    case("conformance_acp_claude", CLAUDE_ACP, 200, |world| conformance::list(world, "acp:claude-agent-acp")),
    case("codex_one_turn", CODEX, 30, servers::one_turn::<Codex>),
    case("codex_resume_in_a_new_process", CODEX, 40, servers::resume_in_a_new_process::<Codex>),
    case("codex_steered", CODEX, 30, codex::steered),
    case("codex_structured_output", CODEX, 30, servers::structured_output::<Codex>),
    case("codex_tool_allowed", CODEX, 30, servers::tool_allowed::<Codex>),
    case("codex_tool_denied_without_anyone", CODEX, 30, servers::tool_denied_without_anyone::<Codex>),
    case("codex_tool_allowed_by_a_person", CODEX, 30, servers::tool_allowed_by_a_person::<Codex>),
    case("codex_interrupt_mid_text", CODEX, 50, servers::interrupt_mid_text::<Codex>),
    case("codex_interrupt_mid_tool", CODEX, 40, servers::interrupt_mid_tool::<Codex>),
    case("codex_runtime_killed_mid_tool", CODEX, 30, servers::runtime_killed_mid_tool::<Codex>),
    case("codex_error_401", CODEX, 30, servers::error_401::<Codex>),
    case("codex_error_429", CODEX, 30, servers::error_429::<Codex>),
    case("codex_stall", CODEX, 40, servers::stall::<Codex>),
    case("codex_unknown_session", CODEX, 30, servers::unknown_session::<Codex>),
    case("codex_missing_program", CODEX, 15, servers::missing_program::<Codex>),
    case("opencode_one_turn", OPENCODE, 60, servers::one_turn::<OpenCode>),
    case("opencode_resume_in_a_new_process", OPENCODE, 90, servers::resume_in_a_new_process::<OpenCode>),
    case("opencode_structured_output", OPENCODE, 60, servers::structured_output::<OpenCode>),
    case("opencode_tool_allowed", OPENCODE, 60, servers::tool_allowed::<OpenCode>),
    case(
        "opencode_tool_denied_without_anyone",
        OPENCODE,
        60,
        servers::tool_denied_without_anyone::<OpenCode>,
    ),
    case("opencode_tool_allowed_by_a_person", OPENCODE, 60, servers::tool_allowed_by_a_person::<OpenCode>),
    case("opencode_interrupt_mid_text", OPENCODE, 90, servers::interrupt_mid_text::<OpenCode>),
    case("opencode_interrupt_mid_tool", OPENCODE, 60, servers::interrupt_mid_tool::<OpenCode>),
    case("opencode_runtime_killed_mid_tool", OPENCODE, 60, servers::runtime_killed_mid_tool::<OpenCode>),
    case("opencode_error_401", OPENCODE, 60, servers::error_401::<OpenCode>),
    case("opencode_error_429", OPENCODE, 60, servers::error_429::<OpenCode>),
    case("opencode_stall", OPENCODE, 60, servers::stall::<OpenCode>),
    case("opencode_unknown_session", OPENCODE, 60, servers::unknown_session::<OpenCode>),
    case("opencode_missing_program", OPENCODE, 15, servers::missing_program::<OpenCode>),
];
