//! The examples and templates that push a branch or commit in the user's checkout, with the real git.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use inspan_testkit::write_program;
use serde_json::json;

use crate::{
    git_examples::{asked, begin, call, git, repository, run},
    program::{Folder, inspan, ran},
};

pub(crate) fn add_origin(folder: &Path) {
    git(folder, "init -q --bare ../origin");
    git(folder, &format!("remote add origin {}", folder.join("origin").display()));
}

/// A repository with the example that fixes an issue, and the review that it calls.
fn with_review(code: &str) -> Folder {
    let folder = repository("fix-github-issue", code);
    let review = "../../examples/fix-github-issue/smart-pr-review.yaml";
    let review = Path::new(env!("CARGO_MANIFEST_DIR")).join(review);
    fs::copy(review, folder.join("repo/smart-pr-review.yaml")).unwrap();
    folder
}

#[test]
fn the_pull_request_for_an_issue_has_what_the_session_made_and_nothing_of_yours() {
    let folder = &with_review("echo fix > fixed; git add . && git commit -qm fix");
    add_origin(folder);
    git(folder, "push -q origin main");
    let base = folder.join("repo/base");
    fs::write(&base, "private").unwrap();
    git(folder, "commit -qam private");
    fs::write(&base, "draft").unwrap();
    run(folder, &["run", "flow.yaml", "--session-id", "s", "-i", "issue=1"]).expect(0);
    assert_eq!(git(folder, "-C ../origin log --format=%s inspan/s"), "fix\nmain\ninit\n");
    assert_eq!(git(folder, "-C ../origin log -1 --format=%s main"), "main\n");
    assert_eq!(git(folder, "log -1 --format=%s main"), "private\n");
    assert_eq!(git(folder, "status --porcelain --untracked-files=no"), " M base\n");
}

#[test]
fn the_branch_of_a_pull_request_stays_the_same_after_a_resume() {
    let folder = &with_review("echo fix > fixed");
    add_origin(folder);
    git(folder, "push -q origin main");
    // The review fails once, and the agent that simplifies changes something more.
    let gh = fs::read_to_string(folder.join("bin/gh")).unwrap();
    let once = "#!/bin/sh\n[ $2 = diff ] && [ ! -e $HOME/once ] && { touch $HOME/once $HOME/more; exit 1; }\n[ $2 = create ] && echo \"$@\" >> $HOME/created\n";
    write_program(&folder.join("bin/gh"), &gh.replace("#!/bin/sh\n", once)).unwrap();
    let claude = fs::read_to_string(folder.join("bin/claude")).unwrap();
    let more = "read -r line; do\n  [ -e $HOME/more ] && echo more > more\n";
    write_program(&folder.join("bin/claude"), &claude.replace("read -r line; do\n", more)).unwrap();
    run(folder, &["run", "flow.yaml", "--session-id", "s", "-i", "issue=1", "-i", "label=bot"]).expect(1);
    run(folder, &["resume", "s"]).expect(0);
    let branches = git(folder, "-C ../origin for-each-ref --format=%(refname:short)");
    assert_eq!(branches, "inspan/s\nmain\n");
    assert_eq!(git(folder, "-C ../origin ls-tree --name-only inspan/s fixed more"), "fixed\nmore\n");
    let created = fs::read_to_string(folder.join("created")).unwrap();
    assert!(created.contains("--head inspan/s --label bot") && created.contains("Fixes #1"), "{created}");
}

/// What an agent leaves that git would push only in part, and why it is not pushed.
const NOT_WHOLE: [(&str, &str); 3] = [
    (
        "echo mine > base; git stash -q; echo theirs > base; git commit -qam x; git stash pop",
        "The agent has left a conflict in",
    ),
    ("mkdir -p ülib; echo fix > ülib/fix", "Work in the submodule ülib cannot be pushed."),
    (
        "git init -q app; git -C app -c user.name=a -c user.email=a@a commit -q --allow-empty -m app",
        "A repository within the worktree cannot be pushed: app",
    ),
];

#[test]
fn what_cannot_be_pushed_whole_is_not_pushed() {
    for (code, why) in NOT_WHOLE {
        for example in ["fix-github-issue", "fix-issue"] {
            let is_template = example == "fix-issue";
            let folder = &if is_template { with_template(example) } else { with_review(code) };
            add_origin(folder);
            let lib = git(folder, "rev-parse HEAD");
            git(folder, &format!("update-index --add --cacheinfo 160000,{},ülib", lib.trim()));
            git(folder, "commit -qm lib");
            git(folder, "push -q origin main");
            let failed = if is_template {
                let flow = fs::read_to_string(folder.join("repo/flow.yaml")).unwrap();
                let flow = flow.replace("default: \"no\"", "default: \"yes\"");
                fs::write(folder.join("repo/flow.yaml"), flow).unwrap();
                let test = format!("test={}", json!(["sh", "-c", code]));
                run(folder, &["run", "flow.yaml", "-i", "publish=true", "-i", &test]).expect(1)
            } else {
                run(folder, &["run", "flow.yaml", "-i", "issue=1"]).expect(1)
            };
            assert!(failed.stderr.contains(why), "{example}: {}", failed.stderr);
            let branches = git(folder, "-C ../origin for-each-ref --format=%(refname:short)");
            assert_eq!(branches, "main\n", "{example}");
        }
    }
}

#[test]
fn what_is_yours_is_refused_before_an_agent_would_push_or_commit_it() {
    let rows = [
        ("ralph", "Switch to a branch for this: it is pushed at the end."),
        ("session-fork", "Commit or stash your changes first."),
    ];
    for (example, why) in rows {
        let folder = &repository(example, "");
        fs::write(folder.join("repo/draft"), "").unwrap();
        git(folder, "config status.showUntrackedFiles no");
        let refused = begin(folder, example).expect(1);
        assert!(refused.stderr.contains(why), "{example}: {}", refused.stderr);
        assert_eq!(asked(folder), "", "{example}");
    }
}

#[test]
fn a_review_leaves_no_merge_in_your_checkout() {
    let folder = &with_review("");
    git(folder, "update-ref refs/remotes/origin/main other");
    let review = || run(folder, &["run", "smart-pr-review.yaml", "-i", "pr=1"]).expect(1);
    fs::write(folder.join("repo/base"), "draft").unwrap();
    review().says("Commit or stash your changes first.");
    assert_eq!(git(folder, "status --porcelain --untracked-files=no"), " M base\n");
    git(folder, "checkout base");
    review().says("Merge origin/main yourself first.");
    assert_eq!(git(folder, "status --porcelain --untracked-files=no"), "");
    assert!(!folder.join("repo/.git/MERGE_HEAD").exists());
}

/// A repository with the files of a template.
fn with_template(template: &str) -> Folder {
    let folder = repository("tickets", "");
    let repo = folder.join("repo");
    fs::remove_file(repo.join("flow.yaml")).unwrap();
    inspan(&repo, &["init", "--template", template]).expect(0);
    folder
}

#[test]
fn the_pull_request_of_the_template_has_what_the_session_made_and_nothing_of_yours() {
    let folder = &with_template("fix-issue");
    let repo = folder.join("repo");
    let flow = fs::read_to_string(repo.join("flow.yaml")).unwrap();
    fs::write(repo.join("flow.yaml"), flow.replace("default: \"no\"", "default: \"yes\"")).unwrap();
    add_origin(folder);
    // The user has a branch of that name, and goes on with other work while the session runs. The first push fails.
    let test = r#"test=["sh","-c","touch fixed; cd $HOME/repo; git switch -q -C mine; touch draft"]"#;
    fs::rename(folder.join("origin"), folder.join("away")).unwrap();
    let input = ["run", "flow.yaml", "--session-id", "s", "-i", "publish=true", "-i", test];
    git(folder, "branch inspan/fix-s other");
    run(folder, &input).expect(1).says("'inspan/fix-s' already exists");
    git(folder, "branch -m inspan/fix-s kept");
    run(folder, &["resume", "s"]).expect(1);
    fs::rename(folder.join("away"), folder.join("origin")).unwrap();
    // As git leaves it when it is killed while it writes.
    fs::write(folder.join("repo/.git/worktrees/tree/index.lock"), "").unwrap();
    let done = run(folder, &["resume", "s"]);
    let pushed = done.json()["outputs"]["pullRequest"].to_string();
    assert!(pushed.contains("Count the herd behind a closed gate"), "{pushed}: {}", done.stderr);
    assert_eq!(git(folder, "-C ../origin for-each-ref --format=%(refname)"), "refs/heads/inspan/fix-s\n");
    assert_eq!(git(folder, "show --format= --name-only origin/inspan/fix-s"), "fixed\n");
    assert_eq!(git(folder, "branch --show-current"), "mine\n");
    assert!(git(folder, "status --porcelain").contains("?? draft\n"));
}

#[test]
fn the_template_checks_off_the_tasks_that_were_done_and_no_others() {
    // The agent checks off its own task, also at another place; or the process dies once it is checked off.
    let own = r#"check=["sh","-c","grep -av 1 list > new; echo '- [x] 1' >> new; cat new > list; rm new"]"#;
    for check in [own, r#"check=["true"]"#] {
        let folder = &with_template("task-list");
        let repo = folder.join("repo");
        let mv = "#!/bin/sh\n/bin/mv \"$@\" && mkdir $HOME/moved 2>/dev/null && kill -9 $PPID\nexit 0\n";
        write_program(&folder.join("bin/mv"), mv).unwrap();
        // One task is not in UTF-8.
        fs::write(repo.join("list"), b"- [ ] 1\r\n- [ ] 2\r\n- [ ] caf\xe9\r\n- [x] 0\r\n- [ ] 2\r\n")
            .unwrap();
        fs::write(repo.join("list.new"), "mine").unwrap();
        fs::set_permissions(repo.join("list"), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("list", repo.join("link")).unwrap();
        let run = |arguments: &[&str]| {
            let arguments = [arguments, &["--no-input", "--json"]].concat();
            ran(folder, call(folder, &arguments).env("LC_ALL", "C.UTF-8"))
        };
        run(&["run", "flow.yaml", "--session-id", "s", "-i", "file=link", "-i", check]).expect(1);
        let done = run(&["resume", "s"]);
        let outputs = &done.json()["outputs"];
        assert_eq!(outputs["done"], json!(4), "{outputs} {}", done.stderr);
        assert_eq!(fs::read_to_string(repo.join("list.new")).unwrap(), "mine");
        assert!(!outputs["report"].as_str().unwrap().contains("[ ]"), "{outputs}");
        assert!(fs::symlink_metadata(repo.join("link")).unwrap().is_symlink());
        assert_eq!(fs::metadata(repo.join("list")).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn the_input_of_a_template_is_checked_before_an_agent_is_paid() {
    for (template, input) in [("fix-issue", "test"), ("task-list", "check"), ("nightly", "send")] {
        let folder = &with_template(template);
        let refused = run(folder, &["run", "flow.yaml", "-i", &format!("{input}=cargo test")]);
        let what = format!("`{input}`: the value is not of type \"array\"");
        assert_eq!(refused.code, Some(2), "{template}: {}", refused.stderr);
        assert!(refused.stderr.contains(&what), "{template}: {}", refused.stderr);
    }
}
