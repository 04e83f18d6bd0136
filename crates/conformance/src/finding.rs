//! What was found to be other than it should be, in words that are the same in every run: no id, no time, no path.
//! Whether it is a fault or a vendor's nature is left to the report.

use std::fmt;

/// A fragment that says what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What is compared with a declared deviation.
    pub(crate) text: String,
    /// More for whoever looks into it, which may differ from run to run.
    pub(crate) more: Option<String>,
}

/// What a behaviour comes to.
pub(crate) type Proof<T = ()> = Result<T, Finding>;

impl Finding {
    /// The same finding with more to look at.
    pub(crate) fn with(self, more: impl Into<String>) -> Self {
        Self { more: Some(more.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.more.as_ref().map_or(Ok(()), |more| write!(f, " ({more})"))
    }
}

impl From<String> for Finding {
    fn from(text: String) -> Self {
        Self { text, more: None }
    }
}

impl From<&str> for Finding {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// How much of a value is shown: a whole request would bury everything.
const SHOWN: usize = 600;

/// Fails with both values unless they are the same.
pub(crate) fn same<T: PartialEq + fmt::Debug>(what: &str, actual: &T, expected: &T) -> Proof {
    let shown = |value: &T| format!("{value:?}").chars().take(SHOWN).collect::<String>();
    holds(actual == expected, || format!("{what}: {}, not {}", shown(actual), shown(expected)))
}

/// Fails with these words unless it holds.
pub(crate) fn holds(holds: bool, words: impl FnOnce() -> String) -> Proof {
    if holds { Ok(()) } else { Err(Finding::from(words())) }
}
