//! The last pass: a graph of what was resolved and checked.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use inspan_protocol::NodeId;
use sha2::{Digest, Sha256};

use super::{
    bodies::CompiledBodies,
    check::{Checked, CheckedNode, Loops},
    resolve::{Flow, Resolved, ResolvedNode},
};
use crate::{
    expr::{Condition, Template},
    graph::{
        Agents, Body, Edge, EdgeIx, Fallback, Frames, Graph, Join, Node, NodePolicy, Retry, RetryOn, Subflow,
    },
    node::{NodeKind, Occupies},
    source::{IncludedFile, Loaded},
    spec::PolicySpec,
};

/// Builds the graph, which is only good if no error was reported.
pub(super) fn graph(flow: Flow<'_>, bodies: CompiledBodies, loaded: &Loaded) -> Graph {
    let header = flow.header;
    let hash = hash(loaded);
    Graph {
        source: Arc::new(loaded.source(&header.name, &hash)),
        name: header.name.clone(),
        description: header.description.clone(),
        version: header.version.clone(),
        hash,
        folder: loaded.folder.clone(),
        phase: header.phase.clone().unwrap_or_else(|| "Run Flow".to_owned()),
        input: header.input.clone(),
        input_schema: flow.input_schema,
        needs: bodies.needs,
        state: header.state.clone(),
        secrets: bodies.secrets,
        output_schema: flow.output_schema,
        only: loaded.only.clone(),
        bodies: bodies.all,
    }
}

/// Builds a body, with what its nodes run in frames.
pub(super) fn body(
    resolved: Resolved<'_>,
    checked: Checked,
    frames: Vec<Option<Box<Frames>>>,
    subflow: Option<Subflow>,
) -> Body {
    let nodes = resolved.nodes.iter().zip(checked.nodes).zip(frames);
    let mut nodes: Vec<Node> = nodes
        .map(|((node, mut checked), frames)| {
            let agents = agents(node, &mut checked);
            Node { agents, ..build_node(node, checked, frames) }
        })
        .collect();
    let edges = edges(&resolved, checked.conditions, checked.loops);
    connect(&mut nodes, &edges);
    let node = resolved.around.and_then(|around| around.node().spec.id.clone());
    let key = if resolved.around.is_some() { "body.outputs" } else { "outputs" };
    Body {
        policy: resolved.spec.policy.clone(),
        outputs: checked.outputs.map(|outputs| Template::new(node, key, outputs)),
        subflow,
        secrets: resolved.flow.header.secrets.iter().map(|(name, _)| (*name).to_owned()).collect(),
        loops: nodes.iter().flat_map(|node| node.loops.iter().copied()).collect(),
        nodes,
        edges,
        index: resolved.index,
    }
}

fn build_node(node: &ResolvedNode<'_>, checked: CheckedNode, frames: Option<Box<Frames>>) -> Node {
    let info = node.node_type.as_ref().map(|known| known.info());
    let kind = node.kind().unwrap_or(NodeKind::Plain);
    Node {
        id: node.spec.id.clone().unwrap_or_else(placeholder),
        node_type: info.map_or_else(|| "".into(), |info| info.name.clone()),
        program: node.program().map(Into::into),
        input: Template::new(node.spec.id.clone(), "input", checked.input),
        when: checked.when,
        policy: match node.spec.policy.as_deref() {
            Some(written) => Arc::new(policy(written, kind)),
            None if kind == NodeKind::Agent => OF_AGENTS.clone(),
            None => OF_OTHERS.clone(),
        },
        effects: node.effects(),
        pool: node.spec.pool.map(|(name, _)| name.into()),
        session: node.session,
        kind,
        join: match kind {
            NodeKind::Merge if node.waits_for_all() => Join::All,
            NodeKind::Merge => Join::Any,
            _ => Join::Resolved,
        },
        occupies: info.map_or(Occupies::Slot, |info| info.occupies),
        incoming: Vec::new(),
        outgoing: Vec::new(),
        loops: Vec::new(),
        loop_nodes: Arc::default(),
        frames,
        agents: None,
    }
}

/// The agents that may work on a node, if there are several.
fn agents(node: &ResolvedNode<'_>, checked: &mut CheckedNode) -> Option<Box<Agents>> {
    let own = node.spec.agent?;
    let others = node.others.iter().zip(checked.others.drain(..));
    let mut agents = Agents {
        names: [own]
            .into_iter()
            .chain(node.others.iter().filter_map(|other| other.spec.agent))
            .map(str::to_owned)
            .collect(),
        others: others.map(|(other, checked)| build_node(other, checked, None)).collect(),
        chosen: 1 + node.others.iter().filter(|other| other.spec.is_chosen).count(),
        choice: checked.choice.take().map(|choice| Template::new(node.spec.id.clone(), "agent", choice)),
        fallback: Vec::new(),
    };
    let entries = node.spec.fallback.iter().zip(checked.fallback.drain(..));
    // An agent that is not declared was reported.
    let entries =
        entries.filter_map(|(entry, when)| Some(Fallback { agent: agents.find(entry.agent.0)?, when }));
    agents.fallback = entries.collect();
    Some(Box::new(agents))
}

/// The replacement for an id that was refused, in a graph that is refused too.
fn placeholder() -> NodeId {
    static PLACEHOLDER: std::sync::LazyLock<Option<NodeId>> =
        std::sync::LazyLock::new(|| NodeId::new("_").ok());
    PLACEHOLDER.clone().unwrap_or_else(placeholder)
}

/// What all nodes without a `policy` share: a flow may have many thousands.
static OF_AGENTS: LazyLock<Arc<NodePolicy>> =
    LazyLock::new(|| Arc::new(policy(&PolicySpec::default(), NodeKind::Agent)));
static OF_OTHERS: LazyLock<Arc<NodePolicy>> =
    LazyLock::new(|| Arc::new(policy(&PolicySpec::default(), NodeKind::Plain)));

fn policy(written: &PolicySpec, kind: NodeKind) -> NodePolicy {
    let default = match kind {
        // The number alone replaces the automatic retries; the other keys change them.
        NodeKind::Agent if written.max_attempts.is_none() => Retry::of_agents(),
        NodeKind::Agent => Retry { on: RetryOn::Retryable, ..Retry::default() },
        _ => Retry::default(),
    };
    let backoff = written.backoff.unwrap_or(default.backoff);
    let retry = Retry {
        max_attempts: written.max_attempts.unwrap_or(default.max_attempts),
        backoff,
        factor: written.factor.unwrap_or(default.factor),
        max_backoff: written.max_backoff.or(default.max_backoff.map(|longest| longest.max(backoff))),
        on: written.on.unwrap_or(default.on),
        is_automatic: default.is_automatic,
    };
    NodePolicy {
        timeout: written.timeout,
        retry,
        on_failure: written.on_failure,
        budget: written.budget,
        on_limit: written.on_limit,
    }
}

fn edges(resolved: &Resolved<'_>, conditions: Vec<Option<Condition>>, mut loops: Loops) -> Vec<Edge> {
    let links = resolved.links.links.iter().zip(conditions).enumerate();
    let edges = links.map(|(at, (link, when))| {
        let (cycle, leaves) = loops.take(at);
        Edge { from: link.from, to: link.to, on: link.on, when, cycle, leaves }
    });
    edges.collect()
}

/// Adds the edges to the nodes that they leave and enter.
fn connect(nodes: &mut [Node], edges: &[Edge]) {
    for (at, edge) in edges.iter().enumerate() {
        let Ok(at) = u32::try_from(at).map(EdgeIx) else { continue };
        if let Some(cycle) = &edge.cycle {
            nodes[edge.from.0 as usize].loops.push(at);
            nodes[edge.to.0 as usize].loop_nodes = cycle.body.clone();
        } else {
            nodes[edge.from.0 as usize].outgoing.push(at);
            nodes[edge.to.0 as usize].incoming.push(at);
        }
    }
    let rank = |at: &EdgeIx| edges[at.0 as usize].cycle.as_ref().map(|cycle| cycle.rank);
    for node in nodes.iter_mut().filter(|node| node.loops.len() > 1) {
        node.loops.sort_by_key(rank);
    }
    for node in nodes {
        let Node { agents: Some(agents), incoming, outgoing, loops, loop_nodes, .. } = node else { continue };
        for other in &mut agents.others {
            other.incoming.clone_from(incoming);
            other.outgoing.clone_from(outgoing);
            other.loops.clone_from(loops);
            other.loop_nodes = loop_nodes.clone();
        }
    }
}

/// SHA-256 over the text of the flow, each file that it includes and each change made for the run that does something. Each
/// is preceded by its length, so that no two flows give the same bytes. Line ends do not count.
fn hash(loaded: &Loaded) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        let text = if text.contains('\r') { text.replace("\r\n", "\n").into() } else { Cow::Borrowed(text) };
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text.as_bytes());
    };
    add(&loaded.text);
    for (path, included) in &loaded.files {
        if let IncludedFile::Text(text) = included {
            add(path);
            add(text);
        }
    }
    for change in loaded.used_changes() {
        add(&serde_json::to_string(change).unwrap_or_default());
    }
    let digits = hash.finalize().into_iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}
