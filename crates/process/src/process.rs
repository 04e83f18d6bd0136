//! A program that is driven over its pipes: written to without waiting, read in pieces, with the
//! end of its stderr.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, Redactor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::spawn::{Exit, Handle, STEP, Start, spawn};

/// After the process ended, a pipe that another process still holds is read for so long at most.
const LAST_OUTPUT: Duration = Duration::from_millis(300);
/// Messages that may wait for the program to read them.
const STDIN_QUEUE: usize = 64;
/// Reads that may wait for us, each up to 64 KiB.
const STDOUT_QUEUE: usize = 16;
const READ_SIZE: usize = 64 * 1024;
/// How much of the end of stderr is stored, in bytes.
const TAIL_LIMIT: usize = 64 * 1024;
/// What of a script says who runs it, in bytes: the kernel reads no more.
const FIRST_LINE: u64 = 256;

/// A running program and its pipes. Dropping it kills it and everything it started.
#[derive(Debug)]
pub struct Process {
    program: PathBuf,
    handle: Handle,
    stdin: Stdin,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: Arc<Mutex<Tail>>,
    redactor: Redactor,
}

/// Writes to the program's stdin without waiting for it to read.
#[derive(Clone, Debug)]
pub struct Stdin {
    queue: mpsc::Sender<Vec<u8>>,
    close: CancellationToken,
}

impl Stdin {
    /// Closes it once what is queued was written.
    pub fn close(&self) {
        self.close.cancel();
    }

    /// Queues a message.
    ///
    /// # Errors
    /// The program has stopped reading.
    pub fn send(&self, bytes: Vec<u8>) -> Result<(), AgentError> {
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
    /// Starts a program. Must be called within a tokio runtime. The redactor takes secrets out of what it prints on
    /// stderr.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(start: Start, redactor: Redactor) -> Result<Self, AgentError> {
        let program = start.program.clone();
        let stderr = Arc::new(Mutex::new(Tail::default()));
        let started = spawn(start, Duration::ZERO, |errors| {
            let drained = tokio::spawn(drain(errors, Arc::clone(&stderr)));
            // The error for an exit quotes what was printed last.
            async move { drop(timeout(LAST_OUTPUT, drained).await) }
        });
        let (handle, pipes) = started.await.map_err(|error| not_started(&program, &error))?;
        let (queue, messages) = mpsc::channel(STDIN_QUEUE);
        let (chunks, stdout) = mpsc::channel(STDOUT_QUEUE);
        let close = CancellationToken::new();
        tokio::spawn(write(pipes.stdin, messages, close.clone()));
        tokio::spawn(read(pipes.stdout, chunks));
        Ok(Self { program, handle, stdin: Stdin { queue, close }, stdout, stderr, redactor })
    }

    /// A handle that writes to it.
    pub fn stdin(&self) -> Stdin {
        self.stdin.clone()
    }

    /// The bytes of its next write to stdout. `None` once it has ended and everything was read.
    pub async fn read(&mut self) -> Option<Vec<u8>> {
        tokio::select! {
            biased;
            chunk = self.stdout.recv() => return chunk,
            _ = self.handle.status() => {}
        }
        // A process it left behind may hold the pipe open forever.
        timeout(LAST_OUTPUT, self.stdout.recv()).await.ok().flatten()
    }

    /// Bytes that have arrived already.
    pub fn try_read(&mut self) -> Option<Vec<u8>> {
        self.stdout.try_recv().ok()
    }

    /// How it ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        self.handle.exit()
    }

    /// The end of what it printed on stderr, without secrets.
    pub fn stderr(&self) -> String {
        let tail = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).text();
        self.redactor.text(&tail)
    }

    /// Takes the secrets of its environment out of a text.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Why the program was not started, if its guard could not.
    pub fn refused(&self) -> Option<AgentError> {
        Some(not_started(&self.program, &self.handle.refused(&self.stderr())?))
    }

    /// The error for a program whose guard is gone.
    pub fn lost(&self) -> Option<AgentError> {
        self.handle.is_lost().then(|| lost(&self.program))
    }

    /// Waits for it to end by itself.
    pub async fn wait(&self, limit: Duration) -> Option<Exit> {
        self.handle.wait(limit).await
    }

    /// Ends it step by step: closes its stdin, then SIGTERM to its group, then SIGKILL to it and everything it
    /// started. Each step waits for two seconds. What it left behind is killed in any case.
    pub async fn end(&self) -> Exit {
        self.stdin.close.cancel();
        if let Some(exit) = self.wait(STEP).await {
            return exit;
        }
        self.stop().await
    }

    /// As [`Self::end`], for a program that does not end with its input: begins with SIGTERM.
    pub async fn stop(&self) -> Exit {
        self.stdin.close.cancel();
        self.handle.stop().await
    }

    /// Kills it and everything it started.
    pub async fn kill(&self) -> Exit {
        self.handle.kill().await
    }
}

/// The error for a program whose guard is gone.
pub fn lost(program: &Path) -> AgentError {
    let message = format!(
        "`process-guard`, the parent process of `{}`, was killed, and the program with it",
        program.display()
    );
    AgentError::new(ErrorCode::Process, message).with_kind(ErrorKind::GuardLost)
}

/// Why the system does not find a program that is there: what is to run it is missing. None if the program is not there.
pub fn missing_interpreter(program: &Path) -> Option<String> {
    if !program.is_file() {
        return None;
    }
    let mut begin = Vec::new();
    File::open(program).ok()?.take(FIRST_LINE).read_to_end(&mut begin).ok()?;
    let Some(line) = begin.strip_prefix(b"#!") else {
        return Some("it is there, but not what it needs to run: it was built for another system".to_owned());
    };
    let line = String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next().unwrap_or_default());
    let interpreter = line.trim_matches([' ', '\t']).split([' ', '\t']).next().unwrap_or_default();
    let named = format!("its first line names `{}`, which is not there", interpreter.escape_debug());
    Some(match line.ends_with('\r') {
        true => format!("{named}: the file has Windows line ends (`\\r\\n`), and needs `\\n`"),
        false => format!("{named}: install it, or name another"),
    })
}

fn not_started(program: &Path, error: &io::Error) -> AgentError {
    // A name alone is that of a program on the PATH, and not of a file here.
    if error.kind() == io::ErrorKind::NotFound
        && program.components().nth(1).is_some()
        && let Some(why) = missing_interpreter(program)
    {
        let message = format!("cannot start {}: {why}", program.display());
        return AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::Start);
    }
    let message = format!("cannot start {}: {error}", program.display());
    // A package whose install script did not run has a text in the place of its program, at the next attempt too.
    if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) {
        let message = format!(
            "{message}: it is not a program; run the install script of its package, or reinstall the package without \
             `--ignore-scripts`"
        );
        return AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::Start);
    }
    AgentError::new(ErrorCode::Process, message)
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
            // It closed its end or died, which its exit reports better than we could.
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

/// The last bytes of a stream, however long it is.
#[derive(Debug, Default)]
struct Tail {
    bytes: VecDeque<u8>,
    cut: bool,
}

impl Tail {
    /// Takes the next bytes.
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_LIMIT)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(TAIL_LIMIT);
        if surplus > 0 {
            self.bytes.drain(..surplus);
            self.cut = true;
        }
        self.bytes.extend(bytes);
    }

    /// The text of it. If its beginning was lost, so is its first line: half a secret could not be recognised.
    fn text(&self) -> String {
        let (head, rest) = self.bytes.as_slices();
        let bytes = [head, rest].concat();
        let start = if self.cut {
            bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |end| end + 1)
        } else {
            0
        };
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }
}

#[cfg(test)]
mod tests;
