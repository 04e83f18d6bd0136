//! All checks in one run, as a command and as a test.

use std::path::Path;

use crate::finding::{Finding, Weight};
use crate::layers::{self, LAYERS};
use crate::schema::{self, SCHEMAS};
use crate::workspace::Workspace;
use crate::{documents, fixtures, form, generated, size};

/// Runs every check on the tree under `root`.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let workspace = Workspace::read(root)?;
    let packages = layers::read(root)?;
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

/// Writes anew what is generated, and returns the paths that changed.
pub(crate) fn fix(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut changed = generated::fix(root)?;
    changed.extend(schema::write(SCHEMAS, root)?);
    Ok(changed)
}

/// The findings that break a rule.
pub(crate) fn broken(findings: &[Finding]) -> Vec<String> {
    findings.iter().filter(|finding| finding.weight == Weight::Broken).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::{broken, check};
    use crate::workspace::root;

    /// The rules hold for this very tree. Each line of a failure says how to mend it.
    #[test]
    fn tidy() {
        let findings = check(&root()).expect("the checks run");
        let broken = broken(&findings);
        assert!(broken.is_empty(), "\n\n{}\n", broken.join("\n"));
    }
}
