//! The layer check against small invented workspaces.

use super::{LAYERS, Layer, check, table};
use crate::workspace::{Dependency, Package, Workspace};

const LOW: Layer = row("inspan-low", &[], &["serde"]);
const MID: Layer = row("inspan-mid", &["inspan-low"], &[]);
const TOP: Layer = row("inspan-top", &["inspan-mid"], &[]);

const fn row(
    package: &'static str,
    knows: &'static [&'static str],
    packages: &'static [&'static str],
) -> Layer {
    Layer { package, owns: "things", must_not_know: "others", knows, packages }
}

fn package(name: &str, dependencies: &[(&str, bool)]) -> Package {
    let dependency = |&(name, tests_only): &(&str, bool)| Dependency {
        name: name.to_owned(),
        in_code: name.replace('-', "_"),
        tests_only,
    };
    let folder = name.trim_start_matches("inspan-");
    Package {
        name: name.to_owned(),
        manifest: format!("crates/{folder}/Cargo.toml"),
        dependencies: dependencies.iter().map(dependency).collect(),
    }
}

/// A tree in which every manifest takes the workspace's lints and every source uses all there is.
fn tree() -> Workspace {
    let lints = "[lints]\nworkspace = true\n";
    let source =
        "//! All.\nuse serde; use inspan_low; use inspan_mid; use tempfile; use reqwest; use inspan_top;";
    Workspace::of(&[
        ("crates/low/Cargo.toml", lints),
        ("crates/low/src/lib.rs", source),
        ("crates/mid/Cargo.toml", lints),
        ("crates/mid/src/lib.rs", source),
        ("crates/top/Cargo.toml", lints),
        ("crates/top/src/lib.rs", source),
    ])
}

fn sentences(layers: &[Layer], packages: &[Package], tree: &Workspace) -> Vec<String> {
    check(layers, packages, tree).iter().map(ToString::to_string).collect()
}

#[test]
fn the_table_as_it_is_used_passes() {
    let packages = [
        package("inspan-low", &[("serde", false), ("tempfile", true)]),
        package("inspan-mid", &[("inspan-low", false)]),
    ];
    assert_eq!(sentences(&[LOW, MID], &packages, &tree()), [""; 0]);
}

#[test]
fn an_edge_that_is_not_allowed_fails() {
    let packages = [
        package("inspan-low", &[("serde", false), ("reqwest", false), ("inspan-mid", true)]),
        package("inspan-mid", &[("inspan-low", false), ("inspan-top", false)]),
        package("inspan-top", &[("inspan-mid", false), ("inspan-low", false)]),
    ];
    let expected = [
        "crates/low/Cargo.toml: inspan-low may not use the package reqwest: do without it, or allow it in LAYERS in \
         xtask/src/layers/table.rs",
        "crates/low/Cargo.toml: inspan-low may not use inspan-mid: move what it needs to a crate both may use, or \
         argue for the edge in LAYERS in xtask/src/layers/table.rs",
        "crates/mid/Cargo.toml: inspan-mid may not use inspan-top: move what it needs to a crate both may use, or \
         argue for the edge in LAYERS in xtask/src/layers/table.rs",
        "crates/top/Cargo.toml: inspan-top may not use inspan-low: move what it needs to a crate both may use, or \
         argue for the edge in LAYERS in xtask/src/layers/table.rs",
    ];
    assert_eq!(sentences(&[LOW, MID, TOP], &packages, &tree()), expected);
}

#[test]
fn a_permission_nobody_uses_fails() {
    let packages = [package("inspan-low", &[("serde", true)]), package("inspan-mid", &[])];
    let expected = [
        "xtask/src/layers/table.rs: inspan-low is allowed serde and does not use it: remove serde from its row in LAYERS",
        "xtask/src/layers/table.rs: inspan-mid is allowed inspan-low and does not use it: remove inspan-low from its row in \
         LAYERS",
        "xtask/src/layers/table.rs: inspan-top has a row but is not in the workspace: remove the row from LAYERS",
    ];
    assert_eq!(sentences(&[LOW, MID, TOP], &packages, &tree()), expected);
}

#[test]
fn a_row_may_not_reach_below_itself() {
    let layers = [MID, LOW];
    let packages =
        [package("inspan-mid", &[("inspan-low", false)]), package("inspan-low", &[("serde", false)])];
    let expected =
        ["crates/mid/Cargo.toml: inspan-mid may not use inspan-low, which is below it in the table: \
                     turn the dependency round, or move what both need to a lower crate"];
    assert_eq!(sentences(&layers, &packages, &tree()), expected);
}

#[test]
fn a_manifest_is_held_against_its_sources() {
    let tree = Workspace::of(&[
        (
            "crates/low/Cargo.toml",
            "[package]\nname = \"low\"\n[dependencies]\nserde = \"1\"\n\n[dev-dependencies]\na.workspace = true\n",
        ),
        ("crates/low/src/lib.rs", "//! Uses nothing.\n"),
        ("crates/mid/Cargo.toml", "[lints]\nworkspace = true\n"),
        ("crates/mid/src/lib.rs", "//! Uses the crate below.\nuse inspan_low as _;\n"),
    ]);
    let packages =
        [package("inspan-low", &[("serde", false)]), package("inspan-mid", &[("inspan-low", false)])];
    let expected = [
        "crates/low/Cargo.toml: the workspace's lints do not hold here: add `[lints]` with `workspace = true`",
        "crates/low/Cargo.toml:4: serde sets its own version: put it into the root manifest and say \
         `serde.workspace = true`",
        "crates/low/Cargo.toml: no file of inspan-low mentions serde: remove serde from its manifest",
    ];
    assert_eq!(sentences(&[LOW, MID], &packages, &tree), expected);
}

#[test]
fn a_package_without_a_row_fails() {
    let expected = ["crates/new/Cargo.toml: inspan-new has no row in the layer table: add one to LAYERS in \
                     xtask/src/layers/table.rs"];
    assert_eq!(sentences(&[], &[package("inspan-new", &[])], &tree()), expected);
}

#[test]
fn every_row_stands_below_what_it_knows() {
    let below: Vec<_> = LAYERS
        .iter()
        .enumerate()
        .flat_map(|(row, layer)| layer.knows.iter().map(move |name| (row, layer.package, name)))
        .filter(|(row, _, name)| LAYERS[..*row].iter().all(|layer| layer.package != **name))
        .collect();
    assert_eq!(below, []);
}

#[test]
fn writes_a_row_for_each_crate() {
    let rows = "| Crate | Uses | Owns | Must not know |\n|---|---|---|---|\n| `crates/mid` | low | things | others |\n\
                | `crates/low` | nobody | things | others |";
    assert_eq!(table(&[LOW, MID]), rows);
}
