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

/// How long a message asks to wait: `Please try again in 1m26.4s.`, `… in 3 days 4 hours`.
pub fn wait_in(message: &str) -> Option<Duration> {
    duration(message.split_once("try again in ")?.1)
}

/// The duration that a text begins with: `12ms`, `1.5s`, `6m0s`, `2 minutes`.
pub fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut seconds) = (text.trim_start(), None);
    while rest.starts_with(|c: char| c.is_ascii_digit()) {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let after = after.trim_start();
        let (unit, after) =
            after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
        let scale = match unit.to_ascii_lowercase().as_str() {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86400.0,
            _ => return None,
        };
        *seconds.get_or_insert(0.0) += number.parse::<f64>().ok()? * scale;
        rest = after.trim_start();
    }
    Duration::try_from_secs_f64(seconds?).ok()
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
    fn a_duration_is_in_one_or_several_units() {
        let rows = [
            ("12ms", Some(12)),
            ("1.5s", Some(1500)),
            ("6m0s", Some(360_000)),
            ("1h2m3s4ms", Some(3_723_004)),
            ("1d", Some(86_400_000)),
            ("2 minutes", Some(120_000)),
            ("3 Days 4 hours, or later", Some(273_600_000)),
            ("", None),
            ("7", None),
            ("7 x", None),
            ("s", None),
            ("1.2.3s", None),
            ("1e9h", None),
            ("99999999999999999999d", None),
        ];
        for (text, expected) in rows {
            assert_eq!(duration(text), expected.map(Duration::from_millis), "{text}");
        }
        let words = [
            ("Please try again in 1m26.4s. Visit", Some(86_400)),
            ("Please try again in 11.054s.", Some(11_054)),
            ("try again in 20ms", Some(20)),
            ("Please try again in a while", None),
            ("try again at 10:26 PM", None),
            ("slow down", None),
        ];
        for (text, expected) in words {
            assert_eq!(wait_in(text), expected.map(Duration::from_millis), "{text}");
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
