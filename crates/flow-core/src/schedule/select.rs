//! A run of a part of the flow: the nodes that were asked for run, whatever the edges into them say; of all others the
//! output is reused, or they are skipped. And what of an earlier session has failed, to be tried again.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use inspan_protocol::{NodePath, SessionId};

use super::{Plan, Reusable, ReuseDecision, ReuseReason, Run, reusable_task::runs_again};
use crate::{
    graph::{Body, BodyIx, FrameIx, FramesKind, Graph, Node, NodeIx, TaskRef},
    node::NodeKind,
    overrides::{OverrideError, unknown_node},
    state::failed_items,
};

/// What a task has to do with the nodes that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    /// All nodes run.
    All,
    /// It was asked for.
    Itself,
    /// It runs in the frames of a node that was asked for.
    Within,
    /// A node that was asked for runs in its frames.
    Around,
    /// None of it.
    No,
}

impl Selected {
    /// What a place has to do with the nodes that were asked for; all run if there are none.
    pub(crate) fn of(only: &[NodePath], place: &NodePath) -> Self {
        if only.is_empty() {
            return Self::All;
        }
        let mut found = Self::No;
        for asked in only {
            found = match (asked == place, place.is_within(asked), asked.is_within(place)) {
                (true, ..) => return Self::Itself,
                (_, true, _) => Self::Within,
                (_, _, true) if found == Self::No => Self::Around,
                _ => found,
            };
        }
        found
    }

    /// Whether only a part of what runs in its frames was asked for, or nothing.
    pub(crate) fn is_partial(self) -> bool {
        matches!(self, Self::Around | Self::No)
    }

    pub(super) fn is_asked_for(self) -> bool {
        matches!(self, Self::Itself | Self::Within)
    }
}

/// Why a part of a flow cannot be run alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The node that was asked for.
    pub node: NodePath,
    /// The node whose output it needs; itself if it would not run.
    pub needs: NodePath,
    /// The node that cannot be reused, because of which the output is missing, and why; nothing if the node would be
    /// skipped.
    pub cause: Option<(NodePath, ReuseReason)>,
}

impl Missing {
    /// Why the output that is needed cannot be reused of a session; nothing if the node would be skipped.
    pub fn why(&self, session: &SessionId) -> Option<String> {
        let Self { node, needs, cause } = self;
        let (cause, why) = cause.as_ref()?;
        let which = if cause == needs { String::new() } else { format!("`{cause}`: ") };
        Some(format!(
            "`{node}` needs the output of `{needs}`, which cannot be reused of session `{session}`: {which}{}",
            why.words()
        ))
    }
}

impl Run {
    pub(super) fn selected(&self, task: TaskRef) -> Selected {
        Selected::of(&self.graph.only, &self.facts.path(&self.graph, task).place())
    }

    /// Whether a node that was asked for needs the output of a task, or of a node in its frames, or one after it.
    pub(super) fn is_needed(&self, task: TaskRef) -> bool {
        let place = self.facts.path(&self.graph, task).place();
        let mut needed =
            self.graph.only.iter().flat_map(|node| self.graph.needs(node)).flat_map(|(_, all)| all);
        needed.any(|needed| place.is_within(&needed) || needed.is_within(&place))
    }

    /// Whether a frame runs only a part of its nodes: what it declares to give may not exist.
    pub(super) fn is_partial(&self, frame: FrameIx) -> bool {
        match self.facts.frames[frame].owner {
            _ if self.graph.only.is_empty() => false,
            None => true,
            Some(owner) => self.selected(owner) == Selected::Around,
        }
    }
}

impl Plan {
    /// Why the requested nodes cannot be run alone: the output of a node that they read, and that would
    /// not be reused.
    pub fn missing_for_only(&self, graph: &Graph) -> Option<Missing> {
        graph.only.iter().find_map(|node| self.missing_for(graph, node))
    }

    /// Whether the answer of a person that is stored has to do with the nodes that run: if only some were asked for, it is one
    /// to them or before them.
    pub fn needs_stored_answer(&self, graph: &Graph) -> bool {
        let concerns = |place: &NodePath, node: &NodePath| {
            place.is_within(node) || graph.before(node).iter().any(|before| place.is_within(before))
        };
        let counts =
            |place: &NodePath| graph.only.is_empty() || graph.only.iter().any(|node| concerns(place, node));
        let mut answered = self.nodes.iter().filter(|planned| planned.decision == ReuseDecision::Answered);
        answered.any(|planned| counts(&planned.path.place()))
    }

    fn missing_for(&self, graph: &Graph, node: &NodePath) -> Option<Missing> {
        let missing = |needs: &NodePath, cause| Missing { node: node.clone(), needs: needs.clone(), cause };
        for (needs, before) in graph.needs(node) {
            for planned in &self.nodes {
                let place = planned.path.place();
                if !before.iter().any(|before| place.is_within(before)) {
                    continue;
                }
                match planned.decision {
                    ReuseDecision::Omitted(why) => return Some(missing(&needs, Some((place, why)))),
                    ReuseDecision::Undecided if place.is_within(&needs) => {
                        return Some(missing(&needs, Some((place, ReuseReason::Follows))));
                    }
                    _ => {}
                }
            }
        }
        let runs = |decision| {
            matches!(decision, ReuseDecision::Runs(_) | ReuseDecision::Undecided | ReuseDecision::Asks)
        };
        let mut own = self.nodes.iter().filter(|planned| planned.path.place().is_within(node)).peekable();
        if own.peek().is_some() {
            return (!own.any(|planned| runs(planned.decision))).then(|| missing(node, None));
        }
        // Empty frames have no nodes that a plan could show. Where no frames are opened, nothing in them runs.
        self.nodes.iter().find_map(|planned| {
            let around = planned.path.place();
            match planned.decision {
                _ if !node.is_within(&around) => None,
                ReuseDecision::Omitted(why) => Some(missing(&around.clone(), Some((around, why)))),
                ReuseDecision::Skipped => Some(missing(node, None)),
                _ => None,
            }
        })
    }

    /// Why a node cannot be run again with all before it reused: a node before it that would run.
    pub fn missing_for_from(&self, graph: &Graph, node: &NodePath) -> Option<Missing> {
        let node = node.place();
        let before = graph.before(&node);
        let missing = |needs: &NodePath, cause| Missing { node: node.clone(), needs: needs.clone(), cause };
        for planned in &self.nodes {
            let place = planned.path.place();
            let why = match planned.decision {
                ReuseDecision::Runs(why) => why,
                // It runs if a person says so.
                ReuseDecision::Asks => ReuseReason::Unfinished,
                _ => continue,
            };
            if before.iter().any(|before| place.is_within(before)) {
                return Some(missing(&place, Some((place.clone(), why))));
            }
        }
        let mut own = self.nodes.iter().filter(|planned| planned.path.place() == node).peekable();
        let is_skipped =
            own.peek().is_some() && own.all(|planned| planned.decision == ReuseDecision::Skipped);
        is_skipped.then(|| missing(&node, None))
    }
}

impl Graph {
    /// Whether a node at this place was asked for, or one in it or around it; all nodes are where none is named.
    pub fn is_selected(&self, place: &NodePath) -> bool {
        Selected::of(&self.only, place) != Selected::No
    }

    /// The places of all nodes, in the order of the flow; those of a flow that runs itself once.
    pub fn places(&self) -> Vec<NodePath> {
        let mut found = Vec::new();
        self.add_places(BodyIx::default(), "", &mut Vec::new(), &mut found);
        found
    }

    fn add_places(&self, ix: BodyIx, prefix: &str, around: &mut Vec<BodyIx>, found: &mut Vec<NodePath>) {
        if around.contains(&ix) {
            return;
        }
        around.push(ix);
        for node in &self.body(ix).nodes {
            let place = format!("{prefix}{}", node.id);
            found.push(NodePath::new(&place));
            if let Some(frames) = &node.frames {
                self.add_places(frames.body, &format!("{place}/"), around, found);
            }
        }
        around.pop();
    }

    /// The node at a place.
    pub fn find_place(&self, place: &NodePath) -> Result<&Node, OverrideError> {
        let found = self.bodies_of(place).pop().map(|(body, node)| body.node(node));
        found.ok_or_else(|| {
            unknown_node(place, &self.places().iter().map(NodePath::to_string).collect::<Vec<_>>())
        })
    }

    /// The outermost node that the flow does not have, of a place and those around it.
    pub(super) fn first_missing(&self, place: &NodePath) -> Option<NodePath> {
        let text = place.as_str();
        let ends = text.match_indices('/').map(|(end, _)| end).chain([text.len()]);
        ends.map(|end| NodePath::new(&text[..end])).find(|around| self.bodies_of(around).is_empty())
    }

    fn is_foreach(&self, place: &NodePath) -> bool {
        let frames = self.find_place(place).ok().and_then(|node| node.frames.as_deref());
        frames.is_some_and(|frames| matches!(frames.kind, FramesKind::Foreach { .. }))
    }

    /// What the node at a place runs in its frames.
    pub fn find_body(&self, place: &NodePath) -> Result<&Body, OverrideError> {
        let frames = self.find_place(place)?.frames.as_ref();
        let frames = frames.ok_or_else(|| OverrideError::NoFrames { node: place.clone() })?;
        Ok(self.body(frames.body))
    }

    /// The bodies that a place leads through, each with the node that it names there; none if a node does not exist.
    fn bodies_of(&self, place: &NodePath) -> Vec<(&Body, NodeIx)> {
        let mut found = Vec::new();
        let mut next = Some(self.flow());
        for id in place.as_str().split('/') {
            let Some((body, node)) = next.and_then(|body| Some((body, body.find(id)?))) else {
                return Vec::new();
            };
            next = body.node(node).frames.as_ref().map(|frames| self.body(frames.body));
            found.push((body, node));
        }
        found
    }

    /// The places whose outputs a node that was asked for reads, each with all that leads to it and itself; and the node around
    /// it, whose frames are opened only after all that leads to that. What was asked for too runs, and is none.
    fn needs(&self, node: &NodePath) -> Vec<(NodePath, BTreeSet<NodePath>)> {
        let read = self.reads(node).into_iter().map(|read| {
            let before = self.before(&read).into_iter().chain([read.clone()]).collect();
            (read, before)
        });
        let around = node.owner().map(|owner| {
            let before = self.before(&owner).into_iter().collect();
            (owner, before)
        });
        read.chain(around).filter(|(needs, _)| !Selected::of(&self.only, needs).is_asked_for()).collect()
    }

    /// The places that lead to a node by edges, those that lead to a node around it included.
    fn before(&self, place: &NodePath) -> Vec<NodePath> {
        let mut found = Vec::new();
        let mut prefix = String::new();
        for (body, node) in self.bodies_of(place) {
            let mut seen = BTreeSet::new();
            let mut open = vec![node];
            while let Some(node) = open.pop() {
                for edge in &body.node(node).incoming {
                    let from = body.edge(*edge).from;
                    if seen.insert(from) {
                        open.push(from);
                        found.push(NodePath::new(&format!("{prefix}{}", body.node(from).id)));
                    }
                }
            }
            prefix = format!("{prefix}{}/", body.node(node).id);
        }
        found
    }

    /// The places of the nodes whose outputs a node reads, itself and what runs in its frames.
    fn reads(&self, place: &NodePath) -> Vec<NodePath> {
        let way = self.bodies_of(place);
        let Some((body, node)) = way.last() else { return Vec::new() };
        let mut reads = BTreeSet::new();
        self.add_reads(body.node(*node), 0, &mut Vec::new(), &mut reads);
        let session = body.node(*node).session.map(|session| (session.depth, session.node));
        reads.extend(session.filter(|session| *session != (0, *node)));
        let found = reads.into_iter().filter_map(|(further_out, read)| {
            let at = way.len().checked_sub(1 + further_out as usize)?;
            let parts = way[..at].iter().map(|(body, node)| &body.node(*node).id);
            let parts: Vec<&str> = parts.chain([&way[at].0.node(read).id]).map(|id| id.as_str()).collect();
            Some(NodePath::new(&parts.join("/")))
        });
        found.filter(|read| read != place).collect()
    }

    /// Adds what a node reads of nodes further out than `depth` bodies around it.
    fn add_reads(
        &self,
        node: &Node,
        depth: u32,
        around: &mut Vec<BodyIx>,
        reads: &mut BTreeSet<(u32, NodeIx)>,
    ) {
        let mut add = |nodes: Vec<(u32, NodeIx)>, depth: u32| {
            reads.extend(nodes.into_iter().filter_map(|(out, node)| Some((out.checked_sub(depth)?, node))));
        };
        add(node.input.nodes(), depth);
        let Some(frames) = &node.frames else { return };
        match &frames.kind {
            FramesKind::Foreach { key: Some(key), .. } => add(key.nodes(), depth + 1),
            FramesKind::Loop { while_holds, until, .. } => {
                let conditions = while_holds.iter().chain(until);
                conditions.for_each(|condition| add(condition.nodes(), depth + 1));
            }
            FramesKind::Foreach { .. } | FramesKind::Subflow { .. } | FramesKind::Pack => {}
        }
        if around.contains(&frames.body) {
            return;
        }
        let body = self.body(frames.body);
        body.outputs.iter().for_each(|outputs| add(outputs.nodes(), depth + 1));
        let conditions = body.edges.iter().filter_map(|edge| edge.when.as_ref());
        let conditions = conditions.chain(body.nodes.iter().filter_map(|node| node.when.as_ref()));
        conditions.for_each(|condition| add(condition.nodes(), depth + 1));
        around.push(frames.body);
        body.nodes.iter().for_each(|inner| self.add_reads(inner, depth + 1, around, reads));
        around.pop();
    }
}

/// Whether a node of this kind is skipped if it was not asked for and is not reused.
pub(super) fn is_left_out(
    selected: Selected,
    kind: NodeKind,
    can_reuse_frames: impl FnOnce() -> bool,
) -> bool {
    selected == Selected::No && (kind != NodeKind::Frames || !can_reuse_frames())
}

impl Reusable {
    /// Makes a node run again, from this pass on, with all that runs in its frames, whatever it has done. All its
    /// successors run again too.
    pub fn run_again(&mut self, place: NodePath) {
        self.also_again.extend(self.again.replace(place));
    }

    /// The places that run again.
    pub(super) fn again(&self) -> impl Iterator<Item = &NodePath> {
        self.again.iter().chain(&self.also_again)
    }

    /// Whether a task runs again because it was asked for.
    pub(super) fn runs_again(&self, path: &NodePath) -> bool {
        self.again().any(|again| runs_again(path, again))
    }

    /// Whether a task runs again because it was asked for, or something in its frames was.
    pub(super) fn runs_again_around(&self, path: &NodePath) -> bool {
        // Of a node around a place only that itself counts, and not what else runs in its frames.
        let is_around =
            |owner: NodePath| owner.parts().count() == path.parts().count() && runs_again(path, &owner);
        self.runs_again(path)
            || self.again().any(|again| iter::successors(again.owner(), NodePath::owner).any(is_around))
    }

    /// Whether a place that runs again is that of a task, or in its frames.
    pub(super) fn is_around_again(&self, path: &NodePath) -> bool {
        self.runs_again(path) || self.runs_again_within(path)
    }

    /// Whether something runs again in the frames of a task, or it does so itself.
    pub(super) fn runs_again_within(&self, path: &NodePath) -> bool {
        let place = path.place();
        self.again().any(|again| again.place().is_within(&place))
            || self.tried_again.iter().any(|tried| tried.is_within(&place))
    }

    /// Has all tried again that failed and after which the session went on, as deep in its frames as it is known. What a later
    /// pass or iteration has taken the place of is left.
    pub(crate) fn try_failures_again(&mut self, graph: &Graph) {
        let mut newest: BTreeMap<String, u32> = BTreeMap::new();
        for (before, number) in self.tasks.keys().flat_map(|path| passes(graph, path)) {
            let known = newest.entry(before).or_default();
            *known = number.max(*known);
        }
        let is_newest =
            |path: &NodePath| passes(graph, path).iter().all(|(before, number)| newest[before] == *number);
        let known = || self.tasks.iter().filter(|(path, _)| is_newest(path));
        let failed = known().filter(|(path, task)| task.final_error().is_some() && self.went_on_after(path));
        let mut again: BTreeSet<NodePath> = failed.map(|(path, _)| path.clone()).collect();
        let nodes = self
            .handled_failures
            .iter()
            .filter(|end| !end.as_str().ends_with(']'))
            .map(|end| (end.clone(), None));
        let items = known().flat_map(|(path, task)| {
            let output = task.output.as_ref().filter(|_| graph.is_foreach(&path.place()));
            let items: Vec<NodePath> = output.map(|output| failed_items(path, output)).unwrap_or_default();
            items.into_iter().map(move |item| (item, Some(path.clone())))
        });
        let ends: Vec<(NodePath, Option<NodePath>)> = nodes.chain(items).collect();
        let cut: Vec<NodePath> =
            known().filter(|(_, task)| task.was_cut()).map(|(path, _)| path.clone()).collect();
        let mut whole = Vec::new();
        for (end, foreach) in ends {
            if again.iter().any(|path| path.is_within(&end)) {
                continue;
            }
            // An item whose time or budget was over has cut what was at work in it.
            let mut cut = cut.iter().filter(|path| path.is_within(&end)).cloned().peekable();
            match (cut.peek(), foreach) {
                (Some(_), _) => again.extend(cut),
                // It failed itself, by its budget or what it gives. It is entered again, for what did not run in it.
                (None, Some(foreach)) => drop(again.insert(foreach)),
                (None, None) => whole.push(end),
            }
        }
        self.tried_again.extend(again.iter().map(NodePath::place));
        for path in &again {
            let task = self.tasks.get_mut(path);
            task.into_iter().for_each(|task| task.is_tried_again = true);
        }
        whole.into_iter().for_each(|place| self.run_again(place));
    }

    /// Whether a foreach is entered again whose items have failed themselves: of the same values it may give something else.
    pub(super) fn enters_again(&self) -> bool {
        self.tasks.values().any(|task| task.is_tried_again && task.output.is_some())
    }

    /// Whether anything runs again that had ended.
    pub fn has_anything_again(&self) -> bool {
        self.again.is_some() || !self.tried_again.is_empty()
    }
}

/// Each pass and each iteration of a loop on the way to a node: what comes before it in the path, and its number.
fn passes(graph: &Graph, path: &NodePath) -> Vec<(String, u32)> {
    let (mut found, mut before, mut place) = (Vec::new(), String::new(), String::new());
    for part in path.parts() {
        let slash = if place.is_empty() { "" } else { "/" };
        place += &format!("{slash}{}", part.node);
        before += &format!("{slash}{}", part.node);
        found.push((before.clone(), part.pass));
        before += &format!("#{}", part.pass);
        if let Some(index) = part.index {
            let around = graph.find_place(&NodePath::new(&place)).ok();
            let frames = around.and_then(|node| node.frames.as_deref());
            if frames.is_some_and(|frames| matches!(frames.kind, FramesKind::Loop { .. })) {
                found.push((format!("{before}["), index));
            }
            before += &format!("[{index}]");
        }
    }
    found
}
