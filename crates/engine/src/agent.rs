//! Agents in code: the trait of an agent, and the wrapper that reports its start and its end.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use inspan_protocol::{
    AgentError, DynProvider, ErrorCode, Event, Host, IntoProvider, LogLevel, MultiTurn, RunId, StopReason,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    hub::Hub,
    run::{AgentRun, Identity, Mailbox, OpenRun, RunEvents, undelivered},
};

/// What surrounds one call of an agent.
#[derive(Clone)]
pub struct AgentContext {
    /// The hub, in the run's context.
    pub hub: Hub,
    /// The run.
    pub run_id: RunId,
    /// Cancels the run.
    pub cancel: CancellationToken,
    /// Messages for the run that came while it was not subscribed to `session:message`.
    pub mailbox: Arc<Mailbox>,
}

/// Something that can be run as an agent: it emits events and returns a result.
///
/// Messages are sent to its run by [`Hub::send_to_run`], [`Hub::send_to`] and [`Hub::send`]. It receives them as
/// `session:message` events if it subscribes to them, as with
/// `hub.subscribe(Filter::name("session:message").of_run(run_id))`; else they wait in its mailbox. Each that waits
/// there at its end is named by a warning. An implementation writes `execute` as `async fn`.
pub trait AgentDefinition: Send + Sync + 'static {
    /// The agent's name.
    fn name(&self) -> &str;

    /// Whether the agent emits `agent:start` and `agent:complete` itself; else the engine does.
    fn emits_start_complete(&self) -> bool {
        false
    }

    /// Runs the agent.
    fn execute(
        &self,
        input: Value,
        context: AgentContext,
    ) -> impl Future<Output = Result<Value, AgentError>> + Send;
}

/// The erased form of an [`AgentDefinition`].
trait DynAgent: Send + Sync {
    fn name(&self) -> &str;
    fn emits_start_complete(&self) -> bool;
    fn execute(&self, input: Value, context: AgentContext) -> BoxFuture<'_, Result<Value, AgentError>>;
}

impl<A: AgentDefinition> DynAgent for A {
    fn name(&self) -> &str {
        AgentDefinition::name(self)
    }

    fn emits_start_complete(&self) -> bool {
        AgentDefinition::emits_start_complete(self)
    }

    fn execute(&self, input: Value, context: AgentContext) -> BoxFuture<'_, Result<Value, AgentError>> {
        AgentDefinition::execute(self, input, context).boxed()
    }
}

/// An agent bound to a hub: a name, and a call without any context.
#[derive(Clone)]
pub struct ExecutableAgent {
    definition: Arc<dyn DynAgent>,
    hub: Hub,
    cancel: CancellationToken,
}

impl ExecutableAgent {
    /// Binds an agent to a hub, whose handle carries the task if there is one.
    pub fn new(definition: impl AgentDefinition, hub: Hub, cancel: CancellationToken) -> Self {
        Self { definition: Arc::new(definition), hub, cancel }
    }

    /// The agent's name.
    pub fn name(&self) -> &str {
        self.definition.name()
    }

    /// Runs the agent once, in a fresh run. After `agent:start` there is exactly one `agent:complete`, also
    /// if the agent panics (`NODE_FAILED`) or this future is dropped.
    pub async fn execute(&self, input: Value) -> Result<Value, AgentError> {
        let run_id = self.hub.ids().run_id();
        let hub = self.hub.with_agent(run_id.clone());
        // Open before `agent:start`, so that the run can be reached as soon as it is known.
        let mailbox = Arc::new(hub.open_run_of_code(&run_id, self.name()));
        let context = AgentContext {
            hub: hub.clone(),
            run_id: run_id.clone(),
            cancel: self.cancel.clone(),
            mailbox: Arc::clone(&mailbox),
        };
        let _closed = CloseOnDrop { hub: hub.clone(), mailbox: Arc::clone(&mailbox) };
        let mut open = (!self.definition.emits_start_complete()).then(|| {
            let identity = Identity {
                run_id,
                agent_name: self.name().to_owned(),
                provider: CUSTOM_PROVIDER.to_owned(),
                model: None,
                multi_turn: MultiTurn::Off,
                listens: false,
            };
            OpenRun::begin(hub, RunEvents::new(identity, None), mailbox, 1, None)
        });
        let call = async { self.definition.execute(input, context).await };
        let result = AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
            Err(AgentError::new(ErrorCode::NodeFailed, format!("agent `{}` panicked", self.name())))
        });
        if let Some(open) = &mut open {
            let stop_reason = match &result {
                Ok(_) => StopReason::Complete,
                Err(error) if error.code == ErrorCode::Aborted => StopReason::Aborted,
                Err(_) => StopReason::Error,
            };
            open.end(stop_reason, Vec::new());
        }
        result
    }
}

/// Closes the mailbox of a run that is over, even if the agent still holds it.
struct CloseOnDrop {
    hub: Hub,
    mailbox: Arc<Mailbox>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        // An agent that emits its own `agent:complete` has ended, so no warning of the run may follow.
        for mail in self.mailbox.close() {
            self.hub.emit(Event::Log {
                level: LogLevel::Warn,
                message: undelivered(&mail),
                fields: Default::default(),
            });
        }
    }
}

/// The provider in `agent:start` for an agent that is code.
const CUSTOM_PROVIDER: &str = "custom";

/// A provider as an agent: its input is the provider's input, its result the provider's output.
pub struct ProviderAgent {
    name: String,
    provider: Arc<dyn DynProvider>,
    host: Arc<Host>,
}

impl ProviderAgent {
    /// An agent of this name on the provider.
    pub fn new(name: impl Into<String>, provider: impl IntoProvider) -> Self {
        Self { name: name.into(), provider: provider.into_provider(), host: Arc::default() }
    }

    /// The program that runs the agent: its environment, folder, tools and permissions.
    #[must_use]
    pub fn host(self, host: impl Into<Arc<Host>>) -> Self {
        Self { host: host.into(), ..self }
    }
}

impl AgentDefinition for ProviderAgent {
    fn name(&self) -> &str {
        &self.name
    }

    fn emits_start_complete(&self) -> bool {
        true
    }

    async fn execute(&self, input: Value, context: AgentContext) -> Result<Value, AgentError> {
        let run = AgentRun::new(context.hub, self.name.clone(), Arc::clone(&self.provider), input)
            .run_id(context.run_id)
            .host(self.host.clone())
            .cancel(context.cancel);
        run.execute().await.map(|end| end.output)
    }
}

#[cfg(test)]
mod tests;
