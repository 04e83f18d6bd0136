//! The server as a program: what it prints, what it serves, when and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use inspan_testkit::fixture_dir;

fn program(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_scripted-model-server"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

#[test]
fn it_prints_its_port_serves_and_ends_with_its_input() {
    let scenario = fixture_dir().join("scenarios/http-529.json");
    let mut child = program(&["--scenario", &scenario.display().to_string(), "--until-stdin-closes"]);
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let printed: serde_json::Value = serde_json::from_str(&line).unwrap();
    let port = u16::try_from(printed["port"].as_u64().unwrap()).unwrap();

    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let body = r#"{"model":"m","messages":[],"tools":[{"name":"Bash"}]}"#;
    let length = body.len();
    write!(
        stream,
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer.lines().next(), Some("HTTP/1.1 529 <none>"));

    drop(child.stdin.take());
    let end = child.wait_with_output().unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((end.status.code(), rest, end.stderr), (Some(0), String::new(), Vec::new()));
}

#[test]
fn wrong_arguments_and_scenarios_end_with_code_2_and_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.json");
    std::fs::write(&bad, r#"{"turns":[{"times":1}]}"#).unwrap();
    let (bad, missing) = (bad.display().to_string(), folder.path().join("missing").display().to_string());
    let rows = [
        (vec![], "usage: scripted-model-server --scenario FILE [--until-stdin-closes]".to_owned()),
        (vec!["--port"], "unknown argument --port".to_owned()),
        (vec!["--scenario"], "--scenario needs a file".to_owned()),
        (vec!["--scenario", &bad], "turn 0 of the scenario: `times` needs `when`".to_owned()),
        (
            vec!["--scenario", &missing],
            format!("scenario {missing} cannot be read: No such file or directory (os error 2)"),
        ),
    ];
    for (args, expected) in rows {
        let end = program(&args).wait_with_output().unwrap();
        let stderr = String::from_utf8(end.stderr).unwrap();
        let seen = (end.status.code(), stderr.lines().next().unwrap_or_default().to_owned());
        assert_eq!(seen, (Some(2), expected), "{args:?}");
    }
}
