//! An interface to a live session: `cargo run -p inspan --example channel`. Here it watches one agent; a flow
//! takes channels too, by `FlowRunnerBuilder::channel`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::sync::Arc;

use inspan::{
    AgentError, AgentOptions, AgentSession, BoxError, Channel, ChannelLimits, Channels, Envelope, Event, Hub,
    PermissionPolicy, providers::ScriptedProvider,
};
use serde_json::json;

/// Shows what happens, and allows tools to be used.
#[derive(Default)]
struct Approver(std::sync::OnceLock<Hub>);

impl Channel for Approver {
    fn name(&self) -> &str {
        "approver"
    }

    async fn on_start(&self, hub: Hub) -> Result<(), BoxError> {
        let _ = self.0.set(hub);
        Ok(())
    }

    async fn on_event(&self, envelope: &Arc<Envelope>) -> Result<(), BoxError> {
        println!("{}", envelope.event.name());
        if let (Some(hub), Event::SessionPrompt(prompt)) = (self.0.get(), &envelope.event) {
            println!("  {} allow", prompt.prompt);
            hub.reply(prompt.prompt_id.clone(), "allow", Some("allow".to_owned()))
                .map_err(|why| why.to_string())?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let turn = json!([{ "tool": { "name": "Bash", "input": {}, "result": "ok", "ask": true } }, { "text": "Done." }]);
    let ask = PermissionPolicy::Ask { deadline: std::time::Duration::from_secs(60) };
    let options = AgentOptions::new().permissions(ask).option("turns", json!([turn]));
    let session = AgentSession::new(ScriptedProvider, options)?;
    let Some(hub) = session.hub() else { return Ok(()) };

    let mut channels = Channels::new(hub, ChannelLimits::default());
    channels.attach(Arc::new(Approver::default())).await;
    let result = session.chat("Do it.").await?;
    channels.finish().await;
    println!("{} after {} tool", result.text, result.tool_calls.len());
    Ok(())
}
