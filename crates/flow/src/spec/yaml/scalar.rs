//! What a scalar means, by the core schema of YAML 1.2: `yes` and `on` are texts.

use serde_json::Number;
use serde_saphyr::granit_parser::{ScalarStyle, Tag};

use super::Data;

/// The value of a scalar, or why it has none.
pub(super) fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Data, String> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain { plain(text) } else { Data::Text(text.into()) });
    };
    let found = match tag.core_suffix() {
        Some("str") => Some(Data::Text(text.into())),
        Some("null") => Some(plain(text)).filter(|data| matches!(data, Data::Null)),
        Some("bool") => Some(plain(text)).filter(|data| matches!(data, Data::Bool(_))),
        Some("int" | "float") => Some(plain(text)).filter(|data| matches!(data, Data::Number(_))),
        _ => return Err(format!("the tag `{}` has no meaning in a flow", tag.original())),
    };
    found.ok_or_else(|| format!("`{text}` is no value of the tag `{}`", tag.original()))
}

fn plain(text: &str) -> Data {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Data::Null,
        "true" | "True" | "TRUE" => Data::Bool(true),
        "false" | "False" | "FALSE" => Data::Bool(false),
        _ => number(text).map_or_else(|| Data::Text(text.into()), Data::Number),
    }
}

/// A number that JSON can hold. One with a leading zero or too many digits stays the text that it was, so
/// that no digit is lost.
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
