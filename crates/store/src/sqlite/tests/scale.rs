//! Many sessions: what is looked up is found by an index. How long it takes is measured by `cargo xtask bench
//! store`, how much memory one great session takes in `tests/store_crash.rs`.

use std::sync::Arc;

use futures::future::join_all;

use super::TestFolder;
use crate::{
    Owner, RunStore,
    sqlite::session::entries_sql,
    tests::samples::{at, record},
};

#[tokio::test]
async fn ten_thousand_sessions_are_listed_by_an_index() {
    let place = TestFolder::new();
    let store = Arc::new(place.open());
    for hundred in 0..100 {
        let creations = (0..100).map(|number| {
            let store = Arc::clone(&store);
            async move {
                let mut record = record(&format!("run-{hundred:02}{number:02}"));
                record.created_at = at(hundred * 100 + number);
                store.create(&record, &Owner::of_process(), at(0)).await
            }
        });
        assert!(join_all(creations).await.iter().all(Result::is_ok));
    }
    let newest: Vec<_> = store.entries("", 3).await.unwrap().into_iter().map(|entry| entry.session).collect();
    assert_eq!(newest, ["run-9999", "run-9998", "run-9997"]);
    let named = store.entries("run-0042", 3).await.unwrap();
    assert_eq!(named.len(), 1);
    drop(store);
    let store = place.open();
    assert_eq!(store.entries("run-", usize::MAX).await.unwrap().len(), 10_000);
    let plan = |prefix: &str| {
        let raw = place.raw();
        let mut query = raw.prepare(&format!("EXPLAIN QUERY PLAN {}", entries_sql(prefix))).unwrap();
        let mut steps = query.raw_query();
        let mut plan = Vec::new();
        while let Some(step) = steps.next().unwrap() {
            plan.push(step.get::<_, String>(3).unwrap());
        }
        plan.join("; ")
    };
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
