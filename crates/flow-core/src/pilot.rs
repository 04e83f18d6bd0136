//! A run with everything that all its drivers must do in the same way: it computes nodes that never wait, checks what
//! goes into and comes out of the others, and can be carried to another process while attempts run. A driver
//! publishes events, runs attempts, and reports what happens; the driver of this project is `FlowRunner`, over a
//! store.

mod check;

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    sync::Arc,
};

use inspan_protocol::{
    AgentError, BoundedValidator, BudgetRaise, Envelope, ErrorCode, Event, NodeId, NodePath, PromptId,
    Redactor, RunId, RunSnapshot, SessionId, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use check::Addressed;

use crate::{
    catalog::{Described, NodeCatalog},
    graph::{Effects, Graph, TaskRef},
    node::{Computed, DescribeNode},
    schedule::{Action, AttemptEnd, CancelCause, CarriedRun, Interrupted, Run, StartNode, files::moved},
    state::{Conversation, SnapshotError},
};

/// The version of what [`Pilot::carry`] gives.
const CARRIED_VERSION: u16 = 1;

/// An attempt as its executor gets it: data, so that it may run in another process.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptSpec {
    /// The session.
    pub session: SessionId,
    /// The node.
    pub node: TaskRef,
    /// Its id.
    pub node_id: NodeId,
    /// Its place in the run.
    pub path: NodePath,
    /// Its type.
    pub node_type: Arc<str>,
    /// Which try this is, counting from 1.
    pub attempt: u32,
    /// Its input, checked.
    pub input: Value,
    /// The conversation that an agent continues.
    pub conversation: Option<Conversation>,
    /// The conversation that an agent branches, unless it has begun its own.
    pub branches: Option<Conversation>,
    /// What is left of an interrupted attempt, if this one replaces it.
    pub interrupted: Option<Box<Interrupted>>,
    /// Messages to an agent that follow its first turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mail: Vec<String>,
    /// The pool of machines that may run it; any if absent.
    pub pool: Option<Arc<str>>,
    /// The environment variables with keys that its program may see.
    #[serde(default, skip_serializing_if = "no_secrets")]
    pub secrets: Arc<[String]>,
    /// How many milliseconds it may take, of a time that begins when a machine has begun it.
    pub timeout_ms: Option<u64>,
    /// Whether it may do what cannot be taken back, so that it never runs again without asking.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_external: bool,
}

impl AttemptSpec {
    /// The attempt as a machine runs it whose folder for the session's files is another one than where it was decided.
    #[must_use]
    pub fn with_artifacts(mut self, decided: &Path, here: &Path) -> Self {
        if decided != here
            && let (Some(decided), Some(here)) = (decided.to_str(), here.to_str())
        {
            self.input = moved(&self.input, decided, here);
        }
        self
    }
}

fn no_secrets(secrets: &Arc<[String]>) -> bool {
    secrets.is_empty()
}

/// The end of an attempt, as its executor reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptDone {
    /// The node.
    pub node: TaskRef,
    /// Its attempt.
    pub attempt: u32,
    /// How it ended.
    pub end: AttemptEnd,
}

/// What a driver reports.
#[derive(Debug)]
pub enum Received<'a> {
    /// An event of the session, in the order of the log.
    Event(&'a Envelope),
    /// An attempt ended.
    Ended(AttemptDone),
    /// The process that ran an attempt is gone, and the attempt with it; all others continue.
    Lost {
        /// The node.
        node: TaskRef,
        /// Its attempt.
        attempt: u32,
        /// How.
        how: AttemptLoss,
    },
}

/// How an attempt came to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptLoss {
    /// Its process is gone, perhaps by what the attempt did.
    Died,
    /// Its process was stopped on purpose, or cut off from the others, and has ended it.
    Stopped,
    /// No machine had begun it.
    NeverBegan,
}

/// What a driver is to do, in this order.
#[derive(Debug)]
pub enum Instruction {
    /// Give the event its number and id, put it into the log, and report it by [`Received::Event`].
    Publish {
        /// The task that it belongs to.
        task: Option<NodePath>,
        /// The agent's run that it belongs to.
        agent: Option<RunId>,
        /// The event.
        event: Event,
    },
    /// Run an attempt; all that was published before is durable first.
    Begin(Box<AttemptSpec>),
    /// Cancel a running attempt; its end is still reported.
    Abort {
        /// The node.
        node: TaskRef,
        /// Its attempt.
        attempt: u32,
        /// Why.
        reason: CancelCause,
    },
    /// Ask a person on a node's behalf; the question and the reply are events.
    Ask {
        /// The node's place.
        task: NodePath,
        /// The question's id: the one that it had before, if it was asked before.
        id: PromptId,
        /// The question.
        prompt: String,
        /// The answers to choose from.
        choices: Vec<String>,
    },
    /// The session has ended, or is paused.
    Finish,
}

/// A node's type that the registry lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node `{node}` has the type `{node_type}`, which is not registered")]
pub struct UnknownNodeType {
    /// The node.
    pub node: NodeId,
    /// Its type.
    pub node_type: String,
}

/// The exact state of a run as data, also while attempts run. A snapshot is what people and other versions read; this
/// is for the next process of the same version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Carried {
    version: u16,
    run: CarriedRun,
    #[serde(default)]
    addressed: Addressed,
}

/// Drives a run; it has no clock, no log and no runtime.
pub struct Pilot {
    run: Run,
    catalog: NodeCatalog,
    redactor: Redactor,
    /// Ends of attempts that were computed at once, to be published next.
    computed: VecDeque<AttemptDone>,
    addressed: Addressed,
    /// The messages with secrets that the agents of this process are resumed with, by what their events say.
    given: BTreeMap<String, String>,
}

impl Pilot {
    /// A pilot of a run whose node types are all in the catalogue. Secrets that the redactor knows leave no node.
    pub fn new(run: Run, catalog: NodeCatalog, redactor: Redactor) -> Result<Self, UnknownNodeType> {
        let unknown = run
            .graph()
            .bodies
            .iter()
            .flat_map(|body| &body.nodes)
            .flat_map(|node| [node].into_iter().chain(node.agents.iter().flat_map(|agents| &agents.others)))
            .find(|node| node.frames.is_none() && catalog.get(&node.node_type).is_none());
        if let Some(node) = unknown {
            return Err(UnknownNodeType { node: node.id.clone(), node_type: node.node_type.to_string() });
        }
        let (computed, addressed, given) = Default::default();
        Ok(Self { run, catalog, redactor, computed, addressed, given })
    }

    /// The run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The run, when all is done.
    pub fn into_run(self) -> Run {
        self.run
    }

    /// What is published before a session is resumed whose whole log was reported; `last_event` as for [`Run::resume`].
    pub fn resume(
        &mut self,
        message: Option<&str>,
        messages: &BTreeMap<String, String>,
        budget: &BudgetRaise,
        last_event: Option<Timestamp>,
    ) -> Vec<Instruction> {
        for given in message.into_iter().chain(messages.values().map(String::as_str)) {
            let stored = self.redactor.text(given);
            if stored != given {
                self.given.insert(stored, given.to_owned());
            }
        }
        self.run.resume(message, messages, budget, last_event).into_iter().filter_map(published).collect()
    }

    /// Takes what happened. What must be published because of it is put into `instructions`; all of it is reported by
    /// [`Received::Event`] before the next decision.
    pub fn receive(&mut self, received: Received<'_>, now: Timestamp, instructions: &mut Vec<Instruction>) {
        match received {
            Received::Event(envelope) => {
                self.run.apply(envelope);
                self.addressed.apply(envelope);
            }
            Received::Ended(done) => self.conclude(done, now, instructions),
            Received::Lost { node, attempt, how } => {
                instructions.extend(self.run.lose(node, attempt, how).into_iter().filter_map(published));
            }
        }
    }

    /// Puts the next decision into `instructions`, which stays empty if there is nothing to do until something happens. Every
    /// published event is reported before this is called again.
    pub fn decide(&mut self, now: Timestamp, instructions: &mut Vec<Instruction>) {
        if let Some(done) = self.computed.pop_front() {
            return self.conclude(done, now, instructions);
        }
        let mut actions = Vec::new();
        self.run.next(now, &mut actions);
        for action in actions {
            match action {
                Action::Emit { task, mut event } => {
                    if !self.gives_outputs_of_nodes(task.as_ref(), &event) {
                        self.redactor.computed(&mut event);
                    }
                    instructions.extend(published(Action::Emit { task, event }));
                }
                Action::Start(start) => instructions.extend(self.begin(*start)),
                Action::Cancel { node, attempt, reason } => {
                    instructions.push(Instruction::Abort { node, attempt, reason })
                }
                Action::Ask { task, id, prompt, choices } => {
                    let prompt = self.redactor.text(&prompt);
                    let id = id.unwrap_or_else(|| self.id_of_confirmation(&task));
                    instructions.push(Instruction::Ask { task, id, prompt, choices });
                }
                Action::Finish => instructions.push(Instruction::Finish),
            }
        }
    }

    /// Whether an event has only outputs of nodes, which have no secrets: of a frame that declares none of its own.
    fn gives_outputs_of_nodes(&self, task: Option<&NodePath>, event: &Event) -> bool {
        let (graph, state) = (self.run.graph(), self.run.state());
        matches!(event, Event::FrameComplete { .. })
            && state
                .find(graph, task)
                .and_then(|task| state.spec(graph, task).frames.as_deref())
                .is_some_and(|frames| graph.body(frames.body).outputs.is_none())
    }

    /// The id of the question about the interrupted attempt.
    fn id_of_confirmation(&self, task: &NodePath) -> PromptId {
        let state = self.run.state();
        let node = state.find(self.run.graph(), Some(task));
        let attempt = node.map_or(0, |node| state.node(node).attempt);
        format!("{task}.{attempt}.confirm").into()
    }

    /// Has the time of a running attempt end at another moment than by its `task:start`: no machine had begun it then.
    pub fn put_off(&mut self, node: TaskRef, deadline: Timestamp) {
        self.run.put_off_attempt(node, deadline);
    }

    /// When to decide again even if nothing happens.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.run.wake_at()
    }

    /// The attempts that must be running now.
    pub fn outstanding(&self) -> Vec<AttemptSpec> {
        self.run.outstanding().into_iter().filter_map(|start| self.prepare(start).ok()).collect()
    }

    /// The run as data that people and other versions read; `input` is what the flow was given.
    pub fn snapshot(&self, input: &Map<String, Value>) -> RunSnapshot {
        self.run.snapshot(input)
    }

    /// The exact state, also while attempts run.
    pub fn carry(&self) -> Carried {
        Carried { version: CARRIED_VERSION, run: self.run.carry(), addressed: self.addressed.clone() }
    }

    /// Continues where another process was when it saved its state. The graph is the one that it ran.
    pub fn take_up(
        graph: Arc<Graph>,
        catalog: NodeCatalog,
        redactor: Redactor,
        carried: Carried,
    ) -> Result<Self, SnapshotError> {
        let session = carried.run.session().clone();
        if carried.version != CARRIED_VERSION {
            return Err(SnapshotError::Version { session, found: carried.version, known: CARRIED_VERSION });
        }
        let run = Run::take_up(graph, carried.run)?;
        let (computed, given) = Default::default();
        let mut pilot = Self { run, catalog, redactor, computed, addressed: carried.addressed, given };
        pilot.pick_up();
        Ok(pilot)
    }

    /// The attempts that must be running now, after a log was reported from its beginning by a process that has begun
    /// none of them. Those that never wait are computed.
    pub fn pick_up(&mut self) -> Vec<AttemptSpec> {
        let (mut running, computed) = (Vec::new(), &mut VecDeque::new());
        for start in self.run.outstanding() {
            match self.prepare(start) {
                Ok(spec) => running.push(spec),
                Err(done) => computed.push_back(done),
            }
        }
        self.computed.append(computed);
        running
    }

    /// The attempt to run; nothing if it has ended already, by its input or by a computation.
    fn begin(&mut self, start: StartNode) -> Option<Instruction> {
        match self.prepare(start) {
            Ok(spec) => Some(Instruction::Begin(Box::new(spec))),
            Err(done) => {
                self.computed.push_back(done);
                None
            }
        }
    }

    fn prepare(&self, start: StartNode) -> Result<AttemptSpec, AttemptDone> {
        let StartNode { node, path, attempt, input, conversation, branches, mut interrupted, mail } = start;
        if let Some(message) = interrupted.as_mut().and_then(|cut| cut.message.as_mut())
            && let Some((stored, given)) =
                self.given.iter().rev().find(|(stored, _)| message.starts_with(*stored))
        {
            // Messages of the log may follow it.
            message.replace_range(..stored.len(), given);
        }
        let spec = self.run.state().spec(self.run.graph(), node);
        let done = |end: Result<Value, AgentError>| AttemptDone { node, attempt, end: end.into() };
        let Some((node_type, known)) = self.catalog.find(&spec.node_type) else {
            let message = format!("the type `{}` is not registered", spec.node_type);
            return Err(done(Err(AgentError::new(ErrorCode::ConfigInvalid, message))));
        };
        let input = input.and_then(|input| check_input(known, &**node_type, &spec.id, input));
        match input.map(|input| node_type.compute(input)) {
            Ok(Computed::Runs(input)) => Ok(AttemptSpec {
                session: self.run.session().clone(),
                node,
                node_id: spec.id.clone(),
                path,
                node_type: spec.node_type.clone(),
                attempt,
                input,
                conversation,
                branches,
                interrupted,
                mail,
                pool: spec.pool.clone(),
                secrets: self.run.state().body(self.run.graph(), node.frame).secrets.clone(),
                timeout_ms: spec.policy.timeout.map(|timeout| timeout.as_millis() as u64),
                is_external: spec.effects == Effects::External,
            }),
            Ok(Computed::Done(end)) => Err(done(end)),
            Err(error) => Err(done(Err(error))),
        }
    }

    fn conclude(&mut self, done: AttemptDone, now: Timestamp, instructions: &mut Vec<Instruction>) {
        let AttemptDone { node, attempt, end } = done;
        let end = self.check_end(node, end);
        if let Some((path, event)) = self.run.conclude(node, attempt, end, now) {
            instructions.push(Instruction::Publish { task: Some(path), agent: None, event });
        }
    }

    /// The end without secrets; an output that does not fit the schema of the node's type is an error.
    fn check_end(&self, node: TaskRef, end: AttemptEnd) -> AttemptEnd {
        let spec = self.run.state().spec(self.run.graph(), node);
        let output = match end {
            AttemptEnd::Output(output) => self.redactor.value(output),
            AttemptEnd::Error(error) => return AttemptEnd::Error(self.redactor.error(error)),
            AttemptEnd::NeverBegan => return AttemptEnd::NeverBegan,
        };
        let schema = self.catalog.described(&spec.node_type).and_then(|known| known.output());
        match schema.and_then(|schema| misfit(schema, &output)) {
            Some(why) => {
                let message = format!("the output of node `{}`: {why}", spec.id);
                AttemptEnd::Error(AgentError::new(ErrorCode::OutputInvalid, message))
            }
            None => AttemptEnd::Output(output),
        }
    }
}

/// An event to publish; the end of an agent's run that another process began belongs to that run.
fn published(action: Action) -> Option<Instruction> {
    let Action::Emit { task, event } = action else { return None };
    let agent = match &event {
        Event::AgentComplete { run_id, .. } => Some(run_id.clone()),
        _ => None,
    };
    Some(Instruction::Publish { task, agent, event })
}

/// The input, if it fits the schema of the node's type.
fn check_input(
    known: &Described,
    node_type: &dyn DescribeNode,
    node: &NodeId,
    input: Value,
) -> Result<Value, AgentError> {
    // A schema that depends on the input is checked by the node itself.
    if node_type.input_schema_for(&input).is_some() {
        return Ok(input);
    }
    match known.input().and_then(|schema| misfit(schema, &input)) {
        Some(why) => {
            Err(AgentError::new(ErrorCode::ConfigInvalid, format!("the input of node `{node}`: {why}")))
        }
        None => Ok(input),
    }
}

/// How a value does not fit a schema; none if it does.
pub(crate) fn misfit(schema: &BoundedValidator, value: &Value) -> Option<String> {
    let named = |error: jsonschema::ValidationError<'_>| match error.instance_path().as_str() {
        "" => error.to_string(),
        path => format!("`{path}`: {error}"),
    };
    let errors: Vec<_> = schema.errors(value).into_iter().map(named).collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}
