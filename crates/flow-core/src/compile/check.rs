//! The third pass: templates and conditions are parsed, and inputs, conditions, loops and conversations are checked.

mod agents;
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
mod promised;
mod schema;
mod secrets;
mod sessions;
mod types;

use inspan_protocol::BoundedValidator;
use serde_json::Value;

pub(super) use loops::Loops;

use super::resolve::{Link, Resolved, ResolvedNode, id_of};
use crate::{
    diagnostic::{Code, Problem, Sink},
    expr::{Condition, TemplateValue},
    graph::NodeIx,
    node::NodeKind,
    spec::Key,
};
pub(super) use frames::FrameTerms;
pub(super) use schema::SchemaCheck;
pub(super) use types::{Shape, Types};

use input::ParsedInput;
use names::{Owner, Sees, Site};
use node::NodeCheck;

/// What the checks leave for the graph.
pub(super) struct Checked {
    pub(super) nodes: Vec<CheckedNode>,
    /// The condition of each edge.
    pub(super) conditions: Vec<Option<Condition>>,
    pub(super) outputs: Option<TemplateValue>,
    /// What the node around the body asks in the body.
    pub(super) terms: FrameTerms,
    pub(super) loops: Loops,
}

/// The parsed templates and the condition of a node.
pub(super) struct CheckedNode {
    pub(super) input: TemplateValue,
    /// The JSON pointers of the values of its input that are known only when it runs.
    pub(super) bound: Vec<String>,
    pub(super) when: Option<Condition>,
    /// What names its agent.
    pub(super) choice: Option<TemplateValue>,
    /// The condition of each entry of `fallback`.
    pub(super) fallback: Vec<Option<Condition>>,
    /// The node with each of its other agents.
    pub(super) others: Vec<CheckedNode>,
}

impl CheckedNode {
    fn of(parsed: ParsedInput, when: Option<Condition>) -> Self {
        let ParsedInput { draft: input, bound } = parsed;
        Self { input, bound, when, choice: None, fallback: Vec::new(), others: Vec::new() }
    }
}

/// Checks a body whose names are resolved.
pub(super) fn check(body: &Resolved<'_>, sink: &mut Sink) -> Checked {
    let mut checker = Checker { body, sink };
    if body.around.is_none() {
        checker.defaults();
    }
    checker.shadowed_names();
    let nodes = body.nodes.iter().zip(0..).map(|(node, ix)| checker.node(node, NodeIx(ix))).collect();
    let conditions = body.links.links.iter().map(|link| checker.edge(link)).collect();
    let (outputs, terms) = (checker.outputs(), checker.frame_terms());
    let loops = Loops::find(body.spec, &body.links, checker.sink);
    checker.conversations(&loops);
    exits::check(body, &loops, sink);
    exits::endless_nodes(body, sink);
    contradictions::check(body, sink);
    ends::check(body, sink);
    Checked { nodes, conditions, outputs, terms, loops }
}

/// What the checks read, and what they find.
struct Checker<'c> {
    body: &'c Resolved<'c>,
    sink: &'c mut Sink,
}

impl<'c> Checker<'c> {
    fn node(&mut self, node: &'c ResolvedNode<'c>, ix: NodeIx) -> CheckedNode {
        let spec = node.spec;
        let ix = spec.id.is_some().then_some(ix);
        let site = Site { node: ix, owner: Owner::Node(spec), sees: Sees::Before };
        let when = spec.when.and_then(|when| self.condition(when, &site, &Key::Field(&Key::Root, "when")));
        let mut checked = CheckedNode::of(self.work(node, &site), when);
        if spec.agent.is_some() {
            self.agents(node, &site, &mut checked);
        }
        self.pool(node, &site);
        checked
    }

    /// Reports a pool for a node that needs no machine.
    fn pool(&mut self, node: &'c ResolvedNode<'c>, site: &Site<'_>) {
        let Some(((_, span), of)) = node.spec.pool.zip(node.node_type.as_ref()) else { return };
        let info = of.info();
        if !info.kind.needs_machine(info.occupies) {
            let message = format!("`pool` is for nodes that work on a machine, and `{}` does not", info.name);
            let key = Key::Field(&Key::Root, "pool");
            let help = node.spec.body.is_some().then(|| "set it on the nodes of the body".to_owned());
            let problem = Problem::error(Code::InvalidValue, span, message).help(help);
            self.sink.push(site.locate(problem, &key));
        }
    }

    /// What a node works on.
    fn work(&mut self, node: &'c ResolvedNode<'c>, site: &Site<'_>) -> ParsedInput {
        let Some(input) = &node.input else {
            return ParsedInput { draft: TemplateValue::Literal(Value::Null), bound: Vec::new() };
        };
        let parsed = match node.kind() {
            Some(NodeKind::Frames) if !node.is_of_pack() => {
                self.frames_input(input, node.schema.as_deref(), site)
            }
            _ => self.input(input, node.schema.as_deref(), site),
        };
        if let (Some(node_type), Some(schema)) = (&node.node_type, &node.schema) {
            NodeCheck { node, node_type, input, schema, bound: &parsed.bound, sink: self.sink }.run();
            if &*node_type.info().name == "exec" {
                command::check(node.spec, input, self.body.flow.header, self.sink);
            }
        }
        parsed
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
            let Ok(validator) = BoundedValidator::new(part) else { continue };
            if let Some(error) = validator.errors(value).first() {
                let message = format!("the default of `{key}` does not match `inputSchema`: {error}");
                let place = header.input_yaml.and_then(|input| input.get(key));
                let span = place.map_or(spec.span, |value| value.span);
                let problem = Problem::warning(Code::InvalidValue, span, message);
                self.sink.push(problem.key(format!("input.{key}")));
            }
        }
    }
}
