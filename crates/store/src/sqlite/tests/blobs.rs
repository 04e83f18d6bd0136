//! Large values beside the log: stored once, seen whole by every reader, checked by their hash, and deleted with their
//! session or when no event refers to them.

use std::{fs, io, path::Path, sync::Arc};

use inspan_protocol::{Envelope, Event, NodeId, SessionId};
use serde_json::{Value, json};

use super::{SqliteStore, TestFolder, append, start};
use crate::{
    Blob, BlobStore, Finding, Gc, Import, LARGE_VALUE, Owner, RunStore, Select, StoreError, StoreProblem,
    tests::samples::{at, event, events, text},
};

fn large(letter: &str) -> Value {
    json!({ "text": letter.repeat(LARGE_VALUE) })
}

fn complete(seq: u64, result: Value) -> Arc<Envelope> {
    let task_id = NodeId::new("a").unwrap();
    event("run-1", seq, Event::TaskComplete { task_id, result: Arc::new(result), duration_ms: 1 })
}

/// A log with two large outputs, of which one comes twice, and one that only looks like a reference.
fn log() -> Vec<Arc<Envelope>> {
    let mut log = events("run-1", 1..=2);
    log.extend([
        complete(3, large("a")),
        complete(4, large("b")),
        complete(5, large("a")),
        complete(6, json!({ "$blob": "00", "bytes": 2 })),
        event("run-1", 7, text("the end")),
    ]);
    log
}

async fn filled(place: &TestFolder) -> (SqliteStore, SessionId) {
    let store = place.open();
    let lease = start(&store, "run-1").await;
    append(&store, &lease, &log()).await.unwrap();
    store.release(&lease).await.unwrap();
    (store, lease.session)
}

fn hashes(place: &TestFolder) -> Vec<String> {
    let raw = place.raw();
    let mut query = raw.prepare("SELECT hash FROM blobs ORDER BY hash").unwrap();
    query.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn blob(letter: &str) -> Blob {
    Blob::new(large(letter).to_string())
}

#[tokio::test]
async fn a_large_value_is_stored_once_and_seen_whole() {
    let place = TestFolder::new();
    let (store, id) = filled(&place).await;
    let mut expected = [blob("a"), blob("b")].map(|blob| blob.hash().to_owned());
    expected.sort();
    assert_eq!(hashes(&place), expected);
    let rows = "SELECT max(length(body)), count(large) FROM events";
    let rows = place.raw().query_row(rows, (), |row| Ok((row.get(0)?, row.get(1)?)));
    assert_eq!(rows.map(|(longest, large): (i64, i64)| (longest < 1_000, large)), Ok((true, 3)));
    // As a person reads it by hand.
    let joined = "SELECT blobs.body FROM log JOIN blobs ON blobs.hash = log.body->>'$.event.result.$blob' WHERE seq = 4";
    let joined: String = place.raw().query_row(joined, (), |row| row.get(0)).unwrap();
    assert_eq!(joined, large("b").to_string());

    assert_eq!(store.read(&id, 0, Select::All).await, Ok(log()));
    assert_eq!(store.read_next(&id, 4, 2).await, Ok(log()[3..5].to_vec()));
    assert_eq!(store.read(&id, 0, Select::Names(&["task:complete"])).await, Ok(log()[2..6].to_vec()));
    assert!(store.verify().await.unwrap().is_sound());
    assert_eq!(store.get(&id, &blob("a").reference()).await, Ok(blob("a")));
}

#[tokio::test]
async fn an_export_holds_large_values_whole_and_an_import_stores_them_apart() {
    let (here, there) = (TestFolder::new(), TestFolder::new());
    let (from, id) = filled(&here).await;
    let to = there.open();
    let (lines, exported) = from.export(&id, Vec::new()).await.unwrap();
    assert_eq!((exported.events, exported.damage), (7, None));
    let fourth: Value = serde_json::from_slice(lines.split(|byte| *byte == b'\n').nth(4).unwrap()).unwrap();
    assert_eq!(fourth["event"]["result"], large("b"));
    to.import(io::Cursor::new(lines.clone()), Import::Whole).await.unwrap();
    assert_eq!(hashes(&there), hashes(&here));
    assert_eq!(to.read(&id, 0, Select::All).await, Ok(log()));
    assert_eq!(to.export(&id, Vec::new()).await.unwrap().0, lines);
    assert!(to.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn a_large_value_that_is_altered_or_missing_is_named() {
    let hash = blob("b").hash().to_owned();
    let gone = format!("event 4: its large value {hash} is missing or altered");
    let unread = "event 4 is altered".to_owned();
    let cases = [
        (
            format!("DELETE FROM blobs WHERE hash = '{hash}'"),
            gone.clone(),
            StoreProblem::Broken(gone.clone()),
        ),
        (
            format!("UPDATE blobs SET body = replace(body, 'bbb', 'bab') WHERE hash = '{hash}'"),
            gone.clone(),
            StoreProblem::Broken(gone.clone()),
        ),
        (
            format!("UPDATE blobs SET hash = 'x' WHERE hash = '{hash}'"),
            gone.clone(),
            StoreProblem::Broken(gone),
        ),
        ("UPDATE events SET large = NULL WHERE seq = 4".to_owned(), unread.clone(), StoreProblem::Altered(4)),
        ("UPDATE events SET large = '[\"type\"]' WHERE seq = 4".to_owned(), unread, StoreProblem::Altered(4)),
    ];
    for (harm, what, problem) in cases {
        let place = TestFolder::new();
        let (store, id) = filled(&place).await;
        place.raw().execute_batch(&harm).unwrap();
        let damaged = place.damaged(&format!("session `run-1`: {what}"));
        assert_eq!(store.read(&id, 0, Select::All).await, Err(damaged), "{harm}");
        // What does not return the event needs no value, and the events before it are read.
        assert_eq!(store.read_next(&id, 1, 3).await, Ok(log()[..3].to_vec()), "{harm}");
        let found = store.verify().await.unwrap().findings;
        assert_eq!(found, [Finding { session: Some(id.clone()), problem }], "{harm}");
        let (lines, exported) = store.export(&id, Vec::new()).await.unwrap();
        assert_eq!((exported.events, exported.damage), (3, Some(what)), "{harm}");
        assert_eq!(lines.split(|byte| *byte == b'\n').count(), 5, "{harm}");
        // Nothing is deleted while it is not known what is used.
        let before = hashes(&place).len();
        store.gc(at(0), Gc::Delete, at(9), |_| ()).await.unwrap();
        let left = hashes(&place).len();
        assert!(left == before || harm.contains("SET hash"), "{harm}: {before} and {left}");
    }
}

#[tokio::test]
async fn what_no_event_refers_to_is_collected_and_a_session_takes_its_values_with_it() {
    let place = TestFolder::new();
    let (store, id) = filled(&place).await;
    let unused = blob("c");
    store.put(&id, &unused).await.unwrap();
    // What is stored beforehand is not stored again with its event.
    store.put(&id, &blob("d")).await.unwrap();
    let lease = store.acquire(&id, &Owner::of_process(), at(1)).await.unwrap();
    append(&store, &lease, &[complete(8, large("d"))]).await.unwrap();
    assert_eq!(hashes(&place).len(), 4);
    // A process that runs the session may be about to refer to it.
    assert_eq!(store.gc(at(0), Gc::Delete, at(2), |_| ()).await.unwrap().unused_values, 0);
    store.release(&lease).await.unwrap();
    for (mode, left) in [(Gc::Look, 4), (Gc::Delete, 3)] {
        assert_eq!(store.gc(at(0), mode, at(2), |_| ()).await.unwrap().unused_values, 1);
        assert_eq!(hashes(&place).len(), left);
    }
    let missing = StoreError::NoBlob { session: id.clone(), hash: unused.hash().to_owned() };
    assert_eq!(store.get(&id, &unused.reference()).await, Err(missing));
    assert_eq!(store.read(&id, 8, Select::All).await, Ok(vec![complete(8, large("d"))]));
    assert!(store.verify().await.unwrap().is_sound());
    let deleted = store.delete(std::slice::from_ref(&id), Gc::Delete, at(3)).await.unwrap();
    assert!(deleted[0].events == 8 && deleted[0].bytes > 3 * LARGE_VALUE as u64, "{deleted:?}");
    assert_eq!(hashes(&place), Vec::<String>::new());
}

#[tokio::test]
async fn a_value_of_nobody_is_found() {
    let place = TestFolder::new();
    let (store, _) = filled(&place).await;
    place.raw().execute_batch("UPDATE blobs SET session = 77").unwrap();
    let found = store.verify().await.unwrap().findings;
    let stray = StoreProblem::File("2 rows of `blobs` belong to no session".to_owned());
    assert_eq!(found.last(), Some(&Finding { session: None, problem: stray }));
}

/// A store that an older program wrote is read as it is, also by a reader that has it open while it is upgraded.
#[tokio::test]
async fn a_store_of_format_1_is_read_and_brought_up() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/stores/format-1");
    let place = TestFolder::new();
    for (name, end) in [("sessions.db", ""), ("sessions.db-wal", "-wal"), ("sessions.db-marks", "-marks")] {
        fs::copy(golden.join(name), place.beside(end)).unwrap();
    }
    let format =
        || -> i64 { place.raw().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap() };
    let reader = SqliteStore::open_reader(&place.path).unwrap();
    let sessions: Vec<_> =
        reader.entries("", 9).await.unwrap().into_iter().map(|entry| entry.session).collect();
    let mut before = Vec::new();
    for id in &sessions {
        before.push(reader.read(id, 0, Select::All).await.unwrap());
    }
    assert!(reader.verify().await.unwrap().is_sound());
    assert_eq!((format(), sessions.len()), (1, 4));

    let store = place.open();
    assert_eq!(format(), 3);
    for (id, before) in sessions.iter().zip(before) {
        let last = before.last().unwrap().seq;
        for store in [&reader, &store] {
            assert_eq!(store.read(id, 0, Select::All).await.as_deref(), Ok(&before[..]));
        }
        let lease = store.acquire(id, &Owner::of_process(), at(1 << 40)).await.unwrap();
        let mut next = (*complete(last + 1, large("a"))).clone();
        next.context = before[0].context.clone();
        let next = vec![Arc::new(next)];
        append(&store, &lease, &next).await.unwrap();
        store.release(&lease).await.unwrap();
        for store in [&reader, &store] {
            assert_eq!(store.read(id, last + 1, Select::All).await.as_ref(), Ok(&next));
        }
    }
    assert!(reader.verify().await.unwrap().is_sound());
    let backup = SqliteStore::open_reader(place.beside("-format-1.backup")).unwrap();
    assert!(backup.verify().await.unwrap().is_sound());
}
