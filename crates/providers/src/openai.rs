//! The provider `openai`: the Responses API over HTTP, one streamed request a turn.
//! Retries, validation of structured output and the turns of a run are left to those who call it.
//!
//! Unless a call names a conversation of the vendor's, the vendor is asked to keep nothing and the adapter keeps it: a
//! turn takes its conversation from the store, adds the user's message and writes it before the request goes out. A
//! turn that fails takes the message back, so that it can be tried again; one that is cancelled keeps it and what was
//! said until then; after a crash the message stands.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use inspan_protocol::{
    AgentError, ErrorCode, ExecutionContext, Provider, ProviderCapabilities, ProviderDescriptor,
    ProviderItem, ProviderSessionId, ProviderStream, StopReason, StreamEvent,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::conversation::{Conversation, ConversationStore, FolderStore, Held, not_found};
use crate::kind::Kind;
use crate::output::TurnOutput;
use crate::streamed::{Over, Step, Streamed};
use crate::transport::http::{Clocks, Http, Post};
use crate::transport::redact::Redactor;

mod account;
mod decode;
mod error;
mod options;
mod outcome;
mod output;
mod request;
mod schema;
#[cfg(test)]
mod tests;
mod wire;

pub use account::probe_openai;
pub use options::{OpenAiInput, OpenAiOptions, ThinkingSummary};
pub use output::OpenAiOutput;

use account::Account;
use decode::Decoder;
use outcome::{Verdict, judge};
use request::{Settings, Thread};
use schema::Form;

/// The provider's type.
const TYPE: &str = "openai";
/// How long the server may say nothing, unless the options say otherwise.
const STALL: Duration = Duration::from_secs(300);

/// Asks the Responses API. One call is one turn of one conversation.
pub struct OpenAiProvider {
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
}

impl std::fmt::Debug for OpenAiProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAiProvider").finish_non_exhaustive()
    }
}

impl OpenAiProvider {
    /// A provider that keeps its conversations as files.
    pub fn new() -> Self {
        Self::with_store(Arc::new(FolderStore::default()))
    }

    /// A provider that keeps its conversations elsewhere.
    pub fn with_store(store: Arc<dyn ConversationStore>) -> Self {
        Self { http: Arc::new(Http::default()), store }
    }
}

impl Default for OpenAiProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for OpenAiProvider {
    type Input = OpenAiInput;
    type Output = OpenAiOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: TYPE.to_owned(),
            display_name: "OpenAI API".to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: false,
                tools: false,
                thinking: true,
                images: true,
                cost: false,
                native_steer: false,
                host_tools: false,
            },
        }
    }

    fn execute(&self, input: OpenAiInput, context: ExecutionContext) -> ProviderStream<OpenAiOutput> {
        let (http, store) = (Arc::clone(&self.http), Arc::clone(&self.store));
        let redactor = Redactor::new(&context.env);
        let stream = async_stream::try_stream! {
            let began = Instant::now();
            let options = input.settled()?;
            let finish = |output: TurnOutput, session| ProviderItem::Output(OpenAiOutput::from(TurnOutput {
                session_id: session,
                duration_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
                ..output
            }));
            if context.cancel.is_cancelled() {
                yield finish(TurnOutput::new(StopReason::Aborted), options.resume);
                return;
            }
            let account = Account::of(&context.env)?;
            let said = request::messages(&input)?;
            let form = options.output_schema.as_ref().map(Form::of);
            let resumed = options.resume.is_some();
            let session = options.resume.clone().unwrap_or_else(|| ProviderSessionId::from(crate::ids::fresh()));
            let thread = Thread::of(session.clone());
            let mut kept = Kept::take(&thread, resumed, store, &context).await?;
            let settings = kept.settings(&session)?.with(&options);
            kept.conversation.messages.extend(said);
            let body = request::body(&settings, &thread, form.as_ref(), &kept.conversation.messages)?;
            kept.conversation.settings = json!(settings);
            kept.write().await?;
            yield ProviderItem::Event(StreamEvent::Session { session_id: session.clone() });
            if let Some(warning) = form.as_ref().and_then(Form::warning) {
                yield ProviderItem::Event(warning);
            }

            let clocks = Clocks {
                cancel: context.cancel.clone(),
                began,
                deadline: context.deadline,
                stall: options.stall_timeout_ms.map_or(STALL, Duration::from_millis),
            };
            let post = Post { url: account.url, headers: account.headers, body };
            let over = match Streamed::<Decoder>::begin(&http, post, &context.env, clocks).await {
                Err(over) => over,
                Ok(mut streamed) => loop {
                    match streamed.next().await {
                        Step::Event(event) => yield ProviderItem::Event(event),
                        Step::Over(over) => break over,
                    }
                },
            };
            let (items, response, end) = match over {
                Over::Ended(said) => match judge(&said) {
                    Verdict::Output(reason, warning) => {
                        if let Some(warning) = warning {
                            yield ProviderItem::Event(warning);
                        }
                        let (items, response) = (said.items.clone(), said.response.clone());
                        (Some(items), response, Ok(outcome::output(said, reason, form.as_ref())))
                    }
                    Verdict::Error(error) => (None, None, Err(error)),
                },
                Over::Cancelled(said) => {
                    (Some(said.items.clone()), None, Ok(outcome::output(said, StopReason::Aborted, form.as_ref())))
                }
                Over::Failed(error) => (None, None, Err(lost(error, &thread))),
            };
            match items {
                Some(items) => kept.conversation.messages.extend(items),
                None => kept.conversation = kept.before.clone(),
            }
            if let Err(error) = kept.write().await {
                // The answer is there and paid for; only the next turn will miss it.
                let message = format!("the answer is not in the conversation: {}", error.message);
                let warning = StreamEvent::Warning { code: "sessionNotKept".to_owned(), message };
                yield ProviderItem::Event(warning);
            }
            // Whoever reads the last item may begin the next turn at once.
            drop(kept);
            // The vendor names a conversation of this kind by its last answer.
            let session = match (&thread, response) {
                (Thread::Response(_), Some(response)) => {
                    let session = ProviderSessionId::from(response);
                    yield ProviderItem::Event(StreamEvent::Session { session_id: session.clone() });
                    session
                }
                _ => session,
            };
            yield finish(end.map_err(|error: AgentError| error.with("sessionId", session.as_str()))?, Some(session));
        };
        let told = move |error: AgentError| AgentError {
            message: redactor.redact(&error.message),
            ..error.from_provider(TYPE)
        };
        stream.map(move |item: Result<_, AgentError>| item.map_err(&told)).boxed()
    }
}

/// What is known of a conversation here: all that was said, or, if the vendor keeps it, only what is said now.
struct Kept {
    held: Option<Held>,
    before: Conversation,
    conversation: Conversation,
}

impl Kept {
    async fn take(
        thread: &Thread,
        resumed: bool,
        store: Arc<dyn ConversationStore>,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let Thread::Own(session) = thread else {
            let conversation = Conversation::new(TYPE);
            return Ok(Self { held: None, before: conversation.clone(), conversation });
        };
        let mut held = Held::claim(store, session.clone(), context.env.clone()).await?;
        let conversation = if resumed { held.read().await? } else { Conversation::new(TYPE) };
        Ok(Self { held: Some(held), before: conversation.clone(), conversation })
    }

    async fn write(&mut self) -> Result<(), AgentError> {
        match &mut self.held {
            Some(held) => held.write(&self.conversation).await,
            None => Ok(()),
        }
    }

    /// How the model was asked last in a conversation of this provider.
    fn settings(&self, session: &ProviderSessionId) -> Result<Settings, AgentError> {
        if self.conversation.provider != TYPE {
            return Err(not_found(session));
        }
        if self.conversation.settings == Value::Null {
            return Ok(Settings::default());
        }
        serde_json::from_value(self.conversation.settings.clone()).map_err(|_| {
            let message =
                format!("the conversation {session} is damaged: its settings are not this provider's");
            AgentError::new(ErrorCode::InvalidRequest, message).kind("sessionDamaged")
        })
    }
}

/// The vendor says in words only that it has no such conversation.
fn lost(error: AgentError, thread: &Thread) -> AgentError {
    let session = thread.session();
    let refused = matches!(error.code, ErrorCode::ModelNotFound | ErrorCode::InvalidRequest);
    let named = error.message.contains(session.as_str()) && error.message.contains("not found");
    if matches!(thread, Thread::Own(_)) || !refused || !named {
        return error;
    }
    let detail = error.detail;
    AgentError {
        detail,
        ..AgentError::new(ErrorCode::InvalidRequest, format!("no such conversation: {session}"))
    }
    .kind("sessionNotFound")
}
