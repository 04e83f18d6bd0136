//! The third pass: templates and conditions are parsed, and inputs, conditions, loops and conversations are checked.

mod command;
mod condition;
mod contradictions;
mod ends;
mod exits;
mod frames;
mod input;
mod loops;
mod names;
mod node;
mod schema;
mod secrets;
mod types;

use std::collections::BTreeMap;

use inspan_protocol::NodeId;
use serde_json::Value;

pub(super) use loops::Loops;

use super::resolve::{Link, Resolved, ResolvedNode, id_of};
use crate::{
    diagnostic::{Code, Problem, Sink},
    expr::{Condition, TemplateValue},
    graph::{EdgeOn, NodeIx},
    node::NodeKind,
    spec::{Key, NodeSpec},
};
pub(super) use frames::FrameTerms;
pub(super) use schema::SchemaCheck;
pub(super) use types::{Shape, Types};

use names::{Owner, Sees, Site};
use node::NodeCheck;

/// Of users of one conversation only so many are compared with all before them.
const MAX_USERS: usize = 50;

/// What the checks leave for the graph.
pub(super) struct Checked {
    pub(super) nodes: Vec<CheckedNode>,
    /// The condition of each edge.
    pub(super) conditions: Vec<Option<Condition>>,
    pub(super) outputs: Option<TemplateValue>,
    /// What the node around the body asks in the body.
    pub(super) terms: FrameTerms,
    pub(super) loops: Loops,
    /// The keys of the flow's input that are used for certain, each with a node that uses it.
    pub(super) needs: BTreeMap<String, NodeId>,
}

/// The parsed templates and the condition of a node.
pub(super) struct CheckedNode {
    pub(super) input: TemplateValue,
    /// The JSON pointers of the values of its input that are known only when it runs.
    pub(super) bound: Vec<String>,
    pub(super) when: Option<Condition>,
}

/// Checks a body whose names are resolved.
pub(super) fn check(body: &Resolved<'_>, sink: &mut Sink) -> Checked {
    let mut checker = Checker { body, sink, needs: BTreeMap::new() };
    if body.around.is_none() {
        checker.defaults();
    }
    checker.shadowed_names();
    let nodes = body.nodes.iter().zip(0..).map(|(node, ix)| checker.node(node, NodeIx(ix))).collect();
    let conditions = body.links.links.iter().map(|link| checker.edge(link)).collect();
    let (outputs, terms) = (checker.outputs(), checker.frame_terms());
    checker.conversations();
    let needs = checker.needs;
    let loops = Loops::find(body.spec, &body.links, sink);
    exits::check(body.spec, &body.links, &loops, sink);
    contradictions::check(body, sink);
    ends::check(body, sink);
    Checked { nodes, conditions, outputs, terms, loops, needs }
}

/// What the checks read, and what they find.
struct Checker<'c> {
    body: &'c Resolved<'c>,
    sink: &'c mut Sink,
    needs: BTreeMap<String, NodeId>,
}

impl<'c> Checker<'c> {
    fn node(&mut self, node: &'c ResolvedNode<'c>, ix: NodeIx) -> CheckedNode {
        let spec = node.spec;
        let ix = spec.id.is_some().then_some(ix);
        let site = Site { node: ix, owner: Owner::Node(spec), sees: Sees::Before };
        let when = spec.when.and_then(|when| self.condition(when, &site, &Key::Field(&Key::Root, "when")));
        let Some(input) = &node.input else {
            return CheckedNode { input: TemplateValue::Literal(Value::Null), bound: Vec::new(), when };
        };
        let parsed = match node.kind() {
            Some(NodeKind::Frames) if !node.is_of_pack() => {
                self.frames_input(input, node.schema.as_ref(), &site)
            }
            _ => self.input(input, node.schema.as_ref(), &site),
        };
        if let (Some(node_type), Some(schema)) = (&node.node_type, &node.schema) {
            NodeCheck { node, node_type, input, schema, bound: &parsed.bound, sink: self.sink }.run();
            if &*node_type.info().name == "exec" {
                command::check(spec, input, self.body.flow.header, self.sink);
            }
        }
        CheckedNode { input: parsed.draft, bound: parsed.bound, when }
    }

    fn edge(&mut self, link: &Link<'_>) -> Option<Condition> {
        let edge = link.spec?;
        let spec = self.body.spec;
        let (from, to) = (id_of(spec, link.from.0 as usize), id_of(spec, link.to.0 as usize));
        let site = Site { node: Some(link.from), owner: Owner::Edge(&from, &to, edge), sees: Sees::After };
        self.condition(edge.when?, &site, &Key::Field(&Key::Root, "when"))
    }

    /// Warns of defaults that can never match the schema. A default may be missing: the run must pass it then.
    fn defaults(&mut self) {
        let flow = self.body.flow;
        let Some(schema) = &flow.input_schema else { return };
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        let (spec, header) = (self.body.spec, flow.header);
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
        for (at, node) in self.body.nodes.iter().enumerate() {
            // A session that could not be resolved may still name a node.
            let Some((name, _)) = node.spec.session() else { continue };
            let (Some(&owner), Ok(at)) = (self.body.index.get(name), u32::try_from(at)) else { continue };
            let users = users.entry(owner).or_insert_with(|| vec![owner]);
            if owner.0 != at {
                users.push(NodeIx(at));
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
        let at = if two.session().is_some() { two } else { one };
        let Some((_, span)) = at.session() else { return };
        let (one, two) = (name(one), name(two));
        let message =
            format!("`{one}` and `{two}` continue the same conversation and may run at the same time");
        let help = format!("run one after the other: set `dependsOn: [{one}]` on `{two}`");
        let problem = Problem::error(Code::SharedConversation, span, message).help(help);
        self.sink.push(problem.node(at.id.as_ref()).key(at.key("session")));
    }
}
