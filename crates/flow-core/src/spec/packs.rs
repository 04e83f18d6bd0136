//! `packs`: folders that declare node types without Rust. The manifest of a pack says for each type which flow it runs, or
//! which program. A program becomes the one node of a flow, so that every node of a pack is compiled, run, resumed and
//! replayed as the frame of a flow.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use crate::{
    catalog::NodeCatalog,
    diagnostic::{Code, Problem, Sink, SourceSpan},
    node::{DescribeNode, NodeKind, NodeTypeInfo, Occupies},
    source::{IncludedFile, Loaded, folder_of, joined, normalized},
    spec::{Data, Entry, Key, Text, Yaml, fields, fields::Fields},
};

/// The name of a manifest.
const MANIFEST: &str = "pack.yaml";

/// The folder of the packs that the flows of a project share, from the folder of the project.
pub const PROJECT_PACKS: &str = ".inspan/packs";

/// The keys of a type that runs a program; a flow declares them itself.
const OF_PROGRAM: [&str; 8] = [
    "input",
    "inputSchema",
    "inputSchemaFile",
    "outputSchema",
    "outputSchemaFile",
    "outputs",
    "effects",
    "policy",
];

/// The node that runs the program of a type.
const PROGRAM: &str = "exec";

/// The flow that the nodes of a type run.
#[derive(Debug)]
pub(crate) struct PackFlow {
    /// The path of its file; for a program that of the manifest, `#` and the name of the type.
    pub(crate) path: String,
    /// The flow around a program, which no file has.
    pub(crate) program: Option<Yaml>,
}

/// The node types that a flow may use: the registered ones, and those of its packs.
pub(crate) struct NodeTypes {
    pub(crate) catalog: NodeCatalog,
    packs: BTreeMap<Arc<str>, Arc<PackFlow>>,
    /// The types of packs that something is wrong with.
    refused: BTreeSet<String>,
    /// Whether a pack cannot be read, so that its types are not known.
    lacks_pack: bool,
}

impl NodeTypes {
    /// The flows that the types of packs run.
    pub(crate) fn flows(&self) -> impl Iterator<Item = &PackFlow> {
        self.packs.values().map(|flow| &**flow)
    }

    /// The flow that a type of a pack runs.
    pub(crate) fn flow_of(&self, name: &str) -> Option<&Arc<PackFlow>> {
        self.packs.get(name)
    }

    /// Whether a type that is not known may be one of a pack about which something was reported.
    pub(crate) fn is_refused(&self, name: &str) -> bool {
        let pack_of = |name: &str| name.split_once('.').map(|(pack, _)| pack.to_owned());
        let pack = pack_of(name);
        let is_of_unknown_pack =
            || pack.is_some() && self.catalog.names().all(|known| pack_of(known) != pack);
        self.refused.contains(name) || self.lacks_pack && is_of_unknown_pack()
    }

    /// Reads the packs of the flow at a path, which is empty for the flow that was loaded.
    pub(crate) fn read(
        root: &Yaml,
        path: &str,
        loaded: &Loaded,
        catalog: &NodeCatalog,
        sink: &mut Sink,
    ) -> Self {
        let types = Self {
            catalog: catalog.clone(),
            packs: BTreeMap::new(),
            refused: BTreeSet::new(),
            lacks_pack: false,
        };
        let mut reader = PackReader { types, loaded, declared: HashMap::new(), folders: BTreeMap::new() };
        for named in named(root, sink) {
            reader.types.lacks_pack |= reader.pack(&named, path, sink).is_none();
        }
        reader.types
    }
}

/// An entry of `packs`.
struct NamedPack<'y> {
    /// The name that the flow gives to the pack.
    name: Option<Text<'y>>,
    /// The folder of the pack, or the name of one of the project.
    pack: Text<'y>,
    at: String,
}

fn named<'y>(root: &'y Yaml, sink: &mut Sink) -> Vec<NamedPack<'y>> {
    let Some(packs) = root.get("flow").unwrap_or(root).get("packs") else { return Vec::new() };
    let key = Key::Field(&Key::Root, "packs");
    if let Data::Map(entries) = &packs.data {
        let entries = entries.iter().filter_map(|entry| {
            let key = Key::Field(&key, &entry.key);
            let pack = fields::text(&entry.value, &key, sink)?;
            Some(NamedPack { name: Some((&entry.key, entry.key_span)), pack, at: key.to_string() })
        });
        return entries.collect();
    }
    let items = fields::list(packs, &key, sink).iter().enumerate();
    let items = items.filter_map(|(at, item)| {
        let key = Key::Index(&key, at);
        let pack = fields::text(item, &key, sink)?;
        Some(NamedPack { name: None, pack, at: key.to_string() })
    });
    items.collect()
}

/// The manifests that a flow in a folder names, by their paths from the folder of the flow that was loaded.
pub(crate) fn included_packs(root: &Yaml, folder: &str) -> Vec<String> {
    let Some(packs) = root.get("flow").unwrap_or(root).get("packs") else { return Vec::new() };
    let entries = packs.entries().iter().map(|entry| &entry.value);
    let names = packs.items().iter().chain(entries).filter_map(Yaml::text);
    names.map(|name| manifest_of(name, folder)).collect()
}

/// The path of a manifest. A bare name is that of a pack of the project.
fn manifest_of(pack: &str, folder: &str) -> String {
    let folder = if is_name(pack) { format!("{PROJECT_PACKS}/{pack}") } else { normalized(folder, pack) };
    if folder.is_empty() {
        MANIFEST.to_owned()
    } else {
        format!("{}/{MANIFEST}", folder.trim_end_matches('/'))
    }
}

/// The schemas and the flows that a manifest names, as written.
pub(crate) fn files_of_pack(manifest: &Yaml) -> (Vec<&str>, Vec<&str>) {
    let types = || manifest.get("nodes").into_iter().flat_map(Yaml::entries).map(|entry| &entry.value);
    let texts = |key: &'static str| types().filter_map(move |of| of.get(key).and_then(Yaml::text));
    (texts("inputSchemaFile").chain(texts("outputSchemaFile")).collect(), texts("flow").collect())
}

/// Whether a text can be the name of a pack, or of one of its types.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

/// Reads the packs of one flow.
struct PackReader<'l> {
    types: NodeTypes,
    loaded: &'l Loaded,
    /// Where each type is declared.
    declared: HashMap<Arc<str>, SourceSpan>,
    /// The packs by their manifests, each with the name that it has in the flow.
    folders: BTreeMap<String, String>,
}

/// A manifest that is being read.
struct Pack<'y> {
    name: Arc<str>,
    folder: &'y str,
    path: &'y str,
    secrets: Option<&'y Entry>,
}

impl PackReader<'_> {
    /// Reads the types of a pack; nothing if it cannot be read, which is reported.
    fn pack(&mut self, named: &NamedPack<'_>, flow: &str, sink: &mut Sink) -> Option<()> {
        let loaded = self.loaded;
        let (written, span) = named.pack;
        let path = manifest_of(written, folder_of(flow));
        if let Some(problem) = loaded.refusal(flow, &path, (&path, span)) {
            let help = match is_name(written) {
                true => format!(
                    "a name is that of a folder in `{PROJECT_PACKS}` of the project; a path begins with `./`"
                ),
                false if problem.code == Code::FileOutsideFolder => {
                    format!("put packs that several flows share into `{PROJECT_PACKS}` of the project")
                }
                false => format!("a pack is a folder with a file `{MANIFEST}`"),
            };
            sink.push(problem.help(help).key(&named.at));
            return None;
        }
        let document = loaded.flow(&path)?;
        document.problems.iter().for_each(|problem| sink.push(problem.clone()));
        let (own_name, nodes, secrets) = manifest(document.root.as_ref()?, sink)?;
        let (name, name_span) = named.name.unwrap_or(own_name);
        let taken = self.types.catalog.describe().iter().any(|info| *info.pack == *name)
            && !self.folders.values().any(|known| known == name);
        if !is_name(name) || taken {
            let message = match taken {
                true => format!("`{name}` is the name of a pack that comes with the program"),
                false => "the name of a pack has letters, digits, `_` and `-` only".to_owned(),
            };
            let help = format!("give it another one: `packs: {{ NAME: {written} }}`");
            sink.push(Problem::error(Code::InvalidValue, name_span, message).help(help).key(&named.at));
            return None;
        }
        if self.folders.insert(path.clone(), name.to_owned()).is_some() {
            let message = format!("the pack `{written}` is named twice");
            sink.push(Problem::error(Code::DuplicateKey, span, message).key(&named.at));
            return Some(());
        }
        let pack = Pack { name: name.into(), folder: folder_of(&path), path: &path, secrets };
        for (at, entry) in nodes.iter().enumerate() {
            // A key that is there twice was reported.
            if nodes.iter().take(at).all(|known| known.key != entry.key) {
                self.node_type(&pack, entry, named, sink);
            }
        }
        Some(())
    }

    fn node_type(&mut self, pack: &Pack<'_>, entry: &Entry, named: &NamedPack<'_>, sink: &mut Sink) {
        let nodes = Key::Field(&Key::Root, "nodes");
        let key = Key::Field(&nodes, &entry.key);
        let name: Arc<str> = format!("{}.{}", pack.name, entry.key).into();
        let Some(flow) = self.flow_of_type(pack, entry, &key, sink) else {
            self.types.refused.insert(name.to_string());
            return;
        };
        if self.types.catalog.get(&name).is_some() {
            let of = |span: SourceSpan| format!("in {} on line {}", sink.name(span), span.start.line);
            let message = match self.declared.get(&name) {
                Some(first) => {
                    format!("the node type `{name}` is declared {} and {}", of(*first), of(entry.key_span))
                }
                None => format!(
                    "the node type `{name}` comes with the program, and is declared {}",
                    of(entry.key_span)
                ),
            };
            let help = format!("give this pack another name: `packs: {{ NAME: {} }}`", named.pack.0);
            let problem = Problem::error(Code::DuplicateType, named.pack.1, message);
            return sink.push(problem.help(help).key(&named.at));
        }
        let info = self.describe(&name, pack, &entry.value, &flow);
        self.types.catalog.register(PackNode(info));
        self.types.packs.insert(name.clone(), Arc::new(flow));
        self.declared.insert(name, entry.key_span);
    }

    /// The flow that a type runs, if the manifest is right about it.
    fn flow_of_type(
        &self,
        pack: &Pack<'_>,
        entry: &Entry,
        key: &Key<'_>,
        sink: &mut Sink,
    ) -> Option<PackFlow> {
        if entry.key == "agent" {
            let message = "`agent` is the name of the node types of providers, and cannot be that of a pack";
            sink.push(Problem::error(Code::InvalidValue, entry.key_span, message).key(key));
            return None;
        }
        if !is_name(&entry.key) {
            let message = format!(
                "`{}` cannot be the name of a node type: it has letters, digits, `_` and `-` only",
                entry.key
            );
            sink.push(Problem::error(Code::InvalidValue, entry.key_span, message).key(key));
            return None;
        }
        let mut fields = Fields::open(&entry.value, key, sink)?;
        fields.text("help", sink);
        let (flow, program) = (fields.text("flow", sink), fields.get("exec"));
        if program.is_some() {
            for key in OF_PROGRAM {
                fields.get(key);
            }
        }
        let is_flow = flow.is_some();
        fields.finish_with(sink, |key| match key {
            key if is_flow && OF_PROGRAM.contains(&key) => {
                Some(format!("the flow declares its `{key}` itself"))
            }
            "argv" | "stdin" | "env" | "cwd" | "parse" | "allowExit" => {
                Some(format!("`{key}` belongs under `exec`"))
            }
            _ => None,
        });
        let name = format!("{}.{}", pack.name, entry.key);
        let message = match (flow, program) {
            (Some((file, span)), None) => {
                let path = normalized(pack.folder, file);
                let problem = self.loaded.refusal(pack.path, &path, (file, span));
                let help = "paths are relative to the folder of the pack".to_owned();
                let finish = |problem: Problem| match problem.code {
                    Code::FileMissing => problem.help(help).key(key),
                    _ => problem.key(key),
                };
                return match problem {
                    Some(problem) => {
                        sink.push(finish(problem));
                        None
                    }
                    None => Some(PackFlow { path, program: None }),
                };
            }
            (None, Some(exec)) => {
                let program = Some(flow_around(&name, &entry.value, exec, pack.secrets));
                return Some(PackFlow { path: format!("{}#{}", pack.path, entry.key), program });
            }
            (Some(_), Some(_)) => format!("`{name}` has both `flow` and `exec`; keep one"),
            (None, None) => format!("`{name}` runs nothing: set `flow` or `exec`"),
        };
        sink.push(Problem::error(Code::InvalidValue, entry.key_span, message).key(key));
        None
    }

    /// What a type takes and gives, as far as it is declared.
    fn describe(&self, name: &Arc<str>, pack: &Pack<'_>, of: &Yaml, flow: &PackFlow) -> NodeTypeInfo {
        let document = self.loaded.flow(&flow.path).and_then(|document| document.root.as_ref());
        let empty = Yaml::empty(of.span);
        let root = flow.program.as_ref().or(document).unwrap_or(&empty);
        let header = root.get("flow").unwrap_or(root);
        let schema = |keys| self.schema(header, keys, folder_of(&flow.path));
        let own = || header.get("description").and_then(Yaml::text);
        let help = of.get("help").and_then(Yaml::text).or_else(own);
        let defaults = header.get("input").map_or(Value::Null, Yaml::json);
        let printed = || {
            let plain = flow.program.is_some() && header.get("outputs").and_then(Yaml::text) == Some(WHOLE);
            let exec = self.types.catalog.described("exec").filter(|_| plain);
            exec.map_or_else(|| json!({}), |exec| exec.info.output.clone())
        };
        NodeTypeInfo {
            name: name.clone(),
            pack: pack.name.clone(),
            help: help.unwrap_or_default().trim().to_owned(),
            input: with_defaults(schema(["inputSchema", "inputSchemaFile"]), &defaults),
            output: schema(["outputSchema", "outputSchemaFile"]).unwrap_or_else(printed),
            kind: NodeKind::Frames,
            occupies: Occupies::Nothing,
        }
    }

    /// A schema of a header, written there or in a file. What is wrong with it is reported where the flow is compiled.
    fn schema(&self, header: &Yaml, [key, file]: [&str; 2], folder: &str) -> Option<Value> {
        if let Some(schema) = header.get(key) {
            return Some(schema.json());
        }
        match self.loaded.files.get(&joined(folder, header.get(file)?.text()?)) {
            Some(IncludedFile::Text(text)) => serde_json::from_str(text).ok(),
            _ => None,
        }
    }
}

/// The name, the types and the secrets of a manifest.
fn manifest<'y>(root: &'y Yaml, sink: &mut Sink) -> Option<(Text<'y>, &'y [Entry], Option<&'y Entry>)> {
    let Data::Map(_) = root.data else {
        let message = format!("the manifest of a pack must be a mapping, found {}", root.kind());
        sink.push(Problem::error(Code::WrongType, root.span, message));
        return None;
    };
    let mut fields = Fields::open(root, &Key::Root, sink)?;
    let name = fields.required("name", "the pack", sink);
    fields.text("description", sink);
    fields.get("secrets");
    let nodes = fields.get("nodes");
    let key = Key::Field(&Key::Root, "nodes");
    match nodes {
        None => fields.missing("nodes", "the pack", sink),
        Some(nodes) if !matches!(nodes.data, Data::Map(_)) => {
            let message = format!("`nodes` of a pack must be a mapping, found {}", nodes.kind());
            let help = "write each type under its name: `open_pr: { flow: open_pr.yaml }`".to_owned();
            sink.push(Problem::error(Code::WrongType, nodes.span, message).help(help).key(key));
        }
        Some(_) => {}
    }
    fields.finish(sink);
    Some((name?, nodes?.entries(), root.entry("secrets")))
}

/// The outputs of a program that prints text: all that its node gives.
const WHOLE: &str = "{{ exec }}";

/// The flow with one node that runs the program of a type.
fn flow_around(name: &str, of: &Yaml, exec: &Yaml, secrets: Option<&Entry>) -> Yaml {
    let span = exec.span;
    let text = |text: &str| Yaml::new(span, Data::Text(text.to_owned()));
    let mut node = Yaml::empty(span);
    node.set("id", span, text(PROGRAM));
    node.set("type", span, text("exec"));
    node.set("input", span, exec.clone());
    let mut flow = Yaml::empty(span);
    flow.set("name", span, text(name));
    let prints_value = matches!(exec.get("parse").and_then(Yaml::text), Some("json" | "lines"));
    flow.set("outputs", span, text(if prints_value { "{{ exec.value }}" } else { WHOLE }));
    let declared = of.entries().iter().filter(|entry| OF_PROGRAM.contains(&entry.key.as_str()));
    for entry in declared.chain(secrets) {
        let to = if matches!(entry.key.as_str(), "effects" | "policy") { &mut node } else { &mut flow };
        to.set(&entry.key, entry.key_span, entry.value.clone());
    }
    flow.set("nodes", span, Yaml::new(span, Data::List(Arc::new(vec![node]))));
    flow
}

/// The schema of an input whose defaults need not be given.
fn with_defaults(schema: Option<Value>, defaults: &Value) -> Value {
    let mut schema = schema.filter(Value::is_object).unwrap_or_else(|| json!({ "type": "object" }));
    let none = Map::new();
    let defaults = defaults.as_object().unwrap_or(&none);
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|key| key.as_str().is_none_or(|key| !defaults.contains_key(key)));
    }
    for (key, value) in defaults {
        if schema.get("properties").is_none() {
            schema["properties"] = json!({});
        }
        let Some(properties) = schema["properties"].as_object_mut() else { break };
        let property = properties.entry(key.clone()).or_insert_with(|| json!({}));
        if let Some(property) = property.as_object_mut() {
            property.insert("default".to_owned(), value.clone());
        }
    }
    schema
}

/// A node type of a pack. The scheduler runs its flow.
struct PackNode(NodeTypeInfo);

impl DescribeNode for PackNode {
    fn describe(&self) -> NodeTypeInfo {
        self.0.clone()
    }

    fn name(&self) -> Arc<str> {
        self.0.name.clone()
    }
}
