//! Structured output through the engine: valid at once, fixed, or never given.

use inspan_engine::RunEnd;
use inspan_model_server::Turn;
use inspan_protocol::{AgentError, ErrorCode};
use serde_json::{Value, json};

use super::answers::WORDS;
use crate::finding::{CheckResult, Difference, holds, same};
use crate::target::ConformanceTarget;
use crate::test_case::{RunLog, TestCase, TurnRequest};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "yokes": { "type": "integer" }, "why": { "type": "string" } },
        "required": ["yokes", "why"],
        "additionalProperties": false,
    })
}

fn verdict() -> Value {
    json!({ "yokes": 7, "why": "It pulls." })
}

pub(super) fn good(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn::structured(verdict())]
}

pub(super) fn bad_then_good(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn::structured(json!({ "yokes": "seven" })), Turn::structured(verdict())]
}

pub(super) fn never_given(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn::text("I would rather talk.")]
}

pub(super) async fn valid(case: &TestCase) -> CheckResult {
    let end = ended(run(case).await?)?;
    same("the structured output", &end.facts.structured_output, &Some(verdict()))?;
    same("the turns of the run", &end.turns, &1)?;
    let asks = case.requests().first().is_some_and(|request| request.body.to_string().contains("yokes"));
    holds(asks, || "the schema does not reach the model".to_owned())
}

pub(super) async fn repaired(case: &TestCase) -> CheckResult {
    let end = ended(run(case).await?)?;
    same("the structured output", &end.facts.structured_output, &Some(verdict()))?;
    holds(case.requests().len() >= 2, || "the model is not asked again".to_owned())
}

pub(super) async fn never(case: &TestCase) -> CheckResult {
    let code = run(case).await?.end.map_err(|error| error.code);
    match code {
        Err(code) => same("the code", &code, &ErrorCode::OutputInvalid),
        Ok(_) => Err("the run does not fail".into()),
    }
}

async fn run(case: &TestCase) -> CheckResult<RunLog> {
    let request = TurnRequest::new(WORDS).option("outputSchema", schema());
    case.run(&case.hub(), request, case.worker().provider()).await
}

fn ended(run_log: RunLog) -> CheckResult<RunEnd> {
    let failed = |error: AgentError| {
        Difference::from(format!("the run fails with {}", error.code)).with(error.message)
    };
    run_log.end.map_err(failed)
}
