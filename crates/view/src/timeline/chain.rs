//! The critical path: from the node that ended last back to the first, each to what it began after. That is the node
//! whose edge fired last into it; for the first nodes of a frame, the frame that ended before it began, if one did.

use std::collections::{HashMap, HashSet};

use inspan_protocol::{Envelope, Event, NodePath};

use crate::{label, row::around};

/// Which node began after which.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    /// The newest edge into a node that fired: by what the paths of its frame begin with, and its id.
    fired: HashMap<(String, String), NodePath>,
    /// What each pass of a node began after.
    after: HashMap<NodePath, NodePath>,
    /// The flow's own node that began or ended last.
    last: Option<NodePath>,
    /// The node that ended last in any frame of a node that runs frames.
    last_inside: HashMap<NodePath, NodePath>,
    /// What the nodes at the start of a frame begin after, by what the paths of the frame begin with.
    frames: HashMap<String, NodePath>,
    /// Nodes that run frames, without their passes.
    owners: HashSet<String>,
}

impl Chain {
    pub(super) fn apply(&mut self, envelope: &Envelope) {
        let Some(path) = &envelope.context.task else { return };
        match &envelope.event {
            Event::EdgeFired { to, .. } | Event::LoopIterate { to, .. } => {
                self.fired.insert((around(path).to_owned(), to.to_string()), path.clone());
            }
            Event::TaskStart { .. } => {
                let key = (around(path).to_owned(), path.node().to_owned());
                let before = self.fired.get(&key).or_else(|| self.frames.get(around(path)));
                if let Some(before) = before.cloned() {
                    self.after.entry(path.clone()).or_insert(before);
                }
                if path.owner().is_none() {
                    self.last = Some(path.clone());
                }
            }
            Event::TaskComplete { .. } | Event::TaskFailed { .. } | Event::TaskCancelled { .. } => {
                match path.owner() {
                    Some(owner) => self.last_inside.insert(owner, path.clone()),
                    None => self.last.replace(path.clone()),
                };
            }
            Event::FrameStart { index, .. } => {
                self.owners.insert(label(path).to_owned());
                if let Some(before) = self.last_inside.get(path) {
                    self.frames.insert(format!("{path}[{index}]/"), before.clone());
                }
            }
            _ => {}
        }
    }

    /// Whether a node only runs others.
    pub(super) fn runs_frames(&self, path: &str) -> bool {
        self.owners.contains(path)
    }

    /// The paths of the nodes, without passes, from the first to the last.
    pub(super) fn path(&self) -> Vec<String> {
        let (mut chain, mut seen) = (Vec::new(), HashSet::new());
        if let Some(last) = &self.last {
            self.walk(last, &mut seen, &mut chain);
        }
        chain.reverse();
        let mut named = HashSet::new();
        chain.into_iter().map(label).filter(|path| named.insert(*path)).map(str::to_owned).collect()
    }

    /// Adds a node, before it what ran in its frames, and after it what it began after.
    fn walk<'a>(
        &'a self,
        end: &'a NodePath,
        seen: &mut HashSet<&'a NodePath>,
        chain: &mut Vec<&'a NodePath>,
    ) {
        let mut next = Some(end);
        while let Some(path) = next.filter(|path| seen.insert(path)) {
            if let Some(inner) = self.last_inside.get(path) {
                self.walk(inner, seen, chain);
            }
            chain.push(path);
            next = self.after.get(path);
        }
    }
}
