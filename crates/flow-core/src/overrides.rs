//! Changes to a loaded flow for one run: another type for a node, another value in its input, another budget.

use std::{collections::BTreeMap, sync::Arc};

use inspan_protocol::{BudgetLimits, NodePath};
use serde_json::{Number, Value};

use crate::{
    diagnostic::{did_you_mean, quoted},
    source::{Change, Loaded},
    spec::{Data, Yaml, is_agent, is_of, mentions, nodes},
};

/// Why a change cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// There is no node at this place.
    #[error("unknown node `{node}`; {help}")]
    UnknownNode {
        /// The place: an id, or the path of a node of a body.
        node: NodePath,
        /// Which may be meant, or which there are.
        help: String,
    },
    /// The node runs no agent.
    #[error("node `{node}` runs no agent")]
    NotAnAgent {
        /// The node.
        node: NodePath,
    },
    /// The agents that it runs are those of another flow.
    #[error(
        "node `{node}` runs another flow: change its agents in the file of that flow, or all agents at once, without a node"
    )]
    AgentsOfOtherFlow {
        /// The node.
        node: NodePath,
    },
    /// The node runs nothing in frames.
    #[error("node `{node}` runs no other nodes, so there is no budget `{node}/`")]
    NoFrames {
        /// The node.
        node: NodePath,
    },
    /// The nodes that it runs are those of another flow.
    #[error("node `{node}` runs another flow, which sets its own budget")]
    OtherFlow {
        /// The node.
        node: NodePath,
    },
    /// The path to the key leads through a value that is not a mapping.
    #[error("`{key}` of {owner} is {kind} and has no keys")]
    NoMapping {
        /// The node, or the flow, in words.
        owner: String,
        /// The key of that value.
        key: String,
        /// What it is.
        kind: &'static str,
    },
}

impl Loaded {
    /// Makes a recorded change again. One of a node that the flow does not have is an error, and is recorded nonetheless: the
    /// node may come back.
    pub fn change(&mut self, change: &Change) -> Result<(), OverrideError> {
        let made = match change {
            Change::Type { node, to } => self.set_type(node, to),
            Change::Input { node, keys, value } => {
                let keys: Vec<_> = keys.iter().map(String::as_str).collect();
                self.set_input(node, &keys, value)
            }
            Change::Provider { node, to } => self.set_provider(node.as_ref(), to),
            Change::Model { node, to } => self.set_model(node.as_ref(), to),
            Change::Only { nodes } => {
                self.set_only(nodes);
                Ok(())
            }
            Change::Option { provider, name, value } => {
                self.default_option(provider, name, value);
                Ok(())
            }
            Change::Agent { name, settings } => {
                self.set_agent(name, settings);
                Ok(())
            }
            Change::Budget { is_default: true, limits, .. } => {
                limits.usd.into_iter().for_each(|usd| self.default_budget(usd));
                Ok(())
            }
            Change::Budget { node, is_of_body, limits, .. } => {
                self.set_budget(node.as_ref(), *is_of_body, *limits)
            }
        };
        if let Err(OverrideError::UnknownNode { .. }) = made {
            self.record(change.clone(), false);
        }
        made
    }

    /// Sets limits in the budget of a node or of its body, or of the flow if no node is given; other limits stay.
    pub fn set_budget(
        &mut self,
        id: Option<&NodePath>,
        is_of_body: bool,
        limits: BudgetLimits,
    ) -> Result<(), OverrideError> {
        self.write_budget(id, is_of_body, limits)?;
        self.changes.push(Change::Budget { node: id.cloned(), is_of_body, is_default: false, limits });
        Ok(())
    }

    /// Sets the type of a node.
    pub fn set_type(&mut self, id: &NodePath, node_type: &str) -> Result<(), OverrideError> {
        let node = self.node_mut(id)?;
        let span = node.get("type").unwrap_or(node).span;
        node.set("type", span, Yaml::new(span, Data::Text(node_type.to_owned())));
        self.changes.push(Change::Type { node: id.clone(), to: node_type.to_owned() });
        Ok(())
    }

    /// Sets the provider of an agent node, or of all agent nodes, those of bodies and of other flows among them. What the
    /// options of the provider before do not mean to this one is reported by the compiler.
    pub fn set_provider(&mut self, id: Option<&NodePath>, provider: &str) -> Result<(), OverrideError> {
        self.check_agent(id)?;
        self.providers.insert(id.cloned(), provider.to_owned());
        self.changes.push(Change::Provider { node: id.cloned(), to: provider.to_owned() });
        Ok(())
    }

    /// Sets the model of an agent node, or of all agent nodes, as [`Loaded::set_provider`] does the provider.
    pub fn set_model(&mut self, id: Option<&NodePath>, model: &str) -> Result<(), OverrideError> {
        self.check_agent(id)?;
        self.models.insert(id.cloned(), model.to_owned());
        self.changes.push(Change::Model { node: id.cloned(), to: model.to_owned() });
        Ok(())
    }

    fn check_agent(&mut self, id: Option<&NodePath>) -> Result<(), OverrideError> {
        let Some(id) = id else { return Ok(()) };
        let node = self.node_mut(id)?;
        match (is_agent(node), runs_a_flow(node)) {
            (true, _) => Ok(()),
            (false, true) => Err(OverrideError::AgentsOfOtherFlow { node: id.clone() }),
            (false, false) => Err(OverrideError::NotAnAgent { node: id.clone() }),
        }
    }

    /// Lets only these nodes run, and what is in their bodies. Whether there are such nodes only the graph knows, which has
    /// those of other flows too: [`Graph::find_place`](crate::graph::Graph::find_place).
    pub fn set_only(&mut self, nodes: &[NodePath]) {
        self.only.extend_from_slice(nodes);
        self.changes.push(Change::Only { nodes: nodes.to_vec() });
    }

    /// The provider that was set for an agent node at a place; one of another flow has none.
    pub(crate) fn provider_of(&self, place: Option<&NodePath>) -> Option<&str> {
        of_place(&self.providers, place)
    }

    /// The model that was set for an agent node.
    pub(crate) fn model_of(&self, place: Option<&NodePath>) -> Option<&str> {
        of_place(&self.models, place)
    }

    /// Sets a value in the input of a node, replacing the value or file there. `keys` is the path, with at least one
    /// key. Strings in the value are not templates.
    pub fn set_input(&mut self, id: &NodePath, keys: &[&str], value: &Value) -> Result<(), OverrideError> {
        let mut here = self.node_mut(id)?;
        if keys == ["prompt"] {
            here.remove("promptFile");
        }
        let mut way = vec!["input"];
        way.extend(keys);
        let (last, way) = way.split_last().unwrap_or((&"input", &[]));
        let mut path = String::new();
        for key in way {
            path = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
            here = mapping_under(here, key, &format!("node `{id}`"), &path)?;
        }
        here.remove(&format!("{last}File"));
        let span = here.get(last).unwrap_or(here).span;
        here.set(last, span, Yaml::new(span, Data::Json(Arc::new(value.clone()))));
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.changes.push(Change::Input { node: id.clone(), keys, value: value.clone() });
        Ok(())
    }

    /// Sets an option of every agent node of a provider for which nothing else sets it.
    pub fn default_option(&mut self, provider: &str, name: &str, value: &Value) {
        let is_used = self.agents.values().any(|agent| is_of(agent, provider))
            || self.providers.values().any(|used| used == provider)
            || self.any_root(|root| mentions(root, provider));
        let (provider, name) = (provider.to_owned(), name.to_owned());
        if is_used {
            let options = self.options.entry(provider.clone()).or_default();
            options.insert(name.clone(), value.clone());
        }
        self.record(Change::Option { provider, name, value: value.clone() }, is_used);
    }

    /// Declares an agent of the user, which wins over one of the flow with its name. Before the options of its provider
    /// are set.
    pub fn set_agent(&mut self, name: &str, settings: &Value) {
        let names = |root: &Yaml| {
            nodes(root).iter().any(|node| ["agent", "fallback"].iter().any(|key| node.get(key).is_some()))
        };
        let is_used = self.any_root(names);
        if is_used {
            self.agents.insert(name.to_owned(), settings.clone());
        }
        self.record(Change::Agent { name: name.to_owned(), settings: settings.clone() }, is_used);
    }

    /// Sets a budget of the flow in US dollars, if it has none in those.
    pub fn default_budget(&mut self, usd: f64) {
        let Some(root) = self.document.root.as_ref() else { return };
        let policy = root.get("flow").unwrap_or(root).get("policy");
        let budget = policy.and_then(|policy| policy.get("budget"));
        let limits = BudgetLimits { usd: Some(usd), tokens: None };
        // A policy that is not a mapping is reported by the compiler.
        let is_used = budget.and_then(|budget| budget.get("usd")).is_none()
            && self.write_budget(None, false, limits).is_ok();
        self.record(Change::Budget { node: None, is_of_body: false, is_default: true, limits }, is_used);
    }

    /// Whether something is so of the flow, or of one that it runs.
    fn any_root(&self, is_so: impl Fn(&Yaml) -> bool) -> bool {
        let mut documents = self.flows.iter().map(|flow| &flow.document).chain([&self.document]);
        documents.any(|document| document.root.as_ref().is_some_and(&is_so))
    }

    /// Records a change. One that does nothing in this flow may do so once the flow is edited.
    fn record(&mut self, change: Change, is_used: bool) {
        if !is_used {
            self.unused.insert(self.changes.len());
        }
        self.changes.push(change);
    }

    /// The changes that do something in this flow.
    pub(crate) fn used_changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().enumerate().filter(|(at, _)| !self.unused.contains(at)).map(|(_, change)| change)
    }

    fn write_budget(
        &mut self,
        id: Option<&NodePath>,
        is_of_body: bool,
        limits: BudgetLimits,
    ) -> Result<(), OverrideError> {
        let mut here = match id {
            Some(id) if is_of_body => self.body_mut(id)?,
            Some(id) => self.node_mut(id)?,
            None => {
                let Some(root) = self.document.root.as_mut() else { return Ok(()) };
                let has_header = root.get("flow").is_some();
                let header = if has_header { root.get_mut("flow") } else { Some(root) };
                let Some(header) = header else { return Ok(()) };
                header
            }
        };
        let owner = match id {
            Some(id) if is_of_body => format!("the body of node `{id}`"),
            Some(id) => format!("node `{id}`"),
            None => "the flow".to_owned(),
        };
        for (key, path) in [("policy", "policy"), ("budget", "policy.budget")] {
            here = mapping_under(here, key, &owner, path)?;
        }
        let usd = limits.usd.and_then(Number::from_f64).map(|usd| ("usd", usd));
        let tokens = limits.tokens.map(|tokens| ("tokens", Number::from(tokens)));
        for (key, limit) in usd.into_iter().chain(tokens) {
            here.set(key, here.span, Yaml::new(here.span, Data::Number(limit)));
        }
        Ok(())
    }

    /// The node as written.
    fn node_mut(&mut self, place: &NodePath) -> Result<&mut Yaml, OverrideError> {
        let places = self.document.root.as_ref().map(|root| places(root, "")).unwrap_or_default();
        let root = self.document.root.as_mut();
        // A node of another flow is changed in the file of that flow.
        let owner = |root: &mut Yaml| {
            let mut ends = place.as_str().rmatch_indices('/').map(|(end, _)| &place.as_str()[..end]);
            ends.find(|owner| find_mut(root, owner).is_some_and(|node| runs_a_flow(node))).map(str::to_owned)
        };
        match root {
            None => Err(unknown_node(place, &places)),
            Some(root) => match owner(root) {
                Some(owner) => Err(OverrideError::UnknownNode {
                    node: place.clone(),
                    help: format!("`{owner}` runs another flow: change its nodes in the file of that flow"),
                }),
                None => find_mut(root, place.as_str()).ok_or_else(|| unknown_node(place, &places)),
            },
        }
    }

    fn body_mut(&mut self, place: &NodePath) -> Result<&mut Yaml, OverrideError> {
        let node = self.node_mut(place)?;
        let runs_a_flow = runs_a_flow(node);
        node.get_mut("body").ok_or_else(|| match runs_a_flow {
            true => OverrideError::OtherFlow { node: place.clone() },
            false => OverrideError::NoFrames { node: place.clone() },
        })
    }
}

/// Whether a node runs the flow of another file.
fn runs_a_flow(node: &Yaml) -> bool {
    node.get("type").and_then(Yaml::text) == Some("control.subflow")
}

/// What was set for a node, else what was set for all.
fn of_place<'v>(values: &'v BTreeMap<Option<NodePath>, String>, place: Option<&NodePath>) -> Option<&'v str> {
    let own = place.and_then(|place| values.get(&Some(place.clone())));
    own.or_else(|| values.get(&None)).map(String::as_str)
}

/// The places of the nodes of a body as written, and of those in their bodies.
fn places(body: &Yaml, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    for node in body.get("nodes").map_or(&[][..], Yaml::items) {
        let Some(id) = node.get("id").and_then(Yaml::text) else { continue };
        let place = format!("{prefix}{id}");
        let inner = node.get("body").map(|body| places(body, &format!("{place}/")));
        found.push(place);
        found.extend(inner.into_iter().flatten());
    }
    found
}

fn find_mut<'y>(body: &'y mut Yaml, place: &str) -> Option<&'y mut Yaml> {
    let (id, rest) = place.split_once('/').map_or((place, None), |(id, rest)| (id, Some(rest)));
    let nodes = body.get_mut("nodes")?;
    let at = nodes.items().iter().position(|node| node.get("id").and_then(Yaml::text) == Some(id))?;
    let node = nodes.item_mut(at)?;
    match rest {
        Some(rest) => find_mut(node.get_mut("body")?, rest),
        None => Some(node),
    }
}

/// The most places that an error names.
const MOST_NAMED: usize = 20;

/// The error that there is no node at a place, with what may be meant of those that there are.
pub(crate) fn unknown_node(place: &NodePath, places: &[String]) -> OverrideError {
    let id = place.node();
    let same_id = || places.iter().find(|known| known.rsplit('/').next() == Some(id));
    let meant = did_you_mean(place.as_str(), places.iter().map(String::as_str));
    // The owner of a body has its nodes among the places.
    let is_around = |known: &&String| {
        place.as_str().strip_prefix(known.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    if let Some(owner) = places.iter().rfind(is_around)
        && !places.iter().any(|known| known.starts_with(&format!("{owner}/")))
    {
        let help = format!("no nodes of `{owner}` are in this file: name `{owner}` as a whole");
        return OverrideError::UnknownNode { node: place.clone(), help };
    }
    let help = match (same_id(), meant) {
        (Some(same), _) => format!("did you mean `{same}`?"),
        (None, Some(meant)) => meant,
        (None, None) => {
            let more = if places.len() > MOST_NAMED { ", …" } else { "" };
            format!("available: {}{more}", quoted(places.iter().take(MOST_NAMED)))
        }
    };
    OverrideError::UnknownNode { node: place.clone(), help }
}

/// The mapping under a key, which is added if there is none.
fn mapping_under<'y>(
    map: &'y mut Yaml,
    key: &str,
    owner: &str,
    path: &str,
) -> Result<&'y mut Yaml, OverrideError> {
    let kind = map.get(key).map_or("null", Yaml::kind);
    let inner = map.mapping_mut(key, map.span);
    inner.ok_or_else(|| OverrideError::NoMapping { owner: owner.to_owned(), key: path.to_owned(), kind })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        compile,
        graph::{Budget, OnExceeded},
        nodes::builtin_catalog,
        testing::loaded,
    };

    #[test]
    fn settings_that_do_nothing_hold_once_the_flow_is_edited() {
        let again = |text: &str, changes: &[Change]| {
            let mut flow = loaded(text);
            changes.iter().for_each(|change| flow.change(change).unwrap());
            flow
        };
        let text = "{ name: f, policy: { budget: { usd: 4 } }, nodes: [{ id: a, type: control.wait, input: { ms: 1000 } }] }";
        let mut flow = loaded(text);
        flow.set_agent("coder", &json!({ "type": "claude.agent" }));
        flow.default_option("claude", "maxTurns", &json!(9));
        flow.default_budget(50.0);
        let edited = again("{ name: f, nodes: [{ id: a, agent: coder }] }", flow.changes());
        let node = json!({ "id": "a", "type": "claude.agent", "input": { "options": { "maxTurns": 9 } } });
        assert_eq!(expanded(&edited)[0], node);
        let root = edited.document.root.as_ref().unwrap();
        assert_eq!(root.get("policy").unwrap().json(), json!({ "budget": { "usd": 50.0 } }));
        // The first text again, which is the same flow as without settings.
        let back = again(text, edited.changes());
        let hash = |flow: &Loaded| compile(flow, &builtin_catalog([])).unwrap().graph.hash.clone();
        assert_eq!(back.changes(), flow.changes());
        assert_eq!(hash(&back), hash(&loaded(text)));
        // Another machine gets what the flow uses.
        let sent = |flow: &Loaded| flow.source("f", "h").used().changes;
        assert_eq!((sent(&back), sent(&edited)), (Vec::new(), edited.changes().to_vec()));
    }

    fn flow() -> Loaded {
        let text = "
nodes:
  - { id: plan, type: claude.agent, promptFile: plan.md, input: { options: { maxTurns: 3, outputSchemaFile: s.json } } }
  - { id: done, type: control.noop }
";
        loaded(text)
    }

    fn nodes(flow: &Loaded) -> Value {
        flow.document.root.as_ref().unwrap().get("nodes").unwrap().json()
    }

    /// The nodes of a flow as the compiler reads them.
    fn expanded(flow: &Loaded) -> Value {
        let mut sink = crate::diagnostic::Sink::new("flow.yaml".into());
        let root = flow.document.root.as_ref().unwrap();
        crate::spec::expand(root, "", flow, &builtin_catalog([]), &Default::default(), &mut sink)
            .get("nodes")
            .unwrap()
            .json()
    }

    #[test]
    fn a_provider_is_changed_where_it_stands() {
        let text = "
nodes:
  - { id: a, type: claude.agent }
  - { id: b, type: agent.run, input: { provider: claude, prompt: x } }
  - { id: c, type: echo, body: { nodes: [{ id: a, type: claude.agent }] } }
";
        let mut flow = loaded(text);
        flow.set_provider(None, "echo").unwrap();
        flow.set_provider(Some(&NodePath::new("a")), "gemini").unwrap();
        let expected = json!([
            { "id": "a", "type": "gemini.agent" },
            { "id": "b", "type": "agent.run", "input": { "provider": "echo", "prompt": "x" } },
            { "id": "c", "type": "echo", "body": { "nodes": [{ "id": "a", "type": "echo.agent" }] } },
        ]);
        assert_eq!(expanded(&flow), expected);
    }

    #[test]
    fn a_node_of_a_body_is_named_by_its_path() {
        let text = "
nodes:
  - { id: review, type: claude.agent, agent: x }
  - id: each
    type: control.foreach
    body: { nodes: [{ id: review, type: claude.agent }, { id: in, type: control.loop, body: { nodes: [{ id: fix, type: echo }] } }] }
";
        let mut flow = loaded(text);
        let (review, fix) = (NodePath::new("each/review"), NodePath::new("each/in/fix"));
        flow.set_input(&fix, &["text"], &json!("x")).unwrap();
        flow.set_budget(Some(&review), false, BudgetLimits { usd: Some(1.0), tokens: None }).unwrap();
        let (each, tokens) = (NodePath::new("each"), BudgetLimits { usd: None, tokens: Some(9) });
        flow.set_budget(Some(&each), true, tokens).unwrap();
        flow.set_provider(Some(&review), "gemini").unwrap();
        flow.set_model(Some(&review), "large").unwrap();
        flow.set_only(std::slice::from_ref(&fix));
        let expected = json!([
            {
                "id": "review", "type": "gemini.agent", "policy": { "budget": { "usd": 1.0 } },
                "input": { "options": { "model": "large" } },
            },
            { "id": "in", "type": "control.loop", "body": { "nodes": [{ "id": "fix", "type": "echo", "input": { "text": "x" } }] } },
        ]);
        let body = expanded(&flow)[1]["body"].clone();
        assert_eq!(body["policy"], json!({ "budget": { "tokens": 9 } }));
        assert_eq!((&body["nodes"], flow.changes.len(), &flow.only), (&expected, 6, &vec![fix.clone()]));
        let mut again = loaded(text);
        flow.changes.iter().for_each(|change| again.change(change).unwrap());
        assert_eq!(expanded(&again), expanded(&flow));
        let rows = [
            ("each/reviw", "did you mean `each/review`?"),
            ("fix", "did you mean `each/in/fix`?"),
            ("each/review/x", "no nodes of `each/review` are in this file: name `each/review` as a whole"),
            ("each/nothing", "available: `review`, `each`, `each/review`, `each/in`, `each/in/fix`"),
        ];
        for (place, help) in rows {
            let node = NodePath::new(place);
            let refused = flow.set_budget(Some(&node), false, BudgetLimits::default());
            assert_eq!(refused, Err(OverrideError::UnknownNode { node, help: help.to_owned() }));
        }
        let refused = flow.set_budget(Some(&fix), true, tokens);
        assert_eq!(refused, Err(OverrideError::NoFrames { node: fix.clone() }));
        assert_eq!(flow.set_model(Some(&fix), "x"), Err(OverrideError::NotAnAgent { node: fix }));
    }

    #[test]
    fn types_and_inputs_are_changed_in_place() {
        let (plan, done) = (NodePath::new("plan"), NodePath::new("done"));
        let mut flow = flow();
        flow.set_type(&plan, "echo.agent").unwrap();
        flow.set_input(&plan, &["prompt"], &json!("hi {{ x }}")).unwrap();
        flow.set_input(&plan, &["options", "maxTurns"], &json!(1)).unwrap();
        flow.set_input(&plan, &["options", "outputSchema"], &json!({ "type": "object" })).unwrap();
        flow.set_input(&done, &["value", "deep"], &json!([1])).unwrap();
        let expected = json!([
            {
                "id": "plan", "type": "echo.agent",
                "input": {
                    "options": { "maxTurns": 1, "outputSchema": { "type": "object" } },
                    "prompt": "hi {{ x }}",
                },
            },
            { "id": "done", "type": "control.noop", "input": { "value": { "deep": [1] } } },
        ]);
        assert_eq!(nodes(&flow), expected);
    }

    #[test]
    fn defaults_are_given_only_where_nothing_is_said() {
        let text = "
nodes:
  - { id: a, type: claude.agent, input: { prompt: x } }
  - { id: b, type: claude.agent, input: { options: { model: opus } } }
  - { id: c, type: agent.run, input: { provider: claude, options: { maxTurns: 2 } } }
  - { id: d, type: echo.agent }
  - { id: e, type: claude.agent }
  - { id: f, type: claude.agent, input: '{{ flow.input.all }}' }
";
        let mut flow = loaded(text);
        flow.default_option("claude", "model", &json!("sonnet"));
        flow.default_option("other", "model", &json!("none"));
        let expected = json!([
            { "id": "a", "type": "claude.agent", "input": { "prompt": "x", "options": { "model": "sonnet" } } },
            { "id": "b", "type": "claude.agent", "input": { "options": { "model": "opus" } } },
            {
                "id": "c", "type": "agent.run",
                "input": { "provider": "claude", "options": { "maxTurns": 2, "model": "sonnet" } },
            },
            { "id": "d", "type": "echo.agent" },
            { "id": "e", "type": "claude.agent", "input": { "options": { "model": "sonnet" } } },
            { "id": "f", "type": "claude.agent", "input": "{{ flow.input.all }}" },
        ]);
        assert_eq!((expanded(&flow), flow.used_changes().count()), (expected, 1));
    }

    #[test]
    fn a_budget_in_dollars_is_given_only_to_a_flow_without_one() {
        let rows = [
            ("flow: { name: a }\nnodes: []\n", "/flow/policy/budget/usd", 5.0, 1),
            ("name: a\nnodes: []\n", "/policy/budget/usd", 5.0, 1),
            ("flow: { policy: { budget: { usd: 2.0 } } }\nnodes: []\n", "/flow/policy/budget/usd", 2.0, 0),
            ("flow: { policy: { timeout: 5m } }\nnodes: []\n", "/flow/policy/budget/usd", 5.0, 1),
            ("flow: { policy: { budget: { tokens: 7 } } }\nnodes: []\n", "/flow/policy/budget/usd", 5.0, 1),
        ];
        let seen = rows.map(|(text, at, ..)| {
            let mut flow = loaded(text);
            flow.default_budget(5.0);
            let tree = flow.document.root.as_ref().unwrap().json();
            (text, at, tree.pointer(at).unwrap().as_f64().unwrap(), flow.used_changes().count())
        });
        assert_eq!(seen, rows);
    }

    #[test]
    fn a_budget_is_set_where_the_flow_or_the_node_has_it() {
        let texts = [
            "flow: { name: f, policy: { budget: { usd: 1, tokens: 7, onExceeded: fail } } }\nnodes: [{ id: a, type: echo, input: { text: x } }]\n",
            "name: f\nnodes: [{ id: a, type: echo, input: { text: x }, policy: { timeout: 1m } }]\n",
        ];
        let budgets = texts.map(|text| {
            let mut flow = loaded(text);
            flow.set_budget(None, false, BudgetLimits { usd: Some(5.0), tokens: None }).unwrap();
            let tokens = BudgetLimits { usd: None, tokens: Some(9) };
            flow.set_budget(Some(&NodePath::new("a")), false, tokens).unwrap();
            let graph = compile(&flow, &builtin_catalog([])).unwrap().graph;
            (graph.flow().policy.budget.unwrap(), graph.flow().nodes[0].policy.budget.unwrap())
        });
        let node = Budget { tokens: Some(9), ..Budget::default() };
        let fails =
            Budget { usd: Some(5.0), tokens: Some(7), on_exceeded: OnExceeded::Fail, ..Budget::default() };
        let new = Budget { usd: Some(5.0), ..Budget::default() };
        assert_eq!(budgets, [(fails, node), (new, node)]);
    }

    #[test]
    fn what_an_alias_shares_is_changed_for_the_one_that_is_meant() {
        let text = "
nodes:
  - { id: a, type: claude.agent, input: &shared { options: { maxTurns: 3 } } }
  - { id: b, type: claude.agent, input: *shared }
  - { id: c, type: claude.agent, input: { <<: *shared, prompt: x } }
";
        let mut flow = loaded(text);
        let set = |flow: &mut Loaded, id, value: Value| {
            flow.set_input(&NodePath::new(id), &["options", "maxTurns"], &value).unwrap();
        };
        set(&mut flow, "a", json!(1));
        set(&mut flow, "c", json!(5));
        let expected = json!([
            { "id": "a", "type": "claude.agent", "input": { "options": { "maxTurns": 1 } } },
            { "id": "b", "type": "claude.agent", "input": { "options": { "maxTurns": 3 } } },
            { "id": "c", "type": "claude.agent", "input": { "options": { "maxTurns": 5 }, "prompt": "x" } },
        ]);
        assert_eq!(nodes(&flow), expected);
    }

    #[test]
    fn what_is_not_there_cannot_be_changed() {
        let (plan, other) = (NodePath::new("plan"), NodePath::new("other"));
        let mut flow = flow();
        let before = nodes(&flow);
        let refused = [
            flow.set_type(&other, "echo.agent"),
            flow.set_input(&plan, &["options", "maxTurns", "x"], &json!(1)),
        ];
        let expected = [
            OverrideError::UnknownNode { node: other, help: "available: `plan`, `done`".to_owned() },
            OverrideError::NoMapping {
                owner: "node `plan`".to_owned(),
                key: "input.options.maxTurns".to_owned(),
                kind: "a number",
            },
        ];
        assert_eq!(refused, expected.map(Err));
        assert_eq!(nodes(&flow), before);
    }

    #[test]
    fn the_nodes_of_another_flow_are_changed_in_its_file() {
        let mut flow = loaded("nodes:\n  - { id: two, type: control.subflow, input: { file: two.yaml } }\n");
        let mut refused =
            |place: &str| flow.set_provider(Some(&NodePath::new(place)), "codex").unwrap_err().to_string();
        let inner =
            "unknown node `two/w`; `two` runs another flow: change its nodes in the file of that flow";
        let whole = "node `two` runs another flow: change its agents in the file of that flow, or all agents at once, without a node";
        assert_eq!([refused("two/w"), refused("two")], [inner, whole]);
    }
}
