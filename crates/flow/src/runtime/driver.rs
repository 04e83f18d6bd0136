//! The loop that executes the scheduler's actions and feeds facts back to it.

mod commands;

use std::{collections::HashMap, sync::Arc, time::Duration};

use inspan_engine::{Channels, Hub, Subscription};
use inspan_flow_core::{
    AttemptDone, AttemptEnd, AttemptLoss, AttemptSpec, CancelCause, Instruction, Pilot, Received, TaskRef,
};
use inspan_protocol::{
    Command, Envelope, Event, NodePath, PauseCause, Prompt, PromptKind, RunSnapshot, SessionStatus, Timestamp,
};
use serde_json::{Map, Value};
use tokio::{
    sync::{mpsc, oneshot},
    task::{self, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use self::commands::OpenCommands;
use super::{
    Resume, Stays, Until, WhenWaiting,
    attempt::{AttemptContext, LocalBackend, Progress, run_attempt},
    event_writer::EventWriter,
    result::LastState,
};
use crate::{error::RunError, node::NodeRegistry};

/// The longest sleep between two readings of the clock, so that a clock that was set is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// After this many steps a run whose nodes never wait yields to I/O.
const STEPS: u32 = 128;

pub(super) struct Driver {
    pub(super) pilot: Pilot,
    pub(super) writer: Option<EventWriter>,
    input: Map<String, Value>,
    facts: Subscription,
    /// Facts on their way from `facts` to the fold; empty between two calls.
    new_events: Vec<Arc<Envelope>>,
    root: Hub,
    phase: Hub,
    /// The time of the newest event, until it is used: the decision after an event has the time of the event.
    last_event_time: Option<Timestamp>,
    /// The task of the newest event, and its hub handle.
    last_hub: Option<(NodePath, Hub)>,
    nodes: Arc<NodeRegistry>,
    surroundings: Arc<AttemptContext>,
    when_waiting: WhenWaiting,
    stays: Stays,
    tasks: JoinSet<AttemptDone>,
    /// The attempt of each of those tasks.
    attempts: HashMap<task::Id, (TaskRef, u32)>,
    /// Questions that the run itself asks; the replies come as facts.
    asked: JoinSet<()>,
    /// The place of each attempt that runs, and what cancels it.
    tokens: HashMap<(TaskRef, u32), (NodePath, CancellationToken)>,
    questions: mpsc::Receiver<oneshot::Sender<RunSnapshot>>,
    waiting: OpenCommands,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Over,
}

impl Driver {
    #[expect(clippy::too_many_arguments, reason = "it is called once, by the runner that took itself apart")]
    pub(super) fn new(
        pilot: Pilot,
        input: Map<String, Value>,
        facts: Subscription,
        writer: Option<EventWriter>,
        (root, phase): (Hub, Hub),
        (nodes, surroundings): (Arc<NodeRegistry>, Arc<AttemptContext>),
        (when_waiting, stays): (WhenWaiting, Stays),
        questions: mpsc::Receiver<oneshot::Sender<RunSnapshot>>,
    ) -> Self {
        Self {
            pilot,
            writer,
            input,
            facts,
            new_events: Vec::new(),
            root,
            phase,
            last_event_time: None,
            last_hub: None,
            nodes,
            surroundings,
            when_waiting,
            stays,
            tasks: JoinSet::new(),
            attempts: HashMap::new(),
            asked: JoinSet::new(),
            tokens: HashMap::new(),
            questions,
            waiting: OpenCommands::default(),
            stage: Stage::Running,
        }
    }

    pub(super) async fn drive(
        &mut self,
        resume: Option<(Resume, Until, Timestamp)>,
        channels: &mut Channels,
    ) -> Result<(), RunError> {
        let mut instructions = Vec::new();
        if let Some((resume, until, last_event)) = resume {
            let Resume { message, messages, budget } = &resume;
            instructions = self.pilot.resume(message.as_deref(), messages, budget, Some(last_event));
            self.execute(&mut instructions).await?;
            self.root.start_session();
            self.take_stored().await?;
            // A stored answer counts before its question is asked again, and so before anything else can answer that.
            // What ends the session counts before anything is started.
            let is_first = |command: &Command| {
                matches!(command, Command::Abort { .. } | Command::Pause { .. } | Command::Reply { .. })
            };
            self.poll_commands(is_first).await?;
            if until == Until::Answered {
                // One that a stored command has stopped or paused needs no pause.
                let _ = self.root.pause(Some("the stored answers were taken".to_owned()));
            }
        }
        self.pause_without_room();
        let mut steps = 0_u32;
        while self.stage == Stage::Running {
            self.apply_new_events()?;
            let now = self.last_event_time.take().unwrap_or_else(|| self.now());
            self.pilot.decide(now, &mut instructions);
            if !instructions.is_empty() {
                self.execute(&mut instructions).await?;
                steps += 1;
                if steps.is_multiple_of(STEPS) {
                    self.yield_to_io().await?;
                }
                continue;
            }
            if let Some(writer) = &mut self.writer {
                writer.settle().await?;
                writer.renew(&self.root).await?;
            }
            if self.poll_commands(|_| true).await? {
                continue;
            }
            if self.may_leave() {
                // A channel may answer a question at once, and then the process stays.
                channels.caught_up().await;
                self.apply_new_events()?;
                if self.may_leave() {
                    break;
                }
                continue;
            }
            self.wait().await?;
        }
        Ok(())
    }

    /// Pauses the session if the end of one more attempt could not be stored.
    fn pause_without_room(&self) {
        let Some(writer) = &self.writer else { return };
        // A session that is ending or paused already needs no pause.
        if let Some(error) = writer.lacks_room()
            && self.root.pause_because(PauseCause::Store, error.to_string()).is_ok()
        {
            writer.notify(&format!("the session pauses: {error}"));
        }
    }

    /// What a run must do while it never waits: store its log, renew its lease, execute commands, and let other tasks
    /// run.
    async fn yield_to_io(&mut self) -> Result<(), RunError> {
        if let Some(writer) = &mut self.writer {
            writer.poll().await?;
            writer.renew(&self.root).await?;
            self.poll_commands(|_| true).await?;
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Ends running attempts, because their session was paused or failed. An attempt that finishes anyway counts.
    pub(super) async fn shutdown(&mut self) {
        for (place, token) in self.tokens.values().filter(|(_, token)| !token.is_cancelled()) {
            self.surroundings.calls.pausing(place);
            token.cancel();
        }
        self.asked.shutdown().await;
        // A cancelled attempt ends within its grace, and takes its programs with it.
        while let Some(ended) = self.tasks.join_next_with_id().await {
            if let Ok((_, AttemptDone { end: AttemptEnd::Output(_), .. })) = ended {
                // An end that can no longer be received cannot be stored either.
                let _overflow = self.conclude(ended);
            }
        }
        self.questions.close();
    }

    /// Stores what was emitted after the end, and releases the lease.
    pub(super) async fn flush_and_release(&mut self) -> Result<(), RunError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let flushed = writer.flush().await;
        let released = writer.release().await;
        flushed?;
        Ok(released?)
    }

    /// The final state: the fold and the flow's input.
    pub(super) fn into_last(self) -> LastState {
        LastState { run: self.pilot.into_run(), input: self.input }
    }

    async fn execute(&mut self, instructions: &mut Vec<Instruction>) -> Result<(), RunError> {
        for instruction in instructions.drain(..) {
            match instruction {
                publish @ Instruction::Publish { .. } => self.publish(publish)?,
                Instruction::Begin(spec) => self.begin(*spec).await?,
                Instruction::Abort { node, attempt, reason } => {
                    if let Some((place, token)) = self.tokens.get(&(node, attempt)) {
                        if reason == CancelCause::Pausing {
                            self.surroundings.calls.pausing(place);
                        }
                        token.cancel();
                    }
                }
                Instruction::Ask { task, id, prompt, choices } => {
                    let prompt = Prompt::new(id, PromptKind::Input, prompt);
                    let asked = self.hub_at(task).ask(Prompt { choices: Some(choices), ..prompt });
                    self.asked.spawn(async move { drop(asked.await) });
                }
                Instruction::Finish => self.stage = Stage::Over,
            }
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.root.clock().now()
    }

    /// Applies every fact that the hub has emitted since the last call.
    fn apply_new_events(&mut self) -> Result<(), RunError> {
        let overflow = self.facts.take_all(&mut self.new_events);
        let now = self.now();
        for envelope in &self.new_events {
            self.pilot.receive(Received::Event(envelope), now, &mut Vec::new());
        }
        self.new_events.clear();
        match overflow {
            None => Ok(()),
            Some(seq) => Err(RunError::Overflow { seq }),
        }
    }

    fn publish(&mut self, instruction: Instruction) -> Result<(), RunError> {
        use Event::{HarnessComplete, HarnessStart};
        let Instruction::Publish { task, agent, event } = instruction else { return Ok(()) };
        let envelope = match (task, agent) {
            (task, Some(run)) => {
                let hub = task.map_or_else(|| self.phase.clone(), |path| self.phase.with_task(path));
                hub.with_agent(run).emit(event)
            }
            (Some(path), None) => self.hub_at(path).emit(event),
            (None, None) if matches!(event, HarnessStart { .. } | HarnessComplete { .. }) => {
                self.root.emit(event)
            }
            (None, None) => self.phase.emit(event),
        };
        self.last_event_time = Some(envelope.timestamp);
        self.apply_new_events()
    }

    fn hub_at(&mut self, path: NodePath) -> &Hub {
        let stale = self.last_hub.as_ref().is_none_or(|(task, _)| *task != path);
        if stale {
            let hub = self.phase.with_task(path.clone());
            self.last_hub = Some((path, hub));
        }
        self.last_hub.as_ref().map_or(&self.phase, |(_, hub)| hub)
    }

    async fn begin(&mut self, spec: AttemptSpec) -> Result<(), RunError> {
        // The attempt may take effect only after its start is stored.
        if let Some(writer) = &mut self.writer {
            writer.flush().await?;
            writer.in_flight = true;
        }
        let cancel = CancellationToken::new();
        let (hub, surroundings) = (self.phase.clone(), self.surroundings.clone());
        let held = self.writer.as_ref().map(|writer| writer.held.clone());
        let log = held.as_ref().map(|held| (held.store.clone(), held.lease.session.clone()));
        let backend =
            Arc::new(LocalBackend { hub, surroundings, cancel: cancel.clone(), log, is_log_current: true });
        let attempt = (spec.node, spec.attempt);
        self.tokens.insert(attempt, (spec.path.clone(), cancel));
        let run = run_attempt(self.nodes.clone(), spec, Progress::default(), backend);
        let task = self.tasks.spawn(async move {
            // Dropped after the attempt: until then nobody else may run the session.
            let _held = held;
            run.await
        });
        self.attempts.insert(task.id(), attempt);
        Ok(())
    }

    /// Publishes the end of an attempt, or that it is lost: its task is gone.
    fn conclude(&mut self, ended: Result<(task::Id, AttemptDone), JoinError>) -> Result<(), RunError> {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, _)| *task);
        let Some((node, attempt)) = self.attempts.remove(&task) else { return Ok(()) };
        self.tokens.remove(&(node, attempt));
        self.apply_new_events()?;
        let (now, mut instructions) = (self.now(), Vec::new());
        let received = match ended {
            Ok((_, done)) => Received::Ended(done),
            Err(_) => Received::Lost { node, attempt, how: AttemptLoss::Died },
        };
        self.pilot.receive(received, now, &mut instructions);
        instructions.into_iter().try_for_each(|instruction| self.publish(instruction))
    }

    /// Waits for the end of a task, a fact from outside, work of the writer, or the next deadline. The end of a task is
    /// stored before anything that follows from it is decided.
    async fn wait(&mut self) -> Result<(), RunError> {
        let sleep = match self.pilot.wake_at() {
            Some(at) => at.since(self.now()).min(LONGEST_SLEEP),
            None => LONGEST_SLEEP,
        };
        let writer = async {
            match &mut self.writer {
                Some(writer) => writer.wakeup().await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            Some(ended) = self.tasks.join_next_with_id() => Some(ended),
            Some(fact) = self.facts.next() => {
                let now = self.root.clock().now();
                self.pilot.receive(Received::Event(&fact), now, &mut Vec::new());
                None
            }
            () = writer => None,
            Some(question) = self.questions.recv() => {
                // The caller may be gone.
                drop(question.send(self.pilot.snapshot(&self.input)));
                None
            }
            () = tokio::time::sleep(sleep) => None,
        };
        if let Some(ended) = ended {
            self.conclude(ended)?;
            if let Some(writer) = &mut self.writer {
                writer.flush().await?;
                writer.in_flight = !self.tasks.is_empty();
            }
            self.pause_without_room();
        }
        Ok(())
    }

    /// Whether the session waits for something and its process need not.
    fn may_leave(&self) -> bool {
        let (state, now) = (self.pilot.run().state(), self.now());
        let is_due = state.prompts().iter().any(|open| open.deadline.is_some_and(|deadline| deadline <= now));
        // What is cancelled is about to end, and what follows from that is decided by this process.
        let is_ending = self.tokens.values().any(|(_, token)| token.is_cancelled());
        state.status() == SessionStatus::Waiting
            && !is_ending
            // A question whose time is up is about to be answered with its default.
            && !is_due
            && !(self.stays)()
            && match self.when_waiting {
                WhenWaiting::Stay => false,
                WhenWaiting::Leave => true,
                WhenWaiting::LeaveToPeople => !state.runs_again_by_itself(),
                WhenWaiting::LeaveUnlessTimed => {
                    self.pilot.wake_at().is_none() && state.prompts().iter().all(|open| open.deadline.is_none())
                }
            }
    }
}
