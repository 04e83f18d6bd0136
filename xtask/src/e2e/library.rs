//! Runs a case's flow within this process, where a person can be played, with the vendor's real program.

use std::sync::Arc;
use std::time::Duration;

use inspan_engine::PermissionPolicy;
use inspan_flow::FlowRunResult;
use inspan_protocol::Environment;
use serde_json::{Map, Value};

pub(crate) use crate::session::Step;

use super::world::World;
use crate::session::{self, Surroundings};

/// How long the played person may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a flow, given as JSON, to its end.
pub(crate) fn run(
    world: &World,
    flow: &Value,
    steps: impl IntoIterator<Item = Step>,
) -> anyhow::Result<FlowRunResult> {
    let env: Environment = world.env().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let providers = session::providers();
    let graph = Arc::new(session::compile(&world.flow(flow)?, &providers)?);
    let permissions = PermissionPolicy::Ask { deadline: PATIENCE };
    let around = Surroundings { permissions, ..Surroundings::real(providers, env, world.deadline.left()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(session::run(graph, Map::new(), around, steps));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let result = result?;
    // What would be kept of the session is an artefact as any other.
    let lines: Result<Vec<_>, _> = result.events.iter().map(serde_json::to_string).collect();
    std::fs::write(world.artefacts().join("library.events.jsonl"), lines?.join("\n"))?;
    Ok(result)
}
