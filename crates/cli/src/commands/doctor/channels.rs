//! The channels for notifications: whether each can be used, and whether its last delivery failed. Nothing is sent.

use inspan_notify::{ChannelState, Ledger, LedgerError, check};
use inspan_view::Tone;
use serde::Serialize;

use super::Page;
use crate::{commands::notify::ledger_file, invocation::Invocation, settings::Settings};

/// One channel.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChannelStatus {
    name: String,
    /// What it sends.
    on: Vec<&'static str>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Why its last delivery failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    /// How many deliveries wait to be sent again.
    pending: u64,
    /// How many were given up, because the channel refused them.
    given_up: u64,
    /// Why the last of those was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    given_up_error: Option<String>,
}

/// The channels that a flow in the working folder would have. Settings that cannot be read are reported elsewhere.
pub(super) async fn look(invocation: &Invocation) -> Vec<ChannelStatus> {
    let Ok(settings) = Settings::of(None, invocation) else { return Vec::new() };
    let states = states(invocation).await;
    let damage = states.as_ref().err().map(|error| format!("nothing can be sent: {error}"));
    let known = states.unwrap_or_default();
    let status = |(name, channel): (&String, &crate::settings::ConfiguredChannel)| {
        let state = known.iter().find(|state| state.name == *name);
        ChannelStatus {
            name: name.clone(),
            on: channel.settings.on.iter().map(|kind| kind.word()).collect(),
            problem: check(&channel.settings, &invocation.env)
                .err()
                .map(|error| error.message)
                .or_else(|| damage.clone()),
            failed: state.and_then(|state| state.error.clone()),
            pending: state.map_or(0, |state| state.pending),
            given_up: state.map_or(0, |state| state.given_up),
            given_up_error: state.and_then(|state| state.given_up_error.clone()),
        }
    };
    settings.channels().iter().map(status).collect()
}

/// What was recorded of earlier deliveries, if there were any.
async fn states(invocation: &Invocation) -> Result<Vec<ChannelState>, LedgerError> {
    match ledger_file(invocation).ok().filter(|file| file.exists()) {
        Some(file) => Ledger::at(&file).channels().await,
        None => Ok(Vec::new()),
    }
}

pub(super) fn print(channels: &[ChannelStatus], page: &Page<'_>) {
    if channels.is_empty() {
        return;
    }
    page.title("Channels");
    for channel in channels {
        match (&channel.problem, &channel.failed) {
            (Some(problem), _) => page.bad(&channel.name, problem),
            (None, Some(failed)) => {
                let left = match channel.pending {
                    0 => String::new(),
                    pending => format!("waiting to be sent again: {pending}; "),
                };
                let about = format!("{left}the last error: {failed}");
                page.row(Tone::Warning, "!", &channel.name, &about);
            }
            // Its process was killed, or had no time left.
            (None, None) if channel.pending > 0 => {
                let about = format!("waiting to be sent: {}", channel.pending);
                page.row(Tone::Warning, "!", &channel.name, &about);
            }
            (None, None) if channel.on.is_empty() => {
                page.good(&channel.name, "sends nothing by itself: `on` is empty");
            }
            (None, None) => page.good(&channel.name, &format!("sends {}", channel.on.join(", "))),
        }
        if let Some(why) = &channel.given_up_error {
            let about =
                format!("refused notifications, which were given up: {}; the last: {why}", channel.given_up);
            page.row(Tone::Warning, "!", &channel.name, &about);
        }
    }
    page.help("`inspan notify test CHANNEL` sends a message through one");
}
