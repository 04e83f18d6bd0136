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

/// The places of what is expected, read apart from what is there.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Positions {
    defaults: CasePositions,
    cases: Vec<CasePositions>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CasePositions {
    expect: BTreeMap<String, Spanned<Entries>>,
}

impl Positions {
    /// By their keys; and the keys that have nothing in them.
    fn by_key(self) -> (BTreeMap<String, Location>, Vec<String>) {
        let cases = self.cases.into_iter().enumerate().map(|(at, case)| (format!("cases[{at}]"), case));
        let all = cases.chain([("defaults".to_owned(), self.defaults)]);
        let (mut found, mut empty) = (BTreeMap::new(), Vec::new());
        for (case, positions) in all {
            for (of, at) in positions.expect {
                let of = format!("{case}.expect.{of}");
                found.insert(of.clone(), at.referenced);
                let Entries { places, is_empty } = at.value;
                found.extend(places.into_iter().map(|(key, at)| (format!("{of}.{key}"), at)));
                empty.extend(is_empty.then_some(of));
            }
        }
        (found, empty)
    }
}

/// Where the entries of a mapping are, or the words of a list; of anything else there are none.
#[derive(Default)]
struct Entries {
    places: BTreeMap<String, Location>,
    /// Whether it is a mapping without entries, or nothing at all. A list without any is a value.
    is_empty: bool,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self::default())
    }
}

impl<'de> de::Visitor<'de> for Entries {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: de::MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((key, value)) = map.next_entry::<String, Spanned<Value>>()? {
            self.places.insert(key, value.referenced);
        }
        self.is_empty = self.places.is_empty();
        Ok(self)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while let Some(item) = list.next_element::<Spanned<Value>>()? {
            if let Value::String(word) = item.value {
                self.places.insert(word, item.referenced);
            }
        }
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(Self { is_empty: true, ..self })
    }
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
    /// What goes wrong.
    #[schemars(with = "Vec<FaultSpec>")]
    pub(crate) faults: Vec<Spanned<FaultSpec>>,
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
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let read: Result<TestFile, _> = serde_saphyr::from_str_with_options(text, options.clone());
    let positions = || serde_saphyr::from_str_with_options::<Positions>(text, options).unwrap_or_default();
    let with_positions = |file| {
        let (positions, empty) = positions().by_key();
        TestFile { positions, empty, ..file }
    };
    read.map(with_positions).map_err(|error| {
        use serde_saphyr::Error;
        let at = error.location();
        let message = match error.without_snippet() {
            Error::SerdeUnknownField { field, expected, .. } => unknown("unknown key", field, expected),
            Error::SerdeUnknownVariant { variant, expected, .. } => {
                unknown("unknown word", variant, expected)
            }
            Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{key}` is there twice"),
            other => {
                // The place is in separate fields.
                let message = other.to_string();
                let message = message.split(" at line ").next().unwrap_or_default();
                let message =
                    message.replace("externally tagged enum expected scalar or mapping", "expected one word");
                match is_empty(text) {
                    true => "the file is empty: a test file has `cases`".to_owned(),
                    false => plain_words(message.trim_end_matches(':')),
                }
            }
        };
        FileProblem {
            file: path.to_owned(),
            line: at.map(|at| at.line()),
            column: at.map(|at| at.column()),
            key: None,
            message,
        }
    })
}

/// Whether a file says nothing.
fn is_empty(text: &str) -> bool {
    text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// The JSON Schema of a test file, for editors.
pub fn test_file_schema() -> Value {
    schemars::schema_for!(TestFile).to_value()
}
