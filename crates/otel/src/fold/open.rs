//! The spans that have begun and not ended, by what they are about.

use std::collections::BTreeMap;

use inspan_protocol::{NodePath, SpanId, Timestamp, TraceId};

use crate::span::{Attributes, Link, MOST_EVENTS, Span, SpanEvent, SpanKind, SpanStatus};

/// What an open span is about. There is at most one of each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpanSubject {
    Session,
    /// An attempt of a node.
    Attempt(NodePath),
    /// A frame of a node.
    Frame(NodePath, u32),
    /// An agent run that is no attempt of a node.
    Run(String),
    /// A tool call of a run.
    Tool(String, String),
    /// A model call of a run.
    Chat(String),
    /// A question to a person.
    Question(String),
    /// A wait of a node, or of the session.
    Wait(Option<NodePath>),
}

/// A span that has not ended.
#[derive(Debug)]
pub(super) struct OpenSpan {
    pub(super) id: SpanId,
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) start: Timestamp,
    pub(super) attributes: Attributes,
    pub(super) links: Vec<Link>,
    /// Whether it is an attempt whose work is done in frames.
    pub(super) opens_frames: bool,
    events: Vec<SpanEvent>,
    dropped_events: u32,
    parent: Option<SpanId>,
    /// What it is part of.
    within: Option<SpanSubject>,
    /// How many open spans have it as their parent.
    children: usize,
}

impl OpenSpan {
    pub(super) fn new(id: SpanId, name: impl Into<String>, start: Timestamp) -> Self {
        Self {
            id,
            name: name.into(),
            kind: SpanKind::Internal,
            start,
            attributes: Attributes::default(),
            links: Vec::new(),
            opens_frames: false,
            events: Vec::new(),
            dropped_events: 0,
            parent: None,
            within: None,
            children: 0,
        }
    }

    pub(super) fn with(self, attributes: Attributes) -> Self {
        Self { attributes, ..self }
    }

    /// Adds an event; beyond a bound it is only counted.
    pub(super) fn event(&mut self, event: SpanEvent) {
        if self.events.len() < MOST_EVENTS {
            self.events.push(event);
        } else {
            self.dropped_events = self.dropped_events.saturating_add(1);
        }
    }

    /// Whether open spans are part of it.
    pub(super) fn has_children(&self) -> bool {
        self.children > 0
    }

    fn end(self, trace_id: TraceId, at: Timestamp, status: SpanStatus) -> Span {
        Span {
            trace_id,
            span_id: self.id,
            parent: self.parent,
            name: self.name,
            kind: self.kind,
            start: self.start,
            // A clock that was set back makes no negative time.
            end: at.max(self.start),
            attributes: self.attributes,
            events: self.events,
            dropped_events: self.dropped_events,
            links: self.links,
            status,
        }
    }
}

/// All open spans, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct OpenSpans {
    spans: BTreeMap<u64, (SpanSubject, OpenSpan)>,
    order: BTreeMap<SpanSubject, u64>,
    next: u64,
}

impl OpenSpans {
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn get(&self, place: &SpanSubject) -> Option<&OpenSpan> {
        self.order.get(place).and_then(|order| self.spans.get(order)).map(|(_, span)| span)
    }

    pub(super) fn get_mut(&mut self, place: &SpanSubject) -> Option<&mut OpenSpan> {
        self.order.get(place).and_then(|order| self.spans.get_mut(order)).map(|(_, span)| span)
    }

    /// The places of all, those that began last first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = (&SpanSubject, &OpenSpan)> {
        self.spans.values().rev().map(|(place, span)| (place, span))
    }

    /// Begins a span within another. The caller has ended what was there before.
    pub(super) fn begin(&mut self, place: SpanSubject, within: Option<&SpanSubject>, mut span: OpenSpan) {
        if let Some((place, parent)) = within.and_then(|place| Some((place, self.get_mut(place)?))) {
            parent.children += 1;
            span.parent = Some(parent.id);
            span.within = Some(place.clone());
        }
        self.order.insert(place.clone(), self.next);
        self.spans.insert(self.next, (place, span));
        self.next += 1;
    }

    /// Ends a span and all that is part of it, which ends with it; the innermost come first.
    pub(super) fn close(
        &mut self,
        place: &SpanSubject,
        trace: TraceId,
        at: Timestamp,
        status: SpanStatus,
    ) -> Vec<Span> {
        let Some(&order) = self.order.get(place) else { return Vec::new() };
        let mut inner = Vec::new();
        if self.get(place).is_some_and(OpenSpan::has_children) {
            // What is part of it began after it.
            let mut within: Vec<SpanId> = self.get(place).map(|span| span.id).into_iter().collect();
            for (order, (_, span)) in self.spans.range(order + 1..) {
                if span.parent.is_some_and(|parent| within.contains(&parent)) {
                    within.push(span.id);
                    inner.push(*order);
                }
            }
        }
        let mut ended = Vec::with_capacity(inner.len() + 1);
        for order in inner.into_iter().rev() {
            ended.extend(self.remove(order).map(|span| span.end(trace, at, SpanStatus::Unset)));
        }
        ended.extend(self.remove(order).map(|span| span.end(trace, at, status)));
        ended
    }

    fn remove(&mut self, order: u64) -> Option<OpenSpan> {
        let (place, span) = self.spans.remove(&order)?;
        self.order.remove(&place);
        if let Some(parent) = span.within.as_ref().and_then(|place| self.order.get(place).copied())
            && let Some((_, parent)) = self.spans.get_mut(&parent)
        {
            parent.children -= 1;
        }
        Some(span)
    }
}
