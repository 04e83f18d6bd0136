//! The fold from events to spans. It reads nothing but events, so the same log gives the same spans, whenever it is read and
//! however often: a span that has ended is the same in every longer log.

mod agents;
mod open;
mod session;
mod tasks;

use std::collections::BTreeMap;

use inspan_protocol::{
    Envelope, Event, NodePath, SessionId, SpanId, Spending, StopReason, Timestamp, TraceId, UnpricedTurns,
    Usage,
};

use crate::{
    names::{event, own, span},
    settings::Content,
    span::{Attributes, Link, Span, SpanEvent, SpanStatus},
};

use agents::OpenAgentRun;
use open::{OpenSpans, SpanSubject};

/// What a trace shows beside what the events say.
#[derive(Clone, Debug, Default)]
pub struct TraceSettings {
    /// Whether texts of agents, tools and questions are in it.
    pub content: Content,
    /// The session that this one was made of, and how: `fork` or `resume`.
    pub parent: Option<(SessionId, &'static str)>,
    /// What the conventions call the vendors, by the types of our providers.
    pub vendors: BTreeMap<String, Vendor>,
}

/// One provider, as traces show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// The name that the conventions give it, a value of `gen_ai.provider.name`.
    pub name: &'static str,
    /// Whether our own code makes its model calls, so that the log shows each of them.
    pub is_api: bool,
}

/// The trace of one session, as far as its events are known.
#[derive(Debug)]
pub struct Trace {
    session: SessionId,
    settings: TraceSettings,
    open: OpenSpans,
    runs: BTreeMap<String, OpenAgentRun>,
    /// Spans that ended with the present event.
    ended: Vec<Span>,
    /// The time of the newest event of a process that was at work.
    last_live: Timestamp,
    /// What the session waits for, if nothing can run.
    idle: Option<&'static str>,
    unpriced_turns: UnpricedTurns,
    spent: UsageTotal,
    failure: Option<String>,
    is_over: bool,
}

/// What agents have used; nothing if none has said anything.
#[derive(Debug, Default)]
struct UsageTotal(Option<(Usage, Spending)>);

impl Trace {
    /// The trace of a session of which no event is known yet.
    pub fn new(session: SessionId, settings: TraceSettings) -> Self {
        Self {
            session,
            settings,
            open: OpenSpans::default(),
            runs: BTreeMap::new(),
            ended: Vec::new(),
            last_live: Timestamp::default(),
            idle: None,
            unpriced_turns: UnpricedTurns::default(),
            spent: UsageTotal::default(),
            failure: None,
            is_over: false,
        }
    }

    /// The trace's id.
    pub fn id(&self) -> TraceId {
        TraceId::of_session(&self.session)
    }

    /// How many spans have begun and not ended.
    pub fn open_spans(&self) -> usize {
        self.open.len()
    }

    /// Takes the next event of the log; gives the spans that ended with it, inner ones first.
    pub fn apply(&mut self, envelope: &Envelope) -> Vec<Span> {
        // What follows the end is about channels and refused commands.
        if self.is_over || is_about_channels(&envelope.event) {
            return Vec::new();
        }
        if self.open.get(&SpanSubject::Session).is_none() {
            self.begin_session(envelope);
        }
        self.session_event(envelope);
        self.task_event(envelope);
        self.frame_event(envelope);
        self.agent_event(envelope);
        self.note_event(envelope);
        if !is_unseen_end(&envelope.event) {
            self.last_live = envelope.timestamp;
        }
        if !matches!(envelope.event, Event::FlowWaiting { .. }) && !is_unseen_end(&envelope.event) {
            self.idle = None;
        }
        std::mem::take(&mut self.ended)
    }

    /// The span that began with this event.
    fn event_span(&self, envelope: &Envelope) -> SpanId {
        SpanId::of_event(&self.session, envelope.seq)
    }

    /// Ends a span, and first what is still open within it.
    fn close(&mut self, place: &SpanSubject, at: Timestamp, status: SpanStatus) {
        let trace = self.id();
        self.ended.extend(self.open.close(place, trace, at, status));
    }

    /// Adds an event to the innermost open span of a node, a frame or the session.
    fn note(&mut self, envelope: &Envelope, name: &'static str, attributes: Attributes) {
        let place = match &envelope.context.task {
            Some(path) if self.open.get(&SpanSubject::Attempt(path.clone())).is_some() => {
                SpanSubject::Attempt(path.clone())
            }
            Some(path) => self.enclosing(path),
            None => SpanSubject::Session,
        };
        if let Some(open) = self.open.get_mut(&place) {
            open.event(SpanEvent { name, at: envelope.timestamp, attributes });
        }
    }

    /// The open span that a node is part of: its frame, else the node that opened the frame, else the session.
    fn enclosing(&self, path: &NodePath) -> SpanSubject {
        let mut rest = path.as_str();
        while let Some((owner, _)) = rest.rsplit_once('/') {
            let (owner, index) = match owner.strip_suffix(']').and_then(|part| part.rsplit_once('[')) {
                Some((owner, index)) => (owner, index.parse().unwrap_or(0)),
                None => (owner, 0),
            };
            let path = NodePath::new(owner);
            for place in [SpanSubject::Frame(path.clone(), index), SpanSubject::Attempt(path)] {
                if self.open.get(&place).is_some() {
                    return place;
                }
            }
            rest = owner;
        }
        SpanSubject::Session
    }

    /// Events that are a moment of a span, and begin or end none.
    fn note_event(&mut self, envelope: &Envelope) {
        let new = Attributes::default;
        let (name, attributes) = match &envelope.event {
            Event::TaskSkipped { task_id, reason, .. } => {
                (event::SKIPPED, new().with(own::NODE, task_id.as_str()).with(own::DETAIL, word(reason)))
            }
            Event::TaskReused { task_id, from, .. } => {
                (event::REUSED, new().with(own::NODE, task_id.as_str()).with(own::DETAIL, from.as_str()))
            }
            Event::LoopIterate { to, iteration, .. } => (
                event::ITERATE,
                new().with(own::NODE, to.as_str()).with(own::PASS, iteration.saturating_add(1)),
            ),
            Event::SessionMessage { .. } => (event::MESSAGE, new()),
            Event::SessionPause { .. } => (event::PAUSE, new()),
            Event::SessionAbort { .. } => (event::STOP, new()),
            Event::FlowWaiting { on, .. } => (event::WAITING, new().with(own::WAITS_FOR, word(on))),
            Event::FlowEnding { outcome, .. } => (event::ENDING, new().with(own::OUTCOME, word(outcome))),
            Event::BudgetExceeded { limit, .. } => {
                (event::BUDGET_EXCEEDED, new().with(own::DETAIL, limit.as_str()))
            }
            Event::BudgetCarried { from, spent, .. } => (
                event::BUDGET_CARRIED,
                new()
                    .with(own::SESSION, from.as_str())
                    .with(own::TOKENS, spent.tokens)
                    .with_some(own::COST, (!spent.unpriced).then_some(spent.cost_usd)),
            ),
            _ => return,
        };
        self.note(envelope, name, attributes);
    }

    /// The links of the session's span.
    fn links(&self) -> Vec<Link> {
        let link = |(session, how): &(SessionId, &'static str)| Link {
            trace_id: TraceId::of_session(session),
            span_id: SpanId::of_session(session),
            attributes: Attributes::default().with(own::SESSION, session.as_str()).with(own::LINK, *how),
        };
        self.settings.parent.iter().map(link).collect()
    }
}

/// The word of a closed list, as it is on the wire.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Whether it is about channels, which come and go with each process and are no part of the work.
fn is_about_channels(event: &Event) -> bool {
    matches!(
        event,
        Event::ChannelRegistered { .. }
            | Event::ChannelStarted { .. }
            | Event::ChannelStopped { .. }
            | Event::ChannelUnregistered { .. }
            | Event::ChannelFailed { .. }
    )
}

/// Whether it is the end of a run that a later process wrote because the one that ran it was gone.
fn is_unseen_end(event: &Event) -> bool {
    matches!(
        event,
        Event::AgentComplete { stop_reason: StopReason::Aborted, usage, duration_ms: 0, .. }
            if *usage == Usage::default()
    )
}

/// The name of the wait that ends with a resumption, and what was waited for.
fn wait_name(idle: Option<&'static str>) -> (&'static str, &'static str) {
    match idle {
        Some("limit") => (span::LIMIT, "limit"),
        Some(_) => (span::QUESTION, "input"),
        None => (span::NO_PROCESS, "process"),
    }
}

#[cfg(test)]
mod tests;
