//! Running the program as a shell would, in a folder and an environment of the test, and its output with
//! times and durations normalised.

use std::{
    ffi::OsStr,
    fs,
    io::{ErrorKind, Write as _},
    ops::Deref,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use inspan_testkit::interruptible;
use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

/// The program.
pub(crate) const INSPAN: &str = env!("CARGO_BIN_EXE_inspan");

/// One call that has ended.
pub(crate) struct Ran {
    /// The words of the call.
    pub(crate) call: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program in a folder, with nobody at its terminal and nothing in its environment that matters.
pub(crate) fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = interruptible(Path::new(INSPAN));
    command
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", folder)
        .env("TZ", "UTC")
        .env("INSPAN_HOME", home(folder))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The folder for what outlives a session, for a test in this folder.
pub(crate) fn home(folder: &Path) -> PathBuf {
    folder.join(".home")
}

/// A folder that goes with its test.
pub(crate) struct Folder(TempDir);

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl AsRef<OsStr> for Folder {
    fn as_ref(&self) -> &OsStr {
        self.as_os_str()
    }
}

/// A folder with these files.
pub(crate) fn folder_with(files: &[(&str, &str)]) -> Folder {
    let folder = Folder(tempfile::tempdir().unwrap());
    write(&folder, files);
    folder
}

/// A folder with this flow.
pub(crate) fn flow_folder(flow: &str) -> Folder {
    folder_with(&[("flow.yaml", flow)])
}

/// Writes files into a folder, each with the folders above it.
pub(crate) fn write(folder: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Everything below a folder. What goes away meanwhile is not in it: a session that has just ended removes its folders
/// after its last event.
pub(crate) fn paths_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = open.pop() {
        let entries = match fs::read_dir(&next) {
            Err(error) if error.kind() == ErrorKind::NotFound && next != folder => continue,
            entries => entries.unwrap(),
        };
        for path in entries.map(|entry| entry.unwrap().path()) {
            open.extend(path.is_dir().then(|| path.clone()));
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A shell with this script, whose `$0` is the program, and which has all that [`program`] gives it.
pub(crate) fn shell(folder: &Path, script: &str) -> Command {
    let call = program(folder, &[]);
    let mut command = Command::new("sh");
    command
        .args(["-c", script, INSPAN])
        .current_dir(folder)
        .env_clear()
        .envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
pub(crate) fn inspan(folder: &Path, arguments: &[&str]) -> Ran {
    ran(folder, &mut program(folder, arguments))
}

/// Runs the program to its end, with this text on its stdin.
pub(crate) fn inspan_reading(folder: &Path, stdin: &str, arguments: &[&str]) -> Ran {
    let mut command = program(folder, arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    Ran::of(folder, &command, child.wait_with_output().unwrap())
}

/// Runs a prepared call of the program to its end.
pub(crate) fn ran(folder: &Path, command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran::of(folder, command, output)
}

/// Waits for the end of a program that was started.
pub(crate) fn ended(folder: &Path, child: Child) -> Ran {
    Ran::of(folder, &Command::new(INSPAN), child.wait_with_output().unwrap())
}

/// Compares a text with the snapshot of this name, which says of which call it is.
macro_rules! snapshot {
    ($name:expr, $arguments:expr, $text:expr) => {
        insta::with_settings!({ description => $arguments.join(" "), omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!($name, $text);
        })
    };
    ($name:expr, $text:expr) => {
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!($name, $text);
        })
    };
}
pub(crate) use snapshot;

impl Ran {
    /// What a call gave, where the folder is shown as `~`.
    fn of(folder: &Path, command: &Command, output: Output) -> Self {
        let folder = folder.display().to_string();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&folder, "~");
        let call = format!("{:?}", command.get_args());
        Self { call, code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The same, if it ended with this code.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.call, self.report());
        self
    }

    /// The same, if this is part of what it wrote to stdout.
    #[track_caller]
    pub(crate) fn prints(self, part: &str) -> Self {
        assert!(
            self.stdout.contains(part),
            "{}: {part:?} is not in the output of\n{}",
            self.call,
            self.report()
        );
        self
    }

    /// The same, if this is part of what it wrote to stderr.
    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Self {
        assert!(
            self.stderr.contains(part),
            "{}: {part:?} is not in the messages of\n{}",
            self.call,
            self.report()
        );
        self
    }

    /// The same, if it was refused for this reason.
    #[track_caller]
    pub(crate) fn refused(self, why: &str) -> Self {
        let refused = self.expect(2);
        let first = refused.stderr.lines().next().unwrap_or_default();
        assert_eq!(first, format!("error: {why}"), "{}", refused.call);
        refused
    }

    /// The value on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}\n{}\n{}", self.stdout, self.stderr))
    }

    /// All of it as one text that is the same on every run.
    pub(crate) fn report(&self) -> String {
        let mut report =
            format!("exit {}\n", self.code.map_or("by a signal".to_owned(), |code| code.to_string()));
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                report.push_str(&format!("── {name}\n{}", evened(text)));
            }
        }
        report
    }
}

/// The text with every time of day and length of time replaced.
fn evened(text: &str) -> String {
    let rules = [
        (r"\b\d\d:\d\d:\d\d\b", "12:00:00"),
        (r#"(durationMs": )[\d.]+"#, "${1}0"),
        (r"\b\d[\d.:]*(ms|s)\b", "0ms"),
    ];
    replaced(text, &rules)
}

/// The text after these patterns, one after the other, are replaced.
pub(crate) fn replaced(text: &str, rules: &[(&str, &str)]) -> String {
    rules.iter().fold(text.to_owned(), |text, (pattern, by)| {
        Regex::new(pattern).unwrap().replace_all(&text, *by).into_owned()
    })
}

#[test]
fn times_are_evened_out_and_nothing_else() {
    let text =
        "10:11:12 a2 ✔ done in 1.2s · 30 tokens · $0.0040, 17ms\n\"durationMs\": 12, 3 more at 1m 02s\n";
    let expected =
        "12:00:00 a2 ✔ done in 0ms · 30 tokens · $0.0040, 0ms\n\"durationMs\": 0, 3 more at 1m 0ms\n";
    assert_eq!(evened(text), expected);
}
