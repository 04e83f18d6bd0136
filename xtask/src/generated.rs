//! The parts of documents that are written by the code they describe, and the check that they are fresh.

use std::path::Path;

use anyhow::{Context as _, bail};
use inspan_conformance::{BEHAVIOURS, ExceptionKind};
use inspan_protocol::ProviderCapabilities;

use crate::events;
use crate::layers::{LAYERS, table};
use crate::tidy::TidyFinding;
use crate::workspace::Workspace;

/// A part of a document between two marker lines.
struct GeneratedSection {
    document: &'static str,
    /// The word in the markers `<!-- generated: name -->` and `<!-- end: name -->`.
    name: &'static str,
    write: fn() -> String,
}

const PARTS: &[GeneratedSection] = &[
    GeneratedSection { document: "ARCHITECTURE.md", name: "crates", write: || table(LAYERS) },
    GeneratedSection { document: "docs/events.md", name: "events", write: events::events },
    GeneratedSection { document: "docs/events.md", name: "types", write: events::types },
    GeneratedSection { document: "docs/providers/README.md", name: "capabilities", write: capabilities },
    GeneratedSection { document: "docs/providers/README.md", name: "deviations", write: deviations },
];

/// Finds every part that differs from what would be written now.
pub(crate) fn check(workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for part in PARTS {
        let text = workspace.text(part.document).unwrap_or_default();
        match replace(text, part.name, &(part.write)()) {
            None => findings.push(TidyFinding::broken(
                part.document,
                format!(
                    "put the lines `{}` and `{}` where the part belongs",
                    begin(part.name),
                    end(part.name)
                ),
            )),
            Some(fresh) if fresh != text => findings.push(TidyFinding::broken(
                part.document,
                format!("the part `{}` is stale: run `cargo xtask tidy --fix`", part.name),
            )),
            Some(_) => {}
        }
    }
    findings
}

/// Writes every part and returns the documents that changed.
pub(crate) fn fix(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut changed = Vec::new();
    for part in PARTS {
        let path = root.join(part.document);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", part.document))?;
        let Some(fresh) = replace(&text, part.name, &(part.write)()) else {
            bail!("failed to find `{}` and `{}` in {}", begin(part.name), end(part.name), part.document);
        };
        if fresh != text {
            std::fs::write(&path, fresh).with_context(|| format!("failed to write {}", part.document))?;
            changed.push(part.document.to_owned());
        }
    }
    changed.dedup();
    Ok(changed)
}

fn begin(name: &str) -> String {
    format!("<!-- generated: {name} -->")
}

fn end(name: &str) -> String {
    format!("<!-- end: {name} -->")
}

/// `text` with `fresh` between the markers of `name`, or nothing if a marker is missing.
fn replace(text: &str, name: &str, fresh: &str) -> Option<String> {
    let (before, rest) = text.split_once(&begin(name))?;
    let (_, after) = rest.split_once(&end(name))?;
    Some(format!("{before}{}\n\n{}\n\n{}{after}", begin(name), fresh.trim(), end(name)))
}

/// One row per provider, one column per capability.
fn capabilities() -> String {
    let mut table = String::from("| Provider | Is |");
    let rows: Vec<_> = inspan_providers::builtin().iter().map(|provider| provider.descriptor()).collect();
    let names = ProviderCapabilities::default().abilities().map(|(name, _)| name);
    table.extend(names.map(|name| format!(" {name} |")));
    table.push_str("\n|---|---|");
    table.push_str(&":-:|".repeat(names.len()));
    for row in &rows {
        table.push_str(&format!("\n| `{}` | {} |", row.provider_type, row.display_name));
        table.extend(row.capabilities.abilities().map(|(_, can)| if can { " ✔ |" } else { "  |" }));
    }
    table
}

/// One row for each behaviour in which a provider deviates, with the reason.
fn deviations() -> String {
    let mut table = String::from("| Provider | Is expected to be one that | But |\n|---|---|---|");
    for target in inspan_conformance_targets::all() {
        for exception in target.exceptions {
            let but = match exception.kind {
                ExceptionKind::NotApplicable => format!("{} (not checked)", exception.reason),
                ExceptionKind::Deviates(_) => exception.reason.to_owned(),
            };
            for name in exception.behaviours {
                let behaviour = BEHAVIOURS.iter().find(|behaviour| behaviour.name == *name);
                let sentence = behaviour.map_or(*name, |behaviour| behaviour.sentence);
                table.push_str(&format!("\n| `{}` | {sentence} | {but} |", target.name()));
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{check, replace};
    use crate::workspace::Workspace;

    #[test]
    fn replaces_between_the_markers() {
        let text = "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb\n";
        let fresh = "a\n<!-- generated: x -->\n\nnew\n\n<!-- end: x -->\nb\n";
        assert_eq!(replace(text, "x", "new\n").as_deref(), Some(fresh));
        assert_eq!(replace(fresh, "x", "new").as_deref(), Some(fresh));
        assert_eq!(replace(text, "y", "new"), None);
    }

    #[test]
    fn says_what_is_missing_and_what_is_stale() {
        let text = "<!-- generated: crates -->\n<!-- end: crates -->\n";
        let got: Vec<String> =
            check(&Workspace::of(&[("ARCHITECTURE.md", text)])).iter().map(ToString::to_string).collect();
        let expected = [
            "ARCHITECTURE.md: the part `crates` is stale: run `cargo xtask tidy --fix`",
            "docs/events.md: put the lines `<!-- generated: events -->` and `<!-- end: events -->` where the part \
             belongs",
            "docs/events.md: put the lines `<!-- generated: types -->` and `<!-- end: types -->` where the part belongs",
            "docs/providers/README.md: put the lines `<!-- generated: capabilities -->` and `<!-- end: capabilities -->` \
             where the part belongs",
            "docs/providers/README.md: put the lines `<!-- generated: deviations -->` and `<!-- end: deviations -->` \
             where the part belongs",
        ];
        assert_eq!(got, expected);
    }
}
