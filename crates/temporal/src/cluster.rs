//! A Temporal server and the log that its workers share, as an address names them.

mod bucket;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, str::FromStr, sync::Arc, time::Duration};

use futures::TryFutureExt;
use inspan_engine::create_private_dir_all;
use inspan_protocol::{Environment, NodePath, Redactor, SessionId, Timestamp};
use inspan_store::async_trait;
use object_store::{local::LocalFileSystem, path::Path};
use temporalio_client::{
    Client, ClientKeepAliveOptions, ClientOptions, Connection, ConnectionOptions, TlsOptions, Url,
    WorkflowSignalOptions, WorkflowStartOptions,
    errors::ClientConnectError,
    tonic::{Code, IntoRequest, Response, Status},
};
use temporalio_common::protos::temporal::api::{
    common::v1::WorkflowExecution,
    enums::v1::{PendingActivityState, PendingWorkflowTaskState, TaskQueueType, WorkflowExecutionStatus},
    taskqueue::v1::{PollerInfo, TaskQueue},
    workflowservice::v1::{
        DescribeNamespaceRequest, DescribeTaskQueueRequest, DescribeWorkflowExecutionRequest,
        GetSystemInfoRequest,
    },
};
use tokio::sync::OnceCell;

use crate::{
    log::{LogError, LogKeys, SharedLog},
    store::{SessionWaker, SharedStore, WorkflowStatus},
    worker::AttemptQueue,
    workflow::{SessionInput, SessionWorkflow},
};

/// The port of a Temporal server.
const PORT: u16 = 7233;
/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How often the connection is tried while nothing comes, and for how long: a lost one is replaced before the server counts
/// a worker as lost. A server refuses clients that ask more often than every 10 seconds.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(5);
/// How often a server that is starting is asked whether it works.
const STARTING: Duration = Duration::from_millis(200);
/// After how long a worker that has not asked for work counts as gone; one that is alive asks about once a minute.
const POLL: Duration = Duration::from_secs(90);
/// How far the clock of the server may be from that of this machine, so that no worker that is alive counts as gone.
const SKEW: Duration = Duration::from_secs(120);
/// A decision that no worker has taken for so long waits for one: a worker that is free takes it at once.
const TAKEN: Duration = Duration::from_millis(500);
/// After how long another worker is asked for a decision that one does not give; one that works on it says so meanwhile.
const TURN: Duration = Duration::from_secs(2);
/// After how long without a sign a worker counts as lost.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// The shortest time that can be distinguished from a slow network.
const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(1);

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

/// What was found of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The version of its server.
    pub version: String,
    /// Its workers, each with its machine, process, version, pools and slots in words.
    pub workers: Vec<String>,
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

    /// A connection to the server.
    pub async fn connect(&self) -> Result<Client, EngineError> {
        self.connect_as(format!("inspan {}", std::process::id())).await
    }

    /// A connection to the server, under a name that people see there.
    pub(crate) async fn connect_as(&self, identity: String) -> Result<Client, EngineError> {
        let keep_alive = ClientKeepAliveOptions::builder().interval(PING).timeout(PONG).build();
        let options = ConnectionOptions::new(self.server.clone())
            .identity(identity)
            .connect_timeout(ANSWER)
            .keep_alive(Some(keep_alive))
            .maybe_api_key(self.api_key.clone())
            .maybe_tls_options((self.server.scheme() == "https").then(TlsOptions::default))
            .build();
        let connecting = async {
            loop {
                match Connection::connect(options.clone()).await {
                    // It listens, and is still starting.
                    Err(ClientConnectError::SystemInfoCallError(status))
                        if status.code() == Code::Unavailable =>
                    {
                        tokio::time::sleep(STARTING).await;
                    }
                    connected => break connected,
                }
            }
        };
        let connection = match tokio::time::timeout(ANSWER, connecting).await {
            Ok(connection) => connection.map_err(|error| self.silent(&error))?,
            Err(_) => return Err(self.silent(&format!("nothing came within {ANSWER:?}"))),
        };
        Client::new(connection, ClientOptions::new(self.namespace.clone()).build())
            .map_err(|error| self.silent(&error))
    }

    fn silent(&self, why: &dyn std::fmt::Display) -> EngineError {
        EngineError::Server { server: self.name(), why: why.to_string() }
    }

    /// What the server is, and who works for it. An error if it does not answer or lacks the namespace.
    pub async fn look(&self, now: Timestamp) -> Result<ClusterStatus, EngineError> {
        let client = self.connect().await?;
        let mut service = client.connection().workflow_service();
        let info = service.get_system_info(GetSystemInfoRequest::default().into_request());
        let version = self.answer(info).await?.server_version;
        self.check_namespace(&client).await?;
        let workers = self.pollers(&client, self.queue.clone(), TaskQueueType::Workflow, now).await?;
        Ok(ClusterStatus { version, workers })
    }

    /// An error if the server does not answer or lacks the namespace.
    async fn check_namespace(&self, client: &Client) -> Result<(), EngineError> {
        let namespace = DescribeNamespaceRequest { namespace: self.namespace.clone(), ..Default::default() };
        let mut service = client.connection().workflow_service();
        self.answer(service.describe_namespace(namespace.into_request())).await.map(drop)
    }

    /// Those of the pools whose attempts no worker takes now.
    pub async fn unserved<'p>(
        &self,
        pools: impl IntoIterator<Item = &'p str>,
        now: Timestamp,
    ) -> Result<Vec<&'p str>, EngineError> {
        let client = self.connect().await?;
        let mut unserved = Vec::new();
        for pool in pools {
            let queue = AttemptQueue::Pool(pool).name(&self.queue);
            if self.pollers(&client, queue, TaskQueueType::Activity, now).await?.is_empty() {
                unserved.push(pool);
            }
        }
        Ok(unserved)
    }

    /// The names of the workers that take from a queue.
    async fn pollers(
        &self,
        client: &Client,
        queue: String,
        kind: TaskQueueType,
        now: Timestamp,
    ) -> Result<Vec<String>, EngineError> {
        let asked = DescribeTaskQueueRequest {
            namespace: self.namespace.clone(),
            task_queue: Some(TaskQueue { name: queue, ..TaskQueue::default() }),
            task_queue_type: kind.into(),
            ..DescribeTaskQueueRequest::default()
        };
        let mut service = client.connection().workflow_service();
        let answer = self.answer(service.describe_task_queue(asked.into_request())).await?;
        let seconds = |poller: &PollerInfo| poller.last_access_time.map_or(0, |at| at.seconds);
        let seen: Vec<_> = answer.pollers.iter().map(seconds).collect();
        let alive = alive_since(&seen, now);
        let pollers = answer.pollers.iter().filter(|poller| seconds(poller) >= alive);
        let mut names: Vec<_> = pollers.map(|poller| poller.identity.clone()).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// What the server answers, unless it takes too long.
    async fn answer<T>(
        &self,
        asked: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, EngineError> {
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) if status.code() == Code::NotFound => {
                Err(EngineError::Namespace { server: self.name(), namespace: self.namespace.clone() })
            }
            Ok(Err(status)) => Err(self.silent(&status.message())),
            Err(_) => Err(self.silent(&"it took too long")),
        }
    }

    /// Tells a session that runs of something new in its log. One that does not run is not started by that.
    pub(crate) async fn notify(&self, client: &Client, session: &SessionId) -> Result<(), EngineError> {
        let handle = client.get_workflow_handle::<SessionWorkflow>(session.as_str());
        let asked = handle.signal(SessionWorkflow::wake, (), WorkflowSignalOptions::default());
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.silent(&error)),
            Err(_) => Err(self.silent(&"it took too long")),
        }
    }

    /// Whether and how a session's workflow runs. Whether a decision waits for a worker is asked twice: the server may be
    /// giving it to one right now.
    async fn status(&self, client: &Client, session: &SessionId) -> Result<WorkflowStatus, EngineError> {
        let first = self.status_now(client, session).await?;
        if first.undecided_since.is_none() {
            return Ok(first);
        }
        tokio::time::sleep(TAKEN).await;
        self.status_now(client, session).await
    }

    async fn status_now(&self, client: &Client, session: &SessionId) -> Result<WorkflowStatus, EngineError> {
        let asked = DescribeWorkflowExecutionRequest {
            namespace: self.namespace.clone(),
            execution: Some(WorkflowExecution { workflow_id: session.to_string(), run_id: String::new() }),
        };
        let mut service = client.connection().workflow_service();
        match self.answer(service.describe_workflow_execution(asked.into_request())).await {
            Ok(answer) => {
                let info = answer.workflow_execution_info.unwrap_or_default();
                let pending = answer.pending_activities.iter();
                let waiting = pending.filter(|activity| activity.state() == PendingActivityState::Scheduled);
                let waiting = waiting.filter_map(|activity| {
                    let (path, _attempt) = activity.activity_id.rsplit_once('.')?;
                    let options = activity.activity_options.as_ref();
                    let queue = options.and_then(|options| options.task_queue.as_ref());
                    let machine = queue.and_then(|queue| AttemptQueue::machine(&queue.name, &self.queue));
                    Some((NodePath::new(path), machine.map(str::to_owned)))
                });
                let waiting: Vec<_> = waiting.collect();
                let decision = answer.pending_workflow_task;
                let untaken = decision.filter(|task| task.state() == PendingWorkflowTaskState::Scheduled);
                let since = untaken.and_then(|task| task.original_scheduled_time.or(task.scheduled_time));
                let runs = info.status() == WorkflowExecutionStatus::Running;
                let is_own = info.task_queue == self.queue;
                Ok(WorkflowStatus {
                    runs: runs && is_own,
                    other_queue: (runs && !is_own).then_some(info.task_queue),
                    waiting_for_worker: waiting.iter().map(|(path, _)| path.clone()).collect(),
                    waiting_for_machine: waiting
                        .into_iter()
                        .filter_map(|(path, machine)| Some((path, machine?)))
                        .collect(),
                    undecided_since: since
                        .filter(|_| runs && is_own)
                        .map(|at| Timestamp::from_millis(at.seconds * 1_000)),
                })
            }
            // It is the workflow that is not there, unless the namespace is not.
            Err(EngineError::Namespace { .. }) => {
                self.check_namespace(client).await.map(|()| WorkflowStatus::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Has a session decided about: its workflow is started if it does not run.
    pub(crate) async fn wake(&self, client: &Client, session: &SessionId) -> Result<(), EngineError> {
        let input = SessionInput {
            session: session.clone(),
            heartbeat_ms: self.heartbeat.as_millis() as u64,
            queue: self.queue.clone(),
        };
        let options =
            WorkflowStartOptions::new(self.queue.clone(), session.to_string()).task_timeout(TURN).build();
        let asked = client.signal_with_start_workflow(
            SessionWorkflow::run,
            input,
            SessionWorkflow::wake,
            (),
            options,
        );
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.silent(&error)),
            Err(_) => Err(self.silent(&"it took too long")),
        }
    }

    /// The sessions as a store; a request to one wakes it.
    pub fn store(&self, log: SharedLog) -> SharedStore {
        let waker = ClusterWaker { cluster: self.clone(), client: OnceCell::new() };
        SharedStore::new(log, self.name()).with_waker(waker)
    }
}

/// From when on a worker that has asked for work counts as alive, by when all of them did last, in seconds of the server's clock:
/// it forgets one only after minutes. What this machine's clock says counts where none of them may be alive.
fn alive_since(seen: &[i64], now: Timestamp) -> i64 {
    let poll = POLL.as_secs() as i64;
    let surely_gone = now.as_millis() / 1_000 - poll - SKEW.as_secs() as i64;
    seen.iter().max().map_or(surely_gone, |newest| surely_gone.max(newest - poll))
}

/// Wakes the sessions of a cluster, over one connection.
struct ClusterWaker {
    cluster: Cluster,
    client: OnceCell<Client>,
}

impl ClusterWaker {
    async fn client(&self) -> Result<&Client, EngineError> {
        self.client.get_or_try_init(|| self.cluster.connect()).await
    }
}

#[async_trait]
impl SessionWaker for ClusterWaker {
    async fn status(&self, session: &SessionId) -> Result<WorkflowStatus, String> {
        let status = async { self.cluster.status(self.client().await?, session).await };
        status.map_err(|error| error.to_string()).await
    }

    async fn wake(&self, session: &SessionId) -> Result<(), String> {
        let wake = async { self.cluster.wake(self.client().await?, session).await };
        wake.map_err(|error| error.to_string()).await
    }
}
