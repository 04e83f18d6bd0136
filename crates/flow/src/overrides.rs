//! A loaded flow changed for one run: another type for a node, another value in its input. Whether the
//! changed flow makes sense is left to the compiler.

use inspan_protocol::NodeId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    diagnostic::Span,
    load::Loaded,
    spec::{Data, Entry, Layout, Yaml},
};

/// Why a loaded flow cannot be changed so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// No node has this id.
    #[error("the flow has no node `{node}`; it has {known}")]
    UnknownNode {
        /// The id.
        node: NodeId,
        /// The ids that there are, separated by commas.
        known: String,
    },
    /// The way to the key leads through a value that has no keys.
    #[error("`{key}` of node `{node}` is {kind} and has no keys")]
    NoMapping {
        /// The node.
        node: NodeId,
        /// The key that was come to.
        key: String,
        /// What it is.
        kind: &'static str,
    },
}

/// One change that was made to a loaded flow, so that it can be made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "change")]
#[non_exhaustive]
pub enum Change {
    /// A node got another type.
    Type {
        /// The node.
        node: NodeId,
        /// Its type.
        to: String,
    },
    /// A value in a node's input was put in place.
    Input {
        /// The node.
        node: NodeId,
        /// The keys that lead inwards.
        keys: Vec<String>,
        /// The value.
        value: Value,
    },
}

impl Loaded {
    /// Makes a change that was made before.
    pub fn change(&mut self, change: &Change) -> Result<(), OverrideError> {
        match change {
            Change::Type { node, to } => self.set_type(node, to),
            Change::Input { node, keys, value } => {
                let keys: Vec<_> = keys.iter().map(String::as_str).collect();
                self.set_input(node, &keys, value)
            }
        }
    }

    /// Gives a node another type.
    pub fn set_type(&mut self, id: &NodeId, node_type: &str) -> Result<(), OverrideError> {
        let node = self.node_mut(id)?;
        let span = node.entry("type").map_or(node.span, |entry| entry.value.span);
        put(node, "type", Yaml { span, layout: Layout::Loose, data: Data::Text(node_type.into()) });
        self.changes.push(Change::Type { node: id.clone(), to: node_type.to_owned() });
        Ok(())
    }

    /// Gives an agent's node another provider: by its type, or where the node takes any agent, by its input.
    pub fn set_provider(&mut self, id: &NodeId, provider: &str) -> Result<(), OverrideError> {
        match self.node_mut(id)?.get("type").and_then(Yaml::text) {
            Some("agent.run") => self.set_input(id, &["provider"], &Value::from(provider)),
            _ => self.set_type(id, &format!("{provider}.agent")),
        }
    }

    /// Puts a value in a node's input, in place of what stands there or of the file that would have filled
    /// it; `keys` lead inwards, and there is at least one. Nothing in the value is bound.
    pub fn set_input(&mut self, id: &NodeId, keys: &[&str], value: &Value) -> Result<(), OverrideError> {
        let mut here = self.node_mut(id)?;
        if keys == ["prompt"] {
            remove(here, "promptFile");
        }
        let mut way = vec!["input"];
        way.extend(keys);
        let (last, way) = way.split_last().unwrap_or((&"input", &[]));
        let mut path = String::new();
        for key in way {
            if here.get(key).is_none_or(|value| matches!(value.data, Data::Null)) {
                let map = Yaml { data: Data::Map(Box::default()), layout: Layout::Loose, span: here.span };
                put(here, key, map);
            }
            path = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
            here = inner(here, key, id, &path)?;
        }
        remove(here, &format!("{last}File"));
        let span = here.entry(last).map_or(here.span, |entry| entry.value.span);
        put(here, last, Yaml { span, layout: Layout::Loose, data: Data::Json(value.clone().into()) });
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.changes.push(Change::Input { node: id.clone(), keys, value: value.clone() });
        Ok(())
    }

    /// The node as written. A document without nodes has none, whatever else is wrong with it.
    fn node_mut(&mut self, id: &NodeId) -> Result<&mut Yaml, OverrideError> {
        let known = || OverrideError::UnknownNode { node: id.clone(), known: String::new() };
        let root = self.document.root.as_mut().ok_or_else(known)?;
        let Data::Map(entries) = &mut root.data else { return Err(known()) };
        let nodes = entries.iter_mut().find(|entry| entry.key == "nodes").ok_or_else(known)?;
        let Data::List(nodes) = &mut nodes.value.data else { return Err(known()) };
        let name = |node: &Yaml| node.get("id").and_then(Yaml::text).map(str::to_owned);
        match nodes.iter().position(|node| name(node).as_deref() == Some(id.as_str())) {
            Some(at) => Ok(&mut nodes[at]),
            None => {
                let ids: Vec<_> = nodes.iter().filter_map(name).map(|name| format!("`{name}`")).collect();
                Err(OverrideError::UnknownNode { node: id.clone(), known: ids.join(", ") })
            }
        }
    }
}

fn inner<'a>(map: &'a mut Yaml, key: &str, node: &NodeId, path: &str) -> Result<&'a mut Yaml, OverrideError> {
    let kind = map.get(key).map_or("nothing", Yaml::kind);
    let refused = || OverrideError::NoMapping { node: node.clone(), key: path.to_owned(), kind };
    let Data::Map(entries) = &mut map.data else { return Err(refused()) };
    let entry = entries.iter_mut().find(|entry| entry.key == key).ok_or_else(refused)?;
    match entry.value.data {
        Data::Map(_) => Ok(&mut entry.value),
        _ => Err(refused()),
    }
}

fn put(map: &mut Yaml, key: &str, value: Yaml) {
    let span: Span = value.span;
    let Data::Map(entries) = &mut map.data else { return };
    match entries.iter_mut().find(|entry| entry.key == key) {
        Some(entry) => entry.value = value,
        None => map.push(Entry { key: key.into(), key_span: span, value }),
    }
}

fn remove(map: &mut Yaml, key: &str) {
    if let Data::Map(entries) = &mut map.data {
        *entries = std::mem::take(entries).into_iter().filter(|entry| entry.key != key).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn flow() -> Loaded {
        let text = "
nodes:
  - { id: plan, type: claude.agent, promptFile: plan.md, input: { options: { maxTurns: 3, outputSchemaFile: s.json } } }
  - { id: done, type: control.noop }
";
        Loaded::from_text("flow.yaml", text, BTreeMap::new())
    }

    fn nodes(flow: &Loaded) -> Value {
        flow.document.root.as_ref().unwrap().get("nodes").unwrap().json()
    }

    #[test]
    fn a_provider_is_changed_where_it_stands() {
        let text = "
nodes:
  - { id: a, type: claude.agent }
  - { id: b, type: agent.run, input: { provider: claude, prompt: x } }
";
        let mut flow = Loaded::from_text("flow.yaml", text, BTreeMap::new());
        for id in ["a", "b"] {
            flow.set_provider(&NodeId::new(id).unwrap(), "echo").unwrap();
        }
        let expected = json!([
            { "id": "a", "type": "echo.agent" },
            { "id": "b", "type": "agent.run", "input": { "provider": "echo", "prompt": "x" } },
        ]);
        assert_eq!(nodes(&flow), expected);
    }

    #[test]
    fn types_and_inputs_are_changed_in_place() {
        let (plan, done) = (NodeId::new("plan").unwrap(), NodeId::new("done").unwrap());
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
    fn what_is_not_there_cannot_be_changed() {
        let (plan, other) = (NodeId::new("plan").unwrap(), NodeId::new("other").unwrap());
        let mut flow = flow();
        let before = nodes(&flow);
        let refused = [
            flow.set_type(&other, "echo.agent"),
            flow.set_input(&plan, &["options", "maxTurns", "x"], &json!(1)),
        ];
        let expected = [
            OverrideError::UnknownNode { node: other, known: "`plan`, `done`".to_owned() },
            OverrideError::NoMapping {
                node: plan,
                key: "input.options.maxTurns".to_owned(),
                kind: "a number",
            },
        ];
        assert_eq!(refused, expected.map(Err));
        assert_eq!(nodes(&flow), before);
    }
}
