//! What a flow needs beyond its own files, looked for before anything is started: the programs of its agents.

use inspan_flow::{Graph, Loaded};
use inspan_providers::find_claude;

use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// Refuses a flow whose agents cannot be started.
pub(super) fn check(graph: &Graph, loaded: &Loaded, invocation: &Invocation) -> Result<(), Failure> {
    let Some(node) = graph.nodes.iter().find(|node| &*node.node_type == "claude.agent") else {
        return Ok(());
    };
    // A node may name its own program, by a template even: then only its run can tell.
    if loaded.text().contains("executable") {
        return Ok(());
    }
    find_claude(&invocation.env).map(drop).map_err(|error| {
        let (what, help) = error.message.split_once("; ").unwrap_or((&error.message, ""));
        let message = format!("node `{}` cannot run: {what} [{}]; nothing was started", node.id, error.code);
        let failure = Failure::new(Exit::of_error(error.code), message);
        if help.is_empty() { failure } else { failure.with_hint(help) }
    })
}
