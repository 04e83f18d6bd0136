//! What a cluster asks its Temporal server, and the sessions that it wakes there.

use std::time::Duration;

use futures::TryFutureExt;
use inspan_protocol::{NodePath, SessionId, Timestamp};
use inspan_store::async_trait;
use temporalio_client::{
    Client, ClientKeepAliveOptions, ClientOptions, Connection, ConnectionOptions, TlsOptions,
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

use super::{Cluster, EngineError, alive_since};
use crate::{
    log::SharedLog,
    store::{SessionWaker, SharedStore, WorkflowStatus},
    worker::AttemptQueue,
    workflow::{SessionInput, SessionWorkflow},
};

/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How often the connection is tried while nothing comes, and for how long: a lost one is replaced before the server counts
/// a worker as lost. A server refuses clients that ask more often than every 10 seconds.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(5);
/// How often a server that is starting is asked whether it works.
const STARTING: Duration = Duration::from_millis(200);
/// A decision that no worker has taken for so long waits for one: a worker that is free takes it at once.
const TAKEN: Duration = Duration::from_millis(500);
/// After how long another worker is asked for a decision that one does not give; one that works on it says so meanwhile.
const TURN: Duration = Duration::from_secs(2);

/// What was found of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The version of its server.
    pub version: String,
    /// Its workers, each with its machine, process, version, pools and slots in words.
    pub workers: Vec<String>,
}

impl Cluster {
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
