//! Why a session could not be run. A flow that fails is no error here: it is a result.

use inspan_protocol::NodeId;

use crate::{load::FlowError, store::StoreError};

/// Why a session could not be run, or not be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The input does not fit the flow.
    #[error(transparent)]
    Input(#[from] FlowError),
    /// The registry lacks a type that the graph was compiled with.
    #[error("node `{node}` has the type `{node_type}`, which is not registered")]
    UnknownNodeType {
        /// The node.
        node: NodeId,
        /// Its type.
        node_type: String,
    },
    /// Events came faster than they could be taken, and one of them was lost.
    #[error("the runtime was overrun by events at {seq}")]
    Overflow {
        /// The first event that was lost.
        seq: u64,
    },
    /// The log could not be kept.
    #[error("the log could not be kept: {0}")]
    Store(#[from] StoreError),
}
