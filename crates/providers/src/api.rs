//! The runtime of providers that call a model over HTTP: their account, the handshake, and a turn with its requests and
//! tools. A vendor implements [`Api`]: what a request holds, and what a response means.

use std::marker::PhantomData;
use std::sync::Arc;

use inspan_protocol::{
    AgentError, Environment, ExecutionContext, Handshake, Probe, ProviderSessionId, ProviderStream,
    ServiceStatus, StopReason, StreamEvent, ToolSpec,
};
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::conversation::{Conversation, ConversationStore};
use crate::output::TurnOutput;
use crate::tools::{ToolCall, ToolResult};
use inspan_transport::Http;

pub(crate) mod account;
mod options;
mod state;
pub(crate) mod stream;
mod turn;

use account::Address;
pub(crate) use options::{TurnOptions, api_options};
pub(crate) use state::{Answered, TurnState};
use stream::ResponseDecoder;

/// A vendor's API; a value of it is what stays the same from one request of a turn to the next.
pub(crate) trait Api: Sized + Send + Sync + 'static {
    /// The provider's type.
    const PROVIDER: &'static str;
    /// The vendor's word for what a model calls.
    const TOOL: &'static str;
    /// Where the vendor is called.
    const ADDRESS: Address;
    /// The variables that may hold a key; the first that is set counts.
    const KEYS: &'static [&'static str];

    /// The input of a turn.
    type Input: Send + Sync + 'static;
    /// Its options.
    type Options: Send + Sync;
    /// The output of a turn.
    type Output: From<TurnOutput> + Send + 'static;
    /// What the model's response says.
    type Response: Default + Send;
    /// The decoder of one response.
    type Decoder: ResponseDecoder<Response = Self::Response> + Send;
    /// The conversation in the vendor's form.
    type History: History<Response = Self::Response>;

    /// The options of an input, wherever it has them.
    fn options(input: &Self::Input) -> Result<Self::Options, AgentError>;

    /// The options that all vendors share.
    fn turn_options(options: &Self::Options) -> TurnOptions<'_>;

    /// The headers that carry the key and the vendor's version.
    fn headers(environment: &Environment) -> Result<HeaderMap, AgentError>;

    /// The user's messages in the vendor's form.
    fn messages(input: &Self::Input) -> Result<Vec<Value>, AgentError>;

    /// Who stores the conversation with this id.
    fn history_owner(session: &ProviderSessionId) -> HistoryOwner;

    /// Prepares a turn that adds these messages to a conversation, whose settings become those of this turn.
    fn prepare(
        options: &Self::Options,
        session: &ProviderSessionId,
        conversation: &mut Conversation,
        messages: Vec<Value>,
    ) -> Result<Prepared<Self>, AgentError>;

    /// The body of the next request, which offers these tools.
    fn request(&self, history: &Self::History, tools: &[ToolSpec]) -> Result<Vec<u8>, AgentError>;

    /// Judges how a response ended.
    fn judge(response: &Self::Response) -> Verdict;

    /// A failure of a request, made exact by what was requested.
    fn explain(&self, error: AgentError) -> AgentError {
        error
    }
}

/// The conversation of a turn in the vendor's form. Pure.
pub(crate) trait History: Send + Sync {
    /// What the model's response says.
    type Response;

    /// The part that is the same for all vendors.
    fn state(&self) -> &TurnState;

    /// The same, to change it.
    fn state_mut(&mut self) -> &mut TurnState;

    /// Adds a response that the conversation continues after. Returns its calls of tools, which need results.
    fn add_response(&mut self, response: Self::Response) -> Vec<ToolCall>;

    /// Sets the results of these calls, in their order; they replace those that were set before.
    fn set_results<'a>(&mut self, results: impl Iterator<Item = &'a ToolResult>);

    /// Ends the turn with this response, which may be incomplete.
    fn finish(&mut self, response: Self::Response, stop_reason: StopReason) -> TurnOutput;

    /// Ends the turn after a response that was added already.
    fn stop(&mut self, stop_reason: StopReason) -> TurnOutput;

    /// The warning for a turn that was interrupted, if calls in it stay without results.
    fn unanswered_calls(&self) -> Option<StreamEvent> {
        None
    }
}

/// A turn that is ready for its first request.
pub(crate) struct Prepared<A: Api> {
    pub(crate) api: A,
    pub(crate) history: A::History,
    /// What the user should know about the request.
    pub(crate) warning: Option<StreamEvent>,
}

/// Who stores a conversation between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryOwner {
    /// Inspan, which sends all of it with each request.
    Inspan,
    /// The vendor.
    Vendor,
}

/// How a response ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// With an output, and perhaps a warning.
    Output(StopReason, Option<StreamEvent>),
    /// With calls of tools, which need results.
    Calls,
    /// In the middle: the vendor continues when it is called again.
    Paused,
    /// With an error.
    Error(AgentError),
}

/// A provider that calls an API.
pub(crate) struct ApiProvider<A> {
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
    api: PhantomData<fn() -> A>,
}

impl<A: Api> ApiProvider<A> {
    /// A provider that stores its conversations here.
    pub(crate) fn new(store: Arc<dyn ConversationStore>) -> Self {
        Self { http: Arc::new(Http::default()), store, api: PhantomData }
    }

    /// Runs one turn.
    pub(crate) fn execute(&self, input: A::Input, context: ExecutionContext) -> ProviderStream<A::Output> {
        turn::execute::<A>(Arc::clone(&self.http), Arc::clone(&self.store), input, context)
    }

    /// Asks the vendor whether it accepts the key.
    pub(crate) async fn handshake(&self, context: ExecutionContext) -> Result<Handshake, AgentError> {
        account::handshake::<A>(&self.http, &context).await
    }
}

/// Checks that there is a key and an address.
pub(crate) fn check_setup<A: Api>(environment: &Environment) -> Result<(), AgentError> {
    account::Account::of::<A>(environment).map(drop)
}

/// What is known of the service before it is called. No value of a key is shown.
pub(crate) fn probe<A: Api>(environment: &Environment) -> Probe {
    let url = A::ADDRESS.url(environment, A::ADDRESS.path);
    let key = A::KEYS.iter().find(|name| environment.get(name).is_some());
    Probe::Service(ServiceStatus {
        provider: A::PROVIDER.to_owned(),
        // An address may hold a password, so only its host is shown.
        host: url.ok().and_then(|url| url.host_str().map(str::to_owned)),
        key: key.map(|key| (*key).to_owned()),
        problem: check_setup::<A>(environment).err().map(|error| error.message),
    })
}

/// A public provider over an [`Api`].
macro_rules! api_provider {
    ($(#[$doc:meta])* $provider:ident for $api:ty, $input:ty => $output:ty, $name:literal, $capabilities:expr) => {
        $(#[$doc])*
        pub struct $provider($crate::api::ApiProvider<$api>);

        impl $provider {
            /// A provider that stores its conversations as files.
            pub fn new() -> Self {
                Self::with_store(::std::sync::Arc::new($crate::conversation::FolderStore::default()))
            }

            /// A provider that stores its conversations elsewhere.
            pub fn with_store(store: ::std::sync::Arc<dyn $crate::conversation::ConversationStore>) -> Self {
                Self($crate::api::ApiProvider::new(store))
            }
        }

        impl Default for $provider {
            fn default() -> Self {
                Self::new()
            }
        }

        impl ::std::fmt::Debug for $provider {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($provider)).finish_non_exhaustive()
            }
        }

        impl ::inspan_protocol::Provider for $provider {
            type Input = $input;
            type Output = $output;

            fn descriptor(&self) -> ::inspan_protocol::ProviderDescriptor {
                ::inspan_protocol::ProviderDescriptor {
                    provider_type: <$api as $crate::api::Api>::PROVIDER.to_owned(),
                    display_name: $name.to_owned(),
                    capabilities: $capabilities,
                }
            }

            fn setup(&self) -> ::inspan_protocol::Setup {
                ::inspan_protocol::Setup::Service {
                    keys: <$api as $crate::api::Api>::KEYS,
                    // These two providers are named after their vendors, by the names of OpenTelemetry.
                    vendor: <$api as $crate::api::Api>::PROVIDER,
                }
            }

            fn check_setup(
                &self,
                environment: &::inspan_protocol::Environment,
            ) -> Result<(), ::inspan_protocol::AgentError> {
                $crate::api::check_setup::<$api>(environment)
            }

            async fn probe(
                &self,
                environment: &::inspan_protocol::Environment,
                _: Option<::inspan_protocol::Supervisor>,
            ) -> ::inspan_protocol::Probe {
                $crate::api::probe::<$api>(environment)
            }

            fn check_input(&self, input: &::serde_json::Value) -> Vec<::inspan_protocol::InputProblem> {
                $crate::input::check(input, $crate::input::Assistant::Earlier)
            }

            fn execute(
                &self,
                input: $input,
                context: ::inspan_protocol::ExecutionContext,
            ) -> ::inspan_protocol::ProviderStream<$output> {
                self.0.execute(input, context)
            }

            async fn handshake(
                &self,
                context: ::inspan_protocol::ExecutionContext,
            ) -> Result<::inspan_protocol::Handshake, ::inspan_protocol::AgentError> {
                self.0.handshake(context).await
            }
        }
    };
}

pub(crate) use api_provider;

/// What the vendors' parts of JSON Schema have in common. A vendor enforces some keywords only; the others are put
/// into the description for the model to read.
pub(crate) mod schema {
    use inspan_protocol::StreamEvent;
    use serde_json::{Map, Value, json};

    /// Formats of strings that every vendor enforces.
    pub(crate) const FORMATS: [&str; 9] =
        ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];
    /// Where schemas that others refer to are.
    pub(crate) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

    /// The warning that the vendor cannot enforce a schema, because of this place in it.
    pub(crate) fn not_strict(place: &str) -> StreamEvent {
        let place = if place.is_empty() { "its root" } else { place };
        let message = format!(
            "the vendor cannot hold the model to the output schema, because of {place}; the answer is only requested in it"
        );
        StreamEvent::warning("schemaNotStrict", message)
    }

    /// Whether the value of `type` includes a type.
    pub(crate) fn has_type(kind: Option<&Value>, wanted: &str) -> bool {
        match kind {
            Some(Value::String(kind)) => kind == wanted,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == wanted),
            _ => false,
        }
    }

    /// Adds the other keywords to the description.
    pub(crate) fn describe(out: &mut Map<String, Value>, rest: Map<String, Value>) {
        if rest.is_empty() {
            return;
        }
        let keywords: Vec<String> = rest.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let keywords = format!("{{{}}}", keywords.join(", "));
        let description = match out.get("description").and_then(Value::as_str) {
            Some(description) => format!("{description}\n\n{keywords}"),
            None => keywords,
        };
        out.insert("description".to_owned(), json!(description));
    }
}

/// Tests that hold for every vendor's API, and the harness for the tests of one vendor.
#[cfg(test)]
pub(crate) mod tests {
    pub(crate) mod conversations;
    pub(crate) mod faults;
    pub(crate) mod harness;
    pub(crate) mod replay;
    pub(crate) mod tools;

    /// The tests that hold for every vendor, for one of them.
    macro_rules! vendor_tests {
        ($vendor:ty) => {
            $crate::api::tests::vendor_tests! { $vendor:
                conversations::a_message_that_is_said_again_is_said_once,
                conversations::a_turn_that_its_vendor_failed_leaves_its_message,
                conversations::a_conversation_is_branched_and_stays_as_it_is,
                conversations::a_branch_begins_after_the_turn_that_is_named,
                conversations::a_conversation_whose_first_turn_failed_can_continue,
                conversations::a_cancelled_turn_stores_its_text_and_the_conversation_continues,
                conversations::a_turn_whose_process_died_leaves_its_message,
                conversations::an_answer_that_nobody_got_is_taken_when_the_turn_goes_on,
                conversations::a_damaged_conversation_is_refused_without_a_request,
                conversations::no_turn_succeeds_whose_answer_is_not_stored,
                faults::streams_that_break,
                faults::the_price_of_a_prompt_that_was_sent_and_not_answered_is_unknown,
                faults::servers_that_do_not_speak_http,
                faults::responses_that_are_not_streams,
                faults::invalid_inputs_are_refused_before_anything_is_stored,
                faults::a_call_that_is_cancelled_before_it_begins_sends_no_request,
                faults::no_output_holds_the_key,
                faults::an_address_with_a_password_is_not_shown,
                tools::calls_of_one_message_are_answered_in_their_order_and_the_turn_continues,
                tools::the_limit_of_model_turns_leaves_no_call_open,
                tools::a_failure_after_a_tool_takes_nothing_back,
                tools::a_call_where_nothing_was_offered_is_a_fault,
                tools::a_real_server_is_called_and_gone_with_the_turn,
                tools::a_turn_cancelled_within_a_tool_leaves_an_answer_and_no_process,
                tools::a_turn_whose_process_died_within_a_tool_does_not_run_it_again,
                tools::a_server_that_does_not_start_keeps_the_model_from_being_asked,
                tools::a_deadline_ends_a_tool_too,
                replay::recorded_responses_give_their_golden_events,
            }
        };
        ($vendor:ty: $($module:ident::$test:ident,)+) => {
            $(
                #[tokio::test]
                async fn $test() {
                    $crate::api::tests::$module::$test::<$vendor>().await;
                }
            )+
        };
    }

    pub(crate) use vendor_tests;
}
