//! Sessions that several machines run together: a log in a folder or bucket that they share, the decisions about a
//! session, its attempts, and with the feature `sdk` the Temporal cluster that says which worker does what.
//!
//! The log is the truth, as with every other store of Inspan. Temporal knows the names of sessions and attempts, and
//! nothing of what agents are asked or answer.

mod attempt;
#[cfg(feature = "sdk")]
mod cluster;
mod decide;
mod follow;
mod log;
mod store;
#[cfg(test)]
mod tests;
#[cfg(feature = "sdk")]
mod worker;
#[cfg(feature = "sdk")]
mod workflow;

pub use attempt::{AttemptError, AttemptRunner};
#[cfg(feature = "sdk")]
pub use cluster::{Cluster, EngineError};
pub use decide::{DecideError, Decider, Decision, HostedSession, LostAttempt, RunningAttempt, SessionHost};
pub use log::{LogError, LogKeys, SharedLog};
pub use store::SharedStore;
#[cfg(feature = "sdk")]
pub use worker::{WorkerSettings, run_worker};
