//! The compiler of flows, in four passes:
//!
//! 1. read: the text becomes a [`Spec`] in which every part has its place (`spec`);
//! 2. resolve: names become indices, node types are looked up, files take the place of their names;
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

pub use input::{InputError, check_input};

use bodies::Bodies;
use resolve::Flow;

use crate::{
    catalog::NodeCatalog,
    diagnostic::{Diagnostics, Sink},
    graph::Graph,
    source::Loaded,
    spec::{Spec, expand},
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
    let mut sink = Sink::new(loaded.name.clone());
    loaded.flows.iter().for_each(|flow| sink.add_source(&flow.path));
    for problem in &loaded.document.problems {
        sink.push(problem.clone());
    }
    let root = loaded.document.root.as_ref().map(|root| expand(root, "", loaded, catalog, &mut sink));
    let spec = root.as_ref().and_then(|root| Spec::read(root, &mut sink));
    let graph = spec.map(|spec| {
        let flow = Flow::resolve(&spec.header, loaded, "", catalog, &mut sink);
        let bodies = Bodies::compile(&spec.body, &flow, loaded, catalog, &mut sink);
        build::graph(flow, bodies, loaded)
    });
    let found = sink.finish();
    match graph {
        Some(graph) if !found.has_errors() => Ok(Compiled { graph, warnings: found }),
        _ => Err(found),
    }
}

#[cfg(test)]
pub(crate) mod tests;
