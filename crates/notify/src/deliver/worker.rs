//! The worker of one channel: takes sessions with new events one after the other, and sends what the channel wants.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use inspan_protocol::{Envelope, Event, Prompt, SessionId, Timestamp};
use inspan_sessions::is_late;
use inspan_store::{Select, SessionEntry, StoreError};
use inspan_view::{DisplayStatus, entry::open_questions};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Delivery,
    gathering::Gathering,
    pause::{FIRST_WAIT, Pause, wait_after},
};
use crate::{
    ledger::{Cursor, CursorKey, Holder, LedgerError, Settled},
    message::{Message, SHOWN},
    notice::{EVENTS, Notice, NoticeKind, id_of, id_of_loss},
    send::{Listener, NotificationChannel},
};

/// How long it takes to look again at a session that another process delivers.
const BUSY: Duration = Duration::from_secs(2);
/// How long it takes to try a session again that cannot be read.
const UNREADABLE: Duration = Duration::from_secs(60);
/// The most notices of one delivery; more are delivered after it.
const MOST: usize = 500;
/// How often a delivery may be refused until it is given up, and how often it may fail until others do not wait for it.
const MOST_REFUSALS: u32 = 5;

/// A session as it was last seen.
#[derive(Clone, Debug)]
pub(super) struct KnownSession {
    pub(super) created_at: Timestamp,
    pub(super) flow: String,
    pub(super) last_seq: u64,
    /// Whether the process that ran it is gone, and it has not ended.
    pub(super) is_lost: bool,
}

/// How much of a session was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeliveryProgress {
    /// Up to this event.
    seq: u64,
    /// Whether its process was gone then.
    is_lost: bool,
}

impl DeliveryProgress {
    fn covers(self, target: &KnownSession) -> bool {
        self.seq >= target.last_seq && (self.is_lost || !target.is_lost)
    }
}

/// Sends for one channel.
pub(super) struct Worker {
    delivery: Delivery,
    pub(super) channel: Arc<NotificationChannel>,
    holder: Holder,
    since: Timestamp,
    /// From when on nothing more is sent.
    until: Option<Instant>,
    state: Mutex<WorkerState>,
    news: Notify,
    closing: CancellationToken,
}

#[derive(Default)]
struct WorkerState {
    targets: BTreeMap<SessionId, KnownSession>,
    /// How much of each session is settled.
    settled: BTreeMap<SessionId, DeliveryProgress>,
    /// The sessions with something that could not be sent.
    unsent: BTreeSet<SessionId>,
    /// Those with something that another deliverer is to send, as far as it was looked at.
    held: BTreeSet<SessionId>,
    /// When what each session with news has to tell is sent.
    gatherings: BTreeMap<SessionId, Gathering>,
    /// Whether something was given up, if only for some receivers.
    has_given_up: bool,
}

/// The result of the check of a session.
enum DeliveryOutcome {
    /// This much is settled.
    Settled(DeliveryProgress),
    /// Another deliverer has it. Whether it has something to send is looked at only at the end.
    Busy { is_pending: bool },
    /// What there is to send is sent after this time, with what comes until then.
    Gathers(Duration),
    /// The session was deleted.
    Gone,
    /// The channel is down: all that it is to send waits for its next attempt.
    Waits(Duration),
    /// The channel fails with this delivery only, as far as is known: others do not wait for its next attempt.
    WaitsAlone(Duration),
}

/// Why a session could not be worked on.
#[derive(Debug, thiserror::Error)]
enum WorkerFault {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Worker {
    pub(super) fn new(
        delivery: Delivery,
        channel: Arc<NotificationChannel>,
        holder: Holder,
        since: Timestamp,
        until: Option<Instant>,
    ) -> Self {
        Self {
            delivery,
            channel,
            holder,
            since,
            until,
            state: Mutex::default(),
            news: Notify::new(),
            closing: CancellationToken::new(),
        }
    }

    /// Makes a session known; work begins if it has new events.
    pub(super) fn offer(&self, session: &SessionId, target: KnownSession) {
        let mut state = self.state();
        if state.targets.get(session).is_some_and(|known| known.created_at != target.created_at) {
            state.forget(session);
        }
        let is_settled = state.settled.get(session).is_some_and(|settled| settled.covers(&target));
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

    /// Whether another deliverer still has something to send.
    pub(super) fn is_held(&self) -> bool {
        !self.state().held.is_empty()
    }

    /// Whether the channel refused something until it was given up.
    pub(super) fn has_given_up(&self) -> bool {
        self.state().has_given_up
    }

    fn state(&self) -> std::sync::MutexGuard<'_, WorkerState> {
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
                    Ok(DeliveryOutcome::Settled(progress)) => {
                        let mut state = self.state();
                        state.settled.insert(session.clone(), progress);
                        state.unsent.remove(&session);
                        state.held.remove(&session);
                        if progress.seq >= target.last_seq {
                            break;
                        }
                    }
                    Ok(DeliveryOutcome::Busy { is_pending }) => {
                        let mut state = self.state();
                        match is_pending {
                            true => state.held.insert(session),
                            false => state.held.remove(&session),
                        };
                        pause = pause.or_after(BUSY);
                        break;
                    }
                    Ok(DeliveryOutcome::Gathers(left)) => {
                        self.state().held.remove(&session);
                        pause = pause.or_after(left);
                        break;
                    }
                    Ok(DeliveryOutcome::Gone) => {
                        let mut state = self.state();
                        // Another one may have its id by now.
                        if state.targets.get(&session).is_some_and(|now| now.created_at == target.created_at)
                        {
                            state.forget(&session);
                        }
                        break;
                    }
                    Ok(DeliveryOutcome::WaitsAlone(left)) => {
                        self.state().unsent.insert(session);
                        pause = pause.or_after(left);
                        break;
                    }
                    Ok(DeliveryOutcome::Waits(left)) => {
                        self.state().unsent.insert(session);
                        return Pause::Down(left);
                    }
                    Err(WorkerFault::Store(error)) => {
                        let is_first = self.state().unsent.insert(session.clone());
                        if is_first {
                            let name = &self.channel.name;
                            (self.delivery.warn)(&format!(
                                "the channel `{name}` cannot read session `{session}`, and tries it again: {error}"
                            ));
                        }
                        pause = pause.or_after(UNREADABLE);
                        break;
                    }
                    Err(WorkerFault::Ledger(error)) => {
                        self.warn(&error.to_string()).await;
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
    async fn step(&self, session: &SessionId, target: &KnownSession) -> Result<DeliveryOutcome, WorkerFault> {
        let Delivery { store, ledger, clock, .. } = &self.delivery;
        let key = self.key(session, target.created_at);
        let now = clock.wall();
        let Some(cursor) = ledger.claim(&key, &self.holder, now).await? else {
            let is_pending = self.closing.is_cancelled() && self.is_pending(&key).await?;
            return Ok(DeliveryOutcome::Busy { is_pending });
        };
        let left = cursor.retry_at.map(|at| at.since(now)).unwrap_or_default();
        if !left.is_zero() {
            return Ok(waits(&cursor, left));
        }
        // Read before the events: what is appended meanwhile is for the next time.
        let entry = match store.entry(session).await {
            Ok(entry) if entry.created_at == target.created_at => entry,
            Ok(_) | Err(StoreError::UnknownSession(_)) => {
                ledger.release(&key, &self.holder).await?;
                return Ok(DeliveryOutcome::Gone);
            }
            Err(error) => return Err(error.into()),
        };
        let last = entry.digest.last_seq;
        if cursor.next <= last {
            let left = self.gather(session, &cursor, &entry).await?;
            // Who ends now sends what there is.
            if !left.is_zero() && !self.closing.is_cancelled() && self.until.is_none() {
                return Ok(DeliveryOutcome::Gathers(left));
            }
            let (notices, end) = self.notices(session, &cursor, &entry).await?;
            if !notices.is_empty() {
                // What follows the newest notice is not recorded: a power cut may take events that are no facts, and others
                // then get their numbers.
                let newest = notices.last().and_then(|notice| notice.seq);
                let end = newest.filter(|_| cursor.until.is_none()).unwrap_or(end);
                ledger.begin(&key, end).await?;
                return self.deliver(&key, target, &cursor, Settled::Events(end), notices).await;
            }
            if cursor.until.is_some() {
                ledger.settle(&key, Settled::Events(end)).await?;
            }
            if end < last {
                return Ok(DeliveryOutcome::Settled(DeliveryProgress { seq: end, is_lost: false }));
            }
        }
        let is_lost = DisplayStatus::of(&entry) == DisplayStatus::Interrupted;
        if self.owes_loss(&cursor, &entry) {
            let at = entry.digest.updated_at.unwrap_or(entry.created_at);
            let notice = Notice::of_loss(session, at, &self.delivery.commands);
            return self.deliver(&key, target, &cursor, Settled::Loss(last), vec![notice]).await;
        }
        Ok(DeliveryOutcome::Settled(DeliveryProgress { seq: last, is_lost }))
    }

    /// Whether a session that another deliverer has still has something to send.
    async fn is_pending(&self, key: &CursorKey) -> Result<bool, WorkerFault> {
        let cursor = self.delivery.ledger.cursor(key).await?;
        let entry = match self.delivery.store.entry(&key.session).await {
            Ok(entry) if entry.created_at == key.created_at => entry,
            Ok(_) | Err(StoreError::UnknownSession(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let has_events = cursor.next <= entry.digest.last_seq
            && self.gather(&key.session, &cursor, &entry).await?.is_zero()
            && !self.notices(&key.session, &cursor, &entry).await?.0.is_empty();
        Ok(has_events || self.owes_loss(&cursor, &entry))
    }

    /// Whether it is to be said that the process of a session is gone.
    fn owes_loss(&self, cursor: &Cursor, entry: &SessionEntry) -> bool {
        DisplayStatus::of(entry) == DisplayStatus::Interrupted
            && cursor.lost < entry.digest.last_seq
            && self.channel.settings.on.contains(&NoticeKind::Failure)
    }

    /// Looks at the new events of a session. Gives how long more is gathered before they are sent.
    async fn gather(
        &self,
        session: &SessionId,
        cursor: &Cursor,
        entry: &SessionEntry,
    ) -> Result<Duration, WorkerFault> {
        let (known, settled) = {
            let mut state = self.state();
            (state.gatherings.remove(session), state.settled.get(session).map_or(0, |settled| settled.seq))
        };
        // What was settled since the last delivery had nothing in it, and is not recorded.
        let next = cursor.next.max(settled + 1);
        let read = async |from| self.delivery.store.read(session, from, Select::Names(EVENTS)).await;
        let (mut gathering, events) = match known {
            Some(gathering) => {
                let events = read(gathering.seen + 1).await?;
                (gathering, events)
            }
            None if read(next).await?.iter().all(|envelope| self.kind(envelope).is_none()) => {
                return Ok(Duration::ZERO);
            }
            // What was sent before says when more is.
            None => (Gathering::default(), read(1).await?),
        };
        let last = entry.digest.last_seq;
        for envelope in events.iter().filter(|envelope| envelope.seq <= last) {
            if let Some(kind) = self.kind(envelope) {
                gathering.add(envelope, kind);
            }
        }
        gathering.seen = last;
        gathering.settle(next);
        // What was being sent is sent again, and nobody waits for what will not go on.
        let goes_on = match DisplayStatus::of(entry) {
            DisplayStatus::Running => true,
            DisplayStatus::Waiting => entry.owner.is_some(),
            _ => false,
        };
        let left = match cursor.until {
            None if goes_on => gathering.left(self.delivery.clock.now()),
            _ => Duration::ZERO,
        };
        if goes_on || gathering.first().is_some() {
            self.state().gatherings.insert(session.clone(), gathering);
        }
        Ok(left)
    }

    /// What the next delivery of a session's events has in it, and the event up to which it goes.
    async fn notices(
        &self,
        session: &SessionId,
        cursor: &Cursor,
        entry: &SessionEntry,
    ) -> Result<(Vec<Notice>, u64), WorkerFault> {
        let mut end = cursor.until.unwrap_or(entry.digest.last_seq);
        let mut notices = Vec::new();
        let Some(first) = self.state().gatherings.get(session).and_then(Gathering::first) else {
            return Ok((notices, end));
        };
        let mut events = self.delivery.store.read(session, first, Select::Names(EVENTS)).await?;
        if let Some(gathering) = self.state().gatherings.get(session) {
            events.retain(|envelope| envelope.seq <= end && gathering.has(envelope.seq));
        }
        let now = self.delivery.clock.now();
        let mut questions = 0;
        for envelope in events {
            let Some(notice) = self.notice(&envelope, entry, now) else { continue };
            questions += usize::from(notice.question.is_some());
            // Each question is shown: it can be answered where it is read.
            if notices.len() == MOST || questions > SHOWN {
                end = envelope.seq - 1;
                break;
            }
            notices.push(notice);
        }
        Ok((notices, end))
    }

    /// Sends one delivery once, and records the result.
    async fn deliver(
        &self,
        key: &CursorKey,
        target: &KnownSession,
        cursor: &Cursor,
        part: Settled,
        notices: Vec<Notice>,
    ) -> Result<DeliveryOutcome, WorkerFault> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Ok(DeliveryOutcome::Waits(FIRST_WAIT));
        }
        let Delivery { ledger, clock, .. } = &self.delivery;
        let CursorKey { channel, session, created_at } = key;
        let (id, progress) = match part {
            Settled::Events(end) => {
                let id = id_of(channel, session, *created_at, cursor.next, end);
                (id, DeliveryProgress { seq: end, is_lost: false })
            }
            Settled::Loss(last) => {
                let id = id_of_loss(channel, session, *created_at, last);
                (id, DeliveryProgress { seq: last, is_lost: true })
            }
        };
        let url = self.delivery.page.as_ref().map(|page| page(session));
        let is_more = {
            let state = self.state();
            let gathering = state.gatherings.get(session);
            gathering.is_some_and(|gathering| gathering.has_failure_before(cursor.next))
        };
        let message = Message::of_session(id, channel, session, &target.flow, notices, is_more, url);
        let origin = &self.channel.origin;
        match self.channel.send(&message).await {
            Ok(()) => {
                ledger.settle(key, part).await?;
                self.has_sent().await?;
                Ok(DeliveryOutcome::Settled(progress))
            }
            Err(error) if error.is_partial => {
                ledger.give_up(key, part, origin, &error.message).await?;
                self.has_sent().await?;
                let has_given_up = std::mem::replace(&mut self.state().has_given_up, true);
                if !has_given_up {
                    (self.delivery.warn)(&format!(
                        "the channel `{channel}` sent a notification of session `{session}` only in part: {}",
                        error.message
                    ));
                }
                Ok(DeliveryOutcome::Settled(progress))
            }
            Err(error) if error.is_refusal && cursor.refusals + 1 >= MOST_REFUSALS => {
                ledger.give_up(key, part, origin, &error.message).await?;
                self.state().has_given_up = true;
                (self.delivery.warn)(&format!(
                    "the channel `{channel}` refused a notification of session `{session}` {MOST_REFUSALS} times, and it \
                     is given up: {}",
                    error.message
                ));
                Ok(DeliveryOutcome::Settled(progress))
            }
            Err(error) => {
                let wait = wait_after(cursor, &error);
                let cursor = ledger.failed(key, clock.wall() + wait, error.is_refusal).await?;
                self.warn(&error.message).await;
                Ok(waits(&cursor, wait))
            }
        }
    }

    /// What an event is about, if the channel wants such events.
    fn kind(&self, envelope: &Envelope) -> Option<NoticeKind> {
        if envelope.timestamp < self.since {
            return None;
        }
        let notice = Notice::of(envelope, &self.delivery.commands, |_| false)?;
        notice.is_wanted(&self.channel.settings.on, &envelope.event).then_some(notice.kind)
    }

    /// The notice of an event that the channel wants, unless it no longer needs anybody.
    fn notice(&self, envelope: &Envelope, entry: &SessionEntry, now: Timestamp) -> Option<Notice> {
        // What was answered meanwhile no longer waits for a person, nor does what another session asks again.
        if let Event::SessionPrompt(prompt) = &envelope.event
            && (entry.continued_by.is_some()
                || open_questions(entry).all(|other| other.prompt_id != prompt.prompt_id))
        {
            return None;
        }
        let is_expired = |question: &Prompt| is_late(entry, question, now);
        Notice::of(envelope, &self.delivery.commands, is_expired)
    }

    /// The channel works; perhaps it takes no answers.
    async fn has_sent(&self) -> Result<(), LedgerError> {
        let NotificationChannel { name, origin, .. } = &*self.channel;
        let fault = self.channel.listener().and_then(Listener::fault);
        let fault = fault.map(|fault| self.channel.shown(&fault));
        self.delivery.ledger.report(name, origin, fault).await?;
        self.set_warned(false);
        Ok(())
    }

    /// Warns once, until the channel works again.
    async fn warn(&self, why: &str) {
        let (ledger, name) = (&self.delivery.ledger, &self.channel.name);
        if self.set_warned(true) {
            (self.delivery.warn)(&format!("the channel `{name}` failed, and is tried again: {why}"));
        }
        // What doctor shows; the warning was given.
        let _ = ledger.report(name, &self.channel.origin, Some(why.to_owned())).await;
    }

    /// Sets whether a warning was given since the last success. Gives whether that changed.
    fn set_warned(&self, has_warned: bool) -> bool {
        let mut warned = self.delivery.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = (self.channel.name.clone(), self.channel.origin.clone());
        match has_warned {
            true => warned.insert(channel),
            false => warned.remove(&channel),
        }
    }
}

/// A delivery that is refused, or failed often, says little about others.
fn waits(cursor: &Cursor, left: Duration) -> DeliveryOutcome {
    match cursor.refusals > 0 || cursor.attempts >= MOST_REFUSALS {
        true => DeliveryOutcome::WaitsAlone(left),
        false => DeliveryOutcome::Waits(left),
    }
}

impl WorkerState {
    fn forget(&mut self, session: &SessionId) {
        self.targets.remove(session);
        self.settled.remove(session);
        self.unsent.remove(session);
        self.held.remove(session);
        self.gatherings.remove(session);
    }

    /// The sessions with events that are not settled.
    fn open(&self) -> Vec<(SessionId, KnownSession)> {
        let is_open = |(session, target): &(&SessionId, &KnownSession)| {
            self.settled.get(*session).is_none_or(|settled| !settled.covers(target))
        };
        let targets = self.targets.iter().filter(is_open);
        targets.map(|(session, target)| (session.clone(), target.clone())).collect()
    }
}
