//! One attempt of a node: what surrounds it, how its task ends whatever happens, and the check of what goes
//! in and comes out.

use std::{panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration};

use futures::FutureExt;
use inspan_engine::{Hub, PermissionPolicy, ProgramCalls};
use inspan_protocol::{
    AgentError, Environment, ErrorCode, HostTools, NodeId, NodePath, Redactor, Supervisor, Timestamp,
};
use jsonschema::Validator;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    graph::{Node, NodeIx},
    node::NodeType,
    registry::Described,
    schedule::{AttemptEnd, Interrupted},
    state::Conversation,
};

/// How long a cancelled node may take to end; then it is dropped. Longer than the ladder on which a
/// vendor's program is brought down.
const CANCEL_GRACE: Duration = Duration::from_secs(15);

/// What surrounds one attempt of a node.
#[derive(Clone)]
pub struct NodeContext {
    /// The node.
    pub node: NodeId,
    /// Its place in the run.
    pub path: NodePath,
    /// Which try this is, counting from 1.
    pub attempt: u32,
    /// The conversation that an agent goes on with.
    pub conversation: Option<Conversation>,
    /// What is left of an attempt that was cut short, if this one takes its place.
    pub interrupted: Option<Box<Interrupted>>,
    /// Messages to an agent that are to follow its first turn.
    pub mail: Vec<String>,
    /// Where programs and agents work; relative paths at run time start here.
    pub cwd: PathBuf,
    /// The environment for agents and clients.
    pub env: Environment,
    /// The environment for programs that the flow's author names: without the keys of vendors, unless the flow's
    /// `secrets` name them.
    pub program_env: Environment,
    /// Knows the secrets of the environment.
    pub redactor: Redactor,
    /// Whether those programs are run, recorded or answered from recordings.
    pub programs: ProgramCalls,
    /// Who answers an agent's questions for permission.
    pub permissions: PermissionPolicy,
    /// Tools of the program that agents may call.
    pub tools: HostTools,
    /// Who stands between us and the programs that are started.
    pub supervisor: Option<Supervisor>,
    /// Cancelled when the attempt is to end.
    pub cancel: CancellationToken,
    /// The hub, within the attempt's task.
    pub hub: Hub,
}

impl NodeContext {
    /// A folder of the author's, which starts at the working folder if it is relative; none is that folder.
    pub fn folder(&self, cwd: Option<&str>) -> PathBuf {
        cwd.map_or_else(|| self.cwd.clone(), |cwd| self.cwd.join(cwd))
    }

    /// When the wait began that this attempt is part of: before a pause or a crash, if there was one.
    pub fn since(&self) -> Timestamp {
        let before = self.interrupted.as_ref().and_then(|cut| cut.since);
        before.unwrap_or_else(|| self.hub.clock().now())
    }

    /// What a node gives back that ended because it was cancelled.
    pub fn aborted(&self) -> AgentError {
        AgentError::new(ErrorCode::Aborted, format!("node `{}` was cancelled", self.node))
    }
}

/// Runs one attempt to its end, which comes soon after a cancellation whatever the node does.
pub(super) async fn drive(
    node_type: Arc<dyn NodeType>,
    context: NodeContext,
    input: Value,
    node: NodeIx,
) -> (NodeIx, u32, AttemptEnd) {
    let attempt = context.attempt;
    let id = context.node.clone();
    let cancel = context.cancel.clone();
    let work = AssertUnwindSafe(async move { node_type.run(context, input).await }).catch_unwind();
    let too_late = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    let end = tokio::select! {
        biased;
        end = work => match end {
            Ok(Ok(output)) => AttemptEnd::Output(output),
            Ok(Err(error)) => AttemptEnd::Error(error),
            Err(_) => AttemptEnd::Error(AgentError::new(ErrorCode::NodeFailed, format!("node `{id}` panicked"))),
        },
        () = too_late => {
            let message = format!("node `{id}` did not end within {CANCEL_GRACE:?} of being cancelled");
            AttemptEnd::Error(AgentError::new(ErrorCode::Aborted, message))
        }
    };
    (node, attempt, end)
}

/// The input, if it fits the schema of the node's type.
pub(super) fn check_input(
    known: &Described,
    node_type: &dyn NodeType,
    node: &Node,
    input: Value,
) -> Result<Value, AgentError> {
    // A schema that depends on the input is checked by the one who reads it.
    if node_type.input_schema_for(&input).is_some() {
        return Ok(input);
    }
    match known.input().and_then(|schema| misfit(schema, &input)) {
        Some(why) => {
            Err(AgentError::new(ErrorCode::ConfigInvalid, format!("the input of node `{}`: {why}", node.id)))
        }
        None => Ok(input),
    }
}

/// The end without secrets, unless it is an output that does not fit the schema of the node's type.
pub(super) fn check_end(
    known: &Described,
    node: &Node,
    end: Result<Value, AgentError>,
    redactor: &Redactor,
) -> AttemptEnd {
    let end = end.map(|output| redactor.value(output)).map_err(|error| redactor.error(error));
    let output = match end {
        Ok(output) => output,
        Err(error) => return AttemptEnd::Error(error),
    };
    match known.output().and_then(|schema| misfit(schema, &output)) {
        Some(why) => {
            let message = format!("the output of node `{}`: {why}", node.id);
            AttemptEnd::Error(AgentError::new(ErrorCode::OutputInvalid, message))
        }
        None => AttemptEnd::Output(output),
    }
}

fn misfit(schema: &Validator, value: &Value) -> Option<String> {
    if schema.is_valid(value) {
        return None;
    }
    let errors: Vec<_> =
        schema.iter_errors(value).map(|error| format!("`{}`: {error}", error.instance_path())).collect();
    Some(errors.join("; "))
}
