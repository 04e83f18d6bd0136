//! What frames add to the checks: names that a body must not declare again, its outputs, and the conditions and keys that
//! the node around a body asks in the body.

use super::{
    Checker,
    input::ParsedInput,
    names::{Owner, Sees, Site},
    node::FIXED,
};
use crate::{
    catalog::CompiledSchema,
    compile::resolve::{Around, FrameKind},
    diagnostic::{Code, Problem},
    expr::{Condition, FRAME, Template, TemplateValue, has_segments, is_reserved},
    spec::{Data, Key, Yaml},
};

/// The keys of a node with frames that belong to the scope of its body.
const OF_BODY: [&str; 3] = ["while", "until", "key"];

/// What the node around a body asks in the body.
#[derive(Default)]
pub(in crate::compile) struct FrameTerms {
    /// What identifies an item.
    pub(in crate::compile) key: Option<Template>,
    /// Asked before each pass.
    pub(in crate::compile) while_holds: Option<Condition>,
    /// Asked after each pass.
    pub(in crate::compile) until: Option<Condition>,
}

impl Checker<'_> {
    /// Parses what a node with frames evaluates before its first frame.
    pub(super) fn frames_input(
        &mut self,
        input: &Yaml,
        schema: Option<&CompiledSchema>,
        site: &Site<'_>,
    ) -> ParsedInput {
        let mut own = input.clone();
        let mut later: Vec<String> = OF_BODY.iter().map(|key| format!("/{key}")).collect();
        for entry in input.entries() {
            let is_fixed = FIXED.contains(&entry.key.as_str());
            if is_fixed && entry.value.text().is_some_and(has_segments) {
                later.push(format!("/{}", entry.key));
            }
            if is_fixed || OF_BODY.contains(&entry.key.as_str()) {
                own.remove(&entry.key);
            }
        }
        let mut parsed = self.input(&own, schema, site);
        parsed.bound.append(&mut later);
        parsed
    }

    /// Parses what the node around this body asks in it.
    pub(super) fn frame_terms(&mut self) -> FrameTerms {
        let Some(around) = self.body.around else { return FrameTerms::default() };
        let node = around.node();
        let Some(input) = &node.input else { return FrameTerms::default() };
        let owner = Owner::Node(node.spec);
        let (before, after) =
            (Site { node: None, owner, sees: Sees::Frame }, Site { node: None, owner, sees: Sees::Before });
        let root = Key::Field(&Key::Root, "input");
        match around.kind {
            FrameKind::Item(_) => {
                let key = input.get("key").map(|key| {
                    let value = self.template(key, &before, &Key::Field(&root, "key"));
                    Template::new(node.spec.id.clone(), "input.key", value)
                });
                FrameTerms { key, ..FrameTerms::default() }
            }
            FrameKind::Pass => {
                let mut condition = |key: &'static str, site: &Site<'_>| {
                    input.get(key).and_then(|value| self.condition(value, site, &Key::Field(&root, key)))
                };
                let (while_holds, until) = (condition("while", &before), condition("until", &after));
                FrameTerms { while_holds, until, key: None }
            }
        }
    }

    /// Parses what the body gives.
    pub(super) fn outputs(&mut self) -> Option<TemplateValue> {
        let outputs = self.body.spec.outputs?;
        let key = Key::Field(&Key::Root, "outputs");
        let owner = Owner::Body(self.body);
        let site = Site { node: None, owner, sees: Sees::Before };
        if !matches!(outputs.data, Data::Map(_)) && !self.body.flow.is_program {
            let message = format!("`outputs` must be a mapping, found {}", outputs.kind());
            let help = "name each value: `outputs: { verdict: \"{{ review.text }}\" }`".to_owned();
            let problem = Problem::error(Code::WrongType, outputs.span, message).help(help);
            self.sink.push(site.locate(problem, &key));
            return None;
        }
        Some(self.template(outputs, &site, &key))
    }

    /// Reports names of this body that mean something else around it.
    pub(super) fn shadowed_names(&mut self) {
        let Some(around) = self.body.around else { return };
        for node in &self.body.spec.nodes {
            let Some(id) = &node.id else { continue };
            let message = match declared(around, id.as_str()) {
                true => Some(format!("`{id}` is reserved in this body and cannot be a node id")),
                false => taken(around, id.as_str()).map(|line| {
                    format!("`{id}` is already visible in this body: it is declared on line {line}")
                }),
            };
            if let Some(message) = message {
                let problem = Problem::error(Code::ShadowedName, node.id_span, message);
                self.sink.push(problem.node(Some(id)).key(node.key("id")));
            }
        }
        self.frame_names(around);
    }

    /// The names that each frame has must not be those of nodes or items around it.
    fn frame_names(&mut self, around: Around<'_>) {
        let node = around.node().spec;
        let names: &[&str] = match &around.kind {
            FrameKind::Item(item) => {
                let named = around.node().input.as_ref().and_then(|input| input.get("as"));
                self.item_name(item, named, around);
                &[FRAME]
            }
            FrameKind::Pass => &[FRAME, "previous", "passes"],
        };
        for name in names {
            if let Some(line) = taken(around, name) {
                let message = format!(
                    "the body of this node has its own `{name}`, and `{name}` is declared on line {line}"
                );
                let problem = Problem::error(Code::ShadowedName, node.id_span, message);
                self.sink.push(problem.node(node.id.as_ref()).key(node.key("body")));
            }
        }
    }

    /// Checks the name of the items, which has a place of its own if an author gave it.
    fn item_name(&mut self, item: &str, named: Option<&Yaml>, around: Around<'_>) {
        let node = around.node().spec;
        let span = named.map_or(node.id_span, |named| named.span);
        if has_segments(item) {
            // That was reported with the other keys that cannot be templates.
            return;
        }
        let is_name = inspan_protocol::NodeId::new(item).is_ok();
        let problem = if !is_name || is_reserved(item) || item == FRAME {
            let message = format!("`{item}` cannot be the name of an item");
            Problem::error(Code::InvalidValue, span, message)
        } else if let Some(line) = taken(around, item) {
            let message = format!("`{item}` is already visible in this body: it is declared on line {line}");
            let help = named.is_none().then(|| "name the item by `as`".to_owned());
            Problem::error(Code::ShadowedName, span, message).help(help)
        } else {
            return;
        };
        self.sink.push(problem.node(node.id.as_ref()).key(node.key("input.as")));
    }
}

/// Whether each frame of the body has this name.
fn declared(around: Around<'_>, name: &str) -> bool {
    name == FRAME || around.declares(name)
}

/// The line of the node or item around a body that has this name and can be seen in the body.
fn taken(around: Around<'_>, name: &str) -> Option<u32> {
    let mut around = Some(around);
    while let Some(here) = around {
        let found = here.body.index.get(name).filter(|&&node| here.body.links.precedes(node, here.node));
        if let Some(node) = found {
            return Some(here.body.spec.nodes[node.0 as usize].id_span.start.line);
        }
        around = here.body.around;
        if let Some(outer) = around.filter(|outer| outer.kind == FrameKind::Item(name)) {
            return Some(outer.node().spec.id_span.start.line);
        }
    }
    None
}
