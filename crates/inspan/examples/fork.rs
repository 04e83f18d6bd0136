//! A session that is forked and continued with its finished work, and programs that end with this one:
//! `cargo run -p inspan --example fork`. `docs/runtime.md` explains it.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::{process::ExitCode, sync::Arc};

use inspan::{
    BoxError, Event, Flow, FlowRunResult, FlowRunnerBuilder, NodePath, SessionId, guard, run_as_guard,
    store::MemoryStore,
};
use serde_json::Map;

const FLOW: &str = "
flow: { name: yard }
nodes:
  - { id: count, type: exec, input: { argv: [/bin/echo, sixteen oxen] } }
  - { id: say, type: echo, dependsOn: [count], input: { text: 'There are {{ count.stdout | trim }}.' } }
";

fn main() -> Result<ExitCode, BoxError> {
    if let Some(code) = run_as_guard() {
        return Ok(code);
    }
    run()?;
    Ok(ExitCode::SUCCESS)
}

#[tokio::main]
async fn run() -> Result<(), BoxError> {
    let flow = Flow::parse("yard.yaml", FLOW)?;
    let store = Arc::new(MemoryStore::new());
    let builder = || {
        let builder = flow.runner().store(store.clone()).with_events();
        match guard() {
            Some(guard) => builder.supervisor(guard),
            None => builder,
        }
    };
    let first = SessionId::from("yard-1");
    show(builder().session_id(first.clone())).await?;

    show(builder().fork(&first, NodePath::new("say")).await?).await?;

    show(builder().continuing(&first).await?).await?;
    Ok(())
}

/// Shows what a session reuses, and what comes of it.
async fn show(builder: FlowRunnerBuilder) -> Result<(), BoxError> {
    let FlowRunResult { outputs, events, .. } = builder.build().run(Map::new()).await?;
    let reused = events.iter().filter_map(|envelope| match &envelope.event {
        Event::TaskReused { task_id, .. } => Some(task_id.to_string()),
        _ => None,
    });
    let reused: Vec<String> = reused.collect();
    let said = outputs.get("say").and_then(|say| say["text"].as_str()).unwrap_or_default();
    println!("reused {reused:?}, said {said:?}");
    Ok(())
}
