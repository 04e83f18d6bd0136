//! What an agent says that its work cost: a number that can be a price, or a warning.

use inspan_protocol::StreamEvent;

/// The most, in US dollars, that is believed. More is a fault of whoever counts, as is less than nothing.
const MOST: f64 = 1_000_000.0;

/// The cost if it can be one, else the warning that it is unknown.
pub(crate) fn plausible(usd: f64) -> Result<f64, StreamEvent> {
    if (0.0..=MOST).contains(&usd) {
        return Ok(usd);
    }
    let message = format!("the agent says that it cost {usd:e} USD, which cannot be; the cost is unknown");
    Err(StreamEvent::Warning { code: "implausibleCost".to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_number_that_can_be_a_price() {
        for cost in [0.0, 0.0004, 999_999.0] {
            assert_eq!(plausible(cost), Ok(cost));
        }
        for cost in [-0.01, 1e308, 1_000_001.0, f64::INFINITY, f64::NAN] {
            assert!(plausible(cost).is_err(), "{cost}");
        }
        let told = plausible(1e308).unwrap_err();
        let message =
            "the agent says that it cost 1e308 USD, which cannot be; the cost is unknown".to_owned();
        assert_eq!(told, StreamEvent::Warning { code: "implausibleCost".to_owned(), message });
    }
}
