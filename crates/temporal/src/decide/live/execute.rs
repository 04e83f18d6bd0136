//! What the pilot decides, in the log.

use std::path::Path;

use inspan_flow_core::{AttemptDone, AttemptEnd, AttemptSpec, Instruction, Received, TaskRef};
use inspan_protocol::{AgentError, ErrorCode, Event, Prompt, PromptKind, Rejection, Timestamp};

use super::Live;
use crate::{
    decide::{RunningAttempt, mail::ends_node, waits::only_waits},
    log::{AttemptKey, Segment},
};

impl Live {
    /// Carries out what the pilot decides. Whether the session is over then, or paused.
    pub(super) fn execute(&mut self, work: Vec<Instruction>, step: &mut Segment, now: Timestamp) -> bool {
        let mut is_over = false;
        for instruction in work {
            match instruction {
                Instruction::Publish { task, agent, event } => {
                    let ended = task.clone().filter(|_| ends_node(&event));
                    let lost = ended.map(|place| self.outbox.close(&place)).unwrap_or_default();
                    self.publish(step, now, task, agent, event);
                    for command in lost {
                        let reason = Rejection::NoListener.to_string();
                        self.publish(step, now, None, None, Event::SessionRejected { command, reason });
                    }
                }
                Instruction::Begin(spec) => {
                    if only_waits(&spec.node_type) {
                        self.begin_wait(&spec, step, now);
                    }
                    self.begin(*spec, step);
                }
                Instruction::Abort { node, attempt, .. } => self.abort(node, attempt, step, now),
                Instruction::Ask { task, id, prompt, choices } => {
                    let prompt = Prompt::new(id, PromptKind::Input, prompt);
                    let prompt = Prompt { choices: Some(choices), ..prompt };
                    self.publish(step, now, Some(task), None, Event::SessionPrompt(prompt));
                }
                Instruction::Finish => is_over = true,
            }
        }
        is_over
    }

    /// Has an attempt begin, with the messages that the one before it did not get.
    pub(super) fn begin(&self, spec: AttemptSpec, step: &mut Segment) {
        let key = AttemptKey::of(&spec);
        step.header.forwarded.extend(self.outbox.of(&spec.path).into_iter().map(|mail| (key.clone(), mail)));
        step.header.begin.push(spec);
        step.header.artifacts = self.hosted.context.artifacts().map(Path::to_path_buf);
    }

    fn begin_wait(&mut self, spec: &AttemptSpec, step: &mut Segment, now: Timestamp) {
        // It is known before it is stored, since it may end in the same step.
        let key = AttemptKey::of(spec);
        let attempt = RunningAttempt {
            key: key.clone(),
            begun: step.position,
            machine: None,
            pool: None,
            only_waits: true,
        };
        self.attempts.insert(key, attempt);
        if let Some(question) = self.wait(spec, now) {
            self.publish(step, now, Some(spec.path.clone()), None, Event::SessionPrompt(question));
        }
    }

    fn abort(&mut self, node: TaskRef, attempt: u32, step: &mut Segment, now: Timestamp) {
        let run = self.pilot.run();
        let key = AttemptKey { path: run.state().path(run.graph(), node), attempt };
        if self.waits.remove(&key).is_some() {
            let id = &run.state().spec(run.graph(), node).id;
            let error = AgentError::new(ErrorCode::Aborted, format!("node `{id}` was cancelled"));
            self.done.push_back((key, AttemptEnd::Error(error)));
        } else if self.attempts.contains_key(&key) {
            step.header.cancel.push(key);
        } else if let Some(at) = step.header.begin.iter().position(|spec| AttemptKey::of(spec) == key) {
            // It has not begun: no worker runs it yet.
            step.header.begin.remove(at);
            let done = AttemptDone { node, attempt, end: AttemptEnd::NeverBegan };
            let mut work = Vec::new();
            self.pilot.receive(Received::Ended(done), now, &mut work);
            self.execute(work, step, now);
        }
    }
}
