//! Load: ten thousand sessions that wait in one store, and an agent that writes very much text.

use inspan_testkit::{Stopwatch, pause};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use inspan_flow::{Batch, Owner, RunStore as _, SqliteOptions, SqliteStore};
use inspan_protocol::{Event, SessionId};

use super::place::{memory, resident, runtime};
use super::time::{renamed, waiting};
use super::{Promise, Size};

pub(super) const SESSIONS: Promise = Promise {
    bound: "open and list in a third of the time that making them took and 100 MB, no open file per session; one more runs \
            and one of them is found",
    prove: sessions,
};

pub(super) const TEXT: Promise = Promise {
    bound: "all of it is kept, the store is sound, the process takes at most twice the text and 32 MB",
    prove: text,
};

const SESSIONS_KEPT: usize = 10_000;
/// Requests that are made at once, so that they share commits.
const AT_ONCE: usize = 64;
const MEMORY: u64 = 100 << 20;
/// What the process may take beside twice the text, which is held for the output and returned.
const TALKER: u64 = 32 << 20;
/// Bytes of one text.
const PIECE: usize = 8_192;

fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or_default()
}

fn sessions(size: Size) -> anyhow::Result<String> {
    let place = size.place("sessions-")?;
    let (log, record) = waiting(&place, 0)?;
    let watch = Stopwatch::start();
    runtime()?.block_on(async {
        let store = SqliteStore::open(place.store(), &SqliteOptions::default())?;
        let now = log.first().context("the log is empty")?.timestamp;
        let (store, log, record) = (&store, &log, &record);
        stream::iter(0..SESSIONS_KEPT)
            .map(|at| async move {
                let id = SessionId::from(format!("waits-{at:05}"));
                let mut record = record.clone();
                record.session = id.clone();
                let events: Vec<_> = log.iter().map(|envelope| renamed(envelope, &id)).collect();
                let lease = store.create(&record, &Owner::of_process(), now).await?;
                store.append(&lease, Batch { events: &events, answers: &[] }).await?;
                anyhow::Ok(store.release(&lease).await?)
            })
            .buffer_unordered(AT_ONCE)
            .try_for_each(|()| async { Ok(()) })
            .await
    })?;
    let made = watch.elapsed();
    let (files_before, before) = (files(), resident());
    let watch = Stopwatch::start();
    let (count, files_more, more) = runtime()?.block_on(async {
        let store = SqliteStore::open(place.store(), &SqliteOptions::default())?;
        let entries = store.entries("waits-", SESSIONS_KEPT * 2).await?;
        let waits = entries.iter().filter(|entry| entry.digest.prompts.len() == 1).count();
        anyhow::Ok((waits, files().saturating_sub(files_before), resident().saturating_sub(before)))
    })?;
    let listed = watch.elapsed();
    ensure!(count == SESSIONS_KEPT, "{count} sessions wait");
    let watch = Stopwatch::start();
    let ps = place.run(&["ps", "--json", "-n", "100000"])?.expect(0)?;
    let by_program = watch.elapsed();
    ensure!(ps.stdout.matches("waits-").count() >= SESSIONS_KEPT, "the program does not list them all");
    place.write(
        "one.yaml",
        "flow: { name: one }\nnodes:\n  - { id: a, type: echo, input: { text: hello } }\n",
    )?;
    let watch = Stopwatch::start();
    place.run(&["run", "one.yaml", "--session-id", "one"])?.expect(0)?;
    let ran = watch.elapsed();
    let found = place.run(&["show", "waits-04321", "--json"])?.expect(0)?;
    ensure!(found.stdout.contains("waits-04321"), "{}", found.stdout);
    let figure = format!(
        "{SESSIONS_KEPT} sessions of {} events, made in {:.1} s: opened and listed in {} ms, {} MB more, {files_more} files \
         open; `ps` {} ms; a run beside them {} ms",
        log.len(),
        made.as_secs_f64(),
        listed.as_millis(),
        more >> 20,
        by_program.as_millis(),
        ran.as_millis(),
    );
    // As a share of what the same machine did just before: it may be a slow one.
    ensure!(listed <= made / 3, "the list is slow\n{figure}");
    ensure!(more <= MEMORY, "it takes too much memory\n{figure}");
    ensure!(files_more < 20, "files stay open\n{figure}");
    Ok(figure)
}

fn text(size: Size) -> anyhow::Result<String> {
    let place = size.place("text-")?;
    let pieces = size.count(10, 100) * (1 << 20) / PIECE;
    let piece = "word ".repeat(PIECE / 5 + 1);
    let piece = &piece[..PIECE];
    let script = format!(
        r#"#!/bin/sh
say() {{ printf '%s\n' "$1"; }}
read -r line
say '{{"type":"control_response","response":{{"subtype":"success","request_id":"initialize","response":{{}}}}}}'
read -r line
say '{{"type":"stream_event","event":{{"type":"message_start","message":{{"id":"m1"}}}}}}'
yes "$(cat piece)" | head -n {pieces}
say '{{"type":"result","subtype":"success","is_error":false,"result":"done","stop_reason":"end_turn","total_cost_usd":0}}'
cat >/dev/null
"#
    );
    let line = format!(
        r#"{{"type":"stream_event","event":{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{piece}"}}}}}}"#
    );
    place.write("piece", &line)?;
    place.script("talker.sh", &script)?;
    let node = "{ id: a, type: claude.agent, input: { prompt: go, options: { executable: ./talker.sh } } }";
    place.write("flow.yaml", &format!("flow: {{ name: talker }}\nnodes:\n  - {node}\n"))?;
    let watch = Stopwatch::start();
    let mut running = place.start(place.command(&["run", "flow.yaml", "--session-id", "s"]))?;
    let mut most = 0;
    while !running.has_ended()? {
        most = most.max(memory(running.child.id()));
        pause(Duration::from_millis(5));
    }
    running.finish()?.expect(0)?;
    let took = watch.elapsed();
    let log = place.look("s")?.context("the session is gone")?.log;
    let said: usize = log
        .iter()
        .map(|envelope| match &envelope.event {
            Event::AgentText { content, .. } => content.len(),
            _ => 0,
        })
        .sum();
    place.run(&["store", "verify"])?.expect(0)?;
    let size = std::fs::metadata(place.store())?.len();
    let figure = format!(
        "{} MB of text in {} events: {:.1} s, {} MB of memory, a store of {} MB, sound",
        said >> 20,
        log.len(),
        took.as_secs_f64(),
        most >> 20,
        size >> 20,
    );
    ensure!(said == pieces * PIECE, "{said} bytes were kept of {}\n{figure}", pieces * PIECE);
    ensure!(most <= TALKER + 2 * said as u64, "it takes too much memory\n{figure}");
    Ok(figure)
}
