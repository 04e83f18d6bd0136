//! Damaged stores, as their users see them.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::Stdio,
};

use inspan_protocol::{Envelope, Event};

use crate::{
    processes,
    program::{Folder, flow_folder, folder_with, home, inspan, program, ran},
    stored::{Driven, Stored},
};

/// Makes the list entry of a session unreadable, as a flipped bit would.
fn harm(folder: &Path, id: &str) {
    const BEGIN: &[u8] = br#"{"status":"#;
    let path = home(folder).join("sessions.db");
    let mut bytes = fs::read(&path).unwrap();
    let mut harmed = 0;
    for at in 0..bytes.len() - BEGIN.len() {
        let row = &bytes[at.saturating_sub(400)..at];
        if bytes[at..].starts_with(BEGIN) && row.windows(id.len()).any(|name| name == id.as_bytes()) {
            bytes[at] = b'[';
            harmed += 1;
        }
    }
    assert!(harmed > 0);
    fs::write(path, bytes).unwrap();
}

/// A store with one sound session and one that cannot be read.
fn harmed() -> Folder {
    let folder = folder_with(&[]);
    let stored = Stored::new(&folder);
    stored.session("harmed-session", "human_input", Some(17), Driven::Left);
    stored.session("good", "review_loop", None, Driven::Left);
    drop(stored);
    harm(&folder, "harmed-session");
    folder
}

fn states(folder: &Path) -> Vec<(String, String)> {
    let ran = inspan(folder, &["ps", "--all", "--json"]);
    let list = ran.json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(|entry| (text(&entry["sessionId"]), text(&entry["state"]))).collect()
}

fn pairs(rows: &[(&str, &str)]) -> Vec<(String, String)> {
    rows.iter().map(|(id, state)| ((*id).to_owned(), (*state).to_owned())).collect()
}

#[test]
fn one_session_that_cannot_be_read_is_one_line() {
    let folder = &harmed();
    let why = "its digest does not parse";
    assert_eq!(states(folder), pairs(&[("good", "success"), ("harmed-session", "damaged")]));
    for (arguments, code, on_stdout, on_stderr) in [
        (&["ps"][..], 0, why, ""),
        (&["inbox"], 0, "", "warning: the questions of session `harmed-session` cannot be read: its digest"),
        (&["show", "harmed"], 1, "", why),
        (&["why", "harmed"], 1, "", why),
        (&["logs", "harmed"], 1, "", why),
        (&["resume", "harmed"], 1, "", why),
        (&["store", "verify"], 1, why, ""),
        (&["show", "good"], 0, "good", ""),
        (&["store", "gc", "--older-than", "3000d"], 0, "", "0 sessions deleted"),
        (&["store", "gc", "nosuch"], 2, "", "there is no session `nosuch`"),
        (&["store", "gc", "--dry-run", "harmed-session"], 0, "", "harmed-session: would be deleted"),
        (&["store", "gc", "harmed-session"], 0, "", "harmed-session: deleted, 17 events"),
    ] {
        let ran = inspan(folder, arguments);
        let seen = (ran.code, ran.stdout.contains(on_stdout), ran.stderr.contains(on_stderr));
        assert_eq!(seen, (Some(code), true, true), "{arguments:?}\n{}\n{}", ran.stdout, ran.stderr);
    }
    assert_eq!(states(folder), pairs(&[("good", "success")]));
    inspan(folder, &["store", "verify"]).expect(0);
}

#[test]
fn accepting_the_loss_repairs_what_cannot_be_listed() {
    let folder = &harmed();
    inspan(folder, &["store", "accept-loss"]).expect(0);
    assert_eq!(states(folder), pairs(&[("good", "success"), ("harmed-session", "waiting")]));
    inspan(folder, &["store", "verify"]).expect(0);
}

#[test]
fn an_earlier_export_is_kept_if_the_session_is_damaged_by_now() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("s", "review_loop", None, Driven::Left);
    drop(stored);
    let export = ["store", "export", "s", "-o", "s.jsonl"];
    inspan(folder, &export).expect(0);
    let whole = fs::read_to_string(folder.join("s.jsonl")).unwrap();
    // A whole one replaces it, and nothing is left beside it.
    inspan(folder, &export).expect(0);
    assert!(!folder.join("s.jsonl.part").exists());
    // A file of that name that holds something else is left alone.
    fs::write(folder.join("s.jsonl.part"), "mine").unwrap();
    inspan(folder, &export).expect(2).says("s.jsonl.part");
    assert_eq!(fs::read_to_string(folder.join("s.jsonl.part")).unwrap(), "mine");
    fs::remove_file(folder.join("s.jsonl.part")).unwrap();
    // So is the export that a link of that name leads to.
    fs::write(folder.join("other.jsonl"), whole.replacen('\n', "\n\n", 1)).unwrap();
    let other = fs::read_to_string(folder.join("other.jsonl")).unwrap();
    std::os::unix::fs::symlink("other.jsonl", folder.join("s.jsonl.part")).unwrap();
    inspan(folder, &export).expect(0);
    assert_eq!(fs::read_to_string(folder.join("other.jsonl")).unwrap(), other);
    let store = home(folder).join("sessions.db");
    let mut bytes = fs::read(&store).unwrap();
    let event = br#""task:complete""#;
    let at = bytes.windows(event.len()).position(|found| found == event).unwrap();
    bytes[at + 1] = b'T';
    fs::write(&store, bytes).unwrap();
    inspan(folder, &export)
        .expect(1)
        .says("only the events before the damage were exported")
        .says("s.jsonl.part");
    assert_eq!(fs::read_to_string(folder.join("s.jsonl")).unwrap(), whole);
    let part = fs::read_to_string(folder.join("s.jsonl.part")).unwrap();
    assert!(part.lines().count() > 1 && part.lines().count() < whole.lines().count(), "{part}");
    // Without an earlier one the part is in the file itself.
    inspan(folder, &["store", "export", "s", "-o", "new.jsonl"]).expect(1);
    assert_eq!(fs::read_to_string(folder.join("new.jsonl")).unwrap(), part);
}

#[test]
fn the_sessions_of_a_cluster_are_not_those_of_this_machine() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("ended", "review_loop", None, Driven::Left);
    drop(stored);
    let engine = "temporal://there.invalid/default?sessions=/srv/it";
    for arguments in [
        &["store", "verify"][..],
        &["store", "export", "ended"],
        &["store", "import", "-"],
        &["store", "gc", "--older-than", "1s"],
        &["store", "gc", "ended"],
        &["store", "accept-loss"],
    ] {
        let by_option = inspan(folder, &[arguments, &["--engine", engine]].concat());
        let mut call = program(folder, arguments);
        let by_variable = ran(folder, call.env("INSPAN_ENGINE", engine));
        for refused in [by_option, by_variable] {
            let seen =
                (refused.code, refused.stderr.contains("`--engine local` means the store of this machine"));
            assert_eq!(seen, (Some(2), true), "{arguments:?}: {}", refused.stderr);
        }
    }
    assert_eq!(states(folder), pairs(&[("ended", "success")]));
    let mut here = program(folder, &["store", "gc", "ended", "--engine", "local"]);
    ran(folder, here.env("INSPAN_ENGINE", engine)).expect(0);
    assert_eq!(states(folder), []);
}

/// Copies a store as its owner's death would leave it, without its write-ahead log.
fn without_log(from: &Path) -> Folder {
    let to = folder_with(&[]);
    fs::create_dir(home(&to)).unwrap();
    for name in ["sessions.db", "sessions.db-marks"] {
        fs::copy(home(from).join(name), home(&to).join(name)).unwrap();
    }
    fs::write(to.join("flow.yaml"), "name: f\nnodes: [{ id: a, type: control.noop }]\n").unwrap();
    to
}

#[test]
fn what_is_lost_is_called_lost_by_every_verb() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    // All that the store has is still in the log.
    stored.session("first", "human_input", Some(14), Driven::Left);
    let whole = &without_log(folder);
    drop(stored);
    let stored = Stored::new(folder);
    stored.session("second", "human_input", Some(9), Driven::Left);
    let part = &without_log(folder);
    let lost = |id: &str, last: u64| format!("session `{id}` is missing, with all events up to {last}");
    for (folder, id, last) in [(&whole, "first", 14), (&part, "second", 9)] {
        let path = folder;
        for verb in ["show", "logs", "why", "resume", "inbox"] {
            let ran = inspan(path, &[verb, id]);
            let seen = (ran.code, ran.stderr.contains(&lost(id, last)));
            assert_eq!(seen, (Some(1), true), "{verb}: {}", ran.stderr);
        }
        for _ in 0..2 {
            inspan(path, &["run", "flow.yaml"]).expect(1).says(&lost(id, last));
        }
    }
    inspan(whole, &["ps"]).expect(1).says(&lost("first", 14));
    assert_eq!(states(part), pairs(&[("second", "damaged"), ("first", "interrupted")]));
    for folder in [&whole, &part] {
        inspan(folder, &["store", "accept-loss"]).expect(0);
        inspan(folder, &["run", "flow.yaml"]).expect(0);
        inspan(folder, &["store", "verify"]).expect(0);
    }
}

const WAITS: &str = "
name: waits
nodes:
  - { id: a, type: exec, input: { argv: [sh, -c, 'echo > begun; until [ -e go ]; do sleep 0.02; done'] } }
  - { id: b, type: exec, dependsOn: [a], input: { argv: ['true'] } }
";

#[test]
fn a_run_whose_store_is_deleted_does_not_succeed() {
    let path = &flow_folder(WAITS);
    let mut child = program(path, &["run", "flow.yaml", "--session-id", "s", "--events", "-"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let event = |line: String| serde_json::from_str::<Envelope>(&line).unwrap().event;
    assert!(lines.any(|line| matches!(event(line.unwrap()), Event::TaskStart { .. })));
    // Once the program runs, all is stored, and the folder for its files is made.
    processes::until("the program runs", || path.join("begun").exists());
    fs::remove_dir_all(home(path)).unwrap();
    fs::write(path.join("go"), "").unwrap();
    let last = lines.map(|line| event(line.unwrap())).last();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = child.wait().unwrap().code();
    let seen = (code, stderr.contains("was moved, replaced or deleted while it was in use"));
    assert_eq!(seen, (Some(1), true), "{last:?}\n{stderr}");
}

#[test]
fn a_session_that_nobody_drives_is_followed_no_further() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("dead", "human_input", Some(5), Driven::ByNobody);
    let ran = inspan(folder, &["logs", "dead", "-f"]);
    let expected = "the session is interrupted; continue with `inspan resume dead`\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), expected));
}

#[test]
fn a_name_that_no_event_has_is_a_mistake() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("s", "human_input", None, Driven::Left);
    for (names, code, part) in [
        ("bogus", 2, "`--type`: no event is called `bogus`"),
        ("agent:*,task:faild", 2, "did you mean `task:failed`?"),
        ("agnt:*", 2, "no event is called `agnt:*`"),
        ("task:*, _mine:*", 0, ""),
    ] {
        let ran = inspan(folder, &["logs", "s", "--type", names]);
        assert_eq!((ran.code, ran.stderr.contains(part)), (Some(code), true), "{names}: {}", ran.stderr);
    }
}

#[test]
fn a_log_from_its_middle_is_the_end_of_the_whole() {
    let folder = &folder_with(&[]);
    let stored = Stored::new(folder);
    stored.session("s", "review_loop", None, Driven::Left);
    let whole = inspan(folder, &["logs", "s"]).stdout;
    for from in [1, 9, 23] {
        let text = inspan(folder, &["logs", "s", "--from", &from.to_string()]).stdout;
        let seq = |line: &&str| line.split_whitespace().next().and_then(|seq| seq.parse().ok()) >= Some(from);
        assert_eq!(text.lines().collect::<Vec<_>>(), whole.lines().filter(seq).collect::<Vec<_>>());
    }
}
