//! An agent in one call: says something, gives what came of it, and releases everything.

use inspan_protocol::{AgentError, IntoProvider};

use crate::session::{AgentResult, AgentSession, AgentStream, ChatError, RunAgentOptions};

/// Runs an agent to its end.
pub async fn run_agent(
    provider: impl IntoProvider,
    options: impl Into<RunAgentOptions>,
) -> Result<AgentResult, ChatError> {
    let RunAgentOptions { chat, agent } = options.into();
    let session = AgentSession::new(provider, agent)?;
    let end = session.chat(chat).await;
    session.close();
    end
}

/// Runs an agent: its events as they happen, then its result. Nothing happens unless the stream is read; dropped, the
/// agent is cancelled.
pub fn run_agent_stream(
    provider: impl IntoProvider,
    options: impl Into<RunAgentOptions>,
) -> Result<AgentStream, AgentError> {
    let RunAgentOptions { chat, agent } = options.into();
    Ok(AgentSession::new(provider, agent)?.chat_stream(chat))
}
