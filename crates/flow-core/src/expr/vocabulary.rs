//! The known filters and tests, so that an unknown one is reported before anything runs.

use crate::{diagnostic::did_you_mean, expr::SyntaxFault};

pub(super) const FILTERS: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "zip",
];

pub(super) const TESTS: &[&str] = &[
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "int",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "safe",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// The most operators in an expression: each may be one more level, and each level needs stack to parse.
const MAX_OPERATORS: usize = 300;

/// Refuses unknown filters and tests, and an expression with too many operators to be parsed safely.
pub(super) fn check(source: &str) -> Result<(), SyntaxFault> {
    if is_plain(source) {
        return Ok(());
    }
    let words = words(source);
    check_signs(&words)?;
    let nests = |word: &str| match word {
        "," | ":" | "\"" => false,
        "and" | "or" | "not" | "if" | "is" | "in" => true,
        word => !word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'),
    };
    let mut operators = words.iter().filter(|(word, _)| nests(word));
    if let Some(&(_, offset)) = operators.nth(MAX_OPERATORS) {
        let reason = format!("the expression has more than {MAX_OPERATORS} operators");
        let help = Some("split it up with `{% set … %}`".to_owned());
        return Err(SyntaxFault { reason, offset, help });
    }
    for (at, &(word, offset)) in words.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map(|before| words[before].0);
        let (kind, known) = match (before(2), before(1)) {
            (_, Some("|")) => ("filter", FILTERS),
            (_, Some("is")) if word != "not" => ("test", TESTS),
            (Some("is"), Some("not")) => ("test", TESTS),
            _ => continue,
        };
        let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if is_name && !known.contains(&word) {
            let reason = format!("unknown {kind} `{word}`");
            return Err(SyntaxFault { reason, offset, help: did_you_mean(word, known.iter().copied()) });
        }
    }
    Ok(())
}

/// Refuses unknown characters: the parser of minijinja would silently stop before them.
fn check_signs(words: &[(&str, usize)]) -> Result<(), SyntaxFault> {
    for (at, &(word, offset)) in words.iter().enumerate() {
        let is_next = |sign| words.get(at + 1) == Some(&(sign, offset + 1));
        let is_known = match word {
            "!" => is_next("="),
            word => {
                word.starts_with(|c: char| c.is_ascii_alphanumeric() || "_\"+-*/%.,:~|=<>()[]{}".contains(c))
            }
        };
        if !is_known {
            let sign = if is_next(word) { word.repeat(2) } else { word.to_owned() };
            let help = match sign.as_str() {
                "&&" => Some("use `and`"),
                "!" => Some("use `not`"),
                "?" => Some("use `a if condition else b`"),
                "$" if is_next("{") => {
                    Some("write `{{ … }}` without the `$`, or in a condition the expression alone")
                }
                "$" => Some("write the name without the `$`"),
                _ => None,
            };
            let reason = format!("unexpected `{sign}` in an expression");
            // What is before it may be wrong in another way.
            let before = foreign_word(&words[..at]).map(|(_, help)| help);
            let help = match (help, before) {
                (Some(help), Some(before)) => Some(format!("{before}; {help}")),
                (help, before) => help.map(str::to_owned).or(before),
            };
            return Err(SyntaxFault { reason, offset, help });
        }
    }
    Ok(())
}

/// An operator of another language in an invalid expression, and what to write instead.
pub(super) fn foreign(source: &str) -> Option<(usize, String)> {
    foreign_word(&words(source))
}

fn foreign_word(words: &[(&str, usize)]) -> Option<(usize, String)> {
    let mut depth = 0_i32;
    for (at, &(word, offset)) in words.iter().enumerate() {
        let after = words.get(at + 1).filter(|(_, place)| *place == offset + 1).map(|(word, _)| *word);
        let before = at.checked_sub(1).map(|at| words[at]).filter(|(_, place)| place + 1 == offset);
        let help = match (word, after) {
            ("(" | "[" | "{", _) => {
                depth += 1;
                continue;
            }
            (")" | "]" | "}", _) => {
                depth -= 1;
                continue;
            }
            ("=", after)
                if depth == 0
                    && after != Some("=")
                    && !matches!(before.map(|(word, _)| word), Some("=" | "!" | "<" | ">")) =>
            {
                "use `==` to compare"
            }
            ("|", Some("|")) => "use `or` instead of `||`",
            _ => continue,
        };
        return Some((offset, help.to_owned()));
    }
    None
}

/// Whether a source is one name or dotted path, and too short to have too many operators.
pub(super) fn is_plain(source: &str) -> bool {
    let source = source.trim();
    source.len() <= MAX_OPERATORS
        && source.bytes().all(|byte| byte == b'_' || byte == b'.' || byte.is_ascii_alphanumeric())
}

/// Names and signs with their offsets; a string is one sign.
fn words(source: &str) -> Vec<(&str, usize)> {
    let bytes = source.as_bytes();
    let part = |b: u8| b == b'_' || b.is_ascii_alphanumeric();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                found.push(("\"", start));
                continue;
            }
            byte if part(byte) => {
                while at < bytes.len() && part(bytes[at]) {
                    at += 1;
                }
            }
            byte => {
                at += source[at..].chars().next().map_or(1, char::len_utf8);
                if byte.is_ascii_whitespace() {
                    continue;
                }
            }
        }
        found.push((&source[start..at], start));
    }
    found
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, ErrorKind};

    use super::*;

    #[test]
    fn every_listed_word_exists() {
        let environment = Environment::new();
        let fails = |source: String, kind| {
            let outcome = environment.compile_expression_owned(source).unwrap().eval(());
            outcome.err().is_some_and(|error| error.kind() == kind)
        };
        let missing = FILTERS.iter().filter(|name| fails(format!("1 | {name}"), ErrorKind::UnknownFilter));
        let missing =
            missing.chain(TESTS.iter().filter(|name| fails(format!("1 is {name}"), ErrorKind::UnknownTest)));
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
        assert!(fails("1 | uper".to_owned(), ErrorKind::UnknownFilter));
        assert!(fails("1 is strnig".to_owned(), ErrorKind::UnknownTest));
    }
}
