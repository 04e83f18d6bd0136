//! Corrupted copies of every flow, log, recording and scenario of the fixtures: no parser panics, and what can
//! still be read is written as it was read. The decoders of the providers are fuzzed by their replay tests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use inspan_engine::{ProviderRegistry, Replayer};
use inspan_flow::{Loaded, builtin_nodes, compile};
use inspan_model_server::Scenario;
use inspan_protocol::Envelope;
use inspan_testkit::{fixture_dir, fuzz};

/// All files below a folder with this name or ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found
}

/// Fuzzes with each of these files; text that is not UTF-8 is replaced.
fn fuzz_text(folder: &str, ending: &str, mut parse: impl FnMut(&str)) {
    let files = files(&fixture_dir().join(folder), ending);
    assert!(!files.is_empty(), "no file of `{folder}` ends with `{ending}`");
    for file in files {
        fuzz(&fs::read(file).unwrap(), |bytes| parse(&String::from_utf8_lossy(bytes)));
    }
}

#[test]
fn flows_with_their_expressions_and_templates() {
    let mut providers = ProviderRegistry::new();
    for provider in inspan_providers::builtin() {
        providers.register(provider);
    }
    let nodes = builtin_nodes(&providers);
    for folder in ["flows", "compile"] {
        fuzz_text(folder, "flow.yaml", |text| {
            let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
            if let Err(problems) = compile(&loaded, &nodes) {
                assert!(!problems.to_string().is_empty());
            }
        });
    }
}

#[test]
fn lines_of_logs() {
    fuzz_text("flows", "events.jsonl", |text| {
        for line in text.lines() {
            let Ok(envelope) = serde_json::from_str::<Envelope>(line) else { continue };
            let written = serde_json::to_string(&envelope).unwrap();
            assert_eq!(serde_json::from_str::<Envelope>(&written).unwrap(), envelope);
        }
    });
}

#[test]
fn recordings() {
    for file in files(&fixture_dir().join("flows"), ".json") {
        if file.parent().is_some_and(|folder| folder.ends_with("recordings")) {
            let folder = tempfile::tempdir().unwrap();
            fuzz(&fs::read(&file).unwrap(), |bytes| {
                fs::write(folder.path().join(file.file_name().unwrap()), bytes).unwrap();
                drop(Replayer::load(folder.path()));
            });
        }
    }
}

#[test]
fn scenarios() {
    fuzz_text("scenarios", ".json", |text| drop(Scenario::from_json(text)));
}
