//! How a store is opened. Opening it is left to `file`.

use std::{fmt, sync::Arc, time::Duration};

/// How long a store waits for another process by itself.
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

/// What is done with a store that has lost what it had acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Loss {
    #[default]
    Refuse,
    Accept,
}

impl SqliteOptions {
    /// Opens a store that has lost acknowledged events, and takes what is there for all there was. Events that
    /// were altered stay unreadable.
    #[must_use]
    pub fn accept_loss(mut self) -> Self {
        self.loss = Loss::Accept;
        self
    }

    /// Refuses, as a full disk would, what makes the store's file greater than so many bytes.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// How long to wait for another process that is writing, before a request fails; 15 seconds unless said.
    #[must_use]
    pub fn wait_for_others(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience.unwrap_or(PATIENCE)
    }

    /// Calls `hook` on the writer's thread at every point where a crash could tear something: `begin`, then
    /// `write` and `written` around each request, `commit` and `committed` around the group's end, `marked` when
    /// the marks are written, and `acknowledged` after each answer.
    #[must_use]
    pub fn on_point(mut self, hook: Hook) -> Self {
        self.points = Points(Some(hook));
        self
    }
}

/// Where a test may end the process.
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
