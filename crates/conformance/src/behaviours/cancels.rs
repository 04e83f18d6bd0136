//! Turns that are cancelled or reach their deadline, at each moment at which that matters.

use std::sync::Arc;
use std::time::Duration;

use inspan_model_server::{Block, ExchangeState, Turn};
use inspan_protocol::{ErrorCode, ErrorKind, StopReason, StreamEvent};
use tokio::time::{Instant, sleep};

use super::answers::{SOON, WORDS};
use super::tools::{Approver, Decision, called};
use crate::finding::{CheckResult, Difference, check_code, check_requests, check_stop_reason, holds, same};
use crate::target::{ConformanceTarget, Tool};
use crate::test_case::{TestCase, TurnRequest, mentions};
use crate::turn::TurnLog;

/// How long a cancelled turn may take to end: two seconds for the vendor, two for its program to go, one for a busy
/// machine.
const GRACE: Duration = Duration::from_secs(5);
/// How long a turn may take that has a deadline.
const DEADLINE: Duration = Duration::from_millis(1_500);
/// A duration that no other process of the machine uses for `sleep`.
const SLEEP: u32 = 86_461;
const BEGUN: &str = "begun";
pub(super) const AFTER: &str = "And then?";

/// Not a byte of an answer.
pub(super) fn silent(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { hang: true, ..Turn::default() }]
}

/// An answer that stalls in the middle, and then another.
pub(super) fn stalled(_: &ConformanceTarget) -> Vec<Turn> {
    let blocks = vec![Block::Text { text: "one two three four five six seven eight".to_owned(), chunks: 20 }];
    vec![Turn { blocks, stall_after: Some(14), ..Turn::default() }, Turn::text("Nine.")]
}

/// A tool that does not end.
pub(super) fn in_tool(target: &ConformanceTarget) -> Vec<Turn> {
    vec![called((target.call)(Tool::RunOn(BEGUN, SLEEP))), Turn::text("Done.")]
}

pub(super) async fn before_start(case: &TestCase) -> CheckResult {
    let request = TurnRequest::new(WORDS);
    request.cancel.cancel();
    let turn = case.turn(request).await?;
    check_stop_reason(turn.facts()?.stop_reason, StopReason::Aborted)?;
    same("the text", &turn.text().as_str(), &"")?;
    check_requests(case.requests().len(), 0)
}

pub(super) async fn before_text(case: &TestCase) -> CheckResult {
    let request = TurnRequest::new(WORDS);
    let cancel = request.cancel.clone();
    let cancelled = async {
        let received = case.until(SOON, |seen| !seen.is_empty()).await;
        cancel.cancel();
        (received, Instant::now())
    };
    let (turn, (received, at)) = futures::join!(case.turn(request), cancelled);
    let turn = turn?;
    holds(received, || "the model never receives the prompt".to_owned())?;
    aborted(&turn, at)?;
    same("the text", &turn.facts()?.text.as_str(), &"")?;
    disconnected(case).await
}

pub(super) async fn mid_text(case: &TestCase) -> CheckResult {
    let request = TurnRequest::new(WORDS);
    let cancel = request.cancel.clone();
    let (mut pieces, mut at) = (0, None);
    let watch = |event: &StreamEvent| {
        pieces += u32::from(matches!(event, StreamEvent::Text { .. }));
        if pieces == 2 && at.is_none() {
            cancel.cancel();
            at = Some(Instant::now());
        }
    };
    let turn = case.watched(request, watch).await?;
    let at = at.ok_or_else(|| Difference::from("the text does not come in pieces"))?;
    aborted(&turn, at)?;
    let facts = turn.facts()?;
    holds(!facts.text.is_empty(), || "the text so far is lost".to_owned())?;
    same("the text so far", &facts.text.trim(), &turn.text().trim())?;
    disconnected(case).await?;
    let session =
        facts.session.clone().ok_or_else(|| Difference::from("the output names no conversation"))?;
    let next = case.turn(TurnRequest::new(AFTER).resume(session)).await?;
    same("the text of the next turn", &next.facts()?.text.trim(), &"Nine.")?;
    let requests = case.requests();
    let last = requests.last().ok_or_else(|| Difference::from("the model is not asked again"))?;
    for part in [WORDS, AFTER] {
        holds(mentions(last, part), || format!("the model does not receive `{part}`"))?;
    }
    Ok(())
}

pub(super) async fn mid_tool(case: &TestCase) -> CheckResult {
    let call = (case.target().call)(Tool::RunOn(BEGUN, SLEEP))
        .ok_or_else(|| Difference::from("there is no tool"))?;
    let request =
        TurnRequest::new(WORDS).options(call.options).permissions(Arc::new(Approver::new(Decision::Allow)));
    let cancel = request.cancel.clone();
    let file = case.work().join(BEGUN);
    let cancelled = async {
        let until = Instant::now() + SOON;
        while !file.exists() && Instant::now() < until {
            sleep(Duration::from_millis(20)).await;
        }
        let runs = case.worker().running().iter().any(|line| line.contains(&SLEEP.to_string()));
        cancel.cancel();
        (runs, Instant::now())
    };
    let (turn, (runs, at)) = futures::join!(case.turn(request), cancelled);
    let turn = turn?;
    holds(runs, || "the tool never runs".to_owned())?;
    case.worker().until_gone(&SLEEP.to_string()).await?;
    aborted(&turn, at)
}

pub(super) async fn mid_question(case: &TestCase) -> CheckResult {
    let call =
        (case.target().call)(Tool::MakeFile("made")).ok_or_else(|| Difference::from("there is no tool"))?;
    let approver = Arc::new(Approver::new(Decision::Never));
    let request = TurnRequest::new(WORDS).options(call.options).permissions(Arc::clone(&approver) as _);
    let cancel = request.cancel.clone();
    let cancelled = async {
        let until = Instant::now() + SOON;
        while approver.requests().is_empty() && Instant::now() < until {
            sleep(Duration::from_millis(20)).await;
        }
        cancel.cancel();
        Instant::now()
    };
    let (turn, at) = futures::join!(case.turn(request), cancelled);
    same("the questions", &approver.requests().len(), &1)?;
    aborted(&turn?, at)?;
    holds(!case.work().join("made").exists(), || "the tool is used without an answer".to_owned())
}

pub(super) async fn deadline(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest { deadline: Some(DEADLINE), ..TurnRequest::new(WORDS) }).await?;
    check_code(turn.error()?, ErrorCode::Timeout)?;
    same("the kind", &turn.error()?.kind(), &Some(ErrorKind::Deadline))?;
    holds(turn.took < DEADLINE + GRACE, || "it ends long after its deadline".to_owned())?;
    // A program that has only just received the prompt may still send it after its turn has ended. The next behaviour must not
    // see that request.
    case.worker().renew().await
}

/// The turn ended as one that was cancelled at this moment.
fn aborted(turn: &TurnLog, at: Instant) -> CheckResult {
    check_stop_reason(turn.facts()?.stop_reason, StopReason::Aborted)?;
    let took = at.elapsed();
    holds(took < GRACE, || "it does not end within the grace".to_owned())
        .map_err(|finding| finding.with(format!("{took:?}")))
}

/// The connection to the model is closed, so that no more tokens are charged.
async fn disconnected(case: &TestCase) -> CheckResult {
    let gone = case
        .until(GRACE, |seen| seen.iter().all(|request| request.ending == ExchangeState::ClientGone))
        .await;
    holds(gone, || "the connection to the model stays open".to_owned())
}
