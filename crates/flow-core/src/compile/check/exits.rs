//! Reports loops that can only end by failing, and edges out of loops that never fire.

use std::collections::VecDeque;

use serde_json::Value;

use super::{
    contradictions::without_braces,
    loops::{LoopEdge, Loops},
};
use crate::{
    compile::resolve::{Link, Links, Resolved, ResolvedNode, name},
    diagnostic::{Code, Problem, Sink},
    graph::{EdgeOn, FailFast, NodeIx, OnExhausted},
    spec::{BodySpec, Yaml},
};

/// Reports endless loops and exits that are never taken.
pub(super) fn check(body: &Resolved<'_>, loops: &Loops, sink: &mut Sink) {
    let (spec, links) = (body.spec, &body.links);
    if links.onward.is_empty() {
        return;
    }
    let certain = Certain::new(spec, links);
    let fails = |found: &&LoopEdge| found.cycle.on_exhausted == OnExhausted::Fail;
    let mut endless: Vec<usize> = Vec::new();
    for found in loops.iter().filter(fails) {
        let link = &links.links[found.edge];
        if certain.may_stop(found.to)
            || !certain.goes_back(link, found.to, None)
            || may_be_cut_off(body, found.from)
        {
            continue;
        }
        endless.push(found.edge);
        let message = format!(
            "the loop from {} to {} can only end by failing: this edge fires on every pass",
            name(spec, found.from),
            name(spec, found.to)
        );
        let help = "add a `when`, or set `onExhausted: continue`".to_owned();
        sink.push(Problem::warning(Code::EndlessLoop, link.span, message).help(help));
    }
    let successes = |(_, link): &(usize, &Link<'_>)| link.on == EdgeOn::Success;
    for (at, exit) in links.links.iter().enumerate().filter(successes) {
        let when = condition(exit);
        let certain = |found: &&LoopEdge| {
            let link = &links.links[found.edge];
            // Without `failFast` the flow goes on where a node on the way back has failed.
            (spec.policy.fail_fast == FailFast::On || exit.from == found.from)
                && !endless.contains(&found.edge)
                && certain.goes_back(link, exit.from, when.as_ref())
        };
        let Some(found) = loops.left_by(at).filter(fails).find(certain) else { continue };
        let message = format!(
            "this edge never fires: the loop from {} to {} always starts another pass first",
            name(spec, found.from),
            name(spec, found.to)
        );
        let help = "add a condition that is true on the last pass".to_owned();
        sink.push(Problem::warning(Code::UnreachableExit, exit.span, message).help(help));
    }
}

/// Reports nodes `control.loop` that can only end by failing: a `control.end` in their body ends one pass, and a failure
/// there fails them.
pub(super) fn endless_nodes(body: &Resolved<'_>, sink: &mut Sink) {
    for (node, ix) in body.nodes.iter().zip((0..).map(NodeIx)) {
        let is_loop = node.spec.node_type().is_some_and(|(name, _)| name == "control.loop");
        let given = |key: &str| node.json.get(key);
        let ends = given("while").is_some_and(|holds| holds != &Value::Bool(true))
            || given("until").is_some_and(|holds| holds != &Value::Bool(false))
            || given("onExhausted").is_some_and(|word| word != "fail");
        if !is_loop || ends || may_be_cut_off(body, ix) {
            continue;
        }
        let id = node.spec.id.as_ref();
        let message =
            format!("the loop {} can only end by failing: no condition ends it", name(body.spec, ix));
        let help = "add `until` or `while`, or set `onExhausted: continue`".to_owned();
        let problem = Problem::warning(Code::EndlessLoop, node.spec.id_span, message);
        sink.push(problem.node(id).key(node.spec.key("input")).help(help));
    }
}

/// Whether a `control.end` that does not wait for a node may end a frame that the node is in.
fn may_be_cut_off(body: &Resolved<'_>, node: NodeIx) -> bool {
    let ends = |(other, ix): (&ResolvedNode<'_>, NodeIx)| {
        other.spec.node_type().is_some_and(|(name, _)| name == "control.end")
            && !body.links.precedes(node, ix)
    };
    body.nodes.iter().zip((0..).map(NodeIx)).any(ends)
        || body.around.is_some_and(|around| may_be_cut_off(around.body, around.node))
}

/// Which nodes and edges are certain to run after a node has completed.
struct Certain<'a> {
    links: &'a Links<'a>,
    /// The edges out of each node.
    out: Vec<Vec<usize>>,
    /// Whether each node runs as soon as its edges are resolved and one of them fired.
    plain: Vec<bool>,
    /// Whether an edge handles the failure of each node: the flow then goes on without its other edges.
    handled: Vec<bool>,
}

impl<'a> Certain<'a> {
    fn new(spec: &'a BodySpec<'a>, links: &'a Links<'a>) -> Self {
        let mut out = vec![Vec::new(); spec.nodes.len()];
        let mut handled = vec![false; spec.nodes.len()];
        for link in links.links.iter().filter(|link| link.on == EdgeOn::Failure) {
            handled[link.from.0 as usize] = true;
        }
        for (at, link) in links.links.iter().enumerate().filter(|(_, link)| !link.is_loop()) {
            out[link.from.0 as usize].push(at);
        }
        let is_plain = |node: &crate::spec::NodeSpec<'_>| {
            node.when.is_none() && node.node_type().is_none_or(|(name, _)| name != "control.merge")
        };
        Self { links, out, plain: spec.nodes.iter().map(is_plain).collect(), handled }
    }

    /// Whether a node may fail, and the flow goes on without its other edges.
    fn may_stop(&self, node: NodeIx) -> bool {
        self.handled[node.0 as usize]
    }

    /// Whether a loop edge is certain to fire after a node has succeeded while a condition is true.
    fn goes_back(&self, edge: &Link<'_>, start: NodeIx, held: Option<&Value>) -> bool {
        let fires = |link: &Link<'_>| {
            let when = condition(link);
            let ends_so = matches!(link.on, EdgeOn::Success | EdgeOn::Any);
            ends_so
                && (when.is_none()
                    || when == Some(Value::Bool(true))
                    || (link.from == start && when.as_ref() == held))
        };
        if !fires(edge) {
            return false;
        }
        let mut runs = vec![false; self.plain.len()];
        let mut open = VecDeque::from([start]);
        runs[start.0 as usize] = true;
        while let Some(node) = open.pop_front() {
            if node != start && self.may_stop(node) {
                continue;
            }
            if node == edge.from {
                return true;
            }
            for &at in &self.out[node.0 as usize] {
                let link = &self.links.links[at];
                let to = link.to.0 as usize;
                if self.plain[to] && fires(link) && !std::mem::replace(&mut runs[to], true) {
                    open.push_back(link.to);
                }
            }
        }
        false
    }
}

/// An edge's condition in a form that can be compared.
pub(super) fn condition(link: &Link<'_>) -> Option<Value> {
    let when = link.spec?.when.map(Yaml::json)?;
    Some(if when.is_string() { Value::String(without_braces(&when)) } else { when })
}
