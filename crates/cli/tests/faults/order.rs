//! Events that come twice, late or not at all: the fold of the log takes each once, and nothing makes it fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use inspan_flow::{Graph, Run, builtin_nodes};
use inspan_protocol::{Envelope, RunSnapshot, SessionId};

use super::place::{Dice, compile, providers};
use super::sweep;
use super::{Promise, Size};

pub(super) const ROW: Promise = Promise {
    bound: "doubles and late ones change nothing; whatever is lost, the fold stands and can be gone on with",
    prove,
};

fn fold(graph: &Arc<Graph>, log: &[Envelope]) -> Run {
    let mut run = Run::new(Arc::clone(graph), &SessionId::from(sweep::SESSION), graph.input.clone(), None);
    log.iter().for_each(|envelope| run.apply(envelope));
    run
}

fn snapshot(graph: &Arc<Graph>, log: &[Envelope]) -> RunSnapshot {
    fold(graph, log).snapshot(&graph.input)
}

fn prove(size: Size) -> anyhow::Result<String> {
    let (place, log) = sweep::unkilled(size)?;
    let providers = providers();
    let graph = Arc::new(compile(&place.path("flow.yaml"), &providers)?);
    let whole = snapshot(&graph, &log);
    ensure!(builtin_nodes(&providers).get("exec").is_some(), "the node types are not there");
    let rounds = size.count(60, 2_000);
    let mut dice = Dice::new(11);
    for round in 0..rounds {
        let end = usize::try_from(dice.below(log.len() as u64))? + 1;
        let begin = &log[..end];
        let mut doubled: Vec<Envelope> = Vec::new();
        for (at, envelope) in begin.iter().enumerate() {
            doubled.push(envelope.clone());
            // What has been there before comes again, somewhere later.
            if dice.below(4) == 0 {
                doubled.push(log[usize::try_from(dice.below(at as u64 + 1))?].clone());
            }
        }
        let (once, twice) = (snapshot(&graph, begin), snapshot(&graph, &doubled));
        ensure!(
            once == twice,
            "round {round}: {} events and {} with doubles give two states",
            end,
            doubled.len()
        );
        let mut harmed: Vec<Envelope> = begin.iter().filter(|_| dice.below(5) > 0).cloned().collect();
        for at in (1..harmed.len()).rev() {
            if round % 2 == 0 {
                harmed.swap(at, usize::try_from(dice.below(at as u64 + 1))?);
            }
        }
        let resumed = catch_unwind(AssertUnwindSafe(|| {
            let mut run = fold(&graph, &harmed);
            let last = harmed.last().map(|last| last.timestamp);
            let mut actions = run.resume(None, &Default::default(), &Default::default(), last);
            if let Some(last) = last {
                run.next(last, &mut actions);
            }
            run.snapshot(&graph.input)
        }));
        resumed.ok().with_context(|| format!("round {round}: the fold broke down"))?;
    }
    ensure!(whole == snapshot(&graph, &log), "the same log gives two states");
    Ok(format!(
        "{rounds} rounds on a log of {} events: doubles equal to the plain fold; drops and shuffles without a break-down; \
         the scheduler's own properties are in its tests",
        log.len()
    ))
}
