//! Runs one case: a session of the real engine in virtual time, and for each crash of the case one more that is resumed
//! from what the first had stored.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use inspan_engine::{CountingIds, Filter, Replayer, VirtualClock, check_order};
use inspan_flow::{
    Batch, FlowRunner, FlowRunnerBuilder, Graph, Loaded, MemoryStore, NodeRegistry, Owner, Resume, RunError,
    RunStore, SessionRecord, WhenWaiting, check_input,
};
use inspan_protocol::{Envelope, Event, NodePath, NodeStatus, PermissionPolicy, SessionId, Timestamp};
use serde_json::Value;

use crate::{
    answered,
    cases::{Case, Fault},
    compare::comparable,
    expect::{FailedExpectation, word},
    matcher::{difference, lines},
    pattern::Pattern,
    people::People,
    script::{CaseScript, SentRequest, prompt_of},
    trace::Trace,
};

/// The session's id in every case. Recordings fit a session of any id, so it is a word that no input has otherwise.
const SESSION: &str = "test-6f1d2c9a";
/// Where the folder `flow.artifacts` of that session would be.
const ARTIFACTS: &str = "/artifacts";
/// How long a session may take in the time of the test.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// How long an agent's question for permission waits, in the time of the test. It is answered at once.
const PERMISSION: Duration = Duration::from_secs(3600);

/// A flow that is tested.
pub(crate) struct TestedFlow {
    pub(crate) path: PathBuf,
    pub(crate) graph: Arc<Graph>,
}

/// Changes the flow of a file as the settings that hold for it say; the error says in words why they cannot be used.
pub(crate) type FlowSettings = Box<dyn Fn(&Path, Loaded) -> Result<Loaded, String> + Send + Sync>;

/// What all cases share.
pub(crate) struct SuiteContext {
    pub(crate) nodes: NodeRegistry,
    /// Node types that are run as they are, although they may reach outside.
    pub(crate) as_they_are: BTreeSet<String>,
    pub(crate) settings: Option<FlowSettings>,
    pub(crate) owner: Owner,
}

/// The result of a case.
#[derive(Default)]
pub(crate) struct CaseRun {
    pub(crate) trace: Trace,
    pub(crate) sent: Vec<SentRequest>,
    pub(crate) failures: Vec<FailedExpectation>,
    pub(crate) warnings: Vec<String>,
    /// The answers of `defaults` that it did not ask for.
    pub(crate) unused_defaults: BTreeSet<String>,
}

/// Runs a case.
pub(crate) async fn run(
    around: &SuiteContext,
    flow: &TestedFlow,
    case: &Case,
    recordings: Option<&Replayer>,
) -> CaseRun {
    let script = Arc::new(CaseScript::new(case, recordings.map(Replayer::rewound)));
    let session = CaseSession { around, graph: &flow.graph, case, people: Arc::new(People::new(case)) };
    let (log, mut failures) = match session.run(&script).await {
        Ok(log) => (log, Vec::new()),
        Err(failure) => (Vec::new(), vec![failure]),
    };
    let mut trace = Trace::of(&log);
    trace.read_flow(&flow.graph);
    let sent = script.sent();
    failures.extend(script.missing());
    failures.extend(session.people.failures());
    let (unused, unused_defaults) = script.unused();
    let mut warnings: Vec<_> = script.left_over().into_iter().collect();
    if failures.is_empty() {
        let prompts: Vec<(NodePath, Value)> =
            sent.iter().map(|sent| (sent.path.clone(), prompt_of(&sent.request))).collect();
        failures = case.expect.check(&trace, &prompts);
        failures.extend(script.unmet());
        failures.extend(crashes(&session, &script, &log, &trace).await);
        warnings.extend(unused);
        // What was cut short is asked about only after a crash.
        if !case.faults.iter().any(|fault| matches!(fault, Fault::Crash(_))) {
            warnings.extend(session.people.unused());
        }
    }
    CaseRun { trace, sent, failures, warnings, unused_defaults: unused_defaults.into_iter().collect() }
}

/// One session of a case.
struct CaseSession<'a> {
    around: &'a SuiteContext,
    graph: &'a Arc<Graph>,
    case: &'a Case,
    people: Arc<People>,
}

type Log = Vec<Arc<Envelope>>;

impl CaseSession<'_> {
    fn builder(&self, script: &Arc<CaseScript>, now: Timestamp) -> FlowRunnerBuilder {
        let nodes = answered::nodes(&self.around.nodes, &self.around.as_they_are, script);
        let people = self.people.clone();
        FlowRunner::builder(self.graph.clone(), nodes)
            .session_id(SessionId::from(SESSION))
            .clock(Arc::new(VirtualClock::starting_at(now)))
            .ids(Arc::new(CountingIds::new()))
            .owner(self.around.owner.clone())
            .permissions(PermissionPolicy::Ask { deadline: PERMISSION })
            .when_waiting(WhenWaiting::LeaveUnlessTimed)
            .stay_while(move || people.are_to_reply())
            .artifacts_by_name(ARTIFACTS)
            .with_events()
    }

    /// Runs the case from its start, and gives its log.
    async fn run(&self, script: &Arc<CaseScript>) -> Result<Log, FailedExpectation> {
        // Nothing else reads it, so no store is needed.
        self.drive(script, self.builder(script, self.case.clock).build(), None).await
    }

    /// Resumes the case from the beginning of a log, as a process that comes after one that died.
    async fn resume(
        &self,
        script: &Arc<CaseScript>,
        before: &[Arc<Envelope>],
    ) -> Result<Option<Log>, FailedExpectation> {
        let failed = |error: &dyn std::fmt::Display| FailedExpectation::new("session", error.to_string());
        let store = Arc::new(MemoryStore::new());
        let now = before.last().map_or(self.case.clock, |envelope| envelope.timestamp);
        let input = check_input(self.graph, self.case.input.clone()).map_err(|error| failed(&error))?;
        let flow = (*self.graph.source).clone();
        let record = SessionRecord::new(SessionId::from(SESSION), flow, input, self.case.clock);
        let lease = store.create(&record, &self.around.owner, now).await.map_err(|error| failed(&error))?;
        store.append(&lease, Batch { events: before, answers: &[] }).await.map_err(|error| failed(&error))?;
        store.release(&lease).await.map_err(|error| failed(&error))?;
        let opened = self.builder(script, now).store(store).open(&record.session).await;
        match opened {
            Ok(runner) => self.drive(script, runner, Some(Resume::default())).await.map(Some),
            // It died after its end.
            Err(RunError::Ended { .. }) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn drive(
        &self,
        script: &Arc<CaseScript>,
        runner: FlowRunner,
        resume: Option<Resume>,
    ) -> Result<Log, FailedExpectation> {
        let hub = runner.hub().clone();
        script.attach(&hub);
        let (of_script, people, of_hub) = (script.clone(), self.people.clone(), hub.clone());
        let observe = move |envelope: &Arc<Envelope>| {
            of_script.observe(envelope);
            people.act(envelope, &of_hub);
        };
        let _observer = hub.observe(Filter::all(), Arc::new(observe));
        let running = async {
            match resume {
                None => runner.run(self.case.input.clone()).await,
                Some(resume) => runner.resume(resume).await,
            }
        };
        let log = match tokio::time::timeout(LONGEST, running).await {
            Ok(Ok(result)) => result.events,
            Ok(Err(error @ RunError::Input(_))) => {
                return Err(FailedExpectation::new("input", error.to_string()));
            }
            Ok(Err(error)) => return Err(FailedExpectation::new("session", error.to_string())),
            Err(_) => {
                let message = "the session does not end within 366 days of its time";
                return Err(FailedExpectation::new("session", message));
            }
        };
        let events: Vec<Envelope> = log.iter().map(|envelope| (**envelope).clone()).collect();
        match check_order(&events) {
            Ok(()) => Ok(log),
            Err(error) => Err(FailedExpectation::new("session", format!("the log is out of order: {error}"))),
        }
    }
}

/// Lets the process die where the case says so; each time the session is resumed and must come to the same result.
async fn crashes(
    session: &CaseSession<'_>,
    script: &Arc<CaseScript>,
    log: &Log,
    whole: &Trace,
) -> Vec<FailedExpectation> {
    let mut failures = Vec::new();
    for fault in &session.case.faults {
        let Fault::Crash(node) = fault else { continue };
        let cuts = cuts(log, node.as_ref());
        if cuts.is_empty() {
            let node = node.as_ref().map_or("each", Pattern::as_str);
            failures.push(FailedExpectation::new(
                "faults.crashAfter",
                format!("`{node}` does not end, so nothing crashes"),
            ));
        }
        for (cut, path) in cuts {
            let before = &log[..cut];
            let after = Arc::new(script.after(session.case, before));
            let people = Arc::new(People::new(session.case));
            before.iter().for_each(|envelope| people.learn(envelope));
            let resumed = CaseSession { people, ..*session };
            let key = format!("faults.crashAfter.{path}");
            let log = match resumed.resume(&after, before).await {
                Ok(None) => continue,
                Ok(Some(log)) => log,
                Err(failure) => {
                    failures.push(FailedExpectation::new(key, failure.message));
                    continue;
                }
            };
            let mut why: Vec<_> = after.missing().into_iter().map(|missing| missing.message).collect();
            if why.is_empty() {
                let mut trace = Trace::of(&log);
                trace.read_flow(session.graph);
                why = compare(whole, &trace);
            }
            failures.extend(why.into_iter().map(|why| FailedExpectation::new(&key, why)));
        }
    }
    failures
}

/// The lengths of the log after which the process dies, with the nodes that have just ended.
fn cuts(log: &Log, node: Option<&Pattern>) -> Vec<(usize, NodePath)> {
    let mut cuts = Vec::new();
    for (at, envelope) in log.iter().enumerate() {
        let ends = matches!(
            envelope.event,
            Event::TaskComplete { .. }
                | Event::TaskFailed { will_retry: false, .. }
                | Event::TaskAgent { after: Some(_), .. }
        );
        let path = envelope.context.task.as_ref();
        if let Some(path) = path.filter(|path| ends && node.is_none_or(|node| node.matches(path))) {
            cuts.push((at + 1, path.clone()));
        }
    }
    cuts
}

/// How a resumed session differs from one that was not interrupted.
fn compare(whole: &Trace, resumed: &Trace) -> Vec<String> {
    let mut why = Vec::new();
    if whole.outcome != resumed.outcome {
        why.push(format!(
            "after the crash the outcome is {}, not {}",
            word(&resumed.outcome),
            word(&whole.outcome)
        ));
    }
    for (path, node) in &whole.nodes {
        let seen = resumed.nodes.get(path).cloned().unwrap_or_default();
        let may_be_cut =
            |status| matches!(status, NodeStatus::Cancelled | NodeStatus::Pending | NodeStatus::Skipped);
        // Whether a failure still cancels what ends in the same moment is decided by their order alone.
        if (may_be_cut(node.status) || may_be_cut(seen.status))
            && node.ended.is_some_and(|ended| whole.fails_around(path, ended))
        {
            continue;
        }
        if seen.status != node.status {
            why.push(format!(
                "after the crash `{path}` is {}, not {}",
                word(&seen.status),
                word(&node.status)
            ));
        }
        let (before, after) =
            (node.output.as_deref().map(comparable), seen.output.as_deref().map(comparable));
        if before != after {
            let text = |value: Option<Value>| value.map_or_else(String::new, |value| lines(&value));
            let diff = difference("without the crash", &text(before), "after the crash", &text(after));
            why.push(format!("after the crash `{path}` gives another output:\n{diff}"));
        }
    }
    why
}
