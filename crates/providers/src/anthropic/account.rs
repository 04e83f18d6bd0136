//! Who asks and where: the key and the address, as the environment of the call has them.
//! What is asked is left to `request.rs`.

use inspan_protocol::{AgentError, Environment, ErrorCode};
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::account::{Account, Address, no_key, status};
use crate::status::ServiceStatus;

const ADDRESS: Address = Address { variable: BASE_URL, usual: "https://api.anthropic.com" };
/// The list of models, which costs nothing.
const MODELS: &str = "v1/models";
const PATH: &str = "v1/messages";
/// The version of the API that the wire types are written for.
const VERSION: &str = "2023-06-01";
const TOKEN: &str = "ANTHROPIC_AUTH_TOKEN";
const KEY: &str = "ANTHROPIC_API_KEY";
pub(super) const BASE_URL: &str = "ANTHROPIC_BASE_URL";

/// Where requests go and which variable holds the key, as far as the environment tells. No value of a key is shown.
pub fn probe_anthropic(environment: &Environment) -> ServiceStatus {
    let key = [TOKEN, KEY].into_iter().find(|name| environment.get(name).is_some());
    status(super::TYPE, ADDRESS.of(environment, PATH), key, of(environment))
}

/// The account of an environment. A token is for a gateway that someone set up on purpose, so it goes before the key,
/// and the key does not go to that gateway.
pub(super) fn of(environment: &Environment) -> Result<Account, AgentError> {
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
    Ok(Account::new(ADDRESS.of(environment, PATH)?, headers))
}

/// Where the list of models is.
pub(super) fn models(environment: &Environment) -> Result<Url, AgentError> {
    ADDRESS.of(environment, MODELS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(pairs: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let environment: Environment =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let account = of(&environment).map_err(|error| error.to_string())?;
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
