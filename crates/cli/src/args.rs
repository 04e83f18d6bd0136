//! The command line as types. What each verb does stands in `commands`.

use std::{fmt::Write as _, path::PathBuf};

use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum, ValueHint, builder::styling};

use crate::exit::Exit;
pub(crate) use values::{BudgetChange, InputValue, NodeProvider, NodeSetting};

pub(crate) use agents::{AgentArgs, ChatArgs, DoctorArgs, HowArgs};
pub(crate) use sessions::{
    ApproveArgs, CloseArgs, DecideArgs, ForkArgs, GoingArgs, InboxArgs, LogsArgs, PsArgs, ReplyArgs,
    ResumeArgs, SendArgs, ShowArgs, StopArgs, StoreVerb, WhyArgs,
};

mod agents;
mod sessions;
mod values;

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  inspan init hello                       write a small flow that runs without a key
  inspan run hello/flow.yaml              run it and watch
  inspan check flows/*.yaml               find every mistake without running anything
  inspan run fix.yaml -i issue=42 --json  run for a script: one JSON object on stdout
  inspan doctor                           are the vendors' programs and keys here?";

/// Examples, and the exit codes as the program has them.
fn overview() -> String {
    let mut text = format!("{EXAMPLES}\n\nExit codes:\n");
    for (_, code, _, meaning) in Exit::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {code:>3}  {meaning}");
    }
    text.push_str(
        "\nResults go to stdout, progress to stderr. NO_COLOR, CLICOLOR_FORCE and CI are respected.",
    );
    text
}

const RUN_EXAMPLES: &str = "\
Examples:
  inspan run flow.yaml
  inspan run flow.yaml -i topic=rust -i 'tags=[\"a\",\"b\"]'
  inspan run flow.yaml --input-file input.json --json > result.json
  inspan run flow.yaml --record tapes         keep what agents and programs answer
  inspan run flow.yaml --replay=tapes         run again from them, without agents and programs
  inspan run flow.yaml --provider plan=echo   try the flow without paying for `plan`
  inspan run flow.yaml --events - | jq .event.type

Ctrl-C pauses the session and says how to resume it; a second Ctrl-C stops it for good, a third does not wait.";

const RESUME_EXAMPLES: &str = "\
Examples:
  inspan resume flow-1a2b                        go on, from where it was paused or where it died
  inspan resume flow-1a2b --message 'use tabs'   tell the agents that were at work something
  inspan resume flow-1a2b --plan                 what would be reused, what would run again, and why
  inspan resume flow-1a2b --edited               take what was changed in the flow since

An id may be shortened to any beginning that is unique. Finished nodes never run again, unless the flow was edited
and what they do depends on the change.";

const AGENT_EXAMPLES: &str = "\
Examples:
  inspan agent 'Why does the build fail?' --provider claude
  git diff | inspan agent - --provider claude --system-prompt 'Review this change.'
  inspan agent 'Name three oxen' --provider claude --json | jq -r .text

The answer goes to stdout, what the agent does to stderr. Ctrl-C aborts it: the exit code is 130.";

const MODEL_SERVER_EXAMPLES: &str = "\
Examples:
  inspan model-server --scenario model.json
  inspan model-server --scenario model.json --port 4321 --requests requests.jsonl
  ANTHROPIC_BASE_URL=http://127.0.0.1:4321 ANTHROPIC_API_KEY=any inspan run flow.yaml

The scenario is a JSON file that says what the model answers: `docs/model-server.md` has all its words. Ctrl-C ends it.";

const CONFIG_FILES: &str = "\
Settings are read from these places; later ones count before earlier ones:
  $XDG_CONFIG_HOME/inspan/config.toml (or ~/.config/inspan/config.toml)
  inspan.toml beside the flow, or above it in the same repository
  INSPAN_PROVIDER, INSPAN_<PROVIDER>_MODEL, INSPAN_BUDGET_USD, INSPAN_HOME
  the command line";

const CHAT_EXAMPLES: &str = "\
Examples:
  inspan chat --provider claude
  inspan chat --provider claude --export talk.json
  inspan chat --resume talk.json --export talk.json

At a terminal `/quit` or Ctrl-D ends, Ctrl-C interrupts the agent and keeps the conversation; what is typed while it
works is said after its turn. Elsewhere each line of stdin is one prompt.";

/// Harness a team of AI agents to a flow
///
/// Flows are YAML files whose nodes are coding agents, control nodes, programs and people. Inspan runs
/// them in parallel where it can, shows every step live, and says what failed and why.
#[derive(Debug, Parser)]
#[command(
    name = "inspan", version, styles = STYLES, after_help = overview(), max_term_width = 100,
    arg_required_else_help = true, subcommand_required = true, disable_help_subcommand = false,
    subcommand_value_name = "VERB", subcommand_help_heading = "Verbs"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Verb {
    /// Whether this is the process in the background that `--detach` began.
    pub(crate) fn is_in_background(&self) -> bool {
        match self {
            Self::Run(args) => args.detached,
            Self::Resume(args) => args.going.detached,
            Self::Fork(args) => args.going.detached,
            Self::Reply(args) => args.going.detached,
            _ => false,
        }
    }
}

/// What every verb takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// Print JSON for programs on stdout
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub(crate) color: ColorChoice,
    /// The file that keeps the sessions, instead of the user's own
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Sessions")]
    pub(crate) store: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a flow
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Go on with a session that was paused, waits, failed or died
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(Box<ResumeArgs>),
    /// Begin a new session from a point of an old one
    Fork(Box<ForkArgs>),
    /// List sessions, newest first
    Ps(PsArgs),
    /// Show where a session stands, node by node
    Show(ShowArgs),
    /// Print what happened in a session
    Logs(LogsArgs),
    /// Say why a node ran, was skipped, failed, waits or was reused
    Why(WhyArgs),
    /// List the questions that wait for a person
    Inbox(InboxArgs),
    /// Say something to an agent of a session
    Send(SendArgs),
    /// Answer a question of a session
    Reply(ReplyArgs),
    /// Allow what an agent asks for
    Approve(ApproveArgs),
    /// Deny what an agent asks for
    Reject(DecideArgs),
    /// Pause a session, to be resumed later
    Pause(StopArgs),
    /// Stop a session for good
    Stop(StopArgs),
    /// End an agent run that waits for messages, once it has answered those it has
    Close(CloseArgs),
    /// Run one agent without a flow
    #[command(after_help = AGENT_EXAMPLES)]
    Agent(AgentArgs),
    /// Talk to one agent, line by line
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(ChatArgs),
    /// Look after the file that keeps the sessions
    #[command(subcommand)]
    Store(StoreVerb),
    /// Find every problem of flows without running anything
    Check(CheckArgs),
    /// Write a small flow project that runs at once without a key
    Init(InitArgs),
    /// Draw a flow
    Graph(GraphArgs),
    /// List the node types, or describe one
    Nodes(NodesArgs),
    /// List the agents that flows can use and what they can do
    Providers,
    /// Print the JSON Schema of the flow file, the events or a provider
    Schema(SchemaArgs),
    /// Print each setting and where it comes from
    #[command(after_help = CONFIG_FILES)]
    Config,
    /// Say whether the vendors' programs and keys are here, and what to do about what is not
    Doctor(DoctorArgs),
    /// Play a model on this machine that answers by a script, to try flows without a vendor
    #[command(after_help = MODEL_SERVER_EXAMPLES)]
    ModelServer(ModelServerArgs),
    /// Print the completion script for a shell
    Completions(CompletionsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The flow to run
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// One value of the flow's input: JSON if it parses, else text
    #[arg(short, long = "input", value_name = "KEY=VALUE", help_heading = "Input")]
    pub(crate) input: Vec<InputValue>,
    /// The flow's input as a JSON object; `-` reads stdin, `-i` wins
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Input")]
    pub(crate) input_file: Option<PathBuf>,
    /// Change one value of a node's input, as in `plan.options.model=sonnet`
    #[arg(long, value_name = "NODE.KEY=VALUE", help_heading = "Input")]
    pub(crate) set: Vec<NodeSetting>,
    /// Let another provider do an agent node's work, as in `review=echo`
    #[arg(long, value_name = "NODE=TYPE", help_heading = "Input")]
    pub(crate) provider: Vec<NodeProvider>,

    /// The session's id, instead of a fresh one
    #[arg(long, value_name = "ID", value_parser = values::session_id, help_heading = "Running")]
    pub(crate) session_id: Option<String>,
    /// Set a budget for this run, as in `usd=5` or `tokens=2000000`; `NODE.usd=1` sets a node's own
    #[arg(long, value_name = "[NODE.]LIMIT=N", help_heading = "Running")]
    pub(crate) budget: Vec<BudgetChange>,
    /// How many nodes may work at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Running")]
    pub(crate) max_concurrency: Option<u32>,
    /// Never ask: questions take their default, permissions are denied, and where only a person can answer
    /// the run ends with code 3; `inspan reply` goes on
    #[arg(long, help_heading = "Running")]
    pub(crate) no_input: bool,

    /// Run in the background and print the session's id; it waits for people without this terminal
    #[arg(long, conflicts_with = "no_wait", help_heading = "Running")]
    pub(crate) detach: bool,
    /// End with code 3 or 75 where the flow would wait for a person or a usage limit; `resume` or `reply` goes on
    #[arg(long, help_heading = "Running")]
    pub(crate) no_wait: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Keep nothing: the session cannot be resumed, and other shells do not see it
    #[arg(long, conflicts_with_all = ["detach", "no_wait"], help_heading = "Running")]
    pub(crate) no_store: bool,

    /// Record what agents answer and what the programs of `exec` nodes print in this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "replay", help_heading = "Recordings")]
    pub(crate) record: Option<PathBuf>,
    /// Answer from recordings and run nothing; without DIR from `recordings` beside the flow
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, num_args = 0..=1, help_heading = "Recordings")]
    pub(crate) replay: Option<Option<PathBuf>>,
    /// How fast recordings are played; as recorded where you can watch it, else at once
    #[arg(long, value_name = "PACE", requires = "replay", help_heading = "Recordings")]
    pub(crate) pace: Option<ReplayPace>,

    /// Write every event as a JSON line to this file; `-` is stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(crate) events: Option<PathBuf>,
}

/// How fast recordings are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ReplayPace {
    /// As they were recorded
    Recorded,
    /// As fast as they are read
    Immediate,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The flows to check
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Where to write; it is made if it is missing, and nothing in it is overwritten
    #[arg(value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// The flow to draw
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// What to draw it as
    #[arg(long, short, value_name = "FORMAT", default_value = "mermaid")]
    pub(crate) format: GraphFormat,
}

/// What a flow is drawn as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// For Markdown pages
    Mermaid,
    /// For Graphviz
    Dot,
    /// A picture
    Svg,
}

#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// The type to describe
    #[arg(value_name = "TYPE")]
    pub(crate) node_type: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    #[command(subcommand)]
    pub(crate) of: Option<SchemaOf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchemaOf {
    /// The flow file (what `inspan schema` alone prints)
    Flow,
    /// One line of `run --events`
    Events,
    /// What a provider takes and gives
    Provider {
        /// The provider, as in `claude`
        #[arg(value_name = "TYPE")]
        name: String,
    },
    /// What a node type takes and gives
    Node {
        /// The node type, as in `control.merge`
        #[arg(value_name = "TYPE")]
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ModelServerArgs {
    /// What the model answers
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) scenario: PathBuf,
    /// The port; without it the system chooses one that is free
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Write every request as a JSON line to this file once it is answered, without its secrets
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) requests: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn replay_takes_a_folder_or_nothing() {
        let replay = |line: &str| {
            let Verb::Run(run) = Cli::try_parse_from(line.split(' ')).unwrap().verb else {
                return None;
            };
            Some((run.file, run.replay))
        };
        let file = PathBuf::from("f.yaml");
        assert_eq!(replay("inspan run f.yaml"), Some((file.clone(), None)));
        assert_eq!(replay("inspan run f.yaml --replay"), Some((file.clone(), Some(None))));
        let tapes = Some(Some(PathBuf::from("tapes")));
        assert_eq!(replay("inspan run f.yaml --replay tapes"), Some((file.clone(), tapes.clone())));
        assert_eq!(replay("inspan run --replay=tapes f.yaml"), Some((file, tapes)));
    }
}
