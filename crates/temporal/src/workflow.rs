//! A session as a Temporal workflow: it asks for a decision, keeps the attempts running that the decision names, and asks
//! again when one ends, when somebody wakes it, or when it is time. What a session does is decided by an activity, from the
//! log; so this code decides nothing, and its history holds only names, and why a machine could not do something.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    pin::Pin,
    task::Poll,
    time::{Duration, SystemTime},
};

use futures::{
    FutureExt,
    future::{Either, Future, poll_fn},
};
use inspan_protocol::{ErrorCode, SessionId};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use temporalio_client::{WorkflowFetchHistoryOptions, WorkflowHistory};
use temporalio_common::{
    RetryPolicy,
    error::{IncomingError, TimeoutType},
};
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::{
    ActivityCancellationType, ActivityExecutionError, ActivityOptions, ContinueAsNewOptions,
    LocalActivityOptions, SyncWorkflowContext, TimerOptions, WaitConditionOptions, WorkflowCancellationToken,
    WorkflowContext, WorkflowResult,
    workflow_replayer::{WorkflowReplayer, WorkflowReplayerOptions},
    workflows::select,
};

// The macros name it.
use temporalio_workflow as _;

use crate::{
    cluster::{Cluster, EngineError, LONGEST_HISTORY, may_begin},
    decide::{LostAttempt, Refused, RunningAttempt},
    log::LogPosition,
    worker::AttemptQueue,
    worker::{Attempts, Decisions},
};

/// How long an attempt may take at most: agents work for hours, and what hangs is ended by the flow's own limits.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How long one decision may take before another worker makes it. A long log is read from its beginning.
const LONGEST_DECISION: Duration = Duration::from_secs(120);
/// From how many history events on a session that runs nothing continues in a new history.
const LONG_HISTORY: u32 = 4_000;
/// What a history says of this program that goes on up to [`LONGEST_HISTORY`].
const GOES_ON: &str = "begins until 45000";
/// How long an attempt waits for the one machine that can run it.
const MACHINE: Duration = Duration::from_secs(30 * 60);
/// How often an attempt of one place may be lost in one history before it fails.
const LOSSES: u32 = 20;

/// The longest id that the server takes, in bytes.
const LONGEST_ID: usize = 1_000;

/// How often in a row the same worker is asked again that could not decide.
const SAME_WORKER: u32 = 1;

/// How long the session may not have seen the end of an attempt, before that counts as lost for good.
const UNSEEN: Duration = Duration::from_secs(4 * 60);
/// The longest pause between two looks for such an end. The pauses grow with the time.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
/// What a history says of this program that waits for such an end and does not begin the attempt again.
const WAITS_FOR_ENDS: &str = "waits for ends";

/// The type of the failure of an attempt whose worker stopped before it had begun it.
pub(crate) const NEVER_BEGAN: &str = "neverBegan";
/// The type of the failure of an attempt that its worker has ended because it stops.
pub(crate) const STOPPED: &str = "stopped";
/// What a history says of this program that does not count such an end as a loss.
const STOPS_ARE_NO_LOSSES: &str = "stops are no losses";
/// The type of the failure of an attempt that a machine could not run.
pub(crate) const UNFIT: &str = "unfit";
/// How often an attempt of one place may be given up for that before it fails, if no other machine can take it.
const UNFIT_TIMES: u32 = 9;

/// What a machine says that could not run an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MachineRefusal {
    /// Its name.
    pub(crate) machine: String,
    /// The code of why.
    pub(crate) code: ErrorCode,
    /// Whether its disk is full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_full: bool,
}

/// What a workflow is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionInput {
    pub(crate) session: SessionId,
    /// After how many milliseconds without a sign a worker counts as lost.
    pub(crate) heartbeat_ms: u64,
    /// The queue of its decisions; those of attempts are named after it.
    pub(crate) queue: String,
}

/// What is asked of [`Decisions::decide`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DecideInput {
    pub(crate) session: SessionId,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<LostAttempt>,
    /// Why the session is to end, if the workflow was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stop: Option<String>,
    /// The names of the attempts that run, which the answer leaves out: the history has each answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) known: Vec<String>,
    /// The names of those that it has said are to end, which it leaves out too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ending: Vec<String>,
    /// Whether the log is read anew: what was remembered of it lacks the end of an attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) anew: bool,
}

/// What it gives.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DecideOutput {
    /// The attempts that must be running, and are not known to.
    pub(crate) running: Vec<RunningAttempt>,
    /// The names of attempts that are to end, also of those that no worker has taken yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ending: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wake_in_ms: Option<u64>,
    pub(crate) has_ended: bool,
}

/// What is asked of [`Attempts::attempt`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttemptInput {
    pub(crate) session: SessionId,
    pub(crate) attempt: RunningAttempt,
}

/// A session. Its state is in the log; here is only whether it was notified.
#[workflow]
#[derive(Default)]
pub(crate) struct SessionWorkflow {
    is_woken: bool,
}

/// An attempt that a worker has, or will have.
struct Flight {
    attempt: RunningAttempt,
    /// Has the server end it if no worker has taken it. A worker that has takes its end from the log.
    cancel: WorkflowCancellationToken,
    end: Pin<Box<dyn Future<Output = Result<(), ActivityExecutionError>>>>,
}

/// How often attempts of one place came to no end in one history.
#[derive(Default)]
struct Tries {
    all: u32,
    /// How often a machine could not run one.
    unfit: u32,
    /// How often one was lost that had begun.
    lost: u32,
    /// The machines that could not run one.
    machines: BTreeSet<String>,
}

impl Tries {
    /// Counts one more. Why the attempt is given up, if it is; `unfit` is why a machine could not run it.
    fn give_up(&mut self, unfit: Option<&String>, is_unfit: bool, error: &dyn Display) -> Option<String> {
        self.all += 1;
        self.unfit += u32::from(unfit.is_some());
        // What was refused brought no worker down.
        self.lost += u32::from(!is_unfit);
        match unfit {
            Some(why) => (self.unfit >= UNFIT_TIMES).then(|| why.clone()),
            None => (self.lost > LOSSES).then(|| format!("it was lost {} times: {error}", self.lost)),
        }
    }
}

#[workflow_methods]
impl SessionWorkflow {
    #[run]
    pub(crate) async fn run(ctx: &mut WorkflowContext<Self>, input: SessionInput) -> WorkflowResult<()> {
        let mut flights: BTreeMap<String, Flight> = BTreeMap::new();
        let mut lost: Vec<LostAttempt> = Vec::new();
        let mut places: BTreeMap<String, Tries> = BTreeMap::new();
        let mut stop = None;
        let mut is_cancelled = false;
        let mut has_warned = false;
        let mut undecided = 0;
        // The attempts that have ended, by their beginnings, and since when the session does not know that of one.
        let mut ended_attempts: BTreeSet<(String, LogPosition)> = BTreeSet::new();
        let mut unseen_since: Option<SystemTime> = None;
        loop {
            ctx.state_mut(|state| state.is_woken = false);
            let asked = DecideInput {
                session: input.session.clone(),
                lost: lost.clone(),
                stop: stop.clone(),
                known: flights.keys().cloned().collect(),
                ending: names_of_ending(&flights),
                anew: unseen_since.is_some(),
            };
            let Ok(decided) = ctx.execute_local_activity(Decisions::decide, asked, decision()).await else {
                // This worker could not decide. If it still cannot, its settings may be broken, or its version too old: a task
                // that fails goes to any worker, and one that has succeeded to the same.
                undecided += 1;
                // An older version has gone on here: its history says so.
                if undecided > SAME_WORKER && !ctx.is_replaying() {
                    ctx.force_task_fail("this worker cannot decide what the session does");
                    std::future::pending::<()>().await;
                }
                ctx.timer(
                    TimerOptions::builder(Duration::from_secs(5)).cancellation_token(detached()).build(),
                )
                .await;
                continue;
            };
            (lost, stop, undecided) = (Vec::new(), None, 0);
            if decided.has_ended {
                return Ok(());
            }
            let has_ended =
                |attempt: &RunningAttempt| ended_attempts.contains(&(attempt.name(), attempt.begun));
            let (unseen, running): (Vec<_>, Vec<_>) = decided.running.into_iter().partition(has_ended);
            // An older version has begun it again: its history says so.
            let (unseen, running) = match unseen.is_empty() || ctx.patched(WAITS_FOR_ENDS) {
                true => (unseen, running),
                false => (Vec::new(), unseen.into_iter().chain(running).collect()),
            };
            let history = ctx.history_length();
            // The new history knows of no attempt that has ended.
            if flights.is_empty()
                && unseen.is_empty()
                && history >= LONG_HISTORY
                && !ctx.state(|state| state.is_woken)
                && !is_cancelled
            {
                ctx.continue_as_new(input.clone(), ContinueAsNewOptions::default())?;
            }
            let now = ctx.workflow_time();
            unseen_since = unseen_since.or(now).filter(|_| !unseen.is_empty());
            let unseen_for = unseen_since.and_then(|since| now?.duration_since(since).ok());
            if unseen_for.is_some_and(|time| time > UNSEEN) {
                unseen_since = None;
                let why = "it has ended, and its end is not in the log of the session: the folder or bucket of the sessions loses what is written, or shows it late";
                lost.extend(
                    unseen
                        .into_iter()
                        .map(|attempt| LostAttempt { given_up: Some(why.to_owned()), ..attempt.into() }),
                );
                continue;
            }
            let look =
                unseen_for.map(|time| time.clamp(Duration::from_secs(1), LONGEST_LOOK).as_millis() as u64);
            let wake_in_ms = decided.wake_in_ms.into_iter().chain(look).min();
            if may_begin(history, || goes_on(ctx, &input, &mut has_warned)) {
                for attempt in running {
                    flights.entry(attempt.name()).or_insert_with(|| begin(ctx, &input, attempt));
                }
            }
            // The order is that of the answer, which a replay has too.
            decided
                .ending
                .iter()
                .filter_map(|name| flights.get(name))
                .for_each(|flight| flight.cancel.cancel());
            let timer_token = detached();
            let timer = match wake_in_ms {
                Some(ms) => {
                    let in_time = Duration::from_millis(ms.max(1));
                    let options =
                        TimerOptions::builder(in_time).cancellation_token(timer_token.clone()).build();
                    Either::Left(ctx.timer(options))
                }
                None => Either::Right(std::future::pending()),
            };
            let ended = {
                // In the order of their names, so that a replay polls them in the same order.
                let mut any = poll_fn(|cx| {
                    for (name, flight) in &mut flights {
                        if let Poll::Ready(end) = flight.end.as_mut().poll(cx) {
                            return Poll::Ready((name.clone(), end));
                        }
                    }
                    Poll::Pending
                })
                .fuse();
                let options = WaitConditionOptions::builder().cancellation_token(detached()).build();
                let mut woken =
                    Box::pin(ctx.wait_condition_with_options(|state| state.is_woken, options).fuse());
                let mut timer = Box::pin(timer.fuse());
                let was_cancelled = is_cancelled;
                let mut cancelled = match was_cancelled {
                    true => Either::Left(futures::future::pending()),
                    false => Either::Right(Box::pin(ctx.cancelled())),
                };
                select! {
                    ended = any => Some(ended),
                    _ = woken => None,
                    _ = timer => None,
                    reason = cancelled => {
                        is_cancelled = true;
                        stop = Some(reason.unwrap_or_else(|| "the workflow was cancelled".to_owned()));
                        None
                    }
                }
            };
            timer_token.cancel();
            if let Some((name, end)) = ended
                && let Some(flight) = flights.remove(&name)
            {
                let Err(error) = end else {
                    ended_attempts.insert((name, flight.attempt.begun));
                    continue;
                };
                if matches!(error, ActivityExecutionError::Cancelled(_)) {
                    // Workers never say that.
                    lost.push(LostAttempt { never_began: true, ..flight.attempt.into() });
                    continue;
                }
                if let Some(machine) = flight.attempt.machine.as_ref().filter(|_| was_not_taken(&error)) {
                    let why = format!(
                        "no worker on `{machine}` took it within {MACHINE:?}, and its agent's conversation is only there"
                    );
                    let not_taken = true;
                    lost.push(LostAttempt { given_up: Some(why), not_taken, ..flight.attempt.into() });
                    continue;
                }
                let is_stopped = failed_as(STOPPED, &error).is_some();
                // An older version has counted it: its history says so.
                if is_stopped && ctx.patched(STOPS_ARE_NO_LOSSES) {
                    lost.push(LostAttempt { is_stopped, ..flight.attempt.into() });
                    continue;
                }
                let unfit = failed_as(UNFIT, &error);
                let is_unfit = unfit.is_some() || failed_as(NEVER_BEGAN, &error).is_some();
                let tries = places.entry(flight.attempt.key.path.to_string()).or_default();
                let given_up = tries.give_up(unfit.as_ref(), is_unfit, &error);
                let refused = unfit.clone().zip(refusal(&error)).map(
                    |(why, MachineRefusal { machine, code, is_full })| {
                        tries.machines.insert(machine);
                        Refused { why, code, by: tries.machines.clone(), times: tries.unfit, is_full }
                    },
                );
                if tries.all > 2 {
                    // A worker that loses everything at once must not turn this into a busy loop.
                    let unit = if unfit.is_some() { 1000 } else { 250 };
                    // A machine that has refused it has paused itself.
                    let most = if refused.is_some() { 3 } else { LOSSES };
                    let pause = Duration::from_millis(unit * u64::from(tries.all.min(most)));
                    ctx.timer(TimerOptions::builder(pause).cancellation_token(detached()).build()).await;
                }
                lost.push(LostAttempt { given_up, is_unfit, refused, is_stopped, ..flight.attempt.into() });
            }
        }
    }

    #[signal]
    pub(crate) fn wake(&mut self, _ctx: &mut SyncWorkflowContext<Self>, _nothing: ()) {
        self.is_woken = true;
    }
}

/// The history of a session's workflow as the server has it, in the JSON that [`replay_history`] reads.
pub async fn recorded_history(cluster: &Cluster, session: &SessionId) -> Result<Vec<u8>, EngineError> {
    let client = cluster.connect().await?;
    let handle = client.get_workflow_handle::<SessionWorkflow>(session.as_str());
    let history = handle.fetch_history(WorkflowFetchHistoryOptions::default()).to_json().await;
    history.map_err(|error| EngineError::Server { server: cluster.name(), why: error.to_string() })
}

/// Repeats what a session did by a recorded history of its workflow. An error says where this program would do something
/// else: sessions that are under way could not continue with it.
pub async fn replay_history(history: &[u8]) -> Result<(), String> {
    let history = WorkflowHistory::from_json(history).map_err(|error| error.to_string())?;
    let options = WorkflowReplayerOptions::new().register_workflow::<SessionWorkflow>();
    let options = options.map_err(|error| error.to_string())?.build();
    let replayer = WorkflowReplayer::new(options).map_err(|error| error.to_string())?;
    replayer.replay_workflow(history).await.map_err(|error| error.to_string())
}

/// What the machine that took an attempt says about a failure of this type.
fn failed_as(kind: &str, error: &ActivityExecutionError) -> Option<String> {
    match error.cause() {
        Some(IncomingError::Application(failed)) if failed.type_name() == Some(kind) => {
            Some(failed.to_string())
        }
        _ => None,
    }
}

/// The machine that could not run an attempt; workers of older versions do not say.
fn refusal(error: &ActivityExecutionError) -> Option<MachineRefusal> {
    match error.cause() {
        Some(IncomingError::Application(failed)) => failed.details().ok().flatten(),
        _ => None,
    }
}

/// Whether no worker took an attempt in time.
fn was_not_taken(error: &ActivityExecutionError) -> bool {
    error.as_timeout().is_some_and(|timeout| timeout.timeout_type() == TimeoutType::ScheduleToStart)
}

/// Whether the session goes on in a very long history, which is warned of once.
fn goes_on(ctx: &WorkflowContext<SessionWorkflow>, input: &SessionInput, has_warned: &mut bool) -> bool {
    if !std::mem::replace(has_warned, true) && !ctx.is_replaying() {
        tracing::warn!(
            session = %input.session,
            "the history is very long, and a new one begins only once nothing runs: after {LONGEST_HISTORY} events nothing begins until then"
        );
    }
    ctx.patched(GOES_ON)
}

fn names_of_ending(flights: &BTreeMap<String, Flight>) -> Vec<String> {
    let ending = flights.iter().filter(|(_, flight)| flight.cancel.is_cancelled());
    ending.map(|(name, _)| name.clone()).collect()
}

/// A token that the cancellation of the workflow does not cancel: a session that is stopped still has something to do.
fn detached() -> WorkflowCancellationToken {
    WorkflowCancellationToken::new()
}

fn decision() -> LocalActivityOptions {
    LocalActivityOptions::builder()
        .start_to_close_timeout(LONGEST_DECISION)
        .retry_policy(
            RetryPolicy::builder()
                .initial_interval(Duration::from_millis(100))
                .backoff_coefficient(2.0)
                .maximum_interval(Duration::from_secs(10))
                .maximum_attempts(8)
                .build(),
        )
        .cancellation_token(detached())
        .build()
}

/// What the server knows an attempt of this name by: its name, or a hash in place of one that is too long for the server.
fn activity_id(name: String) -> String {
    match name.len() <= LONGEST_ID {
        true => name,
        false => Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn begin(ctx: &WorkflowContext<SessionWorkflow>, input: &SessionInput, attempt: RunningAttempt) -> Flight {
    // A lost attempt is not tried again by the server: the session says how it continues.
    let once = RetryPolicy::builder().maximum_attempts(1).build();
    let cancel = detached();
    let options = ActivityOptions::with_start_to_close_timeout(LONGEST_ATTEMPT)
        .activity_id(activity_id(attempt.name()))
        .task_queue(AttemptQueue::of(&attempt).name(&input.queue))
        .maybe_schedule_to_start_timeout(attempt.machine.as_ref().map(|_| MACHINE))
        .heartbeat_timeout(Duration::from_millis(input.heartbeat_ms))
        .cancellation_type(ActivityCancellationType::WaitCancellationCompleted)
        .cancellation_token(cancel.clone())
        .retry_policy(once)
        .build();
    let given = AttemptInput { session: input.session.clone(), attempt: attempt.clone() };
    let ctx = ctx.clone();
    // The command is given at the first poll, so in the order of the names.
    let end = Box::pin(async move { ctx.execute_activity(Attempts::attempt, given, options).await });
    Flight { attempt, cancel, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_machines_have_refused_is_not_lost() {
        let mut tries = Tries::default();
        let why = "it has no key".to_owned();
        let refused: Vec<_> = (0..50).map(|_| tries.give_up(Some(&why), true, &"")).collect();
        assert_eq!(refused.iter().position(Option::is_some), Some(UNFIT_TIMES as usize - 1));
        let lost: Vec<_> = (0..=LOSSES).map(|_| tries.give_up(None, false, &"died")).collect();
        assert_eq!(lost.iter().flatten().collect::<Vec<_>>(), ["it was lost 21 times: died"]);
        assert_eq!(lost.last(), Some(&Some("it was lost 21 times: died".to_owned())));
    }

    #[test]
    fn the_server_takes_the_name_of_every_attempt() {
        let name = |of: usize| format!("{}.1", "n".repeat(of));
        assert_eq!(activity_id(name(998)), name(998));
        let ids = [activity_id(name(999)), activity_id(name(1_000))];
        assert!(ids.iter().all(|id| id.len() == 64) && ids[0] != ids[1], "{ids:?}");
    }
}
