//! Which nodes have an output wherever another node runs. A node waits for all edges that lead to it, and runs if one of
//! them fires; so the output of a node that may be skipped is there only if every way to the reader proves it.

use std::collections::{HashMap, HashSet};

use inspan_protocol::NodeId;

use super::facts::Facts;
use crate::{
    compile::{
        check::exits,
        resolve::{Link, Links, Resolved, ResolvedNode},
    },
    expr::{Condition, Predicate},
    graph::{EdgeOn, NodeIx},
    ids::in_order,
    node::NodeKind,
};

/// What is known of a node's output where another reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownOutput {
    /// It is there.
    Certain,
    /// The node may have been skipped.
    MaybeSkipped,
    /// The reader runs before it on the first pass of a loop.
    NotOnFirstPass,
    /// The node never runs before the reader, which is reported elsewhere.
    Never,
}

/// The nodes in the order in which they can run, and what the conditions between them prove.
pub(super) struct Order<'f> {
    links: &'f Links<'f>,
    /// The place of each node in an order in which every edge leads onward; loop edges do not count. A node in a cycle has
    /// none.
    place: Vec<u32>,
    /// The nodes in that order.
    pub(super) sorted: Vec<NodeIx>,
    /// The edges into each node that close no loop.
    pub(super) incoming: Vec<Vec<usize>>,
    joins: Vec<Join>,
    /// Whether a node is skipped only if its own edges say so.
    has_when: Vec<bool>,
    /// Whether each node runs in every run that does not fail.
    always: Vec<bool>,
    /// Whether the edge fires whenever its source has succeeded.
    sure: Vec<bool>,
    /// Whether the edge fires however its source ends, also if it was skipped.
    unconditional: Vec<bool>,
    /// The nodes that have an output if the edge fires, by its condition.
    edge_proves: Vec<Vec<NodeIx>>,
    /// The nodes that have an output if the node runs, by its own condition.
    node_proves: Vec<Vec<NodeIx>>,
    outgoing: Vec<Vec<usize>>,
    /// The nodes with each condition.
    by_when: HashMap<String, Vec<NodeIx>>,
    /// The condition of each node.
    whens: Vec<Option<String>>,
    has_any: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    /// It runs if one of its edges fires, once all are resolved.
    One,
    /// It runs if all fire.
    All,
    /// It runs as soon as one fires, and does not wait for the others.
    First,
}

impl<'f> Order<'f> {
    pub(super) fn new(
        body: &'f Resolved<'f>,
        edges: &[Facts],
        nodes: &[Facts],
        conditions: &[Option<Condition>],
    ) -> Self {
        let links = &body.links;
        let count = body.nodes.len();
        let mut incoming = vec![Vec::new(); count];
        let mut outgoing = vec![Vec::new(); count];
        let onward = |link: &Link<'_>| !link.is_loop() && link.from != link.to;
        for (at, link) in links.links.iter().enumerate().filter(|(_, link)| onward(link)) {
            incoming[link.to.0 as usize].push(at);
            outgoing[link.from.0 as usize].push(at);
        }
        let waits = incoming.iter().map(Vec::len).collect();
        let sorted = in_order(waits, |node| outgoing[ix(node)].iter().map(|&at| links.links[at].to));
        let mut place = vec![u32::MAX; count];
        (0..).zip(&sorted).for_each(|(at, node)| place[ix(*node)] = at);
        let join = |node: &ResolvedNode<'_>| match node.kind() {
            Some(NodeKind::Merge) if node.json["mode"] == "any" => Join::First,
            Some(NodeKind::Merge) => Join::All,
            _ => Join::One,
        };
        let joins: Vec<Join> = body.nodes.iter().map(join).collect();
        let holds = |when: &Option<Condition>| match when {
            None => true,
            Some(when) => matches!(*when.test, Predicate::Constant(true)),
        };
        let written = |at: usize| links.links[at].spec.is_some_and(|spec| spec.when.is_some());
        let open_on = |on: EdgeOn| {
            let is_open = |at: usize| holds(&conditions[at]) && (conditions[at].is_some() || !written(at));
            (0..links.links.len()).map(|at| links.links[at].on == on && is_open(at)).collect()
        };
        let (sure, unconditional) = (open_on(EdgeOn::Success), open_on(EdgeOn::Any));
        let written = |node: &ResolvedNode<'_>| node.spec.when.map(|when| when.json().to_string());
        let whens: Vec<Option<String>> = body.nodes.iter().map(written).collect();
        let mut by_when: HashMap<String, Vec<NodeIx>> = HashMap::new();
        for (when, node) in whens.iter().zip((0_u32..).map(NodeIx)) {
            if let Some(when) = when {
                by_when.entry(when.clone()).or_default().push(node);
            }
        }
        let mut order = Self {
            outgoing,
            by_when,
            whens,
            links,
            place,
            sorted,
            incoming,
            has_any: joins.contains(&Join::First),
            joins,
            has_when: body.nodes.iter().map(|node| node.spec.when.is_some()).collect(),
            always: vec![false; count],
            sure,
            unconditional,
            edge_proves: edges.iter().map(|facts| roots(facts, &body.index)).collect(),
            node_proves: nodes.iter().map(|facts| roots(facts, &body.index)).collect(),
        };
        for at in 0..order.sorted.len() {
            let node = order.sorted[at];
            order.always[ix(node)] = order.runs_always(node);
        }
        order
    }

    fn runs_always(&self, node: NodeIx) -> bool {
        let fires = |&at: &usize| {
            self.unconditional[at] || self.sure[at] && self.always[ix(self.links.links[at].from)]
        };
        let incoming = &self.incoming[ix(node)];
        !self.has_when[ix(node)]
            && match self.joins[ix(node)] {
                _ if incoming.is_empty() => true,
                Join::All => incoming.iter().all(fires),
                Join::One | Join::First => incoming.iter().any(fires),
            }
    }

    /// Whether `source` has an output where `reader` reads it: in its own condition, its input or, with
    /// [`Moment::After`], once it has ended.
    pub(super) fn output(&self, source: NodeIx, reader: NodeIx, moment: Moment) -> KnownOutput {
        if source == reader {
            return match moment {
                Moment::After => KnownOutput::Certain,
                _ if self.links.precedes(source, reader) => KnownOutput::NotOnFirstPass,
                _ => KnownOutput::Never,
            };
        }
        // In a cycle that was reported nothing is known.
        let (Some(from), Some(to)) = (self.placed(source), self.placed(reader)) else {
            return KnownOutput::Certain;
        };
        if moment != Moment::When && self.node_proves[ix(reader)].contains(&source) {
            return KnownOutput::Certain;
        }
        let direct = |&at: &usize| self.links.links[at].from == source;
        if from < to && self.incoming[ix(reader)].iter().all(direct) && !self.incoming[ix(reader)].is_empty()
        {
            return KnownOutput::Certain;
        }
        if from > to || !self.leads_to(source, reader) {
            return match self.proven(source, reader) {
                true => KnownOutput::Certain,
                false if self.links.precedes(source, reader) => KnownOutput::NotOnFirstPass,
                false => KnownOutput::Never,
            };
        }
        let is_sure = self.always[ix(source)] && !self.has_any && !self.cleans_up(reader);
        if is_sure || self.proven(source, reader) { KnownOutput::Certain } else { KnownOutput::MaybeSkipped }
    }

    /// Whether a node runs in every run that does not fail.
    pub(super) fn always(&self, node: NodeIx) -> bool {
        self.always[ix(node)]
    }

    /// Whether a node also runs where a node before it has failed.
    pub(super) fn cleans_up(&self, node: NodeIx) -> bool {
        self.incoming[ix(node)].iter().any(|&at| self.links.links[at].on == EdgeOn::Any)
    }

    /// Why a node may have no output.
    pub(super) fn skips(&self, source: NodeIx) -> Skips {
        if self.always[ix(source)] {
            return Skips::Joined;
        }
        if self.has_when[ix(source)] {
            return Skips::ByItself;
        }
        let unsure = self.incoming[ix(source)].iter().find(|&&at| !self.sure[at]);
        unsure.map_or(Skips::Earlier, |&at| Skips::ByEdge(self.links.links[at].from))
    }

    fn placed(&self, node: NodeIx) -> Option<u32> {
        self.place.get(ix(node)).copied().filter(|place| *place != u32::MAX)
    }

    /// Whether a path of onward edges leads from one node to another.
    pub(super) fn leads_to(&self, source: NodeIx, reader: NodeIx) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![reader];
        while let Some(node) = open.pop() {
            for &at in &self.incoming[ix(node)] {
                let before = self.links.links[at].from;
                if before == source {
                    return true;
                }
                if self.place[ix(before)] > self.place[ix(source)] && seen.insert(before) {
                    open.push(before);
                }
            }
        }
        false
    }

    /// What proves that `source` runs too, and before whatever waits for it.
    fn implies(&self, source: NodeIx) -> Implies {
        let mut found = Implies { nodes: HashSet::from([source]), edges: HashSet::new() };
        let mut open = vec![source];
        while let Some(node) = open.pop() {
            let incoming = &self.incoming[ix(node)];
            if self.joins[ix(node)] == Join::All && incoming.len() > 1 {
                continue;
            }
            let new =
                if self.has_when[ix(node)] { self.alike(node) } else { self.follow(node, &mut found.edges) };
            open.extend(new.into_iter().filter(|node| found.nodes.insert(*node)));
        }
        found
    }

    /// Nodes that run only if this one does, which has the same condition.
    fn alike(&self, node: NodeIx) -> Vec<NodeIx> {
        let sources = |node: NodeIx| self.incoming[ix(node)].iter().map(|&at| self.links.links[at].from);
        let certain =
            sources(node).any(|before| self.always[ix(before)]) || self.incoming[ix(node)].is_empty();
        let same = self.whens[ix(node)].as_ref().and_then(|when| self.by_when.get(when));
        let together = |other: &&NodeIx| {
            certain
                || sources(node).count() == 1
                    && sources(**other).count() == 1
                    && sources(node).eq(sources(**other))
        };
        let sure = self.incoming[ix(node)].iter().all(|&at| self.sure[at]);
        same.into_iter().flatten().filter(|_| sure).filter(together).copied().collect()
    }

    /// The nodes that this one follows without a condition; and edges that fire only if one that leads to it does.
    fn follow(&self, node: NodeIx, edges: &mut HashSet<usize>) -> Vec<NodeIx> {
        let mut before = Vec::new();
        for &at in &self.incoming[ix(node)] {
            let link = &self.links.links[at];
            if self.sure[at] {
                before.push(link.from);
                continue;
            }
            let when = exits::condition(link);
            let alike = |&other: &usize| {
                let other = &self.links.links[other];
                other.on == link.on && exits::condition(other) == when
            };
            edges.extend(self.outgoing[ix(link.from)].iter().copied().filter(alike));
        }
        before
    }

    /// Whether every way on which `reader` comes to run proves that `source` has run.
    fn proven(&self, source: NodeIx, reader: NodeIx) -> bool {
        let implies = self.implies(source);
        let sources = implies.edges.iter().map(|&at| self.links.links[at].from);
        let proofs = implies.nodes.iter().copied().chain(sources);
        let lowest = proofs.map(|node| self.place[ix(node)]).min().unwrap_or(0);
        // After a join that does not wait, only the source itself is a proof.
        let mut memo: HashMap<(NodeIx, bool), bool> = HashMap::new();
        let mut open = vec![(reader, false)];
        let mut region = Vec::new();
        while let Some((node, no_wait)) = open.pop() {
            if memo.insert((node, no_wait), false).is_some() {
                continue;
            }
            region.push((node, no_wait));
            let no_wait = no_wait || self.joins[ix(node)] == Join::First;
            for &at in &self.incoming[ix(node)] {
                let before = self.links.links[at].from;
                if self.place[ix(before)] >= lowest && before != source {
                    open.push((before, no_wait));
                }
            }
        }
        region.sort_by_key(|(node, _)| self.place[ix(*node)]);
        for &(node, no_wait) in &region {
            let inner = no_wait || self.joins[ix(node)] == Join::First;
            let by_edge = |&at: &usize| {
                let (before, on) = (self.links.links[at].from, self.links.links[at].on);
                let ran = || memo.get(&(before, inner)).copied().unwrap_or(false);
                let succeeded = || {
                    let implied = implies.nodes.contains(&before) || implies.edges.contains(&at);
                    before == source || (!inner && implied)
                };
                self.edge_proves[at].contains(&source)
                    || match on {
                        EdgeOn::Success => succeeded() || ran(),
                        EdgeOn::Failure => ran(),
                        EdgeOn::Skipped | EdgeOn::Any => false,
                    }
            };
            let incoming = &self.incoming[ix(node)];
            let own = node != reader && self.node_proves[ix(node)].contains(&source);
            let proven = own
                || match self.joins[ix(node)] {
                    Join::All => incoming.iter().any(by_edge),
                    Join::One | Join::First => !incoming.is_empty() && incoming.iter().all(by_edge),
                };
            memo.insert((node, no_wait), proven);
        }
        memo.get(&(reader, false)).copied().unwrap_or(false)
    }
}

/// What proves that a node has run.
struct Implies {
    nodes: HashSet<NodeIx>,
    edges: HashSet<usize>,
}

/// When a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// In its own condition.
    When,
    /// In its input.
    Input,
    /// In the condition of an edge, once it has ended.
    After,
    /// In the `until` of a loop, once a pass has ended.
    Until,
}

/// Why a node may have no output.
pub(super) enum Skips {
    /// It has a condition.
    ByItself,
    /// An edge from this node has one.
    ByEdge(NodeIx),
    /// A node or edge before it has one.
    Earlier,
    /// It always runs, but the reader does not wait for it.
    Joined,
}

fn ix(node: NodeIx) -> usize {
    node.0 as usize
}

fn roots(facts: &Facts, index: &HashMap<NodeId, NodeIx>) -> Vec<NodeIx> {
    if facts.is_empty() {
        return Vec::new();
    }
    let root = |path: &str| NodeId::new(path.split(['.', '[']).next()?).ok();
    // `x.failed` is false where `x` has not run.
    let proves = |path: &&str| !path.ends_with(".failed");
    facts.paths().filter(proves).filter_map(|path| index.get(&root(path)?).copied()).collect()
}
