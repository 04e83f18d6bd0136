//! The shapes of what can be read: the output of each node and the input of the flow.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock},
};

use inspan_protocol::ErrorCode;
use serde_json::{Value, json};

use super::{
    facts::Facts,
    infer::{Inference, Roots},
    order::{KnownOutput, Order},
    shape::{Field, Fields, Kinds, Presence, Rest, Shape},
};
use crate::{
    catalog::SAME,
    compile::{
        check::CheckedNode,
        resolve::{FrameKind, Resolved, ResolvedNode},
    },
    expr::{FRAME, PathRoot, TemplateValue},
    graph::{NodeIx, OnFailure},
    node::NodeKind,
};

/// The shapes of all that the texts of a body can read.
pub(super) struct Outputs<'t> {
    nodes: Vec<Shape>,
    flow: Shape,
    /// The names of the frames.
    locals: Vec<(String, Shape)>,
    around: Option<Around<'t>>,
}

/// What is around a body.
#[derive(Clone, Copy)]
pub(super) struct Around<'t> {
    pub(super) outputs: &'t Outputs<'t>,
    pub(super) kind: FrameKind<'t>,
    /// The input of the node that runs the body.
    pub(super) input: &'t TemplateValue,
}

impl<'t> Outputs<'t> {
    pub(super) fn of(
        body: &Resolved<'_>,
        nodes: &[CheckedNode],
        order: &Order<'_>,
        frames: &HashMap<NodeIx, Shape>,
        around: Option<Around<'t>>,
    ) -> Self {
        let locals = around.map(|around| around.locals()).unwrap_or_default();
        let flow = flow_shape(body);
        let mut outputs = Self { nodes: vec![Shape::any(); nodes.len()], flow, locals, around };
        let mut types: HashMap<&str, Shape> = HashMap::new();
        let mut newest: HashMap<&str, Shape> = HashMap::new();
        // A node that gives its input back knows more when what it reads is known.
        for &ix in &order.sorted {
            let at = ix.0 as usize;
            let shape = outputs.of_agents(&body.nodes[at], &nodes[at], &mut types);
            let node_type = body.nodes[at].spec.node_type().map_or("", |(name, _)| name);
            // Nodes of one type mostly give the same, which then is in memory once.
            outputs.nodes[at] = match newest.get(node_type) {
                Some(same) if *same == shape => same.clone(),
                _ => {
                    newest.insert(node_type, shape.clone());
                    shape
                }
            };
            if let Some(gives) = frames.get(&ix) {
                outputs.frames(&body.nodes[at], ix, gives);
            }
        }
        outputs
    }

    /// Gives `previous` and `passes` the shape of what a pass gives. In the first pass there is no `previous`.
    pub(super) fn note_passes(&mut self, gives: &Shape) {
        let gives = gives.clone().without_values();
        let previous = Shape { kinds: gives.kinds.or(Kinds::NULL), ..gives.clone() };
        self.locals = vec![("previous".to_owned(), previous), ("passes".to_owned(), Shape::list(gives))];
    }

    pub(super) fn around(&self) -> Option<Around<'t>> {
        self.around
    }

    /// Puts what each frame gives into the output of the node that runs them.
    pub(super) fn frames(&mut self, node: &ResolvedNode<'_>, ix: NodeIx, gives: &Shape) {
        let shape = &mut self.nodes[ix.0 as usize];
        if node.is_of_pack() {
            *shape = or_failed(node, gives.clone());
            return;
        }
        let Some(fields) = &shape.fields else { return };
        let mut fields = Fields::clone(fields);
        fields.rest = Rest::Closed;
        for (key, field) in &mut fields.known {
            match key.as_str() {
                "outputs" => field.shape = gives.clone(),
                "values" => field.shape = Shape::list(gives.clone()),
                "results" => {
                    let error = Field { presence: Presence::Optional, ..always(error_shape()) };
                    let presence = match node.json.get("onItemError").and_then(Value::as_str) {
                        Some("continue" | "stop") => Presence::UnlessFailed("error"),
                        _ => Presence::Always,
                    };
                    let parts = [
                        ("index".to_owned(), always(Shape::of(Kinds::INTEGER))),
                        ("item".to_owned(), always(Shape::any())),
                        ("outputs".to_owned(), Field { shape: gives.clone(), presence }),
                        ("error".to_owned(), error),
                    ];
                    field.shape = Shape::list(Shape::mapping(parts.into(), Rest::Closed));
                }
                _ => {}
            }
        }
        shape.fields = Some(Arc::new(fields));
    }

    /// The shape of the value at the start of a path.
    pub(super) fn root(&self, root: &PathRoot) -> Shape {
        match root {
            PathRoot::Node(node) | PathRoot::MayFail(node) => self.output(0, *node),
            PathRoot::Outer { depth, node, .. } => self.output(*depth, *node),
            PathRoot::Flow => self.flow.clone(),
            PathRoot::Local(name) => self.local(name),
            PathRoot::State => Shape::any(),
        }
    }

    fn output(&self, depth: u32, node: NodeIx) -> Shape {
        match (depth, self.around) {
            (0, _) => self.nodes.get(node.0 as usize).cloned().unwrap_or_else(Shape::any),
            (depth, Some(around)) => around.outputs.output(depth - 1, node),
            (_, None) => Shape::any(),
        }
    }

    fn local(&self, name: &str) -> Shape {
        match (self.locals.iter().find(|(known, _)| known == name), self.around) {
            (Some((_, shape)), _) => shape.clone(),
            (None, Some(around)) if name != FRAME => around.outputs.local(name),
            _ => Shape::any(),
        }
    }

    /// The output of a node, whichever of its agents works on it.
    fn of_agents<'f>(
        &self,
        node: &ResolvedNode<'f>,
        checked: &CheckedNode,
        types: &mut HashMap<&'f str, Shape>,
    ) -> Shape {
        let mut shape = self.node(node, &checked.input, types);
        if node.spec.agent.is_none() {
            return shape;
        }
        for (other, checked) in node.others.iter().zip(&checked.others) {
            shape = shape.union(&self.node(other, &checked.input, types));
        }
        if let Some(fields) = &shape.fields {
            let mut fields = Fields::clone(fields);
            fields.known.insert("by".to_owned(), always(Shape::of(Kinds::STRING)));
            fields.known.insert("tried".to_owned(), always(Shape::list(Shape::of(Kinds::STRING))));
            shape.fields = Some(Arc::new(fields));
        }
        shape
    }

    fn node<'f>(
        &self,
        node: &ResolvedNode<'f>,
        input: &TemplateValue,
        types: &mut HashMap<&'f str, Shape>,
    ) -> Shape {
        let (Some(known), Some((name, _))) = (&node.node_type, node.spec.node_type()) else {
            return Shape::any();
        };
        let own = known.describe.output_schema_for(&node.json);
        let schema = own.as_ref().unwrap_or(&known.info().output);
        let shape = match &own {
            Some(schema) => Shape::of_schema(schema, Rest::Untypical),
            None => {
                let read = || Shape::of_schema(&known.info().output, Rest::Untypical);
                types.entry(name).or_insert_with(read).clone()
            }
        };
        let mut fields = shape.fields.as_deref().cloned();
        self.pass_on(schema, input, &mut fields);
        if known.info().kind == NodeKind::Agent {
            structured(&node.json, &mut fields);
        }
        or_failed(node, Shape { fields: fields.map(Arc::new), ..shape })
    }

    /// Fields that are the same as a part of the input have its shape.
    fn pass_on(&self, schema: &Value, input: &TemplateValue, fields: &mut Option<Fields>) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        let marked = properties.iter().filter_map(|(key, part)| Some((key, part.get(SAME)?.as_str()?)));
        for (key, from) in marked {
            let (Some(fields), Some(shape)) = (fields.as_mut(), self.part(input, from)) else { continue };
            fields.known.insert(key.clone(), always(shape));
        }
    }

    /// The shape of the part of an input under a pointer of one key.
    fn part(&self, input: &TemplateValue, pointer: &str) -> Option<Shape> {
        let key = pointer.strip_prefix('/')?;
        match input {
            TemplateValue::Object(entries) => {
                entries.iter().find(|(name, _)| name == key).map(|(_, value)| self.given(value))
            }
            TemplateValue::Literal(value) => Some(Shape::of_value(value.get(key)?).without_values()),
            _ => None,
        }
    }

    /// The shape of a part of an input. The values themselves are left out: a constant is there to be changed.
    pub(super) fn given(&self, value: &TemplateValue) -> Shape {
        let shape = match value {
            TemplateValue::Literal(value) => Shape::of_value(value).without_values(),
            TemplateValue::Text(_) => Shape::of(Kinds::STRING.or(Kinds::NULL)),
            TemplateValue::Bound(binding) => Inference::new(self, Facts::default()).binding(binding),
            TemplateValue::Condition(_) => Shape::of(Kinds::BOOL),
            TemplateValue::List(items) => Shape::list_of(items.iter().map(|item| self.given(item))),
            TemplateValue::Object(entries) => {
                let known = entries.iter().map(|(key, value)| (key.clone(), always(self.given(value))));
                Shape::mapping(known.collect(), Rest::Closed)
            }
        };
        shape.bounded()
    }
}

impl Around<'_> {
    /// The names that each frame has.
    fn locals(&self) -> Vec<(String, Shape)> {
        match self.kind {
            FrameKind::Pass => vec![("passes".to_owned(), Shape::of(Kinds::LIST))],
            FrameKind::Item(item) => vec![(item.to_owned(), self.item())],
        }
    }

    fn item(&self) -> Shape {
        let list = |of: &Shape| of.kinds == Kinds::LIST;
        let item = |of: &Shape| of.item().filter(|_| list(of)).unwrap_or_else(Shape::any);
        if let Some(items) = self.outputs.part(self.input, "/items") {
            if items.kinds == Kinds::MAPPING {
                let parts = [("key", Shape::of(Kinds::STRING)), ("value", Shape::any())];
                let parts = parts.map(|(key, shape)| (key.to_owned(), always(shape)));
                return Shape::mapping(parts.into(), Rest::Closed);
            }
            return item(&items);
        }
        let Some(matrix) = self.outputs.part(self.input, "/matrix") else { return Shape::any() };
        let Some(lists) = matrix.fields.as_deref().filter(|_| matrix.kinds == Kinds::MAPPING) else {
            return Shape::any();
        };
        let parts = lists.known.iter().map(|(key, field)| (key.clone(), always(item(&field.shape))));
        Shape::mapping(parts.collect(), Rest::Closed)
    }
}

impl Roots for Outputs<'_> {
    fn shape(&self, root: &PathRoot) -> Shape {
        self.root(root)
    }

    fn output(&self, _: &PathRoot) -> KnownOutput {
        KnownOutput::Certain
    }

    fn why_skipped(&self, _: &PathRoot) -> String {
        String::new()
    }

    fn is_inside(&self, _: &PathRoot, _: &str) -> bool {
        false
    }
}

/// An output, or the marker of a failure.
fn or_failed(node: &ResolvedNode<'_>, shape: Shape) -> Shape {
    let Some(mut fields) = shape.fields.as_deref().cloned() else { return shape };
    let may_fail = node.spec.policy.as_ref().is_some_and(|policy| policy.on_failure == OnFailure::Continue);
    let failed = if may_fail { Shape::of(Kinds::BOOL) } else { Shape::any() };
    if may_fail {
        for (key, field) in &mut fields.known {
            match key.as_str() {
                // What the node itself gives under these names, or the marker.
                "failed" => *field = always(field.shape.union(&failed)),
                "error" => *field = always(Shape::any()),
                _ if field.presence == Presence::Always => field.presence = Presence::UnlessFailed("failed"),
                _ => {}
            }
        }
    }
    fields.known.entry("failed".to_owned()).or_insert_with(|| always(failed));
    fields.known.entry("error".to_owned()).or_insert_with(|| always(error_shape()));
    Shape { fields: Some(Arc::new(fields)), ..shape }
}

/// The error of a node that failed. Whether it has a `detail`, and what is in it, depends on the failure.
fn error_shape() -> Shape {
    static SHAPE: LazyLock<Shape> = LazyLock::new(|| {
        let codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        let schema = json!({
            "type": "object",
            "required": ["_tag", "code", "message", "retryable"],
            "properties": {
                "_tag": { "type": "string" }, "code": { "enum": codes }, "message": { "type": "string" },
                "retryable": { "type": "boolean" }, "retryAfterMs": { "type": "integer" },
                "resetsAt": { "type": "string" }, "provider": { "type": "string" }, "detail": {},
            },
        });
        Shape::of_schema(&schema, Rest::Closed)
    });
    SHAPE.clone()
}

fn always(shape: Shape) -> Field {
    Field { shape, presence: Presence::Always }
}

/// What an agent's output schema says about its structured output.
fn structured(input: &Value, fields: &mut Option<Fields>) {
    let options = input.get("options").unwrap_or(&Value::Null);
    let field = match options.get("outputSchema") {
        // Options that are a template may hold a schema.
        _ if options.is_string() => return,
        Some(schema @ Value::Object(map)) if !map.is_empty() => {
            always(Shape::of_schema(schema, Rest::Undeclared))
        }
        None | Some(Value::Null) => {
            let Some(field) = fields.as_ref().and_then(|fields| fields.known.get("structuredOutput")) else {
                return;
            };
            Field {
                presence: Presence::Needs("an `outputSchema` in `input.options`".into()),
                ..field.clone()
            }
        }
        Some(_) => always(Shape::any()),
    };
    let open = || Fields { known: BTreeMap::new(), rest: Rest::Open };
    fields.get_or_insert_with(open).known.insert("structuredOutput".to_owned(), field);
}

fn flow_shape(body: &Resolved<'_>) -> Shape {
    let defaults = &body.flow.header.input;
    let declared = body.flow.input_schema.as_ref().map(|schema| Shape::of_schema(schema, Rest::Untypical));
    let declared = declared.as_ref().and_then(|shape| shape.fields.as_deref());
    let mut known = BTreeMap::new();
    for (key, value) in defaults {
        known.insert(key.clone(), always(Shape::of_default(value)));
    }
    for (key, field) in declared.into_iter().flat_map(|fields| &fields.known) {
        // A default is there whenever nothing else is given.
        let presence = if defaults.contains_key(key) { Presence::Always } else { field.presence.clone() };
        known.insert(key.clone(), Field { presence, ..field.clone() });
    }
    let rest = if known.is_empty() { Rest::Open } else { Rest::Untypical };
    let text = || always(Shape::of(Kinds::STRING));
    let names = [
        ("input".to_owned(), always(Shape::mapping(known, rest))),
        ("name".to_owned(), text()),
        ("sessionId".to_owned(), text()),
        ("artifacts".to_owned(), text()),
    ];
    Shape::mapping(names.into(), Rest::Open)
}
