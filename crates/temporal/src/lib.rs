//! Sessions that several machines run together: a log in a folder or bucket that they share, the decisions about a
//! session, its attempts, and with the feature `sdk` the Temporal cluster that says which worker does what.
//!
//! The log is the truth, as with every other store of Inspan. Temporal knows the names of sessions and attempts, and why
//! machines could not do something, and nothing of what agents are asked or answer.

mod attempt;
// Addresses and buckets need no SDK to be tested.
#[cfg(any(feature = "sdk", test))]
mod cluster;
mod decide;
mod follow;
mod lock;
mod log;
mod seen;
mod store;
#[cfg(feature = "sdk")]
mod worker;
#[cfg(feature = "sdk")]
mod workflow;

pub use attempt::{AttemptError, AttemptRunner};
#[cfg(feature = "sdk")]
pub use cluster::ClusterStatus;
#[cfg(any(feature = "sdk", test))]
pub use cluster::{Cluster, EngineError};
pub use decide::{
    DecideError, Decider, Decision, HostedAttempt, HostedSession, LostAttempt, Refused, RunningAttempt,
    SessionHost,
};
pub use log::{LogError, LogKeys, SharedLog};
pub use store::{SessionWaker, SharedStore, WorkflowStatus};
#[cfg(feature = "sdk")]
pub use worker::{DEFAULT_POOL, WorkerSettings, run_worker};
#[cfg(feature = "sdk")]
pub use workflow::{recorded_history, replay_history};

/// Sessions on a log in memory, driven without a server: each decision is made, and each attempt that it names
/// is run, by another worker.
#[cfg(test)]
mod tests {
    mod cluster;
    mod continued;
    mod encryption;
    mod messages;
    mod requests;
    mod sessions;
    mod unbegun;
}
