//! Requests that count once: a caller gives a key with a request, and may then send it again.

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
};

use inspan_flow::{SessionRecord, StoreError};
use inspan_protocol::SessionId;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    ForkOptions, ForkPoint, Receipt, SessionCommand, SessionError, SessionErrorCode, Sessions, StartOptions,
    finish,
};

/// The longest key of a caller, in bytes.
pub(crate) const LONGEST_KEY: usize = 200;

/// The setting of a session's record that has [`RequestKey::request`].
const SETTING: &str = "request";

/// A caller's key, and the request that it was given with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    /// The id of the session that the request starts, if it starts one: the same key, the same session.
    pub(crate) session: SessionId,
    /// A hash of the request, which the session that it starts is stored with. So a request that is sent again is known
    /// from another one with the same key, also after a restart.
    pub(crate) request: String,
}

impl RequestKey {
    pub(crate) fn of(key: &str, request: &impl Serialize) -> Result<Self, SessionError> {
        let invalid = |message: String| SessionError::new(SessionErrorCode::InvalidRequest, message);
        if key.is_empty() || key.len() > LONGEST_KEY {
            return Err(invalid(format!("a key has 1 to {LONGEST_KEY} bytes")));
        }
        let request = serde_json::to_vec(request).map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            session: SessionId::from(format!("key-{}", digits(key.as_bytes()))),
            request: digits(&request),
        })
    }

    /// Whether this request started the session.
    fn has_started(&self, record: &SessionRecord) -> bool {
        record.settings.get(SETTING).and_then(Value::as_str) == Some(&*self.request)
    }
}

fn digits(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn key_reused() -> SessionError {
    SessionError::new(SessionErrorCode::KeyReused, "the key was used for another request before")
}

/// One lock for each of some keys: requests with the same key wait for each other. Different keys rarely share a lock.
#[derive(Debug)]
pub(crate) struct KeyLocks {
    locks: [Mutex<()>; 64],
    hashes: RandomState,
}

impl Default for KeyLocks {
    fn default() -> Self {
        Self { locks: std::array::from_fn(|_| Mutex::new(())), hashes: RandomState::new() }
    }
}

impl KeyLocks {
    pub(crate) async fn lock(&self, key: &RequestKey) -> MutexGuard<'_, ()> {
        let hash = self.hashes.hash_one(&key.session);
        self.locks[hash as usize % self.locks.len()].lock().await
    }
}

impl Sessions {
    /// Starts a session of a registered flow; `flow` is as for [`Launcher::start`](crate::Launcher::start). A request with
    /// a key that is sent again is answered with the session that it started. A start goes on if the future is dropped.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// What the launcher refuses; [`SessionErrorCode::KeyReused`] if the key was used for another request.
    pub async fn start(
        &self,
        flow: &str,
        input: &Map<String, Value>,
        mut options: StartOptions,
        key: Option<&str>,
    ) -> Result<SessionId, SessionError> {
        if key.is_some() && options.session_id.is_some() {
            let message = "give a key or the session's id, not both";
            return Err(SessionError::new(SessionErrorCode::InvalidRequest, message));
        }
        let key = key.map(|key| RequestKey::of(key, &("start", flow, input, &options))).transpose()?;
        if let Some(key) = &key {
            options.session_id = Some(key.session.clone());
            options.request = Some(key.request.clone());
        }
        let (sessions, flow, input) = (self.clone(), flow.to_owned(), input.clone());
        finish(async move {
            sessions.once(key.as_ref(), sessions.launcher.start(&flow, &input, &options)).await
        })
        .await
    }

    /// Applies an answer for a caller that may send it again, without a key: the same answer to a question counts once.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As of [`Sessions::apply`].
    pub async fn answer_once(
        &self,
        session: &SessionId,
        answer: &SessionCommand,
    ) -> Result<Receipt, SessionError> {
        let key = RequestKey::of("answer", &(session, answer))?.request;
        self.apply(session, answer, Some(&key)).await
    }

    /// Starts a new session from a point of another one. A request with a key that is sent again is answered with the
    /// session that it started.
    ///
    /// # Errors
    /// What the launcher refuses; [`SessionErrorCode::KeyReused`] if the key was used for another request.
    pub async fn fork(
        &self,
        session: &SessionId,
        at: Option<&ForkPoint>,
        input: &Map<String, Value>,
        key: Option<&str>,
    ) -> Result<SessionId, SessionError> {
        if let Some(key) = key
            && self.store.posted_once(session, key).await?.is_some()
        {
            return Err(key_reused());
        }
        let key = key.map(|key| RequestKey::of(key, &("fork", session, at, input))).transpose()?;
        let options = ForkOptions {
            session_id: key.as_ref().map(|key| key.session.clone()),
            request: key.as_ref().map(|key| key.request.clone()),
        };
        let (sessions, session, at, input) = (self.clone(), session.clone(), at.cloned(), input.clone());
        finish(async move {
            let start = sessions.launcher.fork(&session, at.as_ref(), &input, &options);
            sessions.once(key.as_ref(), start).await
        })
        .await
    }

    /// Starts a session unless this request has started it.
    pub(crate) async fn once(
        &self,
        key: Option<&RequestKey>,
        start: impl Future<Output = Result<SessionId, SessionError>>,
    ) -> Result<SessionId, SessionError> {
        let Some(key) = key else { return start.await };
        let _alone = self.keys.lock(key).await;
        if self.has_started(key).await? {
            return Ok(key.session.clone());
        }
        let error = match start.await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        // The same request may have come through another program too, and whatever kept this one from starting the session,
        // it is there.
        match self.has_started(key).await {
            Ok(true) => Ok(key.session.clone()),
            Err(other) if other.code == SessionErrorCode::KeyReused => Err(other),
            _ => Err(error),
        }
    }

    /// Whether this request has started its session; an error if another request with its key has.
    pub(crate) async fn has_started(&self, key: &RequestKey) -> Result<bool, SessionError> {
        match self.store.record(&key.session).await {
            Ok(record) if key.has_started(&record) => Ok(true),
            Ok(_) => Err(key_reused()),
            Err(StoreError::UnknownSession(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
