//! Takes secrets out of what a provider reports before anything else sees it, also where a secret spans two
//! deltas.

use futures::StreamExt;
use inspan_protocol::{
    AgentError, Chunk, ProviderItem, ProviderStream, Redactor, StreamEvent, StreamRedactor,
};
use serde_json::Value;

/// Which of the two texts a delta continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeltaKind {
    Text,
    Thinking,
}

/// The same stream without secrets.
pub(super) fn stream(redactor: &Redactor, mut stream: ProviderStream<Value>) -> ProviderStream<Value> {
    let redactor = redactor.clone();
    async_stream::stream! {
        let mut current = None;
        while let Some(item) = stream.next().await {
            for item in clean(&redactor, item, &mut current) {
                yield item;
            }
        }
        if let Some(rest) = end(&mut current) {
            yield rest;
        }
    }
    .boxed()
}

type RedactedItem = Result<ProviderItem<Value>, AgentError>;

fn clean(
    redactor: &Redactor,
    item: RedactedItem,
    current: &mut Option<(DeltaKind, StreamRedactor)>,
) -> Vec<RedactedItem> {
    let mut items = Vec::new();
    let (part, content) = match item {
        Ok(ProviderItem::Event(StreamEvent::Text { content, chunk: Chunk::Delta })) => {
            (DeltaKind::Text, content)
        }
        Ok(ProviderItem::Event(StreamEvent::Thinking { content, chunk: Chunk::Delta })) => {
            (DeltaKind::Thinking, content)
        }
        other => {
            items.extend(end(current));
            items.push(match other {
                Ok(ProviderItem::Event(mut event)) => {
                    redactor.event(&mut event);
                    Ok(ProviderItem::Event(event))
                }
                Ok(ProviderItem::Output(output)) => Ok(ProviderItem::Output(redactor.value(output))),
                Err(error) => Err(redactor.error(error)),
            });
            return items;
        }
    };
    if current.as_ref().is_some_and(|(before, _)| *before != part) {
        items.extend(end(current));
    }
    let (_, text) = current.get_or_insert_with(|| (part, StreamRedactor::new(redactor.clone())));
    let certain = text.push(&content);
    // An empty delta is passed on, unless it is empty because all of it is buffered.
    if !certain.is_empty() || content.is_empty() {
        items.push(Ok(ProviderItem::Event(delta(part, certain))));
    }
    items
}

/// The end of a text that was buffered as the possible beginning of a secret.
fn end(current: &mut Option<(DeltaKind, StreamRedactor)>) -> Option<RedactedItem> {
    let (part, mut text) = current.take()?;
    let rest = text.finish();
    (!rest.is_empty()).then(|| Ok(ProviderItem::Event(delta(part, rest))))
}

fn delta(part: DeltaKind, content: String) -> StreamEvent {
    match part {
        DeltaKind::Text => StreamEvent::Text { content, chunk: Chunk::Delta },
        DeltaKind::Thinking => StreamEvent::Thinking { content, chunk: Chunk::Delta },
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use inspan_protocol::Environment;
    use serde_json::json;

    use super::*;

    /// The result of these deltas when the environment has the key `abcdefgh1`.
    async fn said(deltas: &[&str]) -> Vec<String> {
        let env: Environment = [("A_KEY".to_owned(), "abcdefgh1".to_owned())].into_iter().collect();
        let items: Vec<RedactedItem> = deltas
            .iter()
            .map(|text| Ok(ProviderItem::Event(delta(DeltaKind::Text, (*text).to_owned()))))
            .chain([Ok(ProviderItem::Output(json!({ "text": deltas.concat() })))])
            .collect();
        let cleaned = stream(&Redactor::new(&env), stream::iter(items).boxed());
        let cleaned: Vec<_> = cleaned.collect().await;
        cleaned
            .into_iter()
            .map(|item| match item.unwrap() {
                ProviderItem::Event(StreamEvent::Text { content, .. }) => content,
                ProviderItem::Event(other) => panic!("{other:?}"),
                ProviderItem::Output(output) => output["text"].as_str().unwrap().to_owned(),
            })
            .collect()
    }

    #[tokio::test]
    async fn a_secret_is_replaced_wherever_the_deltas_part() {
        let text = "it is abcdefgh1, yes";
        for cut in 0..=text.len() {
            let (before, after) = text.split_at(cut);
            let said = said(&[before, after]).await;
            let (output, deltas) = said.split_last().unwrap();
            assert_eq!(
                (deltas.concat().as_str(), output.as_str()),
                ("it is [redacted A_KEY], yes", "it is [redacted A_KEY], yes"),
                "cut at {cut}"
            );
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert!(!said(&single).await.concat().contains("abcdefgh1"));
    }

    #[tokio::test]
    async fn what_only_begins_like_a_secret_is_said_in_full() {
        assert_eq!(said(&["abc", "abc", "d. a"]).await.concat(), "abcabcd. aabcabcd. a");
    }
}
