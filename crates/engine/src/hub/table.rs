//! Who is served with an event: subscribers in the order they came, indexed by the event's kind.
//! The order of events, and the lock that keeps it, are the hub's.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use inspan_protocol::{Envelope, Event};

use super::{Filter, lock, subscription::Queue};

/// What an observer does with an event.
pub type Callback = Arc<dyn Fn(&Arc<Envelope>) + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Sink {
    Call(Callback),
    Queue(Arc<Queue>),
}

struct Subscriber {
    id: u64,
    filter: Filter,
    sink: Sink,
}

/// All subscribers, and a version that grows with each change.
#[derive(Default)]
pub(crate) struct Subscribers {
    list: Mutex<Vec<Arc<Subscriber>>>,
    version: AtomicU64,
}

impl Subscribers {
    pub(crate) fn add(&self, filter: Filter, sink: Sink) -> u64 {
        let mut list = lock(&self.list);
        // The version is read and written under the list's lock, so it also serves as a fresh id.
        let id = self.version.load(Ordering::Relaxed) + 1;
        list.push(Arc::new(Subscriber { id, filter, sink }));
        self.version.store(id, Ordering::Release);
        id
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut list = lock(&self.list);
        list.retain(|subscriber| subscriber.id != id);
        self.version.store(self.version.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    pub(crate) fn end_all(&self) {
        for subscriber in lock(&self.list).drain(..) {
            if let Sink::Queue(queue) = &subscriber.sink {
                queue.end();
            }
        }
    }
}

/// The subscribers of each kind of event; unknown names share the last row. It is made anew at the first
/// delivery after a change, so that many changes in a row cost one.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Vec<Row>>,
    version: u64,
}

struct Row {
    sink: Sink,
    /// Set if the name or the context must be looked at too.
    look: Option<Arc<Subscriber>>,
}

impl Table {
    #[inline]
    pub(crate) fn refresh(&mut self, subscribers: &Subscribers) {
        if self.version != subscribers.version.load(Ordering::Acquire) {
            self.rebuild(subscribers);
        }
    }

    #[cold]
    fn rebuild(&mut self, subscribers: &Subscribers) {
        let list = lock(&subscribers.list);
        let unknown = Event::NAMES.len();
        self.rows.iter_mut().for_each(Vec::clear);
        self.rows.resize_with(unknown + 1, Vec::new);
        for subscriber in list.iter() {
            let filter = &subscriber.filter;
            for (kind, name) in Event::NAMES.iter().enumerate() {
                if filter.matches_name(name) {
                    let look = filter.asks_for_context().then(|| Arc::clone(subscriber));
                    self.rows[kind].push(Row { sink: subscriber.sink.clone(), look });
                }
            }
            let row = Row { sink: subscriber.sink.clone(), look: Some(Arc::clone(subscriber)) };
            self.rows[unknown].push(row);
        }
        self.version = subscribers.version.load(Ordering::Relaxed);
    }

    /// Serves the subscribers of an event, one after the other.
    #[inline]
    pub(crate) fn deliver(&self, envelope: &Arc<Envelope>) {
        match self.rows.get(envelope.event.kind()).map(Vec::as_slice) {
            None | Some([]) => {}
            Some(rows) => serve(rows, envelope),
        }
    }
}

/// Whoever emits must not die of a fault of whoever watches. The others are served all the same, and the one whose
/// fault it was is not served again.
fn serve(rows: &[Row], envelope: &Arc<Envelope>) {
    let mut rest = rows.iter();
    while !rest.as_slice().is_empty() {
        let serve = || rest.by_ref().for_each(|row| row.serve(envelope));
        if catch_unwind(AssertUnwindSafe(serve)).is_err() {
            let event = envelope.event.name();
            tracing::error!(seq = envelope.seq, event, "an observer panicked");
        }
    }
}

impl Row {
    #[inline]
    fn serve(&self, envelope: &Arc<Envelope>) {
        if self.look.as_ref().is_some_and(|subscriber| !subscriber.filter.matches(envelope)) {
            return;
        }
        match &self.sink {
            Sink::Queue(queue) => queue.push(envelope),
            Sink::Call(callback) => callback(envelope),
        }
    }
}
