//! Text from agents and flows, as messages show it: bounded, and without invisible or control characters.

use inspan_view::safe::{clean, spelled_out};

pub(crate) use inspan_view::format::cut;

/// One line of at most so many characters.
pub(crate) fn line(text: &str, most: usize) -> String {
    cut(&clean(text), most)
}

/// At most so many characters of a text, over several lines; a longer one ends with `…`.
pub(crate) fn lines(text: &str, most: usize) -> String {
    cut(&spelled_out(text), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_bounded_and_hides_nothing() {
        assert_eq!(lines("a\u{202e}b\n", 20), "a\\u{202e}b\n");
        assert_eq!([line(" a\n b  c ", 10), line("abcdef", 4)], ["a b c", "abc…"]);
    }
}
