//! The examples that work in git worktrees, with the real git; a script stands in for the agents.

use std::{fs, path::Path, process::Command, time::Duration};

use inspan_testkit::write_program;
use serde_json::{Value, json};

use crate::{
    git_pull_requests::add_origin,
    processes::{kill, left, until},
    program::{Folder, Ran, folder_with, program, ran},
};

/// In place of Claude Code: it notes what it is asked. If that is work, it does what the test says in the file `code`.
const AGENT: &str = r#"#!/bin/sh
read -r line
echo '{"type":"control_response","response":{"subtype":"success","request_id":"initialize","response":{}}}'
while read -r line; do
  printf '%s\n' "$line" >> "$HOME/asked"
  case $line in *Implement* | *"and commit it"* | *"Do task"* | *"Resolve the"*) . "$HOME/code" >&2 ;; esac
  echo '{"type":"result","subtype":"success","is_error":false,"result":"done","structured_output":{"ok":true,"why":"","score":50,"browser":false,"steps":"","kind":"bug","title":"Fix search","reviews":[]},"stop_reason":"end_turn","num_turns":1,"usage":{"input_tokens":1,"output_tokens":1}}'
done
"#;

/// The programs that the examples call, besides git.
const PROGRAMS: [(&str, &str); 5] = [
    ("claude", AGENT),
    ("make", "#!/bin/sh\n"),
    ("npm", "#!/bin/sh\n"),
    (
        "gh",
        "#!/bin/sh\n[ $2 = create ] && exec git -C $HOME/origin log --all --format=%s\n[ $1 = repo ] && exec echo main\necho '{ \"number\": 1, \"title\": \"Fix search\", \"body\": \"\", \"headRefName\": \"main\", \"baseRefName\": \"main\" }'\n",
    ),
    ("free-ports", "#!/bin/sh\necho '[1, 2]'\n"),
];

/// A repository with an example, two tickets and the branch `other`, which changes what `main` changed.
pub(crate) fn repository(example: &str, code: &str) -> Folder {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let flow = fs::read_to_string(examples.join(example).join("flow.yaml")).unwrap();
    let flow = flow.replace("codex.agent", "claude.agent").replace("gemini.agent", "claude.agent");
    let folder = folder_with(&[("code", code), ("repo/flow.yaml", &flow), ("repo/base", "base")]);
    let repo = folder.join("repo");
    fs::create_dir_all(folder.join("bin")).unwrap();
    for (name, script) in PROGRAMS {
        write_program(&folder.join("bin").join(name), script).unwrap();
    }
    for name in ["a.md", "ü b.md"] {
        fs::create_dir_all(repo.join("tickets")).unwrap();
        fs::write(repo.join("tickets").join(name), name).unwrap();
    }
    fs::create_dir(repo.join("scripts")).unwrap();
    write_program(&repo.join("scripts/free-ports"), PROGRAMS[4].1).unwrap();
    git(&folder, "init -q -b main");
    for (name, value) in [("user.name", "t"), ("user.email", "t@t")] {
        git(&folder, &format!("config {name} {value}"));
    }
    git(&folder, "add .");
    git(&folder, "commit -qm init");
    git(&folder, "branch other");
    for branch in ["other", "main"] {
        git(&folder, &format!("switch -q {branch}"));
        fs::write(repo.join("base"), branch).unwrap();
        git(&folder, &format!("commit -qam {branch}"));
    }
    git(&folder, "update-ref refs/remotes/origin/main main");
    folder
}

/// Git in the repository: what it prints.
pub(crate) fn git(folder: &Path, arguments: &str) -> String {
    let mut git = Command::new("git");
    let git = git.current_dir(folder.join("repo")).env("HOME", folder).args(arguments.split(' '));
    String::from_utf8(git.output().unwrap().stdout).unwrap()
}

pub(crate) fn call(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program(folder, arguments);
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    command.current_dir(folder.join("repo")).env("PATH", path);
    command
}

pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Ran {
    ran(folder, &mut call(folder, &[arguments, &["--no-input", "--json"]].concat()))
}

const RUN: [&str; 6] = ["run", "flow.yaml", "--session-id", "s", "-i", "task=x"];

/// Runs an example. Only those that take an input are given one.
pub(crate) fn begin(folder: &Path, example: &str) -> Ran {
    run(folder, arguments(example))
}

fn arguments(example: &str) -> &'static [&'static str] {
    match example {
        "best-of-n" | "session-fork" => &RUN,
        "validate-pr" => &["run", "flow.yaml", "--session-id", "s", "-i", "pr=1"],
        _ => &RUN[..4],
    }
}

pub(crate) fn asked(folder: &Path) -> String {
    fs::read_to_string(folder.join("asked")).unwrap_or_default()
}

/// Each agent leaves a file that is named by the number of its frame.
const WORK: &str = "echo work > done-${PWD##*-}";

#[test]
fn tickets_are_merged_whoever_commits_them() {
    let own = format!("{WORK}; git add . && git commit -qm own");
    // The last one commits on a branch of its own.
    let lock = format!("{WORK}; touch $(git rev-parse --git-path $(git symbolic-ref HEAD)).lock");
    for code in [WORK.to_owned(), lock, own.clone(), format!("git switch -qc own-${{PWD##*-}}; {own}")] {
        let folder = &repository("tickets", &code);
        // A worktree of the user, on a disk that is away for the moment.
        git(folder, "worktree add --detach ../away");
        fs::rename(folder.join("away"), folder.join("elsewhere")).unwrap();
        let done = begin(folder, "tickets");
        let merged = json!([{ "file": "tickets/a.md" }, { "file": "tickets/ü b.md" }]);
        let outputs = &done.json()["outputs"];
        assert_eq!(*outputs, json!({ "merged": merged, "failed": 0, "left": [] }), "{}", done.stderr);
        assert!(asked(folder).contains("Implement tickets/ü b.md"), "{}", asked(folder));
        assert_eq!(git(folder, "ls-files done-0 done-1"), "done-0\ndone-1\n", "{code}");
        fs::rename(folder.join("elsewhere"), folder.join("away")).unwrap();
        assert!(git(folder, "-C ../away status").contains("nothing to commit"));
    }
}

#[test]
fn tickets_that_are_not_merged_are_named_and_none_at_all_is_a_failure() {
    let rows = [
        // Two that change one file.
        ("echo ${PWD##*-} > base", json!([{ "file": "tickets/a.md" }]), json!(["tickets/ü b.md"])),
        ("true", Value::Null, Value::Null),
    ];
    for (code, merged, left) in rows {
        let folder = &repository("tickets", code);
        let done = begin(folder, "tickets");
        let (found, is_success) = (done.json()["outputs"].clone(), merged != Value::Null);
        assert_eq!((&found["merged"], &found["left"]), (&merged, &left), "{}", done.stderr);
        assert_eq!(done.code, Some(if is_success { 0 } else { 1 }));
        assert_eq!(git(folder, "status --porcelain"), "");
    }
}

#[test]
fn a_repository_that_an_agent_makes_is_not_merged_as_its_work() {
    let commit = "git -c user.name=a -c user.email=a@a commit -qm app";
    let code = format!("mkdir app; cd app; git init -q; echo work > work; git add .; {commit}; cd ..");
    for example in ["tickets", "best-of-n"] {
        let folder = &repository(example, &code);
        let failed = begin(folder, example).expect(1);
        let why = "A repository within the worktree cannot be merged: app";
        assert!(failed.stderr.contains(why), "{example}: {}", failed.stderr);
        assert_eq!(git(folder, "log -1 --format=%s"), "main\n");
    }
}

#[test]
fn what_cannot_be_merged_whole_is_not_merged() {
    // The agents of the tickets change the same line. `$PWD` of the agent that resolves a conflict ends with `main`.
    let conflict = |resolves: &str| {
        format!("case $PWD in */main) {resolves} ;; *) echo ${{PWD##*-}} > base; {WORK} ;; esac")
    };
    let rebase = "side=side-${PWD##*-}; git switch -qc $side; echo a > base; git commit -qam a; git switch -q -; echo b > base; git commit -qam b; git rebase $side";
    let submodule = "mkdir -p ülib; echo fix > ülib/fix";
    let stash = "echo mine > base; git stash -q; echo theirs > base; git commit -qam x; git stash pop";
    let rows = [
        ("tickets", rebase.to_owned(), vec![], "The agent has begun and not finished: rebase-merge."),
        ("best-of-n", rebase.to_owned(), vec![], "The agent has begun and not finished: rebase-merge."),
        ("tickets", submodule.to_owned(), vec![], "Work in the submodule ülib cannot be merged."),
        ("best-of-n", submodule.to_owned(), vec![], "Work in the submodule ülib cannot be merged."),
        ("tickets", stash.to_owned(), vec![], "The agent has left a conflict in"),
        ("best-of-n", stash.to_owned(), vec![], "The agent has left a conflict in"),
        // As for a lock file, whose differences nobody reads.
        (
            "tickets",
            conflict(
                "echo '* -diff' > $(git rev-parse --git-path info/attributes); git add -A; git commit -qm marked",
            ),
            vec!["done-0"],
            "conflict marker",
        ),
        // A title that is underlined by seven characters is none.
        (
            "tickets",
            format!("{WORK}; printf 'Summary\\n=======\\n' > README-${{PWD##*-}}"),
            vec!["done-0", "done-1"],
            "",
        ),
        ("tickets", conflict("git add -A; git commit -qm marked"), vec!["done-0"], "conflict marker"),
        (
            "tickets",
            conflict(
                "git checkout -q --conflict=diff3 base; grep -v '^[<=>]' base > kept; mv kept base; git add -A; git commit -qm marked",
            ),
            vec!["done-0"],
            "conflict marker",
        ),
        ("tickets", conflict("git reset -q --hard MERGE_HEAD"), vec!["done-0"], "merged"),
        (
            "tickets",
            conflict("git checkout -q --theirs base; git commit -qam ok"),
            vec!["done-0", "done-1"],
            "",
        ),
    ];
    for (example, code, merged, why) in rows {
        let folder = &repository(example, &code);
        if code == submodule {
            let lib = format!(
                "update-index --add --cacheinfo 160000,{},ülib",
                git(folder, "rev-parse HEAD").trim()
            );
            git(folder, &lib);
            git(folder, "commit -qm lib");
        }
        let done = begin(folder, example);
        assert_eq!(done.code == Some(0), !merged.is_empty(), "{code}: {}", done.stderr);
        assert!(done.stderr.contains(why), "{code}: {}", done.stderr);
        assert_eq!(
            git(folder, "ls-files done-*").lines().collect::<Vec<_>>(),
            merged,
            "{code}: {}",
            done.stderr
        );
        assert!(!fs::read_to_string(folder.join("repo/base")).unwrap().contains("<<<"), "{code}");
    }
}

#[test]
fn a_pick_that_is_not_finished_is_seen_however_git_stores_it() {
    for (example, code, why) in [
        ("tickets", "git cherry-pick other", "The agent has begun and not finished: CHERRY_PICK_HEAD."),
        ("best-of-n", "git revert --no-edit other", "no attempt changes something"),
    ] {
        let folder = &repository(example, code);
        // The flow calls the same git. It changes no repository that has logs of its branches. One older than 2.46 goes on
        // with files.
        let link = ["-c", "ln -s $(command -v git) bin/git"];
        assert!(Command::new("sh").args(link).current_dir(folder).status().unwrap().success());
        fs::remove_dir_all(folder.join("repo/.git/logs")).unwrap();
        git(folder, "refs migrate --ref-format=reftable");
        let failed = begin(folder, example).expect(1);
        assert!(failed.stderr.contains(why), "{example}: {}", failed.stderr);
        assert_eq!(git(folder, "show main:base"), "main", "{example}");
        // One of the user's own is seen before an agent is paid.
        fs::remove_file(folder.join("asked")).unwrap();
        git(folder, "cherry-pick other");
        let own = run(folder, &[&RUN[..2], &arguments(example)[4..]].concat()).expect(1);
        assert!(own.stderr.contains("Finish what git has begun here: CHERRY_PICK_HEAD."), "{}", own.stderr);
        assert_eq!(asked(folder), "");
    }
}

#[test]
fn where_git_cannot_commit_no_agent_is_paid() {
    for example in ["tickets", "best-of-n"] {
        let folder = &repository(example, WORK);
        let hook = folder.join("repo/.git/hooks/commit-msg");
        write_program(&hook, "#!/bin/sh\necho a ticket number is missing >&2; exit 1\n").unwrap();
        let failed = begin(folder, example).expect(1);
        assert!(failed.stderr.contains("a ticket number is missing"), "{example}: {}", failed.stderr);
        assert_eq!(asked(folder), "", "{example}");
        // What failed is tried again, and merged, once that is mended. The settings of many users allow no merge of their own.
        fs::remove_file(hook).unwrap();
        git(folder, "config merge.ff only");
        git(folder, "config branch.main.mergeoptions --squash");
        let resumed = run(folder, &["resume", "s", "--failed"]);
        assert_eq!(resumed.code, Some(0), "{example}: {}", resumed.stderr);
        assert!(!asked(folder).contains("Resolve"), "{example}");
        let expected = if example == "tickets" { "done-0\ndone-1\n" } else { "done-0\n" };
        assert_eq!(git(folder, "ls-files done-*"), expected, "{example}: {}", resumed.stderr);
        assert_eq!(git(folder, "status --porcelain"), "", "{example}");
    }
}

#[test]
fn a_resolved_conflict_is_not_resolved_again_in_a_fork() {
    let folder = &repository(
        "tickets",
        &format!(
            "case $PWD in */main) git checkout -q --theirs base; git commit -qam ok ;; *) echo ${{PWD##*-}} > base; {WORK} ;; esac"
        ),
    );
    begin(folder, "tickets").expect(0);
    let resolved = || asked(folder).matches("Resolve").count();
    assert_eq!(resolved(), 1);
    let forked = run(folder, &["fork", "s", "--at", "main"]);
    assert_eq!((forked.code, resolved()), (Some(0), 1), "{}", forked.stderr);
}

#[test]
fn what_stands_in_the_way_of_a_merge_stays_and_the_merge_is_made_once_it_is_gone() {
    // Also what git ignores, which an agent can add nevertheless.
    for (example, ignored) in [("tickets", ""), ("tickets", "done-*"), ("best-of-n", "done-*")] {
        let file = "done-0";
        let folder = &repository(example, &format!("{WORK}; git add -f ."));
        let own = folder.join("repo").join(file);
        fs::write(folder.join("repo/.git/info/exclude"), ignored).unwrap();
        fs::write(&own, "mine").unwrap();
        let refused = begin(folder, example);
        assert_eq!(
            (refused.code, fs::read_to_string(&own).unwrap().as_str()),
            (Some(1), "mine"),
            "{example}"
        );
        fs::remove_file(&own).unwrap();
        run(folder, &["resume", "s"]).expect(0);
        assert_eq!(git(folder, &format!("ls-files {file}")).trim(), file);
    }
}

#[test]
fn a_branch_with_commits_that_yours_lacks_is_not_moved() {
    for example in ["tickets", "best-of-n"] {
        let folder = &repository(example, WORK);
        for (branch, commit) in [("inspan/s-0", "other"), ("inspan/s-1", "main"), ("s-1", "other")] {
            git(folder, &format!("branch {branch} {commit}"));
        }
        let done = begin(folder, example);
        assert_eq!(done.code, Some(0), "{example}: {}", done.stderr);
        assert!(done.stderr.contains("'inspan/s-0' already exists"), "{}", done.stderr);
        assert_eq!(git(folder, "rev-parse inspan/s-0 s-1"), git(folder, "rev-parse other other"));
        assert_eq!(git(folder, "ls-files done-1"), "done-1\n", "{example}");
    }
}

#[test]
fn tickets_are_found_from_a_folder_of_the_repository_and_a_bare_one_is_refused() {
    let folder = &repository("tickets", WORK);
    git(folder, "clone -q --bare . ../bare");
    let begin_in = |place: &str| {
        let flow = folder.join("repo/flow.yaml");
        let arguments = ["run", flow.to_str().unwrap(), "--no-input", "--json"];
        ran(folder, call(folder, &arguments).current_dir(folder.join(place)))
    };
    let refused = begin_in("bare").expect(1);
    assert!(refused.stderr.contains("must be run in a work tree"), "{}", refused.stderr);
    begin_in("repo/scripts").expect(0);
    assert_eq!(git(folder, "ls-files done-0 done-1"), "done-0\ndone-1\n");
}

#[test]
fn tickets_that_are_not_committed_are_refused_before_an_agent_is_paid() {
    for (file, arguments) in [("new.md", "status"), ("new.md", "add tickets/new.md"), ("a.md", "status")] {
        let folder = &repository("tickets", WORK);
        git(folder, "config status.showUntrackedFiles no");
        fs::write(folder.join("repo/tickets").join(file), "changed").unwrap();
        git(folder, arguments);
        let refused = begin(folder, "tickets").expect(1);
        assert!(refused.stderr.contains("Commit or stash your tickets first."), "{}", refused.stderr);
        assert_eq!(asked(folder), "");
    }
}

#[test]
fn no_example_begins_in_the_midst_of_a_merge_or_a_rebase() {
    for example in ["tickets", "best-of-n"] {
        for (begun, state) in [("merge", "MERGE_HEAD"), ("rebase", "rebase-merge")] {
            let folder = &repository(example, WORK);
            git(folder, &format!("{begun} other"));
            fs::write(folder.join("repo/base"), "both").unwrap();
            git(folder, "add .");
            let refused = begin(folder, example);
            assert_eq!(refused.code, Some(1), "{example}");
            assert!(refused.stderr.contains("Finish what git has begun"), "{}", refused.stderr);
            assert_eq!(asked(folder), "");
            assert!(folder.join("repo/.git").join(state).exists());
            assert_eq!(git(folder, "status --porcelain"), "M  base\n");
        }
    }
}

#[test]
fn a_result_is_merged_into_the_branch_that_was_checked_out_when_the_session_began() {
    for example in ["tickets", "best-of-n"] {
        let folder = &repository(example, "git -C $HOME/repo switch -q other; echo work > done-${PWD##*-}");
        let refused = begin(folder, example);
        assert_eq!(refused.code, Some(1), "{example}");
        let why = "The result is for main, and other is checked out.";
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
        git(folder, "switch -q main");
        run(folder, &["resume", "s"]).expect(0);
        assert_eq!(git(folder, "ls-files done-0"), "done-0\n");
        assert_eq!(git(folder, "log -1 --format=%s other"), "other\n");
    }
}

const YOU: &str = "cd $HOME/repo; echo you > base; git commit -qam you";

/// The user commits once while the tickets are merged.
fn commit_during_the_merges(folder: &Path) {
    let once = "[ -e $HOME/once ] && exit; touch $HOME/once; unset $(git rev-parse --local-env-vars)";
    let hook = format!("#!/bin/sh\nHOME={}; {once}; {YOU}\n", folder.display());
    write_program(&folder.join("repo/.git/hooks/post-merge"), &hook).unwrap();
}

#[test]
fn a_conflict_that_you_resolve_is_merged_as_you_resolved_it() {
    let rows = [
        // You commit while the tickets are merged.
        ("tickets", "inspan/s-main", "true"),
        ("best-of-n", "inspan/s-0", YOU),
    ];
    for (example, tree, first) in rows {
        let folder = &repository(example, &format!("echo agent > base; case $PWD in *-0) {first};; esac"));
        if example == "tickets" {
            commit_during_the_merges(folder);
        }
        let failed = begin(folder, example);
        assert_eq!(failed.code, Some(1), "{example}: {}", failed.stderr);
        let unresolved = run(folder, &["resume", "s", "--session-id", "t"]);
        assert_eq!(unresolved.code, Some(1), "{example}: {}", unresolved.stderr);
        let worktrees = git(folder, "worktree list");
        let tree = worktrees.lines().find(|line| line.ends_with(&format!("[{tree}]"))).unwrap();
        let tree = tree.split_whitespace().next().unwrap();
        fs::write(Path::new(tree).join("base"), "both").unwrap();
        git(folder, &format!("-C {tree} add base"));
        let done = run(folder, &["resume", "t"]);
        assert_eq!(done.code, Some(0), "{example}: {}", done.stderr);
        assert_eq!(git(folder, "show HEAD:base"), "both", "{example}");
    }
}

#[test]
fn what_you_resolved_is_not_thrown_away_when_what_failed_is_tried_again() {
    // One ticket fails, and you commit during the merges.
    let code = format!("case $PWD in *-0) echo agent > base ;; *) {WORK}; git init -q inner ;; esac");
    let folder = &repository("tickets", &code);
    commit_during_the_merges(folder);
    let failed = begin(folder, "tickets").expect(1);
    assert!(failed.stderr.contains("git add, and resume, without --failed."), "{}", failed.stderr);
    let worktree = |branch: &str| {
        let all = git(folder, "worktree list");
        let line = all.lines().find(|line| line.ends_with(&format!("[inspan/s-{branch}]"))).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    let main = || worktree("main");
    fs::write(Path::new(&main()).join("base"), "both").unwrap();
    git(folder, &format!("-C {} add base", main()));
    fs::remove_dir_all(Path::new(&worktree("1")).join("inner")).unwrap();
    let refused = run(folder, &["resume", "s", "--failed", "--session-id", "t"]).expect(1);
    assert!(refused.stderr.contains("You were to resolve a conflict in"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(Path::new(&main()).join("base")).unwrap(), "both");
    // As it says there.
    git(folder, &format!("-C {} commit -qm resolved", main()));
    git(folder, "merge -q inspan/s-main");
    git(folder, &format!("worktree remove --force {}", main()));
    let done = run(folder, &["resume", "t"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(git(folder, "ls-files done-1"), "done-1\n");
    assert_eq!(git(folder, "show HEAD:base"), "both");
}

#[test]
fn a_kill_while_your_checkout_takes_the_result_leaves_nothing_in_the_way() {
    for (example, node) in [("tickets", "land"), ("best-of-n", "take")] {
        let folder = &repository(example, &format!("echo agent > base; {WORK}"));
        // In place of git that is killed after it has written some of it.
        let own = folder.join("repo/done-0");
        let killed = r#"#!/bin/sh
case "$*" in *--ff-only*) [ -e $HOME/once ] || { touch $HOME/once; exit 1; } ;; esac
exec /usr/bin/git "$@"
"#;
        write_program(&folder.join("bin/git"), killed).unwrap();
        let failed = begin(folder, example).expect(1);
        assert!(failed.stderr.contains(&format!("{node} failed")), "{example}: {}", failed.stderr);
        fs::write(&own, "work\n").unwrap();
        let base = folder.join("repo/base");
        // What is yours is in the way.
        fs::write(&base, "mine").unwrap();
        run(folder, &["resume", "s"]).expect(1);
        assert_eq!(fs::read_to_string(&base).unwrap(), "mine");
        fs::write(&base, "agent\n").unwrap();
        run(folder, &["resume", "s"]).expect(0);
        assert_eq!(git(folder, "status --porcelain"), "", "{example}");
        assert_eq!(git(folder, "show HEAD:base HEAD:done-0"), "agent\nwork\n");
    }
}

/// A hook that waits, where it is called first, for the program to be killed.
fn hook(folder: &Path, name: &str) {
    let hook = folder.join("repo/.git/hooks").join(name);
    let wait = "[ -e $HOME/reached ] && exit\ntouch $HOME/reached\nsleep 60\n";
    write_program(&hook, &format!("#!/bin/sh\nHOME={}\n{wait}", folder.display())).unwrap();
}

/// Runs an example, and kills it in the hook.
fn killed(folder: &Path, example: &str) {
    let arguments = [arguments(example), &["--no-input"]].concat();
    let child = call(folder, &arguments).spawn().unwrap();
    until("the hook runs", || folder.join("reached").exists());
    kill(child);
    // Another `git` of the session may still write.
    assert_eq!(left(&folder.display().to_string(), Duration::from_secs(10)), [""; 0]);
}

#[test]
fn a_kill_in_a_commit_or_a_merge_costs_nothing() {
    let rows = [("tickets", "pre-commit"), ("tickets", "pre-merge-commit"), ("best-of-n", "pre-commit")];
    for (example, at) in rows {
        let folder = &repository(example, WORK);
        hook(folder, at);
        killed(folder, example);
        // As git leaves it when it is killed while it writes.
        for tree in fs::read_dir(folder.join("repo/.git/worktrees")).unwrap() {
            fs::write(tree.unwrap().path().join("index.lock"), "").unwrap();
        }
        if at == "pre-commit" {
            let branches = folder.join("repo/.git/refs/heads/inspan");
            fs::create_dir_all(&branches).unwrap();
            fs::write(branches.join("s-0.lock"), "").unwrap();
        }
        let done = run(folder, &["resume", "s"]);
        assert_eq!(done.code, Some(0), "{example} {at}: {}", done.stderr);
        let outputs = &done.json()["outputs"];
        let is_whole =
            outputs["left"] == json!([]) || outputs["scores"].as_array().is_some_and(|all| all.len() == 3);
        assert!(is_whole, "{example} {at}: {outputs} {}", done.stderr);
        assert_eq!(git(folder, "ls-files done-0"), "done-0\n");
        assert_eq!(git(folder, "status --porcelain"), "");
    }
}

#[test]
fn a_fork_that_has_no_worktree_removes_no_lock_elsewhere() {
    for (example, at) in [("tickets", "land"), ("best-of-n", "take")] {
        let folder = &repository(example, WORK);
        let rm = "#!/bin/sh\necho \"$@\" >> $HOME/removed\nexec /bin/rm \"$@\"\n";
        write_program(&folder.join("bin/rm"), rm).unwrap();
        begin(folder, example).expect(0);
        fs::remove_file(folder.join("removed")).unwrap();
        let failed = run(folder, &["fork", "s", "--at", at]).expect(1);
        assert!(failed.stderr.contains("cannot change to"), "{example}: {}", failed.stderr);
        assert!(!folder.join("removed").exists(), "{example}");
    }
}

#[test]
fn a_kill_while_a_worktree_is_made_costs_nothing() {
    for example in ["tickets", "best-of-n", "matrix-bench", "validate-pr"] {
        let folder = &repository(example, WORK);
        if example == "validate-pr" {
            add_origin(folder);
            git(folder, "push -q origin main other:refs/pull/1/head");
        }
        hook(folder, "post-checkout");
        killed(folder, example);
        let done = run(folder, &["resume", "s"]);
        assert_eq!(done.code, Some(0), "{example}: {}", done.stderr);
        let outputs = &done.json()["outputs"];
        let no_cell = outputs["cells"].as_array().is_some_and(|cells| cells.contains(&Value::Null));
        assert!(outputs["failed"] != json!(1) && !no_cell, "{example}: {outputs}");
        assert!(!asked(folder).contains("failed: "), "{example}: {}", asked(folder));
    }
}

#[test]
fn the_best_attempt_is_judged_and_merged_whole() {
    let folder = &repository("best-of-n", "echo 1 > one; git add .; git commit -qm one; echo 2 > two");
    begin(folder, "best-of-n").expect(0);
    assert_eq!(git(folder, "ls-files one two"), "one\ntwo\n");
    let judged = asked(folder);
    let judged = judged.lines().find(|line| line.contains("Score this")).unwrap();
    assert!(
        ["b/one", "b/two"].iter().all(|file| judged.contains(file)) && !judged.contains("b/base"),
        "{judged}"
    );
    // An attempt that changes nothing does not count.
    let nothing = &repository("best-of-n", "true");
    begin(nothing, "best-of-n").expect(1).says("no attempt changes something");
}
