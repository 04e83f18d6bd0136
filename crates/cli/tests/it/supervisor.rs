//! The supervisor from outside: for the caller that starts a program through it, the only difference is that no
//! process stays behind.

use std::{
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use inspan_testkit::{Stopwatch, interruptible};

use crate::processes::{left, mark, running, signal, until};

/// How long anything here may take that happens at once.
const SOON: Duration = Duration::from_secs(5);

/// A program under a supervisor that watches this process.
fn supervised(argv: &[&str]) -> Command {
    under(std::process::id(), argv)
}

fn under(runtime: u32, argv: &[&str]) -> Command {
    let mut command = interruptible(Path::new(env!("CARGO_BIN_EXE_inspan")));
    command.arg("__supervise").arg(runtime.to_string()).args(argv);
    piped(command)
}

fn direct(argv: &[&str]) -> Command {
    let mut command = interruptible(Path::new(argv[0]));
    command.args(&argv[1..]);
    piped(command)
}

fn piped(mut command: Command) -> Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The exit code, the signal, and what was said.
fn ran(mut command: Command) -> (Option<i32>, Option<i32>, String, String) {
    let mut child = command.spawn().unwrap();
    // One that is never started reads nothing.
    let _unread = child.stdin.take().unwrap().write_all(b"one\ntwo\n");
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), output.status.signal(), text(&output.stdout), text(&output.stderr))
}

fn shell(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

/// Starts a script that says a line once it is ready, and reads that line.
fn ready(script: &str) -> Child {
    let mut child = supervised(&shell(script)).spawn().unwrap();
    let mut line = [0];
    let stdout = child.stdout.as_mut().unwrap();
    while line != *b"\n" {
        stdout.read_exact(&mut line).unwrap();
    }
    child
}

#[test]
fn a_signal_that_the_parent_ignores_stays_ignored() {
    let script = "kill -HUP $$; echo alive";
    let line = format!("trap '' HUP; \"$0\" __supervise $$ sh -c '{script}'; exit $?");
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", &line]).arg(env!("CARGO_BIN_EXE_inspan"));
    assert_eq!(ran(piped(ignoring)), (Some(0), None, "alive\n".to_owned(), String::new()));
}

#[test]
fn a_program_ends_and_speaks_as_it_would_alone() {
    let rows = [
        "cat; echo oops >&2",
        "read -r line; exit 3",
        "exit 255",
        "kill -KILL $$",
        "kill -TERM $$",
        "kill -SEGV $$",
        "kill -ABRT $$",
        "kill -PIPE $$",
        "kill -HUP $$",
        "kill -USR1 $$",
        // Signals have their usual effect on it, not that of the supervisor.
        "trap 'echo hup; exit 7' HUP; kill -HUP $$",
        "sleep 0.01 & wait; jobs",
        "umask; ulimit -c; pwd",
        "printf '%s\\n' \"$0\" \"$@\"",
    ];
    for row in rows {
        let script = format!("cat >/dev/null; {row}");
        let script = if row.starts_with("cat") || row.starts_with("read") { row } else { &script };
        assert_eq!(ran(supervised(&shell(script))), ran(direct(&shell(script))), "{row}");
    }
}

#[test]
fn a_program_that_cannot_be_started_is_distinguished_from_one_that_fails() {
    for (program, why) in [
        ("no-such-program", "No such file or directory (os error 2)"),
        ("/", "Permission denied (os error 13)"),
    ] {
        let said = format!("inspan: cannot start {program}: {why}\n");
        assert_eq!(ran(supervised(&[program])), (Some(127), None, String::new(), said));
    }
}

#[test]
fn a_stream_ends_when_the_program_closes_it() {
    let mark = mark(21);
    let mut child =
        supervised(&shell(&format!("echo said; exec >&- 2>&-; exec sleep {mark}"))).spawn().unwrap();
    let (mut said, mut complained) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut complained).unwrap();
    assert_eq!((said.as_str(), complained.as_str(), child.try_wait().unwrap()), ("said\n", "", None));
    signal(&child, "USR1");
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn signals_are_the_programs() {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let mut child =
            ready(&format!("trap 'echo {name}; exit 9' {name}; echo; while :; do sleep 0.01; done"));
        signal(&child, name);
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((said, child.wait().unwrap().code()), (format!("{name}\n"), Some(9)));
        let mut child = ready("echo; exec sleep 60");
        signal(&child, name);
        assert_eq!(child.wait().unwrap().signal(), Some(number));
    }
}

#[test]
fn all_of_it_is_killed_when_that_is_asked_for() {
    let mark = mark(22);
    let script =
        format!("trap '' TERM; setsid sleep {mark} & (env -i setsid sleep {mark} &); echo; sleep {mark}; :");
    let mut child = ready(&script);
    until("all three sleep", || running(&mark).iter().filter(|line| line.starts_with("sleep")).count() == 3);
    signal(&child, "USR1");
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert_eq!(left(&mark, Duration::ZERO), Vec::<String>::new(), "it ends last");
}

#[test]
fn what_a_program_leaves_behind_may_say_its_last_word_and_then_goes() {
    let mark = mark(23);
    let script = format!("(sleep 0.05; echo last) & setsid sleep {mark} & echo first; exit 4");
    let watch = Stopwatch::start();
    let ended = ran(supervised(&shell(&script)));
    let took = watch.elapsed();
    assert_eq!(ended, (Some(4), None, "first\nlast\n".to_owned(), String::new()));
    assert!(took < SOON, "{took:?}");
    assert_eq!(running(&mark), Vec::<String>::new());
}

#[test]
fn nothing_is_started_for_a_runtime_that_is_gone() {
    let mut gone = direct(&["true"]).spawn().unwrap();
    gone.wait().unwrap();
    assert_eq!(ran(under(gone.id(), &["echo", "started"])), (Some(1), None, String::new(), String::new()));
}

/// The processes whose parent is this one, zombies too, with the letters of their states.
fn children(parent: u32) -> Vec<(u32, char)> {
    let stat = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(path.join("stat")).ok()?;
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        (fields.next()?.parse() == Ok(parent)).then_some((pid, state))
    };
    std::fs::read_dir("/proc").unwrap().filter_map(stat).collect()
}

#[test]
fn orphans_leave_no_zombie_while_the_program_runs() {
    let mut child = ready("i=0; while [ $i -lt 300 ]; do (true &); i=$((i+1)); done; echo; exec sleep 60");
    until("only the program is left, and asleep", || matches!(children(child.id())[..], [(_, 'S')]));
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

#[test]
fn a_thousand_runs_leave_nothing() {
    let run = || {
        let mut child = supervised(&shell("(:&); exit 0")).spawn().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        child.id()
    };
    let half = || (0..500).map(|_| run()).collect::<Vec<u32>>();
    let started = std::thread::scope(|scope| {
        let other = scope.spawn(half);
        [half(), other.join().unwrap()].concat()
    });
    let ours = children(std::process::id());
    assert!(ours.iter().all(|(pid, _)| !started.contains(pid)), "{ours:?}");
}
