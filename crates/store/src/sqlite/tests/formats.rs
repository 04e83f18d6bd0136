//! What a file may be when it is opened: new, made at the same moment by others, older, newer, something else. A
//! read-only one is in the tests of the program, in `faults/opening.rs`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    sync::{Arc, Barrier},
    thread,
};

use rusqlite_migration::M;

use super::{SqliteOptions, SqliteStore, TestFolder, append, fill, start};
use crate::{
    RunStore, Select, StoreError,
    sqlite::{
        file,
        format::{self, STEPS},
    },
    tests::samples::events,
};

/// The formats as a later program may know them.
fn later(step: M<'static>) -> Vec<M<'static>> {
    STEPS.iter().cloned().chain([step]).collect()
}

const NEXT: &str = "ALTER TABLE sessions ADD COLUMN note TEXT; UPDATE sessions SET note = flow || '!';";

fn version(place: &TestFolder) -> i64 {
    place.raw().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[test]
fn many_open_a_new_store_at_once() {
    for round in 0..10 {
        let place = Arc::new(TestFolder::new());
        let (openers, gate) = (6, Arc::new(Barrier::new(6)));
        let open = |number: usize| {
            let (place, gate) = (Arc::clone(&place), Arc::clone(&gate));
            thread::spawn(move || {
                gate.wait();
                let store = place.open();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(fill(&store, &format!("run-{number}"), 2))
            })
        };
        let threads: Vec<_> = (0..openers).map(open).collect();
        let mut ids: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().to_string()).collect();
        ids.sort();
        let raw = place.raw();
        let mut query = raw.prepare("SELECT id FROM sessions WHERE last_seq = 2 ORDER BY id").unwrap();
        let kept: Vec<String> = query.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(kept, ids, "round {round}");
    }
}

#[test]
fn a_store_is_private_and_lies_where_its_links_lead() {
    let place = TestFolder::new();
    let deep = place.folder.path().join("a/b/store.db");
    drop(SqliteStore::open(&deep, &SqliteOptions::default()).unwrap());
    let link = place.folder.path().join("link.db");
    symlink(&deep, &link).unwrap();
    let linked = SqliteStore::open(&link, &SqliteOptions::default()).unwrap();
    assert_eq!(linked.path(), deep.canonicalize().unwrap());
    let mut names: Vec<_> = fs::read_dir(deep.parent().unwrap())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o077;
            (entry.file_name().into_string().unwrap(), mode)
        })
        .filter(|(name, _)| name != "store.db-lock")
        .collect();
    names.sort();
    let names: Vec<_> = names.iter().map(|(name, mode)| (name.as_str(), *mode)).collect();
    assert_eq!(names, [("store.db", 0), ("store.db-marks", 0), ("store.db-shm", 0), ("store.db-wal", 0)]);
}

#[test]
fn a_newer_format_is_refused_with_both_numbers() {
    let place = TestFolder::new();
    drop(place.open());
    place.raw().pragma_update(None, "user_version", 7).unwrap();
    let expected = StoreError::NewerFormat { path: place.path.clone(), found: 7, known: 3 };
    assert_eq!(place.refusal(), expected);
    assert_eq!(SqliteStore::open_reader(&place.path).unwrap_err(), expected);
    assert_eq!(version(&place), 7);
}

#[test]
fn what_is_no_store_is_left_alone() {
    let strange = |make: fn(&TestFolder)| {
        let place = TestFolder::new();
        make(&place);
        let before = fs::read(&place.path).unwrap();
        let errors = [place.refusal(), SqliteStore::open_reader(&place.path).unwrap_err()];
        assert_eq!(fs::read(&place.path).unwrap(), before);
        errors.map(|error| match error {
            StoreError::NotAStore { path, what } if path == place.path => what,
            error => panic!("{error}"),
        })
    };
    let table = |place: &TestFolder| place.raw().execute_batch("CREATE TABLE t (a)").unwrap();
    let without = "it is a database of SQLite without an application id";
    assert_eq!(strange(table), [without; 2]);
    let other = |place: &TestFolder| place.raw().pragma_update(None, "application_id", 0x4645).unwrap();
    assert_eq!(strange(other), ["it is a database of SQLite with the application id 0x00004645"; 2]);
    let text = |place: &TestFolder| fs::write(&place.path, "a diary, not a store; ".repeat(100)).unwrap();
    assert_eq!(strange(text), ["file is not a database"; 2]);
}

#[tokio::test]
async fn an_older_store_is_copied_aside_and_brought_up() {
    let place = TestFolder::new();
    let old = place.open();
    let id = fill(&old, "run-1", 5).await;
    let other = start(&old, "run-2").await;
    let steps = later(M::up(NEXT));
    // A reader changes nothing.
    assert!(file::open_to_read(&place.path, &steps).is_ok());
    assert_eq!(version(&place), 3);

    let opened = file::open(&place.path, &SqliteOptions::default(), &steps).unwrap();
    let sql = "SELECT note, last_seq FROM sessions WHERE id = 'run-1'";
    let row = opened.connection.query_row(sql, (), |row| Ok((row.get(0)?, row.get(1)?)));
    assert_eq!(row, Ok(("oxen!".to_owned(), 5)));
    assert_eq!(version(&place), 4);
    // The older program that still has it open writes nothing more into it.
    let newer = StoreError::NewerFormat { path: place.path.clone(), found: 4, known: 3 };
    assert_eq!(append(&old, &other, &events("run-2", 1..=1)).await, Err(newer));

    let backup = place.beside("-format-3.backup");
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    let backup = SqliteStore::open_reader(backup).unwrap();
    assert_eq!(backup.read(&id, 0, Select::All).await, Ok(events("run-1", 1..=5)));
    assert!(backup.verify().await.unwrap().is_sound());
    assert!(!place.beside("-format-3.part").exists());
}

#[tokio::test]
async fn a_step_that_fails_or_dies_leaves_the_old_store() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 5).await;
    drop(store);
    let broken = later(M::up("UPDATE sessions SET flow = 'gone'; DROP TABLE events; SELECT nonsense;"));
    let error = file::open(&place.path, &SqliteOptions::default(), &broken).map(|_| ()).unwrap_err();
    assert!(matches!(&error, StoreError::Io { message, .. } if message.contains("nonsense")), "{error}");

    // What is on disk during a step is what a kill would leave.
    let killed = Arc::new(TestFolder::new());
    let (from, to) = (place.path.clone(), Arc::clone(&killed));
    let copy = move |_: &rusqlite::Transaction<'_>| {
        for end in ["", "-wal"] {
            let mut name = from.clone().into_os_string();
            name.push(end);
            fs::copy(name, to.beside(end)).unwrap();
        }
        Ok(())
    };
    let steps = later(M::up_with_hook(NEXT, copy));
    drop(file::open(&place.path, &SqliteOptions::default(), &steps).unwrap());
    assert_eq!(version(&place), 4);
    assert_eq!(version(&killed), 3);
    let store = killed.open();
    assert_eq!(store.read(&id, 0, Select::All).await, Ok(events("run-1", 1..=5)));
    assert!(store.verify().await.unwrap().is_sound());
    drop(store);
    // And it can still be upgraded.
    let connection =
        file::open(&killed.path, &SqliteOptions::default(), &later(M::up(NEXT))).unwrap().connection;
    let found = format::look(&connection, &killed.path, &later(M::up(NEXT))).unwrap();
    assert_eq!(found, format::StoreFileKind::Store(4));
}

#[tokio::test]
async fn a_folder_that_may_not_be_read_is_no_read_only_one() {
    if rustix::process::geteuid().is_root() {
        eprintln!("not run: this process may read everything");
        return;
    }
    let place = TestFolder::new();
    fill(&place.open(), "run-1", 1).await;
    let allow =
        |mode| std::fs::set_permissions(place.folder.path(), PermissionsExt::from_mode(mode)).unwrap();
    allow(0o000);
    let opened = SqliteStore::open_reader(&place.path).err();
    allow(0o700);
    assert_eq!(opened, Some(StoreError::Unreadable { path: place.path.clone() }));
}
