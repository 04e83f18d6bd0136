//! Durations: `30m`, `1h30m`, `500ms`. A number without a unit is refused.

use std::time::Duration;

use crate::{
    diagnostic::{Code, Problem, Sink},
    spec::{Data, Key, Yaml},
};

/// The longest duration: ten years.
const LONGEST: Duration = Duration::from_secs(3_650 * 86_400);

const HELP: &str = "write a number and a unit, such as `30s`, `5m` or `1h30m`";

/// Parses a duration, or says what to write.
pub fn parse(text: &str) -> Result<Duration, &'static str> {
    match humantime::parse_duration(text) {
        Ok(time) if time > LONGEST => Err("the longest duration is ten years (`3650d`)"),
        Ok(time) => Ok(time),
        Err(_) => Err(HELP),
    }
}

/// Reads a duration.
pub(super) fn read(value: &Yaml, key: &Key<'_>, sink: &mut Sink) -> Option<Duration> {
    let help = match &value.data {
        Data::Text(text) => match parse(text) {
            Ok(duration) => return Some(duration),
            Err(help) => help.to_owned(),
        },
        Data::Number(number) => {
            format!("add a unit: `{number}s` for seconds, `{number}ms` for milliseconds")
        }
        _ => HELP.to_owned(),
    };
    let message = format!("`{}` must be a duration", key.last());
    sink.push(Problem::error(Code::WrongType, value.span, message).help(help).key(key));
    None
}
