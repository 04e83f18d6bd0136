//! Runs a flow within this process, every permission denied, and gives it commands when certain events come.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use inspan_engine::{Clock, CountingIds, Filter, Hub, IdSource, NodeCalls, Observer, ProviderRegistry};
use inspan_flow::{FlowRunResult, FlowRunner, Graph, MemoryStore, builtin_nodes};
use inspan_protocol::{Envelope, Environment, PermissionPolicy, SessionId};
use serde_json::{Map, Value};

use super::case::Commanded;
use super::continued::Calls;

/// The session's id in all that runs here.
const SESSION: &str = "flow-1";

/// What surrounds a session.
pub(crate) struct ReplayContext {
    pub(crate) providers: ProviderRegistry,
    /// Whether what nodes do outside is done, recorded or answered from recordings.
    pub(crate) calls: NodeCalls,
    pub(crate) env: Environment,
    pub(crate) clock: Arc<dyn Clock>,
    /// The real time after which the session is given up.
    pub(crate) bound: Duration,
    /// Where the agents' calls are noted, if they are.
    pub(crate) noted: Option<Calls>,
}

/// Every provider that comes with Inspan.
pub(crate) fn providers() -> ProviderRegistry {
    inspan_providers::builtin().into_iter().collect()
}

/// Loads and compiles a flow; all that is wrong with it is the error.
pub(crate) fn compile(flow: &Path, providers: &ProviderRegistry) -> anyhow::Result<Graph> {
    let loaded = inspan_flow::load(flow)?;
    let compiled = inspan_flow::compile(&loaded, &builtin_nodes(providers));
    compiled.map(|compiled| compiled.graph).map_err(|problems| anyhow!("{problems}"))
}

/// Runs a flow to its end. Every command must have been given by then.
pub(crate) async fn run(
    graph: Arc<Graph>,
    input: Map<String, Value>,
    around: ReplayContext,
    commands: Vec<Commanded>,
) -> anyhow::Result<FlowRunResult> {
    let ids: Arc<dyn IdSource> = Arc::new(CountingIds::new());
    let runner = FlowRunner::builder(graph, builtin_nodes(&around.providers))
        .session_id(SessionId::from(SESSION))
        .clock(around.clock)
        .ids(ids)
        .env(around.env)
        .permissions(PermissionPolicy::Deny)
        .node_calls(around.calls)
        .store(Arc::new(MemoryStore::new()))
        .with_events()
        .build();
    let _watching = around.noted.map(|calls| calls.watch(runner.hub()));
    let script = CommandScript::start(runner.hub(), commands);
    let ended = tokio::time::timeout(around.bound, runner.run(input)).await;
    around.providers.shutdown().await;
    let result = ended.with_context(|| format!("the session did not end within {:?}", around.bound))??;
    script.finish()?;
    Ok(result)
}

/// Commands that are given as their events come.
struct CommandScript {
    left: Arc<Mutex<UpcomingCommands>>,
    _observer: Observer,
}

struct UpcomingCommands {
    seen: HashMap<String, u64>,
    commands: Vec<Commanded>,
}

impl CommandScript {
    fn start(hub: &Hub, commands: Vec<Commanded>) -> Self {
        let left = Arc::new(Mutex::new(UpcomingCommands { seen: HashMap::new(), commands }));
        let (of_script, of_hub) = (Arc::clone(&left), hub.clone());
        let observe = move |envelope: &Arc<Envelope>| {
            for Commanded { command, .. } in take_due(&of_script, envelope.event.name()) {
                // Without the lock: what the command does may come here again. One that is refused is part of the log.
                let _ = of_hub.command(command);
            }
        };
        Self { left, _observer: hub.observe(Filter::all(), Arc::new(observe)) }
    }

    fn finish(self) -> anyhow::Result<()> {
        match lock(&self.left).commands.first() {
            Some(Commanded { after, .. }) => bail!("event {} of `{}` never came", after.count, after.event),
            None => Ok(()),
        }
    }
}

fn take_due(left: &Mutex<UpcomingCommands>, event: &str) -> Vec<Commanded> {
    let mut left = lock(left);
    let UpcomingCommands { seen, commands } = &mut *left;
    let seen = seen.entry(event.to_owned()).or_default();
    *seen += 1;
    let seen = *seen;
    commands.extract_if(.., |Commanded { after, .. }| after.event == event && after.count == seen).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
