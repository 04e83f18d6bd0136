//! The process that is killed, traced and limited: it runs a session, or reads one, and prints its result.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use inspan_protocol::{Envelope, Event, EventContext, RunId, SessionId, Timestamp};
use inspan_store::{
    Batch, Blob, BlobStore, FlowSource, LARGE_VALUE, Lease, Owner, RunStore, Select, SessionRecord,
    SqliteOptions, SqliteStore, StoreError,
};

use crate::{Outcome, SESSION, say};

pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_767_780_000_000);
/// Failures in a row after which it gives up.
const FAILURES: u32 = 5;
/// One event of so many is a fact, which is synced.
pub(crate) const FACTS: u64 = 5;

/// What the parent asks for.
struct ChildTask {
    session: SessionId,
    events: u64,
    bytes: usize,
    die_at: Option<u64>,
}

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let [task, path, rest @ ..] = arguments else { return Err("no task".into()) };
    let mut asked = ChildTask { session: SESSION.into(), events: 100_000, bytes: 0, die_at: None };
    for pair in rest.chunks(2) {
        match pair {
            [name, value] if name == "--session" => asked.session = value.as_str().into(),
            [name, value] if name == "--events" => asked.events = value.parse()?,
            [name, value] if name == "--bytes" => asked.bytes = value.parse()?,
            [name, value] if name == "--die-at" => asked.die_at = Some(value.parse()?),
            other => return Err(format!("unknown: {other:?}").into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match task.as_str() {
        "append" => runtime.block_on(append(path, &asked)),
        "walk" => runtime.block_on(walk(path)),
        task => Err(format!("unknown task: {task}").into()),
    }
}

/// The event at a place of every log; its text is about as long as requested. Every [`FACTS`]th is a fact.
pub(crate) fn event(session: &str, seq: u64, bytes: usize) -> Envelope {
    let content = format!("step {seq} of the team").repeat(1 + bytes / 20);
    let event = if seq.is_multiple_of(FACTS) {
        Event::SessionMessage { content, run_id: None, agent_name: None, mode: None, receivers: None }
    } else {
        Event::AgentText { content, delta: true, run_id: RunId::from("run") }
    };
    Envelope::new(EventContext::session(session.into()), seq, NOW, event)
}

async fn append(path: &str, asked: &ChildTask) -> Outcome {
    let mut options = SqliteOptions::default();
    if let Some(die_at) = asked.die_at {
        let reached = AtomicU64::new(0);
        options = options.on_point(Arc::new(move |_| {
            if reached.fetch_add(1, Ordering::Relaxed) + 1 == die_at {
                let me = rustix::process::getpid();
                if let Err(error) = rustix::process::kill_process(me, rustix::process::Signal::KILL) {
                    say(&format!("error it does not die: {error}"));
                }
            }
        }));
    }
    let store = SqliteStore::open(path, &options)?;
    let lease = take(&store, &asked.session).await?;
    let mut next = ends_at(&store, &asked.session).await? + 1;
    let mut failures = 0;
    while next <= asked.events {
        let last = (next + next % 3).min(asked.events);
        let make = |seq| Arc::new(event(asked.session.as_str(), seq, asked.bytes));
        let events: Vec<_> = (next..=last).map(make).collect();
        if asked.bytes > LARGE_VALUE {
            // A value that no event will refer to, as an attempt leaves it that dies before its end is stored.
            let value = Blob::new(format!("\"left by epoch {} before event {next}\"", lease.epoch));
            store.put(&asked.session, &value).await?;
        }
        match store.append(&lease, Batch { events: &events, answers: &[] }).await {
            Ok(()) => {
                say(&format!("acknowledged {last}"));
                (next, failures) = (last + 1, 0);
            }
            Err(error) => {
                say(&format!("failed {error}"));
                failures += 1;
                if failures == FAILURES {
                    return Ok(());
                }
                // What failed may have been stored anyway.
                next = ends_at(&store, &asked.session).await? + 1;
            }
        }
    }
    store.release(&lease).await?;
    say("done");
    Ok(())
}

async fn take(store: &SqliteStore, session: &SessionId) -> Outcome<Lease> {
    let me = Owner::of_process();
    match store.acquire(session, &me, NOW).await {
        Err(StoreError::UnknownSession(_)) => {}
        taken => return Ok(taken?),
    }
    let flow = FlowSource { name: "oxen".to_owned(), ..FlowSource::default() };
    let record = SessionRecord::new(session.clone(), flow, Default::default(), NOW);
    Ok(store.create(&record, &me, NOW).await?)
}

async fn ends_at(store: &SqliteStore, session: &SessionId) -> Outcome<u64> {
    Ok(store.entry(session).await?.digest.last_seq)
}

async fn walk(path: &str) -> Outcome {
    let store = SqliteStore::open_reader(path)?;
    let named = store.read(&SESSION.into(), 590, Select::Names(&["flow:paused"])).await?;
    let before = peak_kib()?;
    let report = store.verify().await?;
    let (_, exported) = store.export(&SESSION.into(), std::io::sink()).await?;
    let none = store.read(&SESSION.into(), 0, Select::Names(&["flow:paused"])).await?;
    if !report.is_sound() || exported.events != report.events || !none.is_empty() || !named.is_empty() {
        return Err(format!("{report:?} {exported:?}").into());
    }
    say(&format!("KiB {}", peak_kib()? - before));
    Ok(())
}

/// The most memory that this process has used.
fn peak_kib() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no peak")?;
    Ok(peak.trim().trim_end_matches(" kB").parse()?)
}
