//! The engine of Inspan: the hub, agent runs and their turns, agent sessions for programs, channels, and the recording
//! and replay of any provider.
//!
//! It knows no vendor and no flow: providers come in through the protocol's contract, and flows use it.

mod agent;
mod channel;
mod clock;
mod hub;
mod order;
mod private;
mod recording;
mod registry;
mod run;
mod session;
#[cfg(test)]
mod testing;

pub use agent::{AgentContext, AgentDefinition, ExecutableAgent, ProviderAgent};
pub use channel::{Channel, ChannelLimits, Channels, DynChannel};
pub use clock::{
    Clock, CountingIds, IdSource, LaterClock, RandomIds, SystemClock, VirtualClock, sleep_until,
};
pub use hub::{
    BoundedSubscription, Callback, DEFAULT_SUBSCRIPTION_LIMIT, Filter, Hub, InvalidFilter, Lagged, Observer,
    PendingReply, Subscription, Unanswered,
};
pub use order::{OrderCheck, OrderError, check_order};
pub use private::{append_private, create_private, create_private_dir_all, make_dir_private, write_private};
pub use recording::{
    AnswerCall, NodeAnswer, NodeCall, NodeCalls, NodeTape, Pace, RecordedCall, Recorder, RecordingError,
    Replayer, SESSION_VARIABLE,
};
pub use registry::ProviderRegistry;
pub use run::{AgentRun, MAILBOX_CAPACITY, Mail, Mailbox, RunEnd, Wakeup};
pub use session::{
    AgentHooks, AgentItem, AgentOptions, AgentResult, AgentSession, AgentSessionStatus, AgentSnapshot,
    AgentStream, Attachment, Chat, ChatError, HookResult, RetryOptions, RunAgentOptions, ToolCall, run_agent,
    run_agent_stream,
};
