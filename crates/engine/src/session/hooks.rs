//! What a program may do around an agent's prompts and tools, and the provider wrapper that calls it as the stream shows
//! what happens. The wrapper also notes each prompt that reaches the provider.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use inspan_protocol::{
    AgentError, BoxError, DynProvider, ErrorCode, Event, ExecutionContext, LogLevel, Message, MessageMode,
    OutputFacts, ProviderItem, ProviderSessionId, ProviderStream, ProviderWrapper, StreamEvent,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    result::{AgentResult, ChatError, ToolCall},
    transcript::Transcript,
};
use crate::{hub::Hub, run::Mail};

/// What a hook returns: a note, which becomes a `log` event, or nothing; an error is why it failed.
pub type HookResult = Result<Option<String>, BoxError>;

/// Called around an agent's work. An implementation writes its methods as `async fn`. A hook that fails or panics ends
/// the chat with `HOOK_FAILED`.
///
/// An agent runs its own tools. A provider reports when one starts and when it has answered, and the hooks see that: a
/// tool may be running already when [`AgentHooks::before_tool`] is called. To prevent what must not happen without
/// consent, use permissions.
pub trait AgentHooks: Send + Sync + 'static {
    /// Before each prompt reaches the provider; a retry is no new prompt.
    fn before_prompt(&self, _prompt: &str) -> impl Future<Output = HookResult> + Send {
        async { Ok(None) }
    }

    /// When a tool starts.
    fn before_tool(&self, _call: &ToolCall) -> impl Future<Output = HookResult> + Send {
        async { Ok(None) }
    }

    /// When a tool has answered.
    fn after_tool(&self, _call: &ToolCall) -> impl Future<Output = HookResult> + Send {
        async { Ok(None) }
    }

    /// At the end, however the chat ends.
    fn at_end(&self, _end: Result<&AgentResult, &ChatError>) -> impl Future<Output = HookResult> + Send {
        async { Ok(None) }
    }
}

/// The erased form of [`AgentHooks`].
pub(super) trait DynHooks: Send + Sync {
    fn before_prompt<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, HookResult>;
    fn before_tool<'a>(&'a self, call: &'a ToolCall) -> BoxFuture<'a, HookResult>;
    fn after_tool<'a>(&'a self, call: &'a ToolCall) -> BoxFuture<'a, HookResult>;
    fn at_end<'a>(&'a self, end: Result<&'a AgentResult, &'a ChatError>) -> BoxFuture<'a, HookResult>;
}

impl<H: AgentHooks> DynHooks for H {
    fn before_prompt<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, HookResult> {
        AgentHooks::before_prompt(self, prompt).boxed()
    }

    fn before_tool<'a>(&'a self, call: &'a ToolCall) -> BoxFuture<'a, HookResult> {
        AgentHooks::before_tool(self, call).boxed()
    }

    fn after_tool<'a>(&'a self, call: &'a ToolCall) -> BoxFuture<'a, HookResult> {
        AgentHooks::after_tool(self, call).boxed()
    }

    fn at_end<'a>(&'a self, end: Result<&'a AgentResult, &'a ChatError>) -> BoxFuture<'a, HookResult> {
        AgentHooks::at_end(self, end).boxed()
    }
}

/// Waits for a hook, and writes its note into the log.
pub(super) async fn call_hook<'a, F>(
    hub: &Hub,
    name: &str,
    hook: impl FnOnce() -> F,
) -> Result<(), AgentError>
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
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it panicked".to_owned(),
    };
    Err(AgentError::new(ErrorCode::HookFailed, format!("the hook `{name}` failed: {why}")))
}

/// The same, within a turn: its cancellation ends the wait, and what has waited for the hook does not begin.
async fn call_hook_until<'a, F>(
    cancel: &CancellationToken,
    hub: &Hub,
    name: &str,
    hook: impl FnOnce() -> F,
) -> Result<(), AgentError>
where
    F: Future<Output = HookResult> + Send + 'a,
{
    let called = cancel.run_until_cancelled(call_hook(hub, name, hook)).await;
    let aborted = || AgentError::new(ErrorCode::Aborted, format!("the hook `{name}` was cancelled"));
    called.unwrap_or_else(|| Err(aborted()))
}

/// The provider of a session's runs: it notes each prompt and calls the hooks.
pub(super) struct HookedProvider {
    provider: Arc<dyn DynProvider>,
    transcript: Arc<Mutex<Transcript>>,
    hooks: Option<Arc<dyn DynHooks>>,
    hub: Hub,
    /// The prompt of the next call, and the queued messages in it; nothing if the call repeats the last one.
    next: Mutex<Option<(Message, Vec<Mail>)>>,
    /// The input of the last call.
    last: Mutex<Option<Value>>,
}

impl HookedProvider {
    pub(super) fn new(
        provider: Arc<dyn DynProvider>,
        transcript: Arc<Mutex<Transcript>>,
        hooks: Option<Arc<dyn DynHooks>>,
        hub: Hub,
    ) -> Self {
        Self { provider, transcript, hooks, hub, next: Mutex::default(), last: Mutex::default() }
    }

    /// Sets the prompt of the next call, and the queued messages that are part of it.
    pub(super) fn set_next(&self, message: Message, queued: Vec<Mail>) {
        *self.next.lock() = Some((message, queued));
    }

    /// Whether the next call has a new prompt.
    pub(super) fn has_next(&self) -> bool {
        self.next.lock().is_some()
    }

    /// The queued messages that the next call was to deliver.
    pub(super) fn take_undelivered(&self) -> Vec<Mail> {
        self.next.lock().take().map(|(_, queued)| queued).unwrap_or_default()
    }

    /// The input of the last call.
    pub(super) fn last_input(&self) -> Option<Value> {
        self.last.lock().clone()
    }
}

impl ProviderWrapper for HookedProvider {
    fn inner(&self) -> &dyn DynProvider {
        &*self.provider
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let prompt = self.next.lock().take().map(|(message, _)| message);
        match &prompt {
            Some(message) => self.transcript.lock().prompt(message.clone()),
            None => self.transcript.lock().again(),
        }
        *self.last.lock() = Some(input.clone());
        let Some(hooks) = self.hooks.clone() else { return self.provider.execute(input, context) };
        let (provider, hub, cancel) = (Arc::clone(&self.provider), self.hub.clone(), context.cancel.clone());
        async_stream::try_stream! {
            if let Some(message) = prompt {
                let text = message.content.text();
                call_hook_until(&cancel, &hub, "beforePrompt", || hooks.before_prompt(&text)).await?;
            }
            let mut calls = FxHashMap::default();
            let mut stream = provider.execute(input, context);
            while let Some(item) = stream.next().await {
                let item = item?;
                let tool = match &item {
                    ProviderItem::Event(StreamEvent::ToolStart { tool_name, tool_use_id, input }) => {
                        let (id, name, input) = (tool_use_id.clone(), tool_name.clone(), input.clone());
                        let call = ToolCall { id: id.clone(), name, input, result: None, is_error: false };
                        calls.insert(id, call.clone());
                        Some(call)
                    }
                    ProviderItem::Event(StreamEvent::ToolComplete { tool_use_id, result, is_error }) => {
                        let call = calls.remove(tool_use_id);
                        call.map(|call| ToolCall { result: Some(result.clone()), is_error: *is_error, ..call })
                    }
                    _ => None,
                };
                // The event of the tool is reported whatever the hook returns.
                yield item;
                match tool {
                    Some(call) if call.result.is_none() => {
                        call_hook_until(&cancel, &hub, "beforeTool", || hooks.before_tool(&call)).await?;
                    }
                    Some(call) => call_hook_until(&cancel, &hub, "afterTool", || hooks.after_tool(&call)).await?,
                    None => {}
                }
            }
        }
        .boxed()
    }

    fn resume(&self, input: Value, session: &ProviderSessionId, message: &str) -> Result<Value, AgentError> {
        let input = self.provider.resume(input, session, message)?;
        let mail = Mail { content: message.to_owned(), mode: MessageMode::FollowUp };
        self.set_next(Message::user(message), vec![mail]);
        Ok(input)
    }

    fn output_facts(&self, output: &Value) -> Result<OutputFacts, AgentError> {
        let facts = self.provider.output_facts(output)?;
        self.transcript.lock().output(&facts.text);
        Ok(facts)
    }
}
