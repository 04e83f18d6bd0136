//! Who asks and where: the key and the address, as the environment of the call has them.
//! What is asked is left to `request.rs`.

use inspan_protocol::{AgentError, Environment, ErrorCode};
use reqwest::Url;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use crate::status::ServiceStatus;

const ADDRESS: &str = "https://api.anthropic.com";
/// The list of models, which costs nothing.
const MODELS: &str = "v1/models";
const PATH: &str = "v1/messages";
/// The version of the API that the wire types are written for.
const VERSION: &str = "2023-06-01";
const TOKEN: &str = "ANTHROPIC_AUTH_TOKEN";
const KEY: &str = "ANTHROPIC_API_KEY";
const BASE_URL: &str = "ANTHROPIC_BASE_URL";

/// An account to ask with.
pub(super) struct Account {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
}

/// Where requests go and which variable holds the key, as far as the environment tells. No value of a key is shown.
pub fn probe_anthropic(environment: &Environment) -> ServiceStatus {
    let account = Account::of(environment);
    ServiceStatus {
        provider: super::TYPE.to_owned(),
        // An address may hold a password, so only its host is told.
        host: address(environment, PATH).ok().and_then(|url| url.host_str().map(str::to_owned)),
        key: [TOKEN, KEY].into_iter().find(|name| environment.get(name).is_some()).map(str::to_owned),
        problem: account.err().map(|error| error.message),
    }
}

impl Account {
    /// The account of an environment. A token is for a gateway that someone set up on purpose, so it goes before the
    /// key, and the key does not go to that gateway.
    pub(super) fn of(environment: &Environment) -> Result<Self, AgentError> {
        let secret = |name: &'static str| Some((name, environment.get(name)?.trim()));
        let (name, value) = secret(TOKEN).or_else(|| secret(KEY)).ok_or_else(|| {
            AgentError::new(
                ErrorCode::ConfigMissing,
                format!("there is no key; set {KEY} in the environment"),
            )
        })?;
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
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        Ok(Self { url: address(environment, PATH)?, headers })
    }
}

/// Where the list of models is.
pub(super) fn models(environment: &Environment) -> Result<Url, AgentError> {
    address(environment, MODELS)
}

fn address(environment: &Environment, path: &str) -> Result<Url, AgentError> {
    let base = environment.get(BASE_URL).unwrap_or(ADDRESS).trim().trim_end_matches('/');
    let url =
        Url::parse(&format!("{base}/{path}")).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| {
        let message = format!("{BASE_URL} is no address that begins with http:// or https://");
        AgentError::new(ErrorCode::ConfigInvalid, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(pairs: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let environment: Environment =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let account = Account::of(&environment).map_err(|error| error.to_string())?;
        let shown = format!("{:?}", account.headers);
        assert!(!shown.contains("planted"), "{shown}");
        let get =
            |name: &str| account.headers.get(name).map(|value| value.to_str().unwrap_or("?").to_owned());
        Ok([Some(account.url.to_string()), get("x-api-key"), get("authorization")]
            .into_iter()
            .flatten()
            .collect())
    }

    #[test]
    fn the_environment_says_who_asks_and_where() {
        let usual = "https://api.anthropic.com/v1/messages";
        let list = |items: &[&str]| Ok(items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>());
        let (key, token) =
            (("ANTHROPIC_API_KEY", "planted-key"), ("ANTHROPIC_AUTH_TOKEN", "planted-token\n"));
        let base = |url| ("ANTHROPIC_BASE_URL", url);
        let wrong = "ANTHROPIC_BASE_URL is no address that begins with http:// or https:// (CONFIG_INVALID)";
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
                Err("there is no key; set ANTHROPIC_API_KEY in the environment (CONFIG_MISSING)".to_owned()),
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
