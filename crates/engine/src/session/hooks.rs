//! What a program may do around an agent's prompts and tools, and how a failure of it becomes an error of the agent.

use std::{future::Future, panic::AssertUnwindSafe};

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::{AgentError, ErrorCode, Event, LogLevel};
use serde_json::{Map, json};

use super::result::{AgentResult, ToolCall};
use crate::hub::Hub;

/// What a hook gives: a note, which becomes a `log` event, or nothing; an error is why it failed.
pub type HookResult = Result<Option<String>, String>;

/// Called around an agent's work. A hook that fails or panics ends the chat with `HOOK_FAILED`.
///
/// An agent runs its own tools. A provider tells when one starts and when it has answered, and the hooks see that: a
/// tool may be at work already when [`AgentHooks::before_tool`] is called. What must not happen without consent is a
/// matter of permissions.
pub trait AgentHooks: Send + Sync {
    /// Before each prompt reaches the provider; what is tried again is no new prompt.
    fn before_prompt<'a>(&'a self, _prompt: &'a str) -> BoxFuture<'a, HookResult> {
        std::future::ready(Ok(None)).boxed()
    }

    /// When a tool starts.
    fn before_tool<'a>(&'a self, _call: &'a ToolCall) -> BoxFuture<'a, HookResult> {
        std::future::ready(Ok(None)).boxed()
    }

    /// When a tool has answered.
    fn after_tool<'a>(&'a self, _call: &'a ToolCall) -> BoxFuture<'a, HookResult> {
        std::future::ready(Ok(None)).boxed()
    }

    /// At the end, whatever it is.
    fn at_end<'a>(&'a self, _end: Result<&'a AgentResult, &'a AgentError>) -> BoxFuture<'a, HookResult> {
        std::future::ready(Ok(None)).boxed()
    }
}

/// Waits for a hook, and writes its note into the log.
pub(super) async fn call<'a, F>(hub: &Hub, name: &str, hook: impl FnOnce() -> F) -> Result<(), AgentError>
where
    F: Future<Output = HookResult> + Send + 'a,
{
    let called = AssertUnwindSafe(async { hook().await }).catch_unwind().await;
    let why = match called {
        Ok(Ok(None)) => return Ok(()),
        Ok(Ok(Some(message))) => {
            let fields = Map::from_iter([("hook".to_owned(), json!(name))]);
            hub.emit(Event::Log { level: LogLevel::Info, message, fields });
            return Ok(());
        }
        Ok(Err(why)) => why,
        Err(_) => "it panicked".to_owned(),
    };
    Err(AgentError::new(ErrorCode::HookFailed, format!("the hook `{name}` failed: {why}")))
}
