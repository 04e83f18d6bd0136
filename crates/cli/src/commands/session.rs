//! A session that this process runs: its console, its signals, its end.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use inspan_engine::{DynChannel, Hub, IdSource, NodeCalls, ProviderRegistry, RandomIds, SystemClock};
use inspan_flow::{
    FACTS, FlowRunResult, FlowRunner, FlowRunnerBuilder, Graph, NodeRegistry, Parent, ParentKind, Resume,
    Reusable, RunError, RunStore, Select, StoreError, WhenWaiting,
};
use inspan_notify::PageAddress;
use inspan_protocol::{Command, Envelope, PermissionPolicy, SessionId};
use inspan_sessions::Sessions;
use inspan_view::safe::clean;
use serde_json::{Map, Value};
use tempfile::TempDir;

use super::notify::{LAST, LAST_IN_BACKGROUND, Notices, Notifications, marked};
use super::serve::Server;
use crate::{
    args::RunModeArgs,
    artifacts::{self, Unstored},
    engine::Engine,
    exit::Exit,
    failure::Failure,
    invocation::{Invocation, OutputForm},
    settings::Settings,
    store,
    terminal::{self, Interactivity},
};
use events::Events;
use host::SessionConsole;
#[cfg(feature = "temporal")]
pub(crate) use hosted::SessionsHere;
use remote::Remote;
pub(super) use settings::{SessionSettings, providers};
use signals::SessionEnd;
pub(super) use signals::Signals;
use traces::Traces;

pub(crate) mod detach;
mod events;
mod host;
#[cfg(feature = "temporal")]
mod hosted;
mod remote;
mod report;
mod settings;
mod signals;
mod traces;

/// How long the rest of a session may take to end, once the wait for it has ended.
pub(super) const LEFTOVERS: Duration = Duration::from_millis(500);

/// How a session is run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunMode {
    /// Where it waits for a person or a limit.
    pub(super) wait: WaitMode,
    /// Whether people may be asked at this terminal.
    pub(super) ask: Ask,
    /// Where events are written to.
    pub(super) events: Option<PathBuf>,
    /// Whether it has a page for as long as it runs.
    pub(super) web: bool,
}

impl RunMode {
    /// As the arguments of a command say; `ask` counts unless they forbid to ask.
    pub(super) fn of(args: &RunModeArgs, ask: Ask) -> Self {
        let wait = match (args.detached, args.no_wait) {
            _ if args.detach => WaitMode::Nowhere,
            (true, _) => WaitMode::Background,
            (false, true) => WaitMode::Leave,
            (false, false) => WaitMode::Here,
        };
        let ask = if args.no_input { Ask::Never } else { ask };
        Self { wait, ask, events: args.events.clone(), web: false }
    }
}

/// What is done where the session can only wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// It waits here, if a person is here.
    #[default]
    Here,
    /// The process exits; the session can be resumed later.
    Leave,
    /// It is in the background: it waits only where it knows until when.
    Background,
    /// Nowhere: other machines run it, and this process only starts it.
    Nowhere,
}

/// Whether people may be asked at this terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ask {
    #[default]
    Terminal,
    /// Yes; without a terminal a question stays open, since people answer this session from any shell.
    TerminalOrShells,
    Never,
}

/// What a session begins with.
pub(super) enum Begin {
    /// A new session.
    New { id: Option<SessionId>, input: Map<String, Value>, reusing: Option<(Arc<Reusable>, Parent)> },
    /// A stored one.
    Rest { session: SessionId, resume: Resume, reusing: Option<(Arc<Reusable>, Parent)> },
}

impl Begin {
    /// Its id, which is fixed by now.
    fn session(&mut self) -> &SessionId {
        match self {
            Self::New { id, .. } => id.get_or_insert_with(|| RandomIds::new().session_id()),
            Self::Rest { session, .. } => session,
        }
    }

    /// The session that this one is made of.
    fn parent(&self) -> Option<Parent> {
        match self {
            Self::New { reusing, .. } | Self::Rest { reusing, .. } => {
                reusing.as_ref().map(|(_, parent)| parent.clone())
            }
        }
    }
}

/// One session, ready to begin.
pub(super) struct Session {
    pub(super) graph: Arc<Graph>,
    pub(super) nodes: NodeRegistry,
    pub(super) providers: ProviderRegistry,
    /// Whether calls are made, recorded or answered from recordings.
    pub(super) calls: NodeCalls,
    pub(super) store: Option<Arc<dyn RunStore>>,
    pub(super) settings: SessionSettings,
    /// The settings that hold where the flow is.
    pub(super) defaults: Settings,
    pub(super) begin: Begin,
    pub(super) mode: RunMode,
}

impl Session {
    /// Runs the session until it ends, pauses or waits.
    pub(super) fn watch(mut self, invocation: &Invocation) -> Result<Exit, Failure> {
        let mut invocation = invocation.clone();
        if self.mode.ask == Ask::Never || self.mode.wait == WaitMode::Background {
            invocation.terminal.interactivity = Interactivity::Unattended;
        }
        let events = self.mode.events.as_deref().map(Events::open).transpose()?;
        let runtime = runtime()?;
        // A session is a task of the runtime: driven from outside, every step of it would cost a change of threads.
        let exit = runtime.block_on(async {
            let notices = Arc::new(Notices::default());
            let page = match self.mode.web {
                true => Some(Server::for_run(&invocation).await?),
                false => None,
            };
            let address = page.as_ref().map(Server::page);
            let mut notifications = self.notifications(&notices, address, &invocation);
            let is_in_background = self.mode.wait == WaitMode::Background;
            let mut signals = None;
            let exit =
                self.drive(events, page, &notices, notifications.as_mut(), &mut signals, &invocation).await;
            let is_killed = exit
                .as_ref()
                .is_err_and(|failure| matches!(failure.exit, Exit::Interrupted | Exit::Terminated));
            let mut signals = signals.unwrap_or_else(Signals::listen);
            // What a signal ends is not to live on for a minute.
            let limit = match is_in_background && !signals.has_received() {
                true => LAST_IN_BACKGROUND,
                false => LAST,
            };
            if let Some(notifications) = notifications.filter(|_| !is_killed) {
                notifications.finish(limit, &mut signals).await;
            }
            exit
        });
        runtime.shutdown_timeout(LEFTOVERS);
        exit
    }

    /// Lets the stored answers of people count, and runs nothing else.
    pub(super) async fn take_answers(self, invocation: &Invocation) -> Result<(), Failure> {
        let builder = self.builder(invocation)?;
        let (runner, _) = start(self.begin, builder).await?;
        runner.take_answers().await.map(|_| ()).map_err(|error| refused(&error))
    }

    /// What sends notifications of the session, if it is stored. Its id is fixed by then.
    fn notifications(
        &mut self,
        notices: &Arc<Notices>,
        page: Option<PageAddress>,
        invocation: &Invocation,
    ) -> Option<Notifications> {
        let store = self.store.as_ref().filter(|_| self.settings.replay.is_none())?;
        let session = self.begin.session();
        let sessions = Sessions::new(Arc::clone(store), self.nodes.clone(), Arc::new(SystemClock));
        Notifications::of_session(session, &sessions, &self.graph, &self.defaults, notices, page, invocation)
    }

    /// What is done where the session can only wait.
    fn when_waiting(&self, invocation: &Invocation) -> WhenWaiting {
        match (self.mode.wait, invocation.terminal.interactivity, &self.store) {
            (_, _, None) | (WaitMode::Here, Interactivity::Interactive, _) => WhenWaiting::Stay,
            (WaitMode::Leave | WaitMode::Nowhere, ..) => WhenWaiting::Leave,
            // A limit that is lifted at a known time must not end the night's work.
            (WaitMode::Here, Interactivity::Unattended, _) => WhenWaiting::LeaveToPeople,
            (WaitMode::Background, ..) => WhenWaiting::LeaveUnlessTimed,
        }
    }

    /// What becomes of a question while nobody is here.
    fn unattended(&self, invocation: &Invocation) -> host::Unattended {
        let is_alone = invocation.terminal.interactivity == Interactivity::Unattended;
        match (self.mode.wait, &self.store) {
            (WaitMode::Background, _) => host::Unattended::Wait,
            (_, Some(_)) if is_alone && self.mode.ask == Ask::TerminalOrShells => host::Unattended::Leave,
            (_, Some(_)) => host::Unattended::DefaultOrLeave,
            (_, None) => host::Unattended::DefaultOrStop,
        }
    }

    /// How the session is run.
    fn builder(&self, invocation: &Invocation) -> Result<FlowRunnerBuilder, Failure> {
        let mut builder = FlowRunner::builder(Arc::clone(&self.graph), self.nodes.clone())
            .clock(Arc::new(SystemClock))
            // What its channels use is a secret in the session, too.
            .env(marked(invocation.session_env(), &self.defaults))
            .hide_from_programs(inspan_providers::vendor_keys(&invocation.env))
            .node_calls(self.calls.clone())
            .settings(self.settings.whole(invocation).to_map())
            .permissions(match (invocation.terminal.interactivity, self.mode.wait) {
                (Interactivity::Interactive, _) | (_, WaitMode::Background) => {
                    PermissionPolicy::Ask { deadline: self.defaults.permission_timeout() }
                }
                (Interactivity::Unattended, _) => PermissionPolicy::Deny,
            })
            .when_waiting(self.when_waiting(invocation));
        if let Some(store) = &self.store {
            builder = builder.store(Arc::clone(store));
            if let Ok(file) = store::path(invocation) {
                builder = builder.artifacts(artifacts::all(&file));
            }
        }
        if let Some(cwd) = self.settings.cwd.as_ref().or(invocation.cwd.as_ref()) {
            builder = builder.cwd(cwd);
        }
        if let Some(limit) = self.settings.max_concurrency {
            builder = builder.max_concurrency(limit);
        }
        if let Some(supervisor) = inspan_process::guard() {
            builder = builder.supervisor(supervisor);
        }
        Ok(builder)
    }

    /// What happened in the session before, as far as people are shown it again.
    async fn history(&self) -> Result<Vec<Arc<Envelope>>, Failure> {
        let (Begin::Rest { session, .. }, Some(store)) = (&self.begin, &self.store) else {
            return Ok(Vec::new());
        };
        Ok(store.read(session, 1, Select::Names(FACTS)).await?)
    }

    /// Takes the folder for a new session, without what another one with its id has left there. None if the store is to refuse
    /// the id, or if the session runs without the folder.
    async fn take_folder(
        &self,
        file: &Path,
        id: &SessionId,
        invocation: &Invocation,
    ) -> Result<Option<Unstored>, Failure> {
        let folder = artifacts::of(file, id);
        let all = match &self.store {
            Some(store) => Arc::clone(store),
            None => match store::open_reader(invocation) {
                Ok(all) => all,
                Err(_) => return Ok(None),
            },
        };
        let shown = clean(&folder.to_string_lossy());
        let failure = match Unstored::begin(file, id, &*all).await {
            Ok(Some(begun)) => return Ok(Some(begun)),
            Err(_) if self.store.is_none() || folder.symlink_metadata().is_err() => return Ok(None),
            // The store itself refuses an id that it knows.
            _ if self.store.is_some() && artifacts::is_known(&*all, id).await => return Ok(None),
            Ok(None) => Failure::usage(format!("{shown} may belong to another session")),
            Err(error) => {
                let what = format!("{shown}, which another session has left, cannot be removed: {error}");
                Failure::new(Exit::Failed, what)
            }
        };
        Err(failure.with_hint("use another `--session-id`, or remove the folder if nobody needs it"))
    }

    async fn drive(
        mut self,
        events: Option<Events>,
        page: Option<Server>,
        notices: &Notices,
        notifications: Option<&mut Notifications>,
        signals: &mut Option<Signals>,
        invocation: &Invocation,
    ) -> Result<Exit, Failure> {
        let history = self.history().await?;
        let host =
            Arc::new(SessionConsole::new(&self.graph, invocation, self.unattended(invocation), &history));
        let channel: Arc<dyn DynChannel> = Arc::<SessionConsole>::clone(&host);
        let shown = Arc::<SessionConsole>::clone(&host);
        let show = Arc::new(move |line: &str| shown.notice(line));
        notices.show_by(Some(show.clone()));
        let parent = self.begin.parent();
        let is_new = matches!(self.begin, Begin::New { .. });
        let id = self.begin.session().clone();
        let (mut own_folder, mut unstored) = (None, None);
        // From here on the session may be stored: a signal that comes meanwhile pauses it, and does not end this process alone.
        let signals = signals.insert(Signals::listen());
        let runner = match Engine::of(invocation)?.filter(|_| self.store.is_some()) {
            None => {
                let mut builder = self.builder(invocation)?.channel(channel).on_notice(show);
                let file = store::path(invocation).ok();
                let begun = match file.as_ref().filter(|_| is_new) {
                    Some(file) => self.take_folder(file, &id, invocation).await?,
                    None => None,
                };
                if self.store.is_none() {
                    unstored = begun;
                    let beside = unstored.as_ref().and(file.as_deref()).map(artifacts::all);
                    // Without a folder for sessions it still runs.
                    own_folder = if unstored.is_some() { None } else { artifacts::temporary() };
                    if let Some(all) = beside.or_else(|| Some(own_folder.as_ref()?.path().to_owned())) {
                        builder = builder.artifacts(all);
                    }
                } else if let Some(file) = file.clone().filter(|_| is_new) {
                    let parent = parent.clone();
                    builder = builder.once_stored(move |to| {
                        drop(begun);
                        parent.map_or(Ok(()), |parent| take_over_files(&file, &parent, to))
                    });
                }
                let (runner, start) = start(self.begin, builder).await?;
                // A process that died may have begun the session without them.
                let is_owed = |parent: &&Parent| parent.kind == ParentKind::Resume || history.is_empty();
                let owed = parent.as_ref().filter(is_owed).zip(file);
                if let Some((parent, file)) = owed.filter(|_| !is_new) {
                    match (take_over_files(&file, parent, &id), &self.store) {
                        // One that is to be stopped does without them.
                        (Err(error), Some(store)) if store::is_to_be_stopped(&**store, &id).await? => {
                            terminal::progress(&format!("note: {}\n", clean(&error.to_string())));
                        }
                        (taken, _) => taken.map_err(|error| unprepared(&id, &error))?,
                    }
                }
                // Before this process has the session, it looks as if nobody went on with it.
                if let Some(notifications) = notifications {
                    notifications.begin();
                }
                Runner::here(runner, start)
            }
            Some(engine) => {
                let seen = history.last().map_or(0, |event| event.seq);
                let wait = (self.mode.wait, self.when_waiting(invocation));
                let settings = self.settings.whole(invocation).to_map();
                // A worker may have the session before this process is told of it.
                if let Some(notifications) = notifications {
                    notifications.begin();
                }
                let begun = Remote::begin(engine, self.begin, &self.graph, settings).await?;
                if wait.0 == WaitMode::Nowhere {
                    if !self.defaults.channels().is_empty() {
                        terminal::progress(
                            "note: workers send no notifications: keep `inspan notify deliver` or `inspan serve` running on \
                             one machine\n",
                        );
                    }
                    return begun.report(invocation);
                }
                begun.runner(host.clone(), seen, wait.1).await
            }
        };
        if let Some(page) = &page {
            page.show_session(runner.hub.session_id(), invocation);
        }
        let hub = runner.hub.clone();
        let traces = Traces::begin(&hub, parent, self.store.as_ref(), invocation);
        let writing = events.map(|events| events.begin(&hub)).transpose()?;
        let to_stdout = writing.as_ref().is_some_and(events::Writing::is_stdout);
        let Runner { commands, work, remote, .. } = runner;
        host.take_commands(Arc::clone(&commands));
        let running = tokio::spawn(work);
        let first =
            if self.store.is_some() { signals::FirstSignal::Pauses } else { signals::FirstSignal::Stops };
        let ended = match remote {
            None => signals::watch(signals, running, &hub, &*commands, first).await,
            Some(remote) => remote.watch(signals, running, &host).await,
        };
        notices.show_by(None);
        let state = host.stop();
        let SessionEnd { by, result } = ended?;
        self.providers.shutdown().await;
        if let Some(traces) = traces {
            traces.finish().await;
        }
        if let Some(page) = page {
            page.stop().await?;
        }
        let written = writing.map_or(Ok(()), events::Writing::finish);
        let result = match result {
            Ok(result) => result.map_err(|error| match &error {
                // The session is where it was, and this command is cut off from it.
                RunError::Store(StoreError::Shared(_)) => {
                    let id = hub.session_id();
                    refused(&error)
                        .with_hint(format!("`inspan logs {id} -f` follows it again"))
                        .of_session(id)
                }
                _ => refused(&error),
            })?,
            Err(panic) => {
                let message = format!("internal error: the session panicked: {panic}");
                return Err(Failure::new(Exit::Failed, message));
            }
        };
        let waiting = host.waiting();
        let keeps =
            if self.store.is_some() { report::Persistence::Session } else { report::Persistence::Nothing };
        let report = report::SessionReport::new(&result, &waiting, by, keeps);
        host.summarise(state, &report);
        if let Some(left) = own_folder.as_ref().and_then(|own| artifacts::contents(own.path())) {
            own_folder.take().map(TempDir::keep);
            terminal::progress(&format!("the nodes left files in {left}\n"));
        }
        drop(unstored);
        if let Some(left) = self.calls.left_over() {
            terminal::progress(&format!("warning: {}\n", clean(&left)));
        }
        print(&report, written, to_stdout, &self.graph, invocation)?;
        Ok(report.exit)
    }
}

/// Gives a session the files of the one whose work it reuses.
fn take_over_files(file: &Path, parent: &Parent, to: &SessionId) -> io::Result<()> {
    let left_out = artifacts::take_over(file, parent, to).map_err(|error| {
        let what = format!("the files of session `{}` cannot be taken over", parent.session);
        artifacts::about(what, &error)
    })?;
    for worktree in left_out {
        let worktree = clean(&worktree.to_string_lossy());
        terminal::progress(&format!("the git worktree {worktree} is not copied: this session has none\n"));
    }
    Ok(())
}

/// Prints the result, unless the events are on standard output; `written` is whether all of them could be written.
fn print(
    report: &report::SessionReport<'_>,
    written: Result<(), Failure>,
    to_stdout: bool,
    graph: &Graph,
    invocation: &Invocation,
) -> Result<(), Failure> {
    match (invocation.form, to_stdout, written) {
        (OutputForm::Json, false, Ok(())) => {
            invocation.json(&report.json());
            Ok(())
        }
        (OutputForm::Json, false, Err(failure)) => Err(invocation.json_failure(report.json(), failure)),
        (OutputForm::Text, false, written) => {
            report.print(graph);
            written
        }
        (_, true, written) => written,
    }
}

/// A session that is about to run, here or elsewhere.
struct Runner {
    /// Where its events are.
    hub: Hub,
    /// What takes its commands.
    commands: CommandSink,
    work: BoxFuture<'static, Result<FlowRunResult, RunError>>,
    /// The cluster that runs it, if this process does not.
    remote: Option<Remote>,
}

/// Takes a command for a session; what it says is why the command was refused, as far as that is known at once.
type CommandSink = Arc<dyn Fn(Command) -> Result<(), String> + Send + Sync>;

impl Runner {
    /// In this process.
    fn here(runner: FlowRunner, start: RunnerStart) -> Self {
        let hub = runner.hub().clone();
        let taker = hub.clone();
        Self {
            hub,
            commands: Arc::new(move |command| taker.command(command).map_err(|error| error.to_string())),
            work: match start {
                RunnerStart::Run(input) => runner.run(input).boxed(),
                RunnerStart::Resume(resume) => runner.resume(resume).boxed(),
            },
            remote: None,
        }
    }
}

/// How a runner is started.
enum RunnerStart {
    Run(Map<String, Value>),
    Resume(Resume),
}

async fn start(begin: Begin, builder: FlowRunnerBuilder) -> Result<(FlowRunner, RunnerStart), Failure> {
    let reuse = |builder: FlowRunnerBuilder, reusing: Option<(Arc<Reusable>, Parent)>| match reusing {
        Some((reusable, parent)) => builder.reusing(reusable, parent),
        None => builder,
    };
    match begin {
        Begin::New { id, input, reusing } => {
            let builder = match id {
                Some(id) => builder.session_id(id),
                None => builder,
            };
            Ok((reuse(builder, reusing).build(), RunnerStart::Run(input)))
        }
        Begin::Rest { session, resume, reusing } => {
            // What is not given is not in the store, which was said before.
            let runner = reuse(builder, reusing).without_parent_work().open(&session).await;
            Ok((runner.map_err(|error| refused(&error))?, RunnerStart::Resume(resume)))
        }
    }
}

/// The runtime of sessions and stores.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // While the system has no process for another thread, those that are there do the work; without any it would panic.
        .thread_keep_alive(Duration::from_secs(3600))
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))
}

/// A session that could not be run or stored.
pub(super) fn refused(error: &RunError) -> Failure {
    match error {
        RunError::Store(error @ StoreError::Interrupted { .. }) => {
            Failure { exit: Exit::Failed, ..error.clone().into() }
        }
        RunError::Store(error) => error.clone().into(),
        RunError::NotStored { session, error: cause } => {
            let first = match cause {
                StoreError::Full { .. } => "free some space",
                StoreError::Locked { .. } => "let the other process finish",
                _ => "make the disk writable again",
            };
            Failure::new(Exit::Paused, error.to_string())
                .with_hint(format!("{first}, then `inspan resume {session}` continues with what is stored"))
        }
        RunError::Ended { session, .. } => Failure::usage(error.to_string())
            .with_hint(format!("`inspan fork {session}` starts a new session that reuses finished work")),
        RunError::Changed { session, .. } => Failure::usage(error.to_string())
            .with_hint(format!("`inspan resume {session} --plan` shows what would be reused")),
        RunError::Source(problems) => match inspan_sessions::foreign_types(problems) {
            Some(foreign) => foreign.into(),
            None => Failure::usage(error.to_string()),
        },
        RunError::Message(_) | RunError::Override(_) => Failure::usage(error.to_string()),
        RunError::NotRaised(error) => error.clone().into(),
        RunError::NotPrepared { session, error } => unprepared(session, error),
        error => Failure::new(Exit::Failed, error.to_string()),
    }
}

/// A session that is stored and has not got its files yet.
fn unprepared(session: &SessionId, error: &io::Error) -> Failure {
    let (exit, first) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (Exit::Paused, "free some space, then "),
        _ => (Exit::Failed, ""),
    };
    Failure::new(exit, clean(&error.to_string()))
        .with_hint(format!("{first}`inspan resume {session}` tries again, `inspan stop {session}` ends it"))
        .of_session(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_can_be_written_no_more_says_how_the_session_continues() {
        let (path, message) = (std::path::PathBuf::from("s.db"), "disk I/O error".to_owned());
        for (error, first) in [
            (StoreError::Full { path: path.clone() }, "free some space"),
            (StoreError::Locked { path: path.clone() }, "let the other process finish"),
            (StoreError::ReadOnly { path: path.clone() }, "make the disk writable again"),
            (StoreError::Io { path, message }, "make the disk writable again"),
        ] {
            let failure = refused(&RunError::NotStored { session: "s".into(), error });
            let hint = format!("{first}, then `inspan resume s` continues with what is stored");
            assert_eq!((failure.exit, failure.hint), (Exit::Paused, Some(hint)));
        }
        let failure = unprepared(&"s".into(), &io::ErrorKind::StorageFull.into());
        assert!(failure.hint.is_some_and(|hint| hint.starts_with("free some space, then `inspan resume s`")));
        assert_eq!(failure.exit, Exit::Paused);
    }
}
