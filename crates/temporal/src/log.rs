//! The log of sessions in an object store: a folder, or a bucket. Several processes append to one log; its order is the
//! order in which their segments were stored.
//!
//! | Object | Holds |
//! |---|---|
//! | `sessions/ID/record.json` | the [`SessionRecord`]; stored once |
//! | `sessions/ID/log/SEQ-PART.jsonl` | a [`Segment`]: a header, and the events from `SEQ` on, if it has any |
//! | `sessions/ID/commands/N.json` | a [`PostedRequest`] |
//! | `sessions/ID/entry.json` | the [`Summary`]; it may be older than the log |
//!
//! An object is stored only if none has its name. So a process that appends a segment has read all before it, and what
//! it may append depends on nothing that it has not seen.

mod segment;

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use inspan_flow_core::{SessionFacts, SessionRecord};
use inspan_protocol::SessionId;
use inspan_store::Verdict;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, path::Path};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub(crate) use segment::{AttemptKey, LogPosition, PostedRequest, Request, Segment, Writer};

/// How many objects are read at once.
const READS: usize = 16;
/// How many digits the number in a name has.
pub(crate) const DIGITS: usize = 16;
/// How many answers to commands a summary holds.
const ANSWERS: usize = 100;

/// The log of all sessions, in one folder or bucket.
#[derive(Clone, Debug)]
pub struct SharedLog {
    objects: Arc<dyn ObjectStore>,
    root: Path,
}

/// Why the log was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The folder or bucket failed.
    #[error("the shared log failed: {0}")]
    Objects(#[from] object_store::Error),
    /// There is no such session.
    #[error("the shared log has no session `{0}`")]
    UnknownSession(SessionId),
    /// The id is taken.
    #[error("the shared log already has a session `{0}`")]
    SessionExists(SessionId),
    /// An object is not what was written, or a newer program wrote it.
    #[error("the shared log is damaged, or a newer inspan wrote it: {object}: {what}")]
    Damaged {
        /// The object.
        object: String,
        /// What is wrong with it.
        what: String,
    },
}

/// What a list of sessions shows, without reading the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Summary {
    pub(crate) facts: SessionFacts,
    /// The newest answers to commands, by their numbers.
    pub(crate) answers: Vec<(u64, Answer)>,
    /// Where the log continues.
    pub(crate) next: LogPosition,
}

/// An answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    Accepted,
    Refused(String),
}

impl Answer {
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Self::Accepted => Verdict::Accepted,
            Self::Refused(why) => Verdict::Refused(why.clone()),
        }
    }
}

impl Summary {
    /// Takes the next segment of the log; one that it has already changes nothing.
    pub(crate) fn apply(&mut self, segment: &Segment) {
        if segment.position < self.next {
            return;
        }
        self.next = segment.next();
        segment.events.iter().for_each(|event| self.facts.apply(event));
        self.answers.extend(segment.header.answers.iter().cloned());
        let too_many = self.answers.len().saturating_sub(ANSWERS);
        self.answers.drain(..too_many);
    }
}

impl SharedLog {
    /// The log in an object store, below a folder of it.
    pub fn new(objects: Arc<dyn ObjectStore>, root: Path) -> Self {
        Self { objects, root }
    }

    /// Stores a new session.
    pub(crate) async fn create(&self, record: &SessionRecord) -> Result<(), LogError> {
        match self.put_new(&self.of(&record.session, "record.json"), encode(record)).await? {
            true => Ok(()),
            false => Err(LogError::SessionExists(record.session.clone())),
        }
    }

    /// The record of a session.
    pub(crate) async fn record(&self, session: &SessionId) -> Result<SessionRecord, LogError> {
        let object = self.of(session, "record.json");
        let record = self.get(&object).await?.ok_or_else(|| LogError::UnknownSession(session.clone()))?;
        decode(&object, &record)
    }

    /// The ids of all sessions that begin so, the greatest first.
    pub(crate) async fn sessions(&self, prefix: &str) -> Result<Vec<SessionId>, LogError> {
        let all = self.objects.list_with_delimiter(Some(&self.root.clone().join("sessions"))).await?;
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
        self.get(&object).await?.map(|bytes| Segment::decode(&object, position, &bytes)).transpose()
    }

    /// All segments from the one that holds `seq` on.
    pub(crate) async fn segments(&self, session: &SessionId, seq: u64) -> Result<Vec<Segment>, LogError> {
        let listed = self.objects.list(Some(&self.of(session, "log")));
        let mut positions: Vec<_> = listed
            .try_filter_map(async |object| Ok(LogPosition::of_name(&object.location)))
            .try_collect()
            .await?;
        positions.sort_unstable();
        let from = positions.partition_point(|position| position.seq <= seq).saturating_sub(1);
        let segments =
            stream::iter(positions.split_off(from)).map(|position| self.segment(session, position));
        let segments: Vec<_> = segments.buffered(READS).try_collect().await?;
        Ok(segments.into_iter().flatten().collect())
    }

    /// Appends a segment. Gives `false`, and stores nothing, if another one is at its position.
    pub(crate) async fn append(&self, session: &SessionId, segment: &Segment) -> Result<bool, LogError> {
        self.put_new(&self.segment_path(session, segment.position), segment.encode()).await
    }

    /// The request with this number, counting from 1.
    pub(crate) async fn request(
        &self,
        session: &SessionId,
        number: u64,
    ) -> Result<Option<PostedRequest>, LogError> {
        let object = self.request_path(session, number);
        self.get(&object).await?.map(|bytes| decode(&object, &bytes)).transpose()
    }

    /// Stores a request with the next number, which it gives.
    pub(crate) async fn post(&self, session: &SessionId, request: &PostedRequest) -> Result<u64, LogError> {
        let mut next = self.requests(session).await?.last().copied().unwrap_or_default() + 1;
        while !self.put_new(&self.request_path(session, next), encode(request)).await? {
            next += 1;
        }
        Ok(next)
    }

    /// The numbers of all requests.
    pub(crate) async fn requests(&self, session: &SessionId) -> Result<Vec<u64>, LogError> {
        let folder = self.of(session, "commands");
        let listed = self.objects.list(Some(&folder));
        let mut numbers: Vec<u64> =
            listed.try_filter_map(async |object| Ok(number(&object.location))).try_collect().await?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The summary that was stored last; it may be older than the log.
    pub(crate) async fn summary(&self, session: &SessionId) -> Result<Summary, LogError> {
        let object = self.of(session, "entry.json");
        match self.get(&object).await? {
            Some(bytes) => decode(&object, &bytes),
            None => Ok(Summary::default()),
        }
    }

    /// Stores a summary in place of an older one.
    pub(crate) async fn put_summary(&self, session: &SessionId, summary: &Summary) -> Result<(), LogError> {
        self.objects.put(&self.of(session, "entry.json"), PutPayload::from(encode(summary))).await?;
        Ok(())
    }

    fn of(&self, session: &SessionId, name: &str) -> Path {
        self.root.clone().join("sessions").join(session.as_str()).join(name)
    }

    fn segment_path(&self, session: &SessionId, position: LogPosition) -> Path {
        self.of(session, "log").join(format!("{position}.jsonl"))
    }

    fn request_path(&self, session: &SessionId, number: u64) -> Path {
        self.of(session, "commands").join(format!("{number:0DIGITS$}.json"))
    }

    async fn get(&self, object: &Path) -> Result<Option<Bytes>, LogError> {
        match self.objects.get_opts(object, GetOptions::default()).await {
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores an object, unless one has its name.
    async fn put_new(&self, object: &Path, bytes: Vec<u8>) -> Result<bool, LogError> {
        let once = PutOptions::from(PutMode::Create);
        match self.objects.put_opts(object, PutPayload::from(bytes.clone()), once).await {
            Ok(_) => Ok(true),
            // A request whose response was lost has stored it all the same.
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => match self.get(object).await {
                Ok(Some(stored)) if stored == bytes => Ok(true),
                _ => Err(error.into()),
            },
        }
    }
}

/// The number in an object's name.
fn number(object: &Path) -> Option<u64> {
    object.filename()?.split('.').next()?.parse().ok()
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(object: &Path, bytes: &[u8]) -> Result<T, LogError> {
    serde_json::from_slice(bytes)
        .map_err(|error| LogError::Damaged { object: object.to_string(), what: error.to_string() })
}
