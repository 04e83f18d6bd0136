//! What a flow needs beyond its own files, looked for before anything is started: the programs and keys of its agents.

use inspan_flow::{Graph, Loaded};
use inspan_protocol::ErrorCode;
use inspan_providers::{find_acp, find_claude, probe_anthropic};

use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// Refuses a flow whose agents cannot be started.
pub(super) fn check(graph: &Graph, loaded: &Loaded, invocation: &Invocation) -> Result<(), Failure> {
    key(graph, invocation)?;
    agent(graph, loaded, invocation)?;
    program(graph, loaded, invocation)
}

/// The programs of agents that are driven over the Agent Client Protocol.
fn agent(graph: &Graph, loaded: &Loaded, invocation: &Invocation) -> Result<(), Failure> {
    // A node may name its own program, by a template even: then only its run can tell.
    if loaded.text().contains("command") {
        return Ok(());
    }
    for node in &graph.nodes {
        let found = node.node_type.strip_suffix(".agent").and_then(|name| find_acp(name, &invocation.env));
        if let Some(Err(error)) = found {
            return Err(refusal(&node.id, error.code, &error.message));
        }
    }
    Ok(())
}

fn key(graph: &Graph, invocation: &Invocation) -> Result<(), Failure> {
    let Some(node) = graph.nodes.iter().find(|node| &*node.node_type == "anthropic.agent") else {
        return Ok(());
    };
    let status = probe_anthropic(&invocation.env);
    let code = if status.key.is_none() { ErrorCode::ConfigMissing } else { ErrorCode::ConfigInvalid };
    status.problem.map_or(Ok(()), |problem| Err(refusal(&node.id, code, &problem)))
}

fn program(graph: &Graph, loaded: &Loaded, invocation: &Invocation) -> Result<(), Failure> {
    let Some(node) = graph.nodes.iter().find(|node| &*node.node_type == "claude.agent") else {
        return Ok(());
    };
    // A node may name its own program, by a template even: then only its run can tell.
    if loaded.text().contains("executable") {
        return Ok(());
    }
    find_claude(&invocation.env).map(drop).map_err(|error| refusal(&node.id, error.code, &error.message))
}

fn refusal(node: &impl std::fmt::Display, code: ErrorCode, problem: &str) -> Failure {
    let (what, help) = problem.split_once("; ").unwrap_or((problem, ""));
    let message = format!("node `{node}` cannot run: {what} [{code}]; nothing was started");
    let failure = Failure::new(Exit::of_error(code), message);
    if help.is_empty() { failure } else { failure.with_hint(help) }
}
