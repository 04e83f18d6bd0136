//! What people do with a store: list, verify, export, import and delete sessions.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use inspan_protocol::{Command, Event, SessionId};

use super::{SqliteStore, TestFolder, append, fill, start};
use crate::{
    Batch, CommandAnswer, Exported, Gc, GcReport, Import, Lease, Owner, Parent, ParentKind, RunStore, Select,
    SessionRecord, StoreError, TransferError, Verdict, VerifyReport,
    sqlite::session::{continuations_sql, entries_sql, insert, json, replays_sql},
    tests::samples::{at, base, end, event, events, note, record},
};

/// A session with a past: forked, ended, with an unknown event and commands in every state.
async fn rich(store: &SqliteStore, id: &str) -> SessionId {
    let mut forked = record(id);
    forked.base = Some(Box::new(base(id, 40)));
    let lease = store.create(&forked, &Owner::of_process(), at(0)).await.unwrap();
    for content in ["a", "b", "c"] {
        store.post(&lease.session, &Command::Send { content: content.to_owned() }, at(3)).await.unwrap();
    }
    let mut log = events(id, 41..=43);
    log.push(note(
        id,
        44,
        serde_json::json!({ "type": "vendor:news", "n": 0.1, "x": { "y": "\u{2028}\"" } }),
    ));
    log.push(event(id, 45, end()));
    let answers = [
        CommandAnswer { number: 1, verdict: Verdict::Accepted },
        CommandAnswer { number: 3, verdict: Verdict::Refused("nobody listens".to_owned()) },
    ];
    store.append(&lease, Batch { events: &log, answers: &answers }).await.unwrap();
    store.release(&lease).await.unwrap();
    lease.session
}

async fn exported(store: &SqliteStore, id: &SessionId) -> (String, Exported) {
    let (text, exported) = store.export(id, Vec::new()).await.unwrap();
    (String::from_utf8(text).unwrap(), exported)
}

#[tokio::test]
async fn a_session_goes_through_its_lines_unchanged() {
    let (here, there) = (TestFolder::new(), TestFolder::new());
    let (from, to) = (here.open(), there.open());
    let id = rich(&from, "run-1").await;
    let (text, report) = exported(&from, &id).await;
    let whole = Exported { session: id.clone(), events: 5, commands: 3, damage: None };
    assert_eq!(report, whole);
    let keys = |line: &str| {
        let object: serde_json::Map<_, _> = serde_json::from_str(line).unwrap();
        object.keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let shape: Vec<_> = text.lines().map(keys).collect();
    let envelope = "context event id seq timestamp v";
    let refused = "answeredSeq at command number reason verdict";
    assert_eq!(
        shape,
        [
            "format record",
            envelope,
            envelope,
            envelope,
            envelope,
            envelope,
            "answeredSeq at command number verdict",
            refused,
            refused,
            "end",
        ]
    );

    assert_eq!(to.import(io::Cursor::new(text.clone().into_bytes()), Import::Whole).await.unwrap(), whole);
    assert_eq!(to.record(&id).await, from.record(&id).await);
    assert_eq!(to.read(&id, 0, Select::All).await, from.read(&id, 0, Select::All).await);
    assert_eq!(to.entry(&id).await, from.entry(&id).await);
    assert_eq!(to.unanswered(&id).await, from.unanswered(&id).await);
    for number in 1..=3 {
        assert_eq!(to.answer(&id, number).await, from.answer(&id, number).await);
    }
    assert_eq!(exported(&to, &id).await.0, text);
    let report = to.verify().await.unwrap();
    assert_eq!(report, VerifyReport { sessions: 1, events: 5, commands: 3, ..Default::default() });
    let again = to.import(io::Cursor::new(text.into_bytes()), Import::Whole).await.unwrap_err();
    assert!(matches!(again, TransferError::Store(StoreError::SessionExists(taken)) if taken == id));
    // The imported session can be resumed.
    let lease = to.acquire(&id, &Owner::of_process(), at(9)).await.unwrap();
    assert_eq!(lease, Lease { session: id, epoch: 1 });
    assert_eq!(append(&to, &lease, &events("run-1", 46..=46)).await, Ok(()));
    assert!(to.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn lines_that_are_not_in_order_leave_nothing_behind() {
    let (here, there) = (TestFolder::new(), TestFolder::new());
    let (from, to) = (here.open(), there.open());
    let id = rich(&from, "run-1").await;
    let text = exported(&from, &id).await.0;
    let lines: Vec<&str> = text.lines().collect();
    let without = |gone: usize| [&lines[..gone], &lines[gone + 1..]].concat().join("\n");
    let with = |place: usize, line: &str| {
        let mut lines = lines.clone();
        lines[place] = line;
        lines.join("\n")
    };
    let newer = lines[0].replace("\"format\":1", "\"format\":9");
    let other = lines[2].replace("run-1", "run-9");
    let cases = [
        (String::new(), 1, "the file is empty"),
        ("hello".to_owned(), 1, "it is not a JSON object"),
        ("{".to_owned(), 1, "it is cut off"),
        (with(0, &newer), 1, "the lines have format 9, and this program reads 1"),
        (without(1), 2, "the event is number 42, and 41 comes next"),
        (with(2, lines[1]), 3, "the event is number 41, and 42 comes next"),
        (with(2, &other), 3, "the event is of session `run-9`"),
        (without(6), 7, "the command is number 2, and 1 comes next"),
        (with(8, lines[5]), 9, "an event follows the commands"),
        (with(8, "{}"), 9, "it is neither an event, nor a command, nor the end"),
        (
            with(9, "{\"end\":{\"events\":6,\"commands\":3}}"),
            10,
            "6 events and 3 commands were exported, and others came",
        ),
        (without(9), 10, "the end is missing"),
    ];
    for (text, line, what) in cases {
        let refused = to.import(io::Cursor::new(text.into_bytes()), Import::Whole).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("line {line} of the exported session: {what}"));
    }
    assert_eq!(to.entries("", 9).await, Ok(Vec::new()));
}

#[tokio::test]
async fn of_a_damaged_session_what_comes_before_gets_out() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 9).await;
    place.raw().execute_batch("UPDATE events SET at = 0 WHERE seq = 5").unwrap();
    let (text, report) = exported(&store, &id).await;
    let damage = Some("event 5 is altered".to_owned());
    assert_eq!(report, Exported { session: id.clone(), events: 4, commands: 0, damage });
    assert_eq!(text.lines().count(), 5);
    let refused = store.import(io::Cursor::new(text.clone().into_bytes()), Import::Whole).await.unwrap_err();
    assert_eq!(refused.to_string(), "line 6 of the exported session: the end is missing");
    // What is left of it can replace the damaged session, and be resumed.
    store.delete(std::slice::from_ref(&id), Gc::Delete, at(9)).await.unwrap();
    let part = store.import(io::Cursor::new(text.into_bytes()), Import::Part).await.unwrap();
    assert_eq!(part, Exported { session: id.clone(), events: 4, commands: 0, damage: None });
    assert_eq!(store.read(&id, 0, Select::All).await, Ok(events("run-1", 1..=4)));
    let lease = store.acquire(&id, &Owner::of_process(), at(9)).await.unwrap();
    assert_eq!(append(&store, &lease, &events("run-1", 5..=9)).await, Ok(()));
    assert!(store.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn of_lines_that_are_cut_off_what_comes_before_gets_in() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 9).await;
    let (text, _) = exported(&store, &id).await;
    store.delete(std::slice::from_ref(&id), Gc::Delete, at(9)).await.unwrap();
    let cut = text.match_indices('\n').nth(4).unwrap().0 + 20;
    let torn = || io::Cursor::new(text.clone().into_bytes()[..cut].to_vec());
    let refused = store.import(torn(), Import::Whole).await.unwrap_err();
    assert_eq!(refused.to_string(), "line 6 of the exported session: it is cut off");
    let part = store.import(torn(), Import::Part).await.unwrap();
    assert_eq!(part, Exported { session: id.clone(), events: 4, commands: 0, damage: None });
    assert_eq!(store.read(&id, 0, Select::All).await, Ok(events("run-1", 1..=4)));
}

#[tokio::test]
async fn a_session_that_descends_from_itself_does_not_get_in_and_is_found_where_it_is() {
    let place = TestFolder::new();
    let store = place.open();
    let child = |id: &str, of: &str, kind| SessionRecord {
        parent: Some(Parent::new(of.into(), 0, kind)),
        ..record(id)
    };
    let import = |record: SessionRecord| {
        let line = serde_json::json!({ "format": 1, "record": record }).to_string();
        store.import(io::Cursor::new(line.into_bytes()), Import::Part)
    };
    let first = child("run-1", "run-1", ParentKind::Resume);
    let circle = StoreError::DescendsFromItself(first.session.clone());
    let refused = |error| matches!(error, TransferError::Store(error) if error == circle);
    assert!(refused(import(first.clone()).await.unwrap_err()));
    // Its parent may come later, but not as its descendant.
    import(child("run-3", "run-2", ParentKind::Fork)).await.unwrap();
    import(child("run-2", "run-1", ParentKind::Resume)).await.unwrap();
    assert!(refused(import(child("run-1", "run-3", ParentKind::Resume)).await.unwrap_err()));
    assert!(store.verify().await.unwrap().is_sound());
    // One that an older program let in; what comes after it is not part of the circle.
    insert(&place.raw(), &first, &json(&first).unwrap()).unwrap();
    assert_eq!(store.record(&first.session).await, Err(circle));
    assert!(store.record(&"run-2".into()).await.is_ok());
    let found = store.verify().await.unwrap().findings;
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["session `run-1`: it descends from itself, and so nothing can follow it"]);
}

struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn who_cannot_take_the_lines_gets_an_error() {
    let place = TestFolder::new();
    let store = place.open();
    let id = fill(&store, "run-1", 9).await;
    let refused = store.export(&id, Closed).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, TransferError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe));
    let unknown = store.export(&"run-2".into(), Vec::new()).await.unwrap_err();
    assert!(matches!(unknown, TransferError::Store(StoreError::UnknownSession(_))));
}

/// Sessions that ended at the moments 100, 200 and 300, one that is paused, and one that ended and is held.
async fn old(store: &SqliteStore) -> [SessionId; 5] {
    let ids = ["run-1", "run-2", "run-3", "run-4", "run-5"];
    for (id, ended) in ids.into_iter().zip([Some(100), Some(200), Some(300), None, Some(100)]) {
        let lease = start(store, id).await;
        let mut log = events(id, 1..=60);
        if let Some(ended) = ended {
            let mut last = (*event(id, 61, end())).clone();
            last.timestamp = at(ended);
            log.push(Arc::new(last));
        }
        store.post(&lease.session, &Command::Send { content: "a".to_owned() }, at(3)).await.unwrap();
        append(store, &lease, &log).await.unwrap();
        if id != "run-5" {
            store.release(&lease).await.unwrap();
        }
    }
    ids.map(SessionId::from)
}

async fn left(store: &SqliteStore) -> Vec<String> {
    let mut left: Vec<_> =
        store.entries("", 99).await.unwrap().into_iter().map(|entry| entry.session.to_string()).collect();
    left.sort();
    left
}

#[tokio::test]
async fn only_what_ended_and_is_free_is_collected() {
    let place = TestFolder::new();
    let store = place.open();
    let [first, second, ..] = old(&store).await;
    let heir =
        SessionRecord { parent: Some(Parent::new(first.clone(), 9, ParentKind::Fork)), ..record("heir") };
    let lease = store.create(&heir, &Owner::of_process(), at(4)).await.unwrap();
    // An open session takes over what the first one did.
    let look = store.gc(at(300), Gc::Look, at(400), |_| ()).await.unwrap();
    assert_eq!(look.sessions.iter().map(|gone| &gone.session).collect::<Vec<_>>(), [&second]);
    let needed = StoreError::Needed { session: first.clone(), by: heir.session.clone() };
    assert_eq!(store.delete(std::slice::from_ref(&first), Gc::Delete, at(400)).await, Err(needed));
    store.release(&lease).await.unwrap();
    store.delete(std::slice::from_ref(&heir.session), Gc::Delete, at(400)).await.unwrap();
    let look = store.gc(at(300), Gc::Look, at(400), |_| ()).await.unwrap();
    let sessions: Vec<_> = look.sessions.iter().map(|gone| (gone.session.clone(), gone.events)).collect();
    assert_eq!(sessions, [(first, 61), (second, 61)]);
    assert!(look.sessions.iter().all(|gone| gone.bytes > 61 * 200), "{look:?}");
    assert_eq!(look.file_bytes_before, look.file_bytes_after);
    assert_eq!(left(&store).await, ["run-1", "run-2", "run-3", "run-4", "run-5"]);

    let done = store.gc(at(300), Gc::Delete, at(400), |_| ()).await.unwrap();
    let GcReport { sessions, file_bytes_before, file_bytes_after, .. } = done;
    assert_eq!(sessions, look.sessions);
    let freed: u64 = sessions.iter().map(|gone| gone.bytes).sum();
    assert!(file_bytes_after + freed / 2 < file_bytes_before, "{file_bytes_before} to {file_bytes_after}");
    assert_eq!(left(&store).await, ["run-3", "run-4", "run-5"]);
    assert!(store.verify().await.unwrap().is_sound());
    let nothing = store.gc(at(300), Gc::Delete, at(400), |_| ()).await.unwrap();
    assert_eq!(nothing.sessions, []);
    // What is deleted does not look lost, and its place is used again.
    drop(store);
    let store = place.open();
    fill(&store, "run-6", 3).await;
    assert!(store.verify().await.unwrap().is_sound());
}

/// A stored session that follows another one, and ended at a moment if one is given.
async fn following(store: &SqliteStore, id: &str, of: Option<(&str, ParentKind)>, ended: Option<i64>) {
    let parent = of.map(|(of, kind)| Parent::new(of.into(), 4, kind));
    let made = SessionRecord { parent, ..record(id) };
    let lease = store.create(&made, &Owner::of_process(), at(4)).await.unwrap();
    let mut log = events(id, 1..=3);
    if let Some(ended) = ended {
        let mut last = (*event(id, 4, end())).clone();
        last.timestamp = at(ended);
        log.push(Arc::new(last));
    }
    append(store, &lease, &log).await.unwrap();
    store.release(&lease).await.unwrap();
}

#[tokio::test]
async fn a_session_is_deleted_with_those_that_it_continues_or_not_at_all() {
    let place = TestFolder::new();
    let store = place.open();
    let next = |of| Some((of, ParentKind::Resume));
    following(&store, "zero", None, Some(50)).await;
    // Paused ones, each continued by the next, of which the last has ended.
    following(&store, "one", next("zero"), None).await;
    following(&store, "two", next("one"), None).await;
    following(&store, "three", next("two"), Some(100)).await;
    following(&store, "fork", Some(("one", ParentKind::Fork)), None).await;
    let collect = async |mode| {
        let report = store.gc(at(300), mode, at(400), |_| ()).await.unwrap();
        report.sessions.into_iter().map(|gone| gone.session.to_string()).collect::<Vec<_>>()
    };
    let all = ["fork", "one", "three", "two", "zero"];
    // The fork may still need the first, and without the last the others could be resumed again.
    assert_eq!((collect(Gc::Look).await, collect(Gc::Delete).await), (vec![], vec![]));
    for (id, before) in [("three", &["one", "two"][..]), ("two", &["one"])] {
        let before = before.iter().map(|id| SessionId::from(*id)).collect();
        let reopens = StoreError::Reopens { session: id.into(), before };
        assert_eq!(store.delete(&[id.into()], Gc::Delete, at(400)).await, Err(reopens));
    }
    assert_eq!(left(&store).await, all);
    let needed = StoreError::Needed { session: "one".into(), by: "fork".into() };
    assert_eq!(store.delete(&["one".into()], Gc::Delete, at(400)).await, Err(needed));
    store.delete(&["fork".into()], Gc::Delete, at(400)).await.unwrap();
    // A younger one that goes on after them has ended, and needs them no more.
    following(&store, "four", next("three"), Some(350)).await;
    let together = ["zero", "one", "two", "three"];
    assert_eq!(collect(Gc::Look).await, together);
    assert_eq!(collect(Gc::Delete).await, together);
    assert_eq!(left(&store).await, ["four"]);
    // By their names, in any order: of these the first is needed by the second, which would open the first again.
    following(&store, "a", None, None).await;
    following(&store, "b", next("a"), None).await;
    following(&store, "c", Some(("b", ParentKind::Fork)), None).await;
    let needed = StoreError::Needed { session: "a".into(), by: "c".into() };
    assert_eq!(store.delete(&["a".into(), "b".into()], Gc::Delete, at(400)).await, Err(needed));
    assert_eq!(left(&store).await, ["a", "b", "c", "four"]);
    for mode in [Gc::Look, Gc::Delete] {
        let all = ["c", "a", "four", "b", "a"].map(SessionId::from);
        let deleted = store.delete(&all, mode, at(400)).await.unwrap();
        let names: Vec<_> = deleted.iter().map(|gone| (gone.session.as_str(), gone.events)).collect();
        assert_eq!(names, [("four", 4), ("a", 3), ("b", 3), ("c", 3)]);
    }
    assert_eq!(left(&store).await, Vec::<String>::new());
    assert!(store.verify().await.unwrap().is_sound());
}

#[tokio::test]
async fn what_is_named_is_deleted_unless_somebody_drives_it() {
    let place = TestFolder::new();
    let store = place.open();
    let [_, _, third, fourth, fifth] = old(&store).await;
    let deleted = store.delete(std::slice::from_ref(&fourth), Gc::Delete, at(400)).await.unwrap();
    assert_eq!((&deleted[0].session, deleted[0].events, deleted.len()), (&fourth, 60, 1));
    let held = StoreError::Held { session: fifth.clone(), owner: Box::new(Owner::of_process()) };
    assert_eq!(store.delete(std::slice::from_ref(&fifth), Gc::Delete, at(400)).await, Err(held));
    let unknown = Err(StoreError::UnknownSession(fourth.clone()));
    assert_eq!(store.delete(std::slice::from_ref(&fourth), Gc::Delete, at(400)).await, unknown);
    assert_eq!(store.unanswered(&fourth).await, Err(StoreError::UnknownSession(fourth.clone())));
    assert_eq!(left(&store).await, ["run-1", "run-2", "run-3", "run-5"]);
    // The id is free again, and nothing of the old session is in the new one.
    store.delete(std::slice::from_ref(&third), Gc::Delete, at(400)).await.unwrap();
    let lease = start(&store, "run-3").await;
    assert_eq!(lease, Lease { session: third.clone(), epoch: 1 });
    assert_eq!(store.read(&third, 0, Select::All).await, Ok(Vec::new()));
    assert_eq!(store.unanswered(&third).await, Ok(Vec::new()));
    assert!(store.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_that_is_deleted_while_it_is_read_is_unknown_and_not_damaged() {
    let place = TestFolder::new();
    let store = Arc::new(place.open());
    let id = SessionId::from("run-1");
    let is_over = Arc::new(AtomicBool::new(false));
    let readers = [(); 2].map(|()| {
        let (store, id, is_over) = (Arc::clone(&store), id.clone(), Arc::clone(&is_over));
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                if let Err(error) = store.record(&id).await
                    && error != StoreError::UnknownSession(id.clone())
                {
                    return Err(error);
                }
            }
            Ok(())
        })
    });
    // Nearly every second deletion comes between two queries of a reader.
    for _ in 0..40 {
        fill(&store, "run-1", 1).await;
        store.delete(std::slice::from_ref(&id), Gc::Delete, at(400)).await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        assert_eq!(reader.await.unwrap(), Ok(()));
    }
}

/// What is read from an export must have everything that our log has.
#[tokio::test]
async fn lines_that_break_what_readers_rely_on_are_refused() {
    let (here, there) = (TestFolder::new(), TestFolder::new());
    let (from, to) = (here.open(), there.open());
    let lease = start(&from, "run-1").await;
    let plugged =
        |seq| note("run-1", seq, serde_json::json!({ "type": "channel:started", "name": "console" }));
    let begin = event("run-1", 2, Event::HarnessStart { name: "oxen".to_owned() });
    let refused = note(
        "run-1",
        6,
        serde_json::json!({ "type": "session:rejected", "command": "pause", "reason": "it has ended" }),
    );
    let mut log = vec![plugged(1), begin];
    log.extend(events("run-1", 3..=3));
    log.extend([event("run-1", 4, end()), plugged(5), refused]);
    append(&from, &lease, &log).await.unwrap();
    let text = exported(&from, &lease.session).await.0;
    let lines: Vec<&str> = text.lines().collect();
    let with = |place: usize, line: &str| {
        let mut lines = lines.clone();
        lines[place] = line;
        lines.join("\n")
    };
    let as_number = |line: &str, seq: u64| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["seq"] = seq.into();
        value.to_string()
    };
    let long = format!("{{\"format\":1,\"record\":\"{}", "a".repeat(257 << 20));
    let cases = [
        (with(1, &as_number(lines[3], 1)), 2, "`agent:text` comes before `harness:start`"),
        (with(2, &as_number(lines[3], 2)), 3, "`agent:text` comes before `harness:start`"),
        (with(3, &as_number(lines[2], 3)), 4, "`harness:start` comes once more"),
        (with(5, &as_number(lines[3], 5)), 6, "`agent:text` follows `harness:complete`"),
        (with(5, &as_number(lines[4], 5)), 6, "`harness:complete` follows `harness:complete`"),
        (format!("\u{feff}{text}"), 1, "it is not a JSON object"),
        (with(3, ""), 4, "it is not a JSON object"),
        (format!("{text}{}", lines[1]), 9, "there is a line after the end"),
        (long, 1, "it is longer than 256 MiB"),
    ];
    for (text, line, what) in cases {
        let refused = to.import(io::Cursor::new(text.into_bytes()), Import::Whole).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("line {line} of the exported session: {what}"));
    }
    for id in ["", "../../x", "..", "-f", "a\nb", "\u{1b}]0;x\u{7}", &"x".repeat(129)] {
        let quoted = serde_json::to_string(id).unwrap();
        let text = text.replace("\"run-1\"", &quoted);
        let refused = to.import(io::Cursor::new(text.into_bytes()), Import::Whole).await.unwrap_err();
        let what = "the session's id is refused: a session id is 1 to 128 letters, digits, `-`, `_` or `.`";
        assert_eq!(refused.to_string(), format!("line 1 of the exported session: {what}"), "{id:?}");
    }
    for last in [1 << 53, u64::MAX] {
        let mut forked = record("run-9");
        forked.base = Some(Box::new(base("run-9", last)));
        let line = serde_json::json!({ "format": 1, "record": forked }).to_string();
        let refused = to.import(io::Cursor::new(line.into_bytes()), Import::Part).await.unwrap_err();
        let what = "the session begins beyond every number that an event can have";
        assert_eq!(refused.to_string(), format!("line 1 of the exported session: {what}"));
    }
    let zeros = to.import(io::repeat(0), Import::Whole).await.unwrap_err();
    assert_eq!(zeros.to_string(), "line 1 of the exported session: it is not a JSON object");
    assert_eq!(to.import(io::Cursor::new(text.into_bytes()), Import::Whole).await.unwrap().events, 6);
}

/// How long it takes is measured by `cargo xtask bench store`, how much memory one great session takes in
/// `tests/store_crash.rs`.
#[test]
fn sessions_are_listed_by_an_index() {
    let place = TestFolder::new();
    drop(place.open());
    let plan = |prefix: &str| plan(&place, &entries_sql(prefix));
    let counted = "CORRELATED SCALAR SUBQUERY 1; SEARCH commands USING INDEX commands_unanswered (session=?)";
    assert_eq!(plan(""), format!("SCAN sessions USING INDEX sessions_by_age; {counted}"));
    assert_eq!(
        plan("run-"),
        format!(
            "SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (id>? AND id<?); {counted}; \
             USE TEMP B-TREE FOR ORDER BY"
        )
    );
}

#[test]
fn of_one_session_the_records_of_all_are_not_read() {
    let place = TestFolder::new();
    drop(place.open());
    let is_replay = plan(&place, &replays_sql(true));
    assert_eq!(
        is_replay,
        "SEARCH sessions USING COVERING INDEX sqlite_autoindex_sessions_1 (id=?); \
         SEARCH records USING INTEGER PRIMARY KEY (rowid=?)"
    );
    let continued = plan(&place, &continuations_sql(true));
    assert!(!continued.contains("SCAN records") && continued.contains("SEARCH records"), "{continued}");
}

/// How SQLite carries out a query.
fn plan(place: &TestFolder, sql: &str) -> String {
    let raw = place.raw();
    let mut query = raw.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut steps = query.raw_query();
    let mut plan = Vec::new();
    while let Some(step) = steps.next().unwrap() {
        plan.push(step.get::<_, String>(3).unwrap());
    }
    plan.join("; ")
}
