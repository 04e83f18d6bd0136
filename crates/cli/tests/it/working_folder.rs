//! The folder that a node works in, on everything that starts a program.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
};

use serde_json::{Value, json};

use crate::program::{flow_folder, inspan, program, ran};

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

#[test]
fn a_relative_home_is_one_of_the_folder_that_the_program_began_in() {
    let flow = "flow: { name: f }\nnodes:\n  - { id: a, type: exec, input: { cwd: /tmp, argv: [sh, -c, 'echo hi > $INSPAN_ARTIFACTS/x; echo $INSPAN_ARTIFACTS'] } }\n";
    let folder = flow_folder(flow);
    let call =
        |arguments: &[&str]| ran(folder.path(), program(folder.path(), arguments).env("INSPAN_HOME", "own"));
    let run = call(&["run", "flow.yaml", "--json", "--session-id", "s"]);
    assert_eq!(run.code, Some(0), "{}", run.report());
    assert_eq!(run.json()["outputs"]["a"]["stdout"], json!("~/own/sessions.artifacts/s\n"));
    assert_eq!(call(&["show", "s", "--json"]).json()["state"], json!("success"));
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_text_are_used_or_refused_as_such() {
    let flow = "flow: { name: f }\nnodes: [{ id: a, type: echo, input: { text: hi } }]\n";
    let folder = flow_folder(flow);
    let odd = OsStr::from_bytes(b"odd\xff");
    let stored = ran(folder.path(), program(folder.path(), &["run", "flow.yaml", "--store"]).arg(odd));
    assert_eq!(stored.code, Some(0), "{}", stored.report());
    let within = folder.path().join(odd).with_extension("d");
    fs::create_dir(&within).unwrap();
    fs::write(within.join("flow.yaml"), flow).unwrap();
    let refused = ran(folder.path(), program(folder.path(), &["run", "flow.yaml"]).current_dir(&within));
    assert_eq!(refused.code, Some(1), "{}", refused.report());
    assert!(
        refused.stderr.contains("cannot be written as JSON: path contains invalid UTF-8"),
        "{}",
        refused.stderr
    );
    assert!(!refused.stderr.contains("accept-loss"), "{}", refused.stderr);
}
