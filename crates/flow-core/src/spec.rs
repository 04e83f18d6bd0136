//! The flow file as written, with the place of every part: the first pass of the compiler.

mod budget;
mod duration;
mod edge;
mod fields;
mod header;
mod node;
mod schema;
mod yaml;

pub use self::duration::parse as parse_time;
pub use self::schema::flow_schema;
pub(crate) use self::{
    edge::EdgeSpec,
    fields::Key,
    header::Header,
    node::{NodeSpec, PolicySpec},
    yaml::{Data, Document, Entry, Layout, Yaml, parse},
};
use crate::diagnostic::{Code, Problem, Sink, Span, did_you_mean};
use fields::Fields;

/// The whole file.
#[derive(Debug)]
pub(crate) struct Spec<'a> {
    pub(crate) header: Header<'a>,
    pub(crate) nodes: Vec<NodeSpec<'a>>,
    pub(crate) edges: Vec<EdgeSpec<'a>>,
    /// Where the file starts.
    pub(crate) span: Span,
}

/// A text and its place.
pub(crate) type Text<'a> = (&'a str, Span);

impl<'a> Spec<'a> {
    /// Reads as much as possible, and reports the rest.
    pub(crate) fn read(root: &'a Yaml, sink: &mut Sink) -> Option<Self> {
        let key = Key::Root;
        let mut fields = Fields::open(root, &key, sink)?;
        let nodes = fields.get("nodes");
        let edges = fields.get("edges");
        let header = match fields.get("flow") {
            Some(flow) => {
                let key = Key::Field(&key, "flow");
                let inner = Fields::open(flow, &key, sink);
                let header = inner.map(|mut inner| {
                    let header = Header::read(&mut inner, sink);
                    inner.finish_with(sink, header::advice);
                    header
                });
                fields.finish_with(sink, |name| {
                    let belongs =
                        Header::KEYS.contains(&name).then(|| format!("`{name}` belongs under `flow:`"));
                    belongs.or_else(|| header::advice(name))
                });
                header.unwrap_or_default()
            }
            None => {
                let header = Header::read(&mut fields, sink);
                fields.finish_with(sink, header::advice);
                header
            }
        };
        let nodes_key = Key::Field(&Key::Root, "nodes");
        let read_nodes =
            match nodes {
                Some(nodes) => {
                    let items = fields::list(nodes, &nodes_key, sink);
                    let mut read = Vec::with_capacity(items.len());
                    read.extend(items.iter().enumerate().filter_map(|(at, node)| {
                        NodeSpec::read(node, at, &Key::Index(&nodes_key, at), sink)
                    }));
                    read
                }
                None => {
                    sink.push(
                        Problem::error(Code::MissingKey, root.span, "the flow is missing `nodes`")
                            .key("nodes"),
                    );
                    Vec::new()
                }
            };
        if let Some(nodes) = nodes
            && matches!(&nodes.data, Data::List(list) if list.is_empty())
        {
            sink.push(Problem::error(Code::InvalidValue, nodes.span, "`nodes` is empty").key("nodes"));
        }
        let edges_key = Key::Field(&Key::Root, "edges");
        let edges = edges.map(|edges| fields::list(edges, &edges_key, sink));
        let edges = edges
            .into_iter()
            .flatten()
            .enumerate()
            .filter_map(|(at, edge)| EdgeSpec::read(edge, at, &Key::Index(&edges_key, at), sink))
            .collect();
        Some(Self { header, nodes: read_nodes, edges, span: root.span })
    }
}

/// The files that a flow includes, as written.
pub(crate) fn included_files(root: &Yaml) -> Vec<&str> {
    let mut found = Vec::new();
    let header = root.get("flow").unwrap_or(root);
    found.extend(header.get("inputSchemaFile").and_then(Yaml::text));
    for node in root.get("nodes").into_iter().flat_map(|nodes| nodes.items().iter()) {
        found.extend(node.get("promptFile").and_then(Yaml::text));
        let input = node.get("input");
        for map in [input, input.and_then(|input| input.get("options"))].into_iter().flatten() {
            let entries = map.entries().iter().filter(|entry| schema_key(&entry.key).is_some());
            found.extend(entries.filter_map(|entry| entry.value.text()));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The key that a `…SchemaFile` key stands for: `outputSchema` for `outputSchemaFile`, `schema` for `schemaFile`.
pub(crate) fn schema_key(key: &str) -> Option<&str> {
    key.strip_suffix("File").filter(|key| is_schema_key(key))
}

/// Whether a value under this key is a JSON Schema, which may stand in a file.
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

/// Reads one of a fixed list of words.
fn one_of<T: Copy>((text, span): Text<'_>, words: &[(&str, T)], key: &Key<'_>, sink: &mut Sink) -> Option<T> {
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if found.is_none() {
        let names: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        let help = did_you_mean(text, words.iter().map(|(word, _)| *word))
            .unwrap_or_else(|| format!("expected {}", either(&names)));
        let message = format!("invalid value `{text}` for `{}`", key.last());
        sink.push(Problem::error(Code::InvalidValue, span, message).help(help).key(key));
    }
    found
}
