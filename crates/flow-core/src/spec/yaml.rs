//! Parses YAML into values with their places, within limits on depth, aliases and size.

mod scalar;
mod value;

pub(crate) use value::{Data, Entry, Layout, Yaml, pointer_parts};

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span as Range, Tag};

use crate::diagnostic::{Code, Position, Problem, SourceSpan};

/// The deepest nesting of values.
const MAX_DEPTH: usize = 100;
/// The most values of a document, with its aliases expanded.
const MAX_VALUES: usize = 500_000;
/// The most bytes of text, likewise.
const MAX_TEXT: usize = 32 * 1024 * 1024;

/// A parsed document.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// Its value, if the text is valid YAML.
    pub(crate) root: Option<Yaml>,
    /// What is wrong with the text.
    pub(crate) problems: Vec<Problem>,
}

/// Parses a text with one document.
pub(crate) fn parse(text: &str, source: u16) -> Document {
    let mut builder = Builder::new(text, source);
    if let Err(problem) = builder.read(text) {
        // Nothing after a syntax error is reliable.
        builder.problems.push(*problem);
        return Document { root: None, problems: builder.problems };
    }
    let root = builder.root.filter(|root| !matches!(root.data, Data::Null));
    if root.is_none() {
        let span = SourceSpan::at(source, 1, 1);
        let help = "`inspan init` writes a flow to start from".to_owned();
        builder.problems.push(Problem::error(Code::EmptyFile, span, "the file is empty").help(help));
    }
    Document { root, problems: builder.problems }
}

/// The name that a text gives its flow. A text with a syntax error may give it before that.
pub fn flow_name(text: &str) -> Option<String> {
    // Nothing is read of braces around everything that are not closed.
    let texts = [Some(text), text.trim_start().strip_prefix('{')];
    texts.into_iter().flatten().find_map(|text| {
        let mut builder = Builder::new(text, 0);
        let _broken = builder.read(text);
        while let Some(open) = builder.stack.last() {
            builder.close(open.span).ok()?;
        }
        let root = builder.root?;
        let name = root.get("flow").unwrap_or(&root).get("name")?.text()?;
        (!name.trim().is_empty()).then(|| name.to_owned())
    })
}

struct Builder<'t> {
    source: u16,
    lines: Vec<&'t str>,
    /// The open lists and mappings, the innermost last.
    stack: Vec<Frame>,
    root: Option<Yaml>,
    anchors: HashMap<usize, Anchored>,
    problems: Vec<Problem>,
    values: usize,
    bytes: usize,
    documents: usize,
}

/// A value with an anchor, and what each alias adds to the document.
struct Anchored {
    value: Yaml,
    size: YamlSize,
}

#[derive(Clone, Copy)]
struct YamlSize {
    values: usize,
    bytes: usize,
    /// How many levels of lists and mappings it has.
    depth: usize,
}

struct Frame {
    span: SourceSpan,
    anchor: usize,
    values_before: usize,
    bytes_before: usize,
    /// The depth of the deepest value in it.
    depth: usize,
    open: Open,
}

enum Open {
    List(Vec<Yaml>),
    Map {
        entries: Vec<Entry>,
        /// What is under `<<`.
        merges: Vec<Yaml>,
        keys: HashMap<String, Position>,
        pending: Option<PendingKey>,
    },
}

/// A key whose value comes next.
struct PendingKey {
    key: String,
    span: SourceSpan,
    /// Whether it is `<<`, without quotes.
    is_merge: bool,
}

type Parsed = Result<(), Box<Problem>>;

impl<'t> Builder<'t> {
    fn new(text: &'t str, source: u16) -> Self {
        Self {
            source,
            lines: text.lines().collect(),
            stack: Vec::new(),
            root: None,
            anchors: HashMap::new(),
            problems: Vec::new(),
            values: 0,
            bytes: 0,
            documents: 0,
        }
    }

    /// Takes the text, up to its first syntax error.
    fn read(&mut self, text: &str) -> Parsed {
        for event in Parser::new_from_str(text) {
            match event {
                Ok((event, range)) => self.take(event, range)?,
                Err(error) => return Err(self.syntax(&error, text)),
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event<'_>, range: Range) -> Parsed {
        let span = self.span(&range);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "a flow file has a single YAML document, and a second one starts here";
                    return Err(Box::new(Problem::error(Code::SeveralDocuments, span, message)));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(span, 1, text.len())?;
                let data = scalar::resolve(&text, style, tag.as_deref())
                    .map_err(|message| Box::new(Problem::error(Code::YamlSyntax, span, message)))?;
                let layout = match style {
                    ScalarStyle::Literal => scalar::block_layout(&range, &text),
                    _ if range.start.line() < range.end.line() => {
                        scalar::folded_layout(&range, &text, style, &self.lines)
                    }
                    _ => scalar::inline_layout(&range, &text, style),
                };
                let value = Yaml { span, layout, data };
                let size = YamlSize { values: 1, bytes: text.len(), depth: 0 };
                let plain = matches!(style, ScalarStyle::Plain).then_some(&*text);
                self.put(value, anchor, size, plain)?;
            }
            Event::Alias(id) => {
                let Some(anchored) = self.anchors.get(&id) else {
                    let message = "an alias cannot be inside the value that it names";
                    return Err(Box::new(Problem::error(Code::YamlSyntax, span, message)));
                };
                // The text is elsewhere, so a place in it is not known here.
                let layout = Layout::Loose;
                let (value, size) = (Yaml { span, layout, ..anchored.value.clone() }, anchored.size);
                self.count(span, size.values, size.bytes)?;
                self.check_depth(span, size.depth)?;
                self.put(value, 0, size, None)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open(span, anchor, tag.as_deref(), "seq", Open::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, tag) => {
                let (entries, merges, keys) = (Vec::new(), Vec::new(), HashMap::new());
                let open = Open::Map { entries, merges, keys, pending: None };
                self.open(span, anchor, tag.as_deref(), "map", open)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span)?,
            _ => {}
        }
        Ok(())
    }

    fn open(
        &mut self,
        span: SourceSpan,
        anchor: usize,
        tag: Option<&Tag>,
        expected: &str,
        open: Open,
    ) -> Parsed {
        if let Some(tag) = tag.filter(|tag| tag.core_suffix() != Some(expected)) {
            let message = format!("unknown tag `{}`", tag.original());
            return Err(Box::new(Problem::error(Code::YamlSyntax, span, message)));
        }
        self.check_depth(span, 1)?;
        if let Some(Frame { open: Open::Map { pending: None, .. }, .. }) = self.stack.last() {
            let message = "a key must be a string, not a list or a mapping";
            let help = "quote a string that starts with braces: \"{{ … }}\"".to_owned();
            return Err(Box::new(Problem::error(Code::YamlSyntax, span, message).help(help)));
        }
        let (values_before, bytes_before) = (self.values, self.bytes);
        self.count(span, 1, 0)?;
        self.stack.push(Frame { span, anchor, values_before, bytes_before, depth: 0, open });
        Ok(())
    }

    fn close(&mut self, end: SourceSpan) -> Parsed {
        let Some(frame) = self.stack.pop() else { return Ok(()) };
        let data = match frame.open {
            Open::List(mut items) => {
                items.shrink_to_fit();
                Data::List(Arc::new(items))
            }
            Open::Map { mut entries, merges, .. } => {
                self.merge(&mut entries, &merges);
                entries.shrink_to_fit();
                Data::Map(Arc::new(entries))
            }
        };
        let value = Yaml::new(SourceSpan { end: end.end.max(frame.span.start), ..frame.span }, data);
        let size = YamlSize {
            values: self.values - frame.values_before,
            bytes: self.bytes - frame.bytes_before,
            depth: frame.depth + 1,
        };
        self.put(value, frame.anchor, size, None)
    }

    /// Puts a finished value where it belongs; `plain` is its text if it was written without quotes.
    fn put(&mut self, value: Yaml, anchor: usize, size: YamlSize, plain: Option<&str>) -> Parsed {
        if anchor != 0 {
            self.anchors.insert(anchor, Anchored { value: value.clone(), size });
        }
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        frame.depth = frame.depth.max(size.depth);
        match &mut frame.open {
            Open::List(items) => items.push(value),
            Open::Map { entries, merges, keys, pending } => {
                if let Some(PendingKey { key, span: key_span, is_merge }) = pending.take() {
                    match is_merge {
                        true => merges.push(value),
                        false => entries.push(Entry { key, key_span, value }),
                    }
                    return Ok(());
                }
                let span = value.span;
                let key = match (plain, value.data) {
                    (Some(plain), _) => plain.to_owned(),
                    (None, Data::Text(text)) => text,
                    _ => {
                        let message = "a key must be a string, not a list or a mapping";
                        return Err(Box::new(Problem::error(Code::YamlSyntax, span, message)));
                    }
                };
                if let Some(Position { line, column }) = keys.get(&key) {
                    let message =
                        format!("duplicate key `{key}`; it is first set at line {line}, column {column}");
                    self.problems.push(Problem::error(Code::DuplicateKey, span, message));
                } else {
                    keys.insert(key.clone(), span.start);
                }
                *pending = Some(PendingKey { key, span, is_merge: plain == Some("<<") });
            }
        }
        Ok(())
    }

    /// Merges the mappings under `<<`; the own keys of the mapping win.
    fn merge(&mut self, entries: &mut Vec<Entry>, merges: &[Yaml]) {
        if merges.is_empty() {
            return;
        }
        let mut known: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        let sources = merges.iter().flat_map(|value| match &value.data {
            Data::List(items) => items.as_slice(),
            _ => std::slice::from_ref(value),
        });
        for source in sources {
            if !matches!(source.data, Data::Map(_)) {
                let message = format!("`<<` merges mappings, found {}", source.kind());
                let help = "quote it if it is a key of its own: `\"<<\"`".to_owned();
                self.problems.push(Problem::error(Code::WrongType, source.span, message).help(help));
            }
            for entry in source.entries() {
                if known.insert(entry.key.clone()) {
                    entries.push(entry.clone());
                }
            }
        }
    }

    /// Checks that a value with so many levels is allowed here.
    fn check_depth(&self, span: SourceSpan, levels: usize) -> Parsed {
        if self.stack.len() + levels > MAX_DEPTH {
            let message = format!("values are nested deeper than {MAX_DEPTH} levels");
            return Err(Box::new(Problem::error(Code::TooLarge, span, message)));
        }
        Ok(())
    }

    fn count(&mut self, span: SourceSpan, values: usize, bytes: usize) -> Parsed {
        self.values += values;
        self.bytes += bytes;
        if self.values > MAX_VALUES || self.bytes > MAX_TEXT {
            let message = format!(
                "with its aliases expanded, the file has more than {MAX_VALUES} values or {} MiB of text",
                MAX_TEXT / (1024 * 1024)
            );
            return Err(Box::new(Problem::error(Code::TooLarge, span, message)));
        }
        Ok(())
    }

    fn span(&self, range: &Range) -> SourceSpan {
        let place = |line: usize, column: usize| Position {
            line: u32::try_from(line.max(1)).unwrap_or(u32::MAX),
            column: u32::try_from(column + 1).unwrap_or(u32::MAX),
        };
        SourceSpan {
            source: self.source,
            start: place(range.start.line(), range.start.col()),
            end: place(range.end.line(), range.end.col()),
        }
    }

    fn syntax(&self, error: &ScanError, text: &str) -> Box<Problem> {
        let mark = *error.marker();
        let span = self.span(&Range::new(mark, mark));
        let message = match error.kind() {
            serde_saphyr::granit_parser::ErrorKind::RecursionLimitExceeded => {
                return Box::new(Problem::error(Code::TooLarge, span, "values are nested too deep"));
            }
            kind => kind.to_string(),
        };
        let help = advice(&message, text, span.start.line as usize);
        Box::new(Problem::error(Code::YamlSyntax, span, message).help(help))
    }
}

/// Advice for the most common YAML mistakes.
fn advice(message: &str, text: &str, line: usize) -> Option<String> {
    let message = message.to_lowercase();
    let at = line.saturating_sub(1);
    let written = text.lines().nth(at).unwrap_or_default();
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    if message.contains("tab") || written[..indent(written)].contains('\t') {
        return Some("indent with spaces: YAML does not allow tabs".to_owned());
    }
    if message.contains("mapping values are not allowed") {
        let value =
            written.split_once(": ").map(|(_, value)| value.trim()).filter(|value| value.contains(':'));
        return Some(match value {
            Some(value) => format!("quote a string that contains `: `: \"{value}\""),
            None => "quote a string that contains `: `, or indent this line less".to_owned(),
        });
    }
    if message.contains("unexpected character: `\\u{") {
        let help = "YAML does not allow this character: remove it, or write it as an escape in double quotes";
        return Some(help.to_owned());
    }
    if message.contains("unexpected character") {
        return Some("quote the string: without quotes it cannot begin with this character".to_owned());
    }
    if message.contains("after single-quoted") {
        return Some("write `''` for a quote within single quotes, or quote the string with `\"`".to_owned());
    }
    if message.contains("after double-quoted") {
        return Some(
            "write `\\\"` for a quote within double quotes, or quote the string with `'`".to_owned(),
        );
    }
    if message.contains("unknown escape") {
        return Some(
            "`\\` begins an escape within double quotes: quote the string with `'`, or write `\\\\`"
                .to_owned(),
        );
    }
    if message.contains("unclosed quote") || message.contains("multiline quoted") {
        return Some(
            "close the quote that begins before this place, or indent all lines of its text".to_owned(),
        );
    }
    if message.contains("unknown anchor") {
        return Some("quote a string that begins with `*`; an alias needs its anchor before it".to_owned());
    }
    let value = written.split_once(": ").map(|(_, value)| value.trim_start()).unwrap_or_default();
    if message.contains("mapping keys are not allowed") && value.starts_with("? ") {
        return Some("quote the string: without quotes it cannot begin with `? `".to_owned());
    }
    if message.contains("block sequence entries are not allowed") && value.starts_with("- ") {
        let help =
            "begin the list on the next line, or quote the string: without quotes it cannot begin with `- `";
        return Some(help.to_owned());
    }
    let before = text.lines().take(at).filter(|line| !line.trim().is_empty()).last()?;
    let (here, above) = (indent(written), indent(before));
    (here != above && !written.trim().is_empty() && !message.contains("unexpected end")).then(|| {
        format!("this line is indented by {here} and the line above by {above}: keys of one mapping start in the same column")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_with_problems_keeps_its_name() {
        let rows = [
            ("flow: { name: deploy }\nnodes: [", Some("deploy")),
            ("flow:\n  filename: x\n  name: \"Deploy it\" # twice\nnodes:\n - a: b: c", Some("Deploy it")),
            ("{\"flow\": {\"name\": \"deploy\", \"x\": 1,", Some("deploy")),
            ("{\n  \"flow\": { \"input\": {}, \"name\": \"deploy\" },\n  \"nodes\": [", Some("deploy")),
            ("name: deploy\nnodes: []\n---\nname: other\n", Some("deploy")),
            ("flow: {}\nnodes:\n  - { id: a, name: b }", None),
            ("# name: deploy\nflow: { input: { name: deploy }, name: other }\nnodes: [", Some("other")),
            ("flow: { input: { name: deploy", None),
        ];
        for (text, name) in rows {
            assert_eq!(flow_name(text).as_deref(), name, "{text}");
        }
    }
}
