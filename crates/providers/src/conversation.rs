//! The conversations of providers whose vendors store none: their messages, so that a session id and a new message are
//! enough to continue, in another process too.

use inspan_protocol::{
    AgentError, Environment, ErrorCode, ErrorKind, ProviderSessionId, StreamEvent, TurnId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{no_turn, not_found};
use crate::output::TurnOutput;

mod folder;
mod lock;

pub use folder::FolderStore;
pub(crate) use lock::ConversationLock;

/// The version of the form in which conversations are stored.
const VERSION: u32 = 1;

/// One conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Conversation {
    /// The version of its form.
    pub version: u32,
    /// The provider whose words these are.
    pub provider: String,
    /// The model's last settings, in the adapter's form: what a later turn does not set again stays as it was.
    pub settings: Value,
    /// The messages, in the vendor's form.
    pub messages: Vec<Value>,
    /// The settings of earlier turns, as far as a later one changed them, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierSettings>,
    /// How the last turn ended, unless it failed or was cancelled. The process may die before anybody gets that; a turn that only
    /// goes on with the last one takes it from here. Its tokens are those of the last request: the others are counted by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Box<TurnOutput>>,
}

/// Settings that a later turn changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlierSettings {
    /// How many messages there were when it did.
    messages: usize,
    settings: Value,
}

impl EarlierSettings {
    /// The settings of a conversation as it is.
    pub(crate) fn of(conversation: &Conversation) -> Self {
        Self { messages: conversation.messages.len(), settings: conversation.settings.clone() }
    }
}

impl Conversation {
    /// One without messages.
    pub fn new(provider: impl Into<String>) -> Self {
        Self {
            version: VERSION,
            provider: provider.into(),
            settings: Value::Null,
            messages: Vec::new(),
            earlier: Vec::new(),
            ended: None,
        }
    }

    /// Notes that a turn changed these settings.
    pub(crate) fn note(&mut self, before: &EarlierSettings) {
        if before.messages > 0 && before.settings != self.settings {
            self.earlier.push(before.clone());
        }
    }

    /// Takes back what a turn changed of these settings.
    pub(crate) fn restore(&mut self, before: &EarlierSettings) {
        self.settings = before.settings.clone();
        self.earlier.retain(|earlier| earlier != before);
    }

    /// The end of the last turn.
    pub(crate) fn turn_id(messages: &[Value]) -> TurnId {
        TurnId::from(messages.len().to_string())
    }

    /// The conversation as it was at the end of a turn.
    pub(crate) fn until(mut self, turn: &TurnId) -> Result<Self, AgentError> {
        let end = turn.as_str().parse().ok().filter(|end| (1..=self.messages.len()).contains(end));
        let end = end.ok_or_else(|| no_turn(turn))?;
        self.messages.truncate(end);
        if let Some(changed) = self.earlier.iter().position(|earlier| earlier.messages >= end) {
            self.settings = self.earlier[changed].settings.take();
            self.earlier.truncate(changed);
        }
        Ok(self)
    }

    /// How the model was asked last, in a conversation of this provider; in a new one, in no way yet.
    pub(crate) fn settings_of<T: DeserializeOwned + Default>(
        &self,
        provider: &str,
        session: &ProviderSessionId,
    ) -> Result<T, AgentError> {
        if self.provider != provider {
            return Err(not_found(session));
        }
        if self.settings == Value::Null {
            return Ok(T::default());
        }
        serde_json::from_value(self.settings.clone()).map_err(|_| {
            let message =
                format!("the conversation {session} is damaged: its settings are not this provider's");
            AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::SessionDamaged)
        })
    }
}

/// The warning that a turn could not be stored: it is not lost for this caller, but the next turn will miss it.
pub(crate) fn not_stored(what: &str, error: &AgentError) -> StreamEvent {
    let message = format!("{what} is not in the conversation: {}", error.message);
    StreamEvent::warning("sessionNotKept", message)
}

/// Whether a conversation was not stored because the disk is full, which may pass.
pub(crate) fn is_full(error: &AgentError) -> bool {
    error.code == ErrorCode::Process && error.is(ErrorKind::SessionNotStored)
}

/// A store of conversations between turns. Its calls may block.
///
/// A store never returns a conversation that it could only read in part, and gives one to one turn at a time: two
/// turns that answer the same message would each lose what the other did.
pub trait ConversationStore: Send + Sync + 'static {
    /// Takes a conversation, known or new, for one turn. No other turn has it until the returned value is dropped.
    ///
    /// # Errors
    /// Another turn has it (`INVALID_REQUEST`, kind `sessionBusy`), or the store cannot be reached.
    fn claim(
        &self,
        session: &ProviderSessionId,
        environment: &Environment,
    ) -> Result<Box<dyn ConversationClaim>, AgentError>;

    /// Reads a conversation that is to be branched, as it was after its last turn that was stored.
    ///
    /// # Errors
    /// As those of [`ConversationStore::claim`] and [`ConversationClaim::read`]; a store that reads it while a turn has it
    /// does not refuse that.
    fn read(
        &self,
        session: &ProviderSessionId,
        environment: &Environment,
    ) -> Result<Conversation, AgentError> {
        self.claim(session, environment)?.read()
    }
}

/// A conversation that one turn has.
pub trait ConversationClaim: Send {
    /// The conversation.
    ///
    /// # Errors
    /// It does not exist (`INVALID_REQUEST`, kind `sessionNotFound`), or it is damaged (`INVALID_REQUEST`, kind
    /// `sessionDamaged`).
    fn read(&mut self) -> Result<Conversation, AgentError>;

    /// Replaces it, wholly or not at all.
    ///
    /// # Errors
    /// It is too large (`CONTEXT_LENGTH`), or cannot be written (kind `sessionNotKept`; `PROCESS` if the disk is full, else
    /// `CONFIG_INVALID`).
    fn write(&mut self, conversation: &Conversation) -> Result<(), AgentError>;
}

/// A random UUID, which no vendor has seen before. A vendor stores conversations under it forever and for other machines too, so a counted one
/// would not do; nothing that a test compares depends on it.
#[expect(clippy::disallowed_methods, reason = "the vendor's names must be unique beyond this program")]
pub(crate) fn fresh_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Reads a conversation that is to be branched, off the threads that must not block.
pub(crate) async fn read(
    store: std::sync::Arc<dyn ConversationStore>,
    session: ProviderSessionId,
    environment: Environment,
) -> Result<Conversation, AgentError> {
    let reading = tokio::task::spawn_blocking(move || store.read(&session, &environment));
    reading.await.map_err(|error| gone(&error))?
}

/// A conversation held by a turn, off the threads that must not block.
pub(crate) struct Held {
    claim: Option<Box<dyn ConversationClaim>>,
}

impl Held {
    /// Takes a conversation.
    pub(crate) async fn claim(
        store: std::sync::Arc<dyn ConversationStore>,
        session: ProviderSessionId,
        environment: Environment,
    ) -> Result<Self, AgentError> {
        let claim = tokio::task::spawn_blocking(move || store.claim(&session, &environment));
        Ok(Self { claim: Some(claim.await.map_err(|error| gone(&error))??) })
    }

    /// As [`ConversationClaim::read`].
    pub(crate) async fn read(&mut self) -> Result<Conversation, AgentError> {
        self.with(|claim| claim.read()).await
    }

    /// As [`ConversationClaim::write`].
    pub(crate) async fn write(&mut self, conversation: &Conversation) -> Result<(), AgentError> {
        let conversation = conversation.clone();
        self.with(move |claim| claim.write(&conversation)).await
    }

    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut dyn ConversationClaim) -> Result<T, AgentError> + Send + 'static,
    ) -> Result<T, AgentError> {
        let missing = || AgentError::new(ErrorCode::ConfigInvalid, "the conversation is held no longer");
        let mut claim = self.claim.take().ok_or_else(missing)?;
        let done = tokio::task::spawn_blocking(move || (work(claim.as_mut()), claim));
        let (result, claim) = done.await.map_err(|error| gone(&error))?;
        self.claim = Some(claim);
        result
    }
}

fn gone(error: &tokio::task::JoinError) -> AgentError {
    let message = format!("the store of conversations gave up: {error}");
    AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::SessionNotStored)
}
