//! The replay of recorded transcripts: the program's bytes through the real decoder and the real end of a turn,
//! compared with the whole golden file, whatever the reads looked like.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases with that in their name.

use std::path::Path;

use inspan_testkit::{case_folders, check_golden, fixture_dir, read_json, sorted, split_everywhere};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::decode::{Decoded, Decoder};
use super::super::error::died;
use super::super::outcome::{Asked, conclude};
use crate::transport::process::Exit;
use inspan_protocol::Redactor;

/// What surrounded a recorded process.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Input {
    /// Whose output it is; a note for readers, like its version.
    #[serde(rename = "program")]
    _program: String,
    #[serde(rename = "version")]
    _version: String,
    #[serde(default)]
    exit: RecordedExit,
    #[serde(default)]
    stderr: String,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RecordedExit {
    code: Option<i32>,
    signal: Option<i32>,
}

/// Everything that comes of one process, one JSON value a line.
fn replay<'a>(input: &Input, chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut decoder = Decoder::new();
    let mut out = Vec::new();
    let mut turns = 0;
    let mut take = |decoded: Vec<Decoded>, out: &mut Vec<Value>| {
        for decoded in decoded {
            turns += usize::from(matches!(decoded, Decoded::TurnEnd(_)));
            out.push(line(decoded));
        }
        turns
    };
    for chunk in chunks {
        take(decoder.push_bytes(chunk), &mut out);
    }
    let turns = take(decoder.finish(), &mut out);
    if decoder.in_turn() || turns == 0 {
        let (closing, end) = decoder.abandon();
        out.extend(closing.into_iter().map(line));
        out.push(json!({ "abandoned": { "said": end.said, "usage": end.usage } }));
        let exit = Exit { code: input.exit.code, signal: input.exit.signal };
        out.push(json!({ "error": died(exit, &input.stderr) }));
    }
    out.into_iter().map(|value| format!("{}\n", sorted(&value))).collect()
}

fn line(decoded: Decoded) -> Value {
    match decoded {
        Decoded::Event(event) => json!({ "event": event }),
        Decoded::PermissionAsked { request_id, request } => {
            json!({ "permissionAsked": { "requestId": request_id, "request": request } })
        }
        Decoded::Unsupported { request_id, subtype } => {
            json!({ "unsupported": { "requestId": request_id, "subtype": subtype } })
        }
        Decoded::Withdrawn { request_id } => json!({ "withdrawn": { "requestId": request_id } }),
        Decoded::Answered { request_id, error } => {
            json!({ "answered": { "requestId": request_id, "error": error } })
        }
        Decoded::TurnEnd(end) => match conclude(*end, Asked::ToGoOn, &Redactor::default()) {
            Ok(output) => json!({ "output": output }),
            Err(error) => json!({ "error": error }),
        },
        Decoded::Fault(error) => json!({ "fault": error }),
    }
}

fn check(case: &Path) -> Result<(), String> {
    let input: Input = read_json(case.join("input.json")).map_err(|error| error.to_string())?;
    let bytes = std::fs::read(case.join("transcript.jsonl")).map_err(|error| error.to_string())?;
    let mut splits = split_everywhere(&bytes, 0..4).into_iter();
    let whole = splits.next().map_or(String::new(), |split| replay(&input, split.chunks));
    for split in splits {
        let seen = replay(&input, split.chunks.iter().copied());
        if seen != whole {
            return Err(format!("{}: other events when cut as `{}`", case.display(), split.name));
        }
    }
    check_golden(case.join("events.jsonl"), &whole).map_err(|error| error.to_string())
}

#[test]
fn transcripts_replay_to_their_golden_events() {
    #[expect(clippy::disallowed_methods, reason = "whoever replays chooses the cases")]
    let filter = std::env::var("INSPAN_FILTER").unwrap_or_default();
    let cases = case_folders(fixture_dir().join("providers/claude")).unwrap();
    let chosen: Vec<_> = cases.iter().filter(|case| case.to_string_lossy().contains(&filter)).collect();
    assert!(!chosen.is_empty() || !filter.is_empty(), "there are no cases");
    let failures: Vec<String> = chosen.into_iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
