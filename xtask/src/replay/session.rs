//! Runs a flow within this process, and does something when certain events come.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use inspan_engine::{
    Clock, CountingIds, Filter, Hub, IdSource, NodeCalls, Observer, ProviderRegistry, SystemClock,
};
use inspan_flow::{FlowRunResult, FlowRunner, Graph, MemoryStore, builtin_nodes};
use inspan_protocol::{Envelope, Environment, PermissionPolicy, SessionId};
use serde_json::{Map, Value};

/// The session's id in all that runs here.
const SESSION: &str = "flow-1";

/// What is done to a session, and on which event.
pub(crate) struct Step {
    event: String,
    /// After so many events of that name, counting from 1.
    count: u64,
    act: SessionAct,
}

type SessionAct = Box<dyn Fn(&Hub) -> Result<(), String> + Send + Sync>;

impl Step {
    /// Acts right after the event: the effect follows that event in the log before anything else.
    pub(crate) fn after(
        event: impl Into<String>,
        count: u64,
        act: impl Fn(&Hub) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { event: event.into(), count, act: Box::new(act) }
    }
}

/// What surrounds a session.
pub(crate) struct ReplayContext {
    pub(crate) providers: ProviderRegistry,
    /// Whether what nodes do outside is done, recorded or answered from recordings.
    pub(crate) calls: NodeCalls,
    pub(crate) env: Environment,
    pub(crate) permissions: PermissionPolicy,
    pub(crate) clock: Arc<dyn Clock>,
    /// The real time after which the session is given up.
    pub(crate) bound: Duration,
    /// Looks on, until the session has ended.
    pub(crate) watch: SessionWatch,
}

pub(crate) type SessionWatch = Box<dyn FnOnce(&Hub) -> Option<Observer> + Send>;

impl ReplayContext {
    /// With the clock of the machine, and every permission denied.
    pub(crate) fn real(
        providers: ProviderRegistry,
        calls: NodeCalls,
        env: Environment,
        bound: Duration,
    ) -> Self {
        Self {
            providers,
            calls,
            env,
            permissions: PermissionPolicy::Deny,
            clock: Arc::new(SystemClock),
            bound,
            watch: Box::new(|_| None),
        }
    }
}

/// Every provider that comes with Inspan.
pub(crate) fn providers() -> ProviderRegistry {
    let mut registry = ProviderRegistry::new();
    for provider in inspan_providers::builtin() {
        registry.register(provider);
    }
    registry
}

/// Loads and compiles a flow; all that is wrong with it is the error.
pub(crate) fn compile(flow: &Path, providers: &ProviderRegistry) -> anyhow::Result<Graph> {
    let loaded = inspan_flow::load(flow)?;
    let compiled = inspan_flow::compile(&loaded, &builtin_nodes(providers));
    compiled.map(|compiled| compiled.graph).map_err(|problems| anyhow!("{problems}"))
}

/// Runs a flow to its end. Every step must have come to be done by then.
pub(crate) async fn run(
    graph: Arc<Graph>,
    input: Map<String, Value>,
    around: ReplayContext,
    steps: impl IntoIterator<Item = Step>,
) -> anyhow::Result<FlowRunResult> {
    let ids: Arc<dyn IdSource> = Arc::new(CountingIds::new());
    let runner = FlowRunner::builder(graph, builtin_nodes(&around.providers))
        .session_id(SessionId::from(SESSION))
        .clock(around.clock)
        .ids(ids)
        .env(around.env)
        .permissions(around.permissions)
        .node_calls(around.calls)
        .store(Arc::new(MemoryStore::new()))
        .with_events()
        .build();
    let _watching = (around.watch)(runner.hub());
    let script = StepScript::start(runner.hub(), steps);
    let ended = tokio::time::timeout(around.bound, runner.run(input)).await;
    around.providers.shutdown().await;
    let result = ended.with_context(|| format!("the session did not end within {:?}", around.bound))??;
    script.finish()?;
    Ok(result)
}

/// Steps under way.
struct StepScript {
    left: Arc<Mutex<RemainingSteps>>,
    _observer: Observer,
}

struct RemainingSteps {
    seen: HashMap<String, u64>,
    steps: Vec<Step>,
    failed: Vec<String>,
}

impl StepScript {
    fn start(hub: &Hub, steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().collect();
        let left = Arc::new(Mutex::new(RemainingSteps { seen: HashMap::new(), steps, failed: Vec::new() }));
        let (of_script, of_hub) = (Arc::clone(&left), hub.clone());
        let observe = move |envelope: &Arc<Envelope>| {
            for step in take_due(&of_script, envelope.event.name()) {
                // Without the lock: what the step does may come here again.
                if let Err(error) = (step.act)(&of_hub) {
                    lock(&of_script).failed.push(format!("after {} {}: {error}", step.event, step.count));
                }
            }
        };
        Self { left, _observer: hub.observe(Filter::all(), Arc::new(observe)) }
    }

    fn finish(self) -> anyhow::Result<()> {
        let left = lock(&self.left);
        if !left.failed.is_empty() {
            bail!("a step failed: {}", left.failed.join("; "));
        }
        match left.steps.first() {
            Some(step) => bail!("event {} of `{}` never came", step.count, step.event),
            None => Ok(()),
        }
    }
}

fn take_due(left: &Mutex<RemainingSteps>, event: &str) -> Vec<Step> {
    let mut left = lock(left);
    let RemainingSteps { seen, steps, .. } = &mut *left;
    let seen = seen.entry(event.to_owned()).or_default();
    *seen += 1;
    let seen = *seen;
    steps.extract_if(.., |step| step.event == event && step.count == seen).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
