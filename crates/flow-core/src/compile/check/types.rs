//! What templates and conditions read, compared with what nodes give: the schemas of node types, the output schemas of
//! agents and the input schema of the flow are followed through every expression. Only what is certain is an error;
//! where a schema leaves something open, nothing is reported.

mod facts;
mod filters;
mod infer;
mod order;
mod outputs;
mod readable;
mod shape;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::{
    Checked, CheckedNode,
    input::at,
    names::{Owner, Sees, Site, input_not_given},
    promised::Promised,
};
use crate::{
    compile::resolve::{FrameKind, Resolved, ResolvedNode, id_of, quoted},
    diagnostic::{Code, Problem, Sink},
    expr::{Binding, Condition, PathRoot, Predicate, TemplateValue},
    graph::{EdgeOn, NodeIx},
    spec::{Choices, Entry, Key, Yaml},
};
use facts::Facts;
use infer::Inference;
use order::{KnownOutput, Moment, Order};
use outputs::{Around, Outputs};
use readable::Readable;
pub(in crate::compile) use shape::Shape;
use shape::{Field, Kinds, Presence, Rest};

/// The outputs of the last pass of a loop.
const PREVIOUS: &str = "previous";

/// How many edges back the conditions on the way to a node are remembered.
const STEPS_BACK: usize = 16;

/// What is known of the values of a body before anything runs.
pub(in crate::compile) struct Types<'t> {
    body: &'t Resolved<'t>,
    checked: &'t Checked,
    outer: Option<&'t Types<'t>>,
    order: Order<'t>,
    outputs: Outputs<'t>,
    /// What each frame of a node gives.
    frames: HashMap<NodeIx, Shape>,
    /// The schema of the input of a node that runs a flow.
    takes: HashMap<NodeIx, Value>,
    /// What the condition of each edge proves.
    edge_facts: Vec<Facts>,
    /// What the condition of each node proves.
    node_facts: Vec<Facts>,
    /// What is proven around the body.
    around: Facts,
}

impl<'t> Types<'t> {
    /// What is known of a body, except of what its own frames give. `outer` is that of the body around it.
    pub(in crate::compile) fn new(
        body: &'t Resolved<'t>,
        checked: &'t Checked,
        outer: Option<&'t Types<'t>>,
    ) -> Self {
        let facts = |when: &Option<Condition>| {
            when.as_ref().map_or_else(Facts::default, |when| Facts::of_condition(&when.test, true))
        };
        let edge_facts: Vec<Facts> = checked.conditions.iter().map(facts).collect();
        let node_facts: Vec<Facts> = checked.nodes.iter().map(|node| facts(&node.when)).collect();
        let order = Order::new(body, &edge_facts, &node_facts, &checked.conditions);
        let around = body.around.zip(outer);
        let enclosing = around.map(|(around, outer)| Around {
            outputs: &outer.outputs,
            kind: around.kind,
            input: &outer.checked.nodes[around.node.0 as usize].input,
        });
        let frames = HashMap::new();
        let outputs = Outputs::of(body, &checked.nodes, &order, &frames, enclosing);
        let around = around.map(|(around, outer)| outer.before(around.node)).unwrap_or_default();
        let takes = HashMap::new();
        let mut types =
            Self { body, checked, outer, order, outputs, frames, takes, edge_facts, node_facts, around };
        types.note_passes();
        types
    }

    /// Notes what the former passes of a loop gave, where this is its body: what a pass gives, as far as that is known
    /// without them.
    fn note_passes(&mut self) {
        if self.body.around.is_some_and(|around| around.kind == FrameKind::Pass) {
            let gives = self.gives();
            self.outputs.note_passes(&gives);
        }
    }

    /// Notes what each frame of a node gives.
    pub(in crate::compile) fn frames(&mut self, node: NodeIx, gives: &Shape) {
        self.outputs.frames(&self.body.nodes[node.0 as usize], node, gives);
        self.frames.insert(node, gives.clone());
    }

    /// Notes the schema of the input of the flow that a node runs.
    pub(in crate::compile) fn takes(&mut self, node: NodeIx, schema: Option<&Value>) {
        if let Some(schema) = schema {
            self.takes.insert(node, json!({ "properties": { "input": schema } }));
        }
    }

    /// What a frame of the body gives.
    pub(in crate::compile) fn gives(&self) -> Shape {
        if let (Some(schema), None) = (&self.body.flow.output_schema, self.body.around) {
            return Shape::of_schema(schema, Rest::Undeclared);
        }
        if self.ends_early() {
            return Shape::any();
        }
        if let Some(outputs) = &self.checked.outputs {
            return self.outputs.given(outputs);
        }
        let mut known = BTreeMap::new();
        for (node, ix) in self.body.nodes.iter().zip((0_u32..).map(NodeIx)) {
            let Some(id) = &node.spec.id else { continue };
            let presence = if self.order.always(ix) { Presence::Always } else { Presence::Optional };
            known.insert(id.to_string(), Field { shape: self.outputs.root(&PathRoot::Node(ix)), presence });
        }
        Shape::mapping(known, Rest::Untypical).bounded()
    }

    /// Whether a node ends the frame before the others have run, with its own outputs.
    fn ends_early(&self) -> bool {
        self.ends().next().is_some()
    }

    /// The schema that the outputs of the body must match.
    fn promises(&self) -> Option<&'t Value> {
        self.body.flow.output_schema.as_ref().filter(|_| self.body.around.is_none())
    }

    /// Whether a node that ends the frame says what the frame gives.
    fn gives_outputs(&self, end: NodeIx) -> bool {
        let outputs = self.body.nodes[end.0 as usize].json.get("outputs");
        outputs.is_some_and(|outputs| !outputs.is_null())
    }

    /// The node that may end the frame before this one has run. With `asks_outputs` one that gives the outputs of the frame
    /// itself does not count.
    fn ends_before(&self, node: NodeIx, asks_outputs: bool) -> Option<NodeIx> {
        let mut ends = self.ends().filter(|end| !(asks_outputs && self.gives_outputs(*end)));
        ends.find(|end| *end != node && !self.order.leads_to(node, *end))
    }

    /// The nodes that end the frame.
    fn ends(&self) -> impl Iterator<Item = NodeIx> {
        let ends = |name: &str| name == "control.end";
        let nodes = self.body.nodes.iter().zip((0_u32..).map(NodeIx));
        nodes
            .filter(move |(node, _)| node.spec.node_type().is_some_and(|(name, _)| ends(name)))
            .map(|(_, ix)| ix)
    }

    /// Checks what every template and condition of the body reads. Gives the keys of the flow's input without which one of them
    /// cannot be evaluated, each with what uses it.
    pub(in crate::compile) fn check(&mut self, sink: &mut Sink) -> BTreeMap<String, String> {
        if !self.frames.is_empty() {
            let enclosing = self.outputs.around();
            self.outputs = Outputs::of(self.body, &self.checked.nodes, &self.order, &self.frames, enclosing);
            self.note_passes();
        }
        let mut checker = TypeChecker { types: self, sink, needs: BTreeMap::new() };
        for (node, ix) in self.checked.nodes.iter().zip((0_u32..).map(NodeIx)) {
            checker.node(ix, node);
        }
        for (at, condition) in self.checked.conditions.iter().enumerate() {
            if let Some(condition) = condition {
                checker.edge(at, condition);
            }
        }
        checker.outputs();
        checker.terms();
        checker.needs
    }

    /// Notes the agents that an expression can name, where its schema lists them.
    pub(in crate::compile) fn listed_agents(&self, listed: &mut Choices) {
        for (node, ix) in self.checked.nodes.iter().zip((0_u32..).map(NodeIx)) {
            let Some(TemplateValue::Bound(binding)) = &node.choice else { continue };
            let site = Some(ix);
            let readable = Readable { types: self, reader: site, moment: Moment::Input, sees: Sees::Before };
            let shape = Inference::new(&readable, self.before(ix)).binding(binding);
            let names: Option<BTreeSet<String>> = shape
                .values
                .as_ref()
                .map(|values| values.iter().filter_map(|value| value.as_str()).map(str::to_owned).collect());
            if let (Some(names), Some(yaml)) = (names, self.body.nodes[ix.0 as usize].spec.choice) {
                listed.insert((yaml.span.source, yaml.span.start), names);
            }
        }
    }

    /// What is proven where a node has begun.
    fn before(&self, node: NodeIx) -> Facts {
        let mut facts = self.entry(node);
        facts.extend(self.node_facts[node.0 as usize].clone());
        facts
    }

    /// What the conditions on the way to a node prove.
    fn entry(&self, node: NodeIx) -> Facts {
        let mut facts = self.around.clone();
        let mut at = node;
        for _ in 0..STEPS_BACK {
            match self.order.incoming[at.0 as usize].as_slice() {
                [] => break,
                [edge] => {
                    let link = &self.body.links.links[*edge];
                    let before = link.from;
                    facts.extend(self.edge_facts[*edge].clone());
                    // What was skipped proves nothing.
                    if matches!(link.on, EdgeOn::Skipped | EdgeOn::Any) {
                        break;
                    }
                    facts.extend(self.node_facts[before.0 as usize].clone());
                    at = before;
                }
                edges => {
                    let proven = edges.iter().map(|edge| self.edge_facts[*edge].clone());
                    facts.extend(proven.reduce(|a, b| a.common(&b)).unwrap_or_default());
                    break;
                }
            }
        }
        facts
    }
}

/// Checks one body.
struct TypeChecker<'c, 't, 's> {
    types: &'c Types<'t>,
    sink: &'s mut Sink,
    /// The keys of the flow's input that are used for certain, each with what uses it.
    needs: BTreeMap<String, String>,
}

impl TypeChecker<'_, '_, '_> {
    fn node(&mut self, ix: NodeIx, checked: &CheckedNode) {
        let types = self.types;
        let node = &types.body.nodes[ix.0 as usize];
        let spec = node.spec;
        let at = Some(ix).filter(|_| spec.id.is_some());
        let site = Site { node: at, owner: Owner::Node(spec), sees: Sees::Before };
        self.end_outputs(ix, &checked.input, &site);
        // Literals alone read nothing.
        if checked.when.is_none()
            && spec.agent.is_none()
            && matches!(checked.input, TemplateValue::Literal(_))
        {
            return;
        }
        if let (Some(when), Some(yaml)) = (&checked.when, spec.when) {
            let key = Key::Field(&Key::Root, "when");
            let entry = types.entry(ix);
            self.condition(
                &when.test,
                yaml,
                &entry,
                &TextPlace { site: &site, key: &key, moment: Moment::When },
            );
        }
        self.work(ix, node, checked, &site);
        if spec.agent.is_some() {
            self.agents(ix, node, checked, &site);
        }
    }

    fn work(&mut self, ix: NodeIx, node: &ResolvedNode<'_>, checked: &CheckedNode, site: &Site<'_>) {
        let types = self.types;
        let Some(input) = &node.input else { return };
        let schema = types.takes.get(&ix).or_else(|| node.schema.as_ref().map(|schema| &schema.json));
        let key = Key::Field(&Key::Root, "input");
        let place = TextPlace { site, key: &key, moment: Moment::Input };
        self.value(&checked.input, input, schema, &types.before(ix), &place);
    }

    /// What names the agents of a node, and the node with each of them.
    fn agents(&mut self, ix: NodeIx, node: &ResolvedNode<'_>, checked: &CheckedNode, site: &Site<'_>) {
        let spec = node.spec;
        let before = self.types.before(ix);
        if let (Some(choice), Some(yaml)) = (&checked.choice, spec.choice) {
            let key = Key::Field(&Key::Root, "agent");
            let place = TextPlace { site, key: &key, moment: Moment::Input };
            // The key is looked up in a separate schema, as the value of an input is.
            let schema = json!({ "type": "string" });
            self.value(choice, yaml, Some(&schema), &before, &place);
        }
        let root = Key::Field(&Key::Root, "fallback");
        let after = Site { sees: Sees::After, ..*site };
        for (entry, when) in spec.fallback.iter().zip(&checked.fallback) {
            if let (Some(when), Some(yaml)) = (when, entry.when) {
                let at = Key::Index(&root, entry.at);
                let key = Key::Field(&at, "when");
                let place = TextPlace { site: &after, key: &key, moment: Moment::After };
                self.condition(&when.test, yaml, &before, &place);
            }
        }
        for (other, checked) in node.others.iter().zip(&checked.others) {
            let since = self.sink.len();
            self.work(ix, other, checked, site);
            self.sink.label(since, other.spec.agent.unwrap_or_default());
        }
    }

    fn edge(&mut self, at: usize, condition: &Condition) {
        let types = self.types;
        let link = &types.body.links.links[at];
        let Some((spec, when)) = link.spec.and_then(|spec| Some((spec, spec.when?))) else { return };
        let ends = [link.from, link.to].map(|node| id_of(types.body.spec, node.0 as usize));
        let owner = Owner::Edge(&ends[0], &ends[1], spec);
        let site = Site { node: Some(link.from), owner, sees: Sees::After };
        let key = Key::Field(&Key::Root, "when");
        let place = TextPlace { site: &site, key: &key, moment: Moment::After };
        self.condition(&condition.test, when, &types.before(link.from), &place);
    }

    /// What the body gives is evaluated when all of it has ended.
    fn outputs(&mut self) {
        let types = self.types;
        let (Some(outputs), Some(yaml)) = (&types.checked.outputs, types.body.spec.outputs) else { return };
        let site = Site { node: None, owner: Owner::Body(types.body), sees: Sees::After };
        let key = Key::Field(&Key::Root, "outputs");
        let place = TextPlace { site: &site, key: &key, moment: Moment::After };
        let schema = types.promises();
        if let Some(schema) = schema {
            Promised { given: outputs, yaml, site: &site, key: &key }.check(schema, self.sink);
        }
        self.value(outputs, yaml, schema, &types.around, &place);
    }

    /// What a node that ends the flow gives in place of its outputs.
    fn end_outputs(&mut self, ix: NodeIx, input: &TemplateValue, site: &Site<'_>) {
        let Some(schema) = self.types.promises().filter(|_| self.types.ends().any(|end| end == ix)) else {
            return;
        };
        let node = &self.types.body.nodes[ix.0 as usize];
        let Some(yaml) = node.input.as_ref().and_then(|input| input.get("outputs")) else { return };
        let given = match input {
            TemplateValue::Object(entries) => entries.iter().find(|(key, _)| key == "outputs"),
            _ => None,
        };
        let key = Key::Field(&Key::Root, "input");
        let key = Key::Field(&key, "outputs");
        let given = given.map_or(input, |(_, outputs)| outputs);
        Promised { given, yaml, site, key: &key }.check(schema, self.sink);
    }

    /// What the node around the body asks in it.
    fn terms(&mut self) {
        let types = self.types;
        let (Some(around), terms) = (types.body.around, &types.checked.terms) else { return };
        let Some(input) = &around.node().input else { return };
        let root = Key::Field(&Key::Root, "input");
        let owner = Owner::Node(around.node().spec);
        let asked = [
            ("while", &terms.while_holds, Sees::Frame, Moment::After),
            ("until", &terms.until, Sees::After, Moment::Until),
        ];
        for (name, condition, sees, moment) in asked {
            let (Some(condition), Some(yaml)) = (condition, input.get(name)) else { continue };
            let (site, key) = (Site { node: None, owner, sees }, Key::Field(&root, name));
            let place = TextPlace { site: &site, key: &key, moment };
            self.condition(&condition.test, yaml, &types.around, &place);
        }
        if let (Some(key), Some(yaml)) = (&terms.key, input.get("key")) {
            let (site, field) = (Site { node: None, owner, sees: Sees::Frame }, Key::Field(&root, "key"));
            let place = TextPlace { site: &site, key: &field, moment: Moment::After };
            self.value(key.value(), yaml, None, &types.around, &place);
        }
    }

    fn condition(&mut self, test: &Predicate, yaml: &Yaml, facts: &Facts, place: &TextPlace<'_>) {
        let inner = || yaml.entries().first();
        match test {
            // A part of `and` is reached if those before it hold, and one of `or` if they do not.
            Predicate::All(parts) | Predicate::Any(parts) => {
                let Some(entry) = inner() else { return };
                let key = Key::Field(place.key, &entry.key);
                let held = matches!(test, Predicate::All(_));
                let mut facts = facts.clone();
                for (at, (part, yaml)) in parts.iter().zip(entry.value.items()).enumerate() {
                    let key = Key::Index(&key, at);
                    self.condition(part, yaml, &facts, &TextPlace { key: &key, ..*place });
                    facts.extend(Facts::of_condition(part, held));
                }
            }
            Predicate::Not(part) => match inner() {
                Some(entry) => {
                    let key = Key::Field(place.key, &entry.key);
                    self.condition(part, &entry.value, facts, &TextPlace { key: &key, ..*place });
                }
                None => self.leaf(part, yaml, facts, place),
            },
            Predicate::Equals(..) => {
                let Some((entry, var)) = inner().and_then(|entry| Some((entry, entry.value.get("var")?)))
                else {
                    return;
                };
                let equals = Key::Field(place.key, &entry.key);
                self.leaf(test, var, facts, &TextPlace { key: &Key::Field(&equals, "var"), ..*place });
            }
            _ => self.leaf(test, yaml, facts, place),
        }
    }

    fn leaf(&mut self, test: &Predicate, text: &Yaml, facts: &Facts, place: &TextPlace<'_>) {
        let readable = self.readable(place);
        let mut inference = Inference::new(&readable, facts.clone());
        inference.condition(test);
        let (findings, inputs) = (inference.findings, inference.inputs);
        self.report(findings, text, place);
        self.need(inputs, text, place);
    }

    fn value(
        &mut self,
        value: &TemplateValue,
        yaml: &Yaml,
        schema: Option<&Value>,
        facts: &Facts,
        place: &TextPlace<'_>,
    ) {
        match value {
            TemplateValue::Literal(_) => {}
            TemplateValue::Condition(condition) => self.condition(&condition.test, yaml, facts, place),
            TemplateValue::List(items) => {
                for (at, (item, yaml)) in items.iter().zip(yaml.items()).enumerate() {
                    let key = Key::Index(place.key, at);
                    self.value(item, yaml, schema, facts, &TextPlace { key: &key, ..*place });
                }
            }
            TemplateValue::Object(fields) => {
                for (at, (name, field)) in fields.iter().enumerate() {
                    let Some(entry) = entry(yaml, at, name) else { continue };
                    let key = Key::Field(place.key, name);
                    self.value(field, &entry.value, schema, facts, &TextPlace { key: &key, ..*place });
                }
            }
            TemplateValue::Text(binding) | TemplateValue::Bound(binding) => {
                let readable = self.readable(place);
                let mut inference = Inference::new(&readable, facts.clone());
                let shape = inference.binding(binding);
                let becomes_text = matches!(value, TemplateValue::Text(_));
                if let (true, Binding::Path(path)) = (becomes_text, binding) {
                    inference.whole_output(path);
                }
                let (findings, inputs) = (inference.findings, inference.inputs);
                self.report(findings, yaml, place);
                self.need(inputs, yaml, place);
                // Anything but null becomes text where only text is allowed.
                if !becomes_text || shape.kinds == Kinds::NULL {
                    self.fits(&shape, binding, yaml, schema, place);
                }
            }
        }
    }

    /// Reports a value that is never valid where it is used.
    fn fits(
        &mut self,
        given: &Shape,
        binding: &Binding,
        yaml: &Yaml,
        schema: Option<&Value>,
        place: &TextPlace<'_>,
    ) {
        let Some(expected) = schema.and_then(|root| at(root, place.key)) else { return };
        let Some(conflict) = given.conflict(&Shape::of_schema(expected, Rest::Open)) else { return };
        let what = match binding {
            Binding::Path(path) => format!("`{}{}`", path.source, conflict.path),
            Binding::CompiledExpr(source, _) if source.len() <= 60 => format!("`{source}`"),
            Binding::CompiledExpr(..) => "the expression".to_owned(),
            Binding::Text(_) | Binding::CompiledTemplate(_) => "the template".to_owned(),
        };
        let (takes, gives) = (&conflict.takes, &conflict.gives);
        let message =
            format!("`{}{}` must be {takes}, but {what} is {gives}", last(place.key), conflict.path);
        let help = match (takes.as_str(), gives.as_str()) {
            ("an integer", "a string") => Some("convert it: `… | int`"),
            ("a number", "a string") => Some("convert it: `… | float`"),
            ("a list", "a string") => Some("split it: `… | lines`, or `… | split(',')`"),
            ("a string", _) => Some("convert it: `… | string`, or `… | tojson`"),
            ("true or false", _) => Some("compare it: `… == …`"),
            _ => None,
        };
        // What does not fit as an output fails at the end, and what ran before stays readable.
        let problem = match place.site.owner {
            Owner::Body(_) => Problem::warning,
            _ => Problem::error,
        };
        let problem = problem(Code::WrongType, yaml.span, message).help(help.map(str::to_owned));
        self.sink.push(place.site.locate(problem, place.key));
    }

    /// Notes the keys of the flow's input without which a text cannot be evaluated.
    fn need(&mut self, inputs: Vec<(String, (usize, usize))>, text: &Yaml, place: &TextPlace<'_>) {
        let (body, site) = (self.types.body, place.site);
        let user = match site.owner {
            Owner::Node(node) => node.id.as_ref(),
            Owner::Edge(..) => site.node.and_then(|node| body.nodes[node.0 as usize].spec.id.as_ref()),
            Owner::Body(body) => body.around.and_then(|around| around.node().spec.id.as_ref()),
        };
        for (key, (offset, len)) in inputs {
            if body.flow.header.input.contains_key(&key) {
                continue;
            }
            if let Some(problem) = input_not_given(&key, body.flow) {
                self.sink.push(site.locate(problem.at(text.range(offset, len)), place.key));
            }
            // What belongs to no node are the outputs of the flow.
            let user = || user.map_or_else(|| "`outputs`".to_owned(), |id| quoted(Some(id)));
            self.needs.entry(key).or_insert_with(user);
        }
    }

    fn readable(&self, place: &TextPlace<'_>) -> Readable<'_> {
        Readable { types: self.types, reader: place.site.node, moment: place.moment, sees: place.site.sees }
    }

    fn report(&mut self, findings: Vec<(usize, usize, Problem)>, text: &Yaml, place: &TextPlace<'_>) {
        for (offset, len, problem) in findings {
            self.sink.push(place.site.locate(problem.at(text.range(offset, len)), place.key));
        }
    }
}

/// The place of a text, and when it is evaluated.
#[derive(Clone, Copy)]
struct TextPlace<'p> {
    site: &'p Site<'p>,
    key: &'p Key<'p>,
    moment: Moment,
}

impl Types<'_> {
    /// The body so many further out.
    fn further_out(&self, depth: u32) -> Option<&Types<'_>> {
        match depth {
            0 => Some(self),
            depth => self.outer?.further_out(depth - 1),
        }
    }

    /// Whether `previous` is that of a loop, and not an item.
    fn is_in_loop(&self) -> bool {
        match self.body.around.map(|around| around.kind) {
            Some(FrameKind::Pass) => true,
            Some(FrameKind::Item(item)) if item == PREVIOUS => false,
            _ => self.outer.is_some_and(Types::is_in_loop),
        }
    }

    /// Whether a node of a body further out has an output where the node that leads to this body runs.
    fn outer_output(&self, depth: u32, source: NodeIx) -> KnownOutput {
        let (Some(around), Some(outer)) = (self.body.around, self.outer) else { return KnownOutput::Certain };
        match depth {
            0 | 1 => outer.order.output(source, around.node, Moment::Input),
            depth => outer.outer_output(depth - 1, source),
        }
    }
}

/// The entry of a key, which is most often at the same place.
fn entry<'y>(yaml: &'y Yaml, at: usize, name: &str) -> Option<&'y Entry> {
    yaml.entries().get(at).filter(|entry| entry.key == name).or_else(|| yaml.entry(name))
}

fn last<'k>(key: &'k Key<'_>) -> std::borrow::Cow<'k, str> {
    match key {
        Key::Index(parent, at) => format!("{}[{at}]", parent.last()).into(),
        key => key.last().into(),
    }
}
