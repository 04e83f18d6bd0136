//! Cuts a stream of bytes into lines of JSON, however the bytes are split into reads, with a bound on each line.

use std::borrow::Cow;
use std::io::BufRead;

/// The longest line.
pub const LINE_LIMIT: usize = 16 * 1024 * 1024;

/// One line without its end.
#[derive(Debug, PartialEq)]
pub enum Line<'a> {
    /// A line of valid UTF-8.
    Text(&'a str),
    /// A line with bytes that are not UTF-8 or an escaped half of a surrogate pair; each stretch of them is replaced by U+FFFD.
    Repaired(Cow<'a, str>),
    /// A line beyond the limit; its bytes are gone.
    TooLong,
}

/// The cutter. It holds at most one unfinished line.
#[derive(Debug)]
pub struct LineSplitter {
    pending: Vec<u8>,
    limit: usize,
    skipping: Skipping,
}

/// Whether the rest of a line that grew too long is being skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Skipping {
    No,
    ToTheEndOfTheLine,
}

impl Default for LineSplitter {
    fn default() -> Self {
        Self::with_limit(LINE_LIMIT)
    }
}

impl LineSplitter {
    /// A cutter with its own limit in bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self { pending: Vec::new(), limit, skipping: Skipping::No }
    }

    /// Takes the bytes of one read and passes on each line that they complete. Empty lines are skipped.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(head) = next_line(&mut bytes) {
            if self.skipping == Skipping::ToTheEndOfTheLine {
                self.skipping = Skipping::No;
            } else if self.pending.len() + head.len() > self.limit {
                self.pending = Vec::new();
                each(Line::TooLong);
            } else if self.pending.is_empty() {
                hand_on(head, &mut each);
            } else {
                self.pending.extend_from_slice(head);
                hand_on(&self.pending, &mut each);
                self.pending.clear();
            }
        }
        if self.skipping == Skipping::ToTheEndOfTheLine {
            return;
        }
        if self.pending.len() + bytes.len() > self.limit {
            self.pending = Vec::new();
            self.skipping = Skipping::ToTheEndOfTheLine;
            each(Line::TooLong);
        } else {
            self.pending.extend_from_slice(bytes);
        }
    }

    /// The stream ended: passes on the rest without a line end.
    pub fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        let rest = std::mem::take(&mut self.pending);
        self.skipping = Skipping::No;
        hand_on(&rest, &mut each);
    }
}

/// Takes the next line off the bytes, if its end is among them. The reader of the standard library looks for the end
/// many bytes at a time, which an iterator does not.
fn next_line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let all = *bytes;
    let mut rest = all;
    let taken = rest.skip_until(b'\n').ok()?;
    let line = all[..taken].strip_suffix(b"\n")?;
    *bytes = rest;
    Some(line)
}

fn hand_on(line: &[u8], each: &mut impl FnMut(Line<'_>)) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match std::str::from_utf8(line) {
        Ok(text) if text.trim_start().is_empty() => {}
        Ok(text) => each(match whole_pairs(text) {
            Cow::Borrowed(text) => Line::Text(text),
            repaired => Line::Repaired(repaired),
        }),
        Err(_) => each(Line::Repaired(whole_pairs(&String::from_utf8_lossy(line)))),
    }
}

/// JSON with U+FFFD for each escaped half of a surrogate pair. JavaScript writes one where a text was cut inside a character,
/// and no parser of ours takes it.
pub fn whole_pairs(json: &str) -> Cow<'_, str> {
    let escaped = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut whole, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(found) = json.get(at..).and_then(|rest| rest.find('\\')) {
        at += found;
        at += match (escaped(at), escaped(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                whole.push_str(&json[copied..at]);
                whole.push_str("\\ufffd");
                copied = at + 6;
                6
            }
            _ => 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
    }
    if copied == 0 { Cow::Borrowed(json) } else { Cow::Owned(whole + &json[copied..]) }
}

#[cfg(test)]
mod tests {
    use inspan_testkit::split_everywhere;
    use proptest::prelude::*;

    use super::*;

    fn lines(splitter: &mut LineSplitter, chunks: &[&[u8]]) -> Vec<String> {
        let mut seen = Vec::new();
        let mut each = |line: Line<'_>| {
            seen.push(match line {
                Line::Text(text) => text.to_owned(),
                Line::Repaired(text) => format!("repaired {text}"),
                Line::TooLong => "too long".to_owned(),
            });
        };
        for chunk in chunks {
            splitter.push(chunk, &mut each);
        }
        splitter.finish(&mut each);
        seen
    }

    #[test]
    fn lines_do_not_depend_on_where_a_read_ends() {
        let bytes = b"one\r\n\n  \ntwo \xc3\xa4\nbad \xff byte\n0123456789abcdef\nlast\n0123456789\nhalf";
        let expected =
            ["one", "two \u{e4}", "repaired bad \u{fffd} byte", "too long", "last", "0123456789", "half"];
        for split in split_everywhere(bytes, 0..50) {
            assert_eq!(lines(&mut LineSplitter::with_limit(10), &split.chunks), expected, "{}", split.name);
        }
    }

    #[test]
    fn half_of_a_surrogate_pair_is_replaced() {
        for (line, expected) in [
            (r#"{"a":"\ud83d\ude00 \u00e4 \\ud83d \\"}"#, r#"{"a":"\ud83d\ude00 \u00e4 \\ud83d \\"}"#),
            (r#"{"a":"cut \ud83d"}"#, r#"repaired {"a":"cut \ufffd"}"#),
            (r#""\uD83D\ud83d\uDE00\udE00\\\ud800""#, r#"repaired "\ufffd\ud83d\uDE00\ufffd\\\ufffd""#),
            (r"\ud83", r"\ud83"),
            ("\\", "\\"),
            ("\\ä\\ud83d", "repaired \\ä\\ufffd"),
        ] {
            assert_eq!(lines(&mut LineSplitter::default(), &[line.as_bytes()]), [expected]);
        }
    }

    proptest! {
        /// No bytes make it panic or hold more than its limit, and where they are cut changes nothing.
        #[test]
        fn any_bytes_are_cut_alike(
            bytes in prop::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'\r'), Just(b' '), Just(b'x'), any::<u8>()], 0..300),
            seed in any::<u64>(),
        ) {
            let whole = lines(&mut LineSplitter::with_limit(24), &[&bytes]);
            for split in split_everywhere(&bytes, [seed]) {
                let mut splitter = LineSplitter::with_limit(24);
                prop_assert_eq!(&lines(&mut splitter, &split.chunks), &whole);
                let mut held = LineSplitter::with_limit(24);
                for chunk in &split.chunks {
                    held.push(chunk, |_| {});
                    prop_assert!(held.pending.len() <= 24);
                }
            }
        }
    }

    #[test]
    fn a_line_too_long_does_not_stay_in_memory() {
        let mut splitter = LineSplitter::with_limit(100);
        let mut seen = 0;
        for _ in 0..1000 {
            splitter.push(&[b'x'; 64], |_| seen += 1);
        }
        assert_eq!((seen, splitter.pending.capacity() <= 100), (1, true));
    }
}
