//! The documents are correct: every block of README.md, examples/README.md and docs/ is compiled,
//! run or read, and a block of an unknown kind fails. `embedding` compares Rust with the examples. The examples run from
//! their recordings.
//!
//! - `yaml` is a whole flow, `yaml fragment` a list of nodes, `yaml test` a test file of the flow before it. In a lesson it
//!   is a file of the lesson's folder, or a part of one.
//! - `sh` is run in a sandbox with `inspan` on its path, in a lesson's folder or at the root. What it prints must be
//!   the block `text output` after it, if there is one. `sh no-run: REASON` is not run, but its verbs and flags exist.
//! - `console` shows commands, after `$ `, with what they print; their verbs and flags exist too.
//! - `toml` is the settings file or the dependencies of a program; `json` is one value, or one in each line.
//! - `text` is anything else.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use inspan_testkit::{check_golden, example, write_program};
use serde_json::Value;

use crate::{
    embedding,
    program::{INSPAN, flow_folder, folder_with, inspan, paths_below, program, ran},
    stored::{Driven, Stored},
};

/// One fenced block.
#[derive(Debug)]
struct FencedBlock {
    document: String,
    line: usize,
    kind: String,
    /// What follows the kind on the line of the fence.
    more: String,
    text: String,
}

impl FencedBlock {
    fn place(&self) -> String {
        format!("{}:{}", self.document, self.line)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn blocks() -> Vec<FencedBlock> {
    let root = root();
    let mut paths = vec![root.join("README.md"), root.join("examples/README.md")];
    paths.extend(paths_below(&root.join("docs")));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let mut blocks = Vec::new();
    for path in paths {
        let document = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        let mut open: Option<FencedBlock> = None;
        for (index, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            match (line.trim_start().strip_prefix("```"), open.take()) {
                (Some(info), None) => {
                    let (kind, more) = info.split_once(' ').unwrap_or((info, ""));
                    let (kind, more) = (kind.to_owned(), more.to_owned());
                    open = Some(FencedBlock {
                        document: document.clone(),
                        line: index + 1,
                        kind,
                        more,
                        text: String::new(),
                    });
                }
                (Some(_), Some(block)) => blocks.push(block),
                (None, Some(block)) => open = Some(FencedBlock { text: block.text + line + "\n", ..block }),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{document}: a block has no end");
    }
    blocks
}

fn of(kind: &str) -> Vec<FencedBlock> {
    let blocks: Vec<_> = blocks().into_iter().filter(|block| block.kind == kind).collect();
    assert!(!blocks.is_empty(), "no document shows {kind}");
    blocks
}

/// Pictures of the documents are what the program draws; `INSPAN_BLESS=1` draws them again.
#[test]
fn the_pictures_are_fresh() {
    let folder = &folder_with(&[]);
    let flow = blocks().into_iter().find(|block| block.text.contains("name: review-all")).unwrap();
    fs::write(folder.join("flow.yaml"), flow.text).unwrap();
    let stored = Stored::new(folder);
    stored.session("review-1", "review_loop", None, Driven::Left);
    for (picture, of) in [("frames.svg", "flow.yaml"), ("session.svg", "review-1")] {
        let drawn = inspan(folder, &["graph", of, "--format", "svg"]).expect(0);
        check_golden(root().join("docs").join(picture), &drawn.stdout).unwrap();
    }
}

#[test]
fn every_block_is_of_a_known_kind() {
    let unknown: Vec<_> = blocks()
        .into_iter()
        .filter(|block| match (block.kind.as_str(), block.more.as_str()) {
            ("yaml", more) => !["", "fragment", "test"].contains(&more),
            ("sh", more) => !more.is_empty() && more.strip_prefix("no-run: ").is_none_or(str::is_empty),
            ("text", more) => !["", "output"].contains(&more),
            ("rust", "") => !embedding::DOCUMENTS.contains(&block.document.as_str()),
            ("console" | "toml" | "json", "") => false,
            _ => true,
        })
        .map(|block| format!("{}: ```{} {}", block.place(), block.kind, block.more))
        .collect();
    assert_eq!(unknown, [""; 0]);
}

/// Who types all commands of a document runs none of them twice under one id.
#[test]
fn each_session_of_a_document_has_its_own_id() {
    let mut seen = std::collections::BTreeSet::new();
    for block in of("sh") {
        for (_, id) in block.text.lines().filter_map(|line| line.split_once("--session-id ")) {
            let id = id.split_whitespace().next().unwrap();
            assert!(seen.insert((block.document.clone(), id.to_owned())), "{}: `{id}` again", block.place());
        }
    }
}

#[test]
fn flows_compile() {
    let folder = &folder_with(&[]);
    let (lessons, flows): (Vec<_>, Vec<_>) =
        of("yaml").into_iter().partition(|block| lesson(block).is_some());
    for block in lessons {
        let files = paths_below(&lesson(&block).unwrap());
        let shown =
            files.iter().any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(&block.text)));
        assert!(shown, "{}: no file of the lesson has this", block.place());
        let flow = lesson(&block).unwrap().join("flow.yaml");
        let ran = inspan(folder, &["check", flow.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{}: {}{}", block.place(), ran.stdout, ran.stderr);
    }
    for block in flows.into_iter().filter(|block| block.more != "test") {
        let text = match block.more.as_str() {
            "fragment" => format!("name: fragment\nnodes:\n{}", block.text),
            _ => block.text.clone(),
        };
        // One whose first line is the name of a file is there for those after it.
        let name = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let name = name.filter(|name| name.ends_with(".yaml")).unwrap_or("flow.yaml");
        let file = folder.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, &text).unwrap();
        let ran = inspan(folder, &["check", file.to_str().unwrap()]);
        assert_eq!(ran.code, Some(0), "{}: {}{}", block.place(), ran.stdout, ran.stderr);
    }
}

#[test]
fn tests_of_flows_pass() {
    let blocks = of("yaml");
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.more == "test") {
        let flow =
            blocks[..index].iter().rev().find(|flow| flow.document == block.document && flow.more.is_empty());
        let folder = &flow_folder(&flow.unwrap().text);
        fs::write(folder.join("flow.test.yaml"), &block.text).unwrap();
        let ran = inspan(folder, &["test"]);
        assert_eq!(ran.code, Some(0), "{}: {}{}", block.place(), ran.stdout, ran.stderr);
    }
}

/// The folder of a lesson: `docs/lessons/06` of `docs/lessons/06-prompt-files.md`.
fn lesson(block: &FencedBlock) -> Option<PathBuf> {
    let name = block.document.strip_prefix("docs/lessons/")?;
    let folder = root().join("docs/lessons").join(name.split('-').next()?);
    folder.is_dir().then_some(folder)
}

/// Replaces cargo where a document runs the program from its source, or an example of the package `inspan`.
fn cargo() -> String {
    let examples = example("").unwrap();
    format!(
        "#!/bin/sh
case \"$*\" in
    'run --bin inspan -- '*) shift 4; exec inspan \"$@\" ;;
    'run -q -p inspan --example '*)
        [ -x '{examples}/'\"$6\" ] || {{ echo \"cargo build -p inspan --examples builds $6\" >&2; exit 98; }}
        exec '{examples}/'\"$6\" ;;
    *) exit 99 ;;
esac
",
        examples = examples.display()
    )
}

#[cfg(target_os = "linux")]
#[test]
fn commands_do_what_the_documents_say() {
    use std::os::unix::fs::symlink;
    let blocks = blocks();
    for (index, block) in
        blocks.iter().enumerate().filter(|(_, block)| block.kind == "sh" && block.more.is_empty())
    {
        let sandbox = &folder_with(&[]);
        let bin = sandbox.join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(INSPAN, bin.join("inspan")).unwrap();
        write_program(&bin.join("cargo"), &cargo()).unwrap();
        let work = match lesson(block) {
            Some(lesson) => {
                let work = sandbox.join("work");
                assert!(Command::new("cp").arg("-r").args([&lesson, &work]).status().unwrap().success());
                work
            }
            None => root(),
        };
        let output = Command::new("timeout")
            .args(["60", "sh", "-e", "-c", &block.text])
            .current_dir(work)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("HOME", sandbox)
            .env("INSPAN_HOME", sandbox.join("home"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}: {stdout}{stderr}", block.place());
        let next = blocks.get(index + 1).filter(|next| next.document == block.document);
        let promised = next.filter(|next| next.more == "output").map(|next| next.text.trim_end());
        assert_eq!(promised.unwrap_or(stdout.trim_end()), stdout.trim_end(), "{}: {stderr}", block.place());
    }
}

/// The calls of the program among these lines.
fn calls(lines: &str) -> impl Iterator<Item = Vec<&str>> {
    lines.lines().filter_map(|line| {
        let line = line.trim().split(" #").next()?;
        Some(line.strip_prefix("inspan ")?.split_whitespace().collect())
    })
}

#[test]
fn what_is_not_run_exists() {
    let folder = &folder_with(&[]);
    for block in blocks() {
        let text = match (block.kind.as_str(), block.more.as_str()) {
            ("console", _) => block
                .text
                .lines()
                .filter_map(|line| line.strip_prefix("$ "))
                .fold(String::new(), |all, line| all + line + "\n"),
            ("sh", more) if !more.is_empty() => block.text.clone(),
            _ => continue,
        };
        for call in calls(&text) {
            let help = inspan(folder, &[call[0], "--help"]);
            assert_eq!(help.code, Some(0), "{}: there is no verb `{}`", block.place(), call[0]);
            for flag in call.iter().filter(|word| word.starts_with("--")) {
                let flag = flag.split('=').next().unwrap();
                assert!(help.stdout.contains(flag), "{}: `{}` has no `{flag}`", block.place(), call[0]);
            }
        }
    }
}

#[test]
fn data_is_what_it_says() {
    for block in of("json") {
        let whole = serde_json::from_str::<Value>(&block.text).is_ok();
        let lines = || block.text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok());
        assert!(whole || lines(), "{}: it is not JSON", block.place());
    }
    for block in of("toml") {
        let table: toml::Table =
            block.text.parse().unwrap_or_else(|error| panic!("{}: {error}", block.place()));
        let Some(dependencies) = table.get("dependencies").and_then(toml::Value::as_table) else {
            let folder = &folder_with(&[]);
            let file = folder.join(".config/inspan/config.toml");
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, &block.text).unwrap();
            let ran = ran(folder, &mut program(folder, &["config"]));
            assert_eq!(ran.code, Some(0), "{}: {}", block.place(), ran.stderr);
            continue;
        };
        for path in dependencies.values().filter_map(|value| value.get("path")?.as_str()) {
            let manifest = root().join(path.trim_start_matches("../inspan/")).join("Cargo.toml");
            assert!(manifest.is_file(), "{}: there is no crate at {path}", block.place());
        }
    }
}

/// Every file of Rust below a folder.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => sources(&path, found),
            Some("rs") => found.push(fs::read_to_string(&path).unwrap()),
            _ => {}
        }
    }
}

#[test]
fn the_tests_that_the_security_page_names_exist() {
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let is_test =
        |word: &&str| word.matches('_').count() > 1 && word.chars().all(|c| c == '_' || c.is_alphanumeric());
    let named: Vec<&str> = page.split('`').filter(is_test).collect();
    assert!(named.len() > 20, "{named:?}");
    let mut all = Vec::new();
    sources(&root().join("crates"), &mut all);
    // The line before a test marks it as one.
    let is_there = |name: &&&str| {
        all.iter().any(|text| {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            let is_named = |line: &str| {
                let line = line.strip_prefix("async ").unwrap_or(line);
                line.strip_prefix("fn ").is_some_and(|rest| rest.starts_with(&format!("{name}(")))
            };
            let marked = |mark: &str| mark.starts_with("#[test]") || mark.starts_with("#[tokio::test");
            lines.windows(2).any(|pair| is_named(pair[1]) && marked(pair[0]))
        })
    };
    let missing: Vec<_> = named.iter().filter(|name| !is_there(name)).collect();
    assert_eq!(missing, Vec::<&&str>::new());
}

/// Docker is not needed for this: the commands are ones of the program, and each image has a version.
#[test]
fn compose_file_calls_the_program_as_it_is() {
    let compose = include_str!("../../../../examples/fleet/compose.yml");
    let commands: Vec<_> =
        compose.lines().filter_map(|line| line.trim().strip_prefix("command: [")).collect();
    assert_eq!(commands.len(), 3);
    for command in commands {
        let arguments = command.trim_end_matches(']').split(", ").map(|word| word.trim_matches('"'));
        let helped = Command::new(INSPAN).args(arguments).arg("--help").output().unwrap();
        assert!(helped.status.success(), "{command}: {}", String::from_utf8_lossy(&helped.stderr));
    }
    for image in compose.lines().filter_map(|line| line.trim().strip_prefix("image: ")) {
        let version = image.rsplit_once(':').map(|(_, version)| version);
        assert!(version.is_some_and(|version| version != "latest"), "{image}");
    }
}
