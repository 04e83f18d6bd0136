//! How far a session's events are stored, for those who must not go on before theirs is.

use std::{
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
};

use inspan_protocol::Envelope;
use tokio::sync::Notify;

use super::Hub;

/// How far the events are kept, and who waits for it. They go on in the order in which they came, so that the order
/// of a replay is always the same.
pub(crate) struct Kept {
    /// Where nobody keeps anything, everything counts as kept.
    until: AtomicU64,
    changed: Notify,
}

impl Default for Kept {
    fn default() -> Self {
        Self { until: AtomicU64::new(u64::MAX), changed: Notify::new() }
    }
}

impl Hub {
    /// From now on an event counts as kept only once [`Hub::kept`] has said so.
    pub fn begin_keeping(&self) {
        self.shared.kept.until.store(0, Ordering::Release);
    }

    /// Tells that every event up to this `seq` is kept.
    pub fn kept(&self, seq: u64) {
        self.shared.kept.until.fetch_max(seq, Ordering::AcqRel);
        self.shared.kept.changed.notify_waiters();
    }

    /// How many events are not kept yet.
    pub(crate) fn not_kept(&self) -> u64 {
        self.last_seq().saturating_sub(self.shared.kept.until.load(Ordering::Acquire))
    }

    /// Waits until an event may be shown: one that says that something has ended, once it is stored. What is shown as
    /// done is then never done again. If it can be stored no more, this has no end of its own.
    pub async fn until_shown(&self, envelope: &Envelope) {
        if envelope.event.is_end() {
            self.until_kept(envelope.seq).await;
        }
    }

    /// Waits until the event of this `seq` is kept; not at all where nobody keeps events. If they can be kept no
    /// more it has no end of its own.
    pub(crate) async fn until_kept(&self, seq: u64) {
        let kept = &self.shared.kept;
        loop {
            let mut changed = pin!(kept.changed.notified());
            // Before it is looked, so that no change falls between the two.
            changed.as_mut().enable();
            if kept.until.load(Ordering::Acquire) >= seq {
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
    fn an_event_is_waited_for_only_where_events_are_kept() {
        let hub = hub();
        assert!(hub.until_kept(7).now_or_never().is_some());
        hub.begin_keeping();
        assert!(hub.until_kept(1).now_or_never().is_none());
        hub.kept(2);
        hub.kept(1);
        let ready = [1, 2, 3].map(|seq| hub.until_kept(seq).now_or_never().is_some());
        assert_eq!(ready, [true, true, false]);
    }
}
