//! Tests of the whole adapter: recorded transcripts, and agents that misbehave.

use std::collections::VecDeque;

use inspan_protocol::Provider;
use serde_json::{Value, json};

use super::AcpProvider;
use super::decode::{AcpDecoded, AcpDecoder, WantedAction};
use crate::json_rpc::{Codec, Incoming, LocalId};
use crate::program::tests::{ProcessCase, abandoned};
use crate::replay::check;

#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod requests;
#[cfg(target_os = "linux")]
mod sessions;

/// One recorded agent in the course of its replay.
struct Replay<'a> {
    case: &'a ProcessCase,
    decoder: AcpDecoder,
    prompts: VecDeque<LocalId>,
    out: Vec<Value>,
}

impl Replay<'_> {
    fn take(&mut self, message: Incoming) {
        let opened = matches!(&message, Incoming::Answer { id, .. } if Some(*id) == self.case.opened);
        let decoded = self.decoder.take(message);
        let ended = decoded.iter().any(|decoded| matches!(decoded, AcpDecoded::TurnEnd(_)));
        self.out.extend(decoded.into_iter().map(|decoded| line(decoded, self.case)));
        if (opened || ended)
            && let Some(prompt) = self.prompts.pop_front()
        {
            self.decoder.begin(prompt, None);
        }
    }
}

fn replay(case: &ProcessCase, chunks: &[&[u8]]) -> Vec<Value> {
    let session = case.session.clone().unwrap();
    let decoder = if case.resumed { AcpDecoder::of_resumed(session) } else { AcpDecoder::of_new(session) };
    let mut replay = Replay { case, decoder, prompts: case.prompts.clone(), out: Vec::new() };
    let mut codec = Codec::default();
    for chunk in chunks {
        codec.push(chunk, |message| replay.take(message));
    }
    codec.finish(|message| replay.take(message));
    if replay.decoder.in_turn() {
        replay.out.extend(abandoned(&mut replay.decoder, |decoded| Some(line(decoded, case))));
        replay.out.push(case.exited(|_, _| None));
    }
    replay.out
}

fn line(decoded: AcpDecoded, case: &ProcessCase) -> Value {
    match decoded {
        AcpDecoded::Event(event) => json!({ "event": event }),
        AcpDecoded::PermissionRequested { id, question } => json!({ "permissionAsked": {
            "id": id,
            "request": question.request,
            "names": question.names,
            "titles": question.titles,
            "paths": question.paths,
            "command": question.command,
            "options": question.options,
        } }),
        AcpDecoded::Wanted { id, wanted } => json!({ "wanted": { "id": id, "what": wanted_line(&wanted) } }),
        AcpDecoded::Refused { id, code, message } => {
            json!({ "refused": { "id": id, "code": code, "message": message } })
        }
        AcpDecoded::Untold(denials) => json!({ "untold": denials }),
        AcpDecoded::TurnEnd(end) => case.output(*end, |mut output| {
            output.session_id = case.session.clone();
            json!(output)
        }),
        AcpDecoded::Fault(error) => json!({ "fault": error }),
    }
}

fn wanted_line(wanted: &WantedAction) -> Value {
    match wanted {
        WantedAction::ReadFile(wanted) => json!({ "readFile": wanted }),
        WantedAction::WriteFile(wanted) => json!({ "writeFile": wanted }),
        WantedAction::CreateTerminal(wanted) => json!({ "createTerminal": wanted }),
        WantedAction::TerminalOutput(wanted) => json!({ "terminalOutput": wanted }),
        WantedAction::WaitForTerminal(wanted) => json!({ "waitForTerminal": wanted }),
        WantedAction::KillTerminal(wanted) => json!({ "killTerminal": wanted }),
        WantedAction::ReleaseTerminal(wanted) => json!({ "releaseTerminal": wanted }),
    }
}

#[test]
fn an_agent_that_is_said_to_branch_conversations_offers_it() {
    for provider in [AcpProvider::droid(), AcpProvider::gemini(), AcpProvider::qwen()] {
        let said = provider.descriptor();
        let recorded = format!(
            "{}/../../fixtures/providers/acp/{}_turns/transcript.jsonl",
            env!("CARGO_MANIFEST_DIR"),
            said.provider_type
        );
        let offers = std::fs::read_to_string(&recorded).unwrap().contains(r#""fork":"#);
        assert_eq!(said.capabilities.fork, offers, "{recorded}");
    }
}

#[test]
fn recorded_transcripts_give_their_golden_events() {
    check("acp", replay);
}
