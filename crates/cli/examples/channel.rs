//! An interface to whatever runs: `cargo run -p inspan-cli --example channel`. Here it watches one agent; a flow takes
//! channels likewise, by `FlowRunnerBuilder::channel`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::{AgentOptions, AgentSession, Channel, ChannelLimits, Channels, Hub, PermissionPolicy};
use inspan_protocol::{AgentError, Envelope, Erased, Event};
use inspan_providers::ScriptedProvider;
use serde_json::json;

/// Shows what happens, and allows tools to be used.
#[derive(Default)]
struct Desk(std::sync::OnceLock<Hub>);

impl Channel for Desk {
    fn name(&self) -> &str {
        "desk"
    }

    fn on_start(&self, hub: Hub) -> BoxFuture<'_, Result<(), String>> {
        let _ = self.0.set(hub);
        std::future::ready(Ok(())).boxed()
    }

    fn on_event<'a>(&'a self, envelope: &'a Arc<Envelope>) -> BoxFuture<'a, Result<(), String>> {
        async move {
            println!("{}", envelope.event.name());
            if let (Some(hub), Event::SessionPrompt(prompt)) = (self.0.get(), &envelope.event) {
                println!("  {} allow", prompt.prompt);
                hub.reply(prompt.prompt_id.clone(), "allow", Some("allow".to_owned()))
                    .map_err(|why| why.to_string())?;
            }
            Ok(())
        }
        .boxed()
    }

    fn on_complete(&self) -> BoxFuture<'_, Result<(), String>> {
        std::future::ready(Ok(())).boxed()
    }
}

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let turn = json!([{ "tool": { "name": "Bash", "input": {}, "result": "ok", "ask": true } }, { "text": "Done." }]);
    let ask = PermissionPolicy::Ask { deadline: std::time::Duration::from_secs(60) };
    let options = AgentOptions::new().permissions(ask).option("turns", json!([turn]));
    let session = AgentSession::new(Arc::new(Erased(ScriptedProvider)), options)?;
    let Some(hub) = session.hub() else { return Ok(()) };

    let mut channels = Channels::new(hub, ChannelLimits::default());
    channels.start([Arc::new(Desk::default()) as Arc<dyn Channel>]).await;
    let result = session.chat("Do it.").await?;
    channels.finish().await;
    println!("{} after {} tool", result.text, result.tool_calls.len());
    Ok(())
}
