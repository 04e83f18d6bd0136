//! All checks in one run, as a command and as a test.

use std::fmt;
use std::path::Path;

use crate::layers::{self, LAYERS};
use crate::schema::{self, SCHEMAS};
use crate::workspace::{self, Workspace};
use crate::{documents, fixtures, form, generated, size};

/// Whether a finding breaks the build or only asks for a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The rule is broken: tidy fails.
    Broken,
    /// Nothing is broken yet; tidy prints the line and passes.
    Look,
}

/// A place and the one sentence that says what is wrong there and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TidyFinding {
    pub(crate) weight: Weight,
    /// A path relative to the workspace, with `:line` where there is one.
    pub(crate) place: String,
    pub(crate) sentence: String,
}

impl TidyFinding {
    /// A broken rule at `place`.
    pub(crate) fn broken(place: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { weight: Weight::Broken, place: place.into(), sentence: sentence.into() }
    }

    /// Something at `place` that asks for a look.
    pub(crate) fn look(place: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { weight: Weight::Look, place: place.into(), sentence: sentence.into() }
    }
}

impl fmt::Display for TidyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.weight {
            Weight::Broken => "",
            Weight::Look => "note: ",
        };
        write!(f, "{prefix}{}: {}", self.place, self.sentence)
    }
}

/// Runs every check on the tree under `root`.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<TidyFinding>> {
    let workspace = Workspace::read(root)?;
    let packages = workspace::packages(root)?;
    Ok([
        layers::check(LAYERS, &packages, &workspace),
        size::check(&workspace),
        form::check(&workspace),
        documents::check(&workspace),
        generated::check(&workspace),
        schema::check(SCHEMAS, &workspace),
        fixtures::check(&workspace),
    ]
    .concat())
}

/// Writes what is generated, and returns the paths that changed.
pub(crate) fn fix(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut changed = generated::fix(root)?;
    changed.extend(schema::write(SCHEMAS, root)?);
    Ok(changed)
}

/// The findings that break a rule.
pub(crate) fn broken(findings: &[TidyFinding]) -> Vec<String> {
    findings.iter().filter(|finding| finding.weight == Weight::Broken).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::{broken, check};
    use crate::workspace::root;

    /// The rules hold for this very tree. Each line of a failure says how to fix it.
    #[test]
    fn tidy() {
        let findings = check(&root()).expect("the checks run");
        let broken = broken(&findings);
        assert!(broken.is_empty(), "\n\n{}\n", broken.join("\n"));
    }
}
