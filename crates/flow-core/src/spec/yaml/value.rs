//! A value of a YAML file with its place. Lists and mappings are shared: an alias is a clone of what it names, and
//! changing one of the two copies it first.

use std::{ops::Range, sync::Arc};

use serde_json::{Map, Number, Value};

use crate::{
    diagnostic::{Position, SourceSpan},
    spec::Text,
};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Yaml {
    pub(crate) span: SourceSpan,
    pub(crate) layout: Layout,
    pub(crate) data: Data,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Arc<Vec<Yaml>>),
    Map(Arc<Vec<Entry>>),
    /// A value from another file or from a change for one run: its strings are not templates.
    Json(Arc<Value>),
}

/// A key of a mapping with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_span: SourceSpan,
    pub(crate) value: Yaml,
}

/// The layout of a scalar in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// On one line, as it is, from this many characters after the start.
    Inline(u32),
    /// Line by line, from this line on, each after this many characters.
    Block(u32, u32),
    /// Folded: these parts of it are in the file as they are.
    Folded(Arc<[TextPart]>),
    /// Escaped, or from elsewhere: only the start is known.
    Loose,
}

/// A part of a text that is on one line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextPart {
    /// Its bytes in the text.
    pub(super) bytes: Range<usize>,
    /// Where it begins.
    pub(super) start: Position,
}

impl Yaml {
    pub(crate) fn new(span: SourceSpan, data: Data) -> Self {
        Self { span, layout: Layout::Loose, data }
    }

    /// A value that was given as JSON, all of it in one place. Its strings may be templates.
    pub(crate) fn from_json(span: SourceSpan, value: &Value) -> Self {
        let data = match value {
            Value::Null => Data::Null,
            Value::Bool(value) => Data::Bool(*value),
            Value::Number(value) => Data::Number(value.clone()),
            Value::String(value) => Data::Text(value.clone()),
            Value::Array(items) => {
                Data::List(Arc::new(items.iter().map(|item| Self::from_json(span, item)).collect()))
            }
            Value::Object(map) => {
                let entry = |(key, value): (&String, &Value)| Entry {
                    key: key.clone(),
                    key_span: span,
                    value: Self::from_json(span, value),
                };
                Data::Map(Arc::new(map.iter().map(entry).collect()))
            }
        };
        Self::new(span, data)
    }

    /// A mapping without keys.
    pub(crate) fn empty(span: SourceSpan) -> Self {
        Self::new(span, Data::Map(Arc::default()))
    }

    /// The value under a key, if this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The key and its value, if this is a mapping that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The keys and values; none if this is not a mapping.
    pub(crate) fn entries(&self) -> &[Entry] {
        if let Data::Map(entries) = &self.data { entries } else { &[] }
    }

    /// The value at a JSON pointer, or the nearest one above that has a place in the file.
    pub(crate) fn at(&self, pointer: &str) -> Option<&Self> {
        let mut value = self;
        for part in pointer_parts(pointer) {
            value = match &value.data {
                Data::Map(_) => value.get(&part)?,
                Data::List(items) => items.get(part.parse::<usize>().ok()?)?,
                _ => return Some(value),
            };
        }
        Some(value)
    }

    /// The place of what is at a JSON pointer, or that of the whole.
    pub(crate) fn span_at(&self, pointer: &str) -> SourceSpan {
        self.at(pointer).map_or(self.span, |value| value.span)
    }

    /// The items; none if this is not a list.
    pub(crate) fn items(&self) -> &[Self] {
        if let Data::List(items) = &self.data { items } else { &[] }
    }

    /// The text, if this is a string.
    pub(crate) fn text(&self) -> Option<&str> {
        if let Data::Text(text) = &self.data { Some(text) } else { None }
    }

    /// The text and its place, if this is a string.
    pub(crate) fn placed_text(&self) -> Option<Text<'_>> {
        Some((self.text()?, self.span))
    }

    /// The value as JSON.
    pub(crate) fn json(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(value) => Value::Number(value.clone()),
            Data::Text(value) => Value::String(value.clone()),
            Data::List(items) => Value::Array(items.iter().map(Self::json).collect()),
            Data::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
            Data::Json(value) => Value::clone(value),
        }
    }

    /// What it is, for a message.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.data {
            Data::Null => "null",
            Data::Bool(_) => "true or false",
            Data::Number(_) => "a number",
            Data::Text(_) => "a string",
            Data::List(_) => "a list",
            Data::Map(_) => "a mapping",
            Data::Json(value) => match &**value {
                Value::Null => "null",
                Value::Bool(_) => "true or false",
                Value::Number(_) => "a number",
                Value::String(_) => "a string",
                Value::Array(_) => "a list",
                Value::Object(_) => "a mapping",
            },
        }
    }

    /// The place of a byte of the text.
    pub(crate) fn place(&self, offset: usize) -> SourceSpan {
        let span = self.span;
        let Some(text) = self.text() else { return span };
        let before = text.get(..offset).unwrap_or_default();
        let line = count(before.matches('\n').count());
        let column = count(before.rsplit('\n').next().unwrap_or_default().chars().count());
        match &self.layout {
            Layout::Inline(skip) if line == 0 => {
                let start = Position { column: span.start.column + skip + column, ..span.start };
                SourceSpan { start, ..span }
            }
            Layout::Block(first, indent) => SourceSpan::at(span.source, first + line, indent + column + 1),
            Layout::Folded(parts) => part_of(parts, offset).map_or(span, |part| {
                let before = text.get(part.bytes.start..offset).unwrap_or_default();
                SourceSpan::at(
                    span.source,
                    part.start.line,
                    part.start.column + count(before.chars().count()),
                )
            }),
            _ => span,
        }
    }

    /// The place of a part of the text, from this byte on.
    pub(crate) fn range(&self, offset: usize, len: usize) -> SourceSpan {
        let from = self.place(offset);
        let part = self.text().and_then(|text| text.get(offset..offset.checked_add(len)?));
        let is_in_one_line = match &self.layout {
            Layout::Folded(parts) => {
                part_of(parts, offset).is_some_and(|part| offset + len <= part.bytes.end)
            }
            layout => *layout != Layout::Loose,
        };
        let part = part.filter(|part| is_in_one_line && !part.contains('\n'));
        let letters = part.map(|part| count(part.chars().count()));
        let end = |letters| Position { column: from.start.column + letters, ..from.start };
        letters.map_or(from, |letters| SourceSpan { end: end(letters), ..from })
    }

    /// The value under a key, to change it.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Data::Map(entries) = &mut self.data else { return None };
        let entry = Arc::make_mut(entries).iter_mut().find(|entry| entry.key == key)?;
        Some(&mut entry.value)
    }

    /// The mapping under a key, to change it; if there is nothing, one is added. Nothing if there is something else.
    pub(crate) fn mapping_mut(&mut self, key: &str, span: SourceSpan) -> Option<&mut Self> {
        if self.get(key).is_none_or(|value| matches!(value.data, Data::Null)) {
            self.set(key, span, Self::empty(span));
        }
        self.get_mut(key).filter(|inner| matches!(inner.data, Data::Map(_)))
    }

    /// An item of a list, to change it.
    pub(crate) fn item_mut(&mut self, at: usize) -> Option<&mut Self> {
        let Data::List(items) = &mut self.data else { return None };
        Arc::make_mut(items).get_mut(at)
    }

    /// Sets the value under a key if this is a mapping; the key is added if it is not there.
    pub(crate) fn set(&mut self, key: &str, key_span: SourceSpan, value: Self) {
        if let Some(old) = self.get_mut(key) {
            *old = value;
        } else if let Data::Map(entries) = &mut self.data {
            Arc::make_mut(entries).push(Entry { key: key.to_owned(), key_span, value });
        }
    }

    /// Removes a key if this is a mapping that has it.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Data::Map(entries) = &mut self.data {
            Arc::make_mut(entries).retain(|entry| entry.key != key);
        }
    }
}

/// The parts of a JSON pointer.
pub(crate) fn pointer_parts(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~"))
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The part of a text that has this byte.
fn part_of(parts: &[TextPart], offset: usize) -> Option<&TextPart> {
    parts.iter().find(|part| part.bytes.contains(&offset))
}
