//! What a program asks of an agent, in words that are the same for every provider. `input` maps
//! it to the names of each provider.

use std::{path::PathBuf, sync::Arc, time::Duration};

use inspan_protocol::{
    ContentBlock, Environment, Host, HostTool, MessageMode, PermissionPolicy, Supervisor, ThinkingLevel,
};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::hooks::{AgentHooks, DynHooks};
use crate::hub::{Callback, Hub};

/// How an agent is run. The provider decides what is not set; what is set and the provider does not know is
/// refused with `CONFIG_INVALID`.
#[derive(Clone, Default)]
pub struct AgentOptions {
    pub(super) name: Option<String>,
    pub(super) model: Option<String>,
    pub(super) thinking: Option<ThinkingLevel>,
    pub(super) system_prompt: Option<String>,
    pub(super) max_tokens: Option<u32>,
    pub(super) temperature: Option<f64>,
    pub(super) max_turns: Option<u32>,
    pub(super) tools: Option<Vec<String>>,
    pub(super) allowed_tools: Option<Vec<String>>,
    pub(super) disabled_tools: Option<Vec<String>>,
    pub(super) output_schema: Option<Value>,
    pub(super) more: Map<String, Value>,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: RetryOptions,
    pub(super) cancel: CancellationToken,
    pub(super) hooks: Option<Arc<dyn DynHooks>>,
    pub(super) sink: Option<Callback>,
    pub(super) host: Arc<Host>,
    pub(super) hub: Option<Hub>,
}

/// How often a failed chat is tried again. Only retryable errors are, after the wait that the vendor asks for,
/// else after the backoff, which doubles each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// How often it is tried in all.
    pub attempts: u32,
    /// The wait before the second attempt.
    pub backoff: Duration,
    /// The longest wait; an error that asks for a longer one is not tried again.
    pub longest: Duration,
}

impl RetryOptions {
    /// Tries this often, one second after the first failure, and waits five minutes at most.
    pub fn times(attempts: u32) -> Self {
        Self { attempts, backoff: Duration::from_secs(1), longest: Duration::from_secs(300) }
    }
}

impl Default for RetryOptions {
    /// Tries once.
    fn default() -> Self {
        Self::times(1)
    }
}

impl AgentOptions {
    /// The provider decides everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// The agent's name in the events; else it is the provider's type.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// The model, by the vendor's name.
    #[must_use]
    pub fn model(self, model: impl Into<String>) -> Self {
        Self { model: Some(model.into()), ..self }
    }

    /// How much the model may think.
    #[must_use]
    pub fn thinking(self, thinking: ThinkingLevel) -> Self {
        Self { thinking: Some(thinking), ..self }
    }

    /// The system prompt: what the agent reads before everything else.
    #[must_use]
    pub fn system_prompt(self, system_prompt: impl Into<String>) -> Self {
        Self { system_prompt: Some(system_prompt.into()), ..self }
    }

    /// Tokens that one message of the model may have; 0 is unset.
    #[must_use]
    pub fn max_tokens(self, max_tokens: u32) -> Self {
        Self { max_tokens: Some(max_tokens).filter(|tokens| *tokens > 0), ..self }
    }

    /// The vendor's temperature, passed on as it is.
    #[must_use]
    pub fn temperature(self, temperature: f64) -> Self {
        Self { temperature: Some(temperature), ..self }
    }

    /// Model turns that a chat may take.
    #[must_use]
    pub fn max_turns(self, max_turns: u32) -> Self {
        Self { max_turns: Some(max_turns), ..self }
    }

    /// The tools that exist for the agent; an empty list means no tools.
    #[must_use]
    pub fn tools<T: Into<String>>(self, tools: impl IntoIterator<Item = T>) -> Self {
        Self { tools: Some(tools.into_iter().map(Into::into).collect()), ..self }
    }

    /// Tools that the agent may use without asking, by the provider's own names or patterns.
    #[must_use]
    pub fn allowed_tools<T: Into<String>>(self, tools: impl IntoIterator<Item = T>) -> Self {
        Self { allowed_tools: Some(tools.into_iter().map(Into::into).collect()), ..self }
    }

    /// A tool of the program, which the agent may call beside those it has. Unless `allowed_tools` names it, each call
    /// is asked for.
    #[must_use]
    pub fn host_tool(self, tool: impl HostTool + 'static) -> Self {
        self.with_host(|host| host.tools = std::mem::take(&mut host.tools).with(tool))
    }

    /// Tools that the agent may not use.
    #[must_use]
    pub fn disabled_tools<T: Into<String>>(self, tools: impl IntoIterator<Item = T>) -> Self {
        Self { disabled_tools: Some(tools.into_iter().map(Into::into).collect()), ..self }
    }

    /// The JSON Schema that the structured output must fit; if it does not, the agent is asked once to fix it.
    #[must_use]
    pub fn output_schema(self, schema: Value) -> Self {
        Self { output_schema: Some(schema), ..self }
    }

    /// An option of this provider alone, by the provider's own name.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.more.insert(name.into(), value.into());
        self
    }

    /// How long a chat may take, attempts and waits included; then it fails with `TIMEOUT`.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// How often what failed is tried again.
    #[must_use]
    pub fn retry(self, retry: RetryOptions) -> Self {
        Self { retry, ..self }
    }

    /// Cancels whatever is in progress, and everything after it.
    #[must_use]
    pub fn cancel(self, cancel: CancellationToken) -> Self {
        Self { cancel, ..self }
    }

    /// What is called around prompts and tools.
    #[must_use]
    pub fn hooks(self, hooks: impl AgentHooks) -> Self {
        Self { hooks: Some(Arc::new(hooks)), ..self }
    }

    /// Is called with every event, on the thread that emits it. It must not wait.
    #[must_use]
    pub fn sink(self, sink: impl Fn(&Arc<inspan_protocol::Envelope>) + Send + Sync + 'static) -> Self {
        Self { sink: Some(Arc::new(sink)), ..self }
    }

    /// The environment that the vendor's program or client may draw from; none unless it is given.
    #[must_use]
    pub fn env(self, env: Environment) -> Self {
        self.with_host(|host| host.env = env)
    }

    /// The directory that the agent works in.
    #[must_use]
    pub fn cwd(self, cwd: impl Into<PathBuf>) -> Self {
        self.with_host(|host| host.cwd = Some(cwd.into()))
    }

    /// Who decides on the agent's questions for permission; unless it is set, everything is denied.
    #[must_use]
    pub fn permissions(self, permissions: PermissionPolicy) -> Self {
        self.with_host(|host| host.permissions = permissions)
    }

    /// The guard between this process and the vendor's program.
    #[must_use]
    pub fn supervisor(self, supervisor: Option<Supervisor>) -> Self {
        self.with_host(|host| host.supervisor = supervisor)
    }

    fn with_host(mut self, change: impl FnOnce(&mut Host)) -> Self {
        change(Arc::make_mut(&mut self.host));
        self
    }

    /// The hub that events go to, for a program with its own channels or clock; else there is a fresh one. From
    /// the session's beginning on it takes commands; the caller ends that.
    #[must_use]
    pub fn hub(self, hub: Hub) -> Self {
        Self { hub: Some(hub), ..self }
    }
}

/// One message to an agent.
#[derive(Clone, Default)]
pub struct Chat {
    pub(super) text: String,
    pub(super) attachments: Vec<Attachment>,
    pub(super) mode: MessageMode,
    pub(super) cancel: Option<CancellationToken>,
}

/// Something that goes with a prompt, if the provider takes more than text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Attachment {
    /// A picture.
    Image {
        /// Its media type, such as `image/png`.
        media_type: String,
        /// Its bytes in base64.
        data: String,
    },
    /// A file of text.
    Text {
        /// What it is called.
        name: String,
        /// What it says.
        content: String,
    },
}

impl Attachment {
    pub(super) fn block(&self) -> ContentBlock {
        match self {
            Self::Image { media_type, data } => {
                ContentBlock::Image { media_type: media_type.clone(), data: data.clone() }
            }
            Self::Text { name, content } => ContentBlock::Text { text: format!("{name}:\n{content}") },
        }
    }
}

impl Chat {
    /// A text.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// One more attachment.
    #[must_use]
    pub fn attachment(mut self, attachment: Attachment) -> Self {
        self.attachments.push(attachment);
        self
    }

    /// How it reaches a session that is at work: after the turn in progress, or by interrupting it.
    #[must_use]
    pub fn mode(self, mode: MessageMode) -> Self {
        Self { mode, ..self }
    }

    /// Cancels this chat alone.
    #[must_use]
    pub fn cancel(self, cancel: CancellationToken) -> Self {
        Self { cancel: Some(cancel), ..self }
    }
}

impl<T: Into<String>> From<T> for Chat {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

/// What `run_agent` takes: a message, and how the agent is run.
#[derive(Clone, Default)]
pub struct RunAgentOptions {
    pub(crate) chat: Chat,
    pub(crate) agent: AgentOptions,
}

impl RunAgentOptions {
    /// Sends this to an agent; the provider decides everything else.
    pub fn new(chat: impl Into<Chat>) -> Self {
        Self { chat: chat.into(), agent: AgentOptions::new() }
    }

    /// How the agent is run.
    #[must_use]
    pub fn agent(self, agent: AgentOptions) -> Self {
        Self { agent, ..self }
    }
}

impl<T: Into<Chat>> From<T> for RunAgentOptions {
    fn from(chat: T) -> Self {
        Self::new(chat)
    }
}

impl AgentOptions {
    /// Sends a message to an agent that is run with these options.
    pub fn prompt(self, chat: impl Into<Chat>) -> RunAgentOptions {
        RunAgentOptions { chat: chat.into(), agent: self }
    }
}
