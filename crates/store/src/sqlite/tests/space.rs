//! The writer under stress: groups, a store that is full, other processes that hold locks. Real I/O errors are
//! made in `tests/store_crash.rs`, where a separate process can be given them, and a full disk in the tests of the
//! program, in `faults/disk.rs`.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use futures::future::join_all;

use super::{SqliteOptions, SqliteStore, TestFolder, append, fill, start};
use crate::{
    Gc, Lease, RunStore, Select, StoreError,
    tests::samples::{at, event, events, text},
};

/// A store that records the points it reaches, and stops at each `begin` until it is released.
struct Halted {
    store: Arc<SqliteStore>,
    points: Arc<Mutex<Vec<&'static str>>>,
    reached: mpsc::Receiver<()>,
    go: mpsc::Sender<()>,
}

fn halted(place: &TestFolder) -> Halted {
    let points = Arc::new(Mutex::new(Vec::new()));
    let (reach, reached) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let gone = Mutex::new(gone);
    let seen = Arc::clone(&points);
    let hook = move |point| {
        seen.lock().unwrap().push(point);
        if point == "begin" {
            reach.send(()).unwrap();
            gone.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        }
    };
    let store = SqliteStore::open(&place.path, &SqliteOptions::default().on_point(Arc::new(hook))).unwrap();
    Halted { store: Arc::new(store), points, reached, go }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_queued_is_committed_at_once_and_refused_one_by_one() {
    let place = TestFolder::new();
    let plain = place.open();
    let ids: Vec<_> = (0..9).map(|number| format!("run-{number}")).collect();
    let mut leases = Vec::new();
    for id in &ids {
        leases.push(start(&plain, id).await);
    }
    drop(plain);
    let Halted { store, points, reached, go } = halted(&place);
    // The first is alone, and while the writer is held at its beginning the others come. Two of them are wrong.
    leases[4].epoch = 99;
    let mut appends = Vec::new();
    for (number, (id, lease)) in ids.iter().zip(&leases).enumerate() {
        let (store, lease) = (Arc::clone(&store), lease.clone());
        let mut log = events(id, 1..=3);
        if number == 6 {
            // The valid part before the gap is rolled back with the rest.
            log.remove(1);
        }
        let asked = Arc::clone(&store);
        appends.push(tokio::spawn(async move { append(&asked, &lease, &log).await }));
        if number == 0 {
            reached.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        while store.writer.as_ref().unwrap().queued() < number {
            tokio::task::yield_now().await;
        }
    }
    for _ in 0..3 {
        go.send(()).unwrap();
    }
    let done: Vec<_> = join_all(appends).await.into_iter().map(Result::unwrap).collect();
    let fenced = StoreError::Fenced { session: "run-4".into(), epoch: 99, newest: 1 };
    let conflict = StoreError::Conflict { session: "run-6".into(), expected: 2, actual: 3 };
    let expected: Vec<_> = (0..9)
        .map(|number| match number {
            4 => Err(fenced.clone()),
            6 => Err(conflict.clone()),
            _ => Ok(()),
        })
        .collect();
    assert_eq!(done, expected);
    for (number, id) in ids.iter().enumerate() {
        let kept = if matches!(number, 4 | 6) { Vec::new() } else { events(id, 1..=3) };
        assert_eq!(store.read(&id.as_str().into(), 0, Select::All).await, Ok(kept));
    }
    assert!(store.verify().await.unwrap().is_sound());
    // The writer has ended, and has answered everything.
    drop(store);
    let points = points.lock().unwrap().clone();
    let writes = |count| ["write", "written"].repeat(count);
    let ends = ["commit", "committed", "marked"];
    let whole = [
        vec!["begin"],
        writes(1),
        ends.to_vec(),
        vec!["acknowledged", "begin"],
        // The fourth is refused: all are rolled back, and done again so that each can be rolled back
        // separately.
        writes(4),
        vec!["begin"],
        writes(8),
        ends.to_vec(),
        vec!["acknowledged"; 8],
    ];
    assert_eq!(points, whole.concat());
}

fn great(id: &str, seq: u64, bytes: usize) -> Vec<Arc<inspan_protocol::Envelope>> {
    vec![event(id, seq, text(&"x".repeat(bytes)))]
}

/// Appends until there is no more space; how many events are stored then.
async fn until_full(store: &SqliteStore, lease: &Lease, from: u64) -> u64 {
    let full = StoreError::Full { path: store.path().to_owned() };
    for seq in from.. {
        match append(store, lease, &great(lease.session.as_str(), seq, 20_000)).await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, full);
                return seq - 1;
            }
        }
        assert!(seq < 1_000, "the store never gets full");
    }
    0
}

#[tokio::test]
async fn a_full_store_stays_readable_and_continues_when_there_is_space() {
    let place = TestFolder::new();
    let options = SqliteOptions::default().max_bytes(600_000);
    let store = SqliteStore::open(&place.path, &options).unwrap();
    let old = start(&store, "run-1").await;
    append(&store, &old, &great("run-1", 1, 200_000)).await.unwrap();
    let lease = start(&store, "run-2").await;
    let kept = until_full(&store, &lease, 1).await;
    assert!(kept > 3, "only {kept} events fit");
    let read = store.read(&lease.session, 0, Select::All).await.unwrap();
    assert_eq!(read.len() as u64, kept);
    assert_eq!(store.entries("", 9).await.unwrap().len(), 2);
    store.release(&old).await.unwrap();
    store.delete(std::slice::from_ref(&old.session), Gc::Delete, at(1)).await.unwrap();
    let next = kept + 1;
    assert_eq!(append(&store, &lease, &great("run-2", next, 20_000)).await, Ok(()));
    let more = until_full(&store, &lease, next + 1).await;
    assert_eq!(store.read(&lease.session, 0, Select::All).await.unwrap().len() as u64, more);
    assert!(store.verify().await.unwrap().is_sound());
    drop(store);
    assert!(place.open().verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_fails_alone() {
    let place = TestFolder::new();
    let plain = place.open();
    let ids: Vec<_> = (0..5).map(|number| format!("run-{number}")).collect();
    let mut leases = Vec::new();
    for id in &ids {
        leases.push(start(&plain, id).await);
    }
    drop(plain);
    let options = SqliteOptions::default().max_bytes(600_000);
    let store = Arc::new(SqliteStore::open(&place.path, &options).unwrap());
    let appends = ids.iter().zip(leases).map(|(id, lease)| {
        let (store, bytes) = (Arc::clone(&store), if *id == "run-2" { 2_000_000 } else { 2_000 });
        let log = great(id, 1, bytes);
        tokio::spawn(async move { append(&store, &lease, &log).await })
    });
    let done: Vec<_> = join_all(appends).await.into_iter().map(Result::unwrap).collect();
    let full = Err(StoreError::Full { path: place.path.clone() });
    assert_eq!(done, [Ok(()), Ok(()), full, Ok(()), Ok(())]);
    assert!(store.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn another_process_in_the_way_is_waited_for_within_a_bound() {
    let place = TestFolder::new();
    let options = SqliteOptions::default().wait_for_others(Duration::from_millis(60));
    let store = SqliteStore::open(&place.path, &options).unwrap();
    let lease = start(&store, "run-1").await;
    let raw = place.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = append(&store, &lease, &events("run-1", 1..=1)).await;
    assert_eq!(refused, Err(StoreError::Locked { path: place.path.clone() }));
    // Readers never wait for the writer.
    assert_eq!(store.read(&lease.session, 0, Select::All).await, Ok(Vec::new()));
    let patient = place.open();
    let waiting = tokio::spawn(async move { append(&patient, &lease, &events("run-1", 1..=1)).await });
    tokio::task::yield_now().await;
    raw.execute_batch("COMMIT").unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn what_was_asked_before_the_end_is_still_done() {
    let place = TestFolder::new();
    let store = place.open();
    let lease = start(&store, "run-1").await;
    let log = events("run-1", 1..=4);
    {
        let mut append = Box::pin(append(&store, &lease, &log));
        // It is queued by the first poll, and then nothing waits for it any more.
        assert!(futures::poll!(append.as_mut()).is_pending());
    }
    drop(store);
    assert_eq!(place.open().read(&lease.session, 0, Select::All).await, Ok(log));
    fill(&place.open(), "run-2", 1).await;
}
