//! The process of a session and the decoder of what it says: started, greeted, written to and ended.
//! Turns are left to `turn.rs`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, ErrorKind, ExecutionContext, ProviderSessionId, Redactor};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::decode::{Decoded, Decoder};
use super::super::error::died;
use super::super::launch::{Conversation, Launch};
use super::super::outcome::{Asked, conclude};
use super::super::wire;
use crate::transport::process::{Exit, Process, Start, Stdin};

/// How long the program may take from its start to its first answer.
const GREETING: Duration = Duration::from_secs(60);

/// A process that holds one conversation.
#[derive(Debug)]
pub(in super::super) struct Link {
    pub(in super::super) process: Process,
    pub(in super::super) decoder: Decoder,
    pub(in super::super) session: ProviderSessionId,
    pub(in super::super) state: State,
    pub(in super::super) redactor: Redactor,
    /// Stays as long as the process may read it.
    _mcp_config: Option<PrivateFile>,
}

/// Whether a turn is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum State {
    Idle,
    InTurn,
    /// The process was ended.
    Gone,
}

impl Link {
    /// Starts the program and greets it.
    pub(super) async fn open(
        launch: &Launch,
        conversation: &Conversation,
        context: &ExecutionContext,
    ) -> Result<Self, AgentError> {
        let mut arguments = launch.arguments.clone();
        arguments.extend(launch.conversation_arguments(conversation));
        let mcp_config =
            launch.mcp_config.as_deref().map(|config| PrivateFile::new(config, context)).transpose()?;
        if let Some(file) = &mcp_config {
            arguments.push(format!("--mcp-config={}", file.0.display()));
        }
        let redactor = launch.redactor();
        let process = Process::start(Start {
            program: launch.program.clone(),
            arguments,
            environment: launch.environment.clone(),
            cwd: launch.cwd.clone(),
            supervisor: context.supervisor.clone(),
            redactor: redactor.clone(),
        })?;
        let mut link = Self {
            process,
            decoder: Decoder::with_session(conversation.id().clone()),
            session: conversation.id().clone(),
            state: State::Idle,
            redactor,
            _mcp_config: mcp_config,
        };
        let limit = context.deadline.map_or(GREETING, |deadline| deadline.min(GREETING));
        match timeout(limit, link.greet(&launch.initialize)).await {
            Ok(Ok(())) => Ok(link),
            Ok(Err(error)) => {
                link.break_off().await;
                Err(error)
            }
            Err(_) => {
                link.break_off().await;
                let message =
                    format!("the program did not answer within {} ms of its start", limit.as_millis());
                Err(AgentError::new(ErrorCode::Timeout, message).with_kind(ErrorKind::Start))
            }
        }
    }

    /// Sends the first request, and waits for its answer.
    async fn greet(&mut self, initialize: &Value) -> Result<(), AgentError> {
        const ID: &str = "initialize";
        self.send(&wire::control_request(ID, initialize.clone()))?;
        loop {
            let Some(bytes) = self.process.read().await else {
                let exit = self.break_off().await;
                let refused = self.process.refused(exit);
                return Err(refused.unwrap_or_else(|| died(exit, &self.process.stderr())));
            };
            for decoded in self.decoder.push_bytes(&bytes) {
                match decoded {
                    Decoded::Answered { request_id, error } if request_id == ID => {
                        return error.map_or(Ok(()), |error| {
                            let message =
                                format!("the program refused its options: {}", self.redactor.text(&error));
                            Err(AgentError::new(ErrorCode::ConfigInvalid, message))
                        });
                    }
                    // An unknown conversation ends the program with a result before it was asked anything.
                    Decoded::TurnEnd(end) => {
                        let unasked = || {
                            AgentError::new(ErrorCode::Protocol, "the program ended a turn before it began")
                        };
                        return Err(conclude(*end, Asked::ToGoOn, &self.redactor)
                            .err()
                            .unwrap_or_else(unasked));
                    }
                    Decoded::Fault(error) => return Err(error),
                    Decoded::Unsupported { request_id, subtype } => {
                        self.send(&wire::control_error(
                            &request_id,
                            &format!("`{subtype}` is not offered here"),
                        ))?;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Writes one line.
    pub(in super::super) fn send(&self, line: &Value) -> Result<(), AgentError> {
        write(&self.process.stdin(), line)
    }

    /// Asks the program to end its turn.
    pub(in super::super) fn interrupt(&self) -> Result<(), AgentError> {
        interrupt(&self.process.stdin())
    }

    /// Reads what was said since the last turn, so that the next one begins at its own beginning.
    pub(super) fn catch_up(&mut self) -> Result<(), AgentError> {
        while let Some(bytes) = self.process.try_read() {
            for decoded in self.decoder.push_bytes(&bytes) {
                if let Decoded::Fault(error) = decoded {
                    return Err(error);
                }
            }
        }
        if let Some(exit) = self.process.exit() {
            return Err(died(exit, &self.process.stderr()));
        }
        Ok(())
    }

    /// Whether another turn can begin: the process lives, and has not begun one by itself.
    pub(super) fn is_ready(&mut self) -> bool {
        self.state == State::Idle && self.catch_up().is_ok() && !self.decoder.in_turn()
    }

    /// Ends the process, whatever it does.
    pub(in super::super) async fn break_off(&mut self) -> Exit {
        self.state = State::Gone;
        match self.process.exit() {
            Some(exit) => exit,
            None => self.process.end().await,
        }
    }
}

/// Asks the program behind this pipe to end its turn.
pub(super) fn interrupt(stdin: &Stdin) -> Result<(), AgentError> {
    /// The program tells its answers apart by these ids, over all its life.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let id = format!("interrupt-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    write(stdin, &wire::control_request(&id, json!({ "subtype": "interrupt" })))
}

fn write(stdin: &Stdin, line: &Value) -> Result<(), AgentError> {
    let mut bytes = line.to_string().into_bytes();
    bytes.push(b'\n');
    stdin.send(bytes)
}

/// A file that only this user can read, and that is gone when it is dropped.
#[derive(Debug)]
struct PrivateFile(PathBuf);

impl PrivateFile {
    fn new(content: &str, context: &ExecutionContext) -> Result<Self, AgentError> {
        let folder = PathBuf::from(context.env.get("TMPDIR").unwrap_or("/tmp"));
        let path = folder.join(format!("inspan-{}.json", crate::ids::fresh()));
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(&path).and_then(|mut file| file.write_all(content.as_bytes()));
        let file = Self(path);
        written.map(|()| file).map_err(|error| {
            let message = format!("cannot write the MCP servers to a file in {}: {error}", folder.display());
            AgentError::new(ErrorCode::Process, message)
        })
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        // Nobody is left who could be told; the folder is one for temporary files.
        let _gone = fs::remove_file(&self.0);
    }
}
