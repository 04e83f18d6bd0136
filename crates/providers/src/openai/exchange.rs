//! What the exchange has to know of the Responses API: each of its questions, and where the answer stands.
//! The order of a turn is left to the exchange.

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, ProviderSessionId};
use serde_json::{Value, json};

use super::TYPE;
use super::account;
use super::decode::{Decoder, Said};
use super::ledger::Ledger;
use super::options::{OpenAiInput, OpenAiOptions};
use super::outcome;
use super::output::OpenAiOutput;
use super::request::{self, Settings, Thread};
use super::schema::Form;
use crate::account::Account;
use crate::conversation::Conversation;
use crate::exchange::{Api, Begun, Keeper, Terms, Verdict};
use crate::tools::Offered;

/// The Responses API, as one turn asks it.
pub(super) struct Responses {
    settings: Settings,
    /// The conversation as it was called when the turn began.
    thread: Thread,
}

impl Api for Responses {
    const PROVIDER: &'static str = TYPE;
    const TOOL: &'static str = "function";

    type Input = OpenAiInput;
    type Options = OpenAiOptions;
    type Output = OpenAiOutput;
    type Said = Said;
    type Decoder = Decoder;
    type Ledger = Ledger;

    fn options(input: &OpenAiInput) -> Result<OpenAiOptions, AgentError> {
        input.settled()
    }

    fn terms(options: &OpenAiOptions) -> Terms<'_> {
        options.terms()
    }

    fn account(environment: &Environment) -> Result<Account, AgentError> {
        account::of(environment)
    }

    fn messages(input: &OpenAiInput) -> Result<Vec<Value>, AgentError> {
        request::messages(input)
    }

    fn keeper(session: &ProviderSessionId) -> Keeper {
        match Thread::of(session.clone()) {
            Thread::Own(_) => Keeper::Adapter,
            Thread::Conversation(_) | Thread::Response(_) => Keeper::Vendor,
        }
    }

    fn begin(
        options: &OpenAiOptions,
        session: &ProviderSessionId,
        conversation: &mut Conversation,
        said: Vec<Value>,
    ) -> Result<Begun<Self>, AgentError> {
        let settings = conversation.settings_of::<Settings>(TYPE, session)?.with(options);
        conversation.settings = json!(settings);
        let form = options.output_schema.as_ref().map(Form::of);
        let warning = form.as_ref().and_then(Form::warning);
        let thread = Thread::of(session.clone());
        let items = std::mem::take(&mut conversation.messages);
        let ledger = Ledger::begin(thread.clone(), items, said, form);
        Ok(Begun { api: Self { settings, thread }, ledger, warning })
    }

    fn request(&self, ledger: &Ledger, offered: &[Offered]) -> Result<Vec<u8>, AgentError> {
        request::body(&self.settings, &ledger.thread, ledger.form.as_ref(), offered, ledger.next())
    }

    fn judge(said: &Said) -> Verdict {
        outcome::judge(said)
    }

    /// The vendor says in words only that it has no such conversation.
    fn understood(&self, error: AgentError) -> AgentError {
        let session = self.thread.session();
        let named = error.message.contains(session.as_str()) && error.message.contains("not found");
        if matches!(self.thread, Thread::Own(_)) || error.code != ErrorCode::InvalidRequest || !named {
            return error;
        }
        let message = format!("no such conversation: {session}");
        AgentError { detail: error.detail, ..AgentError::new(ErrorCode::InvalidRequest, message) }
            .with_kind(ErrorKind::SessionNotFound)
    }
}
