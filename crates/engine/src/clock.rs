//! Time and fresh identifiers as parameters, so that a session can be replayed exactly.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use inspan_protocol::{NodePath, PromptId, RunId, SessionId, Timestamp};
use tokio::time::Instant;
use uuid::Uuid;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The present moment, for events, deadlines and waits. It never goes back.
    fn now(&self) -> Timestamp;

    /// The moment that other machines read on their clocks, for leases and for what vendors name. It may jump when the clock
    /// is set.
    fn wall(&self) -> Timestamp {
        self.now()
    }
}

/// The moment of a clock at which the wall clock will show what a vendor names. Clocks that agree to the second are the same.
pub(crate) fn from_wall(clock: &dyn Clock, moment: Timestamp) -> Timestamp {
    let ahead = clock.now().as_millis().saturating_sub(clock.wall().as_millis());
    match ahead.unsigned_abs() {
        0..1000 => moment,
        _ => Timestamp::from_millis(moment.as_millis().saturating_add(ahead)),
    }
}

/// The longest sleep between two looks at a clock: a machine that slept is noticed by then.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Sleeps until a clock shows a moment, also if the clock is set or the machine sleeps meanwhile.
pub async fn sleep_until(clock: &dyn Clock, moment: Timestamp) {
    loop {
        let left = moment.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}

/// The clock of the machine. It is read once, when the process first asks for the time; from then on the time that
/// has passed is added. So a clock that is set meanwhile, forward or back, moves no deadline. Time in which the
/// machine slept counts, if the system reports it (Linux).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// A reading of the wall clock and one of the count of time that passes, in milliseconds, made together.
#[derive(Clone, Copy, Debug)]
struct ClockStart {
    wall: i64,
    passed: i64,
}

impl ClockStart {
    /// The moment at which the count shows `passed`.
    fn at(self, passed: i64) -> Timestamp {
        Timestamp::from_millis(self.wall.saturating_add(passed.saturating_sub(self.passed).max(0)))
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        static START: LazyLock<ClockStart> =
            LazyLock::new(|| ClockStart { wall: wall_millis(), passed: passed_millis() });
        START.at(passed_millis())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(wall_millis())
    }
}

/// A clock that continues where an earlier process of the session stopped, if the machine's clock was set back since.
#[derive(Clone)]
pub struct LaterClock {
    clock: Arc<dyn Clock>,
    ahead: Duration,
}

impl LaterClock {
    /// The clock as it is, unless it shows a moment before `newest`: then it begins there.
    pub fn not_before(newest: Timestamp, clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
        let ahead = newest.since(clock.now());
        if ahead.is_zero() { clock } else { Arc::new(Self { clock, ahead }) }
    }
}

impl Clock for LaterClock {
    fn now(&self) -> Timestamp {
        self.clock.now() + self.ahead
    }

    fn wall(&self) -> Timestamp {
        self.clock.wall()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock that all others take")]
fn wall_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A count of time that passes, sleep of the machine included if the system reports it.
fn passed_millis() -> i64 {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let now = clock_gettime(clock);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// A clock that starts at a given moment and follows tokio's time, paused time included.
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    epoch: Timestamp,
    started: Instant,
}

impl VirtualClock {
    /// A clock that shows `epoch` now.
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self { epoch, started: Instant::now() }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.epoch + self.started.elapsed()
    }
}

/// Makes identifiers that are fresh within their session. Those of events are made of the session and their `seq`.
pub trait IdSource: Send + Sync {
    /// An agent run's identifier.
    fn run_id(&self) -> RunId;
    /// A session's identifier, `flow-…`.
    fn session_id(&self) -> SessionId;
    /// A prompt's identifier.
    fn prompt_id(&self) -> PromptId;
}

/// Identifiers that are unique across processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl RandomIds {
    /// The source.
    pub fn new() -> Self {
        Self
    }
}

/// A word with 62 random bits.
#[expect(clippy::disallowed_methods, reason = "this is the `IdSource` that makes random ids")]
fn random_word(what: &str) -> String {
    format!("{what}-{:016x}", Uuid::new_v4().as_u64_pair().1)
}

impl IdSource for RandomIds {
    fn run_id(&self) -> RunId {
        RunId::from(random_word("run"))
    }

    fn session_id(&self) -> SessionId {
        SessionId::from(random_word("flow"))
    }

    fn prompt_id(&self) -> PromptId {
        PromptId::from(random_word("prompt"))
    }
}

/// Identifiers that count from 1, each kind on its own: `run-1`, `prompt-1`, `flow-1`. For replay and tests.
#[derive(Debug, Default)]
pub struct CountingIds {
    runs: AtomicU64,
    sessions: AtomicU64,
    prompts: AtomicU64,
}

impl CountingIds {
    /// A source that has made nothing yet.
    pub fn new() -> Self {
        Self::default()
    }
}

fn next(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}

impl IdSource for CountingIds {
    fn run_id(&self) -> RunId {
        RunId::from(format!("run-{}", next(&self.runs)))
    }

    fn session_id(&self) -> SessionId {
        SessionId::from(format!("flow-{}", next(&self.sessions)))
    }

    fn prompt_id(&self) -> PromptId {
        PromptId::from(format!("prompt-{}", next(&self.prompts)))
    }
}

/// Identifiers within one attempt of a node, named after it: `review.2` for the second attempt's first run and first
/// question, `review.2.2` for the next ones. A session has each attempt once, so they are unique in it.
pub(crate) struct AttemptIds {
    attempt: String,
    runs: AtomicU64,
    prompts: AtomicU64,
    sessions: Arc<dyn IdSource>,
}

impl AttemptIds {
    pub(crate) fn new(path: &NodePath, attempt: u32, used: [u64; 2], sessions: Arc<dyn IdSource>) -> Self {
        let [runs, prompts] = used.map(AtomicU64::new);
        Self { attempt: format!("{path}.{attempt}"), runs, prompts, sessions }
    }

    fn name(&self, counter: &AtomicU64) -> String {
        match next(counter) {
            1 => self.attempt.clone(),
            number => format!("{}.{number}", self.attempt),
        }
    }
}

impl IdSource for AttemptIds {
    fn run_id(&self) -> RunId {
        self.name(&self.runs).into()
    }

    fn session_id(&self) -> SessionId {
        self.sessions.session_id()
    }

    fn prompt_id(&self) -> PromptId {
        self.name(&self.prompts).into()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use super::*;

    #[test]
    fn random_ids_are_never_the_same() {
        let words: BTreeSet<String> = [RandomIds::new(), RandomIds::new()]
            .iter()
            .flat_map(|ids| {
                [ids.run_id().to_string(), ids.session_id().to_string(), ids.prompt_id().to_string()]
            })
            .collect();
        assert_eq!(words.len(), 6);
    }

    #[test]
    fn counting_ids_count_each_kind_on_its_own() {
        let ids = CountingIds::new();
        assert_eq!(
            [
                ids.run_id().to_string(),
                ids.run_id().to_string(),
                ids.prompt_id().to_string(),
                ids.session_id().to_string(),
            ],
            ["run-1", "run-2", "prompt-1", "flow-1"]
        );
    }

    #[test]
    fn the_ids_of_an_attempt_are_named_after_it() {
        let path = NodePath::root(&inspan_protocol::NodeId::new("review").unwrap()).with_pass(3);
        let ids = AttemptIds::new(&path, 2, [0, 1], Arc::new(CountingIds::new()));
        assert_eq!(
            [
                ids.run_id().to_string(),
                ids.run_id().to_string(),
                ids.prompt_id().to_string(),
                ids.prompt_id().to_string(),
                ids.session_id().to_string(),
            ],
            ["review#3.2", "review#3.2.2", "review#3.2.2", "review#3.2.3", "flow-1"]
        );
    }

    #[test]
    fn the_time_that_has_passed_is_added_to_one_reading_of_the_clock() {
        let start = ClockStart { wall: 1_000_000, passed: 500 };
        let read = [500, 750, 400, i64::MAX].map(|passed| start.at(passed).as_millis());
        assert_eq!(read, [1_000_000, 1_000_250, 1_000_000, Timestamp::from_millis(i64::MAX).as_millis()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_back_continues_from_the_newest_event() {
        let at = Timestamp::from_millis;
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::starting_at(at(1_000)));
        let later = [0, 1_000, 9_000].map(|newest| LaterClock::not_before(at(newest), clock.clone()));
        tokio::time::advance(Duration::from_millis(250)).await;
        let read = later.each_ref().map(|clock| (clock.now(), clock.wall()));
        let expected = [(1_250, 1_250), (1_250, 1_250), (9_250, 1_250)];
        assert_eq!(read, expected.map(|(now, wall)| (at(now), at(wall))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_virtual_clock_follows_paused_time() {
        let clock = VirtualClock::starting_at(Timestamp::from_millis(1000));
        let before = clock.now();
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!([before, clock.now()], [1000, 1250].map(Timestamp::from_millis));
    }
}
