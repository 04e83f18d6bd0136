//! A session that a cluster runs, in the process that started it.

use std::sync::Arc;

use futures::FutureExt;
use inspan_engine::{Clock, Filter, Hub, IdSource, RandomIds, SystemClock};
use inspan_flow::{Graph, RunError, SessionRecord, StoreError, WhenWaiting, check_input};
use inspan_protocol::{Envelope, SessionId};
use serde_json::{Map, Value, json};

use super::{Begin, Runner, SessionConsole, refused};
use crate::{
    commands::flow::refused_input,
    engine::Engine,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    terminal,
};

/// A session that a cluster runs.
pub(super) struct Remote {
    engine: Engine,
    session: SessionId,
    graph: Arc<Graph>,
}

impl Remote {
    /// Starts a session on the cluster, or continues one there.
    pub(super) async fn begin(
        engine: Engine,
        begin: Begin,
        graph: &Arc<Graph>,
        settings: Map<String, Value>,
    ) -> Result<Self, Failure> {
        let session = match begin {
            Begin::New { id, input, reusing } => {
                let record = SessionRecord {
                    session: id.unwrap_or_else(|| RandomIds::new().session_id()),
                    flow: (*graph.source).clone(),
                    input: check_input(graph, input).map_err(|error| refused_input(&error))?,
                    created_at: SystemClock.now(),
                    parent: reusing.map(|(_, parent)| parent),
                    base: None,
                    settings,
                };
                engine.start(&record, graph).await.map_err(|error| refused(&error))?;
                record.session
            }
            Begin::Rest { session, resume, .. } => {
                engine.resume(&session, resume).await.map_err(|error| refused(&error))?;
                session
            }
        };
        Ok(Self { engine, session, graph: Arc::clone(graph) })
    }

    /// Says what was started.
    pub(super) fn report(&self, invocation: &Invocation) -> Result<Exit, Failure> {
        let (id, engine) = (&self.session, self.engine.name());
        match invocation.form {
            OutputForm::Json => invocation.json(&json!({ "sessionId": id, "engine": engine })),
            OutputForm::Text => {
                terminal::data_line(id.as_str());
                terminal::progress(&format!("running on {engine}; watch it with `inspan logs {id} -f`\n"));
            }
        }
        Ok(Exit::Success)
    }

    /// Its events as they come, shown by the console, until it ends or waits.
    pub(super) async fn runner(
        self,
        host: Arc<SessionConsole>,
        seen: u64,
        when_waiting: WhenWaiting,
    ) -> Runner {
        let Self { engine, session, graph } = self;
        let hub = Hub::new(session.clone(), Arc::new(SystemClock), Arc::new(RandomIds::new()));
        hub.start_session();
        let taker = (engine.clone(), session.clone());
        let relay = hub.clone();
        let work = async move {
            // As a channel of this hub it would be announced by events that the session's log does not have.
            host.begin().map_err(|error| {
                RunError::Store(StoreError::Io { path: "the console".into(), message: error.to_string() })
            })?;
            let shown = Arc::clone(&host);
            let _shown =
                relay.observe(Filter::all(), Arc::new(move |event: &Arc<Envelope>| shown.show(event)));
            engine.follow(&session, &graph, &relay, seen, when_waiting).await
        };
        Runner {
            hub,
            commands: Arc::new(move |command| {
                taker.0.post(&taker.1, command);
                Ok(())
            }),
            work: work.boxed(),
        }
    }
}
