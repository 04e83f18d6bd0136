//! The replay of recorded transcripts: the program's bytes through the real codec, the real decoder and the real end of
//! a turn, compared with the whole golden file, whatever the reads looked like.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases with that in their name.

use std::path::Path;

use inspan_protocol::{ProviderSessionId, Redactor};
use inspan_testkit::{case_folders, check_golden, fixture_dir, read_json, sorted, split_everywhere};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::decode::{Decoded, Decoder, Form};
use super::super::error::{died, refused};
use super::super::outcome::{Asked, CodexOutput, Shape, conclude};
use crate::transport::json_rpc::{Codec, Incoming};
use crate::transport::process::Exit;

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
    /// Whether JSON of a schema was asked for.
    #[serde(default)]
    structured: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RecordedExit {
    code: Option<i32>,
    signal: Option<i32>,
}

/// A process that is read again. What was asked of it is told by what it answered.
struct Replay<'a> {
    input: &'a Input,
    decoder: Decoder,
    turns: usize,
    out: Vec<Value>,
}

impl Replay<'_> {
    fn take(&mut self, message: Incoming) {
        if let Incoming::Answer { result, .. } = &message {
            return self.answer(result.as_ref().map(|result| result.get()).map_err(|error| {
                let mut error = refused("the request", error);
                error.message = Redactor::default().text(&error.message);
                json!({ "error": error })
            }));
        }
        for decoded in self.decoder.push(message) {
            self.turns += usize::from(matches!(decoded, Decoded::TurnEnd(_)));
            let line = self.line(decoded);
            self.out.extend(line);
        }
    }

    /// The answer that opens the thread, or the one that begins a turn.
    fn answer(&mut self, result: Result<&str, Value>) {
        let result: Value = match result {
            Ok(result) => serde_json::from_str(result).unwrap(),
            Err(error) => return self.out.push(error),
        };
        if let Some(id) = result["thread"]["id"].as_str() {
            let model = result["model"].as_str().map(str::to_owned);
            self.decoder.open(ProviderSessionId::from(id), model);
        }
        if let Some(turn_id) = result["turn"]["id"].as_str() {
            self.decoder.begin();
            self.decoder.named(turn_id);
        }
    }

    fn line(&self, decoded: Decoded) -> Option<Value> {
        Some(match decoded {
            Decoded::Event(event) => json!({ "event": event }),
            Decoded::Asked { id, request, form } => {
                let form = match form {
                    Form::Decision => json!("decision"),
                    Form::Permissions(wanted) => json!({ "permissions": wanted }),
                    Form::Elicitation => json!("elicitation"),
                };
                json!({ "permissionAsked": { "requestId": id, "request": request, "form": form } })
            }
            Decoded::Unsupported { id, method } => {
                json!({ "unsupported": { "requestId": id, "method": method } })
            }
            Decoded::Elicited { id } => json!({ "elicited": { "requestId": id } }),
            Decoded::Withdrawn { id } => json!({ "withdrawn": { "requestId": id } }),
            // The answer to the request told it already.
            Decoded::TurnStarted { .. } => return None,
            Decoded::TurnEnd(end) => {
                let shape = if self.input.structured { Shape::Structured } else { Shape::Free };
                match conclude(*end, Asked::ToGoOn, shape, &Redactor::default()) {
                    Ok(output) => json!({ "output": CodexOutput::new(output) }),
                    Err(error) => json!({ "error": error }),
                }
            }
            Decoded::Fault(error) => json!({ "fault": error }),
        })
    }
}

/// Everything that comes of one process, one JSON value a line.
fn replay<'a>(input: &Input, chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut codec = Codec::default();
    let mut replay = Replay { input, decoder: Decoder::default(), turns: 0, out: Vec::new() };
    for chunk in chunks {
        codec.push(chunk, |message| replay.take(message));
    }
    codec.finish(|message| replay.take(message));
    let Replay { mut decoder, turns, mut out, .. } = replay;
    if decoder.in_turn() || turns == 0 {
        let (closing, end) = decoder.abandon();
        out.extend(closing.into_iter().filter_map(|decoded| match decoded {
            Decoded::Event(event) => Some(json!({ "event": event })),
            _ => None,
        }));
        out.push(json!({ "abandoned": { "said": end.said, "usage": end.usage } }));
        let exit = Exit { code: input.exit.code, signal: input.exit.signal };
        out.push(json!({ "error": died(exit, &input.stderr) }));
    }
    out.into_iter().map(|value| format!("{}\n", sorted(&value))).collect()
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
    let cases = case_folders(fixture_dir().join("providers/codex")).unwrap();
    let chosen: Vec<_> = cases.iter().filter(|case| case.to_string_lossy().contains(&filter)).collect();
    assert!(!chosen.is_empty() || !filter.is_empty(), "there are no cases");
    let failures: Vec<String> = chosen.into_iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
