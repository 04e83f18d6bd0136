//! The compiler of flows, in four passes:
//!
//! 1. read: the text becomes a [`Spec`] in which every part has its place (`spec`);
//! 2. resolve: names become indices, node types are looked up, files replace their names;
//! 3. check: templates and conditions are parsed; they, the inputs and the loops are checked;
//! 4. build: all of it becomes a [`Graph`].
//!
//! The body of a node is compiled by the same passes as the flow's own, after the body that it is in.
//!
//! Each pass reads only what the one before it gave, and reports problems to a [`Sink`]. The same text and catalog give
//! the same graph.

mod bodies;
mod build;
mod check;
mod input;
mod resolve;

pub(crate) use input::subflow_input;
pub use input::{InputError, check_input, is_text_by_default, takes_input};

use bodies::Bodies;
use resolve::Flow;

use crate::{
    catalog::NodeCatalog,
    diagnostic::{Diagnostics, Sink},
    graph::Graph,
    source::Loaded,
    spec::{Choices, NodeTypes, Spec, expand},
};

/// A flow that can run.
#[derive(Debug)]
pub struct Compiled {
    /// The flow.
    pub graph: Graph,
    /// Warnings for the author.
    pub warnings: Diagnostics,
}

/// Compiles a flow. On failure all of its problems are returned, errors and warnings, in the order of the
/// file.
pub fn compile(loaded: &Loaded, catalog: &NodeCatalog) -> Result<Compiled, Diagnostics> {
    // What names an agent is known once all is resolved; if a schema lists the names, the others are no candidates.
    match compile_with(loaded, catalog, &Choices::new()) {
        (result, listed) if listed.is_empty() => result,
        (_, listed) => compile_with(loaded, catalog, &listed).0,
    }
}

/// Compiles a flow; gives also the names that the schemas of expressions of `agent` list.
fn compile_with(
    loaded: &Loaded,
    catalog: &NodeCatalog,
    choices: &Choices,
) -> (Result<Compiled, Diagnostics>, Choices) {
    let (types, mut sink) = read_types(loaded, catalog);
    let root = loaded.document.root.as_ref().zip(types.as_ref());
    let root = root.map(|(root, types)| expand(root, "", loaded, &types.catalog, choices, &mut sink));
    let spec = root.as_ref().and_then(|root| Spec::read(root, &mut sink));
    let mut listed = Choices::new();
    let graph = spec.zip(types.as_ref()).map(|(spec, types)| {
        let flow = Flow::resolve(&spec.header, loaded, "", types, &mut sink);
        let mut bodies = Bodies::compile(&spec.body, &flow, loaded, catalog, choices, &mut sink);
        listed = std::mem::take(&mut bodies.listed);
        build::graph(flow, bodies, loaded)
    });
    let found = sink.finish();
    let result = match graph {
        Some(graph) if !found.has_errors() => Ok(Compiled { graph, warnings: found }),
        _ => Err(found),
    };
    (result, listed)
}

/// The node types that a flow may use: those of a catalogue, and those of the flow's packs.
pub fn types_of(loaded: &Loaded, catalog: &NodeCatalog) -> Result<NodeCatalog, Diagnostics> {
    let (types, sink) = read_types(loaded, catalog);
    let found = sink.finish();
    types.filter(|_| !found.has_errors()).map(|types| types.catalog).ok_or(found)
}

/// The problems of the packs that a flow names, in all their types.
pub fn check_packs(loaded: &Loaded, catalog: &NodeCatalog) -> Diagnostics {
    let (types, mut sink) = read_types(loaded, catalog);
    if let Some(types) = &types {
        Bodies::check_packs(types, loaded, catalog, &mut sink);
    }
    sink.finish()
}

fn read_types(loaded: &Loaded, catalog: &NodeCatalog) -> (Option<NodeTypes>, Sink) {
    let mut sink = sink_of(loaded);
    let root = loaded.document.root.as_ref();
    let types = root.map(|root| NodeTypes::read(root, "", loaded, catalog, &mut sink));
    (types, sink)
}

/// The problems of the text, and the files that others may be in.
fn sink_of(loaded: &Loaded) -> Sink {
    let mut sink = Sink::new(loaded.name.clone());
    sink.passes_inputs = loaded.is_stored();
    loaded.flows.iter().for_each(|flow| sink.add_source(&flow.path));
    loaded.document.problems.iter().for_each(|problem| sink.push(problem.clone()));
    sink
}

#[cfg(test)]
pub(crate) mod tests;
