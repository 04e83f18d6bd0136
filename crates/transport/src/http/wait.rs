//! How long a server asks to wait.

use std::time::Duration;

use inspan_protocol::Timestamp;

/// How long the server asks to wait in its headers, of which `text` gives one by its name: `retry-after-ms`, or
/// `retry-after` as seconds or as a date, which is compared with the server's own clock.
pub fn retry_after<'a>(text: &impl Fn(&str) -> Option<&'a str>) -> Option<Duration> {
    let number = |name: &str| text(name)?.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    if let Some(seconds) = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after")) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = text("retry-after").and_then(http_date)?;
    Some(until.since(text("date").and_then(http_date)?))
}

/// The one form of a date that servers send: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http_date(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let parts: Vec<&str> = text.split(' ').collect();
    let [_, day, month, year, time, "GMT"] = parts[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    format!("{year}-{month:02}-{day}T{time}Z").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_dates_are_none() {
        let moment = "2026-11-02T02:00:00Z".parse().ok();
        let rows = [
            ("Mon, 02 Nov 2026 02:00:00 GMT", moment),
            ("Monday, 02-Nov-26 02:00:00 GMT", None),
            ("Mon, 02 Non 2026 02:00:00 GMT", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(http_date(text), expected, "{text}");
        }
    }

    #[test]
    fn a_wait_is_in_seconds_or_until_a_date() {
        let wait = |headers: &[(&str, &'static str)]| {
            retry_after(&|name| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
        };
        let date = ("date", "Mon, 02 Nov 2026 02:00:00 GMT");
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(
            wait(&[("retry-after-ms", "1500"), ("retry-after", "7")]),
            Some(Duration::from_millis(1500))
        );
        let until = ("retry-after", "Mon, 02 Nov 2026 02:01:30 GMT");
        assert_eq!(wait(&[until, date]), Some(Duration::from_secs(90)));
        assert_eq!([wait(&[until]), wait(&[("retry-after", "soon"), date]), wait(&[])], [None; 3]);
    }
}
