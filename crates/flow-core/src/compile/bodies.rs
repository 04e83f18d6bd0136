//! Compiles the body of a flow, then the bodies of its nodes, at any depth, and the flows that it runs.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
};

use inspan_protocol::NodeId;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    build,
    check::{self, Checked, FrameTerms, SchemaCheck, Shape, Types},
    input::Declared,
    resolve::{self, Around, Flow, FrameKind, Resolved, ResolvedNode},
};
use crate::{
    catalog::{CompiledSchema, NodeCatalog},
    diagnostic::{Code, Problem, Sink, SourceSpan},
    expr::has_segments,
    graph::{Body, BodyIx, Frames, FramesKind, NodeIx, Subflow},
    node::NodeKind,
    nodes::read_input,
    source::Loaded,
    spec::{BodySpec, Choices, Data, FlowName, NodeTypes, PackFlow, Spec, Yaml, expand},
};

/// How deep bodies and flows may be nested.
const MAX_DEPTH: usize = 16;
/// The name of the item in a body that does not say another.
const ITEM: &str = "item";

/// All bodies of a flow.
pub(super) struct CompiledBodies {
    pub(super) all: Vec<Body>,
    /// The keys of the flow's input that are used for certain, each with what uses it.
    pub(super) needs: BTreeMap<String, String>,
    /// The secrets that the flow and the flows that it runs name.
    pub(super) secrets: Vec<String>,
    /// The names that the schemas of expressions of `agent` list.
    pub(super) listed: Choices,
}

/// Compiles bodies.
pub(super) struct Bodies<'c> {
    loaded: &'c Loaded,
    catalog: &'c NodeCatalog,
    choices: &'c Choices,
    sink: &'c mut Sink,
    all: Vec<Body>,
    listed: Choices,
    /// The flows of other files, by their paths.
    flows: HashMap<String, KnownFlow>,
    /// The path of the flow that is being compiled.
    path: String,
    /// The flows that run others without a limit, each with the one that it runs.
    unlimited: Vec<(String, String)>,
    secrets: Vec<String>,
    depth: usize,
    /// The deepest level so far of the flow that is being compiled.
    deepest: usize,
}

/// The input that a node gives to a flow.
struct BodyCall {
    /// What takes it, in words.
    owner: String,
    given: Yaml,
    /// The node.
    id: Option<NodeId>,
    /// The key of the input in the file.
    root: String,
}

/// A flow that others run.
struct KnownFlow {
    body: BodyIx,
    schema: Option<CompiledSchema>,
    /// The keys of its input that it uses for certain; nothing while it is being compiled.
    needs: Option<BTreeMap<String, String>>,
    /// What nodes gave to it meanwhile.
    waiting: Vec<BodyCall>,
    /// How many levels of bodies and flows are in it.
    height: usize,
    /// What it gives, as far as it is known.
    gives: Shape,
}

/// A body that was compiled, and what belongs to the node that runs it.
struct CompiledBody {
    body: BodyIx,
    terms: FrameTerms,
    needs: BTreeMap<String, String>,
    /// What its frames give.
    gives: Shape,
}

impl BodyCall {
    fn of(node: &ResolvedNode<'_>, owner: String, given: &Yaml, key: &str) -> Self {
        Self { owner, given: given.clone(), id: node.spec.id.clone(), root: node.spec.key(key) }
    }
}

impl<'c> Bodies<'c> {
    /// Compiles the body of the flow that was loaded, and all in it.
    pub(super) fn compile(
        spec: &BodySpec<'_>,
        flow: &Flow<'_>,
        loaded: &'c Loaded,
        catalog: &'c NodeCatalog,
        choices: &'c Choices,
        sink: &'c mut Sink,
    ) -> CompiledBodies {
        let mut bodies = Self::new(loaded, catalog, choices, sink);
        bodies.add_secrets(flow);
        let compiled = bodies.body(spec, flow, None, None, None);
        let Self { all, secrets, listed, .. } = bodies;
        CompiledBodies { all, needs: compiled.needs, secrets, listed }
    }

    /// Compiles the flows that the types of packs run, to report their problems.
    pub(super) fn check_packs(
        types: &NodeTypes,
        loaded: &'c Loaded,
        catalog: &'c NodeCatalog,
        sink: &'c mut Sink,
    ) {
        let choices = Choices::new();
        let mut bodies = Bodies::new(loaded, catalog, &choices, sink);
        for flow in types.flows() {
            bodies.flow_of_pack(flow);
        }
    }

    fn new(loaded: &'c Loaded, catalog: &'c NodeCatalog, choices: &'c Choices, sink: &'c mut Sink) -> Self {
        Self {
            loaded,
            catalog,
            choices,
            sink,
            all: Vec::new(),
            listed: Choices::new(),
            flows: HashMap::new(),
            path: String::new(),
            unlimited: Vec::new(),
            secrets: Vec::new(),
            depth: 0,
            deepest: 0,
        }
    }

    fn add_secrets(&mut self, flow: &Flow<'_>) {
        for (name, _) in &flow.header.secrets {
            if !self.secrets.iter().any(|known| known == name) {
                self.secrets.push((*name).to_owned());
            }
        }
    }

    fn body(
        &mut self,
        spec: &BodySpec<'_>,
        flow: &Flow<'_>,
        around: Option<Around<'_>>,
        subflow: Option<Subflow>,
        outer: Option<&Types<'_>>,
    ) -> CompiledBody {
        let at = self.all.len();
        // What it runs comes after it; a flow that runs itself finds what it declares.
        self.all.push(Body { subflow, ..Body::default() });
        let resolved = resolve::resolve(spec, flow, around, self.sink);
        let mut checked = check::check(&resolved, self.sink);
        let mut types = Types::new(&resolved, &checked, outer);
        self.depth += 1;
        let nodes = 0..u32::try_from(resolved.nodes.len()).unwrap_or(u32::MAX);
        let mut needs = BTreeMap::new();
        let frames = nodes.map(|ix| self.frames(NodeIx(ix), &resolved, &checked, &mut types, &mut needs));
        let frames = frames.collect();
        self.depth -= 1;
        needs.extend(types.check(self.sink));
        types.listed_agents(&mut self.listed);
        let gives = types.gives();
        let terms = mem::take(&mut checked.terms);
        let subflow = self.all[at].subflow.take();
        self.all[at] = build::body(resolved, checked, frames, subflow);
        CompiledBody { body: BodyIx(u32::try_from(at).unwrap_or(u32::MAX)), terms, needs, gives }
    }

    /// What a node runs in frames, if it is of such a type.
    fn frames(
        &mut self,
        ix: NodeIx,
        resolved: &Resolved<'_>,
        checked: &Checked,
        types: &mut Types<'_>,
        needs: &mut BTreeMap<String, String>,
    ) -> Option<Box<Frames>> {
        let node = &resolved.nodes[ix.0 as usize];
        let known = node.node_type.as_ref()?;
        let node_type = known.info();
        if node_type.kind != NodeKind::Frames {
            if node.spec.body.is_some() {
                let message = format!("a node of the type `{}` has no `body`", node_type.name);
                let help = "`control.foreach` and `control.loop` run a body".to_owned();
                let problem = Problem::error(Code::UnknownKey, node.spec.body_span, message).help(help);
                self.report(node, problem, "body");
            }
            return None;
        }
        if self.is_too_deep(node, self.depth, "body") {
            return None;
        }
        let (body, kind) = match &*node_type.name {
            "control.foreach" => {
                let item = node.json.get("as").and_then(Value::as_str).unwrap_or(ITEM);
                let compiled = self.inline(ix, resolved, FrameKind::Item(item), types, needs)?;
                let on_item_error = stated(&node.json, "onItemError").unwrap_or_default();
                let (item, key) = (item.to_owned(), compiled.terms.key);
                (compiled.body, FramesKind::Foreach { item, on_item_error, key })
            }
            "control.loop" => {
                let compiled = self.inline(ix, resolved, FrameKind::Pass, types, needs)?;
                let kind = FramesKind::Loop {
                    while_holds: compiled.terms.while_holds,
                    until: compiled.terms.until,
                    max_iterations: stated(&node.json, "maxIterations").unwrap_or(1),
                    on_exhausted: stated(&node.json, "onExhausted").unwrap_or_default(),
                };
                (compiled.body, kind)
            }
            _ => match &known.flow {
                Some(flow) => (self.pack(ix, resolved, flow, types)?, FramesKind::Pack),
                None => {
                    let body = self.subflow(ix, resolved, checked, types)?;
                    (body, FramesKind::Subflow { max_depth: stated(&node.json, "maxDepth") })
                }
            },
        };
        Some(Box::new(Frames { body, kind }))
    }

    /// Whether a level is too deep; that is reported.
    fn is_too_deep(&mut self, node: &ResolvedNode<'_>, level: usize, key: &str) -> bool {
        self.deepest = self.deepest.max(level);
        if level <= MAX_DEPTH {
            return false;
        }
        let message = format!("bodies and flows are nested deeper than {MAX_DEPTH} levels");
        self.report(node, Problem::error(Code::TooLarge, node.spec.id_span, message), key);
        true
    }

    /// Compiles the `body` of a node.
    fn inline(
        &mut self,
        ix: NodeIx,
        resolved: &Resolved<'_>,
        kind: FrameKind<'_>,
        types: &mut Types<'_>,
        needs: &mut BTreeMap<String, String>,
    ) -> Option<CompiledBody> {
        let node = &resolved.nodes[ix.0 as usize];
        let Some(body) = &node.spec.body else {
            let message = format!("{} is missing `body`", resolve::quoted(node.spec.id.as_ref()));
            let help = "write `body: { nodes: […] }` beside `input`".to_owned();
            let problem = Problem::error(Code::MissingKey, node.spec.id_span, message).help(help);
            self.report(node, problem, "body");
            return None;
        };
        let around = Around { body: resolved, node: ix, kind };
        let mut compiled = self.body(body, resolved.flow, Some(around), None, Some(types));
        if compiled.terms.while_holds.as_ref().is_some_and(|holds| !holds.holds_at_first()) {
            compiled.gives = compiled.gives.of_pass_if_any();
        }
        types.frames(ix, &compiled.gives);
        for (key, user) in mem::take(&mut compiled.needs) {
            needs.entry(key).or_insert(user);
        }
        Some(compiled)
    }

    /// Compiles the flow that a node runs, unless that was done for another node.
    fn subflow(
        &mut self,
        ix: NodeIx,
        resolved: &Resolved<'_>,
        checked: &Checked,
        types: &mut Types<'_>,
    ) -> Option<BodyIx> {
        let node = &resolved.nodes[ix.0 as usize];
        if node.spec.body.is_some() {
            let message = "`control.subflow` has no `body`: its nodes are in the file of the other flow";
            self.report(node, Problem::error(Code::UnknownKey, node.spec.body_span, message), "body");
        }
        let (name, span) = FlowName::of(node.input.as_ref()?)?;
        let key = if matches!(name, FlowName::File(_)) { "input.file" } else { "input.flow" };
        if !name.is_path() {
            if name.is_template() {
                // That was reported with the other keys that cannot be templates.
                return None;
            }
            let message = "this cannot be the name of a flow: it has letters, digits, `_` and `-` only";
            self.report(node, Problem::error(Code::InvalidValue, span, message), key);
            return None;
        }
        let path = resolved.flow.files.flow_path(name);
        if let Some(problem) = resolved.flow.files.refused_flow(name, span) {
            self.report(node, problem, key);
            return None;
        }
        if node.json.get("maxDepth").is_none_or(Value::is_null) {
            let help = "set `maxDepth` in the `input` of this node";
            self.recursion(node, &path, span, (key, help));
        }
        self.known_height(node, &path, key);
        let body = self.load(&path)?;
        self.check_call(node, &path, &checked.nodes[ix.0 as usize].bound);
        if let Some(known) = self.flows.get(&path) {
            types.frames(ix, &known.gives);
            let flow = self.all[known.body.0 as usize].subflow.as_ref();
            types.takes(ix, flow.and_then(|flow| flow.input_schema.as_ref()));
        }
        Some(body)
    }

    /// Compiles the flow that a node of a pack runs, unless that was done for another node.
    fn pack(
        &mut self,
        ix: NodeIx,
        resolved: &Resolved<'_>,
        flow: &PackFlow,
        types: &mut Types<'_>,
    ) -> Option<BodyIx> {
        let node = &resolved.nodes[ix.0 as usize];
        let (name, span) = node.spec.node_type()?;
        if node.spec.body.is_some() {
            let message = format!("a node of the type `{name}` has no `body`: it runs a flow of its pack");
            self.report(node, Problem::error(Code::UnknownKey, node.spec.body_span, message), "body");
        }
        let help = "`control.subflow` runs a flow of the same pack again, with `maxDepth`";
        self.recursion(node, &flow.path, span, ("type", help));
        self.known_height(node, &flow.path, "type");
        let body = self.flow_of_pack(flow)?;
        if let (Some(input), Some(known)) = (&node.input, self.flows.get(&flow.path)) {
            types.frames(ix, &known.gives);
            self.check_keys(&flow.path, BodyCall::of(node, format!("`{name}`"), input, "input"));
        }
        Some(body)
    }

    fn flow_of_pack(&mut self, flow: &PackFlow) -> Option<BodyIx> {
        match &flow.program {
            Some(program) => self.flow(&flow.path, program, true),
            None => self.load(&flow.path),
        }
    }

    /// Reports a flow that was compiled for another node and is too deep here.
    fn known_height(&mut self, node: &ResolvedNode<'_>, path: &str, key: &str) {
        if let Some(known) = self.flows.get(path) {
            self.is_too_deep(node, self.depth + known.height, key);
        }
    }

    /// Notes that a flow runs another without a limit, and reports it if that one leads back to it.
    fn recursion(
        &mut self,
        node: &ResolvedNode<'_>,
        path: &str,
        span: SourceSpan,
        (key, help): (&str, &str),
    ) {
        let call = (self.path.clone(), path.to_owned());
        if self.unlimited.contains(&call) {
            return;
        }
        let way = self.way(path, &self.path);
        self.unlimited.push(call);
        let Some(way) = way else { return };
        let message = format!("a flow runs itself without a limit: {} -> {path}", way.join(" -> "));
        self.report(node, Problem::error(Code::Recursion, span, message).help(help.to_owned()), key);
    }

    /// The flows from one to another, each of which runs the next one without a limit.
    fn way(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut ways = vec![vec![from]];
        let mut seen = HashSet::from([from]);
        while let Some(way) = ways.pop() {
            let last = *way.last()?;
            if last == to {
                return Some(way.into_iter().map(str::to_owned).collect());
            }
            for (_, next) in self.unlimited.iter().filter(|(caller, _)| caller == last) {
                if seen.insert(next) {
                    ways.push(way.iter().copied().chain([&**next]).collect());
                }
            }
        }
        None
    }

    /// Compiles the flow of a file, unless that was done for another node.
    fn load(&mut self, path: &str) -> Option<BodyIx> {
        if let Some(known) = self.flows.get(path) {
            return Some(known.body);
        }
        let document = self.loaded.flow(path)?;
        document.problems.iter().for_each(|problem| self.sink.push(problem.clone()));
        self.flow(path, document.root.as_ref()?, false)
    }

    /// Compiles a flow, unless that was done for another node.
    fn flow(&mut self, path: &str, root: &Yaml, is_program: bool) -> Option<BodyIx> {
        if let Some(known) = self.flows.get(path) {
            return Some(known.body);
        }
        let loaded = self.loaded;
        let types = NodeTypes::read(root, path, loaded, self.catalog, self.sink);
        let root = expand(root, path, loaded, &types.catalog, self.choices, self.sink);
        let spec = Spec::read(&root, self.sink)?;
        let mut flow = Flow::resolve(&spec.header, loaded, path, &types, self.sink);
        flow.is_program = is_program;
        self.add_secrets(&flow);
        let subflow = Subflow {
            name: spec.header.name.clone(),
            state: spec.header.state.clone().into(),
            input: spec.header.input.clone(),
            input_schema: flow.input_schema.clone(),
            output_schema: flow.output_schema.clone(),
        };
        let body = BodyIx(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        let known = KnownFlow {
            body,
            schema: flow.input_schema.clone().map(CompiledSchema::of),
            needs: None,
            waiting: Vec::new(),
            height: 0,
            gives: Shape::any(),
        };
        self.flows.insert(path.to_owned(), known);
        let caller = mem::replace(&mut self.path, path.to_owned());
        let deepest = mem::replace(&mut self.deepest, self.depth);
        let compiled = self.body(&spec.body, &flow, None, Some(subflow), None);
        self.path = caller;
        let height = self.deepest - self.depth;
        self.deepest = self.deepest.max(deepest);
        let known = self.flows.get_mut(path)?;
        (known.needs, known.height, known.gives) = (Some(compiled.needs), height, compiled.gives);
        for call in mem::take(&mut known.waiting) {
            self.check_keys(path, call);
        }
        Some(body)
    }

    /// Checks the input that a node gives to a flow, as far as it is known. `bound` are the pointers of what is not.
    fn check_call(&mut self, node: &ResolvedNode<'_>, path: &str, bound: &[String]) {
        let (Some(input), Some(known)) = (&node.input, self.flows.get(path)) else { return };
        let absent = Yaml::empty(SourceSpan { end: input.span.start, ..input.span });
        let given = input.get("input").filter(|given| !matches!(given.data, Data::Null)).unwrap_or(&absent);
        let Value::Object(json) = given.json() else { return };
        let owner = &*format!("the flow `{path}`");
        if let (Some(schema), Some(subflow)) = (&known.schema, &self.all[known.body.0 as usize].subflow) {
            let mut whole = subflow.input.clone();
            whole.extend(json);
            let bound: Vec<String> =
                bound.iter().filter_map(|bound| bound.strip_prefix("/input")).map(str::to_owned).collect();
            let whole = Value::Object(whole);
            let (id, root) = (node.spec.id.as_ref(), node.spec.key("input.input"));
            SchemaCheck { input: given, json: &whole, bound: &bound, schema, owner, id, root }
                .check(self.sink);
        }
        self.check_keys(path, BodyCall::of(node, owner.to_owned(), given, "input.input"));
    }

    /// Reports keys that a flow does not declare, and those that it uses and that are not given. A flow that is being
    /// compiled does so once it is known what it uses.
    fn check_keys(&mut self, path: &str, call: BodyCall) {
        let Some(known) = self.flows.get_mut(path) else { return };
        let Some(needs) = &known.needs else { return known.waiting.push(call) };
        let Some(subflow) = &self.all[known.body.0 as usize].subflow else { return };
        let BodyCall { owner, given, id, root } = &call;
        let Value::Object(json) = given.json() else { return };
        let declared = Declared { input: &subflow.input, schema: subflow.input_schema.as_ref(), needs };
        let mut report = |problem: Problem, key: &str| {
            self.sink.push(problem.node(id.as_ref()).key(format_args!("{root}.{key}")));
        };
        for entry in given.entries() {
            if let Some(help) = declared.unknown(&entry.key) {
                let message = format!("{owner} declares no input `{}`", entry.key);
                report(Problem::error(Code::UnknownKey, entry.key_span, message).help(help), &entry.key);
            }
            let is_known = |value: &&Value| value.as_str().is_none_or(|text| !has_segments(text));
            let value = json.get(&entry.key).filter(is_known);
            if let Some((message, help)) = value.and_then(|value| declared.other_kind(&entry.key, value)) {
                let problem = Problem::warning(Code::WrongType, entry.value.span, message);
                report(problem.help(help), &entry.key);
            }
        }
        for (key, user) in declared.missing(&json) {
            let message = format!("{owner} needs the input `{key}`, which its {user} uses");
            let span = SourceSpan { end: given.span.start, ..given.span };
            report(Problem::error(Code::MissingKey, span, message), key);
        }
    }

    fn report(&mut self, node: &ResolvedNode<'_>, problem: Problem, key: &str) {
        self.sink.push(problem.node(node.spec.id.as_ref()).key(node.spec.key(key)));
    }
}

/// A value of an input that is not a template.
fn stated<T: DeserializeOwned>(input: &Value, key: &str) -> Option<T> {
    read_input(input.get(key)?.clone()).ok()
}
