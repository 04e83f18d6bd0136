//! What the attempts of a worker read of the logs of their sessions. Each of them takes what came since it was given to the
//! workers, so those of a foreach would all read what all others have written: what one has read or written, the others know.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{Command, Event, NodePath, PromptId, SessionId};
use parking_lot::Mutex;

use crate::log::{AttemptKey, LogError, LogPosition, Segment, SharedLog, Writer};

/// How many segments are remembered.
const REMEMBERED: usize = 20_000;

/// What a segment says to attempts.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Where the log continues.
    pub(crate) next: LogPosition,
    pub(crate) by: Writer,
    /// Who has run the attempt that wrote it.
    pub(crate) runner: Option<String>,
    /// How many events it has.
    pub(crate) events: usize,
    /// Whether it says when the attempt of the writer began, and whether it has its end.
    pub(crate) says_when: bool,
    /// Whether it says that the worker has left the attempt.
    pub(crate) says_left: bool,
    pub(crate) is_done: bool,
    /// Attempts that are to end.
    pub(crate) cancel: Vec<AttemptKey>,
    /// Attempts that are over: those of a place up to a number.
    pub(crate) over: Vec<(NodePath, u32)>,
    /// Answers to questions.
    pub(crate) replies: Vec<(PromptId, (String, Option<String>))>,
    /// Commands that are executed where the attempts run.
    pub(crate) mail: Vec<Command>,
}

impl Seen {
    pub(crate) fn of(segment: &Segment) -> Self {
        let header = &segment.header;
        let mut seen = Self {
            next: segment.next(),
            by: header.by.clone(),
            runner: header.runner.clone(),
            events: segment.events.len(),
            says_when: header.began.is_some(),
            says_left: header.left,
            is_done: header.done.is_some(),
            cancel: header.cancel.clone(),
            over: Vec::new(),
            replies: Vec::new(),
            mail: header.mail.clone(),
        };
        if header.by != Writer::Decider {
            return seen;
        }
        for event in &segment.events {
            let over = match &event.event {
                Event::TaskInterrupted { attempt, .. } => Some(*attempt),
                Event::TaskStart { attempt, .. } => attempt.checked_sub(1).filter(|before| *before > 0),
                Event::TaskComplete { .. } | Event::TaskFailed { .. } | Event::TaskCancelled { .. } => {
                    Some(u32::MAX)
                }
                Event::SessionReply { prompt_id, content, choice, .. } => {
                    seen.replies.push((prompt_id.clone(), (content.clone(), choice.clone())));
                    None
                }
                _ => None,
            };
            seen.over.extend(event.context.task.clone().zip(over));
        }
        seen
    }
}

/// The logs as the attempts of a worker have read and written them.
#[derive(Debug)]
pub(crate) struct SeenLog {
    log: SharedLog,
    known: Mutex<BTreeMap<(SessionId, LogPosition), Arc<Seen>>>,
}

impl SeenLog {
    pub(crate) fn new(log: SharedLog) -> Self {
        Self { log, known: Mutex::default() }
    }

    /// The segment at a position, if there is one. It never changes, so it is read once.
    pub(crate) async fn at(
        &self,
        session: &SessionId,
        position: LogPosition,
    ) -> Result<Option<Arc<Seen>>, LogError> {
        if let Some(known) = self.known.lock().get(&(session.clone(), position)) {
            return Ok(Some(Arc::clone(known)));
        }
        let read = self.log.segment(session, position).await?;
        Ok(read.map(|segment| self.put(session, &segment)))
    }

    /// Takes a segment that is stored.
    pub(crate) fn put(&self, session: &SessionId, segment: &Segment) -> Arc<Seen> {
        let seen = Arc::new(Seen::of(segment));
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert((session.clone(), segment.position), Arc::clone(&seen));
        seen
    }
}
