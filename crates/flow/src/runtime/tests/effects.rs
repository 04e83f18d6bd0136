//! What is stored when the store fails, is taken away, or the owner dies: nothing acknowledged is lost, and nothing
//! finished is done again.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use inspan_engine::Channel;
use inspan_protocol::{BoxError, Envelope, ErrorCode, Event, Outcome, PauseCause, SessionId};
use serde_json::{Map, json};

use super::stage::{Stage, kill, pass, session, spawn};
use crate::{
    Lease, Parent, ParentKind, Resume, Reusable, RunError, RunStore, Select, StoreError,
    testing::{Do, TalkProvider},
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

fn talk() -> TalkProvider {
    TalkProvider::new(|asked, _| match &asked.resume {
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

/// The result of a run whose store was full from the k-th append on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fared {
    /// There were fewer appends.
    Untouched,
    /// It waited for space, and ended well.
    Waited,
    /// It gave up, and was resumed when there was space.
    Resumed,
}

/// A run whose store is full at the k-th append, for so many times, loses nothing.
async fn fails(k: usize, times: usize) -> Fared {
    let play = talk();
    let stage = Stage::new(FLOW, &play);
    stage.store.fail(k, times);
    let ended = stage.builder().build().run(Map::new()).await;
    let seen = stage.store.appended();
    let fared = match ended {
        Ok(_) if seen < k => Fared::Untouched,
        Ok(_) => Fared::Waited,
        Err(RunError::NotStored { error: StoreError::Full { .. }, .. }) => Fared::Resumed,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(play.running(), 0, "no agent is left");
    stage.store.repair();
    let before = stage.log().await;
    if fared == Fared::Resumed {
        stage.resume().await;
    }
    stage.check().await;
    let after = stage.log().await;
    assert_eq!(before, after[..before.len()], "what was stored stays");
    let end = after.iter().rev().find_map(|envelope| match &envelope.event {
        Event::TaskComplete { result, .. } => Some((**result).clone()),
        _ => None,
    });
    assert_eq!(end, Some(json!({ "value": "done e4" })), "{k} {times}");
    let done = stage.effects.done();
    let different: BTreeSet<_> = done.iter().collect();
    assert_eq!(different.len(), 5, "{done:?}");
    // What was running is done once more only where no space came in time.
    let again = if times == usize::MAX { 2 } else { 0 };
    assert!(done.len() <= 5 + again, "{fared:?} {done:?}");
    fared
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_full_at_any_append_loses_nothing() {
    for times in [1, 100, usize::MAX] {
        let mut seen = Vec::new();
        loop {
            let fared = fails(seen.len() + 1, times).await;
            if fared == Fared::Untouched {
                break;
            }
            seen.push(fared);
        }
        assert!(seen.len() > 10, "the store is written {} times", seen.len());
        // It gives up at once only while nothing has finished that is not stored, and nothing is at work.
        let waited = seen.contains(&Fared::Waited);
        assert_eq!(waited, times != usize::MAX, "{times}: {seen:?}");
    }
}

/// Sees what channels see.
#[derive(Default)]
struct Watcher(Mutex<Vec<String>>);

impl Channel for Watcher {
    fn name(&self) -> &str {
        "watcher"
    }

    async fn on_event(&self, envelope: &Arc<Envelope>) -> Result<(), BoxError> {
        let line = format!("{} {}", envelope.seq, envelope.event.name());
        self.0.lock().unwrap().push(line);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_as_done_is_stored() {
    let play = talk();
    let stage = Stage::new("name: one\nnodes:\n  - { id: e1, type: effect }\n", &play);
    // The start of the node is stored, and its end is not.
    stage.store.fail(2, usize::MAX);
    let (watcher, notices) = (Arc::new(Watcher::default()), Arc::new(Mutex::new(Vec::new())));
    let collected = notices.clone();
    let notice = move |line: &str| collected.lock().unwrap().push(line.to_owned());
    let builder = stage.builder().channel(watcher.clone()).on_notice(Arc::new(notice));
    let running = spawn(builder.build());
    pass(30_000).await;
    let seen = watcher.0.lock().unwrap().clone();
    assert_eq!(seen.last().map(String::as_str), Some("5 task:start"), "{seen:?}");
    assert!(notices.lock().unwrap()[0].starts_with("the disk is full: memory"), "{notices:?}");
    stage.store.repair();
    let result = running.await.unwrap().unwrap();
    assert_eq!((result.outcome, stage.effects.done().len()), (Outcome::Success, 1));
    let seen = watcher.0.lock().unwrap().clone();
    let log: Vec<_> = stage.log().await.iter().map(|e| format!("{} {}", e.seq, e.event.name())).collect();
    assert_eq!(seen, log[..seen.len()]);
    assert!(seen.contains(&"6 task:complete".to_owned()), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_paused_does_not_wait_long_for_space() {
    let stage = Stage::new("name: one\nnodes:\n  - { id: e1, type: effect }\n", &talk());
    stage.store.fail(2, usize::MAX);
    let runner = stage.builder().build();
    let hub = runner.hub().clone();
    let running = spawn(runner);
    pass(1_000).await;
    hub.pause(None).unwrap();
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, RunError::NotStored { .. }), "{error}");
    assert!(stage.now() < 8_000, "{}", stage.now());
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_disk_fails_is_interrupted_and_continues_when_it_is_repaired() {
    let path = || "memory".into();
    for error in [
        StoreError::Io { path: path(), message: "disk I/O error".to_owned() },
        StoreError::ReadOnly { path: path() },
    ] {
        let stage = Stage::new("name: one\nnodes:\n  - { id: e1, type: effect }\n", &talk());
        stage.store.fail_with(2, error.clone());
        let ended = stage.builder().build().run(Map::new()).await.unwrap_err();
        assert!(matches!(&ended, RunError::NotStored { error: known, .. } if *known == error), "{ended}");
        stage.store.repair();
        assert_eq!(stage.resume().await.outcome, Outcome::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempt_begins_whose_end_could_not_be_stored() {
    let stage = Stage::new(FLOW, &talk());
    stage.store.shrink(0);
    let notices = Arc::new(Mutex::new(Vec::new()));
    let collected = notices.clone();
    let notice = move |line: &str| collected.lock().unwrap().push(line.to_owned());
    let runner = stage.builder().on_notice(Arc::new(notice)).build();
    let result = runner.run(Map::new()).await.unwrap();
    assert_eq!((result.outcome, stage.effects.done().len()), (Outcome::Paused, 0));
    let said = notices.lock().unwrap().join("\n");
    assert!(
        said.starts_with("the session pauses: the disk is full: memory") && said.lines().count() == 1,
        "{said}"
    );
    let paused_by = stage.log().await.iter().find_map(|envelope| match &envelope.event {
        Event::FlowPaused { cause, .. } => *cause,
        _ => None,
    });
    assert_eq!(paused_by, Some(PauseCause::Store));
    stage.store.shrink(2);
    assert_eq!(stage.resume().await.outcome, Outcome::Paused);
    stage.store.shrink(usize::MAX);
    assert_eq!(stage.resume().await.outcome, Outcome::Success);
    stage.check().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_node_is_stored_before_what_follows_from_it() {
    // The condition and the template of the next node are evaluated from the output: their events come after its end.
    let stage = Stage::new(
        r#"
name: two
nodes:
  - { id: e1, type: effect }
  - { id: e2, type: effect, dependsOn: [e1] }
"#,
        &talk(),
    );
    stage.builder().build().run(Map::new()).await.unwrap();
    let ends: Vec<_> =
        stage.store.batches().into_iter().filter(|batch| batch.contains("task:complete")).collect();
    assert_eq!(ends, ["task:complete", "task:complete"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_the_process_dies_of_again_and_again_is_failed() {
    let stage = Stage::new(
        r#"
name: poison
nodes:
  - { id: e1, type: effect }
  - { id: poison, type: control.wait, input: { ms: 60000 }, dependsOn: [e1], policy: { continueOnError: true } }
  - { id: e2, type: effect, dependsOn: [poison] }
"#,
        &talk(),
    );
    let mut running = spawn(stage.builder().build());
    for epoch in 1..=10 {
        pass(1_000).await;
        kill(running).await;
        stage.store.inner.release(&Lease { session: session(), epoch }).await.unwrap();
        running = tokio::spawn(stage.open().await.resume(Resume::default()));
    }
    let result = running.await.unwrap().unwrap();
    stage.check().await;
    assert_eq!(
        (result.outcome, stage.effects.done()),
        (Outcome::Success, vec!["e1".to_owned(), "e2".to_owned()])
    );
    let error = result.nodes.get("poison").unwrap().error.unwrap();
    let words = "node `poison` was running the last 10 times the process died, and nothing finished in between: \
                 it is not restarted";
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::NodeFailed, words));
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_session_was_taken_over_ends_with_no_agent_left() {
    let play =
        TalkProvider::new(|_, _| vec![Do::Name("c-one"), Do::Work(5_000), Do::Say("b"), Do::Work(3_600_000)]);
    let stage =
        Stage::new("name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n", &play);
    let running = spawn(stage.builder().build());
    pass(1_000).await;
    assert_eq!(play.running(), 1);
    // Another process takes the lease: another machine assumed that the owner was dead.
    stage.store.inner.release(&Lease { session: session(), epoch: 1 }).await.unwrap();
    let other = stage.open().await;
    let error = running.await.unwrap().unwrap_err();
    let words = "session `s` was taken over: this owner's epoch is 1, and the newest 2";
    assert_eq!((error.to_string(), play.running()), (words.to_owned(), 0));
    assert!(stage.now() <= 6_000, "{}", stage.now());
    // It has stored nothing since, and the lease still belongs to the other.
    assert!(stage.builder().open(&session()).await.is_err());
    let handle = other.handle();
    let running = tokio::spawn(other.resume(Resume::default()));
    pass(100).await;
    handle.pause(None).await.unwrap();
    running.await.unwrap().unwrap();
    stage.check().await;
    assert_eq!(play.calls(), ["one", "c-one: one"]);
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
    let play = TalkProvider::new(|_, _| {
        let words = (0..500).flat_map(|_| [Do::Say("word "), Do::Work(1)]);
        [Do::Name("c")].into_iter().chain(words).chain([Do::End("done", None, 1)]).collect()
    });
    let stage =
        Stage::new("name: one\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: one } }\n", &play);
    let result = stage.builder().build().run(Map::new()).await.unwrap();
    stage.check().await;
    let texts = stage.count("agent:text a").await;
    // Half a second of text, stored every 5 ms, and the facts around it.
    assert_eq!((result.outcome, texts), (Outcome::Success, 500));
    assert!(stage.store.appended() < 120, "{} appends", stage.store.appended());
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
    let parent = Parent::new(session(), log.len() as u64, ParentKind::Resume);
    let forked = || stage.builder().session_id(fork.clone()).reusing(left.clone(), parent.clone());
    stage.store.fail(1, usize::MAX);
    assert!(forked().build().run(Map::new()).await.is_err());
    stage.store.repair();
    let result = forked().open(&fork).await.unwrap().resume(Resume::default()).await.unwrap();
    let end = result.outputs.get("end").unwrap().clone();
    assert_eq!((result.outcome, end), (Outcome::Success, json!({ "value": "done e4" })));
    assert_eq!((stage.effects.done().len(), play.calls().len()), (done, calls));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_pauses_without_room_waits_for_room_as_long_as_any() {
    let mut waited = 0;
    for appends in 1..12 {
        let play = talk();
        let stage = Stage::new(FLOW, &play);
        // There is room again after 15 s.
        stage.store.shrink(appends);
        stage.store.fail(appends + 1, 60);
        let ended = stage.builder().build().run(Map::new()).await;
        if ended.is_ok_and(|result| result.status == inspan_protocol::SessionStatus::Paused)
            && stage.store.appended() > appends + 60
        {
            waited += 1;
        }
    }
    assert!(waited > 0, "nothing was at work when the room was used up");
}
