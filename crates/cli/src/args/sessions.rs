//! The arguments of the commands for sessions.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{BudgetChange, InputValue, values};

/// Looks at sessions, and talks to them.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions, newest first
    #[command(visible_alias = "ls", alias = "list")]
    Ps(PsArgs),
    /// Show the state of a session, node by node, or of one node
    #[command(visible_alias = "status")]
    Show(ShowArgs),
    /// Print the events of a session
    #[command(alias = "log")]
    Logs(LogsArgs),
    /// Explain why a node ran, was skipped, failed, waits or was reused
    #[command(alias = "explain")]
    Why(WhyArgs),
    /// Compare two sessions: path, statuses, outputs, cost and time
    #[command(alias = "diff")]
    Compare(CompareArgs),
    /// List questions that are waiting for an answer
    Inbox(InboxArgs),
    /// Report what failed, what it cost, what waits for you and what was done
    #[command(after_help = DIGEST_EXAMPLES)]
    Digest(DigestArgs),
    /// Send a message to the agents of a session
    Send(SendArgs),
    /// Answer a question of a session
    #[command(alias = "answer")]
    Reply(ReplyArgs),
    /// Allow a tool call that an agent asks permission for
    Approve(ApproveArgs),
    /// Deny a tool call that an agent asks permission for
    #[command(alias = "deny")]
    Reject(RejectArgs),
    /// Pause a session; it can be resumed later
    Pause(StopArgs),
    /// Stop a session permanently
    Stop(StopArgs),
    /// End an agent run that waits for messages, after it has answered the pending ones
    Close(CloseArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the last session of this folder
    #[arg(value_name = "ID", default_value = "@last", hide_default_value = true)]
    pub(crate) session: String,
    /// Show the output, program output and error of this node instead
    #[arg(value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Print the session's state as JSON for `FlowRunnerBuilder::restore`
    #[arg(long, conflicts_with = "node")]
    pub(crate) snapshot: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the only open session of this folder
    #[arg(value_name = "ID", default_value = "@only", hide_default_value = true)]
    pub(crate) session: String,
    /// Message to the agents that were interrupted, instead of `continue`
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// Read the message from FILE, not an argument; `-` reads stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "message")]
    pub(crate) message_file: Option<PathBuf>,
    /// Message to the agent of one node instead
    #[arg(long, value_name = "NODE=TEXT", value_parser = values::node_message)]
    pub(crate) tell: Vec<(String, String)>,
    /// Show what would be reused, without running
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) plan: bool,
    /// Raise a budget, for example `usd=20`, `tokens=2000000` or `usd=20,tokens=2000000`; `NODE.usd=2` is for a node, `NODE/.usd=2` for each of its frames. Amounts already spent still count
    #[arg(long, value_name = "[NODE.]LIMIT=N", value_delimiter = ',')]
    pub(crate) budget: Vec<BudgetChange>,
    /// Also retry failures after which the flow continued: foreach items, nodes whose failure was handled. Starts a new
    /// session
    #[arg(long, conflicts_with = "in_place")]
    pub(crate) failed: bool,
    /// Also run this node and all after it again. Starts a new session
    #[arg(long, value_name = "NODE", conflicts_with = "in_place")]
    pub(crate) from: Option<String>,
    /// Use the flow file as it is now: starts a new session that reuses finished work
    #[arg(long, conflicts_with = "as_started")]
    pub(crate) edited: bool,
    /// Use the flow as it was when the session started, and ignore changes to its file
    #[arg(long)]
    pub(crate) as_started: bool,
    /// Change one input value; needs `--edited`
    #[arg(long, short, value_name = "KEY=VALUE", requires = "edited", conflicts_with = "as_started")]
    pub(crate) input: Vec<InputValue>,
    /// Change the input values given as a JSON object; `-` reads stdin; `-i` overrides it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "edited", conflicts_with = "as_started")]
    pub(crate) input_file: Option<PathBuf>,
    /// Do not start a new session
    #[arg(long, hide = true)]
    pub(crate) in_place: bool,
    /// ID of the new session, if one starts
    #[arg(long, value_name = "ID", value_parser = values::session_id)]
    pub(crate) session_id: Option<String>,
    #[command(flatten)]
    pub(crate) mode: RunModeArgs,
}

/// How a session is run.
#[derive(Debug, Default, Args)]
pub(crate) struct RunModeArgs {
    /// Never ask: questions get their default answer, permissions are denied; where only a person can answer, the run
    /// exits with code 3, and `inspan reply` continues it
    #[arg(long, help_heading = "Running")]
    pub(crate) no_input: bool,
    /// Run in the background and print the session ID
    #[arg(long, conflicts_with = "no_wait", help_heading = "Running")]
    pub(crate) detach: bool,
    /// Exit with code 3 or 75 instead of waiting for a person or a usage limit
    #[arg(long, help_heading = "Running")]
    pub(crate) no_wait: bool,
    /// Marks the background process
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Hash of the request that has a key
    #[arg(long, hide = true)]
    pub(crate) request: Option<String>,
    /// Write every event as a JSON line to FILE; `-` is stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(crate) events: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the last session of this folder
    #[arg(value_name = "ID", default_value = "@last", hide_default_value = true)]
    pub(crate) session: String,
    /// Start the fork at a node (repeatable; everything that does not depend on it is reused) or after an event; without it
    /// all finished work is reused
    #[arg(long, value_name = "NODE|SEQ")]
    pub(crate) at: Vec<String>,
    /// ID of the new session
    #[arg(long, value_name = "ID", value_parser = values::session_id)]
    pub(crate) session_id: Option<String>,
    /// Change one input value of the flow
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) input: Vec<InputValue>,
    /// Change the input values given as a JSON object; `-` reads stdin; `-i` overrides it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) input_file: Option<PathBuf>,
    /// Show what would be reused, without running
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) plan: bool,
    #[command(flatten)]
    pub(crate) mode: RunModeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Include finished sessions
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Show at most N sessions, the newest ones
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the last session of this folder
    #[arg(value_name = "ID", default_value = "@last", hide_default_value = true)]
    pub(crate) session: String,
    /// Follow new events until the session ends or no process runs it
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Show only these events, for example `agent:*` or `task:failed,task:skipped`
    #[arg(long = "type", value_name = "NAMES", default_value = "*")]
    pub(crate) filter: String,
    /// Start at this event
    #[arg(long, value_name = "SEQ", default_value = "1")]
    pub(crate) from: u64,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the last session of this folder
    #[arg(value_name = "ID", default_value = "@last", hide_default_value = true)]
    pub(crate) session: String,
    /// The node to explain; without one the whole session
    #[arg(value_name = "NODE")]
    pub(crate) node: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Session ID, unique prefix, @last or @last-failed
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The session to compare it with
    #[arg(value_name = "ID")]
    pub(crate) other: String,
}

#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    /// Show only questions of this session
    #[arg(value_name = "ID")]
    pub(crate) session: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The session, if not the only open one of this folder, and the message
    #[arg(value_name = "[ID] TEXT", num_args = 1..=2, required = true)]
    pub(crate) words: Vec<String>,
    /// Send to the agent of this node instead of every agent that listens
    #[arg(long, value_name = "NODE", conflicts_with = "run")]
    pub(crate) to: Option<String>,
    /// Send to this agent run
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Interrupt the agent's turn instead of waiting for its end
    #[arg(long)]
    pub(crate) steer: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplyArgs {
    /// The session, if not the only open one of this folder; the question, if several wait; and the answer
    #[arg(value_name = "[ID] [QUESTION] TEXT", num_args = 0..=3)]
    pub(crate) words: Vec<String>,
    /// Answer with this choice
    #[arg(long, short, value_name = "CHOICE")]
    pub(crate) choice: Option<String>,
    /// Fill in a field of a form; the whole form can be given as JSON in TEXT instead
    #[arg(long, value_name = "FIELD=VALUE", value_parser = values::field, conflicts_with = "choice")]
    pub(crate) set: Vec<(String, String)>,
    /// If no process runs the session, only store the answer; do not resume
    #[arg(long)]
    pub(crate) no_resume: bool,
    #[command(flatten)]
    pub(crate) mode: RunModeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    pub(crate) decide: DecideArgs,
    /// Allow this tool for the rest of the agent's run, without asking again
    #[arg(long)]
    pub(crate) always: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RejectArgs {
    #[command(flatten)]
    pub(crate) decide: DecideArgs,
    /// Reason for the agent, for example what to do instead
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DecideArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the only open session of this folder
    #[arg(value_name = "ID", default_value = "@only", hide_default_value = true)]
    pub(crate) session: String,
    /// Question ID, or its node; needed if several ask for permission. `approve` needs the ID if one has just asked
    #[arg(value_name = "QUESTION")]
    pub(crate) prompt: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CloseArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the only open session of this folder
    #[arg(value_name = "ID", default_value = "@only", hide_default_value = true)]
    pub(crate) session: String,
    /// The agent run or its node; needed only if several agents run
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the only open session of this folder
    #[arg(value_name = "ID", default_value = "@only", hide_default_value = true)]
    pub(crate) session: String,
    /// Reason, for the log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true))]
pub(crate) struct ExportArgs {
    /// Session ID, unique prefix, @last or @last-failed; without one the last session of this folder
    #[arg(value_name = "ID", default_value = "@last", hide_default_value = true)]
    pub(crate) session: String,
    /// Send it as an OpenTelemetry trace to the collector at URL, for example `http://127.0.0.1:4318`
    #[arg(long, value_name = "URL", group = "target", value_hint = ValueHint::Url)]
    pub(crate) otlp: Option<String>,
    /// Write the page of the session to FILE, or to stdout if it is `-`: one HTML document that needs no server and no
    /// network
    #[arg(long, value_name = "FILE", group = "target", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check every session for damage
    Verify,
    /// Export a session as JSON lines
    Export {
        /// Session ID, unique prefix, @last or @last-failed
        #[arg(value_name = "ID")]
        session: String,
        /// Write to FILE instead of stdout
        #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Import an exported session
    Import {
        /// File to import; `-` is stdin
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Import the readable part of a damaged session
        #[arg(long)]
        part: bool,
    },
    /// Delete old finished sessions, or the given ones
    Gc {
        /// Delete exactly these sessions, finished or not, including unreadable ones
        #[arg(value_name = "ID", conflicts_with = "older_than")]
        sessions: Vec<String>,
        /// Minimum age, for example `30d`
        #[arg(long, value_name = "TIME", default_value = "30d", value_parser = values::time)]
        older_than: std::time::Duration,
        /// Show what would be deleted, without deleting it
        #[arg(long)]
        dry_run: bool,
    },
    /// Accept the damaged store as it is
    AcceptLoss,
}

pub(super) const DIGEST_EXAMPLES: &str = "\
Examples:
  inspan digest                      what happened in the last 12 hours
  inspan digest --since 7d --markdown > week.md
  inspan digest --send ops           send it through the channel `ops` of your settings file";

#[derive(Debug, Args)]
pub(crate) struct DigestArgs {
    /// How far back, for example `12h` or `7d`
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = values::time)]
    pub(crate) since: std::time::Duration,
    /// Write Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Send it through this channel of your settings file instead of printing it
    #[arg(long, value_name = "CHANNEL", conflicts_with = "markdown")]
    pub(crate) send: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotifyCommand {
    /// Send a test message through a channel
    Test {
        /// The channel's name in the settings
        #[arg(value_name = "CHANNEL")]
        channel: String,
    },
    /// Deliver notifications of all sessions and receive answers, until stopped
    Deliver {
        /// Deliver pending notifications and exit
        #[arg(long)]
        once: bool,
    },
}
