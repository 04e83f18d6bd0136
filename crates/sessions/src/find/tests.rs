//! Finding a session by the beginning of its id.

use inspan_flow::{MemoryStore, Owner};
use inspan_protocol::Timestamp;
use serde_json::Map;

use super::*;

/// A store with sessions of these ids, each a moment newer than the one before.
async fn store(ids: &[String]) -> MemoryStore {
    let store = MemoryStore::new();
    for (at, id) in (0..).zip(ids) {
        let record = SessionRecord {
            session: SessionId::from(id.as_str()),
            flow: FlowSource::default(),
            input: Map::new(),
            created_at: Timestamp::from_millis(at),
            parent: None,
            base: None,
            settings: Map::new(),
        };
        store.create(&record, &Owner::of_process(), Timestamp::from_millis(at)).await.unwrap();
    }
    store
}

#[tokio::test]
async fn a_beginning_finds_one_session_and_a_whole_id_its_own() {
    let mut ids: Vec<String> = ["a", "flow-1", "flow-2"].map(str::to_owned).to_vec();
    ids.extend((0..20).map(|at| format!("a{at:02}")));
    let store = store(&ids).await;
    let mut found = Vec::new();
    for prefix in ["flow-1", "a07", "a", "flow", "b", "a1", ""] {
        found.push(match find(&store, prefix, None).await {
            Ok(entry) => entry.session.to_string(),
            Err(failure) => failure.message,
        });
    }
    let several = "several session IDs start with";
    assert_eq!(
        found,
        [
            "flow-1".to_owned(),
            "a07".to_owned(),
            "a".to_owned(),
            format!("{several} `flow`: `flow-2`, `flow-1`"),
            "no session ID starts with `b`".to_owned(),
            format!("{several} `a1`: `a19`, `a18`, `a17`, `a16`, `a15`, `a14`, `a13`, `a12`, …"),
            "a session ID has at least one character".to_owned(),
        ]
    );
}
