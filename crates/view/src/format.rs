//! Numbers as people read them: durations, tokens, money, the time of day in their time zone; and texts that are cut.

use std::{sync::OnceLock, time::Duration};

use inspan_flow_core::FramesProgress;
use inspan_protocol::Timestamp;
use jiff::{Zoned, tz::TimeZone};

/// `85ms`, `3.1s`, `2m 05s`, `1h 02m`: rounded down, as the page does.
pub fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{millis}ms"),
        1..60 => format!("{}.{}s", seconds, (millis % 1000) / 100),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// [`duration`] of milliseconds as they are on the wire.
pub fn millis(ms: u64) -> String {
    duration(Duration::from_millis(ms))
}

/// How much of the length of a session no process ran it: `, 3.4s of it idle`; nothing if one always did.
pub fn idle_part(rested: Duration) -> String {
    match rested.as_millis() {
        0 => String::new(),
        _ => format!(", {} of it idle", duration(rested)),
    }
}

/// How far a node is with its frames: `3 of 20 done, 1 failed, 4 open`.
pub fn frames(progress: FramesProgress) -> String {
    frames_as(progress, |_| "done")
}

/// The same with a word for so many frames: `3 of 20 items, 1 failed, 4 open`.
pub fn frames_as(progress: FramesProgress, word: impl Fn(u32) -> &'static str) -> String {
    let FramesProgress { total, open, succeeded, failed } = progress;
    let ended = succeeded + failed;
    let mut text = match total {
        Some(total) => format!("{ended} of {total} {}", word(total)),
        None => format!("{ended} {}", word(ended)),
    };
    if failed > 0 {
        text.push_str(&format!(", {failed} failed"));
    }
    if open > 0 {
        text.push_str(&format!(", {open} open"));
    }
    text
}

/// `950`, `1.2k`, `3.4M`.
pub fn count(count: u64) -> String {
    match count {
        0..1_000 => count.to_string(),
        1_000..100_000 => format!("{}.{}k", count / 1_000, count % 1_000 / 100),
        100_000..1_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}.{}M", count / 1_000_000, count % 1_000_000 / 100_000),
    }
}

/// `$0.0042` below a dollar, `$12.30` from there on, `$0` if it is nothing.
pub fn dollars(usd: f64) -> String {
    if usd == 0.0 {
        "$0".to_owned()
    } else if usd < 0.000_05 {
        "<$0.0001".to_owned()
    } else if usd < 1.0 {
        format!("${usd:.4}")
    } else {
        format!("${usd:.2}")
    }
}

/// The time zone of the process, once it is known; UTC before that.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// From now on moments are shown in the time zone of the user: that of `TZ`, else of the system.
pub fn use_local_time() {
    // The first call decides.
    let _ = ZONE.set(TimeZone::try_system().unwrap_or(TimeZone::UTC));
}

/// A moment in the time zone of the user.
fn local(moment: Timestamp) -> Option<Zoned> {
    let zone = ZONE.get().cloned().unwrap_or(TimeZone::UTC);
    jiff::Timestamp::from_millisecond(moment.as_millis()).ok().map(|moment| moment.to_zoned(zone))
}

/// The time of day, `12:00:01`.
pub fn clock(moment: Timestamp) -> String {
    local(moment).map_or_else(|| moment.to_string(), |moment| moment.strftime("%H:%M:%S").to_string())
}

/// A moment to come: the time of day, with the date if it is half a day ahead or more.
pub fn until(until: Timestamp, now: Timestamp) -> String {
    if until.since(now) < Duration::from_secs(12 * 3_600) { clock(until) } else { moment(until) }
}

/// How long ago in one unit: `5s`, `3m`, `2h`, `4d`.
pub fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..86_400 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A moment to the second with its time zone, `2026-01-07 10:00:01 UTC`.
pub fn moment(moment: Timestamp) -> String {
    local(moment)
        .map_or_else(|| moment.to_string(), |moment| moment.strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}

/// A text of at most so many characters; a longer one ends with `…`.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => cut_after(text, most.saturating_sub(1)),
        None => text.to_owned(),
    }
}

/// A text of which only so many characters are shown; `…` after them stands for more.
pub fn cut_after(text: &str, shown: usize) -> String {
    match text.char_indices().nth(shown) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_its_characters() {
        assert_eq!([cut("éééé", 4), cut("ééééé", 4)], ["éééé", "ééé…"]);
        assert_eq!([cut_after("éééé", 4), cut_after("ééééé", 4)], ["éééé", "éééé…"]);
    }

    #[test]
    fn numbers_read_well() {
        let times = [0, 85, 999, 1_000, 3_149, 59_999, 60_000, 125_000, 3_600_000, 3_725_000].map(millis);
        assert_eq!(
            times,
            ["0ms", "85ms", "999ms", "1.0s", "3.1s", "59.9s", "1m 00s", "2m 05s", "1h 00m", "1h 02m"]
        );
        let counts = [0, 999, 1_000, 12_345, 999_999, 3_456_789].map(count);
        assert_eq!(counts, ["0", "999", "1.0k", "12.3k", "999k", "3.4M"]);
        let money = [0.0, 0.000_01, 0.004_2, 0.999, 1.0, 12.345].map(dollars);
        assert_eq!(money, ["$0", "<$0.0001", "$0.0042", "$0.9990", "$1.00", "$12.35"]);
        let moments = [0, 1_767_780_001_500, -1].map(Timestamp::from_millis).map(clock);
        assert_eq!(moments, ["00:00:00", "10:00:01", "23:59:59"]);
        let ages = [0, 59, 60, 3_599, 3_600, 86_399, 86_400, 864_000].map(Duration::from_secs).map(age);
        assert_eq!(ages, ["0s", "59s", "1m", "59m", "1h", "23h", "1d", "10d"]);
        let now = Timestamp::from_millis(1_767_780_001_500);
        assert_eq!(moment(now), "2026-01-07 10:00:01 UTC");
        // An hour, and the same time of another day.
        let ahead = [1, 24].map(|hours| until(now + Duration::from_secs(hours * 3_600), now));
        assert_eq!(ahead, ["11:00:01", "2026-01-08 10:00:01 UTC"]);
    }
}
