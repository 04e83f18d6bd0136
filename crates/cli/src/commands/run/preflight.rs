//! What a flow needs beyond its own files, looked for before anything is started: the programs and keys of its agents.

use std::path::PathBuf;

use inspan_flow::{Graph, Loaded};
use inspan_protocol::{AgentError, Environment, ErrorCode};
use inspan_providers::{
    ServiceStatus, find_acp, find_claude, find_codex, find_opencode, probe_anthropic, probe_openai,
};

use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// How the program of a node is found.
type Find = fn(&Environment) -> Result<PathBuf, AgentError>;

/// The nodes that run a program.
const PROGRAMS: [(&str, Find); 3] =
    [("claude.agent", find_claude), ("codex.agent", find_codex), ("opencode.agent", find_opencode)];

/// Refuses a flow whose agents cannot be started.
pub(super) fn check(graph: &Graph, loaded: &Loaded, invocation: &Invocation) -> Result<(), Failure> {
    key(graph, invocation)?;
    agent(graph, loaded, invocation)?;
    program(graph, loaded, invocation)
}

/// Finds out whether a service can be asked.
type Probe = fn(&Environment) -> ServiceStatus;

/// Agents that ask a service with a key, and how to find out whether it is there.
const SERVICES: [(&str, Probe); 2] = [("anthropic.agent", probe_anthropic), ("openai.agent", probe_openai)];

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
    for (kind, probe) in SERVICES {
        let Some(node) = graph.nodes.iter().find(|node| &*node.node_type == kind) else { continue };
        let status = probe(&invocation.env);
        let code = if status.key.is_none() { ErrorCode::ConfigMissing } else { ErrorCode::ConfigInvalid };
        if let Some(problem) = status.problem {
            return Err(refusal(&node.id, code, &problem));
        }
    }
    Ok(())
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
