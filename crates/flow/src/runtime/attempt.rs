//! The executor of attempts, for every driver: it runs a node to its end, whatever the node does,
//! and reports its progress to the [`AttemptBackend`] on which it runs.

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, pending, ready},
};
use inspan_engine::{Filter, Hub, NodeCalls, Observer, ProviderRegistry, create_private_dir_all};
use inspan_flow_core::{AttemptDone, AttemptSpec, CONTINUE, Conversation, Interrupted, Run, is_fact};
use inspan_protocol::{
    AgentError, Command, Envelope, Environment, ErrorCode, ErrorKind, Event, Host, MessageMode, NodeId,
    Prompt, Redactor, Reply, SessionId, Timestamp,
};
use inspan_store::{MOST_EVENT_BYTES, RunStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::node::{NodeContext, NodeRegistry};

/// How long a cancelled node may take to end; then it is dropped. Longer than a vendor's program takes to be ended.
const CANCEL_GRACE: Duration = Duration::from_secs(15);
/// The most bytes that an output may take as JSON: what a store takes, with room for what surrounds it.
const MOST_OUTPUT_BYTES: usize = MOST_EVENT_BYTES / 2;

/// What is the same for all attempts that a process runs.
pub struct AttemptContext {
    pub(super) host: Arc<Host>,
    /// The environment for programs whose flow names no secrets.
    program_env: Environment,
    /// The variables that programs do not see unless their flow names them.
    hidden: BTreeSet<String>,
    pub(super) redactor: Redactor,
    pub(super) calls: NodeCalls,
    pub(super) artifacts: Option<Artifacts>,
}

/// A session's folder for what its nodes leave.
#[derive(Clone, Debug)]
pub struct Artifacts {
    pub(super) folder: PathBuf,
    /// Its path as the host named it.
    named: PathBuf,
    /// Whether it is made on disk, or is only a name.
    pub(super) is_made: bool,
}

impl Artifacts {
    /// The folder of all sessions.
    pub(super) fn all(folder: PathBuf, is_made: bool) -> Self {
        Self { named: folder.clone(), folder, is_made }
    }

    /// That of a session, in the folder of all.
    pub(super) fn of(self, session: &SessionId) -> Self {
        // Git and other programs report where a folder is, and not how they were led there.
        let all = if self.is_made { physical(&self.folder) } else { self.folder };
        Self { folder: all.join(session.as_str()), named: self.named.join(session.as_str()), ..self }
    }
}

/// A path without links and `..`, as far as it leads to something.
fn physical(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|there| Some((there.canonicalize().ok()?, there)));
    let Some((real, there)) = found else { return path.to_owned() };
    // To join an empty path would add a slash.
    real.components().chain(path.strip_prefix(there).unwrap_or(path).components()).collect()
}

impl AttemptContext {
    /// The context that a host gives. Programs do not see the `hidden` variables, unless the `secrets` of their own flow
    /// name them; the values of all `secrets` are secrets. `artifacts` is the session's folder for what its nodes leave.
    pub fn new(
        host: Host,
        hidden: &BTreeSet<String>,
        secrets: &[String],
        calls: NodeCalls,
        artifacts: Option<Artifacts>,
    ) -> Self {
        let env = host.env.mark(secrets);
        let env = match &artifacts {
            Some(Artifacts { folder, .. }) => env.with("INSPAN_ARTIFACTS", folder.to_string_lossy()),
            None => env.without(|name| name == "INSPAN_ARTIFACTS"),
        };
        Self {
            program_env: env.without(|name| hidden.contains(name)),
            hidden: hidden.clone(),
            redactor: Redactor::new(&env),
            calls,
            artifacts,
            host: Arc::new(Host { env, ..host }),
        }
    }

    /// The session's folder for what its nodes leave.
    pub fn artifacts(&self) -> Option<&Path> {
        self.artifacts.as_ref().map(|artifacts| artifacts.folder.as_path())
    }

    /// The run as it goes on here: its templates see the session's folder if there is one, and a replay waits for no limit.
    pub fn adapted(&self, run: Run) -> Run {
        let run = if let NodeCalls::Replay(_) = self.calls { run.replayed() } else { run };
        match &self.artifacts {
            Some(artifacts) => run.with_artifacts(&artifacts.folder, &artifacts.named),
            None => run,
        }
    }

    /// The environment for programs that the author of a flow with these `secrets` names.
    fn program_env(&self, secrets: &[String]) -> Environment {
        if secrets.is_empty() {
            return self.program_env.clone();
        }
        self.host
            .env
            .without(|name| self.hidden.contains(name) && !secrets.iter().any(|secret| secret == name))
    }

    /// The first of these environment variables that is not set here. Where no program is run none is needed.
    pub fn lacks<'s>(&self, secrets: &'s [String]) -> Option<&'s str> {
        let runs = matches!(self.calls, NodeCalls::Make | NodeCalls::Record(_));
        secrets.iter().map(String::as_str).find(|name| runs && self.host.env.get(name).is_none())
    }

    /// Why the agent of an attempt cannot start here, as far as that is known beforehand. A node may name a program of its own,
    /// which only its run can check. `providers` are those that make calls.
    pub fn lacks_agent(&self, spec: &AttemptSpec, providers: &ProviderRegistry) -> Option<AgentError> {
        let provider = match spec.node_type.strip_suffix(".agent") {
            Some(provider) => provider,
            None if &*spec.node_type == "agent.run" => spec.input.get("provider")?.as_str()?,
            None => return None,
        };
        let provider = providers.get(provider)?;
        let names_its_own = |option| spec.input["options"].get(option).is_some();
        if provider.setup().program_option().is_some_and(names_its_own) {
            return None;
        }
        provider.check_setup(&self.host.env).err()
    }

    /// Knows the secrets of the environment.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }
}

/// An attempt whose events, questions and messages all go through one hub.
pub struct LocalBackend {
    /// The hub.
    pub hub: Hub,
    /// What is the same for all attempts.
    pub surroundings: Arc<AttemptContext>,
    /// Ends the attempt.
    pub cancel: CancellationToken,
    /// Where the session's log is stored, if it is.
    pub log: Option<(Arc<dyn RunStore>, SessionId)>,
    /// Whether what an agent says is in that log within milliseconds, also if the process dies.
    pub is_log_current: bool,
}

impl AttemptBackend for LocalBackend {
    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn surroundings(&self) -> &AttemptContext {
        &self.surroundings
    }

    fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    fn is_log_current(&self) -> bool {
        self.is_log_current
    }

    fn log(&self) -> Option<(&dyn RunStore, &SessionId)> {
        self.log.as_ref().map(|(store, session)| (&**store, session))
    }
}

/// A message to the agent of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mail {
    /// The message.
    pub content: String,
    /// When it is delivered.
    pub mode: MessageMode,
}

/// Where one attempt runs: where its progress, its live events and its output go, where its messages come from, and
/// what ends it. In the process that drives the session all of it goes through the session's hub; for a process that
/// only runs attempts, the methods with a default take it elsewhere.
pub trait AttemptBackend: Send + Sync {
    /// The hub of the attempt's events, prompts and messages: the session's own where it is driven in this process,
    /// else one for this attempt, whose session has been started.
    fn hub(&self) -> &Hub;

    /// What is the same for all attempts of this process.
    fn surroundings(&self) -> &AttemptContext;

    /// Cancelled when the attempt is to end, also because this process may not run it any longer.
    fn cancel(&self) -> &CancellationToken;

    /// Whether the log has what an agent says within milliseconds. If not, a log without it says nothing about the agent.
    fn is_log_current(&self) -> bool {
        false
    }

    /// The log of the session, if it is stored: an interrupted attempt reads in it what came before it began again.
    fn log(&self) -> Option<(&dyn RunStore, &SessionId)> {
        None
    }

    /// Whether [`AttemptBackend::progress`] and [`AttemptBackend::live`] are called. Not needed where the hub's events reach the log.
    fn follows(&self) -> bool {
        false
    }

    /// Takes a fact of the attempt, and what another process needs to continue once it has happened. Called in the
    /// order of the facts, and must not wait. A conversation that was just named is to be stored at once.
    fn progress(&self, fact: &Arc<Envelope>, progress: &Progress) {
        let _unused = (fact, progress);
    }

    /// Takes an event that is no fact; it may be lost. Must not wait.
    fn live(&self, event: &Arc<Envelope>) {
        let _unused = event;
    }

    /// The next message for the attempt's agent, for a hub that does not get the session's commands.
    fn mail(&self) -> BoxFuture<'_, Mail> {
        pending().boxed()
    }

    /// Takes the output before it is reported: a large one may be stored elsewhere and a reference take its place.
    fn output(&self, output: Value) -> BoxFuture<'_, Result<Value, AgentError>> {
        ready(Ok(output)).boxed()
    }
}

/// The progress of an attempt: what another process needs to continue it. The default is that of an attempt that
/// has not begun.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The conversation of its agent, once the vendor has named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
    /// The question to a person that it asked last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Prompt>,
    /// The answer to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Reply>,
    /// How many agents' runs it has begun, and how many questions it has asked: later ones get other ids.
    pub runs: u64,
    /// See `runs`.
    pub prompts: u64,
}

impl Progress {
    /// Takes the next event of the attempt.
    pub fn apply(&mut self, envelope: &Envelope) {
        self.since.get_or_insert(envelope.timestamp);
        match &envelope.event {
            Event::AgentStart { .. } => self.runs += 1,
            Event::AgentSession { session_id, .. } => {
                Conversation::name(&mut self.conversation, session_id, None);
            }
            Event::AgentUsage { turn_id, .. } => {
                if let Some(known) = &mut self.conversation {
                    known.end_turn(turn_id.as_ref());
                }
            }
            Event::SessionPrompt(prompt) => {
                self.prompts += 1;
                (self.asked, self.reply) = (Some(prompt.clone()), None);
            }
            Event::SessionReply { prompt_id, content, choice, .. }
                if self.asked.as_ref().is_some_and(|asked| asked.prompt_id == *prompt_id) =>
            {
                self.reply = Some(Reply { content: content.clone(), choice: choice.clone() });
            }
            _ => {}
        }
    }

    /// The attempt as it is run on: its agent continues in the conversation that it named, and a question that was
    /// answered is not asked again.
    fn continued(&self, spec: AttemptSpec) -> AttemptSpec {
        if *self == Self::default() {
            return spec;
        }
        let before = spec.interrupted.as_deref();
        let message = self.conversation.is_some().then(|| CONTINUE.to_owned());
        let interrupted = Interrupted {
            since: before.and_then(|before| before.since).or(self.since),
            message: message.or_else(|| before.and_then(|before| before.message.clone())),
            asked: self.asked.clone().or_else(|| before.and_then(|before| before.asked.clone())),
            reply: self.reply.clone().or_else(|| before.and_then(|before| before.reply.clone())),
            before: before.and_then(|before| before.before.clone()),
            older: before.map(|before| before.older.clone()).unwrap_or_default(),
        };
        let mut conversation = self.conversation.clone();
        if let (Some(own), Some(known)) = (&mut conversation, &spec.conversation)
            && own.session_id == known.session_id
        {
            own.turns += known.turns;
        }
        AttemptSpec {
            conversation: conversation.or(spec.conversation),
            interrupted: Some(Box::new(interrupted)),
            ..spec
        }
    }
}

/// Runs one attempt to its end, which comes soon after a cancellation whatever the node does. `progress` is how far
/// another process came with the same attempt before it was lost.
pub async fn run_attempt(
    nodes: Arc<NodeRegistry>,
    spec: AttemptSpec,
    progress: Progress,
    backend: Arc<dyn AttemptBackend>,
) -> AttemptDone {
    let (node, attempt) = (spec.node, spec.attempt);
    let end = run(&nodes, progress.continued(spec), progress, &backend).await;
    let end = match end {
        Ok(output) => backend.output(output).await,
        error => error,
    };
    AttemptDone { node, attempt, end: end.into() }
}

async fn run(
    nodes: &NodeRegistry,
    spec: AttemptSpec,
    progress: Progress,
    backend: &Arc<dyn AttemptBackend>,
) -> Result<Value, AgentError> {
    let id = spec.node_id.clone();
    let Some(node_type) = nodes.runner(&spec.node_type).cloned() else {
        let message = format!("node `{id}` has the type `{}`, and nothing here runs it", spec.node_type);
        return Err(AgentError::new(ErrorCode::ConfigInvalid, message));
    };
    let (surroundings, cancel) = (backend.surroundings(), backend.cancel().clone());
    let hub = backend.hub().with_attempt(spec.path.clone(), spec.attempt, [progress.runs, progress.prompts]);
    let _following = backend.follows().then(|| follow(&hub, &spec, progress, backend));
    if let Some(Artifacts { folder, is_made: true, .. }) = &surroundings.artifacts {
        create_private_dir_all(folder).map_err(|error| {
            let message =
                format!("the folder for the files of nodes cannot be made: {}: {error}", folder.display());
            AgentError::new(ErrorCode::ConfigInvalid, message).with_kind(ErrorKind::ArtifactsFolder)
        })?;
    }
    let context = NodeContext {
        node: spec.node_id,
        path: spec.path,
        attempt: spec.attempt,
        conversation: spec.conversation,
        branches: spec.branches,
        interrupted: spec.interrupted,
        mail: spec.mail,
        host: surroundings.host.clone(),
        program_env: surroundings.program_env(&spec.secrets),
        secrets: spec.secrets,
        redactor: surroundings.redactor.clone(),
        calls: surroundings.calls.clone(),
        cancel: cancel.clone(),
        hub: hub.redacting(&surroundings.redactor),
        backend: backend.clone(),
    };
    let input = spec.input;
    let work = AssertUnwindSafe(async move { node_type.run(context, input).await }).catch_unwind();
    let too_late = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    let output = tokio::select! {
        biased;
        end = work => end.unwrap_or_else(|_| {
            Err(AgentError::new(ErrorCode::NodeFailed, format!("node `{id}` panicked")))
        })?,
        () = too_late => {
            let message = format!("node `{id}` did not end within {CANCEL_GRACE:?} of being cancelled");
            return Err(AgentError::new(ErrorCode::Aborted, message));
        }
        never = deliver(&hub, &id, backend) => match never {},
    };
    match length(&output) {
        bytes if bytes > MOST_OUTPUT_BYTES => {
            let message =
                format!("the output of node `{id}` takes {bytes} bytes, and may take {MOST_OUTPUT_BYTES}");
            Err(AgentError::new(ErrorCode::OutputInvalid, message))
        }
        _ => Ok(output),
    }
}

/// Gives the backend what happens in the attempt.
fn follow(hub: &Hub, spec: &AttemptSpec, progress: Progress, backend: &Arc<dyn AttemptBackend>) -> Observer {
    let (progress, backend) = (Mutex::new(progress), backend.clone());
    let take = move |envelope: &Arc<Envelope>| {
        if !is_fact(&envelope.event) {
            return backend.live(envelope);
        }
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.apply(envelope);
        backend.progress(envelope, &progress);
    };
    hub.observe(Filter::all().of_task(spec.path.clone()), Arc::new(take))
}

/// Gives the attempt's agent its messages, each once a run of it takes any.
async fn deliver(hub: &Hub, node: &NodeId, backend: &Arc<dyn AttemptBackend>) -> std::convert::Infallible {
    loop {
        let Mail { content, mode } = backend.mail().await;
        let mut begun = hub.subscribe(Filter::name("agent:start").of_node(node.clone()));
        let message = Command::SendTo { node: node.clone(), content, mode };
        while !hub.has_taker(&message) {
            if begun.next().await.is_none() {
                pending::<()>().await;
            }
        }
        // A run that has just ended leaves a refusal in the log.
        let _refused = hub.command(message);
    }
}

/// How many bytes a value takes as JSON.
fn length(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}
