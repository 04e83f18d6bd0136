//! `session`: the conversation that a node continues or branches.

use inspan_protocol::NodeId;
use serde_json::Value;

use super::{Around, FrameKind, Resolved, ResolvedNode, quoted};
use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean},
    graph::{NodeIx, NodeSession, SessionMode, can_continue},
    node::NodeKind,
    spec::SessionSpec,
};

/// Resolves the conversations that the nodes of a body name.
pub(super) fn resolve(body: &mut Resolved<'_>, sink: &mut Sink) {
    for at in 0..body.nodes.len() {
        let session = body.nodes[at].spec.session();
        let session =
            session.and_then(|session| Naming { body, node: &body.nodes[at], session, sink }.resolve());
        let node = &mut body.nodes[at];
        node.others.iter_mut().for_each(|other| other.session = with_branching(session, other));
        node.session = with_branching(session, node);
    }
}

/// The conversation with whether this agent can branch it.
fn with_branching(session: Option<NodeSession>, node: &ResolvedNode<'_>) -> Option<NodeSession> {
    let can = node.node_type.as_ref().and_then(|of| of.describe.capabilities_for(&node.json));
    Some(NodeSession { can_branch: can.is_some_and(|can| can.fork), ..session? })
}

/// A node that names a conversation.
struct Naming<'n, 'a> {
    body: &'n Resolved<'a>,
    node: &'n ResolvedNode<'a>,
    session: SessionSpec<'a>,
    sink: &'n mut Sink,
}

impl Naming<'_, '_> {
    fn resolve(mut self) -> Option<NodeSession> {
        let (name, span) = self.session.from;
        if self.node.kind().is_some_and(|kind| kind != NodeKind::Agent) {
            let owner = quoted(self.node.spec.id.as_ref());
            let message = format!("{owner} is not an agent node and cannot have a `session`");
            self.report(Code::NotAnAgent, span, message, None);
            return None;
        }
        let (mut body, mut depth, mut frames) = (self.body, 0, Vec::new());
        let node = loop {
            if let Some(&node) = body.index.get(name) {
                break node;
            }
            let Some(around) = body.around else {
                self.unknown();
                return None;
            };
            frames.push(around);
            (body, depth) = (around.body, depth + 1);
        };
        let source = &body.nodes[node.0 as usize];
        if source.kind().is_some_and(|kind| kind != NodeKind::Agent) {
            let message = format!("`session` names `{name}`, which is not an agent node");
            self.report(Code::NotAnAgent, span, message, None);
            return None;
        }
        let can_continue = |own: &ResolvedNode<'_>| {
            let mut sources = [source].into_iter().chain(&source.others);
            sources.any(|source| speaks_to(source, own))
        };
        if ![self.node].into_iter().chain(&self.node.others).any(can_continue) {
            let type_of =
                |node: &ResolvedNode<'_>| node.spec.node_type().map_or("", |(name, _)| name).to_owned();
            let (theirs, own) = (type_of(source), type_of(self.node));
            let message = match source.program().zip(self.node.program()) {
                Some((theirs, own)) if theirs != own => format!(
                    "`session` names `{name}`, whose agent is the program `{theirs}`: the program `{own}` cannot continue its conversation"
                ),
                _ => format!(
                    "`session` names `{name}`, which is a `{theirs}`: a `{own}` cannot continue its conversation"
                ),
            };
            self.report(Code::UnsupportedCapability, span, message, None);
            return None;
        }
        self.is_usable_within(&frames, node).then_some(NodeSession {
            depth,
            node,
            mode: self.session.mode,
            can_branch: false,
        })
    }

    /// Whether the frames around a node may use a conversation of outside: it has begun, and they run one after the other.
    fn is_usable_within(&mut self, frames: &[Around<'_>], source: NodeIx) -> bool {
        let (name, span) = self.session.from;
        let Some(outer) = frames.last() else { return true };
        if !outer.body.links.precedes(source, outer.node) {
            let owner = quoted(outer.node().spec.id.as_ref());
            let message = format!(
                "`{name}` never runs before {owner}, whose body this is: there is no conversation yet"
            );
            self.report(
                Code::UnknownNode,
                span,
                message,
                Some(format!("add an edge from `{name}` to {owner}")),
            );
            return false;
        }
        let parallel = frames.iter().find(|around| {
            let limit = around.node().json.get("maxConcurrency");
            matches!(around.kind, FrameKind::Item(_)) && limit.and_then(Value::as_f64) != Some(1.0)
        });
        if let Some(around) = parallel.filter(|_| self.session.mode == SessionMode::Continue) {
            let owner = quoted(around.node().spec.id.as_ref());
            let message = format!(
                "the items of {owner} may run at the same time and would continue one conversation, that of `{name}`"
            );
            let help = format!(
                "branch it: `session: {{ from: {name}, fork: true }}`; or run one item after the other: `maxConcurrency: 1`"
            );
            self.report(Code::SharedConversation, span, message, Some(help));
            return false;
        }
        true
    }

    fn unknown(&mut self) {
        let (name, span) = self.session.from;
        let mut names: Vec<&str> = self.body.index.keys().map(NodeId::as_str).collect();
        names.sort_unstable();
        let help = did_you_mean(name, names).or_else(|| {
            let own = self.node.spec.id.as_ref()?;
            Some(format!("name an agent node; `session: {own}` continues the node's own conversation"))
        });
        self.report(Code::UnknownNode, span, format!("`session` names unknown node `{name}`"), help);
    }

    fn report(&mut self, code: Code, span: SourceSpan, message: String, help: Option<String>) {
        let spec = self.node.spec;
        let problem = Problem::error(code, span, message).help(help);
        self.sink.push(problem.node(spec.id.as_ref()).key(spec.key("session")));
    }
}

/// Whether a conversation of one node may be one that the other can continue: both are of one provider, as far as is known.
fn speaks_to(source: &ResolvedNode<'_>, node: &ResolvedNode<'_>) -> bool {
    let (source_program, program) = (source.program(), node.program());
    match (&source.node_type, &node.node_type) {
        (Some(source), Some(node)) => can_continue(
            (&source.info().name, source_program.as_deref()),
            (&node.info().name, program.as_deref()),
        ),
        _ => true,
    }
}
