//! Notifications, against receivers that the tests write: what is sent, once, across failures, kills and restarts;
//! and what is never sent.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use inspan_testkit::{check_golden, write_program};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::processes::{kill, signal, until};
use crate::program::{Folder, Ran, ended, folder_with, inspan, program, ran};
use receiver::{Answer, Received, Receiver};

mod receiver;
mod secrets;
mod server;
mod slack;
mod smtp;

const KEY: &str = "whsec_c2lnbmluZy1rZXktb2YtdGhlLXRlc3Q=";

/// A folder with a flow and its settings.
fn folder(flow: &str, settings: &str) -> Folder {
    folder_with(&[("flow.yaml", flow), ("inspan.toml", settings)])
}

fn webhook(receiver: &Receiver, on: &str) -> String {
    let url = format!("http://{}/hook", receiver.address);
    format!("[channels.ops]\ntype = \"webhook\"\nurl = \"{url}\"\nsecretEnv = \"OPS_KEY\"\non = {on}\n")
}

const ALL: &str = r#"["question", "failure", "limit", "budget", "end"]"#;

/// The program with the secrets of the channels.
fn call(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program(folder, arguments);
    command.env("OPS_KEY", KEY);
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Ran {
    ran(folder, &mut call(folder, arguments))
}

/// Interrupts a program, and waits for its end.
fn interrupted(folder: &Path, child: Child) -> Ran {
    signal(&child, "INT");
    ended(folder, child)
}

/// The notices of the requests by their event: each with the ids of the deliveries that had it.
fn by_event(requests: &[Received]) -> BTreeMap<(String, u64), Vec<String>> {
    let mut found: BTreeMap<(String, u64), Vec<String>> = BTreeMap::new();
    for message in requests.iter().map(Received::json) {
        for notice in message["notices"].as_array().unwrap() {
            // A lost process is no event.
            let Some(seq) = notice["seq"].as_u64() else { continue };
            let key = (message["session"].as_str().unwrap().to_owned(), seq);
            let ids = found.entry(key).or_default();
            let id = message["id"].as_str().unwrap().to_owned();
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    found
}

/// The events of a session that a channel for all is sent.
fn worth(folder: &Path, session: &str) -> Vec<(String, u64)> {
    let names = "session:prompt,task:failed,limit:wait,budget:exceeded,harness:complete";
    let log = inspan(folder, &["logs", session, "--json", "--type", names]);
    let events = log.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.map(|event| (session.to_owned(), event["seq"].as_u64().unwrap())).collect()
}

const GATE: &str = "
name: oxen
nodes:
  - { id: gate, type: human.input, input: { prompt: 'Ship it?', choices: [yes, no] } }
  - { id: plough, type: exec, dependsOn: [gate], input: { argv: [sh, -c, 'echo broken >&2; exit 3'] } }
";

/// Who reads it may be in another folder.
#[test]
fn commands_in_a_message_name_the_whole_path_of_a_store() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(GATE, &webhook(&receiver, ALL));
    run(folder, &["run", "--no-input", "--session-id", "s", "--store", "other.db"]).expect(3);
    let seen = receiver.wait_until(|seen| !seen.is_empty());
    let store = folder.canonicalize().unwrap().join("other.db").display().to_string();
    let command = format!("inspan reply s gate.1 --choice yes --store {store}");
    assert_eq!(seen[0].json()["notices"][0]["commands"][0], json!(command));
}

#[test]
fn a_webhook_gets_what_needs_a_person_signed_and_once() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(GATE, &webhook(&receiver, ALL));
    run(folder, &["run", "--no-input", "--session-id", "s"]).expect(3);
    run(folder, &["reply", "s", "--choice", "yes"]).expect(1);
    let seen = receiver.wait_until(|seen| by_event(seen).len() >= 3);
    let again = run(folder, &["notify", "deliver", "--once"]);
    assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""));
    assert_eq!(receiver.seen().len(), seen.len());
    let mut first = seen[0].json();
    let notice = &mut first["notices"][0];
    assert!(notice["at"].as_str().unwrap().ends_with('Z'));
    notice["at"] = json!("");
    let id = first["id"].take();
    assert_eq!(
        first,
        json!({
            "v": 1, "id": null, "channel": "ops", "session": "s", "flow": "oxen",
            "title": "oxen: `gate` asks a question",
            "notices": [{
                "kind": "question", "seq": 6, "at": "", "node": "gate",
                "title": "`gate` asks a question", "text": "Ship it?",
                "question": {
                    "promptId": "gate.1", "prompt": "Ship it?", "choices": ["yes", "no"], "kind": "input",
                    "task": "gate",
                },
                "commands": ["inspan reply s gate.1 --choice yes", "inspan reply s gate.1 --choice no"],
            }],
        })
    );
    assert_eq!(seen[0].headers["webhook-id"], id.as_str().unwrap());
    let rest: Vec<(Value, Value)> = seen[1..]
        .iter()
        .flat_map(|request| request.json()["notices"].as_array().cloned().unwrap())
        .map(|notice| (notice["kind"].clone(), notice["text"].clone()))
        .collect();
    assert_eq!(rest[0], (json!("failure"), json!("`sh` exited with code 3: broken")));
    assert_eq!(rest[1], (json!("end"), Value::Null));
    for request in &seen {
        assert_eq!(verified(request, KEY, &request.body), "True\n");
    }
    let forged = seen[0].body.replace("Ship it?", "Ship it!");
    let refused = [verified(&seen[0], KEY, &forged), verified(&seen[0], "whsec_b3RoZXI=", &seen[0].body)];
    assert_eq!(refused, ["False\n", "False\n"]);
}

/// What the check that `docs/notifications.md` shows says about a request.
fn verified(request: &Received, key: &str, body: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/notifications.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("python3 - <<'END'\n").unwrap();
    let (check, _) = rest.split_once("\n# ").unwrap();
    let headers = json!(request.headers).to_string();
    let script = format!(
        "{check}\nimport sys, json\nprint(is_genuine(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3].encode()))\n"
    );
    let output = Command::new("python3").args(["-c", &script, key, &headers, body]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const FAILS: &str = "
name: fails
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'exit 3'] } }
";

#[test]
fn a_delivery_is_tried_again_with_the_same_id_until_it_is_accepted() {
    let receiver = Receiver::start(|number, _| match number {
        0 => Answer::Status(500, "", "oops".to_owned()),
        1 => Answer::Status(429, "retry-after: 1\r\n", String::new()),
        2 => Answer::Broken,
        _ => Answer::good(),
    });
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    run(folder, &["run", "--no-input", "--session-id", "s"])
        .expect(1)
        .says("warning: notifications of ops are not delivered yet");
    let doctor = run(folder, &["doctor", "--offline", "--json"]);
    let doctor = doctor.json();
    assert_eq!(
        (&doctor["channels"][0]["pending"], &doctor["channels"][0]["name"]),
        (&json!(1), &json!("ops"))
    );
    run(folder, &["notify", "deliver", "--once"]).expect(0);
    let seen = receiver.seen();
    let bodies: Vec<&str> = seen.iter().map(|request| request.body.as_str()).collect();
    assert_eq!(bodies, [bodies[0]; 4]);
    let events = by_event(&seen);
    let ids: Vec<usize> = events.values().map(Vec::len).collect();
    assert_eq!((events.len(), ids), (2, vec![1, 1]));
}

#[test]
fn a_delivery_of_what_is_left_warns_once_and_says_what_else_helps() {
    // Each answer has another text, as one with the id of the request has.
    let receiver = Receiver::start(|number, _| Answer::Status(500, "", format!("oops {number}")));
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    run(folder, &["run", "--no-input", "--session-id", "s"]);
    let before = receiver.seen().len();
    let child = call(folder, &["notify", "deliver", "--once"]).spawn().unwrap();
    receiver.wait_for(before + 3);
    let stderr = interrupted(folder, child).expect(1).stderr;
    let warning = format!(
        "warning: the channel `ops` failed, and is tried again: the server answered 500 Internal Server Error: oops {before}\n"
    );
    let expected = [
        &*warning,
        "what fails is tried again for 30 s\n",
        "warning: notifications of ops are not delivered yet\n",
        "  help: `inspan doctor` shows why; `inspan serve` and `inspan notify deliver` keep trying\n",
    ];
    let mut lines: Vec<&str> = stderr.split_inclusive('\n').collect();
    // What the run tried less than a second ago is not tried at once.
    lines[..2].sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn what_another_process_is_to_send_again_is_waited_for() {
    let receiver = Receiver::start(|number, _| match number {
        0..=2 => Answer::Status(500, "", "oops".to_owned()),
        _ => Answer::good(),
    });
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    run(folder, &["run", "--no-input", "--session-id", "s"]);
    let other = call(folder, &["notify", "deliver"]).spawn().unwrap();
    // The other process waits for some seconds from here on.
    receiver.wait_for(3);
    let mut cut = call(folder, &["notify", "deliver", "--once"]).spawn().unwrap();
    let mut stderr = std::io::BufReader::new(cut.stderr.take().unwrap());
    let mut said = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut said).unwrap();
    let waiting =
        "another process delivers notifications of ops, and tries again later: waiting for it for 30 s\n";
    assert_eq!(said, waiting);
    signal(&cut, "INT");
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert_eq!(cut.wait().unwrap().code(), Some(1));
    assert!(said.contains("warning: notifications of ops are not delivered yet"), "{said}");
    let delivered = run(folder, &["notify", "deliver", "--once"]);
    assert_eq!((delivered.code, receiver.seen().len()), (Some(0), 4), "{}", delivered.stderr);
    interrupted(folder, other).expect(0);
}

#[test]
fn a_record_that_cannot_be_read_is_named_with_what_helps() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    run(folder, &["run", "--no-input"]);
    let record = folder.join(".home/sessions.db-notifications");
    let why = "file is not a database; if it is moved away, a new one is made, and what happened before that is not sent";
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(folder.join(format!(".home/sessions.db-notifications{suffix}")));
    }
    fs::write(&record, "no database".repeat(1_000)).unwrap();
    let failed = run(folder, &["run", "--no-input"]).expect(1);
    // The console shows it, or the program once the console has ended.
    assert!(failed.stderr.contains(" no notifications: the record of notifications "), "{}", failed.stderr);
    assert!(failed.stderr.contains(why), "{}", failed.stderr);
    run(folder, &["notify", "deliver", "--once"]).expect(1).says(why);
    let problem = |folder: &Path| {
        run(folder, &["doctor", "--offline", "--json"]).json()["channels"][0]["problem"].clone()
    };
    let text = problem(folder).as_str().unwrap_or_default().to_owned();
    assert!(
        text.starts_with("nothing can be sent: the record of notifications ") && text.ends_with(why),
        "{text}"
    );
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    let text = problem(folder).as_str().unwrap_or_default().to_owned();
    assert!(text.contains("unable to open database file") && text.ends_with("is not sent"), "{text}");
    fs::remove_dir(&record).unwrap();
    run(folder, &["notify", "deliver", "--once"]).expect(0);
    assert_eq!(problem(folder), Value::Null);
}

#[test]
fn a_receiver_that_is_down_or_says_nothing_changes_no_run_and_what_it_missed_comes_later() {
    let silent = Receiver::start(|_, _| Answer::Silence);
    let folder = &folder(FAILS, &webhook(&silent, r#"["failure"]"#));
    let address = silent.address;
    run(folder, &["run", "--no-input", "--session-id", "slow"]).expect(1).says("not delivered yet");
    run(folder, &["doctor", "--offline"]).prints(" waiting to be sent: 1");
    drop(silent);
    run(folder, &["run", "--no-input", "--session-id", "down"]).expect(1);
    let receiver = Receiver::start_at(address, |_, _| Answer::good());
    run(folder, &["notify", "deliver", "--once"]).expect(0);
    let got: Vec<_> = by_event(&receiver.seen()).into_keys().collect();
    let expected = [worth(folder, "down"), worth(folder, "slow")].concat();
    assert_eq!(got, expected);
}

/// Two failures, a question and an end, with time between them.
const STEPS: &str = "
name: steps
nodes:
  - { id: a, type: exec, policy: { continueOnError: true }, input: { argv: [sh, -c, 'exit 1'] } }
  - { id: b, type: exec, dependsOn: [{ node: a, on: any }], policy: { continueOnError: true }, input: { argv: [sh, -c, 'sleep 0.5; exit 2'] } }
  - { id: c, type: human.input, dependsOn: [{ node: b, on: any }], input: { prompt: go, default: fine } }
  - { id: d, type: exec, dependsOn: [c], input: { argv: [sh, -c, 'sleep 0.5'] } }
";

#[test]
fn a_killed_run_loses_no_notification_and_none_has_two_ids() {
    // Killed before the first delivery is answered, after it, before the second is answered, and after it.
    for (kill_at, answers_first) in [(0, false), (0, true), (1, false), (1, true)] {
        let receiver = Receiver::start(|_, _| Answer::good());
        let held = Receiver::start(move |number, _| match number >= kill_at && !answers_first {
            true => Answer::Silence,
            false => Answer::good(),
        });
        let folder = &folder(STEPS, &webhook(&held, ALL));
        let child = call(folder, &["run", "--no-input", "--session-id", "s"]).spawn().unwrap();
        held.wait_for(kill_at + 1);
        kill(child);
        // The receiver is another from here on; what it is sent is counted with what the first one took.
        fs::write(folder.join("inspan.toml"), webhook(&receiver, ALL)).unwrap();
        let resumed = run(folder, &["resume", "s", "--no-input"]);
        assert!([Some(0), Some(6)].contains(&resumed.code), "{}", resumed.stderr);
        run(folder, &["notify", "deliver", "--once"]).expect(0);
        let seen = [held.seen(), receiver.seen()].concat();
        let got = by_event(&seen);
        let twice: Vec<_> = got.values().filter(|ids| ids.len() > 1).collect();
        assert_eq!(twice, Vec::<&Vec<String>>::new(), "{kill_at} {answers_first}");
        // The question was answered by its default at once, so it waited for nobody.
        let questions = inspan(folder, &["logs", "s", "--json", "--type", "session:prompt"]);
        let questions: Vec<u64> = questions
            .stdout
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
            .collect();
        let expected: Vec<_> =
            worth(folder, "s").into_iter().filter(|(_, seq)| !questions.contains(seq)).collect();
        let events: Vec<_> = got.into_keys().filter(|(_, seq)| !questions.contains(seq)).collect();
        assert_eq!(events, expected, "{kill_at} {answers_first}");
    }
}

#[test]
fn a_run_and_a_process_that_delivers_for_all_do_not_both_send() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(STEPS, &webhook(&receiver, ALL));
    // The store is there once the first session is.
    run(folder, &["run", "--no-input", "--session-id", "first"]);
    let all = call(folder, &["notify", "deliver"]).spawn().unwrap();
    for session in ["s1", "s2"] {
        let ended = run(folder, &["run", "--no-input", "--session-id", session]);
        assert!([Some(0), Some(6)].contains(&ended.code), "{}", ended.stderr);
    }
    // It delivers sessions of processes that are gone.
    let killed = call(folder, &["run", "--no-input", "--session-id", "s3"]).spawn().unwrap();
    receiver.wait_until(|seen| by_event(seen).keys().any(|(session, _)| session == "s3"));
    kill(killed);
    let is_all = |seen: &[Received]| {
        let got = by_event(seen);
        ["s1", "s2"].iter().all(|session| {
            let end = worth(folder, session).pop().unwrap();
            got.contains_key(&end)
        })
    };
    receiver.wait_until(is_all);
    interrupted(folder, all).expect(0);
    let seen = receiver.seen();
    let ids_of_each: Vec<usize> = by_event(&seen).values().map(Vec::len).collect();
    assert_eq!(ids_of_each, vec![1; ids_of_each.len()]);
    // What the killed process had sent may come again, with the same id; of the others nothing does.
    let of_others = seen.iter().filter(|request| request.json()["session"] != "s3");
    let ids: Vec<&str> = of_others.map(|request| request.headers["webhook-id"].as_str()).collect();
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), ids.len());
}

#[test]
fn a_refused_notification_is_given_up_and_blocks_no_other() {
    let is_bad = |request: &Received| request.json()["session"] == "bad";
    let receiver = Receiver::start(move |_, request| match is_bad(request) {
        true => Answer::Status(410, "retry-after: 1\r\n", "not here".to_owned()),
        false => Answer::good(),
    });
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    // The channel is known from here on.
    run(folder, &["run", "--no-input", "--session-id", "first"]);
    let all = call(folder, &["notify", "deliver"]).spawn().unwrap();
    // These runs do not have the key, so the other process sends for them.
    inspan(folder, &["run", "--no-input", "--session-id", "bad"]);
    receiver.wait_until(|seen| seen.iter().any(is_bad));
    inspan(folder, &["run", "--no-input", "--session-id", "good"]);
    let of =
        |seen: &[Received], session: &str| seen.iter().filter(|it| it.json()["session"] == session).count();
    let seen = receiver.wait_until(|seen| of(seen, "good") > 0);
    assert!(of(&seen, "bad") < 5, "the refused one was waited for");
    receiver.wait_until(|seen| of(seen, "bad") >= 5);
    let channel = || {
        let doctor = run(folder, &["doctor", "--offline", "--json"]);
        doctor.json()["channels"][0].clone()
    };
    until("it is given up", || channel()["givenUp"] != json!(0));
    let why = "the channel `ops` refused a notification of session `bad` 5 times, and it is given up: the server answered \
               410 Gone: not here";
    interrupted(folder, all).expect(0).says(why);
    let row = channel();
    let facts = [&row["givenUp"], &row["givenUpError"], &row["pending"]];
    assert_eq!(facts, [&json!(1), &json!("the server answered 410 Gone: not here"), &json!(0)]);
    let before = receiver.seen().len();
    run(folder, &["notify", "deliver", "--once"]).expect(0);
    assert_eq!(receiver.seen().len(), before);
}

#[test]
fn a_notification_that_is_given_up_is_not_delivered() {
    let receiver = Receiver::start(|_, _| Answer::Status(401, "", "no".to_owned()));
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    run(folder, &["run", "--no-input", "--session-id", "s"]).expect(1);
    let refused = run(folder, &["notify", "deliver", "--once", "--json"]);
    assert_eq!((refused.code, receiver.seen().len()), (Some(1), 5), "{}", refused.stderr);
    let expected = json!({ "isDelivered": false, "undelivered": [], "refused": ["ops"] });
    assert_eq!(refused.json(), expected);
    // Nothing is left of it.
    let after = run(folder, &["notify", "deliver", "--once", "--json"]).expect(0);
    assert_eq!(after.json()["isDelivered"], json!(true));
}

#[test]
fn a_channel_that_cannot_be_opened_is_not_tried_again() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    inspan(folder, &["run", "--no-input", "--session-id", "s"]).expect(1);
    let began = Instant::now();
    let once = inspan(folder, &["notify", "deliver", "--once", "--json"]).expect(1);
    assert_eq!(once.json(), json!({ "isDelivered": false, "undelivered": ["ops"], "refused": [] }));
    assert!(!once.stderr.contains("tried again"), "{}", once.stderr);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    run(folder, &["notify", "deliver", "--once"]).expect(0);
    assert_eq!(receiver.seen().len(), 1);
}

#[test]
fn a_session_that_cannot_be_read_blocks_no_other() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(FAILS, &webhook(&receiver, r#"["failure"]"#));
    // The channel is known from here on.
    run(folder, &["run", "--no-input", "--session-id", "first"]);
    for session in ["bad", "good"] {
        inspan(folder, &["run", "--no-input", "--session-id", session]);
    }
    let store = folder.join(".home/sessions.db");
    let mut bytes = fs::read(&store).unwrap();
    let phase = br#""sessionId":"bad","phase":"Run Flow""#;
    let found: Vec<_> = (0..bytes.len() - phase.len()).filter(|at| bytes[*at..].starts_with(phase)).collect();
    assert!(!found.is_empty());
    found.iter().for_each(|at| bytes[at + phase.len() - 2] = b'x');
    fs::write(&store, bytes).unwrap();
    let delivered = run(folder, &["notify", "deliver", "--once"]);
    let told =
        delivered.stderr.matches("the channel `ops` cannot read session `bad`, and tries it again").count();
    assert_eq!((delivered.code, told), (Some(1), 1), "{}", delivered.stderr);
    let sent: Vec<_> = receiver.seen().iter().map(|request| request.json()["session"].clone()).collect();
    assert_eq!(sent, ["first", "good"]);
    // Once it is deleted nothing is left to send.
    run(folder, &["store", "gc", "bad"]).expect(0);
    let delivered = run(folder, &["notify", "deliver", "--once"]);
    assert_eq!((delivered.code, delivered.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_flood_is_one_message_that_counts_what_it_does_not_list() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let flow = "
name: flood
nodes:
  - id: each
    type: control.foreach
    input: { items: '{{ range(42) | list }}', onItemError: continue }
    body:
      nodes:
        - { id: one, type: control.fail, input: { message: 'no {{ item }}' } }
";
    let folder = &folder(flow, &webhook(&receiver, r#"["failure"]"#));
    let ended = run(folder, &["run", "--no-input", "--session-id", "s"]);
    let failed = worth(folder, "s");
    assert!(failed.len() >= 42, "{}", ended.report());
    let messages: Vec<Value> = receiver.seen().iter().map(Received::json).collect();
    let counts: Vec<(usize, u64)> = messages
        .iter()
        .map(|message| (message["notices"].as_array().unwrap().len(), message["more"].as_u64().unwrap_or(0)))
        .collect();
    let all: u64 = counts.iter().map(|(listed, more)| *listed as u64 + more).sum();
    assert!(counts.len() <= 4 && counts.iter().all(|(listed, _)| *listed <= 5), "{counts:?}");
    // The end of a session that failed is one more failure.
    assert!(all == 42 || all == 43, "{all}");
}

#[test]
fn a_channel_is_sent_only_what_it_wants_of_the_flows_that_it_wants() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let settings = webhook(&receiver, r#"["end"]"#) + "flows = [\"night-*\"]\n";
    let folder = &folder(FAILS, &settings);
    run(folder, &["run", "--no-input"]);
    fs::write(folder.join("flow.yaml"), FAILS.replace("name: fails", "name: night-fails")).unwrap();
    run(folder, &["run", "--no-input"]);
    let kinds: Vec<(Value, Value)> = receiver
        .seen()
        .iter()
        .map(Received::json)
        .map(|it| (it["flow"].clone(), it["notices"][0]["kind"].clone()))
        .collect();
    assert_eq!(kinds, [(json!("night-fails"), json!("end"))]);
}

#[test]
fn ntfy_gets_a_message_without_buttons_that_lead_nowhere() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let settings = format!(
        "[channels.phone]\ntype = \"ntfy\"\nserver = \"http://{}\"\ntopicEnv = \"TOPIC\"\ntokenEnv = \"NTFY_TOKEN\"\n",
        receiver.address
    );
    let folder = &folder(GATE, &settings);
    let mut command = call(folder, &["run", "--no-input", "--session-id", "s"]);
    command.env("TOPIC", "oxen-of-mine").env("NTFY_TOKEN", "tk_0123456789");
    ran(folder, &mut command).expect(3);
    let [only] = receiver.seen().try_into().unwrap_or_else(|seen| panic!("{seen:?}"));
    let Received { path, headers, .. } = &only;
    assert_eq!((path.as_str(), headers["authorization"].as_str()), ("/", "Bearer tk_0123456789"));
    let mut body = only.json();
    assert!(body["sequence_id"].take().as_str().unwrap().starts_with("ntf-"));
    assert_eq!(
        body,
        json!({
            "topic": "oxen-of-mine", "title": "oxen: `gate` asks a question", "priority": 4, "tags": ["question"],
            "message": "Ship it?\n    inspan reply s gate.1 --choice yes\n    inspan reply s gate.1 --choice no\n\nsession s",
            "sequence_id": null,
        })
    );
}

#[test]
fn a_command_reads_the_message_and_the_desktop_shows_it() {
    let settings = "
[channels.script]
type = \"command\"
argv = [\"sh\", \"-c\", \"cat > message.json; env > env.txt\"]
env = [\"OPS_KEY\"]

[channels.screen]
type = \"desktop\"
";
    let folder = &folder(GATE, settings);
    let bin = folder.join("bin");
    fs::create_dir(&bin).unwrap();
    let program = bin.join("notify-send");
    write_program(&program, "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done > desktop.txt\n")
        .unwrap();
    let mut command = call(folder, &["run", "--no-input", "--session-id", "s"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env("OTHER_TOKEN", "other-token-12345");
    ran(folder, &mut command).expect(3);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let message: Value = serde_json::from_str(&read("message.json")).unwrap();
    assert_eq!(message["title"], "oxen: `gate` asks a question");
    let env = read("env.txt");
    assert!(env.contains(&format!("INSPAN_DELIVERY={}", message["id"].as_str().unwrap())), "{env}");
    assert_eq!([env.contains("OPS_KEY="), env.contains("OTHER_TOKEN")], [true, false]);
    assert_eq!(
        read("desktop.txt"),
        "--app-name=inspan\n--urgency=critical\n--\noxen: `gate` asks a question\nShip it?\n    inspan reply s gate.1 --choice yes\n    inspan reply s gate.1 --choice no\n\nsession s\n"
    );
}

#[test]
fn a_run_in_the_background_that_waits_for_a_person_tries_again_what_failed() {
    let script = "[ -e tried ] || { touch tried; exit 1; }; cat > message.json";
    let settings =
        format!("[channels.phone]\ntype = \"command\"\nargv = [\"sh\", \"-c\", \"cd $HOME; {script}\"]\n");
    let folder = &folder(GATE, &settings);
    run(folder, &["run", "flow.yaml", "--detach"]).expect(0);
    let message = || fs::read_to_string(folder.join("message.json")).unwrap_or_default();
    until("the message is sent", || message().contains("Ship it?"));
    // Its process ends then: nothing is left.
    until("nothing is left", || run(folder, &["notify", "deliver", "--once"]).stderr.is_empty());
}

#[test]
fn a_signal_ends_a_run_in_the_background_that_tries_again_what_failed() {
    let settings =
        "[channels.phone]\ntype = \"command\"\nargv = [\"sh\", \"-c\", \"touch $HOME/tried; exit 1\"]\n";
    // Once it waits for nothing but its channel, and once it runs until the signal pauses it.
    let works = format!("{GATE}  - {{ id: works, type: exec, input: {{ argv: [sleep, '60'] }} }}\n");
    for (flow, rests) in [(GATE, "waiting"), (works.as_str(), "paused")] {
        let folder = &folder(flow, settings);
        let started = run(folder, &["run", "flow.yaml", "--detach", "--session-id", "s", "--json"]);
        let process = started.expect(0).json()["pid"].to_string();
        until("it is tried", || folder.join("tried").exists());
        let status = || run(folder, &["ps", "--all", "--json"]).json()[0]["state"].clone();
        until("it rests", || rests == "paused" || status() == rests);
        let began = tokio::time::Instant::now();
        let signalled = Command::new("kill").args(["-TERM", &process]).status().unwrap();
        assert!(signalled.success());
        let runs = || Command::new("kill").args(["-0", &process]).output().unwrap().status.success();
        until("it ends", || !runs());
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        assert_eq!(status(), rests);
    }
}

#[test]
fn a_relative_program_of_a_channel_is_in_the_folder_of_its_settings() {
    let settings = "[channels.script]\ntype = \"command\"\nargv = [\"./notify.sh\"]\n";
    let folder = &folder_with(&[("project/flow.yaml", GATE), ("project/inspan.toml", settings)]);
    let program = folder.join("project/notify.sh");
    write_program(&program, "#!/bin/sh\ncat > \"$HOME/message.json\"\n").unwrap();
    let asked = run(folder, &["run", "project", "--no-input", "--session-id", "s"]).expect(3);
    let message = fs::read_to_string(folder.join("message.json"));
    let message: Value = serde_json::from_str(&message.expect(&asked.stderr)).unwrap();
    assert_eq!(message["session"], "s");
}

#[test]
fn doctor_says_that_a_channel_sends_nothing_or_has_no_program() {
    let channel = |name: &str, keys: &str| format!("[channels.{name}]\ntype = {keys}\n");
    let settings = channel("screen", "\"desktop\"")
        + &channel("quiet", "\"command\"\nargv = [\"sh\"]\non = []")
        + &channel("pager", "\"command\"\nargv = [\"no-such-pager\"]")
        + &channel("script", "\"command\"\nargv = [\"./flow.yaml\"]");
    let folder = &folder(FAILS, &settings);
    write_program(&folder.join("sh"), "").unwrap();
    let mut command = call(folder, &["doctor", "--offline"]);
    let doctor = ran(folder, command.env("PATH", folder)).stdout;
    let row = |name: &str| {
        let rows: Vec<&str> = doctor.lines().filter(|line| line.contains(&format!(" {name} "))).collect();
        let [row] = rows[..] else { panic!("{name}: {doctor}") };
        row.to_owned()
    };
    assert!(row("quiet").ends_with(" sends nothing by itself: `on` is empty"), "{doctor}");
    for name in ["screen", "pager", "script"] {
        let row = row(name);
        assert!(row.contains('✘') && row.ends_with(" is not there, or cannot be run"), "{row}");
    }
}

#[test]
fn a_channel_is_tested_and_a_wrong_one_is_refused() {
    let receiver = Receiver::start(|number, _| if number == 0 { Answer::Broken } else { Answer::good() });
    let folder = &folder(FAILS, &webhook(&receiver, ALL));
    let tested = run(folder, &["notify", "test", "ops"]);
    assert_eq!((tested.code, tested.stderr.as_str()), (Some(0), "sent through `ops`\n"));
    let seen = receiver.seen();
    assert_eq!((seen.len(), &seen[1].json()["notices"][0]["kind"]), (2, &json!("test")));
    let unknown = run(folder, &["notify", "test", "opps"]).refused("unknown channel `opps`");
    assert!(unknown.stderr.ends_with("\n  help: did you mean `ops`?\n"), "{}", unknown.stderr);
    let without_channels = &self::folder(FAILS, "");
    inspan(without_channels, &["notify", "test", "ops"]).refused("unknown channel `ops`");
    inspan(folder, &["notify", "test", "ops"])
        .expect(4)
        .says("error: channel `ops`: the environment variable OPS_KEY is not set\n");
    let rows = [
        (
            "[channels.ops]\ntype = \"webhook\"\nurl = \"https://h/\"\nsecret = \"x\"\n",
            ":1: channel `ops`: `secretEnv` is missing",
        ),
        (
            "[channels.ops]\ntype = \"desktop\"\n\nwhen = 1\n",
            ":4: channel `ops`: `when`: a channel of type `desktop` has no `when`",
        ),
        ("[channels.'a b']\ntype = \"desktop\"\n", ":1: `a b` is not a channel name"),
        (
            "[channels.ops]\ntype = \"ntfy\"\ntopic = \"xoxb-1234567890-abcdefghijkl\"\n",
            ":3: `topic` looks like a secret",
        ),
    ];
    for (text, expected) in rows {
        fs::write(folder.join("inspan.toml"), text).unwrap();
        let refused = run(folder, &["config"]);
        let expected = format!("error: ~/inspan.toml{expected}");
        assert_eq!(
            (refused.code, refused.stderr.starts_with(&expected)),
            (Some(4), true),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn the_digest_names_failures_first_then_money_what_waits_and_what_was_done() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(GATE, "");
    run(folder, &["run", "--no-input", "--session-id", "waits"]);
    run(folder, &["run", "--no-input", "--session-id", "failed"]);
    run(folder, &["reply", "failed", "--choice", "yes"]);
    let echo = "name: said\nnodes:\n  - { id: a, type: echo.agent, input: { prompt: hello } }\n";
    fs::write(folder.join("flow.yaml"), echo).unwrap();
    run(folder, &["run", "--no-input", "--session-id", "done"]);
    let golden = |name: &str, arguments: &[&str]| {
        let digest = run(folder, arguments);
        assert_eq!((digest.code, digest.stderr.as_str()), (Some(0), ""));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots").join(name);
        check_golden(path, &digest.report()).unwrap();
    };
    golden("digest.txt", &["digest"]);
    golden("digest.md.txt", &["digest", "--markdown", "--since", "1h"]);
    let json = run(folder, &["digest", "--json"]);
    let json = json.json();
    let names = |key: &str| -> Vec<String> {
        json[key]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["session"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!([names("failed"), names("waiting"), names("done")], [["failed"], ["waits"], ["done"]]);
    let old = run(folder, &["digest", "--json", "--since", "0s"]);
    let old = old.json();
    // What waits is never too old.
    assert_eq!([&old["failed"], &old["done"]], [&json!([]), &json!([])]);
    assert_eq!(old["waiting"].as_array().unwrap().len(), 1);
    // A project's file does not say where a digest of all sessions goes.
    fs::write(folder.join("inspan.toml"), webhook(&receiver, ALL)).unwrap();
    run(folder, &["digest", "--send", "ops"]).expect(2);
    fs::create_dir_all(folder.join(".config/inspan")).unwrap();
    fs::rename(folder.join("inspan.toml"), folder.join(".config/inspan/config.toml")).unwrap();
    run(folder, &["digest", "--send", "ops"]).expect(0);
    let message = receiver.wait_for(1)[0].json();
    assert_eq!(message["title"], "Inspan, 12h: 1 failed, 1 waiting for you, 1 done, $0 for 2 tokens");
    assert!(message["notices"][0]["text"].as_str().unwrap().contains("inspan why failed"));
    // An answer that no process has applied waits, too; and a replay is not told of.
    fs::write(folder.join("flow.yaml"), GATE).unwrap();
    run(folder, &["run", "--no-input", "--session-id", "stored"]);
    run(folder, &["reply", "stored", "--choice", "yes", "--no-resume"]);
    fs::write(folder.join("flow.yaml"), echo).unwrap();
    run(folder, &["run", "--session-id", "again", "--record", "tape"]);
    let before = run(folder, &["digest", "--json"]).json();
    run(folder, &["run", "--session-id", "replayed", "--replay", "tape"]).expect(0);
    let after = run(folder, &["digest", "--json"]).json();
    assert_eq!([&after["spent"], &after["done"]], [&before["spent"], &before["done"]]);
    let stored =
        after["waiting"].as_array().unwrap().iter().find(|item| item["session"] == "stored").unwrap();
    assert_eq!(stored["commands"], json!(["inspan resume stored"]), "{stored}");
    // Of many failed nodes it names the first, and says how many more there are.
    let many = "name: many\nnodes:\n  - id: each\n    type: control.foreach
    input: { items: '{{ range(12) | list }}', onItemError: continue }
    body: { nodes: [{ id: bad, type: exec, input: { argv: ['false'] } }] }\n";
    fs::write(folder.join("flow.yaml"), many).unwrap();
    run(folder, &["run", "--session-id", "many"]).expect(0);
    let json = run(folder, &["digest", "--json"]).json();
    let done = json["done"].as_array().unwrap().iter().find(|session| session["session"] == "many").unwrap();
    let named = done["errors"].as_array().unwrap().iter().map(|failed| failed["node"].as_str().unwrap());
    assert_eq!(named.collect::<Vec<_>>(), [0, 1, 2, 3, 4].map(|item| format!("each[{item}]/bad")));
    assert_eq!(done["moreErrors"], 7, "{done}");
    run(folder, &["digest"]).prints("and 7 more failed nodes");
}

/// Items that fail one after the other, for some seconds.
const ITEMS: &str = "
name: nightly
nodes:
  - id: tickets
    type: control.foreach
    input: { items: '{{ range(12) | list }}', onItemError: continue, maxConcurrency: 1 }
    body:
      nodes:
        - { id: work, type: exec, input: { argv: [sh, -c, 'sleep 0.6; exit 3'] } }
";

/// How many notices the messages list, and how many they count beside.
fn told(seen: &[Received]) -> u64 {
    let messages = seen.iter().map(Received::json);
    let count = |it: Value| it["notices"].as_array().unwrap().len() as u64 + it["more"].as_u64().unwrap_or(0);
    messages.map(count).sum()
}

#[test]
fn what_a_killed_run_had_gathered_is_told_once_by_the_one_that_resumes_it() {
    let receiver = Receiver::start(|_, _| Answer::good());
    let folder = &folder(ITEMS, &webhook(&receiver, r#"["failure"]"#));
    let child = call(folder, &["run", "--no-input", "--session-id", "s"]).spawn().unwrap();
    receiver.wait_for(1);
    until("some have failed", || worth(folder, "s").len() >= 4);
    kill(child);
    let before = receiver.seen();
    // It cannot take the session at once: another process writes to the store meanwhile.
    let script = "import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('BEGIN IMMEDIATE')
print('locked', flush=True)
time.sleep(1.5)";
    let store = folder.join(".home/sessions.db");
    let mut writer = Command::new("python3");
    let mut writer = writer.args(["-c", script]).arg(store).stdout(Stdio::piped()).spawn().unwrap();
    writer.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    run(folder, &["resume", "s", "--no-input"]);
    writer.wait().unwrap();
    let seen = receiver.seen();
    assert_eq!((before.len(), seen.len(), told(&seen)), (1, 2, 12));
}
