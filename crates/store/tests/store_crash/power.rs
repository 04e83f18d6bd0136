//! Power cuts at any call of a process that appends.

use std::{path::Path, process::Stdio};

use inspan_protocol::Timestamp;
use inspan_store::{Batch, Owner, RunStore, Select, SqliteOptions, SqliteStore};
use inspan_testkit::{DiskCall, StoreDisk, Unsynced, disk_calls, tracer};

use crate::{Outcome, SESSION, can_trace, child, command, ensure, listen, place};

const EVENTS: u64 = 160;
const BYTES: usize = 12_000;
/// How many moments are tried, each with several parts of what was not synced.
const MOMENTS: usize = 120;

pub(crate) fn cuts() -> Outcome {
    if !can_trace() {
        return Ok(());
    }
    let (_folder, path) = place()?;
    // The session begins, and its process ends.
    let begun = listen(command("append", &path)?.args(["--events", "3"]).spawn()?, |_| false)?;
    ensure(begun.done, || "the session was not begun".to_owned())?;
    let mut disk = StoreDisk::of(&path);
    let calls = trace(&path)?;
    let checkpointed = calls.iter().any(|call| matches!(call, DiskCall::Write { file: "", .. }));
    ensure(checkpointed, || "the write-ahead log was never copied into the file".to_owned())?;
    let (mut chance, mut acknowledged, mut seen) = (Chance(7), 3, Seen::default());
    let stride = (calls.len() / MOMENTS).max(1) as u64;
    for (number, call) in calls.iter().enumerate() {
        disk.take(call);
        if let DiskCall::Print { text, .. } = call {
            for seq in text.lines().filter_map(|line| line.strip_prefix("acknowledged ")) {
                acknowledged = seq.parse()?;
            }
        }
        if chance.below(stride) == 0 {
            for unsynced in [Unsynced::Lost, Unsynced::Torn, Unsynced::Torn, Unsynced::Written] {
                let last = look(&disk, unsynced, &mut chance, acknowledged)
                    .map_err(|error| format!("cut after call {number} {call:?}, {unsynced:?}: {error}"))?;
                seen.cuts += 1;
                seen.shortened += u64::from(last < acknowledged);
            }
        }
    }
    ensure(acknowledged == EVENTS, || format!("only {acknowledged} events were acknowledged"))?;
    ensure(seen.cuts > 200 && seen.shortened > 10, || format!("it is no test: {seen:?}"))
}

#[derive(Debug, Default)]
struct Seen {
    cuts: u64,
    /// Cuts that took acknowledged events, none of them a fact.
    shortened: u64,
}

/// Opens what a cut leaves, after the boot that follows it; the last event.
fn look(disk: &StoreDisk, unsynced: Unsynced, chance: &mut Chance, acknowledged: u64) -> Outcome<u64> {
    let (_folder, path) = place()?;
    disk.lay_out(&path, unsynced, &mut |limit| chance.below(limit))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = SqliteStore::open(&path, &SqliteOptions::default())?;
        let report = store.verify().await?;
        ensure(report.is_sound(), || format!("{:?}", report.findings))?;
        let log = store.read(&SESSION.into(), 0, Select::All).await?;
        for (event, seq) in log.iter().zip(1..) {
            let bytes = if seq <= 3 { 0 } else { BYTES };
            let same = **event == child::event(SESSION, seq, bytes);
            ensure(same, || format!("event {seq} is not what was written"))?;
        }
        let last = log.len() as u64;
        // The newest fact that was acknowledged, and with it all before it.
        let promised = match unsynced {
            Unsynced::Written => acknowledged,
            Unsynced::Lost | Unsynced::Torn => acknowledged - acknowledged % child::FACTS,
        };
        ensure(last >= promised, || format!("{promised} events were promised, and {last} are left"))?;
        // The session continues, and the numbers of lost events are used again.
        let now = Timestamp::from_millis(child::NOW.as_millis() + 3_600_000);
        let lease = store.acquire(&SESSION.into(), &Owner::of_process(), now).await?;
        let next = child::event(SESSION, last + 1, 1);
        store.append(&lease, Batch { events: &[next.into()], answers: &[] }).await?;
        let report = store.verify().await?;
        ensure(report.is_sound(), || format!("after one event more: {:?}", report.findings))?;
        Ok(last)
    })
}

/// Runs the process that appends, and reads what it did.
fn trace(path: &Path) -> Outcome<Vec<DiskCall>> {
    let to = path.with_file_name("trace");
    let mut strace = tracer(&to);
    strace.arg(std::env::current_exe()?).args(["child", "append"]).arg(path);
    strace.args(["--events", &EVENTS.to_string(), "--bytes", &BYTES.to_string()]);
    let said = listen(strace.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?, |_| false)?;
    ensure(said.done && said.failed.is_empty(), || format!("the traced process failed: {:?}", said.failed))?;
    Ok(disk_calls(&to, path)?)
}

/// Numbers that look like chance and are the same on every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}
