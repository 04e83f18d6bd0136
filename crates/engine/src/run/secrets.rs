//! Takes secrets out of what a provider says before anyone hears it, also where one straddles two deltas. What a
//! secret is, is left to the redactor.

use futures::StreamExt;
use inspan_protocol::{AgentError, Chunk, ProviderItem, ProviderStream, StreamEvent};
use serde_json::Value;

use crate::redact::Redactor;

/// Which of the two texts a delta continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voice {
    Text,
    Thinking,
}

/// The end of a text that may be the beginning of a secret.
struct Held {
    voice: Voice,
    end: String,
}

/// The same stream without secrets.
pub(super) fn without(redactor: &Redactor, mut stream: ProviderStream<Value>) -> ProviderStream<Value> {
    if redactor.is_idle() {
        return stream;
    }
    let redactor = redactor.clone();
    async_stream::stream! {
        let mut held = None;
        while let Some(item) = stream.next().await {
            for item in clean(&redactor, item, &mut held) {
                yield item;
            }
        }
        if let Some(held) = held {
            yield Ok(ProviderItem::Event(delta(held.voice, held.end)));
        }
    }
    .boxed()
}

type Item = Result<ProviderItem<Value>, AgentError>;

fn clean(redactor: &Redactor, item: Item, held: &mut Option<Held>) -> Vec<Item> {
    let (voice, content) = match item {
        Ok(ProviderItem::Event(StreamEvent::Text { content, chunk: Chunk::Delta })) => (Voice::Text, content),
        Ok(ProviderItem::Event(StreamEvent::Thinking { content, chunk: Chunk::Delta })) => {
            (Voice::Thinking, content)
        }
        other => {
            let mut items = let_go(held);
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
    let mut items = Vec::new();
    let before = match held.take() {
        Some(held) if held.voice == voice => held.end,
        other => {
            items = let_go(&mut { other });
            String::new()
        }
    };
    let mut text = redactor.text(&(before + &content));
    let end = text.split_off(text.len() - redactor.held(&text));
    if !end.is_empty() {
        *held = Some(Held { voice, end });
    }
    if !text.is_empty() {
        items.push(Ok(ProviderItem::Event(delta(voice, text))));
    }
    items
}

/// It was not the beginning of a secret after all.
fn let_go(held: &mut Option<Held>) -> Vec<Item> {
    held.take().into_iter().map(|held| Ok(ProviderItem::Event(delta(held.voice, held.end)))).collect()
}

fn delta(voice: Voice, content: String) -> StreamEvent {
    match voice {
        Voice::Text => StreamEvent::Text { content, chunk: Chunk::Delta },
        Voice::Thinking => StreamEvent::Thinking { content, chunk: Chunk::Delta },
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use inspan_protocol::Environment;
    use serde_json::json;

    use super::*;

    /// What comes of these deltas when the environment has the key `abcdefgh1`.
    async fn said(deltas: &[&str]) -> Vec<String> {
        let env: Environment = [("A_KEY".to_owned(), "abcdefgh1".to_owned())].into_iter().collect();
        let items: Vec<Item> = deltas
            .iter()
            .map(|text| Ok(ProviderItem::Event(delta(Voice::Text, (*text).to_owned()))))
            .chain([Ok(ProviderItem::Output(json!({ "text": deltas.concat() })))])
            .collect();
        let cleaned = without(&Redactor::new(&env), stream::iter(items).boxed());
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
