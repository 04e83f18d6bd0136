//! The commands that an agent runs through us: our child processes in its working directory, a few at once, with
//! a bounded part of their output.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use inspan_protocol::{AgentError, ErrorCode, Redactor, Supervisor};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::files::{FAILED, INVALID, Refusal, within};
use super::wire::CreateTerminal;
use inspan_process::{Exit, Process, Start};

/// Commands that an agent may have at once, ended ones that it has not released included.
const COUNT_LIMIT: usize = 16;
/// The end of the output of a command that is stored, in bytes.
const OUTPUT_LIMIT: usize = 1024 * 1024;
/// How long the commands of a session may take to end with it.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The commands of one session. Dropping it kills them and everything they started.
#[derive(Debug, Default)]
pub(super) struct Terminals {
    open: BTreeMap<String, AgentTerminal>,
    /// The output of the last ones that were released: the tool that ran one ends after it.
    released: VecDeque<(String, TerminalOutput)>,
    count: u64,
    work: TaskTracker,
}

#[derive(Debug)]
struct AgentTerminal {
    output: TerminalOutput,
    exit: watch::Receiver<Option<Exit>>,
    kill: CancellationToken,
    _killed_when_dropped: DropGuard,
}

/// What a command printed.
#[derive(Debug)]
struct TerminalOutput {
    tail: Arc<Mutex<OutputTail>>,
    /// Takes the secrets of its own variables out, too.
    redactor: Redactor,
}

/// What surrounds a command.
pub(super) struct CommandContext<'a> {
    /// The directory that it may not leave, without links.
    pub(super) root: &'a Path,
    pub(super) environment: &'a [(String, String)],
    pub(super) supervisor: Option<Supervisor>,
    pub(super) redactor: &'a Redactor,
}

impl Terminals {
    /// Starts a command. Without arguments it is a line for the shell, as agents mean it.
    pub(super) fn create(
        &mut self,
        wanted: &CreateTerminal,
        surroundings: &CommandContext<'_>,
    ) -> Result<Value, Refusal> {
        if self.open.len() >= COUNT_LIMIT {
            let message = format!("there are {COUNT_LIMIT} terminals already; release one");
            return Err(Refusal::new(FAILED, message));
        }
        let cwd = folder(surroundings.root, wanted.cwd.as_deref())?;
        let mut environment = surroundings.environment.to_vec();
        for variable in &wanted.env {
            environment.retain(|(name, _)| *name != variable.name);
            environment.push((variable.name.clone(), variable.value.clone()));
        }
        // One stream in the order in which it was written, as on a terminal; there is no input.
        let mut arguments = if wanted.args.is_empty() {
            ["-c", "exec 2>&1 </dev/null; eval \"$0\""].map(str::to_owned).to_vec()
        } else {
            ["-c", "exec 2>&1 </dev/null; exec \"$0\" \"$@\""].map(str::to_owned).to_vec()
        };
        arguments.push(wanted.command.clone());
        arguments.extend(wanted.args.iter().cloned());
        let process = Process::start(
            Start {
                program: PathBuf::from("/bin/sh"),
                arguments,
                environment,
                cwd: Some(cwd),
                supervisor: surroundings.supervisor.clone(),
            },
            surroundings.redactor.clone(),
        )
        // Other messages of the agent wait for the answer, so it is given at once.
        .now_or_never()
        .unwrap_or_else(|| Err(AgentError::new(ErrorCode::Process, "the system has no process for it now")))
        .map_err(|error| Refusal::new(FAILED, error.message))?;
        let asked = wanted
            .output_byte_limit
            .map_or(OUTPUT_LIMIT, |limit| usize::try_from(limit).unwrap_or(OUTPUT_LIMIT));
        let tail = Arc::new(Mutex::new(OutputTail::new(asked.min(OUTPUT_LIMIT))));
        let (ended, exit) = watch::channel(None);
        let kill = CancellationToken::new();
        self.work.spawn(run(process, Arc::clone(&tail), kill.clone(), ended));
        let output = TerminalOutput { tail, redactor: wanted.redactor(surroundings.redactor) };
        self.count += 1;
        let id = format!("terminal-{}", self.count);
        let guard = kill.clone().drop_guard();
        self.open.insert(id.clone(), AgentTerminal { output, exit, kill, _killed_when_dropped: guard });
        Ok(json!({ "terminalId": id }))
    }

    /// The output of a command so far, and how it ended if it has.
    pub(super) fn output(&self, id: &str) -> Result<Value, Refusal> {
        let terminal = self.get(id)?;
        let (text, truncated) = lock(&terminal.output.tail).text();
        let exit = terminal.exit.borrow().map(status);
        Ok(json!({ "output": text, "truncated": truncated, "exitStatus": exit }))
    }

    /// Waits for a command to end.
    pub(super) fn wait(&self, id: &str) -> Result<impl Future<Output = Value> + Send + 'static, Refusal> {
        let mut exit = self.get(id)?.exit.clone();
        Ok(async move {
            let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
            status(ended.unwrap_or_default())
        })
    }

    /// Kills a command and everything it started; its output stays.
    pub(super) fn kill(&self, id: &str) -> Result<Value, Refusal> {
        self.get(id)?.kill.cancel();
        Ok(json!({}))
    }

    /// Releases a command, which is killed if it still runs.
    pub(super) fn release(&mut self, id: &str) -> Result<Value, Refusal> {
        self.get(id)?;
        if let Some(terminal) = self.open.remove(id) {
            if self.released.len() >= COUNT_LIMIT {
                self.released.pop_front();
            }
            self.released.push_back((id.to_owned(), terminal.output));
        }
        Ok(json!({}))
    }

    /// What a command printed, also after its release, without secrets.
    pub(super) fn printed(&self, id: &str) -> Option<String> {
        let open = self.open.get(id).map(|terminal| &terminal.output);
        let released = || self.released.iter().find(|(released, _)| released == id).map(|(_, output)| output);
        open.or_else(released).map(|output| output.redactor.text(&lock(&output.tail).text().0))
    }

    /// How a command that is not released ended, if it has.
    pub(super) fn ended(&self, id: &str) -> Option<Exit> {
        self.open.get(id).and_then(|terminal| *terminal.exit.borrow())
    }

    /// Kills all commands, and waits until they are gone.
    pub(super) async fn end(&mut self) {
        self.open.clear();
        self.released.clear();
        self.work.close();
        if timeout(END_LIMIT, self.work.wait()).await.is_err() {
            tracing::warn!("some commands of an agent did not end in time");
        }
        self.work = TaskTracker::new();
    }

    fn get(&self, id: &str) -> Result<&AgentTerminal, Refusal> {
        self.open.get(id).ok_or_else(|| Refusal::new(INVALID, "there is no such terminal"))
    }
}

fn folder(root: &Path, cwd: Option<&str>) -> Result<PathBuf, Refusal> {
    let Some(cwd) = cwd else { return Ok(root.to_path_buf()) };
    let path = within(root, cwd)?;
    if path.is_dir() { Ok(path) } else { Err(Refusal::new(INVALID, format!("{cwd} is not a directory"))) }
}

/// Reads what a command says until it ends or is killed.
async fn run(
    mut process: Process,
    output: Arc<Mutex<OutputTail>>,
    kill: CancellationToken,
    ended: watch::Sender<Option<Exit>>,
) {
    let read = async {
        while let Some(bytes) = process.read().await {
            lock(&output).push(&bytes);
        }
    };
    let exit = match kill.run_until_cancelled(read).await {
        // It has closed its output but still runs.
        Some(()) => match kill.run_until_cancelled(process.wait(Duration::MAX)).await {
            Some(exit) => exit.unwrap_or_default(),
            None => process.kill().await,
        },
        None => process.kill().await,
    };
    while let Some(bytes) = process.try_read() {
        lock(&output).push(&bytes);
    }
    ended.send_replace(Some(exit));
}

/// How a command ended, in the protocol's form.
pub(super) fn status(exit: Exit) -> Value {
    json!({ "exitCode": exit.code, "signal": exit.signal.map(|signal| signal.to_string()) })
}

/// The end of the output of a command.
#[derive(Debug)]
struct OutputTail {
    bytes: Vec<u8>,
    limit: usize,
    cut: Cut,
}

/// Whether something of the beginning is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    No,
    Yes,
}

impl OutputTail {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, cut: Cut::No }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Moving the rest at every read would be quadratic.
        if self.bytes.len() > self.limit.saturating_mul(2).max(OUTPUT_LIMIT / 8) {
            self.cut = Cut::Yes;
            self.bytes.drain(..self.bytes.len() - self.limit);
        }
    }

    /// The text and whether it was cut, at the beginning of a character.
    fn text(&self) -> (String, bool) {
        let over = self.bytes.len().saturating_sub(self.limit);
        let mut stored = &self.bytes[over..];
        let cut = over > 0 || self.cut == Cut::Yes;
        if cut {
            let inside = stored.iter().take(3).take_while(|byte| (0x80..0xC0).contains(*byte)).count();
            stored = &stored[inside..];
        }
        (String::from_utf8_lossy(stored).into_owned(), cut)
    }
}

fn lock(output: &Mutex<OutputTail>) -> MutexGuard<'_, OutputTail> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;
