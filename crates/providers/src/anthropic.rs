//! The provider `anthropic`: the Messages API over HTTP, one streamed request a turn.
//! Retries, validation of structured output and the turns of a run are left to those who call it.
//!
//! The vendor keeps no conversation, so the adapter does: a turn takes its conversation from the store, adds the
//! user's message and writes it before the request goes out. A turn that fails takes the message back, so that it can
//! be tried again; one that is cancelled keeps it and what was said until then; after a crash the message stands.

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
mod request;
mod schema;
#[cfg(test)]
mod tests;
mod wire;

pub use account::probe_anthropic;
pub use options::{AnthropicInput, AnthropicOptions, PromptCache};

use account::Account;
use decode::Decoder;
use outcome::{Verdict, Wanted, judge};
use request::Settings;

/// The provider's type.
const TYPE: &str = "anthropic";
/// How long the server may say nothing, unless the options say otherwise.
const STALL: Duration = Duration::from_secs(300);

/// Asks the Messages API. One call is one turn of one conversation and one request.
pub struct AnthropicProvider {
    http: Arc<Http>,
    store: Arc<dyn ConversationStore>,
}

impl std::fmt::Debug for AnthropicProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnthropicProvider").finish_non_exhaustive()
    }
}

impl AnthropicProvider {
    /// A provider that keeps its conversations as files.
    pub fn new() -> Self {
        Self::with_store(Arc::new(FolderStore::default()))
    }

    /// A provider that keeps its conversations elsewhere.
    pub fn with_store(store: Arc<dyn ConversationStore>) -> Self {
        Self { http: Arc::new(Http::default()), store }
    }
}

impl Default for AnthropicProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl Provider for AnthropicProvider {
    type Input = AnthropicInput;
    type Output = TurnOutput;

    fn descriptor(&self) -> ProviderDescriptor {
        ProviderDescriptor {
            provider_type: TYPE.to_owned(),
            display_name: "Claude API".to_owned(),
            capabilities: ProviderCapabilities {
                streaming: true,
                structured_output: true,
                permissions: false,
                tools: false,
                thinking: true,
                images: true,
                cost: false,
                native_steer: false,
            },
        }
    }

    fn execute(&self, input: AnthropicInput, context: ExecutionContext) -> ProviderStream<TurnOutput> {
        let (http, store) = (Arc::clone(&self.http), Arc::clone(&self.store));
        let redactor = Redactor::new(&context.env);
        let stream = async_stream::try_stream! {
            let began = Instant::now();
            let options = input.options.clone().unwrap_or_default();
            let finish = |output: TurnOutput, session| ProviderItem::Output(TurnOutput {
                session_id: session,
                duration_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
                ..output
            });
            if context.cancel.is_cancelled() {
                yield finish(TurnOutput::new(StopReason::Aborted), options.resume);
                return;
            }
            let account = Account::of(&context.env)?;
            let said = request::messages(&input)?;
            let session = options.resume.clone().unwrap_or_else(|| ProviderSessionId::from(crate::ids::fresh()));
            let mut held = Held::claim(store, session.clone(), context.env.clone()).await?;
            let mut conversation = match &options.resume {
                Some(_) => held.read().await?,
                None => Conversation::new(TYPE),
            };
            let settings = settings(&conversation, &session)?.with(&options);
            let before = conversation.clone();
            conversation.messages.extend(said);
            let body = request::body(&settings, &options, &conversation.messages)?;
            conversation.settings = json!(settings);
            held.write(&conversation).await?;
            yield ProviderItem::Event(StreamEvent::Session { session_id: session.clone() });

            let clocks = Clocks {
                cancel: context.cancel.clone(),
                began,
                deadline: context.deadline,
                stall: options.stall_timeout_ms.map_or(STALL, Duration::from_millis),
            };
            let post = Post { url: account.url, headers: account.headers, body };
            let over = match Streamed::<Decoder>::begin(&http, post, &context.env, clocks).await {
                Err(over) => over,
                Ok(mut turn) => loop {
                    match turn.next().await {
                        Step::Event(event) => yield ProviderItem::Event(event),
                        Step::Over(over) => break over,
                    }
                },
            };
            let wanted = if options.output_schema.is_some() { Wanted::Structured } else { Wanted::Text };
            let (kept, end) = match over {
                Over::Ended(said) => match judge(&said) {
                    Verdict::Output(reason, warning) => {
                        if let Some(warning) = warning {
                            yield ProviderItem::Event(warning);
                        }
                        (Some(said.content.clone()), Ok(outcome::output(said, reason, wanted)))
                    }
                    Verdict::Error(error) => (None, Err(error)),
                },
                Over::Cancelled(said) => {
                    (Some(said.content.clone()), Ok(outcome::output(said, StopReason::Aborted, wanted)))
                }
                Over::Failed(error) => (None, Err(error)),
            };
            let conversation = match kept {
                Some(content) => {
                    if !content.is_empty() {
                        conversation.messages.push(json!({ "role": "assistant", "content": content }));
                    }
                    conversation
                }
                None => before,
            };
            if let Err(error) = held.write(&conversation).await {
                // The answer is there and paid for; only the next turn will miss it.
                let message = format!("the answer is not in the conversation: {}", error.message);
                let warning = StreamEvent::Warning { code: "sessionNotKept".to_owned(), message };
                yield ProviderItem::Event(warning);
            }
            // Whoever reads the last item may begin the next turn at once.
            drop(held);
            yield finish(end.map_err(|error: AgentError| error.with("sessionId", session.as_str()))?, Some(session));
        };
        let told = move |error: AgentError| AgentError {
            message: redactor.redact(&error.message),
            ..error.from_provider(TYPE)
        };
        stream.map(move |item: Result<_, AgentError>| item.map_err(&told)).boxed()
    }
}

/// How the model was asked last in a conversation of this provider.
fn settings(conversation: &Conversation, session: &ProviderSessionId) -> Result<Settings, AgentError> {
    if conversation.provider != TYPE {
        return Err(not_found(session));
    }
    if conversation.settings == Value::Null {
        return Ok(Settings::default());
    }
    serde_json::from_value(conversation.settings.clone()).map_err(|_| {
        let message = format!("the conversation {session} is damaged: its settings are not this provider's");
        AgentError::new(ErrorCode::InvalidRequest, message).kind("sessionDamaged")
    })
}
