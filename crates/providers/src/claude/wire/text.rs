//! Long strings of a line. The parser unescapes a string piece by piece into room that it makes as it goes, anew for
//! each line; here it only finds the end, and there is room for the whole from the start.

use std::borrow::Cow;

use memchr::memchr;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;
use serde_json::value::RawValue;

/// What an agent or a tool says; borrowed from the line unless it holds escapes.
pub(in super::super) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    /// The text itself, without a copy if it was not borrowed.
    pub(in super::super) fn into_string(self) -> String {
        self.0.into_owned()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        match within_quotes(raw) {
            Some(quoted) => text(raw, quoted).map(Self).map_err(D::Error::custom),
            None => Err(D::Error::custom("expected a string")),
        }
    }
}

/// Any value; most are long strings.
pub(in super::super) fn any_value<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Value>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    let value = match within_quotes(raw) {
        Some(quoted) => text(raw, quoted).map(|text| Some(Value::String(text.into_owned()))),
        None => serde_json::from_str(raw),
    };
    value.map_err(D::Error::custom)
}

fn within_quotes(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// What stands between the quotes of `raw`, which the parser has found to be sound but for what an `\u` names.
fn text<'a>(raw: &'a str, quoted: &'a str) -> Result<Cow<'a, str>, serde_json::Error> {
    let Some(first) = escape(quoted) else { return Ok(Cow::Borrowed(quoted)) };
    match unescaped(quoted, first) {
        Some(text) => Ok(Cow::Owned(text)),
        None => serde_json::from_str(raw).map(Cow::Owned),
    }
}

/// Where the next escape is.
fn escape(quoted: &str) -> Option<usize> {
    memchr(b'\\', quoted.as_bytes())
}

/// The text without its escapes, the first of which is at `at`. None if one names a character by its number.
fn unescaped(quoted: &str, mut at: usize) -> Option<String> {
    let mut text = String::with_capacity(quoted.len());
    let mut rest = quoted;
    loop {
        text.push_str(&rest[..at]);
        text.push(match rest.as_bytes().get(at + 1)? {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            escaped @ (b'"' | b'\\' | b'/') => char::from(*escaped),
            _ => return None,
        });
        rest = &rest[at + 2..];
        match escape(rest) {
            Some(next) => at = next,
            None => break,
        }
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow, default)]
        text: Option<Text<'a>>,
        #[serde(default, deserialize_with = "any_value")]
        value: Option<Value>,
    }

    /// The text and the value of `{"text":…,"value":…}`, if it is sound.
    fn read(json: &str) -> Option<(Option<String>, Option<Value>)> {
        let line = format!("{{\"text\":{json},\"value\":{json}}}");
        let line = serde_json::from_str::<Line<'_>>(&line).ok()?;
        Some((line.text.map(Text::into_string), line.value))
    }

    #[test]
    fn a_text_is_borrowed_unless_it_holds_escapes() {
        let borrowed = |json| matches!(serde_json::from_str::<Text<'_>>(json), Ok(Text(Cow::Borrowed(_))));
        assert_eq!([r#""""#, r#""plain ä""#, r#""a\nb""#].map(borrowed), [true, true, false]);
    }

    #[test]
    fn every_escape_is_read() {
        let json = r#""\"\\\/\b\f\n\r\t""#;
        let text = "\"\\/\u{8}\u{c}\n\r\t";
        assert_eq!(read(json), Some((Some(text.to_owned()), Some(Value::from(text)))));
        let json = r#""\u0041\n\ud83e\udd80 ä""#;
        assert_eq!(read(json), Some((Some("A\n🦀 ä".to_owned()), Some(Value::from("A\n🦀 ä")))));
        assert_eq!(read("null"), Some((None, None)));
        assert_eq!(read("\"\""), Some((Some(String::new()), Some(Value::from("")))));
    }

    #[test]
    fn what_is_no_text_or_broken_is_refused() {
        let refused = [
            "7",
            "{}",
            "[\"a\"]",
            r#""\x""#,
            r#""\ud83e""#,
            r#""\ud83e\u0041""#,
            r#""\u00zz""#,
            "\"a\nb\"",
            "\"a",
        ];
        assert_eq!(refused.map(read), [const { None }; 9]);
        let values = ["7", "{\"a\":[1,\"\\n\"]}", "true"].map(|json| {
            let line = format!("{{\"value\":{json}}}");
            serde_json::from_str::<Line<'_>>(&line).ok().and_then(|line| line.value)
        });
        let expected = ["7", "{\"a\":[1,\"\\n\"]}", "true"].map(|json| serde_json::from_str(json).ok());
        assert_eq!(values, expected);
    }

    proptest! {
        #[test]
        fn a_text_comes_back_as_it_was(text in any::<String>(), few in "[\\\\\"\n\t/a-c]{0,40}") {
            for text in [text, few] {
                let json = Value::from(text.clone()).to_string();
                prop_assert_eq!(read(&json), Some((Some(text.clone()), Some(Value::from(text)))));
            }
        }
    }
}
