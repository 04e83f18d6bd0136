//! Options that were written for one provider, and are used with another.

use inspan_protocol::{NodeId, NodePath};
use serde_json::Value;

use crate::{
    catalog::NodeCatalog,
    diagnostic::{Code, Problem, Sink},
    source::{Change, Loaded},
    spec::{Data, Key, Yaml, schema_key},
};

/// Another provider for one run: how the options that were written for the old one are translated.
pub(super) struct Translation<'t> {
    pub(super) from: &'t str,
    pub(super) to: &'t str,
    pub(super) node: &'t Yaml,
    /// Where the command line finds it.
    pub(super) place: Option<&'t NodePath>,
    pub(super) loaded: &'t Loaded,
    pub(super) catalog: &'t NodeCatalog,
}

/// Options whose values are names that only their provider knows.
const NAMES: [&str; 4] = ["resume", "tools", "allowedTools", "disallowedTools"];

impl Translation<'_> {
    /// The options that mean the same to the other provider; the others are reported.
    pub(super) fn options(&self, options: &Yaml, key: &Key<'_>, sink: &mut Sink) -> Yaml {
        let mut kept = Yaml::empty(options.span);
        let id = self.node.get("id").and_then(Yaml::text).and_then(|id| NodeId::new(id).ok());
        for entry in options.entries() {
            let name = schema_key(&entry.key).unwrap_or(&entry.key);
            if self.from == self.to || self.is_same(name, &entry.value) || self.is_set(name) {
                kept.set(&entry.key, entry.key_span, entry.value.clone());
                continue;
            }
            let (from, to) = (self.from, self.to);
            let problem = match name {
                _ if matches!(entry.value.data, Data::Null) => continue,
                "model" => {
                    let message = format!("`model` is for `{from}` and is ignored: the provider is `{to}`");
                    Problem::warning(Code::UnsupportedCapability, entry.key_span, message)
                }
                _ => {
                    let message = format!("`{to}` cannot use `{name}` of `{from}`");
                    let help = "remove it, or keep the provider of this node".to_owned();
                    Problem::error(Code::UnsupportedCapability, entry.key_span, message).help(help)
                }
            };
            sink.push(problem.node(id.as_ref()).key(Key::Field(key, &entry.key)));
        }
        kept
    }

    /// Whether an option means the same to both: it has the same name, takes the same values, and they are not names.
    fn is_same(&self, name: &str, value: &Yaml) -> bool {
        let of_servers = |value: &Yaml| {
            !value.items().is_empty()
                && value.items().iter().all(|tool| tool.text().is_some_and(|tool| tool.starts_with("mcp__")))
        };
        if name == "model" || (NAMES.contains(&name) && !of_servers(value)) {
            return false;
        }
        let option = |provider: &str| {
            let described = self.catalog.described(&format!("{provider}.agent"))?;
            let mut schema =
                described.info.input.pointer("/properties/options/properties")?.get(name)?.clone();
            forget_words(&mut schema);
            Some(schema)
        };
        option(self.to).is_some_and(|to| Some(to) == option(self.from))
    }

    /// Whether the command line sets an option of this node.
    fn is_set(&self, name: &str) -> bool {
        self.loaded.changes.iter().any(|change| match change {
            Change::Input { node, keys, .. } => {
                Some(node) == self.place
                    && keys.first().is_some_and(|key| key == "options")
                    && keys.get(1).is_some_and(|key| key == name)
            }
            _ => false,
        })
    }
}

/// Removes what a schema says to people.
fn forget_words(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            ["description", "title", "examples", "default"].iter().for_each(|word| drop(map.remove(*word)));
            map.values_mut().for_each(forget_words);
        }
        Value::Array(parts) => parts.iter_mut().for_each(forget_words),
        _ => {}
    }
}
