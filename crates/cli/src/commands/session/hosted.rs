//! Sessions of a cluster, as a worker runs them on this machine.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use inspan_engine::{NodeCalls, ProviderRegistry};
use inspan_flow::{Graph, MemoryStore, NodeRegistry, SessionRecord, builtin_nodes};
use inspan_protocol::{AgentError, ErrorCode, SessionId};
use inspan_temporal::{HostedAttempt, HostedSession, SessionHost};
use serde_json::Map;

use super::{Begin, RunMode, Session, SessionSettings, WaitMode, providers, take_over_files};
use crate::{
    artifacts, commands::stored::graph_of, failure::Failure, invocation::Invocation, settings::Settings,
    store,
};

/// How many sessions a worker remembers.
const REMEMBERED: usize = 256;

/// Sessions as they run on this machine.
pub(crate) struct SessionsHere {
    invocation: Invocation,
    known: Mutex<BTreeMap<SessionId, Known>>,
}

#[derive(Clone)]
struct Known {
    graph: Arc<Graph>,
    nodes: NodeRegistry,
    providers: ProviderRegistry,
    /// Recordings are read once, and written by one recorder.
    calls: NodeCalls,
    settings: SessionSettings,
}

impl SessionsHere {
    /// With the environment of a call.
    pub(crate) fn new(invocation: &Invocation) -> Self {
        Self { invocation: invocation.clone(), known: Mutex::default() }
    }

    fn known(&self, record: &SessionRecord) -> Result<Known, Failure> {
        let all = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all().get(&record.session).cloned() {
            return Ok(known);
        }
        let settings = SessionSettings::of_map(&record.settings)?;
        let file = Path::new(&record.flow.file);
        let calls = settings.rest_of_calls(file, self.invocation.terminal.progress)?;
        let providers = providers(&calls);
        let nodes = builtin_nodes(&providers);
        let graph = graph_of(record, &nodes)?;
        let known = Known { graph, nodes, providers, calls, settings };
        let mut all = all();
        if all.len() >= REMEMBERED {
            all.clear();
        }
        all.insert(record.session.clone(), known.clone());
        Ok(known)
    }

    fn hosted(&self, session: &SessionId, known: Known) -> Result<HostedSession, Failure> {
        let (graph, nodes) = (Arc::clone(&known.graph), Arc::new(known.nodes.clone()));
        let max_concurrency = known.settings.max_concurrency;
        let here = Session {
            defaults: Settings::of(Some(&known.graph.source.folder), &self.invocation)?,
            graph: known.graph,
            nodes: known.nodes,
            providers: known.providers,
            calls: known.calls,
            store: Some(Arc::new(MemoryStore::new())),
            settings: known.settings,
            begin: Begin::New { id: None, input: Map::new(), reusing: None },
            mode: RunMode { wait: WaitMode::Background, ..RunMode::default() },
        };
        let context = Arc::new(here.builder(&self.invocation)?.attempts(session));
        Ok(HostedSession { graph, nodes, context, max_concurrency })
    }
}

impl SessionHost for SessionsHere {
    fn session(&self, record: &SessionRecord) -> Result<HostedSession, AgentError> {
        self.known(record).and_then(|known| self.hosted(&record.session, known)).map_err(refused)
    }

    fn attempt(&self, record: &SessionRecord) -> Result<HostedAttempt, AgentError> {
        let mut known = self.known(record).map_err(refused)?;
        let cwd = known.settings.cwd.as_ref().unwrap_or(&known.graph.folder);
        if !cwd.is_dir() {
            let message = format!("the folder {} of the session is not on this machine", cwd.display());
            return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
        }
        let mut own = ProviderRegistry::default();
        // Recordings run no program.
        if known.settings.replay.is_none() {
            own = providers(&known.calls);
            known.nodes = builtin_nodes(&own);
            known.providers = own.clone();
        }
        if let (Some(parent), Ok(file)) = (&record.parent, store::path(&self.invocation)) {
            // Another attempt, or worker of this machine, may be about to do the same.
            let _one = artifacts::lock(&file, parent);
            take_over_files(&file, parent, &record.session)
                .map_err(|error| AgentError::new(ErrorCode::Process, error.to_string()))?;
        }
        let session = self.hosted(&record.session, known).map_err(refused)?;
        Ok(HostedAttempt { session, providers: own })
    }
}

fn refused(failure: Failure) -> AgentError {
    AgentError::new(ErrorCode::ConfigInvalid, failure.message)
}
