//! What the public providers of agent CLIs have in common: their processes, the warnings that they have shown, and their
//! implementation of `Provider`.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use inspan_protocol::{AgentError, ExecutionContext, Handshake, ProviderItem, ProviderStream, StreamEvent};

use super::pool::{Limits, Pool};
use super::session::Session;
use super::{Agent, Call, turn_items};
use crate::output::TurnOutput;

/// A provider that runs an agent CLI: its processes, and what it has passed on.
pub(crate) struct ProgramProvider<A: Agent> {
    pool: Arc<Pool<Session<A>>>,
    shown: Arc<ShownWarnings>,
}

impl<A: Agent> fmt::Debug for ProgramProvider<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramProvider").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl<A: Agent> ProgramProvider<A> {
    /// A provider without any process yet.
    pub(crate) fn new() -> Self {
        Self::with_limits(A::LIMITS)
    }

    /// As [`Self::new`], with other limits of its processes.
    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self { pool: Pool::new(limits), shown: Arc::default() }
    }

    /// Runs one turn: takes the warm process of the conversation or starts one, sends the prompt, and reads until the
    /// turn ends.
    pub(crate) fn execute<O: From<TurnOutput> + Send + 'static>(
        &self,
        provider: &'static str,
        context: ExecutionContext,
        prepare: impl FnOnce(&ExecutionContext) -> Result<Call<A>, AgentError> + Send + 'static,
    ) -> ProviderStream<O> {
        let shown = Arc::clone(&self.shown);
        let convert = move |item: Result<ProviderItem<TurnOutput>, AgentError>| {
            let item = match item {
                Ok(ProviderItem::Event(event)) if !shown.is_new::<A>(&event) => None,
                Ok(ProviderItem::Event(event)) => Some(Ok(ProviderItem::Event(event))),
                Ok(ProviderItem::Output(output)) => Some(Ok(ProviderItem::Output(O::from(output)))),
                Err(error) => Some(Err(error.from_provider(provider))),
            };
            std::future::ready(item)
        };
        turn_items(Arc::clone(&self.pool), context, prepare).filter_map(convert).boxed()
    }

    /// Starts a program, exchanges greetings and ends it; no conversation is opened.
    pub(crate) async fn handshake(
        &self,
        context: ExecutionContext,
        launch: impl FnOnce(&ExecutionContext) -> Result<A::Launch, AgentError> + Send,
    ) -> Result<Handshake, AgentError> {
        let launch = launch(&context)?;
        Session::<A>::greet(&launch, &context).await?;
        Ok(Handshake::Vendor)
    }

    /// Ends all processes.
    pub(crate) async fn shut_down(&self) {
        self.pool.shut_down().await;
    }
}

/// Warnings that every process repeats and that were passed on once.
#[derive(Debug, Default)]
struct ShownWarnings(Mutex<BTreeSet<String>>);

/// How many different ones are remembered.
const SHOWN_LIMIT: usize = 256;

impl ShownWarnings {
    /// Whether an event is to be passed on.
    fn is_new<A: Agent>(&self, event: &StreamEvent) -> bool {
        let StreamEvent::Warning { code, message } = event else { return true };
        if A::REPEATED_WARNING != Some(code) {
            return true;
        }
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !shown.contains(message) && (shown.len() >= SHOWN_LIMIT || shown.insert(message.clone()))
    }
}

/// A public provider over an [`Agent`]: its program, its capabilities, and how a call is made of an input.
macro_rules! program_provider {
    (
        $(#[$doc:meta])*
        $provider:ident for $agent:ty, $input:ty => $output:ty, $program:expr, $capabilities:expr, $call:path
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $provider($crate::program::ProgramProvider<$agent>);

        impl $provider {
            /// A provider without any process yet.
            pub fn new() -> Self {
                Self($crate::program::ProgramProvider::new())
            }
        }

        impl Default for $provider {
            fn default() -> Self {
                Self::new()
            }
        }

        impl ::inspan_protocol::Provider for $provider {
            type Input = $input;
            type Output = $output;

            fn descriptor(&self) -> ::inspan_protocol::ProviderDescriptor {
                ::inspan_protocol::ProviderDescriptor {
                    provider_type: $program.provider.to_owned(),
                    display_name: $program.name.to_owned(),
                    capabilities: $capabilities,
                }
            }

            fn check_input(&self, input: &::serde_json::Value) -> Vec<::inspan_protocol::InputProblem> {
                $crate::input::check(input, $crate::input::Assistant::Refused)
            }

            fn setup(&self) -> ::inspan_protocol::Setup {
                $program.setup()
            }

            fn check_setup(
                &self,
                environment: &::inspan_protocol::Environment,
            ) -> Result<(), ::inspan_protocol::AgentError> {
                $program.find(None, environment, None).map(drop)
            }

            async fn probe(
                &self,
                environment: &::inspan_protocol::Environment,
                supervisor: Option<::inspan_protocol::Supervisor>,
            ) -> ::inspan_protocol::Probe {
                ::inspan_protocol::Probe::Program($program.probe(environment, supervisor).await)
            }

            fn execute(
                &self,
                input: $input,
                context: ::inspan_protocol::ExecutionContext,
            ) -> ::inspan_protocol::ProviderStream<$output> {
                self.0.execute($program.provider, context, move |context| $call(input, context))
            }

            async fn handshake(
                &self,
                context: ::inspan_protocol::ExecutionContext,
            ) -> Result<::inspan_protocol::Handshake, ::inspan_protocol::AgentError> {
                self.0.handshake(context, |context| <$agent as $crate::program::Agent>::Launch::new(&Default::default(), context)).await
            }

            async fn shutdown(&self) {
                self.0.shut_down().await;
            }
        }
    };
}

pub(crate) use program_provider;
