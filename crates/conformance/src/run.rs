//! Checks one provider against the whole list: several behaviours at a time, each bounded, and then what is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use inspan_model_server::{RecordedRequest, Scenario};
use inspan_protocol::{Environment, Supervisor};
use tokio::time::{Instant, timeout};

use crate::behaviour::{Behaviour, Check};
use crate::behaviours::{BEHAVIOURS, errors};
use crate::finding::{CheckResult, Difference};
use crate::report::{BehaviourOutcome, BehaviourRow, ProviderReport};
use crate::target::{ConformanceTarget, Exception, ExceptionKind};
use crate::test_case::TestCase;
use crate::worker::{self, Worker};

/// How long one behaviour may take.
const LIMIT: Duration = Duration::from_secs(100);
/// So many characters of a request are shown.
const REQUEST_END: usize = 200;
/// The row about what is left behind in the end.
const LEFT: (&str, &str) = ("nothing_left", "leaves no process behind, and the key in no file");

/// The settings of a run of the suite.
#[derive(Clone, Debug, Default)]
pub struct SuiteSettings {
    /// The environment in which programs are searched; no key is taken from it.
    pub env: Environment,
    /// The guard between us and the programs that are started.
    pub supervisor: Option<Supervisor>,
    /// Only the behaviours whose names contain this.
    pub filter: String,
}

impl SuiteSettings {
    /// Whether the filter lets any behaviour through.
    pub fn chooses_any(&self) -> bool {
        self.chosen().next().is_some() || LEFT.0.contains(&self.filter)
    }

    fn chosen(&self) -> impl Iterator<Item = &'static Behaviour> {
        BEHAVIOURS.iter().filter(|behaviour| behaviour.name.contains(&self.filter))
    }
}

/// Checks a provider against the list, and reports the outcome of each row.
pub async fn conform(target: ConformanceTarget, settings: &SuiteSettings) -> ProviderReport {
    let began = Instant::now();
    let chosen: Vec<&'static Behaviour> = settings.chosen().collect();
    let next = AtomicUsize::new(0);
    let workers =
        (0..target.workers.clamp(1, chosen.len().max(1))).map(|_| work(target, settings, &chosen, &next));
    let (rows, ends): (Vec<_>, Vec<CheckResult>) = join_all(workers).await.into_iter().unzip();
    let mut rows: Vec<(usize, BehaviourRow)> = rows.into_iter().flatten().collect();
    rows.sort_by_key(|(index, _)| *index);
    let mut rows: Vec<BehaviourRow> = rows.into_iter().map(|(_, row)| row).collect();
    rows.extend(unknown(target.exceptions));
    let outcome = match ends.into_iter().find_map(Result::err) {
        None if !worker::can_be_listed() => {
            BehaviourOutcome::NotApplicable { reason: "processes cannot be listed on this system".to_owned() }
        }
        None => BehaviourOutcome::Holds,
        Some(finding) => BehaviourOutcome::Failed { finding: finding.to_string() },
    };
    rows.push(BehaviourRow {
        behaviour: LEFT.0.to_owned(),
        sentence: LEFT.1.to_owned(),
        outcome,
        took_ms: 0,
    });
    ProviderReport { provider: target.name(), rows, took_ms: ms(began) }
}

/// One worker: takes the next behaviour while there is one, and then closes.
async fn work(
    target: ConformanceTarget,
    settings: &SuiteSettings,
    chosen: &[&'static Behaviour],
    next: &AtomicUsize,
) -> (Vec<(usize, BehaviourRow)>, CheckResult) {
    let mut rows = Vec::new();
    let worker = Worker::new(target, &settings.env, settings.supervisor.clone()).map(Arc::new);
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(behaviour) = chosen.get(index) else { break };
        let began = Instant::now();
        let outcome = match (unmet(&target, behaviour), &worker) {
            (Some(reason), _) => BehaviourOutcome::NotApplicable { reason: reason.to_owned() },
            (None, Ok(worker)) => judge(&target, behaviour, check(worker, behaviour).await),
            (None, Err(finding)) => BehaviourOutcome::Failed { finding: finding.to_string() },
        };
        if let (BehaviourOutcome::Failed { .. }, Ok(worker)) = (&outcome, &worker) {
            // The next behaviour must not see the state that this one left.
            drop(worker.renew().await);
        }
        rows.push((index, row(behaviour.name, behaviour.sentence, outcome, began)));
    }
    let end = match &worker {
        Ok(worker) => worker.close().await,
        Err(_) => Ok(()),
    };
    (rows, end)
}

/// Checks one behaviour, within its limit.
async fn check(worker: &Arc<Worker>, behaviour: &Behaviour) -> CheckResult {
    let turns = match behaviour.check {
        Check::Case(turns, _) => turns(&worker.target),
        Check::Status(error) => vec![error.turn()],
    };
    let case = TestCase::new(Arc::clone(worker), Scenario::of(turns))?;
    let check = match behaviour.check {
        Check::Case(_, check) => check(&case),
        Check::Status(error) => Box::pin(errors::check(&case, error)),
    };
    let checked = timeout(LIMIT, check).await;
    let checked = checked.map_err(|_| Difference::from("it does not end")).flatten();
    checked.map_err(|finding| seen_by_the_model(finding, &case.requests()))
}

/// The finding with the ends of the requests that the model received: an unexpected one may be the cause.
fn seen_by_the_model(finding: Difference, requests: &[RecordedRequest]) -> Difference {
    let end = |request: &RecordedRequest| {
        let spoken = ["messages", "input", "contents"].iter().find_map(|key| request.body.get(key));
        let body: Vec<char> = spoken.unwrap_or(&request.body).to_string().chars().collect();
        let end: String = body[body.len().saturating_sub(REQUEST_END)..].iter().collect();
        format!("{} {:?} {:?} {end}", request.number, request.turn, request.ending)
    };
    let ends: Vec<String> = requests.iter().map(end).collect();
    let more = finding.more.iter().cloned().chain(ends).collect::<Vec<_>>().join("; ");
    Difference { more: (!more.is_empty()).then_some(more), ..finding }
}

/// Why there is nothing to check: by the descriptor and the target's tools, or by the target's exceptions.
fn unmet(target: &ConformanceTarget, behaviour: &Behaviour) -> Option<&'static str> {
    let can = (target.provider)().descriptor().capabilities;
    let by_need = behaviour.needs.iter().find_map(|need| need.unmet(target, can));
    by_need.or_else(|| {
        let exception = exception(target, behaviour.name)?;
        (exception.kind == ExceptionKind::NotApplicable).then_some(exception.reason)
    })
}

fn exception(target: &ConformanceTarget, name: &str) -> Option<&'static Exception> {
    target.exceptions.iter().find(|exception| exception.behaviours.contains(&name))
}

/// What was found, compared with what the target declares.
fn judge(target: &ConformanceTarget, behaviour: &Behaviour, proof: CheckResult) -> BehaviourOutcome {
    let declared = exception(target, behaviour.name).and_then(|exception| match exception.kind {
        ExceptionKind::Deviates(deviation) => Some((deviation, exception.reason)),
        ExceptionKind::NotApplicable => None,
    });
    match (proof, declared) {
        (Ok(()), None) => BehaviourOutcome::Holds,
        (Ok(()), Some((declared, _))) => BehaviourOutcome::Failed {
            finding: format!("it holds, and is declared to deviate: {declared:?}"),
        },
        (Err(found), Some((declared, reason))) if found.deviation == Some(declared) => {
            BehaviourOutcome::Deviates { reason: reason.to_owned(), finding: found.text }
        }
        (Err(found), Some((declared, _))) => BehaviourOutcome::Failed {
            finding: format!("{found}; it is declared to deviate otherwise: {declared:?}"),
        },
        (Err(found), None) => BehaviourOutcome::Failed { finding: found.to_string() },
    }
}

/// The failures for exceptions to unknown behaviours.
fn unknown(exceptions: &'static [Exception]) -> impl Iterator<Item = BehaviourRow> {
    let declared = exceptions.iter().flat_map(|exception| exception.behaviours);
    let unknown = declared.filter(|name| BEHAVIOURS.iter().all(|behaviour| behaviour.name != **name));
    unknown.map(|name| BehaviourRow {
        behaviour: (*name).to_owned(),
        sentence: "is on the list".to_owned(),
        outcome: BehaviourOutcome::Failed {
            finding: "the target declares an exception to an unknown behaviour".to_owned(),
        },
        took_ms: 0,
    })
}

fn row(name: &str, sentence: &str, outcome: BehaviourOutcome, began: Instant) -> BehaviourRow {
    BehaviourRow { behaviour: name.to_owned(), sentence: sentence.to_owned(), outcome, took_ms: ms(began) }
}

fn ms(began: Instant) -> u64 {
    began.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
