//! Programs that end badly, through the whole runtime. They run in real time, each as short as possible.

use std::time::Duration;

use inspan_engine::{Filter, NodeCalls, Recorder, Replayer};
use inspan_protocol::{AgentError, ErrorCode, Event};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::testing::runner;

const PATH: (&str, &str) = ("PATH", "/usr/local/bin:/usr/bin:/bin");

/// What a node `a` gives that runs a script in a shell, and how long it takes.
async fn shell(script: &str, policy: &Value) -> (Result<Value, AgentError>, Duration) {
    exec(json!({ "argv": ["sh", "-c", script], "stdin": "x".repeat(1 << 20) }), policy).await
}

async fn exec(input: Value, policy: &Value) -> (Result<Value, AgentError>, Duration) {
    let node = json!({ "id": "a", "type": "exec", "input": input, "policy": policy });
    let flow = json!({ "flow": { "name": "exec" }, "nodes": [node] });
    let folder = tempfile::tempdir().unwrap();
    let runner = runner(&flow, [PATH]).cwd(folder.path()).build();
    let began = Instant::now();
    let result = runner.run(Map::new()).await.unwrap();
    let took = began.elapsed();
    let outputs = serde_json::to_value(&result.outputs).unwrap();
    let error = result.nodes.get("a").and_then(|report| report.error);
    (outputs.get("a").cloned().ok_or_else(|| error.unwrap()), took)
}

/// Processes with this word among their arguments.
#[cfg(target_os = "linux")]
fn running(word: &str) -> usize {
    let cmdline =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read(entry.ok()?.path().join("cmdline")).ok();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(cmdline);
    all.filter(|line| line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())).count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_program_is_over_when_it_ends_whoever_holds_its_streams() {
    let word = format!("86401.{:07}", std::process::id());
    let (output, took) = shell(&format!("sleep {word} & echo said"), &json!({})).await;
    assert_eq!(output.unwrap()["stdout"], "said\n");
    assert!(took < Duration::from_secs(5), "{took:?}");
    let until = Instant::now() + Duration::from_secs(5);
    while running(&word) > 0 {
        assert!(Instant::now() < until, "what it left behind still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn no_part_of_a_secret_is_left_where_an_output_is_cut_or_taken_apart() {
    let token = "Lq7vZ2mXw9RtB4kN8pYc3HsD6gJf1QaE5uWo";
    let key = "first-line-Aq83nDk2\nsecond-line-Zm39Lq0x";
    let policy = &json!({ "retry": { "maxAttempts": 1 } });
    let run = async |script: &str, more: Value| {
        let mut input = json!({
            "argv": ["sh", "-c", script],
            "env": { "LONG_TOKEN": token, "SERVICE_KEY": key, "PATH": PATH.1 },
        });
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::to_string(&match exec(input, policy).await.0 {
            Ok(output) => output,
            Err(error) => json!(error),
        })
        .unwrap()
    };
    let cut = "printf 'AAAA%s' \"$LONG_TOKEN\"; head -c 8180 /dev/zero | tr '\\0' x";
    let failed = run(&format!("{cut}; exit 3"), json!({})).await;
    assert!(failed.contains("xxx") && !failed.contains("uWo"), "{failed}");
    let filed = run(cut, json!({ "stdoutFile": "out" })).await;
    assert!(filed.contains("xxx") && !filed.contains("uWo"), "{filed}");
    let lines = run("printf '%s\\n' \"$SERVICE_KEY\" end", json!({ "parse": "lines" })).await;
    assert!(lines.contains("end") && !lines.contains("Zm39Lq0x"), "{lines}");
    let said = run("printf '%s\\n' \"$SERVICE_KEY\" >&2; exit 1", json!({})).await;
    assert!(said.contains("redacted") && !said.contains("Zm39Lq0x"), "{said}");
}

#[tokio::test]
async fn json_may_begin_with_a_byte_order_mark() {
    let script = "printf '\\357\\273\\277[1]'";
    let (output, _) = exec(json!({ "argv": ["sh", "-c", script], "parse": "json" }), &json!({})).await;
    assert_eq!(output.unwrap()["value"], json!([1]));
}

#[tokio::test]
async fn output_just_after_the_end_is_received() {
    let (output, _) = shell("(sleep 0.05; echo last) & echo first", &json!({})).await;
    assert_eq!(output.unwrap()["stdout"], "first\nlast\n");
}

#[tokio::test]
async fn a_flood_ends_the_node_and_not_the_memory() {
    for (stream, what) in [("", "output"), (" >&2", "error output")] {
        let (output, took) =
            shell(&format!("trap '' PIPE; while :; do cat /dev/zero{stream}; done"), &json!({})).await;
        let error = output.unwrap_err();
        let expected = (ErrorCode::Process, format!("the {what} of `sh` is over 16 MiB"));
        assert_eq!((error.code, error.message), expected);
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[tokio::test]
async fn a_program_that_is_deaf_is_killed_when_its_time_is_up() {
    let (output, took) =
        shell("trap '' TERM; while :; do sleep 60; done", &json!({ "timeout": "200ms" })).await;
    assert_eq!(output.unwrap_err().code, ErrorCode::Timeout);
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[tokio::test]
async fn a_program_that_is_cancelled_can_print_while_it_cleans_up() {
    let work = tempfile::tempdir().unwrap();
    let clean = "trap 'echo cleans; echo up >&2; touch cleaned; exit 0' TERM; while :; do sleep 0.05; done";
    let input = json!({ "argv": ["sh", "-c", clean], "stdoutFile": "said" });
    let flow = json!({ "name": "f", "nodes": [
        { "id": "a", "type": "exec", "input": input, "policy": { "timeout": "300ms" } },
    ] });
    let result = runner(&flow, [PATH]).cwd(work.path()).with_events().build().run(Map::new()).await.unwrap();
    assert_eq!(result.nodes.get("a").and_then(|report| report.error).unwrap().code, ErrorCode::Timeout);
    assert!(work.path().join("cleaned").exists());
    assert_eq!(std::fs::read_to_string(work.path().join("said")).unwrap(), "cleans\n");
    let is_said = |event: &Event| serde_json::to_string(event).unwrap().contains("up\\n");
    assert!(result.events.iter().any(|envelope| is_said(&envelope.event)), "{:?}", result.events);
}

#[tokio::test]
async fn a_script_that_nothing_can_run_says_so_and_a_path_is_sought_on_no_path() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display().to_string();
    inspan_testkit::write_program(&folder.path().join("build.sh"), "#!/bin/sh\r\necho hi\r\n").unwrap();
    let windows = "`build.sh` cannot be started: its first line names `/bin/sh\\r`, which is not there: the file has Windows line \
                   ends (`\\r\\n`), and needs `\\n`";
    let rows = [
        (
            json!({ "argv": ["build.sh"], "env": { "PATH": here } }),
            ErrorCode::ConfigInvalid,
            windows.to_owned(),
        ),
        (
            json!({ "argv": ["./build.sh"], "cwd": here }),
            ErrorCode::ConfigInvalid,
            windows.replace("build.sh", "./build.sh"),
        ),
        (
            json!({ "argv": ["./gone.sh"], "cwd": here }),
            ErrorCode::ConfigMissing,
            format!("there is no program `./gone.sh` in {here}"),
        ),
    ];
    for (input, code, message) in rows {
        let error = exec(input, &json!({})).await.0.unwrap_err();
        assert_eq!((error.code, error.message), (code, message));
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let rows = [
        (
            json!({ "argv": ["no-such-program"] }),
            ErrorCode::ConfigMissing,
            "there is no program `no-such-program` on the PATH",
        ),
        (
            json!({ "argv": ["/"] }),
            ErrorCode::Process,
            "`/` cannot be started: Permission denied (os error 13)",
        ),
        (
            json!({ "argv": ["true", "{{ '\0' ~ flow.name }}"] }),
            ErrorCode::ConfigInvalid,
            "an argument has a NUL",
        ),
        (
            json!({ "argv": ["true", "x".repeat(1 << 20)] }),
            ErrorCode::ConfigInvalid,
            "`true` cannot be started: its arguments and variables are longer than the system allows: give a long text by \
             `stdin`",
        ),
        (
            json!({ "argv": ["true"], "cwd": "/nowhere" }),
            ErrorCode::ConfigInvalid,
            "there is no folder `/nowhere`",
        ),
        (
            json!({ "argv": ["true"], "cwd": "/nowhere", "stdoutFile": "out.txt" }),
            ErrorCode::ConfigInvalid,
            "there is no folder `/nowhere`",
        ),
        (
            json!({ "argv": ["true"], "stdoutFile": "/dev/null", "stderrFile": "/dev/../dev/null" }),
            ErrorCode::ConfigInvalid,
            "`stdoutFile` and `stderrFile` must be two files: both are `/dev/../dev/null`",
        ),
    ];
    for (input, code, message) in rows {
        let error = exec(input, &json!({})).await.0.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (code, message));
    }
}

#[tokio::test]
async fn a_program_knows_its_session_its_node_and_its_attempt() {
    let script =
        "echo $INSPAN_SESSION $INSPAN_NODE $INSPAN_ATTEMPT >> seen; test $INSPAN_ATTEMPT = 2 && cat seen";
    let policy = json!({ "retry": { "maxAttempts": 2, "on": "any" } });
    let (output, _) = exec(json!({ "argv": ["sh", "-c", script] }), &policy).await;
    let output = output.unwrap();
    let lines: Vec<Vec<&str>> =
        output["stdout"].as_str().unwrap().lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines.len(), 2);
    let session = lines[0][0];
    assert!(session.starts_with("flow-"), "{session}");
    assert_eq!(lines, [vec![session, "a", "1"], vec![session, "a", "2"]]);
}

#[tokio::test]
async fn a_failure_says_how_it_ended_and_holds_the_end_of_both_streams() {
    let long = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; echo last >&2; exit 7";
    let (output, _) = shell(long, &json!({})).await;
    let error = output.unwrap_err();
    let detail = error.detail.unwrap();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::Process, "`sh` exited with code 7: last"));
    assert_eq!((&detail["exitCode"], &detail["stderr"]), (&json!(7), &json!("last\n")));
    let stdout = detail["stdout"].as_str().unwrap();
    assert!(stdout.ends_with("line 2999\n") && stdout.len() == 8 * 1024, "{}", stdout.len());

    let rows = [
        ("echo only stdout; exit 1", "`sh` exited with code 1: only stdout"),
        (
            "printf 'error: a\\nfatal: no such branch\\n\\nUse -- so:\\nhint: or so\\n' >&2; exit 1",
            "`sh` exited with code 1: fatal: no such branch",
        ),
        (
            "printf 'error: it is there\\nAborting\\n' >&2; exit 1",
            "`sh` exited with code 1: error: it is there",
        ),
        ("printf 'outside\\nhint: turn it off\\n' >&2; exit 1", "`sh` exited with code 1: outside"),
        ("exit 1", "`sh` exited with code 1"),
        ("kill -9 $$", "`sh` was killed by signal: 9 (SIGKILL)"),
    ];
    for (script, message) in rows {
        assert_eq!(shell(script, &json!({})).await.0.unwrap_err().message, message);
    }
}

#[tokio::test]
async fn output_is_reported_while_the_program_runs() {
    let node = json!({ "id": "a", "type": "exec", "input": { "argv": ["sh", "-c", "echo one; sleep 1; echo two >&2"] } });
    let runner = runner(&json!({ "name": "exec", "nodes": [node] }), [PATH]).cwd("/").build();
    let mut events = runner.hub().subscribe(Filter::names(["task:start", "exec:output", "task:complete"]));
    let run = tokio::spawn(runner.run(Map::new()));
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let envelope = events.next().await.unwrap();
        let text = match &envelope.event {
            Event::ExecOutput { stream, text, truncated } => format!("{stream:?} {text:?} {truncated}"),
            event => event.name().to_owned(),
        };
        // By the time that the first line is reported the program has not ended.
        seen.push((text, run.is_finished()));
    }
    run.await.unwrap().unwrap();
    let expected = ["task:start", "Stdout \"one\\n\" false", "Stderr \"two\\n\" false", "task:complete"];
    let texts: Vec<&str> = seen.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, expected);
    assert!(!seen[1].1);
}

#[tokio::test]
async fn a_program_does_not_start_where_a_secret_of_its_flow_is_not_set() {
    let work = tempfile::tempdir().unwrap();
    let flow = json!({ "flow": { "name": "f", "secrets": ["MY_SECRET"] }, "nodes": [
        { "id": "deploy", "type": "exec", "input": { "argv": ["touch", "deployed"] } },
    ] });
    let run = async |secret: (&str, &str)| {
        let result = runner(&flow, [PATH, secret]).cwd(work.path()).build().run(Map::new()).await.unwrap();
        (result.error.map(|error| error.code), work.path().join("deployed").exists())
    };
    assert_eq!(run(("OTHER", "planted-42-x")).await, (Some(ErrorCode::ConfigMissing), false));
    assert_eq!(run(("MY_SECRET", "planted-42-x")).await, (None, true));
}

/// A flow whose first node writes to files in the folder of the session, and whose second reads one.
fn with_files() -> Value {
    let script = "yes 0123456789abcdef | head -c 100000; printf 'key planted-42-x' ; echo why >&2; exit 3";
    json!({ "flow": { "name": "files", "secrets": ["MY_SECRET"] }, "nodes": [
        { "id": "a", "type": "exec", "input": {
            "argv": ["sh", "-c", script], "allowExit": "any",
            "stdoutFile": "{{ flow.artifacts }}/deep/out.txt", "stderrFile": "err.txt",
        } },
        { "id": "b", "type": "exec", "dependsOn": ["a"], "input": {
            "argv": ["sh", "-c", "tail -c 22 \"$1\"; echo \" $INSPAN_ARTIFACTS\"", "sh", "{{ a.stdoutFile }}"],
        } },
    ] })
}

#[tokio::test]
async fn equal_calls_of_items_are_replayed_each_at_its_own_place() {
    let (work, tapes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The first item counts last, which no replay knows that does not wait.
    let flow = json!({ "flow": { "name": "f" }, "nodes": [{
        "id": "each", "type": "control.foreach", "input": { "items": ["0.5", "0"] }, "body": { "nodes": [
            { "id": "wait", "type": "exec", "input": { "argv": ["sleep", "{{ item }}"] } },
            { "id": "count", "type": "exec", "dependsOn": ["wait"], "input": {
                "argv": ["sh", "-c", "echo >> log; wc -l < log"],
            } },
        ] },
    }] });
    let run = async |calls: NodeCalls| {
        let result =
            runner(&flow, [PATH]).cwd(work.path()).node_calls(calls).build().run(Map::new()).await.unwrap();
        let each = result.outputs.get("each").unwrap_or_else(|| panic!("{:?}", result.error));
        let count = |item: usize| each["values"][item]["count"]["stdout"].as_str().unwrap().trim().to_owned();
        [count(0), count(1)]
    };
    assert_eq!(run(NodeCalls::Record(Recorder::new(tapes.path()).unwrap())).await, ["2", "1"]);
    assert_eq!(run(NodeCalls::Replay(Replayer::load(tapes.path()).unwrap())).await, ["2", "1"]);
}

#[tokio::test]
async fn a_stream_goes_to_a_file_and_a_recording_has_it() {
    let (work, state, tapes) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = async |calls: NodeCalls, session: &str| {
        let builder = runner(&with_files(), [PATH, ("MY_SECRET", "planted-42-x")]).cwd(work.path());
        let builder = builder.artifacts(state.path()).session_id(session.into()).node_calls(calls);
        builder.build().run(Map::new()).await.unwrap()
    };
    let recorder = Recorder::new(tapes.path()).unwrap();
    for session in ["live", "recorded", "replayed"] {
        let calls = match session {
            "recorded" => NodeCalls::Record(recorder.clone()),
            "replayed" => NodeCalls::Replay(Replayer::load(tapes.path()).unwrap()),
            _ => NodeCalls::Make,
        };
        std::fs::remove_file(work.path().join("err.txt")).ok();
        let result = run(calls, session).await;
        let folder = state.path().join(session);
        let file = folder.join("deep/out.txt");
        let a = result.outputs.get("a").unwrap_or_else(|| panic!("{session}: {:?}", result.error));
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.len(), 100_000 + "key [redacted MY_SECRET]".len(), "{session}");
        assert!(text.ends_with("key [redacted MY_SECRET]"), "{session}");
        assert_eq!(std::fs::read_to_string(work.path().join("err.txt")).unwrap(), "why\n", "{session}");
        assert_eq!(
            (&a["exitCode"], &a["stdoutFile"], &a["stderr"]),
            (&json!(3), &json!(file), &json!("why\n"))
        );
        let shown = a["stdout"].as_str().unwrap();
        assert!(
            shown.len() < 8300 && text.len() > shown.len() && shown.ends_with("key [redacted MY_SECRET]"),
            "{session}"
        );
        let b = result.outputs.get("b").unwrap_or_else(|| panic!("{session}: {:?}", result.error));
        let said = format!("y [redacted MY_SECRET] {}\n", folder.display());
        assert_eq!(b["stdout"], said, "{session}");
    }
}

/// The bytes of an image, and a byte that is half a character at the end.
const BYTES: &[u8] = b"\x89PNG\r\n\x1a\n\0\xff text \xf0";

#[tokio::test]
async fn bytes_that_are_no_text_are_replayed_to_a_file_as_they_were() {
    let (work, tapes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = work.path().join("copy");
    std::fs::write(work.path().join("image"), BYTES).unwrap();
    let flow = json!({ "flow": { "name": "f" }, "nodes": [
        { "id": "a", "type": "exec", "input": { "argv": ["cat", "image"], "stdoutFile": "copy" } },
    ] });
    let run = async |calls: NodeCalls| {
        std::fs::remove_file(&path).ok();
        let runner = runner(&flow, [PATH]).cwd(work.path()).node_calls(calls).with_events().build();
        let result = runner.run(Map::new()).await.unwrap();
        assert_eq!(warnings(&result.events), Vec::<String>::new());
        assert!(std::fs::read(&path).unwrap() == BYTES);
        result.outputs.get("a").unwrap_or_else(|| panic!("{:?}", result.error))["stdout"].clone()
    };
    let live = run(NodeCalls::Record(Recorder::new(tapes.path()).unwrap())).await;
    assert_eq!(run(NodeCalls::Replay(Replayer::load(tapes.path()).unwrap())).await, live);
    assert_eq!(live, String::from_utf8_lossy(BYTES).as_ref());
}

/// A character that is cut where the shown end of a file begins is left out, live and replayed.
#[tokio::test]
async fn the_end_of_a_file_is_the_same_from_a_recording() {
    let (work, tapes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let flow = json!({ "flow": { "name": "f" }, "nodes": [
        { "id": "a", "type": "exec", "input": { "argv": ["cat", "text"], "stdoutFile": "copy" } },
    ] });
    let run = async |calls: NodeCalls| {
        let result =
            runner(&flow, [PATH]).cwd(work.path()).node_calls(calls).build().run(Map::new()).await.unwrap();
        result.outputs.get("a").unwrap_or_else(|| panic!("{:?}", result.error))["stdout"].clone()
    };
    let end = "x".repeat(8 * 1024 - 3);
    for (begin, tape) in [("".as_bytes(), "text"), (b"\xff".as_slice(), "bytes")] {
        let parts = [begin, "y".repeat(100_000).as_bytes(), "🐂".as_bytes(), end.as_bytes()].concat();
        std::fs::write(work.path().join("text"), parts).unwrap();
        let tapes = tapes.path().join(tape);
        assert!(run(NodeCalls::Record(Recorder::new(&tapes).unwrap())).await == end, "{tape}, live");
        assert!(run(NodeCalls::Replay(Replayer::load(&tapes).unwrap())).await == end, "{tape}, replayed");
    }
}

#[tokio::test]
async fn the_end_of_a_file_that_is_no_text_begins_with_no_part_of_a_secret() {
    let secret = "planted-42-0123456789";
    let work = tempfile::tempdir().unwrap();
    let dots = ".".repeat(8 * 1024 - 10);
    let bytes =
        [b"\xff".as_slice(), "x".repeat(9_000).as_bytes(), secret.as_bytes(), dots.as_bytes()].concat();
    std::fs::write(work.path().join("bytes"), bytes).unwrap();
    let flow = json!({ "flow": { "name": "f" }, "nodes": [
        { "id": "a", "type": "exec", "input": { "argv": ["cat", "bytes"], "stdoutFile": "copy" } },
    ] });
    let builder = runner(&flow, [PATH, ("MY_SECRET", secret)]).cwd(work.path());
    let result = builder.build().run(Map::new()).await.unwrap();
    let output = result.outputs.get("a").unwrap_or_else(|| panic!("{:?}", result.error));
    let stdout = output["stdout"].as_str().unwrap();
    assert!(stdout.ends_with(&dots) && !stdout.contains("6789"), "{}", &stdout[..40]);
}

#[tokio::test]
async fn bytes_that_are_no_text_are_not_recorded_with_a_secret() {
    let flow = json!({ "flow": { "name": "f", "secrets": ["MY_SECRET"] }, "nodes": [
        { "id": "a", "type": "exec", "input": { "argv": ["cat", "bytes"], "stdoutFile": "copy" } },
    ] });
    let secrets = ["k3y9", "7391-8", "planted-42-x", "ghp_0123456789abcdefghijABCDEFGHIJ012345"];
    for secret in secrets {
        // Where it begins in a group of base64 decides how it looks there.
        for before in [&b"\xff "[..], b"\xff  ", b"\xff   "] {
            let (work, tapes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            std::fs::write(work.path().join("bytes"), [before, secret.as_bytes()].concat()).unwrap();
            // That of a known form is one without a variable.
            let variable = if secret.starts_with("ghp_") { "another-one" } else { secret };
            let builder = runner(&flow, [PATH, ("MY_SECRET", variable)]).cwd(work.path()).with_events();
            let calls = NodeCalls::Record(Recorder::new(tapes.path()).unwrap());
            let result = builder.node_calls(calls).build().run(Map::new()).await.unwrap();
            assert!(result.error.is_none(), "{:?}", result.error);
            let why = "it has a secret, and is no UTF-8 text";
            let file = work.path().join("copy");
            let said =
                format!("a call of node `a` is not recorded: `{}` cannot be recorded: {why}", file.display());
            assert_eq!(warnings(&result.events), [said], "{secret}");
        }
    }
}

#[tokio::test]
async fn an_output_that_is_no_text_is_a_warning() {
    let work = tempfile::tempdir().unwrap();
    std::fs::write(work.path().join("image"), BYTES).unwrap();
    let flow = json!({ "flow": { "name": "f" }, "nodes": [
        { "id": "a", "type": "exec", "input": { "argv": ["sh", "-c", "cat image; cat image >&2; echo ü"] } },
    ] });
    let result = runner(&flow, [PATH]).cwd(work.path()).with_events().build().run(Map::new()).await.unwrap();
    let said = |what: &str, file: &str| {
        format!(
            "the {what} of `sh` is not all UTF-8 text: other bytes are replaced by U+FFFD. `{file}` writes it to a file as it is"
        )
    };
    let expected = [said("output", "stdoutFile"), said("error output", "stderrFile")];
    assert_eq!(warnings(&result.events), expected);
}

fn warnings(events: &[std::sync::Arc<inspan_protocol::Envelope>]) -> Vec<String> {
    let warnings = events.iter().filter_map(|envelope| match &envelope.event {
        Event::Log { message, .. } => Some(message.clone()),
        _ => None,
    });
    warnings.collect()
}

#[tokio::test]
async fn what_was_done_stays_done_if_it_cannot_be_recorded() {
    let work = tempfile::tempdir().unwrap();
    let flow =
        |input: Value| json!({ "name": "f", "nodes": [{ "id": "a", "type": "exec", "input": input }] });
    let run = async |input: Value, tapes: &std::path::Path, is_removed: bool| {
        let recorder = Recorder::new(tapes).unwrap();
        if is_removed {
            std::fs::remove_dir(tapes).unwrap();
        }
        let calls = NodeCalls::Record(recorder);
        let runner = runner(&flow(input), [PATH]).cwd(work.path()).node_calls(calls).with_events().build();
        let result = runner.run(Map::new()).await.unwrap();
        let warned = result.events.iter().find_map(|envelope| match &envelope.event {
            inspan_protocol::Event::Log { message, .. } => Some(message.clone()),
            _ => None,
        });
        (result.outputs.get("a").map(|a| a["exitCode"].clone()), warned.unwrap_or_default())
    };
    let tapes = work.path().join("tapes");
    let (exit, warned) = run(json!({ "argv": ["echo", "paid"] }), &tapes, true).await;
    assert_eq!(exit, Some(json!(0)), "{warned}");
    let begins = format!("a call of node `a` is not recorded: recording `{}", tapes.display());
    assert!(warned.starts_with(&begins), "{warned}");

    // The file is larger than what is recorded of one.
    let large = json!({ "argv": ["head", "-c", "17000000", "/dev/zero"], "stdoutFile": "out" });
    let (exit, warned) = run(large.clone(), &tapes, false).await;
    assert_eq!(exit, Some(json!(0)), "{warned}");
    let why = format!("`{}` cannot be recorded: it is over 16 MiB", work.path().join("out").display());
    assert_eq!(warned, format!("a call of node `a` is not recorded: {why}"));
    let replayed =
        runner(&flow(large), [PATH]).node_calls(NodeCalls::Replay(Replayer::load(&tapes).unwrap()));
    let error = replayed.build().run(Map::new()).await.unwrap().error.unwrap();
    assert!(error.message.ends_with(&why), "{}", error.message);
}

#[tokio::test]
async fn a_folder_in_which_nothing_was_left_goes() {
    let state = tempfile::tempdir().unwrap();
    let flow =
        json!({ "name": "empty", "nodes": [{ "id": "a", "type": "exec", "input": { "argv": ["true"] } }] });
    let runner = runner(&flow, [PATH]).artifacts(state.path()).build();
    assert!(runner.run(Map::new()).await.unwrap().error.is_none());
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
}
