//! Takes secrets out of texts before they enter an event, the store, a recording, an error or a channel: the one rule
//! set of the project. Secrets are the values of variables that look like keys (`names`), in their usual encodings
//! (`forms`, `decoded`), and tokens whose shape is known (`shapes`).

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde_json::{Map, Number, Value};

use crate::{AgentError, Environment, Event, Prompt, ProviderSessionId, StreamEvent};

mod decoded;
mod names;
mod options;
mod shapes;
mod stream;

pub use stream::StreamRedactor;

use decoded::{Decoded, STEPS, TextEnd};
use names::Sort;

/// Replaces a token of a known shape; a variable's value is replaced by `[redacted NAME]`.
const REDACTED: &str = "[redacted]";
/// Numbers of fewer digits stay, since counts and times are such numbers.
const SHORTEST_NUMBER: usize = 6;

/// Knows the secrets of one environment. Cheap to clone.
#[derive(Clone, Default)]
pub struct Redactor {
    secrets: Arc<Vec<Secret>>,
    /// Finds the secrets that are replaced everywhere.
    anywhere: Option<AhoCorasick>,
    /// Finds those that look like words and are replaced only as whole words.
    words: Option<AhoCorasick>,
    /// Those that are numbers in JSON, by how it writes them.
    numbers: Arc<BTreeMap<String, Arc<str>>>,
}

#[derive(Clone, Debug)]
struct Secret {
    /// One form of the secret.
    text: String,
    replacement: Arc<str>,
    sort: Sort,
}

/// The place of a secret in a text, and what replaces it.
struct SecretMatch<'a> {
    range: Range<usize>,
    replacement: &'a str,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.replacements().len())
    }
}

impl Redactor {
    /// Adds the secrets of an environment, by the names of its variables, and those that it marks as secret.
    pub fn new(env: &Environment) -> Self {
        Self::default().with_variables(env.iter()).with_marked(env)
    }

    /// Whether a variable of this name is treated as a secret, unless its value is clearly none.
    pub fn is_secret_name(name: &str) -> bool {
        names::looks_secret(name)
    }

    /// Adds the secrets of more variables.
    #[must_use]
    pub fn with_variables<'a>(self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut learned = Vec::new();
        for (name, value) in variables {
            for (secret, sort) in names::secrets(name, value) {
                learn(&mut learned, &secret, sort, &format!("[redacted {name}]"));
            }
        }
        self.with(learned)
    }

    /// Adds values that are secret whatever their names are.
    #[must_use]
    pub fn with_values(self, values: impl IntoIterator<Item = String>) -> Self {
        let mut learned = Vec::new();
        for value in values {
            if let Some(sort) = names::sort_of_secret(&value) {
                learn(&mut learned, &value, sort, REDACTED);
            }
        }
        self.with(learned)
    }

    fn with_marked(mut self, env: &Environment) -> Self {
        let mut learned = Vec::new();
        for (name, value) in env.marked() {
            if let Some(sort) = names::sort_of_secret(value) {
                let replacement = format!("[redacted {name}]");
                learn(&mut learned, value, sort, &replacement);
                if let Ok(number) = value.trim().parse::<Number>()
                    && value.bytes().filter(u8::is_ascii_digit).count() >= SHORTEST_NUMBER
                {
                    Arc::make_mut(&mut self.numbers).insert(number.to_string(), replacement.into());
                }
            }
        }
        self.with(learned)
    }

    fn with(mut self, learned: Vec<Secret>) -> Self {
        if learned.is_empty() {
            return self;
        }
        let secrets = Arc::make_mut(&mut self.secrets);
        secrets.extend(learned);
        // The longest form comes first, and the first of several equal ones names the secret.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.text.len()));
        let mut seen = std::collections::BTreeSet::new();
        secrets.retain(|secret| seen.insert(secret.text.clone()));
        secrets.sort_by_key(|secret| secret.sort == Sort::Word);
        let of = |sort: Sort| secrets.iter().filter(move |secret| secret.sort == sort);
        (self.anywhere, self.words) = (automaton(of(Sort::Anywhere)), automaton(of(Sort::Word)));
        self
    }

    /// The replacements of the secrets, once for each.
    fn replacements(&self) -> std::collections::BTreeSet<&str> {
        self.secrets.iter().map(|secret| &*secret.replacement).collect()
    }

    /// The text without secrets.
    pub fn text(&self, text: &str) -> String {
        cut(text, 0..text.len(), &self.find(text))
    }

    /// The text without the secrets of the environment; tokens of a known shape stay.
    pub fn known(&self, text: &str) -> String {
        cut(text, 0..text.len(), &merged(self.find_known(text)))
    }

    /// All strings of the value, and the numbers that their owner calls secret. Names of fields are data that templates refer
    /// to: only what is certainly a secret is taken out of them.
    pub fn value(&self, value: Value) -> Value {
        // Most have none, and are not built anew.
        if self.has_secret(&value) { self.cleaned(value) } else { value }
    }

    fn cleaned(&self, value: Value) -> Value {
        match value {
            Value::String(text) => match self.find(&text) {
                found if found.is_empty() => Value::String(text),
                found => Value::String(cut(&text, 0..text.len(), &found)),
            },
            Value::Array(items) => items.into_iter().map(|item| self.cleaned(item)).collect(),
            Value::Object(fields) => {
                let mut cleaned = Map::new();
                for (name, value) in fields {
                    let mut clean = self.field_name(&name);
                    let mut number = 2;
                    while cleaned.contains_key(&clean) {
                        clean = format!("{} ({number})", self.field_name(&name));
                        number += 1;
                    }
                    cleaned.insert(clean, self.cleaned(value));
                }
                Value::Object(cleaned)
            }
            Value::Number(number) => match self.number(&number) {
                Some(replacement) => Value::from(replacement),
                None => Value::Number(number),
            },
            other => other,
        }
    }

    fn number(&self, number: &Number) -> Option<&str> {
        if self.numbers.is_empty() {
            return None;
        }
        self.numbers.get(&number.to_string()).map(|replacement| &**replacement)
    }

    fn field_name(&self, name: &str) -> String {
        cut(name, 0..name.len(), &self.find_in_name(name))
    }

    fn find_in_name(&self, name: &str) -> Vec<SecretMatch<'_>> {
        let mut found = self.decoded_too(name, |name| self.find_anywhere(name).collect());
        found.extend(shapes::find(name).map(|range| SecretMatch { range, replacement: REDACTED }));
        merged(found)
    }

    fn has_secret(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => !self.find(text).is_empty(),
            Value::Array(items) => items.iter().any(|item| self.has_secret(item)),
            Value::Object(fields) => fields
                .iter()
                .any(|(name, value)| !self.find_in_name(name).is_empty() || self.has_secret(value)),
            Value::Number(number) => self.number(number).is_some(),
            _ => false,
        }
    }

    /// The error without secrets.
    #[must_use]
    pub fn error(&self, error: AgentError) -> AgentError {
        AgentError {
            message: self.text(&error.message),
            detail: error.detail.map(|detail| Box::new(self.value(*detail))),
            ..error
        }
    }

    /// Takes the secrets out of what a provider reports.
    pub fn event(&self, event: &mut StreamEvent) {
        match event {
            StreamEvent::Session { session_id } => {
                *session_id = ProviderSessionId::from(self.text(session_id.as_str()));
            }
            StreamEvent::Text { content, .. } | StreamEvent::Thinking { content, .. } => {
                *content = self.text(content);
            }
            StreamEvent::ToolStart { tool_name, tool_use_id, input } => {
                *tool_name = self.text(tool_name);
                *tool_use_id = self.text(tool_use_id);
                *input = self.value(input.take());
            }
            StreamEvent::ToolComplete { tool_use_id, result, .. } => {
                *tool_use_id = self.text(tool_use_id);
                *result = self.value(result.take());
            }
            StreamEvent::Warning { code, message } => {
                *code = self.text(code);
                *message = self.text(message);
            }
            _ => {}
        }
    }

    /// Takes the secrets out of what people say to a session. What others put into an event has none already.
    pub fn said(&self, event: &mut Event) {
        let clean = |text: &mut String| *text = self.text(text);
        match event {
            Event::SessionMessage { content, .. } | Event::AgentSteer { content, .. } => clean(content),
            Event::SessionReply { content, choice, .. } => {
                clean(content);
                choice.iter_mut().for_each(clean);
            }
            Event::SessionPause { reason, .. } | Event::SessionAbort { reason } => {
                reason.iter_mut().for_each(clean);
            }
            Event::TaskStart { messages, .. } => messages.iter_mut().for_each(clean),
            // They may quote what was said.
            Event::SessionRejected { reason, .. } => clean(reason),
            Event::AgentWarning { message, .. } => clean(message),
            Event::FlowResumed { message, messages, .. } => {
                clean(message);
                messages.values_mut().for_each(clean);
            }
            _ => {}
        }
    }

    /// Takes the secrets out of what a node of any author emits itself. What people say is left to [`Redactor::said`]; ids
    /// and names stay, since others refer to them.
    pub fn emitted(&self, event: &mut Event) {
        let clean = |text: &mut String| *text = self.text(text);
        match event {
            Event::AgentText { content, .. } | Event::AgentThinking { content, .. } => clean(content),
            Event::AgentSession { session_id, .. } => {
                *session_id = ProviderSessionId::from(self.text(session_id.as_str()));
            }
            Event::AgentToolStart { tool_name, tool_use_id, input, .. } => {
                clean(tool_name);
                clean(tool_use_id);
                *input = self.value(input.take());
            }
            Event::AgentToolComplete { tool_name, tool_use_id, result, .. } => {
                clean(tool_name);
                clean(tool_use_id);
                *result = self.value(result.take());
            }
            Event::AgentListen { output, .. } => *output = self.value(output.take()),
            Event::ExecOutput { text, .. } => clean(text),
            Event::SessionPrompt(prompt) => self.prompt(prompt),
            Event::ChannelFailed { error, .. } => clean(error),
            Event::Log { message, fields, .. } => {
                clean(message);
                self.fields(fields);
            }
            Event::Unknown(event) => self.fields(event.payload_mut()),
            event => self.computed(event),
        }
    }

    /// Takes the secrets out of a question. Who answers it chooses of the choices that are left.
    pub fn prompt(&self, prompt: &mut Prompt) {
        let clean = |text: &mut String| *text = self.text(text);
        clean(&mut prompt.prompt);
        prompt.choices.iter_mut().flatten().for_each(clean);
        prompt.default.iter_mut().for_each(clean);
        for value in prompt.schema.iter_mut().chain(&mut prompt.detail) {
            *value = self.value(value.take());
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>) {
        if let Value::Object(clean) = self.value(Value::Object(std::mem::take(fields))) {
            *fields = clean;
        }
    }

    /// Takes the secrets out of what a flow computes of its input: the outputs of nodes with frames, of frames and of the
    /// flow, and errors. What other nodes give has none already. What frames are given is input, and stays as it is.
    pub fn computed(&self, event: &mut Event) {
        let clean = |value: &mut Arc<Value>| {
            if self.has_secret(value) {
                *value = Arc::new(self.cleaned(Value::clone(value)));
            }
        };
        match event {
            Event::TaskComplete { result, .. } => clean(result),
            Event::FrameComplete { outputs, .. } => clean(outputs),
            Event::HarnessComplete { outputs, .. } => outputs.iter_mut().for_each(clean),
            Event::TaskFailed { error, .. }
            | Event::FrameFailed { error, .. }
            | Event::PhaseFailed { error, .. }
            | Event::FlowEnding { error: Some(error), .. } => *error = self.error(error.clone()),
            _ => {}
        }
    }

    /// Takes the secrets out of the pieces of one text, also where one spans several: its replacement is in
    /// the piece in which it begins.
    pub fn pieces<'a>(&self, pieces: impl IntoIterator<Item = &'a mut String>) {
        let mut whole = String::new();
        let mut ranges = Vec::new();
        for piece in pieces {
            let start = whole.len();
            whole.push_str(piece);
            ranges.push((start..whole.len(), piece));
        }
        let found = self.find(&whole);
        for (range, piece) in ranges {
            *piece = cut(&whole, range, &found);
        }
    }

    /// Where secrets are, in order and without overlaps.
    fn find(&self, text: &str) -> Vec<SecretMatch<'_>> {
        let mut found = self.find_known(text);
        found.extend(shapes::find(text).map(|range| SecretMatch { range, replacement: REDACTED }));
        merged(found)
    }

    fn find_known(&self, text: &str) -> Vec<SecretMatch<'_>> {
        self.decoded_too(text, |text| self.find_anywhere(text).chain(self.find_words(text)).collect())
    }

    /// What is found in a text as it is, and without its escapes and the line breaks of base64.
    fn decoded_too<'a>(
        &'a self,
        text: &str,
        find: impl Fn(&[u8]) -> Vec<SecretMatch<'a>>,
    ) -> Vec<SecretMatch<'a>> {
        if self.secrets.is_empty() {
            return Vec::new();
        }
        let mut found = find(text.as_bytes());
        steps(text, TextEnd::Last, |steps, bytes| {
            let place =
                |range: Range<usize>| steps.iter().rev().fold(range, |range, step| step.in_text(range));
            let more = find(bytes).into_iter();
            found.extend(more.map(|secret| SecretMatch { range: place(secret.range), ..secret }));
        });
        found
    }

    fn find_anywhere<'a>(&'a self, text: &[u8]) -> impl Iterator<Item = SecretMatch<'a>> {
        let matches = self.anywhere.iter().flat_map(move |anywhere| anywhere.find_iter(text));
        matches.map(|secret| SecretMatch {
            range: secret.range(),
            replacement: &self.secrets[secret.pattern().as_usize()].replacement,
        })
    }

    fn find_words<'a>(&'a self, text: &[u8]) -> impl Iterator<Item = SecretMatch<'a>> {
        let first = self.secrets.partition_point(|secret| secret.sort == Sort::Anywhere);
        let mut at = 0;
        let words = std::iter::from_fn(move || {
            let word = self.words.as_ref()?.find(Input::new(text).span(at..text.len()))?;
            at = word.start() + 1;
            Some(word)
        });
        words.filter(|word| is_whole_word(text, word.range())).map(move |word| SecretMatch {
            range: word.range(),
            replacement: &self.secrets[first + word.pattern().as_usize()].replacement,
        })
    }

    /// How much of the text's beginning is decided: what follows may be the beginning of a secret.
    fn decided(&self, text: &str) -> usize {
        let mut certain = shapes::unfinished(text).unwrap_or(text.len());
        if self.secrets.is_empty() {
            return certain;
        }
        certain = certain.min(text.len() - self.begun(text.as_bytes()));
        steps(text, TextEnd::Open, |steps, bytes| {
            let open = bytes.len() - self.begun(bytes);
            certain = certain.min(steps.iter().rev().fold(open, |at, step| step.place(at)));
        });
        certain
    }

    /// How many bytes at the end of a text may be the beginning of a secret.
    fn begun(&self, text: &[u8]) -> usize {
        let begins = |secret: &Secret| {
            // What follows a word decides whether it is a whole one.
            let most = secret.text.len() - usize::from(secret.sort == Sort::Anywhere);
            let longest = text.len().min(most);
            (1..=longest).rev().find(|&length| text.ends_with(&secret.text.as_bytes()[..length]))
        };
        self.secrets.iter().filter_map(begins).max().unwrap_or_default()
    }
}

/// Decodes a text step by step, and shows each step with those before it.
fn steps(text: &str, ending: TextEnd, mut see: impl FnMut(&[Decoded], &[u8])) {
    let mut steps = Vec::new();
    let mut next = Decoded::of(text.as_bytes(), ending);
    while let Some(step) = next.take() {
        steps.push(step);
        let Some(last) = steps.last() else { return };
        see(&steps, &last.bytes);
        if last.is_nested && steps.len() < STEPS {
            next = Decoded::of(&last.bytes, ending);
        }
    }
}

/// Adds a secret in all the forms in which it may appear.
fn learn(secrets: &mut Vec<Secret>, secret: &str, sort: Sort, replacement: &str) {
    let replacement: Arc<str> = replacement.into();
    let mut add = |text: &str, sort: Sort| {
        let forms = match sort {
            Sort::Anywhere => decoded::forms(text),
            Sort::Word => vec![text.to_owned()],
        };
        secrets.extend(forms.into_iter().map(|text| Secret { text, replacement: replacement.clone(), sort }));
    };
    add(secret, sort);
    // A text is often taken apart by its lines. The lines around a key in PEM form are the same for all keys.
    let lines =
        secret.lines().map(str::trim).filter(|line| secret.contains('\n') && !line.starts_with("-----"));
    for line in lines.filter(|line| line.len() >= names::SHORTEST) {
        if let Some(sort) = names::sort_of_line(line) {
            add(line, sort);
        }
    }
}

/// A word that is longer is cut, in bytes.
const LONGEST_WORD: usize = 512;

/// The beginning of a text, of so many bytes at most. A word that does not fit is left out as a whole, so that no part of
/// a secret stays that would be known by its whole.
pub fn beginning(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = text.floor_char_boundary(most);
    match text[end..].starts_with(ends_word) {
        true => &text[..end],
        false => {
            let word = text.ceil_char_boundary(end.saturating_sub(LONGEST_WORD));
            let start = text[word..end].rfind(ends_word).map(|at| word + at);
            &text[..start.unwrap_or(if word == 0 { 0 } else { end })]
        }
    }
}

/// The end of a text, of so many bytes at most, as [`beginning`].
pub fn ending(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let start = text.ceil_char_boundary(text.len() - most);
    match text[..start].ends_with(ends_word) {
        true => &text[start..],
        false => {
            let word = text.floor_char_boundary((start + LONGEST_WORD).min(text.len()));
            let end = text[start..word].find(ends_word).map(|at| start + at);
            &text[end.unwrap_or(if word == text.len() { word } else { start })..]
        }
    }
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '<' | '>' | '(' | ')' | '[' | ']' | '{' | '}')
}

fn automaton<'a>(secrets: impl Iterator<Item = &'a Secret>) -> Option<AhoCorasick> {
    let texts: Vec<&str> = secrets.map(|secret| secret.text.as_str()).collect();
    if texts.is_empty() {
        return None;
    }
    // It fails only beyond the size of all environments.
    AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts).ok()
}

fn is_whole_word(text: &[u8], range: Range<usize>) -> bool {
    // The bytes of an escape need not be text. No character has more than four.
    let (before, after) = (&text[range.start.saturating_sub(4)..range.start], &text[range.end..]);
    let before = String::from_utf8_lossy(before).chars().next_back();
    let after = String::from_utf8_lossy(&after[..after.len().min(4)]).chars().next();
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !part(before) && !part(after)
}

/// In order; what overlaps becomes one.
fn merged(mut found: Vec<SecretMatch<'_>>) -> Vec<SecretMatch<'_>> {
    // The sort is stable: a named secret comes before a shape at the same place.
    found.sort_by_key(|found| (found.range.start, std::cmp::Reverse(found.range.end)));
    let mut apart: Vec<SecretMatch<'_>> = Vec::new();
    for next in found {
        match apart.last_mut() {
            Some(last) if next.range.start < last.range.end => {
                last.range.end = last.range.end.max(next.range.end);
            }
            _ => apart.push(next),
        }
    }
    apart
}

/// A part of a text without what was found in the text; a replacement is where its secret begins.
fn cut(text: &str, part: Range<usize>, found: &[SecretMatch<'_>]) -> String {
    let mut stored = String::with_capacity(part.len());
    let mut position = part.start;
    for SecretMatch { range: secret, replacement } in found {
        if secret.end <= part.start || secret.start >= part.end {
            continue;
        }
        if secret.start >= part.start {
            stored.push_str(&text[position..secret.start]);
            stored.push_str(replacement);
        }
        position = secret.end.min(part.end);
    }
    stored.push_str(&text[position..part.end]);
    stored
}

#[cfg(test)]
mod tests;
