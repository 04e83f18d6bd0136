//! The loops of a flow: which nodes each repeats, which edges wait for it to end, and which loops are inside it.
//!
//! The body of a loop edge is every node on a path from its target to its source. A path may go over the loop edges
//! of inner loops, so a node that is only on the way back of an inner loop is in the body of the outer one too.
//! Loops that lead back to one node have one body.

use std::{collections::BTreeMap, sync::Arc};

use petgraph::{algo::kosaraju_scc, graph::DiGraph};

use crate::{
    compile::resolve::{Links, name, reach},
    diagnostic::{Code, Problem, Sink},
    graph::{Cycle, EdgeIx, NodeIx},
    spec::BodySpec,
};

/// All loops of a flow.
#[derive(Default)]
pub(in crate::compile) struct Loops {
    all: Vec<LoopEdge>,
    /// The loops whose body each node is in.
    around: Vec<Vec<usize>>,
    /// For each edge, the loops that it waits for.
    leaves: BTreeMap<usize, Vec<usize>>,
    /// Edges out of a loop that another loop would fire again without running their sources again.
    crossed: Vec<(usize, [usize; 2])>,
}

/// One loop edge.
pub(super) struct LoopEdge {
    /// Its place among the edges.
    pub(super) edge: usize,
    pub(super) from: NodeIx,
    pub(super) to: NodeIx,
    /// How often it may fire, and what then.
    pub(super) cycle: Cycle,
}

impl Loops {
    /// Finds the loops. Reports edges that do not close a cycle, and loops that overlap so that one cannot end.
    pub(super) fn find(spec: &BodySpec<'_>, links: &Links<'_>, sink: &mut Sink) -> Self {
        let mut loops = Self::default();
        if links.onward.is_empty() {
            return loops;
        }
        loops.read(spec, links, sink);
        loops.bodies(links);
        loops.nest();
        loops.exits(links);
        loops.check_overlap(spec, links, sink);
        loops
    }

    /// The loops that an edge waits for.
    pub(super) fn left_by(&self, edge: usize) -> impl Iterator<Item = &LoopEdge> {
        self.leaves.get(&edge).into_iter().flatten().map(|&at| &self.all[at])
    }

    /// All loops.
    pub(super) fn iter(&self) -> impl Iterator<Item = &LoopEdge> {
        self.all.iter()
    }

    /// Whether an edge begins another pass of both nodes: it does not bring one before the other within a pass.
    pub(super) fn repeats_both(&self, edge: usize, one: NodeIx, other: NodeIx) -> bool {
        let place = self.all.binary_search_by_key(&edge, |found| found.edge);
        place.is_ok_and(|place| [one, other].iter().all(|&node| self.around[at(node)].contains(&place)))
    }

    /// The cycle that an edge closes, and the loop edges that it waits for.
    pub(in crate::compile) fn take(&mut self, edge: usize) -> (Option<Cycle>, Vec<EdgeIx>) {
        let place = self.all.binary_search_by_key(&edge, |found| found.edge).ok();
        let cycle = place.map(|place| std::mem::take(&mut self.all[place].cycle));
        let leaves = self.leaves.get(&edge).into_iter().flatten();
        (cycle, leaves.map(|&at| EdgeIx(self.all[at].edge as u32)).collect())
    }

    fn read(&mut self, spec: &BodySpec<'_>, links: &Links<'_>, sink: &mut Sink) {
        let nodes = spec.nodes.len();
        for (edge, link) in links.links.iter().enumerate() {
            let Some((written, (max_iterations, span))) =
                link.spec.and_then(|written| Some((written, written.max_iterations?)))
            else {
                continue;
            };
            let (after, before) = (reach(link.to, &links.onward), reach(link.from, &links.back));
            let direct: Vec<NodeIx> = indices(nodes).filter(|ix| after[at(*ix)] && before[at(*ix)]).collect();
            if direct.is_empty() {
                let (from, to) = (name(spec, link.from), name(spec, link.to));
                let message = format!("this edge does not close a cycle: no path leads from {to} to {from}");
                let help = "remove `maxIterations`".to_owned();
                let problem = Problem::error(Code::LoopWithoutCycle, span, message).help(help);
                sink.push(problem.key(format!("{}.maxIterations", written.key)));
            }
            let on_exhausted = written.on_exhausted;
            let cycle = Cycle { max_iterations, on_exhausted, direct, ..Cycle::default() };
            self.all.push(LoopEdge { edge, from: link.from, to: link.to, cycle });
        }
    }

    /// The body of each loop: the nodes that follow its target and lead back to it, by edges or by loops that begin there.
    fn bodies(&mut self, links: &Links<'_>) {
        let nodes = links.onward.len();
        let mut back_by_loop = vec![Vec::new(); nodes];
        for found in &self.all {
            back_by_loop[at(found.to)].push(found.from);
        }
        let mut bodies: BTreeMap<NodeIx, Arc<[NodeIx]>> = BTreeMap::new();
        for found in &self.all {
            bodies.entry(found.to).or_insert_with(|| {
                let after = reach(found.to, &links.onward);
                let mut inside = vec![false; nodes];
                let mut open = vec![found.to];
                inside[at(found.to)] = true;
                while let Some(node) = open.pop() {
                    for &before in links.back[at(node)].iter().chain(&back_by_loop[at(node)]) {
                        if after[at(before)] && !std::mem::replace(&mut inside[at(before)], true) {
                            open.push(before);
                        }
                    }
                }
                indices(nodes).filter(|ix| inside[at(*ix)]).collect()
            });
        }
        self.around = vec![Vec::new(); nodes];
        for (place, found) in self.all.iter_mut().enumerate() {
            let Some(body) = bodies.get(&found.to) else { continue };
            body.iter().for_each(|ix| self.around[at(*ix)].push(place));
            found.cycle.body = body.clone();
        }
    }

    /// Which loops are inside which, and which only overlap.
    fn nest(&mut self) {
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        order.sort_by_key(|&place| (self.body(place).len(), self.direct(place).len(), place));
        let mut ranks = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(&place, rank)| ranks[place] = rank);
        let mut begin_at: BTreeMap<NodeIx, Vec<usize>> = BTreeMap::default();
        for (place, found) in self.all.iter().enumerate() {
            begin_at.entry(found.to).or_default().push(place);
        }
        let overlaps = self.overlaps(&ranks);
        for (place, &rank) in ranks.iter().enumerate() {
            let begin = self.body(place).iter().filter_map(|ix| begin_at.get(ix)).flatten();
            let inner = begin.filter(|&&other| self.is_inner(other, place));
            let inner = inner.map(|&other| EdgeIx(self.all[other].edge as u32)).collect();
            let (mut together, mut next) = (vec![place], 0);
            while let Some(known) = together.get(next) {
                for &other in overlaps.get(known).into_iter().flatten() {
                    if !together.contains(&other) {
                        together.push(other);
                    }
                }
                next += 1;
            }
            let mut quiet: Vec<NodeIx> =
                together.iter().flat_map(|&other| self.body(other).iter().copied()).collect();
            quiet.sort_unstable();
            quiet.dedup();
            let cycle = &mut self.all[place].cycle;
            (cycle.rank, cycle.inner, cycle.quiet) = (rank, inner, quiet);
        }
    }

    /// For each loop, those that share nodes with it so that neither is inside the other.
    fn overlaps(&self, ranks: &[u32]) -> BTreeMap<usize, Vec<usize>> {
        let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::default();
        for around in &self.around {
            let mut around = around.clone();
            around.sort_by_key(|&place| ranks[place]);
            let apart = |a: usize, b: usize| self.all[a].to != self.all[b].to && !self.encloses(b, a);
            if !around.windows(2).any(|pair| apart(pair[0], pair[1])) {
                continue;
            }
            for (nth, &a) in around.iter().enumerate() {
                for &b in around[nth + 1..].iter().filter(|&&b| apart(a, b)) {
                    found.entry(a).or_default().push(b);
                    found.entry(b).or_default().push(a);
                }
            }
        }
        found
    }

    /// Whether the body of one loop is inside that of another and not the same.
    fn encloses(&self, outer: usize, inner: usize) -> bool {
        let (outer_to, inner_to) = (self.all[outer].to, self.all[inner].to);
        outer_to != inner_to && self.around[at(inner_to)].binary_search(&outer).is_ok()
    }

    /// Whether the count of a loop restarts when the other fires. Of two with one body, the shorter path is the inner.
    fn is_inner(&self, inner: usize, outer: usize) -> bool {
        let same = inner != outer && self.all[inner].to == self.all[outer].to;
        self.encloses(outer, inner)
            || (same && self.direct(outer).binary_search(&self.all[inner].from).is_ok())
    }

    /// Which loops each edge waits for: those whose body it leaves, and those that would repeat them.
    fn exits(&mut self, links: &Links<'_>) {
        for (edge, link) in links.links.iter().enumerate().filter(|(_, link)| !link.is_loop()) {
            let stays = |place: &usize| self.around[at(link.to)].binary_search(place).is_ok();
            let mut left: Vec<usize> =
                self.around[at(link.from)].iter().copied().filter(|place| !stays(place)).collect();
            let mut next = 0;
            while let Some(&place) = left.get(next) {
                for &other in &self.around[at(self.all[place].from)] {
                    if stays(&other) {
                        if self.around[at(link.from)].binary_search(&other).is_err() {
                            self.crossed.push((edge, [place, other]));
                        }
                    } else if !left.contains(&other) {
                        left.push(other);
                    }
                }
                next += 1;
            }
            if !left.is_empty() {
                self.leaves.insert(edge, left);
            }
        }
        for (&edge, left) in &self.leaves {
            for &place in left {
                self.all[place].cycle.releases.push(links.links[edge].from);
            }
        }
        for found in &mut self.all {
            found.cycle.releases.sort_unstable();
            found.cycle.releases.dedup();
        }
    }

    /// A loop must not wait for a node that waits for the loop to end, and no other loop may restart a loop after
    /// something waited for it to end.
    fn check_overlap(&self, spec: &BodySpec<'_>, links: &Links<'_>, sink: &mut Sink) {
        let mut reported = None;
        for &(edge, [left, other]) in &self.crossed {
            if reported.replace(edge) == Some(edge) {
                continue;
            }
            let (link, left, other) = (&links.links[edge], &self.all[left], &self.all[other]);
            let message = format!(
                "this edge waits for the end of the loop from {} to {}, and the loop from {} to {} may begin that loop again \
                 afterwards",
                name(spec, left.from),
                name(spec, left.to),
                name(spec, other.from),
                name(spec, other.to)
            );
            let help = format!(
                "start the loop from {} at an earlier node, so that {} is inside it",
                name(spec, other.from),
                name(spec, link.from)
            );
            sink.push(Problem::error(Code::OverlappingLoops, link.span, message).help(help));
        }
        let mut waits = DiGraph::<(), ()>::with_capacity(links.onward.len(), links.links.len());
        let places: Vec<_> = links.onward.iter().map(|_| waits.add_node(())).collect();
        for (edge, link) in links.links.iter().enumerate().filter(|(_, link)| !link.is_loop()) {
            waits.add_edge(places[at(link.from)], places[at(link.to)], ());
            for found in self.left_by(edge) {
                waits.add_edge(places[at(found.from)], places[at(link.to)], ());
            }
        }
        for part in kosaraju_scc(&waits).into_iter().filter(|part| part.len() > 1) {
            let inside = |ix: NodeIx| part.contains(&places[at(ix)]);
            let exit = links.links.iter().enumerate().find_map(|(edge, link)| {
                let found = self.left_by(edge).find(|found| inside(found.from) && inside(link.to))?;
                Some((link, found))
            });
            // A cycle of plain edges was reported before.
            let Some((link, found)) = exit else { continue };
            let message = format!(
                "{} waits for the loop from {} to {} to end, and the loop waits for it",
                name(spec, link.to),
                name(spec, found.from),
                name(spec, found.to)
            );
            let help =
                format!("start the loop at an earlier node, so that {} is inside it", name(spec, link.to));
            sink.push(Problem::error(Code::OverlappingLoops, link.span, message).help(help));
        }
    }

    fn body(&self, place: usize) -> &[NodeIx] {
        &self.all[place].cycle.body
    }

    fn direct(&self, place: usize) -> &[NodeIx] {
        &self.all[place].cycle.direct
    }
}

fn at(ix: NodeIx) -> usize {
    ix.0 as usize
}

fn indices(nodes: usize) -> impl Iterator<Item = NodeIx> {
    (0..nodes).filter_map(|at| u32::try_from(at).ok().map(NodeIx))
}
