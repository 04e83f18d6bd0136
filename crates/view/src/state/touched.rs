//! Which parts of a session have changed.

use std::collections::{BTreeSet, HashSet};

use inspan_flow_core::{BodyIx, EdgeIx};

/// Which parts of a session have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Every node may have.
    pub all: bool,
    /// The paths of nodes, without the passes at their ends.
    pub nodes: BTreeSet<String>,
    /// Edges that fired or did not.
    pub edges: HashSet<(BodyIx, EdgeIx)>,
}

impl Touched {
    pub(super) fn add(&mut self, path: &str) {
        if !self.all && !self.nodes.contains(path) {
            self.nodes.insert(path.to_owned());
        }
    }
}
