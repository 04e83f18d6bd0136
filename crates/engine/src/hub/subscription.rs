//! The queues between the hub and its slower readers: one that loses nothing, and one that says what it lost.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
};

use futures::{Stream, StreamExt};
use inspan_protocol::Envelope;
use parking_lot::Mutex;

use super::Shared;

/// How many envelopes a lossless subscription holds unless its maker says otherwise.
pub const DEFAULT_SUBSCRIPTION_LIMIT: usize = 1_000_000;

/// Envelopes were dropped because their reader was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missed} events were missed by a reader that was too slow")]
pub struct Lagged {
    /// How many.
    pub missed: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum WhenFull {
    End,
    DropOldest,
}

pub(crate) struct Queue {
    limit: usize,
    when_full: WhenFull,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    items: VecDeque<Arc<Envelope>>,
    reader: Option<Waker>,
    ended: bool,
    overflow: Option<u64>,
    missed: u64,
}

enum Taken {
    Item(Arc<Envelope>),
    Lagged(Lagged),
    Empty,
    Ended,
}

impl Queue {
    pub(crate) fn new(limit: usize, when_full: WhenFull) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), when_full, state: Mutex::default() })
    }

    pub(crate) fn push(&self, envelope: &Arc<Envelope>) {
        let mut state = self.state.lock();
        if state.ended {
            return;
        }
        if state.items.len() >= self.limit {
            match self.when_full {
                WhenFull::End => {
                    state.ended = true;
                    state.overflow = Some(envelope.seq);
                }
                WhenFull::DropOldest => {
                    state.items.pop_front();
                    state.missed += 1;
                }
            }
        }
        if !state.ended {
            state.items.push_back(Arc::clone(envelope));
        }
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Nothing more comes; what is there can still be read.
    pub(crate) fn end(&self) {
        let reader = {
            let mut state = self.state.lock();
            state.ended = true;
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn take(&self, reader: Option<&Waker>) -> Taken {
        let mut state = self.state.lock();
        if state.missed > 0 {
            return Taken::Lagged(Lagged { missed: std::mem::take(&mut state.missed) });
        }
        if let Some(envelope) = state.items.pop_front() {
            return Taken::Item(envelope);
        }
        if state.ended {
            return Taken::Ended;
        }
        if let Some(reader) = reader {
            match &mut state.reader {
                Some(known) => known.clone_from(reader),
                none => *none = Some(reader.clone()),
            }
        }
        Taken::Empty
    }
}

/// Takes the subscriber out of the hub when dropped.
pub(crate) struct Registration {
    pub(crate) hub: Weak<Shared>,
    pub(crate) id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(shared) = self.hub.upgrade() {
            shared.subscribers.remove(self.id);
        }
    }
}

/// Calls a function with each event until this is dropped. After that the function is not called again,
/// except for a delivery that is in progress on another thread.
#[must_use = "an observer that is dropped observes nothing"]
pub struct Observer {
    pub(crate) _registration: Registration,
}

/// A stream of all wanted events that loses none. It ends when the hub is gone, or when more unread events
/// than the limit have collected: then [`Subscription::overflow`] reports it.
pub struct Subscription {
    pub(crate) queue: Arc<Queue>,
    pub(crate) _registration: Registration,
}

impl Subscription {
    /// The next event if one is there.
    pub fn try_next(&mut self) -> Option<Arc<Envelope>> {
        match self.queue.take(None) {
            Taken::Item(envelope) => Some(envelope),
            Taken::Lagged(_) | Taken::Empty | Taken::Ended => None,
        }
    }

    /// Appends every event in the queue to `into`, and returns what [`Self::overflow`] returns, with one lock of the
    /// queue.
    pub fn take_all(&mut self, into: &mut Vec<Arc<Envelope>>) -> Option<u64> {
        let mut state = self.queue.state.lock();
        into.reserve(state.items.len());
        while let Some(envelope) = state.items.pop_front() {
            into.push(envelope);
        }
        state.overflow
    }

    /// The next event, or `None` at the end.
    pub async fn next(&mut self) -> Option<Arc<Envelope>> {
        StreamExt::next(self).await
    }

    /// The `seq` of the first event that did not fit the limit. All before it can still be read; none after.
    pub fn overflow(&self) -> Option<u64> {
        self.queue.state.lock().overflow
    }

    /// How many events wait to be read.
    pub fn backlog(&self) -> usize {
        self.queue.state.lock().items.len()
    }
}

impl Stream for Subscription {
    type Item = Arc<Envelope>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.queue.take(Some(cx.waker())) {
            Taken::Item(envelope) => Poll::Ready(Some(envelope)),
            Taken::Empty => Poll::Pending,
            Taken::Lagged(_) | Taken::Ended => Poll::Ready(None),
        }
    }
}

/// A stream of the newest wanted events: when its reader is too slow the oldest are dropped, and the reader
/// gets their number before it gets the next.
pub struct BoundedSubscription {
    pub(crate) queue: Arc<Queue>,
    pub(crate) _registration: Registration,
}

impl BoundedSubscription {
    /// The next event, or what was missed before it, if there is any.
    pub fn try_next(&mut self) -> Option<Result<Arc<Envelope>, Lagged>> {
        match self.queue.take(None) {
            Taken::Item(envelope) => Some(Ok(envelope)),
            Taken::Lagged(lagged) => Some(Err(lagged)),
            Taken::Empty | Taken::Ended => None,
        }
    }

    /// The next event, or what was missed before it, or `None` when the hub is gone.
    pub async fn next(&mut self) -> Option<Result<Arc<Envelope>, Lagged>> {
        StreamExt::next(self).await
    }
}

impl Stream for BoundedSubscription {
    type Item = Result<Arc<Envelope>, Lagged>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.queue.take(Some(cx.waker())) {
            Taken::Item(envelope) => Poll::Ready(Some(Ok(envelope))),
            Taken::Lagged(lagged) => Poll::Ready(Some(Err(lagged))),
            Taken::Empty => Poll::Pending,
            Taken::Ended => Poll::Ready(None),
        }
    }
}
