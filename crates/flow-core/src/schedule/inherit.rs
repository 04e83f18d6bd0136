//! Work of the parent session that a session could reuse but did not reach: the session that continues it inherits
//! this work.

use std::collections::{BTreeMap, BTreeSet};

use inspan_protocol::NodePath;

use super::{
    Reusable, Run,
    items::{ItemBefore, ItemMatch},
};
use crate::{
    HumanInput,
    graph::{FrameIx, FramesKind, TaskRef},
    node::NodeKind,
    state::frame_prefix,
};

/// The frames of each node that have begun.
pub(super) type Begun = BTreeMap<NodePath, BTreeSet<u32>>;

impl Reusable {
    /// Adds what nodes of a frame have left in the session before and could still reuse: they have not begun, and
    /// nothing that they follow was really run.
    pub(super) fn inherit(&mut self, run: &Run, frame: FrameIx, begun: &Begun) {
        let Some(from) = run.reusable.as_deref() else { return };
        for (task, _) in run.facts.frames[frame].tasks() {
            let Some(before) = run.path_before(from, task, ItemMatch::SameOrReplaced) else { continue };
            if run.follows_work(task) {
                continue;
            }
            let path = run.facts.path(&run.graph, task);
            let items = match run.path_before(from, task, ItemMatch::Same) {
                Some(_) => ItemMatch::Same,
                None => ItemMatch::SameOrReplaced,
            };
            if !self.has(&path) {
                for pass in before.pass().. {
                    let before = before.with_pass(pass);
                    if !from.has(&before) {
                        break;
                    }
                    self.copy(from, &before, &path.with_pass(pass), items);
                }
            } else if run.facts.spec(&run.graph, task).kind == NodeKind::Frames {
                copy_entry(&from.keys, &before, &mut self.keys, &path);
                copy_entry(&from.items, &before, &mut self.items, &path);
                self.inherit_frames(run, from, task, begun.get(&path));
            }
        }
    }

    /// The same of the frames of a node that have not begun.
    fn inherit_frames(&mut self, run: &Run, from: &Reusable, owner: TaskRef, begun: Option<&BTreeSet<u32>>) {
        let Some(frames) = run.facts.spec(&run.graph, owner).frames.as_deref() else { return };
        // A pass follows those before it.
        if matches!(frames.kind, FramesKind::Loop { .. }) && run.facts.node(owner).worked {
            return;
        }
        let Some(before) = run.path_before(from, owner, ItemMatch::SameOrReplaced) else { return };
        let path = run.facts.path(&run.graph, owner);
        let indices: Vec<u32> = match (&frames.kind, run.items_before.get(&owner)) {
            (FramesKind::Subflow { .. } | FramesKind::Pack, _) => vec![0],
            (_, Some(items)) => {
                (0..).zip(items).filter(|(_, at)| **at != ItemBefore::New).map(|(at, _)| at).collect()
            }
            (_, None) => from.frames_of(&before),
        };
        let is_new = |index: &u32| begun.is_none_or(|begun| !begun.contains(index));
        for index in indices.into_iter().filter(is_new) {
            let to = frame_prefix(&path, &frames.kind, index);
            let same = run.prefix_before(from, owner, index, ItemMatch::Same);
            if let Some(before) = run.prefix_before(from, owner, index, ItemMatch::SameOrReplaced) {
                let items = if same.is_some() { ItemMatch::Same } else { ItemMatch::SameOrReplaced };
                self.copy_within(from, &before, &to, items);
            }
            if let Some(spent) = same.and_then(|before| from.spent_in.get(&before)) {
                self.spent_in.entry(to).or_insert_with(|| spent.clone());
            }
        }
    }

    /// The frames of a node in which something was done.
    fn frames_of(&self, owner: &NodePath) -> Vec<u32> {
        let begins = format!("{owner}[");
        let index = |path: &NodePath| path.as_str().strip_prefix(&begins)?.split(']').next()?.parse().ok();
        let within = self.tasks.range(NodePath::new(&begins)..).map(|(path, _)| path);
        let found: BTreeSet<u32> =
            within.take_while(|path| path.as_str().starts_with(&begins)).filter_map(index).collect();
        found.into_iter().collect()
    }

    /// What a node has left, and all within its frames.
    fn copy(&mut self, from: &Reusable, before: &NodePath, to: &NodePath, items: ItemMatch) {
        self.copy_task(from, before, to, items);
        for next in ["/", "["] {
            self.copy_within(from, &format!("{before}{next}"), &format!("{to}{next}"), items);
        }
    }

    /// What a task has left; without what a person has said, if its item is another one now.
    fn copy_task(&mut self, from: &Reusable, before: &NodePath, to: &NodePath, items: ItemMatch) {
        let Some(task) = from.task(before) else { return };
        copy_entry(&from.keys, before, &mut self.keys, to);
        copy_entry(&from.items, before, &mut self.items, to);
        let is_replaced = items == ItemMatch::SameOrReplaced;
        if self.has(to) || (is_replaced && &*task.node_type == HumanInput::NAME) {
            return;
        }
        let mut copied = task.clone();
        copied.is_of_other_flow |= from.hash != self.hash || from.input != self.input;
        if is_replaced {
            (copied.answered, copied.rerun) = (None, None);
        }
        if copied.is_tried_again {
            self.tried_again.insert(to.place());
        }
        self.inherited.insert(before.clone(), to.clone());
        self.tasks.insert(to.clone(), copied);
    }

    /// All whose path begins so.
    fn copy_within(&mut self, from: &Reusable, before: &str, to: &str, items: ItemMatch) {
        let moved = |path: &str| path.strip_prefix(before).map(|rest| format!("{to}{rest}"));
        for path in from.tasks.range(NodePath::new(before)..).map(|(path, _)| path) {
            let Some(to) = moved(path.as_str()) else { break };
            self.copy_task(from, path, &NodePath::new(&to), items);
        }
        for (prefix, spent) in from.spent_in.range(before.to_owned()..) {
            let Some(to) = moved(prefix) else { break };
            self.spent_in.entry(to).or_insert_with(|| spent.clone());
        }
    }
}

fn copy_entry<V: Clone>(
    from: &BTreeMap<NodePath, V>,
    before: &NodePath,
    into: &mut BTreeMap<NodePath, V>,
    to: &NodePath,
) {
    if let Some(value) = from.get(before) {
        into.entry(to.clone()).or_insert_with(|| value.clone());
    }
}
