//! Changes to a tree, and trees made of parts of others. What is changed is copied first: an alias shares its row with
//! what it names, and only the one of them is meant.

use serde_json::{Number, Value};
use smol_str::SmolStr;

use super::tree::{Kept, Layout, Node, Pair, Part, Tree, Yaml, count};
use crate::diagnostic::Span;

/// Where a value is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Root,
    Item(u32),
    Value(u32),
}

impl Node {
    /// A text.
    pub(crate) fn text(span: Span, layout: Layout, text: &str) -> Self {
        Self { span, layout, kept: Kept::Text(text.into()) }
    }

    /// A number.
    pub(crate) fn number(span: Span, number: Number) -> Self {
        Self { span, layout: Layout::Loose, kept: Kept::Number(number) }
    }

    /// A value in which nothing is bound.
    pub(crate) fn json(span: Span, value: Value) -> Self {
        Self { span, layout: Layout::Loose, kept: Kept::Json(value.into()) }
    }

    /// A mapping without keys.
    pub(crate) fn empty(span: Span) -> Self {
        Self { span, layout: Layout::Loose, kept: Kept::Map(Part { first: 0, count: 0 }) }
    }
}

impl Tree {
    /// A tree of one value.
    pub(crate) fn of(root: Node) -> Self {
        Self { items: Vec::new(), pairs: Vec::new(), root }
    }

    /// A value and all that it holds, as a tree of their own.
    pub(crate) fn copy(value: Yaml<'_>) -> Self {
        let mut copy = Self::of(Node::empty(value.span()));
        copy.root = copy.take_in(value);
        copy
    }

    fn take_in(&mut self, value: Yaml<'_>) -> Node {
        let (tree, node) = value.tree_and_node();
        let kept = match &node.kept {
            Kept::List(part) => {
                let items: Vec<_> =
                    part.of(&tree.items).iter().map(|item| self.take_in(tree.value(item))).collect();
                Kept::List(add(&mut self.items, items))
            }
            Kept::Map(part) => {
                let pairs = part.of(&tree.pairs).iter().map(|pair| {
                    let value = self.take_in(tree.value(&pair.value));
                    Pair { key: pair.key.clone(), key_span: pair.key_span, value }
                });
                let pairs: Vec<_> = pairs.collect();
                Kept::Map(add(&mut self.pairs, pairs))
            }
            kept => kept.clone(),
        };
        Node { span: node.span, layout: node.layout, kept }
    }

    /// The value at a place.
    pub(crate) fn at(&self, place: Place) -> Yaml<'_> {
        self.value(match place {
            Place::Root => &self.root,
            Place::Item(at) => &self.items[at as usize],
            Place::Value(at) => &self.pairs[at as usize].value,
        })
    }

    /// The place of the value under a key, to be changed.
    pub(crate) fn enter(&mut self, map: Place, key: &str) -> Option<Place> {
        let part = self.own_pairs(map, |_| true)?;
        let at = part.of(&self.pairs).iter().position(|pair| pair.key == key)?;
        Some(Place::Value(part.first + count(at)))
    }

    /// The place of an item of a list, to be changed.
    pub(crate) fn enter_item(&mut self, list: Place, at: usize) -> Option<Place> {
        let Kept::List(part) = self.node(list).kept else { return None };
        let items = part.of(&self.items).to_vec();
        let part = add(&mut self.items, items);
        self.node(list).kept = Kept::List(part);
        (count(at) < part.count).then(|| Place::Item(part.first + count(at)))
    }

    /// Puts a value under a key, in place of what stands there, if there is a mapping to put it in.
    pub(crate) fn put(&mut self, map: Place, key: &str, key_span: Span, value: Node) {
        if let Some(Place::Value(at)) = self.enter(map, key) {
            self.pairs[at as usize].value = value;
        } else if let Kept::Map(Part { first, count }) = self.node(map).kept {
            // `enter` has left the mapping's row at the end.
            self.pairs.push(Pair { key: SmolStr::new(key), key_span, value });
            self.node(map).kept = Kept::Map(Part { first, count: count + 1 });
        }
    }

    /// Takes a key out of a mapping.
    pub(crate) fn remove(&mut self, map: Place, key: &str) {
        self.own_pairs(map, |pair| pair.key != key);
    }

    /// Copies a mapping's row to the end, as far as it is to be kept.
    fn own_pairs(&mut self, map: Place, keep: impl Fn(&Pair) -> bool) -> Option<Part> {
        let Kept::Map(part) = self.node(map).kept else { return None };
        let pairs: Vec<_> = part.of(&self.pairs).iter().filter(|pair| keep(pair)).cloned().collect();
        let part = add(&mut self.pairs, pairs);
        self.node(map).kept = Kept::Map(part);
        Some(part)
    }

    fn node(&mut self, place: Place) -> &mut Node {
        match place {
            Place::Root => &mut self.root,
            Place::Item(at) => &mut self.items[at as usize],
            Place::Value(at) => &mut self.pairs[at as usize].value,
        }
    }
}

/// Puts a row at the end.
pub(super) fn add<T>(all: &mut Vec<T>, row: impl IntoIterator<Item = T>) -> Part {
    let first = all.len();
    all.extend(row);
    Part { first: count(first), count: count(all.len() - first) }
}
