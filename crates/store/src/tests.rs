//! The contract of a run store, tested with each kind of store. What only one kind guarantees is tested beside it.

pub(super) mod samples;

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use inspan_protocol::{Command, SessionId, SessionStatus};
use serde_json::json;

use super::{
    Batch, Blob, BlobStore, CommandAnswer, LARGE_VALUE, Lease, Liveness, MemoryStore, Owner, PAGE_BYTES,
    Parent, ParentKind, PostedCommand, RunStore, Select, SessionEntry, SessionFacts, SessionRecord,
    SqliteOptions, SqliteStore, StoreError, Verdict,
};
use samples::{at, base, end, event, events, note, record, text};

/// Holds `check` against each kind of store.
async fn each<F: Future<Output = ()>>(check: impl Fn(Arc<dyn RunStore>) -> F) {
    check(Arc::new(MemoryStore::new())).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    check(Arc::new(SqliteStore::open(path, &SqliteOptions::default()).unwrap())).await;
}

fn batch(events: &[Arc<inspan_protocol::Envelope>]) -> Batch<'_> {
    Batch { events, answers: &[] }
}

async fn started(store: &dyn RunStore, id: &str) -> Lease {
    store.create(&record(id), &Owner::of_process(), at(0)).await.unwrap()
}

#[tokio::test]
async fn a_lease_is_taken_by_one_at_a_time() {
    each(|store| async move {
        let (me, id) = (Owner::of_process(), SessionId::from("run-1"));
        let lease = store.create(&record("run-1"), &me, at(0)).await.unwrap();
        assert_eq!(lease, Lease { session: id.clone(), epoch: 1 });
        let taken = StoreError::SessionExists(id.clone());
        assert_eq!(store.create(&record("run-1"), &me, at(1)).await, Err(taken));
        let held = StoreError::Held { session: id.clone(), owner: Box::new(me.clone()) };
        // However late: an owner that is alive keeps its session.
        assert_eq!(store.acquire(&id, &me, at(10_000_000)).await, Err(held));
        assert_eq!(store.renew(&lease, at(2)).await, Ok(()));
        assert_eq!(store.release(&lease).await, Ok(()));
        assert_eq!(store.acquire(&id, &me, at(3)).await, Ok(Lease { session: id, epoch: 2 }));
        let unknown = SessionId::from("run-2");
        let refused = Err(StoreError::UnknownSession(unknown.clone()));
        assert_eq!(store.acquire(&unknown, &me, at(4)).await, refused);
    })
    .await;
}

#[tokio::test]
async fn a_log_is_read_in_pieces() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let log = events("run-1", 1..=7);
        store.append(&lease, batch(&log)).await.unwrap();
        let id = &lease.session;
        for (from, most, expected) in
            [(0, 3, &log[..3]), (4, 3, &log[3..6]), (7, 3, &log[6..]), (8, 3, &[]), (1, 99, &log[..])]
        {
            assert_eq!(store.read_next(id, from, most).await.as_deref(), Ok(expected), "from {from}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_page_of_a_log_on_disk_is_bounded_by_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db"), &SqliteOptions::default()).unwrap();
    let lease = started(&store, "run-1").await;
    // Small events, some that share a page, one that fills it as it is, one whose text is stored beside the log.
    let bytes = [9, 9, PAGE_BYTES / 3, PAGE_BYTES / 3, PAGE_BYTES / 3, 9, LARGE_VALUE * 9, 9];
    let log: Vec<_> =
        (1..).zip(bytes).map(|(seq, bytes)| event("run-1", seq, text(&"x".repeat(bytes)))).collect();
    store.append(&lease, batch(&log)).await.unwrap();
    let id = &lease.session;
    for (from, page) in [(1, &log[..5]), (4, &log[3..7]), (7, &log[6..7]), (8, &log[7..]), (9, &[])] {
        assert_eq!(store.read_next(id, from, 99).await.as_deref(), Ok(page), "from {from}");
    }
    assert_eq!(store.read(id, 1, Select::All).await, Ok(log), "who wants all gets all");
}

#[tokio::test]
async fn one_session_takes_the_place_of_another_and_forks_do_not() {
    each(|store| async move {
        let me = Owner::of_process();
        let following = |id: &str, kind| SessionRecord {
            parent: Some(Parent::new("run-1".into(), 2, kind)),
            ..record(id)
        };
        let first = SessionId::from("run-1");
        let lease = store.create(&record("run-1"), &me, at(0)).await.unwrap();
        store.append(&lease, batch(&events("run-1", 1..=2))).await.unwrap();
        store.create(&following("fork", ParentKind::Fork), &me, at(1)).await.unwrap();
        assert_eq!(store.entry(&first).await.unwrap().continued_by, None);
        // A process still runs it.
        let beside = store.create(&following("next", ParentKind::Resume), &me, at(2)).await;
        assert!(matches!(beside, Err(StoreError::Held { session, .. }) if session == first));
        store.release(&lease).await.unwrap();
        // It was resumed after the new one looked at it.
        let stale = SessionRecord {
            parent: Some(Parent::new(first.clone(), 1, ParentKind::Resume)),
            ..record("next")
        };
        assert_eq!(store.create(&stale, &me, at(2)).await, Err(StoreError::HasNewEvents(first.clone())));
        store.create(&following("next", ParentKind::Resume), &me, at(2)).await.unwrap();
        assert_eq!(store.entry(&first).await.unwrap().continued_by, Some("next".into()));
        let again = store.create(&following("other", ParentKind::Resume), &me, at(3)).await;
        let continued = StoreError::Continued { session: first.clone(), by: "next".into() };
        assert_eq!(again, Err(continued.clone()));
        assert_eq!(store.acquire(&first, &me, at(3)).await, Err(continued));
        store.create(&following("fork-2", ParentKind::Fork), &me, at(4)).await.unwrap();
        let listed = store.entries("", 9).await.unwrap();
        let listed: Vec<_> =
            listed.into_iter().map(|entry| (entry.session.to_string(), entry.continued_by)).collect();
        let expected = ["fork", "fork-2", "next", "run-1"]
            .map(|id| (id.to_owned(), (id == "run-1").then(|| SessionId::from("next"))));
        assert_eq!(listed, expected);
    })
    .await;
}

#[tokio::test]
async fn a_session_does_not_begin_on_the_work_of_one_that_is_not_stored() {
    each(|store| async move {
        for kind in [ParentKind::Fork, ParentKind::Resume] {
            let parent = Some(Parent::new("gone".into(), 1, kind));
            let next = SessionRecord { parent, ..record("next") };
            let created = store.create(&next, &Owner::of_process(), at(1)).await;
            assert_eq!(created, Err(StoreError::UnknownSession("gone".into())), "{kind:?}");
            assert_eq!(store.entries("", 9).await, Ok(Vec::new()));
        }
    })
    .await;
}

#[tokio::test]
async fn a_replay_is_listed_as_one() {
    each(|store| async move {
        let me = Owner::of_process();
        let mut replay = record("played");
        replay.settings.insert("replay".to_owned(), "tapes".into());
        let mut other = record("other");
        other.settings.insert("note".to_owned(), "\"replay\"".into());
        for record in [&replay, &other] {
            store.create(record, &me, at(0)).await.unwrap();
        }
        let listed = store.entries("", 9).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|entry| (entry.session.as_str(), entry.is_replay)).collect();
        assert_eq!(listed, [("other", false), ("played", true)]);
        assert!(store.entry(&"played".into()).await.unwrap().is_replay);
    })
    .await;
}

#[tokio::test]
async fn who_was_taken_over_is_fenced() {
    each(|store| async move {
        let id = SessionId::from("run-1");
        let old = started(&*store, "run-1").await;
        store.release(&old).await.unwrap();
        let new = store.acquire(&id, &Owner::of_process(), at(1)).await.unwrap();
        let fenced = StoreError::Fenced { session: id.clone(), epoch: 1, newest: 2 };
        let log = events("run-1", 1..=2);
        assert_eq!(store.append(&old, batch(&log)).await, Err(fenced.clone()));
        assert_eq!(store.renew(&old, at(2)).await, Err(fenced));
        // If an old owner releases the session, the new owner keeps it.
        assert_eq!(store.release(&old).await, Ok(()));
        assert_eq!(store.entry(&id).await.unwrap().owner, Some(Owner::of_process()));
        assert_eq!(store.append(&new, batch(&log)).await, Ok(()));
        assert_eq!(store.read(&id, 0, Select::All).await, Ok(log));
    })
    .await;
}

#[tokio::test]
async fn a_log_has_no_gaps_and_a_refused_batch_leaves_nothing() {
    each(|store| async move {
        let id = SessionId::from("run-1");
        let lease = started(&*store, "run-1").await;
        let number = store.post(&id, &Command::Send { content: "go".to_owned() }, at(1)).await.unwrap();
        let log = events("run-1", 1..=3);
        store.append(&lease, batch(&log)).await.unwrap();
        let conflict = |expected, actual| Err(StoreError::Conflict { session: id.clone(), expected, actual });
        let answers = [CommandAnswer { number, verdict: Verdict::Accepted }];
        let gap = [&events("run-1", 4..=4)[..], &events("run-1", 6..=6)].concat();
        let batches = [gap, events("run-1", 3..=4), events("run-1", 5..=5)];
        let expected = [conflict(5, 6), conflict(4, 3), conflict(4, 5)];
        for (events, expected) in batches.iter().zip(expected) {
            assert_eq!(store.append(&lease, Batch { events, answers: &answers }).await, expected);
        }
        assert_eq!(store.read(&id, 0, Select::All).await, Ok(log));
        assert_eq!(store.answer(&id, number).await, Ok(None));
        assert_eq!(store.append(&lease, batch(&events("run-1", 4..=4))).await, Ok(()));
    })
    .await;
}

#[tokio::test]
async fn a_log_is_read_from_anywhere_and_by_name() {
    each(|store| async move {
        let id = SessionId::from("run-1");
        let lease = started(&*store, "run-1").await;
        let mut log = events("run-1", 1..=6);
        log[3] = note("run-1", 4, json!({ "type": "vendor:news", "any": [1, 2.5, null, "ä\u{0}\n"] }));
        store.append(&lease, batch(&log[..2])).await.unwrap();
        store.append(&lease, batch(&log[2..])).await.unwrap();
        store.append(&lease, batch(&[])).await.unwrap();
        assert_eq!(store.read(&id, 0, Select::All).await, Ok(log.clone()));
        assert_eq!(store.read(&id, 5, Select::All).await, Ok(log[4..].to_vec()));
        assert_eq!(store.read(&id, 7, Select::All).await, Ok(Vec::new()));
        assert_eq!(store.read(&id, 70, Select::All).await, Ok(Vec::new()));
        let named = Select::Names(&["harness:start", "vendor:news"]);
        assert_eq!(store.read(&id, 0, named).await, Ok(vec![log[0].clone(), log[3].clone()]));
        assert_eq!(store.read(&id, 2, named).await, Ok(vec![log[3].clone()]));
        let unknown = SessionId::from("run-2");
        let refused = StoreError::UnknownSession(unknown.clone());
        assert_eq!(store.read(&unknown, 0, Select::All).await, Err(refused.clone()));
        assert_eq!(store.record(&unknown).await, Err(refused.clone()));
        assert_eq!(store.entry(&unknown).await, Err(refused.clone()));
        assert_eq!(store.unanswered(&unknown).await, Err(refused.clone()));
        assert_eq!(store.answer(&unknown, 1).await, Err(refused));
    })
    .await;
}

#[tokio::test]
async fn a_session_that_began_elsewhere_continues_where_it_was() {
    each(|store| async move {
        let mut forked = record("run-1");
        forked.base = Some(Box::new(base("run-1", 40)));
        let lease = store.create(&forked, &Owner::of_process(), at(0)).await.unwrap();
        let id = &lease.session;
        assert_eq!(store.record(id).await, Ok(forked));
        assert_eq!(store.read(id, 0, Select::All).await, Ok(Vec::new()));
        let conflict = StoreError::Conflict { session: id.clone(), expected: 41, actual: 1 };
        assert_eq!(store.append(&lease, batch(&events("run-1", 1..=1))).await, Err(conflict));
        let log = events("run-1", 41..=43);
        store.append(&lease, batch(&log)).await.unwrap();
        assert_eq!(store.read(id, 0, Select::All).await, Ok(log.clone()));
        assert_eq!(store.read(id, 43, Select::All).await, Ok(log[2..].to_vec()));
    })
    .await;
}

#[tokio::test]
async fn an_entry_says_where_a_session_stands() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let mut log = events("run-1", 1..=2);
        log.push(event("run-1", 3, end()));
        let mut digest = SessionFacts::default();
        log.iter().for_each(|event| digest.apply(event));
        assert_eq!(digest.status, SessionStatus::Complete);
        store.append(&lease, batch(&log[..2])).await.unwrap();
        store.post(&lease.session, &Command::Send { content: "late".to_owned() }, at(9)).await.unwrap();
        assert_eq!(store.entry(&lease.session).await.unwrap().unanswered, 1);
        store.append(&lease, batch(&log[2..])).await.unwrap();
        let mut entry = SessionEntry {
            session: lease.session.clone(),
            flow: "oxen".to_owned(),
            created_at: record("run-1").created_at,
            digest,
            owner: Some(Owner::of_process()),
            liveness: Liveness::Alive,
            unanswered: 0,
            answered: Vec::new(),
            continued_by: None,
            is_replay: false,
            waiting_for_worker: Vec::new(),
            waiting_for_machine: BTreeMap::new(),
            undecided_since: None,
            is_unknown: false,
            damage: None,
        };
        assert_eq!(store.entry(&lease.session).await, Ok(entry.clone()));
        store.release(&lease).await.unwrap();
        (entry.owner, entry.liveness) = (None, Liveness::Gone);
        assert_eq!(store.entries("", 9).await, Ok(vec![entry]));
    })
    .await;
}

#[tokio::test]
async fn entries_come_newest_first_and_by_prefix() {
    each(|store| async move {
        let me = Owner::of_process();
        let rows = [("ab", 3), ("abc", 1), ("b_", 2), ("b%", 5), ("ä", 4), ("äö", 4)];
        for (id, made) in rows {
            let mut record = record(id);
            record.created_at = at(made);
            store.create(&record, &me, at(9)).await.unwrap();
        }
        let cases: [(&str, usize, &[&str]); 9] = [
            ("", 9, &["b%", "ä", "äö", "ab", "b_", "abc"]),
            ("", 2, &["b%", "ä"]),
            ("ab", 9, &["ab", "abc"]),
            ("ab", 1, &["ab"]),
            ("abc", 9, &["abc"]),
            ("b_", 9, &["b_"]),
            ("ä", 9, &["ä", "äö"]),
            ("z", 9, &[]),
            ("", 0, &[]),
        ];
        for (prefix, limit, expected) in cases {
            let entries = store.entries(prefix, limit).await.unwrap();
            let ids: Vec<_> = entries.iter().map(|entry| entry.session.as_str()).collect();
            assert_eq!(ids, expected, "{prefix:?} {limit}");
        }
        assert_eq!(store.entries("", usize::MAX).await.unwrap().len(), rows.len());
    })
    .await;
}

#[tokio::test]
async fn a_pause_of_a_paused_session_has_nothing_left_to_do() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let id = &lease.session;
        store.post(id, &Command::Pause { reason: None }, at(5)).await.unwrap();
        assert_eq!(store.entry(id).await.unwrap().unanswered, 1);
        let paused = serde_json::from_value(json!({ "type": "flow:paused", "nodeIds": [] })).unwrap();
        let log = [events("run-1", 1..=1), vec![event("run-1", 2, paused)]].concat();
        store.append(&lease, batch(&log)).await.unwrap();
        assert_eq!(store.unanswered(id).await.unwrap().len(), 1);
        assert_eq!(store.entry(id).await.unwrap().unanswered, 0);
        store.post(id, &Command::Send { content: "next".to_owned() }, at(6)).await.unwrap();
        assert_eq!(store.entry(id).await.unwrap().unanswered, 1);
    })
    .await;
}

#[tokio::test]
async fn a_command_is_answered_once() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let other = started(&*store, "run-2").await;
        let id = &lease.session;
        let commands = ["a", "b", "c"].map(|content| Command::Send { content: content.to_owned() });
        let mut posted = Vec::new();
        for (command, time) in commands.iter().zip(5..) {
            let number = store.post(id, command, at(time)).await.unwrap();
            posted.push(PostedCommand { number, at: at(time), command: command.clone(), key: None });
        }
        assert_eq!(posted.iter().map(|posted| posted.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(store.unanswered(id).await, Ok(posted.clone()));
        assert_eq!(store.unanswered(&other.session).await, Ok(Vec::new()));
        assert_eq!(store.entry(id).await.unwrap().unanswered, 3);
        assert_eq!(store.entry(&other.session).await.unwrap().unanswered, 0);
        let refused = Verdict::Refused("no run takes messages".to_owned());
        let answers = [
            CommandAnswer { number: 3, verdict: Verdict::Accepted },
            CommandAnswer { number: 1, verdict: refused.clone() },
            CommandAnswer { number: 1, verdict: Verdict::Accepted },
            CommandAnswer { number: 77, verdict: Verdict::Accepted },
        ];
        let log = events("run-1", 1..=1);
        store.append(&lease, Batch { events: &log, answers: &answers }).await.unwrap();
        let again = [CommandAnswer { number: 3, verdict: refused.clone() }];
        store.append(&lease, Batch { events: &[], answers: &again }).await.unwrap();
        assert_eq!(store.unanswered(id).await, Ok(vec![posted[1].clone()]));
        let mut seen = Vec::new();
        for number in [1, 2, 3, 77] {
            seen.push(store.answer(id, number).await.unwrap());
        }
        assert_eq!(seen, [Some(refused), None, Some(Verdict::Accepted), None]);
        let unknown = SessionId::from("run-3");
        let nobody = Err(StoreError::UnknownSession(unknown.clone()));
        assert_eq!(store.post(&unknown, &commands[0], at(1)).await, nobody);
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_session_answers_every_open_command_and_lets_none_in() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let id = &lease.session;
        let command = Command::Send { content: "a".to_owned() };
        for number in 1..=3 {
            assert_eq!(store.post(id, &command, at(1)).await, Ok(number));
        }
        let mut log = events("run-1", 1..=2);
        log.push(event("run-1", 3, end()));
        let answers = [CommandAnswer { number: 2, verdict: Verdict::Accepted }];
        store.append(&lease, Batch { events: &log, answers: &answers }).await.unwrap();
        let refused = Verdict::Refused("the session has ended".to_owned());
        let mut seen = Vec::new();
        for number in 1..=3 {
            seen.push(store.answer(id, number).await.unwrap());
        }
        assert_eq!(seen, [Some(refused.clone()), Some(Verdict::Accepted), Some(refused)]);
        assert_eq!(store.post(id, &command, at(9)).await, Err(StoreError::SessionEnded(id.clone())));
    })
    .await;
}

#[tokio::test]
async fn a_question_takes_one_reply_while_nobody_drives_the_session() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let id = &lease.session;
        let reply =
            |prompt: &str| Command::Reply { prompt: prompt.into(), content: "yes".to_owned(), choice: None };
        // The process that runs it decides between two; one of them may not be an answer at all.
        assert_eq!(store.post(id, &reply("p"), at(1)).await, Ok(1));
        assert_eq!(store.post(id, &reply("p"), at(2)).await, Ok(2));
        store.release(&lease).await.unwrap();
        let waits = StoreError::ReplyWaits { session: id.clone(), prompt: "p".into() };
        assert_eq!(store.post(id, &reply("p"), at(3)).await, Err(waits));
        assert_eq!(store.post(id, &reply("q"), at(3)).await, Ok(3));
    })
    .await;
}

#[tokio::test]
async fn who_waits_for_commands_is_notified_of_each() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let mut posts = store.posts();
        for number in 1..=2 {
            let command = Command::Send { content: "a".to_owned() };
            assert_eq!(store.post(&lease.session, &command, at(1)).await, Ok(number));
            let notified = tokio::time::timeout(Duration::from_secs(30), posts.next()).await;
            assert_eq!(notified, Ok(Some(())));
        }
    })
    .await;
}

#[tokio::test]
async fn who_listens_is_notified_of_every_kind_of_change() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let mut changes = store.changes();
        let log = events("run-1", 1..=1);
        let mut seen = 0;
        // Each wait has an end far beyond what a machine under load needs.
        let mut next = async |what: &str| {
            let notified = tokio::time::timeout(Duration::from_secs(30), changes.next()).await;
            assert_eq!(notified, Ok(Some(())), "{what}");
            while changes.next().now_or_never().is_some() {}
            seen += 1;
        };
        store.append(&lease, batch(&log)).await.unwrap();
        next("append").await;
        store.post(&lease.session, &Command::Send { content: "a".to_owned() }, at(1)).await.unwrap();
        next("post").await;
        store.release(&lease).await.unwrap();
        next("release").await;
        store.create(&record("run-2"), &Owner::of_process(), at(2)).await.unwrap();
        next("create").await;
        assert_eq!(seen, 4);
    })
    .await;
}

#[tokio::test]
async fn many_write_at_once_and_each_log_stays_in_order() {
    each(|store| async move {
        let sessions = (0..16).map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let id = format!("run-{number}");
                let lease = started(&*store, &id).await;
                let log = events(&id, 1..=40);
                for piece in log.chunks(3) {
                    store.append(&lease, batch(piece)).await.unwrap();
                }
                assert_eq!(store.read(&lease.session, 0, Select::All).await, Ok(log));
            })
        });
        for session in sessions.collect::<Vec<_>>() {
            session.await.unwrap();
        }
        assert_eq!(store.entries("run-", 99).await.unwrap().len(), 16);
    })
    .await;
}

#[tokio::test]
async fn a_great_event_is_kept_whole() {
    each(|store| async move {
        let lease = started(&*store, "run-1").await;
        let log = vec![event("run-1", 1, text(&"wagon ".repeat(300_000)))];
        store.append(&lease, batch(&log)).await.unwrap();
        assert_eq!(store.read(&lease.session, 1, Select::All).await, Ok(log));
    })
    .await;
}

#[tokio::test]
async fn a_value_is_stored_for_its_session_under_its_hash() {
    async fn check(store: &(impl RunStore + BlobStore)) {
        let [one, two] = [started(store, "run-1").await.session, started(store, "run-2").await.session];
        let (value, other) = (Blob::new("[1,2]"), Blob::new("null"));
        assert_eq!(store.put(&one, &value).await, Ok(()));
        assert_eq!(store.put(&one, &value).await, Ok(()));
        assert_eq!(store.get(&one, &value.reference()).await, Ok(value.clone()));
        let missing = |session: &SessionId, blob: &Blob| {
            Err(StoreError::NoBlob { session: session.clone(), hash: blob.hash().to_owned() })
        };
        assert_eq!(store.get(&two, &value.reference()).await, missing(&two, &value));
        assert_eq!(store.get(&one, &other.reference()).await, missing(&one, &other));
        let nobody = SessionId::from("run-3");
        assert_eq!(store.put(&nobody, &value).await, Err(StoreError::UnknownSession(nobody.clone())));
        assert_eq!(
            store.get(&nobody, &value.reference()).await,
            Err(StoreError::UnknownSession(nobody.clone()))
        );
    }
    check(&MemoryStore::new()).await;
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db"), &SqliteOptions::default()).unwrap();
    check(&store).await;
}
