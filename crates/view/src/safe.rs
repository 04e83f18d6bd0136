//! Text from outside, made safe for a terminal. Everything that an agent, a flow, a tool, a vendor or an imported
//! session wrote goes through here before it is shown: no escape sequence, no control character, nothing that turns
//! the direction of writing around and nothing invisible reaches a terminal.

use std::borrow::Cow;

pub use inspan_protocol::{is_unsafe, spelled_out};

/// Text of several lines: line breaks and tabs stay, escape sequences go, any other unsafe character is a space.
pub fn text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let text = console::strip_ansi_codes(text).replace("\r\n", "\n");
    Cow::Owned(text.chars().map(|c| if is_unsafe(c) { ' ' } else { c }).collect())
}

/// One line, with its gaps as they are: line breaks and tabs are spaces too.
pub fn harmless(text: &str) -> String {
    let blank = |c: char| if c.is_whitespace() || is_unsafe(c) { ' ' } else { c };
    console::strip_ansi_codes(text).chars().map(blank).collect()
}

/// One line, with one space where there was a gap.
pub fn clean(text: &str) -> String {
    let text = harmless(text);
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// Text in HTML and XML, in an element and in an attribute.
pub fn markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no place for these, not even as numbers.
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() && !matches!(c, '\n' | '\t') => {}
            c => out.push(c),
        }
    }
    out
}

/// One line of Markdown, in which nothing of the text is markup.
pub fn markdown(text: &str) -> String {
    let mut out = String::new();
    for c in clean(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '!' | '&' | '~') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Text that the program itself has given colours to: colours stay, everything else unsafe goes.
pub fn coloured(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for (part, is_sequence) in console::AnsiCodeIterator::new(text) {
        match is_sequence {
            true if is_colour(part) => out.push_str(part),
            true => {}
            false => out.extend(part.chars().map(|c| if is_unsafe(c) { ' ' } else { c })),
        }
    }
    Cow::Owned(out)
}

/// Whether a sequence only changes how text looks: `ESC [ numbers m`.
fn is_colour(sequence: &str) -> bool {
    let numbers = sequence.strip_prefix("\u{1b}[").and_then(|rest| rest.strip_suffix('m'));
    numbers.is_some_and(|numbers| numbers.chars().all(|c| c.is_ascii_digit() || c == ';'))
}

/// JSON with every unsafe character as an escape: the same value, and nothing in it controls a terminal.
/// Such characters are only within the strings of a JSON text.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind that is not let through.
    const HOSTILE: &str = "\u{1b}]52;c;cHduZWQ=\u{7}a\u{1b}]8;;http://evil/\u{7}link\u{1b}]8;;\u{7}\u{1b}[2J\u{1b}[1;1H\u{1b}]0;t\u{7}\rb\u{8}\u{202e}c\u{2066}\u{9b}31m\u{90}\u{200b}\u{2028}\u{7f}\u{0}\u{e0041}d";

    #[test]
    fn no_form_lets_anything_unsafe_through() {
        let bad = |text: &str| text.chars().any(is_unsafe);
        let forms = [
            text(HOSTILE).into_owned(),
            harmless(HOSTILE),
            clean(HOSTILE),
            spelled_out(HOSTILE),
            coloured(HOSTILE).into_owned(),
            json(HOSTILE).into_owned(),
        ];
        assert_eq!(forms.each_ref().map(|form| bad(form)), [false; 6]);
        assert_eq!(clean(HOSTILE), "alink b c d");
    }

    #[test]
    fn each_form_leaves_what_it_is_for() {
        assert_eq!(text("a\tb\r\nc\u{7}é日"), "a\tb\nc é日");
        assert_eq!(coloured("\u{1b}[1;31mred\u{1b}[0m\u{1b}[2J\u{202e}"), "\u{1b}[1;31mred\u{1b}[0m ");
        let value = serde_json::json!({ "a\u{9b}": "\u{202e}\u{e0041}\u{1b}" });
        let shown = json(&value.to_string()).into_owned();
        assert_eq!(shown, r#"{"a\u009b":"\u202e\udb40\udc41\u001b"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn one_line_is_one_line() {
        let rows = ["a\u{1b}[2Jb", "a\r\n\tb", "\u{1b}]0;title\u{7}x", "a\u{202e}b", "  a  b  ", "日本"];
        assert_eq!(rows.map(clean), ["ab", "a b", "x", "a b", "a b", "日本"]);
    }
}
