//! Real time for what drives real programs: a deadline, and a short pause between two looks.
#![expect(clippy::disallowed_methods, reason = "real programs run in real time, and no runtime waits here")]

use std::time::{Duration, Instant};

/// A moment by which something must have happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(wait: Duration) -> Self {
        Self(Instant::now() + wait)
    }

    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }

    /// What is left until then.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Measures from its making.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Sleeps this thread.
pub(crate) fn pause(wait: Duration) {
    std::thread::sleep(wait);
}
