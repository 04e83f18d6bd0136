//! Turns a turn into the exact steps of its answer: bytes, waits, silences and cuts; pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::scenario::{HttpError, Scenario, Turn};
use crate::speech::text_of;
use crate::wire::{Beat, Wire};
use crate::wire::{Delivery, RequestView};

/// One step of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlanStep {
    Send(String),
    Wait(Duration),
    /// Nothing is sent except pings, until the limit; then the connection is cut.
    Hold {
        ping: Option<(Duration, String)>,
        limit: Duration,
    },
    /// The connection ends here, without the end of the body.
    Cut,
}

/// One whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Wait before the first byte.
    pub(crate) first: Duration,
    pub(crate) reply: Reply,
}

impl Plan {
    /// An answer without a wait.
    pub(crate) fn at_once(reply: Reply) -> Self {
        Self { first: Duration::ZERO, reply }
    }
}

/// What is sent after that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Not a byte until the limit; then the connection is cut.
    Silence { limit: Duration },
    /// One body of known length.
    Whole { status: u16, headers: Headers, body: String },
    /// A body in steps.
    Steps { headers: Headers, steps: Vec<PlanStep> },
}

/// Later entries of the same name win.
pub(crate) type Headers = BTreeMap<String, String>;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// Plans the answer of `turn` to `request`.
pub(crate) fn plan(
    wire: &dyn Wire,
    scenario: &Scenario,
    turn: &Turn,
    request: &RequestView,
    stem: &str,
) -> Plan {
    let first = Duration::from_millis(turn.first_ms.unwrap_or(0));
    let headers = |content_type: &str| -> Headers {
        let own = wire.headers(stem).into_iter().map(|(name, value)| (name.to_owned(), value));
        let scripted = turn.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        [("content-type".to_owned(), content_type.to_owned())]
            .into_iter()
            .chain(own)
            .chain(scripted)
            .collect()
    };
    if turn.hang {
        return Plan { first, reply: Reply::Silence { limit: scenario.hold_limit() } };
    }
    if let Some(error) = &turn.http_error {
        return Plan { first, reply: http_error(wire, error, headers(JSON), stem) };
    }
    match request.delivery {
        Delivery::Stream => {
            let steps = stream(wire, scenario, turn, wire.beats(turn, request, stem));
            Plan { first, reply: Reply::Steps { headers: headers(EVENTS), steps } }
        }
        Delivery::Whole => {
            let pauses = wire.beats(turn, request, stem).into_iter().filter_map(|beat| match beat {
                Beat::Pause(wait) => Some(wait),
                Beat::Event(_) => None,
            });
            let first = first + pauses.sum();
            Plan { first, reply: whole(wire, scenario, turn, request, headers(JSON), stem) }
        }
    }
}

fn http_error(wire: &dyn Wire, error: &HttpError, mut headers: Headers, stem: &str) -> Reply {
    let body = match &error.body {
        None => wire.error_body(error.status, error.kind.as_deref(), &error.message, stem),
        Some(Value::String(text)) => {
            headers.insert("content-type".to_owned(), "text/plain; charset=utf-8".to_owned());
            text.clone()
        }
        Some(value) => text_of(value),
    };
    headers.extend(error.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())));
    Reply::Whole { status: error.status, headers, body }
}

fn stream(wire: &dyn Wire, scenario: &Scenario, turn: &Turn, beats: Vec<Beat>) -> Vec<PlanStep> {
    let gap = scenario.gap(turn);
    let total = beats.iter().filter(|beat| matches!(beat, Beat::Event(_))).count();
    // A fault beyond the last event acts after it.
    let at = |after: usize| after.min(total);
    let mut steps = Vec::new();
    let mut sent = 0;
    let mut beats = beats.into_iter();
    loop {
        let next = beats.next();
        if let Some(Beat::Pause(wait)) = next {
            steps.push(PlanStep::Wait(wait));
            continue;
        }
        if turn.garbage_after.map(at) == Some(sent) {
            steps.push(PlanStep::Send(wire.garbage()));
        }
        if turn.truncate_after.map(at) == Some(sent) {
            steps.push(PlanStep::Cut);
            return steps;
        }
        if turn.stall_after.map(at) == Some(sent) {
            steps.push(hold(wire, scenario, turn));
            return steps;
        }
        if let Some(error) = turn.error_event_after.as_ref().filter(|error| at(error.after) == sent) {
            steps.push(PlanStep::Send(wire.error_event(error, sent)));
            return steps;
        }
        let Some(Beat::Event(event)) = next else { return steps };
        steps.push(PlanStep::Send(event));
        sent += 1;
        if !gap.is_zero() {
            steps.push(PlanStep::Wait(gap));
        }
    }
}

fn hold(wire: &dyn Wire, scenario: &Scenario, turn: &Turn) -> PlanStep {
    let ping = turn.stall_ping_ms.map(|ms| (Duration::from_millis(ms), wire.ping()));
    PlanStep::Hold { ping, limit: scenario.hold_limit() }
}

fn whole(
    wire: &dyn Wire,
    scenario: &Scenario,
    turn: &Turn,
    request: &RequestView,
    headers: Headers,
    stem: &str,
) -> Reply {
    if let Some(error) = &turn.error_event_after {
        let status = wire.error_status(&error.kind);
        let body = wire.error_body(status, Some(&error.kind), &error.message, stem);
        return Reply::Whole { status, headers, body };
    }
    let body = wire.whole(turn, request, stem);
    let half: String = body.chars().take(body.chars().count() / 2).collect();
    if turn.truncate_after.is_some() {
        return Reply::Steps { headers, steps: vec![PlanStep::Send(half), PlanStep::Cut] };
    }
    if turn.stall_after.is_some() {
        // A ping has no place within one JSON value; white space has, but no vendor sends it.
        let hold = PlanStep::Hold { ping: None, limit: scenario.hold_limit() };
        return Reply::Steps { headers, steps: vec![PlanStep::Send(half), hold] };
    }
    let body = if turn.garbage_after.is_some() { half } else { body };
    Reply::Whole { status: 200, headers, body }
}
