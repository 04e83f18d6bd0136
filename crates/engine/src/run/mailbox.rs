//! The messages that wait for an agent run, and the moment after which no more are accepted.

use std::{collections::VecDeque, sync::Arc};

use futures::{
    FutureExt,
    future::{BoxFuture, pending},
};
use inspan_protocol::{MessageMode, RunId, Steering, beginning};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::hub::Hub;

/// How many messages may wait for a run; the next is refused.
pub const MAILBOX_CAPACITY: usize = 1024;

/// One message for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The message.
    pub content: String,
    /// When it is to be delivered.
    pub mode: MessageMode,
}

/// The code of the warning about a message that no turn read.
pub(crate) const UNDELIVERED: &str = "undelivered";

/// What that warning says.
pub(crate) fn undelivered(mail: &Mail) -> String {
    let shown = beginning(&mail.content, 200);
    format!("the run ends before this message reaches it: {shown}")
}

#[derive(Default)]
pub(crate) struct MessageQueue {
    state: Mutex<QueueState>,
    changed: Notify,
    /// Notifies the turn in progress, which waits as well as the run.
    steers: Notify,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Mail>,
    stage: MailboxStage,
    /// The turn that may take messages that steer, by its number.
    steering_turn: u64,
    /// How many of them it was offered and has not confirmed, from the oldest on.
    offered: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum MailboxStage {
    #[default]
    Open,
    /// Takes nothing more, but what waits is still delivered.
    Closing,
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PostResult {
    Accepted,
    Full,
    Closed,
}

impl MessageQueue {
    pub(crate) fn post(&self, mail: Mail) -> PostResult {
        let mut state = self.state.lock();
        if state.stage != MailboxStage::Open {
            return PostResult::Closed;
        }
        if state.waiting.len() >= MAILBOX_CAPACITY {
            return PostResult::Full;
        }
        state.waiting.push_back(mail);
        drop(state);
        self.changed.notify_one();
        self.steers.notify_one();
        PostResult::Accepted
    }

    pub(crate) fn close_soon(&self) {
        let mut state = self.state.lock();
        if state.stage == MailboxStage::Open {
            state.stage = MailboxStage::Closing;
        }
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().stage == MailboxStage::Open
    }

    pub(crate) fn waiting(&self) -> Vec<Mail> {
        self.state.lock().waiting.iter().cloned().collect()
    }

    pub(crate) fn take(&self) -> Vec<Mail> {
        self.state.lock().waiting.drain(..).collect()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().waiting.len() >= MAILBOX_CAPACITY
    }
}

/// The mailbox of one agent run. Dropped, it is closed and the run counts as ended.
pub struct Mailbox {
    hub: Hub,
    run_id: RunId,
    queue: Arc<MessageQueue>,
}

/// What an idle run was woken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// Messages wait.
    Mail,
    /// No message waits and none will come.
    Closing,
}

impl Mailbox {
    pub(crate) fn new(hub: Hub, run_id: RunId, queue: Arc<MessageQueue>) -> Self {
        Self { hub, run_id, queue }
    }

    /// Puts in messages that were acknowledged before the run began; the capacity does not count for them.
    pub(crate) fn preload(&self, mail: Vec<String>) {
        let mail = mail.into_iter().map(|content| Mail { content, mode: MessageMode::FollowUp });
        self.queue.state.lock().waiting.extend(mail);
    }

    /// All waiting messages in the order they came.
    pub fn take(&self) -> Vec<Mail> {
        self.queue.take()
    }

    /// Closes the mailbox unless messages wait: those are returned and the run continues.
    pub fn take_or_close(&self) -> Vec<Mail> {
        let mut state = self.queue.state.lock();
        let waiting: Vec<_> = state.waiting.drain(..).collect();
        if waiting.is_empty() {
            state.stage = MailboxStage::Closed;
        }
        drop(state);
        if waiting.is_empty() {
            self.hub.forget_run(&self.run_id);
        }
        waiting
    }

    /// Closes the mailbox: from now on messages are refused. What still waits is returned.
    pub fn close(&self) -> Vec<Mail> {
        let mut state = self.queue.state.lock();
        state.stage = MailboxStage::Closed;
        let waiting = state.waiting.drain(..).collect();
        drop(state);
        self.hub.forget_run(&self.run_id);
        waiting
    }

    /// Whether the mailbox takes no more messages.
    pub fn is_closing(&self) -> bool {
        self.queue.state.lock().stage != MailboxStage::Open
    }

    /// Waits for a message or until the mailbox is closing.
    pub async fn wakeup(&self) -> Wakeup {
        self.when(|state| match state {
            QueueState { waiting, .. } if !waiting.is_empty() => Some(Wakeup::Mail),
            QueueState { stage: MailboxStage::Open, .. } => None,
            _ => Some(Wakeup::Closing),
        })
        .await
    }

    /// Waits for a message that is to interrupt the turn in progress.
    pub async fn steered(&self) {
        self.when(|state| state.waiting.iter().any(steers).then_some(())).await;
    }

    /// The messages that are to interrupt the turn in progress.
    pub(crate) fn steering(&self) -> Vec<String> {
        self.queue
            .state
            .lock()
            .waiting
            .iter()
            .filter(|mail| steers(mail))
            .map(|m| m.content.clone())
            .collect()
    }

    /// How the turn that begins now takes messages. What an earlier turn was offered and has not confirmed waits again.
    pub(crate) fn steering_for_turn(&self) -> Arc<dyn Steering> {
        let mut state = self.queue.state.lock();
        state.steering_turn += 1;
        state.offered = 0;
        Arc::new(TurnSteering { queue: Arc::clone(&self.queue), turn: state.steering_turn })
    }

    /// Takes the oldest message that the turn in progress was offered.
    pub(crate) fn take_offered(&self) -> Option<String> {
        let mut state = self.queue.state.lock();
        state.offered = state.offered.checked_sub(1)?;
        let place = state.waiting.iter().position(steers)?;
        state.waiting.remove(place).map(|mail| mail.content)
    }

    /// One task at a time waits here: a change wakes one.
    async fn when<T>(&self, ready: impl Fn(&QueueState) -> Option<T>) -> T {
        loop {
            if let Some(value) = ready(&self.queue.state.lock()) {
                return value;
            }
            self.queue.changed.notified().await;
        }
    }
}

fn steers(mail: &Mail) -> bool {
    mail.mode == MessageMode::Steer
}

/// The messages that steer, for one turn.
struct TurnSteering {
    queue: Arc<MessageQueue>,
    turn: u64,
}

impl Steering for TurnSteering {
    fn next(&self) -> BoxFuture<'static, String> {
        let (queue, turn) = (Arc::clone(&self.queue), self.turn);
        async move {
            loop {
                {
                    let mut state = queue.state.lock();
                    if state.steering_turn != turn {
                        break;
                    }
                    if let Some(mail) = state.waiting.iter().filter(|mail| steers(mail)).nth(state.offered) {
                        let content = mail.content.clone();
                        state.offered += 1;
                        return content;
                    }
                }
                queue.steers.notified().await;
            }
            // The turn is over.
            pending().await
        }
        .boxed()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use inspan_protocol::MultiTurn;

    use super::*;
    use crate::testing::hub;

    fn mail(content: &str, mode: MessageMode) -> Mail {
        Mail { content: content.to_owned(), mode }
    }

    #[tokio::test]
    async fn what_wakes_a_run() {
        let mailbox = hub().open_mailbox(&"run-1".into(), "a", MultiTurn::On);
        let look = || (mailbox.wakeup().now_or_never(), mailbox.steered().now_or_never());
        let empty = look();
        mailbox.queue.post(mail("a", MessageMode::FollowUp));
        let followed = look();
        mailbox.queue.post(mail("b", MessageMode::Steer));
        let steered = look();
        mailbox.queue.close_soon();
        let closing = look();
        assert_eq!(mailbox.take().len(), 2);
        assert_eq!(
            [empty, followed, steered, closing, look()],
            [
                (None, None),
                (Some(Wakeup::Mail), None),
                (Some(Wakeup::Mail), Some(())),
                (Some(Wakeup::Mail), Some(())),
                (Some(Wakeup::Closing), None),
            ]
        );
    }

    #[test]
    fn what_is_taken_before_the_close_is_all_that_was_accepted() {
        for _ in 0..300 {
            let hub = hub();
            let mailbox = hub.open_mailbox(&"run-1".into(), "a", MultiTurn::On);
            let queue = Arc::clone(&mailbox.queue);
            let posting = std::thread::spawn(move || {
                let accepted = |_: &u32| queue.post(mail("m", MessageMode::FollowUp)) == PostResult::Accepted;
                (0..500).take_while(accepted).count()
            });
            let batches = std::iter::from_fn(|| Some(mailbox.take_or_close().len()));
            let taken: usize = batches.take_while(|count| *count > 0).sum();
            assert_eq!(taken, posting.join().unwrap());
            assert_eq!((mailbox.is_closing(), hub.active_runs()), (true, vec![]));
        }
    }
}
