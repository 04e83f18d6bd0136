//! `inspan run --only NODE` and `--from NODE`: a part of the flow runs, and the rest is reused from an earlier session. The
//! new session is a fork of that one.

use std::{collections::BTreeSet, sync::Arc};

use inspan_engine::{Clock, SystemClock};
use inspan_flow::{
    FACTS, Graph, Missing, NodeRegistry, NotRun, Parent, ParentKind, Plan, Reusable, ReuseDecision, Run,
    RunStore, Select, SessionEntry, SessionRecord, check_input,
};
use inspan_protocol::{NodePath, SessionId};
use inspan_sessions::{Counted, of_flow};
use serde_json::{Map, Value};

use crate::{
    args::{BudgetChange, RunArgs},
    commands::{
        flow,
        session::SessionSettings,
        stored::{
            LineageError, StoredSession, given_before, graph_of, lineage, stored_answers, tell_left_out,
            with_stored_answers,
        },
    },
    failure::Failure,
    invocation::Invocation,
    store,
};

/// How many of the newest sessions of a flow are searched.
const SESSIONS: usize = 50;

/// What a run begins with.
#[derive(Default)]
pub(super) struct RunPart {
    pub(super) input: Map<String, Value>,
    pub(super) reusing: Option<(Arc<Reusable>, Parent)>,
    pub(super) not_run: NotRun,
    /// The limits of the flow's budget that earlier sessions have used up, in words.
    pub(super) used_up: Option<String>,
}

impl RunPart {
    /// The part that the arguments name; the whole flow if they name none.
    pub(super) fn of(
        args: &RunArgs,
        graph: &Arc<Graph>,
        nodes: &NodeRegistry,
        given: &Map<String, Value>,
        invocation: &Invocation,
    ) -> Result<Self, Failure> {
        if args.only.is_empty() && args.from.is_none() {
            if args.reuse.is_some() {
                return Err(Failure::usage("--reuse names a session for `--only NODE` or `--from NODE`"));
            }
            return Ok(Self { input: given.clone(), ..Self::default() });
        }
        let asked = args.only.iter().map(|node| ("only", node));
        for (option, node) in asked.chain(args.from.iter().map(|node| ("from", node))) {
            graph.find_place(node).map_err(|error| Failure::of_change(option, error))?;
        }
        let mut search = Search { args, graph, nodes, given, answered: BTreeSet::new() };
        loop {
            let found = store::read(invocation, async |store| search.find(&*store).await)?;
            let session = match found {
                Found::Part(part) => return Ok(*part),
                Found::Answers(session) => session,
            };
            StoredSession::open(session.as_str(), invocation)?.with_answers(invocation)?;
            search.answered.insert(session);
        }
    }
}

/// What a search has found.
enum Found {
    Part(Box<RunPart>),
    /// A session that fits, and whose stored answers are to be put into its log first: the new session is to see them there.
    Answers(SessionId),
}

/// Why a session cannot be reused.
struct Refused {
    session: Option<SessionId>,
    missing: Missing,
}

struct Search<'a> {
    args: &'a RunArgs,
    graph: &'a Arc<Graph>,
    nodes: &'a NodeRegistry,
    given: &'a Map<String, Value>,
    /// The sessions whose stored answers were put into their logs, as far as that is done here.
    answered: BTreeSet<SessionId>,
}

impl Search<'_> {
    /// The newest session that has all that is needed; none is needed if the nodes need nothing. If they would not run with
    /// its outputs, that is an error.
    async fn find(&self, store: &dyn RunStore) -> Result<Found, Failure> {
        let candidates = match &self.args.reuse {
            Some(named) => {
                let entry = store::find(store, named).await?;
                let record = store.record(&entry.session).await?;
                vec![(entry, record)]
            }
            None => of_flow(store, self.graph, Counted::Real, SESSIONS).await?,
        };
        let (mut refused, mut unfit) = (None, None);
        for (entry, record) in candidates {
            match self.reuse(store, &entry, &record).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(missing)) => {
                    let found = Refused { session: Some(entry.session), missing };
                    // What this session decided, an older one may have decided otherwise.
                    if found.missing.cause.is_none() {
                        return Err(self.failure(&found));
                    }
                    refused.get_or_insert(found);
                }
                Err(failure) if self.args.reuse.is_some() => return Err(failure),
                // One whose flow does not compile any more, or whose input does not fit any more, has nothing.
                Err(failure) => drop(unfit.get_or_insert((entry.session, failure))),
            }
        }
        let Some(refused) = refused else {
            let (plan, _) = self.plan(self.given, None)?;
            return match self.missing(&plan) {
                None => {
                    let (input, not_run) = (self.given.clone(), self.not_run(&plan));
                    Ok(Found::Part(Box::new(RunPart { input, not_run, ..RunPart::default() })))
                }
                Some(Missing { node, needs, cause: Some(_) }) if unfit.is_some() => {
                    let option = if self.args.from.is_some() { "--from" } else { "--only" };
                    let why = unfit.map(|(session, failure)| format!("`{session}`: {}", failure.message));
                    let message = format!(
                        "{option}: `{node}` needs the output of `{needs}`, which cannot be reused of session {}",
                        why.unwrap_or_default()
                    );
                    Err(Failure::usage(message)
                        .with_hint(format!("`inspan run {}` runs the whole flow", self.args.file.display())))
                }
                Some(missing) => Err(self.failure(&Refused { session: None, missing })),
            };
        };
        Err(self.failure(&refused))
    }

    /// What is reused of a session, or what it lacks.
    async fn reuse(
        &self,
        store: &dyn RunStore,
        entry: &SessionEntry,
        record: &SessionRecord,
    ) -> Result<Result<Found, Missing>, Failure> {
        let before = graph_of(record, self.nodes)?;
        let answers = stored_answers(store, &entry.session, &entry.digest.prompts).await?;
        let log = store.read(&entry.session, record.first_seq(), Select::Names(FACTS)).await?;
        let parent = Parent {
            again: self.args.from.clone(),
            also_again: self.args.only.clone(),
            // What was raised in that session does not outlive a limit that this call sets, even if the flow has the same.
            budget: BudgetChange::all(&self.args.budget),
            ..Parent::new(entry.session.clone(), entry.digest.last_seq, ParentKind::Fork)
        };
        // What it could take over of sessions that are gone runs again.
        let older = match lineage(store, self.nodes, record, &before).await {
            Ok(older) => older,
            Err(LineageError::Missing(_)) => None,
            Err(LineageError::Failed(failure)) => return Err(failure),
        };
        let mut reusable = parent.reusable(record, &before, &log, older, self.graph);
        answers.iter().for_each(|(prompt, reply)| reusable.take_answer(prompt, reply));
        let (mut input, gone) =
            given_before(record, &SessionSettings::of_map(&record.settings)?, &before, self.graph);
        input.extend(self.given.clone());
        let used_up = reusable.used_up(self.graph);
        let (plan, reusable) = self.plan(&input, Some(reusable))?;
        if let Some(missing) = self.missing(&plan) {
            return Ok(Err(missing));
        }
        let not_run = self.not_run(&plan);
        let is_new = !self.args.plan && !self.answered.contains(&entry.session);
        let plan = with_stored_answers(plan, &answers, |node| node.before.as_ref());
        if is_new && plan.needs_stored_answer(self.graph) {
            return Ok(Ok(Found::Answers(entry.session.clone())));
        }
        let reusing = reusable.map(|reusable| (reusable, parent));
        tell_left_out(&gone, &entry.session);
        let part = RunPart { input, reusing, not_run, used_up };
        Ok(Ok(Found::Part(Box::new(part))))
    }

    fn plan(
        &self,
        input: &Map<String, Value>,
        reusable: Option<Reusable>,
    ) -> Result<(Plan, Option<Arc<Reusable>>), Failure> {
        let input = check_input(self.graph, input.clone()).map_err(|error| flow::refused_input(&error))?;
        let run = Run::new(self.graph.clone(), &SessionId::from("plan"), input, None);
        let reusable = reusable.map(Arc::new);
        let run = match &reusable {
            Some(reusable) => run.reusing(reusable.clone()),
            None => run,
        };
        Ok((run.plan(SystemClock.now()), reusable))
    }

    fn missing(&self, plan: &Plan) -> Option<Missing> {
        match &self.args.from {
            Some(from) => plan.missing_for_from(self.graph, from),
            None => plan.missing_for_only(self.graph),
        }
    }

    /// What does not run, for a forecast.
    fn not_run(&self, plan: &Plan) -> NotRun {
        let places = |wanted: &dyn Fn(ReuseDecision) -> bool| -> BTreeSet<NodePath> {
            plan.nodes.iter().filter(|node| wanted(node.decision)).map(|node| node.path.place()).collect()
        };
        let is_reused = |decision| matches!(decision, ReuseDecision::Reused | ReuseDecision::Answered);
        let runs = places(&|decision| {
            !is_reused(decision) && !matches!(decision, ReuseDecision::Skipped | ReuseDecision::Omitted(_))
        });
        let mut reused = places(&is_reused);
        let mut omitted =
            places(&|decision| matches!(decision, ReuseDecision::Skipped | ReuseDecision::Omitted(_)));
        reused.retain(|place| !runs.contains(place));
        omitted.retain(|place| !runs.contains(place) && !reused.contains(place));
        if !self.args.only.is_empty() {
            let related = |place: &NodePath| {
                self.graph.is_selected(place) || reused.iter().any(|reused| reused.is_within(place))
            };
            omitted.extend(self.graph.places().into_iter().filter(|place| !related(place)));
        }
        let texts = |places: BTreeSet<NodePath>| places.into_iter().map(|place| place.to_string()).collect();
        NotRun { reused: texts(reused), omitted: texts(omitted) }
    }

    fn failure(&self, refused: &Refused) -> Failure {
        let Refused { session, missing } = refused;
        let Missing { node, needs, cause } = missing;
        let option = if self.args.from.is_some() { "--from" } else { "--only" };
        let file = self.args.file.display();
        let Some((cause, _)) = cause else {
            let (after, other) = match session {
                Some(session) => {
                    (format!(" after session `{session}`"), ", `--reuse ID` names another session")
                }
                None => (String::new(), ""),
            };
            let message = format!(
                "{option}: `{node}` would not run{after}: the edges into it, or its `when`, do not hold"
            );
            return Failure::usage(message)
                .with_hint(format!("`inspan run {file}` runs the whole flow{other}"));
        };
        let Some(session) = session else {
            let message = format!(
                "{option}: `{node}` needs the output of `{needs}`, and no earlier session of this flow is in the store"
            );
            return Failure::usage(message).with_hint(format!("`inspan run {file}` runs the whole flow"));
        };
        let message = format!("{option}: {}", missing.why(session).unwrap_or_default());
        Failure::usage(message).with_hint(format!(
            "`inspan run {file} --from {cause}` runs `{cause}` and all after it, `--reuse ID` names another session"
        ))
    }
}
