//! The replay of recorded transcripts: a program's bytes through the real decoder and the real end of a turn, compared
//! with the whole golden file, whatever the reads looked like.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases with that in their name.

use std::collections::VecDeque;
use std::path::Path;

use inspan_model_server::sorted;
use inspan_protocol::{AgentError, ProviderSessionId, Redactor};
use inspan_testkit::{case_folders, check_golden, fixture_dir, fuzz, read_json, split_everywhere};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::output::TurnOutput;
use crate::program::exit::{Exit, exited};
use crate::program::{Cancelled, TurnEnd, conclude};

/// What surrounded a recorded process; a vendor reads what it needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    /// Whose output it is; a note for readers, like its version.
    #[serde(rename = "program")]
    _program: String,
    #[serde(rename = "version")]
    _version: String,
    #[serde(default)]
    exit: RecordedExit,
    #[serde(default)]
    stderr: String,
    /// The conversation.
    #[serde(default)]
    pub(crate) session: Option<ProviderSessionId>,
    /// Whether JSON of a schema was asked for.
    #[serde(default)]
    pub(crate) structured: bool,
    /// Whether the session was an earlier one.
    #[serde(default)]
    pub(crate) resumed: bool,
    /// The request that opened the session.
    #[serde(default)]
    pub(crate) opened: Option<u64>,
    /// The prompts, each sent when the request before it was answered.
    #[serde(default)]
    pub(crate) prompts: VecDeque<u64>,
    /// The last message of the user that an earlier turn had.
    #[serde(default)]
    pub(crate) before: Option<String>,
    /// When it was, in milliseconds since 1970.
    #[serde(default)]
    pub(crate) now: Option<i64>,
    /// Whether the turn was cancelled.
    #[serde(default)]
    cancelled: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RecordedExit {
    code: Option<i32>,
    signal: Option<i32>,
}

impl Case {
    /// The output or the error of a turn that the program ended.
    pub(crate) fn end(&self, end: impl TurnEnd) -> Value {
        self.output(end, |output| json!(output))
    }

    /// As [`Self::end`], with an output of the vendor's own form.
    pub(crate) fn output(&self, end: impl TurnEnd, own: impl FnOnce(TurnOutput) -> Value) -> Value {
        let cancelled = if self.cancelled { Cancelled::Yes } else { Cancelled::No };
        match conclude(end, cancelled, &Redactor::default()) {
            Ok(output) => json!({ "output": own(output) }),
            Err(error) => json!({ "error": error }),
        }
    }

    /// The error of a program that ended without ending its turn.
    pub(crate) fn exited(&self, explain: impl FnOnce(Exit, &str) -> Option<AgentError>) -> Value {
        let exit = Exit { code: self.exit.code, signal: self.exit.signal };
        json!({ "error": exited(exit, &self.stderr, explain) })
    }
}

/// All that comes of one recorded process, read in these pieces.
type Replay = fn(&Case, &[&[u8]]) -> Vec<Value>;

/// Replays all cases of a provider.
pub(crate) fn check(provider: &str, transcript: &str, replay: Replay) {
    #[expect(clippy::disallowed_methods, reason = "the person who replays chooses the cases")]
    let filter = std::env::var("INSPAN_FILTER").unwrap_or_default();
    let cases = case_folders(fixture_dir().join("providers").join(provider)).unwrap();
    let chosen: Vec<_> = cases.iter().filter(|case| case.to_string_lossy().contains(&filter)).collect();
    assert!(!chosen.is_empty() || !filter.is_empty(), "there are no cases");
    let failed = |folder: &std::path::PathBuf| check_case(folder, transcript, replay).err();
    let failures: Vec<String> = chosen.into_iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn check_case(folder: &Path, transcript: &str, replay: Replay) -> Result<(), String> {
    let case: Case = read_json(folder.join("input.json")).map_err(|error| error.to_string())?;
    let bytes = std::fs::read(folder.join(transcript)).map_err(|error| error.to_string())?;
    let lines = |chunks: &[&[u8]]| -> String {
        replay(&case, chunks).into_iter().map(|value| format!("{}\n", sorted(&value))).collect()
    };
    let whole = lines(&[&bytes]);
    for split in split_everywhere(&bytes, 0..4) {
        if lines(&split.chunks) != whole {
            return Err(format!("{}: other events when cut as `{}`", folder.display(), split.name));
        }
    }
    fuzz(&bytes, |bytes| drop(lines(&[bytes])));
    check_golden(folder.join("events.jsonl"), &whole).map_err(|error| error.to_string())
}
