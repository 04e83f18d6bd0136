//! The flow's `mcpServers`: each name that a node uses is replaced by the entry.

use std::sync::Arc;

use serde_json::json;

use crate::{
    diagnostic::{Code, Problem, Sink, did_you_mean},
    node::{NodeKind, NodeTypeInfo},
    spec::{Data, Entry, Header, NodeSpec, Text, Yaml},
};

/// Puts the servers that an agent's `mcpServers: [name]`, or the `server` of `mcp.call`, names in the place of the names.
pub(super) fn put(
    node: &NodeSpec<'_>,
    node_type: &NodeTypeInfo,
    header: &Header<'_>,
    input: &mut Yaml,
    sink: &mut Sink,
) {
    let mut servers = Servers { node, header, sink };
    if node_type.kind == NodeKind::Agent {
        let options = input.get_mut("options");
        if let Some(named) = options.and_then(|options| options.get_mut("mcpServers"))
            && let Data::List(names) = &named.data
        {
            let names = Arc::clone(names);
            named.data = Data::Map(Arc::new(servers.entries(&names)));
        }
    } else if &*node_type.name == "mcp.call"
        && let Some(named) = input.get_mut("server")
        && let Some((name, span)) = named.placed_text()
    {
        let entry = servers.find((name, span), "input.server");
        // Without an entry the name was reported.
        named.data =
            Data::Json(Arc::new(entry.map_or_else(|| json!({}), |entry| json!({ name: entry.json() }))));
    }
}

struct Servers<'s, 'a> {
    node: &'s NodeSpec<'a>,
    header: &'s Header<'a>,
    sink: &'s mut Sink,
}

impl<'a> Servers<'_, 'a> {
    fn entries(&mut self, names: &[Yaml]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let key = format!("input.options.mcpServers[{at}]");
            let Some(text) = name.placed_text() else {
                let message = format!("`mcpServers` lists names of servers, found {}", name.kind());
                self.report(Problem::error(Code::WrongType, name.span, message), &key);
                continue;
            };
            if let Some(found) = self.find(text, &key) {
                let value = Yaml::new(name.span, Data::Json(Arc::new(found.json())));
                entries.push(Entry { key: text.0.to_owned(), key_span: name.span, value });
            }
        }
        entries
    }

    /// The entry of this name.
    fn find(&mut self, (name, span): Text<'_>, key: &str) -> Option<&'a Yaml> {
        let servers = self.header.mcp_servers;
        if let Some(found) = servers.and_then(|servers| servers.get(name)) {
            return Some(found);
        }
        let message = format!("the flow has no MCP server `{name}`");
        let known = servers.map(Yaml::entries).unwrap_or_default();
        let help = match (name.contains("{{") || name.contains("{%"), known) {
            (true, _) => "the name of a server cannot be a template".to_owned(),
            (_, []) => format!("add it: `mcpServers: {{ {name}: {{ command: … }} }}`"),
            (_, known) => {
                did_you_mean(name, known.iter().map(|entry| entry.key.as_str())).unwrap_or_else(|| {
                    let known: Vec<&str> = known.iter().map(|entry| entry.key.as_str()).collect();
                    format!("available: {}", known.join(", "))
                })
            }
        };
        self.report(Problem::error(Code::InvalidValue, span, message).help(help), key);
        None
    }

    fn report(&mut self, problem: Problem, key: &str) {
        self.sink.push(problem.node(self.node.id.as_ref()).key(self.node.key(key)));
    }
}
