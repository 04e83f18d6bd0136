//! The executor of attempts, for every driver: it runs a node to its end, whatever the node does.

use std::{panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration};

use futures::FutureExt;
use inspan_engine::{Hub, NodeCalls, create_private_dir_all};
use inspan_flow_core::{AttemptDone, AttemptSpec};
use inspan_protocol::{AgentError, Environment, ErrorCode, Host, Redactor};
use tokio_util::sync::CancellationToken;

use crate::node::{NodeContext, NodeRegistry};

/// How long a cancelled node may take to end; then it is dropped. Longer than a vendor's program takes to be ended.
const CANCEL_GRACE: Duration = Duration::from_secs(15);

/// What is the same for all attempts that a process runs.
pub(super) struct Surroundings {
    pub(super) host: Arc<Host>,
    /// The environment for programs that the flow's author names.
    pub(super) program_env: Environment,
    pub(super) redactor: Redactor,
    pub(super) calls: NodeCalls,
    /// The session's folder for what its nodes leave.
    pub(super) artifacts: Option<PathBuf>,
}

/// Where one attempt runs: where its events go and its messages come from, and what ends it.
pub(super) struct Ground {
    /// The hub, within the attempt's task.
    pub(super) hub: Hub,
    /// Cancelled when the attempt is to end.
    pub(super) cancel: CancellationToken,
}

/// Runs one attempt to its end, which comes soon after a cancellation whatever the node does.
pub(super) async fn run_attempt(
    nodes: Arc<NodeRegistry>,
    surroundings: Arc<Surroundings>,
    spec: AttemptSpec,
    ground: Ground,
) -> AttemptDone {
    let (node, attempt, id) = (spec.node, spec.attempt, spec.node_id.clone());
    let Some(node_type) = nodes.runner(&spec.node_type).cloned() else {
        let message = format!("node `{id}` has the type `{}`, and nothing here runs it", spec.node_type);
        let end = Err(AgentError::new(ErrorCode::ConfigInvalid, message));
        return AttemptDone { node, attempt, end: end.into() };
    };
    if let Some(folder) = &surroundings.artifacts
        && let Err(error) = create_private_dir_all(folder)
    {
        let message = format!("the folder `{}` cannot be made: {error}", folder.display());
        return AttemptDone {
            node,
            attempt,
            end: Err(AgentError::new(ErrorCode::ConfigInvalid, message)).into(),
        };
    }
    let cancel = ground.cancel.clone();
    let context = NodeContext {
        node: spec.node_id,
        path: spec.path,
        attempt,
        conversation: spec.conversation,
        interrupted: spec.interrupted,
        mail: spec.mail,
        host: surroundings.host.clone(),
        program_env: surroundings.program_env.clone(),
        redactor: surroundings.redactor.clone(),
        calls: surroundings.calls.clone(),
        cancel: ground.cancel,
        hub: ground.hub,
    };
    let input = spec.input;
    let work = AssertUnwindSafe(async move { node_type.run(context, input).await }).catch_unwind();
    let too_late = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    let end = tokio::select! {
        biased;
        end = work => end.unwrap_or_else(|_| {
            Err(AgentError::new(ErrorCode::NodeFailed, format!("node `{id}` panicked")))
        }),
        () = too_late => {
            let message = format!("node `{id}` did not end within {CANCEL_GRACE:?} of being cancelled");
            Err(AgentError::new(ErrorCode::Aborted, message))
        }
    };
    AttemptDone { node, attempt, end: end.into() }
}
