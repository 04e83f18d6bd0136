//! What happens to a store when processes are killed, or get errors from the system: this program
//! starts itself as those processes.

#[path = "store_crash/child.rs"]
mod child;
#[path = "store_crash/power.rs"]
mod power;

use std::{
    error::Error,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};

use inspan_protocol::Timestamp;
use inspan_store::{Gc, LARGE_VALUE, RunStore, Select, SqliteOptions, SqliteStore};
use tempfile::TempDir;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The session that is driven by one process after the other.
const SESSION: &str = "run-1";

type CrashPart = (&'static str, fn() -> Outcome);

const PARTS: &[CrashPart] = &[
    ("killed_at_random_moments_nothing_acknowledged_is_lost", random_moments),
    ("killed_at_every_point_nothing_acknowledged_is_lost", every_point),
    ("killed_at_every_point_a_large_value_is_with_its_event_or_collected", every_point_of_large_values),
    ("a_kill_does_not_disturb_others", beside_others),
    ("a_write_that_fails_is_reported_and_the_store_continues", failed_writes),
    ("a_sync_that_fails_is_reported_and_the_store_continues", failed_syncs),
    ("after_a_power_cut_every_fact_is_there_and_all_before_it", power::cuts),
    ("a_great_session_is_walked_over_within_little_memory", little_memory),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == "child"
    {
        return match child::run(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say(&format!("error {error}"));
                ExitCode::FAILURE
            }
        };
    }
    let wanted: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let mut failed = 0;
    for (name, part) in PARTS {
        if !wanted.is_empty() && !wanted.iter().any(|filter| name.contains(*filter)) {
            continue;
        }
        if arguments.iter().any(|argument| argument == "--list") {
            say(&format!("{name}: test"));
            continue;
        }
        match part() {
            Ok(()) => say(&format!("test {name} ... ok")),
            Err(error) => {
                say(&format!("test {name} ... FAILED: {error}"));
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A line for the reader of this process's output; if there is no reader, it is lost.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what().into()) }
}

fn place() -> Outcome<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("store.db");
    Ok((folder, path))
}

fn command(task: &str, path: &Path) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["child", task]).arg(path).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// What a child said before its end.
#[derive(Default)]
struct Said {
    /// The newest event whose keeping was acknowledged.
    acknowledged: u64,
    /// The appends that failed, with the reason.
    failed: Vec<String>,
    /// Whether it came to its end.
    done: bool,
}

impl Said {
    fn take(&mut self, line: &str) -> Outcome {
        match line.split_once(' ') {
            Some(("acknowledged", seq)) => self.acknowledged = seq.parse()?,
            Some(("failed", why)) => self.failed.push(why.to_owned()),
            Some(("error", why)) => return Err(format!("a child failed: {why}").into()),
            _ => self.done = line == "done",
        }
        Ok(())
    }
}

/// Reads until `enough`, ends the child with SIGKILL, and reads the rest.
fn listen(mut child: Child, enough: impl Fn(&Said) -> bool) -> Outcome<Said> {
    let mut said = Said::default();
    let out = child.stdout.take().ok_or("a child has no output")?;
    let mut received = Ok(());
    for line in BufReader::new(out).lines() {
        received = line.map_err(Into::into).and_then(|line| said.take(&line));
        if received.is_err() {
            break;
        }
        if enough(&said) {
            child.kill()?;
        }
    }
    child.kill()?;
    child.wait()?;
    received.map(|()| said)
}

/// Opens what is left, and looks whether all is sound and all that was acknowledged is there. The last event.
fn look(path: &Path, acknowledged: u64, bytes: usize) -> Outcome<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = SqliteStore::open(path, &SqliteOptions::default())?;
        let report = store.verify().await?;
        ensure(report.is_sound(), || format!("{:?}", report.findings))?;
        if store.entries(SESSION, 1).await?.is_empty() {
            ensure(acknowledged == 0, || format!("of {acknowledged} events even the session is lost"))?;
            return Ok(0);
        }
        let log = store.read(&SESSION.into(), 0, Select::All).await?;
        let last = log.last().map_or(0, |event| event.seq);
        ensure(last >= acknowledged, || {
            format!("{acknowledged} events were acknowledged, and {last} are left")
        })?;
        for event in &log {
            let same = **event == child::event(SESSION, event.seq, bytes);
            ensure(same, || format!("event {} is not what was written", event.seq))?;
        }
        Ok(last)
    })
}

fn random_moments() -> Outcome {
    let (_folder, path) = place()?;
    let (mut acknowledged, mut kills) = (0, 0);
    let mut chance: u64 = 0x5eed;
    for _ in 0..40 {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let until = acknowledged + (chance >> 33) % 60;
        let said = listen(command("append", &path)?.spawn()?, |said| said.acknowledged >= until)?;
        kills += u64::from(!said.done);
        acknowledged = look(&path, acknowledged.max(said.acknowledged), 0)?;
    }
    ensure(kills >= 30, || format!("only {kills} processes were killed"))?;
    ensure(acknowledged > 300, || format!("only {acknowledged} events were kept"))
}

fn every_point() -> Outcome {
    killed_at_every_point(0)
}

/// As with small events; what is left of a large value whose event was not stored is collected.
fn every_point_of_large_values() -> Outcome {
    killed_at_every_point(2 * LARGE_VALUE)
}

fn killed_at_every_point(bytes: usize) -> Outcome {
    let many = ["--events", "6", "--bytes", &bytes.to_string()];
    for point in 1.. {
        let (_folder, path) = place()?;
        let mut first = command("append", &path)?;
        first.args(many).args(["--die-at", &point.to_string()]);
        let said = listen(first.spawn()?, |_| false)?;
        look(&path, said.acknowledged, bytes).map_err(|error| format!("killed at point {point}: {error}"))?;
        let mut second = command("append", &path)?;
        let went_on = listen(second.args(many).spawn()?, |_| false)?;
        ensure(went_on.done, || format!("after the kill at point {point} the session does not go on"))?;
        let last = look(&path, 6, bytes)?;
        ensure(last == 6, || format!("after the kill at point {point} there are {last} events"))?;
        let unused = unused_values(&path, bytes > 0)?;
        ensure(unused == 0, || format!("the kill at point {point} left {unused} large values"))?;
        if said.done {
            // Four transactions of eight points, and one of which there is no trace but a release.
            return ensure(point > 31, || format!("there are only {} points", point - 1));
        }
        ensure(point < 1_000, || "the points never end".to_owned())?;
    }
    Ok(())
}

/// How many large values no event refers to, after they were collected.
fn unused_values(path: &Path, large: bool) -> Outcome<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = SqliteStore::open(path, &SqliteOptions::default())?;
        let (long_ago, now) = (Timestamp::default(), child::NOW);
        let deleted = store.gc(long_ago, Gc::Delete, now, |_| ()).await?.unused_values;
        ensure((deleted > 0) == large, || format!("{deleted} unused values were deleted"))?;
        Ok(store.gc(long_ago, Gc::Look, now, |_| ()).await?.unused_values)
    })
}

/// Of four processes with a session each, one is killed in the middle of its work, which another then continues.
fn beside_others() -> Outcome {
    let (_folder, path) = place()?;
    for round in 1..=8 {
        let events = (round * 40).to_string();
        let start = |session: &str| -> Outcome<Child> {
            let mut command = command("append", &path)?;
            Ok(command.args(["--events", &events, "--session", session]).spawn()?)
        };
        let victim = start(SESSION)?;
        let others = ["other-1", "other-2", "other-3"].map(start);
        let until = round * 40 - 30;
        let said = listen(victim, |said| said.acknowledged >= until)?;
        let heir = listen(start(SESSION)?, |_| false)?;
        ensure(heir.done, || format!("nobody goes on with the session of round {round}"))?;
        for other in others {
            let other = listen(other?, |_| false)?;
            ensure(other.done && other.failed.is_empty(), || format!("round {round}: {:?}", other.failed))?;
        }
        look(&path, said.acknowledged.max(round * 40), 0)?;
    }
    Ok(())
}

/// A process that may not make its files as great as it needs: each write beyond fails.
fn failed_writes() -> Outcome {
    let (_folder, path) = place()?;
    let own = std::env::current_exe()?;
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 700; exec \"$0\" \"$@\""]).arg(own);
    shell.args(["child", "append"]).arg(&path).args(["--events", "400", "--bytes", "9000"]);
    let said = listen(shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?, |_| false)?;
    ensure(!said.failed.is_empty(), || "no write failed".to_owned())?;
    ensure(said.failed.iter().all(|why| why.contains("disk I/O error")), || format!("{:?}", said.failed))?;
    ensure(said.acknowledged > 10, || format!("only {} events were kept", said.acknowledged))?;
    let last = look(&path, said.acknowledged, 9_000)?;
    let went_on =
        listen(command("append", &path)?.args(["--events", "420", "--bytes", "9000"]).spawn()?, |_| false)?;
    ensure(went_on.done, || format!("after event {last} the session does not go on"))?;
    look(&path, 420, 9_000).map(|_| ())
}

/// A process some of whose syncs fail, which takes a tracer to make happen.
fn failed_syncs() -> Outcome {
    if !can_trace() {
        return Ok(());
    }
    for call in 1..16 {
        let (_folder, path) = place()?;
        let inject = format!("inject=fsync,fdatasync:error=EIO:when={call}");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", &inject]);
        strace.stdin(Stdio::null());
        strace.arg(std::env::current_exe()?).args(["child", "append"]).arg(&path).args(["--events", "80"]);
        let acknowledged = match listen(strace.stdout(Stdio::piped()).spawn()?, |_| false) {
            // Each thread's own sync of that number fails, so the writer's does too.
            Ok(said) => {
                ensure(said.done, || format!("after failed sync {call} the session does not go on"))?;
                ensure(said.failed.len() <= 1, || format!("sync {call}: {:?}", said.failed))?;
                80
            }
            // The first syncs make the store, and its session.
            Err(error) => {
                ensure(call < 12 && error.to_string().contains("disk I/O"), || {
                    format!("sync {call}: {error}")
                })?;
                0
            }
        };
        let named = |error| format!("failed sync {call}: {error}");
        look(&path, acknowledged, 0).map_err(named)?;
        let went_on = listen(command("append", &path)?.args(["--events", "90"]).spawn()?, |_| false)?;
        ensure(went_on.done, || format!("after failed sync {call} no other process goes on"))?;
        look(&path, 90, 0).map_err(named)?;
    }
    Ok(())
}

fn can_trace() -> bool {
    let can = inspan_testkit::can_trace();
    if !can {
        say("not run: there is no strace, or it may not trace");
    }
    can
}

fn little_memory() -> Outcome {
    let (_folder, path) = place()?;
    let many = ["--events", "600", "--bytes", "50000"];
    let said = listen(command("append", &path)?.args(many).spawn()?, |_| false)?;
    ensure(said.done, || "the great session was not made".to_owned())?;
    // It walks over 30 MB twice, and says by how much that made it grow.
    let out = command("walk", &path)?.output()?;
    let out = String::from_utf8(out.stdout)?;
    let grown: u64 = out.trim().strip_prefix("KiB ").ok_or_else(|| out.clone())?.parse()?;
    ensure(grown < 8_000, || format!("the walk took {grown} KiB"))
}
