//! A session that workers run, as the process sees it that started it: its events come from the log to a hub, and its end
//! is a result like that of a session that runs here.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use inspan_engine::Hub;
use inspan_flow::{FlowRunResult, RunError, RunStore, WhenWaiting};
use inspan_flow_core::{Graph, Run};
use inspan_protocol::{Event, SessionId, SessionStatus};
use inspan_store::StoreError;
use tokio::time::Instant;

use crate::store::SharedStore;

/// How many events are read at once.
const PAGE: usize = 1_000;
/// After how long without a notification the log is read anyway.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of a session may be in the log before it is seen here: a client of NFS remembers for half a minute that
/// a file is not there.
const SEEN_LATE: Duration = Duration::from_secs(35);

impl SharedStore {
    /// Relays a session's events to a hub until the session has ended, is paused, or waits for something that
    /// `when_waiting` does not stay for. The events up to `seen` are not relayed, and it grows with those that are. An error of the log is an
    /// error here; it does not affect the session.
    pub async fn follow(
        &self,
        session: &SessionId,
        graph: &Arc<Graph>,
        hub: &Hub,
        seen: &mut u64,
        when_waiting: WhenWaiting,
    ) -> Result<FlowRunResult, RunError> {
        let record = self.record(session).await?;
        let mut run: Run = record.run(graph);
        let mut next = record.first_seq();
        let mut changes = self.changes();
        // A session that was paused is so until its workers continue it.
        let mut has_begun = false;
        let mut gone_since: Option<Instant> = None;
        loop {
            let page = self.read_next(session, next, PAGE).await?;
            for envelope in &page {
                next = envelope.seq + 1;
                run.apply(envelope);
                if envelope.seq > *seen {
                    (has_begun, *seen) = (true, envelope.seq);
                    hub.relay(envelope);
                }
            }
            if page.len() == PAGE {
                continue;
            }
            let status = run.state().status();
            let is_over = page.iter().any(|event| matches!(event.event, Event::HarnessComplete { .. }));
            let is_idle = match status {
                SessionStatus::Paused => has_begun,
                SessionStatus::Waiting => !stays(&run, when_waiting),
                _ => is_over || status.has_ended(),
            };
            if is_idle {
                return Ok(FlowRunResult::of_run(run, record.input, session.clone()));
            }
            if gone_since.is_some_and(|since| since.elapsed() > SEEN_LATE) {
                let (session, by) = (session.clone(), self.owner().to_string());
                return Err(StoreError::Interrupted { session, by }.into());
            }
            let is_gone = self.is_gone(session, status).await;
            let was_there = gone_since.is_none();
            gone_since = is_gone.then(|| gone_since.unwrap_or_else(Instant::now));
            // It may have ended since the log was read.
            if is_gone && was_there {
                continue;
            }
            // Whether it changed or it is time to look again comes to the same.
            let _ = tokio::time::timeout(PATIENCE, changes.next()).await;
        }
    }
}

/// Whether the process stays while the session waits.
fn stays(run: &Run, when_waiting: WhenWaiting) -> bool {
    match when_waiting {
        WhenWaiting::Stay => true,
        WhenWaiting::Leave | WhenWaiting::LeaveUnlessTimed => false,
        WhenWaiting::LeaveToPeople => run.state().runs_again_by_itself(),
    }
}
