//! The edges of a flow with their ends resolved. Cycles without a limit are reported.

use std::collections::{HashMap, HashSet};

use inspan_protocol::NodeId;
use petgraph::{algo::kosaraju_scc, graph::DiGraph, visit::EdgeRef};

use crate::{
    diagnostic::{Code, Problem, Sink, Span, did_you_mean},
    graph::NodeIx,
    spec::{BodySpec, EdgeSpec, Text},
};

/// All edges of a flow: those under `edges` first, then those from `dependsOn`.
pub(in crate::compile) struct Links<'a> {
    pub(in crate::compile) links: Vec<Link<'a>>,
    /// The sources of all edges into each node, those that close cycles included.
    before: Vec<Vec<NodeIx>>,
    /// Over edges that close no cycle, the targets and the sources of each node; empty if the flow has no loops.
    pub(in crate::compile) onward: Vec<Vec<NodeIx>>,
    pub(in crate::compile) back: Vec<Vec<NodeIx>>,
}

pub(in crate::compile) struct Link<'a> {
    pub(in crate::compile) from: NodeIx,
    pub(in crate::compile) to: NodeIx,
    /// The edge as written; none for `dependsOn`.
    pub(in crate::compile) spec: Option<&'a EdgeSpec<'a>>,
    pub(in crate::compile) span: Span,
}

impl Link<'_> {
    pub(in crate::compile) fn is_loop(&self) -> bool {
        self.spec.is_some_and(|spec| spec.max_iterations.is_some())
    }
}

impl<'a> Links<'a> {
    pub(in crate::compile) fn read(
        spec: &'a BodySpec<'a>,
        index: &HashMap<NodeId, NodeIx>,
        sink: &mut Sink,
    ) -> Self {
        let mut links: Vec<Link<'a>> = Vec::new();
        let mut seen: HashMap<(NodeIx, NodeIx), Span> = HashMap::new();
        for edge in &spec.edges {
            let key = |name: &str| format!("{}.{name}", edge.key);
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
                sink.push(problem.key(&edge.key));
                continue;
            }
            seen.insert((from, to), edge.span);
            links.push(Link { from, to, spec: Some(edge), span: edge.span });
        }
        for (at, node) in spec.nodes.iter().enumerate() {
            let Ok(to) = u32::try_from(at).map(NodeIx) else { continue };
            for (nth, text) in node.depends_on().enumerate() {
                let key = || node.key(format_args!("dependsOn[{nth}]"));
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
    pub(in crate::compile) fn precedes(&self, first: NodeIx, then: NodeIx) -> bool {
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
        let mut names: Vec<&str> = index.keys().map(NodeId::as_str).collect();
        names.sort_unstable();
        let message = format!("{what} unknown node `{id}`");
        let problem = Problem::error(Code::DanglingEdge, span, message).help(did_you_mean(id, names));
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
    use std::{collections::BTreeMap, fmt::Write as _, thread};

    use crate::{Loaded, compile, nodes::builtin_catalog};

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
            let loaded = Loaded::from_text("flow.yaml", &text, BTreeMap::new());
            compile(&loaded, &builtin_catalog([])).map(|compiled| compiled.graph.flow().nodes.len())
        });
        let nodes = compiled.unwrap().join().unwrap();
        assert_eq!(nodes.map_err(|problems| problems.to_string()), Ok(NODES));
    }
}
