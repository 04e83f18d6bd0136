//! The runtime is killed while it works, and nothing of it may be left within a second: whatever its programs
//! started, at any depth.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use inspan_testkit::Stopwatch;

use crate::{
    processes::{Sweep, left, mark, running, signal, until},
    program::{folder_with, program},
};

/// What may be left after this is too much.
const LIMIT: Duration = Duration::from_secs(1);

/// A node whose agent is asked anything.
const AGENT: &str = "  - { id: a, type: claude.agent, input: { prompt: go } }\n";

/// Tools as agents start them: in the background, ignoring SIGHUP, in other process sessions, forked twice, without
/// the environment by which they could be found, and all of it at once. Then the program itself ignores signals.
const TREE: &str = "
sleep MARK &
nohup sleep MARK >/dev/null 2>&1 &
setsid sleep MARK &
(setsid sh -c 'sleep MARK & exit' &)
(env -i /usr/bin/setsid /bin/sh -c '(/usr/bin/env -i /bin/sleep MARK &) ; exit' </dev/null >/dev/null 2>&1 &)
trap '' TERM INT HUP QUIT
sleep MARK
sleep MARK
";
/// How many of the tree sleep at the same time.
const SLEEPERS: usize = 6;

/// A program in place of Claude Code: answers the greeting, and has a tool at work when it is asked anything.
const CLAUDE: &str = r#"#!/bin/sh
read -r line
printf '%s\n' '{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{}}}'
read -r line
"#;

/// A node that runs a script in a shell.
fn exec(id: &str, script: &str, policy: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!("  - {{ id: {id}, type: exec, policy: {{ {policy} }}, input: {{ argv: [sh, -c, {script}] }} }}\n")
}

/// Puts a program named `claude` into a folder that has this tree at work.
fn claude(folder: &Path, tree: &str) {
    // A file that is open for writing anywhere cannot be run, and whatever another test starts meanwhile would hold
    // ours open for a moment. So a separate process writes it.
    let script = format!("{CLAUDE}{tree}");
    let write = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > claude; chmod 755 claude", "sh", &script])
        .current_dir(folder)
        .status();
    assert!(write.unwrap().success());
}

/// Starts a flow of these nodes.
fn start(folder: &Path, nodes: &str) -> Child {
    fs::write(folder.join("flow.yaml"), format!("flow: {{ name: tree }}\nnodes:\n{nodes}")).unwrap();
    let mut command = program(folder, &["run", "flow.yaml"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills the runtime once all processes of its tree run `sleep`, and returns how long it took until nothing
/// was left.
fn until_none_is_left(mut runtime: Child, folder: &Path, mark: &str) -> Duration {
    // What started the tree does not always name the mark, but then the folder.
    let folder = folder.display().to_string();
    let _sweeps = (Sweep(mark), Sweep(&folder));
    let sleeping = format!("sleep {mark}");
    until("the whole tree sleeps", || {
        running(mark).iter().filter(|line| line.trim_start_matches("/bin/") == sleeping).count() == SLEEPERS
    });
    let watch = Stopwatch::start();
    signal(&runtime, "KILL");
    let all = [left(mark, LIMIT), left(&folder, LIMIT)].concat();
    let took = watch.elapsed();
    runtime.wait().unwrap();
    assert_eq!(all, Vec::<String>::new(), "left behind after {took:?}");
    assert!(took < LIMIT, "{took:?}");
    took
}

#[test]
fn no_tool_of_a_program_outlives_the_runtime() {
    let folder = &folder_with(&[]);
    let mark = &mark(11);
    let runtime = start(folder, &exec("a", &TREE.replace("MARK", mark), ""));
    let took = until_none_is_left(runtime, folder, mark);
    println!("exec: {SLEEPERS} sleepers and their shells gone {} ms after the runtime", took.as_millis());
}

#[test]
fn no_tool_of_an_agent_outlives_the_runtime() {
    let folder = &folder_with(&[]);
    let mark = &mark(12);
    claude(folder, &TREE.replace("MARK", mark));
    let runtime = start(folder, AGENT);
    let took = until_none_is_left(runtime, folder, mark);
    println!(
        "claude.agent: {SLEEPERS} sleepers and their shells gone {} ms after the runtime",
        took.as_millis()
    );
}

#[test]
fn no_tool_of_a_runtime_within_outlives_the_one_without() {
    let folder = &folder_with(&[]);
    let mark = &mark(13);
    let inner = format!("flow: {{ name: inner }}\nnodes:\n{}", exec("b", &TREE.replace("MARK", mark), ""));
    fs::write(folder.join("inner.yaml"), inner).unwrap();
    let script = format!("{} run inner.yaml; :", env!("CARGO_BIN_EXE_inspan"));
    let runtime = start(folder, &exec("a", &script, ""));
    let took = until_none_is_left(runtime, folder, mark);
    println!(
        "exec in exec: {SLEEPERS} sleepers and their shells gone {} ms after the runtime",
        took.as_millis()
    );
}

#[test]
fn no_tool_outlives_a_node_whose_time_is_up() {
    let folder = &folder_with(&[]);
    let mark = &mark(14);
    let _sweep = Sweep(mark);
    claude(folder, &TREE.replace("MARK", mark));
    let policy = "timeout: 1s";
    let agent = AGENT.replace("input:", &format!("policy: {{ {policy} }}, input:"));
    let nodes = exec("b", &TREE.replace("MARK", mark), policy) + &agent;
    let mut runtime = start(folder, &nodes);
    let sleeping = format!("sleep {mark}");
    until("both trees sleep", || {
        running(mark).iter().filter(|line| line.trim_start_matches("/bin/") == sleeping).count()
            == 2 * SLEEPERS
    });
    // Neither listens to SIGTERM, which comes first.
    let code = runtime.wait().unwrap().code();
    assert_eq!((code, left(mark, Duration::ZERO)), (Some(1), Vec::new()));
}

/// The guard of a program is killed, by whatever ends processes when memory is short: the program ends with it and the
/// attempt has failed, while everything else continues.
#[test]
fn a_program_whose_guard_is_killed_has_failed() {
    let folder = &folder_with(&[]);
    let mark = mark(15);
    let _sweep = Sweep(&mark);
    let killed = |file: &str| format!("echo x >> {file}; kill -s KILL $PPID; sleep {mark}");
    claude(folder, &killed("asked"));
    let nodes = [
        exec("once", &killed("tries"), "continueOnError: true"),
        exec(
            "twice",
            &format!("[ $INSPAN_ATTEMPT = 2 ] || {{ {}; }}; echo done", killed("retries")),
            "retry: { maxAttempts: 2, backoff: 10ms }",
        ),
        AGENT.replace("input:", "policy: { continueOnError: true }, input:"),
        exec("other", "echo x >> others", ""),
    ];
    let mut runtime = start(folder, &nodes.concat());
    assert!(runtime.wait().unwrap().success());
    assert_eq!(left(&mark, LIMIT), Vec::<String>::new());
    let lines = |file: &str| fs::read_to_string(folder.join(file)).unwrap().lines().count();
    assert_eq!(["tries", "retries", "asked", "others"].map(lines), [1; 4]);
    let logs = String::from_utf8(program(folder, &["logs", "@last"]).output().unwrap().stdout).unwrap();
    let why = "was killed, and the program with it";
    assert_eq!(logs.matches(why).count(), 3, "{logs}");
}
