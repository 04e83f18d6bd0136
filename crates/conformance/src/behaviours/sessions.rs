//! Conversations: when they are named, and how they are resumed.

use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::Turn;
use inspan_protocol::{ErrorCode, ErrorKind, ProviderItem, ProviderSessionId, StreamEvent};
use tokio::time::{sleep, timeout};

use super::answers::WORDS;
use crate::finding::{CheckResult, Deviation, Difference, check_code, check_requests, holds, same};
use crate::target::ConformanceTarget;
use crate::test_case::{PATIENCE, TestCase, TurnRequest, mentions};

pub(super) const FIRST: &str = "My ox is called Bo.";
pub(super) const SECOND: &str = "What is its name?";
pub(super) const ANSWERS: [&str; 2] = ["A fine name.", "It is Bo."];
/// An id that no vendor ever gives, in the form that most have.
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000001";
/// How long a request takes to reach the server.
const TRANSIT: Duration = Duration::from_millis(300);

pub(super) fn two(_: &ConformanceTarget) -> Vec<Turn> {
    ANSWERS.map(Turn::text).to_vec()
}

pub(super) async fn first(case: &TestCase) -> CheckResult {
    let mut stream = case.begin(TurnRequest::new(WORDS))?;
    let mut before = Vec::new();
    let named = async {
        loop {
            match stream.next().await {
                Some(Ok(ProviderItem::Event(event))) => {
                    let is_name = matches!(event, StreamEvent::Session { .. });
                    before.push(event);
                    if is_name {
                        return Ok(());
                    }
                }
                Some(Err(error)) => {
                    return Err(Difference::from(format!("it fails with {}", error.code)).with(error.message));
                }
                _ => return Err(Difference::from("it never names its conversation")),
            }
        }
    };
    timeout(PATIENCE, named).await.map_err(|_| Difference::from("it never names its conversation"))??;
    let early = before.iter().filter(|event| {
        matches!(
            event,
            StreamEvent::Text { .. } | StreamEvent::Thinking { .. } | StreamEvent::ToolStart { .. }
        )
    });
    same("the events before the name", &early.count(), &0)?;
    // Nothing polls the stream meanwhile: a prompt that is sent anyway would arrive now.
    sleep(TRANSIT).await;
    let early = case.requests().len();
    holds(early == 0, || "the model receives the prompt before the conversation is stored".to_owned())?;
    let turn = case.rest(stream, before, |_| {}).await?;
    same("the text", &turn.text().trim(), &WORDS)?;
    check_requests(case.requests().len(), 1)
}

pub(super) async fn resume(case: &TestCase) -> CheckResult {
    let session = begun(case).await?;
    resumed(case, session).await
}

pub(super) async fn resume_in_a_new_process(case: &TestCase) -> CheckResult {
    let session = begun(case).await?;
    case.worker().renew().await?;
    resumed(case, session).await
}

async fn begun(case: &TestCase) -> CheckResult<ProviderSessionId> {
    let turn = case.turn(TurnRequest::new(FIRST)).await?;
    let facts = turn.facts()?;
    facts.session.clone().ok_or_else(|| Difference::from("the output names no conversation"))
}

async fn resumed(case: &TestCase, session: ProviderSessionId) -> CheckResult {
    let turn = case.turn(TurnRequest::new(SECOND).resume(session)).await?;
    same("the text", &turn.facts()?.text.trim(), &ANSWERS[1])?;
    same("the streamed text", &turn.text().trim(), &ANSWERS[1])?;
    let requests = case.requests();
    check_requests(requests.len(), 2)?;
    for part in [FIRST, ANSWERS[0], SECOND] {
        holds(mentions(&requests[1], part), || format!("the model does not receive `{part}`"))
            .map_err(|finding| finding.deviation(Deviation::History))?;
    }
    Ok(())
}

pub(super) async fn unknown(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS).resume(ProviderSessionId::from(UNKNOWN))).await?;
    check_code(turn.error()?, ErrorCode::InvalidRequest)?;
    same("the kind", &turn.error()?.kind(), &Some(ErrorKind::SessionNotFound))?;
    check_requests(case.requests().len(), 0)
}
