//! Checks before anything is started that the agents of a flow can run: their programs and keys, and the flow's secrets.

use inspan_engine::ProviderRegistry;
use inspan_flow::{Graph, Node, StaticValue};
use inspan_protocol::{AgentError, Environment, NodePath};

use crate::{exit::Exit, failure::Failure, invocation::Invocation};

/// Refuses a flow whose agents cannot be started.
pub(super) fn check(
    graph: &Graph,
    providers: &ProviderRegistry,
    invocation: &Invocation,
) -> Result<(), Failure> {
    if let Some(name) = graph.secrets.iter().find(|name| invocation.env.get(name).is_none()) {
        let message = format!("the environment variable {name}, which the flow's `secrets` name, is not set");
        return Err(
            Failure::new(Exit::Configuration, message).with_hint(format!("set it: `export {name}=…`"))
        );
    }
    let is_asked_for = |node: &&Node| {
        let asked = |place: &NodePath| place.parts().next().is_some_and(|part| part.node == node.id.as_str());
        graph.only.is_empty() || graph.only.iter().any(asked)
    };
    graph
        .flow()
        .nodes
        .iter()
        .filter(is_asked_for)
        .try_for_each(|node| check_node(node, providers, &invocation.env))
}

fn check_node(node: &Node, providers: &ProviderRegistry, environment: &Environment) -> Result<(), Failure> {
    let Some(provider) = provider(node).and_then(|provider| providers.get(provider)) else { return Ok(()) };
    // A node may name its own program, even by a binding, which only its run can check.
    let names_its_own = |option| node.input.part(&["options", option]) != StaticValue::Absent;
    if provider.setup().program_option().is_some_and(names_its_own) {
        return Ok(());
    }
    provider.check_setup(environment).map_err(|error| failure(&node.id, &error))
}

/// The provider of an agent node, unless it is only known when the node runs.
fn provider(node: &Node) -> Option<&str> {
    match (node.node_type.strip_suffix(".agent"), node.input.part(&["provider"])) {
        (Some(provider), _) => Some(provider),
        (None, StaticValue::Known(provider)) if &*node.node_type == "agent.run" => provider.as_str(),
        (None, _) => None,
    }
}

fn failure(node: &impl std::fmt::Display, error: &AgentError) -> Failure {
    let (what, help) = error.message.split_once("; ").unwrap_or((&error.message, ""));
    let message = format!("node `{node}` cannot run: {what} [{}]; nothing was started", error.code);
    let failure = Failure::new(Exit::of_error(error.code), message);
    if help.is_empty() { failure } else { failure.with_hint(help) }
}
