//! Recording and replay of the programs that nodes run: each call with its node, arguments and input, and what came of
//! it.

use std::time::Duration;

use inspan_protocol::{AgentError, ErrorCode, Redactor};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    Recorder, Replayer, Tape,
    key::Request,
    replay::INTERRUPTION_LIMIT,
    store::{End, Recording},
};

/// What stands for the provider in the recording of a program.
const PROGRAM: &str = "exec";
/// From this version on programs are recorded, too.
const WITH_PROGRAMS: u16 = 2;

/// What becomes of the programs of a session.
#[derive(Clone, Default)]
pub enum ProgramCalls {
    /// They are run.
    #[default]
    Run,
    /// They are run, and recorded.
    Record(Recorder),
    /// They are not run: recordings answer for them.
    Replay(Replayer),
}

/// One program that a node wants to run.
#[derive(Clone, Copy, Debug)]
pub struct ProgramCall<'a> {
    /// The node.
    pub node: &'a str,
    /// The program and its arguments.
    pub argv: &'a [String],
    /// What it reads.
    pub stdin: Option<&'a Value>,
}

/// What is to be done for a call.
pub enum ProgramAnswer {
    /// The program is to be run.
    Run(ProgramTape),
    /// This came of it when it was recorded.
    Recorded(Result<Value, AgentError>),
}

/// Takes down what comes of a program. One that is dropped before is recorded as aborted, so that the calls after it
/// keep their places.
pub struct ProgramTape(Option<Tape>);

impl ProgramTape {
    /// What came of the program.
    pub fn save(self, end: &Result<Value, AgentError>) -> Result<(), AgentError> {
        let Some(mut tape) = self.0 else { return Ok(()) };
        let end = match end {
            Ok(output) => End::Output(output.clone()),
            Err(error) => End::Error(error.clone()),
        };
        tape.save(end).map_err(|error| AgentError::new(ErrorCode::ConfigInvalid, error.to_string()))
    }
}

impl ProgramCalls {
    /// Whether the call is answered from a recording. One that is missing is an error that names the node and the
    /// difference; one that was aborted waits to be cancelled.
    pub async fn begin(
        &self,
        call: ProgramCall<'_>,
        redactor: &Redactor,
        cancel: &CancellationToken,
    ) -> ProgramAnswer {
        let request = || Request::program(call, redactor);
        match self {
            Self::Run => ProgramAnswer::Run(ProgramTape(None)),
            Self::Record(recorder) => {
                ProgramAnswer::Run(ProgramTape(Some(recorder.tape_of(request(), redactor.clone()))))
            }
            Self::Replay(replayer) if replayer.is_without_programs() => ProgramAnswer::Run(ProgramTape(None)),
            Self::Replay(replayer) => ProgramAnswer::Recorded(match replayer.next(&request()) {
                Ok(recording) => end(&recording, cancel).await,
                Err(miss) => {
                    let message = format!("the program of node `{}`: {}", call.node, miss.message);
                    Err(AgentError::new(miss.code, message))
                }
            }),
        }
    }
}

async fn end(recording: &Recording, cancel: &CancellationToken) -> Result<Value, AgentError> {
    match recording.end.clone() {
        End::Output(output) => Ok(output),
        End::Error(error) => {
            if error.code == ErrorCode::Aborted {
                let limit: Duration = INTERRUPTION_LIMIT;
                drop(timeout(limit, cancel.cancelled()).await);
            }
            Err(error)
        }
    }
}

impl Request {
    fn program(call: ProgramCall<'_>, redactor: &Redactor) -> Self {
        let mut input = json!({ "node": call.node, "argv": call.argv });
        if let Some(stdin) = call.stdin {
            input["stdin"] = stdin.clone();
        }
        Self::of(PROGRAM, &input, redactor)
    }
}

impl Replayer {
    /// Whether the recordings are older than those of programs; then programs are run, as they were when the recordings
    /// were made.
    fn is_without_programs(&self) -> bool {
        let mut versions = self.versions();
        versions
            .next()
            .is_some_and(|first| first < WITH_PROGRAMS && versions.all(|version| version < WITH_PROGRAMS))
    }
}
