//! Files that a command writes anew: one that holds something else, such as the flow, is not replaced.

use std::{fs::File, io::Read, path::Path};

use crate::failure::Failure;

/// Refuses to replace a file that is not of this kind. An empty one may be replaced, and so may a pipe or a device.
pub(crate) fn check_replaces(
    file: &Path,
    kind: &str,
    is_own: impl FnOnce(&Path) -> bool,
) -> Result<(), Failure> {
    if !file.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) || is_own(file) {
        return Ok(());
    }
    let message = format!("{} is not replaced: it exists, and is no {kind}", file.display());
    Err(Failure::usage(message).with_hint("name another file, or remove this one"))
}

/// Whether a file begins like this, or was cut short in it. One that cannot be read is for the writer to report.
pub(crate) fn begins_with(file: &Path, beginning: &str) -> bool {
    let mut held = Vec::new();
    let read = File::open(file).and_then(|file| file.take(beginning.len() as u64).read_to_end(&mut held));
    read.is_err() || beginning.as_bytes().starts_with(&held)
}
