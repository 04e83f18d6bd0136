//! One attempt of a node: how its task ends whatever happens, and the check of what goes in and comes out.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use inspan_flow_core::{AttemptEnd, DescribeNode, Described, Node, NodeIx};
use inspan_protocol::{AgentError, ErrorCode, Redactor};
use jsonschema::Validator;
use serde_json::Value;

use crate::node::{NodeContext, NodeType};

/// How long a cancelled node may take to end; then it is dropped. Longer than the ladder on which a
/// vendor's program is brought down.
const CANCEL_GRACE: Duration = Duration::from_secs(15);

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
    node_type: &dyn DescribeNode,
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
