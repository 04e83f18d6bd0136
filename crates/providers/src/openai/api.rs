//! The Responses API as the runtime of APIs needs it: its account, requests and responses.

use inspan_protocol::{AgentError, Environment, ErrorCode, ErrorKind, ProviderSessionId, ToolSpec};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::OpenAiOutput;
use super::decode::{Decoder, PartialResponse};
use super::history::ResponsesHistory;
use super::options::{OpenAiInput, OpenAiOptions};
use super::outcome;
use super::request::{self, ConversationSettings, Thread};
use super::schema::VendorSchema;
use crate::api::account::{Address, no_key};
use crate::api::{Api, HistoryOwner, Prepared, TurnOptions, Verdict};
use crate::conversation::Conversation;
use crate::error::{no_turn, not_found};

const KEY: &str = "OPENAI_API_KEY";
pub(super) const BASE_URL: &str = "OPENAI_BASE_URL";
/// Headers that name the owner of the key, and the variables for them; the first that is set counts.
const OWNERS: [(&str, &[&str]); 2] = [
    ("openai-organization", &["OPENAI_ORG_ID", "OPENAI_ORGANIZATION"]),
    ("openai-project", &["OPENAI_PROJECT_ID", "OPENAI_PROJECT"]),
];

/// The Responses API, as one turn calls it.
pub(super) struct Responses {
    settings: ConversationSettings,
    /// The conversation by its id when the turn began.
    thread: Thread,
}

impl Api for Responses {
    const PROVIDER: &'static str = "openai";
    const TOOL: &'static str = "function";
    const ADDRESS: Address = Address {
        variable: BASE_URL,
        default: "https://api.openai.com/v1",
        path: "responses",
        models: "models",
    };
    const KEYS: &'static [&'static str] = &[KEY];

    type Input = OpenAiInput;
    type Options = OpenAiOptions;
    type Output = OpenAiOutput;
    type Response = PartialResponse;
    type Decoder = Decoder;
    type History = ResponsesHistory;

    fn options(input: &OpenAiInput) -> Result<OpenAiOptions, AgentError> {
        input.settled()
    }

    fn turn_options(options: &OpenAiOptions) -> TurnOptions<'_> {
        options.turn_options()
    }

    fn headers(environment: &Environment) -> Result<HeaderMap, AgentError> {
        let key = environment.get(KEY).ok_or_else(|| no_key(KEY))?;
        let value = |name: &str, value: &str| {
            HeaderValue::from_str(value).map_err(|_| {
                AgentError::new(ErrorCode::ConfigInvalid, format!("{name} holds what no header can hold"))
            })
        };
        let mut bearer = value(KEY, &format!("Bearer {}", key.trim()))?;
        bearer.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, bearer);
        for (header, names) in OWNERS {
            if let Some((name, owner)) = names.iter().find_map(|name| Some((name, environment.get(name)?))) {
                headers.insert(HeaderName::from_static(header), value(name, owner.trim())?);
            }
        }
        Ok(headers)
    }

    fn messages(input: &OpenAiInput) -> Result<Vec<Value>, AgentError> {
        request::messages(input)
    }

    fn history_owner(session: &ProviderSessionId) -> HistoryOwner {
        match Thread::of(session.clone()) {
            Thread::Own(_) => HistoryOwner::Inspan,
            Thread::Conversation(_) | Thread::Response(_) => HistoryOwner::Vendor,
        }
    }

    fn prepare(
        options: &OpenAiOptions,
        session: &ProviderSessionId,
        conversation: &mut Conversation,
        messages: Vec<Value>,
    ) -> Result<Prepared<Self>, AgentError> {
        let thread = Thread::of(session.clone());
        if options.fork == Some(true) && matches!(thread, Thread::Conversation(_)) {
            let message = format!("the conversation {session} is the vendor's, which cannot branch it");
            return Err(AgentError::new(ErrorCode::InvalidRequest, message).with_kind(ErrorKind::NotOffered));
        }
        if let (Some(at), Thread::Response(_)) = (&options.fork_at, &thread) {
            return Err(no_turn(at));
        }
        let settings =
            conversation.settings_of::<ConversationSettings>(Self::PROVIDER, session)?.with(options);
        conversation.settings = json!(settings);
        let form = options.output_schema.as_ref().map(VendorSchema::of);
        let warning = form.as_ref().and_then(VendorSchema::warning);
        let items = std::mem::take(&mut conversation.messages);
        let history = ResponsesHistory::new(thread.clone(), items, messages, form);
        Ok(Prepared { api: Self { settings, thread }, history, warning })
    }

    fn request(&self, history: &ResponsesHistory, tools: &[ToolSpec]) -> Result<Vec<u8>, AgentError> {
        request::body(&self.settings, &history.thread, history.form.as_ref(), tools, history.next())
    }

    fn judge(response: &PartialResponse) -> Verdict {
        outcome::judge(response)
    }

    /// The vendor has no code for an unknown conversation; only the message says it.
    fn explain(&self, error: AgentError) -> AgentError {
        let session = self.thread.session();
        let named = error.message.contains(session.as_str()) && error.message.contains("not found");
        if matches!(self.thread, Thread::Own(_)) || error.code != ErrorCode::InvalidRequest || !named {
            return error;
        }
        let not_found = not_found(session);
        AgentError { detail: error.detail, ..not_found }.with_kind(ErrorKind::SessionNotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::probe;
    use crate::api::tests::harness;
    use inspan_protocol::Probe;

    fn account(pairs: &[(&str, &str)]) -> Result<Vec<String>, String> {
        harness::account::<Responses>(pairs, &["authorization", "openai-organization", "openai-project"])
    }

    #[test]
    fn the_environment_says_who_asks_and_where() {
        let usual = "https://api.openai.com/v1/responses";
        let list = |items: &[&str]| Ok(items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>());
        let key = ("OPENAI_API_KEY", "planted-key\n");
        let base = |url| ("OPENAI_BASE_URL", url);
        let wrong = "OPENAI_BASE_URL is not an address that begins with http:// or https:// (CONFIG_INVALID)";
        let rows = [
            (account(&[key]), list(&[usual, "Bearer planted-key"])),
            (
                account(&[key, ("OPENAI_ORG_ID", "org-1"), ("OPENAI_PROJECT", "proj-1")]),
                list(&[usual, "Bearer planted-key", "org-1", "proj-1"]),
            ),
            (
                account(&[key, ("OPENAI_PROJECT_ID", "proj-2"), ("OPENAI_PROJECT", "proj-1")]),
                list(&[usual, "Bearer planted-key", "proj-2"]),
            ),
            (
                account(&[key, base("http://127.0.0.1:1/gate/v1/")]),
                list(&["http://127.0.0.1:1/gate/v1/responses", "Bearer planted-key"]),
            ),
            (account(&[key, base("planted")]), Err(wrong.to_owned())),
            (account(&[key, base("file:///planted")]), Err(wrong.to_owned())),
            (
                account(&[]),
                Err("no API key; set OPENAI_API_KEY in the environment (CONFIG_MISSING)".to_owned()),
            ),
            (
                account(&[("OPENAI_API_KEY", "planted\nkey")]),
                Err("OPENAI_API_KEY holds what no header can hold (CONFIG_INVALID)".to_owned()),
            ),
            (
                account(&[key, ("OPENAI_ORG_ID", "planted\norg")]),
                Err("OPENAI_ORG_ID holds what no header can hold (CONFIG_INVALID)".to_owned()),
            ),
        ];
        for (seen, expected) in rows {
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_probe_tells_the_host_and_no_secret() {
        let environment: Environment =
            [("OPENAI_API_KEY", "planted"), ("OPENAI_BASE_URL", "http://user:planted@127.0.0.1:1/v1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .collect();
        let Probe::Service(status) = probe::<Responses>(&environment) else { panic!("a service") };
        assert!(!format!("{status:?}").contains("planted"));
        assert_eq!(
            (status.host.as_deref(), status.key.as_deref(), status.problem),
            (Some("127.0.0.1"), Some("OPENAI_API_KEY"), None)
        );
        let Probe::Service(missing) = probe::<Responses>(&Environment::default()) else {
            panic!("a service")
        };
        assert_eq!(
            (missing.key, missing.problem.as_deref()),
            (None, Some("no API key; set OPENAI_API_KEY in the environment"))
        );
    }
}
