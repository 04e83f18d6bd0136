//! One thing tidy has to say: where it is, how much it weighs, and how to mend it.

use std::fmt;

/// Whether a finding breaks the build or only asks for a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The rule is broken: tidy fails.
    Broken,
    /// Nothing is broken yet; tidy prints the line and passes.
    Look,
}

/// A place and the one sentence that says what is wrong there and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) weight: Weight,
    /// A path relative to the workspace, with `:line` where there is one.
    pub(crate) place: String,
    pub(crate) sentence: String,
}

impl Finding {
    /// A broken rule at `place`.
    pub(crate) fn broken(place: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { weight: Weight::Broken, place: place.into(), sentence: sentence.into() }
    }

    /// Something at `place` that asks for a look.
    pub(crate) fn look(place: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { weight: Weight::Look, place: place.into(), sentence: sentence.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.weight {
            Weight::Broken => "",
            Weight::Look => "note: ",
        };
        write!(f, "{prefix}{}: {}", self.place, self.sentence)
    }
}
