//! The Messages API as the runtime of APIs needs it: its account, requests and responses.

use inspan_protocol::{AgentError, Environment, ErrorCode, ProviderSessionId, ToolSpec};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::decode::{Decoder, PartialResponse};
use super::history::MessagesHistory;
use super::options::{AnthropicInput, AnthropicOptions};
use super::outcome::{self, OutputKind};
use super::request::{self, ConversationSettings};
use super::schema;
use crate::api::account::{Address, no_key};
use crate::api::schema::not_strict;
use crate::api::{Api, History as _, HistoryOwner, Prepared, TurnOptions, Verdict};
use crate::conversation::Conversation;
use crate::instructed::Wanted;
use crate::output::TurnOutput;

/// The version of the API that the wire types are written for.
const VERSION: &str = "2023-06-01";
const TOKEN: &str = "ANTHROPIC_AUTH_TOKEN";
const KEY: &str = "ANTHROPIC_API_KEY";
pub(super) const BASE_URL: &str = "ANTHROPIC_BASE_URL";

/// The Messages API, as one turn calls it.
pub(super) struct Messages {
    settings: ConversationSettings,
    options: AnthropicOptions,
}

impl Api for Messages {
    const PROVIDER: &'static str = "anthropic";
    const TOOL: &'static str = "tool";
    const ADDRESS: Address = Address {
        variable: BASE_URL,
        default: "https://api.anthropic.com",
        path: "v1/messages",
        models: "v1/models",
    };
    const KEYS: &'static [&'static str] = &[TOKEN, KEY];

    type Input = AnthropicInput;
    type Options = AnthropicOptions;
    type Output = TurnOutput;
    type Response = PartialResponse;
    type Decoder = Decoder;
    type History = MessagesHistory;

    fn options(input: &AnthropicInput) -> Result<AnthropicOptions, AgentError> {
        Ok(input.options.clone().unwrap_or_default())
    }

    fn turn_options(options: &AnthropicOptions) -> TurnOptions<'_> {
        options.turn_options()
    }

    /// A token is for a gateway that was set up on purpose, so it goes before the key, and the key is not sent with it.
    fn headers(environment: &Environment) -> Result<HeaderMap, AgentError> {
        let secret = |name: &'static str| Some((name, environment.get(name)?.trim()));
        let (name, value) = secret(TOKEN).or_else(|| secret(KEY)).ok_or_else(|| no_key(KEY))?;
        let (header, value) = match name {
            TOKEN => (AUTHORIZATION, format!("Bearer {value}")),
            _ => (HeaderName::from_static("x-api-key"), value.to_owned()),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| {
            AgentError::new(ErrorCode::ConfigInvalid, format!("{name} holds what no key can hold"))
        })?;
        value.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(header, value);
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION));
        Ok(headers)
    }

    fn messages(input: &AnthropicInput) -> Result<Vec<Value>, AgentError> {
        request::messages(input)
    }

    /// The vendor stores none.
    fn history_owner(_: &ProviderSessionId) -> HistoryOwner {
        HistoryOwner::Inspan
    }

    fn prepare(
        options: &AnthropicOptions,
        session: &ProviderSessionId,
        conversation: &mut Conversation,
        messages: Vec<Value>,
    ) -> Result<Prepared<Self>, AgentError> {
        let settings =
            conversation.settings_of::<ConversationSettings>(Self::PROVIDER, session)?.with(options);
        conversation.settings = json!(settings);
        let schema = options.output_schema.as_ref();
        let open = schema.and_then(schema::open_place);
        let wanted = match (schema, &open) {
            (None, _) => OutputKind::Text,
            (Some(_), None) => OutputKind::Structured,
            (Some(schema), Some(_)) => OutputKind::Instructed(Wanted::of(schema)),
        };
        let earlier = std::mem::take(&mut conversation.messages);
        let history = MessagesHistory::new(session.clone(), earlier, messages, wanted);
        Ok(Prepared {
            api: Self { settings, options: options.clone() },
            history,
            warning: open.as_deref().map(not_strict),
        })
    }

    fn request(&self, history: &MessagesHistory, tools: &[ToolSpec]) -> Result<Vec<u8>, AgentError> {
        request::body(&self.settings, &self.options, tools, &history.state().messages)
    }

    fn judge(response: &PartialResponse) -> Verdict {
        outcome::judge(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::harness;

    fn account(pairs: &[(&str, &str)]) -> Result<Vec<String>, String> {
        harness::account::<Messages>(pairs, &["x-api-key", "authorization"])
    }

    #[test]
    fn the_environment_says_who_asks_and_where() {
        let usual = "https://api.anthropic.com/v1/messages";
        let list = |items: &[&str]| Ok(items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>());
        let (key, token) =
            (("ANTHROPIC_API_KEY", "planted-key"), ("ANTHROPIC_AUTH_TOKEN", "planted-token\n"));
        let base = |url| ("ANTHROPIC_BASE_URL", url);
        let wrong =
            "ANTHROPIC_BASE_URL is not an address that begins with http:// or https:// (CONFIG_INVALID)";
        let rows = [
            (account(&[key]), list(&[usual, "planted-key"])),
            (account(&[token]), list(&[usual, "Bearer planted-token"])),
            (account(&[key, token]), list(&[usual, "Bearer planted-token"])),
            (
                account(&[key, base("http://127.0.0.1:1/gate/")]),
                list(&["http://127.0.0.1:1/gate/v1/messages", "planted-key"]),
            ),
            (account(&[key, base("planted")]), Err(wrong.to_owned())),
            (account(&[key, base("file:///planted")]), Err(wrong.to_owned())),
            (
                account(&[]),
                Err("no API key; set ANTHROPIC_API_KEY in the environment (CONFIG_MISSING)".to_owned()),
            ),
            (
                account(&[("ANTHROPIC_API_KEY", "planted\nkey")]),
                Err("ANTHROPIC_API_KEY holds what no key can hold (CONFIG_INVALID)".to_owned()),
            ),
        ];
        for (seen, expected) in rows {
            assert_eq!(seen, expected);
        }
    }
}
