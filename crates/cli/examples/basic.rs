//! An agent in one call: `cargo run -p inspan-cli --example basic`. With options it is `options.rs`.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::sync::Arc;

use inspan_engine::run_agent;
use inspan_protocol::{AgentError, Erased};
use inspan_providers::EchoProvider;

#[tokio::main]
async fn main() -> Result<(), AgentError> {
    let agent = Arc::new(Erased(EchoProvider));
    let result = run_agent(agent, "Say something about oxen.").await?;
    println!("{}", result.text);
    Ok(())
}
