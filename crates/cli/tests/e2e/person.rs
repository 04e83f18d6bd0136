//! Runs a flow within this process with the real agent CLI, while a simulated person reacts to events.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use inspan_engine::{Filter, Hub, ProviderRegistry};
use inspan_flow::{FlowRunResult, FlowRunner, MemoryStore, builtin_nodes};
use inspan_protocol::{Envelope, Environment, PermissionPolicy};
use inspan_testkit::Sandbox;
use serde_json::{Map, Value};

/// How long the simulated person may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

type Act = Box<dyn Fn(&Hub) -> Result<(), String> + Send + Sync>;

/// What the person does, and on which event.
pub(super) struct PersonStep {
    event: &'static str,
    /// How many more events of that name must come.
    left: u64,
    act: Act,
}

impl PersonStep {
    /// Acts right after the event of this name and number, counted from 1.
    pub(super) fn after(
        event: &'static str,
        count: u64,
        act: impl Fn(&Hub) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { event, left: count, act: Box::new(act) }
    }
}

/// Runs a flow, given as JSON, to its end. The person must have taken every step by then.
pub(super) fn run<const N: usize>(
    sandbox: &Sandbox,
    flow: &Value,
    steps: [PersonStep; N],
) -> anyhow::Result<FlowRunResult> {
    let env: Environment = sandbox.env().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let providers: ProviderRegistry = inspan_providers::builtin().into_iter().collect();
    let nodes = builtin_nodes(&providers);
    let compiled = inspan_flow::compile(&inspan_flow::load(&sandbox.flow(flow)?)?, &nodes);
    let graph = compiled.map_err(|problems| anyhow!("{problems}"))?.graph;
    let runner = FlowRunner::builder(Arc::new(graph), nodes)
        .env(env)
        .permissions(PermissionPolicy::Ask { deadline: PATIENCE })
        .store(Arc::new(MemoryStore::new()))
        .with_events()
        .build();
    let (left, errors) = (Arc::new(Mutex::new(Vec::from(steps))), Arc::new(Mutex::new(Vec::new())));
    let person = {
        let (left, errors, hub) = (Arc::clone(&left), Arc::clone(&errors), runner.hub().clone());
        move |envelope: &Arc<Envelope>| {
            let mut steps = left.lock().unwrap_or_else(PoisonError::into_inner);
            let name = envelope.event.name();
            steps.iter_mut().filter(|step| step.event == name).for_each(|step| step.left -= 1);
            let due: Vec<PersonStep> = steps.extract_if(.., |step| step.left == 0).collect();
            // Without the lock: an act may emit events, which come here again.
            drop(steps);
            for step in due {
                let failed = (step.act)(&hub).err();
                errors.lock().unwrap_or_else(PoisonError::into_inner).extend(failed);
            }
        }
    };
    let observer = runner.hub().observe(Filter::all(), Arc::new(person));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let ended = tokio::time::timeout(sandbox.deadline().left(), runner.run(Map::new())).await;
        providers.shutdown().await;
        ended
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(observer);
    let result = result.context("the session did not end in time")??;
    let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(errors.is_empty(), "the person failed: {}", errors.join("; "));
    let left = left.lock().unwrap_or_else(PoisonError::into_inner);
    let missed: Vec<&str> = left.iter().map(|step| step.event).collect();
    ensure!(missed.is_empty(), "these events never came: {}", missed.join(", "));
    // The log of the session is searched for the planted keys as any other artefact.
    let lines: Result<Vec<_>, _> = result.events.iter().map(serde_json::to_string).collect();
    std::fs::write(sandbox.artefacts().join("person.events.jsonl"), lines?.join("\n"))?;
    Ok(result)
}
