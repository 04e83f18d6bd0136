//! The contract of a node type that runs, what surrounds an attempt, and the registry of such types.

use std::{collections::BTreeMap, ops::Deref, path::PathBuf, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::{Filter, Hub, NodeAnswer, NodeCall, NodeCalls, SESSION_VARIABLE};
use inspan_flow_core::{ControlWait, Conversation, DescribeNode, HumanQuestion, Interrupted, NodeCatalog};
use inspan_protocol::{
    AgentError, Envelope, Environment, ErrorCode, Event, Host, LogLevel, NodeId, NodePath, Prompt, Redactor,
    Reply, SessionId, StopReason, Timestamp, Usage, trace_variables,
};
use inspan_store::RunStore;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::runtime::AttemptBackend;

/// How many events of the log are read at once.
const LOG_PAGE: usize = 1000;

/// A kind of node that flows can use. A custom one is one type that implements this and [`DescribeNode`], and one
/// [`register`](NodeRegistry::register). An implementation writes `run` as `async fn`.
pub trait NodeType: DescribeNode {
    /// Runs one attempt, until it ends or its context is cancelled.
    fn run(
        &self,
        context: NodeContext,
        input: Value,
    ) -> impl Future<Output = Result<Value, AgentError>> + Send;
}

/// What runs the nodes of a type: the erased form of a [`NodeType`].
pub trait DynNodeType: Send + Sync + 'static {
    /// As [`NodeType::run`].
    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'_, Result<Value, AgentError>>;
}

impl<N: NodeType> DynNodeType for N {
    fn run(&self, context: NodeContext, input: Value) -> BoxFuture<'_, Result<Value, AgentError>> {
        NodeType::run(self, context, input).boxed()
    }
}

/// The context of one attempt of a node.
#[derive(Clone)]
pub struct NodeContext {
    /// The node.
    pub node: NodeId,
    /// Its place in the run.
    pub path: NodePath,
    /// Which try this is, counting from 1.
    pub attempt: u32,
    /// The conversation that an agent continues.
    pub conversation: Option<Conversation>,
    /// The conversation that an agent branches, unless it has begun its own.
    pub branches: Option<Conversation>,
    /// What is left of an interrupted attempt, if this one replaces it. A node that asks a person does so by
    /// [`NodeContext::ask`], which knows the question and its answer.
    pub interrupted: Option<Box<Interrupted>>,
    /// Messages to an agent that are to follow its first turn.
    pub mail: Vec<String>,
    /// The program that runs the flow: the environment for agents and clients, the folder where relative paths begin,
    /// tools and permissions.
    pub host: Arc<Host>,
    pub(crate) program_env: Environment,
    /// The variables that the flow's `secrets` name.
    pub(crate) secrets: Arc<[String]>,
    /// Knows the secrets of the environment.
    pub redactor: Redactor,
    /// Whether what nodes do outside is done, recorded or answered from recordings.
    pub calls: NodeCalls,
    /// Cancelled when the attempt is to end.
    pub cancel: CancellationToken,
    /// The hub, within the attempt's task. The secrets that `redactor` knows are taken out of what is emitted by it.
    pub hub: Hub,
    /// Where the attempt runs.
    pub(crate) backend: Arc<dyn AttemptBackend>,
}

impl NodeContext {
    /// The environment for programs that the flow's author names: without the keys of vendors, unless the flow's
    /// `secrets` name them. Fails if one of those is not set here: a flow may run on other machines than it was started on.
    pub fn program_env(&self) -> Result<&Environment, AgentError> {
        match self.secrets.iter().find(|name| self.program_env.get(name).is_none()) {
            Some(name) => Err(secret_not_set(name)),
            None => Ok(&self.program_env),
        }
    }

    /// A folder of the author's, which starts at the working folder if it is relative; none is that folder.
    pub fn folder(&self, cwd: Option<&str>) -> PathBuf {
        let base = self.host.cwd.clone().unwrap_or_default();
        cwd.map_or_else(|| base.clone(), |cwd| base.join(cwd))
    }

    /// When the wait began that this attempt is part of: before a pause or a crash, if there was one.
    pub fn since(&self) -> Timestamp {
        let before = self.interrupted.as_ref().and_then(|cut| cut.since);
        before.unwrap_or_else(|| self.hub.clock().now())
    }

    /// The first event of the session since that time that a filter lets through and that ends a wait, if this attempt was
    /// interrupted and the event came before it began again.
    pub(crate) async fn earlier(&self, wanted: Filter) -> Result<Option<Arc<Envelope>>, AgentError> {
        let since = self.interrupted.as_ref().and_then(|cut| cut.since);
        let (Some((store, session)), Some(since)) = (self.backend.log(), since) else { return Ok(None) };
        first_after_start(store, session, &self.path, since, |event| {
            wanted.matches(event) && ControlWait::ends_by(&event.event)
        })
        .await
    }

    /// Whether the agent of the interrupted attempt has said or done anything, so that its vendor has the prompt. Without a
    /// log, or if that cannot be read, it is taken for granted.
    pub(crate) async fn has_answered(&self) -> bool {
        self.may_have_emitted(is_answer).await
    }

    /// Whether the log has something that it has said or done.
    pub(crate) async fn is_known_to_have_answered(&self) -> bool {
        // A run that failed without a token may only not have found its conversation.
        let is_known = |event: &Event| match event {
            Event::AgentComplete { success, usage, .. } => *success || usage.total() > 0,
            event => is_answer(event),
        };
        self.has_emitted(is_known).await == Some(true)
    }

    /// Whether a turn of the agent of the interrupted attempt has ended whole. An agent that forgets a turn that is cut counts
    /// nothing of it.
    pub(crate) async fn has_ended_turn(&self) -> bool {
        let is_whole =
            |event: &Event| matches!(event, Event::AgentUsage { usage, .. } if *usage != Usage::default());
        self.may_have_emitted(is_whole).await
    }

    async fn may_have_emitted(&self, is_wanted: impl Fn(&Event) -> bool) -> bool {
        !self.backend.is_log_current() || self.has_emitted(is_wanted).await.unwrap_or(true)
    }

    /// The output of the interrupted attempt's agent, if it had answered and waited for messages.
    pub(crate) async fn answered(&self) -> Option<Value> {
        let (store, places) = self.worked_in().filter(|_| self.backend.is_log_current())?;
        for (session, path, since) in places {
            let mut last = None;
            let read = first_after_start(store, session, path, since, |event| {
                if event.context.task.as_ref() == Some(path) {
                    match &event.event {
                        Event::AgentListen { output, .. } => last = Some(Some(output.clone())),
                        Event::AgentTurn { .. } | Event::AgentStart { listens: false, .. } => {
                            last = Some(None)
                        }
                        _ => {}
                    }
                }
                false
            });
            read.await.ok()?;
            if let Some(answer) = last {
                return answer;
            }
        }
        None
    }

    /// Whether the agent of the interrupted attempt has emitted such an event. None without a log, or if that cannot be read.
    async fn has_emitted(&self, is_wanted: impl Fn(&Event) -> bool) -> Option<bool> {
        let (store, places) = self.worked_in()?;
        for (session, path, since) in places {
            let is_wanted =
                |event: &Envelope| event.context.task.as_ref() == Some(path) && is_wanted(&event.event);
            let found = first_after_start(store, session, path, since, is_wanted).await;
            if found.ok()?.is_some() {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Where the agent of the interrupted attempt has worked, the newest first, and since when. None without a log.
    fn worked_in(&self) -> Option<(&dyn RunStore, impl Iterator<Item = (&SessionId, &NodePath, Timestamp)>)> {
        let ((store, session), cut) = self.backend.log().zip(self.interrupted.as_ref())?;
        let newest = match &cut.before {
            Some((session, path)) => (session, path, Timestamp::default()),
            None => (session, &self.path, cut.since.unwrap_or_default()),
        };
        let older = cut.older.iter().rev().map(|(session, path)| (session, path, Timestamp::default()));
        Some((store, [newest].into_iter().chain(older)))
    }

    /// Asks a person, and waits for the answer until the attempt is cancelled. The question that was open when the attempt
    /// before was interrupted keeps its id, and an answer that came meanwhile is given at once. It is known by its text.
    ///
    /// # Errors
    /// The attempt was cancelled, or nobody has answered in time and there is no default.
    pub async fn ask(&mut self, mut prompt: Prompt) -> Result<Reply, AgentError> {
        self.redactor.prompt(&mut prompt);
        let cut = self
            .interrupted
            .as_mut()
            .filter(|cut| cut.asked.as_ref().is_some_and(|asked| asked.prompt == prompt.prompt));
        if let Some(cut) = cut {
            let asked = cut.asked.take();
            if let Some(reply) = cut.reply.take() {
                return Ok(reply);
            }
            prompt.prompt_id = asked.map_or(prompt.prompt_id, |asked| asked.prompt_id);
        }
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(self.aborted()),
            reply = self.hub.ask(prompt) => {
                reply.map_err(|_| AgentError::new(ErrorCode::Timeout, HumanQuestion::UNANSWERED))
            }
        }
    }

    /// The variables by which a program of this attempt joins the session's trace, unless tracing is off.
    pub fn trace_variables(&self) -> Option<[(&'static str, String); 2]> {
        trace_variables(&self.host.env, self.hub.session_id(), &self.path, self.attempt)
    }

    /// The host, whose programs know the session and join its trace.
    pub(crate) fn traced_host(&self) -> Arc<Host> {
        let with = |env: Environment, (name, value)| env.with(name, value);
        let own = self.host.env.clone().with(SESSION_VARIABLE, self.hub.session_id().as_str());
        let env = self.trace_variables().into_iter().flatten().fold(own, with);
        Arc::new(Host { env, ..(*self.host).clone() })
    }

    /// A call of this node, as it is recorded.
    pub(crate) fn node_call<'a>(&'a self, kind: &'a str, input: Value) -> NodeCall<'a> {
        let artifacts = self.host.env.get("INSPAN_ARTIFACTS");
        let session = self.hub.session_id().as_str();
        NodeCall { kind, node: self.node.as_str(), place: &self.path, input, artifacts, session }
    }

    /// The result of a call that the node makes outside: from a recording, or by making it, which is then recorded if
    /// calls are, in the form that `recorded` gives. The future is not polled if a recording answers. What was done stays
    /// done if it cannot be recorded: that is a warning in the log.
    pub(crate) async fn call<T: Serialize + DeserializeOwned>(
        &self,
        call: NodeCall<'_>,
        make: impl Future<Output = Result<T, AgentError>>,
        recorded: impl FnOnce(&T) -> Result<Value, AgentError>,
    ) -> Result<(T, CallSource), AgentError> {
        let read = |ended: Result<Value, AgentError>| {
            serde_json::from_value(ended?).map_err(|error| {
                let message = format!("the recording of a call is damaged: {error}");
                AgentError::new(ErrorCode::ConfigInvalid, message)
            })
        };
        let ended = match self.calls.begin(call, &self.redactor, &self.cancel).await {
            NodeAnswer::Recorded(ended) => read(ended).map(|ended| (ended, CallSource::Recording)),
            NodeAnswer::Answered(ended) => read(ended).map(|ended| (ended, CallSource::Test)),
            NodeAnswer::Make(tape) => {
                let ended = make.await;
                let mut formless = None;
                let saved = tape.save_with(|| {
                    let ended = ended.as_ref().map_err(Clone::clone)?;
                    recorded(ended).inspect_err(|error| formless = Some(error.message.clone()))
                });
                if let Some(why) = saved.err().map(|error| error.to_string()).or(formless) {
                    let message = format!("a call of node `{}` is not recorded: {why}", self.node);
                    self.warn(message);
                }
                ended.map(|ended| (ended, CallSource::Now))
            }
        };
        match ended {
            Err(error) if error.code == ErrorCode::Aborted => Err(self.aborted()),
            ended => ended.map_err(|error| self.redactor.error(error)),
        }
    }

    /// Warns that the text of a stream or a body has lost bytes, and what keeps them.
    pub(crate) fn warn_of_lost_bytes(&self, what: &str, instead: &str) {
        self.warn(format!("{what} is not all UTF-8 text: other bytes are replaced by U+FFFD. {instead}"));
    }

    fn warn(&self, message: String) {
        self.hub.emit(Event::Log { level: LogLevel::Warn, message, fields: Map::new() });
    }

    /// What a node gives back that ended because it was cancelled.
    pub fn aborted(&self) -> AgentError {
        AgentError::new(ErrorCode::Aborted, format!("node `{}` was cancelled", self.node))
    }
}

/// The first event of a session's log that is wanted and comes after a task began at or after that time.
async fn first_after_start(
    store: &dyn RunStore,
    session: &SessionId,
    task: &NodePath,
    since: Timestamp,
    mut is_wanted: impl FnMut(&Envelope) -> bool,
) -> Result<Option<Arc<Envelope>>, AgentError> {
    let (mut from, mut has_begun) = (1, false);
    let begins = |event: &Envelope| {
        event.timestamp >= since && matches!(&event.event, Event::TaskStart { path, .. } if path == task)
    };
    loop {
        let page = store.read_next(session, from, LOG_PAGE).await.map_err(|error| {
            AgentError::new(ErrorCode::NodeFailed, format!("failed to read the session's log: {error}"))
        })?;
        let Some(last) = page.last() else { return Ok(None) };
        from = last.seq + 1;
        for event in page {
            if has_begun && is_wanted(&event) {
                return Ok(Some(event));
            }
            has_begun |= begins(&event);
        }
    }
}

/// Whether an event shows that the vendor of an agent got the prompt. A turn that was cut short ends without that.
fn is_answer(event: &Event) -> bool {
    match event {
        Event::AgentText { .. }
        | Event::AgentThinking { .. }
        | Event::AgentToolStart { .. }
        | Event::AgentToolComplete { .. } => true,
        Event::AgentSpent { usage, .. } | Event::AgentUsage { usage, .. } => usage.total() > 0,
        Event::AgentComplete { stop_reason, .. } => *stop_reason != StopReason::Aborted,
        _ => false,
    }
}

/// The error of a node that needs a variable of the flow's `secrets`.
pub(crate) fn secret_not_set(name: &str) -> AgentError {
    let message = format!("the environment variable `{name}`, one of the flow's `secrets`, is not set");
    AgentError::new(ErrorCode::ConfigMissing, message)
}

/// Where the result of a call is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallSource {
    /// The call was made.
    Now,
    /// A recording answered.
    Recording,
    /// A test answered: what the call leaves outside is not there.
    Test,
}

/// Node types by name: what is known of each, and how those that do more than compute are run.
#[derive(Clone, Default)]
pub struct NodeRegistry {
    catalog: NodeCatalog,
    types: BTreeMap<Arc<str>, Arc<dyn DynNodeType>>,
}

impl NodeRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a type under its own name; it replaces one of the same name.
    pub fn register(&mut self, node_type: impl NodeType) -> &mut Self {
        let node_type = Arc::new(node_type);
        self.catalog.register_shared(node_type.clone());
        self.types.insert(node_type.name(), node_type);
        self
    }

    /// Says what runs a type that the catalogue describes.
    pub(crate) fn run_by(&mut self, name: Arc<str>, runs: impl DynNodeType) -> &mut Self {
        self.types.insert(name, Arc::new(runs));
        self
    }

    /// The same types, each that is run wrapped in another. What the compiler knows about them does not
    /// change.
    #[must_use]
    pub fn map(&self, wrap: impl Fn(&Arc<str>, Arc<dyn DynNodeType>) -> Arc<dyn DynNodeType>) -> Self {
        let types = self.types.iter().map(|(name, runs)| (name.clone(), wrap(name, runs.clone()))).collect();
        Self { catalog: self.catalog.clone(), types }
    }

    /// What runs the type of this name; `None` if it only computes.
    pub fn runner(&self, name: &str) -> Option<&Arc<dyn DynNodeType>> {
        self.types.get(name)
    }
}

impl From<NodeCatalog> for NodeRegistry {
    fn from(catalog: NodeCatalog) -> Self {
        Self { catalog, types: BTreeMap::new() }
    }
}

impl Deref for NodeRegistry {
    type Target = NodeCatalog;

    fn deref(&self) -> &NodeCatalog {
        &self.catalog
    }
}
