//! The end of a turn: what it used and cost, from counters that run since the process began.

use inspan_protocol::{ProviderSessionId, StreamEvent, Usage};

use super::super::wire;
use super::{ClaudeDecoded, ClaudeDecoder, ClaudeTurnEnd};
use crate::output::PermissionDenial;
use crate::output::context_use;
use crate::output::plausible;

/// The counters of the process at the end of the last turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    usage: Usage,
    cost_usd: f64,
}

impl ClaudeDecoder {
    pub(super) fn result(&mut self, line: wire::ResultLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        self.close_tools(out);
        let usage = self.usage_of(&line);
        let cost_usd = self.cost_of(&line, usage, out);
        let turn = std::mem::take(&mut self.turn);
        // The program names the cost of what was answered, and not that of the request that was under way.
        let is_cut = line.terminal_reason.as_deref() == Some("aborted_streaming");
        if usage != Usage::default() || cost_usd.is_some_and(|cost| cost > 0.0) {
            out.push(ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd }));
        }
        let window = turn.model.as_ref().and_then(|model| line.model_usage.get(model)?.context_window);
        out.extend(context_use(turn.context_tokens, window).map(ClaudeDecoded::Event));
        let stop_reason = line.stop_reason.map(|reason| reason.to_string());
        // A failed request ends the turn in its own word, which hides how the last message ended.
        let stop_reason = match (stop_reason, turn.stop_reason) {
            (None, last) => last,
            (Some(returned), Some(last)) if returned == "stop_sequence" && turn.error.is_some() => Some(last),
            (returned, _) => returned,
        };
        let text = match line.result {
            Some(text) => text.to_string(),
            None => line.errors.first().map(|text| text.to_string()).unwrap_or_default(),
        };
        let denials = line.permission_denials.into_iter().map(|denial| PermissionDenial {
            tool_name: denial.tool_name,
            tool_use_id: denial.tool_use_id,
            tool_input: denial.tool_input,
        });
        out.push(ClaudeDecoded::TurnEnd(Box::new(ClaudeTurnEnd {
            subtype: line.subtype.to_string(),
            is_error: line.is_error,
            error: turn.error,
            status: line.api_error_status,
            terminal_reason: line.terminal_reason.map(|reason| reason.to_string()),
            stop_reason,
            text,
            full_text: turn.text.into_text(),
            session_id: line
                .session_id
                .map(|id| ProviderSessionId::from(&*id))
                .or_else(|| self.session.clone()),
            message: turn.uuid,
            model: turn.model,
            num_turns: turn.messages,
            duration_ms: line.duration_ms.max(0.0) as u64,
            usage,
            cost_usd: cost_usd.filter(|_| !is_cut),
            permission_denials: denials.collect(),
            structured_output: line.structured_output,
            resets_at: turn.resets_at,
        })));
    }

    /// The counters by model include sub-agents and messages that were not streamed, and run since the process
    /// began. Where they do not change, the turn's own count of its main thread is the next best, then what was
    /// seen streaming.
    fn usage_of(&mut self, line: &wire::ResultLine<'_>) -> Usage {
        let mut total = Usage::default();
        for usage in line.model_usage.values() {
            total += Usage {
                input_tokens: usage.input_tokens,
                output_tokens: usage.output_tokens,
                cache_read_tokens: usage.cache_read_input_tokens,
                cache_creation_tokens: usage.cache_creation_input_tokens,
                reasoning_tokens: 0,
            };
        }
        let grown = minus(total, self.totals.usage);
        if !line.model_usage.is_empty() {
            self.totals.usage = total;
        }
        let main = Usage::from(line.usage);
        let mut seen = self.turn.usage;
        seen += self.turn.message_usage;
        [grown, main].into_iter().find(|usage| *usage != Usage::default()).unwrap_or(seen)
    }

    /// A cost that did not change although tokens were used is not a free turn but an unknown one.
    fn cost_of(
        &mut self,
        line: &wire::ResultLine<'_>,
        usage: Usage,
        out: &mut Vec<ClaudeDecoded>,
    ) -> Option<f64> {
        let total = match plausible(line.total_cost_usd?) {
            Ok(total) => total,
            Err(warning) => {
                out.push(ClaudeDecoded::Event(warning));
                return None;
            }
        };
        let grown = (total - self.totals.cost_usd).max(0.0);
        self.totals.cost_usd = total;
        // Beyond a millionth of a cent the difference of two sums is noise.
        let cost = (grown * 1e8).round() / 1e8;
        (cost > 0.0 || usage == Usage::default()).then_some(cost)
    }
}

fn minus(total: Usage, before: Usage) -> Usage {
    Usage {
        input_tokens: total.input_tokens.saturating_sub(before.input_tokens),
        output_tokens: total.output_tokens.saturating_sub(before.output_tokens),
        cache_read_tokens: total.cache_read_tokens.saturating_sub(before.cache_read_tokens),
        cache_creation_tokens: total.cache_creation_tokens.saturating_sub(before.cache_creation_tokens),
        reasoning_tokens: 0,
    }
}
