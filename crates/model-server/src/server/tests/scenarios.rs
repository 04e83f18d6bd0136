//! Plays every scenario of `fixtures/scenarios/` in each format, and compares each byte with what is recorded.
//! A new scenario needs no new code; `INSPAN_BLESS=1` writes its answers.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::client::{PendingExchange, ask, ask_chat, ask_gemini, ask_responses};
use crate::{ModelServer, Scenario};

/// What the requests say in turn, so that rules have something to fit.
const MESSAGES: [&str; 4] = ["role=planner", "role=reviewer", "role=reviewer again", "tool-ran"];

/// A format: its name, its path, and a request that holds one message.
struct WireFormat {
    name: &'static str,
    path: &'static str,
    ask: fn(&str) -> Value,
}

const FORMATS: [WireFormat; 4] = [
    WireFormat { name: "Anthropic Messages", path: "/v1/messages?beta=true", ask },
    WireFormat { name: "OpenAI Responses", path: "/v1/responses", ask: ask_responses },
    WireFormat { name: "OpenAI Chat Completions", path: "/v1/chat/completions", ask: ask_chat },
    WireFormat {
        name: "Gemini",
        path: "/v1beta/models/gemini-test:streamGenerateContent?alt=sse",
        ask: ask_gemini,
    },
];

#[test]
#[expect(clippy::disallowed_methods, reason = "the one switch of all golden tests")]
fn every_scenario_is_answered_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/scenarios");
    let scenarios = names_of(&folder, "json");
    let answers = folder.join("answers");
    let mut failures = String::new();
    for name in &scenarios {
        let scenario = Scenario::load(folder.join(format!("{name}.json"))).unwrap();
        let mut text = String::new();
        for format in &FORMATS {
            writeln!(text, "##### {}\n\n{}", format.name, played(scenario.clone(), format)).unwrap();
        }
        let golden = answers.join(format!("{name}.txt"));
        if std::env::var_os("INSPAN_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(&golden, &text).unwrap();
        }
        let recorded = std::fs::read_to_string(&golden).unwrap_or_default();
        if let Some((line, pair)) =
            recorded.lines().zip(text.lines()).enumerate().find(|(_, (old, new))| old != new)
        {
            writeln!(failures, "{}:{}: {pair:?}", golden.display(), line + 1).unwrap();
        } else if recorded != text {
            writeln!(failures, "{} has another length", golden.display()).unwrap();
        }
    }
    assert_eq!(names_of(&answers, "txt"), scenarios, "answers without a scenario");
    assert!(failures.is_empty(), "{failures}");
}

/// The answers to one request more than there are turns, so that `after` shows too.
fn played(mut scenario: Scenario, format: &WireFormat) -> String {
    scenario.hold_limit_ms = 50;
    scenario.turns.iter_mut().for_each(|turn| {
        turn.chunk_ms = turn.chunk_ms.map(|_| 1);
        // Pings are timed by the clock, so their number within the limit is not fixed.
        turn.stall_ping_ms = turn.stall_ping_ms.map(|_| 60_000);
    });
    let requests = scenario.turns.len() + 1;
    let server = ModelServer::start(scenario).unwrap();
    let mut text = String::new();
    for message in MESSAGES.iter().cycle().take(requests) {
        let body = (format.ask)(message).to_string();
        let answer = PendingExchange::start(&server, "POST", format.path, "", &body).finish();
        writeln!(text, "=== {message}").unwrap();
        match answer {
            None => writeln!(text, "no answer").unwrap(),
            Some(answer) => {
                writeln!(text, "HTTP {}", answer.status).unwrap();
                for (name, value) in answer.headers.iter().filter(|(name, _)| *name != "date") {
                    writeln!(text, "{name}: {value}").unwrap();
                }
                writeln!(text, "\n{}\n--- {:?}", answer.body.trim_end(), answer.end).unwrap();
            }
        }
        let record = server.requests().pop().unwrap();
        let turn = record.turn.unwrap();
        writeln!(text, "{turn:?}, {} events, {:?}\n", record.events_sent, record.ending).unwrap();
    }
    text
}

fn names_of(folder: &Path, extension: &str) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}
