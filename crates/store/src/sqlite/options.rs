//! How a store is opened.

use std::{fmt, sync::Arc, time::Duration};

/// How long a store waits for another process by default.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// How a store is opened for writing.
#[derive(Clone, Debug, Default)]
pub struct SqliteOptions {
    pub(super) loss: Loss,
    pub(super) max_bytes: Option<u64>,
    patience: Option<Duration>,
    pub(super) points: Points,
}

/// What happens to a store that has lost acknowledged events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Loss {
    #[default]
    Refuse,
    Accept,
}

impl SqliteOptions {
    /// Opens a store that has lost acknowledged events, and accepts what is left as complete. Events that
    /// were altered stay unreadable.
    #[must_use]
    pub fn accept_loss(mut self) -> Self {
        self.loss = Loss::Accept;
        self
    }

    /// Limits the size of the store's file, in bytes; beyond it a write fails as on a full disk.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// How long to wait for another process that is writing, before a request fails; the default is 15 seconds.
    #[must_use]
    pub fn wait_for_others(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience.unwrap_or(PATIENCE)
    }

    /// Calls `hook` on the writer thread at every point where a crash could leave something half done: `begin`, then
    /// `write` and `written` around each request, `blobs` between large values and the events that refer to them, `commit` and `committed` around the group's end, `marked` when
    /// the marks are written, and `acknowledged` after each answer.
    #[must_use]
    pub fn on_point(mut self, hook: Hook) -> Self {
        self.points = Points(Some(hook));
        self
    }
}

/// Where a test may kill the process.
#[derive(Clone, Default)]
pub(super) struct Points(Option<Hook>);

impl Points {
    pub(super) fn reach(&self, name: &'static str) {
        if let Some(hook) = &self.0 {
            hook(name);
        }
    }
}

impl fmt::Debug for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Points(set)" } else { "Points" })
    }
}
