//! Tokens and cost: as the server counted them, and of each turn alone.

use inspan_model_server::Turn;
use inspan_protocol::{StreamEvent, Usage};

use super::answers::WORDS;
use super::sessions::{FIRST, SECOND};
use crate::finding::{CheckResult, Deviation, Difference, holds, same};
use crate::target::ConformanceTarget;
use crate::test_case::{TestCase, TurnRequest};

fn tokens(input: u64, output: u64, cached: u64) -> inspan_model_server::Usage {
    inspan_model_server::Usage {
        input_tokens: input,
        output_tokens: output,
        cache_read_tokens: cached,
        ..inspan_model_server::Usage::default()
    }
}

pub(super) fn counted(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { usage: tokens(101, 23, 40), ..Turn::text(WORDS) }]
}

pub(super) fn two(_: &ConformanceTarget) -> Vec<Turn> {
    vec![
        Turn { usage: tokens(101, 23, 0), ..Turn::text("One.") },
        Turn { usage: tokens(57, 9, 0), ..Turn::text("Two.") },
    ]
}

/// Two turns that cost the same.
pub(super) fn alike(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { usage: tokens(1_000, 200, 0), ..Turn::text("One.") }]
}

pub(super) async fn counts(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS)).await?;
    let usage = turn.facts()?.usage;
    let expected = Usage { input_tokens: 101, output_tokens: 23, cache_read_tokens: 40, ..Usage::default() };
    same("the usage of the output", &usage, &expected)
        .map_err(|finding| finding.deviation(Deviation::Usage))?;
    let last = turn.events.iter().rev().find_map(|event| match event {
        StreamEvent::Usage { usage, .. } => Some(*usage),
        _ => None,
    });
    same("the last reported usage", &last, &Some(expected))
}

pub(super) async fn per_turn(case: &TestCase) -> CheckResult {
    let first = case.turn(TurnRequest::new(FIRST)).await?;
    let session = first.session()?;
    let second = case.turn(TurnRequest::new(SECOND).resume(session.clone())).await?;
    case.worker().renew().await?;
    let third = case.turn(TurnRequest::new(SECOND).resume(session)).await?;
    for (name, turn, input, output) in
        [("first", first, 101, 23), ("second", second, 57, 9), ("third", third, 57, 9)]
    {
        let expected = Usage { input_tokens: input, output_tokens: output, ..Usage::default() };
        same(&format!("the usage of the {name} turn"), &turn.facts()?.usage, &expected)
            .map_err(|finding| finding.deviation(Deviation::Usage))?;
    }
    Ok(())
}

pub(super) async fn cost(case: &TestCase) -> CheckResult {
    let first = case.turn(TurnRequest::new(FIRST)).await?;
    let cost = first.facts()?.cost_usd.ok_or_else(|| Difference::from("no cost is reported"))?;
    holds(cost > 0.0, || "the cost is zero".to_owned())?;
    let second = case.turn(TurnRequest::new(SECOND).resume(first.session()?)).await?;
    let again = second.facts()?.cost_usd.unwrap_or_default();
    holds((again - cost).abs() < cost / 1000.0, || "a turn like the first costs something else".to_owned())
        .map_err(|finding| finding.with(format!("{cost} and {again}")))
}

pub(super) async fn no_cost(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS)).await?;
    same("the cost", &turn.facts()?.cost_usd, &None)?;
    let reported =
        turn.events.iter().any(|event| matches!(event, StreamEvent::Usage { cost_usd: Some(_), .. }));
    holds(!reported, || "a cost is reported".to_owned())
}
