//! An agent that is code, and messages to it: `cargo run -p inspan --example custom_agent`. `docs/agents.md`
//! explains it.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::{error::Error, sync::Arc};

use inspan::{
    AgentContext, AgentDefinition, AgentError, CancellationToken, Event, ExecutableAgent, Filter, Hub,
    MessageMode, RandomIds, Rejection, SessionId, SystemClock,
};
use serde_json::{Value, json};

struct Herder;

impl AgentDefinition for Herder {
    fn name(&self) -> &str {
        "herder"
    }

    async fn execute(&self, input: Value, context: AgentContext) -> Result<Value, AgentError> {
        let AgentContext { hub, run_id, cancel, .. } = context;
        let mut messages = hub.subscribe(Filter::name("session:message").of_run(run_id.clone()));
        let mut herd = vec![input["first"].clone()];
        loop {
            let next = tokio::select! {
                next = messages.next() => next,
                () = cancel.cancelled() => None,
            };
            let Some(envelope) = next else { break };
            let Event::SessionMessage { content, .. } = &envelope.event else { continue };
            if content == "home" {
                break;
            }
            let text = format!("{content} joins.");
            hub.emit(Event::AgentText { content: text, delta: false, run_id: run_id.clone() });
            herd.push(json!(content));
        }
        Ok(json!({ "herd": herd }))
    }
}

/// Sends messages to the run that is active.
async fn talk(hub: &Hub) -> Result<(), Rejection> {
    let run = loop {
        match hub.active_runs().pop() {
            Some(run) => break run,
            None => tokio::task::yield_now().await,
        }
    };
    hub.send_to_run(run.clone(), "Bo", MessageMode::FollowUp)?;
    hub.send("Mo")?;
    hub.send_to_run(run, "home", MessageMode::FollowUp)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let hub = Hub::new(SessionId::from("herd-1"), Arc::new(SystemClock), Arc::new(RandomIds::new()));
    let mut all = hub.subscribe(Filter::all());
    hub.start_session();

    let agent = ExecutableAgent::new(Herder, hub.clone(), CancellationToken::new());
    let (output, talked) = tokio::join!(agent.execute(json!({ "first": "Ada" })), talk(&hub));
    talked?;
    println!("{}", output?);

    while let Some(envelope) = all.try_next() {
        println!("{}", envelope.event.name());
    }
    Ok(())
}
