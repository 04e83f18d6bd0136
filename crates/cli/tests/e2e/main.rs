//! Real flows through the real `inspan` and the vendors' real agent CLIs, against a scripted model. `cargo xtask e2e`
//! runs them; npm installs the agent CLIs once.
#![expect(clippy::print_stdout, reason = "each case prints its time and its limit")]

mod acp;
mod checks;
mod codex;
mod conformance;
mod conversations;
mod errors;
mod interruptions;
mod lessons;
mod opencode;
mod person;
mod programs;
mod resume;
mod servers;
mod tools;

use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use inspan_testkit::{Agent, Sandbox, Stopwatch};

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

/// Held for writing by a case that runs alone, for reading by one that runs beside others.
static MACHINE: RwLock<()> = RwLock::new(());

/// Whether a case has the machine to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It measures a moment, or keeps the machine busy by itself.
    Alone,
    /// It spends most of its time in the start of OpenCode, which keeps one processor busy for seconds.
    Beside,
}

type Case = fn(&mut Sandbox) -> anyhow::Result<()>;

/// Runs one case in a sandbox of its own, and prints its time beside its limit in seconds.
fn prove(name: &str, place: Place, agents: &[Agent], limit: u64, case: Case) {
    let (_alone, _beside);
    match place {
        Place::Alone => _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner),
        Place::Beside => _beside = MACHINE.read().unwrap_or_else(PoisonError::into_inner),
    }
    let limit = Duration::from_secs(limit);
    let inspan = Path::new(env!("CARGO_BIN_EXE_inspan"));
    // Installing the agents is not the case's time.
    let installed = agents.iter().try_for_each(|agent| agent.installed().map(drop));
    let sandbox = installed.and_then(|()| Sandbox::new(inspan, name, agents, limit));
    let mut sandbox = sandbox.unwrap_or_else(|error| panic!("no sandbox: {error:#}"));
    let watch = Stopwatch::start();
    let proved = case(&mut sandbox);
    let (took, is_late) = (watch.elapsed(), sandbox.deadline().is_over());
    println!("{name:<40} {:>6.1} s of {:>3} s", took.as_secs_f64(), limit.as_secs());
    let clean = sandbox.check();
    proved.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(!is_late, "it took longer than its limit of {limit:?}");
    clean.unwrap_or_else(|error| panic!("{error:#}"));
}

/// One test for each row: its name, the agents it needs, its limit in seconds, and what it does.
macro_rules! cases {
    (@ alone) => { Place::Alone };
    (@ beside) => { Place::Beside };
    ($($place:ident $name:ident: $agents:expr, $limit:expr, $case:expr;)*) => {
        $(
            #[test]
            fn $name() {
                prove(stringify!($name), cases!(@ $place), $agents, $limit, $case);
            }
        )*
    };
}

cases! {
    alone codex_alone: CODEX, 20, programs::codex;
    beside opencode_alone: OPENCODE, 40, programs::opencode;
    alone claude_acp_alone: CLAUDE_ACP, 20, programs::claude_acp;
    alone doctor_greets: PROGRAMS, 40, programs::greeted;
    alone acp_claude_text: CLAUDE_ACP, 40, acp::text::<acp::Claude>;
    beside acp_opencode_text: OPENCODE, 40, acp::text::<acp::OpenCode>;
    alone acp_claude_tool_allowed: CLAUDE_ACP, 50, acp::tool_allowed::<acp::Claude>;
    beside acp_opencode_tool_allowed: OPENCODE, 50, acp::tool_allowed::<acp::OpenCode>;
    alone acp_claude_tool_denied: CLAUDE_ACP, 50, acp::tool_denied::<acp::Claude>;
    beside acp_opencode_tool_denied: OPENCODE, 50, acp::tool_denied::<acp::OpenCode>;
    alone acp_claude_structured: CLAUDE_ACP, 60, acp::structured::<acp::Claude>;
    beside acp_opencode_structured: OPENCODE, 60, acp::structured::<acp::OpenCode>;
    alone acp_claude_cancelled_and_resumed: CLAUDE_ACP, 80, acp::cancelled_and_resumed::<acp::Claude>;
    beside acp_opencode_cancelled_and_resumed: OPENCODE, 80, acp::cancelled_and_resumed::<acp::OpenCode>;
    alone acp_claude_resumed_in_a_new_process: CLAUDE_ACP, 70, acp::resumed_in_a_new_process::<acp::Claude>;
    beside acp_opencode_resumed_in_a_new_process: OPENCODE, 70, acp::resumed_in_a_new_process::<acp::OpenCode>;
    alone acp_claude_key_refused: CLAUDE_ACP, 50, acp::key_refused::<acp::Claude>;
    beside acp_opencode_key_refused: OPENCODE, 50, acp::key_refused::<acp::OpenCode>;
    alone acp_claude_unknown_session: CLAUDE_ACP, 40, acp::unknown_session::<acp::Claude>;
    beside acp_opencode_unknown_session: OPENCODE, 40, acp::unknown_session::<acp::OpenCode>;
    alone droid_text: DROID, 80, acp::text::<acp::Droid>;
    alone droid_tool_allowed: DROID, 80, acp::tool_allowed::<acp::Droid>;
    alone droid_tool_denied: DROID, 80, acp::tool_denied::<acp::Droid>;
    alone droid_structured: DROID, 80, acp::structured::<acp::Droid>;
    alone droid_resumed_in_a_new_process: DROID, 80, acp::resumed_in_a_new_process::<acp::Droid>;
    alone droid_key_refused: DROID, 80, acp::key_refused::<acp::Droid>;
    alone droid_unknown_session: DROID, 80, acp::unknown_session::<acp::Droid>;
    alone three_nodes_droid: DROID, 80, |sandbox| conformance::three_nodes(sandbox, "droid");
    alone gemini_text: GEMINI, 80, acp::text::<acp::Gemini>;
    alone gemini_tool_allowed: GEMINI, 80, acp::tool_allowed::<acp::Gemini>;
    alone gemini_tool_denied: GEMINI, 80, acp::tool_denied::<acp::Gemini>;
    alone gemini_structured: GEMINI, 80, acp::structured::<acp::Gemini>;
    alone gemini_key_refused: GEMINI, 80, acp::key_refused::<acp::Gemini>;
    alone gemini_unknown_session: GEMINI, 80, acp::unknown_session::<acp::Gemini>;
    alone three_nodes_gemini: GEMINI, 80, |sandbox| conformance::three_nodes(sandbox, "gemini");
    alone qwen_text: QWEN, 80, acp::text::<acp::Qwen>;
    alone qwen_tool_allowed: QWEN, 80, acp::tool_allowed::<acp::Qwen>;
    alone qwen_tool_denied: QWEN, 80, acp::tool_denied::<acp::Qwen>;
    alone qwen_structured: QWEN, 80, acp::structured::<acp::Qwen>;
    alone qwen_cancelled_and_resumed: QWEN, 80, acp::cancelled_and_resumed::<acp::Qwen>;
    alone qwen_resumed_in_a_new_process: QWEN, 80, acp::resumed_in_a_new_process::<acp::Qwen>;
    alone qwen_key_refused: QWEN, 80, acp::key_refused::<acp::Qwen>;
    alone qwen_unknown_session: QWEN, 80, acp::unknown_session::<acp::Qwen>;
    alone three_nodes_qwen: QWEN, 80, |sandbox| conformance::three_nodes(sandbox, "qwen");
    alone one_turn: CLAUDE, 30, conversations::one_turn;
    alone two_turns_by_session: CLAUDE, 30, conversations::two_turns_by_session;
    alone two_turns_by_message: CLAUDE, 30, conversations::two_turns_by_message;
    alone resume_in_a_new_process: CLAUDE, 40, conversations::resume_in_a_new_process;
    alone recorded_then_replayed: CLAUDE, 40, conversations::recorded_then_replayed;
    alone lesson_06_prompt_files: CLAUDE, 40, lessons::prompt_files;
    alone lesson_09_multi_turn: CLAUDE, 40, lessons::multi_turn;
    alone prompt_as_written: CLAUDE, 30, conversations::prompt_as_written;
    alone structured_output: CLAUDE, 30, conversations::structured_output;
    alone structured_output_repaired: CLAUDE, 30, conversations::structured_output_repaired;
    alone tool_allowed_by_the_flow: CLAUDE, 30, tools::allowed_by_the_flow;
    alone tool_denied_without_anyone: CLAUDE, 30, tools::denied_without_anyone;
    alone tool_allowed_by_a_person: CLAUDE, 30, tools::allowed_by_a_person;
    alone tool_denied_by_a_person: CLAUDE, 30, tools::denied_by_a_person;
    alone key_left_out_of_everything: CLAUDE, 30, tools::key_left_out_of_everything;
    alone interrupt_mid_text: CLAUDE, 50, interruptions::mid_text;
    alone interrupt_mid_tool: CLAUDE, 40, interruptions::mid_tool;
    alone runtime_killed_mid_tool: CLAUDE, 30, interruptions::runtime_killed_mid_tool;
    alone paused_and_resumed: CLAUDE, 40, resume::paused_and_resumed;
    alone killed_and_resumed: CLAUDE, 40, resume::killed_and_resumed;
    alone killed_between_turns: CLAUDE, 40, resume::killed_between_turns;
    alone approved_from_another_shell: CLAUDE, 40, resume::approved_from_another_shell;
    alone told_from_another_shell: CLAUDE, 40, resume::told_from_another_shell;
    alone usage_limit_waited_out: CLAUDE, 60, resume::usage_limit_waited_out;
    alone budget_used_up: CLAUDE, 30, resume::budget_used_up;
    alone edited_and_resumed: CLAUDE, 60, resume::edited_and_resumed;
    alone node_timeout: CLAUDE, 40, interruptions::node_timeout;
    alone stall: CLAUDE, 40, interruptions::stall;
    alone error_401: CLAUDE, 30, errors::status_401;
    alone error_429: CLAUDE, 30, errors::status_429;
    alone error_529: CLAUDE, 30, errors::status_529;
    alone error_529_then_ok: CLAUDE, 40, errors::status_529_then_ok;
    alone connection_refused: CLAUDE, 30, errors::connection_refused;
    alone unknown_session: CLAUDE, 30, errors::unknown_session;
    alone missing_program: CLAUDE, 15, errors::missing_program;
    alone three_nodes_claude: CLAUDE, 60, |sandbox| conformance::three_nodes(sandbox, "claude");
    alone conformance_claude: CLAUDE, 120, |sandbox| conformance::list(sandbox, "claude");
    alone three_nodes_codex: CODEX, 60, |sandbox| conformance::three_nodes(sandbox, "codex");
    alone conformance_codex: CODEX, 120, |sandbox| conformance::list(sandbox, "codex");
    beside three_nodes_opencode: OPENCODE, 60, |sandbox| conformance::three_nodes(sandbox, "opencode");
    // The list runs several behaviours at once by itself.
    alone conformance_opencode: OPENCODE, 400, |sandbox| conformance::list(sandbox, "opencode");
    beside three_nodes_acp_opencode: OPENCODE, 60, |sandbox| conformance::three_nodes(sandbox, "acp:opencode");
    // The list over `opencode acp` takes five minutes, most of them its own retries: `inspan doctor --conformance
    // acp:opencode` runs it.
    alone three_nodes_acp_claude: CLAUDE_ACP, 60, |sandbox| conformance::three_nodes(sandbox, "acp:claude-agent-acp");
    alone conformance_acp_claude: CLAUDE_ACP, 200, |sandbox| conformance::list(sandbox, "acp:claude-agent-acp");
    alone codex_one_turn: CODEX, 30, servers::one_turn::<Codex>;
    alone codex_resume_in_a_new_process: CODEX, 40, servers::resume_in_a_new_process::<Codex>;
    alone codex_steered: CODEX, 30, codex::steered;
    alone codex_structured_output: CODEX, 30, servers::structured_output::<Codex>;
    alone codex_tool_allowed: CODEX, 30, servers::tool_allowed::<Codex>;
    alone codex_tool_denied_without_anyone: CODEX, 30, servers::tool_denied_without_anyone::<Codex>;
    alone codex_tool_allowed_by_a_person: CODEX, 30, servers::tool_allowed_by_a_person::<Codex>;
    alone codex_interrupt_mid_text: CODEX, 50, servers::interrupt_mid_text::<Codex>;
    alone codex_interrupt_mid_tool: CODEX, 40, servers::interrupt_mid_tool::<Codex>;
    alone codex_runtime_killed_mid_tool: CODEX, 30, servers::runtime_killed_mid_tool::<Codex>;
    alone codex_error_401: CODEX, 30, servers::error_401::<Codex>;
    alone codex_error_429: CODEX, 30, servers::error_429::<Codex>;
    alone codex_stall: CODEX, 40, servers::stall::<Codex>;
    alone codex_unknown_session: CODEX, 30, servers::unknown_session::<Codex>;
    alone codex_missing_program: CODEX, 15, servers::missing_program::<Codex>;
    beside opencode_one_turn: OPENCODE, 60, servers::one_turn::<OpenCode>;
    beside opencode_resume_in_a_new_process: OPENCODE, 90, servers::resume_in_a_new_process::<OpenCode>;
    beside opencode_structured_output: OPENCODE, 60, servers::structured_output::<OpenCode>;
    beside opencode_tool_allowed: OPENCODE, 60, servers::tool_allowed::<OpenCode>;
    beside opencode_tool_denied_without_anyone: OPENCODE, 60, servers::tool_denied_without_anyone::<OpenCode>;
    beside opencode_tool_allowed_by_a_person: OPENCODE, 60, servers::tool_allowed_by_a_person::<OpenCode>;
    beside opencode_interrupt_mid_text: OPENCODE, 90, servers::interrupt_mid_text::<OpenCode>;
    beside opencode_interrupt_mid_tool: OPENCODE, 60, servers::interrupt_mid_tool::<OpenCode>;
    beside opencode_runtime_killed_mid_tool: OPENCODE, 60, servers::runtime_killed_mid_tool::<OpenCode>;
    beside opencode_error_401: OPENCODE, 60, servers::error_401::<OpenCode>;
    beside opencode_error_429: OPENCODE, 60, servers::error_429::<OpenCode>;
    beside opencode_stall: OPENCODE, 60, servers::stall::<OpenCode>;
    beside opencode_unknown_session: OPENCODE, 60, servers::unknown_session::<OpenCode>;
    beside opencode_missing_program: OPENCODE, 15, servers::missing_program::<OpenCode>;
}
