//! What is missing or altered is reported with its session and `seq`, wherever the file was corrupted.

use std::{fs, os::unix::fs::FileExt, path::Path};

use inspan_protocol::{SessionId, Timestamp, Usage};
use rusqlite::Connection;
use serde_json::json;

use super::{SqliteOptions, SqliteStore, TestFolder, append, fill, start};
use crate::{
    Finding, Gc, Lease, Owner, RunStore, Select, StoreError, StoreProblem,
    sqlite::marks,
    tests::samples::{at, end, event, events, note, text},
};
use inspan_protocol::Command;

const LOST: &str = " (accept the loss to continue with what is left)";

/// What is done to the files of a store.
type Harm = fn(&TestFolder);

fn finding(session: &str, problem: StoreProblem) -> Finding {
    Finding { session: Some(SessionId::from(session)), problem }
}

/// Copies a store as a machine would find it after a crash: without the last words of who had it open.
fn as_it_lies(from: &TestFolder) -> TestFolder {
    let to = TestFolder::new();
    for end in ["", "-wal", "-marks"] {
        if from.beside(end).exists() {
            fs::copy(from.beside(end), to.beside(end)).unwrap();
        }
    }
    to
}

fn flip(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x08], offset).unwrap();
}

/// How many events SQLite still sees.
fn left(raw: &Connection) -> u64 {
    let rows: i64 = raw.query_row("SELECT count(*) FROM events", (), |row| row.get(0)).unwrap();
    rows.unsigned_abs()
}

/// A store whose events are all in the write-ahead log, one commit each.
async fn logged(count: u64) -> (TestFolder, SqliteStore, SessionId) {
    let place = TestFolder::new();
    let store = place.open();
    let lease = start(&store, "run-1").await;
    for event in events("run-1", 1..=count) {
        append(&store, &lease, &[event]).await.unwrap();
    }
    (place, store, lease.session)
}

#[tokio::test]
async fn a_bit_in_the_log_that_makes_sqlite_forget_is_noticed() {
    let (place, _store, id) = logged(60).await;
    let harmed = as_it_lies(&place);
    let length = fs::metadata(harmed.beside("-wal")).unwrap().len();
    flip(&harmed.beside("-wal"), length / 2 + 200);

    // SQLite itself finds nothing wrong.
    let raw = harmed.raw();
    let left = left(&raw);
    let check: String = raw.query_row("PRAGMA integrity_check", (), |row| row.get(0)).unwrap();
    drop(raw);
    assert_eq!(check, "ok");
    assert!((1..60).contains(&left), "{left} events are left");

    let missing = format!("session `run-1`: events {} to 60 are missing", left + 1);
    let expected = harmed.damaged(&format!("{missing}{LOST}"));
    assert_eq!(harmed.refusal(), expected);
    let reader = SqliteStore::open_reader(&harmed.path).unwrap();
    assert_eq!(reader.read(&id, 0, Select::All).await, Err(harmed.damaged(&missing)));
    let found = reader.verify().await.unwrap();
    assert_eq!(found.findings, [finding("run-1", StoreProblem::Missing(left + 1, 60))]);

    // The loss once accepted, the session continues what is there.
    let store = SqliteStore::open(&harmed.path, &SqliteOptions::default().accept_loss()).unwrap();
    assert_eq!(store.read(&id, 0, Select::All).await, Ok(events("run-1", 1..=left)));
    drop(store);
    assert!(harmed.open().verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn a_torn_log_and_a_missing_log_are_noticed() {
    let (place, _store, _) = logged(60).await;
    let length = fs::metadata(place.beside("-wal")).unwrap().len();
    for cut in [length * 3 / 4 + 100, length - 1] {
        let harmed = as_it_lies(&place);
        fs::File::options().write(true).open(harmed.beside("-wal")).unwrap().set_len(cut).unwrap();
        let left = left(&harmed.raw());
        let lost = match 60 - left {
            1 => "event 60 is missing".to_owned(),
            _ => format!("events {} to 60 are missing", left + 1),
        };
        assert_eq!(harmed.refusal(), harmed.damaged(&format!("session `run-1`: {lost}{LOST}")));
    }
}

#[tokio::test]
async fn a_session_that_is_gone_as_a_whole_is_noticed() {
    let place = TestFolder::new();
    let store = place.open();
    fill(&store, "run-1", 3).await;
    drop(store);
    let store = place.open();
    let before = as_it_lies(&place);
    let second = fill(&store, "run-2", 5).await;
    // All of the second session is in the log.
    let harmed = as_it_lies(&place);
    fs::remove_file(harmed.beside("-wal")).unwrap();
    let what = format!("session `run-2` is missing, with all events up to 5{LOST}");
    assert_eq!(harmed.refusal(), harmed.damaged(&what));
    let reader = SqliteStore::open_reader(&harmed.path).unwrap();
    assert_eq!(reader.read(&second, 0, Select::All).await, Err(harmed.damaged(&what)));
    assert_eq!(reader.entry(&second).await, Err(harmed.damaged(&what)));
    let found = reader.verify().await.unwrap().findings;
    assert_eq!(found, [finding("run-2", StoreProblem::MissingSession(5))]);
    drop(reader);
    // The same when an old copy of the file is put in the place of the new one.
    fs::copy(&before.path, &harmed.path).unwrap();
    assert_eq!(harmed.refusal(), harmed.damaged(&what));
    let store = SqliteStore::open(&harmed.path, &SqliteOptions::default().accept_loss()).unwrap();
    assert_eq!(store.entry(&second).await, Err(StoreError::UnknownSession(second)));
}

/// Each way to corrupt the rows of `run-1`, which has 9 events, the error of reading, and what verifying finds.
#[tokio::test]
async fn every_harm_to_a_row_is_named() {
    use StoreProblem::{Altered, Broken, Missing, Surplus};
    let broken = |what: &str| vec![Broken(what.to_owned())];
    let cases: Vec<(&str, Option<&str>, Vec<StoreProblem>)> = vec![
        (
            "UPDATE events SET body = replace(body, 'step 4', 'step 5') WHERE seq = 4",
            Some("event 4 is altered"),
            vec![Altered(4)],
        ),
        ("UPDATE events SET sum = zeroblob(16) WHERE seq = 4", Some("event 4 is altered"), vec![Altered(4)]),
        ("UPDATE events SET sum = x'00' WHERE seq = 4", Some("event 4 is altered"), vec![Altered(4)]),
        ("UPDATE events SET kind = 'agent:note' WHERE seq = 9", Some("event 9 is altered"), vec![Altered(9)]),
        ("UPDATE events SET at = at + 1 WHERE seq = 1", Some("event 1 is altered"), vec![Altered(1)]),
        ("UPDATE events SET epoch = 0 WHERE seq = 8", Some("event 8 is altered"), vec![Altered(8)]),
        (
            "UPDATE events SET body = '' WHERE seq IN (2, 3, 7)",
            Some("event 2 is altered"),
            vec![Altered(2), Altered(3), Altered(7)],
        ),
        ("DELETE FROM events WHERE seq = 1", Some("event 1 is missing"), vec![Missing(1, 1)]),
        ("DELETE FROM events WHERE seq IN (4, 5)", Some("events 4 to 5 are missing"), vec![Missing(4, 5)]),
        ("DELETE FROM events WHERE seq > 7", Some("events 8 to 9 are missing"), vec![Missing(8, 9)]),
        ("DELETE FROM events", Some("events 1 to 9 are missing"), vec![Missing(1, 9)]),
        (
            "UPDATE sessions SET last_seq = 8, last_sum = (SELECT sum FROM events WHERE seq = 8)",
            Some("event 9 is beyond the end of the log"),
            vec![Surplus(9), Missing(9, 9)],
        ),
        (
            "UPDATE records SET body = replace(body, 'oxen', 'axes')",
            Some("its record is altered"),
            broken("its record is altered"),
        ),
        ("DELETE FROM records", Some("its record is missing"), broken("its record is missing")),
        ("UPDATE sessions SET digest = '{}'", None, vec![StoreProblem::Digest]),
        (
            "UPDATE sessions SET digest = '{'",
            Some("its digest does not parse: EOF while parsing an object at line 1 column 1"),
            broken("its digest does not parse: EOF while parsing an object at line 1 column 1"),
        ),
        ("UPDATE commands SET body = replace(body, 'gee', 'haw')", None, broken("command 1 is altered")),
    ];
    for (harm, read, found) in cases {
        let place = TestFolder::new();
        let store = place.open();
        let id = fill(&store, "run-1", 9).await;
        store.post(&id, &Command::Send { content: "gee".to_owned() }, at(1)).await.unwrap();
        place.raw().execute_batch(harm).unwrap();
        let damaged = |what: &str| place.damaged(&format!("session `run-1`: {what}"));
        let expected = read.map_or(Ok(events("run-1", 1..=9)), |what| Err(damaged(what)));
        assert_eq!(store.read(&id, 0, Select::All).await, expected, "{harm}");
        // Rows that are not requested are checked too.
        let none = store.read(&id, 0, Select::Names(&["flow:paused"])).await;
        assert_eq!(none, expected.map(|_| Vec::new()), "{harm}");
        let report = store.verify().await.unwrap();
        let expected: Vec<_> = found.into_iter().map(|problem| finding("run-1", problem)).collect();
        assert_eq!(report.findings, expected, "{harm}");
    }
}

/// An older program wrote less into the entry of a session.
#[tokio::test]
async fn the_entry_of_an_older_program_is_sound() {
    let place = TestFolder::new();
    let store = place.open();
    let lease = start(&store, "run-1").await;
    let uncounted =
        json!({ "type": "agent:usage", "runId": "run", "usage": Usage::default(), "costUsd": null });
    let log = [events("run-1", 1..=1), vec![note("run-1", 2, uncounted), event("run-1", 3, end())]].concat();
    append(&store, &lease, &log).await.unwrap();
    let digest = store.entry(&lease.session).await.unwrap().digest;
    assert!(digest.uncounted && digest.duration_ms.is_some());
    let older = "UPDATE sessions SET digest = json_remove(digest, '$.uncounted', '$.durationMs')";
    place.raw().execute_batch(older).unwrap();
    assert_eq!(store.verify().await.unwrap().findings, []);
    let wrong = "UPDATE sessions SET digest = json_set(digest, '$.costUsd', 1.5)";
    place.raw().execute_batch(wrong).unwrap();
    assert_eq!(store.verify().await.unwrap().findings, [finding("run-1", StoreProblem::Digest)]);
}

#[tokio::test]
async fn a_reader_in_the_middle_sees_harm_behind_it_only() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 9).await;
    place.raw().execute_batch("UPDATE events SET at = 0 WHERE seq = 4").unwrap();
    assert_eq!(store.read(&id, 5, Select::All).await, Ok(events("run-1", 5..=9)));
    let altered = place.damaged("session `run-1`: event 4 is altered");
    assert_eq!(store.read(&id, 4, Select::All).await, Err(altered));
    place.raw().execute_batch("DELETE FROM events WHERE seq = 4").unwrap();
    let missing = place.damaged("session `run-1`: event 4 is missing");
    assert_eq!(store.read(&id, 5, Select::All).await, Err(missing));
}

/// Whatever bit of the file flips, no event is returned that was not written, and none is skipped.
#[tokio::test]
async fn no_flipped_bit_of_the_file_passes_for_an_event() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 40).await;
    drop(store);
    let whole = events("run-1", 1..=40);
    let length = fs::metadata(&place.path).unwrap().len();
    let (mut refused, mut unharmed) = (0, 0);
    for offset in (0..length).step_by(211) {
        let harmed = as_it_lies(&place);
        flip(&harmed.path, offset);
        let opened = SqliteStore::open_reader(&harmed.path);
        let read = match &opened {
            Ok(reader) => reader.read(&id, 0, Select::All).await,
            Err(error) => Err(error.clone()),
        };
        match read {
            Ok(events) => {
                assert!(events == whole, "byte {offset} changed what is read");
                unharmed += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert_eq!(refused + unharmed, length.div_ceil(211));
    assert!(refused > 20, "only {refused} flips of {length} bytes were noticed");
}

#[tokio::test]
async fn what_was_lost_is_not_driven_on() {
    let (place, store, id) = logged(9).await;
    let lease = Lease { session: id.clone(), epoch: 1 };
    store.release(&lease).await.unwrap();
    // The store loses its end while it is open.
    let raw = place.raw();
    raw.execute_batch(
        "DELETE FROM events WHERE seq > 7; \
         UPDATE sessions SET last_seq = 7, last_sum = (SELECT sum FROM events WHERE seq = 7)",
    )
    .unwrap();
    let lost = place.damaged(&format!("session `run-1`: events 8 to 9 are missing{LOST}"));
    let taken = store.acquire(&id, &Owner::of_process(), at(9)).await;
    assert_eq!(taken, Err(lost));
}

#[tokio::test]
async fn another_past_under_the_same_marks_is_noticed() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 3).await;
    drop(store);
    let copy = as_it_lies(&place);
    for (place, last, content) in [(&place, 5, "one way"), (&copy, 6, "the other")] {
        let store = place.open();
        let lease = store.acquire(&id, &Owner::of_process(), at(9)).await.unwrap();
        let log: Vec<_> = (4..=last).map(|seq| event("run-1", seq, text(content))).collect();
        append(&store, &lease, &log).await.unwrap();
        store.release(&lease).await.unwrap();
        drop(store);
    }
    fs::copy(place.beside("-marks"), copy.beside("-marks")).unwrap();
    let store = copy.open();
    let altered = copy.damaged("session `run-1`: event 5 is altered");
    assert_eq!(store.read(&id, 0, Select::All).await, Err(altered));
    assert_eq!(store.verify().await.unwrap().findings, [finding("run-1", StoreProblem::Altered(5))]);
}

#[tokio::test]
async fn marks_that_are_old_torn_or_missing_only_guard_less() {
    let place = TestFolder::new();
    let store = place.open();
    let ids = [fill(&store, "run-1", 3).await, fill(&store, "run-2", 4).await];
    let old = fs::read(place.beside("-marks")).unwrap();
    let lease = store.acquire(&ids[0], &Owner::of_process(), at(5)).await.unwrap();
    append(&store, &lease, &events("run-1", 4..=6)).await.unwrap();
    drop(store);
    let newest = fs::read(place.beside("-marks")).unwrap();
    let all = marks::read_all(&place.beside("-marks")).unwrap();
    let torn = [&newest[..60], &vec![0; newest.len() - 60]].concat();
    for marks in [old, torn, newest[..130].to_vec(), Vec::new()] {
        fs::write(place.beside("-marks"), marks).unwrap();
        assert!(place.open().verify().await.unwrap().is_sound());
    }
    fs::remove_file(place.beside("-marks")).unwrap();
    drop(place.open());
    // They were made again from what is there.
    assert_eq!(marks::read_all(&place.beside("-marks")).unwrap(), all);
}

#[tokio::test]
async fn rows_of_nobody_and_a_broken_file_are_found() {
    let place = TestFolder::new();
    let store = place.open();
    fill(&store, "run-1", 400).await;
    let raw = place.raw();
    raw.execute_batch("INSERT INTO events SELECT 77, seq, epoch, at, kind, sum, body, large FROM events")
        .unwrap();
    let report = store.verify().await.unwrap();
    let stray = StoreProblem::File("400 rows of `events` belong to no session".to_owned());
    assert_eq!(report.findings, [Finding { session: None, problem: stray }]);
    raw.execute_batch("DELETE FROM events WHERE session = 77").unwrap();
    drop((raw, store));
    // A page in the middle, with rows of the log on it.
    let middle = fs::metadata(&place.path).unwrap().len() / 8192;
    let file = fs::File::options().write(true).open(&place.path).unwrap();
    file.write_all_at(&[0xff; 4096], middle * 4096).unwrap();
    let store = SqliteStore::open_reader(&place.path).unwrap();
    let report = store.verify().await.unwrap();
    assert!(report.findings.iter().any(|found| matches!(found.problem, StoreProblem::File(_))), "{report:?}");
    let read = store.read(&"run-1".into(), 0, Select::All).await;
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
}

/// A row that cannot be read is one entry of the list, whatever part of it is damaged, and can be deleted or
/// fixed.
#[tokio::test]
async fn a_session_that_cannot_be_read_is_one_entry() {
    let harms = [
        "UPDATE sessions SET digest = '{' WHERE id = 'run-2'",
        "UPDATE sessions SET digest = '{\"updatedAt\":\"noon\"}' WHERE id = 'run-2'",
        "UPDATE sessions SET owner = '[]' WHERE id = 'run-2'",
        "UPDATE sessions SET flow = CAST(x'ff' AS TEXT) WHERE id = 'run-2'",
    ];
    for harm in harms {
        let place = TestFolder::new();
        let store = place.open();
        for id in ["run-1", "run-2", "run-3"] {
            fill(&store, id, 3).await;
        }
        let sound = store.entries("", 9).await.unwrap();
        assert!(sound.iter().all(|entry| entry.damage.is_none()));
        place.raw().execute_batch(harm).unwrap();
        let entries = store.entries("", 9).await.unwrap();
        let damaged: Vec<_> = entries.iter().map(|entry| entry.damage.is_some()).collect();
        assert_eq!(damaged, sound.iter().map(|entry| entry.session == "run-2").collect::<Vec<_>>(), "{harm}");
        assert_eq!(store.entries("run-2", 9).await.unwrap().len(), 1, "{harm}");
        let single = store.entry(&"run-2".into()).await;
        assert!(matches!(single, Err(StoreError::Damaged { .. })), "{harm}: {single:?}");
        assert!(store.gc(at(99), Gc::Look, at(99), |_| ()).await.is_ok(), "{harm}");
        assert_eq!(store.delete(&["run-2".into()], Gc::Delete, at(9)).await.unwrap()[0].events, 3, "{harm}");
        assert_eq!(store.entries("", 9).await.unwrap().len(), 2, "{harm}");
        assert!(store.verify().await.unwrap().is_sound(), "{harm}");
    }
}

#[tokio::test]
async fn accepting_the_loss_writes_a_list_entry_anew() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 5).await;
    let sound = store.entry(&id).await.unwrap();
    place.raw().execute_batch("UPDATE sessions SET digest = '{', owner = '['").unwrap();
    assert!(store.entry(&id).await.is_err());
    drop(store);
    let store = SqliteStore::open(&place.path, &SqliteOptions::default().accept_loss()).unwrap();
    assert_eq!(store.entry(&id).await, Ok(sound));
    assert!(store.verify().await.unwrap().is_sound());
}

/// Such as one of a newer program, which goes on after it.
#[tokio::test]
async fn an_event_that_cannot_be_read_does_not_shorten_the_entry_that_is_written_anew() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 5).await;
    let sql = "UPDATE events SET body = '{}' WHERE seq = 5; UPDATE sessions SET digest = '{'";
    place.raw().execute_batch(sql).unwrap();
    drop(store);
    let store = SqliteStore::open(&place.path, &SqliteOptions::default().accept_loss()).unwrap();
    assert_eq!(store.entry(&id).await.unwrap().digest.last_seq, 5);
}

/// What earlier versions wrote for a moment after the year 9999 does not parse as one, and is still read.
#[tokio::test]
async fn a_moment_beyond_all_years_is_read() {
    let place = TestFolder::new();
    let store = place.open();
    let lease = start(&store, "run-1").await;
    append(&store, &lease, &events("run-1", 1..=1)).await.unwrap();
    let beyond = note(
        "run-1",
        2,
        serde_json::json!({ "type": "limit:wait", "provider": "x", "until": "99999999999999000ms" }),
    );
    append(&store, &lease, &[beyond]).await.unwrap();
    store.release(&lease).await.unwrap();
    place
        .raw()
        .execute_batch(
            "UPDATE sessions SET digest = json_set(digest, '$.waits', \
             json('{\"on\":\"limit\",\"until\":\"99999999999999000ms\"}'))",
        )
        .unwrap();
    let entry = store.entry(&lease.session).await.unwrap();
    assert_eq!(entry.digest.waits.and_then(|waits| waits.until), Some(Timestamp::MAX));
    assert_eq!(store.read(&lease.session, 0, Select::All).await.unwrap().len(), 2);
}

/// The first session of a store is in its write-ahead log alone.
#[tokio::test]
async fn marks_without_a_store_are_a_loss_that_is_named() {
    let (place, _store, _) = logged(14).await;
    let what = format!("session `run-1` is missing, with all events up to 14{LOST}");
    let gone: [(&str, Harm); 4] = [
        ("the log", |harmed| fs::remove_file(harmed.beside("-wal")).unwrap()),
        ("the head of the log", |harmed| flip(&harmed.beside("-wal"), 17)),
        ("the file", |harmed| {
            fs::remove_file(harmed.beside("")).unwrap();
            fs::remove_file(harmed.beside("-wal")).unwrap();
        }),
        ("what the file holds", |harmed| {
            fs::write(harmed.beside(""), "").unwrap();
            fs::write(harmed.beside("-wal"), "").unwrap();
        }),
    ];
    for (of_what, harm) in gone {
        let harmed = as_it_lies(&place);
        harm(&harmed);
        let read = SqliteStore::open_reader(&harmed.path).unwrap_err();
        assert_eq!([read, harmed.refusal()], [harmed.damaged(&what), harmed.damaged(&what)], "{of_what}");
        // And it stays so until the loss is accepted.
        assert_eq!(harmed.refusal(), harmed.damaged(&what), "{of_what}");
        let store = SqliteStore::open(&harmed.path, &SqliteOptions::default().accept_loss()).unwrap();
        assert_eq!(store.entries("", 9).await, Ok(Vec::new()), "{of_what}");
        fill(&store, "run-2", 2).await;
        drop(store);
        assert!(harmed.open().verify().await.unwrap().is_sound(), "{of_what}");
    }
}

#[tokio::test]
async fn what_is_lost_is_listed() {
    let place = TestFolder::new();
    let store = place.open();
    fill(&store, "run-1", 3).await;
    drop(store);
    let store = place.open();
    fill(&store, "run-2", 5).await;
    let lease = store.acquire(&"run-1".into(), &Owner::of_process(), at(5)).await.unwrap();
    append(&store, &lease, &events("run-1", 4..=6)).await.unwrap();
    let harmed = as_it_lies(&place);
    fs::remove_file(harmed.beside("-wal")).unwrap();
    let reader = SqliteStore::open_reader(&harmed.path).unwrap();
    let list = async |prefix: &str| {
        let entries = reader.entries(prefix, 9).await.unwrap();
        entries.into_iter().map(|entry| (entry.session.to_string(), entry.damage)).collect::<Vec<_>>()
    };
    let gone = |what: &str| Some(format!("{what}{LOST}"));
    let whole = ("run-2".to_owned(), gone("session `run-2` is missing, with all events up to 5"));
    let part = ("run-1".to_owned(), gone("session `run-1`: events 4 to 6 are missing"));
    assert_eq!(list("").await, [whole.clone(), part]);
    assert_eq!(list("run-2").await, [whole]);
}

/// Whatever is done to the files while a store is open, nothing is acknowledged after it.
#[tokio::test]
async fn a_store_that_is_taken_away_acknowledges_nothing_more() {
    let harms: [(&str, Harm); 5] = [
        ("deleted", |place| fs::remove_file(&place.path).unwrap()),
        ("moved", |place| fs::rename(&place.path, place.beside(".old")).unwrap()),
        ("replaced", |place| {
            fs::copy(&place.path, place.beside(".new")).unwrap();
            fs::rename(place.beside(".new"), &place.path).unwrap();
        }),
        ("deleted with all beside it", |place| {
            for end in ["", "-wal", "-shm", "-marks", "-lock"] {
                fs::remove_file(place.beside(end)).unwrap();
            }
        }),
        ("without its log", |place| fs::remove_file(place.beside("-wal")).unwrap()),
    ];
    for (what, harm) in harms {
        let place = TestFolder::new();
        let store = place.open();
        let lease = start(&store, "run-1").await;
        append(&store, &lease, &events("run-1", 1..=2)).await.unwrap();
        harm(&place);
        let moved = Err(StoreError::Moved { path: place.path.clone() });
        if !place.path.exists() {
            assert_eq!(store.unanswered(&lease.session).await.map(drop), moved, "{what}");
        }
        assert_eq!(append(&store, &lease, &events("run-1", 3..=3)).await, moved, "{what}");
        assert_eq!(store.renew(&lease, at(9)).await, moved, "{what}");
        // Nor when there is a store again.
        fs::write(place.beside("-marks"), "").unwrap();
        drop(SqliteStore::open(&place.path, &SqliteOptions::default().accept_loss()));
        assert_eq!(append(&store, &lease, &events("run-1", 3..=3)).await, moved, "{what}");
    }
}

#[test]
fn what_is_no_plain_file_is_refused_without_waiting() {
    let pipe = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let place = TestFolder::new();
    pipe(&place.path);
    let refused = StoreError::NotAStore {
        path: place.path.clone(),
        what: "it is a device, a pipe or a socket".to_owned(),
    };
    assert_eq!(
        [place.refusal(), SqliteStore::open_reader(&place.path).unwrap_err()],
        [refused.clone(), refused]
    );
    for end in ["-marks", "-lock"] {
        let place = TestFolder::new();
        let precious = place.beside(".precious");
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, place.beside(end)).unwrap();
        let message =
            format!("{} is not a plain file", place.path.with_file_name(format!("store.db{end}")).display());
        assert_eq!(place.refusal(), StoreError::Io { path: place.path.clone(), message });
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }
}

#[test]
fn a_store_with_nothing_in_it_is_none_yet() {
    let place = TestFolder::new();
    let absent = StoreError::Absent { path: place.path.clone() };
    assert_eq!(SqliteStore::open_reader(&place.path).unwrap_err(), absent);
    fs::write(&place.path, "").unwrap();
    assert_eq!(SqliteStore::open_reader(&place.path).unwrap_err(), absent);
    // Its maker died in the middle of the first transaction.
    let raw = place.raw();
    raw.execute_batch("PRAGMA journal_mode = DELETE; BEGIN; CREATE TABLE half (x);").unwrap();
    raw.cache_flush().unwrap();
    let dead = as_it_lies(&place);
    fs::copy(place.beside("-journal"), dead.beside("-journal")).unwrap();
    drop(raw);
    assert_eq!(
        SqliteStore::open_reader(&dead.path).unwrap_err(),
        StoreError::Absent { path: dead.path.clone() }
    );
    assert!(SqliteStore::open(&dead.path, &SqliteOptions::default()).is_ok());
}
