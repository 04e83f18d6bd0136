//! How far a session's events are stored, for what must not happen before they are.

use std::{
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
};

use inspan_protocol::Envelope;
use tokio::sync::Notify;

use super::Hub;

/// The newest stored event, and who waits for it. Waiters wake in the order in which they came, so a replay always has
/// the same order.
pub(crate) struct StoredUpTo {
    /// Without a store every event counts as stored.
    seq: AtomicU64,
    changed: Notify,
}

impl Default for StoredUpTo {
    fn default() -> Self {
        Self { seq: AtomicU64::new(u64::MAX), changed: Notify::new() }
    }
}

impl Hub {
    /// Says that there is a store: from now on an event counts as stored only once [`Hub::mark_stored`] reports it.
    pub fn expect_store(&self) {
        self.shared.stored.seq.store(0, Ordering::Release);
    }

    /// Reports that every event up to this `seq` is stored.
    pub fn mark_stored(&self, seq: u64) {
        self.shared.stored.seq.fetch_max(seq, Ordering::AcqRel);
        self.shared.stored.changed.notify_waiters();
    }

    /// How many events are not stored yet.
    pub(crate) fn unstored(&self) -> u64 {
        self.last_seq().saturating_sub(self.shared.stored.seq.load(Ordering::Acquire))
    }

    /// Waits until an event may be shown. One that says that something has ended must be stored first: what is shown as
    /// done is then never done again. Does not return if the store has failed.
    pub async fn until_shown(&self, envelope: &Envelope) {
        if envelope.event.is_end() {
            self.until_stored(envelope.seq).await;
        }
    }

    /// Waits until the event of this `seq` is stored; returns at once without a store. Does not return if the store has
    /// failed.
    pub(crate) async fn until_stored(&self, seq: u64) {
        let stored = &self.shared.stored;
        loop {
            let mut changed = pin!(stored.changed.notified());
            // Enabled before the check, so that no change falls between the two.
            changed.as_mut().enable();
            if stored.seq.load(Ordering::Acquire) >= seq {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use crate::testing::hub;

    #[test]
    fn events_are_waited_for_only_with_a_store() {
        let hub = hub();
        assert!(hub.until_stored(7).now_or_never().is_some());
        hub.expect_store();
        assert!(hub.until_stored(1).now_or_never().is_none());
        hub.mark_stored(2);
        hub.mark_stored(1);
        let ready = [1, 2, 3].map(|seq| hub.until_stored(seq).now_or_never().is_some());
        assert_eq!(ready, [true, true, false]);
    }
}
