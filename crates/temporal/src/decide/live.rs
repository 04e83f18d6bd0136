//! A session as its log says it is, with the decisions that follow from it.

mod execute;
mod requests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use inspan_engine::Clock;
use inspan_flow_core::{
    AttemptDone, AttemptEnd, AttemptLoss, AttemptSpec, ControlWait, FACTS, Instruction, Pilot, Received, Run,
    SessionRecord, TaskRef,
};
use inspan_protocol::{
    AgentError, BudgetRaise, Command, Envelope, ErrorCode, Event, EventContext, LogLevel, NodePath,
    NodeStatus, Prompt, PromptId, Rejection, Reply, RunId, SessionStatus, Timestamp,
};

use super::{
    Before, Decision, HostedSession, LostAttempt, Machines, RunningAttempt,
    mail::{Outbox, ends_node, tells_of},
    waits::{AttemptWait, Due, UnclaimedAttempts, UnstartedAttempts, only_waits, waits_for_machine},
};
use crate::log::{AttemptKey, CommandOutcome, LogError, LogPosition, Segment, SharedLog, Summary, Writer};
use requests::KeyedRequests;

/// How many events a decision appends at once.
const BATCH: usize = 1_000;

/// A session as its log says it is.
pub(super) struct Live {
    pub(super) record: SessionRecord,
    pub(super) hosted: HostedSession,
    pub(super) before: Before,
    pilot: Pilot,
    /// Where the log continues.
    pub(super) position: LogPosition,
    /// The newest event's time.
    pub(super) last_at: Timestamp,
    /// The time of the session.
    pub(super) clock: Arc<dyn Clock>,
    /// How many requests are answered.
    answered: u64,
    /// Those of them that have a key.
    keyed: KeyedRequests,
    /// The event with which the session was resumed last.
    resumed: u64,
    /// Where the log says what each attempt that runs is to do.
    attempts: BTreeMap<AttemptKey, RunningAttempt>,
    /// Those of them whose timeout begins once a worker has begun them.
    unbegun: UnstartedAttempts,
    /// Those of them that wait for the one machine that can run them.
    pub(super) untaken: UnclaimedAttempts,
    /// Those of them that the log says are to end.
    ending: BTreeSet<AttemptKey>,
    /// Those of them that their workers have left.
    left: BTreeSet<AttemptKey>,
    /// Attempts that only wait.
    waits: BTreeMap<AttemptKey, AttemptWait>,
    /// Messages that no agent has got yet.
    outbox: Outbox,
    /// The places whose agents have ended, and whose attempts have not.
    silent: BTreeSet<NodePath>,
    machines: Machines,
    /// Ends of attempts that are not used yet. Those of the log may be of earlier passes.
    done: VecDeque<(AttemptKey, AttemptEnd)>,
    /// Whether the log may name running attempts that no worker runs, because this process has just
    /// read the log.
    is_new: bool,
    pub(super) summary: Summary,
    /// The segments that were read, with the facts alone.
    pub(super) read: Vec<Arc<Segment>>,
}

impl Live {
    pub(super) fn new(
        record: SessionRecord,
        hosted: HostedSession,
        before: Before,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AgentError> {
        let mut run =
            Run::new(hosted.graph.clone(), &record.session, record.input.clone(), hosted.max_concurrency);
        if let Some(base) = &record.base {
            run.restore(base);
        }
        if let Some(reusable) = &before.reusable {
            run = run.reusing(Arc::clone(reusable));
        }
        let run = hosted.context.adapted(run);
        let pilot = Pilot::new(run, (**hosted.nodes).clone(), hosted.context.redactor().clone())
            .map_err(|unknown| AgentError::new(ErrorCode::ConfigInvalid, unknown.to_string()))?;
        Ok(Self {
            record,
            hosted,
            machines: before.machines.clone(),
            before,
            pilot,
            position: LogPosition::default(),
            last_at: Timestamp::default(),
            clock,
            answered: 0,
            keyed: KeyedRequests::default(),
            resumed: 0,
            attempts: BTreeMap::new(),
            unbegun: UnstartedAttempts::default(),
            untaken: UnclaimedAttempts::default(),
            ending: BTreeSet::new(),
            left: BTreeSet::new(),
            waits: BTreeMap::new(),
            outbox: Outbox::default(),
            silent: BTreeSet::new(),
            done: VecDeque::new(),
            is_new: true,
            summary: Summary::default(),
            read: Vec::new(),
        })
    }

    /// Reads what is new.
    pub(super) async fn pull(&mut self, log: &SharedLog) -> Result<(), LogError> {
        let session = self.record.session.clone();
        if self.position == LogPosition::default() {
            for segment in log.segments(&session, 1).await? {
                self.apply(Arc::new(segment));
            }
        }
        while let Some(segment) = log.segment(&session, self.position).await? {
            self.apply(Arc::new(segment));
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, mut segment: Arc<Segment>) {
        self.position = segment.next();
        self.summary.apply(&segment);
        self.machines.note(&segment);
        for event in &segment.events {
            self.receive(event);
            if let Writer::Attempt(key) = &segment.header.by {
                self.outbox.note(&key.path, &event.event, self.hosted.context.redactor());
            }
        }
        for command in &segment.header.mail {
            // A node that waits for a message has received it by the decision itself.
            let redactor = self.hosted.context.redactor();
            let is_received = segment.events.iter().any(|event| tells_of(command, &event.event, redactor));
            self.outbox.put(command.clone(), self.receivers(command), is_received);
        }
        self.begun(&segment);
        for spec in segment.header.begin.iter().filter(|spec| only_waits(&spec.node_type)) {
            self.wait(spec, self.last_at);
        }
        if let Writer::Attempt(key) = &segment.header.by {
            self.untaken.begun(key);
            if segment.header.left {
                self.left.insert(key.clone());
            }
            // A worker of an older version does not say when it began.
            let first = || segment.events.first().map(|event| event.timestamp);
            if let Some(at) = segment.header.began.or_else(first)
                && let Some(deadline) = self.unbegun.began(key, at)
                && let Some(task) = self.running(key)
            {
                self.pilot.put_off(task, deadline);
            }
            if let Some(done) = &segment.header.done {
                self.done.push_back((key.clone(), done.end.clone()));
            }
        }
        let is_fact = |event: &Arc<Envelope>| FACTS.contains(&event.event.name());
        if !segment.events.iter().all(is_fact) {
            let mut facts = (*segment).clone();
            facts.events.retain(is_fact);
            segment = Arc::new(facts);
        }
        self.read.push(segment);
    }

    /// Takes an event of the log.
    fn receive(&mut self, event: &Envelope) {
        self.last_at = self.last_at.max(event.timestamp);
        self.pilot.receive(Received::Event(event), event.timestamp, &mut Vec::new());
        self.waits.values_mut().for_each(|wait| wait.apply(event));
        self.untaken.apply(event);
        if let Some(place) = event.context.task.as_ref().filter(|_| ends_node(&event.event)) {
            self.outbox.close(place);
        }
        if let Some(place) = &event.context.task {
            match &event.event {
                Event::AgentComplete { .. } => drop(self.silent.insert(place.clone())),
                // A run that fails at once may be followed by another one of the same attempt.
                Event::TaskStart { .. } | Event::TaskInterrupted { .. } | Event::AgentStart { .. } => {
                    self.silent.remove(place);
                }
                event if ends_node(event) => drop(self.silent.remove(place)),
                _ => {}
            }
        }
        if let Event::FlowResumed { .. } = &event.event {
            self.resumed = event.seq;
            self.silent.clear();
        }
    }

    /// An attempt begins that only waits. Returns its question, if it has one without an answer.
    fn wait(&mut self, spec: &AttemptSpec, now: Timestamp) -> Option<Prompt> {
        match AttemptWait::of(spec, now, self.hosted.context.redactor()) {
            Ok(wait) => {
                let question = wait.question().cloned();
                self.waits.insert(AttemptKey::of(spec), wait);
                question
            }
            Err(error) => {
                self.done.push_back((AttemptKey::of(spec), AttemptEnd::Error(error)));
                None
            }
        }
    }

    /// Takes what a segment says beside its events.
    pub(super) fn begun(&mut self, segment: &Segment) {
        for spec in &segment.header.begin {
            let attempt = RunningAttempt {
                key: AttemptKey::of(spec),
                begun: segment.position,
                machine: self.machines.of(spec),
                pool: spec.pool.clone(),
                only_waits: only_waits(&spec.node_type),
            };
            let key = attempt.key.clone();
            let waits_for_worker = !attempt.only_waits;
            if let Some(machine) = &attempt.machine {
                self.untaken.put(key.clone(), machine.clone(), self.last_at);
            }
            self.attempts.insert(key.clone(), attempt);
            if let Some(timeout) = spec.timeout_ms.filter(|_| waits_for_worker)
                && let Some(task) = self.running(&key)
                && let Some(deadline) = self.pilot.run().state().node(task).deadline
            {
                self.unbegun.put(key, Duration::from_millis(timeout), self.last_at, deadline);
            }
        }
        self.ending.extend(segment.header.cancel.iter().cloned());
        let newest = segment.header.answers.iter().map(|(number, _)| *number).max();
        self.answered = self.answered.max(newest.unwrap_or_default());
    }

    /// Does what was asked for at this time, or refuses it.
    fn command(
        &mut self,
        command: Command,
        at: Timestamp,
        step: &mut Segment,
        now: Timestamp,
    ) -> CommandOutcome {
        let kind = command.kind();
        let in_time = self.pilot.check_time(&command, at, now);
        match in_time.and_then(|()| self.carry_out(command, step, now)) {
            Ok(()) => CommandOutcome::Accepted,
            Err(rejection) => {
                let reason = rejection.to_string();
                self.publish(
                    step,
                    now,
                    None,
                    None,
                    Event::SessionRejected { command: kind, reason: reason.clone() },
                );
                CommandOutcome::Refused(reason)
            }
        }
    }

    fn open_prompt(&self, id: &PromptId) -> Result<&Prompt, Rejection> {
        let prompts = self.pilot.run().state().prompts();
        prompts.iter().find(|open| open.prompt_id == *id).ok_or_else(|| Rejection::UnknownPrompt(id.clone()))
    }

    /// The places of the agents that will get a message, or are to read none after it.
    fn receivers(&self, command: &Command) -> Vec<NodePath> {
        let mut places = self.pilot.receivers(command);
        places.retain(|place| {
            // Its run has ended, and the attempt is about to.
            let has_ended = self.silent.contains(place);
            !has_ended && (!matches!(command, Command::Send { .. }) || self.takes_turns(place))
        });
        places
    }

    /// Whether the agent at a place waits for messages to all, by the input of its newest attempt.
    fn takes_turns(&self, place: &NodePath) -> bool {
        let begun = self.read.iter().rev().flat_map(|segment| segment.header.begin.iter().rev());
        let newest = begun.into_iter().find(|spec| spec.path == *place);
        newest.is_some_and(|spec| spec.input["options"]["multiTurn"] == true)
    }

    fn carry_out(&mut self, command: Command, step: &mut Segment, now: Timestamp) -> Result<(), Rejection> {
        self.pilot.check(&command)?;
        let event = match command {
            Command::Reply { prompt, content, choice } => {
                let Reply { content, choice } = self.open_prompt(&prompt)?.check(content, choice)?;
                Event::SessionReply { prompt_id: prompt, content, choice, is_default: false }
            }
            Command::TakeDefault { prompt } => {
                let reply = self.open_prompt(&prompt)?.default_reply();
                let Reply { content, choice } = reply.ok_or(Rejection::NoDefault(prompt.clone()))?;
                Event::SessionReply { prompt_id: prompt, content, choice, is_default: true }
            }
            Command::Pause { reason } => Event::SessionPause { reason, cause: None },
            Command::Abort { reason } => {
                // A paused session ends as one that continues and is stopped before anything begins.
                if self.pilot.run().state().status() == SessionStatus::Paused {
                    let work = self.pilot.resume(None, &BTreeMap::new(), &BudgetRaise::default(), None);
                    self.execute(work, step, now);
                }
                Event::SessionAbort { reason }
            }
            Command::Send { content } if self.waits.values().any(AttemptWait::listens) => {
                let command = Command::Send { content: content.clone() };
                self.outbox.put(command.clone(), self.receivers(&command), true);
                step.header.mail.push(command);
                Event::SessionMessage {
                    content,
                    run_id: None,
                    agent_name: Some(ControlWait::NAME.to_owned()),
                    mode: None,
                    receivers: None,
                }
            }
            elsewhere => {
                let receivers = self.receivers(&elsewhere);
                if receivers.is_empty() {
                    return Err(match elsewhere {
                        Command::SendTo { node, .. } => Rejection::NoRunOfNode(node),
                        _ => Rejection::NoListener,
                    });
                }
                self.outbox.put(elsewhere.clone(), receivers, false);
                step.header.mail.push(elsewhere);
                return Ok(());
            }
        };
        self.publish(step, now, None, None, event);
        Ok(())
    }

    pub(super) fn stop(&mut self, reason: &str, step: &mut Segment, now: Timestamp) {
        let command = Command::Abort { reason: Some(reason.to_owned()) };
        // A session that has ended needs no end.
        let _ended = self.carry_out(command, step, now);
    }

    pub(super) fn take_lost(&mut self, lost: &[LostAttempt], step: &mut Segment, now: Timestamp) {
        for LostAttempt { attempt, given_up, never_began, is_unfit, refused, is_stopped, not_taken } in lost {
            let key = &attempt.key;
            let Some(node) = self.running(key) else { continue };
            // It may have stored its end before it was lost.
            if self.done.iter().any(|(of, _)| of == key) {
                continue;
            }
            if *never_began {
                // The pilot may still have to decide that it ends: ends are used after that.
                self.done.push_back((key.clone(), AttemptEnd::NeverBegan));
                continue;
            }
            if let (true, None, Some(machine)) = (not_taken, given_up, &attempt.machine) {
                // It is given to the workers of its machine anew.
                let event = waits_for_machine(key, machine);
                self.publish(step, now, Some(key.path.clone()), None, event);
                continue;
            }
            let mut work = Vec::new();
            // The server may have noticed it first; however often that happens, the attempt is not to blame.
            let has_left = self.left.contains(key);
            match given_up.as_ref().filter(|_| !has_left) {
                None => {
                    if let Some(refused) = refused {
                        let (level, message) = (LogLevel::Warn, refused.why.clone());
                        let event = Event::Log { level, message, fields: Default::default() };
                        self.publish(step, now, Some(key.path.clone()), None, event);
                    }
                    let how = match (is_unfit, *is_stopped || has_left) {
                        (true, _) => AttemptLoss::NeverBegan,
                        (false, true) => AttemptLoss::Stopped,
                        (false, false) => AttemptLoss::Died,
                    };
                    self.pilot.receive(Received::Lost { node, attempt: key.attempt, how }, now, &mut work);
                }
                Some(why) => {
                    let code = refused.as_ref().map_or(ErrorCode::Process, |refused| refused.code);
                    let end = AttemptEnd::Error(AgentError::new(code, why.clone()));
                    let done = AttemptDone { node, attempt: key.attempt, end };
                    self.pilot.receive(Received::Ended(done), now, &mut work);
                }
            }
            self.execute(work, step, now);
        }
    }

    /// Decides until nothing follows.
    pub(super) fn settle(&mut self, step: &mut Segment, now: Timestamp) {
        if std::mem::take(&mut self.is_new) {
            let mut lacking = self.pilot.pick_up();
            lacking.retain(|spec| !self.attempts.contains_key(&AttemptKey::of(spec)));
            lacking.into_iter().for_each(|spec| self.begin(spec, step));
        }
        for (key, deadline) in self.unbegun.put_off(now) {
            if let Some(task) = self.running(&key) {
                self.pilot.put_off(task, deadline);
            }
        }
        for (key, event) in self.untaken.due(now) {
            if self.running(&key).is_some() {
                self.publish(step, now, Some(key.path), None, event);
            }
        }
        while step.events.len() < BATCH {
            let mut work = Vec::new();
            // What has succeeded by the log did so before what is decided now, such as a timeout. Why another one was
            // cancelled is known after the decision.
            let succeeded = self.done.iter().position(|(_, end)| matches!(end, AttemptEnd::Output(_)));
            if let Some((key, end)) = succeeded.and_then(|at| self.done.remove(at)) {
                self.end(&key, end, now, &mut work);
            } else {
                self.pilot.decide(now, &mut work);
                if work.is_empty() {
                    self.end_waits(step, now);
                    let Some((key, end)) = self.done.pop_front() else { break };
                    self.end(&key, end, now, &mut work);
                }
            }
            if self.execute(work, step, now) {
                break;
            }
        }
    }

    fn end(&mut self, key: &AttemptKey, end: AttemptEnd, now: Timestamp, work: &mut Vec<Instruction>) {
        self.waits.remove(key);
        if let Some(node) = self.running(key) {
            let done = AttemptDone { node, attempt: key.attempt, end };
            self.pilot.receive(Received::Ended(done), now, work);
        }
    }

    /// Ends the attempts whose wait is over.
    fn end_waits(&mut self, step: &mut Segment, now: Timestamp) {
        let due: Vec<_> =
            self.waits.iter().filter_map(|(of, wait)| Some((of.clone(), wait.due(now)?))).collect();
        for (key, due) in due {
            let due = match due {
                Due::End(end) => Some(end),
                Due::Answer(reply) => {
                    self.publish(step, now, None, None, reply);
                    match self.waits.get(&key).and_then(|wait| wait.due(now)) {
                        Some(Due::End(end)) => Some(end),
                        _ => None,
                    }
                }
            };
            self.done.extend(due.map(|end| (key, end.into())));
        }
    }

    /// The node of an attempt that the log knows, if the run waits for its end.
    fn running(&self, key: &AttemptKey) -> Option<TaskRef> {
        let run = self.pilot.run();
        let task = run.state().find(run.graph(), Some(&key.path))?;
        let node = run.state().node(task);
        let waits = node.status == NodeStatus::Running && node.attempt == key.attempt;
        (waits && self.attempts.contains_key(key)).then_some(task)
    }

    /// Puts an event at the end of what is decided.
    fn publish(
        &mut self,
        step: &mut Segment,
        now: Timestamp,
        task: Option<NodePath>,
        agent: Option<RunId>,
        mut event: Event,
    ) {
        self.hosted.context.redactor().said(&mut event);
        let seq = step.position.seq + step.events.len() as u64;
        let is_of_session = matches!(
            event,
            Event::HarnessStart { .. }
                | Event::HarnessComplete { .. }
                | Event::SessionReply { .. }
                | Event::SessionPause { .. }
                | Event::SessionAbort { .. }
                | Event::SessionRejected { .. }
        );
        let phase = (!is_of_session).then(|| Arc::from(self.pilot.run().graph().phase.as_str()));
        let context = EventContext { session_id: self.record.session.clone(), phase, task, agent };
        let envelope = Envelope::new(context, seq, now, event);
        self.receive(&envelope);
        step.events.push(Arc::new(envelope));
    }

    pub(super) fn decision(&mut self, now: Timestamp) -> Decision {
        let ended: Vec<_> = self.attempts.keys().filter(|key| self.running(key).is_none()).cloned().collect();
        ended.iter().for_each(|key| drop(self.attempts.remove(key)));
        self.waits.retain(|key, _| self.attempts.contains_key(key));
        self.ending.retain(|key| self.attempts.contains_key(key));
        self.left.retain(|key| self.attempts.contains_key(key));
        self.unbegun.retain(|key| self.attempts.contains_key(key));
        self.untaken.retain(|key| self.attempts.contains_key(key) && !self.ending.contains(key));
        let waits = self.waits.values().filter_map(|wait| wait.wake_at(now));
        let wake_at = waits.chain(self.pilot.wake_at()).chain(self.untaken.wake_at()).min();
        let status = self.pilot.run().state().status();
        Decision {
            running: self.attempts.values().filter(|attempt| !attempt.only_waits).cloned().collect(),
            ending: self.ending.iter().map(AttemptKey::to_string).collect(),
            wake_in: wake_at.filter(|_| status != SessionStatus::Paused).map(|at| at.since(now)),
            has_ended: status.has_ended(),
        }
    }
}
