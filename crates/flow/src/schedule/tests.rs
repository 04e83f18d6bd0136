//! The scheduler driven by hand: attempts end in a fixed order and time only passes when nothing runs.

use std::{collections::BTreeMap, time::Duration};

use inspan_engine::{CountingIds, IdSource, ProviderRegistry, check_order};
use inspan_protocol::{ENVELOPE_VERSION, EventContext};
use proptest::prelude::*;

use super::*;
use crate::{Loaded, builtin_nodes, compile};

fn graph(text: &str) -> Arc<Graph> {
    let loaded = Loaded::from_text("flow.yaml", text, BTreeMap::new());
    let nodes = builtin_nodes(&ProviderRegistry::new());
    Arc::new(compile(&loaded, &nodes).unwrap_or_else(|found| panic!("{text}\n{found}")).graph)
}

/// A run with its log, and the hub's part of the work.
struct Sim {
    run: Run,
    log: Vec<Envelope>,
    now: Timestamp,
    ids: CountingIds,
    /// The most attempts that ran at once.
    most: u32,
}

impl Sim {
    fn new(graph: &Arc<Graph>, log: &[Envelope]) -> Self {
        let session = SessionId::from("s");
        let mut run = Run::new(graph.clone(), &session, graph.input.clone(), None);
        for envelope in log {
            run.apply(envelope);
        }
        let now = log.last().map_or(Timestamp::default(), |last| last.timestamp);
        Self { run, log: log.to_vec(), now, ids: CountingIds::new(), most: 0 }
    }

    fn emit(&mut self, task: Option<NodePath>, event: Event) {
        let context = EventContext { task, ..EventContext::session(SessionId::from("s")) };
        let envelope = Envelope {
            v: ENVELOPE_VERSION,
            id: self.ids.event_id(self.now),
            seq: self.log.len() as u64 + 1,
            timestamp: self.now,
            context: Arc::new(context),
            event,
        };
        self.run.apply(&envelope);
        self.log.push(envelope);
    }

    /// Runs to the end. What each attempt does is told by `end`; the running node of the least index ends first.
    fn drive(&mut self, end: impl Fn(&StartNode, &Graph) -> AttemptEnd) {
        let mut actions = Vec::new();
        let mut cancelled = Vec::new();
        for _ in 0..10_000 {
            self.run.next(self.now, &mut actions);
            if !actions.is_empty() {
                for action in std::mem::take(&mut actions) {
                    match action {
                        Action::Emit { task, event } => self.emit(task, event),
                        Action::Start(_) => self.most = self.most.max(self.run.state.running),
                        Action::Cancel { node, attempt, .. } => cancelled.push((node, attempt)),
                        Action::Ask { .. } => panic!("nobody is asked in these flows"),
                        Action::Finish => return,
                    }
                }
                continue;
            }
            let outstanding = self.run.outstanding();
            if let Some(start) = outstanding.first() {
                let end = if cancelled.contains(&(start.node, start.attempt)) {
                    AttemptEnd::Error(AgentError::new(ErrorCode::Aborted, "cancelled"))
                } else {
                    match &start.input {
                        Ok(_) => end(start, self.run.graph()),
                        Err(error) => AttemptEnd::Error(error.clone()),
                    }
                };
                let ended = self.run.conclude(start.node, start.attempt, end, self.now);
                let (path, event) = ended.expect("a running attempt ends");
                self.emit(Some(path), event);
            } else {
                let wake = self.run.wake_at().expect("a run that neither runs nor waits has ended");
                self.now = wake.max(self.now + Duration::from_millis(1));
            }
        }
        panic!("the run does not end");
    }

    /// Where every node and edge stands, and every output.
    fn standing(&self) -> String {
        let state = &self.run.state;
        let nodes: Vec<_> = state.nodes.iter().map(|node| (node.status, node.pass, node.attempt)).collect();
        let edges: Vec<_> = state.edges.iter().map(|edge| (edge.status, edge.iterations)).collect();
        format!("{nodes:?} {edges:?} {:?} {:?}", state.outputs, state.outcome)
    }
}

/// Nodes whose id says how they fare: `ok…`, `bad…` fails, `twice…` fails once, `handled…` fails and is handled.
fn by_name(start: &StartNode, graph: &Graph) -> AttemptEnd {
    let id = graph.node(start.node).id.as_str();
    let fails =
        id.starts_with("bad") || id.starts_with("handled") || (id.starts_with("twice") && start.attempt == 1);
    if fails {
        AttemptEnd::Error(AgentError::new(ErrorCode::NodeFailed, format!("{id} fails")))
    } else {
        AttemptEnd::Output(json!({ "value": start.path.as_str() }))
    }
}

#[derive(Clone, Debug)]
struct Shape {
    kinds: Vec<u8>,
    edges: Vec<(usize, usize, u8)>,
    back: Option<(usize, usize, u32, bool)>,
    limit: u32,
    fail_fast: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    (2..8_usize).prop_flat_map(|n| {
        let kinds = prop::collection::vec(0..12_u8, n);
        let edges = prop::collection::btree_map((0..n, 0..n), 0..6_u8, 0..14);
        let back = prop::option::of((0..n, 0..n, 1..4_u32, any::<bool>()));
        (kinds, edges, back, 1..4_u32, any::<bool>()).prop_map(|(kinds, edges, back, limit, fail_fast)| {
            let mut edges: Vec<_> = edges
                .into_iter()
                .filter(|((a, b), _)| a != b)
                .map(|((a, b), when)| (a.min(b), a.max(b), when))
                .collect();
            edges.sort_unstable();
            edges.dedup_by_key(|edge| (edge.0, edge.1));
            let back = back.map(|(a, b, max, goes_on)| (a.max(b), a.min(b), max, goes_on));
            // A loop edge must close a cycle: there is at least the direct way.
            if let Some((from, to, ..)) = back
                && from != to
                && !edges.iter().any(|edge| (edge.0, edge.1) == (to, from))
            {
                edges.push((to, from, 0));
            }
            Shape { kinds, edges, back, limit, fail_fast }
        })
    })
}

fn text(shape: &Shape) -> String {
    use std::fmt::Write;
    let name = |ix: usize| {
        let kind = match shape.kinds[ix] {
            0 => "bad",
            1 => "twice",
            2 => "handled",
            3 => "any",
            4 => "all",
            _ => "ok",
        };
        format!("{kind}{ix}")
    };
    let mut text = format!(
        "flow: {{ name: random, policy: {{ failFast: {}, maxConcurrency: {} }} }}\nnodes:\n",
        shape.fail_fast, shape.limit
    );
    for ix in 0..shape.kinds.len() {
        let rest = match shape.kinds[ix] {
            1 => "type: control.noop, policy: { retry: { maxAttempts: 2, backoff: 3s } }",
            2 => "type: control.noop, policy: { continueOnError: true }",
            3 => "type: control.merge, input: { mode: any }",
            4 => "type: control.merge, input: { mode: all }",
            5 => "type: control.noop, when: \"1 == 2\"",
            _ => "type: control.noop",
        };
        writeln!(text, "  - {{ id: {}, {rest} }}", name(ix)).unwrap();
    }
    writeln!(text, "edges:").unwrap();
    for &(from, to, when) in &shape.edges {
        let when = if when == 0 { ", when: \"1 == 2\"" } else { "" };
        writeln!(text, "  - {{ from: {}, to: {}{when} }}", name(from), name(to)).unwrap();
    }
    if let Some((from, to, max, goes_on)) = shape.back {
        let when = if goes_on { "1 == 1" } else { "1 == 2" };
        let rest = format!("maxIterations: {max}, when: \"{when}\", onExhausted: continue");
        writeln!(text, "  - {{ from: {}, to: {}, {rest} }}", name(from), name(to)).unwrap();
    }
    if shape.edges.is_empty() && shape.back.is_none() {
        text = text.replace("edges:\n", "");
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_flow_ends_in_order_and_is_the_fold_of_its_log(shape in shape()) {
        let text = text(&shape);
        let graph = graph(&text);
        let mut sim = Sim::new(&graph, &[]);
        sim.drive(by_name);
        check_order(&sim.log).map_err(|fault| TestCaseError::fail(format!("{fault}\n{text}")))?;
        prop_assert!(sim.most <= shape.limit, "{} ran at once\n{}", sim.most, text);

        let folded = Sim::new(&graph, &sim.log);
        prop_assert_eq!(folded.standing(), sim.standing());
        let doubled: Vec<_> = sim.log.iter().chain(&sim.log).cloned().collect();
        prop_assert_eq!(Sim::new(&graph, &doubled).standing(), sim.standing());
    }

    #[test]
    fn a_log_cut_anywhere_goes_on_to_the_same_end(shape in shape()) {
        let text = text(&shape);
        let graph = graph(&text);
        let mut whole = Sim::new(&graph, &[]);
        whole.drive(by_name);
        for cut in 0..whole.log.len() {
            let finished: Vec<_> = whole.log[..cut]
                .iter()
                .filter(|envelope| matches!(envelope.event, Event::TaskComplete { .. } | Event::TaskSkipped { .. }))
                .filter_map(|envelope| envelope.context.task.clone())
                .collect();
            let mut resumed = Sim::new(&graph, &whole.log[..cut]);
            resumed.drive(by_name);
            prop_assert_eq!(resumed.standing(), whole.standing(), "cut at {} of\n{}", cut, text);
            let again = resumed.log[cut..].iter().find(|envelope| {
                matches!(envelope.event, Event::TaskStart { .. })
                    && envelope.context.task.as_ref().is_some_and(|task| finished.contains(task))
            });
            prop_assert!(again.is_none(), "{:?} ran again after a cut at {} of\n{}", again, cut, text);
        }
    }
}

/// The names of a log's events with their tasks and edges, one per line.
fn story(log: &[Envelope]) -> String {
    let line = |envelope: &Envelope| match (&envelope.event, &envelope.context.task) {
        (Event::EdgeFired { from, to }, _) => format!("{from} -> {to}"),
        (Event::EdgeSkipped { from, to }, _) => format!("{from} -/> {to}"),
        (Event::LoopIterate { from, to, iteration }, _) => format!("{from} => {to} ({iteration})"),
        (Event::PhaseFailed { error, .. }, _) => format!("phase:failed {error}"),
        (event, Some(task)) => format!("{} {task}", event.name()),
        (event, None) => event.name().to_owned(),
    };
    log.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_loop_holds_back_the_other_edges_of_its_source() {
    let graph = graph(
        r#"
name: loop
nodes:
  - { id: ok_a, type: control.noop }
  - { id: ok_b, type: control.noop }
  - { id: ok_side, type: control.noop }
  - { id: ok_end, type: control.noop }
edges:
  - { from: ok_a, to: ok_b }
  - { from: ok_a, to: ok_side }
  - { from: ok_b, to: ok_a, when: "ok_b.value == 'ok_b'", maxIterations: 3 }
  - { from: ok_b, to: ok_end }
"#,
    );
    let mut sim = Sim::new(&graph, &[]);
    sim.drive(by_name);
    assert_eq!(
        story(&sim.log),
        "harness:start\nphase:start\ntask:start ok_a\ntask:complete ok_a\nok_a -> ok_b\nok_a -> ok_side\n\
         task:start ok_b\ntask:start ok_side\ntask:complete ok_b\nok_b => ok_a (1)\ntask:start ok_a#2\n\
         task:complete ok_a#2\nok_a -> ok_b\ntask:start ok_b#2\ntask:complete ok_b#2\nok_b -/> ok_a\nok_b -> ok_end\n\
         task:start ok_end\ntask:complete ok_side\ntask:complete ok_end\nphase:complete\nharness:complete"
    );
}

#[test]
fn backoff_grows_to_its_limit_and_the_vendors_wish_wins() {
    let graph = graph(
        r#"
name: backoff
nodes:
  - id: bad
    type: control.noop
    policy: { retry: { maxAttempts: 5, backoff: 10s, factor: 3, maxBackoff: 60s } }
"#,
    );
    let mut sim = Sim::new(&graph, &[]);
    sim.drive(|start, _| {
        let wish = (start.attempt == 2).then_some(Duration::from_secs(7));
        AttemptEnd::Error(AgentError::new(ErrorCode::RateLimited, "slow down").with_retry_after(wish))
    });
    let starts: Vec<_> = sim
        .log
        .iter()
        .filter(|envelope| matches!(envelope.event, Event::TaskStart { .. }))
        .map(|envelope| envelope.timestamp.as_millis() / 1_000)
        .collect();
    assert_eq!(starts, [0, 10, 17, 77, 137]);
}

#[test]
fn what_an_older_attempt_reports_is_ignored() {
    let graph = graph(
        "name: old\nnodes:\n  - { id: twice, type: control.noop, policy: { retry: { maxAttempts: 2 } } }\n",
    );
    let mut sim = Sim::new(&graph, &[]);
    sim.drive(by_name);
    assert!(sim.run.conclude(NodeIx(0), 1, AttemptEnd::Output(Value::Null), sim.now).is_none());
    assert!(sim.run.conclude(NodeIx(0), 2, AttemptEnd::Output(Value::Null), sim.now).is_none());
}
