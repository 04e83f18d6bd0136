//! A flow that is paused, continued from its store and sent a message: `cargo run -p inspan --example runtime`.
//! `docs/runtime.md` explains it.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::{error::Error, sync::Arc, time::Duration};

use inspan::{BoxError, Channel, Envelope, Filter, Flow, Resume, SessionId, store::MemoryStore};
use serde_json::Map;

const FLOW: &str = "
flow: { name: ferry, input: { herd: sixteen oxen } }
nodes:
  - { id: load, type: echo, input: { text: '{{ flow.input.herd }}' } }
  - { id: cross, type: control.wait, dependsOn: [load], input: { until: 'session:message', timeout: 10m } }
  - { id: land, type: echo, dependsOn: [cross], input: { text: '{{ load.text }}: {{ cross.event.content }}' } }
";

/// Shows what finishes.
struct Shore;

impl Channel for Shore {
    fn name(&self) -> &str {
        "shore"
    }

    async fn on_event(&self, envelope: &Arc<Envelope>) -> Result<(), BoxError> {
        if let ("task:complete", Some(task)) = (envelope.event.name(), &envelope.context.task) {
            println!("shore sees: {task} is done");
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let flow = Flow::parse("ferry.yaml", FLOW)?;
    let store = Arc::new(MemoryStore::new());
    let session = SessionId::from("ferry-1");

    let runner = flow.runner().session_id(session.clone()).store(store.clone()).build();
    let handle = runner.handle();
    let mut starts = handle.hub().subscribe(Filter::name("task:start"));
    let running = tokio::spawn(runner.run(Map::new()));
    while let Some(start) = starts.next().await {
        if start.context.task.as_ref().is_some_and(|task| task.node() == "cross") {
            break;
        }
    }
    let snapshot = handle.pause(Some("the ferryman eats".to_owned())).await?;
    println!("{:?}", snapshot.status);
    println!("{:?}", running.await??.outcome);

    let runner = flow.runner().store(store).with_events().open(&session).await?;
    let handle = runner.handle();
    let running = tokio::spawn(runner.resume(Resume::default()));
    handle.attach(Arc::new(Shore)).await?;
    // It is refused until the node listens.
    while handle.hub().send("safe and dry").is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let result = running.await??;
    if let Some(output) = result.outputs.get("land") {
        println!("{}", output["text"]);
    }
    let resumed = result.events.iter().filter(|envelope| envelope.event.name() == "flow:resumed").count();
    println!("{:?}, resumed {resumed} time", result.outcome);
    Ok(())
}
