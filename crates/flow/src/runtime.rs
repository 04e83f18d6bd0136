//! Runs a compiled flow: carries the scheduler's actions out and feeds what happened back. It decides
//! nothing itself, and keeps no state of the run beside the fold.

mod attempt;
mod builder;
mod result;

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use inspan_engine::{Channel, ChannelLimits, Channels, Filter, Hub, PermissionPolicy, Subscription};
use inspan_protocol::{Envelope, Environment, NodePath, Rejection, SessionId, Supervisor, Timestamp};
use serde_json::{Map, Value};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use attempt::NodeContext;
pub use builder::FlowRunnerBuilder;
pub use result::{FlowRunResult, NodeReport};

use crate::{
    compile::check_input,
    error::RunError,
    graph::{Graph, NodeIx},
    registry::NodeRegistry,
    schedule::{Action, AttemptEnd, Run, StartNode},
    store::RunStore,
};
use attempt::Validators;

/// The longest sleep between two looks at the clock: a clock that is set meanwhile is noticed by then.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// One session of a flow, ready to run.
pub struct FlowRunner {
    graph: Arc<Graph>,
    nodes: NodeRegistry,
    hub: Hub,
    channels: Vec<Arc<dyn Channel>>,
    store: Option<Arc<dyn RunStore>>,
    env: Environment,
    cwd: PathBuf,
    permissions: PermissionPolicy,
    max_concurrency: Option<u32>,
    supervisor: Option<Supervisor>,
}

/// Steers a session from elsewhere. Cheap to clone.
#[derive(Clone)]
pub struct RunHandle {
    hub: Hub,
}

impl RunHandle {
    /// Stops the session for good; its outcome is `stopped`.
    pub fn stop(&self, reason: Option<String>) -> Result<(), Rejection> {
        self.hub.abort(reason)
    }

    /// The session's hub.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }
}

impl FlowRunner {
    /// A runner for a flow, with the defaults: a fresh session id, the system's clock, no store, no
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
        RunHandle { hub: self.hub.clone() }
    }

    /// Adds a channel after those the runner was built with.
    pub fn attach(&mut self, channel: Arc<dyn Channel>) {
        self.channels.push(channel);
    }

    /// Lets the session take commands. Called by [`FlowRunner::run`] unless the caller wants it earlier.
    pub fn start_session(&self) -> &Self {
        self.hub.start_session();
        self
    }

    /// Runs the flow to its end. `input` is laid over the flow's defaults. A flow that fails is a result;
    /// an error means that it could not be run at all, or that its log could not be kept.
    pub async fn run(self, input: Map<String, Value>) -> Result<FlowRunResult, RunError> {
        let input = check_input(&self.graph, input)?;
        let session = self.hub.session_id().clone();
        let run = Run::new(self.graph.clone(), &session, input, self.max_concurrency);
        let facts = self.hub.subscribe(Filter::names(crate::state::FACTS.iter().copied()));
        let log = self.store.as_ref().map(|_| self.hub.subscribe(Filter::all()));
        self.start_session();
        let mut channels = Channels::new(self.hub.clone(), ChannelLimits::default());
        channels.start(self.channels).await;
        let hub = self.hub.with_phase(self.graph.phase.as_str());
        let mut driver = Driver {
            validators: Validators::default(),
            place: None,
            run,
            facts,
            log,
            unkept: Vec::new(),
            store: self.store,
            root: self.hub.clone(),
            phase: hub,
            nodes: self.nodes,
            env: self.env,
            cwd: self.cwd,
            permissions: self.permissions,
            supervisor: self.supervisor,
            tasks: JoinSet::new(),
            tokens: HashMap::new(),
            is_over: false,
        };
        let driven = driver.drive().await;
        driver.tasks.shutdown().await;
        self.hub.end_session();
        channels.finish().await;
        let flushed = driver.flush().await;
        driven.and(flushed)?;
        let events = match &driver.store {
            Some(store) => store.read(&session, 1).await?,
            None => Vec::new(),
        };
        Ok(result::of(&driver.run, session, events))
    }
}

/// What an attempt's task gives back.
type Ended = (NodeIx, u32, AttemptEnd);

struct Driver {
    run: Run,
    facts: Subscription,
    log: Option<Subscription>,
    /// Events that were taken from the log and not yet handed to the store.
    unkept: Vec<Arc<Envelope>>,
    store: Option<Arc<dyn RunStore>>,
    root: Hub,
    phase: Hub,
    /// The newest place that was emitted from, and its handle.
    place: Option<(NodePath, Hub)>,
    nodes: NodeRegistry,
    validators: Validators,
    env: Environment,
    cwd: PathBuf,
    permissions: PermissionPolicy,
    supervisor: Option<Supervisor>,
    tasks: JoinSet<Ended>,
    tokens: HashMap<(NodeIx, u32), CancellationToken>,
    is_over: bool,
}

impl Driver {
    async fn drive(&mut self) -> Result<(), RunError> {
        let mut actions = Vec::new();
        loop {
            self.learn()?;
            self.run.next(self.now(), &mut actions);
            if actions.is_empty() {
                self.flush().await?;
                self.wait().await;
                continue;
            }
            for action in actions.drain(..) {
                match action {
                    Action::Emit { task, event } => {
                        self.emit(task, event);
                        self.learn()?;
                    }
                    Action::Start(start) => self.start(start).await?,
                    Action::Cancel { node, attempt, .. } => {
                        if let Some(token) = self.tokens.get(&(node, attempt)) {
                            token.cancel();
                        }
                    }
                    Action::Finish => self.is_over = true,
                }
            }
            if self.is_over {
                return Ok(());
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.root.clock().now()
    }

    /// Takes every fact that the hub has given out since the last time.
    fn learn(&mut self) -> Result<(), RunError> {
        while let Some(envelope) = self.facts.try_next() {
            self.run.apply(&envelope);
        }
        match self.facts.overflow() {
            None => Ok(()),
            Some(seq) => Err(RunError::Overflow { seq }),
        }
    }

    fn emit(&mut self, task: Option<NodePath>, event: inspan_protocol::Event) -> Arc<Envelope> {
        use inspan_protocol::Event::{HarnessComplete, HarnessStart};
        match task {
            Some(path) => self.hub_at(path).emit(event),
            None if matches!(event, HarnessStart { .. } | HarnessComplete { .. }) => self.root.emit(event),
            None => self.phase.emit(event),
        }
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
        let StartNode { node, path, attempt, input, conversation } = start;
        let spec = self.run.graph().node(node);
        let Some(node_type) = self.nodes.get(&spec.node_type).cloned() else {
            return Err(RunError::UnknownNodeType {
                node: spec.id.clone(),
                node_type: spec.node_type.to_string(),
            });
        };
        let input = match input.and_then(|input| self.validators.input(&*node_type, spec, input)) {
            Ok(input) => input,
            Err(error) => return self.conclude(node, attempt, AttemptEnd::Error(error)),
        };
        let input = match node_type.compute(input) {
            crate::node::Computed::Done(end) => {
                let end = self.validators.end(&*node_type, spec, end);
                return self.conclude(node, attempt, end);
            }
            crate::node::Computed::Runs(input) => input,
        };
        let cancel = CancellationToken::new();
        let context = NodeContext {
            node: spec.id.clone(),
            path: path.clone(),
            attempt,
            conversation,
            cwd: self.cwd.clone(),
            env: self.env.clone(),
            permissions: self.permissions,
            supervisor: self.supervisor.clone(),
            cancel: cancel.clone(),
            hub: self.hub_at(path).clone(),
        };
        // What the attempt does to the world comes after its start is on record.
        self.flush().await?;
        self.tokens.insert((node, attempt), cancel);
        self.tasks.spawn(attempt::drive(node_type, context, input, node));
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

    /// Waits until a task ends, a fact comes from elsewhere, an event is to be kept, or it is time.
    async fn wait(&mut self) {
        let sleep = match self.run.wake_at() {
            Some(at) => at.since(self.now()).min(LONGEST_SLEEP),
            None => LONGEST_SLEEP,
        };
        let log = async {
            match &mut self.log {
                Some(log) => log.next().await,
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
            Some(event) = log => {
                self.unkept.push(event);
                None
            }
            () = tokio::time::sleep(sleep) => None,
        };
        if let Some(Ok((node, attempt, end))) = ended {
            let end = match end {
                AttemptEnd::Output(output) => {
                    let spec = self.run.graph().node(node);
                    match self.nodes.get(&spec.node_type) {
                        Some(node_type) => self.validators.end(&**node_type, spec, Ok(output)),
                        None => AttemptEnd::Output(output),
                    }
                }
                error => error,
            };
            // An overflow is found again, and told, by the next look at the facts.
            let _overflow = self.conclude(node, attempt, end);
        }
    }

    /// Hands every event so far to the store.
    async fn flush(&mut self) -> Result<(), RunError> {
        let (Some(store), Some(log)) = (&self.store, &mut self.log) else { return Ok(()) };
        self.unkept.extend(std::iter::from_fn(|| log.try_next()));
        if let Some(seq) = log.overflow() {
            return Err(RunError::Overflow { seq });
        }
        if !self.unkept.is_empty() {
            store.append(self.root.session_id(), &self.unkept).await?;
            self.unkept.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
