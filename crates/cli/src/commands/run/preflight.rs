//! What a flow needs beyond its own files, looked for before anything is started: the programs and keys of its agents.

use std::path::PathBuf;

use inspan_flow::{Graph, Node, Part};
use inspan_protocol::{AgentError, Environment, ErrorCode};
use inspan_providers::{
    ServiceStatus, find_acp, find_claude, find_codex, find_opencode, probe_anthropic, probe_openai,
};

use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// How the key of a service is looked for.
type Probe = fn(&Environment) -> ServiceStatus;
/// How a program is looked for.
type Find = fn(&Environment) -> Result<PathBuf, AgentError>;

/// Agents that ask a service with a key.
const SERVICES: [(&str, Probe); 2] = [("anthropic", probe_anthropic), ("openai", probe_openai)];
/// Agents that run a program, which the option `executable` may name.
const PROGRAMS: [(&str, Find); 3] =
    [("claude", find_claude), ("codex", find_codex), ("opencode", find_opencode)];

/// Refuses a flow whose agents cannot be started.
pub(super) fn check(graph: &Graph, invocation: &Invocation) -> Result<(), Failure> {
    if let Some(name) = graph.secrets.iter().find(|name| invocation.env.get(name).is_none()) {
        let message = format!("the environment variable {name}, which the flow's `secrets` name, is not set");
        return Err(
            Failure::new(Exit::Configuration, message).with_hint(format!("set it: `export {name}=…`"))
        );
    }
    graph.nodes.iter().try_for_each(|node| match provider(node) {
        Some(provider) => agent(node, provider, &invocation.env),
        None => Ok(()),
    })
}

/// The provider of an agent node, unless only its run can tell.
fn provider(node: &Node) -> Option<&str> {
    match (node.node_type.strip_suffix(".agent"), node.input.part(&["provider"])) {
        (Some(provider), _) => Some(provider),
        (None, Part::Known(provider)) if &*node.node_type == "agent.run" => provider.as_str(),
        (None, _) => None,
    }
}

fn agent(node: &Node, provider: &str, environment: &Environment) -> Result<(), Failure> {
    if let Some((_, probe)) = SERVICES.iter().find(|(service, _)| *service == provider) {
        let status = probe(environment);
        let code = if status.key.is_none() { ErrorCode::ConfigMissing } else { ErrorCode::ConfigInvalid };
        return status.problem.map_or(Ok(()), |problem| Err(refusal(&node.id, code, &problem)));
    }
    // A node that names its own program is its own affair: a binding even, which only its run can tell.
    let names_its_own = |option| node.input.part(&["options", option]) != Part::Absent;
    let found = match PROGRAMS.iter().find(|(program, _)| *program == provider) {
        Some((_, find)) if !names_its_own("executable") => Some(find(environment)),
        None if !names_its_own("command") => find_acp(provider, environment),
        _ => None,
    };
    match found {
        Some(Err(error)) => Err(refusal(&node.id, error.code, &error.message)),
        Some(Ok(_)) | None => Ok(()),
    }
}

fn refusal(node: &impl std::fmt::Display, code: ErrorCode, problem: &str) -> Failure {
    let (what, help) = problem.split_once("; ").unwrap_or((problem, ""));
    let message = format!("node `{node}` cannot run: {what} [{code}]; nothing was started");
    let failure = Failure::new(Exit::of_error(code), message);
    if help.is_empty() { failure } else { failure.with_hint(help) }
}
