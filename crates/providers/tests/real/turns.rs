//! Turns of any provider, taken to their end, and what they said.

use futures::{Stream, StreamExt, pin_mut};
use inspan_protocol::{
    AgentError, Chunk, Environment, ExecutionContext, Probe, ProgramStatus, Provider, ProviderItem,
    ProviderStream, StreamEvent,
};
use serde_json::{Value, json};

use super::world::PLANTED;

/// What a turn said, and its end.
pub(crate) type RealTurn<O> = (Vec<StreamEvent>, Result<O, AgentError>);

pub(crate) async fn run<P: Provider>(
    provider: &P,
    input: P::Input,
    context: ExecutionContext,
) -> RealTurn<P::Output>
where
    P::Output: std::fmt::Debug,
{
    run_watching(provider, input, context, |_| {}).await
}

pub(crate) async fn run_watching<P: Provider>(
    provider: &P,
    input: P::Input,
    context: ExecutionContext,
    mut watch: impl FnMut(&StreamEvent),
) -> RealTurn<P::Output>
where
    P::Output: std::fmt::Debug,
{
    let mut events = Vec::new();
    let mut stream = provider.execute(input, context);
    let ended = loop {
        match stream.next().await {
            Some(Ok(ProviderItem::Event(event))) => {
                watch(&event);
                events.push(event);
            }
            Some(Ok(ProviderItem::Output(output))) => break Ok(output),
            Some(Err(error)) => break Err(error),
            None => panic!("the stream ended without an output or an error"),
        }
    };
    let said = format!("{events:?} {ended:?}");
    assert!(!said.contains(PLANTED), "the planted key was said: {said}");
    (events, ended)
}

pub(crate) async fn last<O>(
    stream: impl Stream<Item = Result<ProviderItem<O>, AgentError>>,
) -> Result<O, AgentError> {
    pin_mut!(stream);
    while let Some(item) = stream.next().await {
        if let ProviderItem::Output(output) = item? {
            return Ok(output);
        }
    }
    panic!("the stream ended without an output or an error");
}

pub(crate) async fn drain<O>(mut stream: ProviderStream<O>) {
    while stream.next().await.is_some() {}
}

/// The streamed text; what was retracted of it is void.
pub(crate) fn deltas(events: &[StreamEvent]) -> String {
    let mut text = String::new();
    for event in events {
        match event {
            StreamEvent::Text { content, chunk: Chunk::Delta } => text.push_str(content),
            StreamEvent::Retract => text.clear(),
            _ => {}
        }
    }
    text
}

/// Each tool with its input, its answer, and whether it failed.
pub(crate) fn tools(events: &[StreamEvent]) -> Vec<(String, Value, Value, bool)> {
    let mut seen = Vec::new();
    for event in events {
        let StreamEvent::ToolStart { tool_name, tool_use_id, input } = event else { continue };
        let answers = events.iter().filter_map(|event| match event {
            StreamEvent::ToolComplete { tool_use_id: id, result, is_error } if id == tool_use_id => {
                Some((result.clone(), *is_error))
            }
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        assert_eq!(answers.len(), 1, "the answers of {tool_name}");
        seen.push((tool_name.clone(), input.clone(), answers[0].0.clone(), answers[0].1));
    }
    seen
}

/// The codes of the warnings.
pub(crate) fn warnings(events: &[StreamEvent]) -> Vec<&str> {
    let codes = events.iter().filter_map(|event| match event {
        StreamEvent::Warning { code, .. } => Some(code.as_str()),
        _ => None,
    });
    codes.collect()
}

/// What was thought, piece by piece.
pub(crate) fn thoughts(events: &[StreamEvent]) -> String {
    let thoughts = events.iter().filter_map(|event| match event {
        StreamEvent::Thinking { content, chunk: Chunk::Delta } => Some(content.as_str()),
        _ => None,
    });
    thoughts.collect()
}

pub(crate) fn kind(error: &AgentError) -> Value {
    json!(error.kind().as_ref().map(|kind| kind.as_str()))
}

/// The state of the provider's program.
pub(crate) async fn status(provider: &impl Provider, environment: &Environment) -> ProgramStatus {
    match provider.probe(environment, None).await {
        Probe::Program(status) => status,
        other => panic!("{other:?}"),
    }
}
