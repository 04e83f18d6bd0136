//! Where tasks and items are in the session that a run reuses: an item is found by its key, or without keys by itself.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hash,
};

use inspan_protocol::NodePath;
use serde_json::Value;

use super::{Reusable, Run};
use crate::{HumanInput, graph::TaskRef, state::frame_prefix};

/// Which item of an earlier list counts as an item of the list now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemMatch {
    /// An equal one alone: a budget is that of this item, and what a person said was about it.
    Same,
    /// Else the one that it replaced, whose work may be reused if nothing that its nodes see has changed.
    SameOrReplaced,
}

/// Where an item was in the earlier list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemBefore {
    At(u32),
    /// It is new, and the one that was at its index is gone.
    Replaced,
    New,
}

impl Run {
    /// Finds the items of each node that runs frames of a list in the list of the earlier session.
    pub(super) fn find_all_items(&mut self) {
        let owners = self.facts.tasks().filter(|(_, node)| node.frames.is_some());
        owners.map(|(task, _)| task).collect::<Vec<_>>().into_iter().for_each(|owner| self.find_items(owner));
    }

    /// Finds the items of one node, so that not each item is compared with all of them.
    pub(super) fn find_items(&mut self, owner: TaskRef) {
        self.items_before.remove(&owner);
        let Some(reusable) = &self.reusable else { return };
        let Some(around) = self.path_before(reusable, owner, ItemMatch::SameOrReplaced) else { return };
        let set = self.facts.node(owner).frames.as_deref();
        let items = set.and_then(|set| set.items.as_ref()?.as_array());
        let keys = set.map_or(&[][..], |set| &set.keys);
        let found =
            match (keys, reusable.keys.get(&around), items, reusable.items.get(&around)) {
                ([_, ..], Some(before), ..) => found_again(keys, before, |_| ItemBefore::New),
                (_, _, Some(now), Some(before)) => {
                    let Some(before) = before.as_array() else { return };
                    let kept: HashSet<&Value> = now.iter().collect();
                    let is_replaced = |at: usize| before.get(at).is_some_and(|item| !kept.contains(item));
                    found_again(now, before, |at| {
                        if is_replaced(at) { ItemBefore::Replaced } else { ItemBefore::New }
                    })
                }
                _ => return,
            };
        self.items_before.insert(owner, found);
    }

    /// What the earlier session has left, and the place of a task in it.
    pub(super) fn before(&self, task: TaskRef) -> Option<(&Reusable, NodePath)> {
        let is_question = &*self.facts.spec(&self.graph, task).node_type == HumanInput::NAME;
        self.before_as(task, if is_question { ItemMatch::Same } else { ItemMatch::SameOrReplaced })
    }

    pub(super) fn before_as(&self, task: TaskRef, items: ItemMatch) -> Option<(&Reusable, NodePath)> {
        let reusable = self.reusable.as_ref()?;
        Some((reusable, self.path_before(reusable, task, items)?))
    }

    /// The place of a task in the earlier session.
    pub(super) fn path_before(&self, reusable: &Reusable, at: TaskRef, items: ItemMatch) -> Option<NodePath> {
        let frame = &self.facts.frames[at.frame];
        let (id, pass) = (&self.facts.spec(&self.graph, at).id, self.facts.node(at).pass);
        let prefix = match frame.owner {
            Some(owner) => self.prefix_before(reusable, owner, frame.index, items)?,
            None => String::new(),
        };
        Some(NodePath::in_frame(&prefix, id, pass))
    }

    /// What the paths of a frame's nodes began with in the earlier session. An item is found by its key, or without keys
    /// by itself.
    pub(super) fn prefix_before(
        &self,
        reusable: &Reusable,
        owner: TaskRef,
        index: u32,
        matches: ItemMatch,
    ) -> Option<String> {
        let around = self.path_before(reusable, owner, matches)?;
        let kind = &self.facts.spec(&self.graph, owner).frames.as_deref()?.kind;
        let found = self.items_before.get(&owner).map(|found| found.get(index as usize).copied());
        let before = match found {
            Some(Some(ItemBefore::At(before))) => before,
            Some(Some(ItemBefore::Replaced)) if matches == ItemMatch::SameOrReplaced => index,
            Some(_) => return None,
            None => index,
        };
        Some(frame_prefix(&around, kind, before))
    }
}

/// Where each item was in the earlier list; of equal ones the first was the first.
fn found_again<T: Eq + Hash>(now: &[T], before: &[T], new: impl Fn(usize) -> ItemBefore) -> Vec<ItemBefore> {
    let mut places: HashMap<&T, VecDeque<u32>> = HashMap::new();
    (0..).zip(before).for_each(|(at, item)| places.entry(item).or_default().push_back(at));
    let find = |(at, item)| match places.get_mut(item).and_then(VecDeque::pop_front) {
        Some(place) => ItemBefore::At(place),
        None => new(at),
    };
    now.iter().enumerate().map(find).collect()
}
