//! What the tests of pauses and crashes have in common: one clock over several processes of a
//! session, a store that can be made to fail, and a node type that checks whether its start is
//! stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::stream::BoxStream;
use inspan_engine::{Clock, VirtualClock, check_order};
use inspan_protocol::{
    AgentError, Command, Envelope, Event, EventId, NodePath, PromptKind, RunSnapshot, SessionId, Timestamp,
};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use crate::{
    Batch, DescribeNode, FlowRunResult, FlowRunner, FlowRunnerBuilder, Graph, Lease, MemoryStore,
    NodeContext, NodeKind, NodeRegistry, NodeType, NodeTypeInfo, Owner, PostedCommand, Resume, RunError,
    RunHandle, RunStore, Select, SessionEntry, SessionRecord, StoreError, Verdict, WhenWaiting, async_trait,
    testing::{TalkProvider, graph},
};

/// The session's id in all these tests.
pub(super) fn session() -> SessionId {
    SessionId::from("s")
}

/// Several processes, one after the other.
pub(super) struct Stage {
    pub(super) store: Arc<Fragile>,
    pub(super) graph: Arc<Graph>,
    pub(super) effects: Effects,
    nodes: NodeRegistry,
    clock: Arc<VirtualClock>,
}

impl Stage {
    pub(super) fn new(text: &str, talk: &TalkProvider) -> Self {
        Self::with(text, talk.nodes())
    }

    /// With these nodes and the effects.
    pub(super) fn with(text: &str, mut nodes: NodeRegistry) -> Self {
        let store = Arc::new(Fragile::default());
        let effects = Effects { store: store.clone(), done: Arc::default() };
        nodes.register(effects.clone());
        nodes.register(Asks);
        Self {
            graph: graph(text, &nodes),
            nodes,
            store,
            effects,
            clock: Arc::new(VirtualClock::starting_at(Timestamp::from_millis(0))),
        }
    }

    pub(super) fn builder(&self) -> FlowRunnerBuilder {
        FlowRunner::builder(self.graph.clone(), self.nodes.clone())
            .session_id(session())
            .clock(self.clock.clone())
            .store(self.store.clone())
            .with_events()
    }

    pub(super) async fn open(&self) -> FlowRunner {
        self.builder().open(&session()).await.unwrap()
    }

    pub(super) async fn resume(&self) -> FlowRunResult {
        self.open().await.resume(Resume::default()).await.unwrap()
    }

    /// As `resume`, by a process that does not wait for a person or a time.
    pub(super) async fn resume_and_leave(&self) -> FlowRunResult {
        let runner = self.builder().when_waiting(WhenWaiting::Leave).open(&session()).await.unwrap();
        runner.resume(Resume::default()).await.unwrap()
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_millis() as u64
    }

    pub(super) async fn log(&self) -> Vec<Envelope> {
        let events = self.store.inner.read(&session(), 1, Select::All).await.unwrap();
        events.iter().map(|envelope| (**envelope).clone()).collect()
    }

    /// The names of the events, those of a task with its place.
    pub(super) async fn story(&self) -> Vec<String> {
        let line = |envelope: &Envelope| match &envelope.context.task {
            Some(task) => format!("{} {task}", envelope.event.name()),
            None => envelope.event.name().to_owned(),
        };
        self.log().await.iter().map(line).collect()
    }

    pub(super) async fn count(&self, line: &str) -> usize {
        self.story().await.iter().filter(|seen| *seen == line).count()
    }

    /// That the log keeps the rules, no finished node was started again, and no id is used twice.
    pub(super) async fn check(&self) {
        let log = self.log().await;
        check_order(&log).unwrap_or_else(|fault| panic!("{fault}"));
        let mut finished: Vec<NodePath> = Vec::new();
        let (mut runs, mut prompts) = (BTreeSet::new(), BTreeMap::new());
        for envelope in &log {
            assert_eq!(envelope.id, EventId::of(&session(), envelope.seq));
            match &envelope.event {
                Event::AgentStart { run_id, .. } => assert!(runs.insert(run_id.clone()), "{run_id} twice"),
                Event::SessionPrompt(asked) => {
                    let question = (envelope.context.task.clone(), asked.prompt.clone());
                    let first = prompts.entry(asked.prompt_id.clone()).or_insert_with(|| question.clone());
                    assert_eq!(*first, question, "{}", asked.prompt_id);
                }
                _ => {}
            }
            let Some(task) = &envelope.context.task else { continue };
            match envelope.event {
                Event::TaskComplete { .. } | Event::TaskReused { .. } => finished.push(task.clone()),
                Event::TaskStart { .. } => assert!(!finished.contains(task), "{task} ran again"),
                _ => {}
            }
        }
    }
}

/// A session that runs in a separate task.
pub(super) type Running = JoinHandle<Result<FlowRunResult, RunError>>;

/// Runs a session in a separate task.
pub(super) fn spawn(runner: FlowRunner) -> Running {
    tokio::spawn(runner.run(Map::new()))
}

/// The same, and what controls it.
pub(super) fn start(runner: FlowRunner) -> (RunHandle, Running) {
    (runner.handle(), spawn(runner))
}

/// Ends a process at once, as if it had died.
pub(super) async fn kill<T: Debug>(running: JoinHandle<T>) {
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
}

/// Runs a session for so long and pauses it.
pub(super) async fn pause_after(runner: FlowRunner, ms: u64) -> (Arc<RunSnapshot>, FlowRunResult) {
    let (handle, running) = start(runner);
    pass(ms).await;
    let snapshot = handle.pause(None).await.unwrap();
    (snapshot, running.await.unwrap().unwrap())
}

pub(super) async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// A store in memory that can fail, and counts what is appended.
#[derive(Default)]
pub(super) struct Fragile {
    pub(super) inner: MemoryStore,
    pub(super) appends: AtomicUsize,
    /// The append that fails, counting from 1, and how many after it do too.
    fails: Mutex<Option<(usize, usize)>>,
    /// What then fails, if not that the disk is full.
    failure: Mutex<Option<StoreError>>,
    /// After how many appends there is no room for the end of one more attempt.
    room: Mutex<Option<usize>>,
    /// The names of the events of each append that was stored.
    batches: Mutex<Vec<String>>,
}

impl Fragile {
    pub(super) fn fail(&self, at: usize, times: usize) {
        let at = self.appends.load(Ordering::Relaxed) + at;
        *self.fails.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, times));
    }

    /// As `fail`, from that append on, with another error.
    pub(super) fn fail_with(&self, at: usize, error: StoreError) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.fail(at, usize::MAX);
    }

    pub(super) fn repair(&self) {
        *self.fails.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn shrink(&self, appends: usize) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = Some(appends);
    }

    pub(super) fn batches(&self) -> Vec<String> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn appended(&self) -> usize {
        self.appends.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl RunStore for Fragile {
    async fn create(
        &self,
        record: &SessionRecord,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        self.inner.create(record, owner, now).await
    }

    async fn acquire(&self, session: &SessionId, owner: &Owner, now: Timestamp) -> Result<Lease, StoreError> {
        self.inner.acquire(session, owner, now).await
    }

    async fn renew(&self, lease: &Lease, now: Timestamp) -> Result<(), StoreError> {
        self.inner.renew(lease, now).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        self.inner.release(lease).await
    }

    async fn append(&self, lease: &Lease, batch: Batch<'_>) -> Result<(), StoreError> {
        let number = self.appends.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = *self.fails.lock().unwrap_or_else(PoisonError::into_inner);
        if fails.is_some_and(|(at, times)| number >= at && number < at.saturating_add(times)) {
            let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err(failure.unwrap_or_else(|| StoreError::Full { path: "memory".into() }));
        }
        // As long as this takes, what was started meanwhile runs.
        tokio::task::yield_now().await;
        let names: Vec<_> = batch.events.iter().map(|envelope| envelope.event.name()).collect();
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).push(names.join(" "));
        self.inner.append(lease, batch).await
    }

    async fn read_some(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, StoreError> {
        self.inner.read_some(session, from, select, most).await
    }

    async fn record(&self, session: &SessionId) -> Result<SessionRecord, StoreError> {
        self.inner.record(session).await
    }

    async fn entry(&self, session: &SessionId) -> Result<SessionEntry, StoreError> {
        self.inner.entry(session).await
    }

    async fn entries(&self, prefix: &str, limit: usize) -> Result<Vec<SessionEntry>, StoreError> {
        self.inner.entries(prefix, limit).await
    }

    async fn post_once(
        &self,
        session: &SessionId,
        key: Option<&str>,
        command: &Command,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.inner.post_once(session, key, command, now).await
    }

    async fn posted_once(&self, session: &SessionId, key: &str) -> Result<Option<PostedCommand>, StoreError> {
        self.inner.posted_once(session, key).await
    }

    fn room(&self) -> Result<(), StoreError> {
        let room = *self.room.lock().unwrap_or_else(PoisonError::into_inner);
        match room {
            Some(appends) if self.appended() >= appends => Err(StoreError::Full { path: "memory".into() }),
            _ => Ok(()),
        }
    }

    async fn unanswered(&self, session: &SessionId) -> Result<Vec<PostedCommand>, StoreError> {
        self.inner.unanswered(session).await
    }

    async fn answer(&self, session: &SessionId, number: u64) -> Result<Option<Verdict>, StoreError> {
        self.inner.answer(session, number).await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.inner.changes()
    }
}

/// `effect`: does something that cannot be undone, after it has checked that its start is stored.
#[derive(Clone)]
pub(super) struct Effects {
    store: Arc<Fragile>,
    pub(super) done: Arc<Mutex<Vec<String>>>,
}

impl Effects {
    pub(super) fn done(&self) -> Vec<String> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was done since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A type of a program, which asks a person.
struct Asks;

impl DescribeNode for Asks {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("asks", "core", NodeKind::Plain)
    }
}

impl NodeType for Asks {
    async fn run(&self, mut context: NodeContext, _: Value) -> Result<Value, AgentError> {
        let prompt = context.hub.new_prompt(PromptKind::Input, "Shall we go on?");
        Ok(json!({ "said": context.ask(prompt).await?.content }))
    }
}

impl DescribeNode for Effects {
    fn describe(&self) -> NodeTypeInfo {
        NodeTypeInfo::with_open_schemas("effect", "core", NodeKind::Plain)
    }
}

impl NodeType for Effects {
    async fn run(&self, context: NodeContext, _: Value) -> Result<Value, AgentError> {
        let log = self.store.inner.read(context.hub.session_id(), 1, Select::All).await.unwrap();
        let on_record = log.iter().any(|envelope| {
            matches!(&envelope.event, Event::TaskStart { path, attempt, .. }
                if *path == context.path && *attempt == context.attempt)
        });
        assert!(on_record, "{} began before its start was on record", context.path);
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(context.path.to_string());
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(json!({ "path": context.path }))
    }
}
