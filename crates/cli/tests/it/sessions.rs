//! What a session does besides its output: events as lines, recordings, signals, readers that disconnect.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use inspan_protocol::{Envelope, Event};
use inspan_testkit::pause;

use crate::{
    processes::{left, mark, signal, until},
    program::{ended, flow_folder, folder_with, inspan, program},
};

const SCRIPTED: &str = "
flow: { name: scripted, input: { topic: oxen } }
nodes:
  - id: a
    type: scripted.agent
    input:
      prompt: 'about {{ flow.input.topic }}'
      options:
        turns: [[{ thinking: hm }, { text: 'a few words' }, { usage: { tokens: { inputTokens: 7 }, costUsd: 0.5 } }]]
  - { id: b, type: echo, dependsOn: [a], input: { text: '{{ a.text }}' } }
";

/// Two programs that would outlive a careless parent, the second deaf to polite signals.
const LONG: &str = "
flow: { name: long }
nodes:
  - { id: a, type: exec, input: { argv: [sleep, 'MARK'] } }
  - { id: b, type: exec, input: { argv: [sh, -c, \"trap '' TERM INT; : > ready; sleep MARK; sleep MARK\"] } }
";

fn events(text: &str) -> Vec<Envelope> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn who_reads_a_log_sees_how_full_a_conversation_is() {
    let context = "{ context: { usedTokens: 50000, windowTokens: 200000 } }, { usage: ";
    let folder = &flow_folder(&SCRIPTED.replace("{ usage: ", context));
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    inspan(folder, &["logs", "s"]).prints(" a · 7 tokens · $0.5000 · context 50.0k of 200k (25%)\n");
}

#[test]
fn a_line_of_an_agents_text_has_the_number_of_its_event() {
    let folder = &flow_folder(SCRIPTED);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    let logs =
        |form: &[&str]| inspan(folder, &[&["logs", "s", "--type", "agent:text"], form].concat()).stdout;
    let numbers: Vec<u64> = events(&logs(&["--json"])).iter().map(|envelope| envelope.seq).collect();
    let text = logs(&[]);
    let shown = text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
    // It has one line, which its last piece ends.
    assert_eq!(shown.collect::<Vec<u64>>(), numbers[numbers.len() - 1..], "{text}");
}

#[test]
fn a_file_that_holds_something_else_is_not_replaced() {
    let folder = &flow_folder(SCRIPTED);
    let files = ["s.jsonl", "s.html", "s-events.jsonl", "talk.json"];
    let calls = |[session, page, events, talk]: [&'static str; 4]| {
        [
            vec!["run", "flow.yaml", "--events", events],
            vec!["store", "export", "s", "-o", session],
            vec!["export", "s", "--html", page],
            vec!["chat", "-p", "echo", "--export", talk],
        ]
    };
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    // The second time each file is one of the same kind.
    for call in [calls(files), calls(files)].concat() {
        inspan(folder, &call).expect(0);
    }
    for (call, kind) in calls(["flow.yaml"; 4]).iter().zip([
        "a file of events",
        "an exported session",
        "a session page",
        "a conversation",
    ]) {
        let says = format!("not replacing flow.yaml: it is not {kind}");
        inspan(folder, call).expect(2).says(&says);
        assert_eq!(fs::read_to_string(folder.join("flow.yaml")).unwrap(), SCRIPTED);
    }
}

#[test]
fn events_on_stdout_are_those_of_the_file() {
    let folder = &flow_folder(SCRIPTED);
    let streamed = inspan(folder, &["run", "flow.yaml", "--session-id", "s-1", "--events", "-"]);
    let filed = inspan(folder, &["run", "flow.yaml", "--session-id", "s", "--events", "events.jsonl"]);
    assert_eq!((streamed.code, filed.code), (Some(0), Some(0)));
    let text = fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let [streamed, filed] = [&streamed.stdout, &text].map(|text| {
        let all = events(text);
        let dense: Vec<u64> = all.iter().map(|envelope| envelope.seq).collect();
        assert_eq!(dense, (1..=all.len() as u64).collect::<Vec<_>>());
        all.iter().map(|envelope| envelope.event.name().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(streamed, filed);
    let heart: Vec<&str> =
        filed.iter().map(String::as_str).filter(|name| !name.starts_with("channel:")).collect();
    assert_eq!(
        heart,
        [
            "harness:start",
            "phase:start",
            "task:start",
            "agent:start",
            "agent:session",
            "agent:thinking",
            "agent:text",
            "agent:text",
            "agent:text",
            "agent:usage",
            "agent:complete",
            "task:complete",
            "edge:fired",
            "task:start",
            "task:complete",
            "phase:complete",
            "harness:complete",
        ]
    );
}

#[test]
fn a_replay_says_what_was_recorded_and_a_miss_shows_the_difference() {
    let folder = &flow_folder(SCRIPTED);
    let run = |arguments: &[&str]| {
        let mut all = vec!["run", "flow.yaml", "--session-id", "s", "--no-store"];
        all.extend(arguments);
        inspan(folder, &all)
    };
    let recorded = run(&["--record", "recordings"]);
    let replayed = run(&["--replay"]);
    assert_eq!(replayed.report(), recorded.report());
    run(&["--replay=recordings", "-i", "topic=mules"])
        .expect(4)
        .says("CONFIG_INVALID")
        .says("about oxen")
        .says("about mules");
}

#[test]
fn a_recording_is_continued_by_its_session_and_by_no_other() {
    let flow = "
flow: { name: rounds }
nodes:
  - { id: count, type: exec, input: { argv: [sh, -c, 'echo x >> n; wc -l < n'] } }
  - { id: ask, type: human.input, input: { prompt: More?, choices: ['yes', 'no'] } }
  - { id: end, type: echo, input: { text: done } }
edges:
  - { from: count, to: ask }
  - { from: ask, to: count, when: \"ask.choice == 'yes'\", maxIterations: 3 }
  - { from: ask, to: end, when: \"ask.choice == 'no'\" }
";
    let folder = &flow_folder(flow);
    let run = |arguments: &[&str]| {
        let ran = inspan(folder, arguments);
        (ran.code, ran.stderr)
    };
    let recorded = || {
        let mut files: Vec<_> =
            fs::read_dir(folder.join("tapes")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<Vec<_>>()
    };
    let began = run(&["run", "flow.yaml", "--session-id", "s", "--record", "tapes", "--no-input"]);
    assert_eq!(began.0, Some(3), "{}", began.1);
    let first = recorded();
    // Each answer is taken by another process, which makes the same call again.
    for (answer, code) in [("yes", 3), ("yes", 3), ("no", 0)] {
        let replied = run(&["reply", "s", answer, "--no-input"]);
        assert_eq!(replied.0, Some(code), "{}", replied.1);
    }
    let all = recorded();
    assert_eq!(all.len(), 3, "{all:?}");
    assert_eq!(all[0], first[0]);
    for (count, recording) in (1..).zip(&all) {
        let recording: serde_json::Value = serde_json::from_str(recording).unwrap();
        assert_eq!(recording["output"]["stdout"].as_str().unwrap().trim(), format!("{count}"));
    }
    for arguments in [&["fork", "s", "--at", "count", "--no-input"][..], &["resume", "s", "--no-input"]] {
        let anew = run(arguments);
        let note = "note: the new session is not recorded: ";
        assert!(anew.1.contains(note) && anew.1.contains("tapes keeps the recordings of `s`"), "{}", anew.1);
        assert_eq!(recorded(), all, "{arguments:?}");
    }
    // A new session that failed or was cut short would leave less than was there.
    for arguments in [&["--session-id", "s2"][..], &["--no-store"], &["--detach"]] {
        let refused = run(&[&["run", "flow.yaml", "--record", "tapes", "--no-input"], arguments].concat());
        assert_eq!((refused.0, recorded()), (Some(2), all.clone()), "{}", refused.1);
        let why = "tapes has the recordings of an earlier session; nothing was started";
        assert!(refused.1.contains(why) && refused.1.contains("name another folder"), "{}", refused.1);
    }
    // Other files are no recordings.
    fs::create_dir(folder.join("project")).unwrap();
    fs::write(folder.join("project/package.json"), r#"{ "version": "1.0.0" }"#).unwrap();
    fs::write(folder.join("project/flake.json"), r#"{ "version": 3 }"#).unwrap();
    for how in ["--record=project", "--replay=project"] {
        assert_eq!(run(&["run", "flow.yaml", how, "--no-input"]).0, Some(3), "{how}");
    }
    fs::write(folder.join("file"), "").unwrap();
    let refused = run(&["run", "flow.yaml", "--record", "file"]);
    assert!(
        refused.1.contains("nothing can be recorded in ") && refused.1.contains("file: it is not a folder")
    );
    let refused = run(&["run", "flow.yaml", "--replay=file"]);
    assert!(
        refused.1.contains("file: it is not a folder") && !refused.1.contains("--record"),
        "{}",
        refused.1
    );
}

#[test]
fn a_recording_with_the_id_of_its_session_fits_another_session() {
    let flow = "
flow: { name: ids }
nodes:
  - { id: tree, type: exec, input: { argv: [echo, 'wt-{{ flow.sessionId }}'] } }
  - { id: ask, type: echo.agent, dependsOn: [tree], input: { prompt: 'rec: {{ tree.stdout }} of {{ flow.sessionId }}, recorded' } }
  - { id: drop, type: exec, dependsOn: [ask], input: { argv: [echo, '{{ tree.stdout }}', '{{ flow.sessionId }}'] } }
";
    let folder = &flow_folder(flow);
    let run = |session: &str, more: &str| {
        let ran = inspan(folder, &["run", "flow.yaml", "--no-store", "--session-id", session, more]);
        (ran.code, ran.report())
    };
    let (code, _) = run("rec", "--record=tapes");
    assert_eq!(code, Some(0));
    for session in ["rec", "another"] {
        let (code, report) = run(session, "--replay=tapes");
        assert_eq!(code, Some(0), "{session}: {report}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let folder = &flow_folder(SCRIPTED);
    for arguments in
        [&["run", "flow.yaml", "--events", "-"][..], &["schema"], &["--help"], &["check", "flow.yaml"]]
    {
        let mut child = program(folder, arguments).spawn().unwrap();
        drop(child.stdout.take());
        let ended = ended(folder, child).expect(0);
        assert_eq!(
            ["panic", "error"].map(|word| ended.stderr.contains(word)),
            [false; 2],
            "{}",
            ended.stderr
        );
    }
}

/// Starts a session of long programs and waits until both run.
fn long(folder: &Path, mark: &str, more: &[&str]) -> Child {
    fs::write(folder.join("flow.yaml"), LONG.replace("MARK", mark)).unwrap();
    let arguments = [&["run", "flow.yaml", "--events", "-"], more].concat();
    let mut child = program(folder, &arguments).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut started = 0;
    while started < 2 {
        let envelope: Envelope = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        started += u32::from(matches!(envelope.event, Event::TaskStart { .. }));
    }
    // A reader has to continue reading.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// How long killed processes may take to be cleared away by the kernel.
const CLEARED: Duration = Duration::from_secs(5);

#[test]
fn a_signal_pauses_what_is_stored_and_stops_what_is_not_with_all_that_it_started() {
    let rows = [
        ("INT", 7, 1, &[][..]),
        ("TERM", 7, 2, &[]),
        ("HUP", 7, 3, &[]),
        ("INT", 130, 5, &["--no-store"]),
        ("TERM", 143, 6, &["--no-store"]),
        ("HUP", 143, 7, &["--no-store"]),
    ];
    for (name, code, number, more) in rows {
        let mark = &mark(number);
        let folder = &folder_with(&[]);
        let mut child = long(folder, mark, more);
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name} {more:?}");
        assert_eq!(left(mark, CLEARED), Vec::<String>::new(), "{name} {more:?}");
    }
}

#[test]
fn a_stop_that_comes_when_the_session_already_ends_says_how_that_ended() {
    let flow = "flow: { name: f }\nnodes:\n  - { id: a, type: exec, input: { argv: [sh, -c, 'exit 1'] } }\n  - { id: c, type: exec, dependsOn: [{ node: a, on: any }], input: { argv: [sh, -c, 'touch cleans; while [ ! -e go ]; do sleep 0.05; done'] } }\n";
    let folder = &flow_folder(flow);
    let mut child = program(folder, &["run", "flow.yaml", "--session-id", "s"]).spawn().unwrap();
    until("it cleans up", || folder.join("cleans").exists());
    let stop = program(folder, &["stop", "s"]).spawn().unwrap();
    until("the stop is in the log", || {
        let log = inspan(folder, &["logs", "s", "--type", "session:abort", "--json"]);
        log.stdout.contains("session:abort")
    });
    fs::write(folder.join("go"), "").unwrap();
    ended(folder, stop).expect(2).says("session `s` ended as failed before it could be stopped");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_second_signal_stops_what_is_stored() {
    let folder = &folder_with(&[]);
    let mark = &mark(4);
    let mut child = long(folder, mark, &[]);
    // From then on one of the programs is deaf, and a pause takes its time.
    until("one of the programs is deaf", || folder.join("ready").exists());
    signal(&child, "INT");
    // Two signals of a kind that wait together are one; the pause takes seconds, and the first is received long before.
    pause(Duration::from_millis(500));
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left(mark, CLEARED), Vec::<String>::new());
}
