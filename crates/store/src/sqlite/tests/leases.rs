//! Who may run a session when owners die, are on other machines, or have a clock that jumps; and how other
//! processes are notified of what was written.

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use inspan_protocol::{Command, SessionId};

use super::{SqliteStore, TestFolder, append, start};
use crate::{
    LEASE, Lease, Liveness, Owner, RunStore, Select, StoreError,
    tests::samples::{at, events, record},
};

fn elsewhere() -> Owner {
    Owner { machine: "another".to_owned(), host: "ox".to_owned(), pid: 7, began: 7 }
}

/// As this process would look to one that later got its number.
fn gone() -> Owner {
    let me = Owner::of_process();
    Owner { began: me.began + 1, ..me }
}

#[tokio::test]
async fn what_a_dead_process_held_is_free_at_once() {
    let place = TestFolder::new();
    let store = place.open();
    let old = store.create(&record("run-1"), &gone(), at(0)).await.unwrap();
    let id = &old.session;
    assert_eq!(store.entry(id).await.unwrap().liveness, Liveness::Gone);
    let new = store.acquire(id, &Owner::of_process(), at(0)).await.unwrap();
    assert_eq!(new, Lease { session: id.clone(), epoch: 2 });
    let fenced = StoreError::Fenced { session: id.clone(), epoch: 1, newest: 2 };
    assert_eq!(append(&store, &old, &events("run-1", 1..=1)).await, Err(fenced));
}

#[tokio::test]
async fn what_another_machine_holds_is_free_when_the_lease_ends() {
    let lease = LEASE.as_millis() as i64;
    // When the session was taken, when the lease was renewed, when we ask, and whether it is free then.
    let cases = [
        (0, None, 0, false),
        (0, None, lease - 1, false),
        (0, None, lease, true),
        (0, Some(lease - 1), lease, false),
        (0, Some(lease - 1), 2 * lease - 2, false),
        (0, Some(lease - 1), 2 * lease - 1, true),
        // The clock went back: a lease that begins in the future holds no more, and renewing makes it no longer.
        (100_000_000, None, 99_999_999, true),
        (100_000_000, Some(0), lease - 1, false),
        (100_000_000, Some(0), lease, true),
    ];
    let place = TestFolder::new();
    let store = place.open();
    for (number, (taken, renewed, asked, free)) in cases.into_iter().enumerate() {
        let id = format!("run-{number}");
        let lease = store.create(&record(&id), &elsewhere(), at(taken)).await.unwrap();
        if let Some(renewed) = renewed {
            store.renew(&lease, at(renewed)).await.unwrap();
        }
        let taken = store.acquire(&lease.session, &Owner::of_process(), at(asked)).await;
        let held = StoreError::Held { session: lease.session.clone(), owner: Box::new(elsewhere()) };
        let next = Lease { session: lease.session, epoch: 2 };
        assert_eq!(taken, if free { Ok(next) } else { Err(held) }, "case {number}");
    }
}

#[tokio::test]
async fn of_two_stores_that_take_one_session_one_wins() {
    let place = TestFolder::new();
    let stores = [place.open(), place.open()];
    for number in 0..20 {
        let id = SessionId::from(format!("run-{number}"));
        stores[0].create(&record(id.as_str()), &gone(), at(0)).await.unwrap();
        let me = Owner::of_process();
        let (one, other) =
            tokio::join!(stores[0].acquire(&id, &me, at(1)), stores[1].acquire(&id, &me, at(1)));
        let mut taken = [one, other];
        taken.sort_by_key(|taken| taken.is_err());
        let held = StoreError::Held { session: id.clone(), owner: Box::new(me) };
        assert_eq!(taken, [Ok(Lease { session: id, epoch: 2 }), Err(held)]);
    }
}

/// Asks for a lease, and is dropped so long after that. If the writer was faster, the lease is released.
async fn ask_and_leave(store: &SqliteStore, epoch: u64, stays: Duration) {
    let (id, me, record) = (SessionId::from("run-1"), Owner::of_process(), record("run-1"));
    let mut asked =
        if epoch == 1 { store.create(&record, &me, at(0)) } else { store.acquire(&id, &me, at(0)) };
    if let Some(taken) = (&mut asked).now_or_never() {
        store.release(&taken.unwrap()).await.unwrap();
    }
    tokio::time::sleep(stays).await;
}

#[tokio::test]
async fn a_lease_that_nobody_waits_for_any_more_is_given_back() {
    let place = TestFolder::new();
    let (store, other) = (place.open(), place.open());
    let (id, me) = (SessionId::from("run-1"), Owner::of_process());
    let held = StoreError::Held { session: id.clone(), owner: Box::new(me.clone()) };
    // The second is dropped after the answer has come.
    for (epoch, stays) in [(1, 0), (3, 300), (5, 0)] {
        ask_and_leave(&store, epoch, Duration::from_millis(stays)).await;
        let lease = store.acquire(&id, &me, at(1)).await.unwrap();
        assert_eq!(lease, Lease { session: id.clone(), epoch: epoch + 1 });
        // One who did not get it gives nothing back.
        drop(store.acquire(&id, &me, at(2)).now_or_never());
        assert_eq!(append(&store, &lease, &[]).await, Ok(()));
        assert_eq!(other.acquire(&id, &me, at(2)).await, Err(held.clone()));
        // Nor does a release wait for who asked for it.
        drop(store.release(&lease).now_or_never());
    }
    ask_and_leave(&store, 7, Duration::ZERO).await;
    drop(store);
    assert_eq!(other.acquire(&id, &me, at(3)).await, Ok(Lease { session: id, epoch: 8 }));
}

#[tokio::test]
async fn a_writer_sees_what_another_did_to_a_session_it_wrote_last() {
    let place = TestFolder::new();
    let (one, other) = (place.open(), place.open());
    let old = one.create(&record("run-1"), &gone(), at(0)).await.unwrap();
    let all = events("run-1", 1..=6);
    append(&one, &old, &all[..2]).await.unwrap();
    append(&one, &old, &all[2..3]).await.unwrap();
    let new = other.acquire(&old.session, &Owner::of_process(), at(1)).await.unwrap();
    let fenced = StoreError::Fenced { session: old.session.clone(), epoch: 1, newest: 2 };
    assert_eq!(append(&one, &old, &all[3..4]).await, Err(fenced));
    // Both may write for one lease; the log continues where the other left it.
    for (number, store) in [&other, &one, &other].into_iter().enumerate() {
        append(store, &new, &all[3 + number..=3 + number]).await.unwrap();
    }
    assert_eq!(one.read(&new.session, 0, Select::All).await, Ok(all));
    assert!(one.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn another_store_on_the_same_file_is_noticed() {
    let place = TestFolder::new();
    let (owner, other) = (place.open(), SqliteStore::open_reader(&place.path).unwrap());
    let lease = start(&owner, "run-1").await;
    let mut changes = other.changes();
    // The first look counts as a change; what is of interest comes after it.
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), changes.next()).await, Ok(Some(())));
    assert_eq!(changes.next().now_or_never(), None);
    append(&owner, &lease, &events("run-1", 1..=1)).await.unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), changes.next()).await, Ok(Some(())));
    assert_eq!(other.read(&lease.session, 0, Select::All).await, Ok(events("run-1", 1..=1)));
}

#[tokio::test]
async fn nobody_looks_for_changes_while_nobody_listens() {
    let place = TestFolder::new();
    let store = place.open();
    assert!(!store.changes.is_looking());
    let (one, two) = (store.changes(), store.changes());
    assert!(store.changes.is_looking());
    drop((one, two));
    let mut looks = 0;
    while store.changes.is_looking() && looks < 30_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        looks += 1;
    }
    assert!(!store.changes.is_looking());
    let mut again = store.changes();
    start(&store, "run-1").await;
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), again.next()).await, Ok(Some(())));
    drop(store);
    while again.next().await.is_some() {}
}

#[tokio::test]
async fn a_reader_writes_nothing_and_disturbs_nobody() {
    let place = TestFolder::new();
    let missing = SqliteStore::open_reader(&place.path).unwrap_err();
    assert_eq!(missing, StoreError::Absent { path: place.path.clone() });
    assert!(!place.path.exists());
    let store = place.open();
    let lease = start(&store, "run-1").await;
    let reader = SqliteStore::open_reader(&place.path).unwrap();
    let refused = StoreError::ReadOnly { path: place.path.clone() };
    let command = Command::Send { content: "a".to_owned() };
    assert_eq!(reader.post(&lease.session, &command, at(1)).await, Err(refused.clone()));
    assert_eq!(append(&reader, &lease, &events("run-1", 1..=1)).await, Err(refused));
    append(&store, &lease, &events("run-1", 1..=1)).await.unwrap();
    assert_eq!(reader.read(&lease.session, 0, Select::All).await, Ok(events("run-1", 1..=1)));
    assert_eq!(reader.verify().await.map(|report| report.is_sound()), Ok(true));
}
