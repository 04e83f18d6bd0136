//! Stands between a run and its provider: notes each prompt that reaches the provider, and calls the hooks as its
//! stream shows what happens. What the provider says is heard from the events, which hold no secrets.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture};
use inspan_protocol::{
    AgentError, DynProvider, ExecutionContext, InputFacts, Message, MessageMode, OutputFacts,
    ProviderDescriptor, ProviderItem, ProviderSessionId, ProviderStream, StreamEvent,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::{
    hooks::{self, AgentHooks},
    result::ToolCall,
    transcript::Transcript,
};
use crate::{hub::Hub, run::Mail};

pub(super) struct Tap {
    provider: Arc<dyn DynProvider>,
    transcript: Arc<Mutex<Transcript>>,
    hooks: Option<Arc<dyn AgentHooks>>,
    hub: Hub,
    /// What the next call says, and the messages of the queue in it; nothing if it says again what the last one did.
    next: Mutex<Option<(Message, Vec<Mail>)>>,
    /// What the last call was given.
    last: Mutex<Option<Value>>,
}

impl Tap {
    pub(super) fn new(
        provider: Arc<dyn DynProvider>,
        transcript: Arc<Mutex<Transcript>>,
        hooks: Option<Arc<dyn AgentHooks>>,
        hub: Hub,
    ) -> Self {
        Self { provider, transcript, hooks, hub, next: Mutex::default(), last: Mutex::default() }
    }

    /// What the next call says, and the messages of the queue that are part of it.
    pub(super) fn says(&self, message: Message, queued: Vec<Mail>) {
        *self.next.lock() = Some((message, queued));
    }

    /// Whether the next call says something new.
    pub(super) fn has_next(&self) -> bool {
        self.next.lock().is_some()
    }

    /// The messages of the queue that were to be said and have not been.
    pub(super) fn take_unsaid(&self) -> Vec<Mail> {
        self.next.lock().take().map(|(_, queued)| queued).unwrap_or_default()
    }

    /// What the last call was given.
    pub(super) fn last_input(&self) -> Option<Value> {
        self.last.lock().clone()
    }
}

impl DynProvider for Tap {
    fn descriptor(&self) -> ProviderDescriptor {
        self.provider.descriptor()
    }

    fn input_schema(&self) -> Value {
        self.provider.input_schema()
    }

    fn output_schema(&self) -> Value {
        self.provider.output_schema()
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let said = self.next.lock().take().map(|(message, _)| message);
        match &said {
            Some(message) => self.transcript.lock().prompt(message.clone()),
            None => self.transcript.lock().again(),
        }
        *self.last.lock() = Some(input.clone());
        let Some(hooks) = self.hooks.clone() else { return self.provider.execute(input, context) };
        let (provider, hub) = (Arc::clone(&self.provider), self.hub.clone());
        async_stream::try_stream! {
            if let Some(message) = said {
                let text = message.content.text();
                hooks::call(&hub, "beforePrompt", || hooks.before_prompt(&text)).await?;
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
                // Whatever the hook says of it, the tool's event is told.
                yield item;
                match tool {
                    Some(call) if call.result.is_none() => {
                        hooks::call(&hub, "beforeTool", || hooks.before_tool(&call)).await?;
                    }
                    Some(call) => hooks::call(&hub, "afterTool", || hooks.after_tool(&call)).await?,
                    None => {}
                }
            }
        }
        .boxed()
    }

    fn resume(&self, input: Value, session: &ProviderSessionId, message: &str) -> Result<Value, AgentError> {
        let input = self.provider.resume(input, session, message)?;
        let mail = Mail { content: message.to_owned(), mode: MessageMode::FollowUp };
        self.says(Message::user(message), vec![mail]);
        Ok(input)
    }

    fn input_facts(&self, input: &Value) -> Result<InputFacts, AgentError> {
        self.provider.input_facts(input)
    }

    fn output_facts(&self, output: &Value) -> Result<OutputFacts, AgentError> {
        let facts = self.provider.output_facts(output)?;
        self.transcript.lock().output(&facts.text);
        Ok(facts)
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        self.provider.shutdown()
    }
}
