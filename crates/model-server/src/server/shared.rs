//! What the server's thread and its owner share: the script, the history, and a notification of each change.
//! Nothing here awaits while the lock is held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::record::{ExchangeState, RecordedRequest, RequestHistory};
use crate::scenario::Scenario;
use crate::script::{Script, ServerState};

#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<SharedState>,
    changed: Notify,
    stopping: AtomicBool,
    /// Is notified of each exchange that has ended.
    ended: Option<SyncSender<RecordedRequest>>,
}

#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) script: Script,
    pub(super) history: RequestHistory,
}

impl Shared {
    pub(super) fn new(scenario: Scenario, ended: Option<SyncSender<RecordedRequest>>) -> Self {
        Self {
            inner: Mutex::new(SharedState {
                script: Script::new(scenario),
                history: RequestHistory::default(),
            }),
            changed: Notify::new(),
            stopping: AtomicBool::new(false),
            ended,
        }
    }

    pub(super) fn requests(&self) -> Vec<RecordedRequest> {
        self.lock().history.all()
    }

    pub(super) fn state(&self) -> ServerState {
        let inner = self.lock();
        inner.script.state(inner.history.seen())
    }

    pub(super) fn replace(&self, scenario: Scenario) {
        self.lock().script.replace(scenario);
    }

    pub(super) fn mark_stopping(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Changes what is shared, and wakes everything that waits for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut SharedState) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_waiters();
        result
    }

    pub(super) async fn until(
        &self,
        mut fits: impl FnMut(&[RecordedRequest]) -> bool,
    ) -> Vec<RecordedRequest> {
        loop {
            // Registered before looking, so that no change falls between the look and the wait.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let requests = self.requests();
            if fits(&requests) {
                return requests;
            }
            changed.await;
        }
    }

    /// Every change leaves the data whole, so a panic elsewhere is no reason to lose the recording.
    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One exchange under way. If it is dropped before it ended, the client went away or the server stopped.
#[derive(Debug)]
pub(super) struct Exchange {
    shared: Arc<Shared>,
    number: u64,
    ended: bool,
}

impl Exchange {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Self {
        Self { shared, number, ended: false }
    }

    pub(super) fn sent_event(&self) {
        self.update(|request| request.events_sent += 1);
    }

    /// The stall begins; the exchange may still end in another way.
    pub(super) fn stalled(&self) {
        self.update(|request| request.ending = ExchangeState::Stalled);
    }

    pub(super) fn end(&mut self, ending: ExchangeState) {
        self.ended = true;
        self.update(|request| request.ending = ending);
        let Some(ended) = &self.shared.ended else { return };
        // Sent without the lock: this may wait for the other end. If that is gone, the message is not needed.
        let request = self.shared.lock().history.entry(self.number).cloned();
        if let Some(request) = request {
            drop(ended.send(request));
        }
    }

    fn update(&self, update: impl FnOnce(&mut RecordedRequest)) {
        self.shared.change(|inner| {
            if let Some(request) = inner.history.entry(self.number) {
                update(request);
            }
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.ended {
            let stopping = self.shared.stopping.load(Ordering::SeqCst);
            self.end(if stopping { ExchangeState::ServerStopped } else { ExchangeState::ClientGone });
        }
    }
}
