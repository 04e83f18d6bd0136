//! The arguments of the verbs that talk to one agent without a flow.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum, ValueHint};
use inspan_protocol::ThinkingLevel;

use super::{InputValue, values};

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// What to say; `-` reads stdin
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: String,
    /// The agent, as `inspan providers` lists them; needed unless the settings name one
    #[arg(long, short, value_name = "TYPE")]
    pub(crate) provider: Option<String>,
    /// A picture or a file of text that goes with the prompt; may be given more than once
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) attach: Vec<PathBuf>,
    /// Answer in JSON of the schema in this file, and print nothing else
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) schema: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// The agent, as `inspan providers` lists them; without it that of the `--resume` file or of the settings
    #[arg(long, short, value_name = "TYPE")]
    pub(crate) provider: Option<String>,
    /// Go on with the conversation that `--export` kept in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) resume: Option<PathBuf>,
    /// Keep the conversation in this file, after every answer
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) export: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

/// How an agent is run. What the agent does not know is refused.
#[derive(Debug, Args)]
pub(crate) struct HowArgs {
    /// The model, by the vendor's name
    #[arg(long, short, value_name = "NAME", help_heading = "Agent")]
    pub(crate) model: Option<String>,
    /// How much the model may think
    #[arg(long, value_name = "LEVEL", help_heading = "Agent")]
    pub(crate) thinking: Option<Thinking>,
    /// What the agent is told before everything else
    #[arg(long, value_name = "TEXT", help_heading = "Agent")]
    pub(crate) system_prompt: Option<String>,
    /// Model turns that an answer may take
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Agent")]
    pub(crate) max_turns: Option<u32>,
    /// Tokens that an answer may have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Agent")]
    pub(crate) max_tokens: Option<u32>,
    /// How freely the model chooses its words
    #[arg(long, value_name = "NUMBER", help_heading = "Agent")]
    pub(crate) temperature: Option<f64>,
    /// Tools that it may use, by the agent's names for them
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = "Agent")]
    pub(crate) tools: Vec<String>,
    /// Tools that it may not use
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = "Agent")]
    pub(crate) disabled_tools: Vec<String>,
    /// An option of this agent alone, as `inspan schema provider TYPE` lists them: JSON if it parses, else text
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Agent")]
    pub(crate) option: Vec<InputValue>,
    /// How long an answer may take, as in `90s` or `15m`
    #[arg(long, value_name = "TIME", value_parser = values::time, help_heading = "Running")]
    pub(crate) timeout: Option<Duration>,
    /// How often an answer that failed for a passing reason is tried in all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Running")]
    pub(crate) attempts: u32,
    /// Never ask: permissions are denied
    #[arg(long, help_heading = "Running")]
    pub(crate) no_input: bool,
}

/// How much a model may think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Thinking {
    Off,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

impl From<Thinking> for ThinkingLevel {
    fn from(thinking: Thinking) -> Self {
        match thinking {
            Thinking::Off => Self::Off,
            Thinking::Minimal => Self::Minimal,
            Thinking::Low => Self::Low,
            Thinking::Medium => Self::Medium,
            Thinking::High => Self::High,
            Thinking::Xhigh => Self::Xhigh,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Only look: start no program to greet it, and ask no service whether it takes the key
    #[arg(long)]
    pub(crate) offline: bool,
    /// Hold these providers, or all that are here, against the list of what every provider does; they ask a model
    /// server of our own, so no key is used and nothing is spent
    #[arg(long, value_name = "PROVIDER", num_args = 0.., conflicts_with = "offline")]
    pub(crate) conformance: Option<Vec<String>>,
    /// Only what has this in its name
    #[arg(
        long,
        value_name = "PART",
        requires = "conformance",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) behaviour: String,
}
