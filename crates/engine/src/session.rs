//! A conversation of a program with an agent, over many chats, with a queue for messages that come meanwhile, and a
//! state that can be exported and restored elsewhere.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use futures::{Stream, stream::BoxStream};
use inspan_protocol::{
    AgentError, DynProvider, Envelope, ErrorCode, Event, IntoProvider, Message, MessageMode,
    ProviderSessionId, Redactor, RunId, SESSION_STATE_VERSION, SessionId, SessionState, ThinkingLevel,
};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use serde_json::Value;

use crate::{
    clock::{RandomIds, SystemClock},
    hub::{Filter, Hub, Observer},
};

mod exchange;
mod hooks;
mod inbox;
mod input;
mod options;
mod queue;
mod result;
mod stream;
mod transcript;

pub use hooks::{AgentHooks, HookResult};
pub use options::{AgentOptions, Attachment, Chat, RetryOptions, RunAgentOptions};
pub use result::{AgentResult, ChatError, ToolCall};
pub use stream::{AgentItem, AgentStream};

use inbox::Inbox;
use input::InputForm;
use queue::QueueInput;
use transcript::Transcript;

/// A conversation with an agent. Clones are handles of the same one.
///
/// Messages that come while a chat is in progress, by [`AgentSession::steer`] and [`AgentSession::follow_up`], are part
/// of that chat; those that come while the session is idle wait for the next chat. None is lost: what a chat that
/// failed or was aborted has not delivered waits until another chat delivers it, [`AgentSession::drain_queue`] returns
/// it, or the session is closed.
#[derive(Clone)]
pub struct AgentSession {
    open: Arc<Mutex<Option<Arc<SessionCore>>>>,
}

/// A session that has not been closed.
struct SessionCore {
    provider: Arc<dyn DynProvider>,
    provider_type: String,
    name: String,
    form: InputForm,
    /// The provider's input without a prompt.
    base: Value,
    options: AgentOptions,
    carried: Carried,
    hub: Hub,
    hub_owner: HubOwner,
    /// The model that the vendor named last.
    model: Mutex<Option<String>>,
    transcript: Arc<Mutex<Transcript>>,
    /// Locked under the delivery lock of the hub and without it, so nothing is emitted while it is locked.
    inbox: Mutex<Inbox>,
    /// Whether the conversation was restored and the vendor has not confirmed it yet.
    restored: AtomicBool,
    /// Whether the next run repeats the conversation, since the vendor does not know it.
    retelling: AtomicBool,
    /// The session's own runs, since others may share the hub.
    runs: Mutex<FxHashSet<RunId>>,
    _observers: Vec<Observer>,
}

/// Options that a restored session brings with it.
#[derive(Default)]
struct Carried {
    model: Option<String>,
    thinking: Option<ThinkingLevel>,
    system_prompt: Option<String>,
}

/// Whether the session made the hub, and so ends it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HubOwner {
    Session,
    Caller,
}

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentSessionStatus {
    /// Nothing is in progress.
    Idle,
    /// A chat is in progress.
    Running,
}

/// A view of a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AgentSnapshot {
    /// What it is doing.
    pub status: AgentSessionStatus,
    /// What was said, the answer in progress included.
    pub messages: Vec<Message>,
    /// Messages that no turn has delivered yet, in their order.
    pub queued: Vec<String>,
    /// The provider's type.
    pub provider: String,
    /// The model that the vendor named, else the one that was asked for.
    pub model: Option<String>,
    /// The vendor's conversation, once it is known.
    pub session_id: Option<ProviderSessionId>,
    /// How many turns the conversation has had.
    pub turns: u32,
}

fn closed() -> AgentError {
    AgentError::new(ErrorCode::ConfigInvalid, "the session is closed")
}

impl AgentSession {
    /// A new conversation. Options that the provider does not take are refused at once.
    ///
    /// # Errors
    /// `CONFIG_INVALID`: the provider does not take an option or the tools of the program, or a value does not fit.
    pub fn new(provider: impl IntoProvider, options: AgentOptions) -> Result<Self, AgentError> {
        Self::open(provider.into_provider(), options, Transcript::default(), Vec::new(), Carried::default())
    }

    /// Continues a conversation that began elsewhere. The options override the state. If the state was made
    /// with another provider, or the provider does not know the conversation any more (on another machine, after it was
    /// deleted), a new one begins with the messages that were said, and `agent:warning` says so in the latter case.
    ///
    /// # Errors
    /// `CONFIG_INVALID`: the state has another version, or as [`AgentSession::new`].
    pub fn restore(
        provider: impl IntoProvider,
        state: SessionState,
        mut options: AgentOptions,
    ) -> Result<Self, AgentError> {
        let provider = provider.into_provider();
        check_version(u64::from(state.version))?;
        let form = InputForm::of(&*provider);
        let is_same = provider.descriptor().provider_type == state.provider;
        let model = Some(state.model).filter(|model| is_same && !model.is_empty());
        let carried = Carried { model, thinking: state.thinking, system_prompt: state.system_prompt };
        if options.model.is_none() && form.knows("model") {
            options.model.clone_from(&carried.model);
        }
        if options.thinking.is_none() && form.knows("thinking") {
            options.thinking = carried.thinking;
        }
        if options.system_prompt.is_none() && form.knows("systemPrompt") {
            options.system_prompt.clone_from(&carried.system_prompt);
        }
        let session = state.provider_session_id.filter(|_| is_same);
        Self::open(provider, options, Transcript::of(state.messages, session), state.queued, carried)
    }

    /// Reads an exported state. One of another version is `CONFIG_INVALID` and says so.
    pub fn read_state(json: &str) -> Result<SessionState, AgentError> {
        let invalid = |error: serde_json::Error| {
            AgentError::new(ErrorCode::ConfigInvalid, format!("this is not the state of a session: {error}"))
        };
        let value: Value = serde_json::from_str(json).map_err(invalid)?;
        if let Some(version) = value.get("version").and_then(Value::as_u64) {
            check_version(version)?;
        }
        serde_json::from_value(value).map_err(invalid)
    }

    fn open(
        provider: Arc<dyn DynProvider>,
        mut options: AgentOptions,
        transcript: Transcript,
        queued: Vec<String>,
        carried: Carried,
    ) -> Result<Self, AgentError> {
        let form = InputForm::of(&*provider);
        let base = form.base(&options)?;
        // Values that do not fit are refused now, not at the first chat.
        provider.input_facts(&form.say(base.clone(), "…", &[])?)?;
        let (hub, hub_owner) = match options.hub.take() {
            Some(hub) => (hub, HubOwner::Caller),
            None => (own_hub(), HubOwner::Session),
        };
        hub.redact(&Redactor::new(&options.host.env));
        hub.start_session();
        let provider_type = provider.descriptor().provider_type;
        let name = options.name.clone().unwrap_or_else(|| provider_type.clone());
        let sink = options.sink.take();
        let open = Arc::new_cyclic(|weak: &Weak<SessionCore>| {
            let mut observers = vec![observe(&hub, weak)];
            observers.extend(sink.map(|sink| {
                let weak = weak.clone();
                let ours = move |envelope: &Arc<Envelope>| {
                    if weak.upgrade().is_some_and(|open| open.is_ours(envelope)) {
                        sink(envelope);
                    }
                };
                hub.observe(Filter::all(), Arc::new(ours))
            }));
            SessionCore {
                provider,
                provider_type,
                name,
                form,
                base,
                options,
                carried,
                restored: AtomicBool::new(transcript.session().is_some()),
                retelling: AtomicBool::new(false),
                hub,
                hub_owner,
                model: Mutex::default(),
                transcript: Arc::new(Mutex::new(transcript)),
                inbox: Mutex::new(Inbox::of(queued)),
                runs: Mutex::default(),
                _observers: observers,
            }
        });
        Ok(Self { open: Arc::new(Mutex::new(Some(open))) })
    }

    /// Sends a message and waits for the answer. While another chat is in progress the message becomes part of it, as
    /// its mode says, and the result is that of the whole. Dropped, the chat is cancelled.
    ///
    /// # Errors
    /// `CONFIG_INVALID`: the session is closed, the message is empty, too many messages wait, or the attachments cannot be
    /// taken, as in the middle of another chat. `ABORTED`: the chat was cancelled. Else what the provider or a hook failed with.
    /// [`ChatError::partial`] is what was done before.
    pub fn chat(
        &self,
        chat: impl Into<Chat>,
    ) -> impl Future<Output = Result<AgentResult, ChatError>> + Send + 'static {
        let (open, chat) = (self.get(), chat.into());
        async move { open?.chat(chat).await }
    }

    /// Sends a message; the events as they happen, then the result.
    pub fn chat_stream(&self, chat: impl Into<Chat>) -> AgentStream {
        stream::of(self.get(), chat.into())
    }

    /// A message that interrupts the turn in progress and becomes the next one.
    ///
    /// # Errors
    /// `CONFIG_INVALID`: the session is closed, or too many messages wait.
    pub fn steer(&self, message: impl Into<String>) -> Result<(), AgentError> {
        self.get()?.post(&message.into(), MessageMode::Steer, None).map(drop)
    }

    /// A message for the turn after the one in progress.
    ///
    /// # Errors
    /// As [`AgentSession::steer`].
    pub fn follow_up(&self, message: impl Into<String>) -> Result<(), AgentError> {
        self.get()?.post(&message.into(), MessageMode::FollowUp, None).map(drop)
    }

    /// Takes back the messages that no turn has delivered yet, in their order.
    pub fn drain_queue(&self) -> Vec<String> {
        let Ok(open) = self.get() else { return Vec::new() };
        open.drain()
    }

    /// Aborts the chat in progress, which ends within seconds with `ABORTED` and what was done so far
    /// ([`ChatError::partial`]). Without one it does nothing. The session can be continued.
    pub fn abort(&self) {
        if let Ok(open) = self.get() {
            let token = open.inbox.lock().abort.clone();
            token.cancel();
        }
    }

    /// A view of the session.
    ///
    /// # Errors
    /// `CONFIG_INVALID`: the session is closed.
    pub fn snapshot(&self) -> Result<AgentSnapshot, AgentError> {
        let open = self.get()?;
        let (status, queued) = open.queued();
        let transcript = open.transcript.lock();
        Ok(AgentSnapshot {
            status,
            messages: transcript.messages(),
            queued,
            provider: open.provider_type.clone(),
            model: open.known_model(),
            session_id: transcript.session().cloned(),
            turns: transcript.turns(),
        })
    }

    /// The session as data. While a chat is in progress it is what was said so far; abort it first for a clean cut.
    ///
    /// # Errors
    /// `CONFIG_INVALID`: the session is closed. `OUTPUT_INVALID`: what it holds is no valid state without its secrets.
    pub fn export(&self) -> Result<SessionState, AgentError> {
        let AgentSnapshot { messages, queued, provider, model, session_id, .. } = self.snapshot()?;
        let open = self.get()?;
        let (options, carried) = (&open.options, &open.carried);
        let state = SessionState {
            version: SESSION_STATE_VERSION,
            messages,
            provider,
            model: model.unwrap_or_default(),
            thinking: options.thinking.or(carried.thinking),
            system_prompt: options.system_prompt.clone().or_else(|| carried.system_prompt.clone()),
            provider_session_id: session_id,
            queued,
            exported_at: open.hub.clock().now(),
        };
        // What the person said, too.
        let redacted = serde_json::to_value(state).map(|state| Redactor::new(&options.host.env).value(state));
        redacted.and_then(serde_json::from_value).map_err(|error| {
            AgentError::new(ErrorCode::OutputInvalid, format!("the session cannot be exported: {error}"))
        })
    }

    /// The session's hub, to observe it, to answer its questions and to attach channels; none once it is closed.
    pub fn hub(&self) -> Option<Hub> {
        self.get().ok().map(|open| open.hub.clone())
    }

    /// Aborts what is in progress and releases everything. Every handle of the session is closed by it. The
    /// provider belongs to the caller, who shuts it down.
    pub fn close(&self) {
        let Some(open) = self.open.lock().take() else { return };
        let mut inbox = open.inbox.lock();
        inbox.queue.apply(QueueInput::Close);
        let token = inbox.abort.clone();
        drop(inbox);
        token.cancel();
        if open.hub_owner == HubOwner::Session {
            open.hub.end_session();
        }
    }

    fn get(&self) -> Result<Arc<SessionCore>, AgentError> {
        self.open.lock().clone().ok_or_else(closed)
    }
}

impl SessionCore {
    fn known_model(&self) -> Option<String> {
        let named = self.model.lock().clone();
        named.or_else(|| self.options.model.clone()).or_else(|| self.carried.model.clone())
    }

    /// Whether an event is of this session, or of no run at all.
    fn is_ours(&self, envelope: &Envelope) -> bool {
        let run = envelope.context.agent.as_ref().or_else(|| envelope.event.run_id());
        run.is_none_or(|run| self.runs.lock().contains(run))
    }

    fn on_event(&self, envelope: &Envelope) {
        let Some(run) = envelope.event.run_id().filter(|run| self.runs.lock().contains(*run)) else { return };
        self.transcript.lock().event(&envelope.event);
        if let Event::AgentStart { .. } = envelope.event {
            if self.retelling.swap(false, Ordering::Relaxed) {
                self.hub.with_agent(run.clone()).emit(Event::AgentWarning {
                    code: "retold".to_owned(),
                    message:
                        "the provider does not know this conversation, so a new one begins with what was said"
                            .to_owned(),
                    run_id: run.clone(),
                });
            }
            self.hand_over(run);
        }
    }
}

fn own_hub() -> Hub {
    use crate::clock::IdSource;

    let ids = RandomIds::new();
    // Its ids are made for flows; only the number is of use here.
    let id = ids.session_id();
    let number = id.as_str().rsplit('-').next().unwrap_or_default();
    Hub::new(SessionId::from(format!("agent-{number}")), Arc::new(SystemClock), Arc::new(ids))
}

fn observe(hub: &Hub, open: &Weak<SessionCore>) -> Observer {
    let open = open.clone();
    let hear = move |envelope: &Arc<Envelope>| {
        if let Some(open) = open.upgrade() {
            open.on_event(envelope);
        }
    };
    hub.observe(Filter::prefix("agent:"), Arc::new(hear))
}

fn check_version(version: u64) -> Result<(), AgentError> {
    if version == u64::from(SESSION_STATE_VERSION) {
        return Ok(());
    }
    let message = format!(
        "the state of the session has version {version}, and only version {SESSION_STATE_VERSION} is known here"
    );
    Err(AgentError::new(ErrorCode::ConfigInvalid, message))
}

/// The items of [`AgentStream`], boxed.
type Items = BoxStream<'static, Result<AgentItem, ChatError>>;

/// Runs an agent to its end.
///
/// # Errors
/// As [`AgentSession::new`] and [`AgentSession::chat`].
pub async fn run_agent(
    provider: impl IntoProvider,
    options: impl Into<RunAgentOptions>,
) -> Result<AgentResult, ChatError> {
    let RunAgentOptions { chat, agent } = options.into();
    let session = AgentSession::new(provider, agent)?;
    let end = session.chat(chat).await;
    session.close();
    end
}

/// Runs an agent: its events as they happen, then its result. Nothing happens unless the stream is read; dropped, the
/// agent is cancelled.
///
/// # Errors
/// As [`AgentSession::new`]. What fails later is an item of the stream.
pub fn run_agent_stream(
    provider: impl IntoProvider,
    options: impl Into<RunAgentOptions>,
) -> Result<AgentStream, AgentError> {
    let RunAgentOptions { chat, agent } = options.into();
    Ok(AgentSession::new(provider, agent)?.chat_stream(chat))
}

#[cfg(test)]
mod tests;
