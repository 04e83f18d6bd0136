//! The interface of a run store: what reads sessions and sends them commands.

use std::sync::Arc;

use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use inspan_flow_core::SessionRecord;
use inspan_protocol::{Command, Envelope, SessionId, Timestamp};
use inspan_store::{
    Batch, Lease, Owner, PostedCommand, RunStore, Select, SessionEntry, StoreError, Verdict, async_trait,
};

use super::{LOOK, READS, SharedStore, refused};
use crate::log::{LogPosition, Segment, SessionRequest, needs_no_worker};

#[async_trait]
impl RunStore for SharedStore {
    async fn create(&self, record: &SessionRecord, _: &Owner, _: Timestamp) -> Result<Lease, StoreError> {
        self.held(&record.session)
    }

    async fn acquire(&self, session: &SessionId, _: &Owner, _: Timestamp) -> Result<Lease, StoreError> {
        self.held(session)
    }

    async fn renew(&self, lease: &Lease, _: Timestamp) -> Result<(), StoreError> {
        self.held(&lease.session)
    }

    async fn release(&self, _: &Lease) -> Result<(), StoreError> {
        Ok(())
    }

    async fn append(&self, lease: &Lease, _: Batch<'_>) -> Result<(), StoreError> {
        self.held(&lease.session)
    }

    async fn read_some(
        &self,
        session: &SessionId,
        from: u64,
        select: Select,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, StoreError> {
        let segments = self.log.segments(session, from).await.map_err(refused)?;
        let events = segments.into_iter().flat_map(|segment| segment.events);
        Ok(events.filter(|event| event.seq >= from && select.takes(event)).take(most).collect())
    }

    async fn read_next(
        &self,
        session: &SessionId,
        from: u64,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, StoreError> {
        let from = from.max(1);
        // A reader that follows is at the end of the log, where the next segment will be.
        let mut position = self.summaries.lock().get(session).map(|known| known.next);
        if position.is_none_or(|position| position.seq != from) {
            position = Some(LogPosition { seq: from, part: 0 });
        }
        let mut events = Vec::new();
        while let Some(at) = position
            && events.len() < most
        {
            let segment = self.log.segment(session, at).await.map_err(refused)?;
            position = segment.as_ref().map(Segment::next);
            events.extend(segment.into_iter().flat_map(|segment| segment.events));
        }
        if events.is_empty() && self.summary(session).await?.facts.last_seq >= from {
            // It begins within a segment.
            let segments = self.log.segments_with(session, from, most).await.map_err(refused)?;
            let held = segments.into_iter().flat_map(|segment| segment.events);
            events = held.filter(|event| event.seq >= from).collect();
        }
        events.truncate(most);
        Ok(events)
    }

    async fn record(&self, session: &SessionId) -> Result<SessionRecord, StoreError> {
        self.log.record(session).await.map_err(refused)
    }

    async fn entry(&self, session: &SessionId) -> Result<SessionEntry, StoreError> {
        let mut entry = self.entry_of(session.clone()).await?;
        if needs_no_worker(entry.digest.status) {
            entry.continued_by = self.continuation(session).await?;
        }
        Ok(entry)
    }

    async fn entries(&self, prefix: &str, limit: usize) -> Result<Vec<SessionEntry>, StoreError> {
        let sessions = self.log.sessions(prefix).await.map_err(refused)?;
        let all = prefix.is_empty().then(|| sessions.clone());
        let entries = stream::iter(sessions).map(async |session| {
            match self.entry_of(session.clone()).await {
                Err(StoreError::DamagedObject { object, what }) => {
                    Ok(Some(SessionEntry::damaged(session, format!("{object}: {what}"))))
                }
                Err(error @ StoreError::OtherKey { .. }) => {
                    Ok(Some(SessionEntry::damaged(session, error.to_string())))
                }
                // A folder that is not a session, or one that is being stored.
                Err(StoreError::UnknownSession(_)) => Ok(None),
                entry => entry.map(Some),
            }
        });
        let entries: Vec<_> = entries.buffered(READS).try_collect().await?;
        let mut entries: Vec<_> = entries.into_iter().flatten().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.created_at));
        entries.truncate(limit);
        if entries.iter().any(|entry| needs_no_worker(entry.digest.status)) {
            let continued = match all {
                Some(all) => self.continuations_among(all).await?,
                None => self.continuations().await?,
            };
            for entry in entries.iter_mut().filter(|entry| needs_no_worker(entry.digest.status)) {
                entry.continued_by = continued.get(&entry.session).cloned();
            }
        }
        Ok(entries)
    }

    async fn post_once(
        &self,
        session: &SessionId,
        key: Option<&str>,
        command: &Command,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        if let Some(key) = key
            && let Some(posted) = self.posted_once(session, key).await?
        {
            let reused = || StoreError::KeyReused { session: session.clone(), key: key.to_owned() };
            return if posted.command == *command { Ok(posted.number) } else { Err(reused()) };
        }
        self.request(session, key, SessionRequest::Command(command.clone()), now).await
    }

    async fn posted_once(&self, session: &SessionId, key: &str) -> Result<Option<PostedCommand>, StoreError> {
        for number in self.log.requests(session).await.map_err(refused)? {
            let Some(posted) = self.log.request(session, number).await.map_err(refused)? else {
                continue;
            };
            if let SessionRequest::Command(command) = posted.request
                && posted.key.as_deref() == Some(key)
            {
                return Ok(Some(PostedCommand { number, at: posted.at, command, key: posted.key }));
            }
        }
        Ok(None)
    }

    async fn unanswered(&self, session: &SessionId) -> Result<Vec<PostedCommand>, StoreError> {
        let summary = self.summary(session).await?;
        let requests = self.log.requests(session).await.map_err(refused)?;
        let open = self.open_requests(session, &summary, &requests).await?;
        let commands = open.into_iter().filter_map(|(number, posted)| match posted.request {
            SessionRequest::Command(command) => {
                Some(PostedCommand { number, at: posted.at, command, key: posted.key })
            }
            SessionRequest::Resume(_) => None,
        });
        Ok(commands.collect())
    }

    async fn answer(&self, session: &SessionId, number: u64) -> Result<Option<Verdict>, StoreError> {
        let summary = self.summary(session).await?;
        if let Some((_, answer)) = summary.answers.iter().find(|(answered, _)| *answered == number) {
            return Ok(Some(answer.verdict()));
        }
        // An old one: the summary holds only the newest.
        if summary.answers.first().is_some_and(|(oldest, _)| number < *oldest) {
            let segments = self.log.segments(session, 0).await.map_err(refused)?;
            let mut answers = segments.iter().flat_map(|segment| &segment.header.answers);
            return Ok(answers.find(|(answered, _)| *answered == number).map(|(_, answer)| answer.verdict()));
        }
        let ended = summary.facts.status.has_ended();
        Ok(ended.then(|| Verdict::Refused("the session has ended".to_owned())))
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        let look = self.log.look(LOOK);
        stream::unfold((), move |()| async move {
            tokio::time::sleep(look).await;
            Some(((), ()))
        })
        .boxed()
    }
}
