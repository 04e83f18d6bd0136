//! Random flows cut, paused and saved at random: all have the same result as the uninterrupted run.

use std::sync::Arc;

use inspan_protocol::{Envelope, Event, NodePath, RunSnapshot};
use proptest::prelude::*;

use super::{
    reuse::reusable,
    shape::{Shape, race, shape, text},
    sim::{Sim, facts, story, world},
};
use crate::{Graph, schedule::Run, testing::graph};

/// Resumes a log that was cut after so many events, and compares its result with that of the uninterrupted
/// run.
fn resume_and_compare(whole: &Sim, log: &[Envelope], text: &str) -> Result<Sim, TestCaseError> {
    let sim = Sim::resumed(whole.run.graph(), log, None).shuffled(log.len() as u64).driven(world);
    sim.check();
    prop_assert_eq!(sim.end(), whole.end(), "cut after {}:\n{}\n{}", log.len(), story(&sim.log), text);
    prop_assert!(sim.again(log.len()).is_empty(), "cut after {}:\n{}\n{}", log.len(), story(&sim.log), text);
    Ok(sim)
}

/// Where a log is cut: anywhere if it is short, and else at about 40 places that the seed chooses.
fn cuts(from: usize, to: usize, seed: u64) -> impl Iterator<Item = usize> {
    let step = (to.saturating_sub(from) / 40).max(1);
    (from + seed as usize % step..to).step_by(step)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_flow_ends_in_order_and_is_the_fold_of_its_log(shape in shape(), seed in any::<u64>()) {
        let (text, graph, sim) = whole(&shape, seed);
        sim.check();
        prop_assert!(sim.most <= shape.limit + shape.waiters(), "{} ran at once\n{}", sim.most, text);
        let doubled: Vec<_> = sim.log.iter().chain(&sim.log).cloned().collect();
        let doubled = Sim::new(&graph, &doubled);
        prop_assert_eq!(facts(&doubled.run.facts), facts(&sim.run.facts));
    }

    #[test]
    fn a_run_that_dies_anywhere_resumes_to_the_same_end(shape in shape(), seed in any::<u64>()) {
        let (text, _, whole) = whole(&shape, seed);
        for cut in cuts(0, whole.log.len(), seed) {
            let once = resume_and_compare(&whole, &whole.log[..cut], &text)?;
            // And dies again, somewhere after it was resumed.
            let left = once.log.len() - cut;
            resume_and_compare(&whole, &once.log[..cut + (seed as usize + cut) % left], &text)?;
        }
    }

    #[test]
    fn a_run_that_is_paused_anywhere_resumes_to_the_same_end(shape in shape(), seed in any::<u64>(), at in 0..100_usize) {
        let (text, graph, whole) = whole(&shape, seed);
        let mut sim = Sim::new(&graph, &[]).shuffled(seed);
        let mut over = false;
        for count in 0..10_000 {
            if over {
                break;
            }
            // Twice is one pause.
            if count == at || count == at + 3 {
                sim.emit(None, Event::SessionPause { reason: None, cause: None });
            }
            over = sim.step(&world);
        }
        sim.check();
        let paused = sim.log.iter().any(|envelope| matches!(envelope.event, Event::FlowPaused { .. }));
        if !paused {
            return Ok(());
        }
        // Wherever it dies after the request to pause, also while it becomes idle.
        let first = |name: &str| sim.log.iter().position(|envelope| envelope.event.name() == name).unwrap_or(0);
        // A session that was to pause before it began does so when it begins.
        let from = first("session:pause").max(first("harness:start") + 1);
        for cut in cuts(from, sim.log.len() + 1, seed) {
            resume_and_compare(&whole, &sim.log[..cut], &text)?;
        }
    }

    #[test]
    fn a_run_that_is_stopped_anywhere_stays_stopped(shape in shape(), seed in any::<u64>(), at in 0..60_usize) {
        let text = text(&shape);
        let graph = graph(&text);
        let mut sim = Sim::new(&graph, &[]).shuffled(seed);
        let mut over = (0..at).any(|_| sim.step(&world));
        if over {
            return Ok(());
        }
        let wish = sim.log.len();
        sim.emit(None, Event::SessionAbort { reason: None });
        let ended_already = sim.run.facts.ending.as_ref().is_some_and(|end| end.outcome != inspan_protocol::Outcome::Stopped);
        while !over {
            over = sim.step(&world);
        }
        sim.check();
        if ended_already {
            return Ok(());
        }
        for cut in wish + 1..=sim.log.len() {
            let mut resumed = Sim::resumed(&graph, &sim.log[..cut], None);
            if cut < sim.log.len() {
                resumed.drive(world);
            }
            resumed.check();
            prop_assert_eq!(resumed.end(), sim.end(), "{}", story(&resumed.log));
            // What cleans up aside.
            let starts = resumed.log[wish..].iter().filter(|envelope| matches!(envelope.event, Event::TaskStart { cleans_up: false, .. }));
            prop_assert_eq!(starts.count(), 0);
        }
    }

    #[test]
    fn a_snapshot_anywhere_resumes_to_the_same_end(shape in shape(), seed in any::<u64>()) {
        let (text, graph, whole) = whole(&shape, seed);
        for cut in cuts(1, whole.log.len(), seed) {
            let half = Sim::new(&graph, &whole.log[..cut]);
            let saved = serde_json::to_string(&half.run.snapshot(&graph.input)).unwrap();
            let saved: RunSnapshot = serde_json::from_str(&saved).unwrap();
            let sim = Sim::restored(&graph, &saved, half.now).shuffled(seed).driven(world);
            prop_assert_eq!(sim.end(), whole.end(), "saved after {}:\n{}\n{}", cut, story(&sim.log), text);
        }
    }

    #[test]
    fn what_is_carried_anywhere_folds_as_what_stayed(shape in shape(), seed in any::<u64>()) {
        let (text, graph, whole) = whole(&shape, seed);
        for cut in cuts(0, whole.log.len() + 1, seed) {
            let half = Sim::new(&graph, &whole.log[..cut]);
            let mut run = carried(&half.run);
            prop_assert_eq!(run.state(), half.run.state(), "{} of {}", cut, text);
            whole.log[cut..].iter().for_each(|envelope| run.apply(envelope));
            prop_assert_eq!(run.state(), whole.run.state(), "{} of {}", cut, text);
            prop_assert_eq!(&run.agenda, &whole.run.agenda, "{} of {}", cut, text);
        }
    }

    #[test]
    fn a_run_that_is_carried_while_attempts_run_decides_as_if_it_had_stayed(shape in shape(), seed in any::<u64>(), every in 1..9_usize) {
        let (text, graph, whole) = whole(&shape, seed);
        let mut moved = Sim::new(&graph, &[]).shuffled(seed);
        let mut count = 0;
        while !moved.step(&world) {
            count += 1;
            if count % every == 0 {
                moved.run = carried(&moved.run);
            }
        }
        prop_assert_eq!(story(&moved.log), story(&whole.log), "{}", text);
        prop_assert_eq!(moved.run.state(), whole.run.state());
    }

    #[test]
    fn what_has_finished_is_reused_in_the_next_session_with_the_same_end(shape in race(), seed in any::<u64>()) {
        // An agent that the end cut off begins anew in the next session where it cleans up.
        let cleans_up = shape.edges.iter().any(|(_, _, when)| *when == 1);
        prop_assume!(!cleans_up || !shape.kinds.contains(&21));
        let (text, same, whole) = whole(&shape, seed);
        let outcome = whole.run.facts.session.outcome;
        prop_assume!(outcome == Some(inspan_protocol::Outcome::Success));
        for flow in [same, graph(&format!("{text}# edited\n"))] {
            let sim = Sim::reusing(&flow, reusable(&whole, usize::MAX)).shuffled(!seed).driven(world);
            sim.check();
            prop_assert_eq!(sim.end(), whole.end(), "{}\n\n{}\n{}", story(&whole.log), story(&sim.log), text);
            let completed = |path: &NodePath| whole.log.iter().any(|envelope| {
                matches!(envelope.event, Event::TaskComplete { .. }) && envelope.context.task.as_ref() == Some(path)
            });
            let again = sim.started.iter().map(|start| &start.path).filter(|path| completed(path));
            prop_assert_eq!(again.count(), 0, "{}\n\n{}\n{}", story(&whole.log), story(&sim.log), text);
        }
    }

    #[test]
    fn attempts_whose_process_is_lost_are_done_again_and_nothing_else_is(shape in shape(), seed in any::<u64>(), every in 2..12_usize) {
        let (text, graph, whole) = whole(&shape, seed);
        let mut sim = Sim::new(&graph, &[]).shuffled(seed);
        let mut count = 0;
        while !sim.step(&world) {
            count += 1;
            // One at work ten times in a row when its process died is failed.
            if count % every == 0 && count / every < 6 {
                sim.lose_one();
            }
        }
        sim.check();
        prop_assert_eq!(sim.end(), whole.end(), "{}\n{}", story(&sim.log), text);
        prop_assert!(sim.again(0).is_empty());
        let doubled: Vec<_> = sim.log.iter().chain(&sim.log).cloned().collect();
        let doubled = Sim::new(&graph, &doubled);
        prop_assert_eq!(facts(&doubled.run.facts), facts(&sim.run.facts));
    }
}

/// A flow of this shape, and its run to the end.
fn whole(shape: &Shape, seed: u64) -> (String, Arc<Graph>, Sim) {
    let text = text(shape);
    let graph = graph(&text);
    let whole = Sim::new(&graph, &[]).shuffled(seed).driven(world);
    (text, graph, whole)
}

/// A run that was written down and read by another process.
fn carried(run: &Run) -> Run {
    let json = serde_json::to_string(&run.carry()).unwrap();
    Run::take_up(run.graph.clone(), serde_json::from_str(&json).unwrap()).unwrap()
}
