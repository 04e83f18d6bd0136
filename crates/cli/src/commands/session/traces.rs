//! The live export of a session's trace, where `OTEL_EXPORTER_OTLP_ENDPOINT` asks for one. It reads
//! the hub's events like any other reader, and its failures do not affect the session.

use std::{sync::Arc, time::Duration};

use inspan_engine::{Filter, Hub, Subscription};
use inspan_flow::{Parent, RunStore, StoreError};
use inspan_otel::{ExportSettings, Exporter, LiveExport, LiveLimits, Patience, Span, Trace};
use inspan_protocol::{Environment, Event, SessionId};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::export::{PAGE, trace_settings};
use crate::{invocation::Invocation, terminal};

/// How long the end of a session waits for its last spans to be sent.
const FLUSH: Duration = Duration::from_secs(3);

/// A live export that runs.
pub(super) struct Traces {
    end: CancellationToken,
    task: JoinHandle<()>,
}

impl Traces {
    /// Begins to export from the next event of the hub on, if the environment asks for it. Variables that cannot be used
    /// are reported, and the session runs without. `parent` is the session that a new one was made of.
    pub(super) fn begin(
        hub: &Hub,
        parent: Option<Parent>,
        store: Option<&Arc<dyn RunStore>>,
        invocation: &Invocation,
    ) -> Option<Self> {
        let settings = match ExportSettings::live(&invocation.env) {
            Ok(settings) => settings?,
            Err(error) => {
                terminal::progress(&format!("warning: traces are not sent: {error}\n"));
                return None;
            }
        };
        let session = hub.session_id().clone();
        let warn = move |what: &str| {
            terminal::progress(&format!(
                "warning: traces are not sent: {what}\n  help: `inspan export {session} --otlp URL` sends them later\n"
            ));
        };
        let exporter = Exporter::new(settings, Patience::LIVE);
        let end = CancellationToken::new();
        let following = Following {
            session: hub.session_id().clone(),
            events: hub.subscribe(Filter::all()),
            known: hub.last_seq(),
            live: LiveExport::begin(exporter, LiveLimits::default(), Arc::new(warn)),
            end: end.clone(),
        };
        let (environment, store) = (invocation.env.clone(), store.cloned());
        let task = tokio::spawn(following.run(parent, store, environment));
        Some(Self { end, task })
    }

    /// Sends the last spans, for a bounded time.
    pub(super) async fn finish(self) {
        self.end.cancel();
        // A panic in there does not change how the session ended.
        drop(self.task.await);
    }
}

/// What reads the events.
struct Following {
    session: SessionId,
    events: Subscription,
    /// The last event before those of the hub.
    known: u64,
    live: LiveExport,
    end: CancellationToken,
}

impl Following {
    async fn run(
        mut self,
        parent: Option<Parent>,
        store: Option<Arc<dyn RunStore>>,
        environment: Environment,
    ) {
        let mut trace = Trace::new(self.session.clone(), trace_settings(parent.as_ref(), &environment));
        if let Some(store) = store.filter(|_| self.known > 0) {
            match self.history(&*store, &environment).await {
                Ok(known) => trace = known,
                Err(error) => {
                    terminal::progress(&format!("warning: traces are not sent: {error}\n"));
                    return;
                }
            }
        }
        loop {
            let next = match self.events.try_next() {
                Some(next) => Some(next),
                None => tokio::select! {
                    biased;
                    next = self.events.next() => next,
                    () = self.end.cancelled() => None,
                },
            };
            let Some(envelope) = next else { break };
            self.live.take(trace.apply(&envelope));
        }
        self.live.finish(FLUSH).await;
    }

    /// The trace as far as the store has it. Spans that ended in a process that died may not have been sent: they are sent
    /// again, and are the same as they were.
    async fn history(&self, store: &dyn RunStore, environment: &Environment) -> Result<Trace, StoreError> {
        let record = store.record(&self.session).await?;
        let mut trace = Trace::new(self.session.clone(), trace_settings(record.parent.as_ref(), environment));
        let mut unsure: Vec<Span> = Vec::new();
        let mut from = record.first_seq();
        while from <= self.known {
            let events = store.read_next(&self.session, from, PAGE).await?;
            let Some(last) = events.last() else { break };
            from = last.seq + 1;
            for envelope in events.iter().filter(|envelope| envelope.seq <= self.known) {
                let ended = trace.apply(envelope);
                match envelope.event {
                    // The process before had the time to send what it had.
                    Event::FlowPaused { .. } | Event::FlowResumed { .. } => unsure.clear(),
                    _ => {}
                }
                unsure.extend(ended);
            }
        }
        self.live.take_all(unsure).await;
        Ok(trace)
    }
}
