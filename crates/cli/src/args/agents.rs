//! The arguments of the commands for one agent without a flow.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use clap::{
    Args, ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};
use inspan_protocol::ThinkingLevel;

use super::{InputValue, values};

#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// The prompt; `-` reads stdin
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: String,
    /// Provider type, see `inspan providers`; needed unless the settings name one
    #[arg(long, short, value_name = "TYPE")]
    pub(crate) provider: Option<String>,
    /// Attach an image or a text file (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) attach: Vec<PathBuf>,
    /// Answer with JSON that matches the JSON Schema in FILE; print only that
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) schema: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: AgentOptionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Provider type, see `inspan providers`; the default is that of the `--resume` file or of the settings
    #[arg(long, short, value_name = "TYPE")]
    pub(crate) provider: Option<String>,
    /// Continue the conversation that `--export` saved in FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) resume: Option<PathBuf>,
    /// Save the conversation to FILE after every answer
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) export: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: AgentOptionArgs,
}

/// How an agent is run. What the agent does not know is refused.
#[derive(Debug, Args)]
pub(crate) struct AgentOptionArgs {
    /// Model name
    #[arg(long, short, value_name = "NAME", help_heading = "Agent")]
    pub(crate) model: Option<String>,
    /// How much the model thinks
    #[arg(long, value_name = "LEVEL", value_parser = thinking(), help_heading = "Agent")]
    pub(crate) thinking: Option<ThinkingLevel>,
    /// System prompt
    #[arg(long, value_name = "TEXT", help_heading = "Agent")]
    pub(crate) system_prompt: Option<String>,
    /// Maximum number of model turns per answer
    #[arg(long, value_name = "N", help_heading = "Agent")]
    pub(crate) max_turns: Option<NonZeroU32>,
    /// Maximum number of tokens per answer
    #[arg(long, value_name = "N", help_heading = "Agent")]
    pub(crate) max_tokens: Option<NonZeroU32>,
    /// Sampling temperature
    #[arg(long, value_name = "NUMBER", help_heading = "Agent")]
    pub(crate) temperature: Option<f64>,
    /// Tools the agent may use
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = "Agent")]
    pub(crate) tools: Vec<String>,
    /// Tools the agent may not use
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = "Agent")]
    pub(crate) disabled_tools: Vec<String>,
    /// A provider-specific option, see `inspan schema provider TYPE`: JSON if it parses, else text
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::agent_option, help_heading = "Agent")]
    pub(crate) option: Vec<InputValue>,
    /// Time limit for an answer, for example `90s` or `15m`
    #[arg(long, value_name = "TIME", value_parser = values::time, help_heading = "Running")]
    pub(crate) timeout: Option<Duration>,
    /// Maximum number of attempts if an answer fails for a transient reason
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Running")]
    pub(crate) attempts: NonZeroU32,
    /// Never ask: permissions are denied
    #[arg(long, help_heading = "Running")]
    pub(crate) no_input: bool,
}

/// How much a model may think.
fn thinking() -> impl TypedValueParser<Value = ThinkingLevel> {
    PossibleValuesParser::new(["off", "minimal", "low", "medium", "high", "xhigh"])
        .try_map(|level| serde_json::from_value(level.into()))
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Do not start any program and do not contact any service
    #[arg(long)]
    pub(crate) offline: bool,
    /// Run the conformance suite for these providers, or for all that are installed; they talk to a local mock model
    /// server, so no key is used and nothing is spent
    #[arg(long, value_name = "PROVIDER", num_args = 0.., conflicts_with = "offline")]
    pub(crate) conformance: Option<Vec<String>>,
    /// Run only behaviors whose name contains PART
    #[arg(
        long,
        alias = "behaviour",
        value_name = "PART",
        requires = "conformance",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) behavior: String,
}
