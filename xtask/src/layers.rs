//! The check that compares the table of layers with `cargo metadata`, and the table as Markdown.

mod table;

use std::fmt::Write as _;

use table::TESTS;
pub(crate) use table::{LAYERS, Layer};

use crate::tidy::TidyFinding;
use crate::workspace::{Dependency, Package, Workspace, mentions};

/// Where the table is; every sentence of the check points here.
const HERE: &str = "xtask/src/layers/table.rs";

/// Holds `layers` against `packages` in both directions, and the manifests and sources against each other.
pub(crate) fn check(layers: &[Layer], packages: &[Package], workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for package in packages {
        match layers.iter().position(|layer| layer.package == package.name) {
            Some(row) => {
                findings.extend(check_edges(layers, row, package));
                findings.extend(check_sources(package, workspace));
            }
            None => findings.push(TidyFinding::broken(
                &package.manifest,
                format!("{} has no row in the layer table: add one to LAYERS in {HERE}", package.name),
            )),
        }
    }
    for layer in layers.iter().filter(|layer| packages.iter().all(|package| package.name != layer.package)) {
        findings.push(TidyFinding::broken(
            HERE,
            format!("{} has a row but is not in the workspace: remove the row from LAYERS", layer.package),
        ));
    }
    findings
}

/// The table for `ARCHITECTURE.md`, the highest layer first, with what each crate uses, owns and must not know.
pub(crate) fn table(layers: &[Layer]) -> String {
    let mut text = "| Crate | Uses | Owns | Must not know |\n|---|---|---|---|".to_owned();
    for layer in layers.iter().rev() {
        let short = |name: &'static str| name.strip_prefix("inspan-").unwrap_or(name);
        let names: Vec<&str> = layer.knows.iter().map(|name| short(name)).collect();
        let uses = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
        let folder = match layer.package {
            "xtask" => "xtask".to_owned(),
            package => format!("crates/{}", short(package)),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n| `{folder}` | {uses} | {} | {} |", layer.owns, layer.must_not_know);
    }
    text
}

fn check_edges(layers: &[Layer], row: usize, package: &Package) -> Vec<TidyFinding> {
    let layer = &layers[row];
    let above = |name: &str| layers[..row].iter().any(|layer| layer.package == name);
    let ours = |name: &str| layers.iter().any(|layer| layer.package == name);
    let may = |name: &str| layer.knows.contains(&name) || layer.packages.contains(&name);
    let mut findings = Vec::new();
    for Dependency { name, tests_only, .. } in &package.dependencies {
        let sentence = match (ours(name), may(name), *tests_only && TESTS.contains(&name.as_str())) {
            (true, true, _) | (true, _, true) if !above(name) => format!(
                "{} may not use {name}, which is below it in the table: turn the dependency round, or move what \
                 both need to a lower crate",
                package.name
            ),
            (_, true, _) | (_, _, true) => continue,
            (true, false, false) => format!(
                "{} may not use {name}: move what it needs to a crate both may use, or argue for the edge in LAYERS \
                 in {HERE}",
                package.name
            ),
            (false, false, false) => format!(
                "{} may not use the package {name}: do without it, or allow it in LAYERS in {HERE}",
                package.name
            ),
        };
        findings.push(TidyFinding::broken(&package.manifest, sentence));
    }
    let used = |name: &str| package.dependencies.iter().any(|edge| edge.name == name && !edge.tests_only);
    for stale in layer.knows.iter().chain(layer.packages).filter(|name| !used(name)) {
        findings.push(TidyFinding::broken(
            HERE,
            format!(
                "{} is allowed {stale} and does not use it: remove {stale} from its row in LAYERS",
                package.name
            ),
        ));
    }
    findings
}

/// A manifest takes versions and lints from the workspace, and names nothing that its sources do not use.
fn check_sources(package: &Package, workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    let manifest = workspace.text(&package.manifest).unwrap_or_default();
    if !manifest.contains("[lints]\nworkspace = true") {
        let sentence = "the workspace's lints do not hold here: add `[lints]` with `workspace = true`";
        findings.push(TidyFinding::broken(&package.manifest, sentence));
    }
    for (line, name) in own_versions(manifest) {
        let sentence = format!(
            "{name} sets its own version: put it into the root manifest and say `{name}.workspace = true`"
        );
        findings.push(TidyFinding::broken(format!("{}:{line}", package.manifest), sentence));
    }
    let sources = package.manifest.trim_end_matches("Cargo.toml");
    for Dependency { name, in_code, .. } in &package.dependencies {
        let used = workspace
            .rust()
            .filter(|file| file.path.starts_with(sources))
            .any(|file| mentions(&file.text, in_code));
        if !used {
            let sentence =
                format!("no file of {} mentions {in_code}: remove {name} from its manifest", package.name);
            findings.push(TidyFinding::broken(&package.manifest, sentence));
        }
    }
    findings
}

/// The dependencies of a manifest that do not take their version from the workspace, with their lines.
fn own_versions(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_dependencies = false;
    for (index, line) in manifest.lines().enumerate() {
        if let Some(section) = line.strip_prefix('[') {
            in_dependencies = section.trim_end().ends_with("dependencies]");
        } else if in_dependencies && !line.contains("workspace = true") {
            let name =
                line.split(['=', '.', ' ']).next().filter(|name| !name.is_empty() && !name.starts_with('#'));
            found.extend(name.map(|name| (index + 1, name)));
        }
    }
    found
}

#[cfg(test)]
mod tests;
