//! Attempts of nodes, the waits between them, and frames.

use inspan_protocol::{AgentError, Envelope, Event, NodePath, SpanId, Timestamp};
use serde_json::{Value, json};

use super::{
    Trace,
    open::{OpenSpan, SpanSubject},
    word,
};
use crate::{
    names::{ERROR_TYPE, event, gen_ai, own, span},
    settings::Content,
    span::{Attributes, SpanEvent, SpanStatus},
};

impl Trace {
    pub(super) fn task_event(&mut self, envelope: &Envelope) {
        let Some(path) = &envelope.context.task else { return };
        let (at, place) = (envelope.timestamp, SpanSubject::Attempt(path.clone()));
        let ends_wait = matches!(
            envelope.event,
            Event::TaskStart { .. }
                | Event::TaskComplete { .. }
                | Event::TaskFailed { .. }
                | Event::TaskSkipped { .. }
                | Event::TaskReused { .. }
                | Event::TaskCancelled { .. }
                | Event::TaskAgent { .. }
        );
        if ends_wait {
            self.close(&SpanSubject::Wait(Some(path.clone())), at, SpanStatus::Unset);
        }
        match &envelope.event {
            Event::TaskStart { node_type, attempt, .. } => self.attempt(path, node_type, *attempt, at),
            Event::TaskComplete { result, .. } => {
                self.agent_result(&place, result);
                self.close_attempt(&place, at, SpanStatus::Unset);
            }
            Event::TaskFailed { error, will_retry, .. } => {
                self.failed(envelope, path, error);
                if *will_retry {
                    let attributes = Attributes::default().with(own::WAITS_FOR, "retry");
                    self.wait(envelope, path, span::RETRY, attributes);
                }
            }
            Event::TaskInterrupted { .. } => {
                self.end_attempt(&place, self.last_live, "interrupted", SpanStatus::Unset);
            }
            Event::TaskCancelled { reason, .. } => {
                if let (Some(open), Some(reason)) = (self.open.get_mut(&place), reason) {
                    open.attributes.set(own::CANCEL_REASON, word(reason));
                }
                self.end_attempt(&place, at, "cancelled", SpanStatus::Unset);
            }
            Event::TaskAgent { agent, reason, after, result, error, .. } => {
                if after.is_some() {
                    if let Some(result) = result {
                        self.agent_result(&place, result);
                    }
                    let status = error.as_ref().map_or(SpanStatus::Unset, |error| self.blame(&place, error));
                    self.end_attempt(&place, at, "replaced", status);
                }
                let attributes =
                    Attributes::default().with(gen_ai::AGENT, agent.as_str()).with(own::DETAIL, word(reason));
                self.note(envelope, event::AGENT, attributes);
            }
            Event::LimitWait { provider, until, .. } => {
                if let Some(open) = self.open.get_mut(&place) {
                    open.attributes.set(ERROR_TYPE, "usage_limit");
                }
                let message = format!("usage limit of {provider}");
                self.close_attempt(&place, at, SpanStatus::error(&message));
                let attributes = Attributes::default()
                    .with(own::WAITS_FOR, "limit")
                    .with(own::DETAIL, provider.as_str())
                    .with(own::UNTIL, until.to_string());
                self.wait(envelope, path, span::LIMIT, attributes);
            }
            _ => {}
        }
    }

    fn attempt(&mut self, path: &NodePath, node_type: &str, attempt: u32, at: Timestamp) {
        let place = SpanSubject::Attempt(path.clone());
        self.end_attempt(&place, self.last_live, "interrupted", SpanStatus::Unset);
        let (node, pass) = path.node_and_pass();
        let attributes = Attributes::default()
            .with(own::PATH, path.as_str())
            .with(own::NODE_TYPE, node_type)
            .with(own::ATTEMPT, attempt)
            .with_some(own::PASS, (pass > 1).then_some(pass));
        let id = SpanId::of_attempt(&self.session, path, attempt);
        let open = OpenSpan::new(id, format!("{node_type} {node}"), at).with(attributes);
        let within = self.enclosing(path);
        self.open.begin(place, Some(&within), open);
    }

    /// A node failed. Where none of its attempts had begun, the failure is a span of no length.
    fn failed(&mut self, envelope: &Envelope, path: &NodePath, error: &AgentError) {
        let place = SpanSubject::Attempt(path.clone());
        if self.open.get(&place).is_none() {
            let attributes = Attributes::default().with(own::PATH, path.as_str());
            let name = format!("node {}", path.node());
            let open = OpenSpan::new(self.event_span(envelope), name, envelope.timestamp).with(attributes);
            let within = self.enclosing(path);
            self.open.begin(place.clone(), Some(&within), open);
        }
        let status = self.blame(&place, error);
        if let (Some(open), Event::TaskFailed { will_retry: true, .. }) =
            (self.open.get_mut(&place), &envelope.event)
        {
            open.attributes.set(own::WILL_RETRY, true);
        }
        self.close_attempt(&place, envelope.timestamp, status);
    }

    /// Writes an error into an open span; gives its status.
    pub(super) fn blame(&mut self, place: &SpanSubject, error: &AgentError) -> SpanStatus {
        if let Some(open) = self.open.get_mut(place) {
            open.attributes.set(ERROR_TYPE, error.code.as_str());
        }
        SpanStatus::error(&error.message)
    }

    fn wait(&mut self, envelope: &Envelope, path: &NodePath, name: &str, attributes: Attributes) {
        let attributes = attributes.with(own::PATH, path.as_str());
        let open = OpenSpan::new(self.event_span(envelope), name, envelope.timestamp).with(attributes);
        let within = self.enclosing(path);
        let place = SpanSubject::Wait(Some(path.clone()));
        self.close(&place, envelope.timestamp, SpanStatus::Unset);
        self.open.begin(place, Some(&within), open);
    }

    /// Ends an attempt otherwise than by success or failure.
    pub(super) fn end_attempt(&mut self, place: &SpanSubject, at: Timestamp, how: &str, status: SpanStatus) {
        if let Some(open) = self.open.get_mut(place) {
            open.attributes.set(own::END, how);
            self.close_attempt(place, at, status);
        }
    }

    fn close_attempt(&mut self, place: &SpanSubject, at: Timestamp, status: SpanStatus) {
        self.runs.retain(|_, run| run.place != *place);
        self.close(place, at, status);
    }

    /// What an agent's output says beyond its events.
    fn agent_result(&mut self, place: &SpanSubject, result: &Value) {
        let content = self.settings.content;
        let Some(open) = self.open.get_mut(place) else { return };
        if open.attributes.get(own::RUN).is_none() {
            return;
        }
        if let Some(model) = result.get("model").and_then(Value::as_str).filter(|model| !model.is_empty()) {
            open.attributes.set(gen_ai::RESPONSE_MODEL, model);
        }
        if let (Content::On, Some(text)) = (content, result.get("text").and_then(Value::as_str)) {
            let message = json!([{ "role": "assistant", "parts": [{ "type": "text", "content": text }] }]);
            open.attributes.set_content(gen_ai::OUTPUT_MESSAGES, &message.to_string());
        }
    }

    pub(super) fn frame_event(&mut self, envelope: &Envelope) {
        let Some(path) = &envelope.context.task else { return };
        let at = envelope.timestamp;
        let frame = |index: &u32| SpanSubject::Frame(path.clone(), *index);
        match &envelope.event {
            Event::FrameItems { .. } => self.opens_frames(path),
            Event::FrameStart { task_id, index, .. } => {
                self.opens_frames(path);
                self.close(&frame(index), self.last_live, SpanStatus::Unset);
                let attributes =
                    Attributes::default().with(own::PATH, path.as_str()).with(own::FRAME, *index);
                let name = format!("{} {task_id}", span::FRAME);
                let open = OpenSpan::new(self.event_span(envelope), name, at).with(attributes);
                let owner = SpanSubject::Attempt(path.clone());
                let within = if self.open.get(&owner).is_some() { owner } else { self.enclosing(path) };
                self.open.begin(frame(index), Some(&within), open);
            }
            Event::FrameEnding { index, error, .. } => {
                let attributes = Attributes::default().with(ERROR_TYPE, error.code.as_str());
                if let Some(open) = self.open.get_mut(&frame(index)) {
                    open.event(SpanEvent { name: event::FRAME_ENDING, at, attributes });
                }
            }
            Event::FrameComplete { index, .. } => self.close(&frame(index), at, SpanStatus::Unset),
            Event::FrameFailed { index, error, .. } => {
                let status = self.blame(&frame(index), error);
                self.close(&frame(index), at, status);
            }
            Event::FrameCancelled { index, .. } => {
                if let Some(open) = self.open.get_mut(&frame(index)) {
                    open.attributes.set(own::END, "cancelled");
                }
                self.close(&frame(index), at, SpanStatus::Unset);
            }
            _ => {}
        }
    }

    fn opens_frames(&mut self, path: &NodePath) {
        if let Some(open) = self.open.get_mut(&SpanSubject::Attempt(path.clone())) {
            open.opens_frames = true;
        }
    }
}
