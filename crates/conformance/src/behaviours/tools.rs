//! Tools that the model calls: who is asked before one is used, and what is reported of it.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use inspan_model_server::Turn;
use inspan_protocol::{PermissionBroker, PermissionDecision, PermissionRequest, StopReason, StreamEvent};

use super::answers::WORDS;
use crate::finding::{CheckResult, Deviation, Difference, check_requests, check_stop_reason, holds, same};
use crate::target::{ConformanceTarget, ModelCall, Tool};
use crate::test_case::{TestCase, TurnRequest};
use crate::turn::TurnLog;

/// A permission broker that always makes the same decision, and records the requests.
pub(super) struct Approver {
    decision: Decision,
    requests: Mutex<Vec<PermissionRequest>>,
}

/// Its decision.
#[derive(Clone, Copy)]
pub(super) enum Decision {
    Allow,
    Deny,
    Never,
}

impl Approver {
    pub(super) fn new(decision: Decision) -> Self {
        Self { decision, requests: Mutex::default() }
    }

    /// The requests so far.
    pub(super) fn requests(&self) -> Vec<PermissionRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl PermissionBroker for Approver {
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        match self.decision {
            Decision::Allow => Box::pin(async { PermissionDecision::Allow { updated_input: None } }),
            Decision::Deny => {
                Box::pin(async { PermissionDecision::Deny { message: "not today".to_owned() } })
            }
            Decision::Never => Box::pin(futures::future::pending()),
        }
    }
}

pub(super) async fn allowed(case: &TestCase) -> CheckResult {
    let approver = Arc::new(Approver::new(Decision::Allow));
    let turn = turn_with(case, Some(Arc::clone(&approver) as _)).await?;
    let used = turn.used()?;
    same("the uses of the tool that failed", &used.iter().map(|one| one.failed).collect(), &vec![false])?;
    same("the permission requests", &approver.requests().len(), &1)?;
    same("the tool of the request", &approver.requests()[0].tool_name, &used[0].name)?;
    made(case, true)
}

pub(super) async fn denied(case: &TestCase) -> CheckResult {
    let approver = Arc::new(Approver::new(Decision::Deny));
    let turn = turn_with(case, Some(Arc::clone(&approver) as _)).await?;
    same("the permission requests", &approver.requests().len(), &1)?;
    not_used(case, &turn)
}

pub(super) async fn nobody(case: &TestCase) -> CheckResult {
    let turn = turn_with(case, None).await?;
    not_used(case, &turn)
}

/// A turn in which the model calls the tool.
async fn turn_with(case: &TestCase, approver: Option<Arc<dyn PermissionBroker>>) -> CheckResult<TurnLog> {
    let call =
        (case.target().call)(Tool::MakeFile(MADE)).ok_or_else(|| Difference::from("there is no tool"))?;
    let request = TurnRequest::new(WORDS).options(call.options);
    let turn = case.turn(match approver {
        Some(approver) => request.permissions(approver),
        None => request,
    });
    turn.await
}

fn not_used(case: &TestCase, turn: &TurnLog) -> CheckResult {
    made(case, false)?;
    let failed = turn.used()?.iter().map(|one| one.failed).collect();
    same("the uses of the tool that failed", &failed, &vec![true])?;
    let facts = turn.facts()?;
    check_stop_reason(facts.stop_reason, StopReason::Complete)?;
    same("the text", &facts.text.trim(), &ANSWER).map_err(|finding| finding.deviation(Deviation::Text))?;
    let denials = turn.output["permissionDenials"].as_array().map_or(0, Vec::len);
    same("the denials in the output", &denials, &1)
}

fn made(case: &TestCase, expected: bool) -> CheckResult {
    same("whether the file is made", &case.work().join(MADE).exists(), &expected)
}

pub(super) const MADE: &str = "made";
pub(super) const ANSWER: &str = "That is all.";

/// A turn in which the model calls this.
pub(super) fn called(call: Option<ModelCall>) -> Turn {
    Turn { blocks: call.map(|call| call.block).into_iter().collect(), ..Turn::default() }
}

/// One call, and the answer after it.
pub(super) fn one(target: &ConformanceTarget) -> Vec<Turn> {
    let call = (target.call)(Tool::MakeFile(MADE));
    vec![called(call), Turn::text(ANSWER)]
}

pub(super) async fn used(case: &TestCase) -> CheckResult {
    let call =
        (case.target().call)(Tool::MakeFile(MADE)).ok_or_else(|| Difference::from("there is no tool"))?;
    let request =
        TurnRequest::new(WORDS).options(call.options).permissions(Arc::new(Approver::new(Decision::Allow)));
    let turn = case.turn(request).await?;
    let used = turn.used()?;
    same("the uses of tools", &used.len(), &1)?;
    holds(!used[0].failed, || "the tool fails".to_owned())?;
    holds(!used[0].input.is_null(), || "the tool's arguments are not reported".to_owned())?;
    holds(case.work().join(MADE).exists(), || "the file is not made".to_owned())?;
    let facts = turn.facts()?;
    check_stop_reason(facts.stop_reason, StopReason::Complete)?;
    same("the text", &facts.text.trim(), &ANSWER)?;
    let tool = turn.events.iter().position(|event| matches!(event, StreamEvent::ToolComplete { .. }));
    let text = turn.events.iter().position(|event| matches!(event, StreamEvent::Text { .. }));
    holds(tool < text, || "the text that follows the tool comes before its end".to_owned())?;
    check_requests(case.requests().len(), 2)
}
