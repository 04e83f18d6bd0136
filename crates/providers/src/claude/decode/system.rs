//! What the program says about itself: its conversation, its retries, its limits.

use inspan_protocol::{ProviderSessionId, StreamEvent, Timestamp};

use super::super::wire;
use super::{ClaudeDecoded, ClaudeDecoder, head, warning};
use crate::moment::lifted_at;

impl ClaudeDecoder {
    pub(super) fn system(&mut self, line: &wire::SystemLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        match &*line.subtype {
            "init" => {
                self.turn.begun = true;
                self.turn.begins += 1;
                self.begin_request();
                self.turn.model = line.model.as_deref().map(str::to_owned);
                if let Some(id) = line.session_id.as_deref()
                    && self.session.as_ref().is_none_or(|known| *known != *id)
                {
                    let session_id = ProviderSessionId::from(id);
                    self.session = Some(session_id.clone());
                    out.push(ClaudeDecoded::Event(StreamEvent::Session { session_id }));
                }
                self.missing_mcp_servers(line, out);
            }
            "api_retry" => out.push(warning("apiRetry", &retry(line))),
            "model_fallback" => {
                let name =
                    |model: &Option<wire::Str<'_>>| model.as_deref().map_or("another".to_owned(), head);
                let (from, to) = (name(&line.original_model), name(&line.fallback_model));
                out.push(warning(
                    "modelFallback",
                    &format!("the program continued with model {to} instead of {from}"),
                ));
            }
            "permission_denied" => {
                let tool = line.tool_name.as_deref().map_or("a tool".to_owned(), head);
                out.push(warning("permissionDenied", &format!("the program's own rules denied {tool}")));
            }
            "compact_boundary" => {
                out.push(warning(
                    "compacted",
                    "the program replaced the older part of the conversation by a summary",
                ));
            }
            "status" if line.status.as_deref() == Some("requesting") => self.begin_request(),
            "task_started" => self.tasks.begin(line),
            "task_notification" => {
                let is_stopped = self.tasks.end(line);
                self.turn.is_cut |= is_stopped && self.turn.begun;
                // Of one that failed by itself the program tells the model.
                self.misses_end |= is_stopped && line.status.as_deref() != Some("failed");
            }
            "task_updated" => self.misses_end |= self.tasks.update(line),
            "session_state_changed" => {
                self.runs = line.state.as_deref() == Some("running");
                if line.state.as_deref() == Some("idle") {
                    self.idle(out);
                }
            }
            "status"
            | "thinking_tokens"
            | "task_progress"
            | "background_tasks_changed"
            | "model_refusal_no_fallback"
            | "hook_started"
            | "hook_progress"
            | "hook_response"
            | "worker_shutting_down"
            | "notification"
            | "informational" => {}
            other => {
                self.warn_once("unknownMessage", other, "ignored a system message of the unknown type", out)
            }
        }
    }

    /// Warns once of each MCP server that does not run.
    fn missing_mcp_servers(&mut self, line: &wire::SystemLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        for server in line.mcp_servers() {
            let what = match &*server.status {
                "failed" => "did not start; the program does not say why: check its `command` or `url`",
                "needs-auth" => "wants a login, which Claude Code itself takes by `/mcp`",
                _ => continue,
            };
            if self.mcp_servers.remove(&*server.name) {
                let name = head(&server.name);
                out.push(warning("mcpServer", &format!("the MCP server {name} {what}")));
            }
        }
    }

    pub(super) fn rate_limit(&mut self, line: &wire::RateLimitLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        let info = &line.rate_limit_info;
        let resets_at = info.resets_at.and_then(Timestamp::from_vendor);
        let until = resets_at.map_or(String::new(), |moment| format!(", which resets at {moment}"));
        match info.status.as_deref() {
            Some("rejected") => self.turn.resets_at = info.resets_at.and_then(lifted_at),
            Some("allowed_warning") => {
                out.push(warning(
                    "usageLimitNear",
                    &format!("the account comes near its usage limit{until}"),
                ));
            }
            _ => {}
        }
    }
}

fn retry(line: &wire::SystemLine<'_>) -> String {
    let what = match (line.error_status, line.error.as_deref()) {
        (Some(status), Some(error)) => format!("status {status} ({})", head(error)),
        (Some(status), None) => format!("status {status}"),
        (None, _) => "a failed connection".to_owned(),
    };
    let attempt = line.attempt.unwrap_or(1);
    let of = line.max_retries.map_or(String::new(), |most| format!(" of {most}"));
    let wait = line.retry_delay_ms.unwrap_or(0.0).round();
    format!("the program retries by itself after {what}: attempt {attempt}{of} in {wait} ms")
}
