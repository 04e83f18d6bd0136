//! The timeouts of attempts that no worker has begun: their time does not run yet.

use std::{collections::BTreeMap, time::Duration};

use inspan_protocol::Timestamp;

use crate::log::AttemptKey;

/// An attempt that has waited this many times as long as it is put off next is looked at rarely enough.
const RARELY: u32 = 8;

/// Attempts with a timeout that were given to the workers, and that none has said to have begun.
#[derive(Default)]
pub(super) struct Unbegun(BTreeMap<AttemptKey, UnbegunAttempt>);

struct UnbegunAttempt {
    timeout: Duration,
    /// When it was given to the workers.
    since: Timestamp,
    /// The end of its time as the run has it.
    deadline: Timestamp,
}

impl Unbegun {
    /// An attempt is given to the workers, whose time would be up at `deadline`.
    pub(super) fn put(&mut self, key: AttemptKey, timeout: Duration, since: Timestamp, deadline: Timestamp) {
        self.0.insert(key, UnbegunAttempt { timeout, since, deadline });
    }

    /// A worker has begun an attempt. Gives when its time is up.
    pub(super) fn began(&mut self, key: &AttemptKey, at: Timestamp) -> Option<Timestamp> {
        self.0.remove(key).map(|known| at + known.timeout)
    }

    /// Puts off what would be due, and gives the new ends. One that begins later has its time from then on, so that none
    /// is put off too far. A worker that begins one late has this decided again: so a long wait needs few looks.
    pub(super) fn put_off(&mut self, now: Timestamp) -> Vec<(AttemptKey, Timestamp)> {
        let due = self.0.iter_mut().filter(|(_, known)| known.deadline <= now);
        due.map(|(key, known)| {
            known.deadline = now + known.timeout.max(now.since(known.since) / RARELY);
            (key.clone(), known.deadline)
        })
        .collect()
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, runs: impl Fn(&AttemptKey) -> bool) {
        self.0.retain(|key, _| runs(key));
    }
}
