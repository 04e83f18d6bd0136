//! A Temporal cluster: its sessions as a store, and the worker of this machine.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fs,
    io::{self, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use inspan_engine::{Clock, Hub, IdSource as _, RandomIds, SystemClock, create_private_dir_all};
use inspan_flow::{
    FlowRunResult, Graph, Owner, Resume, RunError, RunStore, SessionEntry, SessionRecord, StoreError,
    Verdict, WhenWaiting,
};
use inspan_protocol::{Command, SessionId, SessionStatus};
use inspan_sessions::RESPONSE;
use inspan_temporal::{
    Cluster, ClusterStatus, DEFAULT_POOL, EngineError, SharedLog, SharedStore, WorkerSettings, run_worker,
};
use tempfile::NamedTempFile;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{EngineReport, Outage};
use crate::{
    args::WorkerArgs,
    commands::session::SessionsHere,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, SERVER_KEY},
    terminal,
};

/// How many characters distinguish machines whose hosts have the same name.
const NAME_OF_STATE: usize = 8;
/// After how long without a decision a session's client warns.
const UNDECIDED: Duration = Duration::from_secs(10);

/// A cluster that runs sessions.
#[derive(Clone)]
pub(crate) struct Engine {
    cluster: Cluster,
    log: SharedLog,
    store: Arc<SharedStore>,
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Address { .. } => Self::usage(error.to_string())
                .with_hint("`temporal://HOST[:PORT][/NAMESPACE]?sessions=SESSIONS`, with `/FOLDER` or `s3://BUCKET/FOLDER` for SESSIONS"),
            _ => Self::new(Exit::Configuration, error.to_string()),
        }
    }
}

impl Engine {
    /// The cluster that the call names.
    pub(crate) fn of(invocation: &Invocation) -> Result<Option<Self>, Failure> {
        let Some(address) = &invocation.engine else { return Ok(None) };
        if invocation.store.is_some() {
            let why = "`--store` names a store of this machine, and a cluster has its sessions where `sessions` in its address says";
            return Err(Failure::usage(why).with_hint("leave it out, or add `--engine local`"));
        }
        let key = invocation.env.get(SERVER_KEY).map(str::to_owned);
        let cluster = address.parse::<Cluster>()?.with_api_key(key);
        let log = cluster.log(&invocation.env)?;
        let store = Arc::new(cluster.store(log.clone()));
        Ok(Some(Self { cluster, log, store }))
    }

    /// The environment variables with the keys of a cluster's log, which its sessions must not see.
    pub(crate) fn key_variables(address: &str) -> Vec<String> {
        address.parse::<Cluster>().map_or_else(|_| Vec::new(), |cluster| cluster.key_variables().to_vec())
    }

    /// Its sessions.
    pub(crate) fn run_store(&self) -> Arc<dyn RunStore> {
        Arc::<SharedStore>::clone(&self.store)
    }

    /// Stores a new session and has it started. Warns if no worker would run some of its nodes now.
    pub(crate) async fn start(&self, record: &SessionRecord, graph: &Graph) -> Result<(), RunError> {
        self.store.add(record).await?;
        let pools = pools(graph).into_iter().map(|pool| pool.unwrap_or(DEFAULT_POOL));
        // The session has begun: a server that does not answer now is no error of it.
        for pool in self.cluster.unserved(pools, SystemClock.now()).await.unwrap_or_default() {
            let option = if pool == DEFAULT_POOL { String::new() } else { format!(" --pool {pool}") };
            terminal::progress(&format!(
                "warning: no worker takes nodes of the pool `{pool}` now; they wait for `inspan worker{option}`\n"
            ));
        }
        Ok(())
    }

    /// The only id with which a session can be continued, if there is one.
    pub(crate) async fn claimed(&self, session: &SessionId) -> Result<Option<SessionId>, StoreError> {
        self.store.claimed(session).await
    }

    /// Asks a paused session to continue. Gives the number of the request.
    pub(crate) async fn resume(&self, session: &SessionId, resume: Resume) -> Result<u64, StoreError> {
        self.store.resume(session, resume, SystemClock.now()).await
    }

    /// Relays a session's events to a hub until it ends or waits. Warns if no worker seems to know of it.
    pub(crate) async fn follow(
        &self,
        session: &SessionId,
        graph: &Arc<Graph>,
        hub: &Hub,
        seen: &mut u64,
        when_waiting: WhenWaiting,
    ) -> Result<FlowRunResult, RunError> {
        let warning = async {
            tokio::time::sleep(UNDECIDED).await;
            let is_undecided = |entry: SessionEntry| {
                entry.digest.last_seq == 0 || entry.digest.status == SessionStatus::Paused
            };
            if self.store.entry(session).await.is_ok_and(is_undecided) {
                terminal::progress(&format!(
                    "warning: no worker has decided about session `{session}` for {UNDECIDED:?}: check with `inspan \
                     doctor` that one works, and that `sessions` in its address is the folder or bucket that it is here\n"
                ));
            }
            std::future::pending::<Infallible>().await
        };
        let following = async {
            let mut outage = Outage::default();
            loop {
                let began = Instant::now();
                match self.store.follow(session, graph, hub, seen, when_waiting).await {
                    // The folder of a mount that is away is an empty one.
                    Err(RunError::Store(away @ (StoreError::Shared(_) | StoreError::UnknownSession(_))))
                        if outage.survives(began, &away).await => {}
                    ended => return ended,
                }
            }
        };
        tokio::select! {
            ended = following => ended,
            never = warning => match never {},
        }
    }

    /// The answer to a request, unless it takes longer than a command waits.
    pub(crate) async fn answered(
        &self,
        session: &SessionId,
        number: u64,
    ) -> Result<Option<Verdict>, StoreError> {
        let mut changes = self.store.changes();
        let answered = async {
            loop {
                if let Some(answer) = self.store.answer(session, number).await? {
                    return Ok(Some(answer));
                }
                changes.next().await;
            }
        };
        tokio::time::timeout(RESPONSE, answered).await.unwrap_or(Ok(None))
    }

    /// Asks something of a session, without waiting for its answer: the log shows it. Gives the number of the request.
    pub(crate) async fn post(&self, session: &SessionId, command: &Command) -> Result<u64, StoreError> {
        self.store.post(session, command, SystemClock.now()).await
    }

    /// What its server says.
    pub(crate) async fn look(&self) -> EngineReport {
        let name = self.cluster.name();
        match self.cluster.look(SystemClock.now()).await {
            Ok(ClusterStatus { version, workers }) => {
                EngineReport { name, version: Some(version), workers, problem: None }
            }
            Err(error) => EngineReport { name, problem: Some(error.to_string()), ..EngineReport::default() },
        }
    }

    /// Its address, for people.
    pub(crate) fn name(&self) -> String {
        self.cluster.name()
    }

    /// Takes attempts until it is stopped.
    pub(crate) async fn work(
        &self,
        invocation: &Invocation,
        args: &WorkerArgs,
        stop: CancellationToken,
    ) -> Result<(), Failure> {
        self.cluster.check(&self.log).await?;
        let host = Arc::new(SessionsHere::new(invocation));
        let state = invocation.state_folder().ok_or_else(|| {
            Failure::new(Exit::Configuration, "there is no folder for the locks of running attempts")
                .with_hint("set `HOME` or `INSPAN_HOME`")
        })?;
        let (machine, former) = match &args.machine {
            Some(name) => (name.clone(), None),
            None => {
                let host = Owner::of_process().host;
                let own = machine(&host, &state).map_err(|error| {
                    let folder = state.display();
                    Failure::new(Exit::Configuration, format!("this machine has no name: {folder}: {error}"))
                        .with_hint("make the folder writable, or name the machine: `--machine NAME`")
                })?;
                (own, Some(host))
            }
        };
        let settings = WorkerSettings {
            slots: usize::from(args.slots),
            machine,
            former,
            pools: pools_of(args),
            locks: state.join("locks"),
        };
        Ok(run_worker(&self.cluster, self.log.clone(), host, Arc::new(SystemClock), settings, stop).await?)
    }
}

/// The name of a machine whose workers have none: that of its host, and what distinguishes its folder for states from those
/// of other hosts of this name.
fn machine(host: &str, state: &Path) -> io::Result<String> {
    create_private_dir_all(state)?;
    let file = state.join("machine");
    if !file.exists() {
        let id = RandomIds::new().session_id();
        let mut new = NamedTempFile::new_in(state)?;
        let start = id.as_str().len().saturating_sub(NAME_OF_STATE);
        writeln!(new, "{}", &id.as_str()[start..])?;
        // Another worker may have been faster.
        match new.persist_noclobber(&file) {
            Err(failed) if failed.error.kind() != io::ErrorKind::AlreadyExists => return Err(failed.error),
            _ => {}
        }
    }
    Ok(format!("{host}-{}", fs::read_to_string(file)?.trim()))
}

/// The pools that a worker takes nodes of, each once.
fn pools_of(args: &WorkerArgs) -> Vec<String> {
    let named: BTreeSet<_> = args.pools.iter().cloned().collect();
    if named.is_empty() { vec![DEFAULT_POOL.to_owned()] } else { named.into_iter().collect() }
}

/// The pools of machines that a flow needs; absent is that of nodes without one.
fn pools(graph: &Graph) -> BTreeSet<Option<&str>> {
    let nodes = graph.bodies.iter().flat_map(|body| &body.nodes);
    let works = nodes.filter(|node| node.kind.needs_machine(node.occupies));
    works.map(|node| node.pool.as_deref()).collect()
}
