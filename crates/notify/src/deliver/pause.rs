//! How long a worker waits: between two passes, and after a failure.

use std::time::Duration;

use crate::{ledger::Cursor, send::SendError};

/// The waits after a failure.
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);

/// How long a worker waits between two passes.
#[derive(Clone, Copy)]
pub(super) enum Pause {
    /// There is nothing to do.
    UntilNews,
    /// Some of the sessions wait for so long.
    After(Duration),
    /// The channel is down for so long: news wait too.
    Down(Duration),
}

impl Pause {
    /// This long at most.
    pub(super) fn or_after(self, wait: Duration) -> Self {
        match self {
            Self::UntilNews => Self::After(wait),
            Self::After(other) => Self::After(other.min(wait)),
            Self::Down(_) => self,
        }
    }

    pub(super) fn takes_news(self) -> bool {
        !matches!(self, Self::Down(_))
    }

    pub(super) fn length(self) -> Duration {
        match self {
            Self::UntilNews => LONGEST_WAIT,
            Self::After(left) | Self::Down(left) => left.min(LONGEST_WAIT),
        }
    }
}

/// How long to wait after a failure: longer each time, and not shorter than the receiver asks for.
pub(super) fn wait_after(cursor: &Cursor, error: &SendError) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << cursor.attempts.min(16)).min(LONGEST_WAIT);
    error.retry_after.unwrap_or_default().max(doubled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_can_only_lengthen_the_wait_after_a_failure() {
        let wait = |attempts, asked: Option<u64>| {
            let cursor = Cursor { attempts, ..Cursor::default() };
            let retry_after = asked.map(Duration::from_secs);
            wait_after(&cursor, &SendError { retry_after, ..SendError::new("no") }).as_secs()
        };
        let rows = [
            wait(0, None),
            wait(3, None),
            wait(0, Some(0)),
            wait(3, Some(0)),
            wait(3, Some(7)),
            wait(3, Some(9)),
        ];
        assert_eq!(rows, [1, 8, 1, 8, 8, 9]);
        assert_eq!([wait(40, None), wait(40, Some(3_600))], [300, 3_600]);
    }
}
