//! What cargo says about the workspace's packages, reduced to what the layer check needs.

use std::path::Path;

use anyhow::Context as _;
use cargo_metadata::{DependencyKind, MetadataCommand};

/// One package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// The path of its `Cargo.toml`, relative to the root.
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a package's manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The name by which Rust code mentions it.
    pub(crate) in_code: String,
    pub(crate) tests_only: bool,
}

/// Asks cargo for the packages of the workspace under `root`, without touching the network.
pub(crate) fn read(root: &Path) -> anyhow::Result<Vec<Package>> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .context("failed to ask cargo for the workspace's packages")?;
    let mut packages = Vec::new();
    for package in metadata.packages {
        let manifest = package
            .manifest_path
            .strip_prefix(&metadata.workspace_root)
            .with_context(|| format!("failed to place the manifest of {}", package.name))?;
        let dependencies = package.dependencies.iter().map(|dependency| Dependency {
            name: dependency.name.clone(),
            in_code: dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_"),
            tests_only: dependency.kind == DependencyKind::Development,
        });
        packages.push(Package {
            name: package.name.to_string(),
            manifest: manifest.as_str().replace('\\', "/"),
            dependencies: dependencies.collect(),
        });
    }
    packages.sort_by(|one, other| one.manifest.cmp(&other.manifest));
    Ok(packages)
}
