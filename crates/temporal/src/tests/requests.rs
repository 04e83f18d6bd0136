//! What is asked of sessions: each request counts once, and one that would have no effect is refused.

use std::{sync::Arc, time::Duration};

use inspan_flow::{Resume, RunStore};
use inspan_flow_core::{Parent, ParentKind, SessionRecord};
use inspan_protocol::{Command, Envelope, Event, Rejection, SessionId, SessionStatus, Timestamp};
use inspan_store::{Liveness, StoreError, Verdict, async_trait};
use object_store::{
    local::LocalFileSystem,
    memory::InMemory,
    throttle::{ThrottleConfig, ThrottledStore},
};
use tokio_util::sync::CancellationToken;

use super::{cluster::TestCluster, sessions::Server};
use crate::{
    SessionWaker, SharedStore, WorkflowStatus,
    log::{PostedRequest, SessionRequest},
};

const LONG: &str = "
flow: { name: long }
nodes:
  - { id: work, type: exec, input: { argv: [sleep, '30'] } }
";

const ASKS: &str = "
flow: { name: asks }
nodes:
  - { id: ask, type: human.input, input: { prompt: 'Which?' } }
";

const PAUSE: Command = Command::Pause { reason: None };

fn has(events: &[Arc<Envelope>], name: &str) -> bool {
    events.iter().any(|event| event.event.name() == name)
}

async fn count(cluster: &TestCluster, session: &SessionId, name: &str) -> usize {
    cluster.events(session).await.iter().filter(|event| event.event.name() == name).count()
}

#[tokio::test]
async fn a_message_that_no_agent_would_get_does_not_resume_a_session() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", LONG).await;
    cluster.run(&session, &[], |events| has(events, "task:start")).await;
    cluster.store.post(&session, &PAUSE, Timestamp::default()).await.unwrap();
    cluster.run(&session, &[], |events| has(events, "flow:paused")).await;
    let to_node = Resume { messages: [("work".to_owned(), "go".to_owned())].into(), ..Resume::default() };
    let empty = Resume { message: Some(" ".to_owned()), ..Resume::default() };
    let nobody =
        "no agent of node `work` was interrupted, so none would get the message; interrupted were: none";
    for (resume, why) in [(to_node, nobody), (empty, "the message is empty")] {
        let number = cluster.store.resume(&session, resume, Timestamp::default()).await.unwrap();
        cluster.decider().decide(&session, &[], None).await.unwrap();
        let answer = cluster.store.answer(&session, number).await.unwrap();
        assert_eq!(answer, Some(Verdict::Refused(why.to_owned())));
    }
    assert_eq!(count(&cluster, &session, "flow:resumed").await, 0);
}

#[tokio::test]
async fn a_message_is_refused_where_only_programs_run_and_people_are_asked() {
    for flow in [LONG, ASKS] {
        let cluster = TestCluster::new();
        let session = cluster.add("flow-1", flow).await;
        cluster.decider().decide(&session, &[], None).await.unwrap();
        let message = Command::Send { content: "hear".to_owned() };
        let number = cluster.store.post(&session, &message, Timestamp::default()).await.unwrap();
        cluster.decider().decide(&session, &[], None).await.unwrap();
        let answer = cluster.store.answer(&session, number).await.unwrap();
        assert_eq!(answer, Some(Verdict::Refused(Rejection::NoListener.to_string())), "{flow}");
        assert_eq!(count(&cluster, &session, "session:rejected").await, 1, "{flow}");
    }
}

/// A session that continues another one.
async fn continuation(cluster: &TestCluster, old: &SessionId, id: &str) -> SessionRecord {
    let record = cluster.store.record(old).await.unwrap();
    let seq = cluster.store.entry(old).await.unwrap().digest.last_seq;
    let parent = Parent::new(old.clone(), seq, ParentKind::Resume);
    SessionRecord { session: id.into(), parent: Some(parent), ..record }
}

async fn ended(cluster: &TestCluster, id: &str) -> SessionId {
    let flow = LONG.replace("'30'", "'0'");
    let session = cluster.add(id, &flow).await;
    cluster.run(&session, &[], |_| false).await;
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_continued_by_one_however_many_try_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let objects = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let cluster = TestCluster::on(crate::SharedLog::new(Arc::new(objects), "team".into()));
    let old = ended(&cluster, "old").await;
    let tries = (0..8).map(async |number| {
        let record = continuation(&cluster, &old, &format!("new-{number}")).await;
        cluster.another_store().add(&record).await
    });
    let tries = futures::future::join_all(tries).await;
    let by = cluster.store.entry(&old).await.unwrap().continued_by.unwrap();
    assert_eq!(tries.iter().filter(|tried| tried.is_ok()).count(), 1, "{tries:?}");
    let (session, by) = (old.clone(), by.clone());
    let why = [
        StoreError::Continued { session: session.clone(), by: by.clone() },
        StoreError::Claimed { session, by },
    ];
    assert!(
        tries.iter().filter_map(|tried| tried.as_ref().err()).all(|refused| why.contains(refused)),
        "{tries:?}"
    );
    assert_eq!(cluster.store.entries("", 99).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_continuation_that_was_cut_short_is_begun_again_with_its_id() {
    let cluster = TestCluster::new();
    let old = ended(&cluster, "old").await;
    let taken = ended(&cluster, "taken").await;
    let refused = cluster.store.add(&continuation(&cluster, &old, "taken").await).await;
    assert_eq!(refused, Err(StoreError::SessionExists(taken)));
    // It was resumed after the new one looked at it.
    let mut stale = continuation(&cluster, &old, "stale").await;
    stale.parent.as_mut().unwrap().seq -= 1;
    assert_eq!(cluster.store.add(&stale).await, Err(StoreError::HasNewEvents(old.clone())));
    assert_eq!(cluster.store.claimed(&old).await.unwrap(), None);
    cluster.store.log().claim(&old, &"first".into()).await.unwrap();
    assert_eq!(cluster.store.entry(&old).await.unwrap().continued_by, None);
    let refused = cluster.store.add(&continuation(&cluster, &old, "second").await).await;
    let by = cluster.store.claimed(&old).await.unwrap().unwrap();
    assert_eq!(refused, Err(StoreError::Claimed { session: old.clone(), by: by.clone() }));
    cluster.store.add(&continuation(&cluster, &old, by.as_str()).await).await.unwrap();
    assert_eq!(cluster.store.entry(&old).await.unwrap().continued_by, Some("first".into()));
}

#[tokio::test]
async fn a_session_that_was_continued_without_a_claim_is_continued() {
    let cluster = TestCluster::new();
    let old = ended(&cluster, "old").await;
    cluster.store.log().create(&continuation(&cluster, &old, "first").await).await.unwrap();
    let refused = cluster.store.add(&continuation(&cluster, &old, "second").await).await;
    assert_eq!(refused, Err(StoreError::Continued { session: old, by: "first".into() }));
}

/// A server on which a session of another task queue runs.
struct OtherQueue;

#[async_trait]
impl SessionWaker for OtherQueue {
    async fn status(&self, _: &SessionId) -> Result<WorkflowStatus, String> {
        Ok(WorkflowStatus { other_queue: Some("theirs".to_owned()), ..WorkflowStatus::default() })
    }

    async fn wake(&self, _: &SessionId) -> Result<(), String> {
        panic!("it would tell the other session")
    }
}

#[tokio::test]
async fn an_id_under_which_a_session_from_elsewhere_runs_is_refused() {
    let cluster = TestCluster::new();
    let other_folder = cluster.store_with(Server { answers: true, wakes: true });
    let other_queue = cluster.store_with(OtherQueue);
    let rows = [
        (&other_folder, "a session that is stored in another folder or bucket"),
        (&other_queue, "a session whose address has `queue=theirs`"),
    ];
    for (store, by) in rows {
        let refused = cluster.add_to(store, "nightly", LONG).await.unwrap_err().to_string();
        let expected =
            format!("the id `nightly` is in use on a test: {by} runs under it; nothing was stored");
        assert_eq!(refused, expected);
    }
    assert_eq!(cluster.store.entries("", 9).await.unwrap(), []);
    // It was stored before the other one began.
    let session = cluster.add("nightly", LONG).await;
    let refused = other_queue.post(&session, &PAUSE, Timestamp::default()).await;
    assert!(matches!(refused, Err(StoreError::IdTaken { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_request_that_two_servers_have_stored_is_carried_out_once() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", LONG).await;
    cluster.run(&session, &[], |events| has(events, "task:start")).await;
    let post = async |command: Command| {
        let (key, request) = (Some("k".to_owned()), SessionRequest::Command(command));
        let posted = PostedRequest { at: Timestamp::default(), key, unique: String::new(), request };
        cluster.store.log().post(&session, &posted).await.unwrap()
    };
    // Both are taken at once, and one by a worker that has not taken those before.
    let [first, second] = [post(PAUSE).await, post(PAUSE).await];
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let [third, other] = [post(PAUSE).await, post(Command::Abort { reason: None }).await];
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let reused = StoreError::KeyReused { session: session.clone(), key: "k".to_owned() };
    for (number, answer) in [
        (first, Verdict::Accepted),
        (second, Verdict::Accepted),
        (third, Verdict::Accepted),
        (other, Verdict::Refused(reused.to_string())),
    ] {
        assert_eq!(cluster.store.answer(&session, number).await.unwrap(), Some(answer), "{number}");
    }
    let events = cluster.events(&session).await;
    let pauses = events.iter().filter(|event| matches!(event.event, Event::SessionPause { .. }));
    assert_eq!((pauses.count(), has(&events, "session:abort")), (1, false));
}

#[tokio::test]
async fn what_comes_right_after_a_resume_is_taken_after_it() {
    let flow = "
flow: { name: talk }
nodes:
  - { id: one, type: echo.agent, input: { prompt: hello, options: { multiTurn: true } } }
";
    let commands = [PAUSE, Command::Abort { reason: None }, Command::Send { content: "hear".to_owned() }];
    for command in commands {
        let cluster = TestCluster::new();
        let session = cluster.add("flow-1", flow).await;
        let is_driven = async || {
            let entry = cluster.store.entry(&session).await.unwrap();
            entry.owner.is_some() && entry.liveness == Liveness::Alive
        };
        let pause = async {
            while count(&cluster, &session, "agent:usage").await == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            cluster.store.post(&session, &PAUSE, Timestamp::default()).await.unwrap();
        };
        tokio::join!(cluster.run(&session, &[], |events| has(events, "flow:paused")), pause);
        assert!(!is_driven().await);
        cluster.store.resume(&session, Resume::default(), Timestamp::default()).await.unwrap();
        assert!(is_driven().await, "no worker has taken it yet");
        let beside = cluster.store.add(&continuation(&cluster, &session, "beside").await).await;
        assert!(matches!(beside, Err(StoreError::Held { .. })), "{beside:?}");
        let number = cluster.store.post(&session, &command, Timestamp::default()).await.unwrap();
        cluster.decider().decide(&session, &[], None).await.unwrap();
        let answer = cluster.store.answer(&session, number).await.unwrap();
        assert_eq!(answer, Some(Verdict::Accepted), "{command:?}");
        assert_eq!(count(&cluster, &session, "flow:resumed").await, 1);
        assert_eq!(is_driven().await, matches!(command, Command::Send { .. }), "{command:?}");
    }
}

#[tokio::test]
async fn a_paused_session_that_was_resumed_and_then_lost_is_paused_and_can_be_continued_by_another() {
    let cluster = TestCluster::new();
    let server = |answers, wakes| cluster.store_with(Server { answers, wakes });
    let [works, lost, unknown] = [server(true, true), server(true, false), server(false, false)];
    let session = cluster.add("flow-1", ASKS).await;
    cluster.decider().decide(&session, &[], None).await.unwrap();
    cluster.store.post(&session, &PAUSE, Timestamp::default()).await.unwrap();
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let untold = lost.resume(&session, Resume::default(), Timestamp::default()).await;
    assert!(matches!(untold, Err(StoreError::NotNotified { .. })), "{untold:?}");
    let is_driven = async |store: &SharedStore| {
        let entry = store.entry(&session).await.unwrap();
        assert_eq!((entry.digest.status, entry.unanswered), (SessionStatus::Paused, 1));
        assert_eq!(entry.owner.is_some(), entry.liveness == Liveness::Alive);
        entry.owner.is_some()
    };
    assert_eq!(
        [is_driven(&works).await, is_driven(&lost).await, is_driven(&unknown).await],
        [true, false, true]
    );
    let new = continuation(&cluster, &session, "new").await;
    // The server knows the old session, and no other.
    let held = cluster.store_with(Runs(session.clone())).add(&new).await;
    assert!(matches!(held, Err(StoreError::Held { .. })), "{held:?}");
    let stored = lost.add(&new).await;
    assert!(matches!(stored, Err(StoreError::NotNotified { .. })), "{stored:?}");
    assert_eq!(works.entry(&session).await.unwrap().continued_by, Some("new".into()));
    // The server carries out late what it was told first.
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let answer = cluster.store.answer(&session, 2).await.unwrap();
    assert!(matches!(&answer, Some(Verdict::Refused(why)) if why.contains("`new`")), "{answer:?}");
    assert_eq!(count(&cluster, &session, "flow:resumed").await, 0);
}

/// A server that runs one session.
struct Runs(SessionId);

#[async_trait]
impl SessionWaker for Runs {
    async fn status(&self, session: &SessionId) -> Result<WorkflowStatus, String> {
        Ok(WorkflowStatus { runs: *session == self.0, ..WorkflowStatus::default() })
    }

    async fn wake(&self, _: &SessionId) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test]
async fn a_session_that_was_resumed_is_not_lost_for_one_who_looked_before_that() {
    let cluster = TestCluster::new();
    let lost = cluster.store_with(Server { answers: true, wakes: false });
    let session = cluster.add("flow-1", ASKS).await;
    cluster.decider().decide(&session, &[], None).await.unwrap();
    for _ in 0..2 {
        let untold = lost.resume(&session, Resume::default(), Timestamp::default()).await;
        assert!(matches!(untold, Err(StoreError::NotNotified { .. })), "{untold:?}");
    }
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let refused = Verdict::Refused("the session was resumed in the meantime".to_owned());
    for (number, answer) in [(1, Verdict::Accepted), (2, refused)] {
        assert_eq!(cluster.store.answer(&session, number).await.unwrap(), Some(answer), "{number}");
    }
    assert_eq!(count(&cluster, &session, "flow:resumed").await, 1);
    // It is lost again.
    let again = lost.resume(&session, Resume::default(), Timestamp::default()).await;
    assert!(matches!(again, Err(StoreError::NotNotified { .. })), "{again:?}");
    cluster.decider().decide(&session, &[], None).await.unwrap();
    assert_eq!(cluster.store.answer(&session, 3).await.unwrap(), Some(Verdict::Accepted));
}

/// A server that is slow: another session is begun meanwhile that continues the one it is told of.
struct Slow(crate::SharedLog);

#[async_trait]
impl SessionWaker for Slow {
    async fn status(&self, _: &SessionId) -> Result<WorkflowStatus, String> {
        Ok(WorkflowStatus::default())
    }

    async fn wake(&self, session: &SessionId) -> Result<(), String> {
        self.0.claim(session, &"new".into()).await.map(drop).map_err(|error| error.to_string())
    }
}

#[tokio::test]
async fn a_session_that_another_one_continues_is_not_resumed_by_a_request_that_was_stored_before() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", ASKS).await;
    cluster.decider().decide(&session, &[], None).await.unwrap();
    cluster.store.post(&session, &PAUSE, Timestamp::default()).await.unwrap();
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let slow = cluster.store_with(Slow(cluster.store.log().clone()));
    let resumed = slow.resume(&session, Resume::default(), Timestamp::default()).await;
    assert_eq!(resumed, Err(StoreError::Claimed { session: session.clone(), by: "new".into() }));
    cluster.decider().decide(&session, &[], None).await.unwrap();
    let answer = cluster.store.answer(&session, 2).await.unwrap();
    assert!(matches!(&answer, Some(Verdict::Refused(why)) if why.contains("`new`")), "{answer:?}");
    assert_eq!(count(&cluster, &session, "flow:resumed").await, 0);
}

#[tokio::test]
async fn a_session_that_is_resumed_while_another_one_claims_it_is_not_continued_by_that_one() {
    let objects = Arc::new(InMemory::new());
    let cluster = TestCluster::on(crate::SharedLog::new(objects.clone(), "team".into()));
    let old = cluster.add("old", ASKS).await;
    cluster.decider().decide(&old, &[], None).await.unwrap();
    cluster.store.post(&old, &PAUSE, Timestamp::default()).await.unwrap();
    cluster.decider().decide(&old, &[], None).await.unwrap();
    // A slow bucket: the claim takes its time, and the session is resumed meanwhile.
    let wait = ThrottleConfig { wait_put_per_call: Duration::from_secs(1), ..ThrottleConfig::default() };
    let slow = crate::SharedLog::new(Arc::new(ThrottledStore::new(objects, wait)), "team".into());
    let slow = SharedStore::new(slow, "a test");
    let record = continuation(&cluster, &old, "new").await;
    let resumed = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.store.resume(&old, Resume::default(), Timestamp::default()).await
    };
    let (added, resumed) = tokio::join!(slow.add(&record), resumed);
    assert!(matches!(added, Err(StoreError::Held { .. })), "{added:?}");
    assert_eq!(resumed, Ok(2));
    // The workers take the request after the claim: neither session runs, and the claim says how to go on.
    cluster.decider().decide(&old, &[], None).await.unwrap();
    assert_eq!(count(&cluster, &old, "flow:resumed").await, 0);
    let again = cluster.store.resume(&old, Resume::default(), Timestamp::default()).await;
    assert_eq!(again, Err(StoreError::Claimed { session: old.clone(), by: "new".into() }));
    slow.add(&record).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_no_worker_was_told_of_wakes_the_session_while_an_attempt_runs() {
    let cluster = TestCluster::new();
    let session = cluster.add("flow-1", LONG).await;
    let attempt = cluster.decider().decide(&session, &[], None).await.unwrap().running.remove(0);
    let leave = CancellationToken::new();
    let woken = leave.clone();
    let notify = Arc::new(move |_| {
        woken.cancel();
        Box::pin(async {}) as futures::future::BoxFuture<'static, ()>
    });
    let runner = cluster.runner_that_notifies(notify);
    let stop = Command::Abort { reason: None };
    cluster.store.post(&session, &stop, Timestamp::default()).await.unwrap();
    let ran = tokio::time::timeout(Duration::from_secs(30), runner.run(&session, &attempt, leave)).await;
    assert!(matches!(ran, Ok(Err(crate::AttemptError::WorkerStops))), "{ran:?}");
}
