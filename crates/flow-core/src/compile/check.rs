//! The third pass: templates and conditions are parsed, and inputs, conditions, loops and conversations are checked.

mod command;
mod condition;
mod exits;
mod input;
mod loops;
mod names;
mod node;
mod schema;

use std::collections::BTreeMap;

use inspan_protocol::NodeId;
use serde_json::Value;

pub(super) use loops::Loops;

use super::resolve::{Link, Resolved, ResolvedNode, id_of};
use crate::{
    diagnostic::{Code, Problem, Sink},
    expr::{Condition, TemplateValue},
    graph::NodeIx,
    spec::{Key, NodeSpec},
};
use names::{Owner, Site};
use node::NodeCheck;

/// Of users of one conversation only so many are compared with all before them.
const MAX_USERS: usize = 50;

/// What the checks leave for the graph.
pub(super) struct Checked {
    pub(super) nodes: Vec<CheckedNode>,
    /// The condition of each edge.
    pub(super) conditions: Vec<Option<Condition>>,
    pub(super) loops: Loops,
    /// The keys of the flow's input that are used for certain, each with a node that uses it.
    pub(super) needs: BTreeMap<String, NodeId>,
}

/// The parsed templates and the condition of a node.
pub(super) struct CheckedNode {
    pub(super) input: TemplateValue,
    pub(super) when: Option<Condition>,
}

/// Checks a flow whose names are resolved.
pub(super) fn check(flow: &Resolved<'_>, sink: &mut Sink) -> Checked {
    let mut checker = Checker { flow, sink, needs: BTreeMap::new() };
    checker.defaults();
    let nodes = flow.nodes.iter().map(|node| checker.node(node)).collect();
    let conditions = flow.links.links.iter().map(|link| checker.edge(link)).collect();
    checker.conversations();
    let needs = checker.needs;
    let loops = Loops::find(flow.spec, &flow.links, sink);
    exits::check(flow.spec, &flow.links, &loops, sink);
    Checked { nodes, conditions, loops, needs }
}

/// What the checks read, and what they find.
struct Checker<'c> {
    flow: &'c Resolved<'c>,
    sink: &'c mut Sink,
    needs: BTreeMap<String, NodeId>,
}

impl<'c> Checker<'c> {
    fn node(&mut self, node: &'c ResolvedNode<'c>) -> CheckedNode {
        let spec = node.spec;
        let ix = u32::try_from(spec.at).ok().map(NodeIx).filter(|_| spec.id.is_some());
        let site = Site { node: ix, owner: Owner::Node(spec.id.as_ref(), spec.at), after: false };
        let when = spec.when.and_then(|when| self.condition(when, &site, &Key::Field(&Key::Root, "when")));
        let Some(input) = &node.input else {
            return CheckedNode { input: TemplateValue::Literal(Value::Null), when };
        };
        let parsed = self.input(input, node.schema.as_ref(), &site);
        if let (Some(node_type), Some(schema)) = (&node.node_type, &node.schema) {
            NodeCheck { node, node_type, input, schema, bound: &parsed.bound, sink: self.sink }.run();
            if &*node_type.info().name == "exec" {
                command::check(spec, input, &self.flow.spec.header, self.sink);
            }
        }
        CheckedNode { input: parsed.draft, when }
    }

    fn edge(&mut self, link: &Link<'_>) -> Option<Condition> {
        let edge = link.spec?;
        let spec = self.flow.spec;
        let (from, to) = (id_of(spec, link.from.0 as usize), id_of(spec, link.to.0 as usize));
        let site = Site { node: Some(link.from), owner: Owner::Edge(&from, &to, edge.at), after: true };
        self.condition(edge.when?, &site, &Key::Field(&Key::Root, "when"))
    }

    /// Warns of defaults that can never match the schema. A default may be missing: the run must pass it then.
    fn defaults(&mut self) {
        let Some(schema) = &self.flow.input_schema else { return };
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        let (spec, header) = (self.flow.spec, &self.flow.spec.header);
        for (key, value) in &header.input {
            let Some(part) = properties.get(key) else { continue };
            let Ok(validator) = jsonschema::validator_for(part) else { continue };
            if let Err(error) = validator.validate(value) {
                let message = format!("the default of `{key}` does not match `inputSchema`: {error}");
                let place = header.input_yaml.and_then(|input| input.get(key));
                let span = place.map_or(spec.span, |value| value.span);
                let problem = Problem::warning(Code::InvalidValue, span, message);
                self.sink.push(problem.key(format!("input.{key}")));
            }
        }
    }

    /// Reports two nodes that continue one conversation and may run at the same time: both would write into it.
    fn conversations(&mut self) {
        let mut users: BTreeMap<NodeIx, Vec<NodeIx>> = BTreeMap::new();
        for (at, node) in self.flow.nodes.iter().enumerate() {
            // A session that could not be resolved may still name a node.
            let Some((name, _)) = node.spec.session() else { continue };
            let (Some(&owner), Ok(at)) = (self.flow.index.get(name), u32::try_from(at)) else { continue };
            let users = users.entry(owner).or_insert_with(|| vec![owner]);
            if owner.0 != at {
                users.push(NodeIx(at));
            }
        }
        let links = &self.flow.links;
        for users in users.into_values() {
            for (nth, &second) in users.iter().enumerate().take(MAX_USERS) {
                let parallel = users[..nth].iter().find(|&&first| {
                    let follows = links.precedes(first, second) || links.precedes(second, first);
                    !(follows || self.is_conditional(first) && self.is_conditional(second))
                });
                if let Some(&first) = parallel {
                    self.report_shared_conversation(first, second);
                }
            }
        }
    }

    /// Whether a node may be skipped: of two such nodes perhaps only one runs.
    fn is_conditional(&self, node: NodeIx) -> bool {
        let spec = self.flow.nodes[node.0 as usize].spec;
        let Some(id) = &spec.id else { return true };
        let enters = |edge: &&crate::spec::EdgeSpec<'_>| edge.to.is_some_and(|(to, _)| to == id.as_str());
        let mut edges = self.flow.spec.edges.iter().filter(enters).peekable();
        let by_edges = edges.peek().is_some()
            && edges.all(|edge| edge.when.is_some())
            && spec.depends_on().next().is_none();
        spec.when.is_some() || by_edges
    }

    fn report_shared_conversation(&mut self, first: NodeIx, second: NodeIx) {
        let node = |ix: NodeIx| self.flow.nodes[ix.0 as usize].spec;
        let name = |node: &NodeSpec<'_>| node.id.as_ref().map_or_else(String::new, ToString::to_string);
        let (one, two) = (node(first), node(second));
        let at = if two.session().is_some() { two } else { one };
        let Some((_, span)) = at.session() else { return };
        let (one, two) = (name(one), name(two));
        let message =
            format!("`{one}` and `{two}` continue the same conversation and may run at the same time");
        let help = format!("run one after the other: set `dependsOn: [{one}]` on `{two}`");
        let problem = Problem::error(Code::SharedConversation, span, message).help(help);
        self.sink.push(problem.node(at.id.as_ref()).key(format!("nodes[{}].session", at.at)));
    }
}
