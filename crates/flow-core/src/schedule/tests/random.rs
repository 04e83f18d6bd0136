//! Random flows cut, paused and saved at random: all have the same result as the uninterrupted run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use inspan_protocol::{Envelope, Event, NodePath, NodeStatus, Outcome, RunSnapshot};
use proptest::prelude::*;

use super::{
    reuse::reusable,
    shape::{Shape, race, shape, text},
    sim::{Sim, facts, story, world},
};
use crate::{
    Graph,
    graph::{EdgeOn, FrameIx},
    schedule::Run,
    testing::{compiled, graph, loaded},
};

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
    let step = (to.saturating_sub(from) / 20).max(1);
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
        let ended_already = sim.run.facts.ending.as_ref().is_some_and(|end| end.outcome != Outcome::Stopped);
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
            // What cleans up aside, and what runs in its frames.
            let cleaning: BTreeSet<_> = resumed.log.iter().filter(|at| matches!(at.event, Event::TaskStart { cleans_up: true, .. })).filter_map(|at| at.context.task.clone()).collect();
            let cleans_up = |path: &NodePath| std::iter::successors(Some(path.clone()), NodePath::owner).any(|path| cleaning.contains(&path));
            let starts = resumed.log[wish..].iter().filter(|at| matches!(at.event, Event::TaskStart { .. })).filter_map(|at| at.context.task.as_ref());
            prop_assert_eq!(starts.filter(|path| !cleans_up(path)).collect::<Vec<_>>(), Vec::<&NodePath>::new(), "{}", story(&resumed.log));
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
        prop_assume!(outcome == Some(Outcome::Success));
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whether_a_failure_is_handled_depends_neither_on_the_order_of_the_file_nor_on_a_place(
        shape in failures(), fail_fast in any::<bool>(),
        orders in prop::collection::vec((any::<u64>(), any::<bool>()), 4),
    ) {
        let mut seen = BTreeMap::new();
        for (seed, alone) in orders {
            let mut order: Vec<_> = (0..shape.nodes.len()).collect();
            order.sort_by_key(|at| (seed >> at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8);
            let limit = if alone { ", maxConcurrency: 1" } else { "" };
            let text = shape.text(&order, &format!("failFast: {fail_fast}{limit}"));
            let sim = Sim::new(&graph(&text), &[]).shuffled(seed).driven(world);
            sim.check();
            let (flow, nodes) = (sim.run.graph().flow(), sim.run.state().nodes());
            for edge in flow.edges.iter().filter(|edge| edge.on == EdgeOn::Success && shape.back.is_none()) {
                let (from, to) = (&nodes[edge.from.0 as usize], flow.node(edge.to));
                // A node that waits for what depends on the failure cannot decide before that whether it is handled.
                let mut handlers = flow.edges_on(edge.from, EdgeOn::Failure).map(|edge| flow.edge(edge).to);
                let frame = &sim.run.state().frames[FrameIx::FLOW];
                let waiting = frame.waiting_for(flow, edge.to);
                let is_late = handlers.any(|handler| waiting.contains(&handler));
                let is_unhandled = from.status == NodeStatus::Failed && from.tainted && !is_late;
                prop_assert!(!is_unhandled || !begun(&sim).contains(to.id.as_str()), "{}\n{}", text, story(&sim.log));
            }
            let outcome = sim.run.state().outcome();
            // What does not depend on a failure that ends the flow has begun by then or has not.
            let ran = if fail_fast && outcome == Some(Outcome::Failed) { BTreeSet::new() } else { begun(&sim) };
            seen.entry((format!("{outcome:?}"), ran)).or_insert_with(|| format!("{text}\n{}\n", story(&sim.log)));
            prop_assert_eq!(seen.len(), 1, "{}", seen.values().cloned().collect::<String>());
        }
    }
}

/// Nodes that fail or are skipped by their `when`, the edges into each by their ends, and a loop.
#[derive(Clone, Debug)]
struct Failures {
    nodes: Vec<(bool, bool)>,
    edges: Vec<(usize, usize, &'static str)>,
    back: Option<(usize, usize)>,
}

/// The first node fails; the last handles that, unless it is skipped, and the one before it depends on the first too.
fn failures() -> impl Strategy<Value = Failures> {
    let shape = (4..8_usize).prop_flat_map(|n| {
        let nodes = prop::collection::vec((any::<bool>(), prop::bool::weighted(0.3)), n);
        let edges = prop::collection::vec(0..12_usize, n * n);
        let back = prop::option::weighted(0.2, (0..n, 0..n));
        (nodes, edges, any::<bool>(), back).prop_map(move |(mut nodes, mut edges, never, back)| {
            (nodes[0], nodes[n - 1].1) = ((true, false), never);
            (edges[n - 2], edges[n - 1]) = (0, 3);
            let on = ["success", "success", "success", "failure", "failure", "any", "skipped"];
            let edges = edges.iter().enumerate().map(|(at, end)| (at / n, at % n, on.get(*end)));
            let edges = edges.filter(|(from, to, _)| from < to);
            let edges = edges.filter_map(|(from, to, on)| Some((from, to, *on?))).collect();
            Failures { nodes, edges, back: back.filter(|(from, to)| from > to) }
        })
    });
    // Of two failures each of which is handled by what depends on the other, the one that is decided first counts.
    let shape = shape.prop_filter("two failures wait for each other", |shape| !shape.is_circular());
    shape.prop_filter("the compiler refuses it", |shape| {
        let order: Vec<_> = (0..shape.nodes.len()).collect();
        compiled(&loaded(&shape.text(&order, ""))).is_ok()
    })
}

impl Failures {
    fn name(&self, node: usize) -> String {
        format!("{}{node}", if self.nodes[node].0 { "bad" } else { "ok" })
    }

    /// Whether the nodes that handle two failures wait for each other.
    fn is_circular(&self) -> bool {
        let after = |node, end| {
            self.edges.iter().filter(move |(from, _, on)| *from == node && end == *on).map(|(_, to, _)| *to)
        };
        let failed = (0..self.nodes.len()).filter(|node| self.nodes[*node].0);
        let handled: Vec<_> =
            failed.flat_map(|node| after(node, "failure").map(move |by| (node, by))).collect();
        let mut waits: BTreeSet<_> = self.edges.iter().map(|(from, to, _)| (*from, *to)).collect();
        waits.extend(handled.iter().flat_map(|(node, by)| after(*node, "success").map(move |to| (*by, to))));
        for _ in &self.nodes {
            let far = waits.iter().flat_map(|(from, to)| {
                waits.iter().filter(move |(next, _)| next == to).map(move |(_, end)| (*from, *end))
            });
            let far: Vec<_> = far.collect();
            waits.extend(far);
        }
        let mut pairs = handled.iter().flat_map(|one| handled.iter().map(move |other| (one, other)));
        pairs.any(|(one, other)| {
            one.0 != other.0 && waits.contains(&(one.1, other.1)) && waits.contains(&(other.1, one.1))
        })
    }

    /// The flow with its nodes in this order.
    fn text(&self, order: &[usize], policy: &str) -> String {
        let node = |&at: &usize| {
            let when = if self.nodes[at].1 { ", when: '1 == 2'" } else { "" };
            let into = self.edges.iter().filter(|(_, to, _)| *to == at);
            let into = into.map(|(from, _, on)| format!("{{ node: {}, on: {on} }}", self.name(*from)));
            let into = into.collect::<Vec<_>>().join(", ");
            let depends = if into.is_empty() { into } else { format!(", dependsOn: [{into}]") };
            format!("  - {{ id: {}, type: control.noop{when}{depends} }}\n", self.name(at))
        };
        let nodes: String = order.iter().map(node).collect();
        let back = self.back.map(|(from, to)| {
            let (from, to) = (self.name(from), self.name(to));
            format!("edges: [{{ from: {from}, to: {to}, when: frame.pass < 2, maxIterations: 3 }}]\n")
        });
        format!("flow: {{ name: f, policy: {{ {policy} }} }}\nnodes:\n{nodes}{}", back.unwrap_or_default())
    }
}

/// The paths at which something has begun, cleaning up aside.
fn begun(sim: &Sim) -> BTreeSet<String> {
    let starts = sim.log.iter().filter_map(|envelope| match &envelope.event {
        Event::TaskStart { path, cleans_up: false, .. } => Some(path.to_string()),
        _ => None,
    });
    starts.collect()
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
