//! The reader of server-sent events: every form that a stream may have, cut everywhere, and what is refused.

use inspan_testkit::{cut_in_two, split_everywhere};
use proptest::prelude::*;

use super::*;

/// Bytes, the events in them, and whether they end within one.
type Row<'a> = (&'a [u8], &'a [(&'a str, &'a str)], bool);
type Read = (Vec<(String, String)>, Result<bool, SseFault>);

/// All events, and whether the stream ended within one.
fn read<'a>(limit: usize, chunks: impl IntoIterator<Item = &'a [u8]>) -> Read {
    let mut reader = SseReader::with_limit(limit);
    let mut seen = Vec::new();
    for chunk in chunks {
        let done = reader.push(chunk, |event| seen.push((event.name.to_owned(), event.data.to_owned())));
        if let Err(fault) = done {
            return (seen, Err(fault));
        }
    }
    (seen, Ok(reader.is_midway()))
}

fn events(events: &[(&str, &str)]) -> Vec<(String, String)> {
    events.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect()
}

#[test]
fn every_form_is_read_wherever_it_is_cut() {
    let rows: &[Row<'_>] = &[
        (b"event: a\ndata: 1\n\ndata: 2\n\n", &[("a", "1"), ("", "2")], false),
        (b"event: a\r\ndata: 1\r\n\r\n", &[("a", "1")], false),
        (b"event: a\rdata: 1\r\rdata: 2\r\r", &[("a", "1"), ("", "2")], false),
        (b"data: 1\r\n\ndata: 2\n\r", &[("", "1"), ("", "2")], false),
        (b"\xef\xbb\xbfdata: 1\n\n", &[("", "1")], false),
        (b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", &[("", "1")], false),
        (b": ping\n\n:\n\nevent: a\n: more\ndata: 1\n\n", &[("a", "1")], false),
        (b"data: 1\ndata: 2\ndata:3\n\n", &[("", "1\n2\n3")], false),
        (b"data:  two spaces \n\n", &[("", " two spaces ")], false),
        (b"data\ndata\n\n", &[("", "\n")], false),
        (b"data\n\nevent: none\n\ndata: x\n\n", &[("", ""), ("", "x")], false),
        (b"event: a\nevent: b\ndata: 1\n\n", &[("b", "1")], false),
        (b"id: 7\nretry: 10\nunknown: x\ndata: a: b\n\n", &[("", "a: b")], false),
        ("data: \u{e4}\u{1f600}\n\n".as_bytes(), &[("", "\u{e4}\u{1f600}")], false),
        (b"data: \\ud83d\\ude00 \\ude00\n\n", &[("", r"\ud83d\ude00 \ufffd")], false),
        (b"data: 1\n\ndata: cut", &[("", "1")], true),
        (b"data: 1\n\ndata: cut\n", &[("", "1")], true),
        (b"", &[], false),
    ];
    for (bytes, expected, midway) in rows {
        let expected = (events(expected), Ok(*midway));
        for split in split_everywhere(bytes, 0..20) {
            assert_eq!(read(1000, split.chunks), expected, "{:?} {}", bytes.escape_ascii(), split.name);
        }
        for (left, right) in cut_in_two(bytes) {
            assert_eq!(read(1000, [left, right]), expected, "{:?} at {}", bytes.escape_ascii(), left.len());
        }
    }
}

#[test]
fn what_is_no_text_or_has_no_end_is_refused_for_good() {
    let rows: [(&[u8], SseFault); 4] = [
        (b"data: 1\n\ndata: \xff\n\ndata: 2\n\n", SseFault::InvalidUtf8),
        (b"data: 1\n\ndata: 0123456789abcdef0123456789\n\n", SseFault::TooLarge(24)),
        (b"data: 1\n\ndata: 0123456789\ndata: 0123456789\n\n", SseFault::TooLarge(24)),
        (b"data: 1\n\n: a comment without any end at all", SseFault::TooLarge(24)),
    ];
    for (bytes, fault) in rows {
        for split in split_everywhere(bytes, 0..20) {
            let seen = read(24, split.chunks);
            assert_eq!(seen, (events(&[("", "1")]), Err(fault)), "{:?} {}", bytes.escape_ascii(), split.name);
        }
    }
    let mut reader = SseReader::with_limit(4);
    let first = reader.push(b"data: 1", |_| {});
    let second = reader.push(b"\n\n", |_| {});
    assert_eq!((first, second), (Err(SseFault::TooLarge(4)), Err(SseFault::TooLarge(4))));
}

#[test]
fn an_event_too_large_does_not_stay_in_memory() {
    let mut reader = SseReader::with_limit(100);
    let faults = (0..1000).filter(|_| reader.push(&[b'x'; 64], |_| {}).is_err()).count();
    assert_eq!((faults, reader.line.capacity() <= 200), (999, true));
}

proptest! {
    /// However events are written and cut, the same ones are read.
    #[test]
    fn written_events_are_read_again(
        written in prop::collection::vec(("[a-z_]{0,8}", "[^\\r\\n\u{0}]{1,40}(\\n[^\\r\\n]{0,10}){0,3}"), 0..8),
        // A return before a lone line feed would be one line end, so these do not mix.
        ends in prop::sample::select(vec![vec!["\n"], vec!["\r\n"], vec!["\r"], vec!["\n", "\r\n"]]),
        comment in "[^\\r\\n]{0,10}",
        seed in any::<u64>(),
    ) {
        let mut ends = ends.iter().cycle();
        let mut text = String::new();
        let mut put = |line: &str| {
            text.push_str(line);
            text.push_str(ends.next().unwrap_or(&"\n"));
        };
        for (name, data) in &written {
            put(&format!(":{comment}"));
            if !name.is_empty() {
                put(&format!("event: {name}"));
            }
            data.split('\n').for_each(|line| put(&format!("data: {line}")));
            put("");
        }
        let expected = (written, Ok(false));
        for split in split_everywhere(text.as_bytes(), [seed]) {
            prop_assert_eq!(&read(100_000, split.chunks), &expected);
        }
    }

    /// No bytes make it panic, and where they are cut changes nothing.
    #[test]
    fn any_bytes_are_read_alike(bytes in prop::collection::vec(
        prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), Just(b'a'), Just(b't'), any::<u8>()], 0..200),
        seed in any::<u64>(),
    ) {
        let whole = read(64, [bytes.as_slice()]);
        for split in split_everywhere(&bytes, [seed]) {
            prop_assert_eq!(&read(64, split.chunks), &whole);
        }
    }
}
