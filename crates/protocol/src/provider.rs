//! The contract of a provider: one call is one turn, events stream out, and exactly one output or error
//! ends it. A provider knows nothing of hubs, flows, retries or recordings.

mod capabilities;

use std::{fmt, sync::Arc, time::Duration};

pub use capabilities::ProviderCapabilities;
use futures::{
    StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use schemars::{
    JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, transform::RecursiveTransform,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    AgentError, Environment, ErrorCode, Host, InputFacts, NodePath, OutputFacts, Probe, ProviderSessionId,
    Setup, StreamEvent, Supervisor,
};

/// What a provider is and can do. Pausing and resuming are no capabilities: every provider can, by its
/// session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderDescriptor {
    /// The name by which a flow names it: `claude` in `claude.agent`.
    #[serde(rename = "type")]
    pub provider_type: String,
    /// The name for people.
    pub display_name: String,
    /// What it can do.
    pub capabilities: ProviderCapabilities,
}

impl ProviderDescriptor {
    /// A provider of this type, by this name for people, which can only answer.
    pub fn new(provider_type: impl Into<String>, display_name: impl Into<String>) -> Self {
        Self {
            provider_type: provider_type.into(),
            display_name: display_name.into(),
            capabilities: ProviderCapabilities::default(),
        }
    }
}

/// An adapter to one kind of agent. An implementation writes what returns a future as `async fn`.
pub trait Provider: Send + Sync + 'static {
    /// What a call takes.
    type Input: ProviderInput;
    /// What a call gives.
    type Output: ProviderOutput;

    /// What the provider is and can do.
    fn descriptor(&self) -> ProviderDescriptor;

    /// Runs one turn. The stream ends with exactly one [`ProviderItem::Output`] or one error. When the call
    /// is cancelled it ends within a few seconds with an output whose stop reason is `aborted`.
    ///
    /// A provider that can name its conversation beforehand says [`StreamEvent::Session`] first and hands the prompt
    /// over when the stream is polled again: by then the session is stored, and a crash cannot start it twice.
    fn execute(&self, input: Self::Input, context: ExecutionContext) -> ProviderStream<Self::Output>;

    /// What is wrong with an input that its schema cannot express. The input is checked before anything runs: a text in
    /// it may still be a template, and the caller ignores problems of templates.
    fn check_input(&self, _input: &Value) -> Vec<InputProblem> {
        Vec::new()
    }

    /// Reaches the vendor as a call would, without asking a model or spending anything: starts the program and greets
    /// it, or asks the service for what it has. It ends when the context is cancelled.
    fn handshake(
        &self,
        _context: ExecutionContext,
    ) -> impl Future<Output = Result<Handshake, AgentError>> + Send {
        async { Ok(Handshake::Nobody) }
    }

    /// What the provider needs on a machine.
    fn setup(&self) -> Setup {
        Setup::BuiltIn
    }

    /// Checks that a call could start in this environment: that the program exists, or that there is a key. Starts and
    /// sends nothing.
    fn check_setup(&self, _environment: &Environment) -> Result<(), AgentError> {
        Ok(())
    }

    /// Finds out how the provider is set up on this machine, with the version of its program. Sends nothing.
    fn probe(
        &self,
        _environment: &Environment,
        _supervisor: Option<Supervisor>,
    ) -> impl Future<Output = Probe> + Send {
        async { Probe::BuiltIn }
    }

    /// Ends what outlives a turn, such as a warm process.
    fn shutdown(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Something wrong with an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputProblem {
    /// The JSON pointer of the value; empty for the whole input.
    pub pointer: String,
    /// What is wrong, as a sentence without its end.
    pub message: String,
}

impl InputProblem {
    /// A problem at this place.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }
}

/// Who answered a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handshake {
    /// There is no service to reach.
    Nobody,
    /// The vendor's program or service, which takes calls.
    Vendor,
}

/// What a provider takes.
pub trait ProviderInput: DeserializeOwned + Serialize + JsonSchema + Send + 'static {
    /// Makes this the next turn of a conversation: its session and the new message, with the same options.
    fn resume(&mut self, session: &ProviderSessionId, message: &str);

    /// What the engine must know of it.
    fn facts(&self) -> InputFacts {
        InputFacts::default()
    }
}

/// What a provider gives.
pub trait ProviderOutput: DeserializeOwned + Serialize + JsonSchema + Send + 'static {
    /// What the engine must know of it.
    fn facts(&self) -> OutputFacts;
}

/// One item of a provider's stream.
#[derive(Clone, Debug, PartialEq)]
pub enum ProviderItem<O> {
    /// Something happened during the turn.
    Event(StreamEvent),
    /// The turn ended; nothing follows.
    Output(O),
}

/// The events of one turn and its end.
pub type ProviderStream<O> = BoxStream<'static, Result<ProviderItem<O>, AgentError>>;

/// What surrounds a call.
#[derive(Clone, Default)]
pub struct ExecutionContext {
    /// Cancels the turn.
    pub cancel: CancellationToken,
    /// Answers the agent's questions for permission. Without one every question is denied.
    pub permissions: Option<Arc<dyn PermissionBroker>>,
    /// Messages for the turn in progress, for a provider that says it can take them.
    pub steering: Option<Arc<dyn Steering>>,
    /// How long the call may take in all.
    pub deadline: Option<Duration>,
    /// Model turns that the run may still take, whatever the input says; at least one.
    pub turns_left: Option<u32>,
    /// Whether the turn goes on with one that was interrupted: the conversation knows what was asked, and may even have the
    /// answer, which nobody has got.
    pub goes_on: bool,
    /// Where in its session the call is made, so that its recording is found again among equal ones.
    pub place: Option<NodePath>,
    /// The program that makes the call.
    pub host: Arc<Host>,
}

impl ExecutionContext {
    /// The context of a call that this program makes, without limits.
    pub fn new(host: impl Into<Arc<Host>>) -> Self {
        Self { host: host.into(), ..Self::default() }
    }

    /// The program that makes the call, to change it for this call.
    pub fn host_mut(&mut self) -> &mut Host {
        Arc::make_mut(&mut self.host)
    }
}

impl fmt::Debug for ExecutionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionContext")
            .field("host", &self.host)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// An agent's question whether it may use a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    /// The tool.
    pub tool_name: String,
    /// The vendor's id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// The arguments.
    pub input: Value,
    /// The vendor's words about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What the agent asks the person by this tool. An allowance then has as changed arguments `answers`: for each
    /// question the list of its answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<AgentQuestion>,
    /// Whether an allowance can only be for this use: which tool it is is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once_only: bool,
}

impl PermissionRequest {
    /// The question whether a tool may be used with these arguments.
    pub fn new(tool_name: impl Into<String>, input: Value) -> Self {
        let tool_name = tool_name.into();
        Self {
            tool_name,
            tool_use_id: None,
            input,
            description: None,
            questions: Vec::new(),
            once_only: false,
        }
    }
}

/// A question that an agent asks a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentQuestion {
    /// The question.
    pub question: String,
    /// The answers that the agent suggests; a person may give another.
    #[serde(default)]
    pub options: Vec<AnswerOption>,
    /// Whether several of them may be chosen.
    #[serde(default, alias = "multiSelect")]
    pub multiple: bool,
}

/// A suggested answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerOption {
    /// The answer.
    pub label: String,
    /// What it means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The answer to a [`PermissionRequest`]. Closed on purpose: what is not an allowance is a denial.
#[derive(Clone, Debug, PartialEq)]
pub enum PermissionDecision {
    /// The tool may run.
    Allow {
        /// The arguments that replace its own.
        updated_input: Option<Value>,
    },
    /// The tool may not run; the agent gets the reason and continues.
    Deny {
        /// Why.
        message: String,
    },
}

/// Who answers an agent's questions for permission.
pub trait PermissionBroker: Send + Sync {
    /// Asks, and waits for the answer. Ends within the broker's own deadline.
    fn request(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision>;
}

/// Messages that are to join a turn in progress.
pub trait Steering: Send + Sync {
    /// Waits for the next message, as long as it takes; dropping the wait loses nothing but the place in the order, so
    /// keep it over the whole turn. Once the vendor has taken the message, send
    /// [`StreamEvent::Steered`]; a message without that event begins the next turn.
    fn next(&self) -> BoxFuture<'static, String>;
}

/// A provider without its types: JSON in, JSON out, both checked. This is what registries hold.
pub trait DynProvider: Send + Sync {
    /// What the provider is and can do.
    fn descriptor(&self) -> ProviderDescriptor;
    /// The JSON Schema of what a call takes.
    fn input_schema(&self) -> Value;
    /// The JSON Schema of what a call gives.
    fn output_schema(&self) -> Value;
    /// Runs one turn, as [`Provider::execute`]; an input that does not fit is `CONFIG_INVALID`.
    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value>;
    /// The input of the next turn of a conversation, as [`ProviderInput::resume`].
    fn resume(&self, input: Value, session: &ProviderSessionId, message: &str) -> Result<Value, AgentError>;
    /// What the engine must know about an input.
    fn input_facts(&self, input: &Value) -> Result<InputFacts, AgentError>;
    /// What the engine must know of an output.
    fn output_facts(&self, output: &Value) -> Result<OutputFacts, AgentError>;
    /// What is wrong with an input that its schema cannot express, as [`Provider::check_input`].
    fn check_input(&self, _input: &Value) -> Vec<InputProblem> {
        Vec::new()
    }
    /// Reaches the vendor without asking a model, as [`Provider::handshake`].
    fn handshake(&self, _context: ExecutionContext) -> BoxFuture<'_, Result<Handshake, AgentError>> {
        Box::pin(std::future::ready(Ok(Handshake::Nobody)))
    }
    /// What the provider needs on a machine, as [`Provider::setup`].
    fn setup(&self) -> Setup {
        Setup::BuiltIn
    }
    /// Checks that a call could start, as [`Provider::check_setup`].
    fn check_setup(&self, _environment: &Environment) -> Result<(), AgentError> {
        Ok(())
    }
    /// Finds out how the provider is set up, as [`Provider::probe`].
    fn probe<'a>(
        &'a self,
        _environment: &'a Environment,
        _supervisor: Option<Supervisor>,
    ) -> BoxFuture<'a, Probe> {
        Box::pin(std::future::ready(Probe::BuiltIn))
    }
    /// Ends what outlives a turn.
    fn shutdown(&self) -> BoxFuture<'_, ()>;
}

/// A provider around another one. What it does not change is what the other one does.
pub trait ProviderWrapper: Send + Sync {
    /// The provider that it is around.
    fn inner(&self) -> &dyn DynProvider;
    /// Whether calls reach the inner provider. If not, nothing of it is set up, greeted or shut down.
    fn is_live(&self) -> bool {
        true
    }
    /// Runs one turn, as [`DynProvider::execute`].
    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value>;
    /// The input of the next turn, as [`DynProvider::resume`].
    fn resume(&self, input: Value, session: &ProviderSessionId, message: &str) -> Result<Value, AgentError> {
        self.inner().resume(input, session, message)
    }
    /// What the engine must know of an output.
    fn output_facts(&self, output: &Value) -> Result<OutputFacts, AgentError> {
        self.inner().output_facts(output)
    }
}

impl<W: ProviderWrapper> DynProvider for W {
    fn descriptor(&self) -> ProviderDescriptor {
        self.inner().descriptor()
    }

    fn input_schema(&self) -> Value {
        self.inner().input_schema()
    }

    fn output_schema(&self) -> Value {
        self.inner().output_schema()
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        ProviderWrapper::execute(self, input, context)
    }

    fn resume(&self, input: Value, session: &ProviderSessionId, message: &str) -> Result<Value, AgentError> {
        ProviderWrapper::resume(self, input, session, message)
    }

    fn input_facts(&self, input: &Value) -> Result<InputFacts, AgentError> {
        self.inner().input_facts(input)
    }

    fn output_facts(&self, output: &Value) -> Result<OutputFacts, AgentError> {
        ProviderWrapper::output_facts(self, output)
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        self.inner().check_input(input)
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'_, Result<Handshake, AgentError>> {
        match self.is_live() {
            true => self.inner().handshake(context),
            false => Box::pin(std::future::ready(Ok(Handshake::Nobody))),
        }
    }

    fn setup(&self) -> Setup {
        if self.is_live() { self.inner().setup() } else { Setup::BuiltIn }
    }

    fn check_setup(&self, environment: &Environment) -> Result<(), AgentError> {
        if self.is_live() { self.inner().check_setup(environment) } else { Ok(()) }
    }

    fn probe<'a>(
        &'a self,
        environment: &'a Environment,
        supervisor: Option<Supervisor>,
    ) -> BoxFuture<'a, Probe> {
        match self.is_live() {
            true => self.inner().probe(environment, supervisor),
            false => Box::pin(std::future::ready(Probe::BuiltIn)),
        }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        if self.is_live() { self.inner().shutdown() } else { Box::pin(std::future::ready(())) }
    }
}

/// Reads a value that fits a schema of `T`. A whole number may be written `1e3` or `5.0`, as schemas allow.
///
/// # Errors
///
/// Where the value does not fit, as it was written.
pub fn read_json<T: DeserializeOwned>(mut value: Value) -> serde_json::Result<T> {
    T::deserialize(&value).or_else(|error| {
        to_integers(&mut value);
        T::deserialize(value).map_err(|_| error)
    })
}

/// Writes whole numbers that are stored as floats as integers, as far as a float is exact.
fn to_integers(value: &mut Value) {
    const EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < EXACT);
            if let Some(whole) = whole {
                *number = (whole as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(to_integers),
        Value::Object(fields) => fields.values_mut().for_each(to_integers),
        _ => {}
    }
}

/// The erased form of a [`Provider`].
pub struct Erased<P>(pub P);

impl<P: Provider> Erased<P> {
    fn input(&self, input: Value) -> Result<P::Input, AgentError> {
        read_json(input).map_err(|error| self.invalid("input", &error))
    }

    fn invalid(&self, what: &str, error: &serde_json::Error) -> AgentError {
        let provider = self.0.descriptor().provider_type;
        AgentError::new(ErrorCode::ConfigInvalid, format!("the {what} does not fit: {error}"))
            .from_provider(&provider)
    }
}

impl<P: Provider> DynProvider for Erased<P> {
    fn descriptor(&self) -> ProviderDescriptor {
        self.0.descriptor()
    }

    fn input_schema(&self) -> Value {
        schema_of::<P::Input>()
    }

    fn output_schema(&self) -> Value {
        schema_of::<P::Output>()
    }

    fn execute(&self, input: Value, context: ExecutionContext) -> ProviderStream<Value> {
        let input = match self.input(input) {
            Ok(input) => input,
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        let provider = self.0.descriptor().provider_type;
        self.0
            .execute(input, context)
            .map(move |item| match item {
                Ok(ProviderItem::Event(event)) => Ok(ProviderItem::Event(event)),
                Ok(ProviderItem::Output(output)) => {
                    serde_json::to_value(output).map(ProviderItem::Output).map_err(|error| {
                        AgentError::new(ErrorCode::Protocol, format!("the output is not JSON: {error}"))
                            .from_provider(&provider)
                    })
                }
                Err(error) => Err(error.from_provider(&provider)),
            })
            .boxed()
    }

    fn resume(&self, input: Value, session: &ProviderSessionId, message: &str) -> Result<Value, AgentError> {
        let mut input = self.input(input)?;
        input.resume(session, message);
        serde_json::to_value(input).map_err(|error| self.invalid("input", &error))
    }

    fn input_facts(&self, input: &Value) -> Result<InputFacts, AgentError> {
        Ok(self.input(input.clone())?.facts())
    }

    fn output_facts(&self, output: &Value) -> Result<OutputFacts, AgentError> {
        let output: P::Output =
            serde_json::from_value(output.clone()).map_err(|error| self.invalid("output", &error))?;
        Ok(output.facts())
    }

    fn check_input(&self, input: &Value) -> Vec<InputProblem> {
        self.0.check_input(input)
    }

    fn handshake(&self, context: ExecutionContext) -> BoxFuture<'_, Result<Handshake, AgentError>> {
        let provider = self.0.descriptor().provider_type;
        let greeted = self.0.handshake(context);
        Box::pin(async move { greeted.await.map_err(|error| error.from_provider(&provider)) })
    }

    fn setup(&self) -> Setup {
        self.0.setup()
    }

    fn check_setup(&self, environment: &Environment) -> Result<(), AgentError> {
        self.0
            .check_setup(environment)
            .map_err(|error| error.from_provider(&self.0.descriptor().provider_type))
    }

    fn probe<'a>(
        &'a self,
        environment: &'a Environment,
        supervisor: Option<Supervisor>,
    ) -> BoxFuture<'a, Probe> {
        Box::pin(self.0.probe(environment, supervisor))
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.shutdown())
    }
}

/// What a provider is taken from: a [`Provider`], or one that is erased already.
pub trait IntoProvider {
    /// The erased form.
    fn into_provider(self) -> Arc<dyn DynProvider>;
}

impl<P: Provider> IntoProvider for P {
    fn into_provider(self) -> Arc<dyn DynProvider> {
        Arc::new(Erased(self))
    }
}

impl<D: DynProvider + 'static> IntoProvider for Arc<D> {
    fn into_provider(self) -> Arc<dyn DynProvider> {
        self
    }
}

impl IntoProvider for Arc<dyn DynProvider> {
    fn into_provider(self) -> Arc<dyn DynProvider> {
        self
    }
}

/// The schema with its parts inline, so that a reader finds each option where it is used. Draft 7, whose rules a
/// validator is ready with in a fraction of the time that later drafts take.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(bound_integers));
    SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value()
}

/// Says how large an integer may be: validators do not know Rust's types.
fn bound_integers(schema: &mut Schema) {
    let most = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => u64::from(u8::MAX),
        Some("uint16") => u64::from(u16::MAX),
        Some("uint32") => u64::from(u32::MAX),
        Some("uint64") => u64::MAX,
        _ => return,
    };
    if schema.get("maximum").is_none() {
        schema.insert("maximum".to_owned(), Value::from(most));
    }
}
