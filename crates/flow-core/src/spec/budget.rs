//! A `budget` as written, on the flow or on a node, and the `confirmAbove` of a flow.

use crate::{
    diagnostic::{Code, Problem, Sink},
    graph::{Budget, OnExceeded, OnUnknown},
    spec::{Key, fields::Fields},
};

/// The budget under a policy, if there is one. `default_on_exceeded` is its `onExceeded` if that is not set.
pub(super) fn read(
    policy: &mut Fields<'_, '_>,
    default_on_exceeded: OnExceeded,
    sink: &mut Sink,
) -> Option<Budget> {
    let key = Key::Field(policy.key, "budget");
    let value = policy.get("budget")?;
    let mut fields = Fields::open(value, &key, sink)?;
    let on_unknown = [("warn", OnUnknown::Warn), ("stop", OnUnknown::Stop)];
    let on_exceeded = [("pause", OnExceeded::Pause), ("fail", OnExceeded::Fail)];
    let budget = Budget {
        usd: money(&mut fields, sink),
        tokens: fields.count("tokens", sink).map(u64::from),
        on_unknown: fields.word("onUnknown", &on_unknown, sink).unwrap_or_default(),
        on_exceeded: fields.word("onExceeded", &on_exceeded, sink).unwrap_or(default_on_exceeded),
    };
    fields.finish(sink);
    if value.get("usd").is_none() && value.get("tokens").is_none() {
        let problem = Problem::error(Code::MissingKey, value.span, "a budget needs `usd`, `tokens` or both");
        sink.push(problem.key(key));
    }
    (budget.usd.is_some() || budget.tokens.is_some()).then_some(budget)
}

/// The `confirmAbove` under the policy of a flow, in US dollars.
pub(super) fn confirm_above(policy: &mut Fields<'_, '_>, sink: &mut Sink) -> Option<f64> {
    let key = Key::Field(policy.key, "confirmAbove");
    let value = policy.get("confirmAbove")?;
    let mut fields = Fields::open(value, &key, sink)?;
    let usd = money(&mut fields, sink);
    fields.finish(sink);
    if value.get("usd").is_none() {
        let problem = Problem::error(Code::MissingKey, value.span, "`confirmAbove` needs `usd`");
        sink.push(problem.help("write `confirmAbove: { usd: 5 }`".to_owned()).key(key));
    }
    usd
}

fn money(fields: &mut Fields<'_, '_>, sink: &mut Sink) -> Option<f64> {
    fields.number("usd", ["an amount in US dollars", "greater than 0"], |usd| usd > 0.0, sink)
}
