//! Why a session could not be run. A flow that fails is no error here: it is a result.

use inspan_protocol::{InvalidSessionId, NodePath, SessionId};

use inspan_flow_core::{
    Diagnostics, InputError, MessageError, NotRaised, OverrideError, SnapshotError, UnknownNodeType,
};
use inspan_store::StoreError;

/// Why a session could not be run, or not be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The input does not fit the flow.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The registry lacks a type that the graph was compiled with.
    #[error(transparent)]
    UnknownNodeType(#[from] UnknownNodeType),
    /// The id of a new session cannot name one.
    #[error(transparent)]
    SessionId(#[from] InvalidSessionId),
    /// Events came faster than they could be taken, and one of them was lost.
    #[error("the runtime fell behind events at {seq}")]
    Overflow {
        /// The first event that was lost.
        seq: u64,
    },
    /// The session was made of another flow than the one it is to continue.
    #[error("flow `{flow}` has changed since session `{session}` was started")]
    Changed {
        /// The session.
        session: SessionId,
        /// The flow.
        flow: String,
    },
    /// The session has ended, and cannot continue.
    #[error("session `{session}` has ended: {status}")]
    Ended {
        /// The session.
        session: SessionId,
        /// Its status.
        status: &'static str,
    },
    /// The session has not ended, so it can continue itself.
    #[error("session `{session}` has not ended: `open` continues it")]
    NotEnded {
        /// The session.
        session: SessionId,
    },
    /// The session takes over finished work of one that is not in the store.
    #[error("session `{session}` takes over finished work of session `{parent}`, which is not in the store")]
    NoParent {
        /// The session.
        session: SessionId,
        /// The one that it comes from.
        parent: SessionId,
    },
    /// The flow does not have the place at which a fork is to begin, or the session has not run it.
    #[error("a fork of session `{session}` cannot begin at `{place}`: {why}")]
    NoSuchPlace {
        /// The session.
        session: SessionId,
        /// The place.
        place: NodePath,
        /// Why.
        why: String,
    },
    /// The flow of a stored session does not compile any more.
    #[error("the session's flow does not compile with this version of inspan:\n{0}")]
    Source(Diagnostics),
    /// The changes of a stored session's flow do not fit it.
    #[error(transparent)]
    Override(#[from] OverrideError),
    /// The session has begun already, so it cannot be run from its start.
    #[error("session `{session}` has already started: call `resume` to continue it")]
    HasBegun {
        /// The session.
        session: SessionId,
    },
    /// A message for the agents that are to continue would reach none.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A limit of a budget would not be raised.
    #[error(transparent)]
    NotRaised(#[from] NotRaised),
    /// There is no store to continue from.
    #[error("a session only resumes from a store or a snapshot")]
    NoStore,
    /// The session cannot continue from the snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The store refused the session or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A new session could not be prepared. It is stored, and can be resumed.
    #[error("{error}")]
    NotPrepared {
        /// The session.
        session: SessionId,
        /// Why.
        error: std::io::Error,
    },
    /// The store was full or locked for too long, or its disk failed or became read-only. The session is paused where its log
    /// ends, and can be resumed.
    #[error("session `{session}` cannot be stored, and was interrupted: {error}")]
    NotStored {
        /// The session.
        session: SessionId,
        /// Why.
        error: StoreError,
    },
}
