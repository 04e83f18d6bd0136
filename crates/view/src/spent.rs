//! Tokens and money as far as they are known. An unknown price stays unknown and is never shown as zero.

use inspan_protocol::Event;

use crate::format;

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpendingTotal {
    /// Turns that said what they used.
    pub turns: u32,
    /// Tokens of all kinds.
    pub tokens: u64,
    /// The sum of the known prices.
    known: Option<f64>,
    /// Turns whose price is not known.
    unpriced: u32,
}

impl SpendingTotal {
    /// Adds what the next event of a run says.
    pub fn add(&mut self, event: &Event) {
        let (ends, cost_usd) = match event {
            Event::AgentSpent { cost_usd, .. } => (false, *cost_usd),
            Event::AgentUsage { cost_usd, .. } => (true, *cost_usd),
            _ => return,
        };
        let spent = event.spent().map(|(_, spent)| spent).unwrap_or_default();
        self.turns += u32::from(ends);
        self.tokens += spent.tokens;
        if cost_usd.is_some() {
            *self.known.get_or_insert(0.0) += spent.cost_usd;
        }
        self.unpriced += u32::from(spent.unpriced);
    }

    /// A turn was cut short of which a part had no price.
    pub(crate) fn lose_price(&mut self) {
        self.unpriced += 1;
    }

    /// The sum of both.
    pub fn plus(self, other: &Self) -> Self {
        let known = match (self.known, other.known) {
            (Some(one), Some(two)) => Some(one + two),
            (one, two) => one.or(two),
        };
        Self {
            turns: self.turns + other.turns,
            tokens: self.tokens + other.tokens,
            known,
            unpriced: self.unpriced + other.unpriced,
        }
    }

    /// The sum of all prices, if all are known.
    pub fn known_usd(&self) -> Option<f64> {
        self.known.filter(|_| self.unpriced == 0)
    }

    /// The sum of the prices that are known; the rest of the cost may be unknown.
    pub fn known_part(&self) -> Option<f64> {
        self.known
    }

    /// `1.2k tokens · $0.0042`; nothing if no turn said anything.
    pub fn text(&self) -> Option<String> {
        if self.turns == 0 && self.tokens == 0 && self.unpriced == 0 {
            return None;
        }
        let cost = self.cost().map(|cost| format!(" · {cost}")).unwrap_or_default();
        Some(format!("{} tokens{cost}", format::count(self.tokens)))
    }

    /// `$0.0042`, or what is known of it; nothing while the vendor may still name the price, at the end of the turn.
    pub fn cost(&self) -> Option<String> {
        match (self.known, self.unpriced) {
            (Some(usd), 0) => Some(format::dollars(usd)),
            (Some(usd), _) => Some(format!("{} + unknown", format::dollars(usd))),
            (None, 0) => None,
            (None, _) => Some("cost unknown".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use inspan_protocol::{RunId, Usage};

    use super::*;

    #[test]
    fn an_unknown_price_is_not_nothing() {
        let of = |turns: &[(u64, Option<f64>)]| {
            let mut spent = SpendingTotal::default();
            for (tokens, cost_usd) in turns {
                let usage = Usage { input_tokens: *tokens, ..Usage::default() };
                spent.add(&Event::AgentUsage {
                    usage,
                    cost_usd: *cost_usd,
                    context: None,
                    turn_id: None,
                    reported: None,
                    uncounted: false,
                    run_id: RunId::from("r"),
                });
            }
            spent.text()
        };
        let rows = [
            of(&[]),
            of(&[(10, None)]),
            of(&[(10, Some(0.0))]),
            of(&[(10, Some(0.5)), (20, Some(0.25))]),
            of(&[(10, Some(0.5)), (2000, None)]),
        ];
        let expected = [
            None,
            Some("10 tokens · cost unknown"),
            Some("10 tokens · $0"),
            Some("30 tokens · $0.7500"),
            Some("2.0k tokens · $0.5000 + unknown"),
        ];
        assert_eq!(rows, expected.map(|text| text.map(str::to_owned)));
    }
}
