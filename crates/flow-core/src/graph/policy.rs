//! What is done about time, failures, money and limits of a node.

use std::time::Duration;

use inspan_protocol::AgentError;

use super::{Budget, OnLimit};

/// A node's policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePolicy {
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How often it is tried.
    pub retry: Retry,
    /// What a failure that remains does.
    pub on_failure: OnFailure,
    /// What all attempts of it may cost together.
    pub budget: Option<Budget>,
    /// What is done about a usage limit.
    pub on_limit: OnLimit,
}

/// How often a node is tried, and how long is waited between.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// The wait before the second attempt.
    pub backoff: Duration,
    /// Factor of each further wait.
    pub factor: f64,
    /// The longest wait.
    pub max_backoff: Option<Duration>,
    /// Which failures are tried again.
    pub on: RetryOn,
    /// Whether nobody has said how often: an agent is then tried again by itself.
    pub is_automatic: bool,
}

/// A wait of this length between two attempts is no surprise, whatever the author says.
const ORDINARY_WAIT: Duration = Duration::from_secs(5 * 60);

impl Retry {
    /// The longest wait between two attempts that a vendor may ask for; a longer one is a usage limit.
    pub(crate) fn longest_wish(&self) -> Duration {
        self.max_backoff.unwrap_or_default().max(ORDINARY_WAIT)
    }

    /// How long is waited after so many failures: as long as the vendor asks for, if that is no usage limit, else the backoff.
    pub(crate) fn wait(&self, failures: u32, error: &AgentError) -> Duration {
        if let Some(wait) = error.retry_after.filter(|wait| *wait <= self.longest_wish()) {
            return wait;
        }
        let grown =
            self.backoff.as_secs_f64() * self.factor.powi(failures.saturating_sub(1).min(1_000) as i32);
        let limit = self.max_backoff.unwrap_or(self.backoff.max(Duration::from_secs(24 * 3_600)));
        Duration::try_from_secs_f64(grown).map_or(limit, |wait| wait.min(limit))
    }

    /// What holds for an agent whose author says nothing: a vendor that is busy for three minutes ends no flow. The vendors'
    /// programs do the same when nobody keeps them from it.
    pub(crate) fn of_agents() -> Self {
        Self {
            max_attempts: 6,
            backoff: Duration::from_secs(2),
            factor: 3.0,
            max_backoff: Some(Duration::from_secs(120)),
            on: RetryOn::Passing,
            is_automatic: true,
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            backoff: Duration::ZERO,
            factor: 1.0,
            max_backoff: None,
            on: RetryOn::Any,
            is_automatic: false,
        }
    }
}

/// Which failures are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOn {
    /// Those of the vendor and the network that pass by themselves. No flow says it; an agent has it if its flow does not say
    /// which, or how often.
    Passing,
    /// Those whose code says that trying again may help.
    Retryable,
    /// All.
    Any,
}

/// What a failure that remains after all attempts does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It is the flow's to deal with.
    #[default]
    Fail,
    /// The output is an error marker, and the edges are evaluated.
    Continue,
}
