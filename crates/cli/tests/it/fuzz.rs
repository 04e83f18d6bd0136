//! Corrupted copies of every flow, log, recording and scenario of the fixtures: no parser panics, and what can
//! still be read is written as it was read. The decoders of the providers are fuzzed by their replay tests.

use std::{collections::BTreeMap, fs, path::PathBuf};

use inspan_engine::Replayer;
use inspan_flow::{Loaded, builtin_nodes, compile};
use inspan_model_server::Scenario;
use inspan_protocol::Envelope;
use inspan_testkit::{fixture_dir, fuzz};

use crate::program::{folder_with, paths_below};

/// The fixtures of a folder whose names have this ending.
fn fixtures(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = paths_below(&fixture_dir().join(folder));
    found.retain(|path| path.to_string_lossy().ends_with(ending));
    found
}

/// Fuzzes with each of these files; text that is not UTF-8 is replaced.
fn fuzz_text(folder: &str, ending: &str, mut parse: impl FnMut(&str)) {
    let files = fixtures(folder, ending);
    assert!(!files.is_empty(), "no file of `{folder}` ends with `{ending}`");
    for file in files {
        fuzz(&fs::read(file).unwrap(), |bytes| parse(&String::from_utf8_lossy(bytes)));
    }
}

#[test]
fn flows_with_their_expressions_and_templates() {
    let nodes = builtin_nodes(&inspan_providers::builtin().into_iter().collect());
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
    for file in fixtures("flows", ".json") {
        if file.parent().is_some_and(|folder| folder.ends_with("recordings")) {
            let folder = &folder_with(&[]);
            fuzz(&fs::read(&file).unwrap(), |bytes| {
                fs::write(folder.join(file.file_name().unwrap()), bytes).unwrap();
                drop(Replayer::load(folder));
            });
        }
    }
}

#[test]
fn scenarios() {
    fuzz_text("scenarios", ".json", |text| drop(Scenario::from_json(text)));
}
