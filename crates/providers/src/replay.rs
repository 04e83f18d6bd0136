//! The replay of recorded cases: what a program or a service wrote, through the real decoder and the real end of a turn,
//! compared whole with the adapter's earlier output, for every way in which the bytes can be cut into reads.
//!
//! `fixtures/providers/README.md` describes the files. `INSPAN_BLESS=1` writes the expected events again;
//! `INSPAN_FILTER=part` replays the cases whose names contain that part.

use std::path::{Path, PathBuf};

use inspan_model_server::sorted;
use inspan_testkit::{
    case_folders, check_golden, cut_in_two, fixture_dir, fuzz, read_jsonl, split_everywhere,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A transcript of at most this many bytes is also cut in two at every byte.
const SHORT: usize = 3072;

/// A row of a provider's `cases.jsonl`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseRow {
    case: String,
    /// Where the bytes come from; a note for readers.
    source: String,
    /// What the adapter knows beside the bytes.
    #[serde(default = "no_setting", skip_serializing_if = "is_empty")]
    setting: Value,
    /// The bytes. Long ones, and those that are not UTF-8, are in a folder with the case's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transcript: Option<String>,
    /// What the adapter makes of them, if they are here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    events: Option<Vec<Value>>,
}

fn no_setting() -> Value {
    json!({})
}

fn is_empty(setting: &Value) -> bool {
    *setting == no_setting()
}

impl CaseRow {
    fn bytes(&self, folder: &Path) -> Vec<u8> {
        let Some(text) = &self.transcript else { return read_transcript(&folder.join(&self.case)) };
        text.clone().into_bytes()
    }
}

fn folder_of(provider: &str) -> PathBuf {
    fixture_dir().join("providers").join(provider)
}

fn read_transcript(case: &Path) -> Vec<u8> {
    let read = |name| std::fs::read(case.join(name));
    read("transcript.jsonl").or_else(|_| read("transcript.sse")).unwrap()
}

fn cases(folder: &Path) -> Vec<CaseRow> {
    let cases: Vec<CaseRow> = read_jsonl(folder.join("cases.jsonl")).unwrap();
    let of_rows = cases.iter().filter(|case| case.transcript.is_none()).map(|case| folder.join(&case.case));
    assert_eq!(
        of_rows.collect::<Vec<_>>(),
        case_folders(folder).unwrap(),
        "rows without a transcript, and folders"
    );
    cases
}

/// The bytes of all cases of a provider.
pub(crate) fn transcripts(provider: &str) -> Vec<Vec<u8>> {
    let folder = folder_of(provider);
    cases(&folder).iter().map(|case| case.bytes(&folder)).collect()
}

/// The bytes of one case.
pub(crate) fn transcript(provider: &str, name: &str) -> Vec<u8> {
    let folder = folder_of(provider);
    cases(&folder).iter().find(|case| case.case == name).unwrap().bytes(&folder)
}

/// Replays all cases of a provider. `replay` returns all events of one transcript, read in these pieces.
pub(crate) fn check<S: DeserializeOwned>(provider: &str, replay: impl Fn(&S, &[&[u8]]) -> Vec<Value>) {
    #[expect(clippy::disallowed_methods, reason = "the person who replays chooses the cases")]
    let filter = std::env::var("INSPAN_FILTER").unwrap_or_default();
    let folder = folder_of(provider);
    let (mut table, mut failures) = (String::new(), Vec::new());
    for mut case in cases(&folder) {
        if case.case.contains(&filter) {
            let setting: S = serde_json::from_value(case.setting.clone()).unwrap();
            let bytes = case.bytes(&folder);
            match replay_all_cuts(&bytes, |chunks| replay(&setting, chunks)) {
                Err(cut) => failures.push(format!("{}: other events when cut {cut}", case.case)),
                Ok(events) if case.transcript.is_some() => case.events = Some(events),
                Ok(events) => {
                    let lines: String = events.iter().map(|value| format!("{}\n", sorted(value))).collect();
                    let golden = check_golden(folder.join(&case.case).join("events.jsonl"), &lines);
                    failures.extend(golden.err().map(|error| error.to_string()));
                }
            }
        }
        table.push_str(&format!("{}\n", sorted(&json!(case))));
    }
    failures.extend(check_golden(folder.join("cases.jsonl"), &table).err().map(|error| error.to_string()));
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The events of the bytes, or the cut with which they differ.
fn replay_all_cuts(bytes: &[u8], replay: impl Fn(&[&[u8]]) -> Vec<Value>) -> Result<Vec<Value>, String> {
    let whole = replay(&[bytes]);
    for split in split_everywhere(bytes, 0..4) {
        if replay(&split.chunks) != whole {
            return Err(format!("as `{}`", split.name));
        }
    }
    let cuts = cut_in_two(bytes).filter(|_| bytes.len() <= SHORT);
    for (left, right) in cuts {
        if replay(&[left, right]) != whole {
            return Err(format!("at byte {}", left.len()));
        }
    }
    fuzz(bytes, |bytes| drop(replay(&[bytes])));
    Ok(whole)
}
