//! The flows of registered folders: which files are flows, what they are called, and what they take.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inspan_flow::{NodeRegistry, compile, flow_name};
use inspan_sessions::RegisteredFlow;
use serde_json::{Value, json};

use crate::commands::{
    all_nodes,
    check::{is_flow, is_of_test, start_of},
    flow,
};
use crate::invocation::Invocation;

/// The most flows of one folder that are read.
const MOST: usize = 500;
/// Subfolders that hold no flows of the user.
const SKIPPED: [&str; 3] = ["node_modules", "target", "recordings"];

/// The flows of these folders, by their files.
pub(super) fn registered(folders: &[PathBuf], invocation: &Invocation) -> Vec<RegisteredFlow> {
    let nodes = all_nodes();
    let mut flows: Vec<RegisteredFlow> = Vec::new();
    let mut places = Vec::new();
    for folder in folders {
        for file in files(folder) {
            if flows.iter().all(|known| known.file != file) {
                flows.push(read(&file, &nodes, invocation));
                let within = if folder.is_file() { folder.parent() } else { Some(&**folder) };
                places.push(word(&place(within.unwrap_or(Path::new("")), &file)));
            }
        }
    }
    name_apart(&mut flows, places);
    flows
}

/// Gives each of several flows with one name the id of its place. None keeps the name, since a file that is added or
/// changed must not come to be what a caller means by it.
fn name_apart(flows: &mut [RegisteredFlow], places: Vec<String>) {
    let names: Vec<String> = flows.iter().map(|flow| flow.id.clone()).collect();
    let is_shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    let mut ids: HashSet<String> = names.iter().filter(|name| !is_shared(name)).cloned().collect();
    for ((flow, name), place) in flows.iter_mut().zip(&names).zip(places) {
        if is_shared(name) {
            flow.id = place;
            while !ids.insert(flow.id.clone()) {
                flow.id.push('_');
            }
            let message =
                format!("another flow is called `{}` too: the id of each is that of its file", flow.name);
            flow.diagnostics.push(json!({ "severity": "warning", "message": message }));
        }
    }
}

/// The flows in a folder, in `flows` within it, and the `flow.yaml` of each folder within it.
fn files(folder: &Path) -> Vec<PathBuf> {
    if folder.is_file() {
        return vec![folder.to_owned()];
    }
    let mut files = Vec::new();
    let mut folders = Vec::new();
    for path in listed(folder) {
        if path.is_dir() {
            folders.push(path);
        } else if is_flow(&path) {
            files.push(path);
        }
    }
    for inner in folders {
        if inner.file_name().is_some_and(|name| name == "flows") {
            files.extend(listed(&inner).into_iter().filter(|path| is_flow(path)));
        } else {
            files.extend(Some(flow::file(&inner)).filter(|file| is_flow(file)));
        }
    }
    files.truncate(MOST);
    files
}

/// What is in a folder, by name; hidden things are left out.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let shown = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".");
        !name.starts_with('.') && !is_of_test(name) && !SKIPPED.contains(&name)
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(shown).collect();
    paths.sort();
    paths
}

fn read(file: &Path, nodes: &NodeRegistry, invocation: &Invocation) -> RegisteredFlow {
    let broken = |diagnostics: Vec<Value>| {
        let name = start_of(file).ok().and_then(|text| flow_name(&text));
        let name = name.unwrap_or_else(|| place(file.parent().unwrap_or(Path::new("")), file));
        RegisteredFlow {
            id: word(&name),
            name,
            description: None,
            file: file.to_owned(),
            input: json!({ "type": "object" }),
            graph: None,
            diagnostics,
        }
    };
    let loaded = match flow::read_with_settings(file, invocation) {
        Ok(loaded) => loaded,
        Err(failure) => return broken(vec![json!({ "severity": "error", "message": failure.message })]),
    };
    match compile(&loaded, nodes) {
        Err(problems) => broken(json!(problems).as_array().cloned().unwrap_or_default()),
        Ok(compiled) => RegisteredFlow {
            id: word(&compiled.graph.name),
            name: compiled.graph.name.clone(),
            description: compiled.graph.description.clone(),
            file: file.to_owned(),
            input: compiled.graph.described_input(),
            diagnostics: json!(compiled.warnings).as_array().cloned().unwrap_or_default(),
            graph: Some(Arc::new(compiled.graph)),
        },
    }
}

/// The place of a file in a folder, without what every flow has.
fn place(folder: &Path, file: &Path) -> String {
    let inner = file.strip_prefix(folder).unwrap_or(file).with_extension("");
    let inner = inner.to_string_lossy().replace('\\', "/");
    match inner.strip_suffix("/flow") {
        Some(folder) => folder.to_owned(),
        None if inner == "flow" => file
            .parent()
            .and_then(Path::file_name)
            .map_or_else(|| inner.clone(), |name| name.to_string_lossy().into_owned()),
        None => inner,
    }
}

/// A name that can be typed as one word.
fn word(name: &str) -> String {
    let word: String = name.trim().chars().map(|c| if c.is_whitespace() { '-' } else { c }).collect();
    if word.is_empty() { "flow".to_owned() } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flows_of_a_folder_are_its_files_and_those_of_its_folders() {
        let folder = tempfile::tempdir().unwrap();
        let flow = "name: NAME\nnodes: []\n";
        for file in [
            "fix.yaml",
            "flow.yaml",
            "flow.test.yaml",
            "compose.yaml",
            ".hidden.yaml",
            "flows/a.yml",
            "flows/deep/b.yaml",
            "review/flow.yaml",
            "review/other.yaml",
            "node_modules/flow.yaml",
            "empty/x.txt",
        ] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = if file == "compose.yaml" { "services:\n  nodes: 1\n" } else { flow };
            std::fs::write(path, text).unwrap();
        }
        let found = files(folder.path());
        let found: Vec<_> = found
            .iter()
            .map(|file| file.strip_prefix(folder.path()).unwrap().display().to_string())
            .collect();
        assert_eq!(found, ["fix.yaml", "flow.yaml", "flows/a.yml", "review/flow.yaml"]);
        let names: Vec<_> = ["fix.yaml", "flows/a.yml", "review/flow.yaml"]
            .map(|file| place(Path::new("/x"), &Path::new("/x").join(file)))
            .to_vec();
        assert_eq!(names, ["fix", "flows/a", "review"]);
        assert_eq!([word(" Release notes "), word("")], ["Release-notes", "flow"]);
    }

    #[test]
    fn a_folder_with_many_other_files_has_its_flows() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..4 * MOST {
            std::fs::write(folder.path().join(format!("{number}.txt")), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("flows")).unwrap();
        let flows = ["a.yaml", "flows/b.yaml"].map(|file| folder.path().join(file));
        flows.iter().for_each(|flow| std::fs::write(flow, "nodes: []\n").unwrap());
        assert_eq!(files(folder.path()), flows);
    }

    #[test]
    fn no_flow_has_the_name_of_several_and_one_with_a_name_of_its_own_keeps_it() {
        let ids = |flows: &[(&str, &str)]| -> Vec<String> {
            let mut registered: Vec<RegisteredFlow> = Vec::new();
            for (name, _) in flows {
                registered.push(RegisteredFlow {
                    id: word(name),
                    name: (*name).to_owned(),
                    description: None,
                    file: PathBuf::new(),
                    input: Value::Null,
                    graph: None,
                    diagnostics: Vec::new(),
                });
            }
            name_apart(&mut registered, flows.iter().map(|(_, place)| (*place).to_owned()).collect());
            registered.into_iter().map(|flow| flow.id).collect()
        };
        let copied = [("deploy", "deploy-prod"), ("deploy", "deploy"), ("fix", "other")];
        assert_eq!(ids(&copied), ["deploy-prod", "deploy", "fix"]);
        assert_eq!(ids(&copied[1..]), ["deploy", "fix"]);
        assert_eq!(ids(&[("a", "x"), ("a", "y"), ("y", "z")]), ["x", "y_", "y"]);
        // The same file of two folders.
        assert_eq!(ids(&[("a", "x"), ("a", "x")]), ["x", "x_"]);
    }
}
