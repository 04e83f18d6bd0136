//! What a program may do around an agent's prompts and tools, and how a failure of it becomes an error of the agent.
//! When each is called is left to `tap` and `exchange`.

use std::{future::Future, panic::AssertUnwindSafe};

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::{AgentError, ErrorCode};

use super::result::{AgentResult, ToolCall};

/// Called around an agent's work. A hook that fails or panics ends the chat with `HOOK_FAILED`.
///
/// An agent runs its own tools. A provider tells when one starts and when it has answered, and the hooks see that: a
/// tool may be at work already when [`AgentHooks::before_tool`] is called. What must not happen without consent is a
/// matter of permissions.
pub trait AgentHooks: Send + Sync {
    /// Before each prompt reaches the provider; what is tried again is no new prompt.
    fn before_prompt<'a>(&'a self, _prompt: &'a str) -> BoxFuture<'a, Result<(), String>> {
        std::future::ready(Ok(())).boxed()
    }

    /// When a tool starts.
    fn before_tool<'a>(&'a self, _call: &'a ToolCall) -> BoxFuture<'a, Result<(), String>> {
        std::future::ready(Ok(())).boxed()
    }

    /// When a tool has answered.
    fn after_tool<'a>(&'a self, _call: &'a ToolCall) -> BoxFuture<'a, Result<(), String>> {
        std::future::ready(Ok(())).boxed()
    }

    /// At the end, whatever it is.
    fn at_end<'a>(
        &'a self,
        _end: Result<&'a AgentResult, &'a AgentError>,
    ) -> BoxFuture<'a, Result<(), String>> {
        std::future::ready(Ok(())).boxed()
    }
}

/// Waits for a hook.
pub(super) async fn call<'a, F>(name: &str, hook: impl FnOnce() -> F) -> Result<(), AgentError>
where
    F: Future<Output = Result<(), String>> + Send + 'a,
{
    let called = AssertUnwindSafe(async { hook().await }).catch_unwind().await;
    let why = match called {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(why)) => why,
        Err(_) => "it panicked".to_owned(),
    };
    Err(AgentError::new(ErrorCode::HookFailed, format!("the hook `{name}` failed: {why}")))
}
