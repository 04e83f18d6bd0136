//! One agent without a flow, from a shell: `inspan agent` and `inspan chat`.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::Command,
};

use serde_json::{Value, json};

use crate::program::{Ran, ended, folder_with, inspan, inspan_reading, program, snapshot};

/// Works, uses a tool, and says what it cost.
const WORKS: &str = "turns=[[{\"text\":\"let me look\"},{\"tool\":{\"name\":\"Bash\",\"input\":{\"command\":\"ls\"},\
                     \"result\":\"out\",\"ask\":true}},{\"text\":\"all is well\"},\
                     {\"usage\":{\"tokens\":{\"inputTokens\":3},\"costUsd\":0.5}}]]";
const FAILS: &str =
    "turns=[[{\"text\":\"so far\"},{\"error\":{\"code\":\"OVERLOADED\",\"message\":\"come back later\"}}]]";
const HANGS: &str = "turns=[[{\"text\":\"so far \"},\"hang\"]]";

fn check(name: &str, stdin: &str, arguments: &[&str]) {
    let folder = &folder_with(&[
        ("newer.json", "{\"version\": 2}"),
        ("schema.json", "{\"type\": \"object\", \"required\": [\"n\"]}"),
        ("broken.json", "{"),
        ("notes.md", "yokes and reins"),
    ]);
    let ran = inspan_reading(folder, stdin, arguments);
    snapshot!(name, arguments, ran.report());
}

#[test]
fn one_answer() {
    check("agent", "", &["agent", "hello big world", "--provider", "echo"]);
    check("agent-json", "", &["agent", "hello", "-p", "echo", "-m", "some-model", "--json"]);
    check("agent-stdin", "from\nstdin", &["agent", "-", "-p", "echo"]);
    check("agent-tools", "", &["agent", "x", "-p", "scripted", "--option", WORKS]);
    check("agent-help", "", &["agent", "--help"]);
}

#[test]
fn an_answer_of_a_schema_and_files_with_the_prompt() {
    const TWICE: &str = "turns=[[{\"text\":\"first\"},{\"structured\":{\"m\":1}}],[{\"text\":\"then\"},{\"structured\":{\"n\":[1]}}]]";
    check(
        "agent-schema",
        "",
        &["agent", "x", "-p", "scripted", "--schema", "schema.json", "--option", TWICE],
    );
    check("agent-schema-broken", "", &["agent", "x", "-p", "scripted", "--schema", "broken.json"]);
    check("agent-attach-none", "", &["agent", "x", "-p", "anthropic", "--attach", "none.png"]);
    check("agent-attach", "", &["agent", "x", "-p", "echo", "--attach", "notes.md"]);
}

#[test]
fn answers_that_do_not_come() {
    check("agent-no-provider", "", &["agent", "x", "-p", "ecko"]);
    check("agent-no-option", "", &["agent", "x", "-p", "echo", "--thinking", "high"]);
    check("agent-empty", " \n", &["agent", "-", "-p", "echo"]);
    check("agent-failed", "", &["agent", "x", "-p", "scripted", "--option", FAILS]);
    check("agent-failed-json", "", &["agent", "x", "-p", "scripted", "--option", FAILS, "--json"]);
    check("agent-late", "", &["agent", "x", "-p", "scripted", "--option", HANGS, "--timeout", "1s"]);
    check("agent-no-program", "", &["agent", "x", "-p", "claude"]);
}

#[test]
fn a_conversation() {
    check("chat", "one\n\ntwo\n/quit\nthree\n", &["chat", "-p", "echo"]);
    check("chat-failed", "one\ntwo\n", &["chat", "-p", "scripted", "--option", FAILS]);
    check("chat-no-provider", "", &["chat"]);
    check("chat-no-file", "", &["chat", "--resume", "none.json"]);
    check("chat-newer", "", &["chat", "--resume", "newer.json", "-p", "echo"]);
    check("chat-nowhere", "x\n", &["chat", "-p", "echo", "--export", "no/such/folder.json"]);
}

#[test]
fn a_conversation_that_is_exported_continues() {
    let folder = &folder_with(&[]);
    fs::write(folder.join("talk.json.new"), "precious").unwrap();
    let first = inspan_reading(folder, "one\n", &["chat", "-p", "echo", "-m", "m", "--export", "talk.json"]);
    assert_eq!((first.code, first.stdout.as_str()), (Some(0), "one\n"));
    assert_eq!(fs::read_to_string(folder.join("talk.json.new")).unwrap(), "precious");
    fs::remove_file(folder.join("talk.json.new")).unwrap();
    let second = inspan_reading(
        folder,
        "two\n",
        &["chat", "--resume", "talk.json", "--export", "talk.json", "--json"],
    );
    let answer = second.json();
    let facts = ["text", "sessionId", "model", "outcome"].map(|key| answer[key].clone());
    assert_eq!(facts, ["two", "echo-2", "m", "success"].map(|word| json!(word)));
    let state: Value = serde_json::from_str(&fs::read_to_string(folder.join("talk.json")).unwrap()).unwrap();
    let said: Vec<&str> =
        state["messages"].as_array().unwrap().iter().map(|one| one["role"].as_str().unwrap()).collect();
    assert_eq!((said, &state["model"]), (vec!["user", "assistant", "user", "assistant"], &json!("m")));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "nothing is left beside the file");
    let mode = fs::metadata(folder.join("talk.json")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    // It continues and is not stored any more.
    inspan_reading(folder, "three\n", &["chat", "--resume", "talk.json", "-p", "echo"])
        .says("echo echo-3, 3 turns");
}

#[test]
fn a_long_line_is_one_prompt() {
    let line = "é".repeat(600_000);
    let ran = inspan_reading(&folder_with(&[]), &format!("{line}\ntwo\n"), &["chat", "-p", "echo"]);
    let ran = ran.says("2 turns");
    assert!(ran.stdout == format!("{line}\ntwo\n"), "{} bytes", ran.stdout.len());
}

#[test]
fn an_export_writes_through_a_link_and_replaces_no_pipe() {
    let folder = &folder_with(&[]);
    let path = |name: &str| folder.join(name);
    let chat =
        |said: &str, file: &str| inspan_reading(folder, said, &["chat", "-p", "echo", "--export", file]);
    fs::create_dir(path("synced")).unwrap();
    std::os::unix::fs::symlink("synced/talk.json", path("talk.json")).unwrap();
    // First it leads to nothing, then to a file.
    for _ in 0..2 {
        assert_eq!(chat("one\n", "talk.json").code, Some(0));
        assert!(path("talk.json").is_symlink());
        let state = fs::read_to_string(path("synced/talk.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&state).unwrap()["provider"], json!("echo"));
        assert_eq!(fs::read_dir(path("synced")).unwrap().count(), 1, "nothing is left beside the file");
    }
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    let refused = chat("", "pipe");
    let says = "error: cannot save the conversation to pipe: it is not a file\n";
    assert_eq!((refused.code, refused.stderr.as_str()), (Some(2), says));
    assert!(!path("pipe").metadata().unwrap().is_file());
}

/// Starts the program, waits until the agent answers, sends a signal, and returns the whole result.
fn interrupted(arguments: &[&str], signal: &str) -> Ran {
    let folder = &folder_with(&[]);
    let mut child = program(folder, arguments).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = Vec::new();
    stdout.read_until(b' ', &mut text).unwrap();
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    stdout.read_to_end(&mut text).unwrap();
    Ran { stdout: String::from_utf8(text).unwrap(), ..ended(folder, child) }
}

#[test]
fn a_signal_aborts_an_answer_and_what_was_said_stays() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let ran = interrupted(&["agent", "x", "-p", "scripted", "--option", HANGS], signal);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), "so far \n"));
        assert_eq!(ran.stderr, "error: scripted: it was cancelled before it had answered [ABORTED]\n");
    }
}

#[test]
fn the_helps_of_the_verbs_name_their_options() {
    let folder = &folder_with(&[]);
    let help = inspan(folder, &["chat", "--help"]).stdout;
    for option in ["--provider", "--resume", "--export", "--model", "--no-input", "Ctrl-C"] {
        assert!(help.contains(option), "{option} in {help}");
    }
}
