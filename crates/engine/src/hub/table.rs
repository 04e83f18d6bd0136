//! Who is served with an event: subscribers in the order they came, indexed by the event's kind.
//! The order of events, and the lock that keeps it, are the hub's.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use inspan_protocol::{Envelope, Event, RunId};

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

    /// Those who wait for messages, each with the only run whose messages it wants, if it wants those of one.
    pub(crate) fn of_messages(&self) -> Vec<Option<RunId>> {
        let list = lock(&self.list);
        let listening = list.iter().filter(|subscriber| subscriber.filter.listens_for_messages());
        listening.map(|subscriber| subscriber.filter.run().cloned()).collect()
    }

    pub(crate) fn end_all(&self) {
        for subscriber in lock(&self.list).drain(..) {
            if let Sink::Queue(queue) = &subscriber.sink {
                queue.end();
            }
        }
    }
}

/// The subscribers of each kind of event; unknown names share the last row. A row is made at the first delivery after a
/// change, so that many changes in a row cost one, and kinds that a session never sees cost nothing.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Option<Vec<Row>>>,
    version: u64,
}

struct Row {
    sink: Sink,
    /// Set if the name or the context must be looked at too.
    look: Option<Arc<Subscriber>>,
}

impl Table {
    /// Lets go of all subscribers if any came or went.
    #[inline]
    pub(crate) fn refresh(&mut self, subscribers: &Subscribers) {
        let version = subscribers.version.load(Ordering::Acquire);
        if self.version != version {
            self.clear(version);
        }
    }

    /// Apart, so that a delivery, which hardly ever finds a change, does not pay for what it takes.
    #[cold]
    fn clear(&mut self, version: u64) {
        self.rows.clear();
        self.version = version;
    }

    /// Serves the subscribers of an event, one after the other.
    #[inline]
    pub(crate) fn deliver(&mut self, subscribers: &Subscribers, envelope: &Arc<Envelope>) {
        self.refresh(subscribers);
        match self.rows.get(envelope.event.kind()) {
            Some(Some(rows)) if rows.is_empty() => {}
            Some(Some(rows)) => serve(rows, envelope),
            _ => serve(self.build(subscribers, envelope.event.kind()), envelope),
        }
    }

    /// Makes a row. It may know of a subscriber that came since the table was refreshed; the next delivery makes it anew.
    #[cold]
    fn build(&mut self, subscribers: &Subscribers, kind: usize) -> &[Row] {
        let unknown = Event::NAMES.len();
        let list = lock(&subscribers.list);
        let rows = list.iter().filter_map(|subscriber| {
            let filter = &subscriber.filter;
            let look = match Event::NAMES.get(kind) {
                Some(name) if !filter.matches_name(name) => return None,
                Some(_) => filter.asks_for_context(),
                None => true,
            };
            Some(Row { sink: subscriber.sink.clone(), look: look.then(|| Arc::clone(subscriber)) })
        });
        let rows = rows.collect();
        if self.rows.len() <= kind {
            self.rows.resize_with(unknown + 1, || None);
        }
        self.rows[kind].insert(rows)
    }
}

/// A panic of an observer must not reach the emitter. The others are served all the same, and the one that panicked is
/// not served again.
fn serve(rows: &[Row], envelope: &Arc<Envelope>) {
    let taken = Cell::new(0);
    let serve = || {
        for (index, row) in rows.iter().enumerate().skip(taken.get()) {
            // Only ever written while nobody panics, so that one call does not wait for the other.
            taken.set(index + 1);
            row.serve(envelope);
        }
    };
    while catch_unwind(AssertUnwindSafe(serve)).is_err() {
        let event = envelope.event.name();
        tracing::error!(seq = envelope.seq, event, "an observer panicked");
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
