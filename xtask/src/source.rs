//! Rust text as the checks see it: comments and literals blanked out, tests at the end cut off.

/// Replaces the content of comments, strings and character literals by spaces. Lines and columns stay where
/// they were, so a finding can name its line.
pub(crate) fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match literal_end(&chars, at) {
            Some(end) => end,
            None => {
                out.push(chars[at]);
                at += 1;
                continue;
            }
        };
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// The number of lines before the test module that closes the file, or all lines where there is none.
/// `mod tests;` names another file and cuts nothing off.
pub(crate) fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines.iter().enumerate().find(|(index, line)| {
        let mut after = lines[index + 1..].iter().skip_while(|next| next.starts_with("#["));
        line.trim_end() == "#[cfg(test)]"
            && after.next().is_some_and(|next| next.starts_with("mod ") && next.trim_end().ends_with('{'))
    });
    tail.map_or(lines.len(), |(index, _)| index)
}

/// Whether `word` is in `text` between characters that cannot belong to a Rust path segment.
pub(crate) fn mentions(text: &str, word: &str) -> bool {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let open_left = word.starts_with(is_ident) && before.is_some_and(is_ident);
        let open_right = word.ends_with(is_ident) && after.is_some_and(is_ident);
        !open_left && !open_right
    })
}

/// If a comment or a literal begins at `at`, the index just past it.
fn literal_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, |c| c == '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => Some(string_end(chars, at + 1)),
        'r' if !follows_ident(chars, at) => raw_string_end(chars, at + 1),
        'b' if !follows_ident(chars, at) && next == Some('r') => raw_string_end(chars, at + 2),
        '\'' if next == Some('\\') => Some((find(chars, at + 3, |c| c == '\'') + 1).min(chars.len())),
        '\'' if chars.get(at + 2) == Some(&'\'') => Some(at + 3),
        _ => None,
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|&index| wanted(chars[index])).unwrap_or(chars.len())
}

fn follows_ident(chars: &[char], at: usize) -> bool {
    // `br"…"` reaches here with its `b` before the `r`; the `b` arm has already taken that literal.
    at.checked_sub(1).is_some_and(|before| chars[before].is_alphanumeric() || chars[before] == '_')
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

fn raw_string_end(chars: &[char], after_r: usize) -> Option<usize> {
    let quote = find(chars, after_r, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - after_r;
    let closes = |index: usize| {
        chars[index] == '"' && chars[index + 1..].iter().take_while(|&&c| c == '#').count() >= hashes
    };
    let end = (quote + 1..chars.len()).find(|&index| closes(index));
    Some(end.map_or(chars.len(), |index| index + 1 + hashes))
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0usize;
    let mut index = at;
    while index < chars.len() {
        match (chars[index], chars.get(index + 1)) {
            ('/', Some('*')) => (depth, index) = (depth + 1, index + 2),
            ('*', Some('/')) => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            break;
        }
    }
    index.min(chars.len())
}

#[cfg(test)]
mod tests {
    use super::{blank, lines_before_tests, mentions};

    #[test]
    fn blanks_what_is_not_code() {
        let cases = [
            ("a // todo!()\nb", "a           \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("a\"b") + g"#, "f(      ) + g"),
            ("r#\"a\"b\"# + c", "         + c"),
            ("br\"a\" + c", "      + c"),
            ("'a' + '\\'' + '\\u{1F}' + b", "    +      +          + b"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("for r in \"x\"", "for r in    "),
            ("\"open", "     "),
            ("'\\", "  "),
        ];
        let expected: Vec<&str> = cases.iter().map(|(_, expected)| *expected).collect();
        let got: Vec<String> = cases.iter().map(|(text, _)| blank(text)).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn cuts_the_tests_at_the_end_only() {
        let cases = [
            ("a\nb\n", 2),
            ("a\n#[cfg(test)]\nmod tests {\n}\n", 1),
            ("a\n#[cfg(test)]\n#[path = \"x\"]\nmod tests {\n}\n", 1),
            ("a\n#[cfg(test)]\nmod tests;\n", 3),
            ("a\n#[cfg(test)]\nfn only_here() {}\nb\n", 4),
        ];
        let got = cases.map(|(text, _)| lines_before_tests(text));
        assert_eq!(got, cases.map(|(_, expected)| expected));
    }

    #[test]
    fn finds_whole_words() {
        let cases = [
            ("operand::x", "rand::", false),
            ("rand::x", "rand::", true),
            ("tokio_util::x", "tokio::", false),
            ("is_async fn", "async", false),
            ("async fn", "async", true),
            ("asynchronous", "async", false),
            ("f().await?", ".await", true),
            ("f().awaited", ".await", false),
        ];
        let got = cases.map(|(text, word, _)| mentions(text, word));
        assert_eq!(got, cases.map(|(_, _, expected)| expected));
    }
}
