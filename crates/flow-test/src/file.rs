//! Test files: the cases of a flow as they are written in YAML, read with the place of each part.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use inspan_protocol::{Timestamp, plain_words};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use serde_saphyr::{Location, Spanned};

use crate::{
    answer::{Answers, Period, unknown, with_suggestion},
    expect::Expect,
};

/// How large a test file may be, in bytes.
pub(crate) const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// Something wrong with a test file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileProblem {
    /// The file.
    pub file: PathBuf,
    /// The line, counting from 1; none if the file could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The character in the line, counting from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
    /// The key, such as `cases[2].answers.review`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl FileProblem {
    /// A problem at a place of a file, if it is known.
    pub(crate) fn new(file: &Path, at: Option<Location>, key: Option<String>, message: String) -> Self {
        let at = at.filter(|at| at.line() > 0);
        let (line, column) = (at.map(|at| at.line()), at.map(|at| at.column()));
        Self { file: file.to_owned(), line, column, key, message }
    }
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, ":{line}:{column}")?;
        }
        match &self.key {
            Some(key) => write!(f, ": `{key}`: {}", self.message),
            None => write!(f, ": {}", self.message),
        }
    }
}

impl std::error::Error for FileProblem {}

/// The cases of one flow.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Inspan test file")]
pub(crate) struct TestFile {
    /// The flow, relative to this file. Without it `NAME.test.yaml` tests `NAME.yaml` beside it, or in the folder
    /// above.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub(crate) flow: Option<Spanned<String>>,
    /// What every case begins with. A case's own keys win; of `input`, `answers`, `replies` and `messages` key by key.
    /// A case with its own `recordings` takes no `answers` from here.
    #[serde(default)]
    #[schemars(with = "Option<CaseSpec>")]
    pub(crate) defaults: Option<Spanned<CaseSpec>>,
    /// The cases.
    #[schemars(with = "Vec<CaseSpec>")]
    pub(crate) cases: Vec<Spanned<CaseSpec>>,
    /// Where what is expected is, by keys such as `cases[0].expect.statuses` and `cases[0].expect.statuses.review`.
    #[serde(skip)]
    pub(crate) positions: BTreeMap<String, Location>,
    /// Those of these keys that have nothing in them.
    #[serde(skip)]
    pub(crate) empty: Vec<String>,
}

/// A value with the places of all that is in it, read apart from what is there.
#[derive(Default)]
enum Tree {
    Map(Vec<(String, Spanned<Self>)>),
    List(Vec<Spanned<Self>>),
    Text(String),
    Null,
    #[default]
    Other,
}

impl Tree {
    fn of(text: &str) -> Self {
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).unwrap_or_default()
    }

    fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, value)| &value.value)
    }

    /// Where what is expected is, by its keys; and the keys that have nothing in them. A list without any is a value.
    fn expectations(&self) -> (BTreeMap<String, Location>, Vec<String>) {
        let cases = match self.get("cases") {
            Some(Self::List(cases)) => &cases[..],
            _ => &[],
        };
        let cases = cases.iter().enumerate().map(|(at, case)| (format!("cases[{at}]"), &case.value));
        let all = cases.chain(self.get("defaults").map(|base| ("defaults".to_owned(), base)));
        let (mut found, mut empty) = (BTreeMap::new(), Vec::new());
        for (case, tree) in all {
            let Some(Self::Map(expected)) = tree.get("expect") else { continue };
            for (of, at) in expected {
                let of = format!("{case}.expect.{of}");
                found.insert(of.clone(), at.referenced);
                match &at.value {
                    Self::Map(entries) => {
                        found.extend(entries.iter().map(|(key, at)| (format!("{of}.{key}"), at.referenced)));
                    }
                    Self::List(items) => found.extend(items.iter().filter_map(|item| match &item.value {
                        Self::Text(word) => Some((format!("{of}.{word}"), item.referenced)),
                        _ => None,
                    })),
                    _ => {}
                }
                let is_empty = matches!(&at.value, Self::Map(entries) if entries.is_empty());
                empty.extend((is_empty || matches!(at.value, Self::Null)).then_some(of));
            }
        }
        (found, empty)
    }

    /// The key of the innermost value at a place.
    fn key_at(&self, at: Location, key: &str) -> Option<String> {
        let inner = |value: &Spanned<Self>, key: String| {
            let is_here = (value.referenced.line(), value.referenced.column()) == (at.line(), at.column());
            value.value.key_at(at, &key).or(is_here.then_some(key))
        };
        match self {
            Self::Map(entries) => entries.iter().find_map(|(name, value)| {
                inner(value, if key.is_empty() { name.clone() } else { format!("{key}.{name}") })
            }),
            Self::List(items) => {
                items.iter().enumerate().find_map(|(at, item)| inner(item, format!("{key}[{at}]")))
            }
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> de::Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }
}

/// What is expected at a key, where there is more to say than of which kind it is.
fn expected(key: &str) -> Option<&'static str> {
    let parts: Vec<&str> = key.split('.').collect();
    Some(match parts[..] {
        ["cases"] => "a list of cases",
        [_] => "a mapping, such as `{ name: it passes, answers: { review: PASS } }`",
        [_, "answers"] => "a mapping from nodes to what they answer",
        [_, "replies"] => "a mapping from nodes to what people reply",
        [_, "messages"] => "a mapping from nodes to lists of messages",
        [_, "messages", _] => "a list of texts, one for each turn",
        [_, "faults"] => "a list, such as `[{ node: review, error: timeout }]`",
        [_, fault] if fault.starts_with("faults[") => "a mapping, such as `{ node: review, error: timeout }`",
        [_, _, "crashAfter"] => "a node, or `each`",
        [_, "expect", "outcome"] => "one word, such as `failed`",
        [_, "expect", "path"] => {
            "a list of nodes, or a mapping with lists of nodes under `includes`, `anyOrder` or `excludes`"
        }
        [_, "expect", "statuses"] => "a mapping from nodes to their states, such as `{ review: complete }`",
        [_, "expect", "statuses", _] => "one word, such as `complete`",
        [_, "expect", "outputs" | "questions"] => "a mapping from nodes to what they give or ask",
        [_, "expect", "attempts"] => "a mapping from nodes to numbers, such as `{ review: 2 }`",
        [_, "expect", "attempts", _] => "a whole number",
        [_, "expect", "costUsd"] => "a number, or a mapping with `min` or `max`",
        [_, "expect", "duration"] => "a mapping with `min` or `max`, such as `{ max: 10m }`",
        _ => return None,
    })
}

/// One case.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct CaseSpec {
    /// The case's name, unique in the file.
    pub(crate) name: Option<String>,
    /// What the flow is given.
    pub(crate) input: Map<String, Value>,
    /// A folder with recordings, relative to this file: they answer where `answers` does not.
    pub(crate) recordings: Option<PathBuf>,
    /// What agents, programs and other nodes that reach outside answer, by the paths of the nodes: `review`, `review#2`
    /// (second pass), `scan[4]/review` (item 4), `scan[*]/review` (all items).
    #[schemars(with = "BTreeMap<String, Answers>")]
    pub(crate) answers: BTreeMap<String, Spanned<Value>>,
    /// What people answer, by the paths of the nodes that ask: a choice or a text, or a list with one for each
    /// question.
    #[schemars(with = "BTreeMap<String, Replies>")]
    pub(crate) replies: BTreeMap<String, Spanned<Replies>>,
    /// Messages to agents that wait for them, one for each turn, by the paths of their nodes.
    #[schemars(with = "BTreeMap<String, Vec<String>>")]
    pub(crate) messages: BTreeMap<String, Spanned<Vec<String>>>,
    /// The time at which the session starts; 2026-01-01T00:00:00Z if absent.
    pub(crate) clock: Option<Timestamp>,
    /// What goes wrong. An empty list replaces that of `defaults`.
    #[schemars(with = "Vec<FaultSpec>")]
    pub(crate) faults: Option<Vec<Spanned<FaultSpec>>>,
    /// The expected result.
    pub(crate) expect: Expect,
}

/// The answer of a person.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum ReplySpec {
    /// A choice or a text.
    Text(String),
    /// A choice or a text that comes later.
    Timed(TimedReply),
}

/// A choice or a text that comes later.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TimedReply {
    /// The choice or the text.
    pub(crate) reply: String,
    /// How long after the question it comes, in the time of the test.
    #[serde(default)]
    pub(crate) after: Period,
}

impl ReplySpec {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Timed(timed) => &timed.reply,
        }
    }

    pub(crate) fn after(&self) -> Period {
        match self {
            Self::Text(_) => Period::default(),
            Self::Timed(timed) => timed.after,
        }
    }
}

impl<'de> Deserialize<'de> for ReplySpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            value @ Value::Object(_) => serde_json::from_value(value)
                .map(Self::Timed)
                .map_err(|error| de::Error::custom(with_suggestion(&error.to_string()))),
            other => Err(de::Error::custom(format_args!(
                "a reply is a text, or a mapping with `reply` and `after`; found {other}"
            ))),
        }
    }
}

/// One reply to every question, or one for each.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Replies {
    /// The same to every question.
    Every(ReplySpec),
    /// One for each question.
    Each(Vec<ReplySpec>),
}

impl<'de> Deserialize<'de> for Replies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |value| serde_json::from_value::<ReplySpec>(value).map_err(de::Error::custom);
        match Value::deserialize(deserializer)? {
            Value::Array(list) => list.into_iter().map(read).collect::<Result<_, _>>().map(Self::Each),
            value => read(value).map(Self::Every),
        }
    }
}

impl Replies {
    pub(crate) fn all(&self) -> &[ReplySpec] {
        match self {
            Self::Every(reply) => std::slice::from_ref(reply),
            Self::Each(replies) => replies,
        }
    }

    /// The reply to a node's question with this number, counting from 0.
    pub(crate) fn get(&self, number: usize) -> Option<&ReplySpec> {
        match self {
            Self::Every(reply) => Some(reply),
            Self::Each(replies) => replies.get(number),
        }
    }
}

/// Something that goes wrong: an error instead of an answer, a tool that is denied, or the end of the process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct FaultSpec {
    /// The path of the node that it affects.
    pub(crate) node: Option<String>,
    /// Which of its attempts, counting from 1; the first if absent.
    pub(crate) attempt: Option<u32>,
    /// The error, as in an answer.
    pub(crate) error: Option<String>,
    /// Its message.
    pub(crate) message: Option<String>,
    /// When a usage limit is lifted, counted from the error.
    pub(crate) resets_in: Option<Period>,
    /// When a usage limit is lifted.
    pub(crate) resets_at: Option<Timestamp>,
    /// How long the vendor asks to wait.
    pub(crate) retry_after: Option<Period>,
    /// A tool that the agent calls and is denied; then it answers.
    pub(crate) deny: Option<String>,
    /// A node after whose end the process dies; the session is resumed and must come to the same result. `each`: one
    /// after the other, all nodes that the session runs.
    pub(crate) crash_after: Option<String>,
}

/// Reads a test file.
pub(crate) fn read(path: &Path, text: &str) -> Result<TestFile, FileProblem> {
    use serde_saphyr::Error;

    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let error = match serde_saphyr::from_str_with_options::<TestFile>(text, options) {
        Ok(file) => {
            let (positions, empty) = Tree::of(text).expectations();
            return Ok(TestFile { positions, empty, ..file });
        }
        Err(error) => error,
    };
    let at = error.location();
    let mut key = at.and_then(|at| Tree::of(text).key_at(at, ""));
    let message = match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } => {
            // The place is that of the key, which the message names.
            key = None;
            unknown("unknown key", field, expected)
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => unknown("unknown word", variant, expected),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{key}` is there twice"),
        _ if is_empty(text) => "the file is empty: a test file has `cases`".to_owned(),
        other => {
            // The place is in separate fields.
            let message = other.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            let message =
                message.replace("externally tagged enum expected scalar or mapping", "expected one word");
            let is_of_kind = ["expected ", "invalid "].iter().any(|begin| message.starts_with(begin));
            match key.as_deref().filter(|_| is_of_kind).and_then(expected) {
                Some(expected) => format!("expected {expected}"),
                None => plain_words(message.trim_end_matches(':')),
            }
        }
    };
    Err(FileProblem::new(path, at, key, message))
}

/// Whether a file says nothing.
fn is_empty(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// The JSON Schema of a test file, for editors.
pub fn test_file_schema() -> Value {
    schemars::schema_for!(TestFile).to_value()
}
