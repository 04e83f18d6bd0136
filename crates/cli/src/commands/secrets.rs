//! Before anything starts: whether the secrets that a flow names are set. One that is not would not be found in what agents
//! say of it, and be stored.

use inspan_flow::{Graph, Node, RunStore};
use inspan_protocol::SessionId;

use super::{
    session::{self, SessionSettings},
    stored::StoredSession,
};
use crate::{exit::Exit, failure::Failure, invocation::Invocation, store};

/// Refuses a flow that names secrets which are not set here.
pub(super) fn check(graph: &Graph, invocation: &Invocation) -> Result<(), Failure> {
    let Some(name) = graph.secrets.iter().find(|name| invocation.env.get(name).is_none()) else {
        return Ok(());
    };
    let message = format!(
        "the environment variable {name}, which the `secrets` of {} name, is not set",
        names_secret(graph, name)
    );
    Err(Failure::new(Exit::Configuration, message).with_hint(format!("set it: `export {name}=…`")))
}

/// The same for a stored session that no process runs: an answer that only its resume would take is not stored then.
pub(crate) async fn check_stored(
    stored: &dyn RunStore,
    session: &SessionId,
    invocation: &Invocation,
) -> Result<(), Failure> {
    check_stored_if(stored, session, invocation, |_| true).await
}

/// The same before a stop, which would start what cleans up, is stored.
pub(crate) async fn check_stop(
    stored: &dyn RunStore,
    session: &SessionId,
    invocation: &Invocation,
) -> Result<(), Failure> {
    check_stored_if(stored, session, invocation, Graph::cleans_up).await
}

async fn check_stored_if(
    stored: &dyn RunStore,
    session: &SessionId,
    invocation: &Invocation,
    starts_nodes: impl Fn(&Graph) -> bool,
) -> Result<(), Failure> {
    let record = stored.record(session).await?;
    if !are_needed(&SessionSettings::of_map(&record.settings)?, invocation) {
        return Ok(());
    }
    let graph = store::graph_of(&record)?;
    if starts_nodes(&graph) { check(&graph, invocation) } else { Ok(()) }
}

impl StoredSession {
    /// The same before its work goes on with this flow.
    pub(super) fn check_secrets(&self, graph: &Graph, invocation: &Invocation) -> Result<(), Failure> {
        match are_needed(&self.settings, invocation) {
            true => check(graph, invocation),
            false => Ok(()),
        }
    }

    /// The same before it goes on itself. Another process may run it, and one that is to be stopped starts no node but what
    /// cleans up.
    pub(super) fn check_own_secrets(&self, invocation: &Invocation) -> Result<(), Failure> {
        if self.graph.secrets.is_empty() || self.owner.is_some() {
            return Ok(());
        }
        let stop = store::is_to_be_stopped(&*self.store, &self.record.session);
        let is_stopped = session::runtime()?.block_on(stop)?;
        match is_stopped && !self.graph.cleans_up() {
            true => Ok(()),
            false => self.check_secrets(&self.graph, invocation),
        }
    }
}

/// Whether the programs of a session run, and on this machine.
fn are_needed(settings: &SessionSettings, invocation: &Invocation) -> bool {
    settings.replay.is_none() && invocation.engine.is_none()
}

/// Whose `secrets` name a variable: those of the flow, of a flow that it runs, or of a pack.
fn names_secret(graph: &Graph, name: &str) -> String {
    let names = |secrets: &[String]| secrets.iter().any(|secret| secret == name);
    let runs = |node: &Node| Some(graph.body(node.frames.as_ref()?.body));
    let owners = graph.bodies.iter().flat_map(|body| &body.nodes).filter_map(|node| {
        let body = runs(node)?;
        let subflow = body.subflow.as_ref().filter(|_| names(&body.secrets))?;
        Some(match node.node_type.split_once('.') {
            Some((pack, _)) if &*node.node_type != "control.subflow" => format!("the pack `{pack}`"),
            _ => format!("the flow `{}`", subflow.name),
        })
    });
    let of_flow = names(&graph.flow().secrets).then(|| "the flow".to_owned());
    of_flow.into_iter().chain(owners).next().unwrap_or("the flow".to_owned())
}
