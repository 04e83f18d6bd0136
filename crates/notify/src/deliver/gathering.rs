//! When a session's notices are sent. A question or an end is sent at once. Of what may come in numbers the first is sent
//! at once, and what follows is gathered, longer each time. What was told already is not told again.
//!
//! All of it follows from the events alone: another process that goes on with the session sends at the same moments.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use inspan_protocol::{Envelope, Event, PromptId, Timestamp};

use crate::notice::NoticeKind;

/// How long after a message of a kind the next one comes at the earliest: after the first, the second, and all others. After
/// the longest of these without one, the next is a first one again.
const PAUSES: [Duration; 3] = [Duration::from_secs(60), Duration::from_secs(4 * 60), LONGEST_PAUSE];
const LONGEST_PAUSE: Duration = Duration::from_secs(16 * 60);
/// What happens so soon after what is sent at once is most often in the same message.
const TOGETHER: Duration = Duration::from_secs(1);
/// Agents that meet the same limit of their vendor name moments that differ by so much at most.
const SAME_LIMIT: Duration = Duration::from_secs(5 * 60);

/// What a channel is sent of a session, and when.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// The last event that it knows of.
    pub(super) seen: u64,
    /// The events that are not settled and are to be sent, and when each is at the latest.
    open: BTreeMap<u64, Timestamp>,
    bursts: BTreeMap<NoticeKind, Burst>,
    questions: BTreeSet<PromptId>,
    limits: Vec<(String, Timestamp)>,
}

/// The messages of one kind that follow each other.
#[derive(Debug)]
struct Burst {
    /// The first event of the kind.
    first: u64,
    /// How many messages there were.
    messages: usize,
    /// When the last of them is sent.
    last: Timestamp,
}

impl Gathering {
    /// Adds the next event that the channel wants.
    pub(super) fn add(&mut self, envelope: &Envelope, kind: NoticeKind) {
        let is_new = match &envelope.event {
            // It is asked again after a resume.
            Event::SessionPrompt(prompt) => self.questions.insert(prompt.prompt_id.clone()),
            Event::LimitWait { provider, until, .. } => self.is_new_limit(provider, *until),
            _ => true,
        };
        if is_new {
            let due = self.due(kind, envelope);
            self.open.insert(envelope.seq, due);
        }
    }

    fn is_new_limit(&mut self, provider: &str, until: Timestamp) -> bool {
        let is_same = |(other, moment): &(String, Timestamp)| {
            other == provider && until.since(*moment).max(moment.since(until)) <= SAME_LIMIT
        };
        let is_new = !self.limits.iter().any(is_same);
        if is_new {
            self.limits.push((provider.to_owned(), until));
        }
        is_new
    }

    fn due(&mut self, kind: NoticeKind, envelope: &Envelope) -> Timestamp {
        let (seq, at) = (envelope.seq, envelope.timestamp);
        let due = match kind {
            NoticeKind::Failure | NoticeKind::Budget | NoticeKind::Limit => {
                let burst = Burst { first: seq, messages: 0, last: at };
                self.bursts.entry(kind).or_insert(burst).due(at)
            }
            _ => at,
        };
        // What is sent now takes with it what was gathered.
        if due <= at {
            self.bursts.values_mut().for_each(|burst| burst.last = burst.last.min(at));
        }
        due
    }

    /// Forgets what is settled: all before this event.
    pub(super) fn settle(&mut self, next: u64) {
        self.open = self.open.split_off(&next);
    }

    /// The first event that is to be sent.
    pub(super) fn first(&self) -> Option<u64> {
        self.open.keys().next().copied()
    }

    /// Whether an event is to be sent.
    pub(super) fn has(&self, seq: u64) -> bool {
        self.open.contains_key(&seq)
    }

    /// How long from now on more is gathered before it is sent.
    pub(super) fn left(&self, now: Timestamp) -> Duration {
        let due = self.open.values().min().copied().unwrap_or(now);
        // Farther ahead, the clock was set back since.
        Some(due.since(now)).filter(|left| *left <= LONGEST_PAUSE).unwrap_or_default()
    }

    /// Whether a failure is told of before this event.
    pub(super) fn has_failure_before(&self, seq: u64) -> bool {
        self.bursts.get(&NoticeKind::Failure).is_some_and(|burst| burst.first < seq)
    }
}

impl Burst {
    /// When what happens now is sent.
    fn due(&mut self, at: Timestamp) -> Timestamp {
        let ahead = self.last.since(at);
        // It waits with others, unless the clock was set back since.
        if !ahead.is_zero() && ahead <= LONGEST_PAUSE {
            return self.last;
        }
        let since = at.since(self.last);
        let pause = self.messages.checked_sub(1).map(|more| PAUSES[more.min(PAUSES.len() - 1)]);
        match pause.filter(|_| ahead.is_zero() && since < LONGEST_PAUSE) {
            Some(pause) if since < TOGETHER => return self.last + pause,
            Some(pause) => self.last = at.max(self.last + pause),
            None => (self.messages, self.last) = (0, at),
        }
        self.messages += 1;
        self.last
    }
}

#[cfg(test)]
mod tests {
    use inspan_protocol::EventContext;
    use serde_json::{Value, json};

    use super::*;

    const FAILURE: NoticeKind = NoticeKind::Failure;

    /// When what happens at these seconds is sent, in seconds.
    fn due(happens: &[(i64, NoticeKind)]) -> Vec<i64> {
        let mut gathering = Gathering::default();
        for (seq, (at, kind)) in (1..).zip(happens) {
            gathering.add(&event(seq, *at, json!({ "type": "future:event" })), *kind);
        }
        gathering.open.values().map(|due| due.as_millis() / 1_000).collect()
    }

    fn event(seq: u64, at: i64, event: Value) -> Envelope {
        let event = serde_json::from_value(event).unwrap();
        Envelope::new(EventContext::session("s".into()), seq, Timestamp::from_millis(at * 1_000), event)
    }

    fn failures(at: &[i64]) -> Vec<(i64, NoticeKind)> {
        at.iter().map(|at| (*at, FAILURE)).collect()
    }

    #[test]
    fn the_first_is_sent_at_once_and_what_follows_is_gathered_longer_each_time() {
        let rows: [(&[i64], &[i64]); 6] = [
            (&[0, 5, 30, 59, 61, 299, 301, 1_200, 1_300], &[0, 60, 60, 60, 300, 300, 1_260, 1_260, 2_220]),
            // What comes later than that is sent at once, and is one more message.
            (&[0, 100, 101, 400, 401], &[0, 100, 340, 1_300, 1_300]),
            // After a quiet time all begins anew.
            (&[0, 100, 400, 1_360, 1_361, 1_400], &[0, 100, 400, 1_360, 1_420, 1_420]),
            // What is most often in the first message is no other one.
            (&[0, 0, 0, 70], &[0, 60, 60, 70]),
            // The clock is set back, by little and by much.
            (&[10_000, 10_005, 9_500], &[10_000, 10_060, 10_060]),
            (&[10_000, 10_005, 100, 105], &[10_000, 10_060, 100, 160]),
        ];
        for (happens, expected) in rows {
            assert_eq!(due(&failures(happens)), expected, "{happens:?}");
        }
    }

    #[test]
    fn forty_failures_within_some_minutes_are_three_messages() {
        let mut messages = due(&failures(&(0..40).map(|item| item * 7).collect::<Vec<_>>()));
        messages.dedup();
        assert_eq!(messages, [0, 60, 300]);
        // Eight hours of them are a few each hour.
        let mut night = due(&failures(&(0..2_880).map(|item| item * 10).collect::<Vec<_>>()));
        night.dedup();
        assert_eq!(night.len(), 33);
    }

    #[test]
    fn a_question_or_an_end_does_not_wait_and_takes_with_it_what_was_gathered() {
        let (question, end) = (NoticeKind::Question, NoticeKind::End);
        let happens = [
            (0, FAILURE),
            (5, FAILURE),
            (10, question),
            (10, question),
            (20, FAILURE),
            (30, NoticeKind::Limit),
            (40, end),
        ];
        // The failure of second 20 comes with the limit, and is due four minutes after the one of second 10.
        assert_eq!(due(&happens), [0, 60, 10, 10, 250, 30, 40]);
    }

    #[test]
    fn what_waits_is_sent_when_the_first_of_it_is_due() {
        let mut gathering = Gathering::default();
        for (seq, at) in [(3, 0), (5, 20), (7, 70)] {
            gathering.add(&event(seq, at, json!({ "type": "future:event" })), FAILURE);
        }
        let left =
            |gathering: &Gathering, now: i64| gathering.left(Timestamp::from_millis(now * 1_000)).as_secs();
        assert_eq!((left(&gathering, 0), gathering.first()), (0, Some(3)));
        gathering.settle(4);
        assert_eq!([21, 60, 61].map(|now| left(&gathering, now)), [39, 0, 0]);
        // The clock was set back by hours: nobody waits for it.
        assert_eq!(left(&gathering, -7_200), 0);
        gathering.settle(6);
        assert_eq!((left(&gathering, 71), gathering.has(5), gathering.has(7)), (229, false, true));
        assert_eq!([3, 4].map(|seq| gathering.has_failure_before(seq)), [false, true]);
        gathering.settle(8);
        assert_eq!((left(&gathering, 71), gathering.first()), (0, None));
    }

    #[test]
    fn a_limit_and_a_question_are_told_once() {
        let limit = |provider: &str, until: i64| json!({ "type": "limit:wait", "provider": provider, "until": Timestamp::from_millis(until * 1_000) });
        let question =
            |id: &str| json!({ "type": "session:prompt", "promptId": id, "prompt": "Go?", "kind": "input" });
        let rows = [
            (0, limit("claude", 18_000), NoticeKind::Limit, true),
            (1, limit("claude", 18_000), NoticeKind::Limit, false),
            (2, limit("claude", 18_290), NoticeKind::Limit, false),
            (3, limit("claude", 17_710), NoticeKind::Limit, false),
            (4, limit("codex", 18_000), NoticeKind::Limit, true),
            // Met again later, and lifted later.
            (9_000, limit("claude", 18_000), NoticeKind::Limit, false),
            (18_001, limit("claude", 36_000), NoticeKind::Limit, true),
            (18_002, question("a"), NoticeKind::Question, true),
            (18_003, question("b"), NoticeKind::Question, true),
            (18_004, question("a"), NoticeKind::Question, false),
        ];
        let mut gathering = Gathering::default();
        for (seq, (at, value, kind, is_told)) in (1..).zip(rows) {
            gathering.add(&event(seq, at, value.clone()), kind);
            assert_eq!(gathering.has(seq), is_told, "{at}: {value}");
        }
    }
}
