//! `inspan check FILE…`: every problem of flows, without running anything.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use inspan_flow::{Diagnostics, Loaded, NodeRegistry, check_packs, compile, load_pack, types_of};
use inspan_sessions::SessionErrorCode;
use serde_json::json;

use super::{all_nodes, flow};
use crate::{
    args::{CheckArgs, CheckFormat},
    diagnostics::{self, Checked},
    exit::Exit,
    failure::{Failure, with_end},
    invocation::Invocation,
    terminal,
};

pub(super) fn run(args: &CheckArgs, invocation: &Invocation) -> Result<Exit, Failure> {
    let format = invocation.format(args.format, CheckFormat::Json)?.unwrap_or(CheckFormat::Human);
    let nodes = all_nodes();
    let mut exit = Exit::Success;
    let mut files = Vec::new();
    for path in args.files.iter().flat_map(|path| flows(path)) {
        let (checked, valid) = check(&path, &nodes, format, invocation);
        exit = match &checked.found {
            Err(failure) => failure.exit,
            Ok(_) if !valid => Exit::Invalid,
            Ok(_) => exit,
        };
        files.push((checked, valid));
    }
    if format == CheckFormat::Json {
        let reports: Vec<_> = files.iter().map(|(file, valid)| report(file, *valid)).collect();
        let failure = (exit != Exit::Success).then(|| failure(exit, &files));
        invocation.json(&with_end(json!({ "files": reports }), failure.as_ref()));
        return Ok(exit);
    }
    let files: Vec<Checked> = files.into_iter().map(|(file, _)| file).collect();
    match format {
        CheckFormat::Sarif => invocation.json(&diagnostics::sarif(&files)),
        CheckFormat::Github => {
            terminal::data(&diagnostics::github(&files));
        }
        CheckFormat::Human | CheckFormat::Json => {}
    }
    Ok(exit)
}

/// Why the check fails: what keeps the first file from being read, or the flows that are invalid.
fn failure(exit: Exit, files: &[(Checked, bool)]) -> Failure {
    let unread = files.iter().find_map(|(file, _)| file.found.as_ref().err());
    let invalid = || {
        let names = files.iter().filter(|(_, valid)| !valid).map(|(file, _)| file.name.as_str());
        let message = format!("errors in {}", names.collect::<Vec<_>>().join(", "));
        Failure::usage(message).with_code(SessionErrorCode::InvalidFlow)
    };
    Failure { exit, ..unread.cloned().unwrap_or_else(invalid) }
}

/// Checks one flow; whether it can run. For people its problems are shown at once.
fn check(path: &Path, nodes: &NodeRegistry, format: CheckFormat, invocation: &Invocation) -> (Checked, bool) {
    let (name, file) = (path.display().to_string(), flow::file(path));
    let is_pack = is_manifest(&file);
    let loaded = match is_pack {
        true => load_pack(&file).map_err(|error| flow::refused(&error)),
        false => flow::read_with_settings(path, invocation),
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(failure) => {
            terminal::progress(&failure.text(invocation.terminal.stderr));
            return (Checked { name, file, found: Err(failure) }, false);
        }
    };
    let (problems, about) = match compile(&loaded, nodes) {
        _ if is_pack => pack(&loaded, nodes),
        Ok(compiled) => {
            let graph = &compiled.graph;
            let (nodes, edges) = (graph.flow().nodes.len(), graph.flow().edges.len());
            let sizes = format!("{}, {}", flow::of(nodes, "node"), flow::of(edges, "edge"));
            (compiled.warnings, Some(format!("flow `{}`, {sizes}", graph.name)))
        }
        Err(problems) => (problems, None),
    };
    if format == CheckFormat::Human {
        terminal::painted(&diagnostics::render(&problems, &loaded, invocation.terminal.stdout));
        terminal::painted_line(&format!("{name}: {}", verdict(&problems, about.as_deref())));
    }
    (Checked { name, file, found: Ok(problems) }, about.is_some())
}

/// The problems of a pack and, if it can be used, what it is.
fn pack(loaded: &Loaded, nodes: &NodeRegistry) -> (Diagnostics, Option<String>) {
    let problems = check_packs(loaded, nodes);
    let types = types_of(loaded, nodes).map(|types| types.names().count() - nodes.names().count());
    let types = types.ok().filter(|_| !problems.has_errors());
    (problems, types.map(|types| format!("a pack, {}", flow::of(types, "node type"))))
}

fn is_manifest(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "pack.yaml")
}

/// What a path names: a file, the `flow.yaml` or the `pack.yaml` of a folder or, without one, all flows in the folder.
fn flows(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() || flow::file(path).exists() {
        return vec![path.to_owned()];
    }
    let manifest = path.join("pack.yaml");
    if manifest.is_file() {
        return vec![manifest];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_flow(path)).collect();
    files.sort();
    if files.is_empty() { vec![path.to_owned()] } else { files }
}

/// Whether a file looks like a flow, whatever is wrong with it. One that cannot be read may be one.
pub(crate) fn is_flow(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
    let is_named_so = is_yaml && !is_of_test(&name) && !is_manifest(path);
    is_named_so && path.is_file() && start_of(path).map_or(true, |start| has_key_of_flow(&start))
}

/// The start of a file, in which the keys and the name of a flow are looked for.
pub(crate) fn start_of(path: &Path) -> io::Result<String> {
    let mut start = Vec::new();
    File::open(path)?.take(FLOW_START).read_to_end(&mut start)?;
    Ok(String::from_utf8_lossy(&start).into_owned())
}

/// Whether a file of this name has tests of a flow, or the prompts that they have seen.
pub(crate) fn is_of_test(name: &str) -> bool {
    [".test.yaml", ".test.yml", ".test.snap.yaml"].iter().any(|end| name.ends_with(end))
}

/// Whether a text has a key of a flow at its top level, as YAML or as JSON.
fn has_key_of_flow(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}');
    let is_json = text.trim_start().starts_with('{');
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => KEYS_OF_FLOW.iter().any(|key| value.get(key).is_some()),
        // JSON that is broken may be a flow if it has the key anywhere.
        Err(_) if is_json => KEYS_OF_FLOW.iter().any(|key| text.contains(&format!("\"{key}\""))),
        Err(_) => text.lines().any(|line| {
            let name = line.split_once(':').map(|(name, _)| name.trim_end().trim_matches(['"', '\'']));
            name.is_some_and(|name| KEYS_OF_FLOW.contains(&name))
        }),
    }
}

const KEYS_OF_FLOW: [&str; 3] = ["flow", "nodes", "edges"];

/// So much of a file is read to see whether it is a flow, in bytes.
const FLOW_START: u64 = 1 << 20;

fn report(file: &Checked, valid: bool) -> serde_json::Value {
    match &file.found {
        Ok(problems) => {
            let with_path = |problem| {
                let mut value = json!(problem);
                value["path"] = json!(file.path(problem));
                value
            };
            let diagnostics: Vec<_> = problems.iter().map(with_path).collect();
            json!({ "file": file.name, "valid": valid, "diagnostics": diagnostics })
        }
        Err(failure) => json!({ "file": file.name, "valid": false, "error": failure.json()["error"] }),
    }
}

fn verdict(problems: &Diagnostics, about: Option<&str>) -> String {
    match (about, problems.is_empty()) {
        (Some(about), true) => format!("ok ({about})"),
        (Some(about), false) => format!("ok with {} ({about})", flow::count(problems)),
        (None, _) => flow::count(problems),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_a_key_of_its_own_at_the_top_level() {
        let rows = [
            ("nodes: []\n", true),
            ("\"nodes\" : []\n", true),
            ("x:\n  nodes: []\n", false),
            ("{ \"name\": \"f\", \"nodes\": [] }", true),
            ("{ \"openapi\": \"3.0\", \"x\": { \"nodes\": [] } }", false),
            ("{ \"title\": \"nodes\" }", false),
            ("{ \"name\": \"f\" \"nodes\": [] }", true),
            ("[{ \"nodes\": [] }]", false),
        ];
        for (text, is_flow) in rows {
            assert_eq!(has_key_of_flow(text), is_flow, "{text}");
        }
    }
}
