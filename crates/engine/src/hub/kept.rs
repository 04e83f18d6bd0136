//! How far a session's events are kept, for those who must not go on before theirs is. Where they are kept is left to
//! whoever drives the session.

use super::Hub;

/// What counts as kept where nobody keeps anything: everything.
pub(super) const ALL: u64 = u64::MAX;

impl Hub {
    /// From now on an event counts as kept only once [`Hub::kept`] has said so.
    pub fn begin_keeping(&self) {
        self.shared.kept.send_replace(0);
    }

    /// Tells that every event up to this `seq` is kept.
    pub fn kept(&self, seq: u64) {
        self.shared.kept.send_if_modified(|kept| {
            let is_more = *kept < seq;
            *kept = seq.max(*kept);
            is_more
        });
    }

    /// Waits until the event of this `seq` is kept; not at all where nobody keeps events. If they can be kept no
    /// more it has no end of its own.
    pub(crate) async fn until_kept(&self, seq: u64) {
        let mut kept = self.shared.kept.subscribe();
        // The sender lives as long as this handle.
        let _kept = kept.wait_for(|kept| *kept >= seq).await;
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
