//! Tokens and cost of a turn, from the different ways in which agents report them.

use inspan_protocol::{StreamEvent, Usage};
use serde_json::Value;

use super::super::wire;
use crate::output::plausible;

/// What the session cost, as its agent counts it: since it began, and in some agents since their process began.
#[derive(Debug, Default)]
pub(super) struct SessionCost {
    /// The last sum that was reported.
    total: Option<f64>,
    /// The sum when the turn began; absent if it is not known.
    before: Option<f64>,
    /// Whether a sum was reported in this turn.
    received: CostReport,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CostReport {
    #[default]
    Nothing,
    Sum,
}

impl SessionCost {
    /// A session that has cost nothing yet.
    pub(super) fn from_nothing() -> Self {
        Self { total: Some(0.0), ..Self::default() }
    }

    pub(super) fn begin_turn(&mut self) {
        self.before = self.total;
        self.received = CostReport::Nothing;
    }

    /// The agent reported the cost of the session so far. An impossible cost is a warning.
    pub(super) fn total(&mut self, cost: Option<&wire::AcpCost>) -> Option<StreamEvent> {
        let cost = cost.filter(|cost| cost.currency == "USD")?;
        match plausible(cost.amount) {
            Ok(total) => {
                self.total = Some(total);
                self.received = CostReport::Sum;
                None
            }
            Err(warning) => {
                self.total = None;
                Some(warning)
            }
        }
    }

    /// What the turn cost in US dollars. A sum that did not change although tokens were used, or although a turn was cut
    /// short whose tokens were not counted, is not a free turn but an unknown one.
    pub(super) fn of_turn(&self, usage: Usage, stop_reason: Option<&str>) -> Option<f64> {
        let grown = self.total? - self.before?;
        // Beyond a millionth of a cent the difference of two sums is noise.
        let cost = (grown * 1e8).round() / 1e8;
        let free = usage == Usage::default() && stop_reason == Some("end_turn");
        (self.received == CostReport::Sum && (cost > 0.0 || cost == 0.0 && free)).then_some(cost)
    }
}

/// Tokens in the terms that all providers share. Agents differ in whether the tokens of their cache are among the
/// input, and those of thinking among the output; their own sum shows which.
pub(super) fn usage(returned: wire::TokenUsage) -> Usage {
    let read = returned.cached_read_tokens.unwrap_or_default();
    let written = returned.cached_write_tokens.unwrap_or_default();
    let thought = returned.thought_tokens.unwrap_or_default();
    let cached = read.saturating_add(written);
    let beside =
        returned.total_tokens.saturating_sub(returned.input_tokens.saturating_add(returned.output_tokens));
    let (cache_is_beside, thought_is_beside) = if beside == cached.saturating_add(thought) {
        (true, true)
    } else if beside == thought {
        (false, true)
    } else if beside == 0 && returned.total_tokens > 0 {
        (false, false)
    } else {
        (true, false)
    };
    let inside = if cache_is_beside { 0 } else { cached };
    let more = if thought_is_beside { thought } else { 0 };
    Usage {
        input_tokens: returned.input_tokens.saturating_sub(inside),
        output_tokens: returned.output_tokens.saturating_add(more),
        cache_read_tokens: read,
        cache_creation_tokens: written,
        reasoning_tokens: thought,
    }
}

/// Tokens of one request to the model, which some agents put beside a chunk of the answer.
pub(super) fn of_request(meta: &Value) -> Option<Usage> {
    serde_json::from_value(meta.get("usage")?.clone()).ok().map(usage)
}

/// Tokens of the turn, which some agents put beside its end as the share of a quota.
pub(super) fn of_quota(meta: &Value) -> Option<Usage> {
    let count = meta.pointer("/quota/token_count")?;
    let tokens = |name: &str| count.get(name).and_then(Value::as_u64);
    let (input_tokens, output_tokens) = (tokens("input_tokens")?, tokens("output_tokens")?);
    Some(Usage { input_tokens, output_tokens, ..Usage::default() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokens(total: u64, input: u64, output: u64, read: u64, thought: u64) -> wire::TokenUsage {
        wire::TokenUsage {
            total_tokens: total,
            input_tokens: input,
            output_tokens: output,
            thought_tokens: Some(thought),
            cached_read_tokens: Some(read),
            cached_write_tokens: None,
        }
    }

    #[test]
    fn the_sum_tells_what_is_counted_where() {
        let rows = [
            ("all beside", tokens(167, 100, 20, 40, 7), (100, 27, 40, 7)),
            ("cache within the input", tokens(127, 100, 20, 40, 7), (60, 27, 40, 7)),
            ("thinking within the output", tokens(160, 100, 20, 40, 7), (100, 20, 40, 7)),
            ("both within", tokens(120, 100, 20, 40, 7), (60, 20, 40, 7)),
            ("no sum", tokens(0, 100, 20, 0, 0), (100, 20, 0, 0)),
            ("nonsense", tokens(u64::MAX, u64::MAX, 1, u64::MAX, u64::MAX), (0, 1, u64::MAX, u64::MAX)),
        ];
        for (name, returned, expected) in rows {
            let seen = usage(returned);
            let seen = (seen.input_tokens, seen.output_tokens, seen.cache_read_tokens, seen.reasoning_tokens);
            assert_eq!(seen, expected, "{name}");
        }
    }

    #[test]
    fn what_agents_add_to_the_protocol_is_counted() {
        let returned = json!({ "usage": { "inputTokens": 100, "outputTokens": 20, "totalTokens": 120, "cachedReadTokens": 40 } });
        let expected =
            Usage { input_tokens: 60, output_tokens: 20, cache_read_tokens: 40, ..Usage::default() };
        assert_eq!(of_request(&returned), Some(expected));
        let quota = json!({ "quota": { "token_count": { "input_tokens": 100, "output_tokens": 20 } } });
        let expected = Usage { input_tokens: 100, output_tokens: 20, ..Usage::default() };
        assert_eq!(of_quota(&quota), Some(expected));
        for other in [
            json!(null),
            json!({ "usage": 1 }),
            json!({ "quota": { "token_count": { "input_tokens": -1 } } }),
        ] {
            assert_eq!((of_request(&other), of_quota(&other)), (None, None), "{other}");
        }
    }

    #[test]
    fn a_cost_is_the_turns_own_or_unknown() {
        let usd = |amount| wire::AcpCost { amount, currency: "USD".to_owned() };
        let some = Usage { input_tokens: 1, ..Usage::default() };
        let mut spent = SessionCost::from_nothing();
        spent.begin_turn();
        assert_eq!(spent.of_turn(some, Some("end_turn")), None, "nothing was reported");
        assert_eq!(spent.total(Some(&usd(0.0018))), None);
        assert_eq!(spent.of_turn(some, Some("end_turn")), Some(0.0018));
        spent.begin_turn();
        assert_eq!(spent.total(Some(&usd(0.003))), None);
        assert_eq!(spent.of_turn(some, Some("end_turn")), Some(0.0012));
        spent.begin_turn();
        assert_eq!(spent.total(Some(&usd(0.003))), None);
        assert_eq!(spent.of_turn(some, Some("end_turn")), None, "tokens for nothing");
        assert_eq!(spent.of_turn(Usage::default(), Some("cancelled")), None);
        assert_eq!(spent.of_turn(Usage::default(), Some("end_turn")), Some(0.0));
        spent.begin_turn();
        assert_eq!(spent.total(Some(&wire::AcpCost { amount: 9.0, currency: "EUR".to_owned() })), None);
        assert_eq!(spent.of_turn(some, Some("end_turn")), None, "another currency");
        let mut resumed = SessionCost::default();
        resumed.begin_turn();
        assert_eq!(resumed.total(Some(&usd(0.5))), None);
        assert_eq!(resumed.of_turn(some, Some("end_turn")), None, "the cost before is unknown");
        resumed.begin_turn();
        assert_eq!(resumed.total(Some(&usd(0.75))), None);
        assert_eq!(resumed.of_turn(some, Some("end_turn")), Some(0.25));
        resumed.begin_turn();
        assert_eq!(resumed.total(Some(&usd(0.25))), None);
        assert_eq!(resumed.of_turn(some, Some("end_turn")), None, "a sum that fell");
        resumed.begin_turn();
        assert!(resumed.total(Some(&usd(-5.0))).is_some());
        assert_eq!(resumed.of_turn(some, Some("end_turn")), None, "a sum below nothing");
    }
}
