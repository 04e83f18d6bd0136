//! YAML as a tree in which every key and value knows its place, with a bound on depth, aliases and size.
//! What the keys mean is left to the rest of `spec`.

mod scalar;
mod tree;

pub(crate) use tree::{Data, Entry, Layout, Yaml};

use rustc_hash::FxHashMap;
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span as Range, Tag};
use smol_str::SmolStr;

use crate::diagnostic::{Code, Position, Problem, Span};

/// How deep values may be nested.
const MAX_DEPTH: usize = 100;
/// How many values a document may have once its aliases are written out.
const MAX_VALUES: usize = 500_000;
/// How many bytes of text it may have then.
const MAX_TEXT: usize = 32 * 1024 * 1024;

/// A document, as far as it could be read.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// The root, if the text is YAML at all.
    pub(crate) root: Option<Yaml>,
    /// What is wrong with the text.
    pub(crate) problems: Vec<Problem>,
}

/// Reads a text that holds one document.
pub(crate) fn parse(text: &str, source: u16) -> Document {
    let mut builder = Builder {
        source,
        stack: Vec::new(),
        items: Vec::new(),
        entries: Vec::new(),
        anchors: FxHashMap::default(),
        root: None,
        problems: Vec::new(),
        values: 0,
        bytes: 0,
        documents: 0,
    };
    for event in Parser::new_from_str(text) {
        let outcome = match event {
            Ok((event, range)) => builder.take(event, range),
            Err(error) => Err(builder.syntax(&error)),
        };
        if let Err(problem) = outcome {
            // Anything after a broken place would be a guess.
            builder.problems.push(*problem);
            return Document { root: None, problems: builder.problems };
        }
    }
    if builder.root.as_ref().is_none_or(|root| matches!(root.data, Data::Null)) {
        let span = Span::at(source, 1, 1);
        builder.problems.push(Problem::error(Code::EmptyFile, span, "the file is empty"));
        builder.root = None;
    }
    Document { root: builder.root, problems: builder.problems }
}

struct Builder {
    source: u16,
    stack: Vec<Frame>,
    /// What the open lists and mappings have so far, the innermost last: each takes its part when it is closed, and no
    /// room that it does not need.
    items: Vec<Yaml>,
    entries: Vec<Entry>,
    anchors: FxHashMap<usize, Anchored>,
    root: Option<Yaml>,
    problems: Vec<Problem>,
    values: usize,
    bytes: usize,
    documents: usize,
}

struct Anchored {
    value: Yaml,
    values: usize,
    bytes: usize,
}

struct Frame {
    span: Span,
    anchor: usize,
    values_before: usize,
    bytes_before: usize,
    open: Open,
}

/// A list or a mapping, and where its part begins.
enum Open {
    List { first: usize },
    Map { first: usize, keys: Keys, key: Option<(SmolStr, Span)> },
}

/// Finds a key that a mapping has already. Most mappings are small, and looking through them is cheaper than
/// keeping an index.
#[derive(Default)]
struct Keys {
    places: FxHashMap<SmolStr, Position>,
    indexed: usize,
}

impl Keys {
    const SMALL: usize = 16;

    fn find(&mut self, key: &str, entries: &[Entry]) -> Option<Position> {
        if entries.len() < Self::SMALL {
            return entries.iter().find(|entry| entry.key == key).map(|entry| entry.key_span.start);
        }
        for entry in &entries[self.indexed..] {
            self.places.entry(entry.key.clone()).or_insert(entry.key_span.start);
        }
        self.indexed = entries.len();
        self.places.get(key).copied()
    }
}

type Step = Result<(), Box<Problem>>;

impl Builder {
    fn take(&mut self, event: Event<'_>, range: Range) -> Step {
        let span = self.span(&range);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "a flow file holds one document, and here another starts";
                    return Err(Box::new(Problem::error(Code::SeveralDocuments, span, message)));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(span, 1, text.len())?;
                let data = scalar::resolve(&text, style, tag.as_deref())
                    .map_err(|message| Box::new(Problem::error(Code::YamlSyntax, span, message)))?;
                let layout = match style {
                    ScalarStyle::Literal => tree::block_layout(&range, &text),
                    _ => tree::inline_layout(&range, &text, style),
                };
                let value = Yaml { span, layout, data };
                self.anchor(anchor, &value, 1, text.len())?;
                self.put(value, matches!(style, ScalarStyle::Plain).then_some(&*text))?;
            }
            Event::Alias(id) => {
                let Some(anchored) = self.anchors.get(&id) else {
                    let message = "an alias cannot stand within the value that it names";
                    return Err(Box::new(Problem::error(Code::YamlSyntax, span, message)));
                };
                let (values, bytes) = (anchored.values, anchored.bytes);
                self.count(span, values, bytes)?;
                let value = self.anchors.get(&id).map(|anchored| anchored.value.clone());
                if let Some(value) = value {
                    self.put(Yaml { span, ..value }, None)?;
                }
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open(span, anchor, tag.as_deref(), Open::List { first: self.items.len() })?
            }
            Event::MappingStart(_, anchor, tag) => {
                let open = Open::Map { first: self.entries.len(), keys: Keys::default(), key: None };
                self.open(span, anchor, tag.as_deref(), open)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span)?,
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, span: Span, anchor: usize, tag: Option<&Tag>, open: Open) -> Step {
        let expected = if matches!(open, Open::List { .. }) { "seq" } else { "map" };
        if let Some(tag) = tag.filter(|tag| tag.core_suffix() != Some(expected)) {
            let message = format!("the tag `{}` has no meaning in a flow", tag.original());
            return Err(Box::new(Problem::error(Code::YamlSyntax, span, message)));
        }
        if self.stack.len() >= MAX_DEPTH {
            let message = format!("values are nested deeper than {MAX_DEPTH} levels");
            return Err(Box::new(Problem::error(Code::TooLarge, span, message)));
        }
        if let Some(Frame { open: Open::Map { key: None, .. }, .. }) = self.stack.last() {
            let message = "a key is a plain text, not a list or a mapping";
            let help = "put a text with braces into quotes: \"{{ … }}\"".to_owned();
            return Err(Box::new(Problem::error(Code::YamlSyntax, span, message).help(help)));
        }
        let (values_before, bytes_before) = (self.values, self.bytes);
        self.count(span, 1, 0)?;
        self.stack.push(Frame { span, anchor, values_before, bytes_before, open });
        Ok(())
    }

    fn close(&mut self, end: Span) -> Step {
        let Some(frame) = self.stack.pop() else { return Ok(()) };
        let data = match frame.open {
            Open::List { first } => Data::List(self.items.drain(first..).collect()),
            Open::Map { first, .. } => Data::Map(tree::merge(self.entries.drain(first..).collect())),
        };
        let span = Span { end: end.end.max(frame.span.start), ..frame.span };
        let value = Yaml { span, layout: Layout::Loose, data };
        let (values, bytes) = (self.values - frame.values_before, self.bytes - frame.bytes_before);
        self.anchor(frame.anchor, &value, values, bytes)?;
        self.put(value, None)
    }

    fn anchor(&mut self, id: usize, value: &Yaml, values: usize, bytes: usize) -> Step {
        if id != 0 {
            self.count(value.span, values, bytes)?;
            self.anchors.insert(id, Anchored { value: value.clone(), values, bytes });
        }
        Ok(())
    }

    /// Puts a finished value where it belongs; `plain` is its text if it was written without quotes.
    fn put(&mut self, value: Yaml, plain: Option<&str>) -> Step {
        match self.stack.last_mut().map(|frame| &mut frame.open) {
            None => self.root = Some(value),
            Some(Open::List { .. }) => self.items.push(value),
            Some(Open::Map { first, keys, key: pending }) => match pending.take() {
                Some((key, key_span)) => self.entries.push(Entry { key, key_span, value }),
                None => {
                    let text = match (plain, value.data) {
                        (Some(plain), _) => plain.into(),
                        (None, Data::Text(text)) => text,
                        _ => {
                            let message = "a key is a plain text, not a list or a mapping";
                            return Err(Box::new(Problem::error(Code::YamlSyntax, value.span, message)));
                        }
                    };
                    if let Some(first) = keys.find(&text, &self.entries[*first..]) {
                        let message = format!(
                            "`{text}` stands twice: first at line {}, column {}",
                            first.line, first.column
                        );
                        self.problems.push(Problem::error(Code::DuplicateKey, value.span, message));
                    }
                    *pending = Some((text, value.span));
                }
            },
        }
        Ok(())
    }

    fn count(&mut self, span: Span, values: usize, bytes: usize) -> Step {
        self.values += values;
        self.bytes += bytes;
        if self.values > MAX_VALUES || self.bytes > MAX_TEXT {
            let message = format!(
                "with its aliases written out the file has more than {MAX_VALUES} values or {} MiB of text",
                MAX_TEXT / (1024 * 1024)
            );
            return Err(Box::new(Problem::error(Code::TooLarge, span, message)));
        }
        Ok(())
    }

    fn span(&self, range: &Range) -> Span {
        let place = |line: usize, column: usize| Position {
            line: u32::try_from(line.max(1)).unwrap_or(u32::MAX),
            column: u32::try_from(column + 1).unwrap_or(u32::MAX),
        };
        Span {
            source: self.source,
            start: place(range.start.line(), range.start.col()),
            end: place(range.end.line(), range.end.col()),
        }
    }

    fn syntax(&self, error: &ScanError) -> Box<Problem> {
        let mark = *error.marker();
        let span = self.span(&Range::new(mark, mark));
        let (code, message) = match error.kind() {
            serde_saphyr::granit_parser::ErrorKind::RecursionLimitExceeded => {
                (Code::TooLarge, "values are nested too deep".to_owned())
            }
            kind => (Code::YamlSyntax, kind.to_string()),
        };
        Box::new(Problem::error(code, span, message))
    }
}
