//! The folders for the files of nodes: whose they are, and when they go.

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::json;

use crate::{
    processes::until,
    program::{Ran, flow_folder, folder_with, inspan, program, ran, shell},
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
    let folder = &flow_folder(ASKS);
    let stores = ["runs.01", "runs.02", "runs", "runs.db", "runs.sqlite"];
    for store in stores {
        let ran = inspan(folder, &["run", "flow.yaml", "--no-wait", "--session-id", "s", "--store", store]);
        assert_eq!(ran.code, Some(3), "{store}: {}", ran.stderr);
    }
    for store in stores {
        let gone = inspan(folder, &["store", "gc", "--older-than", "0s", "--store", store]);
        assert!(gone.stderr.starts_with("0 sessions deleted"), "{store}: {}", gone.report());
        inspan(folder, &["store", "gc", "s", "--store", store]).expect(0);
        let left = names(folder).into_iter().filter(|name| name.ends_with("artifacts"));
        let left: Vec<_> = left.filter(|name| folder.join(name).join("s/file").exists()).collect();
        let others = stores.iter().skip_while(|other| **other != store).count() - 1;
        assert_eq!(left.len(), others, "{store}: {left:?}");
    }
}

#[test]
fn the_files_of_a_session_that_is_not_stored_go_once_it_has_ended() {
    let folder = &flow_folder(WORKS);
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
fn a_new_session_begins_without_the_files_of_another_with_its_id() {
    let flow = "\
flow: { name: appends }
nodes:
  - { id: add, type: exec, input: { argv: [sh, -c, 'echo $INSPAN_SESSION >> $INSPAN_ARTIFACTS/file'] } }
  - { id: read, type: exec, dependsOn: [add], input: { argv: [sh, -c, 'cat $INSPAN_ARTIFACTS/file'] } }
";
    let folder = &flow_folder(flow);
    let call = |arguments: &[&str], session: &str| {
        inspan(folder, &[arguments, &["--session-id", session, "--json"]].concat())
    };
    let read = |ran: Ran| ran.expect(0).json()["outputs"]["read"]["stdout"].clone();
    for _ in 0..2 {
        assert_eq!(read(call(&["run", "flow.yaml", "--no-store"], "x")), json!("x\n"));
    }
    assert_eq!(read(call(&["run", "flow.yaml"], "s")), json!("s\n"));
    assert_eq!(read(call(&["fork", "s", "--at", "read"], "x")), json!("s\n"));
    call(&["run", "flow.yaml", "--no-store"], "y").expect(0);
    assert_eq!(read(call(&["run", "flow.yaml"], "y")), json!("y\n"));
    // Files of a session that is stored, of one that another store may know, and of one that runs.
    let refused = |ran: Ran, id: &str| {
        ran.refused(&format!("~/.home/sessions.artifacts/{id} may belong to another session"));
    };
    refused(call(&["run", "flow.yaml", "--no-store"], "x"), "x");
    let all = folder.join(".home/sessions.artifacts");
    fs::create_dir_all(all.join("other/deep")).unwrap();
    refused(call(&["run", "flow.yaml"], "other"), "other");
    fs::write(folder.join("works.yaml"), WORKS).unwrap();
    let live = ["run", "works.yaml", "--no-store", "--session-id", "live"];
    let mut child = program(folder, &live).spawn().unwrap();
    until("it works", || all.join("live/file").exists());
    for more in [&["run", "flow.yaml"][..], &["run", "flow.yaml", "--no-store"], &["fork", "s"]] {
        refused(call(more, "live"), "live");
    }
    fs::write(folder.join("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    inspan(folder, &["show", "live"]).refused("no session ID starts with `live`");
    assert!(all.join("other/deep").exists() && all.join("x/file").exists());
}

#[test]
fn a_session_whose_folder_cannot_be_emptied_does_not_begin() {
    let folder = &folder_with(&[("flow.yaml", FILES)]);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(1);
    fs::write(folder.join("ok"), "").unwrap();
    // Not even root removes a file as a folder.
    let place = folder.join(".home/sessions.artifacts/t");
    fs::write(&place, "").unwrap();
    let resume = ["resume", "s", "--session-id", "t"];
    inspan(folder, &resume)
        .says("sessions.artifacts/t, which another session has left, cannot be removed")
        .says("use another `--session-id`")
        .expect(1);
    inspan(folder, &["resume", "t"]).refused("no session ID starts with `t`");
    fs::remove_file(&place).unwrap();
    inspan(folder, &resume).expect(0);
    assert!(place.join("report").exists());
}

#[test]
fn beside_a_store_that_cannot_be_read_a_session_that_is_not_stored_leaves_what_another_has_left() {
    let folder = &folder_with(&[
        ("asks.yaml", ASKS),
        (".home/sessions.db", &"no database".repeat(99)),
        (".home/sessions.artifacts/x/file", "left"),
    ]);
    for id in ["x", "y"] {
        let call = ["run", "asks.yaml", "--no-store", "--session-id", id, "--no-input"];
        let ran = ran(folder, program(folder, &call).env("TMPDIR", folder));
        assert!(ran.stderr.contains("the nodes left files in ~/"), "{}", ran.report());
    }
    let all = folder.join(".home/sessions.artifacts");
    assert_eq!(names(&all), ["x"]);
    assert_eq!(fs::read_to_string(all.join("x/file")).unwrap(), "left");
}

#[test]
fn a_session_that_is_not_stored_takes_no_folder_of_one_that_is_or_is_about_to_be() {
    let folder = &flow_folder("name: bare\nnodes:\n  - { id: a, type: control.noop }\n");
    let is_refused = |id: &str| {
        let refused = format!("~/.home/sessions.artifacts/{id} may belong to another session");
        inspan(folder, &["run", "flow.yaml", "--no-store", "--session-id", id]).refused(&refused);
    };
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(0);
    is_refused("s");
    let all = folder.join(".home/sessions.artifacts");
    // Nothing is stored while another process writes.
    let script = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('BEGIN IMMEDIATE')
print('locked', flush=True)
sys.stdin.read()";
    let mut writer = Command::new("python3");
    writer.args(["-c", script]).arg(folder.join(".home/sessions.db"));
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writer.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let mut child = program(folder, &["run", "flow.yaml", "--session-id", "t"]).spawn().unwrap();
    let mark = all.join(".t.unstored");
    until("it is about to be stored", || mark.exists());
    is_refused("t");
    drop(writer.stdin.take());
    writer.wait().unwrap();
    assert!(child.wait().unwrap().success());
    is_refused("t");
    assert!(!mark.exists());
}

#[test]
fn the_files_of_a_deleted_session_that_were_left_go_the_next_time() {
    let folder = &flow_folder(WORKS);
    fs::write(folder.join("go"), "").unwrap();
    let all = folder.join(".home/sessions.artifacts");
    let background = folder.join(".home/background");
    for (session, delete) in [("a", &["a"][..]), ("b", &["--older-than", "0s"])] {
        inspan(folder, &["run", "flow.yaml", "--session-id", session]).expect(0);
        // What cannot be removed ends the removal, as a crash does.
        let log = background.join(format!("{session}.log"));
        fs::create_dir_all(&log).unwrap();
        inspan(folder, &[&["store", "gc"], delete].concat()).says("cannot be removed");
        assert!(all.join(session).join("file").exists());
        fs::remove_dir(log).unwrap();
        inspan(folder, &["store", "gc", "--older-than", "0s"]);
        assert!(names(&all).is_empty(), "{:?}", names(&all));
    }
}

#[test]
fn a_copy_that_fails_takes_no_space() {
    let folder = &flow_folder(ASKS);
    inspan(folder, &["run", "flow.yaml", "--no-wait", "--session-id", "s"]).expect(3);
    // A path that is as long as can be: that of the copy is longer.
    let all = folder.join(".home/sessions.artifacts");
    let mut deep = all.join("s");
    while deep.as_os_str().len() < 3800 {
        deep.push("o".repeat(200));
    }
    deep.push("o".repeat(4092 - 1 - deep.as_os_str().len()));
    fs::create_dir_all(&deep).unwrap();
    inspan(folder, &["fork", "s", "--at", "ask", "--session-id", "t", "--no-wait"])
        .says("the files of session `s` cannot be taken over: ~/.home/sessions.artifacts/.t.part/ooo")
        .says("`inspan resume t` tries again, `inspan stop t` ends it")
        .expect(1);
    assert_eq!(names(&all), ["s"]);
    inspan(folder, &["resume", "t"]).says("`inspan stop t` ends it").expect(1);
    inspan(folder, &["stop", "t"]).says("note: the files of session `s` cannot be taken over").expect(0);
    // What a crash leaves of one goes with its session.
    fs::create_dir(all.join(".t.part")).unwrap();
    inspan(folder, &["store", "gc", "t"]).expect(0);
    assert_eq!(names(&all), ["s"]);
    fs::create_dir(all.join(".t.part")).unwrap();
    inspan(folder, &["store", "gc", "--older-than", "0s"]);
    assert_eq!(names(&all), ["s"]);
}

/// A node that leaves a file, one that fails until there is another file, and one that needs the first file.
const FILES: &str = "\
name: files
nodes:
  - { id: leave, type: exec, input: { argv: [sh, -c, 'echo left >> did; echo report'], stdoutFile: '{{ flow.artifacts }}/report' } }
  - { id: copy, type: exec, dependsOn: [leave], input: { argv: [sh, -c, 'echo copied >> did; cat $1', sh, '{{ leave.stdoutFile }}'] } }
  - { id: check, type: exec, dependsOn: [copy], input: { argv: [test, -f, ok] } }
  - { id: read, type: exec, dependsOn: [check], input: { argv: [sh, -c, 'cat $INSPAN_ARTIFACTS/report $1', sh, '{{ leave.stdoutFile }}'] } }
  - { id: where, type: exec, dependsOn: [check], input: { argv: [echo, '{{ leave.stdoutFile }}'] } }
";

#[test]
fn a_node_that_names_the_folder_of_the_session_is_reused_with_its_files() {
    let folder = &folder_with(&[("flow.yaml", FILES)]);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(1);
    let planned = inspan(folder, &["resume", "s", "--plan", "--json"]).json();
    assert_eq!(planned["nodes"][0]["fate"], json!("reused"), "{planned}");
    fs::write(folder.join("ok"), "").unwrap();
    // A worktree, as git leaves it.
    let all = folder.join(".home/sessions.artifacts");
    let known = folder.join("repository/.git/worktrees/side");
    fs::create_dir_all(&known).unwrap();
    fs::create_dir(all.join("s/side")).unwrap();
    fs::write(all.join("s/side/.git"), format!("gitdir: {}\n", known.display())).unwrap();
    fs::write(known.join("gitdir"), format!("{}\n", all.join("s/side/.git").display())).unwrap();
    let resumed = inspan(folder, &["resume", "s", "--session-id", "t", "--json"]).expect(0);
    assert_eq!(resumed.json()["outputs"]["read"]["stdout"], json!("report\nreport\n"));
    let named = |ran: &Ran, session: &str| {
        let named = ran.json()["outputs"]["where"]["stdout"].to_string();
        assert!(named.contains(&format!("/sessions.artifacts/{session}/report")), "{named}");
    };
    named(&resumed, "t");
    // The files are those of the session that goes on; the old one has a link to them.
    assert!(fs::symlink_metadata(all.join("s")).unwrap().is_symlink());
    let told = fs::read_to_string(known.join("gitdir")).unwrap();
    assert_eq!(told, format!("{}\n", all.join("t/side/.git").display()));
    inspan(folder, &["store", "gc", "s"]).expect(0);
    assert!(all.join("s/report").exists() && all.join("t/report").exists());
    fs::create_dir(all.join("t/in")).unwrap();
    for session in ["t", "s"] {
        let link = all.join("t/in").join(session);
        std::os::unix::fs::symlink(all.join(session).join("report"), link).unwrap();
    }
    let forked = inspan(folder, &["fork", "t", "--at", "check", "--session-id", "u", "--json"]).expect(0);
    named(&forked, "u");
    assert!(all.join("u/report").exists() && !all.join("u/side").exists());
    // Also one that was made when the folder had the name of the older session.
    for session in ["t", "s"] {
        assert_eq!(fs::read_link(all.join("u/in").join(session)).unwrap(), Path::new("../report"));
    }
    assert!(forked.stderr.contains("t/side is not copied"), "{}", forked.stderr);
    assert_eq!(fs::read_to_string(folder.join("did")).unwrap(), "left\ncopied\n");
}

#[test]
fn a_fork_works_in_its_own_files_whichever_path_names_them() {
    // The first node gives the path that git would, and the one that led there.
    let flow = "\
flow: { name: paths }
nodes:
  - { id: real, type: exec, input: { argv: [pwd, -P], cwd: '{{ flow.artifacts }}' } }
  - { id: named, type: exec, input: { argv: [sh, -c, 'echo $NAMED/$INSPAN_SESSION', sh, '{{ flow.artifacts }}'] } }
  - { id: work, type: exec, dependsOn: [real, named], input: { argv: [sh, -c, 'for all; do echo $INSPAN_SESSION >> $all/who; done', sh, '{{ real.stdout | trim }}', '{{ named.stdout | trim }}'] } }
";
    let folder = &flow_folder(flow);
    fs::create_dir(folder.join("disk")).unwrap();
    std::os::unix::fs::symlink("disk", folder.join("link")).unwrap();
    let path = folder.display();
    let homes = [format!("{path}/link/home"), "./here".to_owned(), "disk/../up".to_owned()];
    for home in homes {
        let all = folder.join(&home).join("sessions.artifacts");
        let call = |arguments: &[&str]| {
            ran(folder, program(folder, arguments).env("INSPAN_HOME", &home).env("NAMED", &all)).expect(0)
        };
        call(&["run", "flow.yaml", "--session-id", "one"]);
        call(&["fork", "one", "--at", "work", "--session-id", "two"]);
        call(&["run", "flow.yaml", "--from", "work", "--session-id", "three"]);
        let who = ["one", "two", "three"].map(|id| fs::read_to_string(all.join(id).join("who")).unwrap());
        assert_eq!(who[0], "one\none\n", "{home}");
        assert!(who[1].ends_with("one\ntwo\ntwo\n") && who[2].ends_with("three\nthree\n"), "{home}: {who:?}");
    }
}

#[test]
fn a_deleted_session_leaves_its_files_to_the_one_that_it_continues() {
    let folder = &folder_with(&[("flow.yaml", FILES)]);
    for arguments in [&["run", "flow.yaml"][..], &["resume", "a"], &["resume", "b"]] {
        let id = ["a", "b", "c"][usize::from(arguments[1] != "flow.yaml") + usize::from(arguments[1] == "b")];
        inspan(folder, &[arguments, &["--session-id", id, "--no-input"]].concat()).expect(1);
    }
    let all = folder.join(".home/sessions.artifacts");
    let is_link = |id: &str| fs::symlink_metadata(all.join(id)).ok().map(|about| about.is_symlink());
    assert_eq!(["a", "b", "c"].map(is_link), [Some(true), Some(true), Some(false)]);
    // Each link leads to the files at once, and so survives the one between.
    inspan(folder, &["store", "gc", "b"]).expect(0);
    assert!(all.join("a/report").exists());
    inspan(folder, &["store", "gc", "c"]).expect(0);
    assert_eq!(["a", "b", "c"].map(is_link), [Some(false), Some(true), Some(true)]);
    assert!(all.join("a/report").exists() && all.join("c/report").exists());
    inspan(folder, &["store", "gc", "a"]).expect(0);
    assert_eq!(["a", "b", "c"].map(is_link), [None; 3]);
}

#[test]
fn a_new_session_with_the_id_of_a_deleted_one_leaves_its_files_to_the_one_that_it_continued() {
    let folder = &folder_with(&[("flow.yaml", FILES), ("asks.yaml", ASKS)]);
    inspan(folder, &["run", "flow.yaml", "--session-id", "a"]).expect(1);
    inspan(folder, &["resume", "a", "--session-id", "b"]).expect(1);
    // What cannot be removed ends the removal, as a crash does.
    fs::create_dir_all(folder.join(".home/background/b.log")).unwrap();
    inspan(folder, &["store", "gc", "b"]).says("cannot be removed");
    inspan(folder, &["run", "asks.yaml", "--no-wait", "--session-id", "b"]).expect(3);
    let all = folder.join(".home/sessions.artifacts");
    assert_eq!((names(&all.join("a")), names(&all.join("b"))), (vec!["report".into()], vec!["file".into()]));
    assert!(!fs::symlink_metadata(all.join("a")).unwrap().is_symlink());
}

#[test]
fn git_finds_a_worktree_where_it_was_made_as_long_as_a_session_has_it() {
    let flow = "\
flow: { name: trees }
nodes:
  - id: trees
    type: exec
    input:
      cwd: '{{ flow.artifacts }}'
      argv: [sh, -ce, 'git init -q clone; cd clone; git -c user.name=o -c user.email=o@o commit -q --allow-empty -m one; git worktree add -q ../tree']
  - { id: check, type: exec, dependsOn: [trees], input: { argv: [test, -f, ok] } }
";
    let folder = &flow_folder(flow);
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(1);
    fs::write(folder.join("ok"), "").unwrap();
    inspan(folder, &["resume", "s", "--session-id", "t"]).expect(0);
    inspan(folder, &["store", "gc", "s"]).expect(0);
    let all = folder.join(".home/sessions.artifacts");
    let status = || shell(&all.join("t/tree"), "git worktree prune && git status").output().unwrap();
    assert!(status().status.success(), "{:?}", status());
    // A fork has a clone that can have a worktree of the same branch.
    inspan(folder, &["fork", "t", "--at", "trees", "--session-id", "u"]).expect(0);
    assert!(status().status.success() && all.join("u/tree").exists(), "{:?}", status());
    // Another session of that name has a folder of its own.
    fs::remove_file(folder.join("ok")).unwrap();
    inspan(folder, &["run", "flow.yaml", "--session-id", "s"]).expect(1);
    assert!(!fs::symlink_metadata(all.join("s")).unwrap().is_symlink() && all.join("t/tree").exists());
}
