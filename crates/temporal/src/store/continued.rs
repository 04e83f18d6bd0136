//! What records say beside the log: which session continues which.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use inspan_flow_core::SessionRecord;
use inspan_protocol::{SessionId, Timestamp};
use inspan_store::StoreError;

use super::{READS, SharedStore, refused};
use crate::log::LogError;

/// What a list says of a session from its record.
#[derive(Clone)]
pub(super) struct KnownRecord {
    pub(super) flow: String,
    pub(super) created_at: Timestamp,
    pub(super) is_replay: bool,
    /// The session that it continues.
    continues: Option<SessionId>,
}

impl From<&SessionRecord> for KnownRecord {
    fn from(record: &SessionRecord) -> Self {
        Self {
            flow: record.flow.name.clone(),
            created_at: record.created_at,
            is_replay: record.is_replay(),
            continues: record.continues().cloned(),
        }
    }
}

impl SharedStore {
    /// Has a session continued by the one with the id `by`, which is stored next, and by no other.
    pub(super) async fn claim(&self, session: &SessionId, by: &SessionId) -> Result<(), StoreError> {
        match self.log.record(by).await {
            Err(LogError::UnknownSession(_)) => {}
            taken => return Err(taken.map_or_else(refused, |_| StoreError::SessionExists(by.clone()))),
        }
        let claimed = self.log.claim(session, by).await.map_err(refused)?;
        match claimed == *by {
            true => Ok(()),
            false => Err(self.claimed_by(session, claimed).await),
        }
    }

    /// Fails if another session continues this one, or is to.
    pub(super) async fn check_unclaimed(&self, session: &SessionId) -> Result<(), StoreError> {
        match self.claimed(session).await? {
            Some(by) => Err(self.claimed_by(session, by).await),
            None => Ok(()),
        }
    }

    /// Why a session is not continued in another way.
    async fn claimed_by(&self, session: &SessionId, by: SessionId) -> StoreError {
        let (session, parent) = (session.clone(), self.parent_of(&by).await);
        match parent {
            Ok(parent) if parent.as_ref() == Some(&session) => StoreError::Continued { session, by },
            Ok(_) => StoreError::Claimed { session, by },
            Err(error) => error,
        }
    }

    /// The only id with which a session can be continued: that of the session which continues it, or was about to when
    /// its start was cut short.
    pub async fn claimed(&self, session: &SessionId) -> Result<Option<SessionId>, StoreError> {
        self.log.claimed(session).await.map_err(refused)
    }

    /// The session that continues this one.
    pub(super) async fn continuation(&self, session: &SessionId) -> Result<Option<SessionId>, StoreError> {
        match self.claimed(session).await? {
            Some(by) => Ok((self.parent_of(&by).await?.as_ref() == Some(session)).then_some(by)),
            // Another version may have stored the one that continues it.
            None => Ok(self.continuations().await?.remove(session)),
        }
    }

    /// The sessions that another one continues, each with that one.
    pub(super) async fn continuations(&self) -> Result<BTreeMap<SessionId, SessionId>, StoreError> {
        let sessions = self.log.sessions("").await.map_err(refused)?;
        self.continuations_among(sessions).await
    }

    /// The same, where these are all sessions.
    pub(super) async fn continuations_among(
        &self,
        sessions: Vec<SessionId>,
    ) -> Result<BTreeMap<SessionId, SessionId>, StoreError> {
        let records = stream::iter(sessions).map(|id| async move { (self.parent_of(&id).await, id) });
        let mut found = BTreeMap::new();
        let mut records = std::pin::pin!(records.buffered(READS));
        while let Some((parent, id)) = records.next().await {
            found.extend(parent?.map(|parent| (parent, id)));
        }
        Ok(found)
    }

    /// The session that a session continues.
    async fn parent_of(&self, session: &SessionId) -> Result<Option<SessionId>, StoreError> {
        match self.known_record(session).await {
            Ok(record) => Ok(record.continues),
            // Other sessions that cannot be read do not concern this one.
            Err(LogError::Damaged { .. } | LogError::OtherKey { .. } | LogError::UnknownSession(_)) => {
                Ok(None)
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// What a record says. It is read once.
    pub(super) async fn known_record(&self, session: &SessionId) -> Result<KnownRecord, LogError> {
        if let Some(known) = self.records.lock().get(session) {
            return Ok(known.clone());
        }
        let known = KnownRecord::from(&self.log.record(session).await?);
        self.records.lock().insert(session.clone(), known.clone());
        Ok(known)
    }
}
