//! An MCP server that is a program: JSON-RPC messages as lines over the pipes of a supervised process, for `rmcp`.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inspan_process::{Exit, Process, Start, Stdin};
use inspan_protocol::{AgentError, Environment, ErrorCode, Redactor};
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::McpContext;
use super::message::unreadable;
use crate::lines::{Line, LineSplitter};
use crate::program::{ProgramQuery, find};

/// How long a program that has closed its output may take until its end is known.
const LAST: Duration = Duration::from_millis(500);
/// How many lines that are not messages are ignored; with more, the program does not speak MCP.
const STRAY_LIMIT: usize = 100;

/// The pipes to a program. Dropping them kills it.
pub(super) struct Pipe {
    process: Process,
    stdin: Stdin,
    lines: LineSplitter,
    ready: VecDeque<RxJsonRpcMessage<RoleClient>>,
    watch: Arc<PipeStatus>,
}

/// What others get to know about the program.
pub(super) struct PipeStatus {
    seen: Mutex<PipeFaults>,
    hurry: CancellationToken,
    gone: watch::Sender<bool>,
}

#[derive(Default)]
struct PipeFaults {
    /// Why nothing comes from it any more, once it is so.
    fault: Option<AgentError>,
    stray: usize,
    warned_stray: bool,
    warned_fault: bool,
}

impl PipeStatus {
    fn seen(&self) -> MutexGuard<'_, PipeFaults> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing comes from it any more.
    pub(super) fn fault(&self) -> Option<AgentError> {
        self.seen().fault.clone()
    }

    /// What is to be warned of and was not yet: a code and what happened.
    pub(super) fn noticed(&self) -> Vec<(&'static str, String)> {
        let mut seen = self.seen();
        let mut noticed = Vec::new();
        if seen.stray > 0 && !std::mem::replace(&mut seen.warned_stray, true) {
            noticed.push(("mcpStray", "writes lines to its output that are not messages".to_owned()));
        }
        if let Some(fault) = seen.fault.clone()
            && !std::mem::replace(&mut seen.warned_fault, true)
        {
            noticed.push(("mcpLost", fault.message));
        }
        noticed
    }

    /// Kills it when cancelled.
    pub(super) fn hurry(&self) -> CancellationToken {
        self.hurry.clone()
    }

    /// Waits until it is gone.
    pub(super) async fn gone(&self) {
        let mut gone = self.gone.subscribe();
        // It fails only if the sender is gone, and then the program is gone too.
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

impl Pipe {
    /// Starts the program. It sees the environment for programs, and what is set for it.
    pub(super) async fn start(
        command: &str,
        arguments: Vec<String>,
        set: BTreeMap<String, String>,
        context: &McpContext,
        redactor: &Redactor,
    ) -> Result<Self, AgentError> {
        let own = context.program_env.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment: BTreeMap<String, String> = own.chain(set).collect();
        let seen: Environment = environment.clone().into_iter().collect();
        let cwd = context.host.cwd.as_deref();
        let program = if command.contains('/') {
            cwd.map_or_else(|| PathBuf::from(command), |cwd| cwd.join(command))
        } else {
            let hint = "install it, or give its path";
            find(&ProgramQuery { option: None, variable: "", name: command, hint }, &seen, cwd).map_err(
                |error| AgentError { message: format!("cannot be started: {}", error.message), ..error },
            )?
        };
        let process = Process::start(
            Start {
                program,
                arguments,
                environment: environment.into_iter().collect(),
                cwd: context.host.cwd.clone(),
                supervisor: context.host.supervisor.clone(),
            },
            redactor.clone(),
        )
        .await
        .map_err(|error| AgentError { message: format!("cannot be started: {}", error.message), ..error })?;
        let watch = PipeStatus {
            seen: Mutex::default(),
            hurry: CancellationToken::new(),
            gone: watch::Sender::new(false),
        };
        Ok(Self {
            stdin: process.stdin(),
            process,
            lines: LineSplitter::default(),
            ready: VecDeque::new(),
            watch: Arc::new(watch),
        })
    }

    pub(super) fn watch(&self) -> Arc<PipeStatus> {
        Arc::clone(&self.watch)
    }

    fn take(&mut self, bytes: &[u8]) {
        let Self { lines, ready, watch, .. } = self;
        let mut seen = watch.seen();
        let mut read = |text: &str| {
            let message = serde_json::from_str(text);
            match message.or_else(|error| unreadable(text, &error, None).ok_or(())) {
                Ok(message) => ready.push_back(message),
                Err(()) => seen.stray += 1,
            }
        };
        let mut is_too_long = false;
        lines.push(bytes, |line| match line {
            Line::Text(text) => read(text),
            Line::Repaired(text) => read(&text),
            Line::TooLong => is_too_long = true,
        });
        if is_too_long {
            let why = "sent a message that is longer than 16 MiB";
            seen.fault.get_or_insert_with(|| AgentError::new(ErrorCode::Protocol, why));
        }
        if seen.stray > STRAY_LIMIT {
            let why = format!("wrote more than {STRAY_LIMIT} lines to its output that are not messages");
            seen.fault.get_or_insert_with(|| AgentError::new(ErrorCode::Protocol, why));
        }
    }

    /// Why the output has ended.
    fn ended(&self, exit: Option<Exit>) -> AgentError {
        let Some(exit) = exit else {
            return AgentError::new(ErrorCode::Process, "closed its output and stays");
        };
        if let Some(refused) = self.process.refused() {
            return AgentError { message: format!("cannot be started: {}", refused.message), ..refused };
        }
        let stderr = self.process.stderr();
        let stderr = stderr.trim();
        let stderr = if stderr.is_empty() { String::new() } else { format!("; it said: {stderr}") };
        AgentError::new(ErrorCode::Process, format!("ended with {exit}{stderr}"))
    }
}

impl Transport<RoleClient> for Pipe {
    type Error = AgentError;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), AgentError>> + Send + 'static {
        let sent = serde_json::to_vec(&item)
            .map_err(|_| AgentError::new(ErrorCode::Protocol, "the message cannot be written as JSON"))
            .and_then(|mut line| {
                line.push(b'\n');
                self.stdin.send(line)
            });
        std::future::ready(sent)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if self.watch.seen().fault.is_some() {
                return None;
            }
            // Nothing is lost when the wait is dropped: what was read is taken at once.
            match self.process.read().await {
                Some(bytes) => self.take(&bytes),
                None => {
                    let exit = self.process.wait(LAST).await;
                    let fault = self.ended(exit);
                    self.watch.seen().fault.get_or_insert(fault);
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), AgentError> {
        let hurry = self.watch.hurry();
        let ended = hurry.run_until_cancelled(self.process.end()).await.is_some();
        if !ended {
            self.process.kill().await;
        }
        self.watch.gone.send_replace(true);
        Ok(())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.watch.gone.send_replace(true);
    }
}
