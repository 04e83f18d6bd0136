//! A hub with a fixed clock and counted identifiers, and a provider that does what a test says.
//! Only for this crate's own tests.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    future::{BoxFuture, pending},
    stream,
};
use inspan_protocol::{
    AgentError, DynProvider, Envelope, Erased, Event, EventContext, ExecutionContext, InputFacts, MultiTurn,
    OutputFacts, PermissionRequest, Provider, ProviderCapabilities, ProviderDescriptor, ProviderInput,
    ProviderItem, ProviderOutput, ProviderSessionId, ProviderStream, RunId, StopReason, StreamEvent,
    Timestamp, Usage,
};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CountingIds, Filter, Hub, Subscription, VirtualClock};

pub(crate) const NOON: Timestamp = Timestamp::from_millis(1_767_787_200_000);

/// A hub in session mode.
pub(crate) fn hub() -> Hub {
    let hub = quiet_hub();
    hub.start_session();
    hub
}

/// A hub whose session has not started.
pub(crate) fn quiet_hub() -> Hub {
    let clock = Arc::new(VirtualClock::starting_at(NOON));
    Hub::new("flow-1".into(), clock, Arc::new(CountingIds::new()))
}

pub(crate) fn text(run: &str, content: &str) -> Event {
    Event::AgentText { content: content.to_owned(), delta: false, run_id: RunId::from(run) }
}

pub(crate) fn log(name: &str) -> Event {
    Event::Log {
        level: inspan_protocol::LogLevel::Info,
        message: name.to_owned(),
        fields: serde_json::Map::default(),
    }
}

/// Everything that waits in a subscription.
pub(crate) fn drain(subscription: &mut Subscription) -> Vec<Envelope> {
    std::iter::from_fn(|| subscription.try_next()).map(|envelope| (*envelope).clone()).collect()
}

/// Collects all events of a hub from here on.
pub(crate) struct EventCollector(Subscription);

impl EventCollector {
    pub(crate) fn new(hub: &Hub) -> Self {
        Self(hub.subscribe(Filter::all()))
    }

    pub(crate) fn envelopes(&mut self) -> Vec<Envelope> {
        drain(&mut self.0)
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.envelopes().into_iter().map(|envelope| envelope.event).collect()
    }

    pub(crate) fn names(&mut self) -> Vec<String> {
        self.envelopes().iter().map(|envelope| envelope.event.name().to_owned()).collect()
    }
}

pub(crate) fn session_context() -> EventContext {
    EventContext::session("flow-1".into())
}

/// What a scripted call does next.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    Say(StreamEvent),
    Sleep(Duration),
    /// Continues when the call is cancelled.
    AwaitCancel,
    /// Asks for permission and says the decision as text.
    Ask(&'static str),
    /// Waits for a message that steers and says it.
    Steer,
    Output(Value),
    Fail(AgentError),
    Panic,
    /// Never ends, whatever happens.
    Hang,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ScriptInput {
    prompt: String,
    #[serde(default)]
    options: ScriptOptions,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct ScriptOptions {
    model: Option<String>,
    resume: Option<ProviderSessionId>,
    multi_turn: Option<bool>,
    idle_timeout_ms: Option<u64>,
    max_turns: Option<u32>,
    output_schema: Option<Value>,
    mcp_servers: Option<Value>,
    secret_sauce: Option<String>,
    cwd: Option<String>,
}

impl ProviderInput for ScriptInput {
    fn resume(&mut self, session: &ProviderSessionId, message: &str) {
        self.prompt = message.to_owned();
        self.options.resume = Some(session.clone());
    }

    fn facts(&self) -> InputFacts {
        let options = &self.options;
        InputFacts {
            model: options.model.clone(),
            session: options.resume.clone(),
            multi_turn: if options.multi_turn == Some(true) { MultiTurn::On } else { MultiTurn::Off },
            idle_timeout: options.idle_timeout_ms.map(Duration::from_millis),
            max_turns: options.max_turns,
            output_schema: options.output_schema.clone(),
        }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ScriptOutput {
    text: String,
    structured_output: Option<Value>,
    session_id: Option<ProviderSessionId>,
    #[serde(default = "complete")]
    stop_reason: StopReason,
    #[serde(default)]
    usage: Usage,
    cost_usd: Option<f64>,
    #[serde(default = "one")]
    num_turns: u32,
    permission_denials: Option<Vec<Value>>,
}

fn complete() -> StopReason {
    StopReason::Complete
}

fn one() -> u32 {
    1
}

impl ProviderOutput for ScriptOutput {
    fn facts(&self) -> OutputFacts {
        OutputFacts {
            text: self.text.clone(),
            structured_output: self.structured_output.clone(),
            session: self.session_id.clone(),
            turn_id: None,
            stop_reason: self.stop_reason,
            usage: self.usage,
            cost_usd: self.cost_usd,
            num_turns: self.num_turns,
        }
    }
}

/// A provider of type `script` that plays one list of steps per call and stores what it was called with.
#[derive(Clone, Default)]
pub(crate) struct Script {
    calls: Arc<Mutex<VecDeque<Vec<Do>>>>,
    inputs: Arc<Mutex<Vec<Value>>>,
    native_steer: bool,
}

impl Script {
    pub(crate) fn new(calls: impl IntoIterator<Item = Vec<Do>>) -> Self {
        Self {
            calls: Arc::new(Mutex::new(calls.into_iter().collect())),
            inputs: Arc::default(),
            native_steer: false,
        }
    }

    /// The same script of a provider that can take messages within a turn.
    pub(crate) fn steerable(self) -> Self {
        Self { native_steer: true, ..self }
    }

    pub(crate) fn provider(&self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(self.clone()))
    }

    /// What the calls were given.
    pub(crate) fn inputs(&self) -> Vec<Value> {
        self.inputs.lock().clone()
    }
}

impl Provider for Script {
    type Input = ScriptInput;
    type Output = ScriptOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: "script".to_owned(),
            display_name: "Script".to_owned(),
            capabilities: ProviderCapabilities {
                structured_output: true,
                native_steer: self.native_steer,
                ..Default::default()
            },
        }
    }

    fn execute(&self, input: ScriptInput, context: ExecutionContext) -> ProviderStream<ScriptOutput> {
        self.inputs.lock().push(serde_json::to_value(input).unwrap());
        let steps = self.calls.lock().pop_front().unwrap_or_else(|| panic!("one call too many"));
        async_stream::stream! {
            for step in steps {
                match step {
                    Do::Say(event) => yield Ok(ProviderItem::Event(event)),
                    Do::Sleep(duration) => tokio::time::sleep(duration).await,
                    Do::AwaitCancel => context.cancel.cancelled().await,
                    Do::Ask(tool) => {
                        let decision = match &context.permissions {
                            None => "no broker".to_owned(),
                            Some(broker) => format!("{:?}", broker.request(PermissionRequest {
                                tool_use_id: Some("t1".to_owned()),
                                ..PermissionRequest::new(tool, json!({ "command": "ls" }))
                            }).await),
                        };
                        yield Ok(ProviderItem::Event(say(&decision)));
                    }
                    Do::Steer => {
                        let message = context.steering.as_ref().unwrap().next().await;
                        yield Ok(ProviderItem::Event(say(&message)));
                    }
                    Do::Output(output) => {
                        yield Ok(ProviderItem::Output(serde_json::from_value(output).unwrap()));
                    }
                    Do::Fail(error) => yield Err(error),
                    Do::Panic => panic!("the script says so"),
                    Do::Hang => pending().await,
                }
            }
        }
        .boxed()
    }
}

/// A provider that is a name, a schema and its capabilities. It answers nothing, and may take its time to shut down.
#[derive(Default)]
pub(crate) struct Idle {
    pub(crate) name: &'static str,
    pub(crate) input_schema: Value,
    pub(crate) capabilities: ProviderCapabilities,
    pub(crate) shutdown: Duration,
}

impl DynProvider for Idle {
    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: self.name.to_owned(),
            display_name: self.name.to_owned(),
            capabilities: self.capabilities,
        }
    }
    fn input_schema(&self) -> Value {
        self.input_schema.clone()
    }
    fn output_schema(&self) -> Value {
        Value::Null
    }
    fn execute(&self, _: Value, _: ExecutionContext) -> ProviderStream<Value> {
        stream::empty().boxed()
    }
    fn resume(&self, input: Value, _: &ProviderSessionId, _: &str) -> Result<Value, AgentError> {
        Ok(input)
    }
    fn input_facts(&self, _: &Value) -> Result<InputFacts, AgentError> {
        Ok(InputFacts::default())
    }
    fn output_facts(&self, _: &Value) -> Result<OutputFacts, AgentError> {
        unreachable!("it gives no output")
    }
    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(self.shutdown))
    }
}

pub(crate) fn say(content: &str) -> StreamEvent {
    StreamEvent::Text { content: content.to_owned(), chunk: inspan_protocol::Chunk::Delta }
}

pub(crate) fn session(id: &str) -> StreamEvent {
    StreamEvent::Session { session_id: id.into() }
}

pub(crate) fn tool_start(id: &str) -> StreamEvent {
    StreamEvent::ToolStart { tool_name: "Bash".to_owned(), tool_use_id: id.to_owned(), input: json!({}) }
}

pub(crate) fn tool_complete(id: &str) -> StreamEvent {
    StreamEvent::ToolComplete { tool_use_id: id.to_owned(), result: json!("ok"), is_error: false }
}
