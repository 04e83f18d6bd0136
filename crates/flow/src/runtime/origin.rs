//! Where a session begins: new, from the store, or from a snapshot.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::{DynChannel, Filter};
use inspan_protocol::{NodePath, RunSnapshot, SNAPSHOT_VERSION, SessionId, Timestamp};
use serde_json::{Map, Value};

use super::{EventWriter, FlowRunner, FlowRunnerBuilder, event_writer::HeldLease};
use crate::{error::RunError, node::NodeRegistry};
use inspan_flow_core::{
    FACTS, Graph, Loaded, Parent, ParentKind, Reusable, Run, SessionRecord, SnapshotError, compile,
    takes_input,
};
use inspan_store::{Owner, RunStore, Select, StoreError};

/// What a session begins with.
pub(super) struct Beginning {
    origin: Origin,
    /// Channels that were added by a handle.
    pub(super) channels: Vec<Arc<dyn DynChannel>>,
}

impl Beginning {
    pub(super) fn of(origin: Origin) -> Self {
        Self { origin, channels: Vec::new() }
    }

    /// The state of the session as long as nothing has happened.
    pub(super) fn snapshot(&self, session: &SessionId) -> RunSnapshot {
        match &self.origin {
            Origin::New(graph) => {
                Run::new(graph.clone(), session, graph.input.clone(), None).snapshot(&graph.input)
            }
            Origin::Idle(rest) => rest.run.snapshot(&rest.input),
        }
    }
}

/// Where a session begins.
pub(super) enum Origin {
    /// Nowhere: it is new.
    New(Arc<Graph>),
    /// It is stored and does not run.
    Idle(Box<IdleSession>),
}

/// An idle session.
pub(super) struct IdleSession {
    pub(super) run: Run,
    pub(super) input: Map<String, Value>,
    /// The lease, if it is in the store.
    pub(super) lease: Option<Arc<HeldLease>>,
    pub(super) last_seq: u64,
    /// The time of its newest event.
    pub(super) last_at: Timestamp,
}

/// The flow that a session began with, to be run.
pub fn graph_of(record: &SessionRecord, nodes: &NodeRegistry) -> Result<Arc<Graph>, RunError> {
    let compiled = compile(&Loaded::from_source(&record.flow)?, nodes).map_err(RunError::Source)?;
    Ok(Arc::new(compiled.graph))
}

/// The work that a session may still reuse from its parent, and the parent from its own, and so on. `graph` is the
/// session's compiled flow. Each log says what was reused so far. Fails with [`RunError::NoParent`] if one of them is not in the store: finished work would
/// run again, and be charged.
pub fn lineage<'a>(
    store: &'a dyn RunStore,
    nodes: &'a NodeRegistry,
    record: &'a SessionRecord,
    graph: &'a Graph,
) -> BoxFuture<'a, Result<Option<Arc<Reusable>>, RunError>> {
    async move {
        let Some(parent) = &record.parent else { return Ok(None) };
        let before = match store.record(&parent.session).await {
            Err(StoreError::UnknownSession(parent)) => {
                return Err(RunError::NoParent { session: record.session.clone(), parent });
            }
            before => before?,
        };
        Ok(Some(left_by(store, nodes, parent, &before, graph).await?.0))
    }
    .boxed()
}

/// What the session `before` has left for one with the flow `now` that follows it, and its own flow.
async fn left_by(
    store: &dyn RunStore,
    nodes: &NodeRegistry,
    parent: &Parent,
    before: &SessionRecord,
    now: &Graph,
) -> Result<(Arc<Reusable>, Arc<Graph>), RunError> {
    let log = store.read(&parent.session, before.first_seq(), Select::Names(FACTS)).await?;
    let graph = graph_of(before, nodes)?;
    let older = match lineage(store, nodes, before, &graph).await {
        // An ended session may be kept without those before it.
        Err(RunError::NoParent { .. }) if store.entry(&parent.session).await?.digest.status.has_ended() => {
            None
        }
        older => older?,
    };
    Ok((Arc::new(parent.reusable(before, &graph, &log, older, now)), graph))
}

impl FlowRunnerBuilder {
    /// A new session that continues one that has ended, in the builder's store: what that one has finished is reused where
    /// it fits, as by `inspan resume`. It has the input of that session, as far as [`FlowRunner::run`] gives no other.
    pub async fn continuing(self, session: &SessionId) -> Result<Self, RunError> {
        self.taking_over(session, ParentKind::Resume, None).await
    }

    /// A new session that branches off from one in the builder's store, which stays as it is: the node of this place, such
    /// as `review` or `each[3]/review#2`, and what depends on it, runs again, and what else that session has finished is
    /// reused, as by `inspan fork --at`. It has the input of that session, as far as [`FlowRunner::run`] gives no other.
    pub async fn fork(self, session: &SessionId, at: NodePath) -> Result<Self, RunError> {
        // Passes count from 1, and the first is not written: `plan#1` is `plan`.
        self.taking_over(session, ParentKind::Fork, Some(at.with_pass(at.pass()))).await
    }

    async fn taking_over(
        mut self,
        session: &SessionId,
        kind: ParentKind,
        again: Option<NodePath>,
    ) -> Result<Self, RunError> {
        let store = self.store.clone().ok_or(RunError::NoStore)?;
        let (record, entry) = (store.record(session).await?, store.entry(session).await?);
        if kind == ParentKind::Resume && !entry.digest.status.has_ended() {
            return Err(RunError::NotEnded { session: session.clone() });
        }
        let parent = Parent { again, ..Parent::new(session.clone(), entry.digest.last_seq, kind) };
        let (reusable, before) = left_by(&*store, &self.nodes, &parent, &record, &self.graph).await?;
        if let Some(place) = &parent.again {
            let refused = |why| {
                let (session, place) = (session.clone(), place.clone());
                RunError::NoSuchPlace { session, place, why }
            };
            self.graph.find_place(&place.place()).map_err(|error| refused(error.to_string()))?;
            if place.as_str().contains(['#', '[']) && !reusable.has_run(place) {
                return Err(refused("it has never run".to_owned()));
            }
        }
        // Where the other session used a default of its flow, this one uses that of its own.
        self.input = record.input;
        let graph = &self.graph;
        self.input.retain(|key, value| takes_input(graph, key) && before.input.get(key) != Some(value));
        Ok(self.reusing(reusable, parent))
    }
}

/// Whether a flow that has changed since is resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changed {
    /// It is refused.
    #[default]
    Refuse,
    /// It is accepted: nodes and edges are known by their ids.
    Accept,
}

impl IdleSession {
    /// Takes a session over from the store.
    pub(super) async fn open(
        store: &Arc<dyn RunStore>,
        session: &SessionId,
        owner: &Owner,
        graph: &Arc<Graph>,
        max_concurrency: Option<u32>,
        changed: Changed,
        now: Timestamp,
    ) -> Result<Self, RunError> {
        let record = store.record(session).await?;
        if record.flow.hash != graph.hash && changed == Changed::Refuse {
            return Err(RunError::Changed { session: session.clone(), flow: record.flow.name });
        }
        // Read first: who sees the owner posts for this one.
        let posted_before = store.unanswered(session).await?.last().map_or(0, |posted| posted.number);
        let lease = store.acquire(session, owner, now).await?;
        let lease = HeldLease::new(store.clone(), lease, posted_before);
        let opened = Self::read(store, &record, graph, max_concurrency).await;
        match opened {
            Ok((run, last_seq, last_at)) => {
                Ok(Self { run, input: record.input, lease: Some(lease), last_seq, last_at })
            }
            Err(error) => {
                // The next process may succeed.
                let _given_back = lease.release().await;
                Err(error)
            }
        }
    }

    async fn read(
        store: &Arc<dyn RunStore>,
        record: &SessionRecord,
        graph: &Arc<Graph>,
        max_concurrency: Option<u32>,
    ) -> Result<(Run, u64, Timestamp), RunError> {
        let session = &record.session;
        let mut run = Run::new(graph.clone(), session, record.input.clone(), max_concurrency);
        if let Some(base) = &record.base {
            run.restore(base);
        }
        for envelope in store.read(session, record.first_seq(), Select::Names(FACTS)).await? {
            run.apply(&envelope);
        }
        let entry = store.entry(session).await?;
        let last_seq = entry.digest.last_seq.max(record.first_seq() - 1);
        let status = run.state().status();
        if status.has_ended() {
            return Err(RunError::Ended { session: session.clone(), status: status.word() });
        }
        let last_at = entry.digest.updated_at.unwrap_or_default().max(run.state().last_at());
        Ok((run, last_seq, last_at))
    }

    /// Continues from a snapshot that was stored elsewhere.
    pub(super) fn of_snapshot(
        snapshot: &RunSnapshot,
        graph: &Arc<Graph>,
        max_concurrency: Option<u32>,
        changed: Changed,
    ) -> Result<Self, RunError> {
        let session = snapshot.session_id.clone();
        if snapshot.version != SNAPSHOT_VERSION {
            let (found, known) = (snapshot.version, SNAPSHOT_VERSION);
            return Err(SnapshotError::Version { session, found, known }.into());
        }
        if snapshot.flow_hash != graph.hash && changed == Changed::Refuse {
            return Err(SnapshotError::Flow { session, flow: snapshot.flow_name.clone() }.into());
        }
        if snapshot.status.has_ended() {
            return Err(RunError::Ended { session, status: snapshot.status.word() });
        }
        let mut run = Run::new(graph.clone(), &session, snapshot.input.clone(), max_concurrency);
        run.restore(snapshot);
        let last_at = run.state().last_at();
        Ok(Self { run, input: snapshot.input.clone(), lease: None, last_seq: snapshot.last_seq, last_at })
    }
}

impl FlowRunner {
    /// Where the session begins, which it does now.
    pub(super) fn take_origin(&mut self) -> Option<Origin> {
        let Beginning { origin, channels } = self.handle.begin()?;
        self.builder.channels.extend(channels);
        Some(origin)
    }

    /// Makes the session known to the store, if there is one; `base` is the snapshot that its log begins after.
    pub(super) async fn create(
        &mut self,
        input: &Map<String, Value>,
        base: Option<Box<RunSnapshot>>,
    ) -> Result<Option<EventWriter>, RunError> {
        let Some(store) = self.builder.store.clone() else { return Ok(None) };
        let record = SessionRecord {
            session: self.hub.session_id().clone(),
            flow: (*self.builder.graph.source).clone(),
            input: input.clone(),
            created_at: self.hub.clock().now(),
            parent: self.builder.parent.take(),
            base,
            settings: std::mem::take(&mut self.builder.settings),
        };
        let owner = self.builder.owner.take().unwrap_or_else(Owner::of_process);
        let lease = store.create(&record, &owner, self.hub.clock().wall()).await?;
        let lease = HeldLease::new(store, lease, 0);
        if let Some(prepare) = self.builder.once_stored.take() {
            prepare(&record.session)
                .map_err(|error| RunError::NotPrepared { session: record.session.clone(), error })?;
        }
        Ok(Some(self.writer(lease)))
    }

    pub(super) fn writer(&mut self, lease: Arc<HeldLease>) -> EventWriter {
        let log = self.log.take().unwrap_or_else(|| self.hub.subscribe(Filter::all()));
        EventWriter::new(lease, log, self.hub.clone(), self.builder.notice.take())
    }
}
