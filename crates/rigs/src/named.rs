//! What the rigs of the agents with a program and a provider of their own share: a home with settings for each model
//! server, and the program from the caller's environment.

use std::path::Path;

use inspan_conformance::Place;
use inspan_protocol::Environment;
use inspan_providers::find_acp;
use serde_json::Value;

/// The variables of a program that keeps its settings below the user's home: a home for each server, with these settings.
/// Settings that cannot be written are noticed by the program, which then does not reach the server.
pub(crate) fn environment(
    place: &Place<'_>,
    program: &str,
    (file, settings): (&str, &Value),
    own: impl IntoIterator<Item = (&'static str, String)>,
) -> Vec<(String, String)> {
    let home = place.folder.join(place.server.rsplit(':').next().unwrap_or_default());
    drop(write(&home.join(file), settings));
    let program = place.outer.get(program).map(|path| (program.to_owned(), path.to_owned()));
    let home = ("HOME".to_owned(), home.display().to_string());
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    [home].into_iter().chain(own).chain(program).collect()
}

/// What keeps the provider from being run on this machine.
pub(crate) fn missing(provider: &str, outer: &Environment) -> Option<String> {
    find_acp(provider, outer)?.err().map(|error| error.message)
}

fn write(path: &Path, settings: &Value) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, settings.to_string())
}
