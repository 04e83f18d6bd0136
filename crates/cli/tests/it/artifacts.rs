//! The folders for the files of nodes: whose they are, and when they go.

use std::{fs, path::Path};

use crate::{
    processes::until,
    program::{flow_folder, inspan, program},
};

/// A node that leaves a file, and one that waits for a person.
const ASKS: &str = "\
flow: { name: asks }
nodes:
  - { id: leave, type: exec, input: { argv: [sh, -c, 'echo moo > $INSPAN_ARTIFACTS/file'] } }
  - { id: ask, type: human.input, dependsOn: [leave], input: { prompt: And now? } }
";

/// A node that leaves a file, and reads it once it may go on.
const WORKS: &str = "\
flow: { name: works }
nodes:
  - { id: work, type: exec, input: { argv: [sh, -c, 'echo moo > $INSPAN_ARTIFACTS/file; until test -e go; do sleep 0.05; done; cat $INSPAN_ARTIFACTS/file'] } }
";

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn two_stores_share_no_files() {
    let folder = flow_folder(ASKS);
    let folder = folder.path();
    let stores = ["runs.01", "runs.02", "runs", "runs.db", "runs.sqlite"];
    for store in stores {
        let ran = inspan(folder, &["run", "flow.yaml", "--no-wait", "--session-id", "s", "--store", store]);
        assert_eq!(ran.code, Some(3), "{store}: {}", ran.stderr);
    }
    for store in stores {
        let gone = inspan(folder, &["store", "gc", "--older-than", "0s", "--store", store]);
        assert!(gone.stderr.starts_with("0 sessions deleted"), "{store}: {}", gone.report());
        let deleted = inspan(folder, &["store", "gc", "s", "--store", store]);
        assert_eq!(deleted.code, Some(0), "{}", deleted.stderr);
        let left = names(folder).into_iter().filter(|name| name.ends_with("artifacts"));
        let left: Vec<_> = left.filter(|name| folder.join(name).join("s/file").exists()).collect();
        let others = stores.iter().skip_while(|other| **other != store).count() - 1;
        assert_eq!(left.len(), others, "{store}: {left:?}");
    }
}

#[test]
fn the_files_of_a_session_that_is_not_stored_go_once_it_has_ended() {
    let folder = flow_folder(WORKS);
    let folder = folder.path();
    let all = folder.join(".home/sessions.artifacts");
    let gc =
        |more: &[&str]| inspan(folder, &[&["store", "gc", "--older-than", "0s"][..], more].concat()).stderr;
    let mut child =
        program(folder, &["run", "flow.yaml", "--no-store", "--session-id", "n"]).spawn().unwrap();
    until("it works", || all.join("n/file").exists());
    assert!(gc(&[]).starts_with("0 sessions deleted"));
    fs::write(folder.join("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    // Whose they are is not known: another program's, or a session's that machines share.
    fs::create_dir(all.join("other")).unwrap();
    let planned = gc(&["--dry-run"]);
    assert!(planned.contains("and the files of 1 that are not stored would be deleted"), "{planned}");
    assert!(all.join("n/file").exists());
    assert!(gc(&[]).starts_with("0 sessions and the files of 1 that are not stored deleted"));
    assert_eq!(names(&all), ["other"]);
}

#[test]
fn a_copy_that_fails_takes_no_space() {
    let folder = flow_folder(ASKS);
    let folder = folder.path();
    let asked = inspan(folder, &["run", "flow.yaml", "--no-wait", "--session-id", "s"]);
    assert_eq!(asked.code, Some(3), "{}", asked.stderr);
    // A path that is as long as can be: that of the copy is longer.
    let all = folder.join(".home/sessions.artifacts");
    let mut deep = all.join("s");
    while deep.as_os_str().len() < 3800 {
        deep.push("o".repeat(200));
    }
    deep.push("o".repeat(4092 - 1 - deep.as_os_str().len()));
    fs::create_dir_all(&deep).unwrap();
    let failed = inspan(folder, &["fork", "s", "--at", "ask", "--session-id", "t", "--no-wait"]);
    assert!(failed.stderr.contains("the files of session `s` cannot be taken over"), "{}", failed.report());
    assert_eq!(names(&all), ["s"]);
    // What a crash leaves of one goes with its session.
    fs::create_dir(all.join(".t.part")).unwrap();
    assert_eq!(inspan(folder, &["store", "gc", "t"]).code, Some(0));
    assert_eq!(names(&all), ["s"]);
    fs::create_dir(all.join(".t.part")).unwrap();
    inspan(folder, &["store", "gc", "--older-than", "0s"]);
    assert_eq!(names(&all), ["s"]);
}
