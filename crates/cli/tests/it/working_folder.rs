//! The folder that a node works in, on everything that starts a program.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};

use crate::program::inspan;

/// Who starts a program, and the option that names it.
const PROGRAMS: [(&str, &str); 7] = [
    ("claude", "executable"),
    ("codex", "executable"),
    ("opencode", "executable"),
    ("acp", "command"),
    ("droid", "command"),
    ("gemini", "command"),
    ("qwen", "command"),
];

/// Every agent with this folder, and a program for each of them that writes down where it runs.
fn flow(folder: &Path, cwd: &str) -> String {
    let agents = PROGRAMS.map(|(provider, option)| {
        let stub = folder.join(format!("{provider}.sh"));
        fs::write(&stub, "#!/bin/sh\npwd -P > \"$0.cwd\"\nexit 3\n").unwrap();
        fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();
        json!({
            "id": provider, "type": format!("{provider}.agent"),
            "input": { "prompt": "x", "options": { option: stub, "cwd": cwd } },
        })
    });
    let exec = json!({ "id": "exec", "type": "exec", "input": { "argv": ["pwd", "-P"], "cwd": cwd } });
    let nodes: Vec<Value> = agents.into_iter().chain([exec]).collect();
    json!({ "flow": { "name": "folders", "policy": { "failFast": false } }, "nodes": nodes }).to_string()
}

#[test]
fn a_folder_is_applied_once_by_every_node_that_starts_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("repo");
    fs::create_dir(&work).unwrap();
    let work = work.canonicalize().unwrap().display().to_string();
    for cwd in ["repo", "./repo", "../NAME/repo", &work] {
        let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
        let flow = flow(folder.path(), &cwd.replace("NAME", &name));
        fs::write(folder.path().join("flow.yaml"), flow).unwrap();
        let run = inspan(folder.path(), &["run", "flow.yaml", "--json", "--no-store"]);
        let result = run.json();
        let mut seen = vec![(
            "exec",
            result["outputs"]["exec"]["stdout"]
                .as_str()
                .unwrap_or_default()
                .trim()
                .replace('~', &folder.path().display().to_string()),
        )];
        for (provider, _) in PROGRAMS {
            let file = folder.path().join(format!("{provider}.sh.cwd"));
            let place = fs::read_to_string(&file).unwrap_or_default();
            let _ = fs::remove_file(file);
            seen.push((provider, place.trim().to_owned()));
        }
        let expected: Vec<_> =
            [("exec", "")].into_iter().chain(PROGRAMS).map(|(name, _)| (name, work.clone())).collect();
        assert_eq!(seen, expected, "`cwd: {cwd}`: {}{}", run.stdout, run.stderr);
    }
}
