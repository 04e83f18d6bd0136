//! A program that `exec` runs: in a process group of its own, given its input, read within bounds, and ended together
//! with what it left behind.

use std::{
    io,
    path::Path,
    pin::pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use inspan_protocol::{AgentError, ErrorCode, OutputStream, Supervisor};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    time::{Instant, sleep_until, timeout},
};

use super::report::Report;

/// What a program may print on each of its two streams, in bytes.
const OUTPUT_LIMIT: usize = 16 << 20;
/// How long a program has to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// After the program ended, a stream that somebody else still holds is read so long.
const LAST_WORDS: Duration = Duration::from_millis(300);
const READ_SIZE: usize = 64 * 1024;

/// A running program. Dropping it kills it and what it started.
pub(super) struct Process {
    child: Child,
    program: String,
    /// The number of its group, until it has ended.
    leader: Option<Pid>,
    way: Way,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Direct,
    /// The child is the supervisor, and the program is its child.
    Supervised,
}

/// How a program ended, and what it said.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Process {
    /// Starts a program with this environment and no other.
    pub(super) fn start<'a>(
        argv: &[String],
        folder: &Path,
        env: impl Iterator<Item = (&'a str, &'a str)>,
        supervisor: Option<&Supervisor>,
    ) -> io::Result<Self> {
        let program = argv.first().cloned().unwrap_or_default();
        let (mut command, way) = match supervisor {
            Some(supervisor) => {
                let (supervisor, before) = supervisor.before(std::process::id(), &program);
                let mut command = Command::new(supervisor);
                command.arg0(Supervisor::NAME).args(before);
                (command, Way::Supervised)
            }
            None => (Command::new(&program), Way::Direct),
        };
        command
            .args(argv.iter().skip(1))
            .current_dir(folder)
            .env_clear()
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            // A supervisor that is killed could not do its work.
            .kill_on_drop(way == Way::Direct);
        let child = command.spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { child, program, leader, way })
    }

    /// Runs it to its end, which is the program's own: others that hold its streams are not waited for. What it prints
    /// is reported meanwhile.
    pub(super) async fn run(&mut self, stdin: Vec<u8>, report: &mut Report) -> Result<Ended, AgentError> {
        let mut stdout = Output::new(self.child.stdout.take(), &self.program, OutputStream::Stdout);
        let mut stderr = Output::new(self.child.stderr.take(), &self.program, OutputStream::Stderr);
        let mut feeding = pin!(feed(self.child.stdin.take(), stdin));
        let mut is_fed = false;
        let status = loop {
            let due = report.due();
            tokio::select! {
                () = &mut feeding, if !is_fed => is_fed = true,
                read = stdout.read(), if stdout.is_open() => report.push(OutputStream::Stdout, read?),
                read = stderr.read(), if stderr.is_open() => report.push(OutputStream::Stderr, read?),
                () = until(due), if due.is_some() => report.flush(),
                status = self.child.wait() => break status,
            }
        };
        let deadline = Instant::now() + LAST_WORDS;
        while stdout.is_open() || stderr.is_open() {
            tokio::select! {
                biased;
                read = stdout.read(), if stdout.is_open() => report.push(OutputStream::Stdout, read?),
                read = stderr.read(), if stderr.is_open() => report.push(OutputStream::Stderr, read?),
                () = sleep_until(deadline) => break,
            }
        }
        let (stdout, stderr) = (stdout.text(), stderr.text());
        self.ended();
        let status = status.map_err(|error| {
            let message = format!("`{}` cannot be waited for: {error}", self.program);
            AgentError::new(ErrorCode::Process, message)
        })?;
        Ok(Ended { status, stdout, stderr })
    }

    /// Ends it: SIGTERM to its group, and after a while SIGKILL.
    pub(super) async fn end(&mut self) {
        self.signal_group(Signal::TERM);
        if timeout(GRACE, self.child.wait()).await.is_err() {
            self.kill();
            let _reaped = timeout(GRACE, self.child.wait()).await;
        }
        self.ended();
    }

    /// Why it was not started, if it is the supervisor that ended.
    pub(super) fn refused(&self, ended: &Ended) -> Option<io::Error> {
        let supervised = self.way == Way::Supervised;
        supervised.then(|| Supervisor::refused(ended.status.code(), &ended.stderr)).flatten()
    }

    /// Kills what is left of its group, which a supervisor has done or still does, and more. From now on its number
    /// may become another's.
    fn ended(&mut self) {
        if self.way == Way::Direct {
            self.signal_group(Signal::KILL);
        }
        self.leader = None;
    }

    fn kill(&self) {
        match (self.leader, self.way) {
            (Some(supervisor), Way::Supervised) => {
                // One that is already gone is what we want, here and below.
                let _gone = kill_process(supervisor, Signal::USR1);
            }
            _ => self.signal_group(Signal::KILL),
        }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.leader {
            let _gone = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn feed(pipe: Option<ChildStdin>, bytes: Vec<u8>) {
    if let Some(mut pipe) = pipe {
        // A program that does not read its input is free not to.
        let _unread = pipe.write_all(&bytes).await;
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// One stream of a program, and what has been read of it.
struct Output<'a, R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
    program: &'a str,
    stream: OutputStream,
}

impl<'a, R: AsyncRead + Unpin> Output<'a, R> {
    fn new(pipe: Option<R>, program: &'a str, stream: OutputStream) -> Self {
        Self { pipe, bytes: Vec::new(), program, stream }
    }

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reads what is there, or waits for it; nothing at the end. Loses nothing if it is dropped while it waits.
    async fn read(&mut self) -> Result<&[u8], AgentError> {
        let before = self.bytes.len();
        let Some(pipe) = &mut self.pipe else { return Ok(&[]) };
        self.bytes.reserve(READ_SIZE);
        let length = pipe.read_buf(&mut self.bytes).await.map_err(|error| {
            let message = format!("the {} of `{}` cannot be read: {error}", name(self.stream), self.program);
            AgentError::new(ErrorCode::Process, message)
        })?;
        if length == 0 {
            self.pipe = None;
        }
        if self.bytes.len() > OUTPUT_LIMIT {
            let limit = OUTPUT_LIMIT >> 20;
            let message = format!("the {} of `{}` is over {limit} MiB", name(self.stream), self.program);
            return Err(AgentError::new(ErrorCode::Process, message));
        }
        Ok(&self.bytes[before..])
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

fn name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "output",
        OutputStream::Stderr => "error output",
    }
}
