//! Records, events and moments for the tests of stores.

use std::{ops::RangeInclusive, sync::Arc};

use inspan_protocol::{Envelope, Event, EventContext, Outcome, RunId, RunSnapshot, SessionId, Timestamp};
use serde_json::{Map, Value, json};

use crate::{FlowSource, SessionRecord};

/// So many milliseconds after a moment in 2026.
pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_767_780_000_000 + millis)
}

/// A session as it is made.
pub(crate) fn record(id: &str) -> SessionRecord {
    let mut input = Map::new();
    input.insert("topic".to_owned(), json!({ "name": "oxen", "heads": [2, 4.5, null] }));
    let flow = FlowSource { name: "oxen".to_owned(), text: "name: oxen\n".into(), ..Default::default() };
    SessionRecord::new(id.into(), flow, input, at(-1))
}

/// An event of a session.
pub(crate) fn event(id: &str, seq: u64, event: Event) -> Arc<Envelope> {
    Arc::new(Envelope::new(EventContext::session(SessionId::from(id)), seq, at(seq as i64), event))
}

/// An event by its JSON.
pub(crate) fn note(id: &str, seq: u64, json: Value) -> Arc<Envelope> {
    event(id, seq, serde_json::from_value(json).unwrap())
}

/// What an agent says.
pub(crate) fn text(content: &str) -> Event {
    Event::AgentText { content: content.to_owned(), delta: true, run_id: RunId::from("run") }
}

/// The end of a session.
pub(crate) fn end() -> Event {
    Event::HarnessComplete { success: true, outcome: Outcome::Success, duration_ms: 5, outputs: None }
}

/// Events of a session: its start if it is the first, and what an agent says.
pub(crate) fn events(id: &str, seqs: RangeInclusive<u64>) -> Vec<Arc<Envelope>> {
    let make = |seq| match seq {
        1 => event(id, 1, Event::HarnessStart { name: "oxen".to_owned() }),
        seq => event(id, seq, text(&format!("step {seq} of the team"))),
    };
    seqs.map(make).collect()
}

/// A state to begin with.
pub(crate) fn base(id: &str, last_seq: u64) -> RunSnapshot {
    let empty = json!({
        "version": 1, "sessionId": id, "flowName": "oxen", "flowHash": "", "status": "paused", "input": {},
        "outputs": {}, "nodeStatus": {}, "attempts": {}, "errors": {}, "edgeStatus": {}, "loopCounters": {},
        "frames": [], "agentSessions": {}, "pendingPrompts": [], "spent": { "tokens": 0 }, "state": {}, "lastSeq": last_seq,
    });
    serde_json::from_value(empty).unwrap()
}
