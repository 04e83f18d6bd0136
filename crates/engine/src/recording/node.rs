//! Recording and replay of what nodes do outside: the programs they run, the requests they send, the tools they call.
//! Each call is recorded with its node and its input, and what came of it.

use std::sync::Arc;

use futures::future::BoxFuture;
use inspan_protocol::{AgentError, ErrorCode, NodePath, Redactor};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    Recorder, RecordingError, Replayer, Tape,
    key::{KeyedRequest, portable},
    store::{RecordedEnd, Recording},
};

/// From this version on the calls of nodes are recorded, too.
const WITH_NODES: u16 = 2;

/// How the calls of a session's nodes are handled.
#[derive(Clone, Default)]
pub enum NodeCalls {
    /// They are made.
    #[default]
    Make,
    /// They are made, and recorded.
    Record(Recorder),
    /// They are not made: recordings answer for them. Node types of a program of your own make no such calls and run.
    Replay(Replayer),
    /// They are never made: a test answers for them.
    Answer(Arc<dyn AnswerCall>),
}

/// Answers for the calls of nodes in the form in which they are recorded.
pub trait AnswerCall: Send + Sync {
    /// The result of the call.
    fn answer<'a>(
        &'a self,
        call: NodeCall<'a>,
        redactor: &'a Redactor,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Value, AgentError>>;
}

/// One call that a node wants to make.
#[derive(Clone, Debug)]
pub struct NodeCall<'a> {
    /// The type of the node.
    pub kind: &'a str,
    /// The node.
    pub node: &'a str,
    /// Where in its session it makes the call.
    pub place: &'a NodePath,
    /// What distinguishes this call from others: a mapping.
    pub input: Value,
    /// The session's folder for what its nodes leave, which is another one when the recording is played.
    pub artifacts: Option<&'a str>,
    /// The id of the session.
    pub session: &'a str,
}

/// What is to be done for a call.
pub enum NodeAnswer {
    /// The call is to be made.
    Make(NodeTape),
    /// The result when it was recorded.
    Recorded(Result<Value, AgentError>),
    /// The result that a test gives.
    Answered(Result<Value, AgentError>),
}

/// Records the result of a call. One that is dropped before is recorded as aborted, so that the calls after it keep
/// their places.
pub struct NodeTape(Option<Box<Tape>>);

impl NodeTape {
    /// Records the result of the call, which is computed only if it is recorded.
    pub fn save_with(self, end: impl FnOnce() -> Result<Value, AgentError>) -> Result<(), RecordingError> {
        let Self(Some(mut tape)) = self else { return Ok(()) };
        tape.save(end().map_or_else(RecordedEnd::Error, RecordedEnd::Output))
    }
}

impl NodeCalls {
    /// What a replay has not played of the nodes that it played; see [`Replayer::left_over`].
    pub fn left_over(&self) -> Option<String> {
        match self {
            Self::Replay(replayer) => replayer.left_over(),
            Self::Make | Self::Record(_) | Self::Answer(_) => None,
        }
    }

    /// The call at this place is about to be cancelled because of a pause, and made again when the session is resumed.
    pub fn pausing(&self, place: &NodePath) {
        if let Self::Record(recorder) = self {
            recorder.pausing(place);
        }
    }

    /// Whether the call is answered, and by what. A recording that is missing is an error that names the node and the
    /// difference; one that was aborted waits to be cancelled.
    pub async fn begin(
        &self,
        call: NodeCall<'_>,
        redactor: &Redactor,
        cancel: &CancellationToken,
    ) -> NodeAnswer {
        let request = |call| KeyedRequest::of_node(call, redactor);
        match self {
            Self::Make => NodeAnswer::Make(NodeTape(None)),
            Self::Record(recorder) => {
                let tape = recorder.tape_of(request(call), redactor.clone(), false);
                NodeAnswer::Make(NodeTape(Some(Box::new(tape))))
            }
            Self::Replay(replayer) if replayer.is_without_nodes() => NodeAnswer::Make(NodeTape(None)),
            Self::Replay(replayer) => {
                NodeAnswer::Recorded(replayer.call(call, redactor, cancel).await.flatten())
            }
            Self::Answer(answers) => NodeAnswer::Answered(answers.answer(call, redactor, cancel).await),
        }
    }
}

async fn end(recording: &Recording, cancel: &CancellationToken) -> Result<Value, AgentError> {
    match recording.end.clone() {
        RecordedEnd::Output(output) => Ok(output),
        RecordedEnd::Error(error) => {
            if error.code == ErrorCode::Aborted {
                recording.interruption(cancel).await;
            }
            Err(error)
        }
    }
}

impl KeyedRequest {
    fn of_node(call: NodeCall<'_>, redactor: &Redactor) -> Self {
        let mut input = call.input;
        input["node"] = call.node.into();
        Self::of(call.kind, &portable(input, call.artifacts), redactor)
            .at(Some(call.place.clone()))
            .of_session(Some(call.session))
            .with_artifacts(call.artifacts)
    }
}

impl Replayer {
    /// The result of a node's call when it was recorded; the call is not made.
    ///
    /// # Errors
    /// No recording fits.
    pub async fn call(
        &self,
        call: NodeCall<'_>,
        redactor: &Redactor,
        cancel: &CancellationToken,
    ) -> Result<Result<Value, AgentError>, AgentError> {
        let node = call.node;
        let recording = self
            .next(&KeyedRequest::of_node(call, redactor), redactor)
            .map_err(|miss| AgentError::new(miss.code, format!("node `{node}`: {}", miss.message)))?;
        Ok(end(&recording, cancel).await)
    }

    /// Whether the recordings are older than those of nodes; then calls are made, as they were when the recordings were
    /// made.
    fn is_without_nodes(&self) -> bool {
        let mut versions = self.versions();
        versions
            .next()
            .is_some_and(|first| first < WITH_NODES && versions.all(|version| version < WITH_NODES))
    }
}
