//! Conversations: when they are named, and how they are resumed.

use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::Turn;
use inspan_protocol::{ErrorCode, ErrorKind, ProviderItem, ProviderSessionId, StreamEvent};
use tokio::time::{sleep, timeout};

use super::answers::WORDS;
use crate::finding::{Deviation, Finding, Proof, check_code, check_requests, holds, same};
use crate::rig::ConformanceTarget;
use crate::scene::{Ask, PATIENCE, Scene, mentions};

pub(super) const FIRST: &str = "My ox is called Bo.";
pub(super) const SECOND: &str = "What is its name?";
pub(super) const ANSWERS: [&str; 2] = ["A fine name.", "It is Bo."];
/// An id that no vendor ever gives, in the form that most have.
const NOBODYS: &str = "00000000-0000-4000-8000-000000000001";
/// How long a request would take to reach the server, were it on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(300);

pub(super) fn two(_: &dyn ConformanceTarget) -> Vec<Turn> {
    ANSWERS.map(Turn::text).to_vec()
}

pub(super) async fn first(scene: &Scene) -> Proof {
    let mut stream = scene.begin(Ask::new(WORDS))?;
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
                    return Err(Finding::from(format!("it fails with {}", error.code)).with(error.message));
                }
                _ => return Err(Finding::from("it never names its conversation")),
            }
        }
    };
    timeout(PATIENCE, named).await.map_err(|_| Finding::from("it never names its conversation"))??;
    let said_before = before.iter().filter(|event| {
        matches!(
            event,
            StreamEvent::Text { .. } | StreamEvent::Thinking { .. } | StreamEvent::ToolStart { .. }
        )
    });
    same("what is said before the name", &said_before.count(), &0)?;
    // Nobody polls meanwhile: a prompt that is sent all the same would arrive now.
    sleep(ON_ITS_WAY).await;
    let heard = scene.requests().len();
    holds(heard == 0, || {
        "the model hears the prompt before the conversation is kept by its name".to_owned()
    })?;
    let said = scene.rest(stream, before, |_| {}).await?;
    same("the text", &said.text().trim(), &WORDS)?;
    check_requests(scene.requests().len(), 1)
}

pub(super) async fn resume(scene: &Scene) -> Proof {
    let session = begun(scene).await?;
    gone_on(scene, session).await
}

pub(super) async fn resume_in_a_new_process(scene: &Scene) -> Proof {
    let session = begun(scene).await?;
    scene.lane().renew().await?;
    gone_on(scene, session).await
}

async fn begun(scene: &Scene) -> Proof<ProviderSessionId> {
    let said = scene.turn(Ask::new(FIRST)).await?;
    let facts = said.facts()?;
    facts.session.clone().ok_or_else(|| Finding::from("the output names no conversation"))
}

async fn gone_on(scene: &Scene, session: ProviderSessionId) -> Proof {
    let said = scene.turn(Ask::new(SECOND).resume(session)).await?;
    same("the text", &said.facts()?.text.trim(), &ANSWERS[1])?;
    same("the streamed text", &said.text().trim(), &ANSWERS[1])?;
    let requests = scene.requests();
    check_requests(requests.len(), 2)?;
    for part in [FIRST, ANSWERS[0], SECOND] {
        holds(mentions(&requests[1], part), || format!("the model is not sent `{part}`"))
            .map_err(|finding| finding.deviation(Deviation::History))?;
    }
    Ok(())
}

pub(super) async fn unknown(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS).resume(ProviderSessionId::from(NOBODYS))).await?;
    check_code(said.error()?, ErrorCode::InvalidRequest)?;
    same("the kind", &said.error()?.kind(), &Some(ErrorKind::SessionNotFound))?;
    check_requests(scene.requests().len(), 0)
}
