//! The flow file as written, with the place of every part: the first pass of the compiler.

mod agents;
mod edge;
mod fields;
mod header;
mod node;
mod packs;
mod schema;
mod yaml;

use std::sync::Arc;

pub use self::fields::parse_time;
pub(crate) use self::fields::without_unit;
pub use self::node::check_pool_name;
pub use self::packs::PROJECT_PACKS;
pub use self::schema::flow_schema;
pub use self::yaml::flow_name;
pub(crate) use self::{
    agents::{AGENTS, Choices, expand, is_agent, is_of, mentions},
    edge::EdgeSpec,
    fields::Key,
    header::Header,
    node::{NodeSpec, PolicySpec, SessionSpec},
    packs::{NodeTypes, PackFlow, files_of_pack, included_packs},
    yaml::{Data, Document, Entry, Layout, Yaml, parse, pointer_parts},
};
use crate::{
    diagnostic::{Code, Problem, Sink, SourceSpan},
    expr::has_segments,
    graph::FlowPolicy,
    source::{NAMED_FLOWS, normalized},
};
use fields::Fields;

/// The whole file.
#[derive(Debug)]
pub(crate) struct Spec<'a> {
    pub(crate) header: Header<'a>,
    pub(crate) body: BodySpec<'a>,
}

/// Nodes and edges as written: those of the flow, or those under the `body` of a node.
#[derive(Debug)]
pub(crate) struct BodySpec<'a> {
    pub(crate) nodes: Vec<NodeSpec<'a>>,
    pub(crate) edges: Vec<EdgeSpec<'a>>,
    pub(crate) outputs: Option<&'a Yaml>,
    pub(crate) policy: FlowPolicy,
    /// Where it starts.
    pub(crate) span: SourceSpan,
    /// What precedes its keys: empty for the flow, `nodes[3].body.` for the body of a node.
    pub(crate) prefix: Arc<str>,
}

/// A text and its place.
pub(crate) type Text<'a> = (&'a str, SourceSpan);

impl<'a> Spec<'a> {
    /// Reads as much as possible, and reports the rest.
    pub(crate) fn read(root: &'a Yaml, sink: &mut Sink) -> Option<Self> {
        let key = Key::Root;
        let mut fields = Fields::open(root, &key, sink)?;
        let parts = BodyLists { nodes: fields.get("nodes"), edges: fields.get("edges") };
        let header = match fields.get("flow") {
            Some(flow) => {
                let key = Key::Field(&key, "flow");
                let inner = Fields::open(flow, &key, sink);
                let header = inner.map(|mut inner| {
                    let header = Header::read(&mut inner, sink);
                    inner.finish_with(sink, header::advice);
                    header
                });
                let beside = header::mcp_servers(&mut fields, sink);
                if beside.is_some() && header.as_ref().is_some_and(|header| header.mcp_servers.is_some()) {
                    let message = "`mcpServers` is set under `flow` and beside it; keep one";
                    let span = fields.key_span("mcpServers");
                    sink.push(Problem::error(Code::DuplicateKey, span, message).key("mcpServers"));
                }
                fields.finish_with(sink, |name| {
                    let belongs =
                        Header::KEYS.contains(&name).then(|| format!("`{name}` belongs under `flow:`"));
                    belongs.or_else(|| header::advice(name))
                });
                let header = header.unwrap_or_default();
                Header { mcp_servers: header.mcp_servers.or(beside), ..header }
            }
            None => {
                let header = Header::read(&mut fields, sink);
                fields.finish_with(sink, header::advice);
                header
            }
        };
        let prefix = "".into();
        let (nodes, edges) = parts.read("the flow", root.span, &prefix, &Key::Root, sink);
        let (outputs, policy) = (header.outputs, header.policy.clone());
        let body = BodySpec { nodes, edges, outputs, policy, span: root.span, prefix };
        Some(Self { header, body })
    }
}

impl<'a> BodySpec<'a> {
    /// Reads the `body` of a node.
    fn read(value: &'a Yaml, key: &Key<'_>, sink: &mut Sink) -> Option<Self> {
        let mut fields = Fields::open(value, key, sink)?;
        let parts = BodyLists { nodes: fields.get("nodes"), edges: fields.get("edges") };
        let outputs = fields.get("outputs");
        let policy = header::policy(&mut fields, header::PolicyOf::Body, sink);
        fields.finish_with(sink, |name| {
            let of_flow = ["input", "inputSchema", "name", "nodePacks", "secrets"].contains(&name);
            of_flow.then(|| "a body sees the input of its flow; nothing is declared here".to_owned())
        });
        let prefix = format!("{key}.").into();
        let (nodes, edges) = parts.read("the body", value.span, &prefix, key, sink);
        Some(Self { nodes, edges, outputs, policy, span: value.span, prefix })
    }
}

/// The lists of a body.
struct BodyLists<'a> {
    nodes: Option<&'a Yaml>,
    edges: Option<&'a Yaml>,
}

impl<'a> BodyLists<'a> {
    fn read(
        self,
        owner: &str,
        span: SourceSpan,
        prefix: &Arc<str>,
        key: &Key<'_>,
        sink: &mut Sink,
    ) -> (Vec<NodeSpec<'a>>, Vec<EdgeSpec<'a>>) {
        let nodes_key = Key::Field(key, "nodes");
        let nodes = match self.nodes {
            Some(list) => {
                let items = match list.entries().first() {
                    Some(first) => {
                        let help = format!("write each node as an item: `- id: {}`", first.key);
                        let message = "`nodes` must be a list, found a mapping";
                        let problem = Problem::error(Code::WrongType, list.span, message).help(help);
                        sink.push(problem.key(nodes_key));
                        &[]
                    }
                    None => fields::list(list, &nodes_key, sink),
                };
                if matches!(&list.data, Data::List(list) if list.is_empty()) {
                    let problem = Problem::error(Code::InvalidValue, list.span, "`nodes` is empty");
                    sink.push(problem.key(nodes_key));
                }
                let mut read = Vec::with_capacity(items.len());
                read.extend(items.iter().enumerate().filter_map(|(at, node)| {
                    let spec = NodeSpec::read(node, at, prefix, &Key::Index(&nodes_key, at), sink)?;
                    spec.check_limit(node, sink);
                    Some(spec)
                }));
                read
            }
            None => {
                let message = format!("{owner} is missing `nodes`");
                sink.push(Problem::error(Code::MissingKey, span, message).key(nodes_key));
                Vec::new()
            }
        };
        let edges_key = Key::Field(key, "edges");
        let edges = self.edges.map(|edges| fields::list(edges, &edges_key, sink));
        let edges = edges.into_iter().flatten().enumerate();
        let edges = edges.filter_map(|(at, edge)| EdgeSpec::read(edge, &Key::Index(&edges_key, at), sink));
        (nodes, edges.collect())
    }
}

/// The files that a flow includes, as written.
pub(crate) fn included_files<'y>(root: &'y Yaml) -> Vec<&'y str> {
    let mut found = Vec::new();
    let header = root.get("flow").unwrap_or(root);
    let schemas = ["inputSchemaFile", "outputSchemaFile"];
    found.extend(schemas.into_iter().filter_map(|key| header.get(key).and_then(Yaml::text)));
    let schema_files = |map: Option<&'y Yaml>| {
        let entries = map.into_iter().flat_map(Yaml::entries);
        entries.filter(|entry| schema_key(&entry.key).is_some()).filter_map(|entry| entry.value.text())
    };
    for node in nodes(root) {
        found.extend(node.get("promptFile").and_then(Yaml::text));
        let input = node.get("input");
        found.extend(schema_files(input));
        found.extend(schema_files(input.and_then(|input| input.get("options"))));
    }
    for settings in agents::settings(root) {
        found.extend(settings.get("promptFile").and_then(Yaml::text));
        found.extend(schema_files(settings.get("options")));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The node type that runs another flow.
pub(crate) const SUBFLOW: &str = "control.subflow";

/// The flow that a node of the type `control.subflow` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowName<'a> {
    /// The file at a path.
    File(&'a str),
    /// One of the project's flows.
    Named(&'a str),
}

impl<'a> FlowName<'a> {
    /// The flow that an input names.
    pub(crate) fn of(input: &'a Yaml) -> Option<(Self, SourceSpan)> {
        let text = |key| input.get(key).and_then(Yaml::placed_text);
        let file = text("file").map(|(file, span)| (Self::File(file), span));
        file.or_else(|| text("flow").map(|(name, span)| (Self::Named(name), span)))
    }

    pub(crate) fn is_template(self) -> bool {
        let (Self::File(text) | Self::Named(text)) = self;
        has_segments(text)
    }

    /// Whether it can be the path or the name of a flow.
    pub(crate) fn is_path(self) -> bool {
        match self {
            Self::File(_) => !self.is_template(),
            Self::Named(name) => {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
            }
        }
    }

    /// The path of its file, from the folder of the flow that was loaded; `folder` is that of the flow that names it.
    pub(crate) fn path(self, folder: &str) -> String {
        match self {
            Self::File(file) => normalized(folder, file),
            Self::Named(name) => format!("{NAMED_FLOWS}/{name}.yaml"),
        }
    }
}

/// The other flows and settings that a flow in a folder names, by their paths from the folder of the flow that was
/// loaded.
pub(crate) fn included_documents(root: &Yaml, folder: &str) -> Vec<String> {
    let is_subflow = |node: &&Yaml| node.get("type").and_then(Yaml::text) == Some(SUBFLOW);
    let nodes = nodes(root).into_iter().filter(is_subflow);
    let flows = nodes.filter_map(|node| FlowName::of(node.get("input")?)).map(|(name, _)| name);
    let flows = flows.filter(|name| name.is_path()).map(|name| name.path(folder));
    let settings = agents::included_settings(root).into_iter().map(|file| normalized(folder, file));
    flows.chain(settings).collect()
}

/// The nodes as written: those of the flow, and those of all bodies in it.
pub(crate) fn nodes(root: &Yaml) -> Vec<&Yaml> {
    fn list(body: &Yaml) -> &[Yaml] {
        body.get("nodes").map_or(&[], Yaml::items)
    }
    let mut found: Vec<&Yaml> = list(root).iter().collect();
    let mut next = 0;
    while let Some(node) = found.get(next) {
        if let Some(body) = node.get("body") {
            found.extend(list(body));
        }
        next += 1;
    }
    found
}

/// The key that a `…SchemaFile` key replaces: `outputSchema` for `outputSchemaFile`, `schema` for `schemaFile`.
pub(crate) fn schema_key(key: &str) -> Option<&str> {
    key.strip_suffix("File").filter(|key| is_schema_key(key))
}

/// Whether a value under this key is a JSON Schema, which may be in a file.
pub(crate) fn is_schema_key(key: &str) -> bool {
    key == "schema" || (key.ends_with("Schema") && key.len() > "Schema".len())
}

/// `a, b or c`.
pub(crate) fn either(words: &[String]) -> String {
    match words {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        words => words.concat(),
    }
}
