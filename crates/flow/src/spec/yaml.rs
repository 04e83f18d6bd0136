//! YAML as a tree in which every key and value knows its place, with a bound on depth, aliases and size.
//! What the keys mean is left to the rest of `spec`.

mod edit;
mod scalar;
mod tree;

pub(crate) use edit::Place;
pub(crate) use tree::{Data, Entries, Items, Layout, Node, Tree, Yaml};

use std::slice;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span as Range, Tag};
use smol_str::SmolStr;
use std::collections::HashMap as FxHashMap;

use crate::diagnostic::{Code, Position, Problem, Span};
use tree::{Kept, Pair};

/// How deep values may be nested.
const MAX_DEPTH: usize = 100;
/// How many values a document may have once its aliases are written out.
const MAX_VALUES: usize = 500_000;
/// How many bytes of text it may have then.
const MAX_TEXT: usize = 32 * 1024 * 1024;

/// A document, as far as it could be read.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// Its values, if the text is YAML at all.
    pub(crate) tree: Option<Tree>,
    /// What is wrong with the text.
    pub(crate) problems: Vec<Problem>,
}

/// Reads a text that holds one document.
pub(crate) fn parse(text: &str, source: u16) -> Document {
    let mut builder = Builder {
        source,
        stack: Vec::new(),
        items: Vec::new(),
        pairs: Vec::new(),
        tree: Tree::of(Node { span: Span::at(source, 1, 1), layout: Layout::Loose, kept: Kept::Null }),
        anchors: FxHashMap::default(),
        problems: Vec::new(),
        values: 0,
        bytes: 0,
        documents: 0,
    };
    for event in Parser::new_from_str(text) {
        let outcome = match event {
            Ok((event, range)) => builder.take(event, range),
            Err(error) => Err(builder.syntax(&error, text)),
        };
        if let Err(problem) = outcome {
            // Anything after a broken place would be a guess.
            builder.problems.push(*problem);
            return Document { tree: None, problems: builder.problems };
        }
    }
    let is_empty = matches!(builder.tree.root.kept, Kept::Null);
    if is_empty {
        let span = Span::at(source, 1, 1);
        builder.problems.push(Problem::error(Code::EmptyFile, span, "the file is empty"));
    }
    Document { tree: (!is_empty).then_some(builder.tree), problems: builder.problems }
}

struct Builder {
    source: u16,
    stack: Vec<Frame>,
    /// What the open lists and mappings have so far, the innermost last: each becomes a row of the tree when it is
    /// closed.
    items: Vec<Node>,
    pairs: Vec<Pair>,
    tree: Tree,
    anchors: FxHashMap<usize, Anchored>,
    problems: Vec<Problem>,
    values: usize,
    bytes: usize,
    documents: usize,
}

struct Anchored {
    kept: Kept,
    layout: Layout,
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

    fn find(&mut self, key: &str, pairs: &[Pair]) -> Option<Position> {
        if pairs.len() < Self::SMALL {
            return pairs.iter().find(|pair| pair.key == key).map(|pair| pair.key_span.start);
        }
        for pair in &pairs[self.indexed..] {
            self.places.entry(pair.key.clone()).or_insert(pair.key_span.start);
        }
        self.indexed = pairs.len();
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
                let kept = scalar::resolve(&text, style, tag.as_deref())
                    .map_err(|message| Box::new(Problem::error(Code::YamlSyntax, span, message)))?;
                let layout = match style {
                    ScalarStyle::Literal => scalar::block_layout(&range, &text),
                    _ => scalar::inline_layout(&range, &text, style),
                };
                let value = Node { span, layout, kept };
                self.anchor(anchor, &value, 1, text.len());
                self.put(value, matches!(style, ScalarStyle::Plain).then_some(&*text))?;
            }
            Event::Alias(id) => {
                let Some(anchored) = self.anchors.get(&id) else {
                    let message = "an alias cannot stand within the value that it names";
                    return Err(Box::new(Problem::error(Code::YamlSyntax, span, message)));
                };
                let (values, bytes) = (anchored.values, anchored.bytes);
                let value = Node { span, layout: anchored.layout, kept: anchored.kept.clone() };
                self.count(span, values, bytes)?;
                self.put(value, None)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open(span, anchor, tag.as_deref(), Open::List { first: self.items.len() })?
            }
            Event::MappingStart(_, anchor, tag) => {
                let open = Open::Map { first: self.pairs.len(), keys: Keys::default(), key: None };
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
        let kept = match frame.open {
            Open::List { first } => Kept::List(edit::add(&mut self.tree.items, self.items.drain(first..))),
            Open::Map { first, .. } => {
                self.merge(first);
                Kept::Map(edit::add(&mut self.tree.pairs, self.pairs.drain(first..)))
            }
        };
        let span = Span { end: end.end.max(frame.span.start), ..frame.span };
        let value = Node { span, layout: Layout::Loose, kept };
        let (values, bytes) = (self.values - frame.values_before, self.bytes - frame.bytes_before);
        self.anchor(frame.anchor, &value, values, bytes);
        self.put(value, None)
    }

    /// Takes in the mappings under `<<` of the mapping that begins here; a key of the mapping itself goes before.
    fn merge(&mut self, first: usize) {
        if !self.pairs[first..].iter().any(|pair| pair.key == "<<") {
            return;
        }
        let (merged, own): (Vec<_>, Vec<_>) = self.pairs.drain(first..).partition(|pair| pair.key == "<<");
        self.pairs.extend(own);
        let sources = merged.iter().flat_map(|pair| match pair.value.kept {
            Kept::List(part) => part.of(&self.tree.items),
            _ => slice::from_ref(&pair.value),
        });
        for source in sources {
            let Kept::Map(part) = source.kept else { continue };
            for pair in part.of(&self.tree.pairs) {
                if !self.pairs[first..].iter().any(|known| known.key == pair.key) {
                    self.pairs.push(pair.clone());
                }
            }
        }
    }

    fn anchor(&mut self, id: usize, value: &Node, values: usize, bytes: usize) {
        if id != 0 {
            let (kept, layout) = (value.kept.clone(), value.layout);
            self.anchors.insert(id, Anchored { kept, layout, values, bytes });
        }
    }

    /// Puts a finished value where it belongs; `plain` is its text if it was written without quotes.
    fn put(&mut self, value: Node, plain: Option<&str>) -> Step {
        match self.stack.last_mut().map(|frame| &mut frame.open) {
            None => self.tree.root = value,
            Some(Open::List { .. }) => self.items.push(value),
            Some(Open::Map { first, keys, key: pending }) => match pending.take() {
                Some((key, key_span)) => self.pairs.push(Pair { key, key_span, value }),
                None => {
                    let text = match (plain, value.kept) {
                        (Some(plain), _) => plain.into(),
                        (None, Kept::Text(text)) => text,
                        _ => {
                            let message = "a key is a plain text, not a list or a mapping";
                            return Err(Box::new(Problem::error(Code::YamlSyntax, value.span, message)));
                        }
                    };
                    if let Some(first) = keys.find(&text, &self.pairs[*first..]) {
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

    fn syntax(&self, error: &ScanError, text: &str) -> Box<Problem> {
        let mark = *error.marker();
        let span = self.span(&Range::new(mark, mark));
        let (code, message) = match error.kind() {
            serde_saphyr::granit_parser::ErrorKind::RecursionLimitExceeded => {
                (Code::TooLarge, "values are nested too deep".to_owned())
            }
            kind => (Code::YamlSyntax, kind.to_string()),
        };
        let help = advice(&message, text, span.start.line as usize);
        Box::new(Problem::error(code, span, message).help(help))
    }
}

/// What to do about text that is not YAML, for the slips that are made most.
fn advice(message: &str, text: &str, line: usize) -> Option<String> {
    let message = message.to_lowercase();
    let at = line.saturating_sub(1);
    let written = text.lines().nth(at).unwrap_or_default();
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    if message.contains("tab") || written[..indent(written)].contains('\t') {
        return Some("indent with spaces: YAML takes no tabs".to_owned());
    }
    if message.contains("mapping values are not allowed") {
        let value =
            written.split_once(": ").map(|(_, value)| value.trim()).filter(|value| value.contains(':'));
        return Some(match value {
            Some(value) => format!("a text with `: ` in it stands in quotes: \"{value}\""),
            None => "a text with `: ` in it stands in quotes; or this line is indented too far".to_owned(),
        });
    }
    let before = text.lines().take(at).filter(|line| !line.trim().is_empty()).last()?;
    let (here, above) = (indent(written), indent(before));
    (here != above && !written.trim().is_empty() && !message.contains("unexpected end")).then(|| {
        format!("this line is indented by {here}, the one above it by {above}: keys that belong together stand in one column")
    })
}
