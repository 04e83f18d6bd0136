//! What a flow needs beyond its own files, looked for before anything is started: the programs and keys of its agents.

use std::path::PathBuf;

use inspan_flow::{Graph, Loaded};
use inspan_protocol::{AgentError, Environment, ErrorCode};
use inspan_providers::{find_claude, find_codex, find_opencode, probe_anthropic};

use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// How the program of a node is found.
type Find = fn(&Environment) -> Result<PathBuf, AgentError>;

/// The nodes that run a program.
const PROGRAMS: [(&str, Find); 3] =
    [("claude.agent", find_claude), ("codex.agent", find_codex), ("opencode.agent", find_opencode)];

/// Refuses a flow whose agents cannot be started.
pub(super) fn check(graph: &Graph, loaded: &Loaded, invocation: &Invocation) -> Result<(), Failure> {
    key(graph, invocation)?;
    program(graph, loaded, invocation)
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
    // A node may name its own program, by a template even: then only its run can tell.
    if loaded.text().contains("executable") {
        return Ok(());
    }
    for (node_type, find) in PROGRAMS {
        if let Some(node) = graph.nodes.iter().find(|node| &*node.node_type == node_type) {
            find(&invocation.env).map_err(|error| refusal(&node.id, error.code, &error.message))?;
        }
    }
    Ok(())
}

fn refusal(node: &impl std::fmt::Display, code: ErrorCode, problem: &str) -> Failure {
    let (what, help) = problem.split_once("; ").unwrap_or((problem, ""));
    let message = format!("node `{node}` cannot run: {what} [{code}]; nothing was started");
    let failure = Failure::new(Exit::of_error(code), message);
    if help.is_empty() { failure } else { failure.with_hint(help) }
}
