//! What comes of an answer: its text, its thinking, and the ways in which it ends.

use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::{Block, Turn};
use inspan_protocol::{ErrorCode, ProviderItem, StopReason, StreamEvent};
use tokio::time::timeout;

use crate::finding::{Deviation, Finding, Proof, check_code, check_stop_reason, holds, same};
use crate::rig::ConformanceTarget;
use crate::scene::{Ask, PATIENCE, Scene};

/// What is said and answered: the same words, so that a provider that repeats its prompt answers like a model.
pub(super) const WORDS: &str = "Oxen pull the plough in pairs.";
const THOUGHT: &str = "Which animal is it?";

pub(super) fn words(_: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![Turn::text(WORDS)]
}

/// An answer of which all but the end is there at once.
pub(super) fn begun(_: &dyn ConformanceTarget) -> Vec<Turn> {
    let text = Block::Text { text: WORDS.to_owned(), chunks: 12 };
    let blocks = vec![text, Block::Pause { ms: 3_000 }, Block::text(" Always.")];
    vec![Turn { blocks, ..Turn::default() }]
}

pub(super) fn thought(_: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![Turn { blocks: vec![Block::thinking(THOUGHT), Block::text(WORDS)], ..Turn::default() }]
}

pub(super) fn cut(_: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![Turn { stop_reason: Some("max_tokens".to_owned()), ..Turn::text(WORDS) }]
}

pub(super) fn refused(_: &dyn ConformanceTarget) -> Vec<Turn> {
    vec![Turn { stop_reason: Some("refusal".to_owned()), ..Turn::text("I cannot") }]
}

pub(super) async fn text(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS)).await?;
    let facts = said.facts()?;
    same("the streamed text", &said.text().trim(), &WORDS)?;
    same("the text of the output", &facts.text.trim(), &WORDS)?;
    check_stop_reason(facts.stop_reason, StopReason::Complete)?;
    same("the model turns", &facts.num_turns, &1)?;
    holds(facts.session.is_some(), || "the output names no conversation".to_owned())
}

pub(super) async fn in_pieces(scene: &Scene) -> Proof {
    let mut stream = scene.begin(Ask::new(WORDS))?;
    let (mut events, mut pieces) = (Vec::new(), 0);
    let first = async {
        while let Some(Ok(ProviderItem::Event(event))) = stream.next().await {
            let is_text = matches!(event, StreamEvent::Text { .. });
            events.push(event);
            pieces += usize::from(is_text);
            if pieces == 2 {
                break;
            }
        }
    };
    timeout(PATIENCE, first).await.map_err(|_| Finding::from("no text comes"))?;
    // Otherwise the loop above has read the stream to its end.
    holds(pieces == 2, || "the text does not come in pieces".to_owned())
        .map_err(|finding| finding.deviation(Deviation::TextInOnePiece))?;
    let open =
        scene.requests().first().is_some_and(|request| request.ending == inspan_model_server::Ending::Open);
    let said = scene.rest(stream, events, |_| {}).await?;
    holds(open, || "the text comes once the model has said all".to_owned())?;
    let whole: String = said.text().split_whitespace().collect();
    same("the text", &whole, &format!("{WORDS}Always.").split_whitespace().collect())
}

pub(super) async fn thinking(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS).option("thinking", "low")).await?;
    same("the thinking", &said.thinking().trim(), &THOUGHT)
        .map_err(|finding| finding.deviation(Deviation::Thinking))?;
    same("the text", &said.text().trim(), &WORDS)?;
    same("the text of the output", &said.facts()?.text.trim(), &WORDS)
}

pub(super) async fn max_tokens(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS)).await?;
    let facts = said.facts()?;
    check_stop_reason(facts.stop_reason, StopReason::MaxTokens)?;
    same("the text", &facts.text.trim(), &WORDS).map_err(|finding| finding.deviation(Deviation::Text))
}

pub(super) async fn refusal(scene: &Scene) -> Proof {
    let said = scene.turn(Ask::new(WORDS)).await?;
    check_code(said.error()?, ErrorCode::Refused)
}

/// How long whatever follows a sign may take to follow.
pub(super) const SOON: Duration = Duration::from_secs(30);
