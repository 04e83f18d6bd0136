//! The rules of `docs/flow.md` as a plain interpreter of whole flows: one node at a time, no log, no queues, bodies
//! computed from reachability alone. It shares nothing with the scheduler, which must have the same result.

use std::fmt::Write;

use proptest::prelude::*;

/// When something holds, by the pass of the node that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Never,
    First,
    Later,
    BelowThree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// Always fails.
    Fails,
    /// Always fails, with `continueOnError`.
    Handled,
    /// Fails in its first pass.
    FailsFirst,
    MergeAny,
    MergeAll,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) when: When,
}

#[derive(Clone, Debug)]
pub(super) struct Back {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) when: When,
    pub(super) max: u32,
    pub(super) continues: bool,
}

/// A flow whose edges lead from lower nodes to higher ones, and whose loop edges lead back.
#[derive(Clone, Debug)]
pub(super) struct PlainFlow {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<(usize, usize, When)>,
    pub(super) backs: Vec<Back>,
    pub(super) limit: u32,
    pub(super) fail_fast: bool,
}

/// How one node ended: its status, its pass, how often it ran, and its output.
pub(super) type NodeEnd = (&'static str, u32, u32, Option<String>);

impl When {
    fn holds(self, pass: u32) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::First => pass == 1,
            Self::Later => pass > 1,
            Self::BelowThree => pass < 3,
        }
    }

    fn text(self) -> Option<&'static str> {
        match self {
            Self::Always => None,
            Self::Never => Some("1 == 2"),
            Self::First => Some("frame.pass == 1"),
            Self::Later => Some("frame.pass > 1"),
            Self::BelowThree => Some("frame.pass < 3"),
        }
    }
}

pub(super) fn name(flow: &PlainFlow, ix: usize) -> String {
    let kind = match flow.nodes[ix].kind {
        Kind::Plain => "ok",
        Kind::Fails => "bad",
        Kind::Handled => "handled",
        Kind::FailsFirst => "odd",
        Kind::MergeAny => "any",
        Kind::MergeAll => "all",
    };
    format!("{kind}{ix}")
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        5 => Just(When::Always),
        1 => Just(When::Never),
        2 => Just(When::First),
        2 => Just(When::Later),
        2 => Just(When::BelowThree),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        16 => Just(Kind::Plain),
        1 => Just(Kind::Fails),
        2 => Just(Kind::Handled),
        1 => Just(Kind::FailsFirst),
        1 => Just(Kind::MergeAny),
        1 => Just(Kind::MergeAll),
    ]
}

pub(super) fn flow() -> impl Strategy<Value = PlainFlow> {
    (2..8_usize).prop_flat_map(|n| {
        let own = prop_oneof![8 => Just(When::Always), 1 => when()];
        let nodes = prop::collection::vec((kind(), own).prop_map(|(kind, when)| Node { kind, when }), n);
        let edges = prop::collection::btree_map((0..n, 0..n), when(), n - 1..2 * n);
        let back = (0..n, 0..n, when(), 1..4_u32, any::<bool>());
        let backs = prop::collection::vec(back, 1..5);
        (nodes, edges, backs, 1..4_u32, prop::bool::weighted(0.3)).prop_map(
            |(nodes, edges, backs, limit, fail_fast)| {
                let forward = edges.into_iter().filter(|((a, b), _)| a != b);
                let mut edges: Vec<_> = forward.map(|((a, b), when)| (a.min(b), a.max(b), when)).collect();
                edges.sort_by_key(|edge| (edge.0, edge.1));
                edges.dedup_by_key(|edge| (edge.0, edge.1));
                let mut flow = PlainFlow { nodes, edges, backs: Vec::new(), limit, fail_fast };
                let forward = flow.forward();
                for (a, b, when, max, continues) in backs {
                    let (from, to) = (a.max(b), a.min(b));
                    let known = flow.backs.iter().any(|back| (back.from, back.to) == (from, to));
                    if forward[to][from] && !known {
                        flow.backs.push(Back { from, to, when, max, continues });
                    }
                }
                flow
            },
        )
    })
}

impl PlainFlow {
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "flow: {{ name: loops, policy: {{ failFast: {}, maxConcurrency: {} }} }}\nnodes:\n",
            self.fail_fast, self.limit
        );
        let quoted = |when: When| when.text().map(|text| format!(", when: \"{text}\"")).unwrap_or_default();
        for (ix, node) in self.nodes.iter().enumerate() {
            let what = match node.kind {
                Kind::MergeAny => "type: control.merge, input: { mode: any }".to_owned(),
                Kind::MergeAll => "type: control.merge, input: { mode: all }".to_owned(),
                Kind::Handled => "type: control.noop, policy: { continueOnError: true }".to_owned(),
                _ => {
                    let seen = self.seen(ix).into_iter().map(|other| {
                        let name = name(self, other);
                        format!("({name}.value | default('f')) if {name} else '-'")
                    });
                    let seen: Vec<_> = seen.collect();
                    format!("type: control.noop, input: {{ value: \"{{{{ [{}] }}}}\" }}", seen.join(", "))
                }
            };
            writeln!(text, "  - {{ id: {}, {what}{} }}", name(self, ix), quoted(node.when)).unwrap();
        }
        if !self.edges.is_empty() || !self.backs.is_empty() {
            text.push_str("edges:\n");
        }
        for &(from, to, when) in &self.edges {
            let (from, to) = (name(self, from), name(self, to));
            writeln!(text, "  - {{ from: {from}, to: {to}{} }}", quoted(when)).unwrap();
        }
        for back in &self.backs {
            let (from, to) = (name(self, back.from), name(self, back.to));
            let (max, when) = (back.max, quoted(back.when));
            let rest = if back.continues { ", onExhausted: continue" } else { "" };
            writeln!(text, "  - {{ from: {from}, to: {to}, maxIterations: {max}{when}{rest} }}").unwrap();
        }
        text
    }

    /// Whose outputs a node looks at: its own former one, those of the nodes right before it, and those of the nodes
    /// that send the run back to it. Where branches race, nothing: which is first is chance there.
    fn seen(&self, ix: usize) -> Vec<usize> {
        let bodies: Vec<_> = self.backs.iter().map(|back| self.body(back.to)).collect();
        let nested = |a: &[bool], b: &[bool]| {
            let shares = (0..a.len()).any(|at| a[at] && b[at]);
            let within = |a: &[bool], b: &[bool]| (0..a.len()).all(|at| !a[at] || b[at]);
            !shares || within(a, b) || within(b, a)
        };
        let races = self.nodes.iter().any(|node| node.kind == Kind::MergeAny)
            || bodies.iter().any(|a| bodies.iter().any(|b| !nested(a, b)));
        if races {
            return Vec::new();
        }
        let mut seen = Vec::new();
        if bodies.iter().any(|body| body[ix]) {
            seen.push(ix);
        }
        seen.extend(self.edges.iter().filter(|edge| edge.1 == ix).map(|edge| edge.0));
        seen.extend(self.backs.iter().filter(|back| back.to == ix && back.from != ix).map(|back| back.from));
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    /// Which node leads to which over edges that are no loop edges.
    fn forward(&self) -> Vec<Vec<bool>> {
        closure(self.nodes.len(), self.edges.iter().map(|edge| (edge.0, edge.1)))
    }

    /// The body of the loops back to a node: all its successors that lead back to it.
    fn body(&self, head: usize) -> Vec<bool> {
        let follows = &self.forward()[head];
        let ways = self.edges.iter().map(|edge| (edge.0, edge.1));
        let ways = ways.chain(self.backs.iter().map(|back| (back.from, back.to)));
        let all = closure(self.nodes.len(), ways.filter(|&(a, b)| follows[a] && follows[b]));
        (0..self.nodes.len()).map(|at| follows[at] && all[at][head]).collect()
    }
}

fn closure(n: usize, ways: impl Iterator<Item = (usize, usize)>) -> Vec<Vec<bool>> {
    let mut reaches: Vec<Vec<bool>> = (0..n).map(|at| (0..n).map(|other| at == other).collect()).collect();
    ways.for_each(|(a, b)| reaches[a][b] = true);
    for middle in 0..n {
        for a in 0..n {
            for b in 0..n {
                reaches[a][b] |= reaches[a][middle] && reaches[middle][b];
            }
        }
    }
    reaches
}

#[derive(Clone, Debug)]
struct Place {
    status: &'static str,
    pass: u32,
    runs: u32,
    sent_back: bool,
    tainted: bool,
    output: Option<String>,
}

/// Interprets a flow.
pub(super) struct Plain<'f> {
    flow: &'f PlainFlow,
    places: Vec<Place>,
    /// Whether each edge has fired in this pass, once that is known.
    edges: Vec<Option<bool>>,
    /// Whether each loop edge is known not to fire in this pass, and how often it has fired.
    over: Vec<bool>,
    counts: Vec<u32>,
    /// Whether anything failed, in any pass, and nothing handled it.
    failed: bool,
    bodies: Vec<Vec<bool>>,
    forward: Vec<Vec<bool>>,
}

impl<'f> Plain<'f> {
    pub(super) fn new(flow: &'f PlainFlow) -> Self {
        let place =
            Place { status: "pending", pass: 1, runs: 0, sent_back: false, tainted: false, output: None };
        Self {
            places: vec![place; flow.nodes.len()],
            edges: vec![None; flow.edges.len()],
            over: vec![false; flow.backs.len()],
            counts: vec![0; flow.backs.len()],
            failed: false,
            bodies: flow.backs.iter().map(|back| flow.body(back.to)).collect(),
            forward: flow.forward(),
            flow,
        }
    }

    /// Runs to the end: the outcome, and how each node ended unless a failure ended the flow early.
    pub(super) fn run(mut self) -> (&'static str, Vec<NodeEnd>) {
        loop {
            let mut wants = Vec::new();
            while self.resolve(&mut wants) || self.run_one() {
                if self.flow.fail_fast && self.failed {
                    return ("Failed", Vec::new());
                }
            }
            let Some(back) = wants.into_iter().min_by_key(|&back| self.rank(back)) else { break };
            if self.counts[back] >= self.flow.backs[back].max {
                return ("Failed", Vec::new());
            }
            self.go_back(back);
        }
        let failed = self.failed;
        let ends = self.places.into_iter().map(|place| (place.status, place.pass, place.runs, place.output));
        (if failed { "Partial" } else { "Success" }, ends.collect())
    }

    fn has_ended(&self, ix: usize) -> bool {
        self.places[ix].status != "pending"
    }

    fn fires(&self, ix: usize) -> bool {
        matches!(self.places[ix].status, "complete" | "handled")
    }

    /// Resolves what can be resolved; gives whether anything was. Puts the loops that are to go on into `wants`.
    fn resolve(&mut self, wants: &mut Vec<usize>) -> bool {
        wants.clear();
        let mut changed = false;
        for ix in 0..self.places.len() {
            if !self.has_ended(ix) {
                continue;
            }
            let mut own: Vec<usize> =
                (0..self.over.len()).filter(|&at| self.flow.backs[at].from == ix && !self.over[at]).collect();
            own.sort_by_key(|&at| self.rank(at));
            let goes_back = |&&at: &&usize| {
                let back = &self.flow.backs[at];
                self.fires(ix)
                    && back.when.holds(self.places[ix].pass)
                    && (self.counts[at] < back.max || !back.continues)
            };
            if let Some(&wanted) = own.iter().find(goes_back) {
                // Until it has fired, nothing else of this node is decided.
                wants.push(wanted);
                continue;
            }
            changed |= !own.is_empty();
            own.into_iter().for_each(|at| self.over[at] = true);
            for at in 0..self.edges.len() {
                let (from, to, when) = self.flow.edges[at];
                if from == ix && self.edges[at].is_none() && self.may_leave(from, to) {
                    self.edges[at] = Some(self.fires(ix) && when.holds(self.places[ix].pass));
                    changed = true;
                }
            }
        }
        changed
    }

    /// Of several loops that are to go on, the one of the smallest body does, then the one of the shortest way.
    fn rank(&self, back: usize) -> (usize, usize, usize) {
        let body = self.bodies[back].iter().filter(|inside| **inside).count();
        (body, (0..self.places.len()).filter(|&at| self.is_direct(back, at)).count(), back)
    }

    fn is_direct(&self, back: usize, ix: usize) -> bool {
        let Back { from, to, .. } = self.flow.backs[back];
        self.forward[to][ix] && self.forward[ix][from]
    }

    /// Whether no loop can run the source of an edge again before its target runs.
    fn may_leave(&self, from: usize, to: usize) -> bool {
        let mut left: Vec<usize> =
            (0..self.over.len()).filter(|&at| self.bodies[at][from] && !self.bodies[at][to]).collect();
        loop {
            let more = (0..self.over.len()).find(|&at| {
                let runs_again = left.iter().any(|&known| self.bodies[at][self.flow.backs[known].from]);
                !left.contains(&at) && !self.bodies[at][to] && runs_again
            });
            match more {
                Some(at) => left.push(at),
                None => return left.into_iter().all(|at| self.over[at]),
            }
        }
    }

    /// Runs or skips the first node that is ready, if any is.
    fn run_one(&mut self) -> bool {
        let Some(ix) = (0..self.places.len()).find(|&ix| self.is_ready(ix)) else { return false };
        let kind = self.flow.nodes[ix].kind;
        let into = |at: &usize| self.flow.edges[*at].1 == ix;
        let edges: Vec<usize> = (0..self.edges.len()).filter(into).collect();
        let fired = edges.iter().filter(|&&at| self.edges[at] == Some(true)).count();
        let tainted = edges
            .iter()
            .any(|&at| self.edges[at] == Some(false) && self.places[self.flow.edges[at].0].tainted);
        let sent_back = self.places[ix].sent_back;
        if !sent_back && self.flow.backs.iter().any(|back| back.to == ix) {
            let body = self.flow.body(ix);
            for (other, _) in body.iter().enumerate().filter(|(_, is_inside)| **is_inside) {
                if !self.has_ended(other) {
                    self.places[other].output = None;
                }
            }
        }
        let runs = edges.is_empty()
            || match kind {
                Kind::MergeAll => fired == edges.len(),
                Kind::MergeAny => fired > 0 || sent_back,
                _ => (fired > 0 || sent_back) && !tainted,
            };
        let place = &mut self.places[ix];
        if !runs || !self.flow.nodes[ix].when.holds(place.pass) {
            place.status = "skipped";
            place.tainted = !runs && tainted;
            place.output = None;
            return true;
        }
        place.runs += 1;
        let fails = match kind {
            Kind::Fails => true,
            Kind::FailsFirst => place.pass == 1,
            _ => false,
        };
        if fails {
            (place.status, place.tainted, place.output) = ("failed", true, None);
            self.failed = true;
        } else if kind == Kind::Handled {
            (place.status, place.output) = ("handled", Some("f".to_owned()));
        } else {
            let pass = place.pass;
            let saw: Vec<String> = match kind {
                Kind::Plain | Kind::FailsFirst => {
                    let seen = self.flow.seen(ix).into_iter();
                    seen.map(|other| {
                        let output = self.places[other].output.as_deref();
                        output.map_or("-", |text| text.split(' ').next().unwrap_or_default()).to_owned()
                    })
                    .collect()
                }
                _ => Vec::new(),
            };
            let place = &mut self.places[ix];
            place.status = "complete";
            place.output = Some(format!("{} {}", path(self.flow, ix, pass), saw.join(",")));
        }
        true
    }

    fn is_ready(&self, ix: usize) -> bool {
        let edges = (0..self.edges.len()).filter(|&at| self.flow.edges[at].1 == ix);
        let resolved = edges.clone().all(|at| self.edges[at].is_some());
        let first = self.flow.nodes[ix].kind == Kind::MergeAny
            && edges.clone().any(|at| self.edges[at] == Some(true));
        !self.has_ended(ix) && (resolved || first)
    }

    fn go_back(&mut self, back: usize) {
        let (body, to) = (self.bodies[back].clone(), self.flow.backs[back].to);
        for (at, &(from, to, _)) in self.flow.edges.iter().enumerate() {
            if body[from] && body[to] {
                self.edges[at] = None;
            }
        }
        for (at, other) in self.flow.backs.iter().enumerate() {
            if body[other.from] {
                self.over[at] = false;
            }
            let within = body[other.to] && other.to != to;
            if within || (at != back && other.to == to && self.is_direct(back, other.from)) {
                self.counts[at] = 0;
            }
        }
        self.counts[back] += 1;
        for (ix, place) in self.places.iter_mut().enumerate().filter(|(ix, _)| body[*ix]) {
            // A node that has not run in this pass keeps its pass number.
            place.pass += u32::from(place.status != "pending");
            place.status = "pending";
            place.sent_back = ix == to;
            place.tainted = false;
        }
    }
}

/// A node's place in its pass.
pub(super) fn path(flow: &PlainFlow, ix: usize, pass: u32) -> String {
    if pass > 1 { format!("{}#{pass}", name(flow, ix)) } else { name(flow, ix) }
}
