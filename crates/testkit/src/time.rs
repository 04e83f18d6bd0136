//! Real time for tests that drive real programs: a deadline, a stopwatch, and waits that end.
#![expect(clippy::disallowed_methods, reason = "real programs run in real time, and no runtime waits here")]

use std::time::{Duration, Instant};

use anyhow::ensure;

/// A moment by which something must have happened.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// The moment that is so long from now.
    pub fn after(wait: Duration) -> Self {
        Self(Instant::now() + wait)
    }

    /// Whether the moment has passed.
    pub fn is_over(self) -> bool {
        Instant::now() >= self.0
    }

    /// The time until then; zero once it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Measures the time since it was started.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Blocks this thread.
pub fn pause(wait: Duration) {
    std::thread::sleep(wait);
}

/// Polls until the condition holds: every few milliseconds, and seldom if asking takes long, so that asking does not slow
/// what is waited for.
pub fn eventually(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Deadline::after(limit);
    loop {
        let asked = Stopwatch::start();
        if holds()? {
            return Ok(());
        }
        ensure!(!deadline.is_over(), "after {limit:?} it still does not hold: {what}");
        pause(asked.elapsed().clamp(Duration::from_millis(2), Duration::from_millis(500)));
    }
}
