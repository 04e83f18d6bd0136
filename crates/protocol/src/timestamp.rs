//! A moment as data: milliseconds since 1970, written as RFC 3339. Every value can be written and read again.

use std::{fmt, time::Duration};

use jiff::civil;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment in UTC with millisecond precision, on the wire `2026-01-07T10:00:00.000Z`, in the years 0 to 9999. A
/// moment outside becomes the first or the last of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A text that is no moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 moment")]
pub struct InvalidTimestamp(
    /// The text that was refused.
    pub String,
);

impl Timestamp {
    /// The first moment: the beginning of the year 0.
    pub const MIN: Self = Self(-62_167_219_200_000);
    /// The last moment that `jiff` knows, 26 hours before the end of the year 9999.
    pub const MAX: Self = Self(253_402_207_200_000);

    /// From milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        if millis < Self::MIN.0 {
            Self::MIN
        } else if millis > Self::MAX.0 {
            Self::MAX
        } else {
            Self(millis)
        }
    }

    /// From a number of a vendor that should be seconds since 1970. Some servers write milliseconds: a number that
    /// would be a moment after the year 5138 is read so. What then is no moment after 1970 is nothing.
    pub const fn from_vendor(number: i64) -> Option<Self> {
        const SECONDS: i64 = 100_000_000_000;
        match number {
            1..SECONDS => Some(Self::from_millis(number * 1000)),
            SECONDS.. if number <= Self::MAX.0 => Some(Self(number)),
            _ => None,
        }
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).try_into().unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(duration.as_millis().try_into().unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = jiff::Timestamp::from_millisecond(self.0).map_err(|_| fmt::Error)?;
        write!(f, "{moment:.3}")
    }
}

impl std::str::FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(moment) = text.parse::<jiff::Timestamp>() {
            return Ok(Self::from_millis(moment.as_millisecond()));
        }
        // The last hours of the year 9999 are a date, and more than `jiff` takes for a moment.
        let date = text.strip_suffix(['Z', 'z']).filter(|date| date.contains(['T', 't']));
        match date.and_then(|date| date.parse::<civil::DateTime>().ok()).map(civil::DateTime::year) {
            Some(9999) => Ok(Self::MAX),
            Some(-9999) => Ok(Self::MIN),
            _ => Err(InvalidTimestamp(text.to_owned())),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        // Earlier versions wrote moments after the year 9999 in this form.
        let beyond = text.strip_suffix("ms").and_then(|millis| millis.parse().ok());
        beyond.map_or_else(|| text.parse().map_err(de::Error::custom), |millis| Ok(Self::from_millis(millis)))
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Timestamp, String> {
        serde_json::from_value(text.into()).map_err(|error| error.to_string())
    }

    proptest! {
        #[test]
        fn every_moment_can_be_written_and_read_again(
            millis in prop_oneof![any::<i64>(), Timestamp::MIN.0..=Timestamp::MAX.0],
        ) {
            let moment = Timestamp::from_millis(millis);
            let text = serde_json::to_string(&moment).unwrap();
            prop_assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), moment);
            prop_assert_eq!(moment.to_string().len(), "2026-01-07T10:00:00.000Z".len());
        }

        #[test]
        fn no_sum_leaves_the_range(millis in any::<i64>(), more in any::<u64>()) {
            let moment = Timestamp::from_millis(millis) + Duration::from_millis(more);
            prop_assert!((Timestamp::MIN..=Timestamp::MAX).contains(&moment));
        }

        #[test]
        fn a_number_of_a_vendor_is_a_moment_or_nothing(number in any::<i64>()) {
            let moment = Timestamp::from_vendor(number);
            prop_assert!(moment.is_none_or(|moment| read(&moment.to_string()) == Ok(moment)));
        }
    }

    #[test]
    fn a_moment_survives_its_text() {
        let moments = [0, 1, 999, 1_767_780_000_000, -1].map(Timestamp::from_millis);
        let texts = moments.map(|moment| moment.to_string());
        assert_eq!(texts[3], "2026-01-07T10:00:00.000Z");
        assert_eq!(texts.map(|text| text.parse()), moments.map(Ok));
        for text in ["noon", "5000ms", "2020-01-01", "2020-01-01Z", "9999-12-31Z", "2020-01-01T10:00:00"] {
            assert_eq!(text.parse::<Timestamp>(), Err(InvalidTimestamp(text.to_owned())));
        }
    }

    #[test]
    fn what_lies_beyond_the_range_is_read_as_its_end() {
        let rows = [
            ("99999999999999000ms", Timestamp::MAX),
            ("9223372036854775807ms", Timestamp::MAX),
            ("-9223372036854775808ms", Timestamp::MIN),
            ("9999-12-31T23:59:59.999Z", Timestamp::MAX),
            ("-009999-01-02T01:59:59.000Z", Timestamp::MIN),
            ("9999-12-30T22:00:00.999Z", Timestamp::MAX),
            ("0000-01-01T00:00:00.000Z", Timestamp::MIN),
        ];
        assert_eq!(rows.map(|(text, _)| read(text)), rows.map(|(_, moment)| Ok(moment)));
    }

    #[test]
    fn milliseconds_of_a_vendor_are_distinguished_from_seconds() {
        let noon = Some(Timestamp::from_millis(1_795_385_434_000));
        let rows = [
            (1_795_385_434, noon),
            (1_795_385_434_000, noon),
            (0, None),
            (-99_999_999_999_999, None),
            (99_999_999_999_999_999, None),
            (i64::MAX, None),
            (i64::MIN, None),
        ];
        assert_eq!(rows.map(|(number, _)| Timestamp::from_vendor(number)), rows.map(|(_, moment)| moment));
    }
}
