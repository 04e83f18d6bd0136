//! Reads a mapping key by key. A key that was not requested is reported as unknown.

use std::{fmt, time::Duration};

use serde_json::{Map, Number, Value};

use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean},
    spec::{Data, Entry, Text, Yaml, either},
};

/// The longest duration: ten years.
const LONGEST_DURATION: Duration = Duration::from_secs(3_650 * 86_400);

/// How a duration is written.
const DURATION_HELP: &str = "write a number and a unit, such as `30s`, `5m` or `1h30m`";

/// The path of a value in the file, formatted only when a problem needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key<'k> {
    Root,
    Field(&'k Key<'k>, &'k str),
    Index(&'k Key<'k>, usize),
}

impl Key<'_> {
    /// Whether it is in the entry of an MCP server, in whose texts variables of the environment are filled in.
    pub(crate) fn is_in_server(&self) -> bool {
        match self {
            Self::Root => false,
            Self::Index(parent, _) => parent.is_in_server(),
            Self::Field(parent, _) if parent.is_in_server() => true,
            Self::Field(parent, "mcpServers") => parent.last() == "options",
            Self::Field(Self::Field(Self::Root, "input"), "server") => true,
            Self::Field(..) => false,
        }
    }

    /// The entries of MCP servers in the value of this key.
    pub(crate) fn servers_in<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let found = match self {
            _ if self.is_in_server() => [Some(value), None],
            Self::Field(_, "options") => [value.get("mcpServers"), None],
            Self::Field(Self::Root, "input") => [value.pointer("/options/mcpServers"), value.get("server")],
            _ => [None, None],
        };
        found.into_iter().flatten().collect()
    }

    /// The last name of the path.
    pub(crate) fn last(&self) -> &str {
        match self {
            Self::Root => "flow",
            Self::Field(_, name) => name,
            Self::Index(parent, _) => parent.last(),
        }
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, at) => write!(f, "{parent}[{at}]"),
        }
    }
}

/// A mapping that is being read.
pub(super) struct Fields<'a, 'k> {
    entries: &'a [Entry],
    pub(super) span: SourceSpan,
    pub(super) key: &'k Key<'k>,
    /// Every key that was requested.
    requested: Vec<&'static str>,
    /// The place of the key that no author writes.
    hidden: Option<usize>,
}

impl<'a, 'k> Fields<'a, 'k> {
    /// Opens a mapping; anything else is reported.
    pub(super) fn open(value: &'a Yaml, key: &'k Key<'k>, sink: &mut Sink) -> Option<Self> {
        match &value.data {
            Data::Map(entries) => {
                Some(Self { entries, span: value.span, key, requested: Vec::new(), hidden: None })
            }
            _ => {
                let what = match key {
                    Key::Root => "a flow file must be a mapping".to_owned(),
                    Key::Index(parent, _) => format!("each item of `{}` must be a mapping", parent.last()),
                    Key::Field(..) => format!("`{}` must be a mapping", key.last()),
                };
                let message = format!("{what}, found {}", value.kind());
                sink.push(Problem::error(Code::WrongType, value.span, message).key(key));
                None
            }
        }
    }

    /// The value under a key; null counts as absent.
    pub(super) fn get(&mut self, name: &'static str) -> Option<&'a Yaml> {
        self.requested.push(name);
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        Some(&entry.value).filter(|value| !matches!(value.data, Data::Null))
    }

    /// The value under a key that no author writes, and that no message names.
    pub(super) fn take(&mut self, name: &str) -> Option<&'a Yaml> {
        let at = self.entries.iter().position(|entry| entry.key == name)?;
        self.hidden = Some(at);
        Some(&self.entries[at].value)
    }

    /// The place of a key that was found.
    pub(super) fn key_span(&self, name: &str) -> SourceSpan {
        self.entries.iter().find(|entry| entry.key == name).map_or(self.span, |entry| entry.key_span)
    }

    pub(super) fn text(&mut self, name: &'static str, sink: &mut Sink) -> Option<Text<'a>> {
        self.text_value(name, sink).and_then(Yaml::placed_text)
    }

    /// The value under a key, if it is a string.
    pub(super) fn text_value(&mut self, name: &'static str, sink: &mut Sink) -> Option<&'a Yaml> {
        let key = Key::Field(self.key, name);
        self.get(name).filter(|value| text(value, &key, sink).is_some())
    }

    /// The text under a key that must be there.
    pub(super) fn required(&mut self, name: &'static str, whose: &str, sink: &mut Sink) -> Option<Text<'a>> {
        let found = self.text(name, sink);
        if self.get(name).is_none() {
            self.missing(name, whose, sink);
        }
        found
    }

    /// One of a fixed list of words.
    pub(super) fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
        sink: &mut Sink,
    ) -> Option<T> {
        let (text, span) = self.text(name, sink)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            let help = did_you_mean(text, words.iter().map(|(word, _)| *word))
                .unwrap_or_else(|| format!("expected {}", either(&names)));
            let message = format!("invalid value `{text}` for `{name}`");
            let problem = Problem::error(Code::InvalidValue, span, message).help(help);
            sink.push(problem.key(Key::Field(self.key, name)));
        }
        found
    }

    pub(super) fn bool(&mut self, name: &'static str, sink: &mut Sink) -> Option<bool> {
        let value = self.get(name)?;
        if let Data::Bool(held) = &value.data {
            return Some(*held);
        }
        let message = format!("`{name}` must be true or false, found {}", value.kind());
        let help = value.text().and_then(|text| match &*text.to_lowercase() {
            "yes" | "on" => Some("write `true`".to_owned()),
            "no" | "off" => Some("write `false`".to_owned()),
            _ => None,
        });
        let problem = Problem::error(Code::WrongType, value.span, message).help(help);
        sink.push(problem.key(Key::Field(self.key, name)));
        None
    }

    /// A positive integer.
    pub(super) fn count(&mut self, name: &'static str, sink: &mut Sink) -> Option<u32> {
        let value = self.get(name)?;
        let key = Key::Field(self.key, name);
        let Data::Number(number) = &value.data else {
            wrong(value, &key, "a positive integer", sink);
            return None;
        };
        let count = number.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|count| *count > 0);
        if count.is_none() {
            let what = match number.as_u64() {
                Some(1..) => format!("at most {}", u32::MAX),
                _ => "a positive integer".to_owned(),
            };
            let message = format!("`{name}` must be {what}, found {number}");
            sink.push(Problem::error(Code::InvalidValue, value.span, message).key(key));
        }
        count
    }

    /// A number that fits, which is `what` in words.
    pub(super) fn number(
        &mut self,
        name: &'static str,
        [takes, what]: [&str; 2],
        fits: impl Fn(f64) -> bool,
        sink: &mut Sink,
    ) -> Option<f64> {
        let value = self.get(name)?;
        let key = Key::Field(self.key, name);
        let Data::Number(number) = &value.data else {
            wrong(value, &key, takes, sink);
            return None;
        };
        let found = number.as_f64().filter(|number| number.is_finite() && fits(*number));
        if found.is_none() {
            let message = format!("`{name}` must be {what}, found {number}");
            sink.push(Problem::error(Code::InvalidValue, value.span, message).key(key));
        }
        found
    }

    /// A duration.
    pub(super) fn duration(&mut self, name: &'static str, sink: &mut Sink) -> Option<Duration> {
        let value = self.get(name)?;
        let help = match &value.data {
            Data::Text(text) => match parse_time(text) {
                Ok(duration) => return Some(duration),
                Err(help) => help.to_owned(),
            },
            Data::Number(number) => without_unit(number),
            _ => DURATION_HELP.to_owned(),
        };
        let message = format!("`{name}` must be a duration");
        let problem = Problem::error(Code::WrongType, value.span, message).help(help);
        sink.push(problem.key(Key::Field(self.key, name)));
        None
    }

    /// The `timeout` of a policy.
    pub(super) fn timeout(&mut self, sink: &mut Sink) -> Option<Duration> {
        let timeout = self.duration("timeout", sink)?;
        if timeout.is_zero()
            && let Some(value) = self.get("timeout")
        {
            let problem = Problem::error(Code::InvalidValue, value.span, "`timeout` must be more than zero");
            let help = "nothing could run: leave it out where there is no limit".to_owned();
            sink.push(problem.help(help).key(Key::Field(self.key, "timeout")));
        }
        Some(timeout)
    }

    pub(super) fn object(&mut self, name: &'static str, sink: &mut Sink) -> Option<Map<String, Value>> {
        let value = self.get(name)?;
        match value.json() {
            Value::Object(map) => Some(map),
            _ => {
                wrong(value, &Key::Field(self.key, name), "a mapping", sink);
                None
            }
        }
    }

    /// Reports a key that is not supported yet.
    pub(super) fn unbuilt(&mut self, name: &'static str, sink: &mut Sink) {
        if self.get(name).is_some() {
            let message = format!("`{name}` is not supported yet");
            let help = "remove it: it has no effect".to_owned();
            let problem = Problem::error(Code::NotSupported, self.key_span(name), message);
            sink.push(problem.help(help).key(Key::Field(self.key, name)));
        }
    }

    /// Reports a missing key.
    pub(super) fn missing(&self, name: &str, whose: &str, sink: &mut Sink) {
        let span = SourceSpan { end: self.span.start, ..self.span };
        let message = format!("{whose} is missing `{name}`");
        sink.push(Problem::error(Code::MissingKey, span, message).key(Key::Field(self.key, name)));
    }

    /// Reports every key that was not requested.
    pub(super) fn finish(self, sink: &mut Sink) {
        self.finish_with(sink, |_| None);
    }

    /// The same, with advice for some keys.
    pub(super) fn finish_with(self, sink: &mut Sink, advice: impl Fn(&str) -> Option<String>) {
        let unknown = |(at, entry): &(usize, &Entry)| {
            Some(*at) != self.hidden && !self.requested.contains(&entry.key.as_str())
        };
        for (_, entry) in self.entries.iter().enumerate().filter(unknown) {
            let help = advice(&entry.key).or_else(|| {
                did_you_mean(&entry.key, self.requested.iter().copied()).or_else(|| {
                    // Some are requested twice in a row.
                    let mut known = self.requested.to_vec();
                    known.dedup();
                    Some(format!("valid keys: {}", known.join(", ")))
                })
            });
            let message = format!("unknown key `{}`", entry.key);
            let problem = Problem::error(Code::UnknownKey, entry.key_span, message).help(help);
            sink.push(problem.key(Key::Field(self.key, &entry.key)));
        }
    }
}

/// A value that must be a string. A number or `true` is an error and is not converted.
pub(super) fn text<'a>(value: &'a Yaml, key: &Key<'_>, sink: &mut Sink) -> Option<Text<'a>> {
    let text = value.placed_text();
    if text.is_none() {
        wrong(value, key, "a string", sink);
    }
    text
}

/// A value that must be a list.
pub(super) fn list<'a>(value: &'a Yaml, key: &Key<'_>, sink: &mut Sink) -> &'a [Yaml] {
    match &value.data {
        Data::List(_) | Data::Null => {}
        _ => wrong(value, key, "a list", sink),
    }
    value.items()
}

pub(super) fn wrong(value: &Yaml, key: &Key<'_>, takes: &str, sink: &mut Sink) {
    let message = match key {
        Key::Index(parent, _) => {
            format!("each item of `{}` must be {takes}, found {}", parent.last(), value.kind())
        }
        _ => format!("`{}` must be {takes}, found {}", key.last(), value.kind()),
    };
    sink.push(Problem::error(Code::WrongType, value.span, message).key(key));
}

/// What to write instead of a number as a duration.
pub(crate) fn without_unit(number: &Number) -> String {
    format!("add a unit: `{number}s` for seconds, `{number}ms` for milliseconds")
}

/// Parses a duration such as `30m`, `1h30m` or `500ms`, or says what to write: a number without a unit is refused.
pub fn parse_time(text: &str) -> Result<Duration, &'static str> {
    match humantime::parse_duration(text) {
        Ok(time) if time > LONGEST_DURATION => Err("the longest duration is ten years (`3650d`)"),
        Ok(time) => Ok(time),
        Err(_) => Err(DURATION_HELP),
    }
}
