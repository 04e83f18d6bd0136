//! What the exchange has to know of the Messages API: each of its questions, and where the answer stands.
//! The order of a turn is left to the exchange.

use inspan_protocol::{AgentError, Environment, ProviderSessionId};
use serde_json::{Value, json};

use super::TYPE;
use super::account;
use super::decode::{Decoder, Said};
use super::ledger::Ledger;
use super::options::{AnthropicInput, AnthropicOptions};
use super::outcome::{self, Wanted};
use super::request::{self, Settings};
use crate::account::Account;
use crate::conversation::Conversation;
use crate::exchange::{Api, Begun, Keeper, Terms, Verdict};
use crate::output::TurnOutput;
use crate::tools::Offered;

/// The Messages API, as one turn asks it.
pub(super) struct Messages {
    settings: Settings,
    options: AnthropicOptions,
}

impl Api for Messages {
    const PROVIDER: &'static str = TYPE;
    const TOOL: &'static str = "tool";

    type Input = AnthropicInput;
    type Options = AnthropicOptions;
    type Output = TurnOutput;
    type Said = Said;
    type Decoder = Decoder;
    type Ledger = Ledger;

    fn options(input: &AnthropicInput) -> Result<AnthropicOptions, AgentError> {
        Ok(input.options.clone().unwrap_or_default())
    }

    fn terms(options: &AnthropicOptions) -> Terms<'_> {
        options.terms()
    }

    fn account(environment: &Environment) -> Result<Account, AgentError> {
        account::of(environment)
    }

    fn messages(input: &AnthropicInput) -> Result<Vec<Value>, AgentError> {
        request::messages(input)
    }

    /// The vendor keeps none.
    fn keeper(_: &ProviderSessionId) -> Keeper {
        Keeper::Adapter
    }

    fn begin(
        options: &AnthropicOptions,
        session: &ProviderSessionId,
        conversation: &mut Conversation,
        said: Vec<Value>,
    ) -> Result<Begun<Self>, AgentError> {
        let settings = conversation.settings_of::<Settings>(TYPE, session)?.with(options);
        conversation.settings = json!(settings);
        let wanted = if options.output_schema.is_some() { Wanted::Structured } else { Wanted::Text };
        let messages = std::mem::take(&mut conversation.messages);
        let ledger = Ledger::begin(session.clone(), messages, said, wanted);
        Ok(Begun { api: Self { settings, options: options.clone() }, ledger, warning: None })
    }

    fn request(&self, ledger: &Ledger, offered: &[Offered]) -> Result<Vec<u8>, AgentError> {
        request::body(&self.settings, &self.options, offered, &ledger.books.messages)
    }

    fn judge(said: &Said) -> Verdict {
        outcome::judge(said)
    }

    fn understood(&self, error: AgentError) -> AgentError {
        error
    }
}
