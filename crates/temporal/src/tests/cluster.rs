//! A replacement for the server: it asks for decisions and runs the attempts they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use inspan_engine::{Clock, NodeCalls, ProviderRegistry, SystemClock};
use inspan_flow::{AttemptContext, NodeRegistry, RunStore, Select, builtin_nodes};
use inspan_flow_core::{Graph, Loaded, Parent, ParentKind, SessionRecord, check_input, compile};
use inspan_protocol::{
    AgentError, BudgetRaise, Envelope, ErrorCode, Host, IntoProvider, NodePath, SessionId,
};
use inspan_providers::{AnthropicProvider, EchoProvider, ScriptedProvider};
use inspan_store::StoreError;
use object_store::{memory::InMemory, path::Path};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    AttemptRunner, Decider, HostedAttempt, HostedSession, LostAttempt, RunningAttempt, SessionHost,
    SessionWaker, SharedLog, SharedStore,
    lock::{AttemptLock, Locked},
    log::{Segment, Writer},
};

/// How long a test waits at most.
const LIMIT: Duration = Duration::from_secs(60);

/// Flows of the types that need no vendor.
pub(super) struct Machine;

impl SessionHost for Machine {
    fn attempt(&self, record: &SessionRecord) -> Result<HostedAttempt, AgentError> {
        self.session(record).map(|session| HostedAttempt { session, providers: providers() })
    }

    fn session(&self, record: &SessionRecord) -> Result<HostedSession, AgentError> {
        let refused = |why: String| AgentError::new(ErrorCode::ConfigInvalid, why);
        let nodes = nodes();
        let loaded = Loaded::from_source(&record.flow).map_err(|error| refused(error.to_string()))?;
        let graph = compile(&loaded, &nodes).map_err(|error| refused(error.to_string()))?.graph;
        let context = AttemptContext::new(
            Host { cwd: Some(std::env::temp_dir()), ..Host::default() },
            &BTreeSet::new(),
            &[],
            NodeCalls::default(),
            None,
        );
        Ok(HostedSession {
            graph: Arc::new(graph),
            nodes: Arc::new(nodes),
            context: Arc::new(context),
            max_concurrency: None,
        })
    }
}

fn nodes() -> NodeRegistry {
    builtin_nodes(&providers())
}

fn providers() -> ProviderRegistry {
    let keyless = AnthropicProvider::new().into_provider();
    [EchoProvider.into_provider(), ScriptedProvider.into_provider(), keyless].into_iter().collect()
}

/// A log and the machines that share it.
pub(super) struct TestCluster {
    pub(super) log: SharedLog,
    pub(super) locks: tempfile::TempDir,
    pub(super) store: Arc<SharedStore>,
    graphs: std::sync::Mutex<BTreeMap<SessionId, Arc<Graph>>>,
}

impl TestCluster {
    pub(super) fn new() -> Self {
        Self::on(SharedLog::new(Arc::new(InMemory::new()), Path::from("inspan")))
    }

    pub(super) fn on(log: SharedLog) -> Self {
        let store = Arc::new(SharedStore::new(log.clone(), "a test"));
        let locks = tempfile::tempdir().expect("a folder");
        Self { log, locks, store, graphs: Default::default() }
    }

    /// Stores a session of a flow.
    pub(super) async fn add(&self, session: &str, flow: &str) -> SessionId {
        self.add_to(&self.store, session, flow).await.expect("the session is stored")
    }

    /// The sessions in another process.
    pub(super) fn another_store(&self) -> SharedStore {
        SharedStore::new(self.log.clone(), "a test")
    }

    /// The sessions, with what tells the workers.
    pub(super) fn store_with(&self, waker: impl SessionWaker + 'static) -> SharedStore {
        SharedStore::new(self.log.clone(), "a test").with_waker(waker)
    }

    /// Stores a session of a flow by this store.
    pub(super) async fn add_to(
        &self,
        store: &SharedStore,
        session: &str,
        flow: &str,
    ) -> Result<SessionId, StoreError> {
        let loaded = Loaded::from_text("flow.yaml", flow, BTreeMap::new());
        let graph = Arc::new(compile(&loaded, &nodes()).expect("the flow compiles").graph);
        let session = SessionId::from(session);
        let flow = (*graph.source).clone();
        let input = check_input(&graph, Default::default()).expect("it needs no input");
        let record = SessionRecord::new(session.clone(), flow, input, SystemClock.now());
        store.add(&record).await?;
        self.graphs.lock().unwrap().insert(session.clone(), graph);
        Ok(session)
    }

    /// Stores a session that takes over from a paused or ended one, perhaps with an edited flow.
    pub(super) async fn follow(&self, old: &SessionId, kind: ParentKind, flow: &str) -> SessionId {
        self.follow_with(old, kind, flow, BudgetRaise::default()).await
    }

    /// The same, with budgets that are raised for it.
    pub(super) async fn follow_with(
        &self,
        old: &SessionId,
        kind: ParentKind,
        flow: &str,
        budget: BudgetRaise,
    ) -> SessionId {
        let loaded = Loaded::from_text("flow.yaml", flow, BTreeMap::new());
        let graph = Arc::new(compile(&loaded, &nodes()).expect("the flow compiles").graph);
        let session = SessionId::from(format!("{old}-next"));
        let seq = self.events(old).await.len() as u64;
        let parent = Parent { budget, ..Parent::new(old.clone(), seq, kind) };
        let record = SessionRecord::new(
            session.clone(),
            (*graph.source).clone(),
            Default::default(),
            SystemClock.now(),
        );
        let record = SessionRecord { parent: Some(parent), ..record };
        self.store.add(&record).await.expect("the session is stored");
        self.graphs.lock().unwrap().insert(session.clone(), graph);
        session
    }

    /// Another worker: it remembers nothing.
    pub(super) fn decider(&self) -> Decider {
        self.decider_with(Arc::new(SystemClock))
    }

    /// The same on a machine with this clock.
    pub(super) fn decider_with(&self, clock: Arc<dyn Clock>) -> Decider {
        Decider::new(self.log.clone(), Arc::new(Machine), clock)
    }

    /// Another worker, which runs attempts.
    pub(super) fn runner(&self) -> AttemptRunner {
        self.runner_of(Arc::new(Machine))
    }

    /// Another worker of the machine that still runs a node.
    pub(super) fn lock(&self, session: &SessionId, node: &str) -> AttemptLock {
        match AttemptLock::take(self.locks.path(), session, &NodePath::new(node)) {
            Ok(Locked::Taken(lock)) => lock,
            other => panic!("{other:?}"),
        }
    }

    /// A worker on a machine with this host.
    pub(super) fn runner_of(&self, host: Arc<dyn SessionHost>) -> AttemptRunner {
        let notify = Arc::new(|_| Box::pin(async {}) as futures::future::BoxFuture<'static, ()>);
        let (log, locks) = (self.log.clone(), self.locks.path());
        AttemptRunner::new(log, "a", host, Arc::new(SystemClock), notify, locks)
    }

    /// A worker that says by this that a session may have to decide something.
    pub(super) fn runner_that_notifies(
        &self,
        notify: Arc<dyn Fn(SessionId) -> futures::future::BoxFuture<'static, ()> + Send + Sync>,
    ) -> AttemptRunner {
        let locks = self.locks.path();
        AttemptRunner::new(self.log.clone(), "a", Arc::new(Machine), Arc::new(SystemClock), notify, locks)
    }

    /// Appends an event of an attempt, as its worker does.
    pub(super) async fn append(&self, session: &SessionId, attempt: &RunningAttempt, event: Arc<Envelope>) {
        let segments = self.log.segments(session, 0).await.expect("the log reads");
        let position = segments.last().expect("the session has begun").next();
        let mut segment = Segment::new(Writer::Attempt(attempt.key.clone()), position);
        segment.events.push(event);
        segment.renumber(session, position);
        assert!(self.log.append(session, &segment).await.expect("the log takes it"));
    }

    /// Runs the session until it has ended, or waits for something that `rests` sees. Each decision is made by another
    /// worker than the last. An attempt that `is_cut` names loses its worker right after it has begun, once.
    pub(super) async fn run(
        &self,
        session: &SessionId,
        cut: &[&str],
        rests: impl Fn(&[Arc<Envelope>]) -> bool,
    ) {
        let run = async {
            let mut flights = JoinSet::new();
            let mut known = BTreeSet::new();
            let mut lost: Vec<LostAttempt> = Vec::new();
            let mut cut: BTreeSet<String> = cut.iter().map(|name| (*name).to_owned()).collect();
            loop {
                let decision = self.decider().decide(session, &lost, None).await.expect("it decides");
                lost.clear();
                if decision.has_ended || rests(&self.events(session).await) {
                    return;
                }
                for attempt in decision.running {
                    // No worker is of this pool: the server ends what waits for one and is to end.
                    if attempt.pool.as_deref() == Some("nobodys") {
                        if decision.ending.contains(&attempt.name()) {
                            lost.push(LostAttempt { never_began: true, ..attempt.into() });
                        }
                        continue;
                    }
                    if known.insert(attempt.name()) {
                        let leave = CancellationToken::new();
                        if cut.remove(&attempt.name()) {
                            leave.cancel();
                        }
                        let (runner, session) = (self.runner(), session.clone());
                        flights.spawn(async move {
                            let ended = runner.run(&session, &attempt, leave).await;
                            (attempt, ended.is_ok())
                        });
                    }
                }
                let until = decision.wake_in;
                tokio::select! {
                    Some(ended) = flights.join_next() => {
                        let (attempt, is_ended): (RunningAttempt, bool) = ended.expect("no attempt panics");
                        if !is_ended {
                            lost.push(attempt.into());
                        }
                    }
                    () = tokio::time::sleep(until.unwrap_or(Duration::from_millis(50)).min(Duration::from_millis(50))) => {}
                }
            }
        };
        tokio::time::timeout(LIMIT, run).await.expect("the session comes to its end");
    }

    pub(super) fn graph(&self, session: &SessionId) -> Arc<Graph> {
        Arc::clone(&self.graphs.lock().unwrap()[session])
    }

    pub(super) async fn events(&self, session: &SessionId) -> Vec<Arc<Envelope>> {
        self.store.read(session, 1, Select::All).await.expect("the log reads")
    }

    /// The names of the facts, each with its task.
    pub(super) async fn facts(&self, session: &SessionId) -> Vec<String> {
        let events = self.events(session).await;
        let facts = events.iter().filter(|event| inspan_flow_core::FACTS.contains(&event.event.name()));
        facts
            .map(|event| match &event.context.task {
                Some(task) => format!("{} {task}", event.event.name()),
                None => event.event.name().to_owned(),
            })
            .collect()
    }
}
