//! Turns that are cancelled or whose time is over, at each moment at which that matters.

use std::sync::Arc;
use std::time::Duration;

use inspan_model_server::{Block, Ending, Turn};
use inspan_protocol::{ErrorCode, ErrorKind, StopReason, StreamEvent};
use tokio::time::{Instant, sleep};

use super::answers::{SOON, WORDS};
use super::people::{Answer, Person};
use super::tools::called;
use crate::finding::{Finding, Proof, check_code, check_requests, check_stop_reason, holds, same};
use crate::rig::{ConformanceTarget, Tool};
use crate::said::Said;
use crate::scene::{Ask, Scene, mentions};

/// How long a cancelled turn may take to end: two seconds for the vendor, two for its program to go, one for a busy
/// machine.
const GRACE: Duration = Duration::from_secs(5);
/// How long a turn may take that has a deadline.
const DEADLINE: Duration = Duration::from_millis(1_500);
/// A time that no other process of the machine sleeps.
const SLEEP: u32 = 86_461;
const BEGUN: &str = "begun";
pub(super) const AFTER: &str = "And then?";

/// Not a byte of an answer.
pub(super) fn silent(_: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![Turn { hang: true, ..Turn::default() }]
}

/// An answer that falls silent in the middle, and then another.
pub(super) fn stalled(_: &dyn ConformanceTarget) -> Vec<Turn> {
    let blocks = vec![Block::Text { text: "one two three four five six seven eight".to_owned(), chunks: 20 }];
    vec![Turn { blocks, stall_after: Some(14), ..Turn::default() }, Turn::text("Nine.")]
}

/// A tool that runs on without an end.
pub(super) fn in_tool(rig: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![called(rig.call(Tool::RunOn(BEGUN, SLEEP))), Turn::text("Done.")]
}

pub(super) async fn before_start(scene: &Scene) -> Proof {
    let ask = Ask::new(WORDS);
    ask.cancel.cancel();
    let said = scene.turn(ask).await?;
    check_stop_reason(said.facts()?.stop_reason, StopReason::Aborted)?;
    same("the text", &said.text().as_str(), &"")?;
    check_requests(scene.requests().len(), 0)
}

pub(super) async fn before_text(scene: &Scene) -> Proof {
    let ask = Ask::new(WORDS);
    let cancel = ask.cancel.clone();
    let cancelled = async {
        let heard = scene.until(SOON, |seen| !seen.is_empty()).await;
        cancel.cancel();
        (heard, Instant::now())
    };
    let (said, (heard, at)) = futures::join!(scene.turn(ask), cancelled);
    let said = said?;
    holds(heard, || "the model never hears the prompt".to_owned())?;
    aborted(&said, at)?;
    same("the text", &said.facts()?.text.as_str(), &"")?;
    hung_up(scene).await
}

pub(super) async fn mid_text(scene: &Scene) -> Proof {
    let ask = Ask::new(WORDS);
    let cancel = ask.cancel.clone();
    let (mut pieces, mut at) = (0, None);
    let watch = |event: &StreamEvent| {
        pieces += u32::from(matches!(event, StreamEvent::Text { .. }));
        if pieces == 2 && at.is_none() {
            cancel.cancel();
            at = Some(Instant::now());
        }
    };
    let said = scene.watched(ask, watch).await?;
    let at = at.ok_or_else(|| Finding::from("the text does not come in pieces"))?;
    aborted(&said, at)?;
    let facts = said.facts()?;
    holds(!facts.text.is_empty(), || "the text so far is lost".to_owned())?;
    same("the text so far", &facts.text.trim(), &said.text().trim())?;
    hung_up(scene).await?;
    let session = facts.session.clone().ok_or_else(|| Finding::from("the output names no conversation"))?;
    let next = scene.turn(Ask::new(AFTER).resume(session)).await?;
    same("the text of the next turn", &next.facts()?.text.trim(), &"Nine.")?;
    let requests = scene.requests();
    let last = requests.last().ok_or_else(|| Finding::from("the model is not asked again"))?;
    for part in [WORDS, AFTER] {
        holds(mentions(last, part), || format!("the model is not sent `{part}`"))?;
    }
    Ok(())
}

pub(super) async fn mid_tool(scene: &Scene) -> Proof {
    let call =
        scene.rig().call(Tool::RunOn(BEGUN, SLEEP)).ok_or_else(|| Finding::from("there is no tool"))?;
    let ask = Ask::new(WORDS).options(call.options).asking(Arc::new(Person::new(Answer::Allow)));
    let cancel = ask.cancel.clone();
    let file = scene.work().join(BEGUN);
    let cancelled = async {
        let until = Instant::now() + SOON;
        while !file.exists() && Instant::now() < until {
            sleep(Duration::from_millis(20)).await;
        }
        let runs = scene.lane().running().iter().any(|line| line.contains(&SLEEP.to_string()));
        cancel.cancel();
        (runs, Instant::now())
    };
    let (said, (runs, at)) = futures::join!(scene.turn(ask), cancelled);
    let said = said?;
    holds(runs, || "the tool never comes to run".to_owned())?;
    scene.lane().until_gone(&SLEEP.to_string()).await?;
    aborted(&said, at)
}

pub(super) async fn mid_question(scene: &Scene) -> Proof {
    let call = scene.rig().call(Tool::MakeFile("made")).ok_or_else(|| Finding::from("there is no tool"))?;
    let person = Arc::new(Person::new(Answer::Never));
    let ask = Ask::new(WORDS).options(call.options).asking(Arc::clone(&person) as _);
    let cancel = ask.cancel.clone();
    let cancelled = async {
        let until = Instant::now() + SOON;
        while person.asked().is_empty() && Instant::now() < until {
            sleep(Duration::from_millis(20)).await;
        }
        cancel.cancel();
        Instant::now()
    };
    let (said, at) = futures::join!(scene.turn(ask), cancelled);
    same("the questions", &person.asked().len(), &1)?;
    aborted(&said?, at)?;
    holds(!scene.work().join("made").exists(), || "the tool is used without an answer".to_owned())
}

pub(super) async fn deadline(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS).deadline(DEADLINE)).await?;
    check_code(said.error()?, ErrorCode::Timeout)?;
    same("the kind", &said.error()?.kind(), &Some(ErrorKind::Deadline))?;
    holds(said.took < DEADLINE + GRACE, || "it ends long after its deadline".to_owned())
}

/// The turn ended as one that was cancelled at this moment.
fn aborted(said: &Said, at: Instant) -> Proof {
    check_stop_reason(said.facts()?.stop_reason, StopReason::Aborted)?;
    let took = at.elapsed();
    holds(took < GRACE, || "it does not end within the grace".to_owned())
        .map_err(|finding| finding.with(format!("{took:?}")))
}

/// The model is not listened to any more, and so not paid for.
async fn hung_up(scene: &Scene) -> Proof {
    let gone =
        scene.until(GRACE, |seen| seen.iter().all(|request| request.ending == Ending::ClientGone)).await;
    holds(gone, || "the model is still listened to".to_owned())
}
