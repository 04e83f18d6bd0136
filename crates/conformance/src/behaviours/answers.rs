//! Prompts and answers: what reaches the model, and the text, thinking and end of its answer.

use std::time::Duration;

use futures::StreamExt;
use inspan_model_server::{Block, Turn};
use inspan_protocol::{ErrorCode, ProviderItem, StopReason, StreamEvent};
use tokio::time::timeout;

use crate::finding::{
    CheckResult, Deviation, Difference, check_code, check_requests, check_stop_reason, holds, same,
};
use crate::target::ConformanceTarget;
use crate::test_case::{PATIENCE, TestCase, TurnRequest, texts};

/// Both prompt and answer, so that a provider that repeats its prompt answers like a model.
pub(super) const WORDS: &str = "Oxen pull the plough in pairs.";
const THOUGHT: &str = "Which animal is it?";

pub(super) fn words(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn::text(WORDS)]
}

/// An answer of which all but the end is there at once.
pub(super) fn begun(_: &ConformanceTarget) -> Vec<Turn> {
    let text = Block::Text { text: WORDS.to_owned(), chunks: 12 };
    let blocks = vec![text, Block::Pause { ms: 3_000 }, Block::text(" Always.")];
    vec![Turn { blocks, ..Turn::default() }]
}

pub(super) fn thought(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { blocks: vec![Block::thinking(THOUGHT), Block::text(WORDS)], ..Turn::default() }]
}

pub(super) fn cut(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { stop_reason: Some("max_tokens".to_owned()), ..Turn::text(WORDS) }]
}

pub(super) fn refused(_: &ConformanceTarget) -> Vec<Turn> {
    vec![Turn { stop_reason: Some("refusal".to_owned()), ..Turn::text("I cannot") }]
}

pub(super) async fn text(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS)).await?;
    let facts = turn.facts()?;
    same("the streamed text", &turn.text().trim(), &WORDS)?;
    same("the text of the output", &facts.text.trim(), &WORDS)?;
    check_stop_reason(facts.stop_reason, StopReason::Complete)?;
    same("the model turns", &facts.num_turns, &1)?;
    holds(facts.session.is_some(), || "the output names no conversation".to_owned())
}

pub(super) async fn in_pieces(case: &TestCase) -> CheckResult {
    let mut stream = case.begin(TurnRequest::new(WORDS))?;
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
    timeout(PATIENCE, first).await.map_err(|_| Difference::from("no text arrives"))?;
    // Otherwise the loop above has read the stream to its end.
    holds(pieces == 2, || "the text does not come in pieces".to_owned())
        .map_err(|finding| finding.deviation(Deviation::TextInOnePiece))?;
    let open = case
        .requests()
        .first()
        .is_some_and(|request| request.ending == inspan_model_server::ExchangeState::Open);
    let turn = case.rest(stream, events, |_| {}).await?;
    holds(open, || "the text comes after the model has written all of it".to_owned())?;
    let whole: String = turn.text().split_whitespace().collect();
    same("the text", &whole, &format!("{WORDS}Always.").split_whitespace().collect())
}

pub(super) async fn thinking(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS).option("thinking", "low")).await?;
    same("the thinking", &turn.thinking().trim(), &THOUGHT)
        .map_err(|finding| finding.deviation(Deviation::Thinking))?;
    same("the text", &turn.text().trim(), &WORDS)?;
    same("the text of the output", &turn.facts()?.text.trim(), &WORDS)
}

pub(super) async fn max_tokens(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS)).await?;
    let facts = turn.facts()?;
    check_stop_reason(facts.stop_reason, StopReason::MaxTokens)?;
    same("the text", &facts.text.trim(), &WORDS).map_err(|finding| finding.deviation(Deviation::Text))
}

pub(super) async fn refusal(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS)).await?;
    check_code(turn.error()?, ErrorCode::Refused)
}

/// How long an expected effect may take.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// Texts that programs take for commands or files, each in a new conversation.
const AS_WRITTEN: [&str; 6] =
    ["/nosuch words", "/compact read @note.txt", "@note.txt and /this", "! ls", "# note", "$skill"];
/// The content of the file that the texts name.
const FILE_TEXT: &str = "INSIDE-THE-NOTE";

pub(super) async fn as_written(case: &TestCase) -> CheckResult {
    let written = std::fs::write(case.work().join("note.txt"), FILE_TEXT);
    holds(written.is_ok(), || "a file cannot be written".to_owned())?;
    for (index, prompt) in AS_WRITTEN.into_iter().enumerate() {
        let turn = case.turn(TurnRequest::new(prompt)).await?;
        turn.facts()?;
        let requests = case.requests();
        check_requests(requests.len(), index + 1)?;
        let texts = texts(&requests[index]);
        holds(texts.contains(&prompt), || format!("the model does not receive `{prompt}` as it is written"))
            .map_err(|finding| finding.deviation(Deviation::Prompt))?;
        let includes_file = texts.iter().any(|text| text.contains(FILE_TEXT));
        holds(!includes_file, || format!("the model also receives a file for `{prompt}`"))?;
    }
    Ok(())
}

pub(super) async fn empty(case: &TestCase) -> CheckResult {
    for prompt in ["", " \n"] {
        let turn = case.turn(TurnRequest::new(prompt)).await?;
        check_code(turn.error()?, ErrorCode::ConfigInvalid)?;
    }
    check_requests(case.requests().len(), 0)
}

pub(super) async fn unknown_option(case: &TestCase) -> CheckResult {
    let turn = case.turn(TurnRequest::new(WORDS).option("noSuchOption", 1)).await?;
    let error = turn.error()?;
    check_code(error, ErrorCode::ConfigInvalid)?;
    holds(error.message.contains("noSuchOption"), || "the error does not name the option".to_owned())?;
    check_requests(case.requests().len(), 0)
}
