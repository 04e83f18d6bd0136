//! Checks of `on`: edges that can never fire, and uses of the output of a node that has none at that place.

use super::names::{Owner, Sees, Site, wrong_name};
use crate::{
    compile::resolve::{Link, Resolved, name, quoted},
    diagnostic::{Code, Problem, Severity, Sink},
    expr::Resolver,
    graph::{EdgeOn, NodeIx, OnFailure},
    node::NodeKind,
    spec::Yaml,
};

/// Reports edges that can never fire.
pub(super) fn check(body: &Resolved<'_>, sink: &mut Sink) {
    for link in &body.links.links {
        if let Some(problem) = never_fires(link, body) {
            sink.push(match link.spec {
                Some(edge) => problem.key(format!("{}.on", edge.key)),
                None => problem.node(body.nodes[link.to.0 as usize].spec.id.as_ref()),
            });
        }
    }
    for (node, at) in body.nodes.iter().zip(0..) {
        if node.waits_for_all()
            && let Some(problem) = exclusive_edges(NodeIx(at), body)
        {
            sink.push(problem.node(node.spec.id.as_ref()).key(node.spec.key("input.mode")));
        }
    }
}

fn never_fires(link: &Link<'_>, body: &Resolved<'_>) -> Option<Problem> {
    let source = body.nodes[link.from.0 as usize].spec;
    let from = name(body.spec, link.from);
    let continues = source.policy.as_ref().is_some_and(|policy| policy.on_failure == OnFailure::Continue);
    let has_failed = format!("`when: \"{}.failed\"`", from.trim_matches('`'));
    match link.on {
        EdgeOn::Failure | EdgeOn::Any | EdgeOn::Skipped if link.is_loop() => {
            let message = "an edge that closes a loop fires after a success alone";
            let help = format!(
                "remove `on`; to go round after a failure, give {from} `policy: {{ continueOnError: true }}` and write \
                 {has_failed}"
            );
            Some(Problem::error(Code::NeverFires, link.span, message).help(help))
        }
        EdgeOn::Failure if continues => {
            let message = format!("{from} has `continueOnError`, so its edges fire as after a success");
            let help = format!("remove `continueOnError`, or write {has_failed} instead of `on`");
            Some(Problem::error(Code::NeverFires, link.span, message).help(help))
        }
        EdgeOn::Skipped if source.when.is_none() && body.links.leading_to(link.from).next().is_none() => {
            let message = format!(
                "this edge never fires: {from} has no `when` and no edge leads to it, so it is never skipped"
            );
            Some(Problem::warning(Code::NeverFires, link.span, message))
        }
        _ => None,
    }
}

/// A merge that waits for all edges never runs if two of them fire after different ends of one node.
fn exclusive_edges(node: NodeIx, body: &Resolved<'_>) -> Option<Problem> {
    let mut edges: Vec<&Link<'_>> =
        body.links.leading_to(node).filter(|link| link.on != EdgeOn::Any).collect();
    edges.sort_by_key(|link| link.from);
    let pair = edges.windows(2).find(|pair| pair[0].from == pair[1].from)?;
    let (id, from) = (quoted(body.nodes[node.0 as usize].spec.id.as_ref()), name(body.spec, pair[0].from));
    let message =
        format!("{id} waits for all its edges, and two of them fire after different ends of {from}");
    let help = "set `mode: any`".to_owned();
    Some(Problem::error(Code::NeverFires, pair[1].span, message).help(help))
}

/// What is wrong with the use of the output of a node by its name, where it is known how the node has ended.
pub(super) fn output_after(
    name: &str,
    node: NodeIx,
    key: Option<&str>,
    site: &Site<'_>,
    text: &Yaml,
    body: &Resolved<'_>,
) -> Option<Problem> {
    let is_marker = key.is_none_or(|key| matches!(key, "failed" | "error"));
    match end_of(node, site, body)? {
        EdgeOn::Failure if !is_marker => Some(wrong_name(
            Severity::Error,
            format!("`{name}` has failed when this is evaluated, and has no `{}`", key.unwrap_or_default()),
            Some(format!("use `{name}.error`")),
        )),
        // A node whose failure is handled has `failed` also where it has not run.
        EdgeOn::Skipped if key == Some("failed") && body.root(name).is_some_and(|root| root.may_fail()) => {
            None
        }
        EdgeOn::Skipped => {
            let message = format!("`{name}` was skipped when this is evaluated, and has no output");
            Some(wrong_name(Severity::Error, message, None))
        }
        EdgeOn::Any if !is_marker && !asks_for_part(name, site, text, body) => Some(wrong_name(
            Severity::Warning,
            format!("`{name}` may have failed or been skipped when this is evaluated"),
            Some(format!("give a default: `{name}.{} | default(…)`", key.unwrap_or_default())),
        )),
        EdgeOn::Any if key == Some("error") && gives_no_error(node, body) && !is_tested(site, body) => {
            let message = format!("`{name}` has no `error` if it did not fail");
            let help = format!("test `{name}.failed` first, or give a default: `{name}.error | default(…)`");
            Some(wrong_name(Severity::Warning, message, Some(help)))
        }
        _ => None,
    }
}

/// Whether a node that succeeds gives no field `error`, as far as its type says.
fn gives_no_error(node: NodeIx, body: &Resolved<'_>) -> bool {
    let node = &body.nodes[node.0 as usize];
    let known = node.node_type.as_ref().map(|of| of.info()).filter(|of| of.kind != NodeKind::Frames);
    let fields = known.and_then(|of| of.output.get("properties")?.as_object());
    fields.is_some_and(|fields| !fields.contains_key("error"))
}

/// Whether a condition was true before this is evaluated: it may have asked how the node before has ended.
fn is_tested(site: &Site<'_>, body: &Resolved<'_>) -> bool {
    if let Owner::Edge(..) = site.owner {
        return false;
    }
    site.node.is_some_and(|node| {
        let of_edge = |edge: &Link<'_>| edge.spec.is_some_and(|edge| edge.when.is_some());
        body.nodes[node.0 as usize].spec.when.is_some() || body.links.leading_to(node).any(of_edge)
    })
}

/// Whether a condition that was true before a text is evaluated reads a part of a node: `not x.failed`, `x.text is defined`.
/// That the node itself has a value says nothing, as a failure is one.
fn asks_for_part(name: &str, site: &Site<'_>, text: &Yaml, body: &Resolved<'_>) -> bool {
    let Some(node) = site.node.filter(|_| !matches!(site.owner, Owner::Edge(..))) else { return false };
    let of_edges = body.links.leading_to(node).filter_map(|edge| edge.spec?.when);
    let own = body.nodes[node.0 as usize]
        .spec
        .when
        .filter(|when| !any_part(when, &|part| std::ptr::eq(part, text)));
    let part = format!("{name}.");
    let reads = |when: &Yaml| {
        let mut words =
            when.text().unwrap_or_default().split(|c: char| !c.is_alphanumeric() && !"._".contains(c));
        words.any(|word| word.starts_with(&part))
    };
    own.into_iter().chain(of_edges).any(|when| any_part(when, &reads))
}

/// Whether something holds for a value or for one in it.
fn any_part(yaml: &Yaml, holds: &dyn Fn(&Yaml) -> bool) -> bool {
    let entries = yaml.entries().iter().map(|entry| &entry.value);
    holds(yaml) || yaml.items().iter().chain(entries).any(|part| any_part(part, holds))
}

/// How a node has ended where a template or condition is evaluated; unknown if more than one edge leads there.
fn end_of(node: NodeIx, site: &Site<'_>, body: &Resolved<'_>) -> Option<EdgeOn> {
    if let (Owner::Edge(_, _, edge), Sees::After) = (site.owner, site.sees) {
        return (site.node == Some(node)).then_some(edge.on);
    }
    let mut edges = body.links.leading_to(site.node?);
    let edge = edges.next().filter(|_| edges.next().is_none())?;
    (edge.from == node).then_some(edge.on)
}
