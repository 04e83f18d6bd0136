//! How long to wait, apart from what the replayed answers show.

use super::*;

type Headers<'a> = &'a [(&'a str, &'a str)];

fn wait_for(headers: Headers<'_>) -> Option<Duration> {
    wait(&|name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
}

#[test]
fn the_servers_own_words_say_how_long_to_wait() {
    let date = ("date", "Sun, 22 Nov 2026 02:00:00 GMT");
    let full = ("anthropic-ratelimit-tokens-reset", "2026-11-22T02:00:42Z");
    let empty = ("anthropic-ratelimit-tokens-remaining", "0");
    let rows: [(Headers<'_>, Option<Duration>); 10] = [
        (&[], None),
        (&[("retry-after", "7")], Some(Duration::from_secs(7))),
        (&[("retry-after-ms", "1500"), ("retry-after", "7")], Some(Duration::from_millis(1500))),
        (&[("retry-after", "soon")], None),
        (&[("retry-after", "-1")], None),
        (&[("retry-after", "1e300")], None),
        (&[date, full, empty], Some(Duration::from_secs(42))),
        (&[full, empty], None),
        (&[date, full, ("anthropic-ratelimit-tokens-remaining", "1")], None),
        (&[("date", "Sun, 22 Nov 2026 02:01:00 GMT"), full, empty], Some(Duration::ZERO)),
    ];
    for (headers, expected) in rows {
        assert_eq!(wait_for(headers), expected, "{headers:?}");
    }
}
