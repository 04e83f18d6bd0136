//! Conversations that several nodes of a body use.

use std::collections::BTreeMap;

use super::Checker;
use crate::{
    diagnostic::{Code, Problem},
    graph::{EdgeOn, NodeIx, SessionMode},
    spec::{BodySpec, NodeSpec, SessionSpec},
};

/// Of users of one conversation only so many are compared with all before them.
const MAX_USERS: usize = 50;

impl<'c> Checker<'c> {
    /// Reports two nodes that continue one conversation and may run at the same time: both would write into it.
    pub(super) fn conversations(&mut self) {
        let mut users: BTreeMap<NodeIx, Vec<NodeIx>> = BTreeMap::new();
        for (at, node) in self.body.nodes.iter().enumerate() {
            // A session that could not be resolved may still name a node.
            let Ok(at) = u32::try_from(at) else { continue };
            for session in continued(node.spec) {
                let Some(&owner) = self.body.index.get(session.from.0) else { continue };
                let users = users.entry(owner).or_insert_with(|| vec![owner]);
                if !users.contains(&NodeIx(at)) {
                    users.push(NodeIx(at));
                }
            }
        }
        let links = &self.body.links;
        for users in users.into_values() {
            for (nth, &second) in users.iter().enumerate().take(MAX_USERS) {
                let parallel = users[..nth].iter().find(|&&first| {
                    let follows = links.precedes(first, second) || links.precedes(second, first);
                    !(follows
                        || self.exclude(first, second)
                        || self.is_conditional(first) && self.is_conditional(second))
                });
                if let Some(&first) = parallel {
                    self.report_shared_conversation(first, second);
                }
            }
        }
    }

    /// Whether a node may be skipped: of two such nodes perhaps only one runs.
    fn is_conditional(&self, node: NodeIx) -> bool {
        let spec = self.body.nodes[node.0 as usize].spec;
        let mut edges = self.body.links.leading_to(node).peekable();
        let by_edges =
            edges.peek().is_some() && edges.all(|edge| edge.spec.is_some_and(|edge| edge.when.is_some()));
        spec.id.is_none() || spec.when.is_some() || by_edges
    }

    /// Whether two nodes wait for different ends of one node, and for nothing else.
    fn exclude(&self, first: NodeIx, second: NodeIx) -> bool {
        let only = |node| {
            let mut edges = self.body.links.leading_to(node);
            edges.next().filter(|_| edges.next().is_none()).map(|edge| (edge.from, edge.on))
        };
        let ends = only(first).zip(only(second));
        ends.is_some_and(|((one, first), (other, second))| {
            one == other && first != second && ![first, second].contains(&EdgeOn::Any)
        })
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
