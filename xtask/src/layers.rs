//! The one table that says which crate may use which, and the check that compares it with `cargo metadata`.

mod picture;

pub(crate) use picture::{draw, table};

use crate::tidy::TidyFinding;
use crate::workspace::{Dependency, Package, Workspace, mentions};

/// Where the table is; every sentence of the check points here.
const HERE: &str = "xtask/src/layers.rs";

/// One crate of the workspace and all it may use.
pub(crate) struct Layer {
    /// The package's name as cargo knows it.
    pub(crate) package: &'static str,
    pub(crate) folder: &'static str,
    pub(crate) owns: &'static str,
    pub(crate) must_not_know: &'static str,
    /// Our crates that it may use. Each is in a row above its own, so no circle is possible.
    pub(crate) knows: &'static [&'static str],
    /// Outside packages that it may use.
    pub(crate) packages: &'static [&'static str],
}

/// Lowest layer first.
pub(crate) const LAYERS: &[Layer] = &[
    Layer {
        package: "inspan-protocol",
        folder: "crates/protocol",
        owns: "identifiers, events, the provider and agent contracts, the error taxonomy, snapshot types",
        must_not_know: "a runtime, files, clocks, any other crate of ours",
        knows: &[],
        packages: &[
            "aho-corasick",
            "base64",
            "futures",
            "jiff",
            "schemars",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio-util",
            "uuid",
        ],
    },
    Layer {
        package: "inspan-model-server",
        folder: "crates/model-server",
        owns: "the scripted model server",
        must_not_know: "any other crate of ours",
        knows: &[],
        packages: &[
            "async-stream",
            "axum",
            "futures",
            "serde",
            "serde_json",
            "serde_with",
            "thiserror",
            "tokio",
        ],
    },
    Layer {
        package: "inspan-testkit",
        folder: "crates/testkit",
        owns: "what tests share: sandboxes, agent CLIs, fixtures, golden files, split and corrupted bytes",
        must_not_know: "the hub, flows, any adapter",
        knows: &["inspan-model-server", "inspan-protocol"],
        packages: &["anyhow", "rustix", "serde", "serde_json", "sha2", "similar", "tempfile", "thiserror"],
    },
    Layer {
        package: "inspan-engine",
        folder: "crates/engine",
        owns: "the hub, agent runs and their turns, agent sessions, channels, recording and replay",
        must_not_know: "flows, any vendor",
        knows: &["inspan-protocol"],
        packages: &[
            "async-stream",
            "futures",
            "jsonschema",
            "parking_lot",
            "rustc-hash",
            "rustix",
            "schemars",
            "serde",
            "serde_json",
            "sha2",
            "similar",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
            "uuid",
        ],
    },
    Layer {
        package: "inspan-process",
        folder: "crates/process",
        owns: "child processes: spawn, guard, reap, output limits, and the end of all that they started",
        must_not_know: "vendors, flows, what the programs are for",
        knows: &["inspan-protocol"],
        packages: &["process-wrap", "rustix", "signal-hook", "tokio", "tokio-util", "uuid"],
    },
    Layer {
        package: "inspan-transport",
        folder: "crates/transport",
        owns: "HTTP requests, MCP servers, the lines of programs: the transports that adapters and nodes share",
        must_not_know: "vendors, flows",
        knows: &["inspan-process", "inspan-protocol"],
        packages: &["reqwest", "rmcp", "rustls", "serde", "serde_json", "tokio", "tokio-util"],
    },
    Layer {
        package: "inspan-providers",
        folder: "crates/providers",
        owns: "one adapter per vendor",
        must_not_know: "the hub, flows",
        knows: &["inspan-process", "inspan-protocol", "inspan-transport"],
        packages: &[
            "async-stream",
            "futures",
            "jsonschema",
            "reqwest",
            "rustix",
            "schemars",
            "serde",
            "serde_json",
            "serde_with",
            "strsim",
            "tokio",
            "tokio-util",
            "tracing",
            "uuid",
        ],
    },
    Layer {
        package: "inspan-conformance",
        folder: "crates/conformance",
        owns: "the list of what every provider does alike, and what holds a provider against it",
        must_not_know: "any vendor, flows",
        knows: &["inspan-engine", "inspan-model-server", "inspan-protocol"],
        packages: &["futures", "serde", "serde_json", "tempfile", "tokio", "tokio-util"],
    },
    Layer {
        package: "inspan-conformance-targets",
        folder: "crates/conformance-targets",
        owns: "how the conformance suite meets each provider",
        must_not_know: "the hub, flows",
        knows: &["inspan-conformance", "inspan-model-server", "inspan-protocol", "inspan-providers"],
        packages: &["serde_json"],
    },
    Layer {
        package: "inspan-flow-core",
        folder: "crates/flow-core",
        owns: "the flow file, its compiler, the node catalogue, the scheduler, explanations",
        must_not_know: "a runtime, files, clocks, the store",
        knows: &["inspan-protocol"],
        packages: &[
            "humantime",
            "jsonschema",
            "minijinja",
            "petgraph",
            "schemars",
            "serde",
            "serde-saphyr",
            "serde_json",
            "sha2",
            "strsim",
            "thiserror",
            "toml",
        ],
    },
    Layer {
        package: "inspan-store",
        folder: "crates/store",
        owns: "the contract of a run store, in memory and in SQLite",
        must_not_know: "the runtime, providers",
        knows: &["inspan-flow-core", "inspan-process", "inspan-protocol"],
        packages: &[
            "futures",
            "rusqlite",
            "rusqlite_migration",
            "rustix",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
        ],
    },
    Layer {
        package: "inspan-flow",
        folder: "crates/flow",
        owns: "the runtime, what nodes do, the reader of flow files",
        must_not_know: "vendors, terminals",
        knows: &[
            "inspan-engine",
            "inspan-flow-core",
            "inspan-process",
            "inspan-protocol",
            "inspan-store",
            "inspan-transport",
        ],
        packages: &["futures", "serde", "serde_json", "thiserror", "tokio", "tokio-util"],
    },
    Layer {
        package: "inspan-flow-test",
        folder: "crates/flow-test",
        owns: "test files: cases, answers, expectations, coverage, and the run of a case by the real engine",
        must_not_know: "vendors, terminals",
        knows: &["inspan-engine", "inspan-flow", "inspan-protocol"],
        packages: &[
            "async-stream",
            "futures",
            "jsonschema",
            "schemars",
            "serde",
            "serde-saphyr",
            "serde_json",
            "similar",
            "strsim",
            "thiserror",
            "tokio",
            "tokio-util",
        ],
    },
    Layer {
        package: "inspan-view",
        folder: "crates/view",
        owns: "the read model of a session: its status, nodes, frames, costs, time and graph, as a fold of its events",
        must_not_know: "a runtime, terminals, HTTP",
        knows: &["inspan-flow-core", "inspan-protocol", "inspan-store"],
        packages: &["anstyle", "console", "jiff", "schemars", "serde", "serde_json", "similar"],
    },
    Layer {
        package: "inspan-sessions",
        folder: "crates/sessions",
        owns: "what programs do with stored sessions: find, read, follow, command, start, resume and fork them",
        must_not_know: "vendors, terminals, HTTP",
        knows: &["inspan-engine", "inspan-flow", "inspan-flow-test", "inspan-protocol", "inspan-view"],
        packages: &["futures", "schemars", "serde", "serde_json", "sha2", "strsim", "thiserror", "tokio"],
    },
    Layer {
        package: "inspan-notify",
        folder: "crates/notify",
        owns: "outbound channels: webhook, Slack, ntfy, mail, desktop, command; the digest",
        must_not_know: "vendors, terminals, how sessions are run",
        knows: &[
            "inspan-engine",
            "inspan-process",
            "inspan-protocol",
            "inspan-sessions",
            "inspan-store",
            "inspan-transport",
            "inspan-view",
        ],
        packages: &[
            "base64",
            "futures",
            "hmac",
            "lettre",
            "reqwest",
            "rusqlite",
            "rustls",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tokio-tungstenite",
            "tokio-util",
            "tracing",
        ],
    },
    Layer {
        package: "inspan-otel",
        folder: "crates/otel",
        owns: "traces, derived from the events of a session",
        must_not_know: "vendors, terminals, how sessions are run",
        knows: &["inspan-protocol", "inspan-transport"],
        packages: &[
            "flate2",
            "opentelemetry-proto",
            "percent-encoding",
            "prost",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "tokio-util",
        ],
    },
    Layer {
        package: "inspan-temporal",
        folder: "crates/temporal",
        owns: "sessions that several machines run: their shared log, decisions, attempts, and the Temporal workflow",
        must_not_know: "vendors, terminals",
        knows: &["inspan-engine", "inspan-flow", "inspan-flow-core", "inspan-protocol", "inspan-store"],
        packages: &[
            "anyhow",
            "base64",
            "bytes",
            "futures",
            "object_store",
            "parking_lot",
            "ring",
            "rustls",
            "serde",
            "serde_json",
            "sha2",
            "temporalio-client",
            "temporalio-common",
            "temporalio-macros",
            "temporalio-sdk",
            "temporalio-workflow",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
            "url",
        ],
    },
    Layer {
        package: "inspan-server",
        folder: "crates/server",
        owns: "the HTTP API, the WebSocket and the web page, behind one guard",
        must_not_know: "vendors, terminals",
        knows: &["inspan-engine", "inspan-flow", "inspan-protocol", "inspan-sessions", "inspan-view"],
        packages: &[
            "axum",
            "base64",
            "futures",
            "getrandom",
            "hyper",
            "hyper-util",
            "rust-embed",
            "schemars",
            "serde",
            "serde_json",
            "sha2",
            "subtle",
            "thiserror",
            "tokio",
            "tokio-util",
            "tower",
        ],
    },
    Layer {
        package: "inspan-mcp-server",
        folder: "crates/mcp-server",
        owns: "flows as tools of an MCP server",
        must_not_know: "vendors, terminals, HTTP routes of the API",
        knows: &["inspan-protocol", "inspan-sessions", "inspan-view"],
        packages: &["futures", "rmcp", "serde", "serde_json", "sha2", "tokio", "tokio-util"],
    },
    Layer {
        package: "inspan-acp-server",
        folder: "crates/acp-server",
        owns: "flows as an agent of editors",
        must_not_know: "vendors, terminals, HTTP",
        knows: &["inspan-protocol", "inspan-sessions", "inspan-view"],
        packages: &["futures", "parking_lot", "serde", "serde_json", "tokio", "tokio-util"],
    },
    Layer {
        package: "inspan",
        folder: "crates/inspan",
        owns: "what a Rust program depends on: one package, with a prelude, examples and documentation",
        must_not_know: "terminals; it only passes on what others do",
        knows: &["inspan-engine", "inspan-flow", "inspan-flow-test", "inspan-protocol", "inspan-providers"],
        packages: &["serde_json", "thiserror"],
    },
    Layer {
        package: "inspan-cli",
        folder: "crates/cli",
        owns: "arguments, wiring, the console, exit codes",
        must_not_know: "nothing is hidden from it, and nothing of ours may use it",
        knows: &[
            "inspan-acp-server",
            "inspan-conformance",
            "inspan-engine",
            "inspan-flow",
            "inspan-flow-test",
            "inspan-mcp-server",
            "inspan-model-server",
            "inspan-notify",
            "inspan-otel",
            "inspan-process",
            "inspan-protocol",
            "inspan-providers",
            "inspan-server",
            "inspan-sessions",
            "inspan-temporal",
            "inspan-conformance-targets",
            "inspan-view",
        ],
        packages: &[
            "annotate-snippets",
            "base64",
            "clap",
            "clap_complete",
            "console",
            "futures",
            "rustix",
            "schemars",
            "serde",
            "serde_json",
            "tempfile",
            "tokio",
            "tokio-util",
            "toml",
            "tracing-subscriber",
        ],
    },
    Layer {
        package: "xtask",
        folder: "xtask",
        owns: "the project's own commands",
        must_not_know: "nothing is hidden from it, and nothing of ours may use it",
        knows: &[
            "inspan-conformance",
            "inspan-engine",
            "inspan-flow",
            "inspan-flow-test",
            "inspan-model-server",
            "inspan-protocol",
            "inspan-providers",
            "inspan-conformance-targets",
            "inspan-server",
            "inspan-sessions",
            "inspan-testkit",
        ],
        packages: &[
            "anyhow",
            "cargo_metadata",
            "clap",
            "futures",
            "rustix",
            "schemars",
            "serde",
            "serde-saphyr",
            "serde_json",
            "tempfile",
            "tokio",
            "tokio-tungstenite",
            "tokio-util",
            "walkdir",
        ],
    },
];

/// What any crate may use in its tests beside its own row, if the crate is above it in the table.
const TESTS: &[&str] = &[
    "anyhow",
    "async-stream",
    "flate2",
    "futures",
    "http-body-util",
    "inspan-engine",
    "inspan-model-server",
    "inspan-providers",
    "inspan-testkit",
    "insta",
    "jsonschema",
    "opentelemetry-proto",
    "proptest",
    "prost",
    "pty-process",
    "rcgen",
    "regex",
    "rustls",
    "schemars",
    "serde",
    "tempfile",
    "tokio",
    "tokio-tungstenite",
    "tokio-util",
    "tower",
    "vt100",
    "wiremock",
];

/// Holds `layers` against `packages` in both directions, and the manifests and sources against each other.
pub(crate) fn check(layers: &[Layer], packages: &[Package], workspace: &Workspace) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    for package in packages {
        match layers.iter().position(|layer| layer.package == package.name) {
            Some(row) => {
                findings.extend(check_edges(layers, row, package));
                findings.extend(check_sources(&layers[row], package, workspace));
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
fn check_sources(layer: &Layer, package: &Package, workspace: &Workspace) -> Vec<TidyFinding> {
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
    let sources = format!("{}/", layer.folder);
    for Dependency { name, in_code, .. } in &package.dependencies {
        let used = workspace
            .rust()
            .filter(|file| file.path.starts_with(&sources))
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
