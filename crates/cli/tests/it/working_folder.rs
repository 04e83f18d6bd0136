//! The folder that a node works in, on everything that starts a program.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

use inspan_testkit::write_program;
use serde_json::{Value, json};

use crate::program::{flow_folder, folder_with, inspan, program, ran, shell};

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

const PROGRAMS_AND_EXEC: [&str; 8] =
    ["exec", "claude", "codex", "opencode", "acp", "droid", "gemini", "qwen"];

/// What each program says: where it runs, and what it knows of git.
const SAYS: &str = "pwd -P; env | grep '^GIT_' | sort";

/// Every agent with this folder, and a program for each of them that writes down what it says.
fn flow(folder: &Path, cwd: &str) -> String {
    let agents = PROGRAMS.map(|(provider, option)| {
        let stub = folder.join(format!("{provider}.sh"));
        write_program(&stub, &format!("#!/bin/sh\n{{ {SAYS}; }} > \"$0.said\"\nexit 3\n")).unwrap();
        json!({
            "id": provider, "type": format!("{provider}.agent"),
            "input": { "prompt": "x", "options": { option: stub, "cwd": cwd } },
        })
    });
    let exec = json!({ "id": "exec", "type": "exec", "input": { "argv": ["sh", "-c", SAYS], "cwd": cwd } });
    let nodes: Vec<Value> = agents.into_iter().chain([exec]).collect();
    json!({ "flow": { "name": "folders", "policy": { "failFast": false } }, "nodes": nodes }).to_string()
}

#[test]
fn a_folder_is_applied_once_by_every_node_that_starts_a_program() {
    let folder = &folder_with(&[]);
    let work = folder.join("repo");
    fs::create_dir(&work).unwrap();
    let work = work.canonicalize().unwrap().display().to_string();
    for cwd in ["repo", "./repo", "../NAME/repo", &work] {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let flow = flow(folder, &cwd.replace("NAME", &name));
        fs::write(folder.join("flow.yaml"), flow).unwrap();
        let said = said(folder, &[]);
        assert_eq!(said, PROGRAMS_AND_EXEC.map(|name| (name, work.clone())), "`cwd: {cwd}`");
    }
}

/// What each program says in a run of the flow with these variables.
fn said(folder: &Path, variables: &[(&str, &str)]) -> [(&'static str, String); 8] {
    let run = ran(
        folder,
        program(folder, &["run", "flow.yaml", "--json", "--no-store"]).envs(variables.iter().copied()),
    );
    let result = run.json();
    PROGRAMS_AND_EXEC.map(|name| {
        let file = folder.join(format!("{name}.sh.said"));
        let said = match name {
            "exec" => result["outputs"][name]["stdout"]
                .as_str()
                .unwrap_or_default()
                .replace('~', &folder.display().to_string()),
            _ => fs::read_to_string(&file).unwrap_or_default(),
        };
        let _ = fs::remove_file(file);
        (name, said.trim().to_owned())
    })
}

#[test]
fn an_empty_folder_is_refused_by_every_node_that_starts_a_program() {
    let folder = &folder_with(&[]);
    fs::write(folder.join("flow.yaml"), flow(folder, "")).unwrap();
    let checked = inspan(folder, &["check", "flow.yaml"]).expect(2).stdout;
    let problems = checked.matches("`cwd`: the value is shorter than 1 character").count();
    assert_eq!(problems, PROGRAMS_AND_EXEC.len(), "{checked}");
    // So is what a template gives, before the program starts.
    fs::write(folder.join("flow.yaml"), flow(folder, "{% if flow.name == 'x' %}repo{% endif %}")).unwrap();
    assert_eq!(said(folder, &[]), PROGRAMS_AND_EXEC.map(|name| (name, String::new())));
}

#[test]
fn no_program_is_told_of_the_repository_whose_hook_runs_the_flow() {
    let folder = &folder_with(&[]);
    let work = folder.canonicalize().unwrap().join("repo");
    fs::create_dir(&work).unwrap();
    let mut flow: Value = serde_json::from_str(&flow(folder, "repo")).unwrap();
    flow["nodes"][PROGRAMS.len()]["input"]["env"] = json!({ "GIT_DIR": "own" });
    fs::write(folder.join("flow.yaml"), flow.to_string()).unwrap();
    // As git gives them to a hook. The others are what the user has set.
    let variables = [
        ("GIT_DIR", "/x/.git"),
        ("GIT_INDEX_FILE", "/x/.git/index"),
        ("GIT_WORK_TREE", "/x"),
        ("GIT_AUTHOR_NAME", "ox"),
        ("GIT_CONFIG_COUNT", "0"),
    ];
    let expected = PROGRAMS_AND_EXEC.map(|name| {
        let own = if name == "exec" { "\nGIT_DIR=own" } else { "" };
        (name, format!("{}\nGIT_AUTHOR_NAME=ox\nGIT_CONFIG_COUNT=0{own}", work.display()))
    });
    assert_eq!(said(folder, &variables), expected);
}

#[test]
fn a_relative_home_or_store_is_one_of_the_folder_that_the_program_began_in() {
    let flow = "flow: { name: f }\nnodes:\n  - { id: a, type: exec, input: { cwd: /tmp, argv: [sh, -c, 'echo hi > $INSPAN_ARTIFACTS/x; echo $INSPAN_ARTIFACTS'] } }\n";
    let folder = &flow_folder(flow);
    let call = |arguments: &[&str]| ran(folder, program(folder, arguments).env("INSPAN_HOME", "own"));
    let run = call(&["run", "flow.yaml", "--json", "--session-id", "s"]).expect(0);
    assert_eq!(run.json()["outputs"]["a"]["stdout"], json!("~/own/sessions.artifacts/s\n"));
    assert_eq!(call(&["show", "s", "--json"]).json()["state"], json!("success"));
    let run = call(&["run", "flow.yaml", "--json", "--session-id", "s", "--store", "own/file.db"]);
    assert_eq!(run.json()["outputs"]["a"]["stdout"], json!("~/own/file.artifacts/s\n"));
}

#[test]
fn nothing_starts_where_it_would_work_elsewhere_or_end_at_once() {
    let flow = "flow: { name: f }\nnodes: [{ id: a, type: exec, input: { argv: [pwd] } }]\n";
    let folder = flow_folder(flow);
    // A worktree that was removed while a shell is in it.
    let gone = "mkdir gone && cd gone && rmdir ../gone && exec $0 run ../flow.yaml --no-store";
    ran(&folder, &mut shell(&folder, gone)).refused("the working folder no longer exists");
    // A node of a session, where nothing is done before it is refused.
    let asks = "flow: { name: f }\nnodes: [{ id: a, type: human.input, input: { prompt: Go? } }]\n";
    fs::write(folder.join("asks.yaml"), asks).unwrap();
    inspan(&folder, &["run", "asks.yaml", "--session-id", "asks", "--no-input"]).expect(3);
    let calls =
        [&["run", "--record", "tape"][..], &["reply", "asks", "yes"], &["fork", "asks"], &["resume", "asks"]];
    for arguments in calls {
        let mut call = program(&folder, &[arguments, &["--detach"]].concat());
        ran(&folder, call.env("INSPAN_SESSION", "s"))
            .refused("`--detach` is not possible within session `s`: what a node starts ends with the node");
    }
    assert!(!folder.join("tape").exists());
    inspan(&folder, &["reply", "asks", "yes"]).expect(0);
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_text_are_used_or_refused_as_such() {
    let flow = "flow: { name: f }\nnodes: [{ id: a, type: echo, input: { text: hi } }]\n";
    let folder = &flow_folder(flow);
    let odd = OsStr::from_bytes(b"odd\xff");
    ran(folder, program(folder, &["run", "flow.yaml", "--store"]).arg(odd)).expect(0);
    let within = folder.join(odd).with_extension("d");
    fs::create_dir(&within).unwrap();
    fs::write(within.join("flow.yaml"), flow).unwrap();
    let within_run = |arguments: &[&str]| {
        let mut run = program(folder, &["run"]);
        ran(folder, run.current_dir(&within).args(arguments))
    };
    let says = "error: the name of the folder ~/odd\u{fffd}.d is not UTF-8: its sessions cannot be stored; nothing was \
                started\n  help: rename the folder, or use `--no-store`\n";
    // The last one works in the folder, and its flow is elsewhere.
    for arguments in [&["flow.yaml"][..], &["flow.yaml", "--detach"], &["../flow.yaml"]] {
        assert_eq!(within_run(arguments).expect(2).stderr, says);
    }
    assert_eq!(within_run(&["flow.yaml", "--no-store"]).expect(0).stdout, "hi\n");
}
