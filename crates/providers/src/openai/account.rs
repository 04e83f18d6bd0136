//! Who asks and where: the key and the address, as the environment of the call has them.
//! What is asked is left to `request.rs`.

use inspan_protocol::{AgentError, Environment, ErrorCode};
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::account::{Account, Address, no_key, status};
use crate::status::ServiceStatus;

const ADDRESS: Address = Address { variable: BASE_URL, usual: "https://api.openai.com/v1" };
/// The list of models, which costs nothing.
const MODELS: &str = "models";
const PATH: &str = "responses";
const KEY: &str = "OPENAI_API_KEY";
pub(super) const BASE_URL: &str = "OPENAI_BASE_URL";
/// Headers that say for whom the key asks, and the variables that name them; the first that is set counts.
const OWNERS: [(&str, &[&str]); 2] = [
    ("openai-organization", &["OPENAI_ORG_ID", "OPENAI_ORGANIZATION"]),
    ("openai-project", &["OPENAI_PROJECT_ID", "OPENAI_PROJECT"]),
];

/// Where requests go and which variable holds the key, as far as the environment tells. No value of a key is shown.
pub fn probe_openai(environment: &Environment) -> ServiceStatus {
    let key = environment.get(KEY).map(|_| KEY);
    status(super::TYPE, ADDRESS.of(environment, PATH), key, of(environment))
}

/// The account of an environment.
pub(super) fn of(environment: &Environment) -> Result<Account, AgentError> {
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
        let seen = [
            Some(account.url.to_string()),
            get("authorization"),
            get("openai-organization"),
            get("openai-project"),
        ];
        Ok(seen.into_iter().flatten().collect())
    }

    #[test]
    fn the_environment_says_who_asks_and_where() {
        let usual = "https://api.openai.com/v1/responses";
        let list = |items: &[&str]| Ok(items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>());
        let key = ("OPENAI_API_KEY", "planted-key\n");
        let base = |url| ("OPENAI_BASE_URL", url);
        let wrong = "OPENAI_BASE_URL is no address that begins with http:// or https:// (CONFIG_INVALID)";
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
                Err("there is no key; set OPENAI_API_KEY in the environment (CONFIG_MISSING)".to_owned()),
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
        let status = probe_openai(&environment);
        assert!(!format!("{status:?}").contains("planted"));
        assert_eq!(
            (status.host.as_deref(), status.key.as_deref(), status.problem),
            (Some("127.0.0.1"), Some("OPENAI_API_KEY"), None)
        );
        let missing = probe_openai(&Environment::default());
        assert_eq!(
            (missing.key, missing.problem.as_deref()),
            (None, Some("there is no key; set OPENAI_API_KEY in the environment"))
        );
    }
}
