//! Who asks a service and where: what the accounts of all services share. Which variables hold a key, and in which
//! header it goes, is left to the adapters.

use inspan_protocol::{AgentError, Environment, ErrorCode};
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::status::ServiceStatus;

/// An account to ask with.
pub(crate) struct Account {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
}

impl Account {
    /// An account that asks here, with the headers that say who asks.
    pub(crate) fn new(url: Url, mut headers: HeaderMap) -> Self {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        Self { url, headers }
    }
}

/// Where a service is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The variable that names another place.
    pub(crate) variable: &'static str,
    /// Where it is without one.
    pub(crate) usual: &'static str,
}

impl Address {
    /// The address of something that the service has.
    pub(crate) fn of(&self, environment: &Environment, path: &str) -> Result<Url, AgentError> {
        let base = environment.get(self.variable).unwrap_or(self.usual).trim().trim_end_matches('/');
        let url =
            Url::parse(&format!("{base}/{path}")).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        url.ok_or_else(|| {
            let message = format!("{} is no address that begins with http:// or https://", self.variable);
            AgentError::new(ErrorCode::ConfigInvalid, message)
        })
    }
}

/// The error for an environment in which no key is.
pub(crate) fn no_key(variable: &str) -> AgentError {
    AgentError::new(ErrorCode::ConfigMissing, format!("there is no key; set {variable} in the environment"))
}

/// What is known of a service before it is asked: where it is, which variable holds the key, and whether there is an
/// account.
pub(crate) fn status(
    provider: &str,
    url: Result<Url, AgentError>,
    key: Option<&str>,
    account: Result<Account, AgentError>,
) -> ServiceStatus {
    ServiceStatus {
        provider: provider.to_owned(),
        // An address may hold a password, so only its host is told.
        host: url.ok().and_then(|url| url.host_str().map(str::to_owned)),
        key: key.map(str::to_owned),
        problem: account.err().map(|error| error.message),
    }
}
