//! The loop that carries actions out and feeds facts back.

mod commands;

use std::{collections::HashMap, sync::Arc, time::Duration};

use inspan_engine::{Channels, Hub, Subscription};
use inspan_flow_core::{AttemptDone, AttemptEnd, AttemptSpec, NodeIx, Pilot, Received, Todo};
use inspan_protocol::{
    Command, Envelope, Event, NodePath, Prompt, PromptKind, RunSnapshot, SessionStatus, Timestamp,
};
use serde_json::{Map, Value};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::commands::Waiting;
use super::{
    Resume, WhenWaiting,
    attempt::{Ground, Surroundings, run_attempt},
    keeper::Keeper,
    result::LastState,
};
use crate::{error::RunError, node::NodeRegistry};

/// The longest sleep between two looks at the clock: a clock that is set meanwhile is noticed by then.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// A run whose nodes never wait stops so often, in steps, to see to all else.
const STEPS: u32 = 128;

pub(super) struct Driver {
    pub(super) pilot: Pilot,
    pub(super) keeper: Option<Keeper>,
    input: Map<String, Value>,
    facts: Subscription,
    /// Facts on their way from there to the fold; empty between two looks.
    learned: Vec<Arc<Envelope>>,
    root: Hub,
    phase: Hub,
    /// When the newest event was emitted, until that is used: what is decided right after it is decided at its time.
    just_now: Option<Timestamp>,
    /// The newest place that was emitted from, and its handle.
    place: Option<(NodePath, Hub)>,
    nodes: Arc<NodeRegistry>,
    surroundings: Arc<Surroundings>,
    when_waiting: WhenWaiting,
    tasks: JoinSet<AttemptDone>,
    /// Questions that the run itself asks; the replies come as facts.
    asked: JoinSet<()>,
    tokens: HashMap<(NodeIx, u32), CancellationToken>,
    questions: mpsc::Receiver<oneshot::Sender<RunSnapshot>>,
    waiting: Waiting,
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
        keeper: Option<Keeper>,
        (root, phase): (Hub, Hub),
        (nodes, surroundings): (Arc<NodeRegistry>, Arc<Surroundings>),
        when_waiting: WhenWaiting,
        questions: mpsc::Receiver<oneshot::Sender<RunSnapshot>>,
    ) -> Self {
        Self {
            pilot,
            keeper,
            input,
            facts,
            learned: Vec::new(),
            root,
            phase,
            just_now: None,
            place: None,
            nodes,
            surroundings,
            when_waiting,
            tasks: JoinSet::new(),
            asked: JoinSet::new(),
            tokens: HashMap::new(),
            questions,
            waiting: Waiting::default(),
            stage: Stage::Running,
        }
    }

    pub(super) async fn drive(
        &mut self,
        resume: Option<Resume>,
        channels: &mut Channels,
    ) -> Result<(), RunError> {
        let mut todo = Vec::new();
        if let Some(resume) = resume {
            todo = self.pilot.resume(resume.message.as_deref(), &resume.messages, &resume.budget);
            self.carry_out(&mut todo).await?;
            self.root.start_session();
            self.take_stored().await?;
            self.obey(|command| matches!(command, Command::Abort { .. })).await?;
        }
        self.pause_without_room();
        let mut steps = 0_u32;
        while self.stage == Stage::Running {
            self.learn()?;
            let now = self.just_now.take().unwrap_or_else(|| self.now());
            self.pilot.decide(now, &mut todo);
            if !todo.is_empty() {
                self.carry_out(&mut todo).await?;
                steps += 1;
                if steps.is_multiple_of(STEPS) {
                    self.see_to_all_else().await?;
                }
                continue;
            }
            if let Some(keeper) = &mut self.keeper {
                keeper.settle().await?;
                keeper.renew(&self.root).await?;
            }
            if self.obey(|_| true).await? {
                continue;
            }
            if self.leaves() {
                // A channel may have an answer at once to what it sees asked, and then there is nothing to leave for.
                channels.caught_up().await;
                self.learn()?;
                if self.leaves() {
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
        if let Some(error) = self.keeper.as_ref().and_then(Keeper::lacks_room) {
            // One that ends or rests already needs no pause.
            let _ = self.root.pause(Some(error.to_string()));
        }
    }

    /// What a run must do while it never waits: hand its log on, hold its lease, hear what it is told, and let others
    /// have their turn.
    async fn see_to_all_else(&mut self) -> Result<(), RunError> {
        if let Some(keeper) = &mut self.keeper {
            keeper.keep_up().await?;
            keeper.renew(&self.root).await?;
            self.obey(|_| true).await?;
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Ends what still runs: attempts whose session rests or broke down. What finished all the same is finished.
    pub(super) async fn wind_up(&mut self) {
        for token in self.tokens.values() {
            token.cancel();
        }
        self.asked.shutdown().await;
        // A cancelled attempt ends within its grace, and takes its programs with it.
        while let Some(ended) = self.tasks.join_next().await {
            if let Ok(done @ AttemptDone { end: AttemptEnd::Output(_), .. }) = ended {
                // What cannot be learnt any more cannot be stored either.
                let _overflow = self.conclude(done);
            }
        }
        self.questions.close();
    }

    /// Stores what was emitted after the end, and gives the lease back.
    pub(super) async fn keep_rest(&mut self) -> Result<(), RunError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        let kept = keeper.flush().await;
        let released = keeper.release().await;
        kept?;
        Ok(released?)
    }

    /// What is left when all is done: the fold, and what the flow was given.
    pub(super) fn into_last(self) -> LastState {
        LastState { run: self.pilot.into_run(), input: self.input }
    }

    async fn carry_out(&mut self, todo: &mut Vec<Todo>) -> Result<(), RunError> {
        for todo in todo.drain(..) {
            match todo {
                publish @ Todo::Publish { .. } => self.publish(publish)?,
                Todo::Begin(spec) => self.begin(*spec).await?,
                Todo::Abort { node, attempt, .. } => {
                    if let Some(token) = self.tokens.get(&(node, attempt)) {
                        token.cancel();
                    }
                }
                Todo::Ask { task, id, prompt, choices } => {
                    let hub = self.hub_at(task);
                    let id = id.unwrap_or_else(|| hub.ids().prompt_id());
                    let prompt = Prompt::new(id, PromptKind::Input, prompt);
                    let asked = hub.ask(Prompt { choices: Some(choices), ..prompt });
                    self.asked.spawn(async move { drop(asked.await) });
                }
                Todo::Finish => self.stage = Stage::Over,
            }
        }
        Ok(())
    }

    fn now(&self) -> Timestamp {
        self.root.clock().now()
    }

    /// Takes every fact that the hub has given out since the last time.
    fn learn(&mut self) -> Result<(), RunError> {
        let overflow = self.facts.take_all(&mut self.learned);
        let now = self.now();
        for envelope in &self.learned {
            self.pilot.receive(Received::Event(envelope), now, &mut Vec::new());
        }
        self.learned.clear();
        match overflow {
            None => Ok(()),
            Some(seq) => Err(RunError::Overflow { seq }),
        }
    }

    fn publish(&mut self, todo: Todo) -> Result<(), RunError> {
        use Event::{HarnessComplete, HarnessStart};
        let Todo::Publish { task, agent, event } = todo else { return Ok(()) };
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
        self.just_now = Some(envelope.timestamp);
        self.learn()
    }

    fn hub_at(&mut self, path: NodePath) -> &Hub {
        let stale = self.place.as_ref().is_none_or(|(place, _)| *place != path);
        if stale {
            let hub = self.phase.with_task(path.clone());
            self.place = Some((path, hub));
        }
        self.place.as_ref().map_or(&self.phase, |(_, hub)| hub)
    }

    async fn begin(&mut self, spec: AttemptSpec) -> Result<(), RunError> {
        // What the attempt does to the world comes after its start is on record.
        if let Some(keeper) = &mut self.keeper {
            keeper.flush().await?;
            keeper.in_flight = true;
        }
        let cancel = CancellationToken::new();
        let ground = Ground { hub: self.hub_at(spec.path.clone()).clone(), cancel: cancel.clone() };
        self.tokens.insert((spec.node, spec.attempt), cancel);
        self.tasks.spawn(run_attempt(self.nodes.clone(), self.surroundings.clone(), spec, ground));
        Ok(())
    }

    /// Publishes the end of an attempt.
    fn conclude(&mut self, done: AttemptDone) -> Result<(), RunError> {
        self.tokens.remove(&(done.node, done.attempt));
        self.learn()?;
        let (now, mut todo) = (self.now(), Vec::new());
        self.pilot.receive(Received::Ended(done), now, &mut todo);
        todo.into_iter().try_for_each(|todo| self.publish(todo))
    }

    /// Waits until a task ends, a fact comes from elsewhere, the log wants something, or it is time. The end of a task
    /// is stored before anything that follows from it is worked out.
    async fn wait(&mut self) -> Result<(), RunError> {
        let sleep = match self.pilot.wake_at() {
            Some(at) => at.since(self.now()).min(LONGEST_SLEEP),
            None => LONGEST_SLEEP,
        };
        let keeper = async {
            match &mut self.keeper {
                Some(keeper) => keeper.wakeup().await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            Some(ended) = self.tasks.join_next() => Some(ended),
            Some(fact) = self.facts.next() => {
                let now = self.root.clock().now();
                self.pilot.receive(Received::Event(&fact), now, &mut Vec::new());
                None
            }
            () = keeper => None,
            Some(question) = self.questions.recv() => {
                // Who asked may have gone.
                drop(question.send(self.pilot.snapshot(&self.input)));
                None
            }
            () = tokio::time::sleep(sleep) => None,
        };
        if let Some(Ok(done)) = ended {
            self.conclude(done)?;
            if let Some(keeper) = &mut self.keeper {
                keeper.flush().await?;
                keeper.in_flight = !self.tasks.is_empty();
            }
            self.pause_without_room();
        }
        Ok(())
    }

    /// Whether the session waits for something and its process need not.
    fn leaves(&self) -> bool {
        let (state, now) = (self.pilot.run().state(), self.now());
        let is_due = state.prompts().iter().any(|open| open.deadline.is_some_and(|deadline| deadline <= now));
        state.status() == SessionStatus::Waiting
            // A question whose time is up is about to be answered with its default.
            && !is_due
            && match self.when_waiting {
                WhenWaiting::Stay => false,
                WhenWaiting::Leave => true,
                WhenWaiting::LeaveToPeople => !state.nodes().iter().any(|node| node.retry_at.is_some()),
                WhenWaiting::LeaveUnlessTimed => {
                    self.pilot.wake_at().is_none() && state.prompts().iter().all(|open| open.deadline.is_none())
                }
            }
    }
}
