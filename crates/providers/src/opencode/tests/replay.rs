//! The replay of recorded streams: the server's bytes through the real decoder and the real end of a turn, compared
//! with the whole golden file, whatever the reads looked like.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases with that in their name.

use std::path::Path;

use inspan_protocol::{Redactor, Timestamp};
use inspan_testkit::{case_folders, check_golden, fixture_dir, read_json, sorted, split_everywhere};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::decode::{Answer, Asked, Decoded, Decoder, Follows};
use super::super::error::retrying;
use super::super::outcome::{Asked as Stop, conclude};

/// What surrounded a recorded turn.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Input {
    /// Whose output it is; a note for readers, like its version.
    #[serde(rename = "program")]
    _program: String,
    #[serde(rename = "version")]
    _version: String,
    /// The conversation.
    session: String,
    /// The last message of the user that an earlier turn had.
    #[serde(default)]
    before: Option<String>,
    /// When it was, in milliseconds since 1970; two seconds before the next attempt unless given.
    #[serde(default)]
    now: Option<i64>,
    /// Whether the turn was cancelled.
    #[serde(default)]
    cancelled: bool,
}

/// Everything that comes of one turn, one JSON value a line.
fn replay<'a>(input: &Input, chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut decoder = Decoder::new(&input.session, input.before.clone());
    let stop = if input.cancelled { Stop::ToStop } else { Stop::ToGoOn };
    let mut out = Vec::new();
    let mut over = false;
    for chunk in chunks {
        for decoded in decoder.push(chunk) {
            if !over {
                over = matches!(decoded, Decoded::TurnEnd(_) | Decoded::Fault(_));
                out.push(line(decoded, stop, input.now));
            }
        }
    }
    if !over {
        let (closing, end) = decoder.abandon();
        out.extend(closing.into_iter().map(|decoded| line(decoded, stop, input.now)));
        out.push(json!({ "abandoned": { "said": end.said, "usage": end.usage } }));
    }
    out.into_iter().map(|value| format!("{}\n", sorted(&value))).collect()
}

fn line(decoded: Decoded, stop: Stop, now: Option<i64>) -> Value {
    match decoded {
        Decoded::Connected => json!({ "connected": true }),
        Decoded::Event(event) => json!({ "event": event }),
        Decoded::Asked { request_id, asked, request } => {
            let word = if asked == Asked::Permission { "permissionAsked" } else { "questionAsked" };
            json!({ word: { "requestId": request_id, "request": request } })
        }
        Decoded::Answered { request_id, answer } => {
            json!({ "answered": { "requestId": request_id, "refused": answer == Answer::Refused } })
        }
        Decoded::Step { follows } => json!({ "step": { "follows": follows == Follows::Another } }),
        Decoded::Retry { attempt, message, reason, next } => {
            let now = Timestamp::from_millis(now.unwrap_or(next.unwrap_or_default() - 2000));
            let error = retrying(&message, reason.as_deref(), next, now);
            json!({ "retry": { "attempt": attempt, "error": error } })
        }
        Decoded::Hopeless(error) => json!({ "hopeless": error }),
        Decoded::Closing => json!({ "closing": true }),
        Decoded::TurnEnd(end) => match conclude(*end, stop, &Redactor::default()) {
            Ok(output) => json!({ "output": output }),
            Err(error) => json!({ "error": error }),
        },
        Decoded::Fault(error) => json!({ "fault": error }),
    }
}

fn check(case: &Path) -> Result<(), String> {
    let input: Input = read_json(case.join("input.json")).map_err(|error| error.to_string())?;
    let bytes = std::fs::read(case.join("transcript.sse")).map_err(|error| error.to_string())?;
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
    let cases = case_folders(fixture_dir().join("providers/opencode")).unwrap();
    let chosen: Vec<_> = cases.iter().filter(|case| case.to_string_lossy().contains(&filter)).collect();
    assert!(!chosen.is_empty() || !filter.is_empty(), "there are no cases");
    let failures: Vec<String> = chosen.into_iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
