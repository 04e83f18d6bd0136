//! What is on record when the store fails, is taken away, or the owner dies: nothing acknowledged is lost, and nothing
//! finished is done again.

use std::{collections::BTreeSet, sync::Arc};

use inspan_protocol::{NodeId, Outcome, SessionId};
use serde_json::{Map, json};

use super::stage::{Stage, pass, session, spawn};
use crate::{
    Lease, Parent, ParentKind, Resume, Reusable, RunError, RunStore, Select, StoreError,
    testing::{Do, Talk},
};

const FLOW: &str = r#"
flow: { name: many, policy: { maxConcurrency: 3 } }
nodes:
  - { id: e1, type: effect }
  - { id: e2, type: effect, dependsOn: [e1] }
  - { id: e3, type: effect, dependsOn: [e1] }
  - { id: a, type: talk.agent, input: { prompt: one }, dependsOn: [e2] }
  - { id: wait, type: control.wait, input: { ms: 30 }, dependsOn: [e3] }
  - { id: e4, type: effect, dependsOn: [a, wait] }
  - { id: end, type: constant, dependsOn: [e4], input: { value: "{{ a.text }} {{ e4.path }}" } }
edges:
  - { from: wait, to: e3, when: "e3.path == 'e3'", maxIterations: 1 }
"#;

fn talk() -> Talk {
    Talk::new(|asked, _| match &asked.options.resume {
        None => vec![
            Do::Name("c-one"),
            Do::Say("a"),
            Do::Work(5),
            Do::Say("b"),
            Do::Work(5),
            Do::End("done", Some(0.1), 5),
        ],
        Some(_) => vec![Do::Name("c-one"), Do::Work(5), Do::End("done", Some(0.1), 5)],
    })
}

/// A run whose store fails at the k-th append, for so many times, is an error and loses nothing.
async fn fails(k: usize, times: usize) -> bool {
    let play = talk();
    let stage = Stage::new(FLOW, &play);
    stage.store.fail(k, times);
    let ended = stage.builder().build().run(Map::new()).await;
    let Err(error) = ended else {
        assert_eq!(ended.unwrap().outcome, Outcome::Success);
        return false;
    };
    assert!(matches!(error, RunError::Store(StoreError::Full { .. })), "{error}");
    assert_eq!(play.running(), 0, "no agent is left");
    stage.store.mend();
    let before = stage.log().await;
    let result = stage.resume().await;
    stage.check().await;
    let after = stage.log().await;
    assert_eq!(before, after[..before.len()], "what was kept stays");
    let end = result.outputs.get(&NodeId::new("end").unwrap()).unwrap().to_value();
    assert_eq!((result.outcome, end), (Outcome::Success, json!({ "value": "done e4" })), "{k} {times}");
    // At most what was in flight when the store failed is done once more.
    let done = stage.effects.done();
    let different: BTreeSet<_> = done.iter().collect();
    assert_eq!(different.len(), 5, "{done:?}");
    assert!(done.len() <= 5 + 2, "{done:?}");
    true
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_at_any_append_ends_the_run_and_loses_nothing() {
    for times in [1, usize::MAX] {
        let mut k = 1;
        while fails(k, times).await {
            k += 1;
        }
        assert!(k > 10, "the store is written {k} times");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_session_was_taken_over_ends_with_no_agent_left() {
    let play = Talk::new(|_, _| vec![Do::Name("c-one"), Do::Work(5_000), Do::Say("b"), Do::Work(3_600_000)]);
    let stage =
        Stage::new("name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n", &play);
    let running = spawn(stage.builder().build());
    pass(1_000).await;
    assert_eq!(play.running(), 1);
    // Somebody takes the lease away: on another machine the owner was thought dead.
    stage.store.inner.release(&Lease { session: session(), epoch: 1 }).await.unwrap();
    let other = stage.open().await;
    let error = running.await.unwrap().unwrap_err();
    let words =
        "the log could not be kept: session `s` was taken over: this owner's epoch is 1, and the newest 2";
    assert_eq!((error.to_string(), play.running()), (words.to_owned(), 0));
    assert!(stage.now() <= 6_000, "{}", stage.now());
    // It has kept nothing since, and the lease is still the other's.
    assert!(stage.builder().open(&session()).await.is_err());
    let handle = other.handle();
    let running = tokio::spawn(other.resume(Resume::default()));
    pass(100).await;
    handle.pause(None).await.unwrap();
    running.await.unwrap().unwrap();
    stage.check().await;
    assert_eq!(play.calls(), ["one", "c-one: continue"]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_owner_learns_at_its_next_renewal_that_it_was_fenced() {
    let stage = Stage::new(
        "name: w\nnodes:\n  - { id: wait, type: control.wait, input: { ms: 3600000 } }\n",
        &talk(),
    );
    let running = spawn(stage.builder().build());
    pass(1_000).await;
    stage.store.inner.release(&Lease { session: session(), epoch: 1 }).await.unwrap();
    let _other = stage.open().await;
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, RunError::Store(StoreError::Fenced { .. })), "{error}");
    assert_eq!(stage.now(), 5_000);
}

#[tokio::test(start_paused = true)]
async fn what_agents_say_is_kept_in_batches() {
    let play = Talk::new(|_, _| {
        let words = (0..500).flat_map(|_| [Do::Say("word "), Do::Work(1)]);
        [Do::Name("c")].into_iter().chain(words).chain([Do::End("done", None, 1)]).collect()
    });
    let stage =
        Stage::new("name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n", &play);
    let result = stage.builder().build().run(Map::new()).await.unwrap();
    stage.check().await;
    let texts = stage.count("agent:text a").await;
    // Half a second of words, kept every 50 ms, and the facts around them.
    assert_eq!((result.outcome, texts), (Outcome::Success, 500));
    assert!(stage.store.appended() < 20, "{} appends", stage.store.appended());
}

#[tokio::test(start_paused = true)]
async fn a_fork_that_dies_still_takes_over_what_it_had_not_taken_over_yet() {
    let play = talk();
    let stage = Stage::new(FLOW, &play);
    stage.builder().build().run(Map::new()).await.unwrap();
    let (done, calls) = (stage.effects.done().len(), play.calls().len());
    let log = stage.store.inner.read(&session(), 1, Select::All).await.unwrap();
    let left = Arc::new(Reusable::of(
        crate::Run::new(stage.graph.clone(), &session(), Map::new(), None),
        &log,
        u64::MAX,
    ));
    let fork = SessionId::from("t");
    let parent = Parent { session: session(), seq: log.len() as u64, kind: ParentKind::Resume };
    let forked = || stage.builder().session_id(fork.clone()).reusing(left.clone(), parent.clone());
    stage.store.fail(1, usize::MAX);
    assert!(forked().build().run(Map::new()).await.is_err());
    stage.store.mend();
    let result = forked().open(&fork).await.unwrap().resume(Resume::default()).await.unwrap();
    let end = result.outputs.get(&NodeId::new("end").unwrap()).unwrap().to_value();
    assert_eq!((result.outcome, end), (Outcome::Success, json!({ "value": "done e4" })));
    assert_eq!((stage.effects.done().len(), play.calls().len()), (done, calls));
}
