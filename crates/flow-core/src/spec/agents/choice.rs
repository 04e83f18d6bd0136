//! Nodes that several agents may work on: `agent` with an expression, and `fallback`. Such a node gets the settings of
//! its first agent, and it holds the node as it is with each of the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use inspan_protocol::NodePath;

use super::AgentSettings;
use crate::{
    diagnostic::{Code, Position, Problem, Sink, SourceSpan, did_you_mean, quoted},
    expr::has_segments,
    node::NodeKind,
    spec::{Data, Key, Text, Yaml, fields},
};

/// The key of a node that holds its agents: the name of its own agent, then the node with each of the others. No author
/// can write it.
pub(crate) const AGENTS: &str = "\0agents";

/// The names that expressions of `agent` can give where their schemas declare it, by their places.
pub(crate) type Choices = BTreeMap<(u16, Position), BTreeSet<String>>;

/// The agents of a node.
struct Candidates<'s> {
    /// The first is that of the node itself.
    names: Vec<&'s str>,
    /// How many of them an expression chooses from; the rest are for `fallback` alone.
    chosen: usize,
}

impl AgentSettings<'_> {
    /// Puts the settings of its agents into a node.
    pub(super) fn node(&mut self, node: &mut Yaml, place: Option<&NodePath>, key: &Key<'_>, sink: &mut Sink) {
        let Some(candidates) = self.candidates(node, key, sink) else { return };
        let Candidates { names, chosen } = candidates;
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let written = node.clone();
        let own = written.get("agent").and_then(Yaml::text);
        let settings = own.and_then(|_| self.agent(names.first()?));
        if own.is_some_and(|own| !has_segments(own)) {
            node.remove("agent");
        }
        self.apply(node, settings.as_ref(), place, key, sink);
        self.choose_model(node, place);
        if own.is_some() {
            self.used.extend(names.first().cloned());
        }
        if written.get("fallback").is_none() && names.len() < 2 && node.get("agent").is_none() {
            return;
        }
        let flag = |held| Yaml::new(written.span, Data::Bool(held));
        let text = |name: &str| Yaml::new(written.span, Data::Text(name.to_owned()));
        let mut agents = vec![text(&names[0])];
        for (at, name) in names.iter().enumerate().skip(1) {
            let Some(settings) = self.agent(name) else { continue };
            self.used.insert(name.clone());
            let mut other = written.clone();
            ["agent", "type", "fallback", "body", "dependsOn", "when"]
                .iter()
                .for_each(|key| other.remove(key));
            let is_chosen = at < chosen;
            if !is_chosen {
                without_model(&mut other);
            }
            self.apply(&mut other, Some(&settings), place, key, sink);
            // A fallback is of another vendor, who does not know the model.
            if is_chosen {
                self.choose_model(&mut other, place);
            }
            other.set(AGENTS, written.span, list(written.span, vec![text(name), flag(is_chosen)]));
            agents.push(other);
        }
        node.set(AGENTS, written.span, list(written.span, agents));
    }

    /// The agents that a node names; `None` if that part of it is not valid.
    fn candidates<'n>(&'n self, node: &'n Yaml, key: &Key<'_>, sink: &mut Sink) -> Option<Candidates<'n>> {
        let mut names = Vec::new();
        match node.entry("agent") {
            None => names.push(node.get("type").and_then(Yaml::text).unwrap_or_default()),
            Some(agent) => {
                let agent_key = Key::Field(key, "agent");
                if let Some(node_type) = node.entry("type") {
                    let message = "`agent` and `type` are both set: the agent says the type; keep one";
                    let problem = Problem::error(Code::InvalidValue, node_type.key_span, message);
                    sink.push(problem.key(agent_key));
                    return None;
                }
                let (name, span) = fields::text(&agent.value, &agent_key, sink)?;
                if has_segments(name) {
                    names = self.named_by((name, span), &agent_key, sink)?;
                } else {
                    self.declared((name, span), &agent_key, sink)?;
                    names.push(name);
                }
            }
        }
        let chosen = names.len();
        let fallback_key = Key::Field(key, "fallback");
        for (at, entry) in node.get("fallback").map(Yaml::items).unwrap_or_default().iter().enumerate() {
            let Some((name, span)) = entry.get("agent").and_then(Yaml::placed_text) else { continue };
            let key = Key::Index(&fallback_key, at);
            let key = Key::Field(&key, "agent");
            if has_segments(name) {
                let message = "`agent` under `fallback` is the name of an agent, and no template";
                sink.push(Problem::error(Code::InvalidValue, span, message).key(key));
            } else if self.declared((name, span), &key, sink).is_some() && !names.contains(&name) {
                names.push(name);
            }
        }
        Some(Candidates { names, chosen })
    }

    /// The agents that an expression can name: those that its schema lists, else all.
    fn named_by(&self, (text, span): Text<'_>, key: &Key<'_>, sink: &mut Sink) -> Option<Vec<&str>> {
        let all: BTreeSet<&str> = self.names().filter(|name| self.runs_an_agent(name)).collect();
        let Some(listed) = self.choices.get(&(span.source, span.start)) else {
            if all.is_empty() {
                let message = "`agent` is an expression, and no agent is declared".to_owned();
                let help = "declare them under `agents`".to_owned();
                sink.push(Problem::error(Code::UnknownAgent, span, message).help(help).key(key));
                return None;
            }
            return Some(all.into_iter().collect());
        };
        for unknown in listed.iter().filter(|name| !all.contains(name.as_str())) {
            let message = format!("`{text}` can be `{unknown}`, and no agent has that name");
            let problem = Problem::error(Code::UnknownAgent, span, message).help(self.help(unknown));
            sink.push(problem.key(key));
        }
        let known: Vec<&str> = all.into_iter().filter(|name| listed.contains(*name)).collect();
        (!known.is_empty()).then_some(known)
    }

    /// Reports a name that no agent has.
    fn declared(&self, (name, span): Text<'_>, key: &Key<'_>, sink: &mut Sink) -> Option<()> {
        if self.names().any(|known| known == name) {
            return Some(());
        }
        let problem = Problem::error(Code::UnknownAgent, span, format!("unknown agent `{name}`"));
        sink.push(problem.help(self.help(name)).key(key));
        None
    }

    /// Whether the type of an agent is one of agents; otherwise that is reported where the agent is declared.
    fn runs_an_agent(&self, name: &str) -> bool {
        let settings = self.agent(name);
        let node_type = settings.as_ref().and_then(|settings| settings.get("type")?.text());
        let described = node_type.and_then(|node_type| self.catalog.described(node_type));
        described.is_some_and(|described| described.info.kind == NodeKind::Agent)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.agents.keys().chain(self.loaded.agents.keys()).map(String::as_str)
    }

    /// What to write instead of a name that no agent has.
    fn help(&self, name: &str) -> String {
        let list = quoted(self.names());
        did_you_mean(name, self.names()).unwrap_or_else(|| match list.is_empty() {
            true => "declare it under `agents`".to_owned(),
            false => format!("declared: {list}"),
        })
    }
}

fn list(span: SourceSpan, items: Vec<Yaml>) -> Yaml {
    Yaml::new(span, Data::List(Arc::new(items)))
}

/// A model is a name that one vendor knows: the one that a node says is that of its first agent.
fn without_model(node: &mut Yaml) {
    if let Some(input) = node.get_mut("input") {
        input.remove("provider");
        input.get_mut("options").into_iter().for_each(|options| options.remove("model"));
    }
}
