//! Arguments of `digest` and `notify`.

use clap::{Args, Subcommand};

use super::values;

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
    /// Deliver notifications of all sessions, and take answers, until it is stopped
    Deliver {
        /// Deliver what is not delivered yet, and exit
        #[arg(long)]
        once: bool,
    },
}
