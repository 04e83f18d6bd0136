//! The end of a turn: what it used and cost, from counters that run since the process began, or the conversation.

use std::collections::BTreeMap;

use inspan_protocol::{ProviderSessionId, StreamEvent, Usage};

use super::super::wire;
use super::{ClaudeDecoded, ClaudeDecoder, ClaudeTurnEnd, warning};
use crate::output::{PermissionDenial, TurnOutput, context_use, plausible};

/// The counters of the process at the end of the last turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    usage: Usage,
    cost_usd: f64,
}

/// What a result said, and the counters of the process at that moment.
#[derive(Debug)]
pub(super) struct EndedTurn {
    end: ClaudeTurnEnd,
    context_windows: BTreeMap<String, u64>,
    totals: Totals,
}

impl ClaudeDecoder {
    pub(super) fn result(&mut self, line: wire::ResultLine<'_>, out: &mut Vec<ClaudeDecoded>) {
        self.count_from(&line);
        if line.origin.is_some() && !self.turn.has_prompt {
            // What it took is part of the turn that follows.
            self.turn.begun = false;
            self.turn.begins = 0;
            self.turn.error = None;
            self.turn.stop_reason = None;
            return;
        }
        let waits = !line.is_error && self.tasks.has_sub_agent();
        let ended = self.ended(line, out);
        if waits {
            self.count_result(ended.end.output.usage);
            self.turn.cost_usd = ended.end.output.cost_usd;
            self.spent_so_far(out);
            self.turn.ended = Some(ended);
        } else {
            self.conclude(ended, out);
        }
    }

    /// A program that resumes a conversation may count on from what earlier processes took, and were paid for. Its first result
    /// says what is new.
    fn count_from(&mut self, line: &wire::ResultLine<'_>) {
        let Some(new) = &line.model_usage_since_last_result else { return };
        if std::mem::replace(&mut self.knows_before, true) {
            return;
        }
        let cost: f64 = new.values().filter_map(|usage| usage.cost_usd).sum();
        self.totals = Totals {
            usage: sum(&line.model_usage) - sum(new),
            cost_usd: (line.total_cost_usd.unwrap_or_default() - cost).max(0.0),
        };
    }

    /// The program does nothing, and has nothing to do. A turn that waited for sub-agents ends if they were stopped, of which
    /// the model is not told.
    pub(super) fn idle(&mut self, out: &mut Vec<ClaudeDecoded>) {
        self.tasks.settle();
        if !self.tasks.has_sub_agent()
            && let Some(mut ended) = self.turn.ended.take()
        {
            if self.turn.is_cut {
                ended.end.is_error = true;
                ended.end.terminal_reason = Some("aborted_tools".to_owned());
            }
            // Sub-agents have worked since the program counted, and named the cost.
            let output = &mut ended.end.output;
            let usage = most(self.turn.usage, output.usage);
            self.turn.is_cut |= usage != output.usage;
            ended.totals.usage += usage - output.usage;
            (output.usage, output.duration_ms) = (usage, 0);
            self.conclude(ended, out);
        }
    }

    /// What a result says of the turn; an earlier one of the same turn is included.
    fn ended(&mut self, line: wire::ResultLine<'_>, out: &mut Vec<ClaudeDecoded>) -> EndedTurn {
        let (usage, total_usage) = self.usage_of(&line);
        let (cost_usd, total_cost) = self.cost_of(&line, usage, out);
        let before = self.turn.ended.take().map(|ended| ended.end.output);
        // The program does not count the time in which it waited.
        let duration_ms = before.as_ref().map_or(line.duration_ms.max(0.0) as u64, |_| 0);
        let before = before.unwrap_or_default();
        let text = match line.result {
            Some(text) => text.to_string(),
            None => line.errors.first().map(|text| text.to_string()).unwrap_or_default(),
        };
        let denials = line.permission_denials.into_iter().map(|denial| PermissionDenial {
            tool_name: denial.tool_name,
            tool_use_id: denial.tool_use_id,
            tool_input: denial.tool_input,
        });
        let mut permission_denials = before.permission_denials;
        for denial in denials {
            if permission_denials.iter().all(|known| known.tool_use_id != denial.tool_use_id) {
                permission_denials.push(denial);
            }
        }
        let structured_output = line.structured_output.and_then(|output| self.root.output(output));
        let end = ClaudeTurnEnd {
            subtype: line.subtype.to_string(),
            is_error: line.is_error,
            status: line.api_error_status,
            terminal_reason: line.terminal_reason.map(|reason| reason.to_string()),
            stop_reason: line.stop_reason.map(|reason| reason.to_string()),
            output: TurnOutput {
                text,
                session_id: line.session_id.map(|id| ProviderSessionId::from(&*id)),
                duration_ms,
                usage,
                cost_usd,
                permission_denials,
                structured_output: structured_output.or(before.structured_output),
                ..TurnOutput::default()
            },
            ..ClaudeTurnEnd::default()
        };
        let windows = line.model_usage.into_iter();
        let context_windows =
            windows.filter_map(|(model, usage)| Some((model, usage.context_window?))).collect();
        EndedTurn { end, context_windows, totals: Totals { usage: total_usage, cost_usd: total_cost } }
    }

    fn conclude(&mut self, ended: EndedTurn, out: &mut Vec<ClaudeDecoded>) {
        self.close_tools(out);
        out.extend(self.tasks.farewell().map(|message| warning("backgroundEnded", &message)));
        let turn = std::mem::take(&mut self.turn);
        self.totals = ended.totals;
        let mut end = ended.end;
        // The program names the cost of what was answered, and not that of a request that was under way.
        let is_cut = turn.is_cut
            || turn.broken != Usage::default()
            || self.tasks.has_sub_agent()
            || end.terminal_reason.as_deref() == Some("aborted_streaming")
            // The last message did not come to its end.
            || turn.message_usage != Usage::default();
        // The program calls it a success where the stream ends between two blocks or in the call of a tool. It does not wait for
        // the end of a message that gives the structured output.
        end.broke_off = !end.is_error
            && end.subtype == "success"
            && end.output.structured_output.is_none()
            && turn.message_usage != Usage::default()
            && turn.streamed.is_some_and(|streamed| !streamed.stopped);
        let (usage, cost_usd) = (end.output.usage, end.output.cost_usd);
        if usage != Usage::default() || cost_usd.is_some_and(|cost| cost > 0.0) {
            out.push(ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd }));
            if is_cut && cost_usd.is_some() {
                out.push(ClaudeDecoded::Event(StreamEvent::Usage { usage, cost_usd: None }));
            }
        }
        let window = turn.model.as_ref().and_then(|model| ended.context_windows.get(model).copied());
        out.extend(context_use(turn.context_tokens, window).map(ClaudeDecoded::Event));
        // A failed request ends the turn in its own word, which hides how the last message ended.
        end.stop_reason = match (end.stop_reason, turn.stop_reason) {
            (None, last) => last,
            (Some(returned), Some(last)) if returned == "stop_sequence" && turn.error.is_some() => Some(last),
            (returned, _) => returned,
        };
        end.error = turn.error;
        end.full_text = turn.text.into_text();
        end.output = TurnOutput {
            session_id: end.output.session_id.or_else(|| self.session.clone()),
            turn_id: turn.uuid,
            model: turn.model,
            num_turns: turn.messages,
            cost_usd: cost_usd.filter(|_| !is_cut),
            ..end.output
        };
        end.resets_at = turn.resets_at;
        out.push(ClaudeDecoded::TurnEnd(Box::new(end)));
    }

    /// The counters by model include sub-agents and messages that were not streamed. Where they do not change, the turn's own
    /// count of its main thread is the next best, then what was seen streaming. A message that broke off is in what was seen
    /// alone. With the new counters.
    fn usage_of(&self, line: &wire::ResultLine<'_>) -> (Usage, Usage) {
        let total = sum(&line.model_usage);
        let grown = total - self.totals.usage;
        let totals = if line.model_usage.is_empty() { self.totals.usage } else { total };
        let main = Usage::from(line.usage);
        let counted = [grown, main].into_iter().find(|usage| *usage != Usage::default());
        let mut usage = self.turn.usage - self.turn.broken;
        usage += self.turn.message_usage;
        if let Some(counted) = counted {
            let is_cut = self.turn.message_usage != Usage::default();
            usage = if is_cut { most(counted, usage) } else { counted };
        }
        usage += self.turn.broken;
        (usage, totals)
    }

    /// A cost that did not change although tokens were used is not a free turn but an unknown one. With the new counter.
    fn cost_of(
        &self,
        line: &wire::ResultLine<'_>,
        usage: Usage,
        out: &mut Vec<ClaudeDecoded>,
    ) -> (Option<f64>, f64) {
        let before = self.totals.cost_usd;
        let total = match line.total_cost_usd.map(plausible) {
            None => return (None, before),
            Some(Ok(total)) => total,
            Some(Err(warning)) => {
                out.push(ClaudeDecoded::Event(warning));
                return (None, before);
            }
        };
        // Beyond a millionth of a cent the difference of two sums is noise.
        let cost = ((total - before).max(0.0) * 1e8).round() / 1e8;
        ((cost > 0.0 || usage == Usage::default()).then_some(cost), total)
    }
}

/// What all models used.
fn sum(models: &BTreeMap<String, wire::ModelUsage>) -> Usage {
    let mut total = Usage::default();
    for usage in models.values() {
        total += Usage {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cache_read_tokens: usage.cache_read_input_tokens,
            cache_creation_tokens: usage.cache_creation_input_tokens,
            reasoning_tokens: 0,
        };
    }
    total
}

/// The larger one of each count.
pub(super) fn most(one: Usage, other: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens.max(other.input_tokens),
        output_tokens: one.output_tokens.max(other.output_tokens),
        cache_read_tokens: one.cache_read_tokens.max(other.cache_read_tokens),
        cache_creation_tokens: one.cache_creation_tokens.max(other.cache_creation_tokens),
        reasoning_tokens: 0,
    }
}

/// The smaller one of each count.
pub(super) fn least(one: Usage, other: Usage) -> Usage {
    one - (one - other)
}
