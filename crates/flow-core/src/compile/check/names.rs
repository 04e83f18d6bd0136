//! Names in templates and conditions: what each refers to, and whether it can exist there.

use std::fmt;

use inspan_protocol::NodeId;
use serde_json::Value;

use super::Checker;
use crate::{
    compile::resolve::{Resolved, quoted},
    diagnostic::{Code, Problem, Severity, did_you_mean},
    expr::{NameUse, PathRoot, Resolver, SyntaxFault},
    graph::{NodeIx, OnFailure},
    spec::{Key, Yaml},
};

/// The node or edge that evaluates a template or condition.
#[derive(Clone, Copy)]
pub(super) struct Site<'s> {
    /// The node whose predecessors have run.
    pub(super) node: Option<NodeIx>,
    pub(super) owner: Owner<'s>,
    /// Whether the node itself has run by then.
    pub(super) after: bool,
}

/// The node or edge that a template or condition belongs to.
#[derive(Clone, Copy)]
pub(super) enum Owner<'s> {
    /// A node, with its position in the list.
    Node(Option<&'s NodeId>, usize),
    /// An edge, with its ends and its position in the list.
    Edge(&'s str, &'s str, usize),
}

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(id, _) => f.write_str(&quoted(*id)),
            Self::Edge(from, to, _) => write!(f, "edge `{from} -> {to}`"),
        }
    }
}

impl Site<'_> {
    /// The problem with its node and its key.
    pub(super) fn locate(&self, problem: Problem, key: &Key<'_>) -> Problem {
        match self.owner {
            Owner::Node(id, at) => problem.node(id).key(format!("nodes[{at}].{key}")),
            Owner::Edge(_, _, at) => problem.key(format!("edges[{at}].{key}")),
        }
    }
}

impl Resolver for Resolved<'_> {
    fn root(&self, name: &str) -> Option<PathRoot> {
        match name {
            "flow" => Some(PathRoot::Flow),
            "state" => Some(PathRoot::State),
            "loop" => Some(PathRoot::Local(name.into())),
            "frame" if !self.index.contains_key(name) => Some(PathRoot::Local(name.into())),
            _ => self.index.get(name).map(|&node| {
                let policy = self.nodes[node.0 as usize].spec.policy.as_ref();
                match policy.is_some_and(|policy| policy.on_failure == OnFailure::Continue) {
                    true => PathRoot::MayFail(node),
                    false => PathRoot::Node(node),
                }
            }),
        }
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
        let flow = self.flow;
        let mut reported: Vec<&str> = Vec::new();
        for used in uses {
            let mut parts = used.path.split('.');
            let root = parts.next().unwrap_or_default();
            let found = match root {
                "flow" => {
                    let (name, key) = (parts.next(), parts.next());
                    if let (Some("input"), Some(key), true) = (name, key, used.bare) {
                        self.need(key, site);
                    }
                    flow_name(name, key, used.bare, flow)
                }
                "loop" => Some(NameProblem::error(
                    "`loop` is only available inside `{% for %}`".to_owned(),
                    Some("move it between `{% for … %}` and `{% endfor %}`".to_owned()),
                )),
                "frame" if !flow.index.contains_key(root) => member("frame", parts.next(), &["pass"]),
                "state" => None,
                // One problem is enough for a name that is used twice in one text.
                _ if reported.contains(&root) => None,
                _ => match flow.index.get(root) {
                    Some(&node) => order(root, node, used.bare, site, flow)
                        .or_else(|| output(root, node, parts.next(), parts.next(), flow)),
                    None => Some(unknown(root, flow)),
                },
            };
            if let Some(NameProblem { code, severity, message, help }) = found {
                reported.push(used.root());
                let problem = match severity {
                    Severity::Error => Problem::error,
                    Severity::Warning => Problem::warning,
                };
                let problem = problem(code, text.place(used.offset), message);
                self.sink.push(site.locate(problem.help(help), key));
            }
        }
    }

    /// Notes a key of the flow's input without which a node cannot run.
    fn need(&mut self, key: &str, site: &Site<'_>) {
        let node = site.node.and_then(|node| self.flow.nodes[node.0 as usize].spec.id.clone());
        if let Some(node) = node
            && !self.flow.spec.header.input.contains_key(key)
        {
            self.needs.entry(key.to_owned()).or_insert(node);
        }
    }
}

/// What is wrong with the use of a name.
struct NameProblem {
    code: Code,
    severity: Severity,
    message: String,
    help: Option<String>,
}

impl NameProblem {
    fn error(message: String, help: Option<String>) -> Self {
        Self { code: Code::UnknownBinding, severity: Severity::Error, message, help }
    }
}

fn unknown(root: &str, flow: &Resolved<'_>) -> NameProblem {
    let mut names: Vec<&str> = flow.index.keys().map(NodeId::as_str).collect();
    names.extend(["flow", "frame", "state"]);
    names.sort_unstable();
    let input = flow.spec.header.input.contains_key(root);
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
        _ => did_you_mean(root, names),
    };
    NameProblem::error(format!("unknown name `{root}`"), help)
}

fn member(of: &str, name: Option<&str>, known: &[&str]) -> Option<NameProblem> {
    let name = name.filter(|name| !known.contains(name))?;
    let help = did_you_mean(name, known.iter().copied()).unwrap_or_else(|| {
        format!("available: {}", known.iter().map(|k| format!("`{of}.{k}`")).collect::<Vec<_>>().join(", "))
    });
    Some(NameProblem::error(format!("`{of}` has no `{name}`"), Some(help)))
}

fn flow_name(name: Option<&str>, key: Option<&str>, bare: bool, flow: &Resolved<'_>) -> Option<NameProblem> {
    if name != Some("input") {
        return member("flow", name, &["input", "name", "sessionId"]);
    }
    let key = key?;
    let header = &flow.spec.header;
    let mut known: Vec<&str> = header.input.keys().map(String::as_str).collect();
    let schema = flow.input_schema.as_ref();
    let properties = schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    known.extend(properties.into_iter().flat_map(|map| map.keys().map(String::as_str)));
    if known.contains(&key) || (known.is_empty() && !bare) {
        return None;
    }
    if known.is_empty() {
        let message = format!("the input `{key}` has no default");
        let help =
            format!("pass it with `-i {key}=…`, or declare a default: `flow: {{ input: {{ {key}: … }} }}`");
        return Some(NameProblem {
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
    Some(NameProblem { code: Code::UnknownBinding, severity, message, help })
}

fn output(
    name: &str,
    node: NodeIx,
    key: Option<&str>,
    inner: Option<&str>,
    flow: &Resolved<'_>,
) -> Option<NameProblem> {
    if let (Some("structuredOutput"), Some(inner)) = (key, inner)
        && let Some(keys) = flow.nodes[node.0 as usize].structured_keys.as_deref()
        && !keys.iter().any(|known| known == inner)
    {
        let help = did_you_mean(inner, keys.iter().map(String::as_str)).unwrap_or_else(|| {
            format!("it has {}", keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "))
        });
        let message = format!("the `outputSchema` of `{name}` has no `{inner}`");
        return Some(NameProblem::error(message, Some(help)));
    }
    let keys = flow.nodes[node.0 as usize].output_keys()?;
    let key = key.filter(|key| !keys.iter().any(|known| known == key))?;
    let known = || keys.iter().map(String::as_str).filter(|key| !matches!(*key, "failed" | "error"));
    let help = did_you_mean(key, known()).unwrap_or_else(|| {
        format!("it has {}", known().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "))
    });
    let message = format!("the output of `{name}` has no `{key}`");
    Some(NameProblem { code: Code::UnknownBinding, severity: Severity::Warning, message, help: Some(help) })
}

fn order(name: &str, node: NodeIx, bare: bool, site: &Site<'_>, flow: &Resolved<'_>) -> Option<NameProblem> {
    let at = site.node?;
    if !bare || (site.after && node == at) || flow.links.precedes(node, at) {
        return None;
    }
    let id = flow.nodes[at.0 as usize].spec.id.as_ref();
    let id = id.map_or_else(|| "this node".to_owned(), |id| format!("`{id}`"));
    let message = if node == at {
        format!("{id} uses its own output, but it runs only once")
    } else {
        format!("`{name}` never runs before {id}: no path of edges leads there")
    };
    let help = format!("add an edge from `{name}`, or give a default: `{{{{ {name} | default(…) }}}}`");
    Some(NameProblem::error(message, (node != at).then_some(help)))
}
