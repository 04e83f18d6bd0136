//! A store in memory: for tests, for embedding, and for runs that need no storage.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use inspan_protocol::{Command, Envelope, SessionId, Timestamp};
use tokio::sync::watch;

use super::{
    Batch, Blob, BlobRef, BlobStore, CommandAnswer, ENDED, Lease, Liveness, Owner, PostedCommand, RunStore,
    Select, SessionEntry, SessionFacts, SessionRecord, StoreError, Verdict,
};

/// Sessions in memory.
#[derive(Debug)]
pub struct MemoryStore {
    sessions: Mutex<BTreeMap<SessionId, StoredSession>>,
    version: watch::Sender<u64>,
    /// How many commands were posted.
    posts: watch::Sender<u64>,
}

#[derive(Debug)]
struct StoredSession {
    record: SessionRecord,
    epoch: u64,
    owner: Option<Owner>,
    log: Vec<Arc<Envelope>>,
    digest: SessionFacts,
    posted: Vec<(PostedCommand, Option<Verdict>)>,
    /// By their hashes.
    blobs: BTreeMap<String, Blob>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { sessions: Mutex::default(), version: watch::Sender::new(0), posts: watch::Sender::new(0) }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, StoredSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        session: &SessionId,
        work: impl FnOnce(&mut StoredSession) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut sessions = self.sessions();
        work(sessions.get_mut(session).ok_or_else(|| StoreError::UnknownSession(session.clone()))?)
    }

    /// As `with`, and notifies the watchers.
    fn change<T>(
        &self,
        session: &SessionId,
        work: impl FnOnce(&mut StoredSession) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let done = self.with(session, work)?;
        self.version.send_modify(|version| *version += 1);
        Ok(done)
    }
}

impl StoredSession {
    fn next_seq(&self) -> u64 {
        self.record.first_seq() + self.log.len() as u64
    }

    fn fence(&self, lease: &Lease) -> Result<(), StoreError> {
        if self.epoch == lease.epoch {
            return Ok(());
        }
        Err(StoreError::Fenced { session: lease.session.clone(), epoch: lease.epoch, newest: self.epoch })
    }

    fn append(&mut self, lease: &Lease, batch: Batch<'_>) -> Result<(), StoreError> {
        self.fence(lease)?;
        for (expected, event) in (self.next_seq()..).zip(batch.events) {
            if event.seq != expected {
                let session = lease.session.clone();
                return Err(StoreError::Conflict { session, expected, actual: event.seq });
            }
        }
        batch.events.iter().for_each(|event| self.digest.apply(event));
        self.log.extend_from_slice(batch.events);
        for CommandAnswer { number, verdict } in batch.answers {
            let posted = self.posted.iter_mut().find(|(command, _)| command.number == *number);
            if let Some((_, answer)) = posted {
                answer.get_or_insert_with(|| verdict.clone());
            }
        }
        if self.digest.status.has_ended() {
            let open = self.posted.iter_mut().filter(|(_, answer)| answer.is_none());
            open.for_each(|(_, answer)| *answer = Some(Verdict::Refused(ENDED.to_owned())));
        }
        Ok(())
    }

    /// Keeps a command with the next number.
    fn post(&mut self, command: &Command, key: Option<&str>, at: Timestamp) -> Result<u64, StoreError> {
        if let Some(refused) = self.refuses(command) {
            return Err(refused);
        }
        let number = self.posted.len() as u64 + 1;
        let (command, key) = (command.clone(), key.map(str::to_owned));
        self.posted.push((PostedCommand { number, at, command, key }, None));
        Ok(number)
    }

    /// Why no command can be posted, if none can.
    fn refuses(&self, command: &Command) -> Option<StoreError> {
        let session = || self.record.session.clone();
        if self.digest.status.has_ended() {
            return Some(StoreError::SessionEnded(session()));
        }
        let Command::Reply { prompt, .. } = command else { return None };
        let waits = self.unanswered().any(|posted| posted.answers() == Some(prompt));
        (self.owner.is_none() && waits)
            .then(|| StoreError::ReplyWaits { session: session(), prompt: prompt.clone() })
    }

    fn of_key(&self, key: &str) -> Option<&PostedCommand> {
        self.posted.iter().map(|(posted, _)| posted).find(|posted| posted.key.as_deref() == Some(key))
    }

    fn unanswered(&self) -> impl Iterator<Item = &PostedCommand> {
        self.posted.iter().filter(|(_, answer)| answer.is_none()).map(|(posted, _)| posted)
    }

    fn entry(&self, continued_by: Option<SessionId>) -> SessionEntry {
        SessionEntry {
            session: self.record.session.clone(),
            flow: self.record.flow.name.clone(),
            created_at: self.record.created_at,
            digest: self.digest.clone(),
            owner: self.owner.clone(),
            // The owner of a lease of this store is this process.
            liveness: self.owner.as_ref().map_or(Liveness::Gone, |_| Liveness::Alive),
            unanswered: self.unanswered().filter(|posted| !posted.is_done(self.digest.status)).count() as u64,
            answered: self.unanswered().filter_map(PostedCommand::answers).cloned().collect(),
            continued_by,
            is_replay: self.record.is_replay(),
            waiting_for_worker: Vec::new(),
            waiting_for_machine: BTreeMap::new(),
            undecided_since: None,
            is_unknown: false,
            damage: None,
        }
    }
}

/// The session that continues this one.
fn continuation(sessions: &BTreeMap<SessionId, StoredSession>, id: &SessionId) -> Option<SessionId> {
    let continues = |stored: &&StoredSession| stored.record.continues() == Some(id);
    sessions.values().find(continues).map(|stored| stored.record.session.clone())
}

#[async_trait]
impl RunStore for MemoryStore {
    async fn create(&self, record: &SessionRecord, owner: &Owner, _: Timestamp) -> Result<Lease, StoreError> {
        let mut sessions = self.sessions();
        let session = record.session.clone();
        if sessions.contains_key(&session) {
            return Err(StoreError::SessionExists(session));
        }
        if let Some(parent) = &record.parent {
            let id = &parent.session;
            let old = sessions.get(id).ok_or_else(|| StoreError::UnknownSession(id.clone()))?;
            if record.continues().is_some() {
                if let Some(by) = continuation(&sessions, id) {
                    return Err(StoreError::Continued { session: id.clone(), by });
                }
                if let Some(owner) = old.owner.clone() {
                    return Err(StoreError::Held { session: id.clone(), owner: Box::new(owner) });
                }
                if old.digest.last_seq > parent.seq {
                    return Err(StoreError::HasNewEvents(id.clone()));
                }
            }
        }
        let stored = StoredSession {
            record: record.clone(),
            epoch: 1,
            owner: Some(owner.clone()),
            log: Vec::new(),
            digest: SessionFacts::default(),
            posted: Vec::new(),
            blobs: BTreeMap::new(),
        };
        sessions.insert(session.clone(), stored);
        self.version.send_modify(|version| *version += 1);
        Ok(Lease { session, epoch: 1 })
    }

    async fn acquire(&self, session: &SessionId, owner: &Owner, _: Timestamp) -> Result<Lease, StoreError> {
        if let Some(by) = continuation(&self.sessions(), session) {
            return Err(StoreError::Continued { session: session.clone(), by });
        }
        self.change(session, |stored| {
            if let Some(owner) = &stored.owner {
                return Err(StoreError::Held { session: session.clone(), owner: Box::new(owner.clone()) });
            }
            stored.epoch += 1;
            stored.owner = Some(owner.clone());
            Ok(Lease { session: session.clone(), epoch: stored.epoch })
        })
    }

    async fn renew(&self, lease: &Lease, _: Timestamp) -> Result<(), StoreError> {
        self.with(&lease.session, |stored| stored.fence(lease))
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        self.change(&lease.session, |stored| {
            if stored.epoch == lease.epoch {
                stored.owner = None;
            }
            Ok(())
        })
    }

    async fn append(&self, lease: &Lease, batch: Batch<'_>) -> Result<(), StoreError> {
        self.change(&lease.session, |stored| stored.append(lease, batch))
    }

    async fn read_some(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, StoreError> {
        self.with(session, |stored| {
            let start = from.saturating_sub(stored.record.first_seq()) as usize;
            let events = stored.log.get(start..).unwrap_or_default().iter();
            Ok(events.filter(|event| select.takes(event)).take(most).cloned().collect())
        })
    }

    async fn record(&self, session: &SessionId) -> Result<SessionRecord, StoreError> {
        self.with(session, |stored| Ok(stored.record.clone()))
    }

    async fn entry(&self, session: &SessionId) -> Result<SessionEntry, StoreError> {
        let continued_by = continuation(&self.sessions(), session);
        self.with(session, |stored| Ok(stored.entry(continued_by)))
    }

    async fn entries(&self, prefix: &str, limit: usize) -> Result<Vec<SessionEntry>, StoreError> {
        let sessions = self.sessions();
        let begins = |(session, _): &(&SessionId, &StoredSession)| session.as_str().starts_with(prefix);
        let mut entries: Vec<_> = sessions
            .iter()
            .filter(begins)
            .map(|(id, stored)| stored.entry(continuation(&sessions, id)))
            .collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.created_at));
        entries.truncate(limit);
        Ok(entries)
    }

    async fn post_once(
        &self,
        session: &SessionId,
        key: Option<&str>,
        command: &Command,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let posted = self.change(session, |stored| match key.and_then(|key| stored.of_key(key)) {
            Some(posted) if posted.command == *command => Ok(posted.number),
            Some(_) => {
                let key = key.unwrap_or_default().to_owned();
                Err(StoreError::KeyReused { session: session.clone(), key })
            }
            None => stored.post(command, key, now),
        });
        self.posts.send_modify(|posts| *posts += 1);
        posted
    }

    async fn posted_once(&self, session: &SessionId, key: &str) -> Result<Option<PostedCommand>, StoreError> {
        self.with(session, |stored| Ok(stored.of_key(key).cloned()))
    }

    async fn unanswered(&self, session: &SessionId) -> Result<Vec<PostedCommand>, StoreError> {
        self.with(session, |stored| {
            let open = stored.posted.iter().filter(|(_, answer)| answer.is_none());
            Ok(open.map(|(command, _)| command.clone()).collect())
        })
    }

    async fn answer(&self, session: &SessionId, number: u64) -> Result<Option<Verdict>, StoreError> {
        self.with(session, |stored| {
            let posted = stored.posted.iter().find(|(command, _)| command.number == number);
            Ok(posted.and_then(|(_, answer)| answer.clone()))
        })
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        follow(&self.version)
    }

    fn posts(&self) -> BoxStream<'static, ()> {
        follow(&self.posts)
    }
}

/// Events hold their values whole here; only a value that is put separately is stored separately.
#[async_trait]
impl BlobStore for MemoryStore {
    async fn put(&self, session: &SessionId, blob: &Blob) -> Result<(), StoreError> {
        self.with(session, |stored| {
            stored.blobs.entry(blob.hash().to_owned()).or_insert_with(|| blob.clone());
            Ok(())
        })
    }

    async fn get(&self, session: &SessionId, reference: &BlobRef) -> Result<Blob, StoreError> {
        self.with(session, |stored| {
            let found = stored.blobs.get(&reference.hash).filter(|blob| reference.is_of(blob.json()));
            let missing = || StoreError::NoBlob { session: session.clone(), hash: reference.hash.clone() };
            found.cloned().ok_or_else(missing)
        })
    }
}

fn follow(version: &watch::Sender<u64>) -> BoxStream<'static, ()> {
    stream::unfold(version.subscribe(), |mut version| async move {
        version.changed().await.ok()?;
        Some(((), version))
    })
    .boxed()
}
