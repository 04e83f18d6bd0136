//! What programs do with stored sessions: find, read, follow, command, start, resume and fork them.
//!
//! Each interface for other programs (the HTTP API, an MCP server, an editor) has one [`Sessions`]. It has no
//! state: reads come from the store, and requests go to the store as commands, or to the [`Launcher`], which starts
//! processes.

mod asking;
mod commands;
mod error;
mod find;
mod follow;
mod graph;
mod keyed;
mod launcher;
mod output;
mod question;
mod target;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc};

use follow::ReadLimit;
use inspan_engine::Clock;
use inspan_flow::{
    About, Explanation, FACTS, Graph, Liveness, NodeRegistry, RunStore, Select, SessionEntry, SessionRecord,
    explain_taking_over, lineage,
};
use inspan_flow_test::{ComparedSession, Comparison, Trace};
use inspan_protocol::{Envelope, Event, Prompt, SessionId};
use inspan_view::{Commands, DisplayStatus};
use keyed::KeyLocks;

/// Written above `impl Launcher for …`.
pub use async_trait::async_trait;

pub use asking::{UNREAD, answer_command, question_line, question_schema, question_text, read_answer};
pub use commands::{Accepted, Receipt, SessionCommand};
pub use error::{SessionError, SessionErrorCode, meant};
pub use find::{Counted, find, history, of_flow};
pub use follow::{Followed, Follower, event_filter};
use graph::check_names_frames;
pub use graph::{foreign_types, graph, node_path};
pub use launcher::{
    ForkOptions, ForkPoint, Launcher, NoLauncher, RegisteredFlow, ResumeOptions, ResumeTo, StartOptions,
};
pub use output::SessionOutput;
pub use question::{OpenQuestions, Question, is_late, questions};
pub use target::{CommandResult, LOOK, PersonAnswer, RESPONSE, SessionTarget, is_id};

/// Does to its end what is begun, also if the caller leaves meanwhile: an answer that is stored must be acted on, too.
async fn finish<T: Send + 'static>(
    work: impl Future<Output = Result<T, SessionError>> + Send + 'static,
) -> Result<T, SessionError> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(SessionError::new(SessionErrorCode::Failed, "the program ends")),
        },
    }
}

/// The sessions of a store, and the way to start more.
#[derive(Clone)]
pub struct Sessions {
    store: Arc<dyn RunStore>,
    nodes: NodeRegistry,
    clock: Arc<dyn Clock>,
    launcher: Arc<dyn Launcher>,
    artifacts: Option<PathBuf>,
    commands: Commands,
    keys: Arc<KeyLocks>,
    reads: Arc<ReadLimit>,
}

/// A session with what is needed to fold its events.
#[derive(Clone)]
pub struct OpenSession {
    /// Its list entry.
    pub entry: SessionEntry,
    /// What was stored when it began.
    pub record: SessionRecord,
    /// Its flow as it was then.
    pub graph: Arc<Graph>,
}

impl Sessions {
    /// The sessions of a store. Flows are compiled with these node types. Without a launcher nothing can be started.
    pub fn new(store: Arc<dyn RunStore>, nodes: NodeRegistry, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            nodes,
            clock,
            launcher: Arc::new(NoLauncher),
            artifacts: None,
            commands: Commands::default(),
            keys: Arc::default(),
            reads: Arc::default(),
        }
    }

    /// With the way to start, resume and fork sessions.
    #[must_use]
    pub fn with_launcher(mut self, launcher: Arc<dyn Launcher>) -> Self {
        self.launcher = launcher;
        self
    }

    /// With the folder that holds a folder of what its nodes leave for each session.
    #[must_use]
    pub fn with_artifacts(mut self, folder: PathBuf) -> Self {
        self.artifacts = Some(folder);
        self
    }

    /// With the commands that people are offered, which mean the sessions of this store.
    #[must_use]
    pub fn with_commands(mut self, commands: Commands) -> Self {
        self.commands = commands;
        self
    }

    /// The commands that people are offered.
    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    /// The folder of what the nodes of a session left, if there is something in it.
    pub fn artifacts(&self, session: &SessionId) -> Option<PathBuf> {
        // An id that is not a valid file name has no folder.
        let name = SessionId::checked(session.as_str()).ok()?;
        let folder = self.artifacts.as_ref()?.join(name.as_str());
        std::fs::read_dir(&folder).ok()?.next().is_some().then_some(folder)
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn RunStore> {
        &self.store
    }

    /// The node types that flows are compiled with.
    pub fn nodes(&self) -> &NodeRegistry {
        &self.nodes
    }

    /// The clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// What starts, resumes and forks sessions, and knows the flows of the registered folders.
    pub fn launcher(&self) -> &dyn Launcher {
        &*self.launcher
    }

    /// The list entries of the newest sessions, at most so many.
    pub async fn list(&self, limit: usize) -> Result<Vec<SessionEntry>, SessionError> {
        Ok(self.store.entries("", limit).await?)
    }

    /// The session with this id, or the only one whose id has this prefix.
    pub async fn find(&self, prefix: &str) -> Result<SessionEntry, SessionError> {
        if prefix.starts_with('@') {
            // It means a session that was started in a folder; a client of an interface has no such folder.
            let message =
                format!("`{prefix}` is for the command line; elsewhere a session is named by its ID");
            return Err(SessionError::new(SessionErrorCode::UnknownSession, message).with_hint(
                "`GET /api/v1/sessions`, or the tool `sessions` of `inspan mcp`, lists them, newest first",
            ));
        }
        find(&*self.store, prefix, None).await
    }

    /// The newest sessions of a flow, at most so many: of its name, and started from its file.
    pub async fn of_flow(
        &self,
        graph: &Graph,
        counted: Counted,
        most: usize,
    ) -> Result<Vec<(SessionEntry, SessionRecord)>, SessionError> {
        of_flow(&*self.store, graph, counted, most).await
    }

    /// The list entry of a session by its whole id.
    pub async fn entry(&self, session: &SessionId) -> Result<SessionEntry, SessionError> {
        Ok(self.store.entry(session).await?)
    }

    /// All that a session has asked, the oldest first, whether it is still open or not.
    pub async fn asked(&self, session: &SessionId) -> Result<Vec<Prompt>, SessionError> {
        let log = self.store.read(session, 1, Select::Names(&["session:prompt"])).await?;
        let asked = log.iter().filter_map(|envelope| match &envelope.event {
            Event::SessionPrompt(prompt) => Some(prompt.clone()),
            _ => None,
        });
        Ok(asked.collect())
    }

    /// What was stored when the session began.
    pub async fn record(&self, session: &SessionId) -> Result<SessionRecord, SessionError> {
        Ok(self.store.record(session).await?)
    }

    /// The flow that a session runs, as it was when the session began.
    pub fn graph(&self, record: &SessionRecord) -> Result<Arc<Graph>, SessionError> {
        graph(record, &self.nodes)
    }

    /// The entry, the record and the flow of a session.
    pub async fn open(&self, session: &SessionId) -> Result<OpenSession, SessionError> {
        let entry = self.entry(session).await?;
        let record = self.record(session).await?;
        let graph = self.graph(&record)?;
        Ok(OpenSession { entry, record, graph })
    }

    /// The session's next events from `from` on, at most so many; none if there are no more.
    pub async fn events(
        &self,
        session: &SessionId,
        from: u64,
        most: usize,
    ) -> Result<Vec<Arc<Envelope>>, SessionError> {
        Ok(self.store.read_next(session, from, most).await?)
    }

    /// As [`Sessions::events`], without those of these names.
    pub async fn events_except(
        &self,
        session: &SessionId,
        from: u64,
        most: usize,
        names: &'static [&'static str],
    ) -> Result<Vec<Arc<Envelope>>, SessionError> {
        Ok(self.store.read_some(session, from, Select::Except(names), most).await?)
    }

    /// Follows the log of a session from `from` on. Each follower reads the store itself, a short page at its turn, so a slow one slows
    /// nobody and misses nothing, and many keep nobody from reading.
    pub fn follow(&self, session: &SessionId, from: u64) -> Follower {
        Follower::new(Arc::clone(&self.store), Arc::clone(&self.reads), session.clone(), from)
    }

    /// The questions that are not answered, of all sessions or of one. The one whose time is up first comes
    /// first; those without a deadline follow, the newest session first.
    pub async fn inbox(&self, session: Option<&SessionId>) -> Result<Vec<Question>, SessionError> {
        let entries = match session {
            Some(session) => vec![self.entry(session).await?],
            None => self.store.entries("", usize::MAX).await?,
        };
        Ok(self.questions(&entries))
    }

    /// The questions of these sessions that are not answered, in the order of [`inbox`](Self::inbox).
    pub fn questions(&self, entries: &[SessionEntry]) -> Vec<Question> {
        questions(entries, self.clock.now())
    }

    /// Why a session or one of its nodes is as it is.
    pub async fn why(
        &self,
        session: &SessionId,
        node: Option<&str>,
        at: Option<u64>,
    ) -> Result<Explanation, SessionError> {
        let OpenSession { record, graph, .. } = self.open(session).await?;
        let about = match node {
            None => About::Session,
            Some(node) => {
                let path = node_path(&graph, node)?;
                check_names_frames(&graph, &path)?;
                About::Node(path)
            }
        };
        let log = self.store.read(session, record.first_seq(), Select::Names(FACTS)).await?;
        let until = log.partition_point(|envelope| at.is_none_or(|at| envelope.seq <= at));
        // A part of the log says how it was then.
        let is_lost = at.is_none() && self.entry(session).await?.is_lost();
        // Of a session that is not in the store any more it is not known what could be reused.
        let origin = lineage(&*self.store, &self.nodes, &record, &graph).await.ok().flatten();
        Ok(explain_taking_over(&graph, &record, origin, &log[..until], about, is_lost))
    }

    /// How two sessions differ.
    pub async fn compare(&self, one: &SessionId, other: &SessionId) -> Result<Comparison, SessionError> {
        let side = async |session: &SessionId| {
            let record = self.record(session).await?;
            let mut trace = Trace::of(&self.store.read(session, record.first_seq(), Select::All).await?);
            // Read after the log: what it says is at least as new.
            let entry = self.entry(session).await?;
            let status = DisplayStatus::of(&entry);
            if status.has_lost_process() {
                trace.lose_process();
            }
            Ok::<_, SessionError>((entry, status, trace))
        };
        let sides = [side(one).await?, side(other).await?];
        Ok(Comparison::of(sides.each_ref().map(|(entry, status, trace)| ComparedSession {
            id: entry.session.as_str(),
            flow: &entry.flow,
            state: status.word(),
            trace,
        })))
    }

    /// A session as the target of commands.
    pub async fn target(&self, session: &SessionId) -> Result<SessionTarget, SessionError> {
        let entry = self.entry(session).await?;
        Ok(SessionTarget::new(Arc::clone(&self.store), Arc::clone(&self.clock), entry))
    }
}

/// Whether a process runs the session.
pub fn is_driven(entry: &SessionEntry) -> bool {
    entry.owner.is_some() && entry.liveness != Liveness::Gone
}
