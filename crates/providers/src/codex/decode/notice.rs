//! What the program says about itself: its retries, its limits, its configuration.

use std::borrow::Cow;

use inspan_protocol::{Timestamp, beginning};

use super::super::wire;
use super::{CodexDecoded, CodexDecoder, CodexPhase, NOTICED_LIMIT, head, read, warning};
use crate::moment::lifted_at;

/// From here on a usage limit is near.
const NEAR_PERCENT: f64 = 90.0;

/// Families of notifications that are not used here.
const SILENT: &[&str] = &[
    "account/",
    "app/",
    "autoApprovalReview/",
    "command/",
    "externalAgentConfig/",
    "fs/",
    "fuzzyFileSearch/",
    "hook/",
    "item/",
    "mcpServer/",
    "model/",
    "modelProvider/",
    "process/",
    "project/",
    "rawResponseItem/",
    "remoteControl/",
    "skills/",
    "thread/",
    "turn/",
    "windows/",
    "windowsSandbox/",
];

impl CodexDecoder {
    pub(super) fn notice(
        &mut self,
        method: &str,
        params: &str,
        out: &mut Vec<CodexDecoded>,
    ) -> Result<(), serde_json::Error> {
        match method {
            "account/rateLimits/updated" => self.limits(&read(params)?, out),
            "warning" | "guardianWarning" | "configWarning" | "deprecationNotice" => {
                let notice: wire::NoticeLine<'_> = read(params)?;
                let code = if method == "warning" { "programWarning" } else { method };
                if let Some(message) = notice.message.or(notice.summary) {
                    self.show(code, &message, out);
                }
            }
            "model/rerouted" => {
                let notice: wire::NoticeLine<'_> = read(params)?;
                let name = |model: &Option<Cow<'_, str>>| model.as_deref().map_or("another".to_owned(), head);
                let (from, to) = (name(&notice.from_model), name(&notice.to_model));
                self.model = Some(to.clone());
                let message = format!("the program continued with model {to} instead of {from}");
                out.push(warning("modelFallback", &message));
            }
            "thread/compacted" => {
                self.warn_once("compacted", "context", "summed up the older", out);
            }
            "mcpServer/startupStatus/updated" => {
                let notice: wire::NoticeLine<'_> = read(params)?;
                let place: wire::NotificationPlace<'_> = read(params)?;
                let name = notice.name.as_deref().map_or("unknown".to_owned(), head);
                if self.is_our_thread(&place) {
                    match notice.status.as_deref() {
                        Some("starting") => self.starting.insert(name.clone()),
                        _ => self.starting.remove(&name),
                    };
                }
                if notice.status.as_deref() == Some("failed") {
                    let why = notice.error.as_deref().unwrap_or("it gave no reason");
                    self.show("mcpServer", &format!("the MCP server {name} did not start: {why}"), out);
                }
            }
            known if SILENT.iter().any(|family| known.starts_with(family)) => {}
            other => {
                self.warn_once("unknownMessage", other, "ignored a message of the unknown type", out);
            }
        }
        Ok(())
    }

    /// Shows the MCP servers whose start has not ended with the turn: the model had none of their tools.
    pub(super) fn not_started(&mut self, out: &mut Vec<CodexDecoded>) {
        for name in std::mem::take(&mut self.starting) {
            let message = format!("the MCP server {name} was still starting when the turn ended");
            self.show("mcpServer", &message, out);
        }
    }

    /// Shows a notice, once per process.
    fn show(&mut self, code: &str, message: &str, out: &mut Vec<CodexDecoded>) {
        let message = beginning(message, 500);
        if self.noticed.len() < NOTICED_LIMIT && self.noticed.insert(format!("{code} {message}")) {
            out.push(warning(code, message));
        }
    }

    fn limits(&mut self, line: &wire::LimitsLine, out: &mut Vec<CodexDecoded>) {
        let windows = [line.rate_limits.primary, line.rate_limits.secondary].into_iter().flatten();
        let moment = |window: &wire::Window| window.resets_at.and_then(Timestamp::from_vendor);
        let used_up = windows.clone().filter(|window| window.used_percent >= 100.0);
        self.resets_at = used_up.filter_map(|window| window.resets_at.and_then(lifted_at)).max();
        let near = windows.filter(|window| (NEAR_PERCENT..100.0).contains(&window.used_percent));
        if let Some(window) = near.max_by(|one, other| one.used_percent.total_cmp(&other.used_percent)) {
            let until = moment(&window).map_or(String::new(), |moment| format!(", which resets at {moment}"));
            self.show("usageLimitNear", &format!("the account comes near its usage limit{until}"), out);
        }
    }

    pub(super) fn error(
        &mut self,
        params: &str,
        out: &mut Vec<CodexDecoded>,
    ) -> Result<(), serde_json::Error> {
        let place: wire::NotificationPlace<'_> = read(params)?;
        let line: wire::ErrorLine = read(params)?;
        // The end of the turn repeats the last error.
        if !line.will_retry || self.turn.phase != CodexPhase::Begun || !self.is_our_thread(&place) {
            return Ok(());
        }
        let message = head_line(&line.error.message);
        let why = line
            .error
            .additional_details
            .as_deref()
            .map_or(String::new(), |details| format!(": {}", head_line(details)));
        out.push(warning("apiRetry", &format!("the program retries by itself: {message}{why}")));
        self.retract(out);
        Ok(())
    }
}

/// The program's sentence, and not the page that may follow it.
fn head_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    beginning(line, 300).to_owned()
}
