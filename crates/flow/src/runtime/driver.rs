//! The loop that carries actions out and feeds facts back.

mod commands;

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use inspan_engine::{Channels, Hub, PermissionPolicy, ProgramCalls, Subscription};
use inspan_flow_core::{Action, AttemptEnd, Computed, Node, NodeIx, Run, StartNode};
use inspan_protocol::{
    Command, Envelope, Environment, Event, HostTools, NodePath, Prompt, PromptKind, Redactor, RunSnapshot,
    SessionStatus, Supervisor, Timestamp,
};
use serde_json::{Map, Value};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::commands::Waiting;
use super::{Resume, WhenWaiting, attempt, keeper::Keeper, result::LastState};
use crate::{
    error::RunError,
    node::{NodeContext, NodeRegistry},
};

/// The longest sleep between two looks at the clock: a clock that is set meanwhile is noticed by then.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// A run whose nodes never wait stops so often, in steps, to see to all else.
const STEPS: u32 = 128;

/// What an attempt's task gives back.
type Ended = (NodeIx, u32, AttemptEnd);

/// What attempts find around them.
pub(super) struct Surroundings {
    pub(super) nodes: NodeRegistry,
    pub(super) env: Environment,
    pub(super) program_env: Environment,
    pub(super) redactor: Redactor,
    pub(super) programs: ProgramCalls,
    pub(super) cwd: PathBuf,
    pub(super) permissions: PermissionPolicy,
    pub(super) tools: HostTools,
    pub(super) supervisor: Option<Supervisor>,
    pub(super) when_waiting: WhenWaiting,
}

pub(super) struct Driver {
    pub(super) run: Run,
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
    around: Surroundings,
    tasks: JoinSet<Ended>,
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
        run: Run,
        input: Map<String, Value>,
        facts: Subscription,
        keeper: Option<Keeper>,
        root: Hub,
        phase: Hub,
        around: Surroundings,
        questions: mpsc::Receiver<oneshot::Sender<RunSnapshot>>,
    ) -> Self {
        Self {
            run,
            keeper,
            input,
            facts,
            learned: Vec::new(),
            root,
            phase,
            just_now: None,
            place: None,
            around,
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
        let mut actions = Vec::new();
        if let Some(resume) = resume {
            actions = self.run.resume(resume.message.as_deref(), &resume.messages, &resume.budget);
            self.carry_out(&mut actions).await?;
            self.root.start_session();
            self.take_stored().await?;
            self.obey(|command| matches!(command, Command::Abort { .. })).await?;
        }
        self.pause_without_room();
        let mut steps = 0_u32;
        while self.stage == Stage::Running {
            self.learn()?;
            let now = self.just_now.take().unwrap_or_else(|| self.now());
            self.run.next(now, &mut actions);
            if !actions.is_empty() {
                self.carry_out(&mut actions).await?;
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
            if let Ok((node, attempt, end @ AttemptEnd::Output(_))) = ended {
                // What cannot be learnt any more cannot be stored either.
                let _overflow = self.conclude_checked(node, attempt, end);
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
        LastState { run: self.run, input: self.input }
    }

    async fn carry_out(&mut self, actions: &mut Vec<Action>) -> Result<(), RunError> {
        for action in actions.drain(..) {
            match action {
                Action::Emit { task, event } => {
                    self.emit(task, event);
                    self.learn()?;
                }
                Action::Start(start) => self.start(*start).await?,
                Action::Cancel { node, attempt, .. } => {
                    if let Some(token) = self.tokens.get(&(node, attempt)) {
                        token.cancel();
                    }
                }
                Action::Ask { task, id, prompt, choices } => {
                    let hub = self.hub_at(task);
                    let id = id.unwrap_or_else(|| hub.ids().prompt_id());
                    let prompt = Prompt::new(id, PromptKind::Input, prompt);
                    let asked = hub.ask(Prompt { choices: Some(choices), ..prompt });
                    self.asked.spawn(async move { drop(asked.await) });
                }
                Action::Finish => self.stage = Stage::Over,
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
        for envelope in &self.learned {
            self.run.apply(envelope);
        }
        self.learned.clear();
        match overflow {
            None => Ok(()),
            Some(seq) => Err(RunError::Overflow { seq }),
        }
    }

    fn emit(&mut self, task: Option<NodePath>, event: Event) -> Arc<Envelope> {
        use Event::{HarnessComplete, HarnessStart};
        if let Event::AgentComplete { run_id, .. } = &event {
            // Of a run that another process began.
            let hub = task.map_or_else(|| self.phase.clone(), |path| self.phase.with_task(path));
            return hub.with_agent(run_id.clone()).emit(event);
        }
        let envelope = match task {
            Some(path) => self.hub_at(path).emit(event),
            None if matches!(event, HarnessStart { .. } | HarnessComplete { .. }) => self.root.emit(event),
            None => self.phase.emit(event),
        };
        self.just_now = Some(envelope.timestamp);
        envelope
    }

    fn hub_at(&mut self, path: NodePath) -> &Hub {
        let stale = self.place.as_ref().is_none_or(|(place, _)| *place != path);
        if stale {
            let hub = self.phase.with_task(path.clone());
            self.place = Some((path, hub));
        }
        self.place.as_ref().map_or(&self.phase, |(_, hub)| hub)
    }

    async fn start(&mut self, start: StartNode) -> Result<(), RunError> {
        let StartNode { node, path, attempt, input, conversation, interrupted, mail } = start;
        let spec = self.run.graph().node(node);
        let Some((node_type, known)) = self.around.nodes.find(&spec.node_type) else {
            return Err(unknown(spec));
        };
        let input = match input.and_then(|input| attempt::check_input(known, &**node_type, spec, input)) {
            Ok(input) => input,
            Err(error) => {
                let error = self.around.redactor.error(error);
                return self.conclude(node, attempt, AttemptEnd::Error(error));
            }
        };
        let input = match node_type.compute(input) {
            Computed::Done(end) => {
                let end = attempt::check_end(known, spec, end, &self.around.redactor);
                return self.conclude(node, attempt, end);
            }
            Computed::Runs(input) => input,
        };
        let Some(runner) = self.around.nodes.runner(&spec.node_type).cloned() else {
            return Err(unknown(spec));
        };
        let cancel = CancellationToken::new();
        let context = NodeContext {
            node: spec.id.clone(),
            path: path.clone(),
            attempt,
            conversation,
            interrupted,
            mail,
            cwd: self.around.cwd.clone(),
            env: self.around.env.clone(),
            program_env: self.around.program_env.clone(),
            redactor: self.around.redactor.clone(),
            programs: self.around.programs.clone(),
            permissions: self.around.permissions,
            tools: self.around.tools.clone(),
            supervisor: self.around.supervisor.clone(),
            cancel: cancel.clone(),
            hub: self.hub_at(path).clone(),
        };
        // What the attempt does to the world comes after its start is on record.
        if let Some(keeper) = &mut self.keeper {
            keeper.flush().await?;
            keeper.in_flight = true;
        }
        self.tokens.insert((node, attempt), cancel);
        self.tasks.spawn(attempt::drive(runner, context, input, node));
        Ok(())
    }

    fn conclude(&mut self, node: NodeIx, attempt: u32, end: AttemptEnd) -> Result<(), RunError> {
        self.tokens.remove(&(node, attempt));
        self.learn()?;
        if let Some((path, event)) = self.run.conclude(node, attempt, end, self.now()) {
            self.emit(Some(path), event);
            self.learn()?;
        }
        Ok(())
    }

    /// As `conclude`, after the check of what the node gives.
    fn conclude_checked(&mut self, node: NodeIx, attempt: u32, end: AttemptEnd) -> Result<(), RunError> {
        let end = match end {
            AttemptEnd::Output(output) => Ok(output),
            AttemptEnd::Error(error) => Err(error),
        };
        let spec = self.run.graph().node(node);
        let end = match self.around.nodes.described(&spec.node_type) {
            Some(known) => attempt::check_end(known, spec, end, &self.around.redactor),
            None => end.map_or_else(AttemptEnd::Error, AttemptEnd::Output),
        };
        self.conclude(node, attempt, end)
    }

    /// Waits until a task ends, a fact comes from elsewhere, the log wants something, or it is time. The end of a task
    /// is stored before anything that follows from it is worked out.
    async fn wait(&mut self) -> Result<(), RunError> {
        let sleep = match self.run.wake_at() {
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
                self.run.apply(&fact);
                None
            }
            () = keeper => None,
            Some(question) = self.questions.recv() => {
                // Who asked may have gone.
                drop(question.send(self.run.snapshot(&self.input)));
                None
            }
            () = tokio::time::sleep(sleep) => None,
        };
        if let Some(Ok((node, attempt, end))) = ended {
            self.conclude_checked(node, attempt, end)?;
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
        let (state, now) = (self.run.state(), self.now());
        let is_due = state.prompts().iter().any(|open| open.deadline.is_some_and(|deadline| deadline <= now));
        state.status() == SessionStatus::Waiting
            // A question whose time is up is about to be answered with its default.
            && !is_due
            && match self.around.when_waiting {
                WhenWaiting::Stay => false,
                WhenWaiting::Leave => true,
                WhenWaiting::LeaveToPeople => !state.nodes().iter().any(|node| node.retry_at.is_some()),
                WhenWaiting::LeaveUnlessTimed => {
                    self.run.wake_at().is_none() && state.prompts().iter().all(|open| open.deadline.is_none())
                }
            }
    }
}

fn unknown(node: &Node) -> RunError {
    RunError::UnknownNodeType { node: node.id.clone(), node_type: node.node_type.to_string() }
}
