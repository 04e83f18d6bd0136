//! A worker: it decides for sessions and runs their attempts, as activities of a Temporal server.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inspan_engine::Clock;
use inspan_protocol::{ErrorCode, ErrorKind, SessionId};
use temporalio_client::{Client, tonic::IntoRequest};
use temporalio_common::protos::temporal::api::workflowservice::v1::GetSystemInfoRequest;
use temporalio_macros::activities;
use temporalio_sdk::{
    ApplicationFailure, Runtime, Worker, WorkerOptions,
    activities::{ActivityContext, ActivityError},
    runtime::PollerBehavior,
    runtime::worker_tuner::{FixedSizeSlotSupplier, TunerHolder, WorkerTuner},
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    attempt::{AttemptError, AttemptRunner},
    cluster::{Cluster, EngineError},
    decide::{Decider, Decision, LostAttempt, Refused, RunningAttempt, SessionHost},
    log::SharedLog,
    workflow::{
        AttemptInput, DecideInput, DecideOutput, MachineRefusal, NEVER_BEGAN, STOPPED, SessionWorkflow, UNFIT,
    },
};

/// The pool of the nodes that name none.
pub const DEFAULT_POOL: &str = "default";
/// How often an attempt reports to the server that it is alive, at the longest. It is also how long a cancellation
/// may take.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// For how many sessions a worker decides at once.
const DECISIONS: usize = 100;
/// How many tasks a worker asks for at once. The server gives each such call a task even if the worker is frozen or its
/// network is gone, and notices that only when the task's time is over: so they are few.
const POLLS: PollerBehavior = PollerBehavior::SimpleMaximum(2);
/// How long attempts that are given to other workers may take to end.
const GRACE: Duration = Duration::from_secs(20);

/// How long a worker keeps the slot of an attempt that its machine cannot run, at most: it would take the next one at once, and
/// all that others are too busy for.
const LONGEST_REFUSAL: Duration = Duration::from_secs(10);
/// How often an attempt is refused at most while other machines are there.
const MOST_REFUSALS: u32 = 200;

/// How many attempts of one session the server has at once. With more than 2 000 it refuses them all.
const MOST_AT_ONCE: usize = 1_000;

/// What who decides does for the server.
pub(crate) struct Decisions {
    decider: Decider,
    cluster: Cluster,
    clock: Arc<dyn Clock>,
}

/// What a worker does for the server.
#[derive(Clone)]
pub(crate) struct Attempts {
    attempts: Arc<AttemptRunner>,
    /// Since when the server has not answered.
    silent: watch::Receiver<Option<Instant>>,
    heartbeat: Duration,
    /// The worker stops: attempts end, and other workers run them.
    stopping: CancellationToken,
    /// How many attempts in a row this machine could not run.
    refusals: Arc<AtomicU32>,
}

impl Attempts {
    /// Runs an attempt. One that this machine cannot run keeps its slot for a while, longer each time.
    async fn run(
        &self,
        session: &SessionId,
        attempt: &RunningAttempt,
        leave: &CancellationToken,
    ) -> Result<(), AttemptError> {
        let ended = self.attempts.run(session, attempt, leave.clone()).await;
        match ended {
            Err(AttemptError::Unfit { .. }) => {
                let before = self.refusals.fetch_add(1, Ordering::Relaxed);
                let pause = Duration::from_secs(1 << before.min(4)).min(LONGEST_REFUSAL);
                let _left = tokio::time::timeout(pause, leave.cancelled()).await;
            }
            _ => self.refusals.store(0, Ordering::Relaxed),
        }
        ended
    }
}

#[activities]
impl Decisions {
    #[activity]
    pub(crate) async fn decide(
        self: Arc<Self>,
        _ctx: ActivityContext,
        mut asked: DecideInput,
    ) -> Result<DecideOutput, ActivityError> {
        if asked.lost.iter().any(|lost| lost.not_taken || lost.refused.is_some()) {
            let status = self.cluster.look(self.clock.now()).await;
            let workers = status.map_err(|error| failure(&error.to_string()))?.workers;
            for lost in &mut asked.lost {
                wait_if_busy(lost, &workers);
                offer_to_others(lost, &workers);
            }
        }
        if asked.anew {
            self.decider.forget(&asked.session).await;
        }
        match self.decider.decide(&asked.session, &asked.lost, asked.stop.as_deref()).await {
            Ok(decision) => Ok(news(decision, asked)),
            Err(error) => {
                tracing::warn!(session = %asked.session, %error, "nothing could be decided");
                Err(failure(&error.to_string()))
            }
        }
    }
}

/// What the workflow does not know of a decision. Attempts for which there is no room are named again once others have ended.
fn news(decision: Decision, asked: DecideInput) -> DecideOutput {
    let room = MOST_AT_ONCE.saturating_sub(asked.known.len());
    let [mut known, ending] = [asked.known, asked.ending].map(HashSet::<String>::from_iter);
    let begun = decision.running.into_iter().filter(|attempt| !known.contains(&attempt.name()));
    let running: Vec<RunningAttempt> = begun.take(room).collect();
    known.extend(running.iter().map(RunningAttempt::name));
    let is_news = |name: &String| known.contains(name) && !ending.contains(name);
    DecideOutput {
        running,
        ending: decision.ending.into_iter().filter(is_news).collect(),
        wake_in_ms: decision.wake_in.map(|time| time.as_millis() as u64),
        has_ended: decision.has_ended,
    }
}

#[activities]
impl Attempts {
    #[activity]
    pub(crate) async fn attempt(
        self: Arc<Self>,
        ctx: ActivityContext,
        input: AttemptInput,
    ) -> Result<(), ActivityError> {
        let AttemptInput { session, attempt } = input;
        let leave = CancellationToken::new();
        let mut work = std::pin::pin!(self.run(&session, &attempt, &leave));
        let began = Instant::now();
        let mut beat = interval(HEARTBEAT.min(self.heartbeat / 4));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                ended = &mut work => break ended,
                () = ctx.cancelled(), if !leave.is_cancelled() => leave.cancel(),
                () = self.stopping.cancelled(), if !leave.is_cancelled() => leave.cancel(),
                _ = beat.tick() => {
                    // It says `Ok` also if the server is away; that is what `silent` is for.
                    let _sent = ctx.record_heartbeat(()).await;
                    let since = *self.silent.borrow();
                    // The server counts this worker as lost soon: no other may find the agent still at work.
                    // An attempt that came from the server shows that it answered then.
                    let is_silent = since.is_some_and(|since| since.max(began).elapsed() > self.heartbeat * 3 / 4);
                    if is_silent && !leave.is_cancelled() {
                        tracing::warn!(%session, attempt = attempt.name(), "the server does not answer: the attempt is given up");
                        leave.cancel();
                    }
                }
            }
        };
        ended.map_err(|error| {
            match &error {
                AttemptError::WorkerStops | AttemptError::NeverBegan => {}
                AttemptError::Unfit { .. } => {
                    tracing::warn!(%session, attempt = attempt.name(), %error, "the attempt is given back");
                }
                error => tracing::warn!(%session, attempt = attempt.name(), %error, "the attempt has no end"),
            }
            let refusal = match &error {
                AttemptError::Unfit { machine, why } => Some(MachineRefusal {
                    machine: machine.clone(),
                    code: why.code,
                    is_full: why.is(ErrorKind::DiskFull),
                }),
                _ => None,
            };
            let kind = match error {
                AttemptError::Unfit { .. } => UNFIT,
                AttemptError::NeverBegan => NEVER_BEGAN,
                // The attempt has not brought its worker down: that stops, or has lost the server or the log for too long.
                AttemptError::WorkerStops | AttemptError::Log(_) => STOPPED,
                error => return failure(&error.to_string()),
            };
            let failed = ApplicationFailure::builder(anyhow::anyhow!(error)).type_name(kind.to_owned());
            failed.maybe_details(refusal).build().into()
        })
    }
}

fn failure(message: &str) -> ActivityError {
    ApplicationFailure::new(anyhow::anyhow!(message.to_owned())).into()
}

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// How many attempts it runs at once, of each queue that it takes them from.
    pub slots: usize,
    /// The name of this machine. Machines that share the folders of agents and of flows may share a name.
    pub machine: String,
    /// The name that it had for older versions of this program: conversations that began with them are there by that name.
    pub former: Option<String>,
    /// The pools that it takes attempts of; [`DEFAULT_POOL`](crate::DEFAULT_POOL) is that of nodes without one.
    pub pools: Vec<String>,
    /// A folder of this machine for the locks of running attempts.
    pub locks: PathBuf,
}

impl WorkerSettings {
    /// The name of the worker at the server: it is what people see there.
    fn identity(&self) -> String {
        let Self { slots, machine, pools, .. } = self;
        let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
        format!("{machine}, process {process}, inspan {version}, pools {}, {slots} slots", pools.join(" "))
    }
}

/// An attempt waits on for a machine that was only busy: one of its workers is at the server, by these names.
fn wait_if_busy(lost: &mut LostAttempt, workers: &[String]) {
    let machine = lost.attempt.machine.as_deref().filter(|_| lost.not_taken);
    let is_alive = |machine: &str| workers.iter().any(|worker| is_on(worker, machine));
    if machine.is_some_and(is_alive) {
        lost.given_up = None;
    }
}

/// An attempt that machines have refused waits for another one, if a worker there takes it, by these names; it fails at once
/// if there is none, and all of them lack something.
fn offer_to_others(lost: &mut LostAttempt, workers: &[String]) {
    let Some(Refused { why, code, by, times, is_full }) = &lost.refused else { return };
    let may_take = |worker: &&String| match AttemptQueue::of(&lost.attempt) {
        AttemptQueue::Machine(machine) => is_on(worker, machine),
        AttemptQueue::Pool(pool) => is_of_pool(worker, pool),
    };
    let takers: Vec<_> = workers.iter().filter(may_take).collect();
    let are_others = !takers.iter().all(|worker| by.iter().any(|machine| is_on(worker, machine)));
    // Of several workers of a machine one may have what another one lacks.
    let are_asked = (1..=*times as usize).contains(&takers.len());
    match are_others {
        true if *times < MOST_REFUSALS => lost.given_up = None,
        // Somebody makes space.
        false if *is_full && *times < MOST_REFUSALS => lost.given_up = None,
        false if *code == ErrorCode::ConfigMissing && are_asked => lost.given_up = Some(why.clone()),
        _ => {}
    }
}

/// Whether a worker, by its name at the server, takes attempts of this pool.
fn is_of_pool(worker: &str, pool: &str) -> bool {
    let pools = worker.rsplit_once(", pools ").and_then(|(_, rest)| rest.split_once(','));
    pools.is_some_and(|(pools, _)| pools.split(' ').any(|one| one == pool))
}

/// Whether a worker, by its name at the server, works on this machine.
fn is_on(worker: &str, machine: &str) -> bool {
    worker.strip_prefix(machine).is_some_and(|rest| rest.starts_with(", process "))
}

/// Works for a cluster until `stop` is cancelled: then it takes nothing new, and gives its attempts to other workers.
pub async fn run_worker(
    cluster: &Cluster,
    log: SharedLog,
    host: Arc<dyn SessionHost>,
    clock: Arc<dyn Clock>,
    settings: WorkerSettings,
    stop: CancellationToken,
) -> Result<(), EngineError> {
    let client = cluster.connect_as(settings.identity()).await?;
    let (sender, silent) = watch::channel(None);
    let heartbeat = cluster.heartbeat();
    let watching = CancellationToken::new();
    let _watching = watching.clone().drop_guard();
    tokio::spawn(watch_server(client.clone(), sender, heartbeat, watching));
    let waking = (client.clone(), cluster.clone());
    let notify = Arc::new(move |session: SessionId| {
        let (client, cluster) = waking.clone();
        Box::pin(async move {
            // What the session must decide is in the log; it is decided at the latest when the attempt ends.
            if let Err(error) = cluster.notify(&client, &session).await {
                tracing::warn!(%session, %error, "the session was not woken");
            }
        }) as futures::future::BoxFuture<'static, ()>
    });
    let stopping = CancellationToken::new();
    let attempts = Attempts {
        attempts: Arc::new(AttemptRunner::new(
            log.clone(),
            settings.machine.clone(),
            Arc::clone(&host),
            Arc::clone(&clock),
            notify,
            settings.locks.clone(),
        )),
        silent,
        heartbeat,
        stopping: stopping.clone(),
        refusals: Arc::default(),
    };
    let decider = Decider::new(log, host, Arc::clone(&clock));
    let decisions = Decisions { decider, cluster: cluster.clone(), clock };
    let failed = |error: &dyn std::fmt::Display| EngineError::Worker(error.to_string());
    let runtime = Runtime::from_current_tokio(Default::default()).map_err(|error| failed(&error))?;
    let mut options = WorkerOptions::new(cluster.queue())
        .register_activities(decisions)
        .register_workflow::<SessionWorkflow>()
        .map_err(|error| failed(&error))?
        .tuner(slots(DECISIONS))
        .build();
    options.sticky_queue_schedule_to_start_timeout = Duration::from_millis(500);
    options.workflow_task_poller_behavior = Some(POLLS);
    let mut workers = vec![Worker::new(&runtime, client.clone(), options).map_err(|error| failed(&error))?];
    let pools = settings.pools.iter().map(|pool| AttemptQueue::Pool(pool));
    let machines = [&settings.machine].into_iter().chain(&settings.former);
    for queue in pools.chain(machines.map(|name| AttemptQueue::Machine(name))) {
        let mut options = WorkerOptions::new(queue.name(cluster.queue()))
            .register_activities(attempts.clone())
            .tuner(slots(settings.slots))
            .graceful_shutdown_period(GRACE)
            .build();
        options.max_heartbeat_throttle_interval = HEARTBEAT / 2;
        options.activity_task_poller_behavior = Some(POLLS);
        workers.push(Worker::new(&runtime, client.clone(), options).map_err(|error| failed(&error))?);
    }
    let shutdowns: Vec<_> = workers.iter().map(Worker::shutdown_handle).collect();
    let ending = async {
        stop.cancelled().await;
        shutdowns.iter().for_each(|shutdown| shutdown());
        stopping.cancel();
        std::future::pending::<()>().await
    };
    let work = futures::future::try_join_all(workers.iter_mut().map(Worker::run));
    tokio::select! {
        ended = work => ended.map(drop).map_err(|error| failed(&error)),
        () = ending => Ok(()),
    }
}

/// So many attempts at once; decisions are short.
fn slots(attempts: usize) -> WorkerTuner {
    let decisions = FixedSizeSlotSupplier::new(DECISIONS);
    TunerHolder::builder()
        .workflow_task_slot_supplier(decisions)
        .activity_task_slot_supplier(FixedSizeSlotSupplier::new(attempts))
        .local_activity_task_slot_supplier(decisions)
        .nexus_task_slot_supplier(FixedSizeSlotSupplier::new(1))
        .build()
        .into()
}

/// Notes since when the server has not answered.
async fn watch_server(
    client: Client,
    silent: watch::Sender<Option<Instant>>,
    heartbeat: Duration,
    stop: CancellationToken,
) {
    let pause = (heartbeat / 8).max(Duration::from_millis(100));
    let work = async {
        loop {
            let asked = Instant::now();
            let mut service = client.connection().workflow_service();
            let request = GetSystemInfoRequest::default().into_request();
            let answered = tokio::time::timeout(pause * 2, service.get_system_info(request)).await;
            let is_silent = !matches!(answered, Ok(Ok(_)));
            silent.send_if_modified(|since| {
                let was = *since;
                *since = is_silent.then(|| was.unwrap_or(asked));
                was != *since
            });
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! { () = work => {}, () = stop.cancelled() => {} }
}

/// Who takes an attempt: the task queue for attempts of a pool or of a machine. One more queue is for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptQueue<'a> {
    /// Any worker of a pool.
    Pool(&'a str),
    /// The workers of one machine.
    Machine(&'a str),
}

impl<'a> AttemptQueue<'a> {
    pub(crate) fn of(attempt: &'a RunningAttempt) -> Self {
        match &attempt.machine {
            Some(machine) => Self::Machine(machine),
            None => Self::Pool(attempt.pool.as_deref().unwrap_or(DEFAULT_POOL)),
        }
    }

    /// The name of the task queue, from that of the decisions.
    pub(crate) fn name(self, decisions: &str) -> String {
        match self {
            Self::Pool(DEFAULT_POOL) => format!("{decisions}.attempts"),
            Self::Pool(pool) => format!("{decisions}.pool.{pool}"),
            Self::Machine(machine) => format!("{decisions}.on.{machine}"),
        }
    }

    /// The machine whose workers alone take from a task queue of this name.
    pub(crate) fn machine(name: &'a str, decisions: &str) -> Option<&'a str> {
        name.strip_prefix(decisions)?.strip_prefix(".on.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspan_protocol::NodePath;

    use crate::log::{AttemptKey, LogPosition};

    #[test]
    fn a_machine_that_is_busy_is_waited_for_and_one_that_is_gone_is_not() {
        let settings = |machine: &str| WorkerSettings {
            slots: 1,
            machine: machine.to_owned(),
            former: None,
            pools: vec!["gpu".to_owned()],
            locks: PathBuf::new(),
        };
        let workers = ["m1-a", "m2"].map(|machine| settings(machine).identity());
        let lost = |machine: &str, not_taken| LostAttempt {
            given_up: Some("why".to_owned()),
            not_taken,
            ..RunningAttempt {
                key: AttemptKey { path: NodePath::new("x"), attempt: 1 },
                begun: LogPosition::default(),
                machine: Some(machine.to_owned()),
                pool: None,
                only_waits: false,
            }
            .into()
        };
        for (machine, not_taken, waits) in [("m2", true, true), ("m1", true, false), ("m2", false, false)] {
            let mut lost = lost(machine, not_taken);
            wait_if_busy(&mut lost, &workers);
            assert_eq!(lost.given_up.is_none(), waits, "{machine}");
        }
    }

    #[test]
    fn an_attempt_that_a_machine_refuses_is_offered_to_the_others_that_take_its_pool() {
        let worker = |machine: &str, pools: &[&str]| {
            WorkerSettings {
                slots: 2,
                machine: machine.to_owned(),
                former: None,
                pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
                locks: PathBuf::new(),
            }
            .identity()
        };
        let workers = [worker("m1", &["default"]), worker("m2", &["gpu", "default"]), worker("m3", &["gpu"])];
        let lost = |by: &[&str], pool: Option<&str>, machine: Option<&str>, code, times| LostAttempt {
            given_up: (times >= 9).then(|| "why".to_owned()),
            is_unfit: true,
            refused: Some(Refused {
                why: "why".to_owned(),
                code,
                by: by.iter().map(|machine| (*machine).to_owned()).collect(),
                times,
                is_full: false,
            }),
            ..RunningAttempt {
                key: AttemptKey { path: NodePath::new("x"), attempt: 1 },
                begun: LogPosition::default(),
                machine: machine.map(str::to_owned),
                pool: pool.map(Into::into),
                only_waits: false,
            }
            .into()
        };
        use ErrorCode::{ConfigMissing, Process};
        let rows = [
            (lost(&["m1"], None, None, ConfigMissing, 1), false),
            (lost(&["m1"], None, None, Process, 9), false),
            (lost(&["m1"], None, None, Process, MOST_REFUSALS), true),
            // Nobody else takes it.
            (lost(&["m1", "m2"], None, None, ConfigMissing, 2), true),
            (lost(&["m1", "m2"], None, None, ConfigMissing, 1), false),
            (lost(&["m1", "m2"], None, None, Process, 8), false),
            (lost(&["m1", "m2"], None, None, Process, 9), true),
            (lost(&["m2"], Some("gpu"), None, ConfigMissing, 1), false),
            (lost(&["m2", "m3"], Some("gpu"), None, ConfigMissing, 2), true),
            // Nobody is there at the moment.
            (lost(&["m1"], Some("cpu"), None, ConfigMissing, 1), false),
            (lost(&["m1"], None, Some("m1"), ConfigMissing, 1), true),
        ];
        for (number, (mut lost, is_given_up)) in rows.into_iter().enumerate() {
            offer_to_others(&mut lost, &workers);
            assert_eq!(lost.given_up.is_some(), is_given_up, "{number}");
        }
        // The only machine has a full disk, and somebody may make space.
        for (times, is_given_up) in [(9, false), (MOST_REFUSALS, true)] {
            let mut lost = lost(&["m1", "m2"], None, None, Process, times);
            lost.refused.as_mut().unwrap().is_full = true;
            offer_to_others(&mut lost, &workers);
            assert_eq!(lost.given_up.is_some(), is_given_up, "{times}");
        }
    }

    #[test]
    fn the_server_is_given_no_more_attempts_than_it_takes() {
        let attempt = |attempt: u32| RunningAttempt {
            key: AttemptKey { path: NodePath::new("each/x"), attempt },
            begun: LogPosition::default(),
            machine: None,
            pool: None,
            only_waits: false,
        };
        let given = |running: std::ops::Range<u32>, known: Vec<RunningAttempt>| {
            let running = running.map(attempt).collect();
            let known = known.iter().map(RunningAttempt::name).collect();
            let ending = [1, 1_001, 2_000].map(|number| attempt(number).name()).to_vec();
            let decision = Decision { running, ending, wake_in: None, has_ended: false };
            let (lost, ending) = (Vec::new(), vec![attempt(1).name()]);
            let asked = DecideInput { session: "s".into(), lost, stop: None, known, ending, anew: false };
            let news = news(decision, asked);
            (news.running, news.ending)
        };
        let (first, ending) = given(0..3_000, Vec::new());
        assert_eq!((first.len(), ending.len()), (MOST_AT_ONCE, 0));
        // The first three have ended. What is to end and was never given is given first.
        let (next, ending) = given(3..3_000, first[3..].to_vec());
        assert_eq!(next, [1_000, 1_001, 1_002].map(attempt));
        assert_eq!(ending, [attempt(1_001).name()]);
    }
}
