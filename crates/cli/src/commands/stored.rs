//! A stored session that a command continues: itself, or as a new session that reuses its finished work.

use std::{path::Path, sync::Arc};

use inspan_engine::{Clock, NodeCalls, ProviderRegistry, SystemClock};
use inspan_flow::{
    Change, FACTS, Graph, Loaded, NodeRegistry, OverrideError, Owner, Parent, Plan, Planned, Resume,
    Reusable, ReuseDecision, ReuseReason, Run, RunError, RunStore, Select, SessionRecord, StoreError,
    builtin_nodes, takes_input,
};
use inspan_protocol::{BudgetRaise, Command, Envelope, NodePath, Prompt, Reply, SessionId, SessionStatus};
use inspan_sessions::{SessionErrorCode, is_driven};
use serde_json::{Map, Value};

use super::{
    flow,
    session::{self, Ask, Begin, RunMode, Session, SessionSettings, detach},
};
use crate::{
    args::{InputValue, RunModeArgs},
    exit::Exit,
    failure::Failure,
    invocation::Invocation,
    settings::Settings,
    store, terminal,
};

pub(super) mod plan;

/// What happens if a session is not in the store whose work another one takes over.
#[derive(Clone, Copy)]
pub(super) enum Missing {
    /// It is an error: finished work would be paid for again.
    Refused,
    /// It is said, and the work is done again.
    Reported,
    /// The same, and it was said before.
    Known,
}

/// Why it is not known what a session may take over.
pub(super) enum LineageError {
    /// This session is not in the store.
    Missing(SessionId),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for LineageError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What a session may take over of the one that it comes from.
pub(super) async fn lineage(
    store: &dyn RunStore,
    nodes: &NodeRegistry,
    record: &SessionRecord,
    graph: &Graph,
) -> Result<Option<Arc<Reusable>>, LineageError> {
    inspan_flow::lineage(store, nodes, record, graph).await.map_err(|error| match error {
        RunError::NoParent { parent, .. } => LineageError::Missing(parent),
        error => LineageError::Failed(session::refused(&error)),
    })
}

/// A stored session.
pub(super) struct StoredSession {
    pub(super) store: Arc<dyn RunStore>,
    pub(super) record: SessionRecord,
    pub(super) settings: SessionSettings,
    pub(super) providers: ProviderRegistry,
    calls: NodeCalls,
    pub(super) nodes: NodeRegistry,
    /// The flow as it was when the session began.
    pub(super) graph: Arc<Graph>,
    pub(super) status: SessionStatus,
    pub(super) last_seq: u64,
    open_prompts: Vec<Prompt>,
    /// The session that continues it.
    pub(super) continued_by: Option<SessionId>,
    /// The process that runs it.
    pub(super) owner: Option<Owner>,
}

/// A new session that reuses the work of another one.
pub(super) struct Continuation {
    pub(super) graph: Arc<Graph>,
    pub(super) input: Map<String, Value>,
    pub(super) reusable: Reusable,
    pub(super) id: Option<SessionId>,
    pub(super) parent: Parent,
}

/// The input that a session was given, without what was left to the defaults of its flow: the edited flow may have others. And
/// the keys of what is left out, since that one does not take it any more.
pub(super) fn given_before(
    record: &SessionRecord,
    settings: &SessionSettings,
    before: &Graph,
    now: &Graph,
) -> (Map<String, Value>, Vec<String>) {
    let mut input = record.input.clone();
    input.retain(|key, value| settings.given.contains(key) || before.input.get(key) != Some(value));
    let gone: Vec<String> = input.keys().filter(|key| !takes_input(now, key)).cloned().collect();
    gone.iter().for_each(|key| drop(input.remove(key)));
    (input, gone)
}

/// Says which input of a session is left out.
pub(super) fn tell_left_out(gone: &[String], session: &SessionId) {
    for key in gone {
        terminal::progress(&format!(
            "the flow no longer has input `{key}`: that of `{session}` is ignored\n"
        ));
    }
}

/// The option of `inspan run` that makes a change.
fn option_of(change: &Change) -> &'static str {
    match change {
        Change::Provider { .. } => "--provider",
        Change::Model { .. } => "--model",
        Change::Budget { .. } => "--budget",
        _ => "--set",
    }
}

impl StoredSession {
    pub(super) fn open(prefix: &str, invocation: &Invocation) -> Result<Self, Failure> {
        let store = store::open_writer(invocation)?;
        let runtime = session::runtime()?;
        let (record, entry) = runtime.block_on(async {
            let entry = store::find(&*store, prefix).await?;
            let record = store.record(&entry.session).await?;
            Ok::<_, Failure>((record, entry))
        })?;
        let settings = SessionSettings::of_map(&record.settings)?;
        let file = Path::new(&record.flow.file);
        let calls = settings.rest_of_calls(file, invocation.terminal.progress)?;
        let providers = session::providers(&calls);
        let nodes = builtin_nodes(&providers);
        let graph = graph_of(&record, &nodes)?;
        let (status, last_seq) = (entry.digest.status, entry.digest.last_seq);
        let owner = entry.owner.clone().filter(|_| is_driven(&entry));
        let continued_by = entry.continued_by;
        Ok(Self {
            store,
            record,
            settings,
            providers,
            calls,
            nodes,
            graph,
            status,
            last_seq,
            open_prompts: entry.digest.prompts,
            continued_by,
            owner,
        })
    }

    pub(super) fn loaded(&self) -> Result<Loaded, Failure> {
        Loaded::from_source(&self.record.flow).map_err(|error| Failure::usage(error.to_string()))
    }

    /// The flow as its file is now, if that is another than the session began with; with a sentence for each option of the
    /// session's start that no longer holds, since its node is gone.
    pub(super) fn edited(&self) -> Result<Option<(Loaded, Vec<String>)>, Failure> {
        let source = &self.record.flow;
        let file = source.folder.join(Path::new(&source.file).file_name().unwrap_or_default());
        let mut loaded = inspan_flow::load(&file).map_err(|error| flow::refused(&error))?;
        let mut before = self.loaded()?;
        let mut ignored = Vec::new();
        for change in &source.changes {
            let option = option_of(change);
            match loaded.change(change) {
                Ok(()) => {}
                Err(error @ OverrideError::UnknownNode { .. }) => {
                    // Otherwise the session went on without it already.
                    if before.change(change).is_ok() {
                        ignored.push(format!("`{option}` of the session is ignored: {error}"));
                    }
                }
                Err(error) => {
                    let message =
                        format!("the flow was edited, and `{option}` of the session does not fit: {error}");
                    return Err(Failure::usage(message));
                }
            }
        }
        Ok((!loaded.is_as_in(source)).then_some((loaded, ignored)))
    }

    /// The input for a flow that may be an edited one, with these values changed. What that one does not take any more is
    /// left out.
    pub(super) fn input_again(
        &mut self,
        graph: &Graph,
        given: Map<String, Value>,
        values: &[InputValue],
    ) -> Result<Map<String, Value>, Failure> {
        let (mut input, gone) = given_before(&self.record, &self.settings, &self.graph, graph);
        tell_left_out(&gone, &self.record.session);
        self.settings.given.retain(|key| takes_input(graph, key));
        self.settings.given.extend(given.keys().cloned());
        input.extend(given);
        flow::checked_input(graph, input, values)
    }

    /// Fails if the session has ended or another one continues it.
    pub(super) fn must_be_open(&self) -> Result<(), StoreError> {
        let session = self.record.session.clone();
        match self.continued_by.clone() {
            Some(by) => Err(StoreError::Continued { session, by }),
            None if self.status.has_ended() => Err(StoreError::SessionEnded(session)),
            None => Ok(()),
        }
    }

    /// Fails if the id that was given for a new session is taken.
    fn check_new(&self, id: Option<&SessionId>) -> Result<(), Failure> {
        let Some(id) = id else { return Ok(()) };
        match session::runtime()?.block_on(self.store.entry(id)) {
            Err(StoreError::UnknownSession(_)) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err(StoreError::SessionExists(id.clone()).into()),
        }
    }

    /// The work of the session that a new one with the flow `now` can reuse, and what it could still take over itself.
    pub(super) fn reusable(
        &self,
        parent: &Parent,
        now: &Graph,
        missing: Missing,
    ) -> Result<Reusable, Failure> {
        // An ended session was kept without those before it.
        let missing = match missing {
            Missing::Refused if self.status.has_ended() => Missing::Reported,
            missing => missing,
        };
        let older = self.taken_over(missing)?;
        Ok(parent.reusable(&self.record, &self.graph, &self.log()?, older, now))
    }

    /// The events that count for its run. One that continues the session reads them itself.
    pub(super) fn log(&self) -> Result<Vec<Arc<Envelope>>, Failure> {
        let read = self.store.read(&self.record.session, self.record.first_seq(), Select::Names(FACTS));
        Ok(session::runtime()?.block_on(read)?)
    }

    /// Its run, as its log says.
    pub(super) fn folded(&self, mut run: Run) -> Result<Run, Failure> {
        self.log()?.iter().for_each(|envelope| run.apply(envelope));
        Ok(run)
    }

    /// Resumes the session itself. `ask` counts without `--no-input`.
    pub(super) fn resume(
        self,
        resume: Resume,
        mode: &RunModeArgs,
        ask: Ask,
        invocation: &Invocation,
    ) -> Result<Exit, Failure> {
        let session = self.record.session.clone();
        self.check_own_secrets(invocation)?;
        if mode.detach && invocation.engine.is_none() {
            return detach::resume(&session, invocation);
        }
        let taken_over = self.taken_over(Missing::Refused)?;
        let begin = Begin::Rest { session, resume, reusing: taken_over.zip(self.record.parent.clone()) };
        self.session(self.graph.clone(), begin, mode, ask, invocation)?.watch(invocation)
    }

    /// Puts stored answers of people into the log before another session takes it over: there the answered questions would
    /// be asked again. A session that another process runs gets them by that one.
    pub(super) fn with_answers(self, invocation: &Invocation) -> Result<Self, Failure> {
        let id = self.record.session.clone();
        let runtime = session::runtime()?;
        let has_answers = || async {
            let waiting = self.store.unanswered(&id).await?;
            Ok::<_, Failure>(waiting.iter().any(|posted| matches!(posted.command, Command::Reply { .. })))
        };
        // Machines of a cluster apply an answer when it comes.
        let is_elsewhere = invocation.engine.is_some() || self.continued_by.is_some();
        if is_elsewhere || self.status.has_ended() || !runtime.block_on(has_answers())? {
            return Ok(self);
        }
        let taken_over = self.taken_over(Missing::Reported)?;
        let begin = Begin::Rest {
            session: id.clone(),
            resume: Resume::default(),
            reusing: taken_over.zip(self.record.parent.clone()),
        };
        let graph = Arc::clone(&self.graph);
        let session = self.session(graph, begin, &RunModeArgs::default(), Ask::Never, invocation)?;
        match runtime.block_on(session.take_answers(invocation)) {
            Err(failure) if failure.code == SessionErrorCode::SessionHeld => Ok(self),
            taken => taken.and_then(|()| Self::open(id.as_str(), invocation)),
        }
    }

    /// What the session may still take over of the one that it comes from. `missing` says what happens if that is not
    /// in the store.
    fn taken_over(&self, missing: Missing) -> Result<Option<Arc<Reusable>>, Failure> {
        let found =
            session::runtime()?.block_on(lineage(&*self.store, &self.nodes, &self.record, &self.graph));
        let session = &self.record.session;
        match (found, missing) {
            (Ok(found), _) => Ok(found),
            (Err(LineageError::Missing(gone)), Missing::Refused) => {
                let message = format!(
                    "session `{session}` takes over finished work of session `{gone}`, which is not in the store"
                );
                let hint = format!(
                    "`inspan store import` brings it back; `inspan resume {session} --edited` runs again what was not \
                     taken over yet"
                );
                let failure = Failure::usage(message).with_code(SessionErrorCode::UnknownSession);
                Err(failure.with_hint(hint))
            }
            (Err(LineageError::Missing(gone)), Missing::Reported) => {
                terminal::progress(&format!(
                    "session `{gone}` is not in the store: what `{session}` had not taken over of it runs again\n"
                ));
                Ok(None)
            }
            (Err(LineageError::Missing(_)), Missing::Known) => Ok(None),
            (Err(LineageError::Failed(failure)), _) => Err(failure),
        }
    }

    /// Without the recording of the calls: a new session would replace what this one has recorded.
    fn unrecorded(mut self) -> Self {
        if let Some(dir) = self.settings.record.take() {
            terminal::progress(&format!(
                "note: the new session is not recorded: {} keeps the recordings of `{}`\n",
                dir.display(),
                self.record.session
            ));
            self.calls = NodeCalls::Make;
            self.providers = session::providers(&self.calls);
            self.nodes = builtin_nodes(&self.providers);
        }
        self
    }

    /// Continues in a new session.
    pub(super) fn continue_as_new(
        self,
        again: Continuation,
        mode: &RunModeArgs,
        invocation: &Invocation,
    ) -> Result<Exit, Failure> {
        let kept = self.unrecorded();
        if mode.detach && invocation.engine.is_none() {
            return detach::run(again.id, invocation);
        }
        let reusing = Some((Arc::new(again.reusable), again.parent));
        let begin = Begin::New { id: again.id, input: again.input, reusing };
        kept.session(again.graph, begin, mode, Ask::Terminal, invocation)?.watch(invocation)
    }

    fn session(
        &self,
        graph: Arc<Graph>,
        begin: Begin,
        mode: &RunModeArgs,
        ask: Ask,
        invocation: &Invocation,
    ) -> Result<Session, Failure> {
        Ok(Session {
            defaults: Settings::of(Some(&graph.source.folder), invocation)?,
            graph,
            nodes: self.nodes.clone(),
            providers: self.providers.clone(),
            calls: self.calls.clone(),
            store: Some(self.store.clone()),
            settings: SessionSettings { request: mode.request.clone(), ..self.settings.clone() },
            begin,
            mode: RunMode::of(mode, ask),
        })
    }

    /// Shows what resuming the session itself would do.
    pub(super) fn show_plan_to_resume(
        &self,
        budget: &BudgetRaise,
        invocation: &Invocation,
    ) -> Result<Exit, Failure> {
        let taken_over = self.taken_over(Missing::Refused)?;
        let run = self.folded(self.record.run(&self.graph).reusing(taken_over))?;
        let plan = run.plan_to_resume(budget, SystemClock.now());
        let plan = with_stored_answers(plan, &self.stored_answers()?, |node| Some(&node.path));
        plan::show(&plan, self, invocation);
        Ok(Exit::Success)
    }

    /// Its open questions whose answer is stored and not taken yet, each with it.
    pub(super) fn stored_answers(&self) -> Result<Vec<(Prompt, Reply)>, Failure> {
        let runtime = session::runtime()?;
        Ok(runtime.block_on(stored_answers(&*self.store, &self.record.session, &self.open_prompts))?)
    }
}

/// The open questions of a session whose answer is stored and not taken yet, each with it.
pub(super) async fn stored_answers(
    store: &dyn RunStore,
    session: &SessionId,
    open: &[Prompt],
) -> Result<Vec<(Prompt, Reply)>, StoreError> {
    let posted = store.unanswered(session).await?;
    let answers = posted.into_iter().filter_map(|posted| {
        let Command::Reply { prompt, content, choice } = posted.command else { return None };
        let open = open.iter().find(|open| open.prompt_id == prompt && !open.is_over(posted.at))?;
        Some((open.clone(), open.check(content, choice).ok()?))
    });
    Ok(answers.collect())
}

/// The plan with the questions whose stored answer is taken: those that are asked as they were. `place` gives the place of a
/// node in the session that asked.
pub(super) fn with_stored_answers(
    mut plan: Plan,
    answers: &[(Prompt, Reply)],
    place: impl Fn(&Planned) -> Option<&NodePath>,
) -> Plan {
    let answered: Vec<&NodePath> = answers.iter().filter_map(|(prompt, _)| prompt.task.as_ref()).collect();
    for node in &mut plan.nodes {
        let asks = node.decision == ReuseDecision::Runs(ReuseReason::Unfinished)
            || node.decision == ReuseDecision::Asks;
        if asks && place(node).is_some_and(|place| answered.contains(&place)) {
            node.decision = ReuseDecision::Answered;
        }
    }
    plan
}

impl Continuation {
    /// What the new session would do, if it may begin.
    pub(super) fn plan(&self, kept: &StoredSession) -> Result<Plan, Failure> {
        let session = self.id.clone().unwrap_or_else(|| kept.record.session.clone());
        let run = Run::new(self.graph.clone(), &session, self.input.clone(), None);
        let plan = run.reusing(Arc::new(self.reusable.clone())).plan(SystemClock.now());
        plan::check_only(&plan, &self.graph, kept)?;
        kept.check_new(self.id.as_ref())?;
        Ok(plan.with_dropped(&self.reusable, &kept.graph, &self.graph))
    }

    /// What the same would do with the flow as it was, if finished nodes are to run again.
    pub(super) fn of_flow_before(&self, kept: &StoredSession) -> Result<Option<Plan>, Failure> {
        let (graph, parent) = (Arc::clone(&kept.graph), self.parent.clone());
        if parent.again.is_none() && !parent.tries_failures_again {
            return Ok(None);
        }
        let reusable = kept.reusable(&parent, &graph, Missing::Known)?;
        let input = kept.record.input.clone();
        Self { graph, input, reusable, id: self.id.clone(), parent }.plan(kept).map(Some)
    }
}

/// The flow that a session began with, to be run.
pub(super) fn graph_of(record: &SessionRecord, nodes: &NodeRegistry) -> Result<Arc<Graph>, Failure> {
    inspan_flow::graph_of(record, nodes).map_err(|error| session::refused(&error))
}
