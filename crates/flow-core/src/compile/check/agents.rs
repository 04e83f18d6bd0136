//! Nodes that several agents may work on: what names the first, and when the next takes over.

use super::{
    CheckedNode, Checker,
    names::{Sees, Site},
};
use crate::{
    compile::resolve::ResolvedNode,
    diagnostic::{Code, Problem},
    expr::TemplateValue,
    node::NodeKind,
    spec::Key,
};

impl<'c> Checker<'c> {
    /// Checks what names the agents of a node, and the node with each of them.
    pub(super) fn agents(&mut self, node: &'c ResolvedNode<'c>, site: &Site<'_>, checked: &mut CheckedNode) {
        let spec = node.spec;
        checked.choice = spec.choice.map(|choice| {
            let key = Key::Field(&Key::Root, "agent");
            let since = self.sink.len();
            let parsed = self.template(choice, site, &key);
            if self.sink.len() == since
                && !matches!(&parsed, TemplateValue::Bound(binding) if binding.is_whole())
            {
                let message = "`agent` is the name of an agent, or one whole `{{ expression }}`";
                let problem = Problem::error(Code::InvalidValue, choice.span, message);
                self.sink.push(site.locate(problem, &key));
            }
            parsed
        });
        let after = Site { sees: Sees::After, ..*site };
        let root = Key::Field(&Key::Root, "fallback");
        let whens = spec.fallback.iter().map(|entry| {
            let key = Key::Index(&root, entry.at);
            entry.when.and_then(|when| self.condition(when, &after, &Key::Field(&key, "when")))
        });
        checked.fallback = whens.collect();
        if !spec.fallback.is_empty() && node.kind().is_some_and(|kind| kind != NodeKind::Agent) {
            let message = "`fallback` is for nodes that run an agent";
            let span = spec.fallback[0].agent.1;
            self.sink.push(site.locate(Problem::error(Code::NotAnAgent, span, message), &root));
        }
        for other in &node.others {
            let since = self.sink.len();
            let parsed = self.work(other, site);
            self.sink.label(since, other.spec.agent.unwrap_or_default());
            checked.others.push(CheckedNode::of(parsed, None));
        }
        self.repeated(node, site);
    }

    /// Reports an entry whose agent works right before it, and so would be asked the same again.
    fn repeated(&mut self, node: &ResolvedNode<'_>, site: &Site<'_>) {
        let spec = node.spec;
        let mut before = spec.agent.filter(|_| spec.choice.is_none());
        for entry in &spec.fallback {
            if before == Some(entry.agent.0) {
                let message = format!("`{}` takes over from itself", entry.agent.0);
                let help = "to try it again, set `policy.retry`".to_owned();
                let root = Key::Field(&Key::Root, "fallback");
                let key = Key::Index(&root, entry.at);
                let problem = Problem::warning(Code::Contradiction, entry.agent.1, message).help(help);
                self.sink.push(site.locate(problem, &Key::Field(&key, "agent")));
            }
            before = Some(entry.agent.0);
        }
    }
}
