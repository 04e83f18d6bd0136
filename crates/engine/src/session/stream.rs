//! A chat as a stream: its events while they happen, then its end.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::StreamExt;
use inspan_protocol::{AgentError, Envelope};

use super::{
    Chat, Items, SessionCore, Stream,
    result::{AgentResult, ChatError},
};
use crate::hub::Filter;

/// One item of an [`AgentStream`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AgentItem {
    /// Something happened.
    Event(Arc<Envelope>),
    /// The end; nothing follows.
    Result(Box<AgentResult>),
}

/// The events of a chat, and its result or error as the last item. Nothing happens unless it is read; dropped, the
/// chat is cancelled.
pub struct AgentStream(Items);

impl Stream for AgentStream {
    type Item = Result<AgentItem, ChatError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl AgentStream {
    /// The next item, or nothing after the last.
    pub async fn next(&mut self) -> Option<Result<AgentItem, ChatError>> {
        self.0.next().await
    }
}

pub(super) fn of(open: Result<Arc<SessionCore>, AgentError>, chat: Chat) -> AgentStream {
    AgentStream(items(open, chat).boxed())
}

enum Next {
    Event(Option<Arc<Envelope>>),
    End(Box<Result<AgentResult, ChatError>>),
}

fn items(
    open: Result<Arc<SessionCore>, AgentError>,
    chat: Chat,
) -> impl Stream<Item = Result<AgentItem, ChatError>> + Send {
    async_stream::stream! {
        let open = match open {
            Ok(open) => open,
            Err(error) => {
                yield Err(error.into());
                return;
            }
        };
        let mut events = open.hub.subscribe(Filter::all());
        let mut work = Box::pin(Arc::clone(&open).chat(chat));
        let mut has_more = true;
        let end = loop {
            let next = tokio::select! {
                biased;
                event = events.next(), if has_more => Next::Event(event),
                end = &mut work => Next::End(Box::new(end)),
            };
            match next {
                Next::Event(Some(event)) if open.is_ours(&event) => yield Ok(AgentItem::Event(event)),
                Next::Event(Some(_)) => {}
                Next::Event(None) => has_more = false,
                Next::End(end) => break *end,
            }
        };
        while let Some(event) = events.try_next() {
            if open.is_ours(&event) {
                yield Ok(AgentItem::Event(event));
            }
        }
        yield end.map(|result| AgentItem::Result(Box::new(result)));
    }
}
