//! What is appended to a log at once, and what is asked of a session.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc};

use inspan_flow_core::{AttemptDone, AttemptSpec, ControlWait};
use inspan_protocol::{BudgetRaise, Command, Envelope, Event, EventId, NodePath, SessionId, Timestamp};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::{CommandOutcome, LogError};

/// The version of a segment.
const VERSION: u16 = 1;

/// Events that were appended at once, and what belongs to them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) position: LogPosition,
    pub(crate) header: Header,
    pub(crate) events: Vec<Arc<Envelope>>,
}

/// Where a segment is in its log: the `seq` of its first event, and how many segments without events are before it at the
/// same `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LogPosition {
    pub(crate) seq: u64,
    pub(crate) part: u32,
}

impl Default for LogPosition {
    /// The position of the first segment.
    fn default() -> Self {
        Self { seq: 1, part: 0 }
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0digits$}-{:04}", self.seq, self.part, digits = super::DIGITS)
    }
}

impl LogPosition {
    /// The position in an object's name.
    pub(crate) fn of_name(object: &Path) -> Option<Self> {
        let (seq, part) = object.filename()?.strip_suffix(".jsonl")?.split_once('-')?;
        Some(Self { seq: seq.parse().ok()?, part: part.parse().ok()? })
    }
}

/// The first line of a segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Header {
    pub(crate) v: u16,
    pub(crate) by: Writer,
    /// The machine of an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<String>,
    /// What distinguishes who runs an attempt from another one who does: the server may start one twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runner: Option<String>,
    /// When the attempt of the writer began there, if it has a timeout, as its time runs from then on, or external effects, as
    /// no other worker may begin it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) began: Option<Timestamp>,
    /// Attempts that begin, once this is stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) begin: Vec<AttemptSpec>,
    /// The session's folder for files as the inputs of these attempts have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) artifacts: Option<PathBuf>,
    /// Attempts that are to end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cancel: Vec<AttemptKey>,
    /// Commands that are executed where the attempts run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mail: Vec<Command>,
    /// Commands that an attempt gets that begins here: the one before it was lost with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) forwarded: Vec<(AttemptKey, Command)>,
    /// Answers to requests, by their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) answers: Vec<(u64, CommandOutcome)>,
    /// How the attempt of the writer ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) done: Option<AttemptDone>,
    /// Whether its worker has ended it without an end, since the worker stops or does not reach the server: it has not brought
    /// its worker down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) left: bool,
}

/// Who appended a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Writer {
    /// Who decides what the session does.
    Decider,
    /// An attempt.
    Attempt(AttemptKey),
}

impl Writer {
    /// Has a message to all say who has got it: each agent that gets one stores it, and so does the decider for the nodes that
    /// wait for one. It is for nobody else.
    fn name_receiver(&self, envelope: &mut Envelope) {
        let Event::SessionMessage { run_id: None, agent_name: receiver @ None, .. } = &mut envelope.event
        else {
            return;
        };
        match self {
            Self::Decider => *receiver = Some(ControlWait::NAME.to_owned()),
            Self::Attempt(key) => {
                *receiver = Some(key.path.node().to_owned());
                envelope.context = Arc::new(envelope.context.with_task(key.path.clone()));
            }
        }
    }
}

/// An attempt of a node, by the node's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttemptKey {
    pub(crate) path: NodePath,
    pub(crate) attempt: u32,
}

impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.path, self.attempt)
    }
}

impl AttemptKey {
    pub(crate) fn of(spec: &AttemptSpec) -> Self {
        Self { path: spec.path.clone(), attempt: spec.attempt }
    }
}

/// A request to a session, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PostedRequest {
    pub(crate) at: Timestamp,
    /// The caller's key: it counts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Distinguishes it from another one with the same content, when it is stored.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) unique: String,
    pub(crate) request: SessionRequest,
}

/// What is asked of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SessionRequest {
    /// What any session takes.
    Command(Command),
    /// A session that is paused, or lost, is to continue.
    Resume(ResumeRequest),
}

/// How a session is to continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResumeRequest {
    /// The message to each agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// The messages to single nodes instead.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) messages: BTreeMap<String, String>,
    /// Budgets that are raised.
    #[serde(default)]
    pub(crate) budget: BudgetRaise,
    /// Whether nobody ran it any more, so that what it ran is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_lost: bool,
    /// The newest event that the caller knew then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<u64>,
}

impl Segment {
    /// A segment without events.
    pub(crate) fn new(by: Writer, position: LogPosition) -> Self {
        let header = Header {
            v: VERSION,
            by,
            machine: None,
            runner: None,
            began: None,
            begin: Vec::new(),
            artifacts: None,
            cancel: Vec::new(),
            mail: Vec::new(),
            forwarded: Vec::new(),
            answers: Vec::new(),
            done: None,
            left: false,
        };
        Self { position, header, events: Vec::new() }
    }

    /// The position of the next segment.
    pub(crate) fn next(&self) -> LogPosition {
        match self.events.len() as u64 {
            0 => LogPosition { part: self.position.part + 1, ..self.position },
            events => LogPosition { seq: self.position.seq + events, part: 0 },
        }
    }

    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        let Header { begin, cancel, mail, answers, done, .. } = &self.header;
        self.events.is_empty()
            && begin.is_empty()
            && cancel.is_empty()
            && mail.is_empty()
            && answers.is_empty()
            && done.is_none()
    }

    /// Moves it to another position in the log of a session.
    pub(crate) fn renumber(&mut self, session: &SessionId, position: LogPosition) {
        self.position = position;
        for (seq, event) in (position.seq..).zip(&mut self.events) {
            let envelope = Arc::make_mut(event);
            (envelope.seq, envelope.id) = (seq, EventId::of(session, seq));
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = super::encode(&self.header);
        for event in &self.events {
            bytes.push(b'\n');
            // An envelope is data: it always has JSON.
            let _always = serde_json::to_writer(&mut bytes, &**event);
        }
        bytes
    }

    pub(crate) fn decode(object: &Path, position: LogPosition, bytes: &[u8]) -> Result<Self, LogError> {
        let damaged = |what: String| LogError::Damaged { object: object.to_string(), what };
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let header: Header = super::decode(object, lines.next().unwrap_or_default())?;
        if header.v > VERSION {
            return Err(damaged(format!(
                "it has version {}, and this program reads up to {VERSION}",
                header.v
            )));
        }
        let mut events = Vec::new();
        for (expected, line) in (position.seq..).zip(lines) {
            let mut envelope: Envelope = super::decode(object, line)?;
            header.by.name_receiver(&mut envelope);
            if envelope.seq != expected {
                return Err(damaged(format!("event {} is where event {expected} should be", envelope.seq)));
            }
            events.push(Arc::new(envelope));
        }
        Ok(Self { position, header, events })
    }
}
