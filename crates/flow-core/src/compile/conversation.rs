//! Conversations that several nodes go on with: two that may run at the same time would both write into one.

use std::collections::BTreeMap;

use super::World;
use crate::{
    diagnostic::{Code, Problem, Sink},
    graph::NodeIx,
    spec::NodeSpec,
};

/// Users of one conversation that are looked at: beyond that the first are enough to tell.
const USERS: usize = 50;

/// Refuses two users of one conversation of which neither runs before the other.
pub(super) fn check(world: &World<'_>, sink: &mut Sink) {
    let mut users: BTreeMap<u32, Vec<NodeIx>> = BTreeMap::new();
    for (at, node) in world.spec.nodes.iter().enumerate() {
        let (Some((name, _)), Ok(at)) = (node.session(), u32::try_from(at)) else { continue };
        let Some(&owner) = world.index.get(name) else { continue };
        let users = users.entry(owner.0).or_insert_with(|| vec![owner]);
        if owner.0 != at {
            users.push(NodeIx(at));
        }
    }
    for users in users.into_values() {
        for (nth, &second) in users.iter().enumerate().take(USERS) {
            let beside = users[..nth].iter().find(|&&first| {
                let follows = world.links.precedes(first, second) || world.links.precedes(second, first);
                !(follows || is_conditional(first, world) && is_conditional(second, world))
            });
            if let Some(&first) = beside {
                report(first, second, world, sink);
            }
        }
    }
}

/// Whether a node may be left out: of two such nodes only one may run.
fn is_conditional(node: NodeIx, world: &World<'_>) -> bool {
    let spec = &world.spec.nodes[node.0 as usize];
    let Some(id) = &spec.id else { return true };
    let mut edges =
        world.spec.edges.iter().filter(|edge| edge.to.is_some_and(|(to, _)| to == id.as_str())).peekable();
    let by_edges =
        edges.peek().is_some() && edges.all(|edge| edge.when.is_some()) && spec.depends_on().next().is_none();
    spec.when.is_some() || by_edges
}

fn report(first: NodeIx, second: NodeIx, world: &World<'_>, sink: &mut Sink) {
    let node = |ix: NodeIx| &world.spec.nodes[ix.0 as usize];
    let name = |node: &NodeSpec<'_>| node.id.as_ref().map_or_else(String::new, ToString::to_string);
    let (one, two) = (node(first), node(second));
    let (names, at) = ((name(one), name(two)), if two.session().is_some() { two } else { one });
    let Some((_, span)) = at.session() else { return };
    let message = format!(
        "`{}` and `{}` continue the same conversation and may run at the same time",
        names.0, names.1
    );
    let help = format!("run one after the other: set `dependsOn: [{}]` on `{}`", names.0, names.1);
    let problem = Problem::error(Code::SharedConversation, span, message).help(help);
    sink.push(problem.node(at.id.as_ref()).key(format!("nodes[{}].session", at.at)));
}
