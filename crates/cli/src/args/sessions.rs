//! The arguments of the verbs that look at sessions and change their course.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{BudgetChange, InputValue, values};

/// One session.
#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) of: SessionArgs,
    /// Print the session's state as the JSON that `FlowRunnerBuilder::restore` takes
    #[arg(long)]
    pub(crate) snapshot: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// What agents are told that were cut short, instead of `continue`
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// What one node's agent is told instead
    #[arg(long, value_name = "NODE=TEXT", value_parser = values::node_message)]
    pub(crate) tell: Vec<(String, String)>,
    /// Say what would be reused, what would run again and why, and do nothing
    #[arg(long)]
    pub(crate) plan: bool,
    /// Raise a budget, as in `usd=20` or `tokens=2000000`; `NODE.usd=2` raises a node's own. What was spent stays spent
    #[arg(long, value_name = "[NODE.]LIMIT=N")]
    pub(crate) budget: Vec<BudgetChange>,
    /// Take what was changed in the flow's file since: a new session begins that reuses what it can
    #[arg(long, conflicts_with = "as_started")]
    pub(crate) edited: bool,
    /// Go on with the flow as it was when the session began, whatever its file says now
    #[arg(long)]
    pub(crate) as_started: bool,
    /// The id of the new session, if one begins
    #[arg(long, value_name = "ID", value_parser = values::session_id)]
    pub(crate) session_id: Option<String>,
    #[command(flatten)]
    pub(crate) going: GoingArgs,
}

/// How a session is watched that goes on.
#[derive(Debug, Default, Args)]
pub(crate) struct GoingArgs {
    /// Never ask: questions take their default, permissions are denied
    #[arg(long, help_heading = "Running")]
    pub(crate) no_input: bool,
    /// Run in the background
    #[arg(long, conflicts_with = "no_wait", help_heading = "Running")]
    pub(crate) detach: bool,
    /// End with code 3 or 75 where the flow would wait for a person or a usage limit
    #[arg(long, help_heading = "Running")]
    pub(crate) no_wait: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Write every event as a JSON line to this file; `-` is stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(crate) events: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Where the fork begins: at a node, so that all that does not depend on it is reused, or after an event; without
    /// it all finished work is reused
    #[arg(long, value_name = "NODE|SEQ")]
    pub(crate) at: Option<String>,
    /// The new session's id, instead of a fresh one
    #[arg(long, value_name = "ID", value_parser = values::session_id)]
    pub(crate) session_id: Option<String>,
    /// Change one value of the flow's input
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) input: Vec<InputValue>,
    /// Say what would be reused, what would run again and why, and do nothing
    #[arg(long)]
    pub(crate) plan: bool,
    #[command(flatten)]
    pub(crate) going: GoingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Also those that have ended
    #[arg(long, short)]
    pub(crate) all: bool,
    /// How many at most
    #[arg(long, short = 'n', value_name = "N", default_value = "50")]
    pub(crate) limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Go on with what happens from now on, until the session ends or nobody drives it any more
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only these events, as in `agent:*` or `task:failed,task:skipped`
    #[arg(long = "type", value_name = "NAMES", default_value = "*")]
    pub(crate) filter: String,
    /// Only from this event on
    #[arg(long, value_name = "SEQ", default_value = "1")]
    pub(crate) from: u64,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The node; without it the session as a whole
    #[arg(value_name = "NODE")]
    pub(crate) node: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    /// Only of this session
    #[arg(value_name = "ID")]
    pub(crate) session: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// What is said
    #[arg(value_name = "TEXT")]
    pub(crate) text: String,
    /// To the agent of this node; without it to every agent that takes messages
    #[arg(long, value_name = "NODE", conflicts_with = "run")]
    pub(crate) to: Option<String>,
    /// To this agent run
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Interrupt what it does, instead of waiting for the end of its turn
    #[arg(long)]
    pub(crate) steer: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReplyArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The question's id, or a beginning of it; as `inspan inbox` shows it
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: String,
    /// The answer
    #[arg(value_name = "TEXT", required_unless_present = "choice")]
    pub(crate) text: Option<String>,
    /// Which of the choices it is
    #[arg(long, short, value_name = "CHOICE")]
    pub(crate) choice: Option<String>,
    /// If nobody drives the session, leave the answer for whoever resumes it
    #[arg(long)]
    pub(crate) no_resume: bool,
    #[command(flatten)]
    pub(crate) going: GoingArgs,
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
pub(crate) struct DecideArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The question's id, or a beginning of it; without it the only one that asks for permission
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CloseArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// The agent run, or the node that it runs in; needed if more than one agent runs
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The session's id, or a beginning of it that no other has
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Why, for the log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreVerb {
    /// Look through every session for damage
    Verify,
    /// Print a session as JSON lines
    Export {
        /// The session's id, or a beginning of it that no other has
        #[arg(value_name = "ID")]
        session: String,
        /// Write here instead of stdout
        #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Take in a session that was exported
    Import {
        /// The file; `-` is stdin
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Take what there is of a session that was damaged when it was exported
        #[arg(long)]
        part: bool,
    },
    /// Delete sessions that ended long ago, or these
    Gc {
        /// Delete exactly these sessions, ended or not, also one that cannot be read
        #[arg(value_name = "ID", conflicts_with = "older_than")]
        sessions: Vec<String>,
        /// How long ago, as in `30d`
        #[arg(long, value_name = "TIME", default_value = "30d", value_parser = values::time)]
        older_than: std::time::Duration,
        /// Say what would be deleted, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Take what is there for all there was, after damage was found
    AcceptLoss,
}
