//! The tree itself: its values lie side by side in two lists, so that a large file is read with few trips to the heap,
//! and its room goes back in one piece. Changing it is left to `edit`.

use serde_json::{Map, Number, Value};
use smol_str::SmolStr;

use crate::{
    diagnostic::{Position, Span},
    spec::Text,
};

/// The values of a document.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// The items of all lists, each list's in a row.
    pub(super) items: Vec<Node>,
    /// The keys and values of all mappings, each mapping's in a row.
    pub(super) pairs: Vec<Pair>,
    pub(super) root: Node,
}

/// A value as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) layout: Layout,
    pub(super) kept: Kept,
}

/// What a value is. There is one for each value of a file, so it is kept small, and short texts take no room of their own.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    Null,
    Bool(bool),
    Number(Number),
    Text(SmolStr),
    List(Part),
    Map(Part),
    Json(Box<Value>),
}

/// A row of items or of pairs. An alias has the row of what it names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) first: u32,
    pub(super) count: u32,
}

impl Part {
    pub(super) fn of<T>(self, all: &[T]) -> &[T] {
        let first = self.first as usize;
        &all[first..first + self.count as usize]
    }
}

/// A key and its value as they are kept.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) key: SmolStr,
    pub(super) key_span: Span,
    pub(super) value: Node,
}

// Texts know their own short form by a byte that says so, and there the other kinds find room for their names.
const _: () = assert!(size_of::<Node>() <= 56, "a value of a file has grown");

/// How the text of a scalar lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// On one line, as it is, from this many characters after the start.
    Inline(u32),
    /// Line by line, from this line on, each after this many characters.
    Block(u32, u32),
    /// Folded or escaped: only the start is known.
    Loose,
}

/// A value and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yaml<'t> {
    tree: &'t Tree,
    node: &'t Node,
}

/// What a value is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'t> {
    Null,
    Bool(bool),
    Number(&'t Number),
    Text(&'t str),
    List(Items<'t>),
    Map(Entries<'t>),
    /// A value drawn in from a file, in which nothing is bound.
    Json(&'t Value),
}

/// The items of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items<'t> {
    tree: &'t Tree,
    nodes: &'t [Node],
}

/// The keys and values of a mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries<'t> {
    tree: &'t Tree,
    pairs: &'t [Pair],
}

/// A key and its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'t> {
    pub(crate) key: &'t str,
    pub(crate) key_span: Span,
    pub(crate) value: Yaml<'t>,
}

impl Tree {
    /// The value that holds all others.
    pub(crate) fn root(&self) -> Yaml<'_> {
        self.value(&self.root)
    }

    pub(super) fn value<'t>(&'t self, node: &'t Node) -> Yaml<'t> {
        Yaml { tree: self, node }
    }
}

impl<'t> Yaml<'t> {
    pub(crate) fn span(self) -> Span {
        self.node.span
    }

    #[inline]
    pub(crate) fn data(self) -> Data<'t> {
        let tree = self.tree;
        match &self.node.kept {
            Kept::Null => Data::Null,
            Kept::Bool(held) => Data::Bool(*held),
            Kept::Number(number) => Data::Number(number),
            Kept::Text(text) => Data::Text(text),
            Kept::List(part) => Data::List(Items { tree, nodes: part.of(&tree.items) }),
            Kept::Map(part) => Data::Map(Entries { tree, pairs: part.of(&tree.pairs) }),
            Kept::Json(value) => Data::Json(value),
        }
    }

    /// The value under a key, if this is a mapping that has it.
    pub(crate) fn get(self, key: &str) -> Option<Self> {
        self.entry(key).map(|entry| entry.value)
    }

    /// The key and its value, if this is a mapping that has it.
    pub(crate) fn entry(self, key: &str) -> Option<Entry<'t>> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The keys and values, none if this is no mapping.
    pub(crate) fn entries(self) -> Entries<'t> {
        match self.data() {
            Data::Map(entries) => entries,
            _ => Entries { tree: self.tree, pairs: &[] },
        }
    }

    /// The items, none if this is no list.
    pub(crate) fn items(self) -> Items<'t> {
        match self.data() {
            Data::List(items) => items,
            _ => Items { tree: self.tree, nodes: &[] },
        }
    }

    /// The text, if this is one.
    pub(crate) fn text(self) -> Option<&'t str> {
        match &self.node.kept {
            Kept::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text and its place, if this is one.
    pub(crate) fn placed_text(self) -> Option<Text<'t>> {
        Some((self.text()?, self.span()))
    }

    /// The value as JSON.
    pub(crate) fn json(self) -> Value {
        match self.data() {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(value),
            Data::Number(value) => Value::Number(value.clone()),
            Data::Text(value) => Value::String(value.to_owned()),
            Data::List(items) => Value::Array(items.iter().map(Self::json).collect()),
            Data::Map(entries) => Value::Object(object(entries)),
            Data::Json(value) => value.clone(),
        }
    }

    /// What it is, for a message.
    pub(crate) fn kind(self) -> &'static str {
        match self.data() {
            Data::Null | Data::Json(Value::Null) => "nothing",
            Data::Bool(_) | Data::Json(Value::Bool(_)) => "true or false",
            Data::Number(_) | Data::Json(Value::Number(_)) => "a number",
            Data::Text(_) | Data::Json(Value::String(_)) => "a text",
            Data::List(_) | Data::Json(Value::Array(_)) => "a list",
            Data::Map(_) | Data::Json(Value::Object(_)) => "a mapping",
        }
    }

    /// The place of a byte of the text.
    pub(crate) fn place(self, offset: usize) -> Span {
        let span = self.span();
        let Some(text) = self.text() else { return span };
        let before = text.get(..offset).unwrap_or_default();
        let line = count(before.matches('\n').count());
        let column = count(before.rsplit('\n').next().unwrap_or_default().chars().count());
        match self.node.layout {
            Layout::Inline(skip) if line == 0 => {
                let start = Position { column: span.start.column + skip + column, ..span.start };
                Span { start, ..span }
            }
            Layout::Block(first, indent) => Span::at(span.source, first + line, indent + column + 1),
            _ => span,
        }
    }

    pub(super) fn tree_and_node(self) -> (&'t Tree, &'t Node) {
        (self.tree, self.node)
    }
}

impl<'t> Items<'t> {
    pub(crate) fn len(self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.nodes.is_empty()
    }

    pub(crate) fn iter(self) -> impl ExactSizeIterator<Item = Yaml<'t>> + Clone {
        self.nodes.iter().map(move |node| self.tree.value(node))
    }

    pub(crate) fn get(self, at: usize) -> Option<Yaml<'t>> {
        self.nodes.get(at).map(|node| self.tree.value(node))
    }
}

impl<'t> Entries<'t> {
    pub(crate) fn iter(self) -> impl ExactSizeIterator<Item = Entry<'t>> + Clone {
        self.pairs.iter().map(move |pair| self.entry(pair))
    }

    pub(crate) fn get(self, at: usize) -> Option<Entry<'t>> {
        self.pairs.get(at).map(|pair| self.entry(pair))
    }

    pub(crate) fn len(self) -> usize {
        self.pairs.len()
    }

    fn entry(self, pair: &'t Pair) -> Entry<'t> {
        Entry { key: &pair.key, key_span: pair.key_span, value: self.tree.value(&pair.value) }
    }
}

/// A mapping as a JSON object.
pub(crate) fn object(entries: Entries<'_>) -> Map<String, Value> {
    let mut map = Map::new();
    // Collecting them would sort them first, which costs more than putting a few in place.
    for entry in entries.iter() {
        map.insert(entry.key.to_owned(), entry.value.json());
    }
    map
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
