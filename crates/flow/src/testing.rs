//! For this crate's own tests: a provider that does what a test says, and flows compiled with it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use inspan_engine::ProviderRegistry;
use inspan_protocol::{
    AgentError, Chunk, Environment, Erased, ExecutionContext, Provider, ProviderCapabilities,
    ProviderDescriptor, ProviderInput, ProviderItem, ProviderSessionId, ProviderStream, StopReason,
    StreamEvent, Usage,
};
use inspan_providers::{EchoInput, TurnOutput};
use serde_json::{Value, json};

use crate::{FlowRunner, FlowRunnerBuilder, Graph, Loaded, NodeRegistry, builtin_nodes, compile};

/// What a call does next.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    /// Names the conversation.
    Name(&'static str),
    Say(&'static str),
    /// Ends here if the call is cancelled by then, and else continues after so many milliseconds.
    Work(u64),
    /// Ends the turn with this text; cost in US dollars and tokens.
    End(&'static str, Option<f64>, u64),
    Fail(AgentError),
}

/// What a call was given.
pub(crate) struct Asked {
    pub(crate) prompt: String,
    /// The conversation that it continues.
    pub(crate) resume: Option<ProviderSessionId>,
    /// Whether it only goes on with a turn that was interrupted.
    pub(crate) goes_on: bool,
}

/// What the n-th call of all, counting from 1, does.
type Play = dyn Fn(&Asked, usize) -> Vec<Do> + Send + Sync;

/// A provider of type `talk` that keeps what it was called with.
#[derive(Clone)]
pub(crate) struct TalkProvider {
    play: Arc<Play>,
    calls: Arc<Mutex<Vec<Asked>>>,
    running: Arc<AtomicUsize>,
    forgets_cut_turns: bool,
}

impl TalkProvider {
    pub(crate) fn new(play: impl Fn(&Asked, usize) -> Vec<Do> + Send + Sync + 'static) -> Self {
        let play = Arc::new(play);
        Self { play, calls: Arc::default(), running: Arc::default(), forgets_cut_turns: false }
    }

    /// It forgets what a turn was asked that is cut short.
    pub(crate) fn forgetful(self) -> Self {
        Self { forgets_cut_turns: true, ..self }
    }

    /// What the calls were given: each prompt, and the conversation it continues.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |call: &Asked| match &call.resume {
            Some(session) => format!("{session}: {}", call.prompt),
            None => call.prompt.clone(),
        };
        calls.iter().map(shown).collect()
    }

    /// How many calls are under way.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// The node types that come with Inspan, with this provider's.
    pub(crate) fn nodes(&self) -> NodeRegistry {
        let mut providers = ProviderRegistry::new();
        providers.register(Arc::new(Erased(self.clone())));
        builtin_nodes(&providers)
    }
}

/// Counts a call for as long as it lasts.
struct CallCounter(Arc<AtomicUsize>);

impl CallCounter {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for CallCounter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Provider for TalkProvider {
    type Input = EchoInput;
    type Output = TurnOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: "talk".to_owned(),
            display_name: "Talk".to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                cost: true,
                forgets_cut_turns: self.forgets_cut_turns,
                ..Default::default()
            },
        }
    }

    fn execute(&self, input: EchoInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        let mut session_id = input.facts().session;
        let prompt = input.prompt.unwrap_or_default();
        let asked = Asked { prompt, resume: session_id.clone(), goes_on: context.goes_on };
        let steps = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let steps = (self.play)(&asked, calls.len() + 1);
            calls.push(asked);
            steps
        };
        let running = CallCounter::begin(&self.running);
        async_stream::stream! {
            let _running = running;
            for step in steps {
                match step {
                    Do::Name(name) => {
                        let name = ProviderSessionId::from(name);
                        session_id = Some(name.clone());
                        yield Ok(ProviderItem::Event(StreamEvent::Session { session_id: name }));
                    }
                    Do::Say(text) => {
                        let content = text.to_owned();
                        yield Ok(ProviderItem::Event(StreamEvent::Text { content, chunk: Chunk::Delta }));
                    }
                    Do::Work(ms) => {
                        let cancelled = tokio::select! {
                            biased;
                            () = context.cancel.cancelled() => true,
                            () = tokio::time::sleep(Duration::from_millis(ms)) => false,
                        };
                        if cancelled {
                            let aborted = end("", StopReason::Aborted, session_id.as_ref(), Some(0.0), 0);
                            yield Ok(ProviderItem::Output(aborted));
                            return;
                        }
                    }
                    Do::End(text, cost, tokens) => {
                        let output = end(text, StopReason::Complete, session_id.as_ref(), cost, tokens);
                        yield Ok(ProviderItem::Output(output));
                        return;
                    }
                    Do::Fail(error) => {
                        yield Err(error);
                        return;
                    }
                }
            }
        }
        .boxed()
    }
}

fn end(
    text: &str,
    stop_reason: StopReason,
    session_id: Option<&ProviderSessionId>,
    cost_usd: Option<f64>,
    tokens: u64,
) -> TurnOutput {
    let output = json!({
        "text": text,
        "sessionId": session_id,
        "stopReason": stop_reason,
        "usage": Usage { input_tokens: tokens, ..Usage::default() },
        "costUsd": cost_usd,
        "numTurns": 1,
        "durationMs": 0,
    });
    serde_json::from_value(output).unwrap()
}

/// A flow, compiled.
pub(crate) fn graph(text: &str, nodes: &NodeRegistry) -> Arc<Graph> {
    let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
    Arc::new(compile(&loaded, nodes).unwrap_or_else(|found| panic!("{text}\n{found}")).graph)
}

/// A runner of a flow that needs no provider, with these environment variables.
pub(crate) fn runner<const N: usize>(flow: &Value, env: [(&str, &str); N]) -> FlowRunnerBuilder {
    let nodes = builtin_nodes(&ProviderRegistry::new());
    let env: Environment = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    FlowRunner::builder(graph(&flow.to_string(), &nodes), nodes).env(env)
}
