//! What libraries say of what people wrote, in plain words.

/// The words of a library, and what they mean.
const WORDS: &[(&str, &str)] = &[
    ("expected sequence start", "expected a list"),
    ("expected mapping start", "expected a mapping"),
    ("a sequence", "a list"),
    ("a map", "a mapping"),
    ("invalid digit found in string", "not a whole number"),
    ("cannot parse integer from empty string", "a number is missing"),
    ("number would be zero for non-zero type", "must be at least 1"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid float literal", "not a number"),
    ("expected f64", "expected a number"),
    ("expected u64", "expected a whole number"),
    ("expected u32", "expected a whole number"),
    ("expected usize", "expected a whole number"),
    ("relative URL without a base", "it must begin with `https://` or another scheme"),
];

/// A message in which the words of libraries are replaced.
pub fn plain_words(message: &str) -> String {
    WORDS.iter().fold(message.to_owned(), |message, (theirs, ours)| {
        let ends = |at: usize| !message[at + theirs.len()..].starts_with(char::is_alphanumeric);
        match message.find(theirs).filter(|at| ends(*at)) {
            Some(at) => format!("{}{ours}{}", &message[..at], &message[at + theirs.len()..]),
            None => message,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_libraries_are_replaced_and_others_stay() {
        let rows = [
            ("limit: invalid digit found in string", "limit: not a whole number"),
            ("invalid type: string \"x\", expected f64", "invalid type: string \"x\", expected a number"),
            ("invalid type: a map, expected a mapping", "invalid type: a mapping, expected a mapping"),
            ("no such file", "no such file"),
        ];
        for (theirs, ours) in rows {
            assert_eq!(plain_words(theirs), ours);
        }
    }
}
