//! Conversations that several nodes of a body use.

use std::{collections::BTreeMap, iter::successors};

use super::{Checker, Loops};
use crate::{
    compile::resolve::{Around, FrameKind, Link},
    diagnostic::{Code, Problem},
    graph::{EdgeOn, NodeIx, SessionMode},
    spec::{BodySpec, NodeSpec, SessionSpec},
};

/// Of users of one conversation only so many are compared with all before them.
const MAX_USERS: usize = 50;

/// The nodes of a way, each with the end after which the way goes on.
type Way = BTreeMap<NodeIx, Option<EdgeOn>>;

impl<'c> Checker<'c> {
    /// Reports two nodes that continue one conversation and may run at the same time: both would write into it.
    pub(super) fn conversations(&mut self, loops: &Loops) {
        let mut users: BTreeMap<&str, Vec<NodeIx>> = BTreeMap::new();
        for (at, node) in self.body.nodes.iter().enumerate() {
            // A session that could not be resolved may still name a node.
            let Ok(at) = u32::try_from(at) else { continue };
            for session in continued(node.spec) {
                let name = session.from.0;
                let owner = self.body.index.get(name).copied();
                if owner.is_none() && !self.is_node_around(name) {
                    continue;
                }
                let users = users.entry(name).or_insert_with(|| owner.into_iter().collect());
                if !users.contains(&NodeIx(at)) {
                    users.push(NodeIx(at));
                }
            }
        }
        let links = &self.body.links;
        let mut reported = Vec::new();
        for users in users.into_values().filter(|users| users.len() > 1) {
            let ways: Vec<_> = users.iter().take(MAX_USERS).map(|&user| self.way_to(user)).collect();
            for (nth, &second) in users.iter().enumerate().take(MAX_USERS) {
                let parallel = users[..nth].iter().zip(&ways).find(|&(&first, way)| {
                    let counts = |edge| !loops.repeats_both(edge, first, second);
                    let follows = links.precedes_over(first, second, counts)
                        || links.precedes_over(second, first, counts);
                    !follows && !self.may_exclude(way, &ways[nth])
                });
                if let Some((&first, _)) = parallel {
                    self.report_shared_conversation(first, second);
                    reported.extend([first, second]);
                }
            }
        }
        self.missing_conversations(&reported);
    }

    /// Warns of nodes that name the conversation of a node that never runs before.
    fn missing_conversations(&mut self, reported: &[NodeIx]) {
        // A pass of a loop knows the conversations of the one before.
        if self.body.around.is_some_and(|around| around.kind == FrameKind::Pass) {
            return;
        }
        for (node, at) in self.body.nodes.iter().zip((0..).map(NodeIx)) {
            let Some(source) = node.session.filter(|session| session.depth == 0) else { continue };
            if source.node == at || reported.contains(&at) || self.body.links.precedes(source.node, at) {
                continue;
            }
            let (Some((from, span)), Some(id)) =
                (node.spec.session().map(|session| session.from), &node.spec.id)
            else {
                continue;
            };
            let message = format!("`{from}` never runs before `{id}`: there is no conversation yet");
            let comes_after = self.body.links.precedes(at, source.node);
            let help = (!comes_after).then(|| format!("add an edge from `{from}` to `{id}`"));
            let problem = Problem::warning(Code::UnknownNode, span, message).help(help);
            self.sink.push(problem.node(Some(id)).key(node.spec.key("session")));
        }
    }

    /// Whether a body around this one has a node of this name.
    fn is_node_around(&self, name: &str) -> bool {
        let around = |around: &Around<'c>| around.body.around;
        successors(self.body.around, around).any(|around| around.body.index.contains_key(name))
    }

    /// The edges that begin a node, and not another pass of it.
    fn beginning(&self, node: NodeIx) -> impl Iterator<Item = &Link<'c>> {
        self.body.links.leading_to(node).filter(|edge| !edge.is_loop())
    }

    /// A node, and those before it as far as each has one edge.
    fn way_to(&self, node: NodeIx) -> Way {
        let before = |&(at, _): &(NodeIx, Option<EdgeOn>)| {
            let mut edges = self.beginning(at);
            let edge = edges.next().filter(|_| edges.next().is_none())?;
            Some((edge.from, Some(edge.on)))
        };
        // Edges that go in a circle were reported.
        successors(Some((node, None)), before).take(self.body.nodes.len()).collect()
    }

    /// Whether perhaps only one of two nodes runs: each way has a condition that the other has not, or they follow different
    /// ends of one node.
    fn may_exclude(&self, one: &Way, other: &Way) -> bool {
        let has_condition = |way: &Way, other: &Way| {
            way.keys().any(|&node| !other.contains_key(&node) && self.is_conditional(node))
        };
        let differs = |(node, end): (&NodeIx, &Option<EdgeOn>)| {
            let ends = end.zip(other.get(node).copied().flatten());
            ends.is_some_and(|(one, other)| one != other && ![one, other].contains(&EdgeOn::Any))
        };
        has_condition(one, other) && has_condition(other, one) || one.iter().any(differs)
    }

    /// Whether a node may be skipped, although those before it have run.
    fn is_conditional(&self, node: NodeIx) -> bool {
        let spec = self.body.nodes[node.0 as usize].spec;
        let mut edges = self.beginning(node).peekable();
        let by_edges =
            edges.peek().is_some() && edges.all(|edge| edge.spec.is_some_and(|edge| edge.when.is_some()));
        spec.id.is_none() || spec.when.is_some() || by_edges
    }

    fn report_shared_conversation(&mut self, first: NodeIx, second: NodeIx) {
        let node = |ix: NodeIx| self.body.nodes[ix.0 as usize].spec;
        let name = |node: &NodeSpec<'_>| node.id.as_ref().map_or_else(String::new, ToString::to_string);
        let (one, two) = (node(first), node(second));
        let at = if continued(two).is_empty() { one } else { two };
        let Some((_, span)) = continued(at).first().map(|session| session.from) else { return };
        let (one, two) = (name(one), name(two));
        let message =
            format!("`{one}` and `{two}` continue the same conversation and may run at the same time");
        let help = format!("run one after the other: set `dependsOn: [{one}]` on `{two}`");
        let problem = Problem::error(Code::SharedConversation, span, message).help(help);
        self.sink.push(problem.node(at.id.as_ref()).key(at.key("session")));
    }
}

/// The conversations that a node continues: its own, and those that the nodes of its body take from outside. A branch
/// leaves the conversation as it is.
fn continued<'s>(node: &NodeSpec<'s>) -> Vec<SessionSpec<'s>> {
    let mut found: Vec<_> = node.session().into_iter().collect();
    if let Some(body) = &node.body {
        in_body(body, &mut found);
    }
    found.retain(|session| session.mode == SessionMode::Continue);
    found
}

fn in_body<'s>(body: &BodySpec<'s>, found: &mut Vec<SessionSpec<'s>>) {
    let is_inside =
        |name: &str| body.nodes.iter().any(|node| node.id.as_ref().is_some_and(|id| id.as_str() == name));
    let outside = body.nodes.iter().flat_map(continued).filter(|session| !is_inside(session.from.0));
    found.extend(outside);
}
