//! Turns a loaded flow into a graph, with every problem at once. Pure: the same text and registry give the
//! same graph. Reading files is left to `load`, running the graph to the scheduler.

mod command;
mod condition;
mod conversation;
mod edges;
mod exits;
mod files;
mod given;
mod hash;
mod input;
mod loops;
mod names;
mod node;
mod types;
mod validate;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use inspan_protocol::NodeId;

pub use given::{InputError, check_input};

use crate::{
    catalog::NodeCatalog,
    diagnostic::{Code, Diagnostics, Problem, Sink, did_you_mean},
    graph::{Graph, NodeIx},
    source::Loaded,
    spec::{Header, NodeSpec, Spec},
};
use edges::Links;
use types::Types;

/// A flow that can run.
#[derive(Debug)]
pub struct Compiled {
    /// The flow.
    pub graph: Graph,
    /// What the author may want to look at all the same.
    pub warnings: Diagnostics,
}

/// Compiles a flow. On failure all of its problems are returned, errors and warnings, in the order of the
/// file.
pub fn compile(loaded: &Loaded, registry: &NodeCatalog) -> Result<Compiled, Diagnostics> {
    let mut sink = Sink::new(loaded.name.clone());
    for problem in &loaded.document.problems {
        sink.push(problem.clone());
    }
    let spec = loaded.document.root.as_ref().and_then(|root| Spec::read(root, &mut sink));
    let graph = spec.map(|spec| build(&spec, loaded, registry, &mut sink));
    let found = sink.finish();
    match graph {
        Some(graph) if !found.has_errors() => Ok(Compiled { graph, warnings: found }),
        _ => Err(found),
    }
}

/// What every part of the compiler looks at.
struct World<'a> {
    loaded: &'a Loaded,
    spec: &'a Spec<'a>,
    index: HashMap<NodeId, NodeIx>,
    links: Links<'a>,
    types: Types<'a>,
    /// The keys of each node's output, where its type names them.
    outputs: Vec<Option<Arc<[String]>>>,
    input_schema: Option<serde_json::Value>,
    /// The keys that each node's structured output is declared to have.
    structured: Vec<Option<Arc<[String]>>>,
    /// The keys of the flow's input that are used for certain, with the node that does.
    needs: RefCell<BTreeMap<String, NodeId>>,
    unsaid: node::Unsaid,
}

/// Builds a graph, which is only good if no error was found meanwhile.
fn build(spec: &Spec<'_>, loaded: &Loaded, registry: &NodeCatalog, sink: &mut Sink) -> Graph {
    let index = ids(&spec.nodes, sink);
    check_packs(&spec.header, registry, sink);
    let links = Links::read(spec, &index, sink);
    let input_schema = files::input_schema(&spec.header, loaded, sink);
    let mut types = Types::new(registry, spec.header.packs.as_deref());
    let outputs = spec.nodes.iter().map(|node| types.get(node.node_type()?.0)?.outputs()).collect();
    let structured = spec.nodes.iter().map(|node| files::structured_keys(node, loaded)).collect();
    let mut world = World {
        loaded,
        spec,
        index,
        links,
        types,
        outputs,
        input_schema,
        structured,
        needs: RefCell::default(),
        unsaid: node::Unsaid::default(),
    };
    given::check_defaults(&world, sink);
    let mut nodes: Vec<_> = spec.nodes.iter().map(|node| node::compile(node, &mut world, sink)).collect();
    let edges = edges::compile(&world, sink);
    conversation::check(&world, sink);
    edges::connect(&mut nodes, &edges);
    let header = &spec.header;
    let hash = hash::of(loaded);
    Graph {
        source: Arc::new(loaded.source(&header.name, &hash)),
        name: header.name.clone(),
        description: header.description.clone(),
        version: header.version.clone(),
        hash,
        folder: loaded.folder.clone(),
        phase: header.phase.clone().unwrap_or_else(|| "Run Flow".to_owned()),
        input: header.input.clone(),
        input_schema: world.input_schema,
        needs: world.needs.into_inner(),
        state: header.state.clone(),
        secrets: header.secrets.iter().map(|(name, _)| (*name).to_owned()).collect(),
        policy: header.policy.clone(),
        nodes,
        edges,
        index: world.index,
    }
}

/// The places of the nodes by their ids; the first of two with one id keeps it.
fn ids(nodes: &[NodeSpec<'_>], sink: &mut Sink) -> HashMap<NodeId, NodeIx> {
    let mut index = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let (Some(id), Ok(at)) = (&node.id, u32::try_from(at)) else { continue };
        if let Some(NodeIx(first)) = index.get(id) {
            let line = nodes[*first as usize].id_span.start.line;
            let message = format!("duplicate node id `{id}`; it is first used on line {line}");
            let problem = Problem::error(Code::DuplicateId, node.id_span, message);
            sink.push(problem.node(Some(id)).key(format!("nodes[{}].id", node.at)));
        } else {
            index.insert(id.clone(), NodeIx(at));
        }
    }
    index
}

fn check_packs(header: &Header<'_>, registry: &NodeCatalog, sink: &mut Sink) {
    let Some(packs) = &header.packs else { return };
    let mut known: Vec<&str> = registry.describe().iter().map(|info| info.pack).collect();
    known.sort_unstable();
    known.dedup();
    for (pack, span) in packs.iter().filter(|(pack, _)| !known.contains(pack)) {
        let help = did_you_mean(pack, known.iter().copied())
            .unwrap_or_else(|| format!("available: {}", known.join(", ")));
        let message = format!("unknown node pack `{pack}`");
        sink.push(Problem::error(Code::UnknownPack, *span, message).help(help).key("nodePacks"));
    }
}

#[cfg(test)]
pub(crate) mod tests;
