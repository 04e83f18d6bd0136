//! Scalars by the core schema of YAML 1.2 (`yes` and `on` are strings), and the layout of their text in the file.

use serde_json::Number;
use serde_saphyr::granit_parser::{ScalarStyle, Span as Range, Tag};

use super::value::{Data, Layout, TextPart, count};
use crate::diagnostic::Position;

/// The value of a scalar, or what is wrong with it.
pub(super) fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Data, String> {
    let Some(tag) = tag else {
        return match style {
            ScalarStyle::Plain if is_too_large(text) => {
                Err(format!("the number `{text}` is too large; quote it if it is a string"))
            }
            ScalarStyle::Plain => Ok(plain(text)),
            _ => Ok(Data::Text(text.into())),
        };
    };
    let found = match tag.core_suffix() {
        Some("str") => Some(Data::Text(text.into())),
        Some("null") => Some(plain(text)).filter(|data| matches!(data, Data::Null)),
        Some("bool") => Some(plain(text)).filter(|data| matches!(data, Data::Bool(_))),
        Some("int" | "float") => Some(plain(text)).filter(|data| matches!(data, Data::Number(_))),
        _ => return Err(format!("unknown tag `{}`", tag.original())),
    };
    found.ok_or_else(|| format!("`{text}` is not a valid `{}`", tag.original()))
}

fn plain(text: &str) -> Data {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Data::Null,
        "true" | "True" | "TRUE" => Data::Bool(true),
        "false" | "False" | "FALSE" => Data::Bool(false),
        _ => number(text).map_or_else(|| Data::Text(text.into()), Data::Number),
    }
}

/// Whether a text is a number that JSON cannot represent.
fn is_too_large(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_of = |digits: &str, base| !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    let is_whole = is_of(digits, 10) && !(digits.len() > 1 && digits.starts_with('0'))
        || text.strip_prefix("0x").is_some_and(|digits| is_of(digits, 16))
        || text.strip_prefix("0o").is_some_and(|digits| is_of(digits, 8));
    let is_endless = || {
        digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
            && !(digits.len() > 1 && digits.starts_with('0'))
            && digits.parse::<f64>().is_ok_and(f64::is_infinite)
    };
    (is_whole || is_endless()) && number(text).is_none()
}

/// A number that JSON can represent. A number with a leading zero stays a string, so that no digit is lost.
fn number(text: &str) -> Option<Number> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().map(Number::from);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok().map(Number::from);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, rest) = unsigned.split_at(unsigned.bytes().take_while(u8::is_ascii_digit).count());
    if whole.len() > 1 && whole.starts_with('0') {
        return None;
    }
    if rest.is_empty() {
        let text = text.strip_prefix('+').unwrap_or(text);
        return text.parse::<u64>().map(Number::from).or_else(|_| text.parse::<i64>().map(Number::from)).ok();
    }
    let plain = unsigned.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    let digits = whole.len() + rest.bytes().skip(1).take_while(u8::is_ascii_digit).count();
    let headless = whole.is_empty() && !rest.starts_with('.');
    if !plain || digits == 0 || headless {
        return None;
    }
    Number::from_f64(text.parse().ok()?)
}

/// The layout of a scalar on one line.
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

/// The layout of a scalar that is folded over these lines of the file. What follows an escape has no known place.
pub(super) fn folded_layout(range: &Range, text: &str, style: ScalarStyle, lines: &[&str]) -> Layout {
    let first = range.start.line();
    let quote = usize::from(matches!(style, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted));
    let mut parts: Vec<TextPart> = Vec::new();
    for (line, written) in (1..).zip(lines).take(range.end.line()).skip(first.saturating_sub(1)) {
        let from = if line == first { range.start.col() + quote } else { 0 };
        let indent = written.chars().skip(from).take_while(|char| char.is_whitespace()).count();
        let written = written.chars().skip(from + indent);
        let rest = text[parts.last().map_or(0, |part| part.bytes.end)..].trim_start();
        let same = written.clone().zip(rest.chars()).take_while(|(one, other)| one == other);
        let (letters, len) =
            same.fold((0, 0), |(letters, len), (char, _)| (letters + 1, len + char.len_utf8()));
        if len > 0 {
            let at = text.len() - rest.len();
            let start = Position { line: count(line), column: count(from + indent + 1) };
            parts.push(TextPart { bytes: at..at + len, start });
        }
        if written.skip(letters).any(|char| !char.is_whitespace()) {
            break;
        }
    }
    if parts.is_empty() { Layout::Loose } else { Layout::Folded(parts.into()) }
}

/// The layout of a literal block; the parser reports its first line that is not blank.
pub(super) fn block_layout(range: &Range, text: &str) -> Layout {
    let blank = text.len() - text.trim_start_matches('\n').len();
    Layout::Block(count(range.start.line().saturating_sub(blank)), count(range.start.col()))
}
