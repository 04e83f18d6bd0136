//! Stores, exports and recordings of every released format are read, resumed, forked and replayed. The files in
//! `fixtures/stores` are never written again: they are what users have on their disks.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::program::{Folder, Ran, folder_with, home, program, ran};

const FAILED: &str = "flow-461b295f2bf1666d";
const WAITING: &str = "flow-48228a3892dcd231";
const CRASHED: &str = "flow-58817e2ad8cd8957";
const FINISHED: &str = "flow-e4701826ec54479a";

/// Each session with its flow, its state and how many events it has.
const SESSIONS: [(&str, &str, &str, u64); 4] = [
    (CRASHED, "crashed", "interrupted", 9),
    (FAILED, "failed", "failed", 17),
    (FINISHED, "finished", "success", 60),
    (WAITING, "waiting", "waiting", 12),
];

/// The formats, oldest first: each has the same sessions.
const FORMATS: [&str; 2] = ["format-1", "format-2"];

fn fixtures(format: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/stores").join(format)
}

/// For each format a folder with a copy of its store, and a folder `work` in which the commands of the flows leave
/// files.
fn old_stores() -> impl Iterator<Item = (&'static str, Folder)> {
    // The sessions of format 2 ran in this folder, and their programs start in it again.
    fs::create_dir_all("/tmp/golden").unwrap();
    FORMATS.into_iter().map(|format| {
        let folder = folder_with(&[]);
        fs::create_dir_all(home(&folder)).unwrap();
        for name in ["sessions.db", "sessions.db-wal", "sessions.db-marks"] {
            fs::copy(fixtures(format).join(name), home(&folder).join(name)).unwrap();
        }
        fs::create_dir(folder.join("work")).unwrap();
        (format, folder)
    })
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program(folder, arguments);
    command.env("GOLDEN", folder.join("work"));
    command
}

fn inspan(folder: &Folder, arguments: &[&str]) -> Ran {
    ran(folder, &mut command(folder, arguments))
}

/// The output of a call that succeeds and prints JSON.
fn json_of(folder: &Folder, arguments: &[&str]) -> Value {
    let ran = inspan(folder, arguments);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}: {}", ran.stdout);
    ran.json()
}

/// The lines that the commands of the flows wrote into this file.
fn lines(folder: &Folder, file: &str) -> usize {
    fs::read_to_string(folder.join("work").join(file)).map_or(0, |text| text.lines().count())
}

fn statuses(folder: &Folder, session: &str) -> Vec<(String, Value)> {
    let shown = json_of(folder, &["show", session, "--json"]);
    let nodes = shown["nodes"].as_object().unwrap();
    nodes.iter().map(|(name, node)| (name.clone(), node["status"].clone())).collect()
}

#[test]
fn every_session_of_an_old_store_is_listed_shown_and_explained() {
    for (format, folder) in old_stores() {
        is_listed_shown_and_explained(format, &folder);
    }
}

fn is_listed_shown_and_explained(format: &str, folder: &Folder) {
    let listed = json_of(folder, &["ps", "-a", "--json"]);
    let mut found: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|session| json!([session["sessionId"], session["flow"], session["state"], session["lastSeq"]]))
        .collect();
    found.sort_by_key(ToString::to_string);
    let mut expected = SESSIONS.map(|(id, flow, state, events)| json!([id, flow, state, events]));
    expected.sort_by_key(ToString::to_string);
    assert_eq!(found, expected, "{format}");

    for (session, flow, _, _) in SESSIONS {
        for arguments in [&["show", session][..], &["why", session], &["logs", session]] {
            inspan(folder, arguments).expect(0).prints(flow);
        }
        let exported = inspan(folder, &["store", "export", session]);
        let before = fs::read_to_string(fixtures(format).join(format!("exports/{flow}.jsonl"))).unwrap();
        let events = |export: &str| -> Vec<Value> {
            let values = export.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            values.filter(|line| line.get("format").is_none()).collect()
        };
        assert_eq!(events(&exported.stdout), events(&before), "{format}: {flow}");
    }
    inspan(folder, &["store", "verify"]).expect(0);
}

#[test]
fn a_crashed_session_of_an_old_store_runs_nothing_twice() {
    for (format, folder) in old_stores() {
        fs::write(folder.join("work/go"), "").unwrap();
        let resumed = inspan(&folder, &["resume", CRASHED]);
        assert_eq!(resumed.code, Some(0), "{format}: {}", resumed.stderr);
        assert_eq!(lines(&folder, "paid"), 0, "{format}: `first` was finished and must not run again");
        let complete = ["after", "first", "slow"].map(|name| (name.to_owned(), json!("complete")));
        assert_eq!(statuses(&folder, CRASHED), complete, "{format}");
        // A copy that an older program can still read is beside it.
        let backup = home(&folder).join("sessions.db-format-1.backup");
        assert_eq!(backup.exists(), format == "format-1");
    }
}

#[test]
fn a_failed_session_of_an_old_store_resumes_at_the_failure() {
    for (format, folder) in old_stores() {
        fs::write(folder.join("work/fixed"), "").unwrap();
        let resumed = inspan(&folder, &["resume", FAILED]);
        let done = (Some(0), "done\n");
        assert_eq!((resumed.code, resumed.stdout.as_str()), done, "{format}: {}", resumed.stderr);
        assert_eq!(lines(&folder, "tries"), 1, "{format}");
    }
}

#[test]
fn a_question_of_an_old_store_is_answered() {
    for (format, folder) in old_stores() {
        let replied = inspan(&folder, &["reply", WAITING, "--choice", "yes"]);
        assert_eq!(replied.code, Some(0), "{format}: {}", replied.stderr);
        let complete = ["end", "first", "ok"].map(|name| (name.to_owned(), json!("complete")));
        assert_eq!(statuses(&folder, WAITING), complete, "{format}");
    }
}

#[test]
fn a_finished_session_of_an_old_store_is_forked() {
    for (format, folder) in old_stores() {
        let forked = inspan(&folder, &["fork", FINISHED, "--at", "end", "--session-id", "forked"]);
        assert_eq!(
            (forked.code, forked.stdout.lines().last()),
            (Some(0), Some("end: Hello begin, pass 2")),
            "{format}: {}",
            forked.stderr
        );
        assert_eq!(lines(&folder, "passes"), 0, "{format}: what the fork reuses must not run again");
        // The large output of one session is as large in the other.
        let output = |session| {
            json_of(&folder, &["show", session, "large", "--json"])["attempts"][0]["output"]["stdout"].clone()
        };
        let (before, after) = (output(FINISHED), output("forked"));
        assert_eq!(before.as_str().map(str::len), Some(70_000), "{format}");
        assert_eq!(before, after, "{format}");
        let checked = inspan(&folder, &["store", "verify"]);
        assert_eq!(checked.code, Some(0), "{format}: {}{}", checked.stdout, checked.stderr);
    }
}

#[test]
fn old_exports_are_imported() {
    for format in FORMATS {
        let folder = &folder_with(&[]);
        for (_, flow, _, _) in SESSIONS {
            let file = fixtures(format).join(format!("exports/{flow}.jsonl"));
            let imported = inspan(folder, &["store", "import", file.to_str().unwrap()]);
            assert_eq!(imported.code, Some(0), "{format}: {}", imported.stderr);
        }
        assert_eq!(json_of(folder, &["ps", "-a", "--json"]).as_array().unwrap().len(), SESSIONS.len());
    }
}

#[test]
fn old_recordings_are_replayed() {
    let folder = &folder_with(&[]);
    fs::create_dir(folder.join("work")).unwrap();
    let (flow, recordings) =
        (fixtures("format-1").join("finished.yaml"), fixtures("format-1").join("recordings"));
    let replay = format!("--replay={}", recordings.display());
    let replayed = inspan(folder, &["run", flow.to_str().unwrap(), &replay]);
    assert_eq!(
        (replayed.code, replayed.stdout.lines().last()),
        (Some(0), Some("end: Hello begin, pass 2")),
        "{}",
        replayed.stderr
    );
    assert_eq!(lines(folder, "passes"), 0, "a replay runs nothing");
}
