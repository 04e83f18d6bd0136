//! Processes that misbehave, as small shell programs. They run in real time, so each waits for what it needs and for
//! nothing else.

use std::path::Path;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use inspan_protocol::{Environment, Supervisor};
use tokio::time::{Instant, sleep};

use super::*;

fn start(script: &str, environment: &[(&str, &str)]) -> Process {
    let mut environment: Vec<(String, String)> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    environment.push(("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()));
    let redactor = Redactor::new(&environment.iter().cloned().collect::<Environment>());
    let arguments = vec!["-c".to_owned(), script.to_owned()];
    let start = Start { program: "/bin/sh".into(), arguments, environment, cwd: None, supervisor: None };
    let mut started = std::pin::pin!(Process::start(start, redactor));
    let Poll::Ready(started) = started.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it is started at once");
    };
    started.unwrap()
}

async fn output(process: &mut Process) -> String {
    let mut returned = Vec::new();
    while let Some(bytes) = process.read().await {
        returned.extend(bytes);
    }
    String::from_utf8(returned).unwrap()
}

/// The state letter of a process, if it exists.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

/// Waits until a process is gone for good. Where orphans are not reaped, an ended one stays as a zombie of the system.
async fn is_gone(pid: u32) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while state(pid).is_some_and(|state| state != 'Z') {
        if Instant::now() > until {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
    true
}

async fn read_pid(file: &Path) -> u32 {
    loop {
        if let Ok(text) = std::fs::read_to_string(file)
            && text.ends_with('\n')
        {
            return text.trim().parse().unwrap();
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn it_says_what_it_says_and_ends() {
    let mut process = start("read line; echo \"got $line\"; echo oops >&2; exit 3", &[]);
    process.stdin().send(b"hello\n".to_vec()).unwrap();
    assert_eq!(output(&mut process).await, "got hello\n");
    let exit = process.wait(Duration::from_secs(5)).await.unwrap();
    assert_eq!((exit, process.stderr().as_str()), (Exit { code: Some(3), signal: None }, "oops\n"));
    assert_eq!(state(process.handle.pid), None, "no zombie");
}

#[tokio::test]
async fn it_sees_the_environment_it_was_given_and_no_other() {
    let mut process = start("env | grep -v '^INSPAN_PROCESS=' | sort", &[("GIVEN", "yes")]);
    let seen = output(&mut process).await;
    let names: Vec<&str> = seen.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let shells_own = ["OLDPWD", "PWD", "SHLVL", "_"];
    let given: Vec<&str> = names.into_iter().filter(|name| !shells_own.contains(name)).collect();
    assert_eq!(given, ["GIVEN", "PATH"]);
}

#[tokio::test]
async fn a_flood_on_stderr_neither_blocks_nor_stays_and_tells_no_secret() {
    let script =
        "i=0; while [ $i -lt 20000 ]; do echo \"line $i $MY_TOKEN\"; i=$((i+1)); done >&2; echo done";
    let mut process = start(script, &[("MY_TOKEN", "planted-secret")]);
    assert_eq!(output(&mut process).await, "done\n");
    process.wait(Duration::from_secs(5)).await.unwrap();
    let stderr = process.stderr();
    // 64 KiB of what the program wrote, where each secret has become a longer name.
    assert!(
        stderr.ends_with("line 19999 [redacted MY_TOKEN]\n") && stderr.len() < 80_000,
        "{}",
        stderr.len()
    );
    assert!(!stderr.contains("planted"));
}

#[tokio::test]
async fn a_process_that_does_not_read_is_reported() {
    let process = start("exec sleep 60", &[]);
    let stdin = process.stdin();
    let refused = loop {
        if let Err(error) = stdin.send(vec![b'x'; 256 * 1024]) {
            break error;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(refused.message, "the program does not read its input");
    assert_eq!(process.kill().await.signal, Some(9));
}

#[tokio::test]
async fn closing_its_input_is_enough_for_one_that_listens() {
    let process = start("cat > /dev/null; exit 0", &[]);
    let began = Instant::now();
    assert_eq!(process.end().await, Exit { code: Some(0), signal: None });
    assert!(began.elapsed() < STEP);
}

#[tokio::test]
async fn one_that_ignores_everything_is_killed_in_time() {
    let mut process = start("trap '' TERM INT HUP; echo ready; while :; do sleep 60 <&- & wait; done", &[]);
    assert_eq!(process.read().await.unwrap(), b"ready\n");
    let began = Instant::now();
    assert_eq!(process.end().await.signal, Some(9));
    assert!(began.elapsed() < 2 * STEP + Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(state(process.handle.pid), None, "no zombie");
}

/// Starts a sleeper in a new session, out of reach of every signal to the group.
const RUNAWAY: &str = "setsid sh -c 'echo $$ > \"$FILE\"; exec sleep 300' </dev/null >/dev/null 2>&1 &";

#[tokio::test]
async fn what_it_left_behind_goes_with_it() {
    let rows = [
        ("ends by itself", format!("{RUNAWAY} while [ ! -s \"$FILE\" ]; do sleep 0.01; done; exit 0")),
        ("is ended", format!("{RUNAWAY} cat >/dev/null")),
        ("is killed", format!("trap '' TERM; {RUNAWAY} while :; do sleep 60; done")),
        ("is dropped", format!("{RUNAWAY} while :; do sleep 60; done")),
        // The parent in between is gone, so no line of parents leads to the sleeper.
        ("has orphans", format!("({RUNAWAY}) ; cat > /dev/null")),
    ];
    for (name, script) in rows {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let process = start(&script, &[("FILE", &file.display().to_string())]);
        let (pid, sleeper) = (process.handle.pid, read_pid(&file).await);
        match name {
            "ends by itself" => drop(process.wait(Duration::from_secs(5)).await.unwrap()),
            "is ended" | "has orphans" => drop(process.end().await),
            "is killed" => drop(process.kill().await),
            _ => drop(process),
        }
        assert!(is_gone(sleeper).await, "{name}: the sleeper is still there");
        assert!(is_gone(pid).await, "{name}: the process is still there");
    }
}

#[tokio::test]
async fn one_that_clears_its_environment_is_found_by_its_parents() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script =
        "setsid env -i sh -c 'echo $$ > '\"$FILE\"'; exec sleep 300' </dev/null >/dev/null 2>&1 & wait";
    let process = start(script, &[("FILE", &file.display().to_string())]);
    let sleeper = read_pid(&file).await;
    process.kill().await;
    assert!(is_gone(sleeper).await);
}

#[test]
fn nothing_outlives_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let script = format!("{RUNAWAY} while :; do sleep 60; done");
    let (process, sleeper) = runtime.block_on(async {
        let process = start(&script, &[("FILE", &file.display().to_string())]);
        let sleeper = read_pid(&file).await;
        (process, sleeper)
    });
    drop(runtime);
    let after = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(after.block_on(is_gone(sleeper)));
    assert!(after.block_on(is_gone(process.handle.pid)));
}

/// The processes whose parent this test program is, those that have ended and were not reaped among them.
fn children() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rfind(')').map_or("", |at| &stat[at + 2..]);
        rest.split(' ').nth(1) == Some(std::process::id().to_string().as_str())
    };
    pids.filter(ours).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_short_programs_leave_no_zombie() {
    // Each way in which a short program can end, and each way in which we can drop it.
    const ROUNDS: usize = 250;
    let mut started = Vec::new();
    for _ in 0..ROUNDS {
        let mut runs =
            ["exit 0", "exit 7", "kill -9 $$", "echo said; sleep 60"].map(|script| start(script, &[]));
        started.extend(runs.iter().map(|process| process.handle.pid));
        let [ends, fails, dies, stays] = &mut runs;
        assert_eq!(ends.wait(Duration::from_secs(30)).await.unwrap().code, Some(0));
        assert_eq!(fails.wait(Duration::from_secs(30)).await.unwrap().code, Some(7));
        assert_eq!(dies.wait(Duration::from_secs(30)).await.unwrap().signal, Some(9));
        assert_eq!(stays.read().await.unwrap(), b"said\n");
        drop(runs);
    }
    assert_eq!(started.len(), 4 * ROUNDS);
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        // Other tests of this program have children too; only those of this one may not be left, not even ended.
        let children = children();
        let left: Vec<u32> = started.iter().copied().filter(|pid| children.contains(pid)).collect();
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "{} of {} are left", left.len(), started.len());
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_inner_mark_keeps_the_outer_one() {
    let mut process = start("echo $INSPAN_PROCESS", &[("INSPAN_PROCESS", "outer")]);
    let mark = output(&mut process).await;
    let (outer, inner) = mark.trim().split_once('/').unwrap();
    assert_eq!((outer, uuid::Uuid::try_parse(inner).is_ok()), ("outer", true));
}

#[tokio::test]
async fn a_program_that_cannot_be_started_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    inspan_testkit::write_program(&text, "echo install me first\n").unwrap();
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        inspan_testkit::write_program(&path, text).unwrap();
        path
    };
    let rows = [
        (Path::new("/nowhere/at-all"), ErrorCode::Process, "No such file or directory (os error 2)"),
        (
            &script("windows", "#!/bin/sh\r\necho hi\r\n"),
            ErrorCode::ConfigInvalid,
            "its first line names `/bin/sh\\r`, which is not there: the file has Windows line ends (`\\r\\n`), and needs `\\n`",
        ),
        (
            &script("python", "#! /opt/nosuch/python -u\nprint()\n"),
            ErrorCode::ConfigInvalid,
            "its first line names `/opt/nosuch/python`, which is not there: install it, or name another",
        ),
        (
            &text,
            ErrorCode::ConfigInvalid,
            "Exec format error (os error 8): it is not a program; run the install script of its package, or reinstall \
             the package without `--ignore-scripts`",
        ),
    ];
    for (program, code, why) in rows {
        let start = Start {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            cwd: None,
            supervisor: None,
        };
        let error = Process::start(start, Redactor::default()).await.unwrap_err();
        assert_eq!((error.code, error.message), (code, format!("cannot start {}: {why}", program.display())));
    }
}

#[tokio::test]
async fn a_program_that_the_system_cannot_start_now_is_started_a_moment_later() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("tool");
    std::fs::copy("/bin/true", &program).unwrap();
    let writer = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
    let start = || Start {
        program: program.clone(),
        arguments: Vec::new(),
        environment: Vec::new(),
        cwd: None,
        supervisor: None,
    };
    let mut started = Box::pin(Process::start(start(), Redactor::default()));
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut started).await.is_err());
    drop(writer);
    let process = started.await.unwrap();
    assert_eq!(process.end().await, Exit { code: Some(0), signal: None });
}

#[tokio::test]
async fn a_program_whose_guard_does_not_listen_yet_was_killed_all_the_same() {
    let start = Start {
        program: "/bin/true".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        cwd: None,
        supervisor: Some(Supervisor::new("/bin/sh", ["-c", "exec /bin/sleep 300"])),
    };
    let process = Process::start(start, Redactor::default()).await.unwrap();
    assert_eq!(process.kill().await, Exit { code: None, signal: Some(9) });
}

#[test]
fn the_end_is_kept_and_a_cut_line_is_not() {
    let mut tail = Tail::default();
    tail.push(b"first\n");
    assert_eq!(tail.text(), "first\n");
    tail.push(&[b'x'; TAIL_LIMIT - 3]);
    tail.push(b"\nend");
    assert_eq!((tail.text().as_str(), tail.bytes.len()), ("end", TAIL_LIMIT));
    tail.push(&[b'y'; TAIL_LIMIT * 2]);
    assert_eq!((tail.text().as_str(), tail.bytes.len()), ("", TAIL_LIMIT));
}
