//! A program that `exec` runs: given its input, and read within bounds.

use std::{future::ready, io, path::Path, pin::pin, process::ExitStatus, time::Duration};

use inspan_process::{Handle, Start, lost, spawn};
use inspan_protocol::{AgentError, ErrorCode, OutputStream, Supervisor};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{ChildStderr, ChildStdin, ChildStdout},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{report::OutputReporter, sink::FileSink};

/// What a program may print on each of its two streams, in bytes.
const OUTPUT_LIMIT: usize = 16 << 20;
/// After the program ended, a stream that another process still holds is read so long.
const LAST_OUTPUT: Duration = Duration::from_millis(300);
pub(super) const READ_SIZE: usize = 64 * 1024;

/// A running program. Dropping it kills it and what it started.
pub(super) struct Process {
    handle: Handle,
    program: String,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

/// How a program ended, and what it printed.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// The streams whose bytes were no UTF-8, so that the text is another one; not those that a file has.
    pub(super) altered: Vec<OutputStream>,
}

impl Process {
    /// Starts a program with this environment and no other.
    pub(super) async fn start(
        argv: &[String],
        folder: &Path,
        environment: Vec<(String, String)>,
        supervisor: Option<Supervisor>,
    ) -> io::Result<Self> {
        let program = argv.first().cloned().unwrap_or_default();
        let start = Start {
            program: program.clone().into(),
            arguments: argv.iter().skip(1).cloned().collect(),
            environment,
            cwd: Some(folder.to_owned()),
            supervisor,
        };
        let mut stderr = None;
        let (handle, pipes) = spawn(start, LAST_OUTPUT, |pipe| {
            stderr = Some(pipe);
            ready(())
        })
        .await?;
        Ok(Self { handle, program, stdin: Some(pipes.stdin), stdout: Some(pipes.stdout), stderr })
    }

    /// Runs it to its end, which is the end of the program: other processes that hold its streams are not waited for.
    /// What it prints is reported meanwhile. What a sink takes is not held in memory. If it is cancelled, its group gets
    /// SIGTERM, and after a while SIGKILL.
    pub(super) async fn run(
        &mut self,
        stdin: Vec<u8>,
        sinks: [Option<FileSink>; 2],
        report: &mut OutputReporter,
        cancel: &CancellationToken,
    ) -> Result<Ended, AgentError> {
        let [to_stdout, to_stderr] = sinks;
        let mut stdout =
            StreamOutput::new(self.stdout.take(), &self.program, OutputStream::Stdout, to_stdout);
        let mut stderr =
            StreamOutput::new(self.stderr.take(), &self.program, OutputStream::Stderr, to_stderr);
        let mut feeding = pin!(feed(self.stdin.take(), stdin));
        let mut ending = pin!(status(&self.handle, cancel));
        let mut is_fed = false;
        let status = loop {
            let due = report.due();
            tokio::select! {
                () = &mut feeding, if !is_fed => is_fed = true,
                read = stdout.read(), if stdout.is_open() => report.push(OutputStream::Stdout, read?),
                read = stderr.read(), if stderr.is_open() => report.push(OutputStream::Stderr, read?),
                () = until(due), if due.is_some() => report.flush(),
                status = &mut ending => break status,
            }
        };
        let deadline = Instant::now() + LAST_OUTPUT;
        while stdout.is_open() || stderr.is_open() {
            tokio::select! {
                biased;
                read = stdout.read(), if stdout.is_open() => report.push(OutputStream::Stdout, read?),
                read = stderr.read(), if stderr.is_open() => report.push(OutputStream::Stderr, read?),
                () = sleep_until(deadline) => break,
            }
        }
        let status = status.ok_or_else(|| {
            let message = format!("`{}` cannot be waited for", self.program);
            AgentError::new(ErrorCode::Process, message)
        })?;
        let mut altered = Vec::new();
        let (stdout, stderr) = (stdout.text(&mut altered)?, stderr.text(&mut altered)?);
        Ok(Ended { status, stdout, stderr, altered })
    }

    /// The error if its guard is gone.
    pub(super) fn lost(&self) -> Option<AgentError> {
        self.handle.is_lost().then(|| lost(Path::new(&self.program)))
    }

    /// Why it was not started, if its guard could not.
    pub(super) fn refused(&self, ended: &Ended) -> Option<io::Error> {
        self.handle.refused(&ended.stderr)
    }
}

/// How it ended; nothing if it was cancelled. Its streams are read until then: a program that writes to a closed one while
/// it cleans up after SIGTERM is ended by SIGPIPE.
async fn status(handle: &Handle, cancel: &CancellationToken) -> Option<ExitStatus> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => {
            handle.stop().await;
            None
        }
        status = handle.status() => status,
    }
}

async fn feed(pipe: Option<ChildStdin>, bytes: Vec<u8>) {
    if let Some(mut pipe) = pipe {
        // A program need not read its input.
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
struct StreamOutput<'a, R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
    program: &'a str,
    stream: OutputStream,
    sink: Option<FileSink>,
}

impl<'a, R: AsyncRead + Unpin> StreamOutput<'a, R> {
    fn new(pipe: Option<R>, program: &'a str, stream: OutputStream, sink: Option<FileSink>) -> Self {
        Self { pipe, bytes: Vec::new(), program, stream, sink }
    }

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reads what is there, or waits for it; nothing at the end. Loses nothing if it is dropped while it waits.
    async fn read(&mut self) -> Result<&[u8], AgentError> {
        if self.sink.is_some() {
            self.bytes.clear();
        }
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
        if let Some(sink) = &mut self.sink {
            sink.push(&self.bytes[before..])?;
        } else if self.bytes.len() > OUTPUT_LIMIT {
            let limit = OUTPUT_LIMIT >> 20;
            let message = format!("the {} of `{}` is over {limit} MiB", name(self.stream), self.program);
            return Err(AgentError::new(ErrorCode::Process, message));
        }
        Ok(&self.bytes[before..])
    }

    /// All that was read, or its end if a sink has the rest. A stream without a sink that is not text is added to those.
    fn text(self, altered: &mut Vec<OutputStream>) -> Result<String, AgentError> {
        if let Some(sink) = self.sink {
            return Ok(String::from_utf8_lossy(&sink.finish()?).into_owned());
        }
        Ok(String::from_utf8(self.bytes).unwrap_or_else(|error| {
            altered.push(self.stream);
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        }))
    }
}

fn name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "output",
        OutputStream::Stderr => "error output",
    }
}
