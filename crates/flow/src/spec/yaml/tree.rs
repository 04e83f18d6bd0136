//! The tree itself, and where within a text value a byte stands in the file.

use serde_json::{Map, Number, Value};
use serde_saphyr::granit_parser::{ScalarStyle, Span as Range};
use smol_str::SmolStr;

use crate::{
    diagnostic::{Position, Span},
    spec::Text,
};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Yaml {
    pub(crate) span: Span,
    pub(crate) layout: Layout,
    pub(crate) data: Data,
}

/// What a value is. There is one for each value of a file, so it is kept small, and short texts take no room of their own.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Null,
    Bool(bool),
    Number(Number),
    Text(SmolStr),
    List(Box<[Yaml]>),
    Map(Box<[Entry]>),
    /// A value drawn in from a file, in which nothing is bound.
    Json(Box<Value>),
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: SmolStr,
    pub(crate) key_span: Span,
    pub(crate) value: Yaml,
}

// Texts know their own short form by a byte that says so, and there the other kinds find room for their names.
const _: () = assert!(size_of::<Yaml>() <= 56, "a value of a file has grown");

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

impl Yaml {
    /// The value under a key, if this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The key and its value, if this is a mapping that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The keys and values, none if this is no mapping.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.data {
            Data::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Adds a key and its value, if this is a mapping.
    pub(crate) fn push(&mut self, entry: Entry) {
        if let Data::Map(entries) = &mut self.data {
            let mut grown = std::mem::take(entries).into_vec();
            grown.push(entry);
            *entries = grown.into();
        }
    }

    /// The text, if this is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text and its place, if this is one.
    pub(crate) fn placed_text(&self) -> Option<Text<'_>> {
        Some((self.text()?, self.span))
    }

    /// The value as JSON.
    pub(crate) fn json(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(value) => Value::Number(value.clone()),
            Data::Text(value) => Value::String(value.to_string()),
            Data::List(items) => Value::Array(items.iter().map(Self::json).collect()),
            Data::Map(entries) => Value::Object(object(entries)),
            Data::Json(value) => Value::clone(value),
        }
    }

    /// What it is, for a message.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.data {
            Data::Null => "nothing",
            Data::Bool(_) => "true or false",
            Data::Number(_) => "a number",
            Data::Text(_) => "a text",
            Data::List(_) => "a list",
            Data::Map(_) => "a mapping",
            Data::Json(value) => match **value {
                Value::Null => "nothing",
                Value::Bool(_) => "true or false",
                Value::Number(_) => "a number",
                Value::String(_) => "a text",
                Value::Array(_) => "a list",
                Value::Object(_) => "a mapping",
            },
        }
    }

    /// The place of a byte of the text.
    pub(crate) fn place(&self, offset: usize) -> Span {
        let Some(text) = self.text() else { return self.span };
        let before = text.get(..offset).unwrap_or_default();
        let line = count(before.matches('\n').count());
        let column = count(before.rsplit('\n').next().unwrap_or_default().chars().count());
        match self.layout {
            Layout::Inline(skip) if line == 0 => {
                let start = Position { column: self.span.start.column + skip + column, ..self.span.start };
                Span { start, ..self.span }
            }
            Layout::Block(first, indent) => Span::at(self.span.source, first + line, indent + column + 1),
            _ => self.span,
        }
    }
}

/// A mapping as a JSON object.
pub(crate) fn object(entries: &[Entry]) -> Map<String, Value> {
    let mut map = Map::new();
    // Collecting them would sort them first, which costs more than putting a few in place.
    for entry in entries {
        map.insert(entry.key.to_string(), entry.value.json());
    }
    map
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Takes in the mappings under `<<`; a key of the mapping itself goes before.
pub(super) fn merge(entries: Box<[Entry]>) -> Box<[Entry]> {
    if !entries.iter().any(|entry| entry.key == "<<") {
        return entries;
    }
    let (merged, mut own): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.key == "<<");
    let sources = merged.into_iter().flat_map(|entry| match entry.value.data {
        Data::List(items) => items.into_vec(),
        data => vec![Yaml { data, ..entry.value }],
    });
    for source in sources {
        if let Data::Map(entries) = source.data {
            for entry in entries {
                if !own.iter().any(|known| known.key == entry.key) {
                    own.push(entry);
                }
            }
        }
    }
    own.into()
}

pub(super) fn inline_layout(range: &Range, text: &str, style: ScalarStyle) -> Layout {
    let skip = match style {
        ScalarStyle::Plain => 0,
        ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 1,
        _ => return Layout::Loose,
    };
    let width = range.end.col().saturating_sub(range.start.col());
    let same_line = range.start.line() == range.end.line();
    if same_line && width == text.chars().count() + 2 * skip {
        Layout::Inline(count(skip))
    } else {
        Layout::Loose
    }
}

/// A literal block starts, as the parser tells it, at its first line that is not blank.
pub(super) fn block_layout(range: &Range, text: &str) -> Layout {
    let blank = text.len() - text.trim_start_matches('\n').len();
    Layout::Block(count(range.start.line().saturating_sub(blank)), count(range.start.col()))
}
