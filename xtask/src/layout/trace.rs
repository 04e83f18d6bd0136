//! Which functions a program calls: each is given a breakpoint at its start, which is taken away where it is hit.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Functions;

/// The instruction `int3`.
const BREAKPOINT: u8 = 0xcc;
/// A program that does not end by then is killed.
const BOUND: Duration = Duration::from_secs(60);

/// The names of the functions that a program calls, each once, in the order of the first calls. A `command`'s program,
/// arguments, environment and folder are taken, nothing else of it.
pub(super) fn called(command: &Command, functions: &Functions) -> anyhow::Result<Vec<String>> {
    let program = Path::new(command.get_program()).canonicalize()?;
    // The shell waits until it is watched, and becomes the program.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read -r _ && exec \"$@\" </dev/null", "sh"]).arg(&program).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    let mut shell = shell
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("no shell")?;
    let pid = Pid::from_raw(i32::try_from(shell.id())?);
    let options = Options::PTRACE_O_EXITKILL
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK;
    let seized = ptrace::seize(pid, options).context("the system does not let programs be watched");
    let found = seized.and_then(|()| {
        shell.stdin.take().context("the shell has no input")?.write_all(b"\n")?;
        let (over, bound) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if bound.recv_timeout(BOUND) == Err(mpsc::RecvTimeoutError::Timeout) {
                // It may have ended just now.
                let _gone = kill(pid, Signal::SIGKILL);
            }
        });
        let found = Watch { program: &program, main: pid, functions, hidden: HashMap::new() }.follow();
        drop(over);
        found
    });
    if found.is_err() {
        // Nothing that is watched goes on unwatched; what has ended cannot be killed.
        let _gone = shell.kill();
        let _reaped = shell.wait();
    }
    found
}

struct Watch<'w> {
    program: &'w Path,
    main: Pid,
    functions: &'w Functions,
    /// What the breakpoints hide, by the addresses in memory: the byte and the function's address in the file.
    hidden: HashMap<u64, (u8, u64)>,
}

impl Watch<'_> {
    /// Lets the program run to its end.
    fn follow(mut self) -> anyhow::Result<Vec<String>> {
        let mut called = Vec::new();
        let mut seen = HashSet::new();
        loop {
            // Threads count, and children that another thread of ours started do not.
            match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD))? {
                WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC)
                    // The shell itself may come by here first.
                    if pid == self.main && std::fs::read_link(format!("/proc/{pid}/exe"))? == self.program =>
                {
                    self.set(pid)?;
                    go_on(pid, None)?;
                }
                WaitStatus::PtraceEvent(pid, ..) => go_on(pid, None)?,
                WaitStatus::Stopped(pid, Signal::SIGTRAP) => match self.hit(pid)? {
                    Some(function) => {
                        if seen.insert(function) {
                            called.push(self.functions[&function].clone());
                        }
                        go_on(pid, None)?;
                    }
                    None => go_on(pid, Some(Signal::SIGTRAP))?,
                },
                WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal))?,
                WaitStatus::Exited(pid, code) if pid == self.main => {
                    ensure!(code == 0, "{} ended with {code}", self.program.display());
                    return Ok(called);
                }
                WaitStatus::Signaled(pid, signal, _) if pid == self.main => {
                    bail!("{} was ended by {signal}", self.program.display())
                }
                _ => {}
            }
        }
    }

    /// Puts a breakpoint at the start of every function.
    fn set(&mut self, pid: Pid) -> anyhow::Result<()> {
        let base = base(pid, self.program)?;
        let memory = memory(pid)?;
        for &function in self.functions.keys() {
            let address = base + function;
            let mut byte = [0];
            memory.read_exact_at(&mut byte, address)?;
            memory.write_all_at(&[BREAKPOINT], address)?;
            self.hidden.insert(address, (byte[0], function));
        }
        Ok(())
    }

    /// The function at whose start a thread stopped, if it is one of ours. The breakpoint is gone then, also where
    /// another thread hit it at the same time or a child has a memory of its own.
    fn hit(&self, pid: Pid) -> anyhow::Result<Option<u64>> {
        let mut registers = ptrace::getregs(pid)?;
        let address = registers.rip - 1;
        let Some(&(byte, function)) = self.hidden.get(&address) else { return Ok(None) };
        memory(pid)?.write_all_at(&[byte], address)?;
        registers.rip = address;
        ptrace::setregs(pid, registers)?;
        Ok(Some(function))
    }
}

/// A thread may be gone by the time that it is told to go on.
fn go_on(pid: Pid, signal: Option<Signal>) -> anyhow::Result<()> {
    match ptrace::cont(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn memory(pid: Pid) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))
}

/// Where a program's file begins in memory.
fn base(pid: Pid, program: &Path) -> anyhow::Result<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let program = program.to_string_lossy();
    let line = maps.lines().find(|line| line.ends_with(&*program)).context("the program is not in memory")?;
    let start = line.split('-').next().unwrap_or_default();
    Ok(u64::from_str_radix(start, 16)?)
}
