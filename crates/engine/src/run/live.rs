//! A run that has begun: its events, its mailbox, and the promise that it ends exactly once, also when its
//! future is dropped or panics. Which events there are is decided in `state`.

use std::sync::Arc;

use inspan_protocol::{ProviderSessionId, RunId, StopReason, Timestamp, Usage};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    mailbox::{Mail, Mailbox, UNDELIVERED, undelivered},
    state::{Input, RunState},
};
use crate::hub::Hub;

/// Where a run leaves the messages that it did not deliver.
pub(crate) type Left = Arc<Mutex<Vec<Mail>>>;

/// How many events of a session may be emitted and not yet stored before its agents have to wait.
pub(super) const BACKLOG: u64 = 8_192;

pub(super) struct Live {
    hub: Hub,
    state: RunState,
    mailbox: Arc<Mailbox>,
    began: Timestamp,
    turn: CancellationToken,
    left: Option<Left>,
}

impl Live {
    /// Begins the run; its mailbox is open already, so that no message falls between the two.
    pub(super) fn begin(hub: Hub, state: RunState, mailbox: Mailbox, turn: u32, left: Option<Left>) -> Self {
        let began = hub.clock().now();
        let turn_cancel = CancellationToken::new();
        let mut live = Self { hub, state, mailbox: Arc::new(mailbox), began, turn: turn_cancel, left };
        live.apply(Input::Begin { turn });
        live
    }

    pub(super) fn now(&self) -> Timestamp {
        self.hub.clock().now()
    }

    pub(super) fn apply(&mut self, input: Input<'_>) {
        for event in self.state.apply(input) {
            self.hub.emit(event);
        }
    }

    /// As [`Live::apply`], and waits until the last event that came of it is kept, if anybody keeps them.
    pub(super) async fn apply_and_store(&mut self, input: Input<'_>) {
        let mut last = None;
        for event in self.state.apply(input) {
            last = Some(self.hub.emit(event).seq);
        }
        if let Some(seq) = last {
            self.hub.until_stored(seq).await;
        }
    }

    /// Whether more events are still to be stored than may be.
    pub(super) fn is_behind(&self) -> bool {
        self.hub.unstored() > BACKLOG
    }

    /// Waits until fewer are.
    pub(super) async fn catches_up(&self) {
        self.hub.until_stored(self.hub.last_seq().saturating_sub(BACKLOG / 2)).await;
    }

    pub(super) fn warn(&self, code: &str, message: impl Into<String>) {
        self.hub.emit(self.state.warning(code, message));
    }

    pub(super) fn begin_turn(&mut self, parent: &CancellationToken) -> CancellationToken {
        self.turn = parent.child_token();
        self.turn.clone()
    }

    pub(super) fn cancel_turn(&self) {
        self.turn.cancel();
    }

    pub(super) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }

    pub(super) fn session(&self) -> Option<&ProviderSessionId> {
        self.state.session()
    }

    pub(super) fn run_id(&self) -> &RunId {
        self.state.run_id()
    }

    pub(super) fn usage(&self) -> Usage {
        self.state.usage()
    }

    /// Ends the run: closes the mailbox, tells of every message that nobody will read (`taken` were already
    /// taken out) or leaves it to whoever asked for it, and completes.
    pub(super) fn end(&mut self, stop_reason: StopReason, taken: Vec<Mail>) {
        let left = self.mailbox.close();
        let mut unread: Vec<_> = taken.into_iter().chain(left).collect();
        if let Some(keeper) = &self.left {
            keeper.lock().append(&mut unread);
        }
        for mail in unread {
            self.warn(UNDELIVERED, undelivered(&mail));
        }
        let duration = self.hub.clock().now().since(self.began);
        let duration_ms = duration.as_millis().try_into().unwrap_or(u64::MAX);
        self.apply(Input::End { stop_reason, duration_ms });
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if !self.state.has_ended() {
            self.turn.cancel();
            self.end(StopReason::Aborted, Vec::new());
        }
    }
}
