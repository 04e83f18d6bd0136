//! The worker of one channel: takes sessions with new events one after the other, and sends what the channel wants.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inspan_protocol::{Envelope, Event, Prompt, SessionId, Timestamp};
use inspan_store::{Select, StoreError};
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::Delivery;
use crate::{
    ledger::{Cursor, CursorKey, Holder, LedgerError},
    message::Message,
    notice::{EVENTS, Notice, id_of},
    send::{NotificationChannel, SendError},
};

/// The waits after a failure.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
/// How long it takes to look again at a session that another process delivers.
const BUSY: Duration = Duration::from_secs(2);
/// The most notices of one delivery; more are delivered after it.
const MOST: usize = 500;

/// A session as it was last seen.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) created_at: Timestamp,
    pub(super) flow: String,
    pub(super) last_seq: u64,
}

/// Sends for one channel.
pub(super) struct Worker {
    delivery: Delivery,
    pub(super) channel: Arc<NotificationChannel>,
    holder: Holder,
    since: Timestamp,
    state: Mutex<State>,
    news: Notify,
    closing: CancellationToken,
}

#[derive(Default)]
struct State {
    targets: BTreeMap<SessionId, Target>,
    /// Up to which event each session is settled.
    settled: BTreeMap<SessionId, u64>,
    /// The sessions with something that could not be sent.
    unsent: BTreeSet<SessionId>,
    /// Whether a warning was given since the last success.
    has_warned: bool,
}

/// What came of looking at a session.
enum Step {
    /// It is settled up to this event.
    Settled(u64),
    /// Another deliverer has it.
    Busy,
    /// It waits for its next attempt.
    Waits(Duration),
}

/// Why a session could not be worked on.
enum Fault {
    Ledger(LedgerError),
    Store(StoreError),
}

impl From<LedgerError> for Fault {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Worker {
    pub(super) fn new(
        delivery: Delivery,
        channel: Arc<NotificationChannel>,
        holder: Holder,
        since: Timestamp,
    ) -> Self {
        Self {
            delivery,
            channel,
            holder,
            since,
            state: Mutex::default(),
            news: Notify::new(),
            closing: CancellationToken::new(),
        }
    }

    /// Makes a session known; work begins if it has new events.
    pub(super) fn offer(&self, session: &SessionId, target: Target) {
        let mut state = self.state();
        let is_settled = state.settled.get(session).is_some_and(|settled| *settled >= target.last_seq);
        state.targets.insert(session.clone(), target);
        drop(state);
        if !is_settled {
            self.news.notify_one();
        }
    }

    /// No more is offered: what is left is tried once.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// Whether something could not be sent.
    pub(super) fn has_pending(&self) -> bool {
        !self.state().unsent.is_empty()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until it is closed and nothing is left that can be sent now.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let is_last = self.closing.is_cancelled();
            let pause = self.pass().await;
            if is_last {
                break;
            }
            tokio::select! {
                () = self.closing.cancelled() => {}
                () = self.news.notified(), if pause.takes_news() => {}
                () = sleep(pause.length()) => {}
            }
        }
        self.release_all().await;
    }

    /// Works on each session with new events once. Ends early if the channel is down.
    async fn pass(&self) -> Pause {
        let mut pause = Pause::UntilNews;
        let open = self.state().open();
        for (session, target) in open {
            loop {
                match self.step(&session, &target).await {
                    Ok(Step::Settled(seq)) => {
                        let mut state = self.state();
                        state.settled.insert(session.clone(), seq);
                        state.unsent.remove(&session);
                        if seq >= target.last_seq {
                            break;
                        }
                    }
                    Ok(Step::Busy) => {
                        pause = Pause::Busy;
                        break;
                    }
                    Ok(Step::Waits(left)) => {
                        self.state().unsent.insert(session);
                        return Pause::Down(left);
                    }
                    Err(fault) => {
                        self.warn(&fault.to_string()).await;
                        self.state().unsent.insert(session);
                        return Pause::Down(BUSY);
                    }
                }
            }
        }
        pause
    }

    async fn release_all(&self) {
        let held: Vec<_> = {
            let state = self.state();
            state.targets.iter().map(|(session, target)| (session.clone(), target.created_at)).collect()
        };
        for (session, created_at) in held {
            let key = self.key(&session, created_at);
            // A claim of a process that is gone counts no more.
            let _ = self.delivery.ledger.release(&key, &self.holder).await;
        }
    }

    fn key(&self, session: &SessionId, created_at: Timestamp) -> CursorKey {
        CursorKey { channel: self.channel.name.clone(), session: session.clone(), created_at }
    }

    /// Sends the next delivery of a session, or settles what is not to be sent.
    async fn step(&self, session: &SessionId, target: &Target) -> Result<Step, Fault> {
        let Delivery { store, ledger, clock, .. } = &self.delivery;
        let key = self.key(session, target.created_at);
        let now = clock.wall();
        let Some(cursor) = ledger.claim(&key, &self.holder, now).await? else { return Ok(Step::Busy) };
        let left = cursor.retry_at.map(|at| at.since(now)).unwrap_or_default();
        if !left.is_zero() {
            return Ok(Step::Waits(left));
        }
        // Read before the events: what is appended meanwhile is for the next time.
        let entry = store.entry(session).await?;
        let last = entry.digest.last_seq;
        if cursor.next > last {
            return Ok(Step::Settled(last));
        }
        // What was settled since the last delivery had nothing in it, and is not recorded.
        let settled = self.state().settled.get(session).copied().unwrap_or(0);
        let from = cursor.next.max(settled + 1);
        let events = store.read(session, from, Select::Names(EVENTS)).await?;
        let until = cursor.until.unwrap_or(last);
        let events = events.iter().filter(|envelope| envelope.seq <= until);
        let mut notices = Vec::new();
        let mut end = until;
        for envelope in events {
            let wanted = self.notice(envelope, &entry.digest.prompts);
            if wanted.is_some() && notices.len() == MOST {
                end = envelope.seq - 1;
                break;
            }
            notices.extend(wanted);
        }
        self.drop_repeated(session, &mut notices).await?;
        if notices.is_empty() {
            if cursor.until.is_some() {
                ledger.settle(&key, end + 1).await?;
            }
            return Ok(Step::Settled(end));
        }
        if cursor.until.is_none() {
            // What follows the newest notice is not recorded: a power cut may take events that are no facts, and others
            // then get their numbers.
            end = notices.last().and_then(|notice| notice.seq).unwrap_or(end);
        }
        ledger.begin(&key, end).await?;
        let id = id_of(&key.channel, session, target.created_at, cursor.next, end);
        let url = self.delivery.page.as_ref().map(|page| page(session));
        let message = Message::of_session(id, &key.channel, session, &target.flow, notices, url);
        match self.channel.send(&message).await {
            Ok(()) => {
                ledger.settle(&key, end + 1).await?;
                ledger.report(&self.channel.name, &self.channel.origin, None).await?;
                self.state().has_warned = false;
                Ok(Step::Settled(end))
            }
            Err(error) => {
                let wait = wait_after(&cursor, &error);
                ledger.failed(&key, clock.wall() + wait).await?;
                self.warn(&error.message).await;
                Ok(Step::Waits(wait))
            }
        }
    }

    /// The notice of an event, if the channel wants it now.
    fn notice(&self, envelope: &Envelope, open: &[Prompt]) -> Option<Notice> {
        if envelope.timestamp < self.since {
            return None;
        }
        // What was answered meanwhile waits for nobody.
        if let Event::SessionPrompt(prompt) = &envelope.event
            && open.iter().all(|other| other.prompt_id != prompt.prompt_id)
        {
            return None;
        }
        let notice = Notice::of(envelope, &self.delivery.commands)?;
        notice.is_wanted(&self.channel.settings.on, &envelope.event).then_some(notice)
    }

    /// A question that is asked again after a resume was sent already.
    async fn drop_repeated(&self, session: &SessionId, notices: &mut Vec<Notice>) -> Result<(), Fault> {
        if notices.iter().all(|notice| notice.question.is_none()) {
            return Ok(());
        }
        let asked = self.delivery.store.read(session, 1, Select::Names(&["session:prompt"])).await?;
        let is_repeated = |notice: &Notice| {
            let Some(question) = &notice.question else { return false };
            asked.iter().any(|envelope| {
                let is_same = matches!(&envelope.event, Event::SessionPrompt(other) if other.prompt_id == question.prompt_id);
                is_same && Some(envelope.seq) < notice.seq && envelope.timestamp >= self.since
            })
        };
        notices.retain(|notice| !is_repeated(notice));
        Ok(())
    }

    /// Warns once, until the channel works again.
    async fn warn(&self, why: &str) {
        let (ledger, name) = (&self.delivery.ledger, &self.channel.name);
        let first = !std::mem::replace(&mut self.state().has_warned, true);
        if first {
            (self.delivery.warn)(&format!("the channel `{name}` failed, and is tried again: {why}"));
        }
        // What doctor shows; the warning was given.
        let _ = ledger.report(name, &self.channel.origin, Some(why.to_owned())).await;
    }
}

impl State {
    /// The sessions with events that are not settled.
    fn open(&self) -> Vec<(SessionId, Target)> {
        let is_open = |(session, target): &(&SessionId, &Target)| {
            self.settled.get(*session).is_none_or(|settled| *settled < target.last_seq)
        };
        let targets = self.targets.iter().filter(is_open);
        targets.map(|(session, target)| (session.clone(), target.clone())).collect()
    }
}

/// How long a worker waits between two passes.
#[derive(Clone, Copy)]
enum Pause {
    /// There is nothing to do.
    UntilNews,
    /// Another process delivers some of the sessions.
    Busy,
    /// The channel is down for so long: news wait too.
    Down(Duration),
}

impl Pause {
    fn takes_news(self) -> bool {
        !matches!(self, Self::Down(_))
    }

    fn length(self) -> Duration {
        match self {
            Self::UntilNews => LONGEST_WAIT,
            Self::Busy => BUSY,
            Self::Down(left) => left.min(LONGEST_WAIT),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ledger(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

/// How long to wait after a failure: what the receiver asks for, else longer each time.
fn wait_after(cursor: &Cursor, error: &SendError) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << cursor.attempts.min(16)).min(LONGEST_WAIT);
    error.retry_after.unwrap_or(doubled).max(Duration::from_millis(100))
}
