//! The time, and the moment at which a usage limit is lifted, which some programs name in words alone.

use std::time::Duration;

use inspan_protocol::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use jiff::{ToSpan as _, civil};

/// How the moment is written, once commas and the like are gone.
const FORMS: [&str; 6] =
    ["%I:%M %p", "%I %p", "%b %d %I:%M %p", "%b %d %I %p", "%b %d %Y %I:%M %p", "%b %d %Y %I %p"];
/// How long ago a time of day may be and still be that of today: the clock of the vendor may be slow.
const SKEW: Duration = Duration::from_secs(3600);

/// How long after the moment that a vendor names as a number a limit is lifted for sure: it counts whole seconds, by its own
/// clock.
const MARGIN: Duration = Duration::from_secs(5);

/// The time, by the clock that the programs on this machine use too.
#[expect(clippy::disallowed_methods, reason = "programs name a moment, from which a wait is computed")]
pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(since.as_millis().try_into().unwrap_or(i64::MAX))
}

/// When the limit is lifted by this number of a vendor.
pub(crate) fn lifted_at(number: i64) -> Option<Timestamp> {
    Timestamp::from_vendor(number).map(|moment| moment + MARGIN)
}

/// When the limit is lifted by these words: `resets 7:31pm (UTC)` of Claude Code, `try again at Nov 23rd, 2026 2:13 AM` of
/// Codex. Nothing if they name no moment, or a time zone that this machine does not know.
pub(crate) fn reset_in_words(words: &str) -> Option<Timestamp> {
    reset_after(words, now(), |name| name.map_or_else(TimeZone::try_system, TimeZone::get).ok())
}

/// Whether these are Anthropic's words for a limit that the account has set, and when it is lifted. Their status is that of a
/// bad request.
pub(crate) fn regained(words: &str) -> Option<Option<Timestamp>> {
    let (_, rest) = words.split_once("You will regain access on ")?;
    let moment = rest
        .split_once(" at ")
        .and_then(|(day, time)| format!("{day}T{}:00Z", time.split(' ').next()?).parse().ok());
    Some(moment)
}

/// `zone` gives the time zone with a name, and that of this machine.
fn reset_after(
    words: &str,
    now: Timestamp,
    zone: impl Fn(Option<&str>) -> Option<TimeZone>,
) -> Option<Timestamp> {
    let after = |marker| words.match_indices(marker).map(|(at, found)| &words[at + found.len()..]);
    ["resets ", "try again at "].into_iter().flat_map(after).find_map(|words| moment(words, now, &zone))
}

/// The moment with which these words begin.
fn moment(words: &str, now: Timestamp, zone: impl Fn(Option<&str>) -> Option<TimeZone>) -> Option<Timestamp> {
    let words: Vec<&str> = words.split_whitespace().filter(|word| *word != "at").map(plain).collect();
    let words = words.join(" ");
    let (named, length) = FORMS.iter().find_map(|form| BrokenDownTime::parse_prefix(form, &words).ok())?;
    let rest = words.get(length..).unwrap_or_default().trim_start();
    let zone = match rest.strip_prefix('(').and_then(|rest| rest.split(')').next()) {
        Some("UTC") => TimeZone::UTC,
        Some(name) if name.contains('/') && !name.contains(' ') => zone(Some(name))?,
        _ => zone(None)?,
    };
    let now = jiff::Timestamp::from_millisecond(now.as_millis()).ok()?.to_zoned(zone.clone());
    let (date, next) = match (named.month(), named.day()) {
        (Some(month), Some(day)) => {
            let next = if named.year().is_some() { 0.years() } else { 1.year() };
            (civil::Date::new(named.year().unwrap_or(now.year()), month, day).ok()?, next)
        }
        _ => (now.date(), 1.day()),
    };
    let moment = date.to_datetime(named.to_time().ok()?).to_zoned(zone).ok()?;
    let has_passed = moment.checked_add(SKEW).ok()? < now;
    let moment = if has_passed { moment.checked_add(next).ok()? } else { moment.max(now) };
    // The seconds are left out.
    let moment = moment.checked_add(1.minute()).ok()?;
    Some(Timestamp::from_millis(moment.timestamp().as_millisecond()))
}

/// A word without its comma or full stop, and a day without the ending of its number.
fn plain(word: &str) -> &str {
    let word = word.trim_end_matches([',', '.']);
    let endings = ["st", "nd", "rd", "th"];
    let number = endings.iter().find_map(|ending| word.strip_suffix(ending));
    number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit())).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_in_words_is_the_next_one_that_fits() {
        let now: Timestamp = "2026-12-30T17:00:20Z".parse().unwrap();
        let rows = [
            ("You've hit your session limit · resets 7:31pm (UTC)", Some("2026-12-30T19:32:00Z")),
            ("You've hit your limit · resets 7:31pm", Some("2026-12-30T17:32:00Z")),
            ("You've hit your limit · resets 3am", Some("2026-12-31T01:01:00Z")),
            ("You've hit your limit · resets 3am (America/New_York)", Some("2026-12-31T08:01:00Z")),
            ("You've hit your limit · resets 3am (America/Atlantis)", None),
            (
                "The cache resets nightly, try again at 9:37pm. (See the docs/limits)",
                Some("2026-12-30T19:38:00Z"),
            ),
            ("You've hit your weekly limit · resets Jan 2, 3pm", Some("2027-01-02T13:01:00Z")),
            ("You've hit your weekly limit · resets Jan 2 at 3:05pm (UTC)", Some("2027-01-02T15:06:00Z")),
            ("You’ve hit your usage limit. Visit x or try again at 7:22 PM.", Some("2026-12-30T17:23:00Z")),
            ("… or try again at Jan 3rd, 2027 12:13 AM.", Some("2027-01-02T22:14:00Z")),
            // It has just passed.
            ("try again at 7:00 PM.", Some("2026-12-30T17:01:20Z")),
            ("try again at Nov 3rd, 2026 12:13 AM.", Some("2026-11-02T22:14:00Z")),
            ("try again later.", None),
            ("resets soon", None),
            ("resets 25pm", None),
            ("resets Feb 30, 3pm", None),
            ("slow down", None),
        ];
        let zone = |name: Option<&str>| match name {
            None => Some(TimeZone::fixed(jiff::tz::offset(2))),
            Some("America/New_York") => Some(TimeZone::fixed(jiff::tz::offset(-5))),
            Some(_) => None,
        };
        for (words, expected) in rows {
            let expected = expected.map(|moment| moment.parse::<Timestamp>().unwrap());
            assert_eq!(reset_after(words, now, zone), expected, "{words}");
        }
    }
}
