//! A Temporal server and the log that its workers share, as an address names them.

mod bucket;
#[cfg(feature = "sdk")]
mod server;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, str::FromStr, sync::Arc, time::Duration};

use inspan_engine::create_private_dir_all;
use inspan_protocol::{Environment, Redactor, Timestamp};
use object_store::{local::LocalFileSystem, path::Path};
use url::Url;

#[cfg(feature = "sdk")]
pub use server::ClusterStatus;

use crate::log::{LogError, LogKeys, SharedLog};

/// The port of a Temporal server.
const PORT: u16 = 7233;
/// After how long a worker that has not asked for work counts as gone; one that is alive asks about once a minute.
const POLL: Duration = Duration::from_secs(90);
/// How far the clock of the server may be from that of this machine, so that no worker that is alive counts as gone.
const SKEW: Duration = Duration::from_secs(120);
/// After how long without a sign a worker counts as lost.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// The shortest time that can be distinguished from a slow network.
const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(1);
/// From how many history events on a session warns, since it waits for the end of what it runs to continue in a new history.
/// Earlier versions began nothing from here on.
const VERY_LONG_HISTORY: u32 = 20_000;
/// From how many history events on a session begins nothing, until it can continue in a new history. The server's limit is
/// 51 200; the ends of what runs need the rest.
pub(crate) const LONGEST_HISTORY: u32 = 45_000;

/// Where sessions run: a Temporal server, and the log that its workers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    server: Url,
    namespace: String,
    queue: String,
    sessions: Url,
    heartbeat: Duration,
    /// The variables that hold the keys of the log.
    keys: Vec<String>,
    api_key: Option<String>,
}

/// Why a cluster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// It is no address.
    #[error("`{address}` is not an engine: {why}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The server does not answer.
    #[error("the Temporal server {server} does not answer: {why}")]
    Server {
        /// The server.
        server: String,
        /// Why.
        why: String,
    },
    /// The server lacks the namespace.
    #[error("the Temporal server {server} has no namespace `{namespace}`")]
    Namespace {
        /// The server.
        server: String,
        /// The namespace.
        namespace: String,
    },
    /// The folder or bucket of the sessions cannot be used.
    #[error("the sessions in {sessions} cannot be used: {why}")]
    Sessions {
        /// The folder or bucket.
        sessions: String,
        /// Why.
        why: String,
    },
    /// There is no key of this name.
    #[error("the environment variable {name}, which `key` in the engine's address names, {why}")]
    Key {
        /// The name of the variable.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The worker ended.
    #[error("the worker failed: {0}")]
    Worker(String),
}

impl FromStr for Cluster {
    type Err = EngineError;

    /// `temporal://HOST[:PORT][/NAMESPACE]?sessions=URL[&key=NAME[,OLD]][&queue=NAME][&heartbeat=SECONDS][&tls]`
    fn from_str(address: &str) -> Result<Self, EngineError> {
        let wrong = |why: String| {
            // Its options may hold by mistake what is a secret.
            let shown = address.split_once('?').map_or(address, |(shown, _)| shown).to_owned();
            EngineError::Address { address: shown, why }
        };
        if !address.starts_with("temporal://") {
            return Err(wrong("it does not begin with `temporal://`".to_owned()));
        }
        let url = Url::parse(address).map_err(|error| wrong(error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            let shown = "temporal://…".to_owned();
            let why =
                "it takes no name and no password: a key for the server is in TEMPORAL_API_KEY".to_owned();
            return Err(EngineError::Address { address: shown, why });
        }
        let host = url.host_str().ok_or_else(|| wrong("it names no host".to_owned()))?;
        let (mut queue, mut sessions, mut heartbeat, mut tls) = ("inspan".to_owned(), None, HEARTBEAT, false);
        let mut keys = Vec::new();
        let mut named = BTreeSet::new();
        for (key, value) in url.query_pairs() {
            if !named.insert(key.clone()) {
                return Err(wrong(format!("it has the option `{key}` twice")));
            }
            match &*key {
                "queue" if value.is_empty() => return Err(wrong("`queue` names no queue".to_owned())),
                "queue" => queue = value.into_owned(),
                "sessions" => sessions = Some(folder(&value).map_err(&wrong)?),
                "heartbeat" => {
                    let seconds =
                        value.parse().ok().filter(|seconds: &u64| *seconds >= SHORTEST_HEARTBEAT.as_secs());
                    let why = || wrong(format!("`heartbeat={value}` is not a number of seconds from 1 on"));
                    heartbeat = Duration::from_secs(seconds.ok_or_else(why)?);
                }
                "tls" if value.is_empty() => tls = true,
                "tls" => {
                    return Err(wrong(
                        "`tls` takes no value: leave it out to connect without TLS".to_owned(),
                    ));
                }
                "key" => keys = variables(&value).map_err(&wrong)?,
                other => {
                    return Err(wrong(format!(
                        "it has no option `{other}`: there are `sessions`, `key`, `queue`, `heartbeat`, `tls`"
                    )));
                }
            }
        }
        let sessions = sessions.ok_or_else(|| {
            wrong(
                "it does not say where the sessions are stored: add `?sessions=/FOLDER` or \
                 `?sessions=s3://BUCKET/FOLDER`"
                    .to_owned(),
            )
        })?;
        let scheme = if tls { "https" } else { "http" };
        let server = format!("{scheme}://{host}:{}", url.port().unwrap_or(PORT));
        let server = Url::parse(&server).map_err(|error| wrong(error.to_string()))?;
        let namespace = match url.path().trim_matches('/') {
            "" => "default".to_owned(),
            namespace if namespace.contains('/') => {
                return Err(wrong(format!("`{namespace}` is not a namespace")));
            }
            namespace => namespace.to_owned(),
        };
        Ok(Self { server, namespace, queue, sessions, heartbeat, keys, api_key: None })
    }
}

/// Where sessions are stored: a bucket, or the path of a folder.
fn folder(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if url.scheme() == "file" => Ok(url),
        Ok(url) if url.scheme() == "s3" && url.host_str().is_some_and(|bucket| !bucket.is_empty()) => {
            match url.username().is_empty() && url.password().is_none() && url.query().is_none() {
                true => Ok(url),
                false => {
                    Err("the credentials and the endpoint of a bucket belong into the environment".to_owned())
                }
            }
        }
        Ok(url) => Err(format!(
            "`sessions` has the form `{}:`: there are `/FOLDER`, `file:///FOLDER` and `s3://BUCKET/FOLDER`",
            url.scheme()
        )),
        Err(_) => Url::from_file_path(text)
            .map_err(|()| format!("`sessions={text}` is neither a URL nor the whole path of a folder")),
    }
}

/// The names of environment variables.
fn variables(text: &str) -> Result<Vec<String>, String> {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let names: Vec<_> = text.split(',').map(str::to_owned).collect();
    match names.iter().all(|name| is_name(name)) {
        true => Ok(names),
        // It is not repeated: it may be the key.
        false => {
            Err("`key` takes the names of environment variables that hold keys, such as `key=INSPAN_LOG_KEY`"
                .to_owned())
        }
    }
}

impl Cluster {
    /// The environment variables that hold the keys of its log. Programs of sessions must not see them.
    pub fn key_variables(&self) -> &[String] {
        &self.keys
    }

    fn keys(&self, environment: &Environment) -> Result<Option<LogKeys>, EngineError> {
        let wrong = |name: &String, why| EngineError::Key { name: name.clone(), why };
        let texts =
            self.keys.iter().map(|name| environment.get(name).ok_or_else(|| wrong(name, "is not set")));
        let texts: Vec<_> = texts.collect::<Result<_, _>>()?;
        if texts.is_empty() {
            return Ok(None);
        }
        let no_key = "holds no key, which is 32 bytes in base64: make one with `openssl rand -base64 32`";
        LogKeys::of(texts).map(Some).map_err(|number| wrong(&self.keys[number], no_key))
    }

    /// With a key for the server's API; it is sent over TLS.
    #[must_use]
    pub fn with_api_key(mut self, key: Option<String>) -> Self {
        self.api_key = key;
        self
    }

    /// The address without what only matters to programs, for people.
    pub fn name(&self) -> String {
        let host = self.server.host_str().unwrap_or_default();
        format!("temporal://{host}:{}/{}", self.server.port().unwrap_or(PORT), self.namespace)
    }

    /// The task queue of its workers.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// After how long without a sign a worker counts as lost.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// The log of its sessions; `environment` has the credentials of a bucket and the keys.
    pub fn log(&self, environment: &Environment) -> Result<SharedLog, EngineError> {
        let keys = self.keys(environment)?;
        let log = self.open_log(environment)?;
        Ok(match keys {
            Some(keys) => log.encrypted(keys),
            None => log,
        })
    }

    fn open_log(&self, environment: &Environment) -> Result<SharedLog, EngineError> {
        let failed = |why: String| EngineError::Sessions { sessions: self.sessions.to_string(), why };
        if self.sessions.scheme() == "file" {
            let folder = self.sessions.to_file_path().map_err(|()| failed("it is not a path".to_owned()))?;
            // What agents say is no neighbour's business.
            create_private_dir_all(&folder).map_err(|error| failed(error.to_string()))?;
            let objects = LocalFileSystem::new_with_prefix(&folder);
            let objects = objects.map_err(|error| failed(error.to_string()))?.with_fsync(true);
            return Ok(SharedLog::new(Arc::new(objects), Path::default()));
        }
        let redacted = |why: String| failed(Redactor::new(environment).text(&why));
        let (bucket, folder) = bucket::open(&self.sessions, environment).map_err(redacted)?;
        Ok(SharedLog::in_bucket(Arc::new(bucket), folder))
    }

    /// Whether the folder or bucket takes objects, each of them once, and the keys are those of its sessions.
    pub async fn check(&self, log: &SharedLog) -> Result<(), EngineError> {
        let failed = |error: LogError| EngineError::Sessions {
            sessions: self.sessions.to_string(),
            why: error.to_string(),
        };
        log.check().await.map_err(failed)?;
        log.check_keys().await.map_err(failed)
    }
}

/// From when on a worker that has asked for work counts as alive, by when all of them did last, in seconds of the server's clock:
/// it forgets one only after minutes. What this machine's clock says counts where none of them may be alive.
fn alive_since(seen: &[i64], now: Timestamp) -> i64 {
    let poll = POLL.as_secs() as i64;
    let surely_gone = now.as_millis() / 1_000 - poll - SKEW.as_secs() as i64;
    seen.iter().max().map_or(surely_gone, |newest| surely_gone.max(newest - poll))
}

/// Whether attempts begin at this length of the history. An old history may have been recorded by a version that did not
/// go on.
pub(crate) fn may_begin(history: u32, goes_on: impl FnOnce() -> bool) -> bool {
    history < VERY_LONG_HISTORY || (history < LONGEST_HISTORY && goes_on())
}
