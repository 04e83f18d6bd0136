//! Rust text as the checks see it: without the tests at its end, and whole words of it.

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

#[cfg(test)]
mod tests {
    use super::{lines_before_tests, mentions};

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
