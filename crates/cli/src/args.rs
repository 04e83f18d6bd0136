//! The command line as types. What each command does is in `commands`.

use std::{fmt::Write as _, num::NonZeroU32, path::PathBuf};

use clap::{
    Args, ColorChoice, Parser, Subcommand, ValueEnum, ValueHint,
    builder::{PossibleValue, PossibleValuesParser, styling},
    error::ContextKind,
};

use inspan_protocol::{NodePath, plain_words};

use crate::{commands::TEMPLATES, exit::Exit};
pub(crate) use values::{
    BudgetChange, InputValue, NodeModel, NodeProvider, NodeSetting, as_string, loses_digits, text_of,
};

pub(crate) use agents::{AgentArgs, AgentOptionArgs, ChatArgs, DoctorArgs};
pub(crate) use serving::{AcpArgs, McpArgs, ServeArgs, WorkerArgs};
pub(crate) use sessions::{
    CloseArgs, CompareArgs, DecideArgs, DigestArgs, ExportArgs, ForkArgs, InboxArgs, LogsArgs, NotifyCommand,
    PsArgs, ReplyArgs, ResumeArgs, RunModeArgs, SendArgs, SessionCommand, ShowArgs, StopArgs, StoreCommand,
    WhyArgs,
};
pub(crate) use testing::{TestArgs, TestFormat};

mod agents;
mod serving;
mod sessions;
mod testing;
mod values;

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  inspan init hello                       create a small flow that runs without an API key
  inspan run hello                        run it and watch
  inspan show                             show the last session of this folder
  inspan check flows/*.yaml               check flows without running them
  inspan test                             test the flows of this folder without running agents
  inspan run fix.yaml -i issue=42 --json  run for a script: one JSON object on stdout
  inspan doctor                           check agent CLIs and API keys";

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
  inspan run flow.yaml --plan                 show what would run, with a forecast of cost and time
  inspan run flow.yaml --from review          run `review` and all after it again, and reuse the rest
  inspan run flow.yaml --record tapes         record answers of agents and programs
  inspan run flow.yaml --replay=tapes         run again from the recording
  inspan run flow.yaml --provider plan=echo   try the flow without a real agent for `plan`
  inspan run flow.yaml --events - | jq .event.type

Ctrl-C pauses the session; a second Ctrl-C stops it, a third kills it. Without FILE, ./flow.yaml is run.";

const RESUME_EXAMPLES: &str = "\
Examples:
  inspan resume                          the only open session of this folder
  inspan resume 1a2b --message 'use tabs'
                                         send a message to the agents that were interrupted
  inspan resume @last-failed --plan      show what would be reused and what would run again
  inspan resume 1a2b --edited            use the flow file as it is now

Finished nodes never run again, unless the flow was edited and they depend on the change.";

const AGENT_EXAMPLES: &str = "\
Examples:
  inspan agent 'Why does the build fail?' --provider claude
  git diff | inspan agent - --provider claude --system-prompt 'Review this change.'
  inspan agent 'Name three oxen' --provider claude --json | jq -r .text

The answer goes to stdout, progress to stderr. Ctrl-C aborts with exit code 130.";

const MODEL_SERVER_EXAMPLES: &str = "\
Examples:
  inspan model-server --scenario model.json
  inspan model-server --scenario model.json --port 4321 --requests requests.jsonl
  ANTHROPIC_BASE_URL=http://127.0.0.1:4321 ANTHROPIC_API_KEY=any inspan run flow.yaml

The scenario is a JSON file with the model's answers; see docs/model-server.md. Ctrl-C stops the server.";

const CONFIG_FILES: &str = "\
Settings are read from these places; later ones override earlier ones:
  $XDG_CONFIG_HOME/inspan/config.toml (or ~/.config/inspan/config.toml)
  inspan.toml beside the flow, or above it in the same repository
  INSPAN_PROVIDER, INSPAN_<PROVIDER>_MODEL, INSPAN_BUDGET_USD, INSPAN_HOME
  the command line";

const CHAT_EXAMPLES: &str = "\
Examples:
  inspan chat --provider claude
  inspan chat --provider claude --export talk.json
  inspan chat --resume talk.json --export talk.json

`/quit` or Ctrl-D ends the chat, Ctrl-C interrupts the agent. A line typed while it works is sent after its turn. If stdin is not a terminal, each line is one prompt.";

/// Run flows of AI agents, commands and people
///
/// A flow is a YAML file whose nodes are coding agents, commands, conditions and people. Inspan runs nodes in
/// parallel where it can, shows every step live, and explains what failed and why.
#[derive(Debug, Parser)]
#[command(
    name = "inspan", version, styles = STYLES, after_help = overview(), max_term_width = 100,
    arg_required_else_help = true, subcommand_required = true, disable_help_subcommand = false,
    subcommand_value_name = "COMMAND", subcommand_help_heading = "Commands"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Words that people try for a command that has another name, and what to use.
const OTHER_WORDS: [(&[&str], &str); 7] = [
    (&["rm", "remove", "delete", "clean", "gc"], "`inspan store gc` deletes old finished sessions"),
    (&["kill", "cancel"], "`inspan stop` stops a session permanently, `inspan pause` pauses it"),
    (&["start", "exec"], "`inspan run` runs a flow"),
    (&["new"], "`inspan init` creates a flow"),
    (&["continue"], "`inspan resume` continues a session"),
    (&["questions"], "`inspan inbox` lists questions that are waiting for an answer"),
    (&["tail"], "`inspan logs -f` follows the events of a session"),
];

/// Where [`meant`] leaves why a value is refused: clap tells nobody else.
pub(crate) const REASON: ContextKind = ContextKind::Custom;

/// The error in plain words, with what an unknown command may have meant.
pub(crate) fn meant(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextValue, ErrorKind};

    if error.kind() == ErrorKind::ValueValidation
        && let Some(why) = std::error::Error::source(&error).map(ToString::to_string)
    {
        let (written, plain) = (error.to_string(), plain_words(&why));
        if plain != why {
            let written = written.strip_prefix("error: ").unwrap_or(&written).replace(&why, &plain);
            let option = error.remove(ContextKind::InvalidArg);
            error = clap::Error::raw(ErrorKind::ValueValidation, written);
            option.and_then(|option| error.insert(ContextKind::InvalidArg, option));
        }
        error.insert(REASON, ContextValue::String(plain));
        return error;
    }
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if let Some((_, help)) = OTHER_WORDS.iter().find(|(words, _)| words.contains(&word.as_str())) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*help).into()]));
    }
    error
}

impl Command {
    /// Whether this is the process in the background that `--detach` began.
    pub(crate) fn is_in_background(&self) -> bool {
        match self {
            Self::Run(args) => args.mode.detached,
            Self::Resume(args) => args.mode.detached,
            Self::Fork(args) => args.mode.detached,
            Self::Session(SessionCommand::Reply(args)) => args.mode.detached,
            _ => false,
        }
    }
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// Print JSON for programs on stdout
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// When to use colors
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub(crate) color: ColorChoice,
    /// Session store to use instead of the default
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Sessions")]
    pub(crate) store: Option<PathBuf>,
    /// Where sessions run: `local`, or `temporal://HOST[:PORT][/NAMESPACE]?sessions=FOLDER-OR-BUCKET`
    #[arg(long, global = true, value_name = "URL", help_heading = "Sessions")]
    pub(crate) engine: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a flow
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Resume a paused, waiting, failed or crashed session
    #[command(after_help = RESUME_EXAMPLES)]
    Resume(Box<ResumeArgs>),
    /// Start a new session from a point of an old one
    Fork(Box<ForkArgs>),
    #[command(flatten)]
    Session(SessionCommand),
    /// Test notification channels, and deliver pending notifications
    #[command(subcommand)]
    Notify(NotifyCommand),
    /// Run one agent without a flow
    #[command(after_help = AGENT_EXAMPLES)]
    Agent(AgentArgs),
    /// Chat with one agent, line by line
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(ChatArgs),
    /// Export a session as an HTML file, or as traces to a collector
    Export(ExportArgs),
    /// Verify, export, import and clean up the session store
    #[command(subcommand)]
    Store(StoreCommand),
    #[command(flatten)]
    Flow(FlowCommand),
    /// Print each setting and where it comes from
    #[command(after_help = CONFIG_FILES)]
    Config,
    /// Check that agent CLIs and API keys are available, and suggest fixes
    Doctor(DoctorArgs),
    /// Run a scripted mock model server, to try flows without a vendor
    #[command(after_help = MODEL_SERVER_EXAMPLES)]
    ModelServer(ModelServerArgs),
    /// Serve the web page and the HTTP API of all sessions
    #[command(after_help = serving::SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Offer flows as tools to MCP clients: agents such as Claude Code
    #[command(after_help = serving::MCP_EXAMPLES)]
    Mcp(McpArgs),
    /// Offer flows as an agent to editors that speak the Agent Client Protocol
    #[command(after_help = serving::ACP_EXAMPLES)]
    Acp(AcpArgs),
    /// Run nodes for the sessions of a cluster
    #[command(after_help = serving::WORKER_EXAMPLES)]
    Worker(WorkerArgs),
    /// Print the completion script for a shell
    Completions(CompletionsArgs),
}

/// Works on flows, and on what they are written with.
#[derive(Debug, Subcommand)]
pub(crate) enum FlowCommand {
    /// Check flows for problems without running them
    #[command(visible_alias = "validate", alias = "lint")]
    Check(CheckArgs),
    /// Test flows against written or recorded answers, without running any agent or program
    #[command(after_help = testing::EXAMPLES)]
    Test(TestArgs),
    /// Create a small flow project that runs without an API key
    Init(InitArgs),
    /// Draw a flow, or what a session of it did
    Graph(GraphArgs),
    /// List the node types, or describe one
    Nodes(NodesArgs),
    /// List the agent providers and what they support
    Providers,
    /// Print the JSON Schema of the flow file, the events or a provider
    Schema(SchemaArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The flow file, or its folder
    #[arg(value_name = "FILE", default_value = "flow.yaml", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,

    /// One input value of the flow: text where the flow takes text, else JSON if it parses; `KEY=@FILE` reads it from a file
    #[arg(short, long = "input", value_name = "KEY=VALUE", help_heading = "Input")]
    pub(crate) input: Vec<InputValue>,
    /// The flow's input as a JSON object; `-` reads stdin; `-i` overrides it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Input")]
    pub(crate) input_file: Option<PathBuf>,
    /// Change one input value of a node, for example `plan.options.maxTurns=3`, or by path for a node in a body,
    /// for example `each/review.prompt=…`
    #[arg(long, value_name = "NODE.KEY=VALUE", help_heading = "Input")]
    pub(crate) set: Vec<NodeSetting>,
    /// Use another provider for an agent node, for example `review=echo`, or for all of them, for example `claude`
    #[arg(long, value_name = "[NODE=]TYPE", help_heading = "Input")]
    pub(crate) provider: Vec<NodeProvider>,
    /// Use another model for an agent node, for example `each/review=opus`, or for all of them
    #[arg(long, value_name = "[NODE=]MODEL", help_heading = "Input")]
    pub(crate) model: Vec<NodeModel>,

    /// ID of the session
    #[arg(long, value_name = "ID", value_parser = values::session_id, help_heading = "Running")]
    pub(crate) session_id: Option<String>,
    /// Set a budget for this run, for example `usd=5` or `tokens=2000000`; `NODE.usd=1` is for a node, `NODE/.usd=1` for each of its frames
    #[arg(long, value_name = "[NODE.]LIMIT=N", value_delimiter = ',', help_heading = "Running")]
    pub(crate) budget: Vec<BudgetChange>,
    /// Run at most N nodes at once
    #[arg(long, value_name = "N", help_heading = "Running")]
    pub(crate) max_concurrency: Option<NonZeroU32>,
    /// Run only this node (repeatable); reuse the outputs it needs from the latest session that has them
    #[arg(long, value_name = "NODE", value_parser = values::node_place, conflicts_with_all = ["no_store", "replay"], help_heading = "Running")]
    pub(crate) only: Vec<NodePath>,
    /// Run this node and all after it; reuse earlier outputs from the latest session that has them
    #[arg(long, value_name = "NODE", value_parser = values::node_place, conflicts_with_all = ["only", "no_store", "replay"], help_heading = "Running")]
    pub(crate) from: Option<NodePath>,
    /// Session to reuse with --only or --from: ID, unique prefix, @last or @last-failed
    #[arg(long, value_name = "ID", help_heading = "Running")]
    pub(crate) reuse: Option<String>,
    /// Show what would run, with cost and time estimated from earlier sessions, without running
    #[arg(long, visible_alias = "dry-run", conflicts_with_all = ["detach", "record", "events"], help_heading = "Running")]
    pub(crate) plan: bool,
    /// Run without asking, even if the forecast is above `confirmAbove`
    #[arg(long, short = 'y', help_heading = "Running")]
    pub(crate) yes: bool,
    /// Serve the web page of this run while it lasts, and open it if at a terminal
    #[arg(long, conflicts_with_all = ["detach", "no_store"], help_heading = "Running")]
    pub(crate) web: bool,
    /// Store nothing: the session cannot be resumed or seen by other commands
    #[arg(long, conflicts_with_all = ["detach", "no_wait"], help_heading = "Running")]
    pub(crate) no_store: bool,

    /// Record the answers of agents and the output of `exec` programs in DIR, a new folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "replay", help_heading = "Recordings")]
    pub(crate) record: Option<PathBuf>,
    /// Replay recordings and run nothing, though `stdoutFile` is written; the default DIR is `recordings` beside the flow
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, num_args = 0..=1, help_heading = "Recordings")]
    pub(crate) replay: Option<Option<PathBuf>>,
    /// Replay speed; at a terminal as recorded, else immediate
    #[arg(long, value_name = "PACE", requires = "replay", help_heading = "Recordings")]
    pub(crate) pace: Option<ReplayPace>,

    #[command(flatten)]
    pub(crate) mode: RunModeArgs,
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
    /// Flow files or folders; a folder without a `flow.yaml` means all its flows
    #[arg(value_name = "FILE", default_value = "flow.yaml", value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Output format; `--json` is short for `--format json`
    #[arg(long, short, value_name = "FORMAT", help_heading = "Output")]
    pub(crate) format: Option<CheckFormat>,
}

/// How the problems of flows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// For people, with the lines concerned
    Human,
    /// One JSON object
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// Workflow commands of GitHub Actions
    Github,
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Folder to create the project in; existing files are never overwritten
    #[arg(value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// What kind of flow
    #[arg(long, short, value_name = "NAME", default_value = TEMPLATES[0].name, value_parser = templates())]
    pub(crate) template: String,
    /// Print the templates
    #[arg(long, conflicts_with_all = ["dir", "template"])]
    pub(crate) list_templates: bool,
}

fn templates() -> PossibleValuesParser {
    TEMPLATES
        .iter()
        .map(|template| PossibleValue::new(template.name).help(template.about))
        .collect::<Vec<_>>()
        .into()
}

#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// The flow file or its folder, or a session: its ID, a unique prefix, @last or @last-failed
    #[arg(value_name = "FILE|ID", default_value = "flow.yaml", value_hint = ValueHint::FilePath)]
    pub(crate) of: PathBuf,
    /// Output format; `text` on a terminal, else `mermaid`, unless given
    #[arg(long, short, value_name = "FORMAT")]
    pub(crate) format: Option<GraphFormat>,
}

/// What a flow is drawn as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// For the terminal
    Text,
    /// For Markdown pages
    Mermaid,
    /// For Graphviz
    Dot,
    /// An image, for light and dark pages
    Svg,
}

#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// The type to describe
    #[arg(value_name = "TYPE")]
    pub(crate) node_type: Option<String>,
    /// Also the types of the packs that this flow names
    #[arg(long, value_name = "FILE")]
    pub(crate) flow: Option<PathBuf>,
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
    /// The test file of `inspan test`
    Test,
    /// One line of `run --events`
    Events,
    /// Input and output of a provider
    Provider {
        /// The provider, for example `claude`
        #[arg(value_name = "TYPE")]
        name: String,
    },
    /// Input and output of a node type
    Node {
        /// The node type, for example `control.merge`
        #[arg(value_name = "TYPE")]
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ModelServerArgs {
    /// JSON file with the model's answers
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) scenario: PathBuf,
    /// Port to listen on; a free one if not given
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Write each answered request to FILE as a JSON line, without secrets
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
    fn words_that_people_try_lead_to_a_command() {
        let tried = |line: &str| match Cli::try_parse_from(line.split(' ')) {
            Ok(_) => "a command".to_owned(),
            Err(error) => meant(error).to_string(),
        };
        let known = ["ls", "list", "status", "validate", "lint", "log", "explain", "answer x"]
            .map(|word| tried(&format!("inspan {word}")));
        assert_eq!(known, [(); 8].map(|()| "a command".to_owned()));
        let rm = tried("inspan rm");
        assert!(rm.contains("tip: `inspan store gc` deletes old finished sessions"), "{rm}");
        assert!(!rm.contains("similar"), "{rm}");
    }

    #[test]
    fn a_wrong_number_is_refused_in_plain_words() {
        let rows = [
            ("inspan test --jobs 0", "invalid value '0' for '--jobs <N>': must be at least 1"),
            ("inspan logs s --from abc", "invalid value 'abc' for '--from <SEQ>': not a whole number"),
        ];
        for (line, why) in rows {
            let error = meant(Cli::try_parse_from(line.split(' ')).unwrap_err()).to_string();
            assert_eq!(error.lines().next(), Some(&*format!("error: {why}")), "{error}");
        }
    }

    #[test]
    fn replay_takes_a_folder_or_nothing() {
        let replay = |line: &str| {
            let Command::Run(run) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
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
