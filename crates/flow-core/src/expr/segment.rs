//! Splits a template into text, expressions and statements, without parsing what is inside the braces.

/// A piece of a template. Offsets are those of the inner text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    /// Plain text.
    Text(&'a str),
    /// `{{ … }}`, without its braces.
    Expression { source: &'a str, offset: usize, trims: Trims },
    /// `{% … %}`, without its braces.
    Statement { source: &'a str, offset: usize },
    /// `{# … #}`, with the offset of its first brace.
    Comment { offset: usize },
}

/// Whether an expression trims the whitespace around it (`{{-`, `-}}`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trims {
    No,
    Yes,
}

/// The segments of a template, or the offset of braces that are never closed.
pub(crate) fn segments(text: &str) -> Result<Vec<Segment<'_>>, usize> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(open) = next_open(text, at) {
        if open > at {
            found.push(Segment::Text(&text[at..open]));
        }
        let inside = open + 2;
        let close = match text.as_bytes()[open + 1] {
            b'#' => text[inside..].find("#}").map(|len| inside + len),
            b'%' => closing(text, inside, b'%'),
            _ => closing(text, inside, b'}'),
        };
        let close = close.ok_or(open)?;
        let inner = &text[inside..close];
        at = close + 2;
        match text.as_bytes()[open + 1] {
            b'#' => found.push(Segment::Comment { offset: open }),
            b'%' => {
                let source = inner.trim_matches(['-', '+']).trim();
                let head = inner.trim_start_matches(['-', '+']).trim_start();
                let offset = inside + inner.len() - head.len();
                found.push(Segment::Statement { source, offset });
                if source == "raw" {
                    at = end_of_raw(text, at).ok_or(open)?;
                }
            }
            _ => {
                let head = inner.strip_prefix(['-', '+']).unwrap_or(inner);
                let source = head.strip_suffix(['-', '+']).unwrap_or(head);
                let trims = if source.len() == inner.len() { Trims::No } else { Trims::Yes };
                found.push(Segment::Expression { source, offset: inside + inner.len() - head.len(), trims });
            }
        }
    }
    if at < text.len() {
        found.push(Segment::Text(&text[at..]));
    }
    Ok(found)
}

/// The offset of the first braces of an expression or of a statement other than `raw`.
pub(crate) fn first_code(text: &str) -> Option<usize> {
    segments(text).ok()?.iter().find_map(|part| match part {
        Segment::Expression { offset, .. } => text[..*offset].rfind("{{"),
        Segment::Statement { source, offset } if *source != "raw" => text[..*offset].rfind("{%"),
        _ => None,
    })
}

/// The offset of a `$` before a comment: a shell's `${#name}`, the length of a variable, is meant.
pub(crate) fn shell_length(text: &str) -> Option<usize> {
    if !text.contains("${#") {
        return None;
    }
    segments(text).ok()?.iter().find_map(|part| match part {
        Segment::Comment { offset } => {
            offset.checked_sub(1).filter(|before| text.as_bytes()[*before] == b'$')
        }
        _ => None,
    })
}

/// The offset of a `$` before an expression, as in `${{ name }}` of GitHub Actions, and the expression.
pub(crate) fn dollar(text: &str) -> Option<(usize, &str)> {
    if !text.contains("${{") {
        return None;
    }
    segments(text).ok()?.iter().find_map(|part| match part {
        Segment::Expression { source, offset, .. } => {
            let before = text[..*offset].rfind("{{")?.checked_sub(1)?;
            (text.as_bytes()[before] == b'$').then(|| (before, source.trim()))
        }
        _ => None,
    })
}

/// Whether a text has expressions, statements or comments.
pub(crate) fn has_segments(text: &str) -> bool {
    next_open(text, 0).is_some()
}

fn next_open(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|&at| bytes[at] == b'{' && matches!(bytes[at + 1], b'{' | b'%' | b'#'))
}

/// The offset of the closing braces, after strings and nested braces.
fn closing(text: &str, from: usize, kind: u8) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (from, 0_u32);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while *bytes.get(at)? != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            byte if byte == kind && depth == 0 && bytes.get(at + 1) == Some(&b'}') => return Some(at),
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

fn end_of_raw(text: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let open = at + text[at..].find("{%")?;
        let close = open + 2 + text[open + 2..].find("%}")?;
        if text[open + 2..close].trim_matches(['-', '+']).trim() == "endraw" {
            return Some(close + 2);
        }
        at = close + 2;
    }
}
