//! What an adapter brings to an exchange: how its vendor is asked, what an answer means, and how all that is said is
//! put down. Doing it in the right order is left to `exchange.rs`.

use inspan_protocol::{AgentError, Environment, ProviderSessionId, StopReason, StreamEvent};
use serde_json::Value;

use super::books::Books;
use crate::account::Account;
use crate::conversation::Conversation;
use crate::output::TurnOutput;
use crate::streamed::Decode;
use crate::tools::{Answer, Call, Offered, ToolSettings};

/// A vendor's API; a value of it is what stays the same from one request of a turn to the next.
pub(crate) trait Api: Sized + Send + Sync + 'static {
    /// The provider's type.
    const PROVIDER: &'static str;
    /// The vendor's word for what a model calls.
    const TOOL: &'static str;

    /// The input of a turn.
    type Input: Send + Sync + 'static;
    /// Its options.
    type Options: Send + Sync;
    /// The end of a turn, as its user has it.
    type Output: From<TurnOutput> + Send + 'static;
    /// What an answer says.
    type Said: Default + Send;
    /// The decoder of one answer.
    type Decoder: Decode<Said = Self::Said> + Send;
    /// What a turn has come to.
    type Ledger: Ledger<Said = Self::Said>;

    /// The options of an input, wherever it has them.
    fn options(input: &Self::Input) -> Result<Self::Options, AgentError>;

    /// Those of them that the exchange has to know.
    fn terms(options: &Self::Options) -> Terms<'_>;

    /// Who asks, and where.
    fn account(environment: &Environment) -> Result<Account, AgentError>;

    /// What the user says, in the vendor's form.
    fn messages(input: &Self::Input) -> Result<Vec<Value>, AgentError>;

    /// Who keeps the conversation of this name.
    fn keeper(session: &ProviderSessionId) -> Keeper;

    /// Begins a turn that says this in a conversation: its messages go into the ledger, its settings become those of
    /// this turn.
    fn begin(
        options: &Self::Options,
        session: &ProviderSessionId,
        conversation: &mut Conversation,
        said: Vec<Value>,
    ) -> Result<Begun<Self>, AgentError>;

    /// The body of the next request, which offers these tools.
    fn request(&self, ledger: &Self::Ledger, offered: &[Offered]) -> Result<Vec<u8>, AgentError>;

    /// Judges the end of an answer.
    fn judge(said: &Self::Said) -> Verdict;

    /// A failure of a request, with what can only be told by who knows what was asked.
    fn understood(&self, error: AgentError) -> AgentError;
}

/// What a turn has come to, put down in the vendor's form. Pure.
pub(crate) trait Ledger: Send + Sync {
    /// What an answer says.
    type Said;

    /// The part of it that is the same for all vendors.
    fn books(&mut self) -> &mut Books;

    /// The answer goes into the conversation, which goes on behind it. What is returned of it is to be answered.
    fn goes_on(&mut self, said: Self::Said) -> Vec<Call>;

    /// The answers to its calls until now, in their order; they replace those of the last time.
    fn answers<'a>(&mut self, answers: impl Iterator<Item = &'a Answer>);

    /// The turn ended with this answer, which may be a part of one.
    fn end(&mut self, said: Self::Said, stop_reason: StopReason) -> TurnOutput;

    /// The turn ended after an answer that is in the books.
    fn stop(&mut self, stop_reason: StopReason) -> TurnOutput;

    /// What is to be told of a turn that was cut short, if calls of it stay without answers.
    fn left_open(&self) -> Option<StreamEvent>;
}

/// A turn that was begun.
pub(crate) struct Begun<A: Api> {
    pub(crate) api: A,
    pub(crate) ledger: A::Ledger,
    /// What the user is to be told of how the model will be asked.
    pub(crate) warning: Option<StreamEvent>,
}

/// What the options of all such vendors say of a turn.
pub(crate) struct Terms<'a> {
    /// The conversation to go on with.
    pub(crate) resume: Option<&'a ProviderSessionId>,
    pub(crate) tools: ToolSettings<'a>,
    pub(crate) max_turns: Option<u32>,
    pub(crate) stall_timeout_ms: Option<u64>,
}

/// Who keeps a conversation between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// We do, and say all of it each time.
    Adapter,
    /// The vendor.
    Vendor,
}

/// How an answer ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// With an output, and what is to be warned of.
    Output(StopReason, Option<StreamEvent>),
    /// With calls of tools, whose answers it waits for.
    Calls,
    /// In the middle: the vendor goes on when it is asked to.
    Paused,
    /// With an error.
    Error(AgentError),
}
