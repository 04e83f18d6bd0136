//! The second pass: names become indices, node types are looked up, and files replace their names.

mod files;
mod links;
mod servers;
mod sessions;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use inspan_protocol::NodeId;
use serde_json::Value;

pub(super) use files::check_schema;
pub(super) use links::{Link, Links, id_of, name, reach};

use files::Files;

use crate::{
    catalog::{CompiledSchema, Described, NodeCatalog},
    diagnostic::{Code, Problem, Sink, did_you_mean},
    graph::{Effects, NodeIx, NodeSession},
    node::{DescribeNode, NodeKind, NodeTypeInfo},
    source::Loaded,
    spec::{BodySpec, Header, NodeSpec, NodeTypes, PackFlow, Yaml},
};

/// What a flow declares, with the files that it names put in place.
pub(super) struct Flow<'a> {
    pub(super) header: &'a Header<'a>,
    pub(super) input_schema: Option<Value>,
    pub(super) output_schema: Option<Value>,
    /// Whether it is the flow that was loaded; the input of others is given by nodes.
    pub(super) is_main: bool,
    /// Whether it is the flow around the program of a pack, whose outputs may be any value.
    pub(super) is_program: bool,
    /// What its nodes may be.
    types: &'a NodeTypes,
    pub(super) files: Files<'a>,
}

impl<'a> Flow<'a> {
    /// Resolves what a flow declares. `path` is that of its file, as the flow that includes it names it; empty for the
    /// flow that was loaded.
    pub(super) fn resolve(
        header: &'a Header<'a>,
        loaded: &'a Loaded,
        path: &str,
        types: &'a NodeTypes,
        sink: &mut Sink,
    ) -> Self {
        check_packs(header, &types.catalog, sink);
        let files = Files::new(loaded, path);
        let input = (header.input_schema, header.input_schema_file);
        let output = (header.output_schema, header.output_schema_file);
        let input_schema = files.header_schema(input, ["inputSchema", "inputSchemaFile"], sink);
        let output_schema = files.header_schema(output, ["outputSchema", "outputSchemaFile"], sink);
        let (is_main, is_program) = (path.is_empty(), false);
        Self { header, input_schema, output_schema, is_main, is_program, types, files }
    }
}

/// A body with its names resolved.
pub(super) struct Resolved<'a> {
    pub(super) flow: &'a Flow<'a>,
    pub(super) spec: &'a BodySpec<'a>,
    /// What is around it; nothing if it is the body of a flow.
    pub(super) around: Option<Around<'a>>,
    pub(super) index: HashMap<NodeId, NodeIx>,
    pub(super) links: Links<'a>,
    pub(super) nodes: Vec<ResolvedNode<'a>>,
}

/// The node that runs a body, as the body sees it.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    /// The body that the node is in.
    pub(super) body: &'a Resolved<'a>,
    /// The node.
    pub(super) node: NodeIx,
    pub(super) kind: FrameKind<'a>,
}

/// How the frames of a body come about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind<'a> {
    /// One for each item, which has this name.
    Item(&'a str),
    /// One after the other.
    Pass,
}

impl<'a> Around<'a> {
    pub(super) fn node(&self) -> &'a ResolvedNode<'a> {
        &self.body.nodes[self.node.0 as usize]
    }

    /// Whether this is a name of each frame, besides `frame`.
    pub(super) fn declares(&self, name: &str) -> bool {
        match self.kind {
            FrameKind::Item(item) => name == item,
            FrameKind::Pass => matches!(name, "previous" | "passes"),
        }
    }
}

/// A node with its names resolved; what could not be resolved is absent and was reported.
pub(super) struct ResolvedNode<'a> {
    pub(super) spec: &'a NodeSpec<'a>,
    pub(super) node_type: Option<KnownType>,
    /// The input with the files that it names put in place.
    pub(super) input: Option<Yaml>,
    /// The same as JSON.
    pub(super) json: Value,
    /// The schema of the input.
    pub(super) schema: Option<Arc<CompiledSchema>>,
    /// The conversation that it continues or branches.
    pub(super) session: Option<NodeSession>,
    /// The node as it is with each of the other agents that may work on it.
    pub(super) others: Vec<ResolvedNode<'a>>,
}

/// A node type, described.
#[derive(Clone)]
pub(super) struct KnownType {
    pub(super) describe: Arc<dyn DescribeNode>,
    described: Arc<Described>,
    /// The flow that it runs, for a type of a pack that the flow names.
    pub(super) flow: Option<Arc<PackFlow>>,
}

impl ResolvedNode<'_> {
    /// The kind of the node, if its type is known.
    pub(super) fn kind(&self) -> Option<NodeKind> {
        Some(self.node_type.as_ref()?.info().kind)
    }

    /// Whether it is of a type of a pack that the flow names.
    pub(super) fn is_of_pack(&self) -> bool {
        self.node_type.as_ref().is_some_and(|of| of.flow.is_some())
    }

    /// Whether it is a merge that runs once all edges into it have fired.
    pub(super) fn waits_for_all(&self) -> bool {
        self.kind() == Some(NodeKind::Merge) && self.json["mode"] != "any"
    }

    /// The program that its agent is, where each node of its type names one.
    pub(super) fn program(&self) -> Option<String> {
        self.node_type.as_ref()?.describe.program_for(&self.json)
    }

    /// Its effects: what its author says, else what its type says for its input.
    pub(super) fn effects(&self) -> Effects {
        let by_type = || self.node_type.as_ref().map(|of| of.describe.effects_for(&self.json));
        self.spec.effects.or_else(by_type).unwrap_or_default()
    }
}

impl KnownType {
    pub(super) fn info(&self) -> &NodeTypeInfo {
        &self.described.info
    }
}

/// Resolves the names of a body, and reports those that name nothing.
pub(super) fn resolve<'a>(
    spec: &'a BodySpec<'a>,
    flow: &'a Flow<'a>,
    around: Option<Around<'a>>,
    sink: &mut Sink,
) -> Resolved<'a> {
    let index = ids(&spec.nodes, sink);
    let mut resolver = NodeResolver { flow, own_schemas: HashMap::new(), sink };
    let nodes: Vec<_> = spec.nodes.iter().map(|node| resolver.node(node)).collect();
    let links = Links::read(spec, &index, sink);
    let mut body = Resolved { flow, spec, around, index, links, nodes };
    sessions::resolve(&mut body, sink);
    body
}

/// Resolves single nodes.
struct NodeResolver<'r, 'a> {
    flow: &'a Flow<'a>,
    own_schemas: HashMap<String, Arc<CompiledSchema>>,
    sink: &'r mut Sink,
}

impl<'a> NodeResolver<'_, 'a> {
    fn node(&mut self, node: &'a NodeSpec<'a>) -> ResolvedNode<'a> {
        let mut resolved = self.with_its_agent(node);
        for other in &node.others {
            let since = self.sink.len();
            resolved.others.push(self.with_its_agent(other));
            self.sink.label(since, other.agent.unwrap_or_default());
        }
        resolved
    }

    fn with_its_agent(&mut self, node: &'a NodeSpec<'a>) -> ResolvedNode<'a> {
        let node_type = node_type(node, self.flow, self.sink);
        let takes = node_type.as_ref().map_or(&Value::Null, |of| &of.info().input);
        let mut input = self.flow.files.input(node, takes, self.sink);
        if let (Some(input), Some(of)) = (&mut input, &node_type) {
            servers::put(node, of.info(), self.flow.header, input, self.sink);
        }
        let json = input.as_ref().map_or(Value::Null, Yaml::json);
        let schema = node_type.as_ref().map(|of| schema(of, &json, &mut self.own_schemas));
        ResolvedNode { spec: node, node_type, input, json, schema, session: None, others: Vec::new() }
    }
}

/// The indices of the nodes by their ids; the first of two with one id has it.
fn ids(nodes: &[NodeSpec<'_>], sink: &mut Sink) -> HashMap<NodeId, NodeIx> {
    let mut index = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let (Some(id), Ok(at)) = (&node.id, u32::try_from(at)) else { continue };
        if let Some(NodeIx(first)) = index.get(id) {
            let line = nodes[*first as usize].id_span.start.line;
            let message = format!("duplicate node id `{id}`; it is first used on line {line}");
            let free = (2..).map(|nth| format!("{id}_{nth}"));
            let free = free.take(nodes.len()).find(|free| nodes.iter().all(|node| !named(node, free)));
            let help = free.map(|free| format!("give it another id, such as `{free}`"));
            let problem = Problem::error(Code::DuplicateId, node.id_span, message).help(help);
            sink.push(problem.node(Some(id)).key(node.key("id")));
        } else {
            index.insert(id.clone(), NodeIx(at));
        }
    }
    index
}

/// Whether a node has this id.
fn named(node: &NodeSpec<'_>, id: &str) -> bool {
    node.id.as_ref().is_some_and(|known| known.as_str() == id)
}

fn check_packs(header: &Header<'_>, catalog: &NodeCatalog, sink: &mut Sink) {
    let Some(packs) = &header.packs else { return };
    let known: BTreeSet<Arc<str>> = catalog.describe().into_iter().map(|info| info.pack).collect();
    let known: Vec<&str> = known.iter().map(|pack| &**pack).collect();
    for (pack, span) in packs.iter().filter(|(pack, _)| !known.contains(pack)) {
        let help = did_you_mean(pack, known.iter().copied())
            .unwrap_or_else(|| format!("available: {}", known.join(", ")));
        let message = format!("unknown node pack `{pack}`");
        sink.push(Problem::error(Code::UnknownPack, *span, message).help(help).key("nodePacks"));
    }
}

/// The type that a node names.
fn node_type(node: &NodeSpec<'_>, flow: &Flow<'_>, sink: &mut Sink) -> Option<KnownType> {
    let (name, span) = node.node_type()?;
    let (header, catalog) = (flow.header, &flow.types.catalog);
    let mut report = |problem: Problem| {
        sink.push(problem.node(node.id.as_ref()).key(node.key("type")));
    };
    let Some((describe, described)) = catalog.find(name) else {
        if flow.types.is_refused(name) {
            return None;
        }
        let agent = format!("{name}.agent");
        let help = advice(name, catalog)
            .or_else(|| did_you_mean(name, catalog.names()))
            .or_else(|| catalog.get(&agent).map(|_| format!("did you mean `{agent}`?")))
            .unwrap_or_else(|| "`inspan nodes` lists the node types".to_owned());
        report(Problem::unknown_node_type(span, name).help(help));
        return None;
    };
    let pack = &*described.info.pack;
    if header.packs.as_ref().is_some_and(|packs| packs.iter().all(|(listed, _)| *listed != pack)) {
        let message = format!("`{name}` is in the pack `{pack}`, which `nodePacks` does not list");
        let help = format!("add `{pack}` to `nodePacks`");
        report(Problem::error(Code::PackNotListed, span, message).help(help));
    }
    Some(KnownType {
        describe: describe.clone(),
        described: described.clone(),
        flow: flow.types.flow_of(name).cloned(),
    })
}

/// What to write instead of the name of a node type of other tools.
fn advice(name: &str, catalog: &NodeCatalog) -> Option<String> {
    let name = name.to_lowercase();
    let (to, how) = match name.as_str() {
        "shell" | "bash" | "sh" | "command" | "cmd" | "run" | "script" | "program" | "process" => {
            ("exec", "`exec` runs a program: `input: { argv: [cargo, test] }`")
        }
        "agent" | "llm" | "ai" | "prompt" | "model" => {
            ("agent.run", "`agent.run` runs an agent, and so does `NAME.agent`, such as `claude.agent`")
        }
        "human" | "approval" | "approve" | "ask" | "input" | "confirm" | "gate" => {
            ("human.input", "`human.input` asks a person")
        }
        "http" | "fetch" | "curl" | "webhook" | "request" => ("http.request", "did you mean `http.request`?"),
        "mcp" | "mcp.tool" | "tool" => ("mcp.call", "did you mean `mcp.call`?"),
        "parse" | "json" | "csv" | "yaml" => ("data.parse", "did you mean `data.parse`?"),
        "validate" | "schema" => ("data.validate", "did you mean `data.validate`?"),
        "foreach" | "for" | "map" | "matrix" => {
            ("control.foreach", "`control.foreach` runs its `body` for each item")
        }
        "loop" | "while" | "repeat" | "until" => ("control.loop", "`control.loop` repeats its `body`"),
        "flow" | "flow.run" | "subflow" | "workflow" | "call" => {
            ("control.subflow", "`control.subflow` runs another flow: `input: { file: other.yaml }`")
        }
        "end" | "stop" | "return" | "exit" => ("control.end", "did you mean `control.end`?"),
        "if" | "condition" | "branch" => ("control.if", "`control.if`, or `when` on an edge, decides"),
        "switch" | "router" | "route" => ("control.switch", "did you mean `control.switch`?"),
        "wait" | "sleep" | "delay" => ("control.wait", "did you mean `control.wait`?"),
        "fail" | "error" | "throw" => ("control.fail", "did you mean `control.fail`?"),
        "merge" | "join" | "parallel" => (
            "control.merge",
            "`control.merge` joins branches; nodes without a path between them run in parallel",
        ),
        _ => return None,
    };
    catalog.get(to).map(|_| how.to_owned())
}

/// The schema of an input; those that depend on the input are compiled once for each different one.
fn schema(
    node_type: &KnownType,
    input: &Value,
    own: &mut HashMap<String, Arc<CompiledSchema>>,
) -> Arc<CompiledSchema> {
    let Some(json) = node_type.describe.input_schema_for(input) else {
        return node_type.described.input.clone();
    };
    own.entry(json.to_string()).or_insert_with(|| Arc::new(CompiledSchema::of(json))).clone()
}

/// "node `review`", for a message.
pub(super) fn quoted(id: Option<&NodeId>) -> String {
    id.map_or_else(|| "the node".to_owned(), |id| format!("node `{id}`"))
}
