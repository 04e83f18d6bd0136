//! Between the hub of an attempt and the log of its session.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use inspan_engine::{Hub, Subscription};
use inspan_flow::RunStore;
use inspan_flow_core::{AttemptDone, AttemptSpec, FACTS};
use inspan_protocol::{Command, Envelope, Event, PromptId, SessionId, Timestamp};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::AttemptError;
use crate::{
    log::{AttemptKey, LogError, LogPosition, Segment, SharedLog, Writer},
    seen::{Seen, SeenLog},
    store::SharedStore,
};

/// How often the log is read for what concerns the attempt, and its events are appended.
const LOOK: Duration = Duration::from_millis(200);
/// How many events are appended at once.
const BATCH: usize = 1_000;
/// How long the log may fail before the attempt is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the end of an attempt is held while the log cannot be written: its work is done, and waiting loses nothing.
const PATIENCE_AT_END: Duration = Duration::from_secs(600);
/// How often the log is read for requests that no worker was told of: who stored them may be gone.
const REQUESTS: Duration = Duration::from_secs(10);
/// How often it is said that the log does not answer.
const REPORT: Duration = Duration::from_secs(30);
/// A session hears at once of an attempt with a timeout that began so much later than it was given to the workers.
const LATE: Duration = Duration::from_secs(1);
/// The facts after which a session has nothing to decide.
const UNREMARKABLE: [&str; 4] = ["agent:start", "agent:turn", "agent:session", "agent:complete"];

/// Since when the log has not answered, and when that was reported last.
#[derive(Default)]
pub(super) struct LogSilence(Option<(Instant, Instant)>);

impl LogSilence {
    /// The log does not answer. For how long, if that is to be reported: at once, and then now and then.
    fn note(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let (since, reported) = self.0.unwrap_or((now, now));
        let is_due = self.0.is_none() || now.duration_since(reported) >= REPORT;
        self.0 = Some((since, if is_due { now } else { reported }));
        is_due.then(|| now.duration_since(since))
    }

    /// It answers. For how long it did not, if it did not.
    fn end(&mut self) -> Option<Duration> {
        self.0.take().map(|(since, _)| since.elapsed())
    }
}

/// Appends what an attempt does to the log, and gives its hub what the log brings.
pub(super) struct AttemptFollower<'a> {
    pub(super) log: &'a SharedLog,
    pub(super) store: &'a SharedStore,
    pub(super) seen: &'a SeenLog,
    pub(super) notify: &'a (dyn Fn(SessionId) -> BoxFuture<'static, ()> + Send + Sync),
    pub(super) machine: &'a str,
    pub(super) runner: String,
    pub(super) session: &'a SessionId,
    pub(super) key: AttemptKey,
    pub(super) spec: AttemptSpec,
    /// When it was given to the workers, and when it began here.
    pub(super) given: Timestamp,
    pub(super) began: Arc<OnceLock<Timestamp>>,
    /// Whether the log is to have when it began, and does not.
    pub(super) is_to_say_when: bool,
    /// Where the log continues.
    pub(super) position: LogPosition,
    pub(super) hub: Hub,
    pub(super) cancel: CancellationToken,
    pub(super) events: Subscription,
    /// Events that are not in the log yet.
    pub(super) waiting: Vec<Arc<Envelope>>,
    /// The number of the newest event that was taken from the hub.
    pub(super) taken: u64,
    /// Whether the log has the end of the attempt.
    pub(super) is_done: bool,
    /// Whether another worker has written of the same attempt.
    pub(super) is_begun_elsewhere: bool,
    /// Answers in the log to questions that the hub has not asked.
    pub(super) replies: BTreeMap<PromptId, (String, Option<String>)>,
    /// Questions whose answers came from the log.
    pub(super) replied: BTreeSet<PromptId>,
    /// Messages that have no receiver yet.
    pub(super) mail: VecDeque<Command>,
    /// Whether the log is to have that the worker leaves the attempt, and does not.
    pub(super) is_to_say_left: bool,
    pub(super) silence: LogSilence,
}

impl AttemptFollower<'_> {
    /// Appends what happens and takes what the log brings, until the attempt must end here.
    pub(super) async fn follow(&mut self) -> AttemptError {
        let mut tick = interval(self.log.look(LOOK));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut worked_at, mut asked_at) = (Instant::now(), Instant::now());
        loop {
            tokio::select! {
                event = self.events.next() => {
                    let Some(event) = event else { return AttemptError::GivenUp };
                    let is_fact = FACTS.contains(&event.event.name());
                    self.take(event);
                    if !is_fact && self.waiting.len() < BATCH {
                        continue;
                    }
                }
                _ = tick.tick() => {}
            }
            match self.exchange(None).await {
                // Another worker has ended it.
                Ok(()) if self.is_done => return AttemptError::GivenUp,
                Ok(()) => {
                    worked_at = Instant::now();
                    self.log_answers();
                }
                Err(AttemptError::Log(error)) if worked_at.elapsed() < PATIENCE => {
                    self.log_is_silent(&error).await;
                }
                Err(error) => return error,
            }
            if asked_at.elapsed() >= REQUESTS {
                asked_at = Instant::now();
                // Who stored a request may have died before it told the workers of that.
                if self.store.unanswered(self.session).await.is_ok_and(|requests| !requests.is_empty()) {
                    (self.notify)(self.session.clone()).await;
                }
            }
        }
    }

    /// The same, for as long as the log may fail.
    pub(super) async fn catch_up(&mut self, done: Option<AttemptDone>) -> Result<(), AttemptError> {
        let since = Instant::now();
        let patience = if done.is_some() { PATIENCE_AT_END } else { PATIENCE };
        loop {
            match self.exchange(done.clone()).await {
                Err(AttemptError::Log(error)) if since.elapsed() < patience => {
                    self.log_is_silent(&error).await;
                }
                stored => {
                    if stored.is_ok() {
                        self.log_answers();
                    }
                    return stored;
                }
            }
        }
    }

    async fn log_is_silent(&mut self, error: &LogError) {
        if let Some(time) = self.silence.note() {
            tracing::warn!(attempt = %self.key, %error, seconds = time.as_secs(), "the shared log does not answer");
        }
        tokio::time::sleep(LOOK).await;
    }

    fn log_answers(&mut self) {
        if let Some(time) = self.silence.end() {
            tracing::warn!(attempt = %self.key, seconds = time.as_secs(), "the shared log answers again");
        }
    }

    /// Appends the events of an interrupted attempt, if the log takes them.
    pub(super) async fn flush_what_is_left(&mut self) {
        // The session continues without it.
        let _unsaid = timeout(LOOK * 10, self.exchange(None)).await;
    }

    /// Whether the session ends it. Its programs do not wait for the answer of a log that is away.
    pub(super) async fn is_to_end(&mut self) -> bool {
        let _unsaid = timeout(LOOK, self.exchange(None)).await;
        self.cancel.is_cancelled()
    }

    /// An event that the log does not have: all but the answers that came from it.
    fn take(&mut self, event: Arc<Envelope>) {
        let is_known = match &event.event {
            Event::SessionReply { prompt_id, .. } => self.replied.contains(prompt_id),
            Event::SessionRejected { .. } => true,
            _ => false,
        };
        self.taken = event.seq;
        if !is_known {
            self.waiting.push(event);
        }
        self.mark_stored();
    }

    /// Tells the hub how far the log has its events: an agent asks and calls nothing before.
    fn mark_stored(&self) {
        self.hub.mark_stored(self.waiting.first().map_or(self.taken, |next| next.seq.saturating_sub(1)));
    }

    /// Takes all that the log has, and appends the rest; with the end, if there is one.
    pub(super) async fn exchange(&mut self, done: Option<AttemptDone>) -> Result<(), AttemptError> {
        while let Some(seen) = self.seen.at(self.session, self.position).await? {
            self.receive(&seen)?;
        }
        self.deliver();
        while let Some(event) = self.events.try_next() {
            self.take(event);
        }
        while !self.is_done
            && (!self.waiting.is_empty()
                || done.is_some()
                || self.unreported_start().is_some()
                || self.is_to_say_left)
        {
            let segment = self.next_segment(done.as_ref());
            if !self.log.append(self.session, &segment).await? {
                if let Some(other) = self.seen.at(self.session, self.position).await? {
                    self.receive(&other)?;
                }
                continue;
            }
            self.receive(&self.seen.put(self.session, &segment))?;
            let is_notable = |name: &str| FACTS.contains(&name) && !UNREMARKABLE.contains(&name);
            let is_late = segment.header.began.is_some_and(|at| at.since(self.given) >= LATE);
            if !self.is_done && (is_late || segment.events.iter().any(|event| is_notable(event.event.name())))
            {
                (self.notify)(self.session.clone()).await;
            }
        }
        Ok(())
    }

    /// When it began, if the log does not have that yet.
    fn unreported_start(&self) -> Option<Timestamp> {
        self.began.get().copied().filter(|_| self.is_to_say_when)
    }

    /// What the log does not have yet, as far as it is appended at once; with the end if that is all.
    fn next_segment(&self, done: Option<&AttemptDone>) -> Segment {
        let mut segment = Segment::new(Writer::Attempt(self.key.clone()), self.position);
        segment.header.machine = Some(self.machine.to_owned());
        segment.header.runner = Some(self.runner.clone());
        segment.header.began = self.unreported_start();
        segment.events = self.waiting.iter().take(BATCH).cloned().collect();
        let is_last = segment.events.len() == self.waiting.len();
        segment.header.done = done.filter(|_| is_last).cloned();
        segment.header.left = is_last && self.is_to_say_left;
        segment.renumber(self.session, self.position);
        segment
    }

    /// Takes what was appended: by others, or by the attempt itself. Its own may have been stored by an `exchange` that was
    /// cut off, or failed, before it knew; so this, and only this, ends their waiting.
    fn receive(&mut self, seen: &Seen) -> Result<(), AttemptError> {
        self.position = seen.next;
        let is_of_it = seen.by == Writer::Attempt(self.key.clone());
        if seen.runner.as_ref() == Some(&self.runner) {
            self.waiting.drain(..seen.events);
            self.mark_stored();
            self.is_to_say_when &= !seen.says_when;
            self.is_to_say_left &= !seen.says_left;
        } else {
            self.is_begun_elsewhere |= is_of_it;
        }
        self.is_done |= seen.is_done && is_of_it;
        if seen.by != Writer::Decider {
            return Ok(());
        }
        let AttemptKey { path, attempt } = &self.key;
        if seen.over.iter().any(|(place, up_to)| place == path && attempt <= up_to) {
            return Err(AttemptError::GivenUp);
        }
        if seen.cancel.contains(&self.key) {
            self.cancel.cancel();
        }
        self.replies.extend(seen.replies.iter().cloned());
        self.mail
            .extend(seen.mail.iter().filter(|command| self.is_for_us(command)).cloned().collect::<Vec<_>>());
        Ok(())
    }

    fn is_for_us(&self, command: &Command) -> bool {
        match command {
            Command::Send { .. } => true,
            Command::SendTo { node, .. } => *node == self.spec.node_id,
            Command::SendToRun { run, .. } | Command::Close { run } => self.hub.active_runs().contains(run),
            _ => false,
        }
    }

    /// Gives the hub what the log has brought, once it takes it.
    fn deliver(&mut self) {
        for open in self.hub.open_prompts() {
            if let Some((content, choice)) = self.replies.remove(&open.prompt_id) {
                self.replied.insert(open.prompt_id.clone());
                // It was checked before it came into the log.
                let _refused = self.hub.reply(open.prompt_id, content, choice);
            }
        }
        let runs = self.hub.active_runs();
        self.mail.retain_mut(|command| {
            let is_taken = match command {
                // What was for the run of a lost attempt is for that of this one, once it has begun.
                Command::SendToRun { run, .. } | Command::Close { run } => {
                    if let (false, [own, ..]) = (runs.contains(run), &runs[..]) {
                        run.clone_from(own);
                    }
                    runs.contains(run)
                }
                _ => self.hub.has_taker(command),
            };
            if is_taken {
                // A run that has just ended takes no more.
                let _refused = self.hub.command(command.clone());
            }
            !is_taken
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_log_that_does_not_answer_is_reported_at_once_every_half_minute_and_when_it_is_back() {
        let (mut silence, mut reported) = (LogSilence::default(), Vec::new());
        for _ in 0..=325 {
            reported.extend(silence.note());
            tokio::time::advance(LOOK).await;
        }
        reported.extend(silence.end());
        assert_eq!(reported.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 30, 60, 65]);
        assert_eq!(silence.end(), None);
    }
}
