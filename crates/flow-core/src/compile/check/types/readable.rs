//! What a text can read where it is evaluated: the shapes of the values, and whether they are there.

use super::{
    PREVIOUS, Types,
    infer::Roots,
    order::{KnownOutput, Moment, Skips},
    shape::Shape,
};
use crate::{
    compile::{
        check::names::{Sees, has_inside},
        resolve::{FrameKind, id_of},
    },
    expr::PathRoot,
    graph::NodeIx,
};

/// What a text can read.
pub(super) struct Readable<'p> {
    pub(super) types: &'p Types<'p>,
    /// The node that it belongs to, if it belongs to one.
    pub(super) reader: Option<NodeIx>,
    pub(super) moment: Moment,
    pub(super) sees: Sees,
}

impl Readable<'_> {
    /// Whether it is evaluated once the body has ended.
    fn is_after_all(&self) -> bool {
        self.reader.is_none() && (self.moment == Moment::Until || self.sees == Sees::After)
    }

    /// The node whose output a name stands for, and the body that it is in.
    fn source(&self, root: &PathRoot) -> Option<(&Types<'_>, NodeIx)> {
        let (depth, node) = root.node()?;
        Some((self.types.further_out(depth)?, node))
    }
}

impl Roots for Readable<'_> {
    fn shape(&self, root: &PathRoot) -> Shape {
        self.types.outputs.root(root)
    }

    fn output(&self, root: &PathRoot) -> KnownOutput {
        match (root, self.reader) {
            (PathRoot::Node(source) | PathRoot::MayFail(source), Some(reader)) => {
                self.types.order.output(*source, reader, self.moment)
            }
            // It is asked once the body has ended, also where a node has ended it before.
            (PathRoot::Node(source) | PathRoot::MayFail(source), None) if self.is_after_all() => {
                let (types, is_until) = (self.types, self.moment == Moment::Until);
                let is_cut = types.ends_before(*source, !is_until).is_some();
                // Where a node ends the frame with its own outputs, the others are for where it does not.
                let leaves = || types.ends().any(|end| types.gives_outputs(end));
                let runs = types.order.always(*source) || !is_until && leaves();
                if runs && !is_cut { KnownOutput::Certain } else { KnownOutput::MaybeSkipped }
            }
            (PathRoot::Outer { depth, node, .. }, _) => self.types.outer_output(*depth, *node),
            (PathRoot::Local(name), _) if name == PREVIOUS && self.types.is_in_loop() => {
                KnownOutput::NotOnFirstPass
            }
            _ => KnownOutput::Certain,
        }
    }

    fn why_skipped(&self, root: &PathRoot) -> String {
        let Some((types, node)) = self.source(root) else { return String::new() };
        let is_own = !matches!(root, PathRoot::Outer { .. }) && self.is_after_all();
        let end = types.ends_before(node, self.moment != Moment::Until).filter(|_| is_own);
        if let Some(end) = end {
            let end = id_of(types.body.spec, end.0 as usize);
            let what = match types.body.around.map(|around| around.kind) {
                Some(FrameKind::Pass) => "the pass",
                Some(FrameKind::Item(_)) => "the frame",
                None => "the flow",
            };
            return format!("it does not run where `{end}` ends {what} before it");
        }
        match types.order.skips(node) {
            Skips::ByItself => "it is skipped where its `when` does not hold".to_owned(),
            Skips::ByEdge(from) => {
                let from = id_of(types.body.spec, from.0 as usize);
                format!("it is skipped where its edge from `{from}` does not fire")
            }
            Skips::Earlier => "it is skipped where the nodes before it are".to_owned(),
            Skips::Joined if self.reader.is_some_and(|reader| self.types.order.cleans_up(reader)) => {
                "this also runs where it, or a node before it, has failed".to_owned()
            }
            Skips::Joined => "the join before this node does not wait for it".to_owned(),
        }
    }

    fn is_inside(&self, root: &PathRoot, name: &str) -> bool {
        let source = self.source(root);
        source.is_some_and(|(types, node)| has_inside(types.body.nodes[node.0 as usize].spec, name))
    }
}
