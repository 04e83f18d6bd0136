//! The replay of recorded transcripts: the agent's bytes through the real decoder and the real end of a turn, compared
//! with the whole golden file, whatever the reads looked like.
//!
//! `INSPAN_BLESS=1` writes the golden files; `INSPAN_FILTER=part` replays the cases with that in their name.

use std::collections::VecDeque;
use std::path::Path;

use inspan_protocol::{ProviderSessionId, Redactor};
use inspan_testkit::{case_folders, check_golden, fixture_dir, read_json, sorted, split_everywhere};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::decode::{Decoded, Decoder, Wanted};
use super::super::error::died;
use super::super::outcome::{Around, Asked, Form, conclude};
use crate::transport::json_rpc::{Codec, Incoming, OurId};
use crate::transport::process::Exit;

/// What surrounded a recorded agent.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Input {
    /// Whose output it is; a note for readers, like its version.
    #[serde(rename = "program")]
    _program: String,
    #[serde(rename = "version")]
    _version: String,
    session: ProviderSessionId,
    /// Whether the session was an earlier one.
    resumed: bool,
    /// The request that opened the session.
    opened: OurId,
    /// The prompts, each handed over when the request before it was answered.
    prompts: VecDeque<OurId>,
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

/// One recorded agent in the course of its replay.
struct Replay<'a> {
    input: &'a Input,
    decoder: Decoder,
    prompts: VecDeque<OurId>,
    out: Vec<Value>,
}

impl Replay<'_> {
    fn take(&mut self, message: Incoming) {
        let opened = matches!(&message, Incoming::Answer { id, .. } if *id == self.input.opened);
        let decoded = self.decoder.take(message);
        let ended = decoded.iter().any(|decoded| matches!(decoded, Decoded::TurnEnd(_)));
        for decoded in decoded {
            self.out.push(line(decoded, self.input));
        }
        if (opened || ended)
            && let Some(prompt) = self.prompts.pop_front()
        {
            self.decoder.begin(prompt);
        }
    }
}

/// Everything that comes of one agent, one JSON value a line.
fn replay<'a>(input: &Input, chunks: impl IntoIterator<Item = &'a [u8]>) -> String {
    let session = input.session.clone();
    let decoder = if input.resumed { Decoder::of_resumed(session) } else { Decoder::of_new(session) };
    let mut replay = Replay { input, decoder, prompts: input.prompts.clone(), out: Vec::new() };
    let mut codec = Codec::default();
    for chunk in chunks {
        codec.push(chunk, |message| replay.take(message));
    }
    codec.finish(|message| replay.take(message));
    if replay.decoder.in_turn() {
        let (closing, end) = replay.decoder.abandon();
        replay.out.extend(closing.into_iter().map(|decoded| line(decoded, input)));
        replay.out.push(json!({ "abandoned": { "said": end.said, "usage": end.usage } }));
        let exit = Exit { code: input.exit.code, signal: input.exit.signal };
        replay.out.push(json!({ "error": died(exit, &input.stderr) }));
    }
    replay.out.into_iter().map(|value| format!("{}\n", sorted(&value))).collect()
}

fn line(decoded: Decoded, input: &Input) -> Value {
    match decoded {
        Decoded::Event(event) => json!({ "event": event }),
        Decoded::Asked { id, question } => json!({ "permissionAsked": {
            "id": id,
            "request": question.request,
            "names": question.names,
            "paths": question.paths,
            "command": question.command,
            "options": question.options,
        } }),
        Decoded::Wanted { id, wanted } => json!({ "wanted": { "id": id, "what": wanted_line(&wanted) } }),
        Decoded::Refused { id, code, message } => {
            json!({ "refused": { "id": id, "code": code, "message": message } })
        }
        Decoded::TurnEnd(end) => {
            let around =
                Around { session: &input.session, form: Form::Text, denials: Vec::new(), duration_ms: 0 };
            match conclude(*end, Asked::ToGoOn, around, &Redactor::default()) {
                Ok(output) => json!({ "output": output }),
                Err(error) => json!({ "error": error }),
            }
        }
        Decoded::Fault(error) => json!({ "fault": error }),
    }
}

fn wanted_line(wanted: &Wanted) -> Value {
    match wanted {
        Wanted::ReadFile(wanted) => json!({ "readFile": wanted }),
        Wanted::WriteFile(wanted) => json!({ "writeFile": wanted }),
        Wanted::CreateTerminal(wanted) => json!({ "createTerminal": wanted }),
        Wanted::TerminalOutput(wanted) => json!({ "terminalOutput": wanted }),
        Wanted::WaitForTerminal(wanted) => json!({ "waitForTerminal": wanted }),
        Wanted::KillTerminal(wanted) => json!({ "killTerminal": wanted }),
        Wanted::ReleaseTerminal(wanted) => json!({ "releaseTerminal": wanted }),
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
    let cases = case_folders(fixture_dir().join("providers/acp")).unwrap();
    let chosen: Vec<_> = cases.iter().filter(|case| case.to_string_lossy().contains(&filter)).collect();
    assert!(!chosen.is_empty() || !filter.is_empty(), "there are no cases");
    let failures: Vec<String> = chosen.into_iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
