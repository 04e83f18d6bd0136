//! What differs from the expected behaviour: a deviation that a provider may declare, and a text for people.

use std::fmt;

use inspan_protocol::{AgentError, ErrorCode, StopReason};

/// What a provider does instead of the expected behaviour. Declared deviations are compared by it, never by their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deviation {
    /// The turn fails with this code.
    Fails(ErrorCode),
    /// The turn ends with an output that has this stop reason.
    Ends(StopReason),
    /// The turn does not end.
    NoEnd,
    /// The text differs from the model's.
    Text,
    /// The text arrives as a whole.
    TextInOnePiece,
    /// The thinking differs from the model's.
    Thinking,
    /// The tokens differ from those that the server counted.
    Usage,
    /// The model does not receive the prompt as it is written.
    Prompt,
    /// The model does not receive an earlier part of the conversation.
    History,
    /// The error does not say how long the server asks to wait.
    NoRetryAfter,
    /// The model receives so many requests.
    Requests(usize),
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The deviation, if a provider can declare it.
    pub(crate) deviation: Option<Deviation>,
    /// What is wrong, for people.
    pub(crate) text: String,
    /// Details for people, which may differ from run to run.
    pub(crate) more: Option<String>,
}

/// The result of a check.
pub(crate) type CheckResult<T = ()> = Result<T, Difference>;

impl Difference {
    /// The same finding as a deviation that can be declared.
    pub(crate) fn deviation(self, deviation: Deviation) -> Self {
        Self { deviation: Some(deviation), ..self }
    }

    /// The same finding with details.
    pub(crate) fn with(self, more: impl Into<String>) -> Self {
        Self { more: Some(more.into()), ..self }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.more.as_ref().map_or(Ok(()), |more| write!(f, " ({more})"))
    }
}

impl From<String> for Difference {
    fn from(text: String) -> Self {
        Self { deviation: None, text, more: None }
    }
}

impl From<&str> for Difference {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// How much of a value is shown: a whole request would bury everything.
const SHOWN: usize = 600;

/// Fails with both values unless they are the same.
pub(crate) fn same<T: PartialEq + fmt::Debug>(what: &str, actual: &T, expected: &T) -> CheckResult {
    let shown = |value: &T| format!("{value:?}").chars().take(SHOWN).collect::<String>();
    holds(actual == expected, || format!("{what}: {}, not {}", shown(actual), shown(expected)))
}

/// Fails unless the error has this code.
pub(crate) fn check_code(error: &AgentError, expected: ErrorCode) -> CheckResult {
    same("the code", &error.code, &expected)
        .map_err(|finding| finding.deviation(Deviation::Fails(error.code)).with(error.to_string()))
}

/// Fails unless the turn ended for this reason.
pub(crate) fn check_stop_reason(actual: StopReason, expected: StopReason) -> CheckResult {
    same("the stop reason", &actual, &expected).map_err(|finding| finding.deviation(Deviation::Ends(actual)))
}

/// Fails unless the model received so many requests.
pub(crate) fn check_requests(actual: usize, expected: usize) -> CheckResult {
    same("the requests of the model", &actual, &expected)
        .map_err(|finding| finding.deviation(Deviation::Requests(actual)))
}

/// Fails with this text unless it holds.
pub(crate) fn holds(holds: bool, text: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(Difference::from(text())) }
}
