//! Edges: their ends resolved, cycles without a bound found, conditions compiled.

use std::collections::{HashMap, HashSet};

use inspan_protocol::NodeId;
use petgraph::{algo::kosaraju_scc, graph::DiGraph, visit::EdgeRef};

use super::{
    World, condition, exits,
    loops::Loops,
    names::{User, Whose},
};
use crate::{
    diagnostic::{Code, Problem, Sink, Span, did_you_mean},
    graph::{Edge, EdgeIx, Node, NodeIx},
    spec::{EdgeSpec, Spec, Text},
};

/// All edges of a flow, those of `dependsOn` after those written.
pub(super) struct Links<'a> {
    pub(super) links: Vec<Link<'a>>,
    /// The sources of all edges into each node, those that close cycles included.
    before: Vec<Vec<NodeIx>>,
    /// Over edges that close no cycle: the targets of each node, and the sources. Only loops ask for them.
    pub(super) onward: Vec<Vec<NodeIx>>,
    pub(super) back: Vec<Vec<NodeIx>>,
}

pub(super) struct Link<'a> {
    pub(super) from: NodeIx,
    pub(super) to: NodeIx,
    /// The edge as written; none for `dependsOn`.
    pub(super) spec: Option<&'a EdgeSpec<'a>>,
    pub(super) span: Span,
}

impl Link<'_> {
    pub(super) fn is_loop(&self) -> bool {
        self.spec.is_some_and(|spec| spec.max_iterations.is_some())
    }
}

impl<'a> Links<'a> {
    pub(super) fn read(spec: &'a Spec<'a>, index: &HashMap<NodeId, NodeIx>, sink: &mut Sink) -> Self {
        let mut links: Vec<Link<'a>> = Vec::new();
        let mut seen: HashMap<(NodeIx, NodeIx), Span> = HashMap::new();
        for edge in &spec.edges {
            let key = |name: &str| format!("edges[{}].{name}", edge.at);
            let from =
                edge.from.and_then(|from| end(from, "the edge comes from", || key("from"), index, sink));
            let to = edge.to.and_then(|to| end(to, "the edge leads to", || key("to"), index, sink));
            let (Some(from), Some(to)) = (from, to) else { continue };
            if let Some(first) = seen.get(&(from, to)) {
                let message = format!(
                    "another edge leads from {} to {}, on line {}",
                    name(spec, from),
                    name(spec, to),
                    first.start.line
                );
                let help = "put both conditions in one `when`".to_owned();
                let problem = Problem::error(Code::DuplicateEdge, edge.span, message).help(help);
                sink.push(problem.key(format!("edges[{}]", edge.at)));
                continue;
            }
            seen.insert((from, to), edge.span);
            links.push(Link { from, to, spec: Some(edge), span: edge.span });
        }
        for (at, node) in spec.nodes.iter().enumerate() {
            let Ok(to) = u32::try_from(at).map(NodeIx) else { continue };
            for (nth, text) in node.depends_on().enumerate() {
                let key = || format!("nodes[{at}].dependsOn[{nth}]");
                let Some(from) = end(text, "`dependsOn` names", key, index, sink) else { continue };
                if let Some(first) = seen.get(&(from, to)) {
                    let message = format!("this dependency is already declared on line {}", first.start.line);
                    let problem = Problem::warning(Code::DuplicateEdge, text.1, message);
                    sink.push(problem.node(node.id.as_ref()).key(key()));
                    continue;
                }
                seen.insert((from, to), text.1);
                links.push(Link { from, to, spec: None, span: text.1 });
            }
        }
        let empty = || vec![Vec::<NodeIx>::new(); spec.nodes.len()];
        let mut found = Self { links, before: empty(), onward: Vec::new(), back: Vec::new() };
        let has_loops = found.links.iter().any(Link::is_loop);
        if has_loops {
            (found.onward, found.back) = (empty(), empty());
        }
        for link in &found.links {
            found.before[link.to.0 as usize].push(link.from);
            if has_loops && !link.is_loop() {
                found.onward[link.from.0 as usize].push(link.to);
                found.back[link.to.0 as usize].push(link.from);
            }
        }
        found.check_cycles(spec, sink);
        found
    }

    /// Whether one node can have run before another, or before itself on another pass.
    pub(super) fn precedes(&self, first: NodeIx, then: NodeIx) -> bool {
        let direct = &self.before[then.0 as usize];
        if direct.contains(&first) {
            return true;
        }
        let mut seen: HashSet<NodeIx> = direct.iter().copied().collect();
        let mut open: Vec<NodeIx> = direct.to_vec();
        while let Some(node) = open.pop() {
            for &source in &self.before[node.0 as usize] {
                if source == first {
                    return true;
                }
                if seen.insert(source) {
                    open.push(source);
                }
            }
        }
        false
    }

    fn check_cycles(&self, spec: &Spec<'_>, sink: &mut Sink) {
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
        // Of the two this is the one that does not call itself for every node on a way, and a way may be long.
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
            let mut words: Vec<String> = cycle.iter().map(|&(node, _)| plain(spec, node.index())).collect();
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

/// All nodes that can be reached from one, itself included.
pub(super) fn reach(start: NodeIx, next: &[Vec<NodeIx>]) -> Vec<bool> {
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
        let mut names: Vec<&str> = index.keys().map(NodeId::as_str).collect();
        names.sort_unstable();
        let message = format!("{what} unknown node `{id}`");
        let problem = Problem::error(Code::DanglingEdge, span, message).help(did_you_mean(id, names));
        sink.push(problem.key(key()));
    }
    found
}

pub(super) fn plain(spec: &Spec<'_>, at: usize) -> String {
    let id = spec.nodes.get(at).and_then(|node| node.id.as_ref());
    id.map_or_else(|| format!("nodes[{at}]"), ToString::to_string)
}

pub(super) fn name(spec: &Spec<'_>, node: NodeIx) -> String {
    format!("`{}`", plain(spec, node.0 as usize))
}

/// Compiles the edges: their conditions and the loops that they close.
pub(super) fn compile(world: &World<'_>, sink: &mut Sink) -> Vec<Edge> {
    let spec = world.spec;
    let mut loops = Loops::find(spec, &world.links, sink);
    exits::check(spec, &world.links, &loops, sink);
    let mut edges = Vec::with_capacity(world.links.links.len());
    for (at, link) in world.links.links.iter().enumerate() {
        let when = link.spec.and_then(|edge| {
            let when = edge.when?;
            let (from, to) = (plain(spec, link.from.0 as usize), plain(spec, link.to.0 as usize));
            let whose = Whose::Edge(&from, &to, edge.at);
            let user = User { node: Some(link.from), whose, after: true };
            condition::compile(when, &user, world, sink)
        });
        let (cycle, leaves) = loops.take(at);
        edges.push(Edge { from: link.from, to: link.to, when, cycle, leaves });
    }
    edges
}

/// Tells each node its edges.
pub(super) fn connect(nodes: &mut [Node], edges: &[Edge]) {
    for (at, edge) in edges.iter().enumerate() {
        let Ok(at) = u32::try_from(at).map(EdgeIx) else { continue };
        if let Some(cycle) = &edge.cycle {
            nodes[edge.from.0 as usize].loops.push(at);
            nodes[edge.to.0 as usize].body = cycle.body.clone();
        } else {
            nodes[edge.from.0 as usize].outgoing.push(at);
            nodes[edge.to.0 as usize].incoming.push(at);
        }
    }
    let rank = |at: &EdgeIx| edges[at.0 as usize].cycle.as_ref().map(|cycle| cycle.rank);
    for node in nodes.iter_mut().filter(|node| node.loops.len() > 1) {
        node.loops.sort_by_key(rank);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Write as _, thread};

    use crate::{Loaded, compile, nodes::builtin_catalog};

    /// An overflow of the stack cannot be caught: it would take the whole program of who embeds us with it.
    #[test]
    fn a_long_chain_takes_no_more_stack_than_a_short_one() {
        const NODES: usize = 30_000;
        let mut text = "name: long\nnodes:\n  - { id: n0, type: control.noop }\n".to_owned();
        for node in 1..NODES {
            let before = node - 1;
            writeln!(text, "  - {{ id: n{node}, type: control.noop, dependsOn: n{before} }}").unwrap();
        }
        let compiled = thread::Builder::new().stack_size(1024 * 1024).spawn(move || {
            let loaded = Loaded::from_text("flow.yaml", &text, BTreeMap::new());
            compile(&loaded, &builtin_catalog([])).map(|compiled| compiled.graph.nodes.len())
        });
        let nodes = compiled.unwrap().join().unwrap();
        assert_eq!(nodes.map_err(|problems| problems.to_string()), Ok(NODES));
    }
}
