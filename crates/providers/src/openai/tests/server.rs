//! What the tests of the adapter share: a provider in a folder of its own, one turn against some server, and the
//! beginning of an answer. What is expected of a turn is left to the tests.

use futures::StreamExt;
use inspan_protocol::{
    AgentError, Environment, ErrorCode, ExecutionContext, Provider, ProviderItem, StreamEvent,
};
use serde_json::Value;
use tempfile::TempDir;

use super::super::{OpenAiInput, OpenAiOutput, OpenAiProvider};
pub(super) use crate::raw_server::{STREAM, hold, raw, say};

/// A key that may stand nowhere but in the head of a request.
pub(super) const PLANTED: &str = "sk-proj-planted-0123456789";

pub(super) type Turn = (Vec<StreamEvent>, Result<OpenAiOutput, AgentError>);

/// A provider whose conversations lie in a folder that goes away.
pub(super) struct World {
    pub(super) folder: TempDir,
    pub(super) provider: OpenAiProvider,
    pub(super) env: Environment,
}

impl World {
    /// One that asks the server at this address.
    pub(super) fn new(address: &str) -> Self {
        let address = format!("{address}/v1");
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        let pairs = [
            ("OPENAI_API_KEY", PLANTED),
            ("OPENAI_BASE_URL", address.as_str()),
            ("INSPAN_HOME", home.as_str()),
        ];
        let env = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        Self { folder, provider: OpenAiProvider::new(), env }
    }

    pub(super) fn context(&self) -> ExecutionContext {
        ExecutionContext { env: self.env.clone(), ..ExecutionContext::default() }
    }

    /// One turn to its end.
    pub(super) async fn turn(&self, input: Value) -> Turn {
        self.turn_in(input, self.context(), |_, _| {}).await
    }

    /// One turn to its end, with a look at each event as it comes.
    pub(super) async fn turn_in(
        &self,
        input: Value,
        context: ExecutionContext,
        mut look: impl FnMut(&StreamEvent, &ExecutionContext),
    ) -> Turn {
        let input: OpenAiInput = serde_json::from_value(input).unwrap();
        let mut stream = self.provider.execute(input, context.clone());
        let mut events = Vec::new();
        while let Some(item) = stream.next().await {
            match item {
                Ok(ProviderItem::Event(event)) => {
                    look(&event, &context);
                    events.push(event);
                }
                Ok(ProviderItem::Output(output)) => {
                    assert!(stream.next().await.is_none());
                    return (events, Ok(output));
                }
                Err(error) => {
                    assert!(stream.next().await.is_none());
                    return (events, Err(error));
                }
            }
        }
        panic!("the stream ended without its end");
    }

    /// All that lies in the folder, as one text.
    pub(super) fn kept(&self) -> String {
        let mut kept = String::new();
        for entry in std::fs::read_dir(self.folder.path().join("conversations")).into_iter().flatten() {
            kept.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
        }
        kept
    }
}

/// The code of an error, the word in its detail, and the text that was streamed before it.
pub(super) fn told(turn: &Turn) -> (ErrorCode, String, String) {
    let error = turn.1.as_ref().unwrap_err();
    assert_eq!(error.provider.as_deref(), Some("openai"));
    let kind = error.detail.as_ref().and_then(|detail| detail["kind"].as_str()).unwrap_or_default();
    (error.code, kind.to_owned(), text(&turn.0))
}

/// The text of the events.
pub(super) fn text(events: &[StreamEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        StreamEvent::Text { content, .. } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The beginning of an answer that has said a little.
pub(super) const BEGUN: &str = concat!(
    "data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"model\":\"m\"}}\n\n",
    "data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"message\"}}\n\n",
    "data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"so far\"}\n\n",
);
