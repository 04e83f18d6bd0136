//! What a run leaves whose future is dropped, and what a runner leaves that is never used.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{Arc, Mutex, PoisonError, mpsc},
    task::Poll,
    time::Duration,
};

use inspan_protocol::{AgentError, Outcome, Rejection};
use serde_json::{Map, Value, json};
use tokio::{runtime::Runtime, time::timeout};

use super::stage::{Stage, kill, pass, session, spawn, start};
use crate::{
    DescribeNode, FlowRunner, MemoryStore, NodeContext, NodeKind, NodeType, NodeTypeInfo, Resume, Run,
    RunError, RunStore, SqliteOptions, SqliteStore, StoreError, builtin_nodes,
    testing::{Do, TalkProvider, graph},
};

const WAIT: &str = "
name: wait
nodes:
  - { id: a, type: effect }
  - { id: b, type: control.wait, dependsOn: [a], input: { ms: 60000 } }
";

#[tokio::test(start_paused = true)]
async fn a_session_whose_run_was_dropped_is_opened_again() {
    let stage = Stage::new(WAIT, &TalkProvider::new(|_, _| Vec::new()));
    let (handle, running) = start(stage.builder().build());
    pass(1_000).await;
    kill(running).await;
    assert_eq!(handle.stop(None), Err(Rejection::NotActive));
    assert_eq!(handle.pause(None).await, Err(Rejection::NotActive));
    assert!(handle.snapshot().await.is_none());
    pass(1).await;

    drop(stage.open().await);
    let early = stage.open().await.start_session();
    let handle = early.handle();
    drop(early);
    assert_eq!(handle.stop(None), Err(Rejection::NotActive));
    let resumed = timeout(Duration::from_secs(1), stage.open().await.resume(Resume::default())).await;
    assert!(resumed.is_err());
    pass(1).await;

    assert_eq!(stage.resume().await.outcome, Outcome::Success);
    assert_eq!(stage.effects.done(), ["a"]);
    stage.check().await;
}

#[tokio::test(start_paused = true)]
async fn what_ran_until_the_last_event_before_a_crash_is_work_and_no_idle_time() {
    let talk = TalkProvider::new(|asked, _| match &asked.resume {
        None => vec![Do::Name("c"), Do::Work(4_000), Do::Say("so far"), Do::Work(60_000)],
        Some(_) => vec![Do::Work(1_000), Do::End("done", None, 1)],
    });
    let stage =
        Stage::new("name: f\nnodes:\n  - { id: a, type: talk.agent, input: { prompt: go } }\n", &talk);
    let running = spawn(stage.builder().build());
    pass(5_000).await;
    kill(running).await;
    pass(3_595_000).await;
    assert_eq!(stage.resume().await.outcome, Outcome::Success);
    let log = stage.log().await;
    let mut run = Run::new(stage.graph.clone(), &session(), Map::new(), None);
    log.iter().for_each(|envelope| run.apply(envelope));
    // The agent's last word came after four seconds, and the next process an hour after the start.
    assert_eq!(run.state().idle_time(), Duration::from_millis(3_596_000));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_could_not_be_prepared_is_opened_in_the_same_process() {
    let stage = Stage::new(WAIT, &TalkProvider::new(|_, _| Vec::new()));
    let failed = stage.builder().once_stored(|_| Err(io::Error::other("no"))).build().run(Map::new()).await;
    assert!(matches!(failed, Err(RunError::NotPrepared { .. })));
    assert_eq!(stage.resume().await.outcome, Outcome::Success);
}

/// Blocks its thread until it is told to go on, and says when it has begun.
struct Stubborn {
    has_begun: mpsc::Sender<()>,
    go: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl DescribeNode for Stubborn {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("stubborn", "test", NodeKind::Plain)
    }
}

impl NodeType for Stubborn {
    async fn run(&self, _: NodeContext, _: Value) -> Result<Value, AgentError> {
        // Only the first time is waited for.
        let _ = self.has_begun.send(());
        self.go.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap();
        tokio::task::yield_now().await;
        Ok(json!({}))
    }
}

/// A flow with a stubborn node, what says that it has begun, and what lets it go on.
fn stubborn() -> (impl Fn() -> crate::FlowRunnerBuilder, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((has_begun, begun), (go, wait)) = (mpsc::channel(), mpsc::channel());
    let mut nodes = builtin_nodes(&inspan_engine::ProviderRegistry::new());
    nodes.register(Stubborn { has_begun, go: Arc::new(Mutex::new(wait)) });
    let graph = graph("name: one\nnodes:\n  - { id: a, type: stubborn }\n", &nodes);
    let builder = move || FlowRunner::builder(graph.clone(), nodes.clone()).session_id(session());
    (builder, begun, go)
}

/// Opens the session once it is free; that it never is would be seen.
async fn open_soon(builder: impl Fn() -> crate::FlowRunnerBuilder) -> Result<FlowRunner, RunError> {
    let opening = async {
        loop {
            match builder().open(&session()).await {
                Err(RunError::Store(StoreError::Held { .. })) => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                opened => return opened,
            }
        }
    };
    timeout(Duration::from_secs(30), opening).await.expect("the session stays locked")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_not_free_before_what_ran_has_ended() {
    let (builder, begun, go) = stubborn();
    let store = Arc::new(MemoryStore::new());
    let builder = || builder().store(store.clone());
    let running = spawn(builder().build());
    tokio::task::spawn_blocking(move || begun.recv().unwrap()).await.unwrap();
    kill(running).await;
    // The node cannot be cancelled before it waits.
    let refused = builder().open(&session()).await.err();
    assert!(matches!(refused, Some(RunError::Store(StoreError::Held { .. }))), "{refused:?}");
    go.send(()).unwrap();
    let runner = open_soon(builder).await.unwrap();
    go.send(()).unwrap();
    assert_eq!(runner.resume(Resume::default()).await.unwrap().outcome, Outcome::Success);
}

#[test]
fn a_session_whose_runtime_was_shut_down_is_opened_in_another() {
    let folder = tempfile::tempdir().unwrap();
    let open = || SqliteStore::open(folder.path().join("s.db"), &SqliteOptions::default()).unwrap();
    let (store, other): (Arc<dyn RunStore>, Arc<dyn RunStore>) = (Arc::new(open()), Arc::new(open()));
    let (builder, begun, go) = stubborn();
    let runtime = Runtime::new().unwrap();
    runtime.spawn(builder().store(store).build().run(Map::new()));
    begun.recv().unwrap();
    runtime.shutdown_background();
    go.send(()).unwrap();
    Runtime::new().unwrap().block_on(async {
        let runner = open_soon(|| builder().store(other.clone())).await.unwrap();
        go.send(()).unwrap();
        assert_eq!(runner.resume(Resume::default()).await.unwrap().outcome, Outcome::Success);
    });
}

/// Polls a future so often, and drops it. Whether it was done by then.
async fn poll(times: usize, future: impl Future) -> bool {
    let (mut future, mut polled) = (pin!(future), 0);
    poll_fn(|context| {
        polled += 1;
        match polled > times {
            true => Poll::Ready(false),
            false => future.as_mut().poll(context).map(|_| true),
        }
    })
    .await
}

#[test]
fn a_run_that_is_dropped_at_any_await_leaves_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let mut finished = 0;
    for times in 0..60 {
        let path = folder.path().join(format!("{times}.db"));
        let open = || -> Arc<dyn RunStore> {
            Arc::new(SqliteStore::open(&path, &SqliteOptions::default()).unwrap())
        };
        let nodes = builtin_nodes(&inspan_engine::ProviderRegistry::new());
        let text = "name: w\nnodes:\n  - { id: a, type: control.wait, input: { ms: 1 } }\n  - { id: b, type: control.wait, dependsOn: [a], input: { ms: 1 } }\n";
        let graph = graph(text, &nodes);
        let builder = |store: &Arc<dyn RunStore>| {
            FlowRunner::builder(graph.clone(), nodes.clone()).session_id(session()).store(store.clone())
        };
        let (first, second) = (open(), open());
        // The runtime ends with the run, and has no time to end anything.
        Runtime::new().unwrap().block_on(poll(times, builder(&first).build().run(Map::new())));
        Runtime::new().unwrap().block_on(poll(times, builder(&first).open(&session())));
        Runtime::new().unwrap().block_on(async {
            match open_soon(|| builder(&second)).await {
                Ok(runner) => {
                    assert_eq!(runner.resume(Resume::default()).await.unwrap().outcome, Outcome::Success);
                }
                Err(RunError::Ended { .. }) => finished += 1,
                Err(RunError::Store(StoreError::UnknownSession(_))) => assert_eq!(times, 0),
                Err(error) => panic!("dropped after {times} polls: {error}"),
            }
        });
    }
    assert!(finished > 0, "no run was polled to its end");
}
