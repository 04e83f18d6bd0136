//! What a session is built from, piece by piece, with a default for each.

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use inspan_engine::{
    Clock, DynChannel, Filter, Hub, IdSource, LaterClock, NodeCalls, RandomIds, SystemClock,
};
use inspan_flow_core::{FACTS, Graph, Parent, Reusable};
use inspan_protocol::{Environment, Host, HostTools, PermissionPolicy, RunSnapshot, SessionId, Supervisor};
use inspan_store::{Owner, RunStore};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};

use super::{
    Artifacts, AttemptContext, EndOfSession, FlowRunner, QUESTIONS, RunHandle, Stays, WhenWaiting,
    event_writer::Notice,
    origin::{Beginning, Changed, IdleSession, Origin, lineage},
};
use crate::{error::RunError, node::NodeRegistry};

/// Builds a [`FlowRunner`].
pub struct FlowRunnerBuilder {
    pub(super) graph: Arc<Graph>,
    pub(super) nodes: NodeRegistry,
    session: Option<SessionId>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    pub(super) channels: Vec<Arc<dyn DynChannel>>,
    pub(super) store: Option<Arc<dyn RunStore>>,
    host: Host,
    /// Variables that programs do not see unless the flow names them.
    hidden: BTreeSet<String>,
    calls: NodeCalls,
    /// The folder of all sessions.
    artifacts: Option<Artifacts>,
    pub(super) max_concurrency: Option<u32>,
    pub(super) owner: Option<Owner>,
    pub(super) parent: Option<Parent>,
    pub(super) settings: Map<String, Value>,
    pub(super) reusable: Option<Arc<Reusable>>,
    /// Whether a session takes over only what it is given here.
    takes_no_more: bool,
    /// The input, unless a run gives another.
    pub(super) input: Map<String, Value>,
    pub(super) when_waiting: WhenWaiting,
    pub(super) stays: Stays,
    changed: Changed,
    pub(super) with_events: bool,
    pub(super) notice: Option<Notice>,
    pub(super) once_stored: Option<OnceStored>,
}

/// What is done once a new session is stored, with its id.
pub(super) type OnceStored = Box<dyn FnOnce(&SessionId) -> io::Result<()> + Send>;

impl FlowRunnerBuilder {
    pub(super) fn new(graph: Arc<Graph>, nodes: NodeRegistry) -> Self {
        Self {
            graph,
            nodes,
            session: None,
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds::new()),
            channels: Vec::new(),
            store: None,
            host: Host::default(),
            hidden: BTreeSet::new(),
            calls: NodeCalls::default(),
            artifacts: None,
            max_concurrency: None,
            owner: None,
            parent: None,
            settings: Map::new(),
            reusable: None,
            takes_no_more: false,
            input: Map::new(),
            when_waiting: WhenWaiting::Stay,
            stays: Arc::new(|| false),
            changed: Changed::Refuse,
            with_events: false,
            notice: None,
            once_stored: None,
        }
    }

    /// The session's id, instead of a fresh one: 1 to 128 letters, digits, `-`, `_` or `.`, not beginning with `-` or `.`.
    /// With another, [`FlowRunner::run`] fails with [`RunError::SessionId`] and stores nothing.
    #[must_use]
    pub fn session_id(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// The clock, instead of the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where ids come from, instead of chance.
    #[must_use]
    pub fn ids(mut self, ids: Arc<dyn IdSource>) -> Self {
        self.ids = ids;
        self
    }

    /// Adds a channel; channels start in the order they were added.
    #[must_use]
    pub fn channel(mut self, channel: Arc<dyn DynChannel>) -> Self {
        self.channels.push(channel);
        self
    }

    /// Where the events are stored.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn RunStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// The environment that nodes may draw from.
    #[must_use]
    pub fn env(mut self, env: Environment) -> Self {
        self.host.env = env;
        self
    }

    /// Variables that the programs of `exec` nodes do not see, unless the flow's `secrets` name them: the keys of the
    /// vendors of agents.
    #[must_use]
    pub fn hide_from_programs(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.hidden.extend(names);
        self
    }

    /// Whether what nodes do outside (programs, requests, tools) is done, recorded or answered from recordings.
    #[must_use]
    pub fn node_calls(mut self, calls: NodeCalls) -> Self {
        self.calls = calls;
        self
    }

    /// Where programs and agents work, instead of the flow's own folder.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.host.cwd = Some(cwd.into());
        self
    }

    /// The folder in which each session has its own, by its id, for what its nodes leave: `flow.artifacts` in
    /// templates,
    /// `INSPAN_ARTIFACTS` for programs. It is made when a node runs, and removed at the end if nothing is in it. A
    /// session that is resumed must be given the same. Without one, `flow.artifacts` is undefined.
    #[must_use]
    pub fn artifacts(mut self, all: impl Into<PathBuf>) -> Self {
        self.artifacts = Some(Artifacts::all(all.into(), true));
        self
    }

    /// As [`Self::artifacts`], for a run that writes nothing: the folder has a name, and is never made.
    #[must_use]
    pub fn artifacts_by_name(mut self, all: impl Into<PathBuf>) -> Self {
        self.artifacts = Some(Artifacts::all(all.into(), false));
        self
    }

    /// Who answers an agent's questions for permission.
    #[must_use]
    pub fn permissions(mut self, permissions: PermissionPolicy) -> Self {
        self.host.permissions = permissions;
        self
    }

    /// Tools of your program for agents whose provider supports host tools.
    #[must_use]
    pub fn tools(mut self, tools: HostTools) -> Self {
        self.host.tools = tools;
        self
    }

    /// How many attempts may run at once, instead of what the flow says.
    #[must_use]
    pub fn max_concurrency(mut self, limit: u32) -> Self {
        self.max_concurrency = Some(limit);
        self
    }

    /// The events of the session are given back with its result: from the store if there is one, else those of this
    /// run.
    #[must_use]
    pub fn with_events(mut self) -> Self {
        self.with_events = true;
        self
    }

    /// The guard of the programs that nodes and agents start, so that none outlives us.
    #[must_use]
    pub fn supervisor(mut self, supervisor: Supervisor) -> Self {
        self.host.supervisor = Some(supervisor);
        self
    }

    /// The owner of the session, instead of this process.
    #[must_use]
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Data of the host that is stored with the session.
    #[must_use]
    pub fn settings(mut self, settings: Map<String, Value>) -> Self {
        self.settings = settings;
        self
    }

    /// Shows a line to a person that cannot be an event: the store is full or locked, and is waited for.
    #[must_use]
    pub fn on_notice(mut self, notice: Arc<dyn Fn(&str) + Send + Sync>) -> Self {
        self.notice = Some(notice);
        self
    }

    /// Prepares a new session once it is stored, and before anything runs. If that fails, so does the run, with
    /// [`RunError::NotPrepared`]; the session can be resumed.
    #[must_use]
    pub fn once_stored(
        mut self,
        prepare: impl FnOnce(&SessionId) -> io::Result<()> + Send + 'static,
    ) -> Self {
        self.once_stored = Some(Box::new(prepare));
        self
    }

    /// The work of an earlier session, which is reused where it fits. `parent` is the store's record of it.
    /// [`FlowRunnerBuilder::continuing`] and [`FlowRunnerBuilder::fork`] read both from the store.
    #[must_use]
    pub fn reusing(mut self, reusable: Arc<Reusable>, parent: Parent) -> Self {
        self.reusable = Some(reusable);
        self.parent = Some(parent);
        self
    }

    /// Reuses only the work that [`Self::reusing`] gives; other work of the parent session runs again. For a session whose
    /// parent is no longer in the store.
    #[must_use]
    pub fn without_parent_work(mut self) -> Self {
        self.takes_no_more = true;
        self
    }

    /// What the process does when the session can only wait.
    #[must_use]
    pub fn when_waiting(mut self, what: WhenWaiting) -> Self {
        self.when_waiting = what;
        self
    }

    /// While this holds, the process stays whatever `when_waiting` says: it knows that an answer is to come. It is asked again
    /// after each event, and every minute.
    #[must_use]
    pub fn stay_while(mut self, holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.stays = Arc::new(holds);
        self
    }

    /// Whether to continue if the session's flow has changed.
    #[must_use]
    pub fn changed(mut self, changed: Changed) -> Self {
        self.changed = changed;
        self
    }

    /// What is the same for all attempts of a session: for a runner, or a program that runs them without one.
    pub fn attempts(&self, session: &SessionId) -> AttemptContext {
        let cwd = self.host.cwd.clone().or_else(|| Some(self.graph.folder.clone()));
        let host = Host { cwd, ..self.host.clone() };
        let artifacts = self.artifacts.clone().map(|all| all.of(session));
        AttemptContext::new(host, &self.hidden, &self.graph.secrets, self.calls.clone(), artifacts)
    }

    /// The runner of a new session.
    pub fn build(self) -> FlowRunner {
        let session = self.session.clone().unwrap_or_else(|| self.ids.session_id());
        let hub = Hub::new(session, self.clock.clone(), self.ids.clone());
        let origin = Origin::New(self.graph.clone());
        self.runner(hub, origin)
    }

    /// The runner of a session that is paused in the store, or whose process died: takes its lease and reads its log.
    /// [`FlowRunner::resume`] continues it; a runner that is dropped gives the lease back. What the session may still take
    /// over of the one that it comes from is read from the store, unless [`Self::reusing`] gives it.
    pub async fn open(mut self, session: &SessionId) -> Result<FlowRunner, RunError> {
        let store = self.store.clone().ok_or(RunError::NoStore)?;
        if self.reusable.is_none() && !self.takes_no_more {
            let record = store.record(session).await?;
            self.reusable = lineage(&*store, &self.nodes, &record, &self.graph).await?;
        }
        let owner = self.owner.take().unwrap_or_else(Owner::of_process);
        let (limit, changed, now) = (self.max_concurrency, self.changed, self.clock.wall());
        let rest = IdleSession::open(&store, session, &owner, &self.graph, limit, changed, now).await?;
        self.owner = Some(owner);
        Ok(self.idle(session.clone(), rest))
    }

    /// The runner of a session that was saved as a snapshot; [`FlowRunner::resume`] continues it. A store makes
    /// it its own, with a log that begins after the snapshot.
    pub fn restore(self, snapshot: &RunSnapshot) -> Result<FlowRunner, RunError> {
        SessionId::checked(snapshot.session_id.as_str())?;
        let rest = IdleSession::of_snapshot(snapshot, &self.graph, self.max_concurrency, self.changed)?;
        Ok(self.idle(snapshot.session_id.clone(), rest))
    }

    fn idle(self, session: SessionId, rest: IdleSession) -> FlowRunner {
        // The time of a session never goes back, also if the machine's clock was set back since.
        let clock = LaterClock::not_before(rest.last_at, self.clock.clone());
        let hub = Hub::continuing(session, clock, self.ids.clone(), rest.last_seq);
        self.runner(hub, Origin::Idle(Box::new(rest)))
    }

    fn runner(self, hub: Hub, origin: Origin) -> FlowRunner {
        let (ask, questions) = mpsc::channel(QUESTIONS);
        let (ended, watched) = watch::channel(None);
        let (attach, late) = mpsc::channel(1);
        let beginning = Arc::new(Mutex::new(Some(Beginning::of(origin))));
        let handle = RunHandle { hub: hub.clone(), attach, questions: ask, beginning, ended: watched };
        FlowRunner {
            facts: hub.subscribe(Filter::names(FACTS.iter().copied())),
            log: self.store.as_ref().map(|_| hub.subscribe(Filter::all())),
            // They are read at the end.
            all: (self.with_events && self.store.is_none())
                .then(|| hub.subscribe_up_to(Filter::all(), usize::MAX)),
            _end: EndOfSession(handle.clone()),
            handle,
            late,
            hub,
            questions,
            ended,
            builder: self,
        }
    }
}
