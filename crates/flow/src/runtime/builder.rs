//! What a session is built from, piece by piece, with a default for each.

use std::{path::PathBuf, sync::Arc};

use inspan_engine::{Channel, Clock, Hub, IdSource, PermissionPolicy, RandomIds, SystemClock};
use inspan_protocol::{Environment, SessionId, Supervisor};

use super::FlowRunner;
use crate::{graph::Graph, registry::NodeRegistry, store::RunStore};

/// Builds a [`FlowRunner`].
pub struct FlowRunnerBuilder {
    graph: Arc<Graph>,
    nodes: NodeRegistry,
    session: Option<SessionId>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
    channels: Vec<Arc<dyn Channel>>,
    store: Option<Arc<dyn RunStore>>,
    env: Environment,
    cwd: Option<PathBuf>,
    permissions: PermissionPolicy,
    max_concurrency: Option<u32>,
    supervisor: Option<Supervisor>,
}

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
            env: Environment::default(),
            cwd: None,
            permissions: PermissionPolicy::Deny,
            max_concurrency: None,
            supervisor: None,
        }
    }

    /// The session's id, instead of a fresh one.
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
    pub fn channel(mut self, channel: Arc<dyn Channel>) -> Self {
        self.channels.push(channel);
        self
    }

    /// Where the events are kept.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn RunStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// The environment that nodes may draw from.
    #[must_use]
    pub fn env(mut self, env: Environment) -> Self {
        self.env = env;
        self
    }

    /// Where programs and agents work, instead of the flow's own folder.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Who answers an agent's questions for permission.
    #[must_use]
    pub fn permissions(mut self, permissions: PermissionPolicy) -> Self {
        self.permissions = permissions;
        self
    }

    /// How many attempts may run at once, instead of what the flow says.
    #[must_use]
    pub fn max_concurrency(mut self, limit: u32) -> Self {
        self.max_concurrency = Some(limit);
        self
    }

    /// Who stands between us and the programs that nodes and agents start, so that none outlives us.
    #[must_use]
    pub fn supervisor(mut self, supervisor: Supervisor) -> Self {
        self.supervisor = Some(supervisor);
        self
    }

    /// The runner.
    pub fn build(self) -> FlowRunner {
        let session = self.session.unwrap_or_else(|| self.ids.session_id());
        FlowRunner {
            hub: Hub::new(session, self.clock, self.ids),
            cwd: self.cwd.unwrap_or_else(|| self.graph.folder.clone()),
            graph: self.graph,
            nodes: self.nodes,
            channels: self.channels,
            store: self.store,
            env: self.env,
            permissions: self.permissions,
            max_concurrency: self.max_concurrency,
            supervisor: self.supervisor,
        }
    }
}
