//! `agents`, `defaults` and `include`: named settings of agents, and what all nodes of a type share. They are put into
//! the nodes before anything else is read, so that the rest of the compiler sees nodes with all their settings.

mod choice;
mod translate;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use inspan_protocol::NodePath;
use serde_json::Value;

pub(crate) use choice::{AGENTS, Choices};
use translate::Translation;

use crate::{
    catalog::NodeCatalog,
    diagnostic::{Code, Problem, Sink, SourceSpan, did_you_mean},
    node::NodeKind,
    source::{Loaded, folder_of, normalized},
    spec::{Data, Entry, Key, Yaml, fields, fields::Fields, schema_key},
};

const SERVERS: &str = "mcpServers";

/// A flow as the compiler reads it: every node has the settings of its agent and of its type. `path` is that of its
/// file, empty for the flow that was loaded.
pub(crate) fn expand(
    root: &Yaml,
    path: &str,
    loaded: &Loaded,
    catalog: &NodeCatalog,
    choices: &Choices,
    sink: &mut Sink,
) -> Yaml {
    let mut root = root.clone();
    let header = root.get("flow").unwrap_or(&root).clone();
    let folder = folder_of(path);
    let depth = folder.split('/').filter(|part| !matches!(*part, "" | ".")).count();
    let mut settings = AgentSettings {
        agents: BTreeMap::new(),
        defaults: BTreeMap::new(),
        loaded,
        catalog,
        folder,
        to_root: "../".repeat(depth),
        choices,
        used: BTreeSet::new(),
    };
    settings.add(&header, folder, sink);
    for (file, span) in includes(&header, sink) {
        let included = normalized(folder, file);
        if let Some(problem) = loaded.refusal(path, &included, (file, span)) {
            sink.push(problem.key("include"));
            continue;
        }
        let path = included;
        let Some(document) = loaded.flow(&path) else { continue };
        document.problems.iter().for_each(|problem| sink.push(problem.clone()));
        if let Some(included) = &document.root {
            check_included(included, sink);
            settings.add(included, folder_of(&path), sink);
            add_servers(&mut root, included, sink);
        }
    }
    settings.body(&mut root, path.is_empty().then_some(""), &Key::Root, sink);
    settings.check_types(sink);
    root
}

/// The files that a header includes.
fn includes<'y>(header: &'y Yaml, sink: &mut Sink) -> Vec<(&'y str, SourceSpan)> {
    let Some(include) = header.get("include") else { return Vec::new() };
    if let Some(one) = include.placed_text() {
        return vec![one];
    }
    let key = Key::Field(&Key::Root, "include");
    let items = fields::list(include, &key, sink).iter().enumerate();
    items.filter_map(|(at, item)| fields::text(item, &Key::Index(&key, at), sink)).collect()
}

/// The paths that a header includes, as written.
pub(crate) fn included_settings(root: &Yaml) -> Vec<&str> {
    let include = root.get("flow").unwrap_or(root).get("include");
    let items = include.into_iter().flat_map(Yaml::items);
    include.into_iter().chain(items).filter_map(Yaml::text).collect()
}

/// The settings of agents and types in a header, or in a file that it includes.
pub(crate) fn settings(root: &Yaml) -> impl Iterator<Item = &Yaml> {
    let header = root.get("flow").unwrap_or(root);
    let groups = ["agents", "defaults"].into_iter().filter_map(|key| header.get(key));
    groups.flat_map(Yaml::entries).map(|entry| &entry.value)
}

/// Adds the MCP servers of a file to those of a flow.
fn add_servers(root: &mut Yaml, included: &Yaml, sink: &mut Sink) {
    let Some(servers) = included.get(SERVERS).filter(|servers| !servers.entries().is_empty()) else { return };
    let is_nested =
        root.get("flow").is_some_and(|flow| matches!(flow.data, Data::Map(_))) && root.get(SERVERS).is_none();
    let header = if is_nested { root.get_mut("flow") } else { Some(root) };
    let Some(header) = header else { return };
    let Some(known) = header.mapping_mut(SERVERS, servers.span) else { return };
    for entry in servers.entries() {
        match known.entry(&entry.key) {
            Some(first) => {
                let key = Key::Field(&Key::Root, SERVERS);
                let problem = declared_twice(entry, first, sink);
                sink.push(problem.key(Key::Field(&key, &entry.key)));
            }
            None => known.set(&entry.key, entry.key_span, entry.value.clone()),
        }
    }
}

fn declared_twice(entry: &Entry, first: &Entry, sink: &Sink) -> Problem {
    let (file, line) = (sink.name(first.key_span), first.key_span.start.line);
    let message = format!("`{}` is already declared in {file}, on line {line}", entry.key);
    Problem::error(Code::DuplicateKey, entry.key_span, message)
}

fn check_included(root: &Yaml, sink: &mut Sink) {
    let Some(mut fields) = Fields::open(root, &Key::Root, sink) else { return };
    fields.get("agents");
    fields.get("defaults");
    fields.get(SERVERS);
    fields.finish_with(sink, |key| {
        let of_flow = ["nodes", "edges", "flow", "name"].contains(&key);
        let help = "a file under `include` has `agents`, `defaults` and `mcpServers`, and never nodes";
        of_flow.then(|| help.to_owned())
    });
}

/// The agents and defaults of one flow.
struct AgentSettings<'a> {
    /// By name.
    agents: BTreeMap<String, Entry>,
    /// By provider or node type.
    defaults: BTreeMap<String, Entry>,
    loaded: &'a Loaded,
    catalog: &'a NodeCatalog,
    /// The folder of the flow, from that of the flow that was loaded.
    folder: &'a str,
    /// What leads back from it.
    to_root: String,
    /// The names that expressions of `agent` can give.
    choices: &'a Choices,
    /// The agents that nodes name.
    used: BTreeSet<String>,
}

impl AgentSettings<'_> {
    /// Adds what a header, or a file that it includes, declares.
    fn add(&mut self, header: &Yaml, folder: &str, sink: &mut Sink) {
        for (group, keys) in [
            (
                "agents",
                ["type", "description", "model", "options", "prompt", "promptFile", "policy"].as_slice(),
            ),
            ("defaults", ["model", "options", "policy"].as_slice()),
        ] {
            let Some(value) = header.get(group) else { continue };
            let group_key = Key::Field(&Key::Root, group);
            if !matches!(value.data, Data::Map(_) | Data::Null) {
                fields::wrong(value, &group_key, "a mapping", sink);
            }
            for entry in value.entries() {
                let key = Key::Field(&group_key, &entry.key);
                if !is_settings(&entry.value, keys, &key, sink) {
                    continue;
                }
                if group == "defaults" {
                    self.check_default(entry, &key, sink);
                }
                if let (Some(file), Some(_)) = (entry.value.entry("promptFile"), entry.value.entry("prompt"))
                {
                    let message = "`prompt` and `promptFile` are both set; keep one";
                    let problem = Problem::error(Code::FileConflict, file.key_span, message);
                    sink.push(problem.key(Key::Field(&key, "promptFile")));
                }
                let known = if group == "agents" { &mut self.agents } else { &mut self.defaults };
                if let Some(first) = known.get(&entry.key) {
                    let problem = declared_twice(entry, first, sink);
                    sink.push(problem.key(key));
                    continue;
                }
                let mut entry = entry.clone();
                if folder != self.folder {
                    self.move_paths(&mut entry.value, folder);
                }
                let known = if group == "agents" { &mut self.agents } else { &mut self.defaults };
                known.insert(entry.key.clone(), entry);
            }
        }
    }

    /// The defaults are those of a provider, or of a node type.
    fn check_default(&self, entry: &Entry, key: &Key<'_>, sink: &mut Sink) {
        let name = entry.key.as_str();
        let described =
            self.catalog.described(&format!("{name}.agent")).or_else(|| self.catalog.described(name));
        let Some(described) = described else {
            let providers = self.catalog.names().filter_map(|name| name.strip_suffix(".agent"));
            let help = did_you_mean(name, self.catalog.names().chain(providers));
            let message = format!("`defaults` names neither a provider nor a node type: `{name}`");
            sink.push(Problem::error(Code::UnknownProvider, entry.key_span, message).help(help).key(key));
            return;
        };
        let option = ["model", "options"].into_iter().find_map(|key| entry.value.entry(key));
        if let Some(option) = option.filter(|_| described.info.kind != NodeKind::Agent) {
            let message = format!("`{name}` runs no agent and has no `{}`; it takes `policy`", option.key);
            sink.push(Problem::error(Code::UnknownKey, option.key_span, message).key(key));
        }
    }

    /// Makes the paths in settings of another folder start at that of the flow.
    fn move_paths(&self, settings: &mut Yaml, folder: &str) {
        let moved = |file: &mut Yaml| {
            if let Data::Text(path) = &mut file.data {
                *path = format!("{}{}", self.to_root, normalized(folder, path));
            }
        };
        settings.get_mut("promptFile").into_iter().for_each(moved);
        if let Some(options) = settings.get_mut("options") {
            let keys: Vec<String> = options.entries().iter().map(|entry| entry.key.clone()).collect();
            for key in keys.iter().filter(|key| schema_key(key).is_some()) {
                options.get_mut(key).into_iter().for_each(moved);
            }
        }
    }

    /// Reports agents whose type does not exist.
    fn check_types(&self, sink: &mut Sink) {
        for (name, agent) in &self.agents {
            let Some((node_type, span)) = agent.value.get("type").and_then(Yaml::placed_text) else {
                continue;
            };
            let problem = match self.catalog.described(node_type) {
                Some(described) if described.info.kind == NodeKind::Agent => continue,
                Some(_) => Problem::error(
                    Code::NotAnAgent,
                    span,
                    format!("the agent `{name}` has the type `{node_type}`, which runs no agent"),
                ),
                // Otherwise the nodes that use it are reported.
                None if self.used.contains(name) => continue,
                None => Problem::unknown_node_type(span, node_type)
                    .help(did_you_mean(node_type, self.catalog.names())),
            };
            sink.push(problem.key(format!("agents.{name}.type")));
        }
    }

    /// Puts settings into the nodes of a body, at any depth. `prefix` is what the places of its nodes begin with; those
    /// of another flow than the one that was loaded have none, by which the command line could name them.
    fn body(&mut self, body: &mut Yaml, prefix: Option<&str>, key: &Key<'_>, sink: &mut Sink) {
        let nodes_key = Key::Field(key, "nodes");
        for at in 0..body.get("nodes").map_or(0, |nodes| nodes.items().len()) {
            let key = Key::Index(&nodes_key, at);
            // Nothing is copied for a node that stays as it is.
            let node = body.get("nodes").and_then(|nodes| nodes.items().get(at));
            let Some(mut node) = node.filter(|node| self.changes(node)).cloned() else { continue };
            let id = node.get("id").and_then(Yaml::text);
            let place = prefix.zip(id).map(|(prefix, id)| NodePath::new(&format!("{prefix}{id}")));
            self.node(&mut node, place.as_ref(), &key, sink);
            if let Some(inner) = node.get_mut("body") {
                let prefix = place.map(|place| format!("{place}/"));
                self.body(inner, prefix.as_deref(), &Key::Field(&key, "body"), sink);
            }
            if let Some(place) = body.get_mut("nodes").and_then(|nodes| nodes.item_mut(at)) {
                *place = node;
            }
        }
    }

    fn changes(&self, node: &Yaml) -> bool {
        let has_options =
            || provider(node).is_some_and(|provider| self.loaded.options.contains_key(provider));
        ["agent", "body", "fallback"].iter().any(|key| node.get(key).is_some())
            || self.layers(node, None).next().is_some()
            || has_options()
            || !self.loaded.providers.is_empty()
            || !self.loaded.models.is_empty()
    }

    /// The settings of an agent: those of the user, else those of the flow. The user says who does the work, and the
    /// flow what: its prompt and its schema of the output stay if the user gives none.
    fn agent(&self, name: &str) -> Option<Yaml> {
        let own = self.agents.get(name);
        let Some(user) = self.loaded.agents.get(name) else { return own.map(|own| own.value.clone()) };
        let span = own.map_or(SourceSpan::at(0, 1, 1), |own| own.key_span);
        let mut settings = Yaml::from_json(span, user);
        let Some(own) = own.map(|own| &own.value) else { return Some(settings) };
        let keep = |keys: [&str; 2], from: &Yaml, to: &mut Yaml| {
            if keys.iter().all(|key| to.get(key).is_none()) {
                let kept = keys.iter().filter_map(|key| from.entry(key));
                kept.for_each(|entry| put(to, entry.clone()));
            }
        };
        keep(["prompt", "promptFile"], own, &mut settings);
        if let Some(options) = own.get("options") {
            let mut merged = settings.get("options").cloned().unwrap_or_else(|| Yaml::empty(span));
            keep(["outputSchema", "outputSchemaFile"], options, &mut merged);
            settings.set("options", span, merged);
        }
        Some(settings)
    }

    /// The settings that hold for a node besides its own, the weakest first.
    fn layers<'s>(&'s self, node: &Yaml, agent: Option<&'s Yaml>) -> impl Iterator<Item = &'s Yaml> {
        let node_type = node.get("type").and_then(Yaml::text).unwrap_or_default();
        let defaults = provider(node).and_then(|provider| self.defaults.get(provider));
        let of_type = self.defaults.get(node_type);
        defaults.into_iter().chain(of_type).map(|entry| &entry.value).chain(agent)
    }

    /// Puts settings into a node; what the node says itself wins.
    fn apply(
        &self,
        node: &mut Yaml,
        agent: Option<&Yaml>,
        place: Option<&NodePath>,
        key: &Key<'_>,
        sink: &mut Sink,
    ) {
        if let Some(entry) = agent.and_then(|agent| agent.entry("type")) {
            node.set("type", entry.key_span, entry.value.clone());
        }
        let from = provider(node).map(str::to_owned);
        let is_agent = from.is_some() || agent.is_some();
        let (mut options, mut policy) = (Yaml::empty(node.span), Yaml::empty(node.span));
        for layer in self.layers(node, agent) {
            if let Some(more) = layer.get("options").filter(|_| is_agent) {
                merge(&mut options, more);
            }
            if let Some(model) = layer.entry("model").filter(|_| is_agent) {
                put(&mut options, model.clone());
            }
            if let Some(more) = layer.get("policy") {
                merge(&mut policy, more);
            }
        }
        under(node, "policy", &policy);
        let to = from.as_deref().and_then(|_| self.loaded.provider_of(place));
        let own = node.get("input").and_then(|input| input.get("options")).cloned();
        if let (Some(from), Some(to)) = (from.as_deref(), to) {
            let change = Translation { from, to, node, place, loaded: self.loaded, catalog: self.catalog };
            let key = Key::Field(key, "input");
            let key = Key::Field(&key, "options");
            options = change.options(&options, &key, sink);
            let own = own.filter(|own| matches!(own.data, Data::Map(_)));
            let own = own.map(|own| change.options(&own, &key, sink));
            set_provider(node, to);
            if let (Some(own), Some(input)) = (own, node.get_mut("input")) {
                input.set("options", own.span, own);
            }
        }
        let mut below = self.user_options(node);
        merge(&mut below, &options);
        if !below.entries().is_empty()
            && let Some(input) = node.mapping_mut("input", node.span)
        {
            under(input, "options", &below);
        }
        if let Some(agent) = agent {
            prompt(node, agent);
        }
    }

    /// Gives an agent node the model that the command line names.
    fn choose_model(&self, node: &mut Yaml, place: Option<&NodePath>) {
        if let Some(model) = self.loaded.model_of(place).filter(|_| is_agent(node)) {
            set_model(node, model);
        }
    }

    /// The options of the user for the provider of a node.
    fn user_options(&self, node: &Yaml) -> Yaml {
        let mut options = Yaml::empty(node.span);
        let user = provider(node).and_then(|provider| self.loaded.options.get(provider));
        for (name, value) in user.into_iter().flatten() {
            options.set(name, node.span, Yaml::new(node.span, Data::Json(Arc::new(value.clone()))));
        }
        options
    }
}

/// Sets the provider of an agent node: by its type, or for `agent.run` by its input.
fn set_provider(node: &mut Yaml, to: &str) {
    if node.get("type").and_then(Yaml::text) == Some("agent.run") {
        if let Some(input) = node.get_mut("input") {
            let span = input.get("provider").map_or(input.span, |provider| provider.span);
            input.set("provider", span, Yaml::new(span, Data::Text(to.to_owned())));
        }
        return;
    }
    let span = node.get("type").map_or(node.span, |node_type| node_type.span);
    node.set("type", span, Yaml::new(span, Data::Text(format!("{to}.agent"))));
}

/// Sets the model of an agent node, whatever its own setting is.
fn set_model(node: &mut Yaml, model: &str) {
    let mut here = node;
    for key in ["input", "options"] {
        // What is a template as a whole is not known before the node runs.
        let Some(inner) = here.mapping_mut(key, here.span) else { return };
        here = inner;
    }
    let span = here.get("model").unwrap_or(here).span;
    here.set("model", span, Yaml::new(span, Data::Json(Arc::new(model.into()))));
}

/// Whether a node as written runs an agent.
pub(crate) fn is_agent(node: &Yaml) -> bool {
    let node_type = node.get("type").and_then(Yaml::text);
    node.get("agent").is_some() || provider(node).is_some() || node_type == Some("agent.run")
}

/// Whether a value is a mapping with these keys only.
fn is_settings(value: &Yaml, keys: &[&'static str], key: &Key<'_>, sink: &mut Sink) -> bool {
    let Some(mut fields) = Fields::open(value, key, sink) else { return false };
    for name in keys {
        match *name {
            "options" | "policy" => {
                let inner = fields.get(name);
                if let Some(inner) = inner.filter(|inner| !matches!(inner.data, Data::Map(_))) {
                    fields::wrong(inner, &Key::Field(key, name), "a mapping", sink);
                }
            }
            "type" => drop(fields.required("type", "the agent", sink)),
            name => drop(fields.text(name, sink)),
        }
    }
    fields.finish(sink);
    true
}

/// The provider of an agent node, if its type or its input says it.
fn provider(node: &Yaml) -> Option<&str> {
    match node.get("type")?.text()? {
        "agent.run" => node.get("input")?.get("provider")?.text(),
        node_type => node_type.strip_suffix(".agent"),
    }
}

/// Gives a node the prompt of its agent, if it has none.
fn prompt(node: &mut Yaml, agent: &Yaml) {
    let input = node.get("input");
    let has = |key: &str| input.is_some_and(|input| input.get(key).is_some());
    if node.get("promptFile").is_some() || has("prompt") || has("messages") {
        return;
    }
    if let Some(file) = agent.entry("promptFile") {
        node.set("promptFile", file.key_span, file.value.clone());
    } else if let Some(prompt) = agent.entry("prompt")
        && let Some(input) = node.mapping_mut("input", prompt.key_span)
    {
        input.set("prompt", prompt.key_span, prompt.value.clone());
    }
}

/// Puts a mapping below the one under a key, whose own values win.
fn under(map: &mut Yaml, key: &str, below: &Yaml) {
    if below.entries().is_empty() {
        return;
    }
    let own = map.entry(key).filter(|own| !matches!(own.value.data, Data::Null)).cloned();
    let mut merged = below.clone();
    match own {
        Some(own) if !matches!(own.value.data, Data::Map(_)) => {}
        Some(own) => {
            merge(&mut merged, &own.value);
            map.set(key, own.key_span, Yaml { span: own.value.span, ..merged });
        }
        None => {
            map.remove(key);
            map.set(key, below.span, merged);
        }
    }
}

/// Merges a mapping over another: mappings are merged, and anything else is replaced.
fn merge(base: &mut Yaml, over: &Yaml) {
    for entry in over.entries() {
        let both = |old: &Yaml| matches!((&old.data, &entry.value.data), (Data::Map(_), Data::Map(_)));
        let is_schema = entry.key.ends_with("Schema");
        match base.get_mut(&entry.key).filter(|old| both(old) && !is_schema) {
            Some(old) => merge(old, &entry.value),
            None => put(base, entry.clone()),
        }
    }
}

/// Sets an entry. It replaces the one with its key, and the schema or file that has the same meaning.
fn put(map: &mut Yaml, entry: Entry) {
    match schema_key(&entry.key) {
        Some(schema) => map.remove(schema),
        None => map.remove(&format!("{}File", entry.key)),
    }
    map.remove(&entry.key);
    map.set(&entry.key, entry.key_span, entry.value);
}

/// Whether a flow can have nodes of a provider.
pub(crate) fn mentions(root: &Yaml, name: &str) -> bool {
    let agent = format!("{name}.agent");
    let is_type = |value: &Yaml| value.get("type").and_then(Yaml::text) == Some(&agent);
    let nodes = super::nodes(root);
    nodes.iter().any(|node| provider(node) == Some(name)) || settings(root).any(is_type)
}

/// Whether settings of the user are those of an agent of a provider.
pub(crate) fn is_of(settings: &Value, provider: &str) -> bool {
    let node_type = settings.get("type").and_then(Value::as_str);
    node_type.and_then(|node_type| node_type.strip_suffix(".agent")) == Some(provider)
}
