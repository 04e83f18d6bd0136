//! What the command line gives as a flow's input, or as a text that is too private for an argument: files, which only those
//! who may read them see.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use inspan_sessions::SessionErrorCode;
use serde_json::{Map, Value};

use crate::{args::InputValue, failure::Failure};

/// How large a file may be, in bytes.
const LARGEST: u64 = 16 * 1024 * 1024;

/// The values of the file, and over them those of the arguments.
pub(super) fn given(file: Option<&Path>, values: &[InputValue]) -> Result<Map<String, Value>, Failure> {
    let mut input = match file {
        Some(path) => object(path)?,
        None => Map::new(),
    };
    for given in values {
        input.insert(given.key.clone(), given.value.clone());
    }
    Ok(input)
}

fn object(path: &Path) -> Result<Map<String, Value>, Failure> {
    let text = text(path, "input")?;
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(refused(path, "input", "is not a JSON object").with_hint("write `{ \"key\": value }`")),
        Err(error) => Err(refused(path, "input", &format!("is not JSON: {error}"))),
    }
}

/// The whole text of a file; `-` is stdin. `what` says what it is for.
pub(super) fn text(path: &Path, what: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => io::stdin().take(LARGEST + 1).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text)),
    };
    read.map_err(|error| refused(path, what, &format!("cannot be read: {error}")))?;
    if text.len() as u64 > LARGEST {
        return Err(refused(path, what, &format!("has more than {LARGEST} bytes")));
    }
    Ok(text)
}

fn refused(path: &Path, what: &str, why: &str) -> Failure {
    let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
    Failure::usage(format!("{what} file {name} {why}")).with_code(SessionErrorCode::InvalidInput)
}
