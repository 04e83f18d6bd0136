//! The edges of a flow with their ends resolved. Cycles without a limit are reported.

use std::collections::{HashMap, HashSet};

use inspan_protocol::NodeId;
use petgraph::{algo::kosaraju_scc, graph::DiGraph, visit::EdgeRef};

use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean, quoted},
    graph::{EdgeOn, NodeIx},
    spec::{BodySpec, EdgeSpec, Text},
};

/// All edges of a body: those under `edges` first, then those from `dependsOn`.
pub(in crate::compile) struct Links<'a> {
    pub(in crate::compile) links: Vec<Link<'a>>,
    /// The edges into each node, those that close cycles included.
    into: Vec<Vec<usize>>,
    /// Over edges that close no cycle, the targets and the sources of each node; empty if the flow has no loops.
    pub(in crate::compile) onward: Vec<Vec<NodeIx>>,
    pub(in crate::compile) back: Vec<Vec<NodeIx>>,
    /// The nodes with an edge that may fire after a failure.
    may_fail: HashSet<NodeIx>,
}

pub(in crate::compile) struct Link<'a> {
    pub(in crate::compile) from: NodeIx,
    pub(in crate::compile) to: NodeIx,
    pub(in crate::compile) on: EdgeOn,
    /// The edge as written; none for `dependsOn`.
    pub(in crate::compile) spec: Option<&'a EdgeSpec<'a>>,
    pub(in crate::compile) span: SourceSpan,
}

impl Link<'_> {
    pub(in crate::compile) fn is_loop(&self) -> bool {
        self.spec.is_some_and(|spec| spec.max_iterations.is_some())
    }

    /// Whether it may fire after a failure of its source.
    fn follows_failure(&self) -> bool {
        matches!(self.on, EdgeOn::Failure | EdgeOn::Any)
    }
}

impl<'a> Links<'a> {
    pub(in crate::compile) fn read(
        spec: &'a BodySpec<'a>,
        index: &HashMap<NodeId, NodeIx>,
        sink: &mut Sink,
    ) -> Self {
        let mut reader = LinkReader { spec, index, links: Vec::new(), seen: HashMap::new(), sink };
        reader.edges();
        reader.dependencies();
        let links = reader.links;
        let has_loops = links.iter().any(Link::is_loop);
        let size = if has_loops { spec.nodes.len() } else { 0 };
        let may_fail = links.iter().filter(|link| link.follows_failure()).map(|link| link.from).collect();
        let (mut onward, mut back) = (vec![Vec::new(); size], vec![Vec::new(); size]);
        let mut into = vec![Vec::new(); spec.nodes.len()];
        for (at, link) in links.iter().enumerate() {
            into[link.to.0 as usize].push(at);
            if has_loops && !link.is_loop() {
                onward[link.from.0 as usize].push(link.to);
                back[link.to.0 as usize].push(link.from);
            }
        }
        let found = Self { links, into, onward, back, may_fail };
        found.check_cycles(spec, sink);
        found
    }

    /// The edges into a node.
    pub(in crate::compile) fn leading_to(&self, node: NodeIx) -> impl Iterator<Item = &Link<'a>> {
        self.into[node.0 as usize].iter().map(|&at| &self.links[at])
    }

    /// Whether an edge may fire after a failure of a node.
    pub(in crate::compile) fn may_fail(&self, node: NodeIx) -> bool {
        self.may_fail.contains(&node)
    }

    /// Whether one node can have run before another, or before itself on another pass.
    pub(in crate::compile) fn precedes(&self, first: NodeIx, then: NodeIx) -> bool {
        self.precedes_over(first, then, |_| true)
    }

    /// Whether one node can have run before another, as far as these edges tell.
    pub(in crate::compile) fn precedes_over(
        &self,
        first: NodeIx,
        then: NodeIx,
        counts: impl Fn(usize) -> bool,
    ) -> bool {
        let mut seen: HashSet<NodeIx> = HashSet::new();
        let mut open = vec![then];
        while let Some(node) = open.pop() {
            for &edge in self.into[node.0 as usize].iter().filter(|&&edge| counts(edge)) {
                let from = self.links[edge].from;
                if from == first {
                    return true;
                }
                if seen.insert(from) {
                    open.push(from);
                }
            }
        }
        false
    }

    fn check_cycles(&self, spec: &BodySpec<'_>, sink: &mut Sink) {
        let mut graph = DiGraph::<(), usize>::with_capacity(spec.nodes.len(), self.links.len());
        let places: Vec<_> = spec.nodes.iter().map(|_| graph.add_node(())).collect();
        for (at, link) in self.links.iter().enumerate().filter(|(_, link)| !link.is_loop()) {
            if link.from == link.to {
                let message = format!("{} leads to itself without a limit", name(spec, link.from));
                let help = match link.spec {
                    Some(_) => "set `maxIterations`",
                    None => "remove it from `dependsOn`",
                };
                sink.push(Problem::error(Code::SelfEdge, link.span, message).help(help.to_owned()));
                continue;
            }
            graph.add_edge(places[link.from.0 as usize], places[link.to.0 as usize], at);
        }
        // Unlike `tarjan_scc`, this one does not recurse along a path, which may be long.
        for part in kosaraju_scc(&graph).into_iter().filter(|part| part.len() > 1) {
            let inside: HashSet<_> = part.iter().copied().collect();
            let Some(&start) = part.iter().min() else { continue };
            // Following any edge within the part must come back to a node already passed.
            let (mut path, mut at) = (Vec::new(), start);
            let closed = loop {
                if let Some(first) = path.iter().position(|&(node, _)| node == at) {
                    break first;
                }
                let next = graph
                    .edges(at)
                    .filter(|edge| inside.contains(&edge.target()))
                    .min_by_key(|e| *e.weight());
                let Some(edge) = next else { break 0 };
                path.push((at, *edge.weight()));
                at = edge.target();
            };
            let cycle = &path[closed..];
            let mut words: Vec<String> = cycle.iter().map(|&(node, _)| id_of(spec, node.index())).collect();
            words.extend(words.first().cloned());
            let Some(last) =
                cycle.iter().map(|&(_, link)| &self.links[link]).max_by_key(|link| link.span.start)
            else {
                continue;
            };
            let message = format!("cycle without a limit: {}", words.join(" -> "));
            let help = "set `maxIterations` on the edge that leads back".to_owned();
            sink.push(Problem::error(Code::Cycle, last.span, message).help(help));
        }
    }
}

/// Collects the edges of a body.
struct LinkReader<'a, 'r> {
    spec: &'a BodySpec<'a>,
    index: &'r HashMap<NodeId, NodeIx>,
    links: Vec<Link<'a>>,
    /// The edges between two nodes, the first of each kind.
    seen: HashMap<(NodeIx, NodeIx), Vec<SeenEdge>>,
    sink: &'r mut Sink,
}

impl<'a> LinkReader<'a, '_> {
    fn edges(&mut self) {
        let spec = self.spec;
        for edge in &spec.edges {
            let mut end = |end: Option<Text<'_>>, what: &str, name: &str| {
                self::end(end?, what, || format!("{}.{name}", edge.key), self.index, self.sink)
            };
            let (from, to) =
                (end(edge.from, "the edge comes from", "from"), end(edge.to, "the edge leads to", "to"));
            let (Some(from), Some(to)) = (from, to) else { continue };
            if let Some(first) = self.same(from, to, edge.on) {
                let (line, from, to) = (first.span.start.line, name(spec, from), name(spec, to));
                let message = format!("another edge leads from {from} to {to}, on line {line}");
                let help = "put both conditions in one `when`".to_owned();
                let problem = Problem::error(Code::DuplicateEdge, edge.span, message).help(help);
                self.sink.push(problem.key(&edge.key));
                continue;
            }
            self.add(Link { from, to, on: edge.on, spec: Some(edge), span: edge.span });
        }
    }

    fn dependencies(&mut self) {
        for (at, node) in self.spec.nodes.iter().enumerate() {
            let Ok(to) = u32::try_from(at).map(NodeIx) else { continue };
            for dependency in &node.depends_on {
                let key = || node.key(format_args!("dependsOn[{}]", dependency.at));
                let found = end(dependency.node, "`dependsOn` names", key, self.index, self.sink);
                let (Some(from), span) = (found, dependency.node.1) else { continue };
                if let Some(first) = self.same(from, to, dependency.on) {
                    let problem = self.declared_before(from, first, dependency.on, span);
                    self.sink.push(problem.node(node.id.as_ref()).key(key()));
                    continue;
                }
                self.add(Link { from, to, on: dependency.on, spec: None, span });
            }
        }
    }

    /// What is wrong with a dependency where an edge between the same nodes is there already.
    fn declared_before(&self, from: NodeIx, first: SeenEdge, on: EdgeOn, span: SourceSpan) -> Problem {
        let line = first.span.start.line;
        if first.on != on {
            let from = name(self.spec, from);
            let message = format!("the edge from {from} on line {line} fires after another end of it");
            return Problem::error(Code::DuplicateEdge, span, message).help("keep one of the two".to_owned());
        }
        let message = match first.has_when {
            true => format!("this dependency is left out: the edge on line {line} counts, with its `when`"),
            false => format!("this dependency is already declared on line {line}"),
        };
        Problem::warning(Code::DuplicateEdge, span, message)
    }

    /// An edge between the same nodes that fires after the same end of its source.
    fn same(&self, from: NodeIx, to: NodeIx, on: EdgeOn) -> Option<SeenEdge> {
        let clashes = |seen: &&SeenEdge| seen.on == on || [seen.on, on].contains(&EdgeOn::Any);
        self.seen.get(&(from, to))?.iter().find(clashes).copied()
    }

    fn add(&mut self, link: Link<'a>) {
        let has_when = link.spec.is_some_and(|edge| edge.when.is_some());
        let seen = SeenEdge { on: link.on, span: link.span, has_when };
        self.seen.entry((link.from, link.to)).or_default().push(seen);
        self.links.push(link);
    }
}

/// An edge that was read.
#[derive(Clone, Copy)]
struct SeenEdge {
    on: EdgeOn,
    span: SourceSpan,
    has_when: bool,
}

/// So many nodes are listed where one is not found.
const LISTED: usize = 12;

/// After this many problems no suggestion is searched.
const ADVISED: usize = 100;

/// All nodes that can be reached from one, itself included.
pub(in crate::compile) fn reach(start: NodeIx, next: &[Vec<NodeIx>]) -> Vec<bool> {
    let mut found = vec![false; next.len()];
    let mut open = vec![start];
    found[start.0 as usize] = true;
    while let Some(node) = open.pop() {
        for &other in &next[node.0 as usize] {
            if !std::mem::replace(&mut found[other.0 as usize], true) {
                open.push(other);
            }
        }
    }
    found
}

fn end(
    (id, span): Text<'_>,
    what: &str,
    key: impl FnOnce() -> String,
    index: &HashMap<NodeId, NodeIx>,
    sink: &mut Sink,
) -> Option<NodeIx> {
    let found = index.get(id).copied();
    if found.is_none() {
        let message = format!("{what} unknown node `{id}`");
        let names = index.keys().map(NodeId::as_str);
        let meant = (sink.len() < ADVISED).then(|| did_you_mean(id, names.clone())).flatten();
        let help = meant.or_else(|| {
            let mut names: Vec<&str> = names.collect();
            names.sort_unstable();
            (names.len() <= LISTED).then(|| format!("available: {}", quoted(&names)))
        });
        let problem = Problem::error(Code::DanglingEdge, span, message).help(help);
        sink.push(problem.key(key()));
    }
    found
}

pub(in crate::compile) fn id_of(spec: &BodySpec<'_>, at: usize) -> String {
    let id = spec.nodes.get(at).and_then(|node| node.id.as_ref());
    id.map_or_else(|| format!("nodes[{at}]"), ToString::to_string)
}

pub(in crate::compile) fn name(spec: &BodySpec<'_>, node: NodeIx) -> String {
    format!("`{}`", id_of(spec, node.0 as usize))
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write as _, thread};

    use crate::{compile, nodes::builtin_catalog, testing::loaded};

    /// A stack overflow cannot be caught: it would end the program that uses this crate.
    #[test]
    fn a_long_chain_takes_no_more_stack_than_a_short_one() {
        const NODES: usize = 30_000;
        let mut text = "name: long\nnodes:\n  - { id: n0, type: control.noop }\n".to_owned();
        for node in 1..NODES {
            let before = node - 1;
            writeln!(text, "  - {{ id: n{node}, type: control.noop, dependsOn: n{before} }}").unwrap();
        }
        let compiled = thread::Builder::new().stack_size(1024 * 1024).spawn(move || {
            let loaded = loaded(&text);
            compile(&loaded, &builtin_catalog([])).map(|compiled| compiled.graph.flow().nodes.len())
        });
        let nodes = compiled.unwrap().join().unwrap();
        assert_eq!(nodes.map_err(|problems| problems.to_string()), Ok(NODES));
    }
}
