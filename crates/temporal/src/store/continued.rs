//! Which session continues which.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use inspan_protocol::SessionId;
use inspan_store::StoreError;

use super::{READS, SharedStore, refused};
use crate::log::LogError;

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
        let records = stream::iter(sessions).map(|id| async move { (self.parent_of(&id).await, id) });
        let mut found = BTreeMap::new();
        let mut records = std::pin::pin!(records.buffered(READS));
        while let Some((parent, id)) = records.next().await {
            found.extend(parent?.map(|parent| (parent, id)));
        }
        Ok(found)
    }

    /// The session that a session continues. A record never changes, so it is read once.
    async fn parent_of(&self, session: &SessionId) -> Result<Option<SessionId>, StoreError> {
        if let Some(known) = self.parents.lock().get(session) {
            return Ok(known.clone());
        }
        let record = match self.log.record(session).await {
            Ok(record) => record,
            // Other sessions that cannot be read do not concern this one.
            Err(LogError::Damaged { .. } | LogError::OtherKey { .. } | LogError::UnknownSession(_)) => {
                return Ok(None);
            }
            Err(error) => return Err(refused(error)),
        };
        let parent = record.continues().cloned();
        self.parents.lock().insert(session.clone(), parent.clone());
        Ok(parent)
    }
}
