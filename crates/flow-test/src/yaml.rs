//! Writes values as YAML that people read and edit: texts of several lines as blocks, quotes only where they are
//! needed.

use std::fmt::Write;

use serde_json::Value;

/// The longest list or mapping on one line, in characters.
const LINE: usize = 90;

/// A value as the lines of a YAML document, indented by so many spaces.
pub(crate) fn document(value: &Value, indent: usize) -> String {
    let mut out = String::new();
    block(value, indent, &mut out);
    out
}

/// Writes a value that begins on a new line.
fn block(value: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let _ = write!(out, "{pad}{}:", text(key));
                after(value, indent, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                match on_one_line(item) {
                    Some(line) => inner.push_str(&format!("{}{line}\n", " ".repeat(indent + 2))),
                    None => match item {
                        Value::String(content) => {
                            inner.push_str(&format!(
                                "{}{}",
                                " ".repeat(indent + 2),
                                literal(content, indent + 2)
                            ));
                        }
                        item => block(item, indent + 2, &mut inner),
                    },
                }
                // The first line of the item follows the dash.
                let _ = write!(out, "{pad}- {}", &inner[(indent + 2).min(inner.len())..]);
            }
        }
        Value::String(content) if content.contains('\n') => {
            let _ = write!(out, "{pad}{}", literal(content, indent));
        }
        scalar => {
            let _ = writeln!(out, "{pad}{}", on_one_line(scalar).unwrap_or_default());
        }
    }
}

/// Writes the value of a key: behind it if it is short, else below.
fn after(value: &Value, indent: usize, out: &mut String) {
    match on_one_line(value) {
        Some(line) => {
            let _ = writeln!(out, " {line}");
        }
        None => match value {
            Value::String(content) => {
                let _ = write!(out, " {}", literal(content, indent + 2));
            }
            value => {
                out.push('\n');
                block(value, indent + 2, out);
            }
        },
    }
}

/// The value on one line, if it is short and has no text of several lines.
fn on_one_line(value: &Value) -> Option<String> {
    match value {
        Value::String(content) if is_block(content) => None,
        Value::String(content) => Some(text(content)),
        Value::Array(_) | Value::Object(_) => {
            let line = flow(value)?;
            (line.chars().count() <= LINE).then_some(line)
        }
        scalar => Some(scalar.to_string()),
    }
}

fn flow(value: &Value) -> Option<String> {
    match value {
        Value::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(flow).collect();
            Some(format!("[{}]", items?.join(", ")))
        }
        Value::Object(fields) if fields.is_empty() => Some("{}".to_owned()),
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(key, value)| Some(format!("{}: {}", in_flow(key), flow(value)?)));
            Some(format!("{{ {} }}", fields.collect::<Option<Vec<_>>>()?.join(", ")))
        }
        Value::String(content) if is_block(content) => None,
        Value::String(content) => Some(in_flow(content)),
        scalar => Some(scalar.to_string()),
    }
}

/// Whether a text is written as a block.
fn is_block(text: &str) -> bool {
    text.contains('\n') && text.chars().all(|c| c == '\n' || c == '\t' || !is_escaped(c))
}

/// Whether a character is written as its number: a reader of YAML refuses it, or takes it for something else.
fn is_escaped(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// A text of several lines as a block, whose lines are indented by so many spaces.
fn literal(text: &str, indent: usize) -> String {
    let pad = " ".repeat(indent);
    // A text that begins with a space or an empty line needs to say where its lines begin.
    let begins = if text.starts_with([' ', '\t', '\n']) { "2" } else { "" };
    let body = text.trim_end_matches('\n');
    let ends = match text.len() - body.len() {
        0 => "-",
        1 if !body.is_empty() => "",
        _ => "+",
    };
    let mut out = format!("|{begins}{ends}\n");
    let lines = text.strip_suffix('\n').unwrap_or(text);
    for line in lines.split('\n') {
        match line {
            "" => out.push('\n'),
            line => {
                let _ = writeln!(out, "{pad}{line}");
            }
        }
    }
    out
}

/// A text on one line, quoted if it could be read as something else.
fn text(text: &str) -> String {
    if is_plain(text, &[]) { text.to_owned() } else { quoted(text) }
}

fn in_flow(text: &str) -> String {
    if is_plain(text, &[',', '[', ']', '{', '}']) { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    // JSON escapes the controls of ASCII alone, and none of the others is beyond U+FFFF.
    let mut out = String::new();
    for c in Value::from(text).to_string().chars() {
        if is_escaped(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Words that YAML, or an older reader of it, takes for something else.
const WORDS: &[&str] = &["true", "false", "null", "yes", "no", "on", "off"];

fn is_plain(text: &str, but: &[char]) -> bool {
    let begins =
        text.starts_with(|c: char| c.is_alphabetic() || matches!(c, '_' | '/')) || text.starts_with("../");
    let allowed = |c: char| c.is_alphanumeric() || " _-./()+=<>;!?'*,[]{}#".contains(c) || (c == ':');
    begins
        && text.chars().all(|c| allowed(c) && !but.contains(&c))
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !WORDS.contains(&text.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: &Value) {
        let text = document(value, 0);
        let read: Value =
            serde_saphyr::from_str_with_options(&text, serde_saphyr::options! { strict_booleans: true })
                .unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read, *value, "{text}");
    }

    #[test]
    fn each_character_is_read_again() {
        // The others are like their neighbours.
        let odd = ['\u{2020}'..='\u{2030}', '\u{d7fe}'..='\u{e001}', '\u{fef0}'..='\u{10001}'];
        for c in ('\0'..='\u{17f}').chain(odd.into_iter().flatten()) {
            let text = [format!("{c}"), format!("a{c}b"), format!("a{c}\nb{c}{c}\n")];
            check(
                &json!({ "alone": text[0], "in": text[1], "lines": text[2], "list": text, &text[1]: [&text] }),
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_again(text in "(?s).{0,8}", odd in "[ \t\r\n:#'\"|>{}\\[\\],&*!%@`?-]{0,6}[\0-\u{a0}\u{fff0}-\u{ffff}]{0,4}") {
            let both = format!("{odd}{text}{odd}");
            check(&json!({ "a": text, "b": odd, "c": [both, { "d": [&odd] }], &both: { &odd: both }, "e": { "f": text } }));
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let rows = [
            json!({ "a": "plain text", "b": "yes", "c": "1", "d": "", "e": 1.5, "f": null, "g": [], "h": {} }),
            json!({ "text": "one\ntwo\n", "last": "no end\nof line", "more": "x\n\n\n", "space": "  in\nout", "empty": "\n" }),
            json!({ "list": ["a: b", "- c", "# d", "e #f", "g:", "'h'", "\"i\"", "{j}", "[k]", "l, m"] }),
            json!({ "deep": [{ "a": [{ "b": "x\ny" }] }, ["z\nw", ["v"]], "one\ntwo"] }),
            json!({ "odd keys": { "scan[*]/review": 1, "a: b": 2, "": 3, "true": 4 } }),
            json!({ "odd": ["\u{7}bell\n", "tab\tin\nlines", "\r\n", "\u{2028}\n", "trailing \nspace ", "ö\nß"] }),
            json!({ "long": ["a text that is long enough to be put", "on a line of its own, because it is too long", "for one"] }),
        ];
        rows.iter().for_each(check);
    }

    #[test]
    fn it_reads_as_people_write_it() {
        let value = json!({ "code": "Write it.\nBe brief.\n", "more": { "argv": ["make", "test"], "n": 2 } });
        assert_eq!(
            document(&value, 2),
            "  code: |\n    Write it.\n    Be brief.\n  more: { argv: [make, test], n: 2 }\n"
        );
    }
}
