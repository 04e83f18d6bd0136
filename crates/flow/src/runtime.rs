//! Runs a compiled flow: executes the scheduler's actions and feeds back what happened. It decides
//! nothing itself, and has no state of the run beside the fold.

mod attempt;
mod builder;
mod driver;
mod event_writer;
mod origin;
mod result;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use inspan_engine::{ChannelLimits, Channels, DynChannel, Hub, Subscription};
use inspan_flow_core::{Graph, Pilot, Run, check_input};
use inspan_protocol::{BudgetRaise, Rejection, RunSnapshot, SessionId, Timestamp};
use inspan_store::{Select, StoreError};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

pub use attempt::{Artifacts, AttemptBackend, AttemptContext, LocalBackend, Mail, Progress, run_attempt};
pub use builder::FlowRunnerBuilder;
pub use origin::{Changed, graph_of, lineage};
pub use result::{FlowRunResult, NodeReport, Outputs, Reports};

use crate::{error::RunError, node::NodeRegistry};
use driver::Driver;
use event_writer::EventWriter;
use origin::{Beginning, Origin};
use result::LastState;

/// Questions about the state of a run that may wait for an answer.
const QUESTIONS: usize = 16;

/// One session of a flow, ready to run.
pub struct FlowRunner {
    /// What it was built from.
    builder: FlowRunnerBuilder,
    hub: Hub,
    /// All events, if they are to be given back and no store has them.
    all: Option<Subscription>,
    handle: RunHandle,
    _end: EndOfSession,
    late: mpsc::Receiver<Attach>,
    /// What the run receives, from the first event on.
    facts: Subscription,
    /// What is to be stored, if anything is.
    log: Option<Subscription>,
    questions: mpsc::Receiver<oneshot::Sender<RunSnapshot>>,
    ended: watch::Sender<Option<Arc<LastState>>>,
}

/// Ends the session of a runner that is dropped: nothing takes its commands any more.
struct EndOfSession(RunHandle);

impl Drop for EndOfSession {
    fn drop(&mut self) {
        self.0.hub.end_session();
        drop(self.0.begin());
    }
}

/// What the process does when the session can only wait for a person or a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenWaiting {
    /// It stays and waits.
    #[default]
    Stay,
    /// It leaves; another process can resume the session.
    Leave,
    /// It leaves, unless a usage limit or a retry comes to its end by itself.
    LeaveToPeople,
    /// It leaves, unless it is known when the wait ends.
    LeaveUnlessTimed,
}

/// Whether the process stays although it could leave.
type Stays = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a session is resumed: the messages to its agents, and which of its budgets are raised.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resume {
    /// The message to each; `continue` if absent.
    pub message: Option<String>,
    /// The messages to single nodes instead, by their ids or places.
    pub messages: BTreeMap<String, String>,
    /// New limits of budgets. What was spent stays spent.
    pub budget: BudgetRaise,
}

/// How far a session is resumed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    End,
    /// Until the stored answers are taken.
    Answered,
}

/// A channel for a session that runs, and where to say that it has started.
type Attach = (Arc<dyn DynChannel>, oneshot::Sender<()>);

/// Controls a session from outside. Cheap to clone.
#[derive(Clone)]
pub struct RunHandle {
    hub: Hub,
    attach: mpsc::Sender<Attach>,
    questions: mpsc::Sender<oneshot::Sender<RunSnapshot>>,
    /// What it begins with; nothing once it has begun.
    beginning: Arc<Mutex<Option<Beginning>>>,
    ended: watch::Receiver<Option<Arc<LastState>>>,
}

impl RunHandle {
    /// Pauses the session: running agents are cancelled and keep their conversations. Gives the snapshot once the
    /// session is paused; if it ended meanwhile, the snapshot of its end. Pausing twice is one pause. Refused before
    /// the future of [`FlowRunner::run`] or [`FlowRunner::resume`] has begun the session, and after it has ended. A channel or a
    /// node, for which the pause would wait, pauses by [`Hub::pause`].
    pub async fn pause(&self, reason: Option<String>) -> Result<Arc<RunSnapshot>, Rejection> {
        if self.beginning().is_some() {
            return Err(Rejection::NotActive);
        }
        let refused = match self.hub.session_has_ended() {
            true => Some(Rejection::NotActive),
            false => self.hub.pause(reason).err(),
        };
        if let Some(refused) = &refused
            && !self.hub.session_has_ended()
        {
            return Err(refused.clone());
        }
        let mut ended = self.ended.clone();
        let last = ended.wait_for(Option::is_some).await.ok().and_then(|last| last.clone());
        let last = last.ok_or(Rejection::NotActive)?;
        match refused {
            Some(refused) if last.run.state().status().has_ended() => Err(refused),
            _ => Ok(Arc::new(last.snapshot())),
        }
    }

    /// Stops the session for good; its outcome is `stopped`.
    pub fn stop(&self, reason: Option<String>) -> Result<(), Rejection> {
        self.hub.abort(reason)
    }

    /// The fold as it is now; before the session has begun, that of its start. Nothing once the session's log could not be
    /// flushed.
    pub async fn snapshot(&self) -> Option<RunSnapshot> {
        if let Some(beginning) = &*self.beginning() {
            return Some(beginning.snapshot(self.hub.session_id()));
        }
        let (answer, snapshot) = oneshot::channel();
        if self.questions.send(answer).await.is_ok()
            && let Ok(snapshot) = snapshot.await
        {
            return Some(snapshot);
        }
        // The run is about to end, or has ended.
        let mut ended = self.ended.clone();
        let last = ended.wait_for(Option::is_some).await.ok()?.clone();
        last.map(|last| last.snapshot())
    }

    /// Adds a channel to the session while it runs. It sees the events from here on. Before the session has begun it
    /// is added to those that start with it. Refused once the session has ended.
    pub async fn attach(&self, channel: Arc<dyn DynChannel>) -> Result<(), Rejection> {
        if let Some(beginning) = &mut *self.beginning() {
            beginning.channels.push(channel);
            return Ok(());
        }
        let (started, has_started) = oneshot::channel();
        self.attach.send((channel, started)).await.map_err(|_| Rejection::NotActive)?;
        has_started.await.map_err(|_| Rejection::NotActive)
    }

    /// The session's hub.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    fn beginning(&self) -> MutexGuard<'_, Option<Beginning>> {
        self.beginning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on the run answers for the session.
    fn begin(&self) -> Option<Beginning> {
        self.beginning().take()
    }
}

impl FlowRunner {
    /// A runner for a flow (`inspan::Flow::runner` gives one for a flow of that crate), with the defaults: a fresh session id, the system's clock, no store, no
    /// environment, and every permission denied.
    pub fn builder(graph: Arc<Graph>, nodes: NodeRegistry) -> FlowRunnerBuilder {
        FlowRunnerBuilder::new(graph, nodes)
    }

    /// The session's hub.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The session's id.
    pub fn session_id(&self) -> &SessionId {
        self.hub.session_id()
    }

    /// A handle to steer the session with.
    pub fn handle(&self) -> RunHandle {
        self.handle.clone()
    }

    /// Adds a channel after those the runner was built with. [`RunHandle::attach`] adds one later.
    pub fn attach(&mut self, channel: Arc<dyn DynChannel>) {
        self.builder.channels.push(channel);
    }

    /// Lets the session take commands. Called by [`FlowRunner::run`] unless the caller wants it earlier.
    #[must_use]
    pub fn start_session(self) -> Self {
        self.hub.start_session();
        self
    }

    /// Runs the flow until it ends, pauses or waits. `input` overrides the flow's defaults. A flow that fails is a
    /// result; an error means that it could not be run at all, or that its log could not be stored.
    ///
    /// A future that is dropped leaves the session as a crash of the process would: what runs is cancelled, and the
    /// session can be opened again as soon as that has ended.
    pub async fn run(mut self, input: Map<String, Value>) -> Result<FlowRunResult, RunError> {
        if !matches!(self.take_origin(), Some(Origin::New(_))) {
            return Err(RunError::HasBegun { session: self.session_id().clone() });
        }
        SessionId::checked(self.session_id().as_str())?;
        let mut given = std::mem::take(&mut self.builder.input);
        given.extend(input);
        let input = check_input(&self.builder.graph, given)?;
        let writer = self.create(&input, None).await?;
        let (graph, limit) = (self.builder.graph.clone(), self.builder.max_concurrency);
        let run = Run::new(graph, self.hub.session_id(), input.clone(), limit);
        let run = run.reusing(self.builder.reusable.take());
        self.drive(run, writer, input, None).await
    }

    /// Resumes a session that is paused or waiting, or whose process died. Dropped, it does as [`FlowRunner::run`].
    pub async fn resume(self, resume: Resume) -> Result<FlowRunResult, RunError> {
        self.go_on(resume, Until::End).await
    }

    /// Lets the stored answers of people count, and pauses the session again before anything else begins. For a session
    /// that another one continues, and whose answers would be asked for again there.
    pub async fn take_answers(self) -> Result<FlowRunResult, RunError> {
        self.go_on(Resume::default(), Until::Answered).await
    }

    async fn go_on(mut self, resume: Resume, until: Until) -> Result<FlowRunResult, RunError> {
        let Some(Origin::Idle(mut rest)) = self.take_origin() else { return Err(RunError::NoStore) };
        let messages = rest.run.check_messages(resume.message.as_deref(), &resume.messages);
        let checked = messages.map_err(RunError::from);
        if let Err(error) = checked.and_then(|()| Ok(rest.run.check_raise(&resume.budget)?)) {
            if let Some(lease) = rest.lease {
                self.writer(lease).release().await?;
            }
            return Err(error);
        }
        rest.run = rest.run.reusing(self.builder.reusable.take());
        let writer = match rest.lease {
            Some(lease) => Some(self.writer(lease)),
            None => {
                let base = Box::new(rest.run.snapshot(&rest.input));
                self.create(&rest.input, Some(base)).await?
            }
        };
        self.drive(rest.run, writer, rest.input, Some((resume, until, rest.last_at))).await
    }

    async fn drive(
        self,
        run: Run,
        writer: Option<EventWriter>,
        input: Map<String, Value>,
        resume: Option<(Resume, Until, Timestamp)>,
    ) -> Result<FlowRunResult, RunError> {
        let session = self.hub.session_id().clone();
        let surroundings = self.builder.attempts(&session);
        self.hub.redact(surroundings.redactor());
        let artifacts = surroundings.artifacts.clone();
        let run = surroundings.adapted(run);
        let pilot = match Pilot::new(run, (*self.builder.nodes).clone(), surroundings.redactor().clone()) {
            Ok(pilot) => pilot,
            Err(unknown) => {
                if let Some(mut writer) = writer {
                    writer.release().await?;
                }
                return Err(unknown.into());
            }
        };
        let facts = self.facts;
        // A resumed session emits `flow:resumed` before it takes commands, so that a new pause is not taken for the old
        // one.
        if resume.is_none() {
            self.hub.start_session();
        }
        let mut channels = Channels::new(self.hub.clone(), ChannelLimits::default());
        channels.start(self.builder.channels).await;
        let mut late = self.late;
        let mut late_channels = Channels::new(self.hub.clone(), ChannelLimits::default());
        let attach = async {
            while let Some((channel, started)) = late.recv().await {
                late_channels.attach(channel).await;
                // The caller may be gone.
                let _ = started.send(());
            }
            std::future::pending().await
        };
        let phase = self.hub.with_phase(self.builder.graph.phase.as_str());
        let hub = self.hub.clone();
        let mut driver = Driver::new(
            pilot,
            input,
            facts,
            writer,
            (hub, phase),
            (self.builder.nodes.into(), surroundings.into()),
            (self.builder.when_waiting, self.builder.stays),
            self.questions,
        );
        let driven = tokio::select! {
            driven = driver.drive(resume, &mut channels) => driven,
            () = attach => Ok(()),
        };
        driver.shutdown().await;
        if let Some(artifacts) = artifacts.filter(|artifacts| artifacts.is_made) {
            // An empty folder is removed; one that is in use stays.
            let _in_use = std::fs::remove_dir(artifacts.folder);
        }
        self.hub.end_session();
        late.close();
        drop(late);
        // Channels show an end once it is stored.
        let stored = driver.store_end().await;
        channels.finish().await;
        late_channels.finish().await;
        let flushed = stored.and(driver.flush_and_release().await);
        let store = driver
            .writer
            .as_ref()
            .map(|writer| writer.held.store.clone())
            .filter(|_| self.builder.with_events);
        let mut events = Vec::new();
        if driven.is_ok() && flushed.is_ok() {
            if let Some(store) = store {
                events = store.read(&session, 1, Select::All).await?;
            } else if let Some(mut all) = self.all
                && let Some(seq) = all.take_all(&mut events)
            {
                return Err(RunError::Overflow { seq });
            }
        }
        let last = Arc::new(driver.into_last());
        self.ended.send_replace(Some(last.clone()));
        match driven.and(flushed) {
            Ok(()) => Ok(result::of(last, session, events)),
            Err(RunError::Store(
                error @ (StoreError::Full { .. }
                | StoreError::Locked { .. }
                | StoreError::Unreachable(_)
                | StoreError::Io { .. }
                | StoreError::ReadOnly { .. }),
            )) => Err(RunError::NotStored { session, error }),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Flows through the whole runtime in virtual time, with what golden flows do not show: pauses, crashes, commands
    //! and channels. Decisions alone are tested in `schedule`.

    mod attempts;
    mod commands;
    mod dropped;
    mod effects;
    mod handle;
    mod idle;
    mod recorded;
    mod stage;
}
