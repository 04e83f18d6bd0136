//! Encrypted logs: what is stored shows nothing, and what is wrong is reported.

use std::sync::Arc;

use futures::TryStreamExt as _;
use inspan_flow::RunStore as _;
use inspan_flow_core::SessionRecord;
use inspan_protocol::SessionId;
use inspan_store::StoreError;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload, memory::InMemory, path::Path};

use super::cluster::TestCluster;
use crate::{
    LogKeys, SharedLog,
    log::{LogPosition, Segment, Writer},
};

const KEYS: [&str; 2] =
    ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=\n"];

fn keys(of: &[usize]) -> LogKeys {
    LogKeys::of(of.iter().map(|number| KEYS[*number])).expect("they are keys")
}

fn log(store: &Arc<InMemory>, root: &str) -> SharedLog {
    SharedLog::new(Arc::<InMemory>::clone(store), Path::from(root))
}

/// A segment that can be distinguished from others.
fn segment(part: u32) -> Segment {
    Segment::new(Writer::Decider, LogPosition { seq: 1, part })
}

/// A store with a session, of which no test here reads the record.
async fn with_session() -> (Arc<InMemory>, SessionId) {
    let store = Arc::new(InMemory::new());
    store.put(&Path::from("a/sessions/s/record.json"), PutPayload::from("{}")).await.unwrap();
    (store, SessionId::from("s"))
}

#[tokio::test]
async fn nothing_of_a_session_is_readable_but_its_name() {
    let store = Arc::new(InMemory::new());
    let cluster = TestCluster::on(log(&store, "inspan").encrypted(keys(&[0])));
    let flow = "
flow: { name: planted-flow }
nodes:
  - { id: planted_node, type: exec, input: { argv: [echo, planted-word] } }
  - { id: ask, type: human.input, input: { prompt: 'planted-question' } }
";
    let session = cluster.add("flow-1", flow).await;
    let asks = |events: &[Arc<inspan_protocol::Envelope>]| {
        events.iter().any(|event| event.event.name() == "session:prompt")
            && events.iter().any(|event| event.event.name() == "task:complete")
    };
    cluster.run(&session, &[], asks).await;
    let abort = inspan_protocol::Command::Abort { reason: Some("planted-reason".to_owned()) };
    inspan_flow::RunStore::post(&*cluster.store, &session, &abort, Default::default()).await.unwrap();
    cluster.run(&session, &[], |_| false).await;
    let objects: Vec<_> = store.list(None).try_collect().await.unwrap();
    let mut folders = std::collections::BTreeSet::new();
    for object in objects {
        let bytes = store.get(&object.location).await.unwrap().bytes().await.unwrap();
        let shown = String::from_utf8_lossy(&bytes);
        assert!(!shown.contains("planted") && bytes[0] == 1, "{}: {shown}", object.location);
        folders.insert(object.location.parts().nth(3).unwrap().as_ref().to_owned());
    }
    let all = ["commands", "entry.json", "log", "record.json"].map(str::to_owned);
    assert_eq!(folders.into_iter().collect::<Vec<_>>(), all);
}

#[tokio::test]
async fn a_new_key_reads_what_the_old_one_wrote() {
    let (store, session) = with_session().await;
    let old = log(&store, "a").encrypted(keys(&[0]));
    assert!(old.append(&session, &segment(0)).await.unwrap());
    let both = log(&store, "a").encrypted(keys(&[1, 0]));
    assert!(both.append(&session, &segment(1)).await.unwrap());
    assert_eq!(both.segments(&session, 1).await.unwrap(), [segment(0), segment(1)]);
    let new = log(&store, "a").encrypted(keys(&[1]));
    assert_eq!(new.segment(&session, segment(1).position).await.unwrap(), Some(segment(1)));
    for (log, part) in [(&new, 0), (&old, 1)] {
        let error = log.segment(&session, segment(part).position).await.unwrap_err().to_string();
        let object = format!("sessions/s/log/0000000000000001-000{part}.jsonl");
        assert_eq!(
            error,
            format!(
                "{object} was encrypted with a key that is not among those that `key` in the engine's address names"
            )
        );
    }
}

#[tokio::test]
async fn a_log_is_encrypted_or_it_is_not() {
    let (store, session) = with_session().await;
    let (plain, sealed) = (log(&store, "a"), log(&store, "a").encrypted(keys(&[0])));
    plain.append(&session, &segment(0)).await.unwrap();
    sealed.append(&session, &segment(1)).await.unwrap();
    let error = sealed.segment(&session, segment(0).position).await.unwrap_err().to_string();
    assert!(
        error.ends_with("0001-0000.jsonl is not encrypted, and the engine's address has `key`"),
        "{error}"
    );
    let error = plain.segment(&session, segment(1).position).await.unwrap_err().to_string();
    assert!(
        error.ends_with("0001-0001.jsonl is encrypted: name its key in the engine's address, `key=NAME`"),
        "{error}"
    );
}

#[tokio::test]
async fn a_session_of_another_key_does_not_hide_the_others() {
    let store = Arc::new(InMemory::new());
    let plain = log(&store, "a");
    let sealed = plain.clone().encrypted(keys(&[0]));
    let cluster = TestCluster::on(sealed.clone());
    let good = cluster.add("good", "flow: { name: f }\nnodes: [{ id: a, type: control.noop }]\n").await;
    cluster.run(&good, &[], |_| false).await;
    let record = sealed.record(&good).await.unwrap();
    for (other, session) in [(plain.clone().encrypted(keys(&[1])), "other-key"), (plain, "no-key")] {
        let record = SessionRecord { session: session.into(), ..record.clone() };
        other.create(&record).await.unwrap();
    }
    let listed = cluster.store.entries("", 10).await.unwrap();
    let seen: Vec<_> = listed.iter().map(|entry| (entry.session.as_str(), entry.damage.as_deref())).collect();
    let other_key = "sessions/other-key/record.json was encrypted with a key that is not among those that `key` in the \
                     engine's address names";
    let no_key = "sessions/no-key/record.json is not encrypted, and the engine's address has `key`";
    assert_eq!(seen, [("good", None), ("other-key", Some(other_key)), ("no-key", Some(no_key))]);
    // It has ended, so the others are searched for one that continues it.
    assert!(cluster.store.entry(&good).await.unwrap().digest.status.has_ended());
    let refused = cluster.store.entry(&"no-key".into()).await.unwrap_err();
    assert!(matches!(refused, StoreError::OtherKey { .. }), "{refused}");
}

#[tokio::test]
async fn nothing_is_stored_with_a_key_that_reads_no_session() {
    let store = Arc::new(InMemory::new());
    let on = |log: SharedLog| TestCluster::on(log);
    let plain = || log(&store, "a");
    let flow = "flow: { name: f }\nnodes: [{ id: a, type: control.noop }]\n";
    on(plain().encrypted(keys(&[0]))).add("one", flow).await;
    for other in [plain(), plain().encrypted(keys(&[1]))] {
        let cluster = on(other);
        let refused = cluster.add_to(&cluster.store, "two", flow).await.unwrap_err();
        assert!(matches!(refused, StoreError::OtherKey { .. }), "{refused}");
        assert_eq!(plain().sessions("").await.unwrap(), [SessionId::from("one")]);
    }
    // A key that is new reads the old sessions first, and later only those that are new.
    on(plain().encrypted(keys(&[1, 0]))).add("two", flow).await;
    on(plain().encrypted(keys(&[1]))).add("three", flow).await;
}

#[tokio::test]
async fn an_object_that_was_changed_or_moved_is_refused() {
    let (store, session) = with_session().await;
    let sealed = log(&store, "a").encrypted(keys(&[0]));
    sealed.append(&session, &segment(0)).await.unwrap();
    let path = |part: u32| Path::from(format!("a/sessions/s/log/0000000000000001-000{part}.jsonl"));
    let bytes = store.get(&path(0)).await.unwrap().bytes().await.unwrap();
    let mut changed = bytes.to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let put = async |part, bytes: Vec<u8>| store.put(&path(part), PutPayload::from(bytes)).await.unwrap();
    put(1, bytes.to_vec()).await;
    put(2, changed).await;
    put(3, bytes[..20].to_vec()).await;
    put(4, Vec::new()).await;
    for (part, what) in [
        (1, "it was changed, or it is another object's content"),
        (2, "it was changed, or it is another object's content"),
        (3, "it is shorter than an encrypted object can be"),
        (4, "it is empty"),
    ] {
        let error = sealed.segment(&session, segment(part).position).await.unwrap_err().to_string();
        assert!(error.ends_with(&format!("000{part}.jsonl: {what}")), "{error}");
    }
    // The whole folder may be elsewhere.
    let elsewhere = Path::from("b/c/sessions/s/log/0000000000000001-0000.jsonl");
    store.put(&elsewhere, PutPayload::from_bytes(bytes)).await.unwrap();
    let log = log(&store, "b/c").encrypted(keys(&[0]));
    assert_eq!(log.segment(&session, segment(0).position).await.unwrap(), Some(segment(0)));
}

#[test]
fn what_is_no_key_is_refused_and_a_key_is_never_shown() {
    for (text, place) in [("", 0), ("AAECAwQF", 0), ("not base64!", 0)] {
        assert_eq!(LogKeys::of([text]).err(), Some(place));
    }
    assert_eq!(LogKeys::of([KEYS[0], "AAEC"]).err(), Some(1));
    assert_eq!(format!("{:?}", keys(&[0, 1])), "LogKeys(2)");
}
