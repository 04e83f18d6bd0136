//! Names in templates and conditions: what each stands for, and whether it can be there at all.

use std::fmt;

use inspan_protocol::NodeId;
use serde_json::Value;

use super::{World, types::named};
use crate::{
    diagnostic::{Code, Problem, Severity, Sink, did_you_mean},
    expr::{Resolver, Root, SyntaxFault, Use},
    graph::{NodeIx, OnFailure},
    spec::Yaml,
};

/// Who evaluates a template or condition, and when.
#[derive(Clone, Copy)]
pub(super) struct User<'u> {
    /// The node whose past may be looked at.
    pub(super) node: Option<NodeIx>,
    /// Whose it is.
    pub(super) whose: Whose<'u>,
    /// Whether the node itself has run by then.
    pub(super) after: bool,
}

/// Whose a template or condition is, spelled only when a problem or an error needs it.
#[derive(Clone, Copy)]
pub(super) enum Whose<'u> {
    /// A node's, with its place in the list.
    Node(Option<&'u NodeId>, usize),
    /// An edge's, with its ends and its place in the list.
    Edge(&'u str, &'u str, usize),
}

impl fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(id, _) => f.write_str(&named(*id)),
            Self::Edge(from, to, _) => write!(f, "edge `{from} -> {to}`"),
        }
    }
}

impl User<'_> {
    /// The problem, told of the node it belongs to and the key it lies under.
    pub(super) fn told(&self, problem: Problem, key: &dyn fmt::Display) -> Problem {
        match self.whose {
            Whose::Node(id, at) => problem.node(id).key(format!("nodes[{at}].{key}")),
            Whose::Edge(_, _, at) => problem.key(format!("edges[{at}].{key}")),
        }
    }
}

impl Resolver for World<'_> {
    fn root(&self, name: &str) -> Option<Root> {
        match name {
            "flow" => Some(Root::Flow),
            "state" => Some(Root::State),
            "loop" => Some(Root::Local(name.into())),
            "frame" if !self.index.contains_key(name) => Some(Root::Local(name.into())),
            _ => self.index.get(name).map(|&node| {
                let policy = self.spec.nodes.get(node.0 as usize).and_then(|node| node.policy.as_ref());
                match policy.is_some_and(|policy| policy.on_failure == OnFailure::Continue) {
                    true => Root::MayFail(node),
                    false => Root::Node(node),
                }
            }),
        }
    }
}

/// Reports a text that cannot be parsed.
pub(super) fn refuse(
    fault: SyntaxFault,
    code: Code,
    text: &Yaml,
    user: &User<'_>,
    key: &dyn fmt::Display,
    sink: &mut Sink,
) {
    let problem = Problem::error(code, text.place(fault.offset), fault.reason).help(fault.help);
    sink.push(user.told(problem, key));
}

/// Checks the names that a text uses.
pub(super) fn check(
    uses: &[Use],
    text: &Yaml,
    user: &User<'_>,
    key: &dyn fmt::Display,
    world: &World<'_>,
    sink: &mut Sink,
) {
    let mut told: Vec<&str> = Vec::new();
    for used in uses {
        let mut parts = used.path.split('.');
        let root = parts.next().unwrap_or_default();
        let found = match root {
            "flow" => {
                let (name, key) = (parts.next(), parts.next());
                if let (Some("input"), Some(key), true) = (name, key, used.bare) {
                    needs(key, user, world);
                }
                flow(name, key, used.bare, world)
            }
            "loop" => Some(Fault::error(
                "`loop` is only available inside `{% for %}`".to_owned(),
                Some("move it between `{% for … %}` and `{% endfor %}`".to_owned()),
            )),
            "frame" if !world.index.contains_key(root) => member("frame", parts.next(), &["pass"]),
            "state" => None,
            // Of a name that is used twice in one text one problem is enough.
            _ if told.contains(&root) => None,
            _ => match world.index.get(root) {
                Some(&node) => order(root, node, used.bare, user, world)
                    .or_else(|| output(root, node, parts.next(), parts.next(), world)),
                None => Some(unknown(root, world)),
            },
        };
        if let Some(Fault { code, severity, message, help }) = found {
            told.push(used.root());
            let problem = match severity {
                Severity::Error => Problem::error,
                Severity::Warning => Problem::warning,
            };
            let problem = problem(code, text.place(used.offset), message);
            sink.push(user.told(problem.help(help), key));
        }
    }
}

/// What is wrong with the use of a name.
struct Fault {
    code: Code,
    severity: Severity,
    message: String,
    help: Option<String>,
}

impl Fault {
    fn error(message: String, help: Option<String>) -> Self {
        Self { code: Code::UnknownBinding, severity: Severity::Error, message, help }
    }
}

fn unknown(root: &str, world: &World<'_>) -> Fault {
    let mut names: Vec<&str> = world.index.keys().map(NodeId::as_str).collect();
    names.extend(["flow", "frame", "state"]);
    names.sort_unstable();
    let input = world.spec.header.input.contains_key(root);
    let help = match root {
        _ if input => Some(format!("use `flow.input.{root}`")),
        "env" | "environ" | "ENV" | "secrets" => Some(
            "templates cannot reach the environment: `exec` passes it on to its program, and other values are given with \
             `-i key=value` as `flow.input.key`"
                .to_owned(),
        ),
        "input" | "inputs" | "params" | "vars" => Some("use `flow.input`".to_owned()),
        "nodes" | "steps" | "outputs" | "needs" => {
            Some("refer to the output of a node by its id, such as `review.text`".to_owned())
        }
        _ => did_you_mean(root, names),
    };
    Fault::error(format!("unknown name `{root}`"), help)
}

fn member(of: &str, name: Option<&str>, known: &[&str]) -> Option<Fault> {
    let name = name.filter(|name| !known.contains(name))?;
    let help = did_you_mean(name, known.iter().copied()).unwrap_or_else(|| {
        format!("available: {}", known.iter().map(|k| format!("`{of}.{k}`")).collect::<Vec<_>>().join(", "))
    });
    Some(Fault::error(format!("`{of}` has no `{name}`"), Some(help)))
}

/// Notes a key of the input without which a node cannot run.
fn needs(key: &str, user: &User<'_>, world: &World<'_>) {
    let node = user.node.and_then(|node| world.spec.nodes.get(node.0 as usize)?.id.clone());
    if let Some(node) = node
        && !world.spec.header.input.contains_key(key)
    {
        world.needs.borrow_mut().entry(key.into()).or_insert(node);
    }
}

fn flow(name: Option<&str>, key: Option<&str>, bare: bool, world: &World<'_>) -> Option<Fault> {
    if name != Some("input") {
        return member("flow", name, &["input", "name", "sessionId"]);
    }
    let key = key?;
    let header = &world.spec.header;
    let mut known: Vec<&str> = header.input.keys().map(String::as_str).collect();
    let schema = world.input_schema.as_ref();
    let properties = schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    known.extend(properties.into_iter().flat_map(|map| map.keys().map(String::as_str)));
    if known.contains(&key) || (known.is_empty() && !bare) {
        return None;
    }
    if known.is_empty() {
        let message = format!("the input `{key}` has no default");
        let help =
            format!("pass it with `-i {key}=…`, or declare a default: `flow: {{ input: {{ {key}: … }} }}`");
        return Some(Fault {
            code: Code::InputNotGiven,
            severity: Severity::Warning,
            message,
            help: Some(help),
        });
    }
    let closed = schema.and_then(|schema| schema.get("additionalProperties")) == Some(&Value::Bool(false));
    let message = format!("the flow declares no input `{key}`");
    let help = did_you_mean(key, known).or_else(|| Some("declare it under `input`".to_owned()));
    let severity = if closed { Severity::Error } else { Severity::Warning };
    Some(Fault { code: Code::UnknownBinding, severity, message, help })
}

fn output(
    name: &str,
    node: NodeIx,
    key: Option<&str>,
    inner: Option<&str>,
    world: &World<'_>,
) -> Option<Fault> {
    if let (Some("structuredOutput"), Some(inner)) = (key, inner)
        && let Some(keys) = world.structured.get(node.0 as usize)?.as_deref()
        && !keys.iter().any(|known| known == inner)
    {
        let help = did_you_mean(inner, keys.iter().map(String::as_str)).unwrap_or_else(|| {
            format!("it has {}", keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "))
        });
        let message = format!("the `outputSchema` of `{name}` has no `{inner}`");
        return Some(Fault::error(message, Some(help)));
    }
    let keys = world.outputs.get(node.0 as usize)?.as_deref()?;
    let key = key.filter(|key| !keys.iter().any(|known| known == key))?;
    let known = || keys.iter().map(String::as_str).filter(|key| !matches!(*key, "failed" | "error"));
    let help = did_you_mean(key, known()).unwrap_or_else(|| {
        format!("it has {}", known().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "))
    });
    let message = format!("the output of `{name}` has no `{key}`");
    Some(Fault { code: Code::UnknownBinding, severity: Severity::Warning, message, help: Some(help) })
}

fn order(name: &str, node: NodeIx, bare: bool, user: &User<'_>, world: &World<'_>) -> Option<Fault> {
    let at = user.node?;
    if !bare || (user.after && node == at) || world.links.precedes(node, at) {
        return None;
    }
    let id = world.spec.nodes.get(at.0 as usize).and_then(|node| node.id.as_ref());
    let id = id.map_or_else(|| "this node".to_owned(), |id| format!("`{id}`"));
    let message = if node == at {
        format!("{id} uses its own output, but it runs only once")
    } else {
        format!("`{name}` never runs before {id}: no path of edges leads there")
    };
    let help = format!("add an edge from `{name}`, or give a default: `{{{{ {name} | default(…) }}}}`");
    Some(Fault::error(message, (node != at).then_some(help)))
}
