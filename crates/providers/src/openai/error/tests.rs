//! How long to wait, apart from what the replayed answers show.

use super::*;

#[test]
fn durations_are_the_vendors() {
    let rows = [
        ("12ms", Some(12)),
        ("1.5s", Some(1500)),
        ("6m0s", Some(360_000)),
        ("1h2m3s4ms", Some(3_723_004)),
        ("1d", Some(86_400_000)),
        ("", None),
        ("7", None),
        ("s", None),
        ("1.2.3s", None),
        ("5 s", None),
        ("1e9h", None),
        ("99999999999999999999d", None),
    ];
    for (text, expected) in rows {
        assert_eq!(duration(text), expected.map(Duration::from_millis), "{text}");
    }
}

#[test]
fn words_are_the_last_resort() {
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let empty = ("x-ratelimit-remaining-tokens", "0");
    let rows: [(Headers<'_>, Option<u64>); 6] = [
        (&[], None),
        (&[("retry-after", "7")], Some(7000)),
        (&[("retry-after", "7"), ("retry-after-ms", "20")], Some(20)),
        (&[empty, ("x-ratelimit-reset-tokens", "6m0s")], Some(360_000)),
        (&[("x-ratelimit-remaining-tokens", "1"), ("x-ratelimit-reset-tokens", "6m0s")], None),
        (&[empty, ("x-ratelimit-reset-tokens", "soon")], None),
    ];
    for (headers, expected) in rows {
        let text = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        assert_eq!(wait(&text), expected.map(Duration::from_millis), "{headers:?}");
    }
    let words = [
        ("Please try again in 1.898s. Visit", Some(1898)),
        ("Please try again in 20ms", Some(20)),
        ("Please try again in a while", None),
        ("slow down", None),
    ];
    for (words, expected) in words {
        assert_eq!(wait_in(words), expected.map(Duration::from_millis), "{words}");
    }
}
