//! Killed everywhere: a session of fifty nodes whose process dies at every point of the store's work, and at moments
//! chosen from outside, and is resumed.

mod flow;
mod judge;
mod trial;

use inspan_testkit::Stopwatch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use inspan_protocol::Envelope;
use serde_json::Value;

use super::place::FaultSandbox;
use super::{Promise, Size};
use judge::judge;
use trial::{KillPlan, Trial};

pub(super) use trial::SESSION;

pub(super) const ROW: Promise = Promise {
    bound: "all finish with the same outputs, 0 facts lost, 0 effects twice, 95 of 100 resumes within 250 ms and all within 1 s",
    prove,
};

/// From the start of a process to the first event of the session that it resumes: 95 of 100 take no longer,
const RESUME: Duration = Duration::from_millis(250);
/// and none takes longer than this. Two sessions run at once here, in a build that is not optimised.
const SLOWEST: Duration = Duration::from_secs(1);
/// The points of the store's work, all of which must have been met.
const KINDS: usize = 7;

#[derive(Default)]
struct Sum {
    trials: usize,
    kills: usize,
    again: usize,
    answered: usize,
    sent: usize,
    kinds: BTreeSet<String>,
    resumes: Vec<Duration>,
    faults: BTreeMap<String, usize>,
}

fn prove(size: Size) -> anyhow::Result<String> {
    let watch = Stopwatch::start();
    let unkilled = Trial::run(size, KillPlan::Never)?;
    let expected = unkilled.result.clone();
    judge(&unkilled, &expected).context("without any kill")?;
    let points = unkilled.points;
    let wanted = size.count(28, points + points / 10);
    let mut stride = (points / wanted).max(1);
    // Points come in groups of seven: every kind is met if the stride shares no factor with that.
    stride += usize::from(stride.is_multiple_of(KINDS));
    let mut plans: Vec<KillPlan> = (0..=points).step_by(stride).enumerate().map(point).collect();
    plans.extend((1..=size.count(4, 40)).map(|seed| KillPlan::AnyTime(seed as u64)));
    let sum = all(size, &plans, &expected);
    let (count, slowest) = (sum.resumes.len(), sum.resumes.iter().max().copied().unwrap_or_default());
    let mut sorted = sum.resumes.clone();
    sorted.sort();
    let median = sorted.get(count / 2).copied().unwrap_or_default();
    let figure = format!(
        "{points} points in an unkilled run; {} sessions, {} kills at {} kinds of point and at random moments\n\
         {} finished, 0 facts lost of them, 0 effects twice; {} programs that may, ran again\n\
         {} answers and {} messages acknowledged, all in the log; {count} resumes, median {} ms, slowest {} ms; \
         the sweep took {:.0} s",
        plans.len(),
        sum.kills,
        sum.kinds.len(),
        sum.trials,
        sum.again,
        sum.answered,
        sum.sent,
        median.as_millis(),
        slowest.as_millis(),
        watch.elapsed().as_secs_f64(),
    );
    let faults: Vec<String> = sum.faults.iter().map(|(fault, times)| format!("{times} × {fault}")).collect();
    ensure!(faults.is_empty(), "{}\n{figure}", faults.join("\n"));
    ensure!(sum.kinds.len() == KINDS, "only these points were met: {:?}", sum.kinds);
    let most = sorted.get(count * 95 / 100).copied().unwrap_or_default();
    ensure!(most <= RESUME && slowest <= SLOWEST, "resumes took {most:?} and {slowest:?}\n{figure}");
    Ok(figure)
}

/// Every third session is killed again while it is resumed, by ever more points later.
fn point((number, at): (usize, usize)) -> KillPlan {
    KillPlan::At(at, number.is_multiple_of(3).then_some(number % 50))
}

/// The log of the session that was not killed, and where it ran.
pub(super) fn unkilled(size: Size) -> anyhow::Result<(FaultSandbox, Vec<Envelope>)> {
    let trial = Trial::run(size, KillPlan::Never)?;
    let log = trial.place.look(SESSION)?.context("the session is gone")?.log;
    Ok((trial.place, log))
}

/// Runs the trials, as many at once as there are processors.
fn all(size: Size, plans: &[KillPlan], expected: &Value) -> Sum {
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(Sum::default()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let judged = Trial::run(size, *plan).and_then(|trial| {
                        let again = judge(&trial, expected).with_context(|| format!("killed {plan:?}"))?;
                        Ok((trial, again))
                    });
                    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                    match judged {
                        Ok((trial, again)) => sum.add(&trial, again),
                        Err(error) => *sum.faults.entry(format!("{error:#}")).or_default() += 1,
                    }
                }
            });
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Sum {
    fn add(&mut self, trial: &Trial, again: usize) {
        self.trials += 1;
        self.kills += trial.kills;
        self.again += again;
        self.answered += trial.answered.len();
        self.sent += trial.sent.len();
        self.kinds.extend(trial.killed_at.iter().cloned());
        self.resumes.extend(trial.resumes.iter().copied());
    }
}
