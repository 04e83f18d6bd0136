//! Prompts as they were sent, stored beside the test file in `NAME.test.snap.yaml`, and compared with what is sent now.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    answer::AnswerKind,
    expect::FailedExpectation,
    matcher::{difference, lines},
    script::SentRequest,
    yaml,
};

/// The beginning of a stored file.
const HEAD: &str = "# Prompts as sent. `inspan test --update` writes this file; do not edit it.\n";

/// The snapshots of a test file, by the names of its cases.
pub(crate) type Snapshots = BTreeMap<String, Map<String, Value>>;

/// Where the snapshots of a test file are stored.
pub(crate) fn path(file: &Path) -> PathBuf {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    file.with_file_name(format!("{stem}.snap.yaml"))
}

/// Reads what is stored; nothing is stored before the first `--update`.
pub(crate) fn read(path: &Path) -> Result<Snapshots, String> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim_start_matches(HEAD).trim().is_empty() => Ok(Snapshots::new()),
        Ok(text) => {
            let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
            serde_saphyr::from_str_with_options(&text, options)
                .map_err(|error| format!("{error}; `inspan test --update` writes it again, if all cases with a snapshot run and pass"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Snapshots::new()),
        Err(error) => Err(error.to_string()),
    }
}

/// Stores snapshots, or removes the file if there are none.
pub(crate) fn write(path: &Path, snapshots: &Snapshots) -> io::Result<()> {
    if snapshots.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let all = snapshots.iter().map(|(name, prompts)| (name.clone(), Value::Object(prompts.clone())));
    let text = yaml::document(&Value::Object(all.collect()), 0);
    // Renamed into place: a reader finds the whole file or none.
    let draft = path.with_extension("yaml.part");
    fs::write(&draft, format!("{HEAD}{text}"))?;
    fs::rename(&draft, path)
}

/// What a case sent to agents, by the places of their nodes.
pub(crate) fn of(sent: &[SentRequest]) -> Map<String, Value> {
    let agents = sent.iter().filter(|sent| sent.kind == AnswerKind::Agent);
    agents
        .map(|sent| {
            let mut key = sent.path.to_string();
            if sent.attempt > 1 {
                key.push_str(&format!(" attempt {}", sent.attempt));
            }
            if sent.turn > 1 {
                key.push_str(&format!(" turn {}", sent.turn));
            }
            (key, sent.request.clone())
        })
        .collect()
}

/// How what is sent differs from what is stored.
pub(crate) fn compare(
    stored: Option<&Map<String, Value>>,
    sent: &Map<String, Value>,
) -> Vec<FailedExpectation> {
    let Some(stored) = stored else {
        let message = "there is no snapshot yet: `inspan test --update` stores it";
        return vec![FailedExpectation::new("expect.prompts", message)];
    };
    let mut keys: Vec<&String> = stored.keys().chain(sent.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut failures = Vec::new();
    for key in keys {
        let why = match (stored.get(key), sent.get(key)) {
            (Some(stored), Some(sent)) if stored == sent => continue,
            (Some(stored), Some(sent)) => {
                let diff = difference("stored", &lines(stored), "sent", &lines(sent));
                format!("another prompt is sent (`--update` accepts it):\n{diff}")
            }
            (Some(_), None) => "it was sent a prompt, and now is not (`--update` accepts it)".to_owned(),
            (None, Some(sent)) => {
                format!("it was not sent this prompt before (`--update` accepts it):\n{}", lines(sent))
            }
            (None, None) => continue,
        };
        failures.push(FailedExpectation::new(format!("expect.prompts.{key}"), why));
    }
    failures
}
