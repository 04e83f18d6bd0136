//! Times in the file: `30m`, `1h30m`, `500ms`. A bare number is refused, because its unit would be a guess.

use std::time::Duration;

use crate::{
    diagnostic::{Code, Problem, Sink},
    spec::{Data, Key, Yaml},
};

/// Reads a time.
pub(super) fn read(value: Yaml<'_>, key: &Key<'_>, sink: &mut Sink) -> Option<Duration> {
    let help = match value.data() {
        Data::Text(text) => match humantime::parse_duration(text) {
            Ok(duration) => return Some(duration),
            Err(_) => "write a number and a unit, such as `30s`, `5m` or `1h30m`".to_owned(),
        },
        Data::Number(number) => {
            format!("say the unit: `{number}s` for seconds, `{number}ms` for thousandths")
        }
        _ => "write a number and a unit, such as `30s`, `5m` or `1h30m`".to_owned(),
    };
    let message = format!("`{}` takes a time", key.last());
    sink.push(Problem::error(Code::WrongType, value.span(), message).help(help).key(key));
    None
}
