//! What leads from a state to a later one, or to an earlier one: only what differs.

use std::collections::{BTreeMap, BTreeSet};

use inspan_flow_core::EdgeOn;
use inspan_protocol::NodePath;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{PageEdge, PageFold, PageNode, PageSession, PageState};
use crate::{entry::DisplayStatus, row::around};

/// What differs between two states.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PagePatch {
    /// The newest event of the state that it leads to.
    pub seq: u64,
    /// The fields of the session as a whole that differ; null where a field is gone.
    #[serde(flatten)]
    pub head: Map<String, Value>,
    /// The edges that differ; they replace those with the same ends and the same `on`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<PageEdge>,
    /// The nodes that differ, each whole.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, PageNode>,
    /// The paths of nodes that are gone; only where a patch leads backwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

/// The nodes that changed in frames that viewers have opened, by the paths of the frames.
pub type FrameNodes = BTreeMap<String, BTreeMap<String, PageNode>>;

impl PagePatch {
    /// The patch from one state to another, in either order.
    pub fn between(from: &PageState, to: &PageState) -> Self {
        let differs = |(path, node): &(&String, &PageNode)| from.nodes.get(*path) != Some(*node);
        let set = to.nodes.iter().filter(differs).map(|(path, node)| (path.clone(), node.clone()));
        let gone = from.nodes.keys().filter(|path| !to.nodes.contains_key(*path)).cloned();
        let known: BTreeSet<&PageEdge> = from.edges.iter().collect();
        let still: BTreeSet<_> = to.edges.iter().map(PageEdge::key).collect();
        // An edge that is no longer known never fired.
        let unknown = from.edges.iter().filter(|edge| !still.contains(&edge.key()));
        let unfired = unknown.map(|edge| PageEdge { fired: 0, skipped: 0, ..edge.clone() });
        Self {
            seq: to.seq,
            head: head(&from.head, &to.head),
            edges: to.edges.iter().filter(|edge| !known.contains(edge)).cloned().chain(unfired).collect(),
            set: set.collect(),
            gone: gone.collect(),
        }
    }

    /// Whether it changes nothing but the number of the event.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.edges.is_empty() && self.set.is_empty() && self.gone.is_empty()
    }
}

impl PageEdge {
    /// What no other edge has.
    pub(super) fn key(&self) -> (&str, &str, EdgeOn) {
        (&self.from, &self.to, self.on)
    }
}

/// The fields that differ; null where one is gone.
pub(super) fn head(from: &Map<String, Value>, to: &Map<String, Value>) -> Map<String, Value> {
    let gone = from.keys().filter(|key| !to.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let differs = to.iter().filter(|(key, value)| from.get(*key) != Some(*value));
    differs.map(|(key, value)| (key.clone(), value.clone())).chain(gone).collect()
}

impl PageFold {
    /// From now on a patch says what changes. Returns the head as it is now.
    pub fn begin_patch(&mut self, session: &PageSession) -> Map<String, Value> {
        self.view.take_touched();
        self.head(session, &self.entry(session))
    }

    /// What changed since this was last asked, or since the fold began: a patch without the nodes of frames, and those
    /// of the frames that are open. `last` is the head at that time; it becomes the head now.
    pub fn patch(
        &mut self,
        session: &PageSession,
        open: &BTreeSet<String>,
        last: &mut Map<String, Value>,
    ) -> (PagePatch, FrameNodes) {
        let mut touched = self.view.take_touched();
        let entry = self.entry(session);
        let status = DisplayStatus::of(&entry);
        let now = self.head(session, &entry);
        // The status of a node depends on whether a process runs the session.
        let state = |head: &Map<String, Value>| head.get("session").map(|session| session["state"].clone());
        touched.all |= state(last) != state(&now);
        let mut patch = PagePatch { seq: self.seq(), head: head(last, &now), ..PagePatch::default() };
        *last = now;
        patch.edges = touched.edges.iter().filter_map(|edge| self.edge(*edge)).collect();
        patch.edges.sort_unstable();
        let mut frames = FrameNodes::new();
        if touched.all {
            self.add_nodes(&self.view.rows, "", status, &mut patch.set);
            for frame in open {
                frames.insert(frame.clone(), self.frame_nodes(session, frame));
            }
            return (patch, frames);
        }
        for path in with_owners(&touched.nodes) {
            let (frame, text) = (around(&path).trim_end_matches('/'), path.as_str());
            if !frame.is_empty() && !open.contains(frame) {
                continue;
            }
            let Some(row) = self.view.row(&path) else { continue };
            let node = PageNode::of(row, text.to_owned(), status);
            match frame {
                "" => patch.set.insert(text.to_owned(), node),
                frame => frames.entry(frame.to_owned()).or_default().insert(text.to_owned(), node),
            };
        }
        (patch, frames)
    }
}

/// The paths of rows, and of the rows around them: what a node spends counts for those too.
fn with_owners(paths: &BTreeSet<String>) -> BTreeSet<NodePath> {
    let mut all = BTreeSet::new();
    for path in paths {
        let mut next = Some(NodePath::new(path));
        while let Some(path) = next {
            next = path.owner().map(|owner| NodePath::new(crate::label(&owner)));
            // What is around a known path is known too.
            if !all.insert(path) {
                break;
            }
        }
    }
    all
}
