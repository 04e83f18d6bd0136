//! The log of sessions in an object store: a folder, or a bucket. Several processes append to one log; its order is the
//! order in which their segments were stored.
//!
//! | Object | Holds |
//! |---|---|
//! | `sessions/ID/record.json` | the [`SessionRecord`]; stored once |
//! | `sessions/ID/log/SEQ-PART.jsonl` | a [`Segment`]: a header, and the events from `SEQ` on, if it has any |
//! | `sessions/ID/commands/N.json` | a [`PostedRequest`] |
//! | `sessions/ID/entry.json` | the [`Summary`]; it may be older than the log |
//! | `sessions/ID/continued.json` | the id of the session that continues it; stored before that one |
//!
//! An object is stored only if none has its name. So a process that appends a segment has read all before it, and what
//! it may append depends on nothing that it has not seen.

mod encryption;
mod objects;
mod segment;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use inspan_flow_core::{SessionFacts, SessionRecord};
use inspan_protocol::{SessionId, SessionStatus};
use inspan_store::Verdict;
use object_store::{ObjectStore, path::Path};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use encryption::LogKeys;
use objects::Objects;
pub(crate) use segment::{
    AttemptKey, LogPosition, PostedRequest, ResumeRequest, Segment, SessionRequest, Writer,
};

/// How often a bucket is asked for what is new, at the most: each request takes a moment and costs money.
const LOOK_AT_BUCKET: Duration = Duration::from_secs(1);
/// How many objects are read at once.
const READS: usize = 16;
/// How many records are looked at to see whether the keys are those of the sessions.
const RECORDS: usize = 16;
/// How many digits the number in a name has.
pub(crate) const DIGITS: usize = 16;
/// How many answers to commands a summary holds.
const ANSWERS: usize = 100;

/// The log of all sessions, in one folder or bucket.
#[derive(Clone, Debug)]
pub struct SharedLog {
    objects: Objects,
}

/// Why the log was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The folder or bucket failed.
    #[error("the shared log failed: {0}")]
    Objects(String),
    /// The folder or bucket cannot hold a log.
    #[error("the shared log cannot be used: {0}")]
    Unusable(String),
    /// There is no such session.
    #[error("the shared log has no session `{0}`")]
    UnknownSession(SessionId),
    /// The id is taken.
    #[error("the shared log already has a session `{0}`")]
    SessionExists(SessionId),
    /// An object was stored with another key, or without one.
    #[error("{object} {what}")]
    OtherKey {
        /// The object.
        object: String,
        /// What keeps it from being read.
        what: String,
    },
    /// An object is not what was written, or a newer program wrote it.
    #[error("the shared log is damaged, or a newer inspan wrote it: {object}: {what}")]
    Damaged {
        /// The object.
        object: String,
        /// What is wrong with it.
        what: String,
    },
}

impl From<object_store::Error> for LogError {
    fn from(error: object_store::Error) -> Self {
        Self::Objects(objects::plain(&error))
    }
}

/// What a list of sessions shows, without reading the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Summary {
    pub(crate) facts: SessionFacts,
    /// The newest answers to commands, by their numbers.
    pub(crate) answers: Vec<(u64, CommandOutcome)>,
    /// Where the log continues.
    pub(crate) next: LogPosition,
    /// Whether no worker was told of the session; the log has nothing then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unstarted: bool,
}

/// An answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CommandOutcome {
    Accepted,
    Refused(String),
}

impl CommandOutcome {
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Self::Accepted => Verdict::Accepted,
            Self::Refused(why) => Verdict::Refused(why.clone()),
        }
    }
}

/// Whether no worker drives a session of this status.
pub(crate) fn needs_no_worker(status: SessionStatus) -> bool {
    status.has_ended() || status == SessionStatus::Paused
}

/// Whether the server may have lost a session of this status: it has begun and has not ended.
pub(crate) fn may_be_gone(status: SessionStatus) -> bool {
    !needs_no_worker(status) && status != SessionStatus::Idle
}

impl Summary {
    /// The number of the newest request that was answered.
    pub(crate) fn answered(&self) -> u64 {
        self.answers.iter().map(|(number, _)| *number).max().unwrap_or_default()
    }

    /// Whether a worker should be driving the session.
    pub(crate) fn is_open(&self) -> bool {
        !needs_no_worker(self.facts.status) && !self.is_unstarted
    }

    /// Takes the next segment of the log; one that it has already changes nothing.
    pub(crate) fn apply(&mut self, segment: &Segment) {
        if segment.position < self.next {
            return;
        }
        self.next = segment.next();
        self.is_unstarted = false;
        segment.events.iter().for_each(|event| self.facts.apply(event));
        self.answers.extend(segment.header.answers.iter().cloned());
        let too_many = self.answers.len().saturating_sub(ANSWERS);
        self.answers.drain(..too_many);
    }
}

impl SharedLog {
    /// The log in a store on a disk or in memory, below a folder of it.
    pub fn new(store: Arc<dyn ObjectStore>, root: Path) -> Self {
        Self { objects: Objects::new(store, root, false) }
    }

    /// The log in a bucket, below a folder of it.
    pub fn in_bucket(store: Arc<dyn ObjectStore>, root: Path) -> Self {
        Self { objects: Objects::new(store, root, true) }
    }

    /// The same log, whose objects are encrypted; their names are not.
    #[must_use]
    pub fn encrypted(mut self, keys: LogKeys) -> Self {
        self.objects.keys = Some(keys);
        self
    }

    /// Whether objects can be stored, and each of them only once. This process asks once; before it stores something in a
    /// bucket it asks in any case.
    pub async fn check(&self) -> Result<(), LogError> {
        self.objects.check().await
    }

    /// Fails if none of the newest sessions can be read with these keys: nobody else would read what is stored with them.
    pub(crate) async fn check_keys(&self) -> Result<(), LogError> {
        let mut found = Ok(());
        for session in self.sessions("").await?.iter().take(RECORDS) {
            found = match self.record(session).await {
                Err(error @ LogError::OtherKey { .. }) => Err(error),
                // A folder that is not a session says nothing.
                Err(LogError::UnknownSession(_)) => found,
                // It is readable, or it is damaged, and read by the right key.
                Ok(_) | Err(LogError::Damaged { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        found
    }

    /// How often to poll for what is new, where a folder would be polled so often.
    pub(crate) fn look(&self, at_folder: Duration) -> Duration {
        if self.objects.is_bucket { at_folder.max(LOOK_AT_BUCKET) } else { at_folder }
    }

    /// Stores a new session.
    pub(crate) async fn create(&self, record: &SessionRecord) -> Result<(), LogError> {
        match self.objects.put_new(&self.of(&record.session, "record.json"), encode(record)).await? {
            true => Ok(()),
            false => Err(LogError::SessionExists(record.session.clone())),
        }
    }

    /// The record of a session.
    pub(crate) async fn record(&self, session: &SessionId) -> Result<SessionRecord, LogError> {
        let object = self.of(session, "record.json");
        let record =
            self.objects.get(&object).await?.ok_or_else(|| LogError::UnknownSession(session.clone()))?;
        decode(&object, &record)
    }

    /// Says that a session is to be continued by another one, unless a third one is said to. Gives the one that is.
    pub(crate) async fn claim(&self, session: &SessionId, by: &SessionId) -> Result<SessionId, LogError> {
        self.expect(session).await?;
        match self.objects.put_new(&self.of(session, "continued.json"), encode(by)).await? {
            true => Ok(by.clone()),
            false => Ok(self.claimed(session).await?.unwrap_or_else(|| by.clone())),
        }
    }

    /// The session that is said to continue this one. It is not there yet if its start was cut short.
    pub(crate) async fn claimed(&self, session: &SessionId) -> Result<Option<SessionId>, LogError> {
        let object = self.of(session, "continued.json");
        self.objects.get(&object).await?.map(|bytes| decode(&object, &bytes)).transpose()
    }

    /// The ids of all sessions that begin so, the greatest first.
    pub(crate) async fn sessions(&self, prefix: &str) -> Result<Vec<SessionId>, LogError> {
        let all =
            self.objects.store.list_with_delimiter(Some(&self.objects.root.clone().join("sessions"))).await?;
        let names = all.common_prefixes.iter().filter_map(|path| path.filename());
        let mut ids: Vec<_> = names.filter(|name| name.starts_with(prefix)).map(SessionId::from).collect();
        ids.sort_unstable_by(|a, b| b.as_str().cmp(a.as_str()));
        Ok(ids)
    }

    /// The segment at a position, if there is one.
    pub(crate) async fn segment(
        &self,
        session: &SessionId,
        position: LogPosition,
    ) -> Result<Option<Segment>, LogError> {
        let object = self.segment_path(session, position);
        self.objects.get(&object).await?.map(|bytes| Segment::decode(&object, position, &bytes)).transpose()
    }

    /// All segments from the one that holds `seq` on.
    pub(crate) async fn segments(&self, session: &SessionId, seq: u64) -> Result<Vec<Segment>, LogError> {
        self.segments_with(session, seq, usize::MAX).await
    }

    /// The segments from the one that holds `seq` on, until they have so many events from `seq` on.
    pub(crate) async fn segments_with(
        &self,
        session: &SessionId,
        seq: u64,
        most: usize,
    ) -> Result<Vec<Segment>, LogError> {
        let listed = self.objects.store.list(Some(&self.of(session, "log")));
        let mut positions: Vec<_> = listed
            .try_filter_map(async |object| Ok(LogPosition::of_name(&object.location)))
            .try_collect()
            .await?;
        positions.sort_unstable();
        let holds = positions.partition_point(|position| position.seq <= seq).saturating_sub(1);
        // Those without events that are before it at the same `seq` belong to it.
        let first = positions.get(holds).map_or(0, |position| position.seq);
        let from = positions.partition_point(|position| position.seq < first);
        let segments =
            stream::iter(positions.split_off(from)).map(|position| self.segment(session, position));
        let mut segments = std::pin::pin!(segments.buffered(READS));
        let (mut found, mut events) = (Vec::new(), 0);
        while events < most
            && let Some(segment) = segments.try_next().await?
        {
            let Some(segment) = segment else { continue };
            events += segment.events.iter().filter(|event| event.seq >= seq).count();
            found.push(segment);
        }
        Ok(found)
    }

    /// Appends a segment. Gives `false`, and stores nothing, if another one is at its position.
    pub(crate) async fn append(&self, session: &SessionId, segment: &Segment) -> Result<bool, LogError> {
        self.expect(session).await?;
        self.objects.put_new(&self.segment_path(session, segment.position), segment.encode()).await
    }

    /// The request with this number, counting from 1.
    pub(crate) async fn request(
        &self,
        session: &SessionId,
        number: u64,
    ) -> Result<Option<PostedRequest>, LogError> {
        let object = self.request_path(session, number);
        self.objects.get(&object).await?.map(|bytes| decode(&object, &bytes)).transpose()
    }

    /// Stores a request with the next number, which it gives.
    pub(crate) async fn post(&self, session: &SessionId, request: &PostedRequest) -> Result<u64, LogError> {
        self.expect(session).await?;
        let request = encode(&PostedRequest { unique: unique()?, ..request.clone() });
        let mut next = self.requests(session).await?.last().copied().unwrap_or_default() + 1;
        while !self.objects.put_new(&self.request_path(session, next), request.clone()).await? {
            next += 1;
        }
        Ok(next)
    }

    /// The numbers of all requests.
    pub(crate) async fn requests(&self, session: &SessionId) -> Result<Vec<u64>, LogError> {
        let folder = self.of(session, "commands");
        let listed = self.objects.store.list(Some(&folder));
        let mut numbers: Vec<u64> =
            listed.try_filter_map(async |object| Ok(number(&object.location))).try_collect().await?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The summary that was stored last; it may be older than the log.
    pub(crate) async fn summary(&self, session: &SessionId) -> Result<Summary, LogError> {
        let object = self.of(session, "entry.json");
        match self.objects.get(&object).await? {
            Some(bytes) => decode(&object, &bytes),
            None => Ok(Summary::default()),
        }
    }

    /// Stores a summary, replacing an older one.
    pub(crate) async fn put_summary(&self, session: &SessionId, summary: &Summary) -> Result<(), LogError> {
        self.expect(session).await?;
        self.objects.put(&self.of(session, "entry.json"), encode(summary)).await
    }

    /// Fails if the session is not there. A folder that is not mounted any more is an empty one,
    /// and what is stored there would not be found.
    async fn expect(&self, session: &SessionId) -> Result<(), LogError> {
        match self.objects.is_bucket || self.objects.has(&self.of(session, "record.json")).await? {
            true => Ok(()),
            false => Err(LogError::UnknownSession(session.clone())),
        }
    }

    fn of(&self, session: &SessionId, name: &str) -> Path {
        self.objects.root.clone().join("sessions").join(session.as_str()).join(name)
    }

    fn segment_path(&self, session: &SessionId, position: LogPosition) -> Path {
        self.of(session, "log").join(format!("{position}.jsonl"))
    }

    fn request_path(&self, session: &SessionId, number: u64) -> Path {
        self.of(session, "commands").join(format!("{number:0DIGITS$}.json"))
    }
}

/// The number in an object's name.
fn number(object: &Path) -> Option<u64> {
    object.filename()?.split('.').next()?.parse().ok()
}

/// A text that is unique.
pub(crate) fn unique() -> Result<String, LogError> {
    let mut bytes = [0; 8];
    let failed = |_| LogError::Unusable("this machine has no random numbers".to_owned());
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(format!("{:016x}", u64::from_be_bytes(bytes)))
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(object: &Path, bytes: &[u8]) -> Result<T, LogError> {
    serde_json::from_slice(bytes)
        .map_err(|error| LogError::Damaged { object: object.to_string(), what: error.to_string() })
}
