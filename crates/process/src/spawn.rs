//! Starts a program in a new process group, under a guard where there is one; waits for it, reaps it, and kills
//! what it leaves behind.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use inspan_protocol::Supervisor;
use process_wrap::tokio::{ChildWrapper, CommandWrap, ProcessGroup, ProcessSession};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::family::{self, Family};

/// How long each step of ending a program waits for it.
pub(crate) const STEP: Duration = Duration::from_secs(2);
/// How long a killed process may take to vanish. A process stuck in the kernel can take longer than any wait.
const VANISH: Duration = Duration::from_secs(5);

/// How long a program is tried to be started, and the pauses between two attempts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What to start.
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its whole environment; nothing is inherited.
    pub environment: Vec<(String, String)>,
    /// The directory it runs in; ours if absent.
    pub cwd: Option<PathBuf>,
    /// The guard between us and the program.
    pub supervisor: Option<Supervisor>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: std::os::unix::process::ExitStatusExt::signal(&status) }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("unknown exit"),
        }
    }
}

/// The streams of a program.
pub struct Pipes {
    /// What it reads.
    pub stdin: ChildStdin,
    /// What it prints.
    pub stdout: ChildStdout,
}

/// A running program. Dropping this kills it and everything it started.
#[derive(Debug)]
pub struct Handle {
    /// The guard's number, where there is one.
    pub(crate) pid: u32,
    mode: Mode,
    exit: watch::Receiver<Option<Option<ExitStatus>>>,
    kill: CancellationToken,
    lost: Arc<AtomicBool>,
}

/// How a program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Direct,
    /// Our child is the guard, and the program is its child.
    Guarded,
}

/// Whether the system may start the program a moment later: what it lacks, others give back, and whoever writes the
/// program's file closes it.
pub(crate) fn passes(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let lacking = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY];
    Errno::from_io_error(error).is_some_and(|error| lacking.contains(&error))
}

/// Starts a program. Must be called within a tokio runtime. What it leaves behind may run on for `linger`, unless a guard
/// has its own limit. `errors` takes its stderr; the exit is reported once the future that it returns is done. While the system
/// has no process, descriptor or memory for it, it is tried again for a minute.
///
/// # Errors
/// The program, or the guard, cannot be started.
pub async fn spawn<L: Future<Output = ()> + Send + 'static>(
    start: Start,
    linger: Duration,
    errors: impl FnOnce(ChildStderr) -> L,
) -> io::Result<(Handle, Pipes)> {
    let Start { program, arguments, environment, cwd, supervisor } = start;
    let outer = environment.iter().find(|(name, _)| name == family::MARK).map(|(_, value)| value.clone());
    let family = Family::new(outer.as_deref());
    let (mut command, mode) = match supervisor {
        Some(supervisor) => {
            let (guard, before) = supervisor.before(std::process::id(), &program);
            let mut command = Command::new(guard);
            command.arg0(Supervisor::NAME).args(before);
            (command, Mode::Guarded)
        }
        None => (Command::new(&program), Mode::Direct),
    };
    command.args(arguments).env_clear().envs(environment);
    command.env(family::MARK, family.mark());
    if let Some(cwd) = &cwd {
        command.current_dir(cwd);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A guard that is killed could not do its work.
    command.kill_on_drop(mode == Mode::Direct);
    let mut command = CommandWrap::from(command);
    match mode {
        // In its own session, as what it starts: a program that asks at the terminal would be stopped there for ever, and nobody
        // would see why.
        Mode::Guarded => command.wrap(ProcessSession),
        // What begins a session is started in a way that runs a file that is not a program as a shell script.
        Mode::Direct => command.wrap(ProcessGroup::leader()),
    };
    let until = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    let mut child = loop {
        match command.spawn() {
            Err(error) if passes(&error) && Instant::now() + pause < until => sleep(pause).await,
            started => break started?,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    let pipes = (child.stdin().take(), child.stdout().take(), child.stderr().take(), child.id());
    let (Some(stdin), Some(stdout), Some(stderr), Some(pid)) = pipes else {
        return Err(io::Error::other("the program started without its pipes"));
    };
    let (ended, exit) = watch::channel(None);
    let kill = CancellationToken::new();
    let lost = Arc::new(AtomicBool::new(false));
    let family = Arc::new(family.led_by(pid));
    let reaper =
        Reaper { child, family, mode, linger, state: ProcessState::Running, lost: Arc::clone(&lost) };
    tokio::spawn(reaper.run(kill.clone(), ended, errors(stderr)));
    Ok((Handle { pid, mode, exit, kill, lost }, Pipes { stdin, stdout }))
}

impl Handle {
    /// How it ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        let ended = self.exit.borrow().map(|status| status.map(Exit::from).unwrap_or_default());
        // With the runtime in which it was started the program is gone too.
        ended.or_else(|| self.exit.has_changed().is_err().then(Exit::default))
    }

    /// Waits for it to end by itself. Nothing if it could not be waited for.
    pub async fn status(&self) -> Option<ExitStatus> {
        let mut exit = self.exit.clone();
        exit.wait_for(Option::is_some).await.ok().and_then(|status| *status).flatten()
    }

    /// Waits for it to end by itself.
    pub async fn wait(&self, limit: Duration) -> Option<Exit> {
        timeout(limit, self.status()).await.ok()?;
        self.exit()
    }

    /// Ends it: SIGTERM to its group, and after two seconds SIGKILL to it and everything it started.
    pub async fn stop(&self) -> Exit {
        if self.exit().is_none() {
            family::terminate_group(self.pid);
        }
        if let Some(exit) = self.wait(STEP).await {
            return exit;
        }
        self.kill().await
    }

    /// Kills it and everything it started.
    pub async fn kill(&self) -> Exit {
        self.kill.cancel();
        self.wait(VANISH).await.unwrap_or_default()
    }

    /// Whether it ended because its guard was killed, and not by us: the rest of it was killed then.
    pub fn is_lost(&self) -> bool {
        self.exit().is_some() && self.lost.load(Ordering::Acquire)
    }

    /// Why the program was not started, if this is the end of a guard that could not.
    pub fn refused(&self, stderr: &str) -> Option<io::Error> {
        let code = self.exit()?.code;
        (self.mode == Mode::Guarded).then(|| Supervisor::refused(code, stderr)).flatten()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

/// Waits for a process, reaps it, and kills what it leaves behind.
struct Reaper {
    child: Box<dyn ChildWrapper>,
    family: Arc<Family>,
    mode: Mode,
    linger: Duration,
    state: ProcessState,
    lost: Arc<AtomicBool>,
}

enum ProcessState {
    Running,
    /// It has ended, and its number may become another's; others may be left.
    Ended,
    Gone,
}

impl Reaper {
    async fn run(
        mut self,
        kill: CancellationToken,
        ended: watch::Sender<Option<Option<ExitStatus>>>,
        last: impl Future<Output = ()>,
    ) {
        let status = tokio::select! {
            status = self.child.wait() => status,
            () = kill.cancelled() => self.kill().await,
        };
        self.state = ProcessState::Ended;
        // A guard ends when nothing is left, unless it is killed itself.
        if self.mode == Mode::Guarded && !kill.is_cancelled() && status.as_ref().is_ok_and(is_signalled) {
            if self.blocking(Family::has_left_behind).await == Some(true) {
                self.lost.store(true, Ordering::Release);
                self.blocking(Family::kill_left_behind).await;
            }
        } else if self.mode == Mode::Direct {
            let left = self.blocking(Family::has_left_behind).await;
            if left == Some(true) && !kill.is_cancelled() {
                let _killed = timeout(self.linger, kill.cancelled()).await;
            }
            if left != Some(false) {
                self.blocking(Family::kill_left_behind).await;
            }
        }
        self.state = ProcessState::Gone;
        last.await;
        ended.send_replace(Some(status.ok()));
    }

    async fn kill(&mut self) -> io::Result<ExitStatus> {
        if self.mode == Mode::Guarded {
            family::ask_to_kill(self.family.leader());
            if let Ok(status) = timeout(STEP, self.child.wait()).await {
                return status.map(family::killed);
            }
        }
        self.blocking(Family::kill).await;
        self.child.wait().await
    }

    /// Looking through all processes takes some milliseconds. Fails only when the runtime ends, and then the drop
    /// kills.
    async fn blocking<T: Send + 'static>(&self, work: fn(&Family) -> T) -> Option<T> {
        let family = Arc::clone(&self.family);
        tokio::task::spawn_blocking(move || work(&family)).await.ok()
    }
}

fn is_signalled(status: &ExitStatus) -> bool {
    status.code().is_none()
}

impl Drop for Reaper {
    /// The runtime ends under a running process: nothing will wait for it, but it must not stay.
    fn drop(&mut self) {
        match (&self.state, self.mode) {
            (ProcessState::Running, Mode::Direct) => self.family.kill(),
            (ProcessState::Running, Mode::Guarded) => family::ask_to_kill(self.family.leader()),
            (ProcessState::Ended, Mode::Direct) => self.family.kill_left_behind(),
            (ProcessState::Ended, Mode::Guarded) | (ProcessState::Gone, _) => {}
        }
    }
}
