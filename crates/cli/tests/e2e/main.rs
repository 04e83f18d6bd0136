//! Real flows through the real `inspan` and the vendors' real agent CLIs, against a scripted model, and the page in a real
//! browser, and sessions on a real Temporal server. `cargo xtask e2e` runs them; npm and pip install the programs once.
#![expect(clippy::print_stdout, reason = "each case prints its time and its limit")]

mod acp;
mod agents;
mod all_interfaces;
mod branches;
mod browser;
mod checks;
mod conversations;
mod interfaces;
mod page;
mod page_changes;
mod page_forms;
mod programs;
mod resume;
/// Sessions on a real Temporal server with real workers: the same outcome as on one machine, the same commands, and
/// nothing lost or done twice when workers and the server are killed.
mod temporal {
    mod absent;
    mod agents;
    mod bucket;
    mod cluster;
    mod commands;
    mod encrypted;
    mod figures;
    mod histories;
    mod kills;
    mod pools;
    mod same;
    mod stops;

    pub(super) use absent::{no_server, no_worker};
    pub(super) use agents::{agents_killed, agents_limit, agents_resumed};
    pub(super) use bucket::same_in_a_bucket;
    pub(super) use commands::{large_output, paused_and_resumed, person_outlives_workers, stopped};
    pub(super) use encrypted::encrypted;
    pub(super) use figures::figures;
    pub(super) use histories::histories;
    pub(super) use kills::{kills_limit, server_killed, workers_killed};
    pub(super) use pools::pools;
    pub(super) use same::same_as_here;
    pub(super) use stops::{frozen_worker, long_outage, worker_stops};
}
mod traces;
mod vendors;

use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use inspan_testkit::{Agent, Sandbox, Stopwatch};

const CLAUDE: &[Agent] = &[Agent::Claude];
const CODEX: &[Agent] = &[Agent::Codex];
const OPENCODE: &[Agent] = &[Agent::OpenCode];
const PROGRAMS: &[Agent] = &[Agent::Claude, Agent::Codex, Agent::OpenCode];
const DROID: &[Agent] = &[Agent::Droid];
const GEMINI: &[Agent] = &[Agent::Gemini];
const QWEN: &[Agent] = &[Agent::Qwen];
const NONE: &[Agent] = &[];
const CLAUDE_ACP: &[Agent] = &[Agent::Claude, Agent::ClaudeAcp];

/// Held for writing by a case that runs alone, for reading by one that shares the machine.
static MACHINE: RwLock<()> = RwLock::new(());

/// Whether a case has the machine to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Machine {
    /// It measures a moment, or keeps the machine busy by itself.
    Alone,
    /// It waits for most of its time, and what it compares does not depend on how fast the machine is.
    Shared,
}

type Case = fn(&mut Sandbox) -> anyhow::Result<()>;

/// How many times as long a case may take on a machine that is busy. Its limit only ends what hangs.
const BUSY: u64 = 2;

/// Runs one case in its own sandbox, and prints its time beside its limit in seconds.
fn prove(name: &str, place: Machine, agents: &[Agent], limit: u64, case: Case) {
    let (_alone, _shared);
    match place {
        Machine::Alone => _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner),
        Machine::Shared => _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner),
    }
    let limit = Duration::from_secs(limit * BUSY);
    let inspan = Path::new(env!("CARGO_BIN_EXE_inspan"));
    // Installing the agents is not the case's time.
    let installed = agents.iter().try_for_each(|agent| agent.installed().map(drop));
    let sandbox =
        installed.and_then(|()| Sandbox::new(inspan, name, agents, inspan_providers::programs(), limit));
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
    ($place:ident; $($name:ident: $agents:expr, $limit:expr, $case:expr;)*) => {
        $(
            #[test]
            fn $name() {
                prove(stringify!($name), Machine::$place, $agents, $limit, $case);
            }
        )*
    };
}

/// One list of cases for each agent: its name, the agents it needs, the module of its cases, what it is there, and each case
/// with its limit in seconds.
macro_rules! agents {
    ($($name:ident: $agents:expr, $cases:ident::<$agent:ty> { $($case:ident $limit:literal,)* })*) => {
        $(
            mod $name {
                use super::*;

                $(
                    #[test]
                    fn $case() {
                        let name = concat!(stringify!($name), "::", stringify!($case));
                        prove(name, Machine::Shared, $agents, $limit, $cases::$case::<$agent>);
                    }
                )*
            }
        )*
    };
}

agents! {
    // What it does within a turn is proved by `conformance_acp_claude`.
    acp_claude: CLAUDE_ACP, acp::<acp::Claude> {
        two_branches 90, two_nodes 60, failed_within_a_turn 60,
    }
    acp_opencode: OPENCODE, acp::<acp::OpenCode> {
        tool_allowed 50, tool_denied 50, structured 60, cancelled_and_resumed 80,
        resumed_in_a_new_process 70, key_refused 50, unknown_session 40,
    }
    droid: DROID, acp::<acp::Droid> {
        tool_allowed 80, tool_denied 80, structured 80, resumed_in_a_new_process 80,
        key_refused 80, unknown_session 80,
    }
    gemini: GEMINI, acp::<acp::Gemini> {
        two_nodes 80, tool_allowed 80, tool_denied 80, structured 80, key_refused 80, unknown_session 80,
    }
    qwen: QWEN, acp::<acp::Qwen> {
        tool_allowed 80, tool_denied 80, structured 80, cancelled_and_resumed 80,
        resumed_in_a_new_process 80, key_refused 80, unknown_session 80,
    }
    // What these do within a turn is proved by `conformance_claude`, `conformance_codex` and `conformance_opencode`.
    claude: CLAUDE, agents::<agents::Claude> {
        two_branches 60, resumed_elsewhere 40, runtime_killed_mid_tool 30, program_killed_mid_tool 40,
        missing_program 15, budget_within_a_turn 60, failed_within_a_turn 40,
    }
    codex: CODEX, agents::<agents::Codex> {
        two_branches 60, resumed_elsewhere 40, runtime_killed_mid_tool 30, program_killed_mid_tool 40,
        missing_program 15, budget_within_a_turn 60, failed_within_a_turn 40,
    }
    opencode: OPENCODE, agents::<agents::OpenCode> {
        two_branches 120, resumed_elsewhere 80, runtime_killed_mid_tool 60, program_killed_mid_tool 80,
        missing_program 15, budget_within_a_turn 120, failed_within_a_turn 60,
    }
}

// One after the other, before all that share the machine: tests run in the order of their names.
mod alone {
    use super::*;

    cases! {
        Alone;
        doctor_greets: PROGRAMS, 40, programs::greeted;
        conformance_claude: CLAUDE, 180, |sandbox| programs::conformance(sandbox, "claude");
        conformance_codex: CODEX, 120, |sandbox| programs::conformance(sandbox, "codex");
        // The suite runs several behaviours at once by itself.
        conformance_opencode: OPENCODE, 400, |sandbox| programs::conformance(sandbox, "opencode");
        conformance_acp_claude: CLAUDE_ACP, 300, |sandbox| programs::conformance(sandbox, "acp:claude-agent-acp");
        page_commands: &[], 90, page::commands;
        page_answers: &[], 60, page::answers;
        one_session_through_all_interfaces: CLAUDE_ACP, 60, all_interfaces::one_session;
        temporal_worker_stops: CLAUDE, 60, temporal::worker_stops;
        temporal_histories: NONE, 60, temporal::histories;
        temporal_figures: NONE, 60, temporal::figures;
    }
}

cases! {
    Shared;
    claude_options: CLAUDE, 40, vendors::claude_options;
    claude_by_hand: CLAUDE, 40, vendors::claude_by_hand;
    claude_limits: CLAUDE, 40, vendors::claude_limits;
    claude_background: CLAUDE, 40, vendors::claude_background;
    codex_options: CODEX, 40, vendors::codex_options;
    codex_limit_of_turns: CODEX, 40, vendors::codex_limit_of_turns;
    codex_patches: CODEX, 60, vendors::codex_patches;
    codex_by_npm: CODEX, 40, vendors::codex_by_npm;
    codex_retries: CODEX, 40, vendors::codex_retries;
    codex_option_refused: CODEX, 40, vendors::codex_option_refused;
    codex_key_in_memory: CODEX, 60, vendors::codex_key_in_memory;
    codex_input_changed: CODEX, 40, vendors::codex_input_changed;
    codex_busy: CODEX, 60, vendors::codex_busy;
    codex_sub_agents: CODEX, 60, vendors::codex_sub_agents;
    opencode_options: OPENCODE, 80, vendors::opencode_options;
    opencode_formats: OPENCODE, 120, vendors::opencode_formats;
    opencode_rules: OPENCODE, 80, vendors::opencode_rules;
    opencode_sub_agent: OPENCODE, 80, vendors::opencode_sub_agent;
    claude_question: CLAUDE, 60, |sandbox| agents::question_answered::<agents::Claude>(sandbox, "AskUserQuestion", "multiSelect");
    opencode_question: OPENCODE, 80, |sandbox| agents::question_answered::<agents::OpenCode>(sandbox, "question", "multiple");
    opencode_names: OPENCODE, 80, vendors::opencode_names;
    opencode_limits: OPENCODE, 120, vendors::opencode_limits;
    acp_choices: &[Agent::Claude, Agent::ClaudeAcp, Agent::OpenCode], 160, vendors::acp_choices;
    recorded_then_replayed: CLAUDE, 40, conversations::recorded_then_replayed;
    lesson_06_prompt_files: CLAUDE, 40, conversations::lesson_prompt_files;
    lesson_09_multi_turn: CLAUDE, 40, conversations::lesson_multi_turn;
    key_left_out_of_everything: CLAUDE, 30, conversations::key_left_out_of_everything;
    paused_and_resumed: CLAUDE, 40, resume::paused_and_resumed;
    killed_and_resumed: CLAUDE, 40, resume::killed_and_resumed;
    approved_from_another_shell: CLAUDE, 40, resume::approved_from_another_shell;
    usage_limit_waited_out: CLAUDE, 60, resume::usage_limit_waited_out;
    three_nodes_acp_opencode: OPENCODE, 60, |sandbox| programs::three_nodes(sandbox, "acp:opencode");
    // The suite over `opencode acp` takes five minutes, most of them its own retries: `inspan doctor --conformance
    // acp:opencode` runs it.
    three_nodes_acp_claude: CLAUDE_ACP, 60, |sandbox| programs::three_nodes(sandbox, "acp:claude-agent-acp");
    page_types: &[], 120, page::types;
    page_run: &[], 60, page::run;
    page_offline: &[], 60, page::offline;
    page_forms: &[], 60, page_forms::forms;
    page_resumed: &[], 90, page_changes::resumed;
    page_waits: &[], 60, page_changes::waits;
    page_drafts: &[], 60, page_forms::drafts;
    page_bounds: &[], 60, page_forms::bounds;
    page_vanishes: &[], 60, page_forms::vanishes;
    page_signs_in: &[], 60, page_forms::signs_in;
    page_looks: &[], 240, page::looks;
    // What it prints as figures counts where it runs by itself: `cargo xtask e2e page_large`.
    page_large: &[], 400, page::large;
    page_file: &[], 60, page::file;
    mcp_claude: CLAUDE, 60, interfaces::mcp_claude;
    mcp_codex: CODEX, 60, interfaces::mcp_codex;
    mcp_claude_http: CLAUDE, 60, interfaces::mcp_claude_http;
    mcp_codex_http: CODEX, 60, interfaces::mcp_codex_http;
    acp_public_client: CLAUDE_ACP, 60, interfaces::acp_public_client;
    traces_collected: NONE, 40, traces::real_collector;
    // Each of these runs the flow that every provider runs, and so `three_nodes` too.
    traces_claude: CLAUDE, 60, |sandbox| traces::joins(sandbox, Agent::Claude, "claude", &traces::Joined::Attempt);
    traces_codex: CODEX, 60, |sandbox| traces::joins(sandbox, Agent::Codex, "codex", &traces::Joined::Attempt);
    traces_opencode: OPENCODE, 90, |sandbox| traces::joins(sandbox, Agent::OpenCode, "opencode", &traces::Joined::OwnTrace);
    traces_gemini: GEMINI, 80, |sandbox| traces::joins(sandbox, Agent::Gemini, "gemini", &traces::Joined::OwnTrace);
    traces_qwen: QWEN, 80, |sandbox| traces::joins(sandbox, Agent::Qwen, "qwen", &traces::Joined::NoSpans);
    traces_droid: DROID, 80, |sandbox| traces::joins(sandbox, Agent::Droid, "droid", &traces::Joined::NoSpans);
    temporal_same_as_here: NONE, 60, temporal::same_as_here;
    temporal_paused_and_resumed: NONE, 40, temporal::paused_and_resumed;
    temporal_stopped: NONE, 40, temporal::stopped;
    temporal_person_outlives_workers: NONE, 40, temporal::person_outlives_workers;
    temporal_large_output: NONE, 40, temporal::large_output;
    temporal_encrypted: NONE, 40, temporal::encrypted;
    temporal_bucket: NONE, 90, temporal::same_in_a_bucket;
    temporal_server_killed: NONE, 90, temporal::server_killed;
    temporal_no_server: NONE, 60, temporal::no_server;
    temporal_no_worker: NONE, 90, temporal::no_worker;
    temporal_pools: NONE, 60, temporal::pools;
    temporal_workers_killed: NONE, temporal::kills_limit(), temporal::workers_killed;
    temporal_agents_killed: CLAUDE, temporal::agents_limit(), temporal::agents_killed;
    temporal_agents_resumed: &[Agent::Claude, Agent::Codex], 90, temporal::agents_resumed;
    temporal_long_outage: CLAUDE, 60, temporal::long_outage;
    temporal_frozen_worker: CLAUDE, 60, temporal::frozen_worker;
}
