//! A vendor's program as a child process: in a group of its own, with bounded pipes, and gone without a trace when
//! it is ended or dropped. What is said through the pipes is left to the adapters.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, Redactor, Supervisor};
use process_wrap::tokio::{ChildWrapper, CommandWrap, ProcessGroup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

mod family;
mod tail;

use family::Family;
use tail::Tail;

/// How long each step of the ladder waits for the process to end.
const STEP: Duration = Duration::from_secs(2);
/// How long a killed process may take to vanish. A process stuck in the kernel can take longer than any wait.
const VANISH: Duration = Duration::from_secs(5);
/// After the process ended, a pipe that somebody else still holds is given so long to fall silent.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// Messages that may wait for the program to read them.
const STDIN_QUEUE: usize = 64;
/// Reads that may wait for us, each up to 64 KiB.
const STDOUT_QUEUE: usize = 16;
const READ_SIZE: usize = 64 * 1024;

/// What to start.
pub(crate) struct Start {
    /// The program.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
    /// Its whole environment; nothing is inherited.
    pub(crate) environment: Vec<(String, String)>,
    /// The directory it runs in; ours if absent.
    pub(crate) cwd: Option<PathBuf>,
    /// Who stands between us and the program.
    pub(crate) supervisor: Option<Supervisor>,
    /// Takes secrets out of what it says on stderr.
    pub(crate) redactor: Redactor,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Its exit code, unless a signal ended it.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
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

/// A running program. Dropping it kills it and everything it started.
#[derive(Debug)]
pub(crate) struct Process {
    program: PathBuf,
    way: Way,
    /// The supervisor's number, where there is one.
    pid: u32,
    stdin: Stdin,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: Arc<Mutex<Tail>>,
    exit: watch::Receiver<Option<Exit>>,
    kill: CancellationToken,
    redactor: Redactor,
}

/// How a program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    /// Our child is the supervisor, and the program is its child.
    Supervised,
}

/// Writes to the program's stdin without waiting for it to read.
#[derive(Clone, Debug)]
pub(crate) struct Stdin {
    queue: mpsc::Sender<Vec<u8>>,
    close: CancellationToken,
}

impl Stdin {
    /// Hands a message over. It fails if the program has stopped reading.
    pub(crate) fn send(&self, bytes: Vec<u8>) -> Result<(), AgentError> {
        self.queue.try_send(bytes).map_err(|error| {
            let why = match error {
                mpsc::error::TrySendError::Full(_) => "the program does not read its input",
                mpsc::error::TrySendError::Closed(_) => "the program no longer takes input",
            };
            AgentError::new(ErrorCode::Process, why)
        })
    }
}

impl Process {
    /// Starts a program. Must be called within a tokio runtime.
    pub(crate) fn start(start: Start) -> Result<Self, AgentError> {
        let Start { program, arguments, environment, cwd, supervisor, redactor } = start;
        let family =
            Family::new(environment.iter().find(|(name, _)| name == family::MARK).map(|(_, v)| v.as_str()));
        let (mut command, way) = match supervisor {
            Some(supervisor) => {
                let (supervisor, before) = supervisor.before(std::process::id(), &program);
                let mut command = Command::new(supervisor);
                #[cfg(unix)]
                command.arg0(Supervisor::NAME);
                command.args(before);
                (command, Way::Supervised)
            }
            None => (Command::new(&program), Way::Direct),
        };
        command.args(arguments).env_clear().envs(environment).env(family::MARK, family.mark());
        if let Some(cwd) = &cwd {
            command.current_dir(cwd);
        }
        let pipe = std::process::Stdio::piped;
        command.stdin(pipe()).stdout(pipe()).stderr(pipe());
        // A supervisor that is killed could not do its work.
        command.kill_on_drop(way == Way::Direct);
        let mut command = CommandWrap::from(command);
        command.wrap(ProcessGroup::leader());
        let mut child = command.spawn().map_err(|error| not_started(&program, &error))?;
        let pipes = (child.stdin().take(), child.stdout().take(), child.stderr().take(), child.id());
        let (Some(input), Some(output), Some(errors), Some(pid)) = pipes else {
            return Err(AgentError::new(ErrorCode::Process, "the program started without its pipes"));
        };
        let (queue, messages) = mpsc::channel(STDIN_QUEUE);
        let (chunks, stdout) = mpsc::channel(STDOUT_QUEUE);
        let (ended, exit) = watch::channel(None);
        let close = CancellationToken::new();
        let kill = CancellationToken::new();
        let stderr = Arc::new(Mutex::new(Tail::default()));
        tokio::spawn(write(input, messages, close.clone()));
        tokio::spawn(read(output, chunks));
        let drained = tokio::spawn(drain(errors, Arc::clone(&stderr)));
        let keeper =
            Keeper { child, family: Arc::new(family.led_by(pid)), drained, way, state: State::Running };
        tokio::spawn(keeper.keep(kill.clone(), ended));
        Ok(Self { program, way, pid, stdin: Stdin { queue, close }, stdout, stderr, exit, kill, redactor })
    }

    /// A handle that writes to it.
    pub(crate) fn stdin(&self) -> Stdin {
        self.stdin.clone()
    }

    /// The bytes of its next write to stdout. `None` once it has ended and everything was read.
    pub(crate) async fn read(&mut self) -> Option<Vec<u8>> {
        let mut exit = self.exit.clone();
        tokio::select! {
            biased;
            chunk = self.stdout.recv() => return chunk,
            _ = exit.wait_for(Option::is_some) => {}
        }
        // A process it left behind may hold the pipe open for ever.
        timeout(LAST_WORDS, self.stdout.recv()).await.ok().flatten()
    }

    /// Bytes that are there already.
    pub(crate) fn try_read(&mut self) -> Option<Vec<u8>> {
        self.stdout.try_recv().ok()
    }

    /// How it ended, if it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// The end of what it said on stderr, without secrets.
    pub(crate) fn stderr(&self) -> String {
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).text();
        self.redactor.text(&tail)
    }

    /// Why the program was not started, if this is the end of a supervisor that could not.
    pub(crate) fn refused(&self, exit: Exit) -> Option<AgentError> {
        let supervised = self.way == Way::Supervised;
        let error = supervised.then(|| Supervisor::refused(exit.code, &self.stderr())).flatten()?;
        Some(not_started(&self.program, &error))
    }

    /// Waits for it to end by itself.
    pub(crate) async fn wait(&self, limit: Duration) -> Option<Exit> {
        let mut exit = self.exit.clone();
        timeout(limit, exit.wait_for(Option::is_some)).await.ok()?.ok().and_then(|exit| *exit)
    }

    /// Ends it step by step: closes its stdin, then SIGTERM to its group, then SIGKILL to it and everything it
    /// started. Each step waits for two seconds. What it left behind is killed in any case.
    pub(crate) async fn end(&self) -> Exit {
        self.stdin.close.cancel();
        if let Some(exit) = self.wait(STEP).await {
            return exit;
        }
        self.stop().await
    }

    /// As [`Self::end`], for a program that does not end with its input: begins with SIGTERM.
    pub(crate) async fn stop(&self) -> Exit {
        self.stdin.close.cancel();
        family::terminate_group(self.pid);
        if let Some(exit) = self.wait(STEP).await {
            return exit;
        }
        self.kill().await
    }

    /// Kills it and everything it started.
    pub(crate) async fn kill(&self) -> Exit {
        self.kill.cancel();
        self.wait(VANISH).await.unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

fn not_started(program: &Path, error: &io::Error) -> AgentError {
    AgentError::new(ErrorCode::Process, format!("cannot start {}: {error}", program.display()))
}

/// Waits for the process, reaps it, and kills what it leaves behind.
struct Keeper {
    child: Box<dyn ChildWrapper>,
    family: Arc<Family>,
    drained: JoinHandle<()>,
    way: Way,
    state: State,
}

enum State {
    Running,
    /// It has ended, and its number may become another's; others may be left.
    Ended,
    Gone,
}

impl Keeper {
    async fn keep(mut self, kill: CancellationToken, ended: watch::Sender<Option<Exit>>) {
        let status = tokio::select! {
            status = self.child.wait() => status,
            () = kill.cancelled() => self.kill().await,
        };
        self.state = State::Ended;
        // It may have ended by itself and left others.
        self.blocking(Family::kill_left_behind).await;
        self.state = State::Gone;
        // Whoever hears of the end will look at what was said last.
        let _all_read = timeout(LAST_WORDS, &mut self.drained).await;
        let exit = status.map_or(Exit::default(), |status| Exit {
            code: status.code(),
            #[cfg(unix)]
            signal: std::os::unix::process::ExitStatusExt::signal(&status),
            #[cfg(not(unix))]
            signal: None,
        });
        ended.send_replace(Some(exit));
    }

    async fn kill(&mut self) -> io::Result<ExitStatus> {
        if self.way == Way::Supervised {
            family::ask_to_kill(self.family.leader());
            if let Ok(status) = timeout(STEP, self.child.wait()).await {
                return status;
            }
        }
        self.blocking(Family::kill).await;
        self.child.wait().await
    }

    /// Looking through all processes takes some milliseconds. Fails only when the runtime goes away, and then the
    /// drop kills.
    async fn blocking(&self, work: fn(&Family)) {
        let family = Arc::clone(&self.family);
        let _done = tokio::task::spawn_blocking(move || work(&family)).await;
    }
}

impl Drop for Keeper {
    /// The runtime goes away under a running process: nobody will wait for it, but it must not stay.
    fn drop(&mut self) {
        match (&self.state, self.way) {
            (State::Running, Way::Direct) => self.family.kill(),
            (State::Running, Way::Supervised) => family::ask_to_kill(self.family.leader()),
            (State::Ended, _) => self.family.kill_left_behind(),
            (State::Gone, _) => {}
        }
    }
}

async fn write(mut pipe: ChildStdin, mut messages: mpsc::Receiver<Vec<u8>>, close: CancellationToken) {
    loop {
        let message = tokio::select! {
            biased;
            message = messages.recv() => message,
            () = close.cancelled() => {
                messages.close();
                messages.recv().await
            }
        };
        let Some(message) = message else { return };
        if pipe.write_all(&message).await.is_err() || pipe.flush().await.is_err() {
            // It closed its end or died, which its exit and its silence tell better than we could.
            return;
        }
    }
}

async fn read(mut pipe: ChildStdout, chunks: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; READ_SIZE];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        if chunks.send(buffer[..length].to_vec()).await.is_err() {
            return;
        }
    }
}

async fn drain(mut pipe: ChildStderr, tail: Arc<Mutex<Tail>>) {
    let mut buffer = vec![0; READ_SIZE];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        tail.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..length]);
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;
