//! Names in templates and conditions: what each refers to, and whether it can exist there.

use std::fmt;

use inspan_protocol::NodeId;
use serde_json::{Map, Value};

use super::{Checker, ends};
use crate::{
    compile::{
        input::has_own_rules,
        resolve::{Flow, FrameKind, Resolved, ResolvedNode, quoted},
    },
    diagnostic::{Code, Problem, Severity, SourceSpan, did_you_mean},
    expr::{FRAME, NameUse, PathRoot, Resolver, SyntaxFault},
    graph::{NodeIx, OnFailure},
    spec::{EdgeSpec, Key, NodeSpec, Yaml},
};

/// Where a template or condition is evaluated.
#[derive(Clone, Copy)]
pub(super) struct Site<'s> {
    /// The node whose predecessors have run; nothing if that is not known.
    pub(super) node: Option<NodeIx>,
    pub(super) owner: Owner<'s>,
    pub(super) sees: Sees,
}

/// Which nodes of its own body a template or condition may see.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sees {
    /// Those that have run before its node.
    Before,
    /// Its node too, which has run by then.
    After,
    /// None: it is evaluated before the frame begins.
    Frame,
}

/// What a template or condition belongs to.
#[derive(Clone, Copy)]
pub(super) enum Owner<'s> {
    Node(&'s NodeSpec<'s>),
    /// An edge, with its ends.
    Edge(&'s str, &'s str, &'s EdgeSpec<'s>),
    Body(&'s Resolved<'s>),
}

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => f.write_str(&quoted(node.id.as_ref())),
            Self::Edge(from, to, _) => write!(f, "edge `{from} -> {to}`"),
            Self::Body(body) => match body.around {
                Some(around) => write!(f, "the body of {}", quoted(around.node().spec.id.as_ref())),
                None => f.write_str("the flow"),
            },
        }
    }
}

impl Site<'_> {
    /// The problem with its node and its key.
    pub(super) fn locate(&self, problem: Problem, key: &Key<'_>) -> Problem {
        match self.owner {
            Owner::Node(node) => problem.node(node.id.as_ref()).key(node.key(key)),
            Owner::Edge(_, _, edge) => problem.key(format!("{}.{key}", edge.key)),
            Owner::Body(body) => problem.key(format!("{}{key}", body.spec.prefix)),
        }
    }
}

/// What a name means in a body.
#[derive(Clone, Copy)]
enum Meaning<'r> {
    /// `flow`.
    Flow,
    /// `state`.
    State,
    /// `loop`, which only `{% for %}` has.
    ForLoop,
    /// `frame`.
    Frame,
    /// The item, `previous` or `passes` of this body or of one around it.
    Local,
    /// A node, in a body so many further out, of which the last one before is around this one.
    Node { depth: u32, node: NodeIx, body: &'r Resolved<'r>, frame: Option<NodeIx> },
}

impl<'r> Resolved<'r> {
    fn meaning(&'r self, name: &str) -> Option<Meaning<'r>> {
        match name {
            "flow" => return Some(Meaning::Flow),
            "state" => return Some(Meaning::State),
            "loop" => return Some(Meaning::ForLoop),
            _ => {}
        }
        let (mut body, mut depth, mut frame) = (self, 0, None);
        loop {
            if let Some(&node) = body.index.get(name) {
                return Some(Meaning::Node { depth, node, body, frame });
            }
            if name == FRAME {
                return Some(Meaning::Frame);
            }
            let around = body.around?;
            if around.declares(name) {
                return Some(Meaning::Local);
            }
            (body, depth, frame) = (around.body, depth + 1, Some(around.node));
        }
    }

    /// The names of all nodes and items that can be seen.
    fn names(&self) -> Vec<&str> {
        let mut names = vec!["flow", FRAME, "state"];
        let mut body = self;
        loop {
            names.extend(body.index.keys().map(NodeId::as_str));
            let Some(around) = body.around else { break };
            match around.kind {
                FrameKind::Item(item) => names.push(item),
                FrameKind::Pass => names.extend(["previous", "passes"]),
            }
            body = around.body;
        }
        names.sort_unstable();
        names
    }
}

impl Resolver for Resolved<'_> {
    fn root(&self, name: &str) -> Option<PathRoot> {
        Some(match self.meaning(name)? {
            Meaning::Flow => PathRoot::Flow,
            Meaning::State => PathRoot::State,
            Meaning::ForLoop | Meaning::Frame | Meaning::Local => PathRoot::Local(name.into()),
            Meaning::Node { depth, node, body, .. } => {
                let policy = body.nodes[node.0 as usize].spec.policy.as_ref();
                let may_fail = policy.is_some_and(|policy| policy.on_failure == OnFailure::Continue)
                    || body.links.may_fail(node);
                match (depth, may_fail) {
                    (0, true) => PathRoot::MayFail(node),
                    (0, false) => PathRoot::Node(node),
                    (depth, may_fail) => PathRoot::Outer { depth, node, may_fail },
                }
            }
        })
    }
}

impl Checker<'_> {
    /// Reports a text that cannot be parsed.
    pub(super) fn syntax_error(
        &mut self,
        fault: SyntaxFault,
        code: Code,
        text: &Yaml,
        site: &Site<'_>,
        key: &Key<'_>,
    ) {
        let problem = Problem::error(code, text.place(fault.offset), fault.reason).help(fault.help);
        self.sink.push(site.locate(problem, key));
    }

    /// Checks the names that a text uses.
    pub(super) fn names(&mut self, uses: &[NameUse], text: &Yaml, site: &Site<'_>, key: &Key<'_>) {
        let mut reported: Vec<&str> = Vec::new();
        for used in uses {
            let Some(found) = self.name_problem(used, text, site, &reported) else { continue };
            reported.push(used.root());
            let problem = found.at(text.range(used.offset, used.path.len()));
            self.sink.push(site.locate(problem, key));
        }
    }

    fn name_problem(
        &mut self,
        used: &NameUse,
        text: &Yaml,
        site: &Site<'_>,
        reported: &[&str],
    ) -> Option<Problem> {
        let body = self.body;
        let mut parts = used.path.split('.');
        let root = parts.next().unwrap_or_default();
        match body.meaning(root) {
            Some(Meaning::Flow) => flow_name(parts.next(), parts.next(), body.flow),
            Some(Meaning::ForLoop) => Some(wrong_name(
                Severity::Error,
                "`loop` is only available inside `{% for %}`".to_owned(),
                Some("move it between `{% for … %}` and `{% endfor %}`".to_owned()),
            )),
            Some(Meaning::Frame) => frame_name(parts, body),
            Some(Meaning::State | Meaning::Local) => None,
            // One problem is enough for a name that is used twice in one text.
            _ if reported.contains(&root) => None,
            Some(Meaning::Node { node, body: owner, frame, .. }) => {
                let key = parts.next();
                let found = match frame {
                    Some(frame) => outer_order(root, node, frame, owner),
                    None => order(root, node, used.bare, site, owner).or_else(|| {
                        let found = ends::output_after(root, node, key, site, text, owner);
                        found.filter(|_| used.bare)
                    }),
                };
                let of = &owner.nodes[node.0 as usize];
                let inner = key.filter(|name| has_inside(of.spec, name) && !gives(of, name));
                found.or_else(|| inner.map(|name| inside(name, root)))
            }
            None => Some(unknown(root, body)),
        }
    }
}

/// What is wrong with the use of a name, wherever that is.
pub(super) fn wrong_name(severity: Severity, message: String, help: Option<String>) -> Problem {
    Problem::new(severity, Code::UnknownBinding, SourceSpan::NOWHERE, message).help(help)
}

fn unknown(root: &str, body: &Resolved<'_>) -> Problem {
    let input = body.flow.header.input.contains_key(root);
    let help = match root {
        _ if input => Some(format!("use `flow.input.{root}`")),
        "env" | "environ" | "ENV" | "secrets" => Some(
            "templates cannot read environment variables: `exec` passes them to its program; pass other values with \
             `-i key=value` and use `flow.input.key`"
                .to_owned(),
        ),
        "input" | "inputs" | "params" | "vars" => Some("use `flow.input`".to_owned()),
        "nodes" | "steps" | "outputs" | "needs" => {
            Some("refer to the output of a node by its id, such as `review.text`".to_owned())
        }
        _ => None,
    };
    if let (None, Some(owner)) = (&help, body.spec.nodes.iter().find(|node| has_inside(node, root))) {
        let id = owner.id.as_ref().map_or("", NodeId::as_str);
        return inside(root, id);
    }
    let help = help.or_else(|| did_you_mean(root, body.names()));
    wrong_name(Severity::Error, format!("unknown name `{root}`"), help)
}

/// Whether the body of a node, or one in it, has a node with this id.
pub(super) fn has_inside(node: &NodeSpec<'_>, id: &str) -> bool {
    node.body.as_ref().is_some_and(|body| {
        let is_it = |inner: &NodeSpec<'_>| inner.id.as_ref().is_some_and(|known| known.as_str() == id);
        body.nodes.iter().any(|inner| is_it(inner) || has_inside(inner, id))
    })
}

/// Whether the output of a node, or what stands in its place after a failure, has this key.
fn gives(node: &ResolvedNode<'_>, key: &str) -> bool {
    let output = node.node_type.as_ref().map(|of| &of.info().output["properties"]);
    ["failed", "error"].contains(&key) || output.is_some_and(|properties| properties.get(key).is_some())
}

/// A name in the body of a node is used outside it.
fn inside(name: &str, owner: &str) -> Problem {
    let message = format!("`{name}` is in the body of `{owner}` and cannot be seen from here");
    let help = format!("use the output of `{owner}`; `outputs` of its `body` says what each frame gives");
    wrong_name(Severity::Error, message, Some(help))
}

/// Checks a path that begins with `frame`.
fn frame_name<'p>(parts: impl Iterator<Item = &'p str>, body: &Resolved<'_>) -> Option<Problem> {
    let mut around = body.around;
    let mut path = FRAME.to_owned();
    for part in parts {
        let known: &[&str] = match around.map(|around| around.kind) {
            Some(FrameKind::Item(_)) => &["index", "first", "last", "total", "pass", "parent"],
            Some(FrameKind::Pass) => &["index", "first", "pass", "parent"],
            None => &["pass"],
        };
        if part != "parent" || around.is_none() {
            return member(&path, Some(part), known);
        }
        path.push_str(".parent");
        around = around.and_then(|around| around.body.around);
    }
    None
}

fn member(of: &str, name: Option<&str>, known: &[&str]) -> Option<Problem> {
    let name = name.filter(|name| !known.contains(name))?;
    let help = did_you_mean(name, known.iter().copied()).unwrap_or_else(|| {
        format!("available: {}", known.iter().map(|k| format!("`{of}.{k}`")).collect::<Vec<_>>().join(", "))
    });
    Some(wrong_name(Severity::Error, format!("`{of}` has no `{name}`"), Some(help)))
}

/// The keys of its input that a flow declares.
fn declared_inputs<'f>(flow: &'f Flow<'_>) -> Vec<&'f str> {
    let properties = flow.input_schema.as_ref().and_then(|schema| schema.get("properties")?.as_object());
    let declared = flow.header.input.keys().chain(properties.into_iter().flat_map(Map::keys));
    declared.map(String::as_str).collect()
}

/// A key of the flow's input that every run must be given, where the flow declares none.
pub(super) fn input_not_given(key: &str, flow: &Flow<'_>) -> Option<Problem> {
    let message = format!("the input `{key}` has no default");
    let help =
        format!("pass it with `-i {key}=…`, or declare a default: `flow: {{ input: {{ {key}: … }} }}`");
    let problem = Problem::warning(Code::InputNotGiven, SourceSpan::NOWHERE, message).help(help);
    (flow.is_main && declared_inputs(flow).is_empty()).then_some(problem)
}

fn flow_name(name: Option<&str>, key: Option<&str>, flow: &Flow<'_>) -> Option<Problem> {
    if name != Some("input") {
        return member("flow", name, &["input", "name", "sessionId", "artifacts"]);
    }
    let key = key?;
    let known = declared_inputs(flow);
    if known.contains(&key) || known.is_empty() {
        return None;
    }
    let schema = flow.input_schema.as_ref();
    let is_closed = |schema: &Value| {
        schema.get("additionalProperties") == Some(&Value::Bool(false))
            && schema.get("patternProperties").is_none()
    };
    let closed = schema.is_some_and(is_closed);
    if !closed && schema.is_some_and(has_own_rules) {
        return None;
    }
    let message = format!("the flow declares no input `{key}`");
    let help = did_you_mean(key, known).or_else(|| Some("declare it under `input`".to_owned()));
    let severity = if closed { Severity::Error } else { Severity::Warning };
    Some(wrong_name(severity, message, help))
}

fn order(name: &str, node: NodeIx, bare: bool, site: &Site<'_>, body: &Resolved<'_>) -> Option<Problem> {
    if site.sees == Sees::Frame {
        let message = format!("`{name}` is in the body, and this is evaluated before the body runs");
        let help = matches!(body.around.map(|around| around.kind), Some(FrameKind::Pass)).then(|| match body
            .spec
            .outputs
        {
            Some(_) => "`previous` has the `outputs` of the last pass".to_owned(),
            None => format!("use `previous.{name}`, the output of the last pass"),
        });
        return Some(wrong_name(Severity::Error, message, help));
    }
    let at = site.node?;
    if !bare || (site.sees == Sees::After && node == at) || body.links.precedes(node, at) {
        return None;
    }
    let id = body.nodes[at.0 as usize].spec.id.as_ref();
    let id = id.map_or_else(|| "this node".to_owned(), |id| format!("`{id}`"));
    let message = if node == at {
        format!("{id} uses its own output, but it runs only once")
    } else {
        format!("`{name}` never runs before {id}: no path of edges leads there")
    };
    let help = format!("add an edge from `{name}`, or give a default: `{{{{ {name} | default(…) }}}}`");
    Some(wrong_name(Severity::Error, message, (node != at).then_some(help)))
}

/// A body sees only the nodes around it that have run before the node that it belongs to.
fn outer_order(name: &str, node: NodeIx, frame: NodeIx, body: &Resolved<'_>) -> Option<Problem> {
    if body.links.precedes(node, frame) {
        return None;
    }
    let owner = quoted(body.nodes[frame.0 as usize].spec.id.as_ref());
    let message = match node == frame {
        true => format!("the body of {owner} cannot see its output: it runs only once"),
        false => {
            format!("`{name}` never runs before {owner}, whose body this is: no path of edges leads there")
        }
    };
    let help = (node != frame).then(|| format!("add an edge from `{name}` to {owner}"));
    Some(wrong_name(Severity::Error, message, help))
}
