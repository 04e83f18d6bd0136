//! What keeping a session on disk costs, beside what the same disk takes to sync one write in the same run.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use inspan_flow::{
    Batch, FlowSource, Lease, Owner, RunStore, Select, SessionRecord, SqliteOptions, SqliteStore,
};
use inspan_protocol::{ENVELOPE_VERSION, Envelope, Event, EventContext, RunId, SessionId, Timestamp};
use inspan_testkit::Stopwatch;

use super::measure::{Goal, Row, Unit, middle};

/// Appends in a round, and rounds.
const APPENDS: u64 = 400;
const ROUNDS: usize = 5;
const SESSIONS: usize = 64;
/// Events in a long session, written so many at once.
const LONG: u64 = 100_000;
const BATCH: u64 = 250;
/// A store with many sessions.
const MANY: usize = 10_000;
/// Agent text in a great session: so many events of so many bytes.
const GREAT: (u64, usize) = (1_600, 65_536);
const NOW: Timestamp = Timestamp::from_millis(1_767_780_000_000);

/// All rows. Time is what passes here, since the disk is waited for. It is the disk under `root` that is measured.
pub(crate) fn rows(root: &Path) -> anyhow::Result<Vec<Row>> {
    let folder = tempfile::tempdir_in(root).context("no folder on the disk of the tree")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut rows = runtime.block_on(appends(folder.path()))?;
    rows.extend(runtime.block_on(long(folder.path()))?);
    rows.extend(runtime.block_on(many(folder.path()))?);
    rows.extend(runtime.block_on(great(folder.path()))?);
    Ok(rows)
}

async fn appends(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let store = Arc::new(open(&folder.join("appends.db"))?);
    let mut logs = Vec::new();
    for number in 0..SESSIONS {
        logs.push(Log::start(&store, &format!("run-{number}"), 40).await?);
    }
    // In turns, so that a busy moment of the disk does not hit one of them alone.
    let (mut syncs, mut ones, mut manys) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        syncs.push(sync(&folder.join("sync"))?);
        let watch = Stopwatch::start();
        for _ in 0..APPENDS {
            logs[0].append(1).await?;
        }
        ones.push(nanoseconds(&watch) / APPENDS as f64);
        let watch = Stopwatch::start();
        let tasks = logs.into_iter().map(|mut log| {
            tokio::spawn(async move {
                for _ in 0..APPENDS / 8 {
                    log.append(1).await?;
                }
                anyhow::Ok(log)
            })
        });
        logs = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            logs.push(task.await??);
        }
        manys.push(nanoseconds(&watch) / (APPENDS / 8 * SESSIONS as u64) as f64);
    }
    let (sync, one, many) = (middle(syncs), middle(ones), middle(manys));
    Ok(vec![
        Row {
            work: "durable append, one at a time".to_owned(),
            value: one,
            reference: Some(("write and fdatasync", sync)),
            goal: Some(Goal::Times(2.0)),
            unit: Unit::Nanoseconds,
        },
        Row {
            work: format!("durable append, {SESSIONS} sessions at once"),
            value: many,
            reference: Some(("one at a time", one)),
            goal: Some(Goal::Times(0.1)),
            unit: Unit::Nanoseconds,
        },
    ])
}

async fn long(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let path = folder.join("long.db");
    let store = Arc::new(open(&path)?);
    let mut log = Log::start(&store, "run-1", 40).await?;
    let watch = Stopwatch::start();
    for _ in 0..LONG / BATCH {
        log.append(BATCH).await?;
    }
    let written = nanoseconds(&watch) / LONG as f64;
    let lines: Vec<String> =
        log.events(1, LONG).iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let (mut reads, mut parses, mut verifies) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let watch = Stopwatch::start();
        let events = store.read(&log.lease.session, 0, Select::All).await?;
        reads.push(nanoseconds(&watch) / events.len() as f64);
        let watch = Stopwatch::start();
        let events: Vec<Envelope> =
            lines.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
        parses.push(nanoseconds(&watch) / events.len() as f64);
        drop(events);
        let watch = Stopwatch::start();
        anyhow::ensure!(store.verify().await?.is_sound(), "the store is not sound");
        verifies.push(nanoseconds(&watch) / LONG as f64);
    }
    let parse = Some(("parsing its JSON", middle(parses)));
    let row =
        |work: String, value, reference| Row { work, value, reference, goal: None, unit: Unit::Nanoseconds };
    Ok(vec![
        row(format!("append an event, {BATCH} at once"), written, None),
        row(format!("load an event, {LONG} in all"), middle(reads), parse),
        row(format!("verify an event, {LONG} in all"), middle(verifies), parse),
    ])
}

async fn many(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let path = folder.join("many.db");
    let store = Arc::new(open(&path)?);
    for hundred in 0..MANY / 100 {
        let made = (0..100).map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(
                async move { Log::start(&store, &format!("run-{hundred:03}{number:02}"), 2_000).await },
            )
        });
        for made in made.collect::<Vec<_>>() {
            made.await??.append(1).await?;
        }
    }
    drop(store);
    let (mut opens, mut lists) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let watch = Stopwatch::start();
        let store = open(&path)?;
        opens.push(nanoseconds(&watch));
        store.entries("", 1).await?;
        let watch = Stopwatch::start();
        anyhow::ensure!(store.entries("", 50).await?.len() == 50, "sessions are missing");
        lists.push(nanoseconds(&watch));
    }
    let row = |work: String, values, goal| Row {
        work,
        value: middle(values),
        reference: None,
        goal: Some(Goal::Within(goal)),
        unit: Unit::Nanoseconds,
    };
    Ok(vec![
        row(format!("open a store of {MANY} sessions"), opens, 50e6),
        row(format!("list the newest 50 of {MANY} sessions"), lists, 5e6),
    ])
}

async fn great(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let store = Arc::new(open(&folder.join("great.db"))?);
    let (events, bytes) = GREAT;
    let mut log = Log::start(&store, "run-1", bytes).await?;
    let watch = Stopwatch::start();
    for _ in 0..events / 16 {
        log.append(16).await?;
    }
    let written = nanoseconds(&watch);
    let watch = Stopwatch::start();
    let read = store.read(&log.lease.session, 0, Select::All).await?.len();
    let loaded = nanoseconds(&watch);
    anyhow::ensure!(read as u64 == events, "events are missing");
    let row = |work: &str, value| Row {
        work: work.to_owned(),
        value,
        reference: None,
        goal: None,
        unit: Unit::Nanoseconds,
    };
    Ok(vec![row("append 100 MB of agent text", written), row("load 100 MB of agent text", loaded)])
}

fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    Ok(SqliteStore::open(path, &SqliteOptions::default())?)
}

/// What one write with its sync costs: the least that a durable append can do.
pub(super) fn sync(path: &Path) -> anyhow::Result<f64> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let line = [b'x'; 512];
    let watch = Stopwatch::start();
    for _ in 0..APPENDS {
        file.write_all(&line)?;
        file.sync_data()?;
    }
    Ok(nanoseconds(&watch) / APPENDS as f64)
}

fn nanoseconds(watch: &Stopwatch) -> f64 {
    watch.elapsed().as_secs_f64() * 1e9
}

/// A session that is written.
struct Log {
    store: Arc<SqliteStore>,
    lease: Lease,
    bytes: usize,
    next: u64,
}

impl Log {
    async fn start(store: &Arc<SqliteStore>, id: &str, bytes: usize) -> anyhow::Result<Self> {
        let record = SessionRecord {
            session: SessionId::from(id),
            flow: FlowSource { name: "bench".to_owned(), ..FlowSource::default() },
            input: serde_json::Map::new(),
            created_at: NOW,
            parent: None,
            base: None,
            settings: serde_json::Map::new(),
        };
        let lease = store.create(&record, &Owner::of_process(), NOW).await?;
        Ok(Self { store: Arc::clone(store), lease, bytes, next: 1 })
    }

    async fn append(&mut self, count: u64) -> anyhow::Result<()> {
        let events: Vec<_> = self.events(self.next, count).into_iter().map(Arc::new).collect();
        self.next += count;
        Ok(self.store.append(&self.lease, Batch { events: &events, answers: &[] }).await?)
    }

    fn events(&self, first: u64, count: u64) -> Vec<Envelope> {
        let context = Arc::new(EventContext::session(self.lease.session.clone()));
        let make = |seq| Envelope {
            v: ENVELOPE_VERSION,
            id: inspan_protocol::EventId(Default::default()),
            seq,
            timestamp: NOW,
            context: Arc::clone(&context),
            event: Event::AgentText {
                content: "x".repeat(self.bytes),
                delta: true,
                run_id: RunId::from("run-1"),
            },
        };
        (first..first + count).map(make).collect()
    }
}
