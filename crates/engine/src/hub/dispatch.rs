//! The subscribers of a hub, in the order they came, and the delivery of one event to them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use inspan_protocol::{Envelope, Event, RunId};
use parking_lot::Mutex;

use super::{Filter, subscription::Queue};

/// What an observer does with an event.
pub type Callback = Arc<dyn Fn(&Arc<Envelope>) + Send + Sync>;

pub(crate) enum Sink {
    Call(Callback),
    Queue(Arc<Queue>),
}

struct Subscriber {
    id: u64,
    filter: Filter,
    /// Whether the filter's names match each [`Event::kind`]. True for unknown names: those are compared one by one.
    kinds: Box<[bool]>,
    sink: Sink,
}

impl Subscriber {
    fn wants(&self, envelope: &Envelope) -> bool {
        let kind = envelope.event.kind();
        self.kinds[kind]
            && (kind < Event::NAMES.len() || self.filter.matches_name(envelope.event.name()))
            && self.filter.matches_context(envelope)
    }

    fn deliver(&self, envelope: &Arc<Envelope>) {
        match &self.sink {
            Sink::Call(callback) => callback(envelope),
            Sink::Queue(queue) => queue.push(envelope),
        }
    }
}

/// All subscribers. A delivery works on the list as it is when the delivery begins.
#[derive(Default)]
pub(crate) struct Subscribers {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    newest: u64,
    subscribers: Arc<Vec<Arc<Subscriber>>>,
}

impl Subscribers {
    pub(crate) fn add(&self, filter: Filter, sink: Sink) -> u64 {
        let names = Event::NAMES.iter().map(|name| filter.matches_name(name));
        let kinds = names.chain([true]).collect();
        let mut list = self.list.lock();
        list.newest += 1;
        let id = list.newest;
        Arc::make_mut(&mut list.subscribers).push(Arc::new(Subscriber { id, filter, kinds, sink }));
        id
    }

    /// Removes a subscriber. It is dropped outside the lock, since it may own a subscription itself.
    pub(crate) fn remove(&self, id: u64) {
        let removed = {
            let mut list = self.list.lock();
            let place = list.subscribers.binary_search_by_key(&id, |subscriber| subscriber.id);
            place.ok().map(|place| Arc::make_mut(&mut list.subscribers).remove(place))
        };
        drop(removed);
    }

    /// The subscribers that wait for messages, each with the only run whose messages it wants, if there is one.
    pub(crate) fn of_messages(&self) -> Vec<Option<RunId>> {
        let list = Arc::clone(&self.list.lock().subscribers);
        let listening = list.iter().filter(|subscriber| subscriber.filter.listens_for_messages());
        listening.map(|subscriber| subscriber.filter.run().cloned()).collect()
    }

    /// Delivers an event to each subscriber that wants it. A panicking subscriber must not make the emitter panic: it
    /// is unsubscribed, and the others still get the event.
    pub(crate) fn deliver(&self, envelope: &Arc<Envelope>) {
        let list = Arc::clone(&self.list.lock().subscribers);
        for subscriber in list.iter().filter(|subscriber| subscriber.wants(envelope)) {
            if catch_unwind(AssertUnwindSafe(|| subscriber.deliver(envelope))).is_err() {
                let event = envelope.event.name();
                tracing::error!(seq = envelope.seq, event, "an observer panicked and was unsubscribed");
                self.remove(subscriber.id);
            }
        }
    }

    pub(crate) fn end_all(&self) {
        for subscriber in self.list.lock().subscribers.iter() {
            if let Sink::Queue(queue) = &subscriber.sink {
                queue.end();
            }
        }
    }
}
