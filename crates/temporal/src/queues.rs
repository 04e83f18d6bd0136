//! The task queues of a cluster: one for decisions, and one for the attempts of each pool and of each machine.

use crate::decide::RunningAttempt;

/// The pool of the nodes that name none.
pub const DEFAULT_POOL: &str = "default";

/// Who takes an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptQueue<'a> {
    /// Any worker of a pool.
    Pool(&'a str),
    /// The workers of one machine.
    Machine(&'a str),
}

impl<'a> AttemptQueue<'a> {
    pub(crate) fn of(attempt: &'a RunningAttempt) -> Self {
        match &attempt.machine {
            Some(machine) => Self::Machine(machine),
            None => Self::Pool(attempt.pool.as_deref().unwrap_or(DEFAULT_POOL)),
        }
    }

    /// The name of the task queue, from that of the decisions.
    pub(crate) fn name(self, decisions: &str) -> String {
        match self {
            Self::Pool(DEFAULT_POOL) => format!("{decisions}.attempts"),
            Self::Pool(pool) => format!("{decisions}.pool.{pool}"),
            Self::Machine(machine) => format!("{decisions}.on.{machine}"),
        }
    }
}
