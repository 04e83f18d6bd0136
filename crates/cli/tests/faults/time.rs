//! Clocks that jump, and waits that outlast any process: timers follow the clock and are never early by it, a
//! process that runs keeps its lease, and a session that waits costs nothing but its rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_engine::{Clock, ProviderRegistry, VirtualClock};
use inspan_flow::{
    Batch, FlowRunner, Liveness, MemoryStore, Owner, Resume, RunStore, SqliteOptions, SqliteStore,
    StoreError, WhenWaiting, builtin_nodes,
};
use inspan_protocol::{Envelope, EventContext, Outcome, SessionId, Timestamp};
use serde_json::Map;

use super::place::{FaultSandbox, compile, runtime};
use super::{Promise, Size};

pub(super) const JUMPS: Promise = Promise {
    bound: "no timer before the clock shows its moment, none a minute after; no lease of a living owner is lost",
    prove: jumps,
};

pub(super) const MONTH: Promise = Promise {
    bound: "restarts change nothing; its default is taken when the days are over, and not before",
    prove: month,
};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const JUMPED: [i64; 4] = [HOUR, DAY, -HOUR, -DAY];
/// How late a timer may be, by the clock.
const LATE: i64 = 61_000;

/// A clock that the test sets.
struct SetClock {
    plain: VirtualClock,
    set: AtomicI64,
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.plain.now().as_millis() + self.set.load(Ordering::SeqCst))
    }
}

const TIMERS: &str = r#"
flow: { name: timers }
nodes:
  - { id: wait, type: control.wait, input: { ms: 7200000 } }
  - { id: ask, type: human.input, input: { prompt: "Well?", choices: [yes, no], timeout: 3h, default: no } }
  - { id: late, type: human.input, input: { prompt: "And?" }, policy: { timeout: 4h, continueOnError: true } }
"#;

fn jumps(size: Size) -> anyhow::Result<String> {
    let place = size.place("jumps-")?;
    place.write("flow.yaml", TIMERS)?;
    let mut latest = 0;
    for jump in JUMPED {
        let log = jumped(&place, jump).with_context(|| format!("a jump of {jump} ms"))?;
        let begin =
            log.iter().find(|envelope| envelope.event.name() == "task:start").context("nothing began")?;
        for (node, hours) in [("wait", 2), ("ask", 3), ("late", 4)] {
            let mut of = log.iter().filter(|envelope| {
                envelope.context.task.as_ref().is_some_and(|task| task.node() == node)
                    && matches!(envelope.event.name(), "task:complete" | "task:failed")
            });
            let end = of.next().with_context(|| format!("`{node}` did not end"))?;
            let over = end.timestamp.as_millis() - begin.timestamp.as_millis() - hours * HOUR;
            // What the jump itself has skipped ends at once.
            let passed = if jump > 0 { (jump + HOUR / 2 - hours * HOUR).max(0) } else { 0 };
            ensure!(over >= 0, "`{node}` ended {} ms before its time", -over);
            ensure!(over <= passed + LATE, "`{node}` ended {over} ms after its time");
            latest = latest.max(over - passed);
        }
    }
    let leases = leases(size)?;
    Ok(format!("4 jumps with 3 timers each: 0 early, the latest {latest} ms late by the clock; {leases}"))
}

/// Runs the timers in virtual time, and sets the clock half an hour after their start.
fn jumped(place: &FaultSandbox, jump: i64) -> anyhow::Result<Vec<Envelope>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let plain = VirtualClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
        let clock = Arc::new(SetClock { plain, set: AtomicI64::new(0) });
        let graph = compile(&place.path("flow.yaml"), &ProviderRegistry::new())?;
        let runner = FlowRunner::builder(Arc::new(graph), builtin_nodes(&ProviderRegistry::new()))
            .clock(Arc::<SetClock>::clone(&clock))
            .store(Arc::new(MemoryStore::new()))
            .with_events()
            .build();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1_800)).await;
            clock.set.store(jump, Ordering::SeqCst);
        });
        let result = runner.run(Map::new()).await?;
        ensure!(result.outcome == Outcome::Success, "it ended with {:?}", result.error);
        Ok(result.events.iter().map(|envelope| Envelope::clone(envelope)).collect())
    })
}

/// The lease of an owner that is alive, before and after each jump of the clock.
fn leases(size: Size) -> anyhow::Result<String> {
    let place = size.place("leases-")?;
    let (log, record) = waiting(&place, 0)?;
    let now = log.first().context("the log is empty")?.timestamp;
    let mut held = 0;
    runtime()?.block_on(async {
        let store = SqliteStore::open(place.path("leases.db"), &SqliteOptions::default())?;
        for jump in JUMPED {
            let id = SessionId::from(format!("jump{jump}"));
            let mut record = record.clone();
            record.session = id.clone();
            let lease = store.create(&record, &Owner::of_process(), now).await?;
            let then = Timestamp::from_millis(now.as_millis() + jump);
            let other = Owner { pid: 1, began: 0, ..Owner::of_process() };
            let refused = store.acquire(&id, &other, then).await;
            ensure!(matches!(refused, Err(StoreError::Held { .. })), "another got the lease: {refused:?}");
            ensure!(store.entry(&id).await?.liveness == Liveness::Alive, "the owner does not count as alive");
            store.renew(&lease, then).await?;
            let events: Vec<_> = log.iter().take(3).map(|envelope| renamed(envelope, &id)).collect();
            store.append(&lease, Batch { events: &events, answers: &[] }).await?;
            held += 1;
        }
        anyhow::Ok(())
    })?;
    Ok(format!("{held} leases held, renewed and used"))
}

/// The event in another session.
pub(super) fn renamed(envelope: &Envelope, session: &SessionId) -> Arc<Envelope> {
    let context = EventContext { session_id: session.clone(), ..(*envelope.context).clone() };
    Arc::new(Envelope { context: Arc::new(context), ..envelope.clone() })
}

/// A question that waits for a month.
const QUESTION: &str = r#"
flow: { name: month }
nodes:
  - { id: before, type: echo, input: { text: hello } }
  - { id: ask, type: human.input, dependsOn: [before], input: { prompt: "Still there?", choices: [yes, no], timeout: 30d, default: no } }
  - { id: after, type: echo, dependsOn: [ask], input: { text: "{{ ask.choice }}" } }
"#;

/// When the month begins.
const BEGIN: i64 = 1_800_000_000_000;

/// A session that has come to wait, as its store has it: its log and its record.
pub(super) fn waiting(
    place: &FaultSandbox,
    day: i64,
) -> anyhow::Result<(Vec<Envelope>, inspan_flow::SessionRecord)> {
    place.write("flow.yaml", QUESTION)?;
    let outcome = visit(place, day)?;
    ensure!(outcome == Outcome::Waiting, "it ended with {outcome:?}");
    let look = place.look("month")?.context("the session is gone")?;
    let record = runtime()?.block_on(async {
        SqliteStore::open_reader(place.store())?.record(&SessionId::from("month")).await
    })?;
    Ok((look.log, record))
}

/// A process that looks after the session on this day, and leaves if there is nothing to do.
fn visit(place: &FaultSandbox, day: i64) -> anyhow::Result<Outcome> {
    let id = SessionId::from("month");
    let is_there = place.entry("month")?.is_some();
    runtime()?.block_on(async {
        let graph = compile(&place.path("flow.yaml"), &ProviderRegistry::new())?;
        let store = Arc::new(SqliteStore::open(place.store(), &SqliteOptions::default())?);
        let builder = FlowRunner::builder(Arc::new(graph), builtin_nodes(&ProviderRegistry::new()))
            .clock(Arc::new(VirtualClock::starting_at(Timestamp::from_millis(BEGIN + day * DAY))))
            .when_waiting(WhenWaiting::Leave)
            .store(store);
        let result = if is_there {
            builder.open(&id).await?.resume(Resume::default()).await?
        } else {
            builder.session_id(id).build().run(Map::new()).await?
        };
        Ok(result.outcome)
    })
}

/// Until when the question waits.
fn deadline(place: &FaultSandbox) -> anyhow::Result<Timestamp> {
    let open = place.entry("month")?.context("the session is gone")?.digest.prompts;
    open.first().and_then(|open| open.deadline).context("nothing is asked")
}

fn month(size: Size) -> anyhow::Result<String> {
    let place = size.place("month-")?;
    waiting(&place, 0)?;
    let deadline = deadline(&place)?;
    let asked = deadline.as_millis() - BEGIN - 30 * DAY;
    ensure!((0..LATE).contains(&asked), "it waits until {deadline}");
    for day in [1, 10, 20, 29] {
        let outcome = visit(&place, day)?;
        ensure!(outcome == Outcome::Waiting, "on day {day} it ended with {outcome:?}");
        let now = self::deadline(&place)?;
        // The first process counts from when it asks, the next from when the node began.
        ensure!(
            now.as_millis().abs_diff(deadline.as_millis()) < 1_000,
            "on day {day} it waits until {now}, and before until {deadline}"
        );
    }
    let outcome = visit(&place, 31)?;
    ensure!(outcome == Outcome::Success, "at last it ended with {outcome:?}");
    let log = place.look("month")?.context("the session is gone")?.log;
    inspan_engine::check_order(&log).map_err(anyhow::Error::msg)?;
    place.sound()?;
    Ok("left and resumed on days 1, 10, 20 and 29: it waits; on day 31 the default is taken".to_owned())
}
