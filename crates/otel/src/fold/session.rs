//! The session's own span, and the waits in which nothing of it runs.

use inspan_protocol::{Envelope, Event, Outcome, SpanId, Timestamp, WaitingOn};

use super::{
    Trace,
    agents::set_usage,
    open::{OpenSpan, SpanSubject},
    wait_name, word,
};
use crate::{
    names::{ERROR_TYPE, event, gen_ai, operation, own, span},
    span::{Attributes, SpanStatus},
};

impl Trace {
    /// Begins the session's span with the first event of the log, which need not be the session's first.
    pub(super) fn begin_session(&mut self, envelope: &Envelope) {
        let attributes = Attributes::default()
            .with(gen_ai::OPERATION, operation::WORKFLOW)
            .with(own::SESSION, self.session.as_str());
        let mut open =
            OpenSpan::new(SpanId::of_session(&self.session), operation::WORKFLOW, envelope.timestamp)
                .with(attributes);
        open.links = self.links();
        self.open.begin(SpanSubject::Session, None, open);
        self.last_live = envelope.timestamp;
    }

    pub(super) fn session_event(&mut self, envelope: &Envelope) {
        let at = envelope.timestamp;
        match &envelope.event {
            Event::HarnessStart { name } => {
                if let Some(open) = self.open.get_mut(&SpanSubject::Session) {
                    open.name = format!("{} {name}", operation::WORKFLOW);
                    open.attributes.set(gen_ai::AGENT, name.as_str());
                }
            }
            Event::PhaseFailed { error, .. } => self.failure = Some(error.message.clone()),
            Event::FlowWaiting { on, .. } => {
                self.idle = Some(if *on == WaitingOn::Limit { "limit" } else { "input" });
            }
            Event::FlowPaused { cause, .. } => {
                let cause = cause.as_ref().map(word);
                let attributes =
                    Attributes::default().with(own::WAITS_FOR, "resume").with_some(own::DETAIL, cause);
                let open = OpenSpan::new(self.event_span(envelope), span::PAUSED, at).with(attributes);
                self.close(&SpanSubject::Wait(None), at, SpanStatus::Unset);
                self.open.begin(SpanSubject::Wait(None), Some(&SpanSubject::Session), open);
            }
            Event::FlowResumed { .. } => self.resumed(envelope),
            Event::HarnessComplete { outcome, .. } => self.finished(*outcome, at),
            _ => {}
        }
    }

    /// A process runs the session again. What ran when the last one was gone ended with it, unless it only holds frames.
    fn resumed(&mut self, envelope: &Envelope) {
        let gone = self.last_live;
        let cut: Vec<SpanSubject> = self
            .open
            .newest_first()
            .filter(|(place, open)| matches!(place, SpanSubject::Attempt(_)) && !open.opens_frames)
            .map(|(place, _)| place.clone())
            .collect();
        for place in cut {
            self.end_attempt(&place, gone, "interrupted", SpanStatus::Unset);
        }
        if self.open.get(&SpanSubject::Wait(None)).is_none() {
            let (name, what) = wait_name(self.idle);
            let attributes = Attributes::default().with(own::WAITS_FOR, what);
            let open = OpenSpan::new(self.event_span(envelope), name, gone).with(attributes);
            self.open.begin(SpanSubject::Wait(None), Some(&SpanSubject::Session), open);
        }
        self.close(&SpanSubject::Wait(None), envelope.timestamp, SpanStatus::Unset);
        self.note(envelope, event::RESUMED, Attributes::default());
    }

    fn finished(&mut self, outcome: Outcome, at: Timestamp) {
        let word = word(&outcome);
        let status = match outcome {
            Outcome::Success | Outcome::Stopped => SpanStatus::Unset,
            _ => SpanStatus::error(self.failure.as_deref().unwrap_or(&word)),
        };
        if let Some(open) = self.open.get_mut(&SpanSubject::Session) {
            open.attributes.set(own::OUTCOME, word.as_str());
            set_usage(&mut open.attributes, &self.spent.usage());
            if let Some(cost) = self.spent.cost() {
                open.attributes.set(own::COST, cost);
            }
            if !status.is_unset() {
                open.attributes.set(ERROR_TYPE, word);
            }
        }
        self.close(&SpanSubject::Session, at, status);
        self.is_over = true;
    }
}
