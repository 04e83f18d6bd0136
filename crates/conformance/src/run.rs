//! Holds one provider against the whole list: several behaviours at a time, each bounded, and a look at what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use inspan_model_server::Scenario;
use inspan_protocol::{Environment, Supervisor};
use tokio::time::{Instant, timeout};

use crate::behaviour::{Behaviour, Prove};
use crate::behaviours::{BEHAVIOURS, errors};
use crate::finding::{Finding, Proof};
use crate::lane::Lane;
use crate::processes;
use crate::report::{Outcome, Report, Row};
use crate::rig::{ConformanceTarget, Exception, Kind};
use crate::scene::Scene;

/// How long one behaviour may take.
const LIMIT: Duration = Duration::from_secs(100);
/// The row about what is left once all is over.
const LEFT: (&str, &str) = ("nothing_left", "leaves no process behind, and the key in no file");

/// What surrounds the suite.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The environment in which programs are looked for; no key is taken from it.
    pub env: Environment,
    /// Who stands between us and the programs that are started.
    pub supervisor: Option<Supervisor>,
    /// Only the behaviours whose names contain this.
    pub filter: String,
}

/// Holds a provider against the list, and says what came of each row.
pub async fn conform(rig: Arc<dyn ConformanceTarget>, settings: &Settings) -> Report {
    let began = Instant::now();
    let chosen: Vec<&'static Behaviour> =
        BEHAVIOURS.iter().filter(|behaviour| behaviour.name.contains(&settings.filter)).collect();
    let next = AtomicUsize::new(0);
    let lanes = (0..rig.lanes().clamp(1, chosen.len().max(1))).map(|_| walk(&rig, settings, &chosen, &next));
    let (rows, ends): (Vec<_>, Vec<Proof>) = join_all(lanes).await.into_iter().unzip();
    let mut rows: Vec<(usize, Row)> = rows.into_iter().flatten().collect();
    rows.sort_by_key(|(place, _)| *place);
    let mut rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
    rows.extend(unknown(rig.exceptions()));
    let outcome = match ends.into_iter().find_map(Result::err) {
        None if !processes::can_be_listed() => {
            Outcome::NotApplicable { reason: "what runs cannot be looked for on this system".to_owned() }
        }
        None => Outcome::Holds,
        Some(finding) => Outcome::Failed { finding: finding.to_string() },
    };
    rows.push(Row { behaviour: LEFT.0.to_owned(), sentence: LEFT.1.to_owned(), outcome, took_ms: 0 });
    Report { provider: rig.name(), rows, took_ms: ms(began) }
}

/// One lane: takes the next behaviour as long as there is one, and is closed then.
async fn walk(
    rig: &Arc<dyn ConformanceTarget>,
    settings: &Settings,
    chosen: &[&'static Behaviour],
    next: &AtomicUsize,
) -> (Vec<(usize, Row)>, Proof) {
    let mut rows = Vec::new();
    let lane = Lane::new(Arc::clone(rig), &settings.env, settings.supervisor.clone()).map(Arc::new);
    loop {
        let place = next.fetch_add(1, Ordering::Relaxed);
        let Some(behaviour) = chosen.get(place) else { break };
        let began = Instant::now();
        let outcome = match (unmet(&**rig, behaviour), &lane) {
            (Some(reason), _) => Outcome::NotApplicable { reason: reason.to_owned() },
            (None, Ok(lane)) => judge(&**rig, behaviour, look(lane, behaviour).await),
            (None, Err(finding)) => Outcome::Failed { finding: finding.to_string() },
        };
        if let (Outcome::Failed { .. }, Ok(lane)) = (&outcome, &lane) {
            // Whatever state it was left in is not the next one's.
            drop(lane.renew().await);
        }
        rows.push((place, row(behaviour.name, behaviour.sentence, outcome, began)));
    }
    let end = match &lane {
        Ok(lane) => lane.close().await,
        Err(_) => Ok(()),
    };
    (rows, end)
}

/// Looks at one behaviour, within its limit.
async fn look(lane: &Arc<Lane>, behaviour: &Behaviour) -> Proof {
    let turns = match behaviour.prove {
        Prove::By(turns, _) => turns(&*lane.rig),
        Prove::Fault(fault) => vec![fault.turn()],
    };
    let scene = Scene::new(Arc::clone(lane), Scenario::of(turns))?;
    let proof = match behaviour.prove {
        Prove::By(_, prove) => prove(&scene),
        Prove::Fault(fault) => Box::pin(errors::prove(&scene, fault)),
    };
    let looked = timeout(LIMIT, proof).await;
    looked.map_err(|_| Finding::from("it does not come to an end"))?
}

/// Why there is nothing to look at: by the descriptor and the rig's tools, or by the rig's word.
fn unmet(rig: &dyn ConformanceTarget, behaviour: &Behaviour) -> Option<&'static str> {
    let can = rig.provider().descriptor().capabilities;
    let by_need = behaviour.needs.iter().find_map(|need| need.unmet(rig, can));
    by_need.or_else(|| {
        let exception = exception(rig, behaviour.name)?;
        (exception.kind == Kind::NotApplicable).then_some(exception.reason)
    })
}

fn exception(rig: &dyn ConformanceTarget, name: &str) -> Option<&'static Exception> {
    rig.exceptions().iter().find(|exception| exception.behaviour == name)
}

/// What was found, beside what the rig declares.
fn judge(rig: &dyn ConformanceTarget, behaviour: &Behaviour, proof: Proof) -> Outcome {
    let declared = exception(rig, behaviour.name).and_then(|exception| match exception.kind {
        Kind::Deviates(deviation) => Some((deviation, exception.reason)),
        Kind::NotApplicable => None,
    });
    match (proof, declared) {
        (Ok(()), None) => Outcome::Holds,
        (Ok(()), Some((declared, _))) => {
            Outcome::Failed { finding: format!("it holds, and is declared to deviate: {declared:?}") }
        }
        (Err(found), Some((declared, reason))) if found.deviation == Some(declared) => {
            Outcome::Deviates { reason: reason.to_owned(), finding: found.text }
        }
        (Err(found), Some((declared, _))) => {
            Outcome::Failed { finding: format!("{found}; it is declared to deviate otherwise: {declared:?}") }
        }
        (Err(found), None) => Outcome::Failed { finding: found.to_string() },
    }
}

/// Exceptions to what is not on the list.
fn unknown(exceptions: &'static [Exception]) -> impl Iterator<Item = Row> {
    let unknown =
        |exception: &&Exception| BEHAVIOURS.iter().all(|behaviour| behaviour.name != exception.behaviour);
    exceptions.iter().filter(unknown).map(|exception| Row {
        behaviour: exception.behaviour.to_owned(),
        sentence: "is on the list".to_owned(),
        outcome: Outcome::Failed { finding: "the rig declares an exception to no behaviour".to_owned() },
        took_ms: 0,
    })
}

fn row(name: &str, sentence: &str, outcome: Outcome, began: Instant) -> Row {
    Row { behaviour: name.to_owned(), sentence: sentence.to_owned(), outcome, took_ms: ms(began) }
}

fn ms(began: Instant) -> u64 {
    began.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
